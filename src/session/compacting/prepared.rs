//! Summaries that are written in the background before they are needed (`compaction.prepared`). A summary is used
//! only if the part of the view that it covers is unchanged; later entries follow it.

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::{Compactor, take_attempt};
use crate::actor::Session;
use crate::child_requests::UNUSED_SUMMARY;
use crate::core::Core;
use crate::cpu_worker;
use crate::effects;
use crate::summary::{Attempt, WrittenSummary};
use epitome_compaction::backoff::Fullness;
use epitome_compaction::{CompactionDecision, CompactionPlan, SummaryResult};
use epitome_config::Summariser;
use epitome_thread::Seq;
use epitome_turn::CompactionReason;

/// How long before the threshold a summary is started, in percent of the window.
const BEFORE_PERCENT: u64 = 10;

/// The state of a summary that is prepared in the background.
#[derive(Debug, Default)]
pub enum PreparedSummary {
    #[default]
    None,
    /// The plan is being made, or the summary is being written.
    Writing {
        job: AbortHandle,
        revision: Seq,
    },
    Ready {
        plan: Box<CompactionPlan>,
        summary: Box<WrittenSummary>,
    },
    /// No summary could be written for this revision of the view; it is not attempted again.
    Failed {
        revision: Seq,
    },
}

impl Compactor {
    /// Whether a prepared summary matches the current view.
    pub(crate) fn is_prepared(&self, core: &Core) -> bool {
        let revision = core.thread.view().revision();
        matches!(&self.prepared, PreparedSummary::Ready { plan, .. } if plan.revision == revision)
    }

    /// Whether a summary was paid for that is not used yet.
    pub(crate) fn has_unused(&self) -> bool {
        matches!(self.prepared, PreparedSummary::Ready { .. })
    }

    fn is_awaited(&self, revision: Seq) -> bool {
        matches!(&self.prepared, PreparedSummary::Writing { revision: known, .. } if *known == revision)
    }
}

impl Session {
    /// Starts a summary if one will soon be needed.
    pub(crate) fn prepare_summary(&mut self) {
        let settings = &self.core.settings.compaction;
        if !settings.ahead || settings.model == Summariser::None || self.core.thread.frame().is_none() {
            return;
        }
        let Some(main) = self.core.model.endpoint().cloned() else { return };
        let Some(at) = self.core.auto_compact_at(main.window) else { return };
        let revision = self.core.thread.view().revision();
        let known = match &self.compactor.prepared {
            PreparedSummary::None => None,
            PreparedSummary::Writing { revision, .. } | PreparedSummary::Failed { revision } => {
                Some(*revision)
            }
            PreparedSummary::Ready { plan, .. } => Some(plan.revision),
        };
        if known == Some(revision) {
            return;
        }
        let size = main.window;
        let used = self.core.tokens_at_most() + size.saturating_mul(BEFORE_PERCENT) / 100;
        if !self.compactor.backoff.is_due(&self.core.ruler(), &self.core.thread, Fullness { used, size, at })
        {
            return;
        }
        self.drop_prepared();
        let deciding = self.compactor.deciding(&mut self.core, None, CompactionReason::Threshold);
        let job = self.core.start(cpu_worker::run(deciding), Session::compaction_foreseen);
        self.compactor.prepared = PreparedSummary::Writing { job, revision };
    }

    /// Starts writing the planned summary, unless the view has changed.
    fn compaction_foreseen(&mut self, decided: Option<(Seq, CompactionDecision)>) {
        let Some((revision, decision)) = decided.filter(|(revision, _)| self.compactor.is_awaited(*revision))
        else {
            return;
        };
        let is_current = revision == self.core.thread.view().revision();
        let (CompactionDecision::Summarise(plan), Some(main), true) =
            (decision, self.core.model.endpoint().cloned(), is_current)
        else {
            self.compactor.prepared = PreparedSummary::None;
            return;
        };
        // Not shown, since it may never be used.
        let (pieces, _) = mpsc::channel(1);
        let writing = self.compactor.writing(
            &self.core,
            main,
            &plan,
            self.recipes.summary_instruction(&self.core),
            pieces,
        );
        let writing = effects::guarded(writing, Attempt::panicked);
        let writing = writing.instrument(self.core.trace.session().clone());
        let job = self.core.start(writing, move |session, attempt| session.summary_prepared(plan, attempt));
        self.compactor.prepared = PreparedSummary::Writing { job, revision };
    }

    fn summary_prepared(&mut self, plan: CompactionPlan, attempt: Attempt) {
        let summary = take_attempt(self, attempt);
        let awaited = self.compactor.is_awaited(plan.revision);
        match summary {
            Ok(summary) if awaited => {
                self.compactor.prepared =
                    PreparedSummary::Ready { plan: Box::new(plan), summary: Box::new(summary) };
            }
            Ok(summary) => self.record_unused(&summary),
            Err(error) => {
                tracing::info!(session = %self.core.id(), %error, "no summary could be prepared");
                if awaited {
                    self.compactor.prepared = PreparedSummary::Failed { revision: plan.revision };
                }
            }
        }
    }

    /// Takes the prepared summary and its plan if they match the wanted compaction.
    pub(crate) fn take_prepared(
        &mut self,
        wanted: &CompactionPlan,
        why: CompactionReason,
    ) -> Option<(CompactionPlan, SummaryResult)> {
        let order = &self.compactor.order;
        let is_plain = matches!(why, CompactionReason::Threshold | CompactionReason::Must)
            && order.instruction.is_none()
            && order.recipe.is_none()
            && order.context.is_empty();
        let (plan, summary) = match std::mem::take(&mut self.compactor.prepared) {
            PreparedSummary::Ready { plan, summary } => (plan, summary),
            unfinished => {
                self.compactor.prepared = unfinished;
                self.drop_prepared();
                return None;
            }
        };
        // It keeps what was kept when it was written, plus everything newer: no less than promised, even if the limits
        // have changed since.
        if !is_plain || plan.revision != wanted.revision {
            self.record_unused(&summary);
            return None;
        }
        let plan = CompactionPlan { trigger: wanted.trigger, ..*plan };
        Some((plan, summary.written()))
    }

    /// Discards the prepared summary, or aborts it.
    pub(crate) fn drop_prepared(&mut self) {
        match std::mem::take(&mut self.compactor.prepared) {
            PreparedSummary::None | PreparedSummary::Failed { .. } => {}
            PreparedSummary::Writing { job, .. } => job.abort(),
            PreparedSummary::Ready { summary, .. } => self.record_unused(&summary),
        }
    }

    fn record_unused(&mut self, summary: &WrittenSummary) {
        self.spend(summary.model.clone(), summary.usage, UNUSED_SUMMARY.to_owned());
    }
}
