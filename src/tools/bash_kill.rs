//! `bash_kill`: ends a background command and its descendants.

use std::time::Duration;

use serde_json::{Value, json};

use super::background::{Wanted, unknown};
use super::{Access, BoxFuture, Tool, ToolContext, ToolResult, Workspace, input};
use epitome_platform::group::KILL_GRACE;
use epitome_thread::{Card, ToolKind, ToolSpec};

/// Time to wait for the end after the KILL.
const GIVE_UP: Duration = Duration::from_secs(2);

pub struct BashKill;

impl Tool for BashKill {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "bash_kill".to_string(),
            description:
                "Ends a background command of bash and everything that it started, and returns what it \
                          printed since it was read last."
                    .to_string(),
            schema: json!({
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "The id that bash gave the command."}
                },
                "required": ["id"]
            }),
        }
    }

    fn card(&self, input: &Value, _: &Workspace) -> Card {
        let title = match input::optional_named(input, "id") {
            Ok(Some(id)) => format!("End the background command {id}"),
            Ok(None) | Err(_) => "End a background command".to_string(),
        };
        Card { title, kind: ToolKind::Other, locations: Vec::new() }
    }

    /// It only ends what the user allowed to start.
    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, String> {
        input::named(input, "id").map(|_| Access::Nothing)
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        Box::pin(async move {
            let id = match input::named(&input, "id") {
                Ok(id) => id,
                Err(sentence) => return ToolResult::failed(sentence),
            };
            let Some(command) = context.background.get(id.trim()) else {
                return ToolResult::failed(unknown(&context.background, id.trim()));
            };
            command.kill();
            command.wait(KILL_GRACE + GIVE_UP, Wanted::End).await;
            command.result("it was asked to end")
        })
    }
}
