//! The running turn, and its jobs by their result. The actor goes on with each result in `actor::finished`.

use super::refusal::HookRefusal;
use super::{Replaced, ReplacementRefusal};
use epitome_compaction::CompactionRefusal;
use epitome_tools::ToolError;
use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinSet;

use super::called::Called;
use super::effects::ModelCall;
use super::instructions::ScannedInstructions;
use super::responder::Responder;
use super::summary::SummaryAttempt;
use epitome_compaction::CompactionDecision;
use epitome_hooks::event::HookEvent;
use epitome_hooks::handlers::HandlerTable;
use epitome_hooks::output::{CallbackRequest, Resolution};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::{ErrorClass, ProviderError};
use epitome_recipe::parse::Recipe;
use epitome_thread::{
    CallId, Change, HookRunResult, PlanStep, Seq, SessionId, ToolDisplay, ToolOutcome, Trigger,
};
use epitome_turn::{Effect, HookPoint, HooksResult, Turn};

/// A running turn and its data. The components keep their own state of it.
pub struct RunningTurn {
    pub turn: Turn,
    /// The responders to answer when the turn ends; for a queued prompt with the entry that contains it.
    pub responders: Vec<(Responder, Option<Seq>)>,
    pub run: RecipeRun,
    /// Is sent in the answer's `_meta`.
    pub meta: Option<Value>,
    pub model: Option<ModelCall>,
    /// The effect that the turn asked for while the model's server was searched for.
    pub postponed: Option<Effect>,
    /// The kind of fault, if the turn fails.
    pub fault: TurnFault,
    /// They end when the turn is cancelled.
    pub jobs: JoinSet<JobResult>,
    /// Hooks that see outcomes of calls. A cancelled turn waits for them.
    pub outcome_hooks: JoinSet<JobResult>,
}

/// The recipe that a turn runs, and its limits.
#[derive(Clone, Default)]
pub struct RecipeRun {
    pub recipe: Option<Arc<Recipe>>,
    /// The handlers that the recipe declares.
    pub handlers: HandlerTable,
    /// The recipe's model; `None` if it is the session's.
    pub endpoint: Option<Endpoint>,
    pub allowed_tools: Option<Vec<String>>,
    /// Patterns of the only command lines that the recipe may run.
    pub allowed_commands: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnFault {
    #[default]
    Provider,
    /// The provider wants fewer requests.
    Limited,
    /// It rejects the request.
    Refused,
    /// The key is missing, wrong or lacks a permission.
    Unauthorised,
    /// The user's budget does not allow the call.
    OverBudget,
    /// The initial request exceeds the window; the parent must shorten the history.
    TooLong,
}

impl TurnFault {
    /// Its name in Claude Code's hooks.
    pub fn name(self) -> &'static str {
        match self {
            TurnFault::Provider => "server_error",
            TurnFault::Limited => "rate_limit",
            TurnFault::Refused | TurnFault::TooLong => "invalid_request",
            TurnFault::Unauthorised => "authentication_failed",
            TurnFault::OverBudget => "billing_error",
        }
    }

    pub fn classify(error: &ProviderError) -> TurnFault {
        match error.class {
            ErrorClass::Auth => TurnFault::Unauthorised,
            ErrorClass::Budget => TurnFault::OverBudget,
            ErrorClass::Retry { after: Some(_) } => TurnFault::Limited,
            ErrorClass::Refused | ErrorClass::BadReasoning | ErrorClass::ToolForm => TurnFault::Refused,
            ErrorClass::Retry { after: None }
            | ErrorClass::TooLong { .. }
            | ErrorClass::Empty
            | ErrorClass::Broken => TurnFault::Provider,
        }
    }
}

impl RunningTurn {
    /// Whether it can take further prompts.
    pub fn is_open(&self) -> bool {
        !self.turn.is_cancelling()
    }

    /// A turn with only its sender's responder.
    pub fn new(turn: Turn, responder: Responder) -> RunningTurn {
        RunningTurn {
            turn,
            responders: vec![(responder, None)],
            run: RecipeRun::default(),
            meta: None,
            model: None,
            postponed: None,
            fault: TurnFault::default(),
            jobs: JoinSet::new(),
            outcome_hooks: JoinSet::new(),
        }
    }
}

/// The result of a turn's job. In each, `None` instead of a result follows a panic.
pub enum JobResult {
    /// A tool has run. A cancel keeps the outcome of a call that has just finished, and nothing else.
    Tool(CallId, Box<ToolOutcome>, Option<Vec<PlanStep>>),
    /// The preview of a call that the user is to be asked about, or why the call can't run.
    PermissionPreviewed {
        call: CallId,
        preview: Result<Vec<ToolDisplay>, ToolError>,
    },
    /// The hooks for this point of the turn have answered.
    HooksEnded {
        point: HookPoint,
        resolution: Box<Resolution>,
    },
    /// The instruction files were scanned before a step of the turn.
    InstructionsScanned {
        scanned: Option<ScannedInstructions>,
        next: AfterScan,
    },
    /// It is decided what the turn's compaction does, for a revision of the view.
    CompactionPlanned {
        why: Trigger,
        decided: Option<(Seq, CompactionDecision)>,
    },
    SummaryWritten(SummaryAttempt),
    /// A cancelled turn waits no longer for its hooks.
    CancelDue,
    CompactionPruned {
        revision: Seq,
        pruned: Option<Change>,
    },
    CompactionComposed(Option<Result<Change, CompactionRefusal>>),
    /// Old outcomes were pruned between compactions, if that saves enough.
    OldOutcomesPruned {
        revision: Seq,
        pruned: Option<Change>,
    },
    /// A reply's text was made the change that replaces the history.
    SwapComposed {
        revision: Seq,
        made: Option<Result<Change, CompactionRefusal>>,
    },
    /// It is decided whether the compaction gains anything that a hook asked a recipe for.
    CallbackWeighed {
        recipe: Arc<Recipe>,
        callback: CallbackRequest,
        decided: Option<(Seq, CompactionDecision)>,
    },
    CallbackEnded(Result<Called, HookRefusal>),
    /// Another conversation has answered to a number of messages for its history.
    OtherReplaced {
        target: SessionId,
        count: usize,
        replaced: Result<Replaced, ReplacementRefusal>,
    },
}

/// The step of the turn that follows a scan of the instruction files.
pub enum AfterScan {
    CallModel,
    PlanCompaction(Trigger),
}

/// The requests of the hooks of a round's end, on their way to the turn.
pub struct PendingResolution {
    pub event: HookEvent,
    /// Whether the agent is about to stop.
    pub last: bool,
    pub resolution: Resolution,
    pub answer: HooksResult,
}

impl PendingResolution {
    /// Records in the trail that the action was done.
    pub(super) fn done(&mut self, remarks: impl IntoIterator<Item = String>) {
        let Resolution { trail, action_by, .. } = &mut self.resolution;
        if let Some(run) = trail.iter_mut().rev().find(|run| run.hook == *action_by) {
            run.verdict = HookRunResult::Done;
            run.remarks.extend(remarks);
        }
    }
}
