//! Token counting with the model's ruler; only new entries are counted.

use super::ModelLink;
use crate::services::SessionServices;
use epitome_provider::learned::Learned;
use epitome_thread::{Change, Entry, Thread};
use epitome_tokens::{Ruler, Rulers};

impl SessionServices {
    /// Loads what earlier processes learned about models, once. It does not delay the start; only what needs it waits
    /// for it.
    pub async fn recall(&self) {
        recall(&self.learned, &self.rulers).await;
    }
}

pub(super) async fn recall(learned: &Learned, rulers: &Rulers) {
    learned.load().await;
    for (model, calibration) in learned.calibrations() {
        rulers.know(&model, calibration);
    }
}

impl ModelLink {
    /// The token counter for the chosen model.
    pub fn ruler(&self, thread: &Thread) -> Ruler {
        let model = self.endpoint.as_ref().map(|endpoint| &endpoint.name);
        let ruler = self.rulers.for_model(model.or(thread.model()));
        if self.counts_exactly { ruler } else { ruler.exact(None) }
    }

    /// Tokens of the next request, as shown to clients.
    pub fn tokens_in_context(&mut self, thread: &Thread) -> u64 {
        self.counter.in_context(&self.ruler(thread), thread)
    }

    /// The likely tokens of the next request, and an upper bound of them.
    pub fn likely_tokens(&mut self, thread: &Thread) -> (u64, u64) {
        self.counter.likely(&self.ruler(thread), thread)
    }

    /// Upper bound of the tokens of the next request, to decide whether it fits.
    pub fn tokens_at_most(&mut self, thread: &Thread) -> u64 {
        self.counter.at_most(&self.ruler(thread), thread)
    }

    /// Loads the vocabulary in the background, for exact counts.
    pub fn load_vocabulary(&self) {
        self.rulers.load();
    }

    /// Tokens in context before and after a change of the view. `view` has the tokens of the view alone, before and
    /// after.
    pub fn context_sizes(&mut self, view: (u64, u64), thread: &Thread) -> (u64, u64) {
        let now = self.tokens_in_context(thread);
        (now, self.ruler(thread).in_context_then(thread, now, view))
    }

    /// The change with the token counts that clients see: those of the entire context instead of the view alone.
    pub fn sized(&mut self, mut change: Change, thread: &Thread) -> Change {
        if let Change::Compacted { tokens_before, tokens_after, window: window @ None, .. }
        | Change::Pruned { tokens_before, tokens_after, window: window @ None, .. }
        | Change::Mutated { tokens_before, tokens_after, window: window @ None, .. } = &mut change
        {
            *window = Some(self.window());
            (*tokens_before, *tokens_after) = self.context_sizes((*tokens_before, *tokens_after), thread);
        }
        change
    }

    /// Calibrates the counter with the usage that the provider reports, before the reply is applied. A coarse estimate
    /// is not compared: its error says nothing about the model.
    pub fn learn_tokens(&mut self, reply: &Entry, thread: &Thread) {
        let Change::Replied { model, usage, cut, .. } = &reply.change else { return };
        // The vocabulary is loaded in the background; numbers already shown do not change.
        self.counts_exactly = self.rulers.ready().is_some();
        // Nothing is known exactly of a context that was read several times.
        let Some(usage) = usage.filter(|usage| cut.is_none() && usage.context == 0) else { return };
        // The counter takes those for sent.
        if self.encoding.leaves_images_out() {
            return;
        }
        let ruler = self.rulers.for_model(Some(model));
        if let Some(sent) = self.counter.request(&ruler, thread) {
            let calibration = self.rulers.learn(model, sent, usage.input);
            self.learned.learn_calibration(model, calibration);
        }
    }
}
