//! The stdin payload of Claude Code's hooks: a hook context under Claude Code's names. Pure.

use std::path::Path;

use serde_json::{Value, json};

use super::tools::{response, to_claude_input, tool_name};
use crate::hook_context::{EventData, HookCall, HookCallResult, HookContext, InvokedBy};
use crate::payload::{joined, without_nulls};
use epitome_thread::Mode;

/// Builds the payload of a hook context. `transcript` is the file with the conversation as JSON lines.
pub fn payload(hook_context: &HookContext, transcript: &Path) -> Value {
    let base = &hook_context.base;
    let event = event_name(hook_context).unwrap_or_else(|| hook_context.what.event().name());
    let transcript = transcript.to_string_lossy();
    let agent = agent_type(hook_context);
    // CHANGELOG 2.0.42. The file has this agent's conversation.
    let is_stop = matches!(hook_context.what, EventData::AgentStop { .. });
    let payload = without_nulls(json!({
        "session_id": base.session,
        "transcript_path": transcript,
        "cwd": base.cwd.to_string_lossy(),
        "permission_mode": permission_mode(base.mode),
        "hook_event_name": event,
        "agent_id": agent.map(|_| &base.session),
        "agent_type": agent,
        "agent_transcript_path": agent.filter(|_| is_stop).map(|_| &transcript),
    }));
    joined(payload, event_fields(hook_context))
}

/// The fields specific to an event.
fn event_fields(hook_context: &HookContext) -> Value {
    let base = &hook_context.base;
    match &hook_context.what {
        EventData::SessionStart { source } => without_nulls(json!({
            "source": start_source(source),
            "model": base.model.as_ref().map(|model| &model.0),
        })),
        EventData::UserMessageSend { message, .. } => json!({"prompt": message}),
        EventData::BeforeToolCall(call) => {
            joined(tool_fields(call, &base.cwd), json!({ "tool_use_id": call.id }))
        }
        EventData::AfterToolCall { call, result } => {
            let outcome = match result.success {
                true => json!({ "tool_response": response(call, result, &base.cwd) }),
                false => json!({ "error": failure(result), "is_interrupt": false }),
            };
            let run = json!({ "tool_use_id": call.id, "duration_ms": result.milliseconds });
            joined(joined(tool_fields(call, &base.cwd), run), outcome)
        }
        EventData::PermissionRequest(call) => {
            joined(tool_fields(call, &base.cwd), json!({ "permission_suggestions": [] }))
        }
        EventData::Notification { kind, message } => {
            json!({"message": message, "notification_type": kind})
        }
        EventData::SubagentStart { agent, id } => json!({"agent_id": id, "agent_type": agent}),
        EventData::TaskCompleted { number, subject } => {
            json!({"task_id": number.to_string(), "task_subject": subject, "task_description": subject})
        }
        EventData::TurnFailed { kind, message } => json!({"error": kind, "error_details": message}),
        EventData::TurnEnd(round) => json!({"last_assistant_message": round.response}),
        EventData::AgentStop { round, continuations, .. } => json!({
            "stop_hook_active": *continuations > 0,
            "last_assistant_message": round.response,
        }),
        EventData::PreCompact { trigger, custom_instructions, .. } => json!({
            "trigger": trigger.id(),
            "custom_instructions": custom_instructions,
        }),
        EventData::PostCompact { trigger, summary, .. } => json!({
            "trigger": trigger.id(),
            "compact_summary": summary,
        }),
        EventData::SessionEnd { reason } => json!({"reason": end_reason(reason)}),
    }
}

fn tool_fields(call: &HookCall, cwd: &Path) -> Value {
    json!({
        "tool_name": tool_name(&call.tool),
        "tool_input": to_claude_input(call, cwd),
    })
}

fn failure(result: &HookCallResult) -> &str {
    result.error.as_deref().filter(|error| !error.is_empty()).unwrap_or(&result.text)
}

/// Claude Code's name of the event; `None` if it has no such event. That includes the result of a call that a
/// hook blocked.
pub fn event_name(hook_context: &HookContext) -> Option<&'static str> {
    match &hook_context.what {
        EventData::SessionStart { .. } => Some("SessionStart"),
        EventData::UserMessageSend { .. } => Some("UserPromptSubmit"),
        EventData::BeforeToolCall(_) => Some("PreToolUse"),
        EventData::AfterToolCall { result, .. } if result.blocked => None,
        EventData::AfterToolCall { result, .. } if result.success => Some("PostToolUse"),
        EventData::AfterToolCall { .. } => Some("PostToolUseFailure"),
        EventData::PermissionRequest(_) => Some("PermissionRequest"),
        EventData::Notification { .. } => Some("Notification"),
        EventData::SubagentStart { .. } => Some("SubagentStart"),
        EventData::TaskCompleted { .. } => Some("TaskCompleted"),
        EventData::TurnFailed { .. } => Some("StopFailure"),
        EventData::TurnEnd(_) => None,
        EventData::AgentStop { .. } => match hook_context.base.invoked_by {
            InvokedBy::Main => Some("Stop"),
            InvokedBy::Subagent => Some("SubagentStop"),
        },
        EventData::PreCompact { .. } => Some("PreCompact"),
        EventData::PostCompact { .. } => Some("PostCompact"),
        EventData::SessionEnd { .. } => Some("SessionEnd"),
    }
}

/// The type of a subagent, which is the recipe that it runs; `None` in the main conversation.
pub fn agent_type(hook_context: &HookContext) -> Option<&str> {
    match hook_context.base.invoked_by {
        InvokedBy::Main => None,
        InvokedBy::Subagent if hook_context.base.recipe.is_empty() => Some("general-purpose"),
        InvokedBy::Subagent => Some(&hook_context.base.recipe),
    }
}

fn permission_mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Ask => "default",
        Mode::AcceptEdits => "acceptEdits",
        // In Claude Code's own "auto", a model approves calls; hooks that know four modes need the stricter one.
        Mode::Auto => "acceptEdits",
        Mode::ReadOnly => "plan",
        Mode::Full => "bypassPermissions",
    }
}

/// Maps the source of a session's start to Claude Code's: `startup`, `resume`, `clear`, `compact` or `fork`.
pub fn start_source(source: &str) -> &str {
    if source == "load" { "resume" } else { source }
}

/// Maps the reason of a session's end to Claude Code's; any other is `other`.
pub fn end_reason(reason: &str) -> &str {
    match reason {
        "clear" | "resume" | "logout" | "prompt_input_exit" => reason,
        _ => "other",
    }
}
