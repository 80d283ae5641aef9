//! `bash_output`: reads a background command's output since the last read, optionally waiting for more.

use std::time::Duration;

use regex::RegexBuilder;
use serde_json::Value;

use super::background::{self, WaitFor};
use super::schema::{self, InputKey};
use super::{BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, input};
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

/// Maximum wait in seconds: the user waits for the result.
const WAIT_SECONDS_MAX: u64 = 300;

/// Maximum size of a compiled pattern in bytes; real ones are far smaller.
const PATTERN_BYTES_MAX: usize = 1 << 20;

pub struct BashOutput;

pub struct BashOutputCall {
    id: String,
    wait: Duration,
    wait_for: WaitFor,
}

impl ParsedTool for BashOutput {
    type Call = BashOutputCall;

    fn spec(&self) -> ToolSpec {
        let wait = format!("Seconds to wait at most: 0 if left out, at most {WAIT_SECONDS_MAX}.");
        let until = "A regular expression; waits until a line matches it, such as \"listening on\".";
        schema::spec(
            "bash_output",
            "Reads the new output of a background command of bash, and whether it still runs. With `wait` it first \
             waits for new output or the command's end, with `until` for a matching line. You are notified when a \
             background command ends; don't poll.",
            [
                InputKey::text("id", "The id that bash gave the command.").required(),
                InputKey::number("wait", &wait),
                InputKey::text("until", until),
            ],
        )
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        background::display("Output of", ToolKind::Read, input)
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<BashOutputCall, ToolError> {
        let id = input::named(input, "id")?;
        let seconds = input::whole(input, "wait")?.unwrap_or(0).min(WAIT_SECONDS_MAX);
        let wait_for = match input::optional_named(input, "until")? {
            None => WaitFor::News,
            Some(pattern) => {
                let pattern = RegexBuilder::new(&pattern).size_limit(PATTERN_BYTES_MAX).build();
                WaitFor::Line(pattern.map_err(|error| {
                    ToolError::caused(format!("`until` is not a regular expression: {error}"), error)
                })?)
            }
        };
        Ok(BashOutputCall { id, wait: Duration::from_secs(seconds), wait_for })
    }

    fn run(&self, call: BashOutputCall, context: ToolContext) -> BoxFuture<ToolResult> {
        Box::pin(async move {
            match context.background.find(&call.id) {
                Ok(command) => {
                    command.wait(call.wait, call.wait_for).await;
                    command.result("this is its new output")
                }
                Err(sentence) => ToolResult::failed(sentence),
            }
        })
    }
}
