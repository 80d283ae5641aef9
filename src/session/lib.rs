//! Sessions: the public face of the one writer.
//!
//! A session is one task that owns its conversation and at most one `Turn`. Whoever wants something of it
//! sends a `SessionCommand`; what it has to say comes out of an `EventSink`, in one order, and the answer
//! to a command is an item of that same stream.
//!
//! `Session` (`actor`) is the `Core` with the components beside it. `Core` is what all of them work with: the
//! conversation and its log, clients, permissions, the model, settings, services; only `Core::commit` changes the
//! conversation. A component has private fields. It gets the core and what else it needs as arguments, never the session,
//! and returns what is to be done. `Session` itself only decides what follows an event: it drives the turn and joins
//! what the components return.
//!
//! | part of the core | owns |
//! |---|---|
//! | `Clients` (`client_list`) | who is attached, who sent the prompt, who leaves, notices that are shown once, events that wait for the log (`event_gate`) |
//! | `Log` | the journal with its writer, syncing, ids of messages |
//! | `ModelLink` | the endpoint, its window, token counts, cost, encoded requests |
//! | `Permissions` | what is allowed, and the open card |
//! | `Trace` | the log spans of the session and its turn |
//!
//! | component | owns |
//! |---|---|
//! | `Inbox` | commands that arrive, prompts that wait |
//! | `Questions` | questions of tools and MCP servers to the user |
//! | `EditorBuffers` | what editors hold unsaved, and requests to them |
//! | `ToolHost` | what tool calls share: files, live output, background commands; what is known of the turn's calls |
//! | `Subagents` | children at work, their cards and streams |
//! | `HookHost` | hooks that were found, consent to them, and what they want of the running turn |
//! | `Compactor` | the compaction of the running turn, the summary that is written ahead |
//! | `Recipes` (`recipe_catalog`) | the catalog, and the prompt that is being rendered |
//! | `Mcp` | MCP servers |
//! | `Watch` (`instructions`) | the files that hold instructions |
//!
//! `session_state` shows clients that follow it whether the session works, waits or is idle. `reminders` compares the view
//! with what the model has to know; `commands` are functions over the core.

mod actor;
mod background_callback;
mod callbacks;
mod calls;
mod checkpoints;
pub mod child;
mod child_requests;
#[cfg(test)]
mod child_requests_tests;
mod client_list;
mod clients;
mod commands;
mod compacting;
pub mod complete;
mod core;
pub mod counts;
pub mod cpu_worker;
pub mod cross_session_edit;
mod draft;
mod driving;
mod editor_buffers;
mod effects;
mod ending;
mod event_gate;
pub mod event_queue;
mod hook_dispatch;
mod hook_host;
mod hooks;
mod hooks_aside;
mod inbox;
mod instructions;
mod log;
mod mcp;
pub mod meter;
mod model_link;
mod models;
mod output_truncation;
mod permissions;
pub mod port;
mod preflight;
mod prompt;
mod questions;
mod recipe_catalog;
mod recipes;
pub mod registry;
mod reminders;
mod replies;
pub mod resumed;
mod rounds;
mod sandbox;
mod saved_permissions;
mod services;
pub mod session_permissions;
mod session_state;
mod skills;
mod subagents;
mod summary;
pub mod suspended;
mod tasks;
mod tool_host;
mod trace;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub use clients::provider_error;
pub use commands::why;
pub use epitome_config::{MCP_NAME_BYTES_MAX, MCP_SERVERS_MAX, McpServer, McpSource, McpTransport};
use epitome_problem::Problem;
pub use epitome_provider::endpoint::provider_title;
pub use epitome_recipe::command::CommandInfo;
use epitome_thread::{
    CallDisplay, CallId, Change, ClientInstructions, Content, Entry, MessageId, Mode, ModelName, SessionId,
    StopReason, ThoughtLevel, ToolDisplay, ToolOutcome, Usage,
};
pub use epitome_tools::buffers::{EditorRequest, EditorResponse, EditorSupport};
pub use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSupport, UserQuestion};
pub use instructions::folders as instruction_files;
pub use mcp::{LISTINGS as MCP_LISTINGS, LOGINS as MCP_LOGINS};
pub use resumed::{PendingPrompt, Position, Seen, TextShown};
pub use sandbox::sandbox_rules;

/// Names one request of a client; its answer carries it back. Given out by the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// Names a client's connection; a session has at most one attachment for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientId(pub u64);

/// Names a question that a session asked its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AskId(pub u64);

