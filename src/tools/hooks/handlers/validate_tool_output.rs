//! `validate_tool_output`: a tool's result must match a schema; if it does not, either a note for the model
//! is added to the result, or the user is notified.
//!
//! Validates the result's metadata if it has any, otherwise the JSON in its text. A failed or blocked call is
//! ignored: its text is an error.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::HandlerError;
use super::json::{self, OnFail, Schema};
use super::{BuiltInHandler, HandlerRun, params};
use crate::event::HookEvent;
use crate::hook_context::{EventData, HookContext};
use crate::output::HookOutput;
use epitome_tools::Workspace;

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "validate_tool_output",
    events: &[HookEvent::AfterToolCall],
    params: &["schema", "on_fail", "tool_name"],
    check: |params| read(params).map(|_| None),
    qualifies: |_| true,
    run: HandlerRun::OnDisk(perform),
};

/// The tools are globs; `None` means all.
fn read(params: &super::HandlerParams) -> Result<(Schema, OnFail, Option<GlobSet>), HandlerError> {
    let tools = params::list(params, "tool_name")?.map(|globs| tools(&globs)).transpose()?;
    Ok((Schema::read(params)?, json::on_fail(params)?, tools))
}

fn tools(globs: &[&str]) -> Result<GlobSet, HandlerError> {
    let wrong = |error: globset::Error| {
        HandlerError::new(format!("\"tool_name\" has a glob that cannot be read: {error}"))
    };
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(GlobBuilder::new(glob).build().map_err(wrong)?);
    }
    set.build().map_err(wrong)
}

fn perform(
    params: &super::HandlerParams,
    hook_context: &HookContext,
    workspace: &Workspace,
) -> Result<HookOutput, HandlerError> {
    let (schema, on_fail, tools) = read(params)?;
    let EventData::AfterToolCall { call, result } = &hook_context.what else {
        return Err(HandlerError::new("there is no tool's result to check"));
    };
    let wanted = tools.is_none_or(|tools| tools.is_match(&call.tool));
    if !wanted || !result.success || result.blocked {
        return Ok(HookOutput::default());
    }
    let validator = schema.validator(workspace)?;
    let faults = match &result.metadata {
        Some(metadata) => json::faults_of(metadata, &validator),
        None => json::faults(&result.text, &validator),
    };
    if faults.is_empty() {
        return Ok(HookOutput::default());
    }
    let message = format!("The result of {} does not fit its schema: {}", call.tool, faults.join("; "));
    Ok(match on_fail {
        OnFail::Continue => HookOutput { context: vec![message], ..HookOutput::default() },
        OnFail::Notice => HookOutput { notice: Some(message), ..HookOutput::default() },
    })
}
