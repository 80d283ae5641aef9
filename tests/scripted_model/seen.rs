//! Reads the contents of a request back from each wire format into a neutral list. Pure.

use serde_json::Value;

use super::{ModelStep, SeenPart};
use epitome_config::WireFormat;

/// All messages of a request's body, flat.
pub(super) fn read(wire: WireFormat, body: &Value) -> Vec<SeenPart> {
    let mut reading = Reading::default();
    match wire {
        WireFormat::AnthropicMessages => members(&body["messages"]).for_each(|one| reading.anthropic(one)),
        WireFormat::OpenAiChat => members(&body["messages"]).for_each(|one| reading.chat(one)),
        WireFormat::OpenAiResponses => match &body["input"] {
            Value::String(text) => reading.user(text),
            input => members(input).for_each(|item| reading.item(item)),
        },
        WireFormat::Gemini => members(&body["contents"]).for_each(|one| reading.gemini(one)),
    }
    reading.seen
}

/// The messages read so far.
#[derive(Default)]
struct Reading {
    seen: Vec<SeenPart>,
    /// Ids of calls and the names of their tools.
    calls: Vec<(String, String)>,
}

impl Reading {
    fn user(&mut self, text: &str) {
        if !text.is_empty() {
            self.seen.push(SeenPart::User(text.to_owned()));
        }
    }

    fn agent(&mut self, text: &str) {
        if !text.is_empty() {
            self.seen.push(SeenPart::Agent(text.to_owned()));
        }
    }

    fn part(&mut self, kind: &str) {
        self.seen.push(SeenPart::UserPart(kind.to_owned()));
    }

    fn call(&mut self, id: &Value, name: &Value, input: Value) {
        let name = text_of(name);
        self.calls.push((text_of(id), name.clone()));
        self.seen.push(SeenPart::AgentCall { name, input });
    }

    fn result(&mut self, id: &Value, text: String) {
        let known = self.calls.iter().rev().find(|(known, _)| id == known.as_str());
        let tool = known.map_or_else(|| "unknown".to_owned(), |(_, name)| name.clone());
        self.seen.push(SeenPart::Result { tool, text });
    }

    fn anthropic(&mut self, message: &Value) {
        let is_agent = message["role"] == "assistant";
        parts(&message["content"], |part| match part["type"].as_str() {
            Some("text") if is_agent => self.agent(&text_of(&part["text"])),
            Some("text") => self.user(&text_of(&part["text"])),
            Some("tool_use") => self.call(&part["id"], &part["name"], part["input"].clone()),
            Some("tool_result") => self.result(&part["tool_use_id"], text_of(&part["content"])),
            // Thinking is omitted: only its own provider receives it.
            Some(_) | None if is_agent => {}
            Some(other) => self.part(other),
            None => self.part("part"),
        });
    }

    fn chat(&mut self, message: &Value) {
        match message["role"].as_str().unwrap_or_default() {
            "system" | "developer" => {}
            "tool" => self.result(&message["tool_call_id"], text_of(&message["content"])),
            "assistant" => {
                parts(&message["content"], |part| self.agent(&text_of(&part["text"])));
                for call in members(&message["tool_calls"]) {
                    let function = &call["function"];
                    self.call(&call["id"], &function["name"], arguments(&function["arguments"]));
                }
            }
            _ => parts(&message["content"], |part| match part["type"].as_str() {
                Some("text") => self.user(&text_of(&part["text"])),
                Some("image_url") => self.part("image"),
                Some("file") => self.part("document"),
                Some(other) => self.part(other),
                None => self.part("part"),
            }),
        }
    }

    fn item(&mut self, item: &Value) {
        let is_agent = item["role"] == "assistant";
        match item["type"].as_str().unwrap_or("message") {
            "message" if matches!(item["role"].as_str(), Some("system" | "developer")) => {}
            "message" => parts(&item["content"], |part| match part["type"].as_str() {
                Some("text" | "input_text" | "output_text") if is_agent => {
                    self.agent(&text_of(&part["text"]))
                }
                Some("text" | "input_text") => self.user(&text_of(&part["text"])),
                Some("input_image") => self.part("image"),
                Some("input_file") => self.part("document"),
                Some(_) | None if is_agent => {}
                Some(other) => self.part(other),
                None => self.part("part"),
            }),
            "function_call" => self.call(&item["call_id"], &item["name"], arguments(&item["arguments"])),
            "function_call_output" => self.result(&item["call_id"], text_of(&item["output"])),
            _ => {}
        }
    }

