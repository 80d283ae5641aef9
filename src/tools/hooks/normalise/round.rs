//! Results of `turn_end` and `agent_stop`: the requested action under its various names, and its messages.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{edits, says_something, utterance};
use crate::fields::ObjectFields;
use crate::output::{CallbackRequest, HistoryAction, HookOutput, Utterance};
use epitome_thread::Role;

/// The request in `result` or, if that is missing, in `action`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundRequest {
    /// Neither is given.
    Unsaid,
    /// An unknown value.
    Unknown,
    Continue,
    Mutate,
    Callback,
    Compact,
    Summary,
}

fn request(fields: &mut ObjectFields<'_>) -> RoundRequest {
    let result = fields.text("result").map(|word| match word.as_str() {
        "continue" => RoundRequest::Continue,
        "mutate" => RoundRequest::Mutate,
        "callback" => RoundRequest::Callback,
        _ => {
            fields.warn_value("result", &word, "continue, mutate or callback");
            RoundRequest::Unknown
        }
    });
    let action = fields.text("action").map(|word| match word.as_str() {
        "continue" => RoundRequest::Continue,
        "replace" => RoundRequest::Mutate,
        "compact" => RoundRequest::Compact,
        "summary" => RoundRequest::Summary,
        _ => {
            fields.warn_value("action", &word, "compact, summary, continue or replace");
            RoundRequest::Unknown
        }
    });
    match (result, action) {
        (None, action) => action.unwrap_or(RoundRequest::Unsaid),
        (Some(result), None) => result,
        // The action names the recipe that the result leaves open.
        (Some(RoundRequest::Callback), Some(action @ (RoundRequest::Compact | RoundRequest::Summary)))
            if fields.any("callback").is_none() =>
        {
            action
        }
        (Some(result), Some(action)) => {
            let callback = matches!(result, RoundRequest::Callback)
                && matches!(action, RoundRequest::Compact | RoundRequest::Summary | RoundRequest::Callback);
            if result != action && !callback {
                fields.warn("`result` and `action` differ; `action` was ignored".to_owned());
            }
            result
        }
    }
}

/// Reads a result of `turn_end` or `agent_stop`.
pub(super) fn round(fields: &mut ObjectFields<'_>, output: &mut HookOutput) {
    let request = request(fields);
    output.go_on = fields.flag("continue");
    output.edits = edits(fields);
    output.follow_ups = follow_ups(fields, "follow_up_messages");
    match request {
        RoundRequest::Unsaid if fields.any("replace_messages").is_some() => {
            output.action = mutation(fields, ["replace_messages", "messages"]);
        }
        RoundRequest::Unsaid => {
            for (field, hint) in [
                ("messages", "`result` must say `continue` or `mutate`"),
                ("callback", "`result` must say `callback`"),
            ] {
                if fields.any(field).is_some_and(says_something) {
                    fields.warn(format!("`{field}` alone asks for nothing: {hint}"));
                }
            }
        }
        RoundRequest::Unknown => {
            if !output.follow_ups.is_empty() {
                fields.warn("`follow_up_messages` were ignored with it".to_owned());
                output.follow_ups.clear();
            }
        }
        RoundRequest::Continue => {
            output.follow_ups.splice(0..0, follow_ups(fields, "messages"));
            if output.follow_ups.is_empty() {
                fields.warn("it asks to continue and gives no message; nothing was done".to_owned());
            }
        }
        RoundRequest::Mutate => {
            // `replace` was introduced with `replace_messages`, `mutate` with `messages`.
            let keys = match fields.any("result") {
                Some(_) => ["messages", "replace_messages"],
                None => ["replace_messages", "messages"],
            };
            output.action = mutation(fields, keys);
        }
        RoundRequest::Callback => match fields.text("callback") {
            Some(name) => output.action = HistoryAction::Callback(callback(fields, name)),
            None => fields.warn("it asks for a callback and names none; nothing was done".to_owned()),
        },
        RoundRequest::Compact => {
            output.action = HistoryAction::Callback(callback(fields, "compact".to_owned()))
        }
        RoundRequest::Summary => {
            let callback = callback(fields, "summary".to_owned());
            output.action = HistoryAction::Callback(CallbackRequest { text_only: true, ..callback });
        }
    }
    for follow_up in std::mem::take(&mut output.follow_ups) {
        if !output.follow_ups.contains(&follow_up) {
            output.follow_ups.push(follow_up);
        }
    }
}

/// A callback with its arguments, including the target: the recipe's own hooks read it there.
fn callback(fields: &mut ObjectFields<'_>, name: String) -> CallbackRequest {
    let mut args = BTreeMap::new();
    if let Some(object) = fields.object("callback_args") {
        for (key, value) in object {
            match value {
                Value::Null => {}
                Value::String(text) => drop(args.insert(key.clone(), text.clone())),
                Value::Bool(_) | Value::Number(_) => drop(args.insert(key.clone(), value.to_string())),
                Value::Array(_) | Value::Object(_) => {
                    fields.warn_type(&format!("callback_args.{key}"), "text, a number or a boolean", value);
                }
            }
        }
    }
    let target = target(fields);
    CallbackRequest { name, args, target, asynchronous: fields.flag("async"), text_only: false }
}

/// The conversation that the request is about, named in the result or in `callback_args`.
fn target(fields: &mut ObjectFields<'_>) -> Option<String> {
    fields.text("target_conversation_id").or_else(|| {
        let id = fields.any("callback_args")?.get("target_conversation_id")?.as_str();
        id.filter(|id| !id.trim().is_empty()).map(str::to_owned)
    })
}

/// A mutation by the first of two fields that is present. One invalid message voids it: a history without
/// that message is not the intended one. Without messages, nothing is done.
fn mutation(fields: &mut ObjectFields<'_>, [first, second]: [&'static str; 2]) -> HistoryAction {
    let field = if fields.any(first).is_some() { first } else { second };
    let preserve_recent = fields.count("preserve_recent").unwrap_or(0);
    let target = target(fields);
    let mut messages = Vec::new();
    for item in fields.list(field) {
        match utterance(item) {
            Ok(message) => messages.push(message),
            Err(why) => {
                fields.warn(format!("an item of `{field}` {why}; the history stays as it is"));
                return HistoryAction::None;
            }
        }
    }
    if messages.is_empty() {
        fields.warn("it has no message that could replace the history; the history stays".to_owned());
        return HistoryAction::None;
    }
    HistoryAction::Mutate { messages, preserve_recent, target }
}

/// Reads the follow-ups, which are sent as the user's next message. Invalid and blank ones are left out.
fn follow_ups(fields: &mut ObjectFields<'_>, field: &'static str) -> Vec<Utterance> {
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
