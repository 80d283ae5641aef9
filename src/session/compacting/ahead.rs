//! Summaries that are written before they are needed, beside the user's work (`compaction.ahead`). One is put in
//! only where the view that it was made for still stands as it was, with what came since behind it.

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::Compactor;
use crate::actor::Session;
use crate::child_requests::UNUSED_SUMMARY;
use crate::core::Core;
use crate::effects;
use crate::summary::{Attempt, Summary};
use crate::work::Background;
use epitome_compaction::pace::Fullness;
use epitome_compaction::{Decision, Plan, Written};
use epitome_config::Summariser;
use epitome_thread::Seq;
use epitome_turn::Why;

/// The share of the window before the threshold at which a summary is begun, in per cent.
const BEFORE_PERCENT: u64 = 10;

/// A summary that nobody waits for yet.
#[derive(Debug, Default)]
pub enum Ahead {
    #[default]
    None,
    /// It is decided what it will stand for, then it is written.
    Writing {
        job: AbortHandle,
        revision: Seq,
    },
    Ready {
        plan: Box<Plan>,
        summary: Box<Summary>,
    },
    /// No summary could be written for this revision of the view; it is not tried again.
    Failed {
        revision: Seq,
    },
}

impl Compactor {
    /// Whether a summary waits for the conversation as it is.
    pub(crate) fn is_prepared(&self, core: &Core) -> bool {
        let revision = core.thread.view().revision();
        matches!(&self.ahead, Ahead::Ready { plan, .. } if plan.revision == revision)
    }

    fn is_awaited(&self, revision: Seq) -> bool {
        matches!(&self.ahead, Ahead::Writing { revision: known, .. } if *known == revision)
    }
}

impl Session {
    /// Begins a summary where one will soon be needed.
    pub(crate) fn look_ahead(&mut self) {
        let settings = &self.core.settings.compaction;
        if !settings.ahead || settings.model == Summariser::Nobody || self.core.thread.frame().is_none() {
            return;
        }
        let Some(main) = self.core.model.endpoint().cloned() else { return };
        let Some(at) = self.core.auto_compact_at(main.window) else { return };
        let revision = self.core.thread.view().revision();
        match &self.compactor.ahead {
            Ahead::Writing { revision: known, .. } | Ahead::Failed { revision: known }
                if *known == revision =>
            {
                return;
            }
            Ahead::Ready { plan, .. } if plan.revision == revision => return,
            Ahead::None | Ahead::Writing { .. } | Ahead::Failed { .. } | Ahead::Ready { .. } => {}
        }
        let size = main.window;
        let used = self.core.tokens_at_most() + size.saturating_mul(BEFORE_PERCENT) / 100;
        if !self.compactor.pace.is_due(&self.core.ruler(), &self.core.thread, Fullness { used, size, at }) {
            return;
        }
        self.drop_ahead();
        let deciding = self.compactor.deciding(&mut self.core, None, Why::Threshold);
        let job = self.core.run_on_cpu_in_background(deciding, Background::Foreseen);
        self.compactor.ahead = Ahead::Writing { job, revision };
    }

    /// What a compaction would do soon is decided: its summary is begun, where the view still is as it was.
    pub(crate) fn foreseen(&mut self, decided: Option<(Seq, Decision)>) {
        let Some((revision, decision)) = decided.filter(|(revision, _)| self.compactor.is_awaited(*revision))
        else {
            return;
        };
        let stands = revision == self.core.thread.view().revision();
        let (Decision::Summarise(plan), Some(main), true) =
            (decision, self.core.model.endpoint().cloned(), stands)
        else {
            self.compactor.ahead = Ahead::None;
            return;
        };
        // Nobody is shown what may never be used.
        let (pieces, _) = mpsc::channel(1);
        let writing = self.compactor.writing(
            &self.core,
            main,
            &plan,
            self.recipes.summary_instruction(&self.core),
            pieces,
        );
        let writing = async move {
            let attempt = effects::guarded(writing, Attempt::panicked).await;
            Background::Ahead(Box::new(plan), Box::new(attempt))
        };
        let job = self.core.background.spawn(writing.instrument(self.core.trace.session().clone()));
        self.compactor.ahead = Ahead::Writing { job, revision };
    }

    pub(crate) fn ahead_written(&mut self, plan: Plan, attempt: Attempt) {
        let summary = self.core.take_attempt(attempt);
        let awaited = self.compactor.is_awaited(plan.revision);
        match summary {
            Ok(summary) if awaited => {
                self.compactor.ahead = Ahead::Ready { plan: Box::new(plan), summary: Box::new(summary) };
            }
            Ok(summary) => self.spend_in_vain(&summary),
            Err(error) => {
                tracing::info!(session = %self.core.id(), %error, "no summary could be prepared");
                if awaited {
                    self.compactor.ahead = Ahead::Failed { revision: plan.revision };
                }
            }
        }
    }

    /// The prepared summary and its plan, where it may take the place of the one that is wanted now.
    pub(crate) fn take_ahead(&mut self, wanted: &Plan, why: Why) -> Option<(Plan, Written)> {
        let order = &self.compactor.order;
        let is_plain = matches!(why, Why::Threshold | Why::Must)
            && order.instruction.is_none()
            && order.recipe.is_none()
            && order.context.is_empty();
        let Ahead::Ready { plan, summary } = std::mem::take(&mut self.compactor.ahead) else {
            self.drop_ahead();
            return None;
        };
        // It keeps what was kept when it was written, and all that came since: no less than is promised, though the limits
        // may be measured otherwise by now.
        if !is_plain || plan.revision != wanted.revision {
            self.spend_in_vain(&summary);
            return None;
        }
        let plan = Plan { trigger: wanted.trigger, ..*plan };
        Some((plan, summary.written()))
    }

    /// Ends what is being written ahead.
    pub(crate) fn drop_ahead(&mut self) {
        match std::mem::take(&mut self.compactor.ahead) {
            Ahead::None | Ahead::Failed { .. } => {}
            Ahead::Writing { job, .. } => job.abort(),
            Ahead::Ready { summary, .. } => self.spend_in_vain(&summary),
        }
    }

    /// It was paid for all the same.
    fn spend_in_vain(&mut self, summary: &Summary) {
        self.spend(summary.model.clone(), summary.usage, UNUSED_SUMMARY.to_owned());
    }
}
