//! The one place that knows every spelling of a hook's result, and makes of them one [`HookOutput`].
//!
//! Scripts were written against several documents: `result` or `action`, messages as strings or as
//! objects, follow-ups under two names. A field of a wrong type voids that field alone, with a warning.
//! `null` is absent. Fields that nobody knows are ignored; so are those that mean nothing at the moment,
//! with a warning where they say something. Claude Code's results are not read here.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::fields::Fields;
use super::output::{
    Action, Callback, HookOutput, PermissionDecision, RequestedEdit, RequestedEdits, ResultChange, Utterance,
};
use crate::thread::{Part, Role, Seq};

/// Fields of the results of turn_end and agent_stop.
const OF_A_ROUND: &[&str] = &[
    "result",
    "action",
    "messages",
    "follow_up_messages",
    "replace_messages",
    "callback",
    "callback_args",
    "target_conversation_id",
    "continue",
    "preserve_recent",
    "context_edits",
    "revision",
    "async",
    "notice",
];

/// Fields that are Claude Code's alone; here they only tell that a line is a result.
const OF_CLAUDE: &[&str] = &["hookSpecificOutput", "stopReason", "suppressOutput", "systemMessage"];

/// The fields that mean something at a moment.
fn meant(event: HookEvent) -> &'static [&'static str] {
    match event {
        HookEvent::UserMessageSend => &["blocked", "reason", "message", "context", "notice"],
        HookEvent::BeforeToolCall => &["blocked", "reason", "input", "decision", "notice"],
        HookEvent::AfterToolCall => &["output", "output_text", "context", "notice"],
        HookEvent::TurnEnd | HookEvent::AgentStop => OF_A_ROUND,
        HookEvent::PreCompact => &[
            "blocked",
            "reason",
            "custom_instructions",
            "context",
            "summary",
            "context_edits",
            "revision",
            "notice",
        ],
        HookEvent::SessionStart => &["context", "notice"],
        HookEvent::PostCompact | HookEvent::SessionEnd => &["notice"],
    }
}

/// Whether a field is one that results have, at any moment.
pub fn is_known(field: &str) -> bool {
    OF_CLAUDE.contains(&field) || HookEvent::ALL.iter().any(|event| meant(*event).contains(&field))
}

/// Reads a result for the moment that it was printed at.
pub fn normalise(event: HookEvent, object: &Map<String, Value>) -> HookOutput {
    let mut fields = Fields::default();
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        if meant(event).contains(&name.as_str()) {
            fields.put(name, value);
        } else if is_known(name) && says_something(value) {
            fields.warn(format!("`{name}` has no meaning in {event}; it was ignored"));
        }
    }
    let mut output = HookOutput { notice: fields.text("notice"), ..HookOutput::default() };
    match event {
        HookEvent::UserMessageSend => {
            block(&mut fields, &mut output);
            output.message = fields.text("message");
            output.context = fields.texts("context");
        }
        HookEvent::BeforeToolCall => {
            let reason = block(&mut fields, &mut output);
            output.decision = decision(&mut fields);
            output.decision_reason = output.decision.and(reason);
            output.input = fields.object("input").cloned();
        }
        HookEvent::AfterToolCall => {
            output.output = result_change(&mut fields);
            output.output_text = fields.exact_text("output_text");
            output.context = fields.texts("context");
        }
        HookEvent::TurnEnd | HookEvent::AgentStop => round(&mut fields, &mut output),
        HookEvent::PreCompact => {
            block(&mut fields, &mut output);
            output.custom_instructions = fields.text("custom_instructions");
            output.context = fields.texts("context");
            output.summary = fields.text("summary");
            output.edits = edits(&mut fields);
        }
        HookEvent::SessionStart => output.context = fields.texts("context"),
        HookEvent::PostCompact | HookEvent::SessionEnd => {}
    }
    output.warnings = fields.into_warnings();
    output
}

/// `false`, zero and empty things are what a script prints that fills in every field.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
    }
}

/// Reads `blocked` and `reason`, and gives the reason back.
fn block(fields: &mut Fields<'_>, output: &mut HookOutput) -> Option<String> {
    let reason = fields.text("reason");
    if fields.flag("blocked") {
        output.block = Some(reason.clone());
    }
    reason
}

fn decision(fields: &mut Fields<'_>) -> Option<PermissionDecision> {
    let word = fields.text("decision")?;
    match word.to_ascii_lowercase().as_str() {
        "allow" => Some(PermissionDecision::Allow),
        "ask" => Some(PermissionDecision::Ask),
        // What Claude Code's older hooks say for it. A guard must not open the gate by its accent.
        "deny" | "block" => Some(PermissionDecision::Deny),
        _ => {
            fields.warn_value("decision", &word, "allow, deny or ask");
            None
        }
    }
}

fn result_change(fields: &mut Fields<'_>) -> Option<ResultChange> {
    let object = fields.object("output")?;
    let mut inner = Fields::within("output");
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        inner.put(name, value);
    }
    let metadata_type = inner.text("metadataType").or_else(|| inner.text("metadata_type"));
    let change = ResultChange {
        success: inner.optional_flag("success"),
        error: inner.exact_text("error"),
        metadata_type,
        metadata: inner.any("metadata").cloned(),
    };
    fields.take_warnings(inner);
    Some(change)
}

