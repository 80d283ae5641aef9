//! Settings of compactions, as plain data: `config` reads them, the pure `compaction` decides by them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::named_enum;

/// When and how a long conversation is compacted. Shares and ratios are fractions of the context window, from
/// 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionSettings {
    /// Whether compaction runs automatically.
    pub auto: bool,
    pub threshold: CompactionThreshold,
    /// Fraction of the window at which compaction is required before a model call; the space reserved for the reply
    /// counts as used.
    pub must_ratio: f64,
    /// Maximum size of the tail that an automatic compaction keeps, as a fraction of the window.
    pub preserve_ratio: f64,
    pub model: Summariser,
    /// Whether the message of a compaction is sent as a system message where the wire format has one anywhere in a
    /// conversation, instead of as a user message, which every provider accepts.
    pub summary_as_system: bool,
    /// Whether a summary is prepared in the background before it is needed.
    pub ahead: bool,
    pub before_break: BeforeBreak,
    /// Maximum duration of one model call that writes a summary.
    pub summary_timeout: Duration,
    /// Maximum duration of all attempts together.
    pub timeout: Duration,
    /// Maximum characters kept of each message when the conversation is too long to be summarized in full.
    pub message_chars: usize,
    pub prune: PruneSettings,
    /// Maximum size of a summary, in tokens.
    pub max_summary_tokens: u32,
    /// Maximum share for pins, which are never dropped.
    pub pin_share: f64,
    /// Share of the window for the user's messages, which are kept verbatim within it.
    pub person_share: f64,
    /// Tokens reserved for a reply, at most a quarter of the window.
    pub output_reserve: u32,
}

named_enum! {
    /// What a pause leads to shortly before the provider forgets the conversation, if a compaction would save at least a tenth of
    /// what the next request costs after that. `offer` tells the user what it would save.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BeforeBreak {
        Nothing = "nothing",
        Offer = "offer",
        Compact = "compact",
    }
}

/// The model that writes the summary of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Summariser {
    /// The small model if it costs less than the session's and its window holds the conversation.
    #[default]
    Cheapest,
    Main,
    /// `models.small`, or the session's model if there is no small one.
    Small,
    /// No model is called: the summary consists only of facts extracted by code.
    None,
    Named(String),
}

/// Determines which old tool results are truncated, and how much of them is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneSettings {
    /// Maximum length in characters of texts that are left unchanged.
    pub min_chars: usize,
    /// Characters kept of a longer text.
    pub keep_chars: usize,
    /// Number of newest messages whose tool results are left unchanged.
    pub keep_recent: usize,
}

impl Default for PruneSettings {
    fn default() -> PruneSettings {
        PruneSettings { min_chars: 1_000, keep_chars: 200, keep_recent: 6 }
    }
}

/// Condition for an automatic compaction after a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionThreshold {
    Never,
    /// Used fraction of the window.
    Ratio(f64),
    /// Tokens used.
    Used(u64),
    /// Tokens left.
    Left(u64),
}

impl CompactionThreshold {
    /// Parses a fraction of the window from 0 to 1; 0 means never. Returns `None` if the text is not such a number.
    pub fn from_ratio(text: &str) -> Option<CompactionThreshold> {
        let ratio = text.trim().parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio))?;
        Some(if ratio == 0.0 { CompactionThreshold::Never } else { CompactionThreshold::Ratio(ratio) })
    }

    /// The tokens in context at which a compaction is due; `None` for never. Numbers of tokens may be meant for a larger
    /// window than this one. Then a part of it must be usable before a compaction, and a part must be left after it.
    pub fn due_at(self, window: u64) -> Option<u64> {
        match self {
            CompactionThreshold::Never => None,
            CompactionThreshold::Ratio(ratio) => Some((window as f64 * ratio) as u64),
            CompactionThreshold::Used(tokens) => Some(tokens.min(window - window / LEFT_PART)),
            CompactionThreshold::Left(tokens) => Some(window.saturating_sub(tokens).max(window / USED_PART)),
        }
    }
}

/// Divisors: the parts of a window that are left at a threshold in tokens used, and used at one in tokens left.
const LEFT_PART: u64 = 20;
const USED_PART: u64 = 2;

impl Default for CompactionSettings {
    fn default() -> CompactionSettings {
        CompactionSettings {
            auto: true,
            threshold: CompactionThreshold::Ratio(0.80),
            must_ratio: 0.95,
            preserve_ratio: 0.40,
            model: Summariser::Cheapest,
            summary_as_system: false,
            ahead: false,
            before_break: BeforeBreak::Offer,
            summary_timeout: Duration::from_secs(120),
            timeout: Duration::from_secs(180),
            message_chars: 2_000,
            prune: PruneSettings::default(),
            max_summary_tokens: 4096,
            pin_share: 0.25,
            person_share: 0.20,
            output_reserve: 16_384,
        }
    }
}
