//! A session's state besides its thread: prompts, the running turn's work, answers that are owed. Data only; `actor`
//! acts on it.

use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinSet;

use super::actor::Session;
use super::clients::outer_texts;
use super::effects::ModelCall;
use super::{
    AskId, Attachment, ClientId, Opening, PermissionRequest, Replay, SessionAnswer, SessionError,
    SessionEvent, Ticket,
};
use epitome_hooks::event::HookEvent;
use epitome_hooks::handlers::HandlerTable;
use epitome_hooks::output::Resolution;
use epitome_hooks::servers::ServerRecord;
use epitome_hooks::trust::TrustSubject;
use epitome_provider::endpoint::Endpoint;
use epitome_provider::{ErrorClass, ProviderError};
use epitome_recipe::parse::Recipe;
use epitome_thread::{CallId, Content, HookRunResult, MessageId, PlanStep, Seq, SessionId, ToolOutcome};
use epitome_turn::{Effect, HooksResult, Turn};

/// A client that detaches once the turn has ended.
pub struct LeavingClient {
    pub client: ClientId,
    /// For a client that has asked for it; its connection has closed otherwise.
    pub responder: Option<Responder>,
}

/// A client that wants to attach to a session.
pub struct Attaching {
    pub ticket: Ticket,
    pub opening: Opening,
    pub replay: Replay,
}

impl Attaching {
    /// Answers the client with an error, and also the prompts that it has brought.
    pub(super) fn refuse(self, session: &SessionId, error: &SessionError) {
        let prompts = match &self.replay {
            Replay::Rest { prompts, .. } => prompts.iter().filter_map(|prompt| prompt.ticket).collect(),
            Replay::Everything | Replay::Nothing => Vec::new(),
        };
        for ticket in prompts.into_iter().chain([self.ticket]) {
            let attachment = self.opening.attachment.clone();
            Responder::new(ticket, session.clone(), attachment).answer(Err(error.clone()));
        }
    }
}

/// A prompt that has not started.
pub struct QueuedPrompt {
    pub responder: Responder,
    pub client: ClientId,
    pub content: Vec<Content>,
}

impl QueuedPrompt {
    pub(super) fn may_be_command(&self) -> bool {
        outer_texts(&self.content).any(|(_, text)| text.trim_start().starts_with('/'))
    }
}

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
    pub jobs: JoinSet<JobResult>,
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
        }
    }
}

/// An open question to the user whether to trust items of a repository.
pub struct OpenConsent {
    pub ask: AskId,
    pub permission: Arc<PermissionRequest>,
    /// The items; for an MCP server with its record.
    pub items: Vec<(TrustSubject, Option<ServerRecord>)>,
    /// The command that waits for the answer; `None` if all prompts do.
    pub prompt: Option<QueuedPrompt>,
}

/// Owes one answer. If it is dropped without one (the session panicked), it answers with an internal error.
pub struct Responder {
    pub(super) ticket: Ticket,
    session: SessionId,
    attachment: Attachment,
    /// The key of the prompt, if its client gave one.
    key: Option<String>,
    /// Whether the prompt is a message of the conversation.
    inserted: bool,
    owes: bool,
}

impl Responder {
    pub fn new(ticket: Ticket, session: SessionId, attachment: Attachment) -> Responder {
        Responder { ticket, session, attachment, key: None, inserted: false, owes: true }
    }

    pub(super) fn set_key(&mut self, key: Option<String>) {
        self.key = key;
    }

    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(super) fn is_inserted(&self) -> bool {
        self.inserted
    }

    /// Announces to the client, once, that the prompt is now this message.
    pub(super) fn inserted(&mut self, message: MessageId) {
        if !std::mem::replace(&mut self.inserted, true) && self.attachment.outlet.follows_state() {
            let out = SessionEvent::Inserted { ticket: self.ticket, message };
            self.attachment.outlet.put(&self.session, out);
        }
    }

    pub(super) fn client(&self) -> ClientId {
        self.attachment.client
    }

    pub fn answer(mut self, answer: Result<SessionAnswer, SessionError>) {
        self.owes = false;
        self.attachment.outlet.put(&self.session, SessionEvent::Answer { ticket: self.ticket, answer });
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.owes {
            let message = "the session ended before it could answer; load it again and repeat".to_owned();
            let answer = Err(SessionError::Internal(message));
            self.attachment.outlet.put(&self.session, SessionEvent::Answer { ticket: self.ticket, answer });
        }
    }
}

/// What a session does once work of it has ended.
pub type FollowUp = Box<dyn FnOnce(&mut Session) + Send>;

/// The result of a turn's job.
pub enum JobResult {
    /// A tool has run. A cancel keeps the outcome of a call that has just finished, and nothing else.
    Tool(CallId, Box<ToolOutcome>, Option<Vec<PlanStep>>),
    Then(FollowUp),
}

/// The result of work outside of turns.
pub enum BackgroundResult {
    Then(FollowUp),
    /// Time to check whether the session can be suspended.
    Idle,
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
