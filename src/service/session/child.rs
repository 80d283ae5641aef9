//! A child: a session that another session starts to run a recipe or a task that the model delegated. It has no journal
//! on disk and no clients.
//!
//! It is an ordinary session with a different outlet. Its questions go to the parent's clients (`ChildNews`), and so do
//! an agent's events, for clients that show agents. Its result is the text of its last reply. It is not listed and
//! can't be loaded. It lives inside the future that `run` returns: dropping that future ends the child, its model call
//! and its tools.

mod ending;
mod history;
pub(crate) mod news;
mod outlet;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::Overrides;
use super::actor::{Session, open_session};
use super::complete::find_endpoint;
use super::core::Core;
use super::effects::half_of;
use super::inbox::Channel;
pub use super::lineage::Lineage;
use super::lineage::{HandedHistory, RunningCost};
pub use super::refusal::{ChildError, ChildFailure};
use super::responder::{QueuedPrompt, Responder};
use super::services::SessionServices;
use super::session_permissions::SessionPermissions;
use super::{
    Attachment, ClientId, Opening, SessionAnswer, SessionCommand, SessionError, SubagentEnd, SubagentInfo,
    Ticket,
};
pub use ending::AgentLimit;
use epitome_compaction as compaction;
use epitome_hooks::discover::FoundHooks;
use epitome_provider::ProviderError;
use epitome_provider::endpoint::Endpoint;
use epitome_store::{Journal, new_id};
use epitome_thread::{
    CallOutput, Change, Content, Entry, FORMAT_VERSION, Mode, ModelName, Seq, SessionId, StopReason,
    ThoughtLevel, Thread, Usage, View,
};
use epitome_tools::{BoxFuture, Workspace};
use history::Shape;
use news::ChildGoneGuard;
pub use news::{ChildNews, NewsReceiver, NewsSender, news};
pub use outlet::ChildLog;
use outlet::ChildOutlet;

/// Maximum number of waiting commands: one decision for each permission request, only one of which is open at a time.
const COMMANDS_MAX: usize = 16;

/// A flat history below this many bytes is not shortened further.
const FLAT_BYTES_MIN: usize = 1_024;

/// A child's task, and everything that it needs.
#[derive(Clone)]
pub struct ChildSpec {
    pub lineage: Lineage,
    /// The recipe's rendered text. A leading slash has no meaning.
    pub prompt: String,
    pub history: ChildHistory,
    /// The parent's frame. If the child has all tools, its requests begin with the same bytes and use the provider's
    /// cached prefix. `None` makes a new frame.
    pub frame: Option<Arc<Entry>>,
    pub workspace: Arc<Workspace>,
    pub overrides: Arc<Overrides>,
    pub model: ChildModel,
    /// The parent's; otherwise the cached prefix would differ.
    pub thought: ThoughtLevel,
    pub mode: Mode,
    /// The user's permissions for the rest of the session, shared with the parent: a permission given to one of them
    /// while both run applies to the other.
    pub session_permissions: SessionPermissions,
    /// The only tools that it has; `None` means all, an empty list none.
    pub allowed_tools: Option<Vec<String>>,
    /// Maximum number of model calls; `None` for the configured limit of a turn.
    pub max_rounds: Option<u32>,
    /// Time limit, including the time the user needs to answer.
    pub time: Duration,
    /// The hooks that observe its work.
    pub hooks: Arc<FoundHooks>,
    /// The agent that the model delegated a task to; `None` for a callback.
    pub agent: Option<ChildAgent>,
}

impl Core {
    /// The specification of a child for a recipe or agent with this name, with everything that a child inherits from this session.
    pub(super) fn child_spec(&self, name: String, time: Duration, hooks: Arc<FoundHooks>) -> ChildSpec {
        ChildSpec {
            lineage: Lineage {
                depth: self.lineage.depth + 1,
                recipe: name,
                parent: Some(self.id().clone()),
                ..Lineage::default()
            },
            prompt: String::new(),
            history: ChildHistory::None,
            frame: None,
            workspace: self.workspace.clone(),
            overrides: self.settings.overrides(),
            model: ChildModel::Configured,
            thought: self.thread.thought(),
            mode: self.thread.mode(),
            session_permissions: self.permissions.shared(),
            allowed_tools: None,
            max_rounds: None,
            time,
            hooks,
            agent: None,
        }
    }
}

