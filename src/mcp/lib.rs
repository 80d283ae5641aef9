//! Tools of Model Context Protocol (MCP) servers. Uses the official SDK (`rmcp`), which no other module
//! imports.
//!
//! ```text
//!  settings, client ─► McpServer ─► Hub::start ─ one task each ─► drive::drive
//!                                                 process: child (group, pipes, limits) ─┐
//!                                                 HTTP: the provider's client ───────────┤ rmcp
//!  session ◄─ McpEvent: tools are known, a server is gone ───────────────────────────────────┤
//!  session ◄─ Door: questions to the user ─ client ◄─────────────────────────────────────┘
//!  toolbox ◄─ Hub::tools: one mcp__SERVER__TOOL each, and `mcp` for unlisted tools and for resources
//!  prompts ◄─ Hub::prompt_commands: one /mcp__SERVER__PROMPT each
//! ```
//!
//! What a server offers is stored (`cache`), so that the next session knows it before the server is connected.
//!
//! Only calls to a server's own tools wait for that server. MCP servers are untrusted: names, descriptions,
//! results and questions are size-limited before use, and a server's claims about its tools only affect the
//! wording of the permission request.

mod attachments;
mod budget;
mod cache;
mod call;
mod child;
mod client;
mod connect;
mod drive;
mod errors;
mod gateway;
mod listed;
mod login;
mod names;
mod outcome;
mod prompts;
mod redact;
mod retry;
mod schema;
mod server;
mod sse;
mod stderr;
mod tool;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use epitome_config::{McpServer, McpTransport};
use epitome_platform::reaper::Reaper;
use epitome_provider::http::Http;
use epitome_thread::ToolSpec;
use epitome_tools::question::QuestionSender;
use epitome_tools::{Exposure, Tool};
use gateway::McpGatewayTool;
use server::{ConnectionState, ServerHandle};
use tool::{LateTool, McpTool, MissingTool};

pub use attachments::AttachedResources;
pub use budget::{ListBudget, tokens};
pub use cache::ListingCache;
pub use gateway::REACH;
pub use login::{is_logged_in, log_out};
pub use names::PREFIX;
pub use prompts::{PromptCall, PromptCommand};

/// Capacity of the news channel; a server with more news waits.
const NEWS_MAX: usize = 64;
/// State of a server that the user has switched off.
const OFF: &str = "it is switched off";

/// Checks a server before it is started.
pub type ServerCheck = Arc<dyn Fn(&McpServer) -> Result<(), String> + Send + Sync>;

/// The environment that servers are started in.
#[derive(Clone)]
pub struct McpContext {
    pub cwd: PathBuf,
    /// The directories of the workspace, which servers may ask for.
    pub roots: Vec<PathBuf>,
    /// The session's environment variables.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    /// The part of them that servers get.
    pub exposure: Arc<Exposure>,
    pub reaper: Arc<Reaper>,
    /// HTTP client limited to the session's network policy.
    pub http: Http,
    /// Directory of the stored login tokens, in the user's data directory.
    pub logins: PathBuf,
    /// What servers offered in earlier sessions.
    pub listings: ListingCache,
    /// Whether a repository's server still is what the user consented to; the error completes a sentence. Blocks on
    /// disk I/O, and is called before each start.
    pub unchanged: ServerCheck,
}

/// Server events that the session handles.
#[derive(Debug)]
pub enum McpEvent {
    /// What the server offers is known or has changed, or its state has.
    Changed { server: String },
    /// The server is not connected; `why` completes a sentence.
    Gone { server: String, why: String },
    /// A sentence for the user.
    Remark(String),
    /// A server has the model answer messages, which the user has agreed to: `messages` and `max_tokens`. The answer is
    /// an object with `text` and `model`.
    ModelWanted { server: String, params: Value, answer: oneshot::Sender<Result<Value, String>> },
}

/// State of a server, as reported to the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerStatus {
    pub spec: McpServer,
    pub state: ServerState,
    /// The names of its tools as the model calls them: those that it has, or had when it was last connected.
    pub tools: Vec<String>,
    /// Their size in a request.
    pub tool_bytes: usize,
    pub prompts: usize,
    pub has_resources: bool,
    /// Remarks about what it offers, and why its last request failed.
    pub remarks: Vec<String>,
    /// The newest messages of its log, with their levels.
    pub log: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    Connecting,
    Ready,
    Gone(String),
}

