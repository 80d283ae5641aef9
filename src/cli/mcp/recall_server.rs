//! `epitome mcp serve`: stored sessions for other agents, as an MCP server on stdin and stdout. An agent whose conversation was
//! imported looks up there what has left its view.

use std::borrow::Cow;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer, serve_server};
use serde_json::{Map, Value, json};

use crate::cli::sessions::{find, short_title};
use crate::cli::{CliContext as _, CliError, serve, sessions};
use crate::paths::Paths;
use crate::recall::{ANSWER_BYTES_MAX, RecallLog};
use crate::secrets;
use crate::session_library;
use crate::store::{SessionQuery, Store};
use crate::thread::SessionId;
use crate::tools::child_output::{self, OutputLimits};
use crate::tools::recall_tool;

/// Sessions that are listed.
const LISTED_MAX: usize = 20;

/// Limits of a slash command. It waits for the session, which another process may be using.
const COMMAND_LIMITS: OutputLimits<'static> =
    OutputLimits { time: Duration::from_secs(60), bytes: ANSWER_BYTES_MAX as u64, is_over: &|| None };

const INSTRUCTIONS: &str = "Conversations that Epitome has stored, among them those imported from other agents. `recall` \
                            searches and reads one from its beginning, also what was compacted; `sessions` lists those of \
                            this directory; `pin` keeps a text in every compaction; `why` explains what happened to an entry.";

pub(super) fn serve(paths: &Paths) -> Result<i32, CliError> {
    let runtime = serve::runtime()?;
    runtime.block_on(async {
        let server = RecallServer { paths: paths.clone() };
        let running = serve_server(server, (tokio::io::stdin(), tokio::io::stdout())).await;
        let running = running.context("the client did not begin as MCP requires")?;
        running.waiting().await.context("the server failed")?;
        Ok::<_, CliError>(())
    })?;
    // A read of stdin can't be interrupted.
    runtime.shutdown_background();
    Ok(0)
}

/// Answers from the store, which is opened for each call: sessions are written by other processes.
struct RecallServer {
    paths: Paths,
}

impl ServerHandler for RecallServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_instructions(INSTRUCTIONS)
            .with_server_info(Implementation::new("epitome", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, rmcp::ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, rmcp::ErrorData> {
        let paths = self.paths.clone();
        let input = Value::Object(request.arguments.unwrap_or_default());
        let run = move || match &*request.name {
            recall_tool::NAME => serve::with_store(&paths, |store| recall(store, &input)),
            "sessions" => serve::with_store(&paths, sessions_here),
            "pin" => command(&paths, &input, "pin", "text"),
            "why" => command(&paths, &input, "why", "entry"),
            other => Err(CliError::failed(format!(
                "there is no tool {other}; there are recall, sessions, pin and why"
            ))),
        };
        let answered = tokio::task::spawn_blocking(run).await;
        let answered = answered.map_err(|error| rmcp::ErrorData::internal_error(error.to_string(), None))?;
        let result = match answered {
            // What is served leaves Epitome, like an export.
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(secrets::mask(&text))]),
            Err(CliError { message, hint, .. }) => {
                let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                CallToolResult::error(vec![ContentBlock::text(message + &hint)])
            }
        };
        Ok(result.into())
    }
}

fn tools() -> Vec<Tool> {
    let spec = recall_tool::spec();
    let about = format!("{} The conversation is that of a stored session.", spec.description);
    let of_session = |schema: &Value| {
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            let about =
                "ID of a session or a unique prefix of it; without it, the newest one of this directory.";
            properties.insert("session".to_owned(), json!({ "type": "string", "description": about }));
        }
        schema
    };
    let text = |name: &str, about: &str| json!({ "type": "object", "properties": { name: { "type": "string", "description": about } } });
    let tool = |name: &'static str, about: &str, reads: bool, schema: Map<String, Value>| {
        let reads = ToolAnnotations::from_raw(None, Some(reads), Some(false), None, Some(false));
        Tool::new(name, Cow::Owned(about.to_owned()), Arc::new(schema)).with_annotations(reads)
    };
    let pinned = "A text that stays verbatim in every compaction, or an entry such as e12; without it, what is pinned is listed.";
    let entry = "An entry such as e12; without it, the newest compaction is explained.";
    let nothing = json!({ "type": "object", "properties": {} });
    vec![
        tool(recall_tool::NAME, &about, true, of_session(&spec.schema)),
        tool(
            "sessions",
            "Lists the stored sessions of this directory, newest first.",
            true,
            nothing.as_object().cloned().unwrap_or_default(),
        ),
        tool(
            "pin",
            "Keeps a text or an entry of a stored session in every compaction of it.",
            false,
            of_session(&text("text", pinned)),
        ),
        tool(
            "why",
            "Explains what happened to an entry of a stored session, or what its compaction kept and left out.",
            true,
            of_session(&text("entry", entry)),
        ),
    ]
}

fn session(store: &Store, input: &Value) -> Result<SessionId, CliError> {
    let session = input["session"].as_str().filter(|id| !id.trim().is_empty());
    find(store, session.unwrap_or(sessions::LATEST))
}

/// Runs a slash command in the session, wherever it is open, as the command line does. Its arguments are the named property of the
/// input. Returns what it prints.
fn command(paths: &Paths, input: &Value, name: &str, property: &str) -> Result<String, CliError> {
    let session = serve::with_store(paths, |store| session(store, input))?;
    let words = input[property].as_str().unwrap_or_default();
    let own = std::env::current_exe().context("the program is not found")?;
    let mut run = Command::new(own);
    run.args(["run", "--resume", &session.to_string(), &format!("/{name} {words}")]);
    let printed = child_output::output_within(run, &COMMAND_LIMITS);
    printed.map(|text| text.trim().to_owned()).map_err(|error| CliError::failed(error.to_string()))
}

fn recall(store: &Store, input: &Value) -> Result<String, CliError> {
    let session = session(store, input)?;
    let query = recall_tool::query(input).map_err(|error| CliError::failed(error.to_string()))?;
    let thread = session_library::read(store, &session)?.thread;
    let log = RecallLog::snapshot(&thread, ANSWER_BYTES_MAX);
    let answer = recall_tool::answer(&log, &query, &|| false);
    answer.map_err(|error| CliError::failed(error.to_string()))
}

fn sessions_here(store: &Store) -> Result<String, CliError> {
    let cwd = serve::working_directory()?;
    let query = SessionQuery { cwd: Some(cwd.clone()), limit: Some(LISTED_MAX), ..SessionQuery::default() };
    let listed = session_library::list(store, &query)?.sessions;
    if listed.is_empty() {
        return Ok(format!("No session of {} is stored.", cwd.display()));
    }
    let line = |header: &crate::store::Header| {
        let title = short_title(header.title.as_deref());
        format!("{}  {title}, {} turns", header.session, header.turns)
    };
    Ok(listed.iter().map(line).collect::<Vec<_>>().join("\n"))
}
