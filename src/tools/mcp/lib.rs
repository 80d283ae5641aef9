//! Tools of Model Context Protocol (MCP) servers. Uses the official SDK (`rmcp`), which no other module
//! imports.
//!
//! ```text
//!  settings, client ─► McpServer ─► Hub::start ─ one task each ─► drive::drive
//!                                                 process: child (group, pipes, limits) ─┐
//!                                                 HTTP: the provider's client ───────────┤ rmcp
//!                                                 client: messages on its connection ────┤
//!  session ◄─ McpEvent: tools are known, a server is gone ───────────────────────────────┤
//!  session ◄─ QuestionSender: questions to the user ─ client ◄───────────────────────────┘
//!  toolbox ◄─ Hub::tools: one mcp__SERVER__TOOL each, and `mcp` for unlisted tools and for resources
//!  prompts ◄─ Hub::prompt_commands: one /mcp__SERVER__PROMPT each
//! ```
//!
//! The tools and prompts of a server are stored (`cache`): the next session knows them before the server is connected.
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
mod client_servers;
mod connect;
mod drive;
mod errors;
mod first_start;
mod gateway;
mod http;
mod listed;
mod login;
mod names;
mod outcome;
mod pages;
mod prompts;
mod received;
mod redact;
mod retry;
mod server;
mod sse;
mod stderr;
mod task;
mod tool;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use epitome_config::{McpSandbox, McpServer, McpSource, McpTransport, VariableError, VariableUse};
use epitome_platform::reaper::Reaper;
use epitome_platform::sandbox::Confinement;
use epitome_provider::http::Http;
use epitome_thread::ToolSpec;
use epitome_tools::BoxError;
use epitome_tools::question::QuestionSender;
use epitome_tools::sandbox::SandboxGap;
use epitome_tools::{Exposure, Tool};
use gateway::McpGatewayTool;
use listed::ServerTool;
use server::{ConnectionState, ServerHandle};
use tool::{AbsentTool, McpTool};

pub use attachments::AttachedResources;
pub use budget::{ListBudget, tokens};
pub use cache::ListingCache;
pub use client_servers::{ClientMcp, ClientMcpFault, FromClient, SharedClient};
pub use first_start::{FIRST_START_ARGUMENT, FirstStart};
pub use gateway::REACH;
pub use login::{is_logged_in, log_out};
pub use names::PREFIX;
pub use prompts::{PromptCall, PromptCommand};

/// Capacity of the news channel; a server with more news waits.
const NEWS_MAX: usize = 64;
/// Why a server that the user has switched off is not connected.
const OFF: &str = "it is switched off";

/// Checks a server before it is started.
pub type ServerCheck = Arc<dyn Fn(&McpServer) -> Result<(), BoxError> + Send + Sync>;

/// Variables of a program's environment.
pub type Variables = Vec<(OsString, OsString)>;

/// Builds the sandbox of a process that is started in a directory, with additional variables for it. Reads the disk.
pub type ServerSandbox =
    Arc<dyn Fn(&Path, McpSandbox) -> Result<(Confinement, Variables), SandboxGap> + Send + Sync>;

/// The context in which servers are started.
#[derive(Clone)]
pub struct McpContext {
    pub cwd: PathBuf,
    /// The directories of the workspace, which servers may request.
    pub roots: Vec<PathBuf>,
    /// The session's environment variables.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    /// The environment variables that servers get.
    pub exposure: Arc<Exposure>,
    pub reaper: Arc<Reaper>,
    /// The client that provides servers over its own connection.
    pub client: SharedClient,
    /// HTTP client limited to the session's network policy.
    pub http: Http,
    /// Directory of the stored login tokens, in the user's data directory.
    pub logins: PathBuf,
    /// Listings from earlier sessions.
    pub listings: ListingCache,
    /// Checks that a repository's server is still the version that the user consented to. The error completes a
    /// sentence. Blocks on disk I/O; called before each start.
    pub unchanged: ServerCheck,
    /// Builds the sandbox for a server's process in a directory, if it should have one.
    pub sandbox: ServerSandbox,
    /// Whether a process whose tools are known is started only on demand.
    pub starts_at_use: bool,
    /// Whether this process ends with its sessions, so that another process must complete the first start of a server.
    pub ends_with_sessions: bool,
}