/// What the user wants of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOrder {
    Reconnect,
    LogIn,
    LogOut,
    Off,
    On,
}

/// The MCP servers of one session. Dropping it ends them.
pub struct Hub {
    context: McpContext,
    door: QuestionSender,
    news: mpsc::Sender<McpEvent>,
    servers: Vec<DrivenServer>,
    tasks: JoinSet<()>,
}

/// A server and the task that drives it.
struct DrivenServer {
    handle: Arc<ServerHandle>,
    task: AbortHandle,
}

impl Hub {
    /// Returns a hub without servers and the receiver of its news.
    pub fn new(context: McpContext, door: QuestionSender) -> (Hub, mpsc::Receiver<McpEvent>) {
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        (Hub { context, door, news, servers: Vec::new(), tasks: JoinSet::new() }, receiver)
    }

    /// Starts connecting to the servers, concurrently, except to those that are switched off. Servers whose name is
    /// already taken are skipped.
    pub fn start(&mut self, specs: impl IntoIterator<Item = McpServer>, is_off: impl Fn(&str) -> bool) {
        for spec in specs {
            if self.has(&spec.name) {
                continue;
            }
            let names = self.handles().map(|server| server.spec.name.as_str());
            let label = names::server_names(names.chain([spec.name.as_str()])).pop().unwrap_or_default();
            let handle = Arc::new(ServerHandle::new(spec, label));
            let task = if is_off(&handle.spec.name) {
                handle.switch_off(OFF);
                self.tasks.spawn(async {})
            } else {
                self.drive(handle.clone())
            };
            self.servers.push(DrivenServer { handle, task });
        }
    }

    fn drive(&mut self, handle: Arc<ServerHandle>) -> AbortHandle {
        // Tasks of servers that were replaced.
        while self.tasks.try_join_next().is_some() {}
        let (context, door, news) = (self.context.clone(), self.door.clone(), self.news.clone());
        self.tasks.spawn(drive::drive(handle, context, door, news))
    }

    fn handles(&self) -> impl Iterator<Item = &Arc<ServerHandle>> {
        self.servers.iter().map(|server| &server.handle)
    }

    pub fn has(&self, name: &str) -> bool {
        self.handles().any(|server| server.spec.name == name)
    }

    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Carries out an order for the server of this name. Returns what was done, or why not; both are sentences. A
    /// logout blocks for one change of the disk.
    pub fn order(&mut self, name: &str, order: ServerOrder) -> Result<String, String> {
        let at = self.servers.iter().position(|server| server.handle.spec.name == name);
        let at = at.ok_or_else(|| {
            let names: Vec<&str> = self.handles().map(|server| server.spec.name.as_str()).collect();
            format!("There is no MCP server {name:?} in this session; there are: {}.", names.join(", "))
        })?;
        let old = self.servers[at].handle.clone();
        if matches!(order, ServerOrder::LogIn | ServerOrder::LogOut) {
            let expanded = old.spec.expanded(&self.context.environment);
            let Ok(McpTransport::Http { url, .. }) = expanded else {
                return Err(format!("The MCP server {name} needs no login: it is a process."));
            };
            let removed = log_out(&self.context.logins, &url);
            removed.map_err(|error| format!("The login of {name} cannot be removed: {error}."))?;
        }
        old.completes_start.store(false, Ordering::Relaxed);
        self.servers[at].task.abort();
        let handle = Arc::new(old.renewed());
        let (task, done) = match order {
            ServerOrder::Off => (None, format!("The MCP server {name} is off for this session.")),
            ServerOrder::LogOut => (None, format!("You are logged out of the MCP server {name}.")),
            ServerOrder::Reconnect | ServerOrder::On => {
                (Some(self.drive(handle.clone())), format!("The MCP server {name} is being connected."))
            }
            ServerOrder::LogIn => (
                Some(self.drive(handle.clone())),
                format!(
                    "The MCP server {name} is being connected; if it requires a login, its link follows."
                ),
            ),
        };
        match task {
            Some(task) => self.servers[at].task = task,
            None => handle.switch_off(OFF),
        }
        self.servers[at].handle = handle;
        Ok(done)
    }