impl AskId {
    /// An id that no other question has, in this process or in one before: who answers a card late can't meet
    /// another question by it. It begins with the time of the process's first question, in seconds, and has room
    /// for a million more of them a second.
    pub(crate) fn fresh() -> AskId {
        static NEXT: std::sync::LazyLock<std::sync::atomic::AtomicU64> = std::sync::LazyLock::new(|| {
            let since =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            (since.as_secs() << 20 | u64::from(since.subsec_micros())).into()
        });
        AskId(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// Where a session's news go: one for each attached client.
pub trait EventSink: Send + Sync {
    /// Takes one item. It must not block: an outlet that cannot pass things on at once keeps them,
    /// may merge or forget `Text` and `CallProgress` (the entry that follows has all), and keeps its
    /// own bounds.
    fn put(&self, session: &SessionId, out: SessionEvent);

    /// The questions that its client can show beside permission cards; none, where it says nothing.
    fn shows(&self) -> QuestionSupport {
        QuestionSupport::default()
    }

    /// What its client, an editor, offers to do with the texts that it holds; nothing, where it says nothing.
    fn offers(&self) -> EditorSupport {
        EditorSupport::default()
    }

    /// Whether its client shows agents as sessions of their own. Then it is told of each by `SessionEvent::Subagent` under
    /// the id of who started it, and behind that gets the agent's own stream under the agent's id.
    fn shows_agents(&self) -> bool {
        false
    }

    /// Whether its client follows the session's state. Then it gets `State`, `Inserted` and `TerminalEnded`, and the
    /// output of commands in the background.
    fn follows_state(&self) -> bool {
        false
    }
}

/// An attached client, as a session keeps it.
#[derive(Clone)]
pub struct Attachment {
    pub client: ClientId,
    pub outlet: Arc<dyn EventSink>,
}

/// What a client brings when it opens a session.
#[derive(Clone)]
pub struct Opening {
    pub attachment: Attachment,
    /// Absolute; empty for who attaches and has none, such as a command.
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    /// The MCP servers that the client gave. Those of who opens a session count for it.
    pub mcp_servers: Vec<McpServer>,
    /// The environment of the editor: where keys are looked up, and what commands run with.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    /// What its command line set above all configuration. That of who opens a session counts for it.
    pub overrides: Arc<registry::Overrides>,
    /// What it adds to the system prompt. They stay with the session until a client gives others.
    pub instructions: Option<ClientInstructions>,
    /// Ids and values of options to start with. What can't be chosen is ignored.
    pub choices: Vec<(String, String)>,
}

impl Opening {
    /// Whether it may attach to a session. One without a directory leaves that to the session, and a client that goes on
    /// behind a daemon's death is not refused, because its prompts are to be answered.
    fn check_for(&self, replay: &Replay) -> Result<(), SessionError> {
        match replay {
            Replay::Rest { .. } => Ok(()),
            Replay::Everything | Replay::Nothing if self.cwd.as_os_str().is_empty() => Ok(()),
            Replay::Everything | Replay::Nothing => self.check_cwd(),
        }
    }

    /// Refuses a working directory that is none: the user would learn of it only at the first call.
    fn check_cwd(&self) -> Result<(), SessionError> {
        let cwd = self.cwd.display();
        let why = match self.cwd.metadata() {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => format!("{cwd} is not a directory"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                format!("the directory {cwd} does not exist")
            }
            Err(error) => format!("the directory {cwd} can't be used: {error}"),
        };
        Err(SessionError::Invalid(format!("`cwd`: {why}. Open the session in an existing directory")))
    }
}

/// How much of the past a client wants to see when it attaches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Everything, before the answer (`session/load`).
    Everything,
    /// Nothing (`session/resume`).
    Nothing,
    /// What follows this position, before the answer, together with the answers to these prompts: for a client
    /// whose daemon died.
    Rest { position: Box<Position>, prompts: Vec<PendingPrompt> },
}

/// What can be asked of a session. Each `ticket` gets exactly one `SessionEvent::Answer`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionCommand {
    #[serde(skip)]
    Attach {
        ticket: Ticket,
        opening: Opening,
        replay: Replay,
    },
    /// With a key, it is inserted at most once, however often it is sent.
    Prompt {
        ticket: Ticket,
        client: ClientId,
        content: Vec<Content>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// Says something into the running turn; where none runs, nothing is done. Answered at once.
    Steer {
        ticket: Ticket,
        client: ClientId,
        content: Vec<Content>,
    },
    /// Ends the running turn and everything that waits (`session/cancel`).
    Cancel,
    /// The same for one agent that works under this session, at any depth: it alone, and who works for it.
    #[serde(skip)]
    CancelAgent {
        agent: SessionId,
    },
    /// Ends the one prompt of this ticket (`$/cancel_request`).
    CancelPrompt {
        ticket: Ticket,
    },
    /// Ends one running call, or the command of one terminal. Accepted at once; the end is shown when it comes.
    #[serde(skip)]
    CancelOne {
        ticket: Ticket,
        client: ClientId,
        target: CancelTarget,
    },
    SetMode {
        ticket: Ticket,
        client: ClientId,
        mode: String,
    },
    SetOption {
        ticket: Ticket,
        client: ClientId,
        option: String,
        value: String,
    },
    /// The answer to `SessionEvent::Ask`. A late or unknown one is ignored.
    Decide {
        ask: AskId,
        decision: UserDecision,
    },
    /// There is nobody at this client who could be asked; others may have somebody. The question is settled once
    /// that holds of every client.
    Absent {
        ask: AskId,
        client: ClientId,
    },
    /// The answer to `SessionEvent::Question`. A late or unknown one is ignored.
    Answer {
        ask: AskId,
        reply: QuestionReply,
    },
    /// The answer to `SessionEvent::Wish`. A late or unknown one is ignored.
    #[serde(skip)]
    Fulfil {
        ask: AskId,
        answer: EditorResponse,
    },
    /// Cancels the turn, then ends the session's task. The log stays.
    Close {
        ticket: Ticket,
        client: ClientId,
    },
    /// The client's connection is gone; the last one to go ends the session.
    Detach {
        client: ClientId,
    },
    /// Lets somebody look on. It is not a client, and has no answer but what it is shown.
    #[serde(skip)]
    Watch(client_list::Watcher),
    #[serde(skip)]
    Unwatch {
        client: ClientId,
    },
    /// The session is deleted: it ends at once, whoever is attached.
    #[serde(skip)]
    End,
    /// Recipe files of this session's places changed.
    #[serde(skip)]
    RecipesChanged,
    /// Hooks of this session's places changed, or the consent to them.
    #[serde(skip)]
    HooksChanged,
    /// A setting is changed from outside of any prompt.
    #[serde(skip)]
    Record {
        change: Box<Change>,
        answer: oneshot::Sender<Result<(), SessionError>>,
    },
    /// A hook of another conversation replaces this one's history. Refused while a prompt runs.
    #[serde(skip)]
    Mutate {
        mutation: Box<cross_session_edit::Mutation>,
        answer: cross_session_edit::ReplacedAnswer,
    },
}

impl SessionCommand {
    /// The ticket that is answered, and whose it is.
    pub(crate) fn asker(&self) -> Option<(Ticket, ClientId)> {
        match self {
            SessionCommand::Attach { ticket, opening, .. } => Some((*ticket, opening.attachment.client)),
            SessionCommand::Prompt { ticket, client, .. }
            | SessionCommand::Steer { ticket, client, .. }
            | SessionCommand::SetMode { ticket, client, .. }
            | SessionCommand::SetOption { ticket, client, .. }
            | SessionCommand::CancelOne { ticket, client, .. }
            | SessionCommand::Close { ticket, client } => Some((*ticket, *client)),
            SessionCommand::Cancel
            | SessionCommand::CancelAgent { .. }
            | SessionCommand::CancelPrompt { .. }
            | SessionCommand::Decide { .. }
            | SessionCommand::Absent { .. }
            | SessionCommand::Answer { .. }
            | SessionCommand::Fulfil { .. }
            | SessionCommand::Detach { .. }
            | SessionCommand::Watch(_)
            | SessionCommand::Unwatch { .. }
            | SessionCommand::End
            | SessionCommand::RecipesChanged
            | SessionCommand::HooksChanged
            | SessionCommand::Record { .. }
            | SessionCommand::Mutate { .. } => None,
        }
    }
}

/// What a client wants to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelTarget {
    Call(CallId),
    /// The terminal of this call, whose command may run in the background.
    Terminal(CallId),
}

/// What a user chose on a permission card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserDecision {
    AllowOnce,
    /// Allow, and remember `PermissionRequest::always`.
    AllowAlways,
    Reject,
    /// Reject, and tell the model why.
    RejectBecause(String),
    /// Reject, and remember `PermissionRequest::never`.
    RejectAlways,
    /// No answer, an unknown one, or a cancel: not approval.
    Dismissed,
    /// Nobody was there to be asked, at no client. It is found, and can't be sent: `SessionCommand::Absent` can.
    #[serde(skip_deserializing)]
    Absent,
}

