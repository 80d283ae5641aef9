//! When a compaction is due: comparisons of counts, cheap enough to be made before each model call.

use crate::actor::Session;
use epitome_compaction::pace::Fullness;
use epitome_provider::endpoint::Endpoint;

impl Session {
    pub(crate) fn compaction_is_paused(&self) -> bool {
        let size = self.model.window();
        self.compactor.pace.is_paused(&self.ruler(), &self.thread, size)
    }

    /// Tokens in context at which a compaction happens by itself; `None` where none does, and where the
    /// window is not known.
    pub(crate) fn next_compaction_at(&self) -> Option<u64> {
        let size = self.model.known_window()?;
        let at = self.auto_compact_at(size)?;
        let ruler = self.ruler();
        let used = ruler.in_context(&self.thread);
        Some(self.compactor.pace.due_at(&ruler, &self.thread, Fullness { used, size, at }))
    }

    /// Whether the configured share of the window is used, and a compaction would help.
    pub(crate) fn compaction_is_due(&mut self) -> bool {
        let Some(size) = self.model.known_window() else { return false };
        let Some(at) = self.auto_compact_at(size) else { return false };
        let used = self.tokens_at_most();
        let compacted = self.work.as_ref().is_some_and(|work| work.turn.compacted_since_reply());
        !compacted && self.compactor.pace.is_due(&self.ruler(), &self.thread, Fullness { used, size, at })
    }

    /// Whether the next request might not fit, so that the conversation must be made shorter before it is sent.
    /// It is never so below the configured threshold: in a small window the room for a reply is a large part.
    pub(crate) fn must_compact(&mut self, endpoint: &Endpoint) -> bool {
        let size = endpoint.window;
        let Some(threshold) = self.auto_compact_at(size) else { return false };
        if !self.work.as_ref().is_some_and(|work| work.turn.may_compact_before_call()) {
            return false;
        }
        let reserve = self.reserve() as f64 / size.max(1) as f64;
        let at = (self.settings.compaction.must_ratio - reserve).max(threshold);
        // Who counts before the call need not fear the worst of an estimate.
        let used = match endpoint.count_url() {
            Some(_) => self.tokens_in_context(),
            None => self.tokens_at_most(),
        };
        self.compactor.pace.is_due(&self.ruler(), &self.thread, Fullness { used, size, at })
    }
}
