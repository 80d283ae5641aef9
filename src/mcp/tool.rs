//! MCP tools as tools of a session, each under its own name.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::listed::ServerTool;
use super::names::tool_part;
use super::outcome::fenced;
use super::server::{ConnectionState, ServerHandle};
use epitome_thread::titles::words_in_title;
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};
use epitome_tools::{Access, BoxFuture, Tool, ToolContext, ToolResult, Workspace};

/// Maximum characters of a description in the tool listing.
const LINE_CHARS_MAX: usize = 160;

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

    /// Its name and the first line of its description.
    pub fn line(&self) -> String {
        let first = self.known.spec.description.lines().next().unwrap_or_default();
        let first: String = first.chars().take(LINE_CHARS_MAX).collect();
        format!("{}: {first}", self.known.spec.name)
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

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, String> {
        checked_arguments(input)?;
        Ok(Access::External {
            server: self.server.spec.name.clone(),
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
        let progress = move |text: String| (context.progress)(text.into());
        Box::pin(async move { server.call(&known, object(input), Arc::new(progress)).await })
    }
}

fn checked_arguments(input: &Value) -> Result<(), String> {
    match input {
        Value::Object(_) | Value::Null => Ok(()),
        _ => Err("The arguments must be an object.".to_owned()),
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

/// An unknown tool of a server that is not connected: a call connects the server and looks the tool up.
pub struct LateTool {
    server: Arc<ServerHandle>,
    spec: ToolSpec,
}

impl LateTool {
    /// The tool with this full name, if the name belongs to a server that is not connected.
    pub fn of(servers: &[Arc<ServerHandle>], name: &str) -> Option<LateTool> {
        let spec = ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            schema: serde_json::json!({"type": "object"}),
        };
        LateTool::with_spec(servers, spec)
    }

    /// Like [`LateTool::of`], for a tool whose definition is known from the conversation.
    pub fn with_spec(servers: &[Arc<ServerHandle>], spec: ToolSpec) -> Option<LateTool> {
        let server = servers.iter().find(|server| tool_part(&server.label, &spec.name).is_some())?;
        let is_late = !matches!(server.state(), ConnectionState::Ready(_));
        is_late.then(|| LateTool { server: server.clone(), spec })
    }

    fn own_name(&self) -> &str {
        tool_part(&self.server.label, &self.spec.name).unwrap_or(&self.spec.name)
    }
}

impl Tool for LateTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn is_listed(&self) -> bool {
        false
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        let title = format!("{}: {}", self.server.spec.name, self.own_name());
        CallDisplay { title, kind: ToolKind::Other, locations: Vec::new() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, String> {
        checked_arguments(input)?;
        let (server, tool) = (self.server.spec.name.clone(), self.own_name().to_owned());
        Ok(Access::External { server, tool, reads_only: false })
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let shown = arguments(input);
        Box::pin(async move { vec![shown] })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let (server, name) = (self.server.clone(), self.spec.name.clone());
        Box::pin(async move {
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

/// A tool in the conversation's frame that no server provides any more.
pub struct MissingTool {
    pub spec: ToolSpec,
}

impl MissingTool {
    fn why(&self) -> String {
        format!(
            "The tool {} is not available any more: no MCP server of this session has it now. Go on without it, or tell \
             the user; /mcp shows the servers.",
            self.spec.name
        )
    }
}

impl Tool for MissingTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn is_listed(&self) -> bool {
        false
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        CallDisplay { title: self.spec.name.clone(), kind: ToolKind::Other, locations: Vec::new() }
    }

    fn access(&self, _: &Value, _: &Workspace) -> Result<Access, String> {
        Err(self.why())
    }

    fn run(&self, _: Value, _: ToolContext) -> BoxFuture<ToolResult> {
        let why = self.why();
        Box::pin(async move { ToolResult::failed(why) })
    }
}
