//! Summaries that are written in the background before they are needed (`compaction.prepared`). A summary is used
//! only if the part of the view that it covers is unchanged; later entries follow it.

use tokio::task::AbortHandle;

use super::Compactor;
use crate::core::Core;
use epitome_compaction::backoff::Fullness;
use epitome_compaction::{CompactionPlan, Summary};
use epitome_provider::endpoint::Endpoint;
use epitome_thread::{ModelName, Seq, Trigger, Usage};

/// The cost of a summary that was paid for and is not used.
type UnusedCost = Option<(ModelName, Usage)>;

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
        summary: Box<Summary>,
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

    /// Whether a summary for this revision of the view is the one that is being written.
    pub(crate) fn is_awaited(&self, revision: Seq) -> bool {
        matches!(&self.prepared, PreparedSummary::Writing { revision: known, .. } if *known == revision)
    }

    /// Whether a compaction will soon be due for which no summary is prepared yet.
    pub(crate) fn will_need_summary(&self, core: &mut Core, main: &Endpoint) -> bool {
        let Some(at) = core.auto_compact_at(main.window) else { return false };
        let known = match &self.prepared {
            PreparedSummary::None => None,
            PreparedSummary::Writing { revision, .. } | PreparedSummary::Failed { revision } => {
                Some(*revision)
            }
            PreparedSummary::Ready { plan, .. } => Some(plan.revision),
        };
        if known == Some(core.thread.view().revision()) {
            return false;
        }
        let size = main.window;
        let used = core.tokens_at_most() + size.saturating_mul(BEFORE_PERCENT) / 100;
        self.backoff.is_due(&core.ruler(), &core.thread, Fullness { used, size, at })
    }

    /// A summary for this revision of the view is being planned or written.
    pub(crate) fn await_prepared(&mut self, job: AbortHandle, revision: Seq) {
        self.prepared = PreparedSummary::Writing { job, revision };
    }

    /// No summary is written for the plan after all.
    pub(crate) fn give_up_prepared(&mut self) {
        self.prepared = PreparedSummary::None;
    }

    /// Keeps the summary that was written in advance, or that there is none. Returns the cost of one that is too late.
    pub(crate) fn keep_prepared(
        &mut self,
        plan: Box<CompactionPlan>,
        summary: Option<Summary>,
    ) -> UnusedCost {
        let is_awaited = self.is_awaited(plan.revision);
        match summary {
            Some(summary) if is_awaited => {
                self.prepared = PreparedSummary::Ready { plan, summary: Box::new(summary) };
                None
            }
            Some(summary) => summary.by,
            None => {
                if is_awaited {
                    self.prepared = PreparedSummary::Failed { revision: plan.revision };
                }
                None
            }
        }
    }

    /// Takes the prepared summary and its plan if they match the wanted compaction; otherwise, drops it and returns its
    /// cost.
    pub(crate) fn take_prepared(
        &mut self,
        wanted: &CompactionPlan,
    ) -> Result<(CompactionPlan, Summary), UnusedCost> {
        let request = &self.request;
        let is_plain = matches!(wanted.trigger, Trigger::Threshold | Trigger::Must)
            && request.instruction.is_none()
            && request.recipe.is_none()
            && self.written.context.is_empty();
        match std::mem::take(&mut self.prepared) {
            // It keeps what was kept when it was written, plus everything newer: no less than promised, even if the
            // limits have changed since.
            PreparedSummary::Ready { plan, summary } if is_plain && plan.revision == wanted.revision => {
                Ok((CompactionPlan { trigger: wanted.trigger, ..*plan }, *summary))
            }
            prepared => Err(prepared.drop_it()),
        }
    }

    /// Discards the prepared summary, or aborts it. Returns the cost of one that was written.
    pub(crate) fn drop_prepared(&mut self) -> UnusedCost {
        std::mem::take(&mut self.prepared).drop_it()
    }
}

impl PreparedSummary {
    fn drop_it(self) -> UnusedCost {
        match self {
            PreparedSummary::None | PreparedSummary::Failed { .. } => None,
            PreparedSummary::Writing { job, .. } => {
                job.abort();
                None
            }
            PreparedSummary::Ready { summary, .. } => summary.by,
        }
    }
}
