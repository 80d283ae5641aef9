//! A child: a session of its own that a session starts for a recipe's text or for a task of the model's, without
//! a journal and without clients.
//!
//! It is an ordinary session with another outlet: what it must ask goes to the parent's clients (`ChildNews`), and
//! so does what an agent streams, for those that show agents. The last reply's text is what comes of it. No listing
//! knows it and nobody can load it. It lives inside the future that `run` gives: dropping that ends the child, its
//! model call and its tools.

mod ending;
mod history;
mod news;
mod outlet;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::actor::Session;
use super::complete::find_endpoint;
use super::core::Core;
use super::cross_session_edit::{HandedHistory, Handover};
use super::draft::ReplyDraft;
use super::effects::half_of;
use super::ending::end_interrupted_turn;
use super::hook_host::HookHost;
use super::registry::{Overrides, SessionServices, new_id};
use super::replies::sentence;
use super::session_permissions::SessionPermissions;
use super::work::{QueuedPrompt, Responder};
use super::{
    Attachment, ClientId, Opening, SessionAnswer, SessionCommand, SessionError, SubagentEnd, SubagentInfo,
    Ticket,
};
pub use ending::AgentLimit;
use epitome_compaction as compaction;
use epitome_config::Settings;
use epitome_hooks::discover::FoundHooks;
use epitome_hooks::handlers::HandlerTable;
use epitome_provider::endpoint::Endpoint;
use epitome_store::Journal;
use epitome_thread::{
    CallOutput, Change, Content, Entry, FORMAT_VERSION, Mode, ModelName, Origin, Seq, SessionId, StopReason,
    ThoughtLevel, Thread, Usage, View,
};
use epitome_tools::{BoxFuture, Workspace};
use history::Shape;
use news::ChildGoneGuard;
pub use news::{ChildNews, NewsReceiver, NewsSender, news};
pub use outlet::ChildLog;
use outlet::ChildOutlet;

/// Commands that may wait for a child: a decision for each card, and there is one card at a time.
const COMMANDS_MAX: usize = 16;

/// A history in flat text below this many bytes is not made smaller any more.
const FLAT_BYTES_MIN: usize = 1_024;

/// What a child is to do, and with what.
#[derive(Clone)]
pub struct ChildOrder {
    pub lineage: Lineage,
    /// The recipe's text, rendered. A slash at its beginning means nothing.
    pub prompt: String,
    pub history: ChildHistory,
    /// The parent's frozen system text and tools. A child that has all tools begins its requests with the
    /// same bytes, so that the provider's cached prefix is used again. `None` makes a new frame.
    pub frame: Option<Arc<Entry>>,
    pub workspace: Arc<Workspace>,
    pub overrides: Arc<Overrides>,
    pub model: ChildModel,
    /// The parent's, or the cached prefix is another one.
    pub thought: ThoughtLevel,
    pub mode: Mode,
    /// What the user allowed for the rest of the session, shared with the parent: what is allowed at one of them
    /// meanwhile holds for the other.
    pub session_permissions: SessionPermissions,
    /// The only tools that it is told of; `None` gives all, an empty list none.
    pub allowed_tools: Option<Vec<String>>,
    /// Model calls that it may make; `None` takes what is configured for a turn.
    pub max_rounds: Option<u32>,
    /// How long it may take, with the user's answers.
    pub time: Duration,
    /// The hooks that see its work.
    pub hooks: Arc<FoundHooks>,
    /// For an agent that the model gave a task to; `None` is a callback.
    pub agent: Option<ChildAgent>,
}

