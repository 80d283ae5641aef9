//! The commands and events of sessions, as their clients see them: what a client sends, what it receives through its
//! `EventSink`, and the sessions as traits. Has no session.

mod agent_ids;
pub mod event_queue;
mod grant;
mod mutation;
mod overrides;
pub mod port;
mod position;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub use agent_ids::{agent_id, agent_of_call};
pub use epitome_config::{
    MCP_NAME_BYTES_MAX, MCP_SERVERS_MAX, McpServer, McpSource, McpTransport, ProviderSettings, WireFormat,
};
pub use epitome_mcp::{ClientMcp, ClientMcpFault, FromClient};
pub use epitome_provider::collect::TextKind;
pub use epitome_provider::endpoint::provider_title;
pub use epitome_recipe::command::CommandInfo;
use epitome_store::SessionHolder;
use epitome_thread::problem::Problem;
use epitome_thread::{
    CallDisplay, CallId, CallOutput, Change, ClientInstructions, Content, Entry, MessageId, Mode, ModelName,
    Seq, SessionId, StopReason, ThoughtLevel, ToolDisplay, ToolOutcome, Usage,
};
pub use epitome_tools::buffers::{EditorRequest, EditorResponse, EditorSupport};
pub use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSupport, UserQuestion};
pub use grant::{AccessGrant, AccessScope, ScopeError};
pub use mutation::{Mutation, Replaced, ReplacedAnswer, ReplacementRefusal, RequesterContext, WorkerFault};
pub use overrides::{ALLOW_OPTION, DENY_OPTION, Overrides};
pub use position::{PendingPrompt, Position, Seen, TextShown};

/// Identifies a request of a client; assigned by the client's connection and repeated in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Identifies a client's connection; a session has at most one attachment for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientId(pub u64);

/// Identifies a question that a session asked its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AskId(pub u64);

