//! Builds the input of a hook: the hook context as one JSON object. Pure.
//!
//! Always contains the union of the fields of kodelet's versions and of Epitome: scripts use the ones
//! that they know. Claude Code's hooks have their own payload.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::hook::PayloadMessages;
use super::hook_context::{EventData, HookCall, HookCallResult, HookContext, HookRound, PayloadBase};
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
    /// As requested in its manifest; `None` uses the event's default.
    pub messages: Option<PayloadMessages>,
    /// The file with the conversation, if one was written.
    pub transcript: Option<&'a Path>,
}

/// Builds the payload of a hook context: the common fields, then those of the event.
pub fn payload(hook_context: &HookContext, to: &Addressee<'_>) -> Value {
    let mut payload = PayloadFields(Map::new());
    base(&mut payload, hook_context, to);
    match &hook_context.what {
        EventData::SessionStart { source } => payload.put("source", *source),
        EventData::UserMessageSend { message, attachments } => {
            payload.put("message", message.as_str());
            payload.put("attachments", json!(attachments));
        }
        EventData::BeforeToolCall(call) => self::call(&mut payload, call),
        EventData::AfterToolCall { call, result } => {
            self::call(&mut payload, call);
            payload.put("tool_output", tool_output(call, result, &hook_context.base));
            payload.put("output_text", result.text.as_str());
            payload.put("duration_ms", result.milliseconds);
            payload.put("blocked", result.blocked);
        }
        EventData::PermissionRequest(call) => self::call(&mut payload, call),
        EventData::Notification { kind, message } => {
            payload.put("kind", *kind);
            payload.put("message", message.as_str());
        }
        EventData::SubagentStart { agent, id } => {
            payload.put("agent", agent.as_str());
            payload.put("agent_id", id.as_str());
        }
        EventData::TaskCompleted { number, subject } => {
            payload.put("number", *number);
            payload.put("subject", subject.as_str());
        }
        EventData::TurnFailed { kind, message } => {
            payload.put("kind", *kind);
            payload.put("message", message.as_str());
        }
        EventData::TurnEnd(round) => {
            // Rounds end often and conversations are long: messages are included only on request.
            payload.put_some("messages", requested_messages(hook_context, to));
            response(&mut payload, round);
            payload.put("session_turn_number", round.session_number);
            payload.put("tools_used", round.tools_used);
            usage(&mut payload, &hook_context.base);
            auto_compact(&mut payload, &hook_context.base);
        }
        EventData::AgentStop { round, stop_reason, continuations } => {
            let asked = to.messages.unwrap_or(PayloadMessages::Full);
            payload.put("messages", messages(&hook_context.base.view, asked));
            usage(&mut payload, &hook_context.base);
            auto_compact(&mut payload, &hook_context.base);
            response(&mut payload, round);
            payload.put("stop_reason", *stop_reason);
            payload.put("stop_hook_active", *continuations > 0);
            payload.put("continuations", *continuations);
        }
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
        } => {
            payload.put("trigger", trigger.name());
            payload.put("reason", *reason);
            payload.put("custom_instructions", custom_instructions.clone());
            usage(&mut payload, &hook_context.base);
            payload.put("pre_tokens", *tokens);
            payload.put("compact_count", *compact_count);
            payload.put("preserve_count", *preserve_count);
            payload.put("recipe", recipe.as_str());
            // Edits refer to entries, so hooks that make edits can request the messages.
            payload.put_some("messages", requested_messages(hook_context, to));
        }
        EventData::PostCompact { trigger, tokens_before, tokens_after, summary, uuid, fallback } => {
            payload.put("trigger", trigger.name());
            payload.put("pre_tokens", *tokens_before);
            payload.put("post_tokens", *tokens_after);
            payload.put("summary", summary.as_str());
            payload.put("uuid", uuid.as_str());
            payload.put("fallback", *fallback);
        }
        EventData::SessionEnd { reason } => payload.put("reason", *reason),
    }
    Value::Object(payload.0)
}

