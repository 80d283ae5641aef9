//! MCP tools as tools of a session, each under its own name.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::listed::ServerTool;
use super::names::tool_part;
use super::outcome::fenced;
use super::server::{ConnectionState, ServerHandle};
use epitome_thread::titles::words_in_title;
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};
use epitome_tools::ToolError;
use epitome_tools::{Access, BoxFuture, CANCELLED, Tool, ToolContext, ToolResult, Workspace};

/// Maximum bytes of a call's progress reports that are kept for its outcome, in case it is cancelled.
const PROGRESS_BYTES_MAX: usize = 16 * 1024;

/// A tool of an MCP server.
pub struct McpTool {
    pub server: Arc<ServerHandle>,
    pub known: ServerTool,
    /// Whether it fits into the tool list.
    pub listed: bool,
}

impl McpTool {
    /// Finds the server's tool by its full name.
    pub fn find(server: &Arc<ServerHandle>, name: &str) -> Option<McpTool> {
        let known = server.listing().tools.iter().find(|known| known.spec.name == name).cloned()?;
        Some(McpTool { server: server.clone(), known, listed: false })
    }
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.known.spec.clone()
    }

    fn is_listed(&self) -> bool {
        self.listed
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        let kind = ToolKind::Other;
        let title = words_in_title(kind, &self.known.title).into_owned();
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, ToolError> {
        checked_arguments(input)?;
        Ok(Access::External {
            server: self.server.label.clone(),
            tool: self.known.own_name.clone(),
            reads_only: self.known.reads_only,
        })
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let shown = arguments(input);
        Box::pin(async move { vec![shown] })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let (server, known) = (self.server.clone(), self.known.clone());
        let so_far: Arc<Mutex<String>> = Arc::default();
        let reported = Arc::clone(&so_far);
        let partial = context.partial.clone();
        let progress = move |text: String| {
            keep_newest(&mut so_far.lock(), &text);
            (context.progress)(text.into());
        };
        partial.set(move || ToolResult::completed(format!("{}{CANCELLED}", reported.lock())));
        Box::pin(async move {
            let called = server.call(&known, object(input), Arc::new(progress)).await;
            called.unwrap_or_else(ToolResult::failed)
        })
    }
}

/// Adds a report of progress, each on its line, and drops the oldest text beyond the limit.
fn keep_newest(so_far: &mut String, text: &str) {
    so_far.push_str(text);
    if !so_far.ends_with('\n') {
        so_far.push('\n');
    }
    let start = so_far.ceil_char_boundary(so_far.len().saturating_sub(PROGRESS_BYTES_MAX));
    so_far.drain(..start);
}

fn checked_arguments(input: &Value) -> Result<(), ToolError> {
    match input {
        Value::Object(_) | Value::Null => Ok(()),
        _ => Err(ToolError::new("The arguments must be an object.")),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The arguments as shown in a permission request.
pub fn arguments(input: &Value) -> ToolDisplay {
    let text = serde_json::to_string_pretty(input).unwrap_or_default();
    ToolDisplay::Text { text: fenced(&text) }
}

/// A tool that no connected server has. If it may belong to a server that is not connected, a call connects that server
/// and looks the tool up.
pub struct AbsentTool {
    pub server: Option<Arc<ServerHandle>>,
    spec: ToolSpec,
}

impl AbsentTool {
    /// `spec` is its definition as known from the conversation.
    pub fn new(servers: &[Arc<ServerHandle>], spec: ToolSpec) -> AbsentTool {
        let server = servers.iter().find(|server| tool_part(&server.label, &spec.name).is_some());
        let is_late = |server: &&Arc<ServerHandle>| !matches!(server.state(), ConnectionState::Ready(_));
        AbsentTool { server: server.filter(is_late).cloned(), spec }
    }

    /// The tool with this full name, whose definition is not known.
    pub fn named(servers: &[Arc<ServerHandle>], name: &str) -> AbsentTool {
        let (name, description) = (name.to_owned(), String::new());
        let schema = serde_json::json!({"type": "object"});
        AbsentTool::new(servers, ToolSpec { name, description, schema })
    }

    fn own_name(&self, server: &ServerHandle) -> &str {
        tool_part(&server.label, &self.spec.name).unwrap_or(&self.spec.name)
    }

    fn why(&self) -> String {
        format!(
            "The tool {} is not available any more: no MCP server of this session has it now. Go on without it, or tell \
            the user; /mcp shows the servers.",
            self.spec.name
        )
    }
}

impl Tool for AbsentTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn is_listed(&self) -> bool {
        false
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        let title = match &self.server {
            Some(server) => format!("{}: {}", server.spec.name, self.own_name(server)),
            None => self.spec.name.clone(),
        };
        CallDisplay { title, kind: ToolKind::Other, locations: Vec::new() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, ToolError> {
        let server = self.server.as_ref().ok_or_else(|| self.why())?;
        checked_arguments(input)?;
        let tool = self.own_name(server).to_owned();
        Ok(Access::External { server: server.label.clone(), tool, reads_only: false })
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let shown = arguments(input);
        Box::pin(async move { vec![shown] })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let (server, name) = (self.server.clone().ok_or_else(|| self.why()), self.spec.name.clone());
        Box::pin(async move {
            let server = match server {
                Ok(server) => server,
                Err(why) => return ToolResult::failed(why),
            };
            if let Err(why) = server.link().await {
                return ToolResult::failed(why);
            }
            match McpTool::find(&server, &name) {
                Some(tool) => tool.run(input, context).await,
                None => ToolResult::failed(format!(
                    "The MCP server {} is connected now and has no tool {name:?}.",
                    server.spec.name
                )),
            }
        })
    }
}