/// One item of a session's stream to a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum SessionEvent {
    /// An entry of the log. `replay` tells the past from the present; a user message of the present
    /// is not shown to the client that sent it (`own`).
    Entry {
        entry: Arc<Entry>,
        replay: bool,
        own: bool,
    },
    /// Streamed text of a message that is not yet an entry; `part` is the index of the part in the
    /// message's content. The entry that follows has the whole text.
    Text {
        message: MessageId,
        part: u32,
        kind: TextKind,
        text: String,
    },
    /// Shows nothing: what an earlier process has shown to the client already, so that the rest follows it.
    Seen(Box<Seen>),
    /// A call is running.
    CallStarted {
        call: CallId,
    },
    /// Newest output of a running command.
    CallProgress {
        call: CallId,
        output: String,
    },
    /// A call that is not in the log has its outcome: a child's, of which a card was shown.
    CallFinished {
        outcome: Arc<ToolOutcome>,
    },
    /// A compaction began, goes on, or came to nothing. `id` is that of the summary's message; the entry that
    /// holds it says that it is done.
    Compaction {
        id: MessageId,
        state: CompactionState,
    },
    /// The tokens that the context takes now.
    Usage(UsageNow),
    /// The whole list of slash commands.
    Commands(Arc<[CommandInfo]>),
    /// Modes and options, complete.
    Options(Arc<SessionOptions>),
    /// A passing remark that is not kept: waiting for a provider, a problem in a file.
    Notice {
        severity: NoticeSeverity,
        text: String,
    },
    /// A question to the user.
    Ask {
        ask: AskId,
        permission: Arc<PermissionRequest>,
    },
    /// A question to the user that is no permission. A client that can't show it shows nothing.
    Question {
        ask: AskId,
        question: Arc<UserQuestion>,
    },
    /// An agent under this session: that it works, or how. Only for an outlet that shows agents.
    Subagent(Subagent),
    /// What the user was to do at the address of this id is done.
    QuestionDone {
        id: String,
    },
    /// What a file tool wants of the one client whose prompt it works for.
    Wish {
        ask: AskId,
        wish: Arc<EditorRequest>,
    },
    /// The question is settled or void.
    Withdrawn {
        ask: AskId,
    },
    /// How the session stands now. Only for an outlet that follows it, as are the next two.
    State(Arc<SessionState>),
    /// The prompt of this ticket is this message of the conversation. Its `Answer` comes when its turn has ended.
    Inserted {
        ticket: Ticket,
        message: MessageId,
    },
    /// A command in the background has ended.
    TerminalEnded {
        call: CallId,
        code: Option<i64>,
        signal: Option<i64>,
    },
    Answer {
        ticket: Ticket,
        answer: Result<SessionAnswer, SessionError>,
    },
}

