//! The tool `mcp`: lists, describes and calls tools of MCP servers by name, and reads their resources.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::call::ResourceList;
use super::listed::short;
use super::names::PREFIX;
use super::server::{ConnectionState, ServerHandle};
use super::tool::{AbsentTool, McpTool, arguments};
use epitome_thread::{CallDisplay, ToolDisplay, ToolKind, ToolSpec};
use epitome_tools::ToolError;
use epitome_tools::truncate::{OUTPUT_BYTES_MAX, head_and_tail};
use epitome_tools::{Access, BoxFuture, Tool, ToolContext, ToolResult, Workspace};

/// Name of the tool.
pub const REACH: &str = "mcp";

/// How long a listing waits for servers that are being reconnected.
const LIST_WAIT_MAX: Duration = Duration::from_secs(3);
/// The tool name under which a permission to read resources is stored.
const RESOURCES: &str = "resources";

/// The gateway tool `mcp`.
pub struct McpGatewayTool {
    pub servers: Vec<Arc<ServerHandle>>,
}

/// The action of a call.
enum GatewayAction<'a> {
    List,
    Describe(&'a str),
    Call(&'a str, Value),
    /// Lists the resources of one server, or of all.
    Resources(Option<&'a str>),
    Read {
        server: &'a str,
        uri: &'a str,
    },
}

fn parse_action(input: &Value) -> Result<GatewayAction<'_>, ToolError> {
    let text = |key: &str| input.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(tool) = text("tool") {
        return match input.get("arguments") {
            None | Some(Value::Null) => Ok(GatewayAction::Call(tool, json!({}))),
            Some(arguments @ Value::Object(_)) => Ok(GatewayAction::Call(tool, arguments.clone())),
            Some(_) => Err(ToolError::new("`arguments` must be an object.")),
        };
    }
    if let Some(uri) = text("read") {
        let server = text("server").ok_or_else(|| {
            ToolError::new("`read` needs `server`, the name of the server that has the resource.")
        })?;
        return Ok(GatewayAction::Read { server, uri });
    }
    match (text("describe"), input.get("resources").and_then(Value::as_bool)) {
        (Some(tool), _) => Ok(GatewayAction::Describe(tool)),
        (None, Some(true)) => Ok(GatewayAction::Resources(text("server"))),
        (None, Some(false) | None) => Ok(GatewayAction::List),
    }
}

impl McpGatewayTool {
    /// The tool with this name. For a server that is not connected, the tool is looked up when it is called.
    fn find(&self, name: &str) -> Result<Arc<dyn Tool>, ToolError> {
        if let Some(tool) = self.known(name) {
            return Ok(Arc::new(tool));
        }
        let absent = AbsentTool::named(&self.servers, name);
        if absent.server.is_none() {
            return Err(ToolError::new(format!(
                "No MCP server has a tool {name:?}. Call {REACH} without arguments for a list."
            )));
        }
        Ok(Arc::new(absent))
    }

    fn known(&self, name: &str) -> Option<McpTool> {
        self.servers.iter().find_map(|server| McpTool::find(server, name))
    }

    fn server(&self, name: &str) -> Result<&Arc<ServerHandle>, ToolError> {
        let found = self.servers.iter().find(|server| server.spec.name == name || server.label == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.servers.iter().map(|server| server.spec.name.as_str()).collect();
            ToolError::new(format!("There is no MCP server {name:?}; there are: {}.", names.join(", ")))
        })
    }

    /// All tools and states, after giving lost servers time to reconnect.
    async fn list(servers: Vec<Arc<ServerHandle>>) -> String {
        let gone = |server: &&Arc<ServerHandle>| matches!(server.state(), ConnectionState::Gone(_));
        let woken: Vec<_> = servers.iter().filter(gone).collect();
        woken.iter().for_each(|server| server.wake());
        let settled = async {
            for server in woken.iter().filter(|server| !server.is_exhausted()) {
                server.connected(LIST_WAIT_MAX).await;
            }
        };
        drop(tokio::time::timeout(LIST_WAIT_MAX, settled).await);
        let mut out = String::from(
            "Tools of MCP servers; \"describe\" with a name shows details, \"tool\" with a name calls it.\n",
        );
        for server in &servers {
            for tool in &server.listing().tools {
                let _ = writeln!(out, "- {}", tool.line());
            }
        }
        for server in &servers {
            let name = &server.spec.name;
            let _ = match server.state() {
                ConnectionState::Ready(_) | ConnectionState::Idle if server.listing().has_resources => {
                    writeln!(out, "The MCP server {name} has resources; \"resources\" lists them.")
                }
                ConnectionState::Ready(_) | ConnectionState::Idle => Ok(()),
                ConnectionState::Connecting => {
                    writeln!(out, "The MCP server {name} is still being connected.")
                }
                ConnectionState::Gone(why) => writeln!(out, "The MCP server {name} is not connected: {why}."),
            };
        }
        out
    }

    async fn list_resources(servers: Vec<Arc<ServerHandle>>) -> ToolResult {
        let mut out = String::new();
        for server in &servers {
            match server.list_resources().await {
                Ok(list) => write_resources(&mut out, server, &list),
                Err(why) if servers.len() == 1 => return ToolResult::failed(why),
                Err(why) => {
                    let _ = writeln!(out, "{why}");
                }
            }
        }
        match out.is_empty() {
            true => ToolResult::completed("There are no resources.".to_owned()),
            false => ToolResult::completed(bounded(&out)),
        }
    }
}

