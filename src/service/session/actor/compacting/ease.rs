//! Pruning of old outcomes between compactions.

use super::super::Session;
use crate::cpu_worker;
use crate::work::JobResult;
use epitome_compaction as compaction;
use epitome_thread::{Change, Seq, Trigger};
use epitome_turn::EffectResult;

impl Session {
    /// Prunes old outcomes if the savings exceed the cost; otherwise starts a summary that will soon be needed.
    pub(in crate::actor) fn prune_old_outcomes(&mut self, edited: bool) {
        let window = self.core.model.known_window();
        let is_on = window.and_then(|window| self.core.auto_compact_at(window)).is_some();
        if !is_on || edited || !self.compactor.may_prune(&mut self.core) {
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
        self.start_job(cpu_worker::run(looking), move |pruned| JobResult::OldOutcomesPruned {
            revision,
            pruned: pruned.flatten(),
        });
    }

    /// Commits a pruning that still fits the view.
    pub(in crate::actor) fn old_outcomes_pruned(&mut self, revision: Seq, pruned: Option<Change>) {
        let pruned = pruned.filter(|_| revision == self.core.thread.view().revision());
        if pruned.is_none() {
            self.prepare_summary();
        }
        self.answer_turn(EffectResult::Eased(pruned.map(Box::new)));
    }
}