/// What a session does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionState {
    pub foreground: Foreground,
    /// The commands in the background, complete.
    pub background: Vec<BackgroundTerminal>,
}

/// What a session does with what it was asked last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Foreground {
    Running,
    /// Nothing goes on until the user has answered.
    RequiresAction,
    /// With the end of the work before, where there was some.
    Idle(Option<WorkEnd>),
}

/// How foreground work ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkEnd {
    pub reason: StopReason,
    pub usage: Usage,
    pub error: Option<SessionError>,
}

/// A command that runs in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundTerminal {
    /// The call that started it.
    pub call: CallId,
    /// Its command line, truncated.
    pub line: String,
}

/// How a session stands for a client that attaches and follows it.
#[derive(Clone, Debug)]
pub struct SessionNow {
    pub state: SessionState,
    /// `None` while recipes are being read.
    pub commands: Option<Arc<[CommandInfo]>>,
}

/// How a compaction stands that is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionState {
    /// So many tokens are to be made fewer.
    Began {
        tokens: u64,
    },
    /// The next piece of the summary, as the model writes it. What is committed may be another text: a try
    /// may come to nothing.
    Wrote(String),
    /// It failed, with a sentence, or there was nothing to gain.
    Failed(String),
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    Reply,
    Thinking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeSeverity {
    Info,
    Warning,
    Error,
}

