//! Decides when a compaction is due, with counts that are cheap enough for every model call.

use super::Compactor;
use crate::core::Core;
use epitome_compaction::backoff::Fullness;
use epitome_config::CompactionThreshold;
use epitome_provider::endpoint::Endpoint;

/// The part of the threshold from which tokens are counted with the vocabulary, which takes 0.2 s of CPU time and 18 MB.
/// Below it, the fifth by which an estimate may be wrong makes no compaction due, and most of a context has the size that
/// the provider reported. A `/compact` below it plans with estimates.
const EXACT_FROM_PART: f64 = 0.5;

impl Core {
    /// The fraction of the context window at which a compaction starts automatically; `None` if it doesn't.
    pub(crate) fn auto_compact_at(&self, size: u64) -> Option<f64> {
        let settings = &self.settings.compaction;
        // A callback's settings have it off, and its thread has no choice of the user.
        if !self.thread.auto_compact().unwrap_or(settings.auto) {
            return None;
        }
        match settings.threshold {
            CompactionThreshold::Ratio(ratio) => Some(ratio),
            threshold => threshold.due_at(size).map(|tokens| tokens as f64 / size.max(1) as f64),
        }
    }
}

/// The fraction of the window at which the conversation is compacted before it is sent, because the next request might
/// not fit; `None` if it isn't. Never below the configured threshold: in a small window, the room for a reply is a
/// large part.
pub(crate) fn must_compact_at(core: &Core, size: u64) -> Option<f64> {
    let threshold = core.auto_compact_at(size)?;
    let reserve = core.reserve() as f64 / size.max(1) as f64;
    Some((core.settings.compaction.must_ratio - reserve).max(threshold))
}

/// The tokens in context that are compared with a threshold: the likely ones, so that a compaction is made at the
/// configured share and not before; or an upper bound of them, if that might exceed the window.
fn used_of(core: &mut Core, size: u64) -> u64 {
    let (likely, most) = core.model.likely_tokens(&core.thread);
    let is_risky = most as f64 >= size as f64 * core.settings.compaction.must_ratio;
    if is_risky { most } else { likely }
}

impl Compactor {
    pub(crate) fn is_paused(&self, core: &Core) -> bool {
        self.backoff.is_paused(&core.ruler(), &core.thread, core.model.window())
    }

    /// Tokens in context at which an automatic compaction runs; `None` if none does or the window is
    /// unknown.
    pub(crate) fn next_at(&self, core: &Core) -> Option<u64> {
        let size = core.model.known_window()?;
        let at = core.auto_compact_at(size)?;
        let ruler = core.ruler();
        let used = ruler.in_context(&core.thread);
        Some(self.backoff.due_at(&ruler, &core.thread, Fullness { used, size, at }))
    }

    /// Whether the configured share of the window is used, and a compaction would help.
    pub(crate) fn is_due(&self, core: &mut Core) -> bool {
        let Some(size) = core.model.known_window() else { return false };
        let Some(at) = core.auto_compact_at(size) else { return false };
        let used = used_of(core, size);
        if exact_counts_pay(used, size, at) {
            core.model.load_vocabulary();
        }
        self.backoff.is_due(&core.ruler(), &core.thread, Fullness { used, size, at })
    }

    /// Whether the next request might not fit, so that the conversation must be shortened before it is sent.
    pub(crate) fn is_due_before(&self, core: &mut Core, endpoint: &Endpoint) -> bool {
        let size = endpoint.window;
        let Some(at) = must_compact_at(core, size) else { return false };
        // If the provider counts tokens before the call, the upper bound of the estimate is unnecessary.
        let used = match endpoint.count_url() {
            Some(_) => core.tokens_in_context(),
            None => used_of(core, size),
        };
        if exact_counts_pay(used, size, at) {
            core.model.load_vocabulary();
        }
        // Just after a compaction, a model with a smaller window may have been chosen.
        let exceeds_window = used > size && !self.is_paused(core);
        exceeds_window || self.backoff.is_due(&core.ruler(), &core.thread, Fullness { used, size, at })
    }
}

fn exact_counts_pay(used: u64, size: u64, threshold: f64) -> bool {
    used as f64 >= size as f64 * threshold * EXACT_FROM_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vocabulary was loaded from an eighth of the window on, in a small window before the first request, although
    /// the provider reports the size with its first reply. An idle daemon kept 18 MB for it.
    #[test]
    fn the_vocabulary_is_loaded_on_the_way_to_a_compaction() {
        for (used, size, threshold, expected) in [
            (10_000, 32_768, 0.8, false),
            (14_000, 32_768, 0.8, true),
            (79_000, 200_000, 0.8, false),
            (80_000, 200_000, 0.8, true),
            // A threshold of 60,000 tokens in a window of a million.
            (30_000, 1_000_000, 0.06, true),
        ] {
            assert_eq!(exact_counts_pay(used, size, threshold), expected, "{used} of {size} at {threshold}");
        }
    }
}