/// The features of an agent beyond those of a callback. It may work for a long time, so it compacts its conversation
/// when that is due, and is asked to wrap up when it reaches a limit.
#[derive(Clone)]
pub struct ChildAgent {
    /// Its id.
    pub session: SessionId,
    /// Shown to clients.
    pub about: Arc<SubagentInfo>,
    /// Tokens that its model calls may use, not counting those read from a cache.
    pub tokens_max: u64,
    /// Whether it adopts a mode that the user chooses while it runs.
    pub follows_mode: bool,
    /// Receives a line that describes its current activity.
    pub progress: Arc<dyn Fn(CallOutput) + Send + Sync>,
    /// Its entries so far, so that stopping it doesn't lose its work.
    pub child_log: Arc<ChildLog>,
}

/// The part of its parent's conversation that a child sees.
#[derive(Clone)]
pub enum ChildHistory {
    /// The complete history, as messages. Becomes `Flat` if it does not fit the model's window.
    Native(View),
    /// The history as a single text, shortened to the available room.
    Flat(View),
    None,
}

/// The model that a child calls.
#[derive(Clone)]
pub enum ChildModel {
    /// The parent's endpoint, whose actual window is known.
    At(Box<Endpoint>),
    Named(ModelName),
    /// The model configured for new sessions.
    Configured,
}

/// The result of a child.
#[derive(Clone, Debug)]
pub struct ChildOutcome {
    /// The text of the last reply; empty if there was none.
    pub text: String,
    /// `EndTurn`; `MaxTokens` or `MaxRounds` if it was stopped early.
    pub reason: StopReason,
    /// The limit that stopped an agent early.
    pub stopped_by: Option<AgentLimit>,
    /// Why an agent failed. Its text so far is still valid.
    pub failure: Option<String>,
    pub usage: Usage,
    /// Number of model calls that were answered.
    pub rounds: u32,
    /// Its own entries, without the history that it was given.
    pub entries: Vec<Arc<Entry>>,
    /// Notices that a client would have been shown, such as waiting for a provider.
    pub notices: Vec<String>,
    /// Replacement histories for its parent, from the child's hooks, in order.
    pub handed: Vec<HandedHistory>,
}

/// Runs a child to its end.
///
/// A history that is too long for the model is shortened until it fits. Questions and their results go to `news`; if
/// nothing receives them, questions are denied.
pub fn run(
    services: SessionServices,
    spec: ChildSpec,
    news: NewsSender,
) -> BoxFuture<Result<ChildOutcome, ChildError>> {
    // Boxed, because a child's hooks may start children.
    Box::pin(async move {
        let (name, kind) =
            (spec.lineage.recipe.clone(), if spec.agent.is_some() { "agent" } else { "recipe" });
        // An agent watches its own time limit, and gets more time to wrap up.
        let grace = if spec.agent.is_some() { 2 * ending::LAST_WORDS_TIME } else { Duration::ZERO };
        let time = spec.time + grace;
        let ended = tokio::time::timeout(time, attempts(services, spec, news)).await;
        let ended = ended.unwrap_or(Err(ChildFailure::Late(time)));
        ended.map_err(|cause| ChildError::Failed { kind, name, cause: Box::new(cause) })
    })
}

