//! Builds the input of a hook: the hook context as one JSON object. Pure.
//!
//! Always contains the union of the fields of kodelet's versions and of Epitome: scripts use the ones
//! that they know. Claude Code's hooks have their own payload.

use std::path::Path;

use serde_json::{Value, json};

use super::hook::PayloadMessages;
use super::hook_context::{EventData, HookCall, HookCallResult, HookContext, PayloadBase};
use super::messages::messages;

/// The version of payloads and results.
pub const PROTOCOL: u32 = 2;

/// The recipient of a payload.
#[derive(Clone, Copy, Debug)]
pub struct Addressee<'a> {
    /// The hook's name.
    pub name: &'a str,
    /// The event name under which the hook registered.
    pub event_name: &'a str,
    /// The messages that its manifest requests; `None` uses the event's default.
    pub messages: Option<PayloadMessages>,
    /// The file with the conversation, if one was written.
    pub transcript: Option<&'a Path>,
}

/// Builds the payload of a hook context: the common fields, then those of the event.
pub fn payload(hook_context: &HookContext, to: &Addressee<'_>) -> Value {
    let base = &hook_context.base;
    let mut payload = common_fields(hook_context, to);
    let asked = match hook_context.what {
        EventData::AgentStop { .. } => Some(to.messages.unwrap_or(PayloadMessages::Full)),
        // Rounds end often and conversations are long: messages are included only on request. Edits of a compaction's
        // hook refer to them.
        EventData::TurnEnd(_) | EventData::PreCompact { .. } => {
            to.messages.filter(|asked| *asked != PayloadMessages::None)
        }
        EventData::SessionStart { .. }
        | EventData::UserMessageSend { .. }
        | EventData::BeforeToolCall(_)
        | EventData::AfterToolCall { .. }
        | EventData::PermissionRequest(_)
        | EventData::Notification { .. }
        | EventData::SubagentStart { .. }
        | EventData::TaskCompleted { .. }
        | EventData::PostCompact { .. }
        | EventData::SessionEnd { .. }
        | EventData::TurnFailed { .. } => None,
    };
    if let Some(asked) = asked {
        payload["messages"] = messages(&base.view, asked).into();
    }
    joined(payload, event_fields(&hook_context.what, base))
}

fn event_fields(what: &EventData, base: &PayloadBase) -> Value {
    match what {
        EventData::SessionStart { source } => json!({ "source": source }),
        EventData::UserMessageSend { message, attachments } => {
            json!({ "message": message, "attachments": attachments })
        }
        EventData::BeforeToolCall(call) | EventData::PermissionRequest(call) => call_fields(call),
        EventData::AfterToolCall { call, result } => {
            let outcome = json!({
                "tool_output": tool_output(call, result, base),
                "output_text": result.text,
                "duration_ms": result.milliseconds,
                "blocked": result.blocked,
            });
            joined(call_fields(call), outcome)
        }
        EventData::Notification { kind, message } | EventData::TurnFailed { kind, message } => {
            json!({ "kind": kind, "message": message })
        }
        EventData::SubagentStart { agent, id } => json!({ "agent": agent, "agent_id": id }),
        EventData::TaskCompleted { number, subject } => json!({ "number": number, "subject": subject }),
        EventData::TurnEnd(round) => without_nulls(json!({
            "response": round.response,
            "last_assistant_content": round.response,
            "turn_number": round.number,
            "session_turn_number": round.session_number,
            "tools_used": round.tools_used,
            "usage": usage(base),
            "auto_compact_enabled": base.auto_compact.is_some(),
            "auto_compact_threshold": base.auto_compact,
        })),
        EventData::AgentStop { round, stop_reason, continuations } => without_nulls(json!({
            "usage": usage(base),
            "auto_compact_enabled": base.auto_compact.is_some(),
            "auto_compact_threshold": base.auto_compact,
            "response": round.response,
            "last_assistant_content": round.response,
            "turn_number": round.number,
            "stop_reason": stop_reason,
            "stop_hook_active": *continuations > 0,
            "continuations": continuations,
        })),
        EventData::PreCompact {
            trigger,
            reason,
            custom_instructions,
            context: _,
            tokens,
            compact_count,
            preserve_count,
            recipe,
            must: _,
        } => json!({
            "trigger": trigger.id(),
            "reason": reason,
            "custom_instructions": custom_instructions,
            "usage": usage(base),
            "pre_tokens": tokens,
            "compact_count": compact_count,
            "preserve_count": preserve_count,
            "recipe": recipe,
        }),
        EventData::PostCompact { trigger, tokens_before, tokens_after, summary, uuid, fallback } => json!({
            "trigger": trigger.id(),
            "pre_tokens": tokens_before,
            "post_tokens": tokens_after,
            "summary": summary,
            "uuid": uuid,
            "fallback": fallback,
        }),
        EventData::SessionEnd { reason } => json!({ "reason": reason }),
    }
}

