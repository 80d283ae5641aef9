//! The tool calls of one reply, from the hooks that see them to their outcomes.
//!
//! Hooks see all calls at once and permission is requested for one call at a time, while permitted calls
//! already run.

use super::ask::{Effect, HookPoint, Permit};
use super::{interrupted, not_run};
use epitome_thread::{CallId, Change, OutcomeStatus, ToolOutcome};

#[derive(Debug)]
pub(super) struct Calls {
    calls: Vec<TurnCall>,
    /// Whether any call could run or was refused by the user, a rule or a hook.
    usable: bool,
}

#[derive(Debug)]
struct TurnCall {
    id: CallId,
    step: CallStage,
    /// The tool's outcome, until hooks are asked about it.
    ran: Option<Box<ToolOutcome>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallStage {
    New,
    /// Hooks are checking it.
    Seen,
    Waiting,
    Asking,
    Permitted,
    Running,
    /// It has an outcome, which hooks must see before it is committed.
    Ran,
    Finished,
}

impl Calls {
    pub(super) fn new(calls: Vec<CallId>) -> Calls {
        let calls = calls.into_iter().map(|id| TurnCall { id, step: CallStage::New, ran: None }).collect();
        Calls { calls, usable: false }
    }

    /// Returns the next effect, or `None` if every unfinished call waits for an answer.
    pub(super) fn next(&mut self) -> Option<Effect> {
        if let Some(call) = self.at(CallStage::New) {
            call.step = CallStage::Seen;
            return Some(Effect::RunHooks(HookPoint::BeforeTool(call.id.clone())));
        }
        if let Some(point) = self.take_unseen() {
            return Some(Effect::RunHooks(point));
        }
        if let Some(call) = self.at(CallStage::Permitted) {
            call.step = CallStage::Running;
            return Some(Effect::RunTool(call.id.clone()));
        }
        // The user answers one permission prompt at a time; permitted calls run in the meantime.
        if self.at(CallStage::Asking).is_some() {
            return None;
        }
        let call = self.at(CallStage::Waiting)?;
        call.step = CallStage::Asking;
        Some(Effect::Permission(call.id.clone()))
    }

    /// The next outcome that hooks have not seen.
    pub(super) fn take_unseen(&mut self) -> Option<HookPoint> {
        self.calls.iter_mut().find_map(|call| call.ran.take()).map(HookPoint::AfterTool)
    }

    pub(super) fn are_finished(&self) -> bool {
        self.calls.iter().all(|call| call.step == CallStage::Finished)
    }

    /// Whether at least one call was more than a mistake of the model.
    pub(super) fn are_usable(&self) -> bool {
        self.usable
    }

    /// Records that hooks let a call continue. Returns `false` if no hooks were running for it, which means
    /// that the answer came too late.
    pub(super) fn seen(&mut self, id: &CallId) -> bool {
        let call = self.find(id, &[CallStage::Seen]);
        call.map(|call| call.step = CallStage::Waiting).is_some()
    }

    /// Records the outcome of a tool, or the one that a hook put in its place.
    pub(super) fn ran(&mut self, outcome: Box<ToolOutcome>) {
        if let Some(call) = self.find(&outcome.call, &[CallStage::Seen, CallStage::Running]) {
            call.step = CallStage::Ran;
            call.ran = Some(outcome);
            self.usable = true;
        }
    }

    /// Records a permission decision. A call that may not run gets its outcome here.
    pub(super) fn decided(&mut self, id: CallId, permit: Permit) -> Option<Change> {
        let call = self.find(&id, &[CallStage::Asking])?;
        let (status, why) = match permit {
            Permit::Allowed => {
                call.step = CallStage::Permitted;
                return None;
            }
            Permit::Denied(why) => (OutcomeStatus::Denied, why),
            Permit::Impossible(why) => (OutcomeStatus::Failed, why),
        };
        call.step = CallStage::Finished;
        self.usable |= status == OutcomeStatus::Denied;
        Some(Change::ToolFinished { outcome: ToolOutcome::text(id, status, why) })
    }

    /// Records the outcome of a call as hooks left it, or of a call that was stopped with its turn.
    pub(super) fn finished(&mut self, id: &CallId, outcome: ToolOutcome) -> Option<Change> {
        let call = self.find(id, &[CallStage::Running, CallStage::Ran])?;
        (call.step, call.ran) = (CallStage::Finished, None);
        self.usable = true;
        Some(Change::ToolFinished { outcome })
    }

    /// Ends the calls of a cancelled turn, and returns their outcomes. A call that has an outcome waits for the hooks that
    /// see it, unless it `waits` no longer.
    pub(super) fn cancelled(&mut self, waits: bool) -> Vec<Change> {
        let is_ended = |call: &&mut TurnCall| match call.step {
            CallStage::Ran => !waits,
            step => step != CallStage::Finished,
        };
        let end = |call: &mut TurnCall| match std::mem::replace(&mut call.step, CallStage::Finished) {
            CallStage::Running | CallStage::Ran | CallStage::Finished => interrupted(call.id.clone()),
            CallStage::New
            | CallStage::Seen
            | CallStage::Waiting
            | CallStage::Asking
            | CallStage::Permitted => not_run(call.id.clone(), "Not run: the turn was cancelled."),
        };
        self.calls.iter_mut().filter(is_ended).map(end).collect()
    }

    fn at(&mut self, step: CallStage) -> Option<&mut TurnCall> {
        self.calls.iter_mut().find(|call| call.step == step)
    }

    fn find(&mut self, id: &CallId, steps: &[CallStage]) -> Option<&mut TurnCall> {
        self.calls.iter_mut().find(|call| call.id == *id && steps.contains(&call.step))
    }
}