impl McpContext {
    /// The connection of a server, with its variables expanded. A repository's server gets no key of a model provider,
    /// whatever the name of its variable. The error completes a sentence and names a variable.
    fn expanded(&self, spec: &McpServer) -> Result<McpTransport, VariableError> {
        if let McpSource::Repository { .. } = spec.from {
            let given = self.exposure.for_programs_of_repository(&self.environment);
            let is_in = |variables: &[(OsString, OsString)], name: &str| {
                variables.iter().any(|(known, _)| known == name)
            };
            let is_withheld = |used: &VariableUse| {
                !spec.allowed_variables.contains(&used.name)
                    && is_in(&self.environment, &used.name)
                    && !is_in(&given, &used.name)
            };
            if let Some(used) = spec.variables().into_iter().find(is_withheld) {
                return Err(VariableError::Refused(used.name));
            }
        }
        spec.expanded(&self.environment)
    }
}

/// Why a command for a server is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ServerCommandError {
    #[error("There is no MCP server {name:?} in this session; there are: {}.", known.join(", "))]
    NotFound { name: String, known: Vec<String> },
    #[error("The MCP server {0} needs no login: it is not reached over the network.")]
    NoLogin(String),
    #[error("The login of {name} cannot be removed: {source}.")]
    LogOut { name: String, source: std::io::Error },
}

/// Server events that the session handles.
#[derive(Debug)]
pub enum McpEvent {
    /// The listing or the state of the server has changed.
    Changed { server: String },
    /// The server is not connected; `why` completes a sentence.
    Gone { server: String, why: String },
    /// A sentence for the user.
    Remark(String),
    /// A server requests a model call, to which the user has agreed. `params` has `messages` and `max_tokens`; the
    /// answer is an object with `text` and `model`.
    ModelWanted { server: String, params: Value, answer: oneshot::Sender<Result<Value, BoxError>> },
}

/// State of a server, as reported to the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerStatus {
    pub spec: McpServer,
    pub state: ServerState,
    /// The full names of its tools, as currently or last listed.
    pub tools: Vec<String>,
    /// The size of the tools in a request, in bytes.
    pub tool_bytes: usize,
    pub prompts: usize,
    pub has_resources: bool,
    /// Remarks about its listing, and why its last request failed.
    pub remarks: Vec<String>,
    /// The newest messages of its log, with their levels.
    pub log: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Started on demand.
    Idle,
    Connecting,
    Ready,
    Gone(String),
}

/// The user's command for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCommand {
    Reconnect,
    LogIn,
    LogOut,
    Off,
    On,
}

/// The MCP servers of one session. Dropping it ends them.
pub struct Hub {
    context: McpContext,
    questions: QuestionSender,
    news: mpsc::Sender<McpEvent>,
    servers: Vec<DrivenServer>,
    tasks: JoinSet<()>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        if !self.context.ends_with_sessions {
            return;
        }
        for DrivenServer { handle, task } in &self.servers {
            if !handle.completes_start.swap(false, Ordering::Relaxed) {
                continue;
            }
            task.abort();
            let start = FirstStart { server: handle.spec.clone() };
            if let Err(error) = start.hand_over(&self.context.cwd, &self.context.environment) {
                tracing::info!(server = %handle.spec.name, %error, "its first start could not be handed over");
            }
        }
    }
}

/// A server and the task that drives it.
struct DrivenServer {
    handle: Arc<ServerHandle>,
    task: AbortHandle,
}

