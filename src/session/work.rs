//! What a session holds besides its thread: prompts, the running turn's work, answers that are owed.
//!
//! Data only; what happens to it is in `actor`.

use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinSet;

use super::callbacks::Called;
use super::clients::outer_texts;
use super::commands::DiskResult;
use super::editor_buffers::Waited;
use super::effects::ModelCall;
use super::instructions::ScannedInstructions;
use super::model_link::ModelListQuery;
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
use epitome_provider::endpoint::{Endpoint, LocalServer};
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

/// A client that leaves once the turn has ended.
pub enum LeavingClient {
    /// It asked to, and is answered.
    Client(ClientId, Responder),
    /// Its connection is gone.
    Gone(ClientId),
}

/// A client that wants to attach to a session.
pub struct Attaching {
    pub ticket: Ticket,
    pub opening: Opening,
    pub replay: Replay,
}

impl Attaching {
    /// Answers it, and the prompts that it brings along, with an error.
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

/// A prompt that has not begun.
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

/// A running turn and what belongs to it; the components keep what they know of it themselves.
pub struct RunningTurn {
    pub turn: Turn,
    /// Who is answered when it ends; a queued prompt with the entry that holds it.
    pub responders: Vec<(Responder, Option<Seq>)>,
    pub run: RecipeRun,
    /// Goes into the answer's `_meta`.
    pub meta: Option<Value>,
    pub model: Option<ModelCall>,
    /// What the turn asked for while the model's server was looked for.
    pub postponed: Option<Effect>,
    /// What a failure of the turn comes from.
    pub fault: TurnFault,
    pub jobs: JoinSet<JobResult>,
}

/// The recipe that a turn runs, and what it is limited to.
#[derive(Clone, Default)]
pub struct RecipeRun {
    pub recipe: Option<Arc<Recipe>>,
    /// What it declares to be done at moments of its run.
    pub handlers: HandlerTable,
    /// The model that it asks for, where it is another than the session's.
    pub endpoint: Option<Endpoint>,
    pub allowed_tools: Option<Vec<String>>,
    /// The command lines that it is limited to, as patterns.
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
    /// The key is missing, wrong or without the right.
    Unauthorised,
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
        }
    }

    pub fn classify(error: &ProviderError) -> TurnFault {
        match error.class {
            ErrorClass::Auth => TurnFault::Unauthorised,
            ErrorClass::Retry { after: Some(_) } => TurnFault::Limited,
            ErrorClass::Refused | ErrorClass::BadReasoning => TurnFault::Refused,
            ErrorClass::Retry { after: None } | ErrorClass::TooLong { .. } | ErrorClass::Broken => {
                TurnFault::Provider
            }
        }
    }
}

impl RunningTurn {
    /// A turn with the one who sent it and nothing else yet.
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

/// A question about what a repository brings, which waits for the user.
pub struct OpenConsent {
    pub ask: AskId,
    pub permission: Arc<PermissionRequest>,
    /// With what the servers among them are.
    pub items: Vec<(TrustSubject, Option<ServerRecord>)>,
    /// The command that waits for it; `None` where all prompts do.
    pub prompt: Option<QueuedPrompt>,
}

/// Owes one answer. Dropped without it (a panic of the session), it answers with an internal error.
pub struct Responder {
    pub(super) ticket: Ticket,
    session: SessionId,
    attachment: Attachment,
    /// The key of the prompt, if its client gave one.
    key: Option<String>,
    /// Whether its prompt is a message of the conversation.
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

