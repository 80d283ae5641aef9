//! Writing summaries in the background before they are needed (`compaction.prepared`).

use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::super::Session;
use crate::background::BackgroundResult;
use crate::summary::SummaryAttempt;
use crate::{cpu_worker, effects};
use epitome_compaction::{CompactionDecision, CompactionPlan};
use epitome_config::Summariser;
use epitome_thread::{Seq, Trigger};

impl Session {
    /// Starts a summary if one will soon be needed.
    pub(in crate::actor) fn prepare_summary(&mut self) {
        let settings = &self.core.settings.compaction;
        if !settings.ahead || settings.model == Summariser::None || self.core.thread.frame().is_none() {
            return;
        }
        let Some(main) = self.core.model.endpoint().cloned() else { return };
        if !self.compactor.will_need_summary(&mut self.core, &main) {
            return;
        }
        self.drop_prepared();
        let revision = self.core.thread.view().revision();
        let deciding = self.compactor.deciding(&mut self.core, None, Trigger::Threshold);
        let job = self.core.start(cpu_worker::run(deciding), BackgroundResult::SummaryPlanned);
        self.compactor.await_prepared(job, revision);
    }

    /// Starts writing the planned summary, unless the view has changed.
    pub(in crate::actor) fn summary_planned(&mut self, decided: Option<(Seq, CompactionDecision)>) {
        let Some((revision, decision)) = decided.filter(|(revision, _)| self.compactor.is_awaited(*revision))
        else {
            return;
        };
        let is_current = revision == self.core.thread.view().revision();
        let (CompactionDecision::Summarise(plan), Some(main), true) =
            (decision, self.core.model.endpoint().cloned(), is_current)
        else {
            return self.compactor.give_up_prepared();
        };
        // Not shown, since it may never be used.
        let (pieces, _) = mpsc::channel(1);
        let instruction = self.recipes.summary_instruction(&self.core);
        let writing = self.compactor.writing(&self.core, main, &plan, instruction, pieces);
        let writing = effects::guarded(writing, SummaryAttempt::unfinished);
        let writing = writing.instrument(self.core.trace.session().clone());
        let plan = Box::new(plan);
        let job = self.core.start(writing, |attempt| BackgroundResult::SummaryPrepared(plan, attempt));
        self.compactor.await_prepared(job, revision);
    }

    /// Keeps a summary that was written in advance.
    pub(in crate::actor) fn summary_prepared(&mut self, plan: Box<CompactionPlan>, attempt: SummaryAttempt) {
        let summary = self.take_attempt(attempt).inspect_err(|error| {
            tracing::info!(session = %self.core.id(), %error, "no summary could be prepared");
        });
        let unused = self.compactor.keep_prepared(plan, summary.ok());
        self.spend_on_unused(unused);
    }

    /// Discards the prepared summary, or aborts it.
    pub(in crate::actor) fn drop_prepared(&mut self) {
        let unused = self.compactor.drop_prepared();
        self.spend_on_unused(unused);
    }
}
