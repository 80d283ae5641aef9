//! What a session holds besides its thread: prompts, the running turn's work, answers that are owed.
//!
//! Data only; what happens to it is in `actor`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::callbacks::Called;
use super::clients::outer_texts;
use super::commands::OnDisk;
use super::compacting::{CompactionOrder, Draft};
use super::editor_buffers::Waited;
use super::effects::ModelCall;
use super::instructions::Looked;
use super::model_link::Asked;
use super::recipes::Previewed;
use super::summary::Attempt;
use super::tasks::Running;
use super::trace::TurnTrace;
use super::{Answer, AskId, Attachment, ClientId, Opening, Out, PermissionAsk, Replay, SessionError, Ticket};
use epitome_checkpoint::{CheckpointError, RewindReport};
use epitome_compaction::{Decision, Plan};
use epitome_hooks::discover::Found;
use epitome_hooks::event::HookEvent;
use epitome_hooks::handlers::Table;
use epitome_hooks::output::{Callback, PermissionDecision, Resolution};
use epitome_hooks::trust::{Item, Trust};
use epitome_provider::endpoint::{Endpoint, LocalServer};
use epitome_recipe::catalog::Catalog;
use epitome_recipe::parse::Recipe;
use epitome_recipe::render::ShellOutputs;
use epitome_recipe::watch::Registration;
use epitome_store::StoreError;
use epitome_thread::{
    CallId, Change, Content, Decided, MessageId, PlanStep, Seq, SessionId, Shown, ToolOutcome,
};
use epitome_turn::{Ask, HookAsk, HooksAnswer, Turn, Why};

/// A client that leaves once the turn has ended.
pub enum Closer {
    /// It asked to, and is answered.
    Client(ClientId, Responder),
    /// Its connection is gone.
    Gone(ClientId),
}

/// A client that wanted to attach to a session that was just ending.
pub struct TooLate {
    pub ticket: Ticket,
    pub opening: Opening,
    pub replay: Replay,
}

/// A prompt that has not begun.
pub struct Prompt {
    pub responder: Responder,
    pub client: ClientId,
    pub content: Vec<Content>,
}

impl Prompt {
    pub(super) fn may_be_command(&self) -> bool {
        outer_texts(&self.content).any(|(_, text)| text.trim_start().starts_with('/'))
    }
}

/// A running turn and what belongs to it.
pub struct Work {
    pub turn: Turn,
    /// What the log tells of it.
    pub trace: TurnTrace,
    /// Who is answered when it ends; a queued prompt with the entry that holds it.
    pub responders: Vec<(Responder, Option<Seq>)>,
    /// The tools that the recipe of this turn is limited to.
    pub allowed_tools: Option<Vec<String>>,
    /// The command lines that it is limited to, as patterns.
    pub allowed_commands: Option<Vec<String>>,
    /// Goes into the answer's `_meta`.
    pub meta: Option<Value>,
    /// The model that the recipe asks for, where it is another than the session's.
    pub endpoint: Option<Endpoint>,
    /// The recipe that runs, and what it declares to be done at moments of its run.
    pub recipe: Option<Arc<Recipe>>,
    pub handlers: Table,
    /// How the next compaction is to be made.
    pub order: CompactionOrder,
    /// The compaction that is planned.
    pub draft: Option<Draft>,
    /// The compaction that clients were told of.
    pub compacting: Option<Compacting>,
    /// The summary, as it is being written.
    pub pieces: Option<mpsc::Receiver<String>>,
    /// The summary that hooks see before it takes the history's place.
    pub summary: Option<String>,
    /// What hooks decided about calls: by whom, and why.
    pub decisions: HashMap<CallId, (PermissionDecision, String, Option<String>)>,
    /// Who let calls run or refused them, until it stands in their outcomes.
    pub decided: HashMap<CallId, Decided>,
    /// What hooks had to say to the model about calls before they ran: by whom. It stands behind the outcome.
    pub notes: HashMap<CallId, Vec<(String, String)>>,
    /// When running calls began.
    pub started: HashMap<CallId, Instant>,
    /// A hook ends the turn at the end of this round: by whom, and why.
    pub halt: Option<(String, String)>,
    /// Times that hooks continued this prompt, and by what text last.
    pub continuations: u32,
    pub last_follow_up: Option<String>,
    /// A resident hook asked for a compaction at the next safe point.
    pub wanted_compaction: Option<String>,
    /// Recipes and model calls that resident hooks started.
    pub paid_calls: u32,
    /// Agents that were started, and those that are at work.
    pub agents: u32,
    pub running_agents: HashMap<CallId, Running>,
    pub model: Option<ModelCall>,
    /// What the turn asked for while the model's server was looked for.
    pub postponed: Option<Ask>,
    /// The provider said that the key is missing, wrong or without the right.
    pub unauthorised: bool,
    /// The first request does not fit, and who gave the history makes it shorter.
    pub too_long: bool,
    pub jobs: JoinSet<Done>,
}

/// A compaction that clients were told the beginning of.
pub struct Compacting {
    /// The id of its summary's message.
    pub id: MessageId,
    /// The tokens that it began with.
    pub tokens: u64,
    /// What of the summary was shown, for a client that joins in the middle.
    pub wrote: String,
}

