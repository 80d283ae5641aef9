//! The stages of one compaction, from its plan to the change that is ready to commit.

use super::Continuation;
use super::ask::{Effect, HookPoint};
use epitome_thread::{Change, Seq, Trigger};

/// Maximum number of plans in a row, each made because the view changed while the last one was computed.
const PLANS_MAX: u32 = 3;

/// The error of a compaction whose view changed while it was prepared.
pub const CHANGED: &str = "the conversation was changed while its summary was written; nothing was replaced";

/// A compaction that is being prepared. The session has the plan and the summary themselves.
#[derive(Debug)]
pub(super) struct PendingCompaction {
    pub(super) why: Trigger,
    pub(super) then: Continuation,
    stage: CompactionStage,
    /// Whether the work of the stage was requested.
    asked: bool,
    /// The revision of the view that the plan is for.
    revision: Seq,
    plans: u32,
    hooks_ran: bool,
    /// Whether round-end hooks have seen its result.
    pub(super) was_seen: bool,
}

#[derive(Debug)]
enum CompactionStage {
    Planning,
    /// `pre_compact` hooks may replace the instruction, write the summary or refuse.
    Hooks,
    Summarising,
    Composing,
    /// Round-end hooks edited the thread after the change was composed, so that it must be composed again.
    ComposingAgain,
    /// The change is ready; hooks see it if a hook called the recipe that wrote the summary.
    Composed(Box<Change>),
    /// The view changed, and the summary no longer fits it.
    Outdated,
}

impl PendingCompaction {
    pub(super) fn new(why: Trigger, then: Continuation) -> PendingCompaction {
        let (stage, revision) = (CompactionStage::Planning, Seq(0));
        PendingCompaction {
            why,
            then,
            stage,
            asked: false,
            revision,
            plans: 0,
            hooks_ran: false,
            was_seen: false,
        }
    }

    /// A compaction by command whose result round-end hooks have seen, composed again for the view that they edited.
    pub(super) fn again(then: Continuation) -> PendingCompaction {
        let stage = CompactionStage::ComposingAgain;
        PendingCompaction { stage, was_seen: true, ..PendingCompaction::new(Trigger::Manual, then) }
    }

    /// Returns the work of the current stage once. `revision` is that of the current view: a plan for another revision
    /// is made again, and a summary for another one is discarded.
    pub(super) fn next(&mut self, revision: Seq) -> Option<Effect> {
        if std::mem::replace(&mut self.asked, true) {
            return None;
        }
        if let CompactionStage::ComposingAgain = self.stage {
            (self.stage, self.revision) = (CompactionStage::Composing, revision);
        }
        if self.revision != revision && !matches!(self.stage, CompactionStage::Planning) {
            let is_early = matches!(self.stage, CompactionStage::Hooks | CompactionStage::Summarising);
            let plans_again = is_early && self.plans < PLANS_MAX;
            self.stage = if plans_again { CompactionStage::Planning } else { CompactionStage::Outdated };
        }
        Some(match &self.stage {
            CompactionStage::Planning => Effect::PlanCompaction(self.why),
            CompactionStage::Hooks => Effect::RunHooks(HookPoint::PreCompact),
            CompactionStage::Summarising => Effect::Summarise,
            CompactionStage::Composing | CompactionStage::ComposingAgain => Effect::Compose,
            CompactionStage::Composed(change) => Effect::RunHooks(HookPoint::Composed(change.clone())),
            CompactionStage::Outdated => Effect::AbandonCompaction(CHANGED.to_owned()),
        })
    }

    /// Records the plan and its revision. A plan is also made again if the size of the window became known only when
    /// the summary was to be written.
    pub(super) fn planned(&mut self, revision: Seq) {
        if let CompactionStage::Planning | CompactionStage::Summarising = self.stage {
            self.revision = revision;
            self.plans += 1;
            self.enter(if self.hooks_ran { CompactionStage::Summarising } else { CompactionStage::Hooks });
        }
    }

    /// Records that hooks have answered; `edited` if they edited the history, so that a new plan is needed.
    pub(super) fn hooks_ran(&mut self, edited: bool) {
        if let CompactionStage::Hooks = self.stage {
            (self.hooks_ran, self.plans) = (true, 0);
            self.enter(if edited { CompactionStage::Planning } else { CompactionStage::Summarising });
        }
    }

    pub(super) fn summarised(&mut self) {
        if let CompactionStage::Summarising = self.stage {
            self.enter(CompactionStage::Composing);
        }
    }

    pub(super) fn composed(&mut self, change: Box<Change>) {
        if let CompactionStage::Composing = self.stage {
            self.enter(CompactionStage::Composed(change));
        }
    }

    fn enter(&mut self, stage: CompactionStage) {
        self.stage = stage;
        self.asked = false;
    }
}
