//! `log_tool_usage`: appends one JSON line per tool call to a file of the workspace.
//!
//! A line contains the input but not the result: a log of results would duplicate the conversation.

use serde_json::{Value, json};

use super::HandlerError;
use super::{BuiltInHandler, HandlerParams, HandlerRun, files, params};
use crate::event::HookEvent;
use crate::hook_context::{EventData, HookContext};
use crate::output::HookOutput;
use epitome_tools::Workspace;

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "log_tool_usage",
    events: &[HookEvent::BeforeToolCall, HookEvent::AfterToolCall],
    params: &["path"],
    check: |params| path(params).map(|_| None),
    qualifies: |_| true,
    run: HandlerRun::Writing(PATH, perform),
};

/// Default path of the log.
const PATH: &str = "tool-usage.jsonl";

/// Maximum bytes of an input in a line; for a longer input only the length is logged.
const INPUT_BYTES_MAX: usize = 16 * 1024;

fn path(params: &HandlerParams) -> Result<&str, HandlerError> {
    Ok(params::text(params, "path")?.unwrap_or(PATH))
}

fn perform(
    params: &HandlerParams,
    hook_context: &HookContext,
    workspace: &Workspace,
) -> Result<HookOutput, HandlerError> {
    let mut line = line(hook_context)?.to_string();
    line.push('\n');
    files::append(path(params)?, line.as_bytes(), hook_context.base.mode, workspace)?;
    Ok(HookOutput::default())
}

fn line(hook_context: &HookContext) -> Result<Value, HandlerError> {
    let (call, result) = match &hook_context.what {
        EventData::BeforeToolCall(call) => (call, None),
        EventData::AfterToolCall { call, result } => (call, Some(result)),
        _ => return Err(HandlerError::new("there is no tool call")),
    };
    let mut line = json!({
        "timestamp": hook_context.base.at,
        "event": hook_context.what.event().name(),
        "session_id": hook_context.base.session,
        "recipe": hook_context.base.recipe,
        "tool_name": call.tool,
        "tool_call_id": call.id,
    });
    let input = Value::Object(call.input.clone());
    let length = input.to_string().len();
    match length <= INPUT_BYTES_MAX {
        true => line["tool_input"] = input,
        false => line["tool_input_bytes"] = length.into(),
    }
    if let Some(result) = result {
        line["success"] = result.success.into();
        line["blocked"] = result.blocked.into();
        line["duration_ms"] = result.milliseconds.into();
        line["output_bytes"] = result.text.len().into();
    }
    Ok(line)
}