impl AskId {
    /// Returns an id that no other question has, in this process or an earlier one, so that a late answer can't match
    /// another question. It starts from the time of the process's first question, in seconds, and leaves room for a
    /// million questions per second.
    pub fn fresh() -> AskId {
        static NEXT: std::sync::LazyLock<std::sync::atomic::AtomicU64> = std::sync::LazyLock::new(|| {
            let since =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            (since.as_secs() << 20 | u64::from(since.subsec_micros())).into()
        });
        AskId(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// The receiver of a session's events for one client.
pub trait EventSink: Send + Sync {
    /// Takes one event. Must not block: a sink that can't pass an event on queues it, with its own limits. It may merge
    /// or drop `Text` and `CallProgress`, because the entry that follows contains everything.
    fn put(&self, session: &SessionId, out: SessionEvent);

    /// The sink that this one passes events on to. It says what the client can do, unless this one does.
    fn inner(&self) -> Option<&dyn EventSink> {
        None
    }

    /// The kinds of question that the client can show, besides permission requests. None by default.
    fn shows(&self) -> QuestionSupport {
        self.inner().map(|inner| inner.shows()).unwrap_or_default()
    }

    /// Whether the client shows a summary while it is written.
    fn shows_summaries(&self) -> bool {
        self.inner().is_some_and(|inner| inner.shows_summaries())
    }

    /// The abilities of the client, an editor, with its open buffers. None by default.
    fn offers(&self) -> EditorSupport {
        self.inner().map(|inner| inner.offers()).unwrap_or_default()
    }

    /// Whether the client shows agents as sessions of their own. If so, each agent is announced by
    /// `SessionEvent::Subagent` under the id of its parent; after that, the agent's own events arrive under the agent's
    /// id.
    fn shows_agents(&self) -> bool {
        self.inner().is_some_and(|inner| inner.shows_agents())
    }

    /// The way to MCP servers that the client provides over its own connection.
    fn mcp(&self) -> Option<Arc<dyn ClientMcp>> {
        self.inner()?.mcp()
    }

    /// Whether the client follows the session's state. If so, it gets `State`, `Inserted` and `TerminalEnded`, and the
    /// output of background commands.
    fn follows_state(&self) -> bool {
        self.inner().is_some_and(|inner| inner.follows_state())
    }

    /// Whether the client's connection has ended: it is detached from its sessions, and no other is opened for it.
    fn is_gone(&self) -> bool {
        self.inner().is_some_and(|inner| inner.is_gone())
    }

    /// The rights of a client on another machine. `None` for the user, who has all.
    fn grant(&self) -> Option<&AccessGrant> {
        self.inner()?.grant()
    }
}

/// A client attached to a session.
#[derive(Clone)]
pub struct Attachment {
    pub client: ClientId,
    pub outlet: Arc<dyn EventSink>,
}

impl Attachment {
    /// Sends entries of the past.
    pub fn replay<'a>(&self, session: &SessionId, entries: impl IntoIterator<Item = &'a Arc<Entry>>) {
        for entry in entries {
            self.outlet.put(session, SessionEvent::Entry { entry: entry.clone(), replay: true, own: false });
        }
    }
}

/// The data with which a client opens a session.
#[derive(Clone)]
pub struct Opening {
    pub attachment: Attachment,
    /// Absolute; empty for a client without a directory, such as a command.
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    /// The client's MCP servers. Only those of the client that opens the session are used.
    pub mcp_servers: Vec<McpServer>,
    /// The editor's environment: keys are looked up in it, and commands run with it.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    /// Settings from the client's command line, which override the configuration. Only those of the client that opens
    /// the session are used.
    pub overrides: Arc<Overrides>,
    /// The client's additions to the system prompt. They stay with the session until a client provides others.
    pub instructions: Option<ClientInstructions>,
    /// Ids and values of options to start with. Invalid choices are ignored.
    pub choices: Vec<(String, String)>,
}

impl Opening {
    /// Checks whether the client may attach to a session that works in `own`, which it can't leave. Without a directory of
    /// the client, this one is used. A client that reconnects after the daemon died is never refused, because its prompts
    /// need answers.
    pub fn check_for(&self, replay: &Replay, own: &Path) -> Result<(), SessionError> {
        if matches!(replay, Replay::Rest { .. }) || self.cwd.as_os_str().is_empty() {
            return Ok(());
        }
        self.check_cwd()?;
        let is_link_to_same =
            || self.cwd.canonicalize().is_ok_and(|cwd| Some(cwd) == own.canonicalize().ok());
        if self.cwd == own || is_link_to_same() {
            return Ok(());
        }
        let (cwd, exists, own) = (self.cwd.display(), own.is_dir(), own.display());
        let advice = match exists {
            true => format!("Open it with {own}, or begin a new session in {cwd}"),
            false => {
                format!("{own} does not exist. If it was moved, make a link from there to its new place")
            }
        };
        Err(SessionError::Invalid(format!("`cwd`: the session works in {own}, not in {cwd}. {advice}")))
    }

    /// Checks that the working directory exists; otherwise the user would only notice at the first tool call.
    pub fn check_cwd(&self) -> Result<(), SessionError> {
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

/// A client that wants to attach to a session.
pub struct Attaching {
    pub ticket: Ticket,
    pub opening: Opening,
    pub replay: Replay,
}

/// How much of the past a client wants to see when it attaches.
#[derive(Clone, Debug, PartialEq)]
pub enum Replay {
    /// Everything, before the answer (`session/load`).
    Everything,
    /// Nothing (`session/resume`).
    Nothing,
    /// Everything after this position, before the answer, and answers to these prompts, for a client whose daemon died.
    Rest { position: Box<Position>, prompts: Vec<PendingPrompt> },
}

impl Attaching {
    /// The client, if it will be shown what others have added since it was last here.
    pub fn reloads(&self) -> Option<ClientId> {
        (self.replay != Replay::Nothing).then_some(self.opening.attachment.client)
    }

    /// Answers the client with an error, and also the prompts that it has brought.
    pub fn refuse(self, session: &SessionId, error: &SessionError) {
        let prompts = match &self.replay {
            Replay::Rest { prompts, .. } => prompts.iter().map(|prompt| prompt.ticket).collect(),
            Replay::Everything | Replay::Nothing => Vec::new(),
        };
        for ticket in prompts.into_iter().chain([self.ticket]) {
            let answer = Err(error.clone());
            self.opening.attachment.outlet.put(session, SessionEvent::Answer { ticket, answer });
        }
    }
}

/// An observer, and the first entry that it has not seen.
pub struct Watcher {
    pub from: Seq,
    pub attachment: Attachment,
}

/// A command to a session. Each `ticket` gets exactly one `SessionEvent::Answer`.
pub enum SessionCommand {
    Attach(Attaching),
    /// A prompt with a key is inserted at most once, even if it is sent repeatedly.
    Prompt {
        ticket: Ticket,
        client: ClientId,
        content: Vec<Content>,
        key: Option<String>,
    },
    /// Injects a message into the running turn; without a running turn, does nothing. Answered at once.
    Steer {
        ticket: Ticket,
        client: ClientId,
        content: Vec<Content>,
    },
    /// Cancels the running turn and all waiting prompts (`session/cancel`).
    Cancel,
    /// Cancels one agent of this session, at any depth, and the agents that it started.
    CancelAgent {
        agent: SessionId,
    },
    /// Cancels the prompt with this ticket (`$/cancel_request`).
    CancelPrompt {
        ticket: Ticket,
    },
    /// Stops a running call or the command of a terminal. Accepted at once; its end is reported when it happens.
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
    /// The answer to `SessionEvent::Ask`. Late and unknown ones are ignored.
    Decide {
        ask: AskId,
        decision: UserDecision,
    },
    /// The client has no user who could answer a permission request or a question; other clients may have one. It is settled
    /// once this is true of every client.
    Absent {
        ask: AskId,
        client: ClientId,
    },
    /// The answer to `SessionEvent::Question`. Late and unknown ones are ignored.
    Answer {
        ask: AskId,
        reply: QuestionReply,
    },
    /// The answer to `SessionEvent::EditorRequest`. Late and unknown ones are ignored.
    Fulfil {
        ask: AskId,
        answer: EditorResponse,
    },
    /// Cancels the turn, then ends the session's task. The log remains.
    Close {
        ticket: Ticket,
        client: ClientId,
    },
    /// The client's connection is closed. The session ends with its last client.
    Detach {
        client: ClientId,
    },
    /// Adds an observer. It receives events, but is not a client and gets no answer.
    Watch(Watcher),
    Unwatch {
        client: ClientId,
    },
    /// The session is being deleted: ends it at once, even with clients attached.
    End,
    /// Recipe files that apply to this session changed.
    RecipesChanged,
    /// Hooks that apply to this session, or the consent to them, changed.
    HooksChanged,
    /// Changes a setting outside of any prompt.
    Record {
        change: Box<Change>,
        answer: oneshot::Sender<Result<(), SessionError>>,
    },
    /// A hook of another conversation replaces this one's history. Refused while a prompt is running.
    Mutate {
        mutation: Box<Mutation>,
        answer: ReplacedAnswer,
    },
}

impl SessionCommand {
    /// The ticket to answer, and the client that sent it.
    pub fn asker(&self) -> Option<(Ticket, ClientId)> {
        match self {
            SessionCommand::Attach(Attaching { ticket, opening, .. }) => {
                Some((*ticket, opening.attachment.client))
            }
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

/// The target of a client's cancel request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelTarget {
    Call(CallId),
    /// The terminal of this call. Its command may run in the background.
    Terminal(CallId),
}

/// The user's answer to a permission request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserDecision {
    AllowOnce,
    /// Allow, and remember `PermissionRequest::always`.
    AllowAlways,
    Reject,
    /// Reject, and send the model the reason.
    RejectBecause(String),
    /// Reject, and remember `PermissionRequest::never`.
    RejectAlways,
    /// No answer, an unknown one, or a cancel. Not an approval.
    Dismissed,
    /// No client has a user who could answer. Found by the session; a client sends `SessionCommand::Absent` instead.
    Absent,
}

/// An event in a session's stream to a client.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// An entry of the log. `replay`: it is from the past. `own`: the client sent this prompt itself, so a user message
    /// that isn't a replay is not shown to it.
    Entry {
        entry: Arc<Entry>,
        replay: bool,
        own: bool,
    },
    /// Streamed text of a message that is not yet an entry. `part` is an index into the message's content. The entry
    /// that follows has the complete text.
    Text {
        message: MessageId,
        part: u32,
        kind: TextKind,
        text: String,
    },
    /// Not shown: what the client has seen already, from an earlier process or elsewhere, so that the rest can continue
    /// from there.
    Seen(Box<Seen>),
    /// A call has started.
    CallStarted {
        call: CallId,
    },
    /// The newest output of a running command.
    CallProgress {
        call: CallId,
        output: CallOutput,
    },
    /// The outcome of a child's call whose permission request was shown. The call is not in this log.
    CallFinished {
        outcome: Arc<ToolOutcome>,
    },
    /// A compaction began, made progress, or ended without a result. `id` is that of the summary's message; the entry
    /// with that message reports success.
    Compaction {
        id: MessageId,
        state: CompactionState,
    },
    /// The tokens in context.
    Usage(UsageNow),
    /// The complete list of slash commands.
    Commands(Arc<[CommandInfo]>),
    /// All modes and options.
    Options(Arc<SessionOptions>),
    /// A transient message that is not stored, such as waiting for a provider or a problem in a file.
    Notice {
        severity: NoticeSeverity,
        text: String,
    },
    /// A permission request to the user.
    Ask {
        ask: AskId,
        permission: Arc<PermissionRequest>,
    },
    /// Another question to the user. A client that can't show it ignores it.
    Question {
        ask: AskId,
        question: Arc<UserQuestion>,
    },
    /// An agent of this session started or changed its state. Only for sinks that show agents.
    Subagent(Subagent),
    /// The user has finished what they were asked to do at the URL of this id.
    QuestionDone {
        id: String,
    },
    /// A file tool's request to the client whose prompt it works for.
    EditorRequest {
        ask: AskId,
        request: Arc<EditorRequest>,
    },
    /// The question was answered or is obsolete.
    Withdrawn {
        ask: AskId,
    },
    /// The session's state. This event and the next two are only for sinks that follow the state.
    State(Arc<SessionState>),
    /// The prompt with this ticket became this message of the conversation. Its `Answer` follows at the end of its
    /// turn.
    Inserted {
        ticket: Ticket,
        message: MessageId,
    },
    /// A background command has ended.
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

/// The current activity of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionState {
    pub foreground: Foreground,
    /// All background commands.
    pub background: Vec<BackgroundTerminal>,
}

/// The state of a session's latest request.
#[derive(Clone, Debug, PartialEq)]
pub enum Foreground {
    Running,
    /// Waiting for the user's answer.
    RequiresAction,
    /// Idle, with the end of the preceding work, if there was any.
    Idle(Option<WorkEnd>),
}

/// How foreground work ended.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkEnd {
    pub reason: StopReason,
    pub usage: Usage,
    pub error: Option<SessionError>,
}

/// A command running in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackgroundTerminal {
    /// The call that started it.
    pub call: CallId,
    /// Its command line, truncated.
    pub line: String,
}

/// The current state of a session, for a client that attaches and follows it.
#[derive(Clone, Debug)]
pub struct SessionNow {
    pub state: SessionState,
    /// The commands of Epitome itself while recipes are being read; the complete list follows.
    pub commands: Arc<[CommandInfo]>,
}

/// The state of a compaction that has not succeeded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompactionState {
    /// The tokens in context before it.
    Began {
        tokens: u64,
    },
    /// The next piece of the summary, as the model writes it. The committed text may differ, because an attempt may
    /// fail.
    Wrote(String),
    /// It failed, with the reason as a sentence, or would gain nothing.
    Failed(String),
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeSeverity {
    Info,
    Warning,
    Error,
}

/// An agent that the model delegated work to. Clients can show it as a session next to its parent's.
#[derive(Clone, Debug, PartialEq)]
pub struct Subagent {
    /// Its id. It can't be opened as a session.
    pub session: SessionId,
    /// Present in the first event about an agent: anything shown under its id before is void.
    pub about: Option<Arc<SubagentInfo>>,
    pub state: SubagentState,
}

/// Information about an agent, for the user.
#[derive(Clone, Debug, PartialEq)]
pub struct SubagentInfo {
    /// The call that started it, in its parent's conversation; `None` if that call is over.
    pub call: Option<CallId>,
    /// The title of its call.
    pub title: String,
    /// The purpose of agents of this name; empty if unknown.
    pub description: String,
    pub cwd: PathBuf,
}

/// The state of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum SubagentState {
    Running,
    /// It is waiting for the user.
    RequiresAction,
    /// It has ended, and so have its questions and all its agents. No further events follow.
    Ended(SubagentEnd),
}

/// Why an agent ended.
#[derive(Clone, Debug, PartialEq)]
pub enum SubagentEnd {
    Stopped(StopReason),
    /// It failed, for this reason, a sentence.
    Failed(String),
    /// The process that ran it is gone, so its result is unknown.
    Unknown,
}

/// How full the context window is, and what the session has cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UsageNow {
    /// Tokens in context.
    pub used: u64,
    /// The window, in tokens.
    pub size: u64,
    /// US dollars since the session began; `None` if prices are unknown.
    pub cost: Option<f64>,
    /// The usage of the last model call.
    pub last: Usage,
}

