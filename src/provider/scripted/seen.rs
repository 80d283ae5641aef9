//! What a request holds, read back from each wire format into one neutral list. Pure.

use serde_json::Value;

use super::{ModelStep, Seen, Wire};

/// All messages of a request's body, flat.
pub(super) fn read(wire: Wire, body: &Value) -> Vec<Seen> {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut seen = Vec::new();
    let mut calls: Vec<(String, String)> = Vec::new();
    for message in messages {
        let role = message["role"].as_str().unwrap_or("");
        match (wire, role) {
            (_, "system" | "developer") => {}
            (Wire::OpenAiChat, "tool") => {
                let tool = tool_of(&calls, &message["tool_call_id"]);
                seen.push(Seen::Result { tool, text: text_of(&message["content"]) });
            }
            (_, "assistant") => {
                parts(&message["content"], |part| match part["type"].as_str() {
                    Some("text") => seen.push(Seen::Agent(text_of(&part["text"]))),
                    Some("tool_use") => {
                        let (id, name) = (text_of(&part["id"]), text_of(&part["name"]));
                        calls.push((id, name.clone()));
                        seen.push(Seen::AgentCall { name, input: part["input"].clone() });
                    }
                    // Thinking goes back to the one provider that made it.
                    _ => {}
                });
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let name = text_of(&call["function"]["name"]);
                    calls.push((text_of(&call["id"]), name.clone()));
                    let arguments = text_of(&call["function"]["arguments"]);
                    let input = serde_json::from_str(&arguments).unwrap_or(Value::String(arguments));
                    seen.push(Seen::AgentCall { name, input });
                }
            }
            (_, _) => parts(&message["content"], |part| match part["type"].as_str() {
                Some("text") => seen.push(Seen::User(text_of(&part["text"]))),
                Some("tool_result") => {
                    let tool = tool_of(&calls, &part["tool_use_id"]);
                    seen.push(Seen::Result { tool, text: text_of(&part["content"]) });
                }
                Some("image_url") => seen.push(Seen::UserPart("image".into())),
                Some(other) => seen.push(Seen::UserPart(other.to_owned())),
                None => seen.push(Seen::UserPart("part".into())),
            }),
        }
    }
    seen
}

/// What joins texts of one person that stand side by side. Some encoders make one message of them
/// and some don't; nothing that a transcript tells depends on it.
const BETWEEN_TEXTS: &str = "\n\n";

/// What of `now` is new after `before` and the reply `said`.
pub(super) fn news(before: &[Seen], said: &[ModelStep], now: &[Seen]) -> Vec<Seen> {
    let Some(rest) = behind(before, now) else {
        let mut all = vec![Seen::Anew];
        all.extend(joined(now));
        return all;
    };
    let reply = reply_as_seen(said);
    let new = joined(rest.strip_prefix(reply.as_slice()).unwrap_or(&rest));
    if new.is_empty() { vec![Seen::Again] } else { new }
}

/// What stands in `now` behind all of `before`; `None` if it doesn't begin with that. The last text
/// may have grown: then what was added to it comes first.
fn behind(before: &[Seen], now: &[Seen]) -> Option<Vec<Seen>> {
    if let Some(rest) = now.strip_prefix(before) {
        return Some(rest.to_vec());
    }
    let (Seen::User(last), earlier) = before.split_last()? else { return None };
    let (Seen::User(grown), rest) = now.strip_prefix(earlier)?.split_first()? else { return None };
    let added = grown.strip_prefix(last.as_str())?.strip_prefix(BETWEEN_TEXTS)?;
    let mut all = vec![Seen::User(added.to_owned())];
    all.extend_from_slice(rest);
    Some(all)
}

/// Neighbouring texts of the person as one.
pub(super) fn joined(parts: &[Seen]) -> Vec<Seen> {
    let mut all: Vec<Seen> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(Seen::User(text)), Seen::User(more)) => {
                text.push_str(BETWEEN_TEXTS);
                text.push_str(more);
            }
            _ => all.push(part.clone()),
        }
    }
    all
}

/// A reply as the next request should hold it.
fn reply_as_seen(said: &[ModelStep]) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    let mut in_text = false;
    for step in said {
        let text = match step {
            ModelStep::Text(text) => text.clone(),
            ModelStep::Flood { count, text } => text.repeat(*count),
            ModelStep::Call { name, input } => {
                in_text = false;
                seen.push(Seen::AgentCall { name: name.clone(), input: input.clone() });
                continue;
            }
            ModelStep::Think(_) => {
                in_text = false;
                continue;
            }
            ModelStep::Stop(_) | ModelStep::Usage { .. } | ModelStep::Wait => continue,
            ModelStep::Error { .. } | ModelStep::Overflow | ModelStep::Cut | ModelStep::Hang => break,
        };
        match seen.last_mut() {
            Some(Seen::Agent(known)) if in_text => known.push_str(&text),
            _ if text.is_empty() => {}
            _ => seen.push(Seen::Agent(text)),
        }
        in_text = true;
    }
    seen
}

/// Calls `take` for each part of a content; a plain text is one part.
fn parts(content: &Value, mut take: impl FnMut(&Value)) {
    match content {
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => take(&serde_json::json!({"type": "text", "text": text})),
        Value::Array(parts) => parts.iter().for_each(take),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
}

/// The text of a string, or of all text parts of an array.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

fn tool_of(calls: &[(String, String)], id: &Value) -> String {
    let known = calls.iter().rev().find(|(known, _)| id == known.as_str());
    known.map_or_else(|| "unknown".to_owned(), |(_, name)| name.clone())
}