    /// The names of the servers that are still connecting and whose tools are not known from an earlier session.
    pub fn connecting(&self) -> Vec<&str> {
        let is_unknown = |server: &&Arc<ServerHandle>| {
            matches!(server.state(), ConnectionState::Connecting) && !server.has_listing()
        };
        self.handles().filter(is_unknown).map(|server| server.spec.name.as_str()).collect()
    }

    /// The tools of all servers that are or were connected, in server order, and `mcp`. `framed` are the
    /// tools in the conversation's frame: calls to those that no server has now return the reason.
    pub fn tools(&self, framed: &[ToolSpec], budget: ListBudget) -> Vec<Arc<dyn Tool>> {
        let handles: Vec<Arc<ServerHandle>> = self.handles().cloned().collect();
        let offered = |server: &Arc<ServerHandle>| match server.is_offered() {
            true => server.listing().tools.iter().map(listed::ServerTool::bytes).collect(),
            false => Vec::new(),
        };
        let listed = budget.share(&handles.iter().map(offered).collect::<Vec<_>>());
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for (server, listed) in handles.iter().zip(listed) {
            for (at, known) in server.listing().tools.iter().enumerate() {
                let tool = McpTool { server: server.clone(), known: known.clone(), listed: at < listed };
                tools.push(Arc::new(tool));
            }
        }
        let known: Vec<String> = tools.iter().map(|tool| tool.spec().name).collect();
        if !handles.is_empty() || framed.iter().any(|spec| spec.name == REACH) {
            tools.push(Arc::new(McpGatewayTool { servers: handles.clone() }));
        }
        let missing =
            framed.iter().filter(|spec| spec.name.starts_with(PREFIX) && !known.contains(&spec.name));
        tools.extend(missing.map(|spec| match LateTool::with_spec(&handles, spec.clone()) {
            Some(late) => Arc::new(late) as Arc<dyn Tool>,
            None => Arc::new(MissingTool { spec: spec.clone() }),
        }));
        tools
    }

    /// One line (name and first line of the description) for each connected server's tool that is not in
    /// `framed`.
    pub fn unlisted_tool_lines(&self, framed: &[ToolSpec]) -> Vec<String> {
        let mut lines = Vec::new();
        for server in self.handles() {
            let ConnectionState::Ready(_) = server.state() else { continue };
            for known in &server.listing().tools {
                if !framed.iter().any(|spec| spec.name == known.spec.name) {
                    let tool = McpTool { server: server.clone(), known: known.clone(), listed: false };
                    lines.push(tool.line());
                }
            }
        }
        lines
    }

    /// The names of the servers that have instructions for the use of their tools, and these words of theirs.
    pub fn instructions(&self) -> Vec<(String, String)> {
        let offered = self.handles().filter(|server| server.is_offered());
        offered
            .filter_map(|server| Some((server.spec.name.clone(), server.listing().instructions.clone()?)))
            .collect()
    }

    pub fn statuses(&self) -> Vec<ServerStatus> {
        self.handles().map(|server| status(server)).collect()
    }
}

fn status(server: &ServerHandle) -> ServerStatus {
    let listing = server.listing();
    let (state, log) = match server.state() {
        ConnectionState::Connecting => (ServerState::Connecting, Vec::new()),
        ConnectionState::Gone(why) => (ServerState::Gone(why), Vec::new()),
        ConnectionState::Ready(link) => (ServerState::Ready, link.shared.log_lines()),
    };
    let trouble = server.trouble().map(|why| format!("its last call failed: {why}"));
    ServerStatus {
        spec: server.spec.clone(),
        state,
        tools: listing.tools.iter().map(|known| known.spec.name.clone()).collect(),
        tool_bytes: listing.tools.iter().map(listed::ServerTool::bytes).sum(),
        prompts: listing.prompts.len(),
        has_resources: listing.has_resources,
        remarks: listing.remarks.iter().cloned().chain(trouble).collect(),
        log,
    }
}