/// Formats a time for scripts: ISO 8601 in UTC.
pub fn timestamp(milliseconds: u64) -> String {
    let time = i64::try_from(milliseconds).ok().and_then(|time| jiff::Timestamp::from_millisecond(time).ok());
    time.unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// The result of a call, in kodelet's format.
pub fn tool_output(call: &HookCall, result: &HookCallResult, base: &PayloadBase) -> Value {
    without_nulls(json!({
        "toolName": call.tool,
        "success": result.success,
        "error": result.error,
        "metadataType": result.metadata_type,
        "metadata": result.metadata,
        "timestamp": timestamp(base.at),
    }))
}

fn common_fields(hook_context: &HookContext, to: &Addressee<'_>) -> Value {
    let HookContext { base, what } = hook_context;
    let model = base.model.as_ref().map(|model| model.split().unwrap_or(("", &model.0)));
    let has_context =
        matches!(what, EventData::TurnEnd(_) | EventData::AgentStop { .. } | EventData::PreCompact { .. });
    let context = || {
        json!({
            "used": base.usage.used,
            "size": base.usage.size.max(1),
            "entries": base.context.entries,
            "since_compaction": base.context.since_compaction,
            "compaction_count": base.context.compactions,
            "pinned": base.context.pinned.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    };
    without_nulls(json!({
        "event": to.event_name,
        "canonical_event": what.event().name(),
        "conv_id": base.session,
        "session_id": base.session,
        "cwd": base.cwd.to_string_lossy(),
        "invoked_by": base.invoked_by.id(),
        "recipe_name": Some(&base.recipe).filter(|recipe| !recipe.is_empty()),
        "invoked_recipe": base.recipe,
        "callback_args": (base.callback_depth > 0 || !base.callback_args.is_empty()).then_some(&base.callback_args),
        "callback_depth": base.callback_depth,
        "protocol": PROTOCOL,
        "hook_name": to.name,
        "timestamp": timestamp(base.at),
        "provider": model.map(|(provider, _)| provider).filter(|provider| !provider.is_empty()),
        "model": model.map(|(_, name)| name),
        "transcript_path": to.transcript.map(|path| path.to_string_lossy()),
        "revision": base.revision.0,
        "context": has_context.then(context),
    }))
}

fn call_fields(call: &HookCall) -> Value {
    json!({
        "tool_name": call.tool,
        "tool_input": call.input,
        "tool_user_id": call.id,
        "tool_call_id": call.id,
        "tool_kind": call.kind,
    })
}

fn usage(base: &PayloadBase) -> Value {
    let facts = &base.usage;
    without_nulls(json!({
        "input_tokens": facts.input,
        "output_tokens": facts.output,
        "current_context_window": facts.used,
        // Scripts divide by it.
        "max_context_window": facts.size.max(1),
        "cache_read_tokens": facts.cache_read,
        "cache_write_tokens": facts.cache_write,
        "cost_usd": facts.cost,
    }))
}

/// An object without its fields that are `null`.
pub(crate) fn without_nulls(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// The fields of two objects.
pub(crate) fn joined(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}
