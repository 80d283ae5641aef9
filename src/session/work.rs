//! A session's state besides its thread: prompts, the running turn's work, answers that are owed. Data only; `actor`
//! acts on it.

use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinSet;

use super::callbacks::Called;
use super::clients::outer_texts;
use super::commands::DiskResult;
use super::editor_buffers::Waited;
use super::effects::ModelCall;
use super::instructions::ScannedInstructions;
use super::model_link::{ModelListQuery, ModelSearch};
use super::recipes::Previewed;
use super::services::ServiceReply;
use super::summary::Attempt;
use super::{
    AskId, Attachment, ClientId, Opening, PermissionRequest, Replay, SessionAnswer, SessionError,
    SessionEvent, Ticket,
};
use epitome_checkpoint::{CheckpointError, RewindReport};
use epitome_compaction::{CompactionDecision, CompactionPlan};
use epitome_hooks::discover::FoundHooks;
use epitome_hooks::event::HookEvent;
use epitome_hooks::handlers::HandlerTable;
use epitome_hooks::output::{CallbackRequest, Resolution};
use epitome_hooks::servers::ServerRecord;
use epitome_hooks::trust::{TrustStore, TrustSubject};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::{ErrorClass, ProviderError};
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::parse::Recipe;
use epitome_recipe::render::ShellOutputs;
use epitome_recipe::watch::Registration;
use epitome_store::StoreError;
use epitome_thread::{
    CallId, Change, Content, HookRunResult, MessageId, PlanStep, Seq, SessionId, ToolDisplay, ToolOutcome,
};
use epitome_turn::{CompactionReason, Effect, HookPoint, HooksResult, Turn};

/// A client that detaches once the turn has ended.
pub enum LeavingClient {
    /// It asked to detach and is answered.
    Client(ClientId, Responder),
    /// Its connection has closed.
    Gone(ClientId),
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
            ErrorClass::Retry { after: None } | ErrorClass::TooLong { .. } | ErrorClass::Broken => {
                TurnFault::Provider
            }
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

/// The result of a turn's job. Results of work on the CPU thread are `None` after a panic.
pub enum JobResult {
    Tool(CallId, Box<ToolOutcome>, Option<Vec<PlanStep>>),
    /// What clients show of a call before it runs, or why it can't run now.
    Preview(CallId, Result<Vec<ToolDisplay>, String>),
    Summary(Box<Attempt>),
    /// The instruction files were scanned, for this purpose.
    Looked(Box<Option<ScannedInstructions>>, ScanPurpose),
    Hooks(HookPoint, Box<Resolution>),
    /// The result of a callback at the end of a round.
    Callback(Result<Called, String>),
    /// The result of a history change in another conversation, as a message.
    Elsewhere(Result<String, String>),
    /// The decision of a compaction for the view of this revision.
    Planned(CompactionReason, Option<(Seq, CompactionDecision)>),
    /// Old outcomes are pruned instead of a compaction, for the view of this revision.
    Pruned(Seq, Option<Change>),
    Composed(Option<Result<Change, String>>),
    /// Old outcomes are pruned at the end of a round, if that is worthwhile; for the view of this revision.
    Eased(Seq, Option<Option<Change>>),
    /// The text that replaces the history at the request of a hook.
    Swapped(Seq, Option<Result<Change, String>>),
    /// The decision of the compaction for which a hook calls a recipe.
    Called(Arc<Recipe>, CallbackRequest, Option<(Seq, CompactionDecision)>),
}

/// Why a turn scans the instruction files.
#[derive(Clone, Copy, Debug)]
pub enum ScanPurpose {
    Call,
    Compaction(CompactionReason),
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

/// The result of work outside of turns.
pub enum BackgroundResult {
    Recipes(RecipeCatalog, Option<Arc<Registration>>),
    /// For the prompt with this ticket, which may have been cancelled since, and another one rendered.
    Shell(Ticket, ShellOutputs),
    /// An MCP server's prompt, for the prompt with this ticket; an error is a sentence.
    ServerPrompt(Ticket, Result<Vec<Content>, String>),
    /// A prompt with the server resources that it names.
    Attached(Ticket, Vec<Content>),
    ModelSearch(ModelSearch),
    /// The hooks found by the search with this number.
    Hooks(u64, Box<FoundHooks>, Box<TrustStore>, Option<Arc<Registration>>),
    /// A summary that was written in advance.
    Ahead(Box<CompactionPlan>, Box<Attempt>),
    /// The decision of a compaction that may be due soon, for the view of this revision; `None` after a panic.
    Foreseen(Option<(Seq, CompactionDecision)>),
    /// The compaction preview for the command with this ticket.
    Previewed(Ticket, Box<Previewed>),
    /// The same for a resident hook.
    ServicePlan(String, Option<Value>, ServiceReply),
    /// What a command found or did on disk; `None` after a panic.
    OnDisk(Box<QueuedPrompt>, Option<DiskResult>),
    /// Rewinds that an earlier process left unfinished are completed.
    TakenUp(Option<Result<Vec<RewindReport>, CheckpointError>>),
    /// A request to an editor is answered, abandoned or has timed out.
    EditorRequestOver(Waited),
    QuestionOver(AskId),
    /// The first prompt has waited long enough for MCP servers.
    ServersAwaited,
    /// The result of a background callback.
    Callback(Result<Called, String>),
    /// The result of hooks that nothing waits for, and the permission prompt that they may answer.
    HooksAside(HookEvent, Option<AskId>, Box<Resolution>),
    /// A resident hook's call was answered.
    Served,
    /// Suggestions for the prompt after the turn whose end precedes this entry.
    Suggested(Seq, Result<Vec<String>, String>),
    /// The newest entries have to be synced.
    SyncDue,
    Synced(Result<(), Arc<StoreError>>),
    /// The streamed part of the reply has to be saved.
    DraftDue,
    DraftSaved(std::io::Result<()>),
    ModelsAsked(Box<ModelListQuery>),
    /// Some time has passed since the end of the turn after which the log ended at this entry.
    Rested(Seq),
    /// Time to check whether the session can be suspended.
    Idle,
}