/// A permission request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PermissionRequest {
    pub call: CallId,
    pub tool: String,
    pub input: serde_json::Value,
    pub card: CallDisplay,
    pub preview: Vec<ToolDisplay>,
    /// The rule or the mistake in a settings file that requires the question, as text. It is in the preview too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The rule that "always" would remember, as text; `None` if that is not offered.
    pub always: Option<String>,
    /// The rule that "never" would remember, as text; `None` if that is not offered.
    pub never: Option<String>,
    /// The agent that made the call, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AskedByAgent>,
}

/// The agent's call behind a permission request, for clients that show the agent as a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AskedByAgent {
    pub session: SessionId,
    pub call: CallId,
    /// The title without the agent's name.
    pub title: String,
}

/// Everything that a client can choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionOptions {
    pub mode: Mode,
    /// `None` until a model is known.
    pub model: Option<ModelName>,
    /// Grouped by provider. Always includes the current model.
    pub models: Vec<ModelOption>,
    pub thought: ThoughtLevel,
    /// Descriptions of thought levels whose effect with this model differs from their name.
    pub remarks: Vec<(ThoughtLevel, String)>,
    /// Whether it compacts automatically.
    #[serde(default)]
    pub auto_compact: bool,
}

/// A model that a client can choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOption {
    pub name: ModelName,
    /// Its price and context window as text; empty if unknown.
    pub about: String,
}

