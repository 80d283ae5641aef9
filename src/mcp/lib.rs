//! Tools of servers that speak the Model Context Protocol, through its official SDK, which only this module
//! names.
//!
//! ```text
//!  settings, client ─► McpServer ─► Hub::start ─ a task each ─► drive::drive
//!                                                 process: child (group, pipes, bounds) ─┐
//!                                                 HTTP: the provider's client ───────────┤ rmcp
//!  session ◄─ News: tools are known, a server went ──────────────────────────────────────┤
//!  session ◄─ Door: questions to the person ─ client ◄────────────────────────────────────┘
//!  toolbox ◄─ Hub::tools: mcp__SERVER__TOOL each, and `mcp` for what is not in the list
//! ```
//!
//! Nothing waits for a server but a call of its own tools. What a server says is data: names, descriptions,
//! results and questions are bounded before anybody sees them, and what it says of itself decides nothing but
//! a word on the permission card.

mod child;
mod client;
mod drive;
mod expand;
mod listed;
mod login;
mod names;
mod outcome;
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
use epitome_tools::Tool;
use epitome_tools::question::Door;
use server::{Server, State};
use tool::{McpTool, Missing, Reach};

pub use names::PREFIX;
pub use tool::REACH;

/// News that may wait for the session; a server that has more waits.
const NEWS_MAX: usize = 64;
/// Tools of all servers that are put into a conversation's list: OpenAI takes 128 tools in all. The others are
/// reached through `mcp`.
const LISTED_MAX: usize = 96;
/// Bytes of them; each request holds them all.
const LISTED_BYTES_MAX: usize = 96 * 1024;

/// What servers are started with.
#[derive(Clone)]
pub struct Surroundings {
    pub cwd: PathBuf,
    /// The session's own.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    pub reaper: Arc<Reaper>,
    /// Within the session's network.
    pub http: Http,
    /// The folder of what logins came to, below the person's own data.
    pub logins: PathBuf,
}

/// What a session hears of its servers.
#[derive(Debug)]
pub enum News {
    /// Its tools are known, or are others now.
    Changed { server: String },
    /// It is not there; `why` is the end of a sentence.
    Gone { server: String, why: String },
    /// A sentence for the person.
    Remark(String),
}

/// How a server stands, for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub spec: McpServer,
    pub state: Stands,
    /// What is said of its list.
    pub remarks: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stands {
    Connecting,
    /// With the names of its tools, as the model calls them.
    Ready(Vec<String>),
    Gone(String),
}

/// The servers of one session. Dropping it ends them.
pub struct Hub {
    around: Surroundings,
    door: Door,
    news: mpsc::Sender<News>,
    servers: Vec<Arc<Server>>,
    tasks: JoinSet<()>,
}

impl Hub {
    /// A hub without servers, and what it has to say.
    pub fn new(around: Surroundings, door: Door) -> (Hub, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        (Hub { around, door, news, servers: Vec::new(), tasks: JoinSet::new() }, receiver)
    }

    /// Begins to connect to servers, each beside the others. One whose name is taken is passed over.
    pub fn start(&mut self, specs: impl IntoIterator<Item = McpServer>) {
        for spec in specs {
            if self.has(&spec.name) {
                continue;
            }
            let names = self.servers.iter().map(|server| server.spec.name.as_str());
            let label = names::of_servers(names.chain([spec.name.as_str()])).pop().unwrap_or_default();
            let server = Arc::new(Server::new(spec, label));
            self.servers.push(server.clone());
            let (around, door, news) = (self.around.clone(), self.door.clone(), self.news.clone());
            self.tasks.spawn(drive::drive(server, around, door, news));
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.servers.iter().any(|server| server.spec.name == name)
    }

    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The names of the servers that are being connected.
    pub fn connecting(&self) -> Vec<&str> {
        let connecting = self.servers.iter().filter(|server| matches!(server.state(), State::Connecting));
        connecting.map(|server| server.spec.name.as_str()).collect()
    }

    /// All tools of the servers that are there or were, in the servers' order, and `mcp`. `framed` are the tools that
    /// the conversation was told of: those of servers that are not there answer why.
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
                State::Ready(_) => {}
                State::Gone(why) => {
                    gone.push(format!("The MCP server {} is not connected: {why}.", server.spec.name));
                }
                State::Connecting => {
                    gone.push(format!("The MCP server {} is still being connected.", server.spec.name));
                }
            }
        }
        let missing: Vec<Arc<dyn Tool>> = framed
            .iter()
            .filter(|spec| spec.name.starts_with(PREFIX))
            .filter(|spec| !tools.iter().any(|tool| tool.known.spec.name == spec.name))
            .map(|spec| {
                Arc::new(Missing { spec: spec.clone(), why: missing(&spec.name, &gone) }) as Arc<dyn Tool>
            })
            .collect();
        let mut all: Vec<Arc<dyn Tool>> = tools.iter().map(|tool| tool.clone() as Arc<dyn Tool>).collect();
        if !self.servers.is_empty() || framed.iter().any(|spec| spec.name == REACH) {
            all.push(Arc::new(Reach { tools, gone }));
        }
        all.extend(missing);
        all
    }

    /// Names and first lines of tools that these do not have, each a line.
    pub fn lines_beside(&self, framed: &[ToolSpec]) -> Vec<String> {
        let mut lines = Vec::new();
        for server in &self.servers {
            let State::Ready(link) = server.state() else { continue };
            for known in &link.tools {
                if !framed.iter().any(|spec| spec.name == known.spec.name) {
                    let tool = McpTool { server: server.clone(), known: known.clone(), listed: false };
                    lines.push(tool.line());
                }
            }
        }
        lines
    }

    pub fn standings(&self) -> Vec<Standing> {
        let of = |server: &Arc<Server>| {
            let (state, remarks) = match server.state() {
                State::Connecting => (Stands::Connecting, Vec::new()),
                State::Gone(why) => (Stands::Gone(why), Vec::new()),
                State::Ready(link) => {
                    let names = link.tools.iter().map(|known| known.spec.name.clone()).collect();
                    (Stands::Ready(names), link.remarks.clone())
                }
            };
            Standing { spec: server.spec.clone(), state, remarks }
        };
        self.servers.iter().map(of).collect()
    }
}

/// Why a tool is not there, for the model.
fn missing(name: &str, gone: &[String]) -> String {
    let because = match gone.is_empty() {
        true => "no MCP server of this session has it now".to_owned(),
        false => gone.join(" "),
    };
    format!(
        "The tool {name} is not there any more: {because} Go on without it, or tell the user; /mcp shows them how it stands."
    )
}
