//! The token budget of a compaction.

use epitome_thread::compaction_settings::{CompactionSettings, PruneSettings, Summariser};

/// The window of a model, and the shares of it that a compaction may use. All in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Limit for a request and its reply together.
    pub window: u64,
    /// The part of the window that is reserved for the reply: no more than is left when a compaction is due.
    pub reserve: u64,
    /// The size of the system prompt and the tool definitions.
    pub frame: u64,
    /// Tokens of the next request as clients see them; `None` if only Epitome's estimate is known.
    pub used: Option<u64>,
    /// Tokens in context at which a compaction is due; the entire window if none runs automatically.
    pub due_at: u64,
    /// Limit for the model's summary; 0 if no model is asked.
    pub summary_max: u64,
    /// Limit for the tables computed from the log.
    pub carried_max: u64,
    /// Guaranteed room for the user's messages, in addition to the last request.
    pub user_min: u64,
    /// Limit for pins.
    pub pins_max: u64,
    pub prune: PruneSettings,
}

/// Divisor: the largest share of a window for the model's summary. In a small window it would push out
/// everything else.
const SUMMARY_PART: u64 = 16;

/// Divisor: the largest share of a window for the computed tables.
const CARRIED_PART: u64 = 16;

/// Limit for the tables in percent of that for a summary. They are computed for free, and what they list takes more room than
/// a model's sentences about it: on real sessions they keep more up to about 10,000 tokens, and hardly anything beyond.
const CARRIED_PERCENT: u64 = 250;

impl Budget {
    /// The budget that the settings give for a window. `reserve` depends on the model, `frame` on the thread.
    pub fn new(settings: &CompactionSettings, window: u64, reserve: u64, frame: u64) -> Budget {
        let share = |share: f64| (window as f64 * share) as u64;
        let longest = u64::from(settings.max_summary_tokens).min(window / SUMMARY_PART);
        // Without a model, no room is needed for its summary.
        let summary_max = if settings.model == Summariser::None { 0 } else { longest };
        let due_at = settings.threshold.due_at(window).filter(|due_at| *due_at < window);
        Budget {
            window,
            // Requests are that long before a compaction is due, so after one they need no more room.
            reserve: due_at.map_or(reserve, |due_at| reserve.min(window - due_at)),
            frame,
            used: None,
            due_at: due_at.unwrap_or(window),
            summary_max,
            carried_max: (u64::from(settings.max_summary_tokens) * CARRIED_PERCENT / 100)
                .min(window / CARRIED_PART),
            user_min: share(settings.person_share),
            pins_max: share(settings.pin_share),
            prune: settings.prune,
        }
    }

    /// The room for a view next to the frame and the reply.
    pub fn room(&self) -> u64 {
        self.window.saturating_sub(self.frame + self.reserve)
    }
}
