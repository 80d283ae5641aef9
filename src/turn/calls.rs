//! The calls of one reply on their way to their outcomes: hooks see all of them, a person is asked about
//! one at a time, and what is allowed runs meanwhile.

use super::ask::{Ask, Permit};
use epitome_thread::{CallId, Change, OutcomeStatus, ToolOutcome};

#[derive(Debug)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug)]
struct Call {
    id: CallId,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    New,
    /// Hooks see it.
    Seen,
    Waiting,
    Asking,
    Permitted,
    Running,
    Finished,
}

impl Calls {
    pub(super) fn new(calls: Vec<CallId>) -> Calls {
        Calls(calls.into_iter().map(|id| Call { id, step: Step::New }).collect())
    }

    /// What they need next; `None` while only answers can bring them on.
    pub(super) fn next(&mut self) -> Option<Ask> {
        if let Some(call) = self.at(Step::New) {
            call.step = Step::Seen;
            return Some(Ask::BeforeTool(call.id.clone()));
        }
        if let Some(call) = self.at(Step::Permitted) {
            call.step = Step::Running;
            return Some(Ask::RunTool(call.id.clone()));
        }
        // A person answers one card at a time; what is allowed runs meanwhile.
        if self.at(Step::Asking).is_some() {
            return None;
        }
        let call = self.at(Step::Waiting)?;
        call.step = Step::Asking;
        Some(Ask::Permission(call.id.clone()))
    }

    pub(super) fn are_finished(&self) -> bool {
        self.open().next().is_none()
    }

    /// Those without an outcome.
    pub(super) fn open(&self) -> impl Iterator<Item = &CallId> {
        self.0.iter().filter(|call| call.step != Step::Finished).map(|call| &call.id)
    }

    /// Hooks let a call go on. `false` if none were asked about it: an answer that comes too late.
    pub(super) fn seen(&mut self, id: &CallId) -> bool {
        let call = self.of(id, &[Step::Seen]);
        call.map(|call| call.step = Step::Waiting).is_some()
    }

    /// A permission was decided. A call that may not run has its outcome with that.
    pub(super) fn decided(&mut self, id: CallId, permit: Permit) -> Option<Change> {
        let call = self.of(&id, &[Step::Asking])?;
        let (status, why) = match permit {
            Permit::Allowed => {
                call.step = Step::Permitted;
                return None;
            }
            Permit::Denied(why) => (OutcomeStatus::Denied, why),
            Permit::Impossible(why) => (OutcomeStatus::Failed, why),
        };
        call.step = Step::Finished;
        Some(Change::ToolFinished { outcome: ToolOutcome::text(id, status, why) })
    }

    /// A call has its outcome, from the tool or from a hook that stopped it.
    pub(super) fn finished(&mut self, id: &CallId, outcome: ToolOutcome) -> Option<Change> {
        self.of(id, &[Step::Seen, Step::Running])?.step = Step::Finished;
        Some(Change::ToolFinished { outcome })
    }

    fn at(&mut self, step: Step) -> Option<&mut Call> {
        self.0.iter_mut().find(|call| call.step == step)
    }

    fn of(&mut self, id: &CallId, steps: &[Step]) -> Option<&mut Call> {
        self.0.iter_mut().find(|call| call.id == *id && steps.contains(&call.step))
    }
}