impl Work {
    /// A turn with the one who sent it and nothing else yet.
    pub fn new(turn: Turn, trace: TurnTrace, responder: Responder) -> Work {
        Work {
            turn,
            trace,
            responders: vec![(responder, None)],
            allowed_tools: None,
            allowed_commands: None,
            meta: None,
            endpoint: None,
            recipe: None,
            handlers: Table::new(),
            order: CompactionOrder::default(),
            draft: None,
            compacting: None,
            pieces: None,
            summary: None,
            decisions: HashMap::new(),
            decided: HashMap::new(),
            notes: HashMap::new(),
            started: HashMap::new(),
            halt: None,
            continuations: 0,
            last_follow_up: None,
            wanted_compaction: None,
            paid_calls: 0,
            agents: 0,
            running_agents: HashMap::new(),
            model: None,
            postponed: None,
            unauthorised: false,
            too_long: false,
            jobs: JoinSet::new(),
        }
    }
}

/// A question about what a repository brings, which waits for the person.
pub struct OpenConsent {
    pub ask: AskId,
    pub permission: Arc<PermissionAsk>,
    pub items: Vec<Item>,
    /// The command that waits for it; `None` where all prompts do.
    pub prompt: Option<Prompt>,
}

/// Owes one answer. Dropped without it (a panic of the session), it answers with an internal error.
pub struct Responder {
    pub(super) ticket: Ticket,
    session: SessionId,
    attachment: Attachment,
    owes: bool,
}

impl Responder {
    pub fn new(ticket: Ticket, session: SessionId, attachment: Attachment) -> Responder {
        Responder { ticket, session, attachment, owes: true }
    }

    pub(super) fn client(&self) -> ClientId {
        self.attachment.client
    }

    pub fn answer(mut self, answer: Result<Answer, SessionError>) {
        self.owes = false;
        self.attachment.outlet.put(&self.session, Out::Answer { ticket: self.ticket, answer });
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.owes {
            let message = "the session ended before it could answer; load it again and repeat".to_owned();
            let answer = Err(SessionError::Internal(message));
            self.attachment.outlet.put(&self.session, Out::Answer { ticket: self.ticket, answer });
        }
    }
}

/// The result of a job of a turn.
pub enum Done {
    Tool(CallId, Box<ToolOutcome>, Option<Vec<PlanStep>>),
    /// What a person sees of a call, or why it cannot run as things stand.
    Preview(CallId, Result<Vec<Shown>, String>),
    Summary(Box<Attempt>),
    Thought(Box<Thought>),
    /// The files of instructions were looked at, before this.
    Looked(Box<Option<Looked>>, LookedFor),
    Hooks(HookAsk, Box<Resolution>),
    Callback(Box<Pending>, Result<Called, String>),
    /// What came of a history for another conversation, in words.
    Elsewhere(Box<Pending>, Result<String, String>),
}

/// The result of work on the CPU thread that a turn waits for; `None` within it where that panicked.
pub enum Thought {
    /// What a compaction does to the view of this revision.
    Planned(Why, Option<(Seq, Decision)>),
    /// Old outcomes cut in the place of a compaction, for the view of this revision.
    Pruned(Seq, Option<Change>),
    Composed(Option<Result<Change, String>>),
    /// The same at the end of a round, where it pays.
    Eased(Seq, Option<Option<Change>>),
    /// A text for the place of the history, as a hook wants it.
    Swapped(Box<Pending>, Seq, Option<Result<Change, String>>),
    /// What the compaction would do that a hook calls a recipe for.
    Called(Box<Pending>, Arc<Recipe>, Callback, Option<(Seq, Decision)>),
}

/// Why a turn looks at the files of instructions.
#[derive(Clone, Copy, Debug)]
pub enum LookedFor {
    Call,
    Compaction(Why),
}

/// What hooks of a round's end want, on its way to the turn.
pub struct Pending {
    pub event: HookEvent,
    /// The agent would stop here.
    pub last: bool,
    pub resolution: Resolution,
    pub answer: HooksAnswer,
}

/// What work outside of turns came to.
pub enum Background {
    Recipes(Catalog, Option<Arc<Registration>>),
    /// For the prompt of this ticket: it may have been cancelled meanwhile, and another one rendered.
    Shell(Ticket, ShellOutputs),
    LocalServer(Option<LocalServer>),
    /// What the n-th look for hooks found.
    Hooks(u64, Box<Found>, Box<Trust>, Option<Arc<Registration>>),
    /// A summary that was written ahead.
    Ahead(Box<Plan>, Box<Attempt>),
    /// What a compaction would do soon, for the view of this revision; `None` where deciding it panicked.
    Foreseen(Option<(Seq, Decision)>),
    /// What the compaction would do that the command of this ticket asks about.
    Previewed(Ticket, Box<Previewed>),
    /// The same for a resident hook.
    ServicePlan(String, Option<Value>, oneshot::Sender<Result<Value, String>>),
    /// What a command found or did on the disk; `None` where that panicked.
    OnDisk(Box<Prompt>, Option<OnDisk>),
    /// What a process before this one left half done with files is finished.
    TakenUp(Option<Result<Vec<RewindReport>, CheckpointError>>),
    /// An editor's request is answered, given up, or out of time.
    EditorRequestOver(Waited),
    QuestionOver(AskId),
    /// The first prompt has waited long enough for MCP servers.
    ServersAwaited,
    /// A callback in the background.
    Side(Result<Called, String>),
    /// A resident hook's call was answered.
    Served,
    Synced(Result<(), StoreError>),
    ModelsAsked(Box<Asked>),
    /// A while has passed since a turn's end, where the log had so many entries.
    Rested(Seq),
    /// It is time to see whether the session may rest.
    Idle,
}
