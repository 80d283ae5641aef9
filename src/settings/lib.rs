//! Settings that are used far from where they are read: of providers and of compactions, as plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A provider that speaks a wire format that we know. URL and headers may hold keys, so `Debug` shows
/// the names of the headers alone.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    pub wire: WireFormat,
    pub base_url: String,
    /// The environment variable that holds the key; `None` sends none.
    pub key_variable: Option<String>,
    pub headers: BTreeMap<String, String>,
}

impl fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("wire", &self.wire)
            .field("key_variable", &self.key_variable)
            .field("headers", &self.headers.keys())
            .finish_non_exhaustive()
    }
}

/// What a person wants otherwise of a built-in provider, whose address stays that of the environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BuiltInSettings {
    pub wire: Option<WireFormat>,
    /// Instead of the provider's usual variable.
    pub key_variable: Option<String>,
    pub headers: BTreeMap<String, String>,
}

impl fmt::Debug for BuiltInSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuiltInSettings")
            .field("wire", &self.wire)
            .field("key_variable", &self.key_variable)
            .field("headers", &self.headers.keys())
            .finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFormat {
    AnthropicMessages,
    OpenAiResponses,
    OpenAiChat,
    Gemini,
}

impl WireFormat {
    pub const ALL: [WireFormat; 4] = [
        WireFormat::AnthropicMessages,
        WireFormat::OpenAiResponses,
        WireFormat::OpenAiChat,
        WireFormat::Gemini,
    ];

    /// Its name in a configuration file.
    pub fn id(self) -> &'static str {
        match self {
            WireFormat::AnthropicMessages => "anthropic",
            WireFormat::OpenAiResponses => "openai_responses",
            WireFormat::OpenAiChat => "openai_chat",
            WireFormat::Gemini => "gemini",
        }
    }

    /// Whether a service of this format can make a conversation short in a form of its own.
    pub fn compacts(self) -> bool {
        match self {
            WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => true,
            WireFormat::OpenAiChat | WireFormat::Gemini => false,
        }
    }
}

/// When and how a long conversation is made short. Shares and ratios are parts of the window, from 0 to
/// 1.
///
/// The key `summary_role` has no field: a summary is a user's message, which every provider takes, and another role
/// is told as a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    /// Whether it happens by itself.
    pub auto: bool,
    pub threshold: Threshold,
    /// Before a model call, at this share of the budget, it must happen.
    pub must_ratio: f64,
    /// The newest share of the conversation that a compaction by threshold keeps.
    pub preserve_ratio: f64,
    pub model: Summariser,
    /// Whether a summary is prepared in the background before it is needed.
    pub ahead: bool,
    /// How long one call of a model may take that writes a summary.
    pub summary_timeout: Duration,
    /// How long all tries together may take.
    pub timeout: Duration,
    /// Characters of one message that are told where a conversation is too long to be told whole.
    pub message_chars: usize,
    pub prune: Prune,
    /// Tokens.
    pub max_summary_tokens: u32,
    /// What pins may take: they never give way.
    pub pin_share: f64,
    /// What the person typed stays verbatim within this share.
    pub person_share: f64,
    /// Tokens kept free for a reply, at most a quarter of the window.
    pub output_reserve: u32,
}

/// Who writes the summary of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Summariser {
    /// The session's own model or the small one, by what it costs.
    #[default]
    Cheapest,
    Main,
    /// `models.small`; the session's own, where there is none.
    Small,
    /// No model is asked: the facts that are found by code stand alone.
    Nobody,
    Named(String),
}

/// Which old outcomes of tools are cut, and what stays of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Texts of so many characters or fewer stay as they are.
    pub min_chars: usize,
    /// What stays of a longer one.
    pub keep_chars: usize,
    /// The newest messages whose outcomes stay as they are.
    pub keep_recent: usize,
}

impl Default for Prune {
    fn default() -> Prune {
        Prune { min_chars: 1_000, keep_chars: 200, keep_recent: 6 }
    }
}

/// The moment of an automatic compaction after a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    Never,
    /// Share of the window that is used.
    Ratio(f64),
    /// Tokens used.
    Used(u64),
    /// Tokens left.
    Left(u64),
}

impl Threshold {
    /// A share of the window as a person writes it, from 0 to 1; 0 is never. `None`: it is neither.
    pub fn of_ratio(text: &str) -> Option<Threshold> {
        let ratio = text.trim().parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio))?;
        Some(if ratio == 0.0 { Threshold::Never } else { Threshold::Ratio(ratio) })
    }
}

impl Default for Compaction {
    fn default() -> Compaction {
        Compaction {
            auto: true,
            threshold: Threshold::Ratio(0.80),
            must_ratio: 0.95,
            preserve_ratio: 0.40,
            model: Summariser::Cheapest,
            ahead: false,
            summary_timeout: Duration::from_secs(120),
            timeout: Duration::from_secs(180),
            message_chars: 2_000,
            prune: Prune::default(),
            max_summary_tokens: 4096,
            pin_share: 0.25,
            person_share: 0.20,
            output_reserve: 16_384,
        }
    }
}
