//! Tools of Model Context Protocol (MCP) servers. Uses the official SDK (`rmcp`), which no other module
//! imports.
//!
//! ```text
//!  settings, client ─► McpServer ─► Hub::start ─ one task each ─► drive::drive
//!                                                 process: child (group, pipes, limits) ─┐
//!                                                 HTTP: the provider's client ───────────┤ rmcp
//!  session ◄─ McpEvent: tools are known, a server is gone ───────────────────────────────────┤
//!  session ◄─ Door: questions to the user ─ client ◄─────────────────────────────────────┘
//!  toolbox ◄─ Hub::tools: one mcp__SERVER__TOOL each, and `mcp` for unlisted tools
//! ```
//!
//! Only calls to a server's own tools wait for that server. MCP servers are untrusted: names, descriptions,
//! results and questions are size-limited before use, and a server's claims about its tools only affect the
//! wording of the permission request.

mod child;
mod client;
mod drive;
mod listed;
mod login;
mod names;
mod outcome;
mod redact;
mod server;
mod tool;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use epitome_config::McpServer;
use epitome_platform::reaper::Reaper;
use epitome_provider::http::Http;
use epitome_thread::ToolSpec;
use epitome_tools::question::QuestionSender;
use epitome_tools::{Exposure, Tool};
use server::{ConnectionState, ServerHandle};
use tool::{McpGatewayTool, McpTool, MissingTool};

pub use names::PREFIX;
pub use tool::REACH;

/// Capacity of the news channel; a server with more news waits.
const NEWS_MAX: usize = 64;
/// Tools of all servers that are included in a conversation's tool list: OpenAI accepts 128 tools in total.
/// The others are reached through `mcp`.
const LISTED_MAX: usize = 96;
/// Total size of those tools in bytes; every request carries all of them.
const LISTED_BYTES_MAX: usize = 96 * 1024;

/// Checks a server before it is started.
pub type ServerCheck = Arc<dyn Fn(&McpServer) -> Result<(), String> + Send + Sync>;

/// The environment that servers are started in.
#[derive(Clone)]
pub struct McpContext {
    pub cwd: PathBuf,
    /// The session's environment variables.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    /// The part of them that servers get.
    pub exposure: Arc<Exposure>,
    pub reaper: Arc<Reaper>,
    /// HTTP client limited to the session's network policy.
    pub http: Http,
    /// Directory of the stored login tokens, in the user's data directory.
    pub logins: PathBuf,
    /// Whether a repository's server still is what the user consented to; the error completes a sentence. Blocks on
    /// disk I/O, and is called before each start.
    pub unchanged: ServerCheck,
}

/// Server events that the session handles.
#[derive(Debug)]
pub enum McpEvent {
    /// The server's tools are known or have changed.
    Changed { server: String },
    /// The server is not connected; `why` completes a sentence.
    Gone { server: String, why: String },
    /// A sentence for the user.
    Remark(String),
}

/// State of a server, as reported to the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerStatus {
    pub spec: McpServer,
    pub state: ServerState,
    /// Remarks about the server's tool list.
    pub remarks: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    Connecting,
    /// Contains the names of its tools as the model calls them.
    Ready(Vec<String>),
    Gone(String),
}

/// The MCP servers of one session. Dropping it ends them.
pub struct Hub {
    context: McpContext,
    door: QuestionSender,
    news: mpsc::Sender<McpEvent>,
    servers: Vec<Arc<ServerHandle>>,
    tasks: JoinSet<()>,
}

impl Hub {
    /// Returns a hub without servers and the receiver of its news.
    pub fn new(context: McpContext, door: QuestionSender) -> (Hub, mpsc::Receiver<McpEvent>) {
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        (Hub { context, door, news, servers: Vec::new(), tasks: JoinSet::new() }, receiver)
    }

