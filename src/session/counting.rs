//! How the session counts tokens: with its model's ruler, and only what is new.

use super::actor::Session;
use super::registry::Services;
use crate::thread::{Change, Entry};
use crate::tokens::{Count, Ruler};

/// From so many tokens in context on, the vocabulary is worth its memory and its second of CPU time, and
/// from this part of a small window on. An estimate of less is wrong by a fifth at most: 2,000 tokens, and a
/// fortieth of such a window.
const VOCABULARY_FROM_TOKENS: u64 = 10_000;
const VOCABULARY_FROM_PART: u64 = 8;

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
        self.count().tokens()
    }

    /// The tokens that the next request takes at most: for who decides whether it fits.
    pub(super) fn tokens_at_most(&mut self) -> u64 {
        let count = self.count();
        self.ruler().at_most(count)
    }

    /// The same, by who says so.
    pub(super) fn count(&mut self) -> Count {
        let ruler = self.ruler();
        let count = self.counter.count(&ruler, &self.thread);
        let window = self.endpoint.as_ref().map(|endpoint| endpoint.window);
        if count.tokens() >= vocabulary_from(window) && self.work.is_some() {
            self.services.rulers.load();
        }
        count
    }

    /// Compares what was counted of a request with what the provider says of it, before the reply is
    /// applied. An estimate is not compared: what it is wrong by says nothing of the model.
    pub(super) fn learn_tokens(&mut self, reply: &Entry) {
        let Change::Replied { model, usage: Some(usage), cut: None, .. } = &reply.change else { return };
        let ruler = self.services.rulers.of(Some(model));
        if let Some(sent) = self.counter.request(&ruler, &self.thread) {
            let calibration = self.services.rulers.learn(model, sent, usage.input);
            self.services.learned.learn_calibration(model, calibration);
        }
    }
}

/// The tokens in context from which on the vocabulary is wanted; `None` where the window is not known.
fn vocabulary_from(window: Option<u64>) -> u64 {
    window.map_or(VOCABULARY_FROM_TOKENS, |window| VOCABULARY_FROM_TOKENS.min(window / VOCABULARY_FROM_PART))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_is_there_before_a_small_window_is_full() {
        for (window, from) in [
            (None, 10_000),
            (Some(8_192), 1_024),
            (Some(32_768), 4_096),
            (Some(80_000), 10_000),
            (Some(1_000_000), 10_000),
        ] {
            assert_eq!(vocabulary_from(window), from, "{window:?}");
        }
    }
}
