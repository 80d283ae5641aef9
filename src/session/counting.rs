//! How the session counts tokens: with its model's ruler, and only what is new.

use super::actor::Session;
use super::registry::Services;
use crate::provider::learned::Source;
use crate::thread::{Change, Entry};
use crate::tokens::Ruler;

/// From so many tokens in context on, the vocabulary is worth its memory and its second of CPU time. An
/// estimate of less is wrong by a few hundred tokens at most, which no window is short of.
const VOCABULARY_FROM_TOKENS: u64 = 10_000;

impl Services {
    /// Reads what earlier processes learned of models, the first time. It is off the way of a start: what
    /// needs it waits for it, and nothing else does.
    pub async fn recall(&self) {
        self.learned.load().await;
        for (model, calibration) in self.learned.calibrations() {
            self.rulers.know(&model, calibration);
        }
    }
}

impl Session {
    /// What tokens of the chosen model are counted with.
    pub(super) fn ruler(&self) -> Ruler {
        let model = self.endpoint.as_ref().map(|endpoint| &endpoint.name);
        self.services.rulers.of(model.or(self.thread.model()))
    }

    /// The tokens that the next request takes.
    pub(super) fn tokens_in_context(&mut self) -> u64 {
        let ruler = self.ruler();
        let tokens = self.counter.in_context(&ruler, &self.thread);
        if tokens >= VOCABULARY_FROM_TOKENS && self.work.is_some() {
            self.services.rulers.load();
        }
        tokens
    }

    /// Compares what was counted of a request with what the provider says of it, before the reply is
    /// applied. An estimate is not compared: what it is wrong by says nothing of the model.
    pub(super) fn learn_tokens(&mut self, reply: &Entry) {
        let Change::Replied { model, usage: Some(usage), cut: None, .. } = &reply.change else { return };
        let ruler = self.services.rulers.of(Some(model));
        // A server that leaves out what does not fit counts less than it was sent.
        if self.window_from != Source::Truncation
            && let Some(sent) = self.counter.request(&ruler, &self.thread)
        {
            let calibration = self.services.rulers.learn(model, sent, usage.input);
            self.services.learned.learn_calibration(model, calibration);
        }
    }
}