fn write_resources(out: &mut String, server: &ServerHandle, list: &ResourceList) {
    let name = &server.spec.name;
    if list.resources.is_empty() && list.templates.is_empty() {
        let _ = writeln!(out, "The MCP server {name} has no resources.");
        return;
    }
    let _ =
        writeln!(out, "Resources of the MCP server {name}; \"read\" with a URI and \"server\" reads one:");
    let described = |said: &Option<String>| match said.as_deref().map(str::trim) {
        Some(said) if !said.is_empty() => format!(": {}", short(said)),
        Some(_) | None => String::new(),
    };
    let resources = list.resources.iter().map(|found| (&found.uri, "", &found.name, &found.description));
    let templates = list
        .templates
        .iter()
        .map(|found| (&found.uri_template, "a template, ", &found.name, &found.description));
    for (uri, kind, name, description) in resources.chain(templates) {
        let _ = writeln!(out, "- {uri} ({kind}{}){}", short(name), described(description));
    }
}

fn bounded(text: &str) -> String {
    head_and_tail(text, OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX / 2, "too many")
}

impl Tool for McpGatewayTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: REACH.to_owned(),
            description: "Reaches tools of MCP servers that are not in this list: those of servers that came later, \
                          and those for which there was no room. Without arguments it lists them; `describe` shows \
                          what one takes; `tool` with `arguments` calls one. `resources` lists what servers have to \
                          read; `read` with `server` reads one."
                .to_owned(),
            schema: json!({
                "type": "object",
                "properties": {
                    "tool": {"type": "string", "description": format!("The name of the tool to call, as {PREFIX}server__tool")},
                    "arguments": {"type": "object", "description": "What the tool takes"},
                    "describe": {"type": "string", "description": "The name of a tool to describe"},
                    "resources": {"type": "boolean", "description": "Lists the resources of `server`, or of all servers"},
                    "read": {"type": "string", "description": "The URI of a resource of `server` to read"},
                    "server": {"type": "string", "description": "The name of a server"},
                },
            }),
        }
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let title = match parse_action(input) {
            Ok(GatewayAction::Call(name, arguments)) if let Ok(tool) = self.find(name) => {
                return tool.display(&arguments, workspace);
            }
            Ok(GatewayAction::Read { server, uri }) => format!("{}: read {}", short(server), short(uri)),
            Ok(GatewayAction::Resources(_)) => "Resources of MCP servers".to_owned(),
            Ok(GatewayAction::Call(..) | GatewayAction::List | GatewayAction::Describe(_)) | Err(_) => {
                "Tools of MCP servers".to_owned()
            }
        };
        CallDisplay { title, kind: ToolKind::Other, locations: Vec::new() }
    }

    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, ToolError> {
        match parse_action(input)? {
            // Lists of names, which servers also send without being asked.
            GatewayAction::List | GatewayAction::Resources(None) => Ok(Access::Nothing),
            GatewayAction::Resources(Some(server)) => self.server(server).map(|_| Access::Nothing),
            GatewayAction::Describe(name) => self.find(name).map(|_| Access::Nothing),
            GatewayAction::Call(name, arguments) => self.find(name)?.access(&arguments, workspace),
            // In the protocol, reading a resource never changes anything.
            GatewayAction::Read { server, .. } => Ok(Access::External {
                server: self.server(server)?.label.clone(),
                tool: RESOURCES.to_owned(),
                reads_only: true,
            }),
        }
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        let shown = match parse_action(input) {
            Ok(GatewayAction::Call(_, given)) => vec![arguments(&given)],
            Ok(GatewayAction::Read { uri, .. }) => vec![arguments(&json!({ "uri": uri }))],
            Ok(_) | Err(_) => Vec::new(),
        };
        Box::pin(async move { shown })
    }

    fn forwarded_call(&self, input: &Value) -> Option<(String, Value)> {
        let Ok(GatewayAction::Call(name, arguments)) = parse_action(input) else { return None };
        Some((name.to_owned(), arguments))
    }

    fn wrap_forwarded(&self, name: &str, input: Value) -> Value {
        json!({ "tool": name, "arguments": input })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        self.start(&input, context).unwrap_or_else(|why| Box::pin(async move { ToolResult::failed(why) }))
    }
}

impl McpGatewayTool {
    fn start(&self, input: &Value, context: ToolContext) -> Result<BoxFuture<ToolResult>, ToolError> {
        Ok(match parse_action(input)? {
            GatewayAction::List => {
                let servers = self.servers.clone();
                Box::pin(async move { ToolResult::completed(bounded(&Self::list(servers).await)) })
            }
            GatewayAction::Describe(name) => {
                let unknown = || format!("What {name} takes is not known: its server is not connected.");
                let ToolSpec { name, description, schema } = self.known(name).ok_or_else(unknown)?.known.spec;
                let text = bounded(&format!("{name}\n{description}\nIt takes: {schema}"));
                Box::pin(async move { ToolResult::completed(text) })
            }
            GatewayAction::Call(name, arguments) => self.find(name)?.run(arguments, context),
            GatewayAction::Resources(None) => {
                let has_some = |server: &&Arc<ServerHandle>| server.listing().has_resources;
                Box::pin(Self::list_resources(self.servers.iter().filter(has_some).cloned().collect()))
            }
            GatewayAction::Resources(Some(server)) => {
                Box::pin(Self::list_resources(vec![self.server(server)?.clone()]))
            }
            GatewayAction::Read { server, uri } => {
                let (server, uri) = (self.server(server)?.clone(), uri.to_owned());
                Box::pin(async move { server.read_resource(&uri).await.unwrap_or_else(ToolResult::failed) })
            }
        })
    }
}