/// An agent that the model handed work to, as a session that clients can show beside its parent's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subagent {
    /// Its id. No session can be opened by it.
    pub session: SessionId,
    /// What it is: there when it is told of for the first time, so that what was shown of that id before is void.
    pub about: Option<Arc<SubagentInfo>>,
    pub state: SubagentState,
}

/// What an agent is, for the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubagentInfo {
    /// The call that started it, among those of who started it; `None` where that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// As its call is titled.
    pub title: String,
    /// What agents of its name are for; empty where that is not known.
    pub description: String,
    pub cwd: PathBuf,
}

/// How an agent stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubagentState {
    Running,
    /// It waits for the user.
    RequiresAction,
    /// It has ended, with every question of its own and everybody who worked for it. Nothing comes of it any more.
    Ended(SubagentEnd),
}

/// Why an agent has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubagentEnd {
    Stopped(StopReason),
    /// With a sentence.
    Failed(String),
    /// Who ran it is gone, and with it what became of it.
    Unknown,
}

/// How full the window is, and what the session has cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageNow {
    /// Tokens in context now.
    pub used: u64,
    /// The window, in tokens.
    pub size: u64,
    /// US dollars since the session began, where prices are known.
    pub cost: Option<f64>,
    /// The last model call.
    pub last: Usage,
}

/// A permission card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PermissionRequest {
    pub call: CallId,
    pub tool: String,
    pub input: serde_json::Value,
    pub card: CallDisplay,
    pub preview: Vec<ToolDisplay>,
    /// What "always" would remember, in words; `None` where only once is offered.
    pub always: Option<String>,
    /// What "never" would remember, in words; `None` where it is not offered.
    pub never: Option<String>,
    /// The agent that asks, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AskedByAgent>,
}

/// Whose call a card is about, in that agent's own words: for clients that show it as a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AskedByAgent {
    pub session: SessionId,
    pub call: CallId,
    /// Without the agent's name.
    pub title: String,
}

/// Everything that a client can choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionOptions {
    pub mode: Mode,
    /// `None` until a model is known.
    pub model: Option<ModelName>,
    /// Those of one provider together; the current one is always among them.
    pub models: Vec<ModelOption>,
    pub thought: ThoughtLevel,
    /// What levels come to with the model, where they are not what they say.
    pub remarks: Vec<(ThoughtLevel, String)>,
}

/// A model that a client can choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOption {
    pub name: ModelName,
    /// What it costs and holds, in words; empty where nothing is known.
    pub about: String,
}

/// What a command came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum SessionAnswer {
    /// To `Attach` and to the creation of a session.
    Attached {
        session: SessionId,
        /// The directory in which its commands run.
        #[serde(default)]
        cwd: PathBuf,
        options: Arc<SessionOptions>,
        /// For a client that follows the session's state.
        #[serde(skip)]
        now: Option<Arc<SessionNow>>,
    },
    /// To `Prompt`, behind the last entry of its turn, which is on disk.
    TurnEnded {
        reason: StopReason,
        usage: Usage,
        meta: Option<serde_json::Value>,
    },
    /// To `SetMode` and `SetOption`.
    Options(Arc<SessionOptions>),
    /// To `Steer`.
    Steered(Steered),
    /// To `CancelOne`.
    Accepted,
    Closed,
}

/// What became of something that was said into a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "why", rename_all = "snake_case")]
pub enum Steered {
    /// The model reads it before its next reply.
    Injected,
    /// It has to be sent as a prompt, for this reason.
    PromptRequired(String),
}

/// Why a command failed. Each says a sentence to a user; none carries a secret.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "snake_case")]
pub enum SessionError {
    #[error("there is no session {0}")]
    NotFound(SessionId),
    #[error("{0}")]
    AuthRequired(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{message}")]
    Provider { message: String, hint: Option<String> },
    /// The prompt with what was given beside it is longer than the model takes.
    #[error("{0}")]
    TooLong(String),
    /// The process that worked on the request ended before it could answer.
    #[error("{0}")]
    Interrupted(String),
    /// Another process writes its log.
    #[error("session {0} is open in another process")]
    InUse(SessionId),
    #[error("{0}")]
    Store(String),
    #[error("the session is busy: {0} commands are already waiting")]
    Busy(usize),
    #[error("{0}")]
    Internal(String),
}

/// Problems in files, as one notice.
pub fn problem_notice(problem: &Problem) -> SessionEvent {
    SessionEvent::Notice { severity: NoticeSeverity::Warning, text: problem.to_string() }
}
