//! `bash_kill`: ends a background command and its descendants.

use std::time::Duration;

use serde_json::Value;

use super::background::WaitFor;
use super::schema::{self, Key};
use super::{BoxFuture, ParsedTool, ToolContext, ToolResult, Workspace, input};
use epitome_platform::group::KILL_GRACE;
use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

/// How long to wait for the end after SIGKILL.
const GIVE_UP: Duration = Duration::from_secs(2);

pub struct BashKill;

impl ParsedTool for BashKill {
    type Call = String;

    fn spec(&self) -> ToolSpec {
        schema::spec(
            "bash_kill",
            "Ends a background command of bash and everything it started, and returns its new output.",
            [Key::text("id", "The id that bash gave the command.").required()],
        )
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let kind = ToolKind::Other;
        let title = match input::optional_named(input, "id") {
            Ok(Some(id)) => format!("End the background command {}", name_in_title(kind, &id)),
            Ok(None) | Err(_) => "End a background command".to_string(),
        };
        CallDisplay { title, kind, locations: Vec::new() }
    }

    // It accesses no files: it only ends a command that the user allowed to start.

    fn parse(&self, input: &Value, _: &Workspace) -> Result<String, String> {
        input::named(input, "id")
    }

    fn run(&self, id: String, context: ToolContext) -> BoxFuture<ToolResult> {
        Box::pin(async move {
            match context.background.find(&id) {
                Ok(command) => {
                    command.kill();
                    command.wait(KILL_GRACE + GIVE_UP, WaitFor::End).await;
                    command.result("it was asked to end")
                }
                Err(sentence) => ToolResult::failed(sentence),
            }
        })
    }
}
