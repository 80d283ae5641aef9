//! `bash_kill`: ends a background command and its descendants.

use serde_json::Value;

use super::background::{self, WaitFor};
use super::schema::{self, InputKey};
use super::shell_run::END_TIME_MAX;
use super::{BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, input};
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

pub struct BashKill;

impl ParsedTool for BashKill {
    type Call = String;

    fn spec(&self) -> ToolSpec {
        schema::spec(
            "bash_kill",
            "Ends a background command of bash and everything it started, and returns its new output.",
            [InputKey::text("id", "The id that bash gave the command.").required()],
        )
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        background::display("End", ToolKind::Other, input)
    }

    // It accesses no files: it only ends a command that the user allowed to start.

    fn parse(&self, input: &Value, _: &Workspace) -> Result<String, ToolError> {
        input::named(input, "id")
    }

    fn run(&self, id: String, context: ToolContext) -> BoxFuture<ToolResult> {
        Box::pin(async move {
            match context.background.find(&id) {
                Ok(command) => {
                    command.kill();
                    command.wait(END_TIME_MAX, WaitFor::End).await;
                    command.result("it was asked to end")
                }
                Err(sentence) => ToolResult::failed(sentence),
            }
        })
    }
}