async fn attempts(
    mut services: SessionServices,
    spec: ChildSpec,
    news: NewsSender,
) -> Result<ChildOutcome, ChildFailure> {
    if let Some(allowed) = &spec.allowed_tools {
        services.toolbox = services.toolbox.only(allowed);
    }
    let mut endpoint = endpoint(&services, &spec).await?;
    let mut shape = Shape::first(&spec.history, half_of(endpoint.window));
    loop {
        let child = PreparedChild::new(&services, &spec, &shape, &endpoint, &news).await?;
        let smaller = |window| smaller(&spec.history, &shape, window);
        if child.tokens() > endpoint.window
            && let Some(smaller) = smaller(endpoint.window)
        {
            shape = smaller;
            continue;
        }
        match child.live().await {
            Ok(outcome) => return Ok(outcome),
            Err(ChildFailure::TooLong { why, window }) => {
                if let Some(window) = window.filter(|window| *window < endpoint.window) {
                    endpoint.set_window(window);
                }
                shape = smaller(endpoint.window).ok_or(ChildFailure::TooLong { why, window })?;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The same history in fewer bytes; `None` if it can't be shortened.
fn smaller(history: &ChildHistory, shape: &Shape, window: u64) -> Option<Shape> {
    let view = match history {
        ChildHistory::Native(view) | ChildHistory::Flat(view) => view,
        ChildHistory::None => return None,
    };
    let bytes = match shape {
        Shape::Native => half_of(window),
        Shape::Flat(text) if text.len() > FLAT_BYTES_MIN => (text.len() / 2).min(half_of(window)),
        Shape::Flat(_) | Shape::Without => return None,
    };
    Some(Shape::Flat(compaction::flat(view, bytes)))
}

async fn endpoint(services: &SessionServices, spec: &ChildSpec) -> Result<Endpoint, ProviderError> {
    let named = match &spec.model {
        ChildModel::At(endpoint) => return Ok(Endpoint::clone(endpoint)),
        ChildModel::Named(name) => Some(name),
        ChildModel::Configured => None,
    };
    let workspace = &spec.workspace;
    let (settings, _) = spec.overrides.load(&services.paths, &workspace.cwd, &workspace.environment);
    find_endpoint(services, named, &settings, &workspace.environment).await
}

/// A child that is ready to start.
struct PreparedChild {
    session: Box<Session>,
    outlet: Arc<ChildOutlet>,
    answered: oneshot::Receiver<Result<SessionAnswer, SessionError>>,
    prompt: QueuedPrompt,
    max_output: u64,
    time: Duration,
    is_agent: bool,
    /// Keeps the child's command channel open.
    commands: mpsc::Sender<SessionCommand>,
    gone: ChildGoneGuard,
}

impl PreparedChild {
    async fn new(
        services: &SessionServices,
        spec: &ChildSpec,
        shape: &Shape,
        endpoint: &Endpoint,
        news: &NewsSender,
    ) -> Result<PreparedChild, ChildFailure> {
        let id = spec.agent.as_ref().map_or_else(new_id, |agent| agent.session.clone());
        let opened =
            Change::Opened { format: FORMAT_VERSION, session: id.clone(), cwd: spec.workspace.cwd.clone() };
        let has_tools = !services.toolbox.specs().is_empty();
        let given = history::changes(spec, shape, &endpoint.name, has_tools);
        let (journal, entries) = Journal::in_memory(opened, given);
        let own_from = Seq(entries.len() as u64);
        let thread = Thread::replay(entries)?;

        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (answer, answered) = oneshot::channel();
        let outlet = Arc::new(ChildOutlet::new(id.clone(), spec, news.clone(), commands.downgrade(), answer));
        news.send(ChildNews::Began {
            child: id.clone(),
            commands: commands.downgrade(),
            mode: spec.mode,
            follows_mode: spec.agent.as_ref().is_none_or(|agent| agent.follows_mode),
            about: spec.agent.as_ref().map(|agent| agent.about.clone()),
        });
        // The guard reports the end on every path, because the following steps may fail.
        let end = SubagentEnd::Stopped(StopReason::Cancelled);
        let (name, running) = (spec.lineage.recipe.clone(), RunningCost::default());
        let gone =
            ChildGoneGuard { child: id.clone(), name, running: running.clone(), end, news: news.clone() };
        let attachment = Attachment { client: ClientId(0), outlet: outlet.clone() };
        let opening = Opening {
            attachment: attachment.clone(),
            cwd: spec.workspace.cwd.clone(),
            directories: spec.workspace.directories.clone(),
            mcp_servers: Vec::new(),
            environment: spec.workspace.environment.clone(),
            overrides: spec.overrides.clone(),
            instructions: None,
            choices: Vec::new(),
        };
        let channel = Channel::new(&commands, receiver);
        let mut session = open_session(services.clone(), thread, journal, channel, &opening).await;
        session.become_child(spec, &services.toolbox, endpoint, own_from, running).await?;
        session.join(opening);
        let prompt = QueuedPrompt {
            responder: Responder::new(Ticket(0), id.clone(), attachment),
            client: ClientId(0),
            content: vec![Content::Text { text: spec.prompt.clone() }],
        };
        let max_output = u64::from(endpoint.max_output);
        let (time, is_agent) = (spec.time, spec.agent.is_some());
        Ok(PreparedChild { session, outlet, answered, prompt, max_output, time, is_agent, commands, gone })
    }

    /// Estimated tokens of the first request and its reply.
    fn tokens(&self) -> u64 {
        self.session.tokens_with(&self.prompt.content) + self.max_output
    }
}