/// What `result`, or else `action`, asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Neither is given.
    Unsaid,
    /// A word that nobody knows.
    Unknown,
    Continue,
    Mutate,
    Callback,
    Compact,
    Summary,
}

fn asked(fields: &mut Fields<'_>) -> Asked {
    let result = fields.text("result").map(|word| match word.as_str() {
        "continue" => Asked::Continue,
        "mutate" => Asked::Mutate,
        "callback" => Asked::Callback,
        _ => {
            fields.warn_value("result", &word, "continue, mutate or callback");
            Asked::Unknown
        }
    });
    let action = fields.text("action").map(|word| match word.as_str() {
        "continue" => Asked::Continue,
        "replace" => Asked::Mutate,
        "compact" => Asked::Compact,
        "summary" => Asked::Summary,
        _ => {
            fields.warn_value("action", &word, "compact, summary, continue or replace");
            Asked::Unknown
        }
    });
    match (result, action) {
        (None, action) => action.unwrap_or(Asked::Unsaid),
        (Some(result), None) => result,
        // The action names the recipe that the result leaves open.
        (Some(Asked::Callback), Some(action @ (Asked::Compact | Asked::Summary)))
            if fields.any("callback").is_none() =>
        {
            action
        }
        (Some(result), Some(action)) => {
            let callback = matches!(result, Asked::Callback)
                && matches!(action, Asked::Compact | Asked::Summary | Asked::Callback);
            if result != action && !callback {
                fields.warn("`result` and `action` differ; `action` was ignored".to_owned());
            }
            result
        }
    }
}

fn round(fields: &mut Fields<'_>, output: &mut HookOutput) {
    let asked = asked(fields);
    output.go_on = fields.flag("continue");
    output.edits = edits(fields);
    let follow_ups = follow_ups(fields, "follow_up_messages");
    match asked {
        Asked::Unsaid if fields.any("replace_messages").is_some() => {
            output.action = mutation(fields, ["replace_messages", "messages"]);
            output.follow_ups = follow_ups;
        }
        Asked::Unsaid => {
            for (field, hint) in [
                ("messages", "`result` must say `continue` or `mutate`"),
                ("callback", "`result` must say `callback`"),
            ] {
                if fields.any(field).is_some_and(says_something) {
                    fields.warn(format!("`{field}` alone asks for nothing: {hint}"));
                }
            }
            output.follow_ups = follow_ups;
        }
        Asked::Unknown => {
            if !follow_ups.is_empty() {
                fields.warn("`follow_up_messages` were ignored with it".to_owned());
            }
        }
        Asked::Continue => {
            output.follow_ups = self::follow_ups(fields, "messages");
            output.follow_ups.extend(follow_ups);
            if output.follow_ups.is_empty() {
                fields.warn("it asks to continue and gives no message; nothing was done".to_owned());
            }
        }
        Asked::Mutate => {
            // `replace` came with `replace_messages`, `mutate` with `messages`.
            let order = match fields.any("result") {
                Some(_) => ["messages", "replace_messages"],
                None => ["replace_messages", "messages"],
            };
            output.action = mutation(fields, order);
            output.follow_ups = follow_ups;
        }
        Asked::Callback => {
            match fields.text("callback") {
                Some(name) => output.action = Action::Callback(callback(fields, name)),
                None => fields.warn("it asks for a callback and names none; nothing was done".to_owned()),
            }
            output.follow_ups = follow_ups;
        }
        Asked::Compact => {
            output.action = Action::Callback(callback(fields, "compact".to_owned()));
            output.follow_ups = follow_ups;
        }
        Asked::Summary => {
            let callback = callback(fields, "summary".to_owned());
            output.action = Action::Callback(Callback { text_only: true, ..callback });
            output.follow_ups = follow_ups;
        }
    }
    let mut seen: Vec<Utterance> = Vec::new();
    output.follow_ups.retain(|follow_up| {
        let new = !seen.contains(follow_up);
        if new {
            seen.push(follow_up.clone());
        }
        new
    });
}

/// A callback with its arguments. They keep a target: the recipe's own hooks read it there.
fn callback(fields: &mut Fields<'_>, name: String) -> Callback {
    let mut args = BTreeMap::new();
    if let Some(object) = fields.object("callback_args") {
        for (key, value) in object {
            match value {
                Value::Null => {}
                Value::String(text) => {
                    args.insert(key.clone(), text.clone());
                }
                Value::Bool(_) | Value::Number(_) => {
                    args.insert(key.clone(), value.to_string());
                }
                Value::Array(_) | Value::Object(_) => {
                    fields.warn_type(&format!("callback_args.{key}"), "text, a number or a boolean", value);
                }
            }
        }
    }
    let target = fields
        .text("target_conversation_id")
        .or_else(|| args.get("target_conversation_id").filter(|id| !id.trim().is_empty()).cloned());
    Callback { name, args, target, asynchronous: fields.flag("async"), text_only: false }
}

