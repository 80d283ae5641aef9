//! Decides when a compaction is due, with counts that are cheap enough for every model call.

use super::Compactor;
use crate::core::Core;
use epitome_compaction::backoff::Fullness;
use epitome_provider::endpoint::Endpoint;

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
        let used = core.tokens_at_most();
        self.backoff.is_due(&core.ruler(), &core.thread, Fullness { used, size, at })
    }

    /// Whether the next request might not fit, so that the conversation must be shortened before it is sent.
    /// Never below the configured threshold: in a small window, the room for a reply is a large part.
    pub(crate) fn is_due_before(&self, core: &mut Core, endpoint: &Endpoint) -> bool {
        let size = endpoint.window;
        let Some(threshold) = core.auto_compact_at(size) else { return false };
        let reserve = core.reserve() as f64 / size.max(1) as f64;
        let at = (core.settings.compaction.must_ratio - reserve).max(threshold);
        // If the provider counts tokens before the call, the upper bound of the estimate is unnecessary.
        let used = match endpoint.count_url() {
            Some(_) => core.tokens_in_context(),
            None => core.tokens_at_most(),
        };
        // Just after a compaction, a model with a smaller window may have been chosen.
        let exceeds_window = used > size && !self.is_paused(core);
        exceeds_window || self.backoff.is_due(&core.ruler(), &core.thread, Fullness { used, size, at })
    }
}