    /// The prompt is this message now.
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

/// The result of a job of a turn. Work on the CPU thread is `None` where it panicked.
pub enum JobResult {
    Tool(CallId, Box<ToolOutcome>, Option<Vec<PlanStep>>),
    /// What a user sees of a call, or why it cannot run as things stand.
    Preview(CallId, Result<Vec<ToolDisplay>, String>),
    Summary(Box<Attempt>),
    /// The files of instructions were looked at, before this.
    Looked(Box<Option<ScannedInstructions>>, ScanPurpose),
    Hooks(HookPoint, Box<Resolution>),
    /// A callback of the round's end.
    Callback(Result<Called, String>),
    /// What came of a history for another conversation, in words.
    Elsewhere(Result<String, String>),
    /// What a compaction does to the view of this revision.
    Planned(CompactionReason, Option<(Seq, CompactionDecision)>),
    /// Old outcomes cut in the place of a compaction, for the view of this revision.
    Pruned(Seq, Option<Change>),
    Composed(Option<Result<Change, String>>),
    /// The same at the end of a round, where it pays.
    Eased(Seq, Option<Option<Change>>),
    /// A text for the place of the history, as a hook wants it.
    Swapped(Seq, Option<Result<Change, String>>),
    /// What the compaction would do that a hook calls a recipe for.
    Called(Arc<Recipe>, CallbackRequest, Option<(Seq, CompactionDecision)>),
}

/// Why a turn looks at the files of instructions.
#[derive(Clone, Copy, Debug)]
pub enum ScanPurpose {
    Call,
    Compaction(CompactionReason),
}

/// What hooks of a round's end want, on its way to the turn.
pub struct PendingResolution {
    pub event: HookEvent,
    /// The agent would stop here.
    pub last: bool,
    pub resolution: Resolution,
    pub answer: HooksResult,
}

impl PendingResolution {
    /// Notes in the trail that the action was done.
    pub(super) fn done(&mut self, remarks: impl IntoIterator<Item = String>) {
        let Resolution { trail, action_by, .. } = &mut self.resolution;
        if let Some(run) = trail.iter_mut().rev().find(|run| run.hook == *action_by) {
            run.verdict = HookRunResult::Done;
            run.remarks.extend(remarks);
        }
    }
}

/// What work outside of turns came to.
pub enum BackgroundResult {
    Recipes(RecipeCatalog, Option<Arc<Registration>>),
    /// For the prompt of this ticket: it may have been cancelled meanwhile, and another one rendered.
    Shell(Ticket, ShellOutputs),
    /// The prompt of an MCP server, for the prompt of this ticket; an error is a sentence.
    ServerPrompt(Ticket, Result<Vec<Content>, String>),
    /// A prompt with the resources of servers that it names.
    Attached(Ticket, Vec<Content>),
    LocalServer(Option<LocalServer>),
    /// What the n-th look for hooks found.
    Hooks(u64, Box<FoundHooks>, Box<TrustStore>, Option<Arc<Registration>>),
    /// A summary that was written ahead.
    Ahead(Box<CompactionPlan>, Box<Attempt>),
    /// What a compaction would do soon, for the view of this revision; `None` where deciding it panicked.
    Foreseen(Option<(Seq, CompactionDecision)>),
    /// What the compaction would do that the command of this ticket asks about.
    Previewed(Ticket, Box<Previewed>),
    /// The same for a resident hook.
    ServicePlan(String, Option<Value>, ServiceReply),
    /// What a command found or did on the disk; `None` where that panicked.
    OnDisk(Box<QueuedPrompt>, Option<DiskResult>),
    /// What a process before this one left half done with files is finished.
    TakenUp(Option<Result<Vec<RewindReport>, CheckpointError>>),
    /// An editor's request is answered, given up, or out of time.
    EditorRequestOver(Waited),
    QuestionOver(AskId),
    /// The first prompt has waited long enough for MCP servers.
    ServersAwaited,
    /// A callback in the background.
    Callback(Result<Called, String>),
    /// Hooks of an event that nothing waits for, and the card that they may answer.
    HooksAside(HookEvent, Option<AskId>, Box<Resolution>),
    /// A resident hook's call was answered.
    Served,
    Synced(Result<(), Arc<StoreError>>),
    /// What was shown of the streaming reply has to be saved.
    DraftDue,
    DraftSaved(std::io::Result<()>),
    ModelsAsked(Box<ModelListQuery>),
    /// A while has passed since a turn's end, where the log had so many entries.
    Rested(Seq),
    /// It is time to see whether the session may rest.
    Idle,
}
