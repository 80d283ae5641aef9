//! What there is room for. All in tokens.

use crate::config::{self, Prune, Summariser, Threshold};

/// The room of one model's window, and how a compaction may use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// All that a request and its reply may take together.
    pub window: u64,
    /// Of that, what is kept free for the reply.
    pub reserve: u64,
    /// The system text and the tools.
    pub frame: u64,
    /// What the next request takes, as clients are shown it; `None` where only our own count is known.
    pub used: Option<u64>,
    /// The tokens in context from which on a compaction is due; the whole window where none is by itself.
    pub due_at: u64,
    /// What the model's summary may take; nothing where none is asked.
    pub summary_max: u64,
    /// What the tables computed from the log may take.
    pub carried_max: u64,
    /// What the user's own words are guaranteed besides the last request, whatever else there is.
    pub user_min: u64,
    /// What pins may take.
    pub pins_max: u64,
    pub prune: Prune,
}

/// The part of a window that the model's summary may take, as a divisor: in a small one it would push out all
/// else.
const SUMMARY_PART: u64 = 16;

/// The part of a window that the computed tables may take, as a divisor.
const CARRIED_PART: u64 = 16;

impl Budget {
    /// What a configuration says for a window. `reserve` and `frame` are the model's and the thread's.
    pub fn of(settings: &config::Compaction, window: u64, reserve: u64, frame: u64) -> Budget {
        let share = |share: f64| (window as f64 * share) as u64;
        let longest = u64::from(settings.max_summary_tokens).min(window / SUMMARY_PART);
        // Where no model is asked, nothing is kept free for what it would write.
        let summary_max = if settings.model == Summariser::Nobody { 0 } else { longest };
        let due_at = match settings.threshold {
            Threshold::Never => window,
            Threshold::Ratio(ratio) => share(ratio),
            Threshold::Used(tokens) => tokens.min(window),
            Threshold::Left(tokens) => window.saturating_sub(tokens),
        };
        Budget {
            window,
            reserve,
            frame,
            used: None,
            due_at,
            summary_max,
            carried_max: u64::from(settings.max_summary_tokens).min(window / CARRIED_PART),
            user_min: share(settings.person_share),
            pins_max: share(settings.pin_share),
            prune: settings.prune,
        }
    }

    /// What a view may take beside the frame and the reply.
    pub fn room(&self) -> u64 {
        self.window.saturating_sub(self.frame + self.reserve)
    }
}
