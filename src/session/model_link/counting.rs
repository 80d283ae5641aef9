//! Counting tokens: with the model's ruler, and only what is new.

use super::ModelLink;
use crate::registry::SessionServices;
use epitome_provider::learned::Learned;
use epitome_thread::{Change, Entry, Thread};
use epitome_tokens::{Ruler, Rulers};

/// From so many tokens in context on, the vocabulary is worth its memory and its second of CPU time, and
/// from this part of a small window on. An estimate of less is wrong by a fifth at most: 2,000 tokens, and a
/// fortieth of such a window.
const VOCABULARY_FROM_TOKENS: u64 = 10_000;
const VOCABULARY_FROM_PART: u64 = 8;

impl SessionServices {
    /// Reads what earlier processes learned of models, the first time. It is off the way of a start: what
    /// needs it waits for it, and nothing else does.
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
    /// What tokens of the chosen model are counted with.
    pub fn ruler(&self, thread: &Thread) -> Ruler {
        let model = self.endpoint.as_ref().map(|endpoint| &endpoint.name);
        let ruler = self.rulers.for_model(model.or(thread.model()));
        if self.counts_exactly { ruler } else { ruler.exact(None) }
    }

    /// The tokens that the next request takes, as clients are shown them. `in_turn`: whether a turn runs, so that an
    /// exact count is worth loading the vocabulary.
    pub fn tokens_in_context(&mut self, thread: &Thread, in_turn: bool) -> u64 {
        let tokens = self.counter.in_context(&self.ruler(thread), thread);
        self.want_vocabulary(tokens, in_turn);
        tokens
    }

    /// The tokens that the next request takes at most: for who decides whether it fits.
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

    /// The tokens in context before and after a change of the view, which by our count of the view takes so many
    /// before and after it.
    pub fn context_sizes(&mut self, view: (u64, u64), thread: &Thread, in_turn: bool) -> (u64, u64) {
        let now = self.tokens_in_context(thread, in_turn);
        (now, self.ruler(thread).in_context_then(thread, now, view))
    }

    /// The change with the numbers that all are shown of it: those of the whole context, and not of the view alone.
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

    /// Compares what was counted of a request with what the provider says of it, before the reply is
    /// applied. An estimate is not compared: what it is wrong by says nothing of the model.
    pub fn learn_tokens(&mut self, reply: &Entry, thread: &Thread) {
        let Change::Replied { model, usage, cut, .. } = &reply.change else { return };
        // It is loaded in the background, and no number that was shown changes by it.
        self.counts_exactly = self.rulers.ready().is_some();
        let (Some(usage), None) = (usage, cut) else { return };
        let ruler = self.rulers.for_model(Some(model));
        if let Some(sent) = self.counter.request(&ruler, thread) {
            let calibration = self.rulers.learn(model, sent, usage.input);
            self.learned.learn_calibration(model, calibration);
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