impl Hub {
    /// Returns a hub without servers and the receiver of its news.
    pub fn new(context: McpContext, questions: QuestionSender) -> (Hub, mpsc::Receiver<McpEvent>) {
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        (Hub { context, questions, news, servers: Vec::new(), tasks: JoinSet::new() }, receiver)
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
        let (context, questions, news) = (self.context.clone(), self.questions.clone(), self.news.clone());
        self.tasks.spawn(drive::drive(handle, context, questions, news))
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

    /// Carries out a command for the server of this name. Returns what was done, as a sentence. A logout blocks on one
    /// disk write.
    pub fn control(&mut self, name: &str, command: ServerCommand) -> Result<String, ServerCommandError> {
        let at = self.servers.iter().position(|server| server.handle.spec.name == name);
        let at = at.ok_or_else(|| {
            let known = self.handles().map(|server| server.spec.name.clone()).collect();
            ServerCommandError::NotFound { name: name.to_owned(), known }
        })?;
        let old = self.servers[at].handle.clone();
        if matches!(command, ServerCommand::LogIn | ServerCommand::LogOut) {
            let expanded = self.context.expanded(&old.spec);
            let Ok(McpTransport::Http { url, .. }) = expanded else {
                return Err(ServerCommandError::NoLogin(name.to_owned()));
            };
            log_out(&self.context.logins, &url)
                .map_err(|source| ServerCommandError::LogOut { name: name.to_owned(), source })?;
        }
        old.completes_start.store(false, Ordering::Relaxed);
        self.servers[at].task.abort();
        let handle = Arc::new(old.renewed());
        let done = match command {
            ServerCommand::Off => format!("The MCP server {name} is off for this session."),
            ServerCommand::LogOut => format!("You are logged out of the MCP server {name}."),
            ServerCommand::Reconnect | ServerCommand::On => {
                format!("The MCP server {name} is being connected.")
            }
            ServerCommand::LogIn => {
                format!("The MCP server {name} is being connected; if it requires a login, its link follows.")
            }
        };
        if let ServerCommand::Off | ServerCommand::LogOut = command {
            handle.switch_off(OFF);
        } else {
            self.servers[at].task = self.drive(handle.clone());
        }
        self.servers[at].handle = handle;
        Ok(done)
    }

    /// The names of servers that are still connecting and have no listing from an earlier session.
    pub fn connecting(&self) -> Vec<&str> {
        let is_unknown = |server: &&Arc<ServerHandle>| {
            matches!(server.state(), ConnectionState::Connecting) && !server.has_listing()
        };
        self.handles().filter(is_unknown).map(|server| server.spec.name.as_str()).collect()
    }

    /// The tools of all servers that are or were connected, in server order, and `mcp`. `framed` are the
    /// tools in the conversation's frame. Calls to framed tools that no server has any more return the reason.
    pub fn tools(&self, framed: &[ToolSpec], budget: ListBudget) -> Vec<Arc<dyn Tool>> {
        let handles: Vec<Arc<ServerHandle>> = self.handles().cloned().collect();
        let offered = |server: &Arc<ServerHandle>| match server.is_offered() {
            true => server.listing().tools.iter().map(ServerTool::bytes).collect(),
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
        tools.extend(missing.map(|spec| Arc::new(AbsentTool::new(&handles, spec.clone())) as Arc<dyn Tool>));
        tools
    }

    /// One line (name and first line of the description) for each connected server's tool that is not in
    /// `framed`.
    pub fn unlisted_tool_lines(&self, framed: &[ToolSpec]) -> Vec<String> {
        let is_connected = |server: &&Arc<ServerHandle>| {
            matches!(server.state(), ConnectionState::Ready(_) | ConnectionState::Idle)
        };
        let mut lines = Vec::new();
        for server in self.handles().filter(is_connected) {
            let is_framed = |tool: &ServerTool| framed.iter().any(|spec| spec.name == tool.spec.name);
            let listing = server.listing();
            lines.extend(listing.tools.iter().filter(|tool| !is_framed(tool)).map(ServerTool::line));
        }
        lines
    }

    /// The names of the servers that have instructions for their tools, with these instructions.
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
        ConnectionState::Idle => (ServerState::Idle, Vec::new()),
        ConnectionState::Connecting => (ServerState::Connecting, Vec::new()),
        ConnectionState::Gone(why) => (ServerState::Gone(why), Vec::new()),
        ConnectionState::Ready(link) => (ServerState::Ready, link.shared.log_lines()),
    };
    let trouble = server.trouble().map(|why| format!("its last call failed: {why}"));
    ServerStatus {
        spec: server.spec.clone(),
        state,
        tools: listing.tools.iter().map(|known| known.spec.name.clone()).collect(),
        tool_bytes: listing.tools.iter().map(ServerTool::bytes).sum(),
        prompts: listing.prompts.len(),
        has_resources: listing.has_resources,
        remarks: listing.remarks.iter().cloned().chain(trouble).collect(),
        log,
    }
}