impl Core {
    /// An order with what a child has of this session, for a recipe or an agent of this name.
    pub(super) fn child_order(&self, name: String, time: Duration, hooks: Arc<FoundHooks>) -> ChildOrder {
        ChildOrder {
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

/// What holds for an agent and not for a callback: it may work for long, so it compacts its conversation when that
/// is due, and where a bound stops it, it is asked for its last words.
#[derive(Clone)]
pub struct ChildAgent {
    /// Its id.
    pub session: SessionId,
    /// What clients are told of it.
    pub about: Arc<SubagentInfo>,
    /// Tokens that its model calls may take, what a cache had left out.
    pub tokens_max: u64,
    /// Whether a mode that the user chooses meanwhile is its own.
    pub follows_mode: bool,
    /// Takes a line for what it does now.
    pub progress: Arc<dyn Fn(CallOutput) + Send + Sync>,
    /// Its entries, as they come: who stops it has what it did so far.
    pub child_log: Arc<ChildLog>,
}

/// What a child knows of its parent's conversation.
#[derive(Clone)]
pub enum ChildHistory {
    /// All of it, as messages. Where that does not fit the model's window it becomes `Flat`.
    Native(View),
    /// As one text, as much as there is room for.
    Flat(View),
    None,
}

/// The model that a child calls.
#[derive(Clone)]
pub enum ChildModel {
    /// Where the parent calls its own: the true window is known there.
    At(Endpoint),
    Named(ModelName),
    /// What is configured for new sessions.
    Configured,
}

/// What came of a child.
#[derive(Clone, Debug)]
pub struct ChildOutcome {
    /// The last reply's text; empty if it said nothing.
    pub text: String,
    /// `EndTurn`; `MaxTokens` or `MaxRounds` where it was stopped before it was done.
    pub reason: StopReason,
    /// What stopped an agent that was not done.
    pub stopped_by: Option<AgentLimit>,
    /// Why an agent came to no end of its own; what it said before stands.
    pub failure: Option<String>,
    pub usage: Usage,
    /// Model calls that were answered.
    pub rounds: u32,
    /// Its own entries, without the history that it was given.
    pub entries: Vec<Arc<Entry>>,
    /// What a client would have been told beside: a provider that was waited for.
    pub notices: Vec<String>,
    /// Histories that hooks of the child made for its parent, in their order.
    pub handed: Vec<HandedHistory>,
}

/// Where a session stands among sessions: what hooks are told of it, and what holds for a child alone. By default it is
/// a session of a client.
#[derive(Clone, Debug, Default)]
pub struct Lineage {
    /// 0 for a session of a client, 1 for its children.
    pub depth: u32,
    /// The recipe or the agent that a child runs: it goes into permission cards, errors and the hooks' payloads. Empty
    /// for a session of a client.
    pub recipe: String,
    pub callback_args: BTreeMap<String, String>,
    pub parent: Option<SessionId>,
    /// The only command lines that it may run, as patterns with `*`; `None` limits nothing. The user is
    /// asked all the same.
    pub allowed_commands: Option<Vec<String>>,
    /// What its recipe declares to be done at moments of its run.
    pub handlers: HandlerTable,
    /// What an agent is told of its part, behind the system text that every session has; `None` for what is no agent.
    pub role: Option<String>,
    /// It was stopped and gives its last words: no call is run any more.
    pub wraps_up: Arc<AtomicBool>,
    /// The first entry that is its own: what stands before was given to it.
    pub own_from: Seq,
    /// Where its hooks leave histories for its parent.
    pub handed: Handover,
}

impl Lineage {
    pub fn is_child(&self) -> bool {
        self.parent.is_some()
    }

    /// A child whose conversation is its own, and not its parent's with something behind it.
    pub fn is_agent(&self) -> bool {
        self.role.is_some()
    }

    pub(super) fn wraps_up(&self) -> bool {
        self.wraps_up.load(Ordering::Relaxed)
    }

    /// Where its prompts come from.
    pub fn origin(&self) -> Origin {
        match self.is_child() && !self.is_agent() {
            true => Origin::Recipe { recipe: self.recipe.clone(), typed: String::new() },
            false => Origin::Person,
        }
    }
}

/// Runs a child to its end. An error is a sentence that names the recipe or the agent.
///
/// A history that is too long for the model is made shorter until it fits. What must be asked, and what
/// became of it, goes to `news`; where nobody listens, what must be asked is denied.
pub fn run(
    services: SessionServices,
    order: ChildOrder,
    news: NewsSender,
) -> BoxFuture<Result<ChildOutcome, String>> {
    // Boxed, because a child's hooks may start children.
    Box::pin(async move {
        let (name, what) =
            (order.lineage.recipe.clone(), if order.agent.is_some() { "agent" } else { "recipe" });
        // An agent minds its time itself, and has some more for its last words.
        let grace = if order.agent.is_some() { 2 * ending::LAST_WORDS_TIME } else { Duration::ZERO };
        let time = order.time + grace;
        let ended = tokio::time::timeout(time, attempts(services, order, news)).await;
        let late = || format!("it did not end within {} s and was stopped", time.as_secs_f64());
        ended.unwrap_or_else(|_| Err(late())).map_err(|error| format!("The {what} {name:?} failed: {error}"))
    })
}

async fn attempts(
    mut services: SessionServices,
    order: ChildOrder,
    news: NewsSender,
) -> Result<ChildOutcome, String> {
    if let Some(allowed) = &order.allowed_tools {
        services.toolbox = services.toolbox.only(allowed);
    }
    let mut endpoint = endpoint(&services, &order).await?;
    let mut shape = Shape::first(&order.history, half_of(endpoint.window));
    loop {
        let child = PreparedChild::new(&services, &order, &shape, &endpoint, &news).await?;
        let smaller = |window| smaller(&order.history, &shape, window);
        if child.tokens() > endpoint.window
            && let Some(smaller) = smaller(endpoint.window)
        {
            shape = smaller;
            continue;
        }
        match child.live().await {
            Ok(outcome) => return Ok(outcome),
            Err(ChildFailure::Other(why)) => return Err(why),
            Err(ChildFailure::TooLong { why, window }) => {
                if let Some(window) = window.filter(|window| *window < endpoint.window) {
                    endpoint.set_window(window);
                }
                shape = smaller(endpoint.window).ok_or(why)?;
            }
        }
    }
}

/// The same history in fewer bytes; `None` where there is nothing to gain.
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

async fn endpoint(services: &SessionServices, order: &ChildOrder) -> Result<Endpoint, String> {
    let named = match &order.model {
        ChildModel::At(endpoint) => return Ok(endpoint.clone()),
        ChildModel::Named(name) => Some(name),
        ChildModel::Configured => None,
    };
    let workspace = &order.workspace;
    let variable = |name: &str| {
        workspace.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    let (settings, _) = Settings::load(&services.paths, Some(&workspace.cwd), variable);
    let settings = order.overrides.over(settings);
    let found = find_endpoint(services, named, &settings, &workspace.environment).await;
    found.map_err(|error| sentence(&error))
}

/// Why a child came to nothing.
enum ChildFailure {
    /// Its first request does not fit; the window, as far as the provider told it.
    TooLong {
        why: String,
        window: Option<u64>,
    },
    Other(String),
}

/// A child that has not begun.
struct PreparedChild {
    session: Box<Session>,
    outlet: Arc<ChildOutlet>,
    answered: oneshot::Receiver<Result<SessionAnswer, SessionError>>,
    prompt: QueuedPrompt,
    max_output: u64,
    time: Duration,
    is_agent: bool,
    /// Keeps the child's commands open, and tells the parent when it is gone.
    commands: mpsc::Sender<SessionCommand>,
    gone: ChildGoneGuard,
}

impl PreparedChild {
    async fn new(
        services: &SessionServices,
        order: &ChildOrder,
        shape: &Shape,
        endpoint: &Endpoint,
        news: &NewsSender,
    ) -> Result<PreparedChild, String> {
        let id = order.agent.as_ref().map_or_else(new_id, |agent| agent.session.clone());
        let opened =
            Change::Opened { format: FORMAT_VERSION, session: id.clone(), cwd: order.workspace.cwd.clone() };
        let has_tools = !services.toolbox.specs().is_empty();
        let given = history::changes(order, shape, &endpoint.name, has_tools);
        let (journal, entries) = Journal::in_memory(opened, given);
        let own_from = Seq(entries.len() as u64);
        let thread = Thread::replay(entries).map_err(|error| error.to_string())?;

        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (answer, answered) = oneshot::channel();
        let outlet =
            Arc::new(ChildOutlet::new(id.clone(), order, news.clone(), commands.downgrade(), answer));
        news.send(ChildNews::Began {
            child: id.clone(),
            commands: commands.downgrade(),
            follows_mode: order.agent.as_ref().is_none_or(|agent| agent.follows_mode),
            about: order.agent.as_ref().map(|agent| agent.about.clone()),
        });
        // It is gone wherever the way ends: what follows may fail.
        let end = SubagentEnd::Stopped(StopReason::Cancelled);
        let gone = ChildGoneGuard { child: id.clone(), end, news: news.clone() };
        let attachment = Attachment { client: ClientId(0), outlet: outlet.clone() };
        let opening = Opening {
            attachment: attachment.clone(),
            cwd: order.workspace.cwd.clone(),
            directories: order.workspace.directories.clone(),
            mcp_servers: Vec::new(),
            environment: order.workspace.environment.clone(),
            overrides: order.overrides.clone(),
            instructions: None,
            choices: Vec::new(),
        };
        let channel = (commands.downgrade(), receiver);
        let mut session = Box::new(Session::new(services.clone(), thread, journal, channel, &opening));
        session.core.log.draft = ReplyDraft::default();
        end_interrupted_turn(&mut session.core).await;
        session.core.settings.change(|settings| {
            settings.compaction.auto &= order.agent.is_some();
            settings.max_rounds = order.max_rounds.unwrap_or(settings.max_rounds);
        });
        // A prompt of a child is no command, so no recipe is needed.
        session.recipes.give_up_reading();
        session.hooks = HookHost::new_for_child(order.hooks.clone());
        if let Some(exports) = order.workspace.exports() {
            session.core.workspace = Arc::new(session.core.workspace.exporting(exports.clone()));
        }
        session.core.model.inherit(endpoint.clone());
        session.core.permissions.share(order.session_permissions.clone());
        if let Some(parent) = &order.lineage.parent {
            session.core.trace.session().record("parent", tracing::field::display(parent));
        }
        session.core.lineage = Lineage {
            wraps_up: Arc::default(),
            own_from,
            handed: Handover::default(),
            ..order.lineage.clone()
        };
        if session.core.thread.frame().is_none() {
            session.scan_before_turn().await;
        }
        session.ensure_frame()?;
        session.core.clients.join(opening);
        let prompt = QueuedPrompt {
            responder: Responder::new(Ticket(0), id.clone(), attachment),
            client: ClientId(0),
            content: vec![Content::Text { text: order.prompt.clone() }],
        };
        let max_output = u64::from(endpoint.max_output);
        let (time, is_agent) = (order.time, order.agent.is_some());
        Ok(PreparedChild { session, outlet, answered, prompt, max_output, time, is_agent, commands, gone })
    }

    /// The tokens that the first request takes with its reply, by estimate.
    fn tokens(&self) -> u64 {
        let ruler = self.session.core.ruler();
        let text = self.prompt.content.iter().filter_map(Content::as_text).map(|text| ruler.text(text));
        ruler.in_context(&self.session.core.thread) + text.sum::<u64>() + self.max_output
    }
}
