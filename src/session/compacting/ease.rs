//! Pruning of old outcomes between compactions.

use crate::actor::Session;
use crate::cpu_worker;
use epitome_compaction as compaction;
use epitome_thread::{Change, Seq, Trigger};
use epitome_turn::EffectResult;

/// New tokens in context before old outcomes are examined again.
const EASE_TOKENS: u64 = 10_000;

impl Session {
    /// Prunes old outcomes if the savings exceed the cost; otherwise starts a summary that will soon be needed.
    pub(crate) fn ease(&mut self, edited: bool) {
        let window = self.core.model.known_window();
        let is_on = window.and_then(|window| self.core.auto_compact_at(window)).is_some();
        if !is_on || edited || !self.may_be_due() {
            self.prepare_summary();
            return self.answer_turn(EffectResult::Eased(None));
        }
        let (ruler, budget, thread) =
            (self.core.ruler(), self.compactor.budget(&self.core), self.core.thread.clone());
        let revision = thread.view().revision();
        let looking = move || {
            let masks = compaction::due(&ruler, &thread, &budget)?;
            Some(compaction::pruned(&ruler, &thread, masks, Trigger::Threshold))
        };
        self.start_job(cpu_worker::run(looking), move |session, cut| session.eased(revision, cut));
    }

    fn eased(&mut self, revision: Seq, cut: Option<Option<Change>>) {
        let cut = cut.flatten().filter(|_| revision == self.core.thread.view().revision());
        if cut.is_none() {
            self.prepare_summary();
        }
        self.answer_turn(EffectResult::Eased(cut.map(Box::new)));
    }

    /// Whether the context has grown enough since the last check to be worth another one, which examines the
    /// entire view.
    fn may_be_due(&mut self) -> bool {
        let used = self.core.tokens_in_context();
        let is_worth_it = used >= self.compactor.eased_at + EASE_TOKENS;
        if is_worth_it || used < self.compactor.eased_at {
            self.compactor.eased_at = used;
        }
        is_worth_it
    }
}