/// Formats a time for scripts: ISO 8601 in UTC.
pub fn timestamp(milliseconds: u64) -> String {
    let time = i64::try_from(milliseconds).ok().and_then(|time| jiff::Timestamp::from_millisecond(time).ok());
    time.unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// The result of a call, in kodelet's format.
pub fn tool_output(call: &HookCall, result: &HookCallResult, base: &PayloadBase) -> Value {
    let mut output = PayloadFields(Map::new());
    output.put("toolName", call.tool.as_str());
    output.put("success", result.success);
    output.put_some("error", result.error.as_deref());
    output.put_some("metadataType", result.metadata_type.as_deref());
    output.put_some("metadata", result.metadata.clone());
    output.put("timestamp", timestamp(base.at));
    Value::Object(output.0)
}

/// A JSON object under construction.
struct PayloadFields(Map<String, Value>);

impl PayloadFields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    fn put_some(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }
}

fn base(payload: &mut PayloadFields, hook_context: &HookContext, to: &Addressee<'_>) {
    let base = &hook_context.base;
    let event = hook_context.what.event();
    payload.put("event", to.event_name);
    payload.put("canonical_event", event.name());
    payload.put("conv_id", base.session.as_str());
    payload.put("session_id", base.session.as_str());
    payload.put("cwd", base.cwd.to_string_lossy().into_owned());
    payload.put("invoked_by", base.invoked_by.name());
    payload.put_some("recipe_name", Some(base.recipe.as_str()).filter(|recipe| !recipe.is_empty()));
    payload.put("invoked_recipe", base.recipe.as_str());
    if base.callback_depth > 0 {
        payload.put("callback_args", json!(base.callback_args));
    }
    payload.put("callback_depth", base.callback_depth);
    payload.put("protocol", PROTOCOL);
    payload.put("hook_name", to.name);
    payload.put("timestamp", timestamp(base.at));
    if let Some(model) = &base.model {
        let (provider, name) = model.split().unwrap_or(("", &model.0));
        payload.put_some("provider", Some(provider).filter(|provider| !provider.is_empty()));
        payload.put("model", name);
    }
    payload.put_some("transcript_path", to.transcript.map(|path| path.to_string_lossy().into_owned()));
    payload.put("revision", base.revision.0);
    if let EventData::TurnEnd(_) | EventData::AgentStop { .. } | EventData::PreCompact { .. } =
        hook_context.what
    {
        let pinned: Vec<String> = base.context.pinned.iter().map(ToString::to_string).collect();
        let context = json!({
            "used": base.usage.used,
            "size": base.usage.size.max(1),
            "entries": base.context.entries,
            "since_compaction": base.context.since_compaction,
            "compaction_count": base.context.compactions,
            "pinned": pinned,
        });
        payload.put("context", context);
    }
}

/// The messages, if the manifest requests them.
fn requested_messages(hook_context: &HookContext, to: &Addressee<'_>) -> Option<Vec<Value>> {
    let requested = to.messages.filter(|requested| *requested != PayloadMessages::None);
    requested.map(|requested| messages(&hook_context.base.view, requested))
}

fn call(payload: &mut PayloadFields, call: &HookCall) {
    payload.put("tool_name", call.tool.as_str());
    payload.put("tool_input", call.input.clone());
    payload.put("tool_user_id", call.id.as_str());
    payload.put("tool_call_id", call.id.as_str());
    payload.put("tool_kind", serde_json::to_value(call.kind).unwrap_or_default());
}

fn response(payload: &mut PayloadFields, round: &HookRound) {
    payload.put("response", round.response.as_str());
    payload.put("last_assistant_content", round.response.as_str());
    payload.put("turn_number", round.number);
}

fn usage(payload: &mut PayloadFields, base: &PayloadBase) {
    let facts = &base.usage;
    let mut usage = PayloadFields(Map::new());
    usage.put("input_tokens", facts.input);
    usage.put("output_tokens", facts.output);
    usage.put("current_context_window", facts.used);
    // Scripts divide by it.
    usage.put("max_context_window", facts.size.max(1));
    usage.put("cache_read_tokens", facts.cache_read);
    usage.put("cache_write_tokens", facts.cache_write);
    usage.put_some("cost_usd", facts.cost);
    payload.put("usage", usage.0);
}

fn auto_compact(payload: &mut PayloadFields, base: &PayloadBase) {
    payload.put("auto_compact_enabled", base.auto_compact.is_some());
    payload.put_some("auto_compact_threshold", base.auto_compact);
}