/// A mutation by the first of two fields that is given. One unreadable message voids it: a history that
/// lacks a message is not the one that the hook meant. Without a message nothing is done.
fn mutation(fields: &mut Fields<'_>, [first, second]: [&'static str; 2]) -> Action {
    let field = if fields.any(first).is_some() { first } else { second };
    let preserve_recent = fields.count("preserve_recent").unwrap_or(0);
    let target = fields.text("target_conversation_id").or_else(|| {
        let args = fields.object("callback_args")?;
        args.get("target_conversation_id")?.as_str().filter(|id| !id.trim().is_empty()).map(str::to_owned)
    });
    let mut messages = Vec::new();
    for item in fields.list(field) {
        match utterance(item) {
            Ok(message) => messages.push(message),
            Err(why) => {
                fields.warn(format!("an item of `{field}` {why}; the history stays as it is"));
                return Action::None;
            }
        }
    }
    if messages.is_empty() {
        fields.warn("it gives no message to put in the history's place; the history stays".to_owned());
        return Action::None;
    }
    Action::Mutate { messages, preserve_recent, target }
}

/// Follow-ups are what a user says next. Unreadable and blank ones are left out.
fn follow_ups(fields: &mut Fields<'_>, field: &'static str) -> Vec<Utterance> {
    let mut found = Vec::new();
    for item in fields.list(field) {
        match utterance(item) {
            Ok(message) if message.text.trim().is_empty() => {
                fields.warn(format!("a blank item of `{field}` was left out"));
            }
            Ok(message) => {
                if message.role == Role::Assistant {
                    fields.warn(format!("an item of `{field}` with role assistant is sent as the user's"));
                }
                let role = if message.role == Role::System { Role::System } else { Role::User };
                found.push(Utterance { role, text: message.text });
            }
            Err(why) => fields.warn(format!("an item of `{field}` {why}; it was left out")),
        }
    }
    found
}

/// A message: a string (the user's), or an object with `role` and `content`.
fn utterance(value: &Value) -> Result<Utterance, String> {
    match value {
        Value::String(text) => Ok(Utterance { role: Role::User, text: text.clone() }),
        Value::Object(object) => {
            let role = match object.get("role") {
                None | Some(Value::Null) => Role::User,
                Some(Value::String(word)) => match word.to_ascii_lowercase().as_str() {
                    "user" => Role::User,
                    "assistant" => Role::Assistant,
                    "system" => Role::System,
                    other => return Err(format!("has the role {:?}", super::read::shown(other))),
                },
                Some(_) => return Err("has a role that is not text".to_owned()),
            };
            let content = object.get("content").ok_or("has no content")?;
            Ok(Utterance { role, text: content_text(content).ok_or("has content that is not text")? })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            Err("is neither text nor an object".to_owned())
        }
    }
}

/// Content as text: a string, or a list of strings and text blocks, joined by a blank line.
fn content_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts: Option<Vec<&str>> = blocks.iter().map(super::fields::block_text).collect();
            texts.map(|texts| texts.join("\n\n"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// All edits, or none where one cannot be read.
fn edits(fields: &mut Fields<'_>) -> Option<RequestedEdits> {
    let revision = fields.any("revision").and_then(|value| {
        let number = value.as_u64().or_else(|| value.as_str()?.trim_start_matches('e').parse().ok());
        if number.is_none() {
            fields.warn_type("revision", "a number", value);
        }
        number.map(Seq)
    });
    let items = fields.list("context_edits");
    let mut edits = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        match edit(item) {
            Ok(edit) => edits.push(edit),
            Err(why) => {
                fields.warn(format!("`context_edits[{at}]` {why}; none of the edits was made"));
                return None;
            }
        }
    }
    (!edits.is_empty()).then_some(RequestedEdits { revision, edits })
}

fn edit(value: &Value) -> Result<RequestedEdit, String> {
    let object = value.as_object().ok_or("is not an object")?;
    let op = object.get("op").and_then(Value::as_str).ok_or("has no `op`")?;
    let entry = || {
        let id = object.get("entry").and_then(Value::as_str).ok_or("has no `entry`")?;
        id.parse::<Part>().map_err(|()| format!("has the entry {:?}, which is no id", super::read::shown(id)))
    };
    let content = || {
        let text = object.get("content").and_then(content_text).ok_or("has no `content` that is text")?;
        if text.trim().is_empty() { Err("has blank `content`".to_owned()) } else { Ok(text) }
    };
    match op {
        "pin" => Ok(RequestedEdit::Pin(entry()?)),
        "unpin" => Ok(RequestedEdit::Unpin(entry()?)),
        "mask" => {
            let note = object.get("note").and_then(Value::as_str).unwrap_or_default();
            Ok(RequestedEdit::Mask(entry()?, note.to_owned()))
        }
        "drop" => Ok(RequestedEdit::Drop(entry()?)),
        "replace" => Ok(RequestedEdit::Replace(entry()?, content()?)),
        "append" => {
            content()?;
            Ok(RequestedEdit::Append(utterance(value)?))
        }
        other => Err(format!("has the op {:?}, which nobody knows", super::read::shown(other))),
    }
}