    fn gemini(&mut self, content: &Value) {
        let is_agent = content["role"] == "model";
        for part in members(&content["parts"]) {
            if part["thought"] == true {
                continue;
            }
            if let Some(text) = part["text"].as_str() {
                if is_agent { self.agent(text) } else { self.user(text) }
            } else if let Some(call) = part.get("functionCall") {
                self.call(&call["id"], &call["name"], call["args"].clone());
            } else if let Some(response) = part.get("functionResponse") {
                self.seen.push(SeenPart::Result {
                    tool: text_of(&response["name"]),
                    text: spoken(&response["response"]),
                });
            } else if part.get("toolCall").or(part.get("toolResponse")).is_none() {
                let mime_type = part["inlineData"]["mimeType"].as_str().unwrap_or_default();
                self.part(if mime_type.starts_with("image/") { "image" } else { "document" });
            }
        }
    }
}

/// The arguments of a call, which are JSON in a string.
fn arguments(text: &Value) -> Value {
    let text = text_of(text);
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// The text of a Gemini function response: the value of its only field (`output` or `error`) if that is a
/// string, otherwise all of it as JSON.
fn spoken(response: &Value) -> String {
    let only =
        response.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.values().next());
    match only {
        Some(Value::String(text)) => text.clone(),
        Some(_) | None => response.to_string(),
    }
}

fn members(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Separator between adjacent texts of the user. Some encoders merge them into one message and others don't;
/// transcripts don't depend on it.
const BETWEEN_TEXTS: &str = "\n\n";

/// The messages in `now` that follow `before` and the reply `said`.
pub(super) fn news(before: &[SeenPart], said: &[ModelStep], now: &[SeenPart]) -> Vec<SeenPart> {
    let Some(rest) = behind(before, now) else {
        let mut all = vec![SeenPart::Anew];
        all.extend(joined(now));
        return all;
    };
    let reply = reply_as_seen(said);
    let new = joined(rest.strip_prefix(reply.as_slice()).unwrap_or(&rest));
    if new.is_empty() { vec![SeenPart::Again] } else { new }
}

/// The messages in `now` that follow `before`; `None` if it doesn't start with those. If the last text has
/// grown, the added text comes first.
fn behind(before: &[SeenPart], now: &[SeenPart]) -> Option<Vec<SeenPart>> {
    if let Some(rest) = now.strip_prefix(before) {
        return Some(rest.to_vec());
    }
    let (SeenPart::User(last), earlier) = before.split_last()? else { return None };
    let (SeenPart::User(grown), rest) = now.strip_prefix(earlier)?.split_first()? else { return None };
    let added = grown.strip_prefix(last.as_str())?.strip_prefix(BETWEEN_TEXTS)?;
    let mut all = vec![SeenPart::User(added.to_owned())];
    all.extend_from_slice(rest);
    Some(all)
}

/// Merges adjacent texts of the user.
pub(super) fn joined(parts: &[SeenPart]) -> Vec<SeenPart> {
    let mut all: Vec<SeenPart> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(SeenPart::User(text)), SeenPart::User(more)) => {
                text.push_str(BETWEEN_TEXTS);
                text.push_str(more);
            }
            _ => all.push(part.clone()),
        }
    }
    all
}

/// A reply as the next request should contain it.
fn reply_as_seen(said: &[ModelStep]) -> Vec<SeenPart> {
    let mut seen: Vec<SeenPart> = Vec::new();
    let mut in_text = false;
    for step in said {
        let text = match step {
            ModelStep::Text(text) => text.clone(),
            ModelStep::Flood { count, text } => text.repeat(*count),
            ModelStep::Call { name, input } => {
                in_text = false;
                seen.push(SeenPart::AgentCall { name: name.clone(), input: input.clone() });
                continue;
            }
            // Providers get their searches back in their own form, which is not read.
            ModelStep::Think(_) | ModelStep::Search { .. } => {
                in_text = false;
                continue;
            }
            ModelStep::Stop(_) | ModelStep::Usage { .. } | ModelStep::Cached(_) | ModelStep::Wait => continue,
            ModelStep::Error { .. } | ModelStep::Overflow | ModelStep::Cut | ModelStep::Hang => break,
        };
        match seen.last_mut() {
            Some(SeenPart::Agent(known)) if in_text => known.push_str(&text),
            _ if text.is_empty() => {}
            _ => seen.push(SeenPart::Agent(text)),
        }
        in_text = true;
    }
    seen
}

/// Calls `take` for each part of a content; a plain string is one part.
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
