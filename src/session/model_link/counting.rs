//! Token counting with the model's ruler; only new entries are counted.

use super::ModelLink;
use crate::registry::SessionServices;
use epitome_provider::learned::Learned;
use epitome_thread::{Change, Entry, Thread};
use epitome_tokens::{Ruler, Rulers};

/// The vocabulary is worth its 55 MB and its CPU time from this part of the window. Below, an estimate is wrong by a fifth
/// at most, which is a fortieth of the window.
const VOCABULARY_FROM_PART: u64 = 8;

/// The same in tokens, for an unknown window.
const VOCABULARY_FROM_TOKENS: u64 = 10_000;

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

    /// Tokens of the next request, as shown to clients. `in_turn`: whether a turn is running, so that an exact count is
    /// worth loading the vocabulary.
    pub fn tokens_in_context(&mut self, thread: &Thread, in_turn: bool) -> u64 {
        let tokens = self.counter.in_context(&self.ruler(thread), thread);
        self.want_vocabulary(tokens, in_turn);
        tokens
    }

    /// Upper bound of the tokens of the next request, to decide whether it fits.
    pub fn tokens_at_most(&mut self, thread: &Thread, in_turn: bool) -> u64 {
        let tokens = self.counter.at_most(&self.ruler(thread), thread);
        self.want_vocabulary(tokens, in_turn);
        tokens
    }

    fn want_vocabulary(&self, tokens: u64, in_turn: bool) {
        if in_turn && tokens >= vocabulary_from(self.known_window()) {
            self.rulers.load();
        }
    }

    /// Tokens in context before and after a change of the view. `view` has the tokens of the view alone, before and
    /// after.
    pub fn context_sizes(&mut self, view: (u64, u64), thread: &Thread, in_turn: bool) -> (u64, u64) {
        let now = self.tokens_in_context(thread, in_turn);
        (now, self.ruler(thread).in_context_then(thread, now, view))
    }

    /// The change with the token counts that clients see: those of the entire context instead of the view alone.
    pub fn sized(&mut self, mut change: Change, thread: &Thread, in_turn: bool) -> Change {
        if let Change::Compacted { tokens_before, tokens_after, window: window @ None, .. }
        | Change::Pruned { tokens_before, tokens_after, window: window @ None, .. }
        | Change::Mutated { tokens_before, tokens_after, window: window @ None, .. } = &mut change
        {
            *window = Some(self.window());
            (*tokens_before, *tokens_after) =
                self.context_sizes((*tokens_before, *tokens_after), thread, in_turn);
        }
        change
    }

    /// Calibrates the counter with the usage that the provider reports, before the reply is applied. A coarse estimate
    /// is not compared: its error says nothing about the model.
    pub fn learn_tokens(&mut self, reply: &Entry, thread: &Thread) {
        let Change::Replied { model, usage, cut, .. } = &reply.change else { return };
        // The vocabulary is loaded in the background; numbers already shown do not change.
        self.counts_exactly = self.rulers.ready().is_some();
        let (Some(usage), None) = (usage, cut) else { return };
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

/// Tokens in context from which the vocabulary is loaded, given the window in tokens if it is known.
fn vocabulary_from(window: Option<u64>) -> u64 {
    window.map_or(VOCABULARY_FROM_TOKENS, |window| window / VOCABULARY_FROM_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a window of 200,000 tokens the vocabulary was loaded from 10,000 on, which took 0.2 s of CPU time after the
    /// first longer answer, for numbers that hardly changed.
    #[test]
    fn the_vocabulary_is_loaded_when_an_estimate_would_be_too_far_from_it() {
        for (window, from) in [
            (None, 10_000),
            (Some(8_192), 1_024),
            (Some(32_768), 4_096),
            (Some(200_000), 25_000),
            (Some(1_000_000), 125_000),
        ] {
            assert_eq!(vocabulary_from(window), from, "{window:?}");
        }
    }
}