/// The successful answer to a command.
#[derive(Clone, Debug)]
pub enum SessionAnswer {
    /// The answer to `Attach`, and to the creation of a session.
    Attached {
        session: SessionId,
        /// The directory in which its commands run.
        cwd: PathBuf,
        options: Arc<SessionOptions>,
        /// The current state, for a client that follows it.
        now: Option<Arc<SessionNow>>,
    },
    /// The answer to `Prompt`. Follows the last entry of its turn, which is on disk.
    TurnEnded {
        reason: StopReason,
        usage: Usage,
        meta: Option<serde_json::Value>,
    },
    /// The answer to `SetMode` and `SetOption`.
    Options(Arc<SessionOptions>),
    /// The answer to `Steer`.
    Steered(Steered),
    /// The answer to `CancelOne`.
    Accepted,
    Closed,
}

/// The result of `Steer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steered {
    /// The model reads it before its next reply.
    Injected,
    /// It must be sent as a prompt instead, for this reason.
    PromptRequired(String),
}

/// Why a command failed. Each is a sentence for the user, without secrets.
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
    /// The prompt and its attachments are longer than the model accepts.
    #[error("{0}")]
    TooLong(String),
    /// A limit of the budget does not allow another call of a model.
    #[error("{0}")]
    OverBudget(String),
    /// The process that worked on the request ended before it could answer, or the turn before it read the prompt.
    #[error("{0}")]
    Interrupted(String),
    /// Another process has its log open.
    #[error("session {0} is open in {1}")]
    InUse(SessionId, SessionHolder),
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