    /// Starts connecting to the servers, concurrently. Servers whose name is already taken are skipped.
    pub fn start(&mut self, specs: impl IntoIterator<Item = McpServer>) {
        for spec in specs {
            if self.has(&spec.name) {
                continue;
            }
            let names = self.servers.iter().map(|server| server.spec.name.as_str());
            let label = names::server_names(names.chain([spec.name.as_str()])).pop().unwrap_or_default();
            let server = Arc::new(ServerHandle::new(spec, label));
            self.servers.push(server.clone());
            let (context, door, news) = (self.context.clone(), self.door.clone(), self.news.clone());
            self.tasks.spawn(drive::drive(server, context, door, news));
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.servers.iter().any(|server| server.spec.name == name)
    }

    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The names of the servers that are still connecting.
    pub fn connecting(&self) -> Vec<&str> {
        let connecting =
            self.servers.iter().filter(|server| matches!(server.state(), ConnectionState::Connecting));
        connecting.map(|server| server.spec.name.as_str()).collect()
    }

    /// The tools of all servers that are or were connected, in server order, and `mcp`. `framed` are the
    /// tools in the conversation's frame: calls to those that no server has now return the reason.
    pub fn tools(&self, framed: &[ToolSpec]) -> Vec<Arc<dyn Tool>> {
        let mut tools: Vec<Arc<McpTool>> = Vec::new();
        let mut gone = Vec::new();
        let mut bytes = 0;
        for server in &self.servers {
            for known in server.tools() {
                let spec = &known.spec;
                bytes += spec.name.len() + spec.description.len() + spec.schema.to_string().len();
                let listed = tools.len() < LISTED_MAX && bytes <= LISTED_BYTES_MAX;
                tools.push(Arc::new(McpTool { server: server.clone(), known, listed }));
            }
            match server.state() {
                ConnectionState::Ready(_) => {}
                ConnectionState::Gone(why) => {
                    gone.push(format!("The MCP server {} is not connected: {why}.", server.spec.name));
                }
                ConnectionState::Connecting => {
                    gone.push(format!("The MCP server {} is still being connected.", server.spec.name));
                }
            }
        }
        let missing: Vec<Arc<dyn Tool>> = framed
            .iter()
            .filter(|spec| spec.name.starts_with(PREFIX))
            .filter(|spec| !tools.iter().any(|tool| tool.known.spec.name == spec.name))
            .map(|spec| {
                Arc::new(MissingTool { spec: spec.clone(), why: missing(&spec.name, &gone) }) as Arc<dyn Tool>
            })
            .collect();
        let mut all: Vec<Arc<dyn Tool>> = tools.iter().map(|tool| tool.clone() as Arc<dyn Tool>).collect();
        if !self.servers.is_empty() || framed.iter().any(|spec| spec.name == REACH) {
            all.push(Arc::new(McpGatewayTool { tools, gone }));
        }
        all.extend(missing);
        all
    }

    /// One line (name and first line of the description) for each connected server's tool that is not in
    /// `framed`.
    pub fn unlisted_tool_lines(&self, framed: &[ToolSpec]) -> Vec<String> {
        let mut lines = Vec::new();
        for server in &self.servers {
            let ConnectionState::Ready(link) = server.state() else { continue };
            for known in &link.tools {
                if !framed.iter().any(|spec| spec.name == known.spec.name) {
                    let tool = McpTool { server: server.clone(), known: known.clone(), listed: false };
                    lines.push(tool.line());
                }
            }
        }
        lines
    }

    pub fn statuses(&self) -> Vec<ServerStatus> {
        let of = |server: &Arc<ServerHandle>| {
            let (state, remarks) = match server.state() {
                ConnectionState::Connecting => (ServerState::Connecting, Vec::new()),
                ConnectionState::Gone(why) => (ServerState::Gone(why), Vec::new()),
                ConnectionState::Ready(link) => {
                    let names = link.tools.iter().map(|known| known.spec.name.clone()).collect();
                    (ServerState::Ready(names), link.remarks.clone())
                }
            };
            ServerStatus { spec: server.spec.clone(), state, remarks }
        };
        self.servers.iter().map(of).collect()
    }
}

/// Explains to the model why a tool is not available.
fn missing(name: &str, gone: &[String]) -> String {
    let because = match gone.is_empty() {
        true => "no MCP server of this session has it now".to_owned(),
        false => gone.join(" "),
    };
    format!(
        "The tool {name} is not available any more: {because} Go on without it, or tell the user; /mcp shows its state."
    )
}
