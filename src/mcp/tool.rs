//! MCP tools as tools of a session: each under its own name, and `mcp`, which reaches those that are not in
//! the conversation's frozen tool list.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::listed::ServerTool;
use super::names::PREFIX;
use super::outcome::fenced;
use super::server::ServerHandle;
use epitome_thread::titles::words_in_title;
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};
use epitome_tools::truncate::{OUTPUT_BYTES_MAX, head_and_tail};
use epitome_tools::{Access, BoxFuture, Tool, ToolContext, ToolResult, Workspace};

/// Name of the tool that reaches unlisted tools.
pub const REACH: &str = "mcp";

/// Maximum characters of a description in the tool listing.
const LINE_CHARS_MAX: usize = 160;

/// A tool of an MCP server.
pub struct McpTool {
    pub server: Arc<ServerHandle>,
    pub known: ServerTool,
    /// Whether it fits in the tool list.
    pub listed: bool,
}

impl McpTool {
    /// Its name and the first line of its description.
    pub fn line(&self) -> String {
        let first = self.known.spec.description.lines().next().unwrap_or_default();
        let first: String = first.chars().take(LINE_CHARS_MAX).collect();
        format!("{}: {first}", self.known.spec.name)
    }

    fn touches(&self) -> Access {
        Access::External {
            server: self.server.spec.name.clone(),
            tool: self.known.own_name.clone(),
            reads_only: self.known.reads_only,
        }
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
        match input {
            Value::Object(_) | Value::Null => Ok(self.touches()),
            _ => Err("The arguments must be an object.".to_owned()),
        }
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let shown = arguments(input);
        Box::pin(async move { vec![shown] })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let (server, known) = (self.server.clone(), self.known.clone());
        Box::pin(async move { server.call(&known, object(input), context.progress).await })
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The arguments as shown in a permission request.
fn arguments(input: &Value) -> ToolDisplay {
    let text = serde_json::to_string_pretty(input).unwrap_or_default();
    ToolDisplay::Text { text: fenced(&text) }
}

/// The `mcp` tool: lists, describes and calls tools by name.
pub struct McpGatewayTool {
    pub tools: Vec<Arc<McpTool>>,
    /// Messages about servers that are not connected.
    pub gone: Vec<String>,
}

impl McpGatewayTool {
    fn find(&self, name: &str) -> Result<&Arc<McpTool>, String> {
        let found = self.tools.iter().find(|tool| tool.known.spec.name == name);
        found.ok_or_else(|| match self.gone.is_empty() {
            true => format!("No MCP server has a tool {name:?}. Call {REACH} without arguments for a list."),
            false => format!("There is no tool {name:?} now. {}", self.gone.join(" ")),
        })
    }

    fn list(&self) -> String {
        let mut out = String::from(
            "Tools of MCP servers; \"describe\" with a name shows details, \"tool\" with a name calls it.\n",
        );
        for tool in &self.tools {
            let _ = writeln!(out, "- {}", tool.line());
        }
        for gone in &self.gone {
            let _ = writeln!(out, "{gone}");
        }
        out
    }
}

/// The action that a call of `mcp` requests.
enum McpAction<'a> {
    List,
    Describe(&'a str),
    Call(&'a str, Value),
}

fn parse_action(input: &Value) -> Result<McpAction<'_>, String> {
    let text = |key: &str| input.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    match (text("tool"), text("describe")) {
        (Some(tool), _) => match input.get("arguments") {
            None | Some(Value::Null) => Ok(McpAction::Call(tool, json!({}))),
            Some(arguments @ Value::Object(_)) => Ok(McpAction::Call(tool, arguments.clone())),
            Some(_) => Err("`arguments` must be an object.".to_owned()),
        },
        (None, Some(tool)) => Ok(McpAction::Describe(tool)),
        (None, None) => Ok(McpAction::List),
    }
}

impl Tool for McpGatewayTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: REACH.to_owned(),
            description: "Reaches tools of MCP servers that are not in this list: those of servers that came later, \
                          and those for which there was no room. Without arguments it lists them; `describe` tells \
                          what one takes; `tool` with `arguments` calls one."
                .to_owned(),
            schema: json!({
                "type": "object",
                "properties": {
                    "tool": {"type": "string", "description": format!("The name of the tool to call, as {PREFIX}server__tool")},
                    "arguments": {"type": "object", "description": "What the tool takes"},
                    "describe": {"type": "string", "description": "The name of a tool to describe"},
                },
            }),
        }
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let other = match parse_action(input) {
            Ok(McpAction::Call(name, arguments)) => {
                self.find(name).ok().map(|tool| tool.display(&arguments, workspace))
            }
            Ok(McpAction::List | McpAction::Describe(_)) | Err(_) => None,
        };
        other.unwrap_or_else(|| CallDisplay {
            title: "Tools of MCP servers".to_owned(),
            kind: ToolKind::Other,
            locations: Vec::new(),
        })
    }

    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, String> {
        match parse_action(input)? {
            McpAction::List => Ok(Access::Nothing),
            McpAction::Describe(name) => self.find(name).map(|_| Access::Nothing),
            McpAction::Call(name, arguments) => self.find(name)?.access(&arguments, workspace),
        }
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let shown = match parse_action(input) {
            Ok(McpAction::Call(_, given)) => vec![arguments(&given)],
            Ok(McpAction::List | McpAction::Describe(_)) | Err(_) => Vec::new(),
        };
        Box::pin(async move { shown })
    }

    fn forwarded_call(&self, input: &Value) -> Option<(String, Value)> {
        match parse_action(input) {
            Ok(McpAction::Call(name, arguments)) => Some((name.to_owned(), arguments)),
            Ok(McpAction::List | McpAction::Describe(_)) | Err(_) => None,
        }
    }

    fn wrap_forwarded(&self, name: &str, input: Value) -> Value {
        json!({ "tool": name, "arguments": input })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let bounded = |text: String| head_and_tail(&text, OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX / 2, "too many");
        let done = match parse_action(&input) {
            Ok(McpAction::List) => ToolResult::completed(bounded(self.list())),
            Ok(McpAction::Describe(name)) => match self.find(name) {
                Ok(tool) => {
                    let ToolSpec { name, description, schema } = &tool.known.spec;
                    ToolResult::completed(bounded(format!("{name}\n{description}\nIt takes: {schema}")))
                }
                Err(why) => ToolResult::failed(why),
            },
            Ok(McpAction::Call(name, arguments)) => match self.find(name) {
                Ok(tool) => return tool.run(arguments, context),
                Err(why) => ToolResult::failed(why),
            },
            Err(why) => ToolResult::failed(why),
        };
        Box::pin(async move { done })
    }
}

/// A tool in the conversation's frame that no server provides any more.
pub struct MissingTool {
    pub spec: ToolSpec,
    pub why: String,
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
        Err(self.why.clone())
    }

    fn run(&self, _: Value, _: ToolContext) -> BoxFuture<ToolResult> {
        let why = self.why.clone();
        Box::pin(async move { ToolResult::failed(why) })
    }
}
