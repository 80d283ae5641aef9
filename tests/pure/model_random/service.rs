//! The services as seen from outside: each streams a reply in its own format, signs its reasoning together
//! with everything that precedes it, and rejects reasoning that is sent back after anything else.
//!
//! It shares no code with the encoders. The prefix of a part is interpreted as the service reads it: cache
//! marks, item ids and the split of a text into parts make no difference.

use std::collections::{HashMap, HashSet};

use epitome::config::WireFormat;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A part of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Reasoning, and its signature.
    Thought(String),
    /// Reasoning that is not shown.
    Hidden(String),
    Text(String),
    Call {
        id: String,
        input: Value,
    },
}

/// The content of a signature: the model, and the prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sealed {
    model: String,
    before: String,
}

/// Everything that the services of one conversation remember.
#[derive(Clone, Debug, Default)]
pub struct Service {
    sealed: HashMap<String, Sealed>,
    /// Their own compactions of the conversation, with the model that made each.
    short: HashMap<String, String>,
}

impl Service {
    /// Records the signatures of a reply. `body` is the request that it answers.
    pub fn seal(&mut self, wire: WireFormat, model: &str, mut body: Value, parts: &[Part]) {
        let list = body[list_of(wire)].as_array_mut().expect("a request has a list of messages");
        list.extend(echo(wire, parts));
        for (signature, before) in signatures(wire, &body) {
            let sealed = Sealed { model: model.to_owned(), before };
            self.sealed.entry(signature).or_insert(sealed);
        }
    }

    /// Records a model's compaction of a conversation, as the item that is to be sent back.
    pub fn made_short(&mut self, model: &str, item: &Value) {
        self.short.insert(item.to_string(), model.to_owned());
    }

    /// Whether a request begins with this model's own compaction; an error if its service would reject it,
    /// because it is changed, not the first item, or another model's.
    pub fn check_short(&self, wire: WireFormat, model: &str, body: &Value) -> Result<bool, String> {
        let mut items = list(&body[list_of(wire)]).iter().flat_map(|message| match wire {
            WireFormat::AnthropicMessages => list(&message["content"]),
            WireFormat::OpenAiResponses => std::slice::from_ref(message),
            WireFormat::Gemini => list(&message["parts"]),
            WireFormat::OpenAiChat => list(&message["content"]),
        });
        let is_short = |item: &&Value| item["type"] == "compaction";
        let first = items.next().filter(is_short);
        if let Some(other) = items.find(is_short) {
            return Err(format!("{other} does not stand in front of all else"));
        }
        match first.map(|item| (item, self.short.get(&item.to_string()))) {
            None => Ok(false),
            Some((_, Some(maker))) if maker == model => Ok(true),
            Some((item, Some(maker))) => Err(format!("{maker} has made {item}, and not {model}")),
            Some((item, None)) => Err(format!("nobody has made {item}")),
        }
    }

    /// The signatures in a request; an error if the service of this model would reject one of them.
    pub fn check(&self, wire: WireFormat, model: &str, body: &Value) -> Result<HashSet<String>, String> {
        let mut seen = HashSet::new();
        for (signature, before) in signatures(wire, body) {
            match self.sealed.get(&signature) {
                None => return Err(format!("nobody has made the signature {signature}")),
                Some(sealed) if sealed.model != model => {
                    return Err(format!("{} has made {signature}, and not {model}", sealed.model));
                }
                Some(sealed) if sealed.before != before => {
                    return Err(format!("{signature} is bound to another conversation"));
                }
                Some(_) => {}
            }
            if !seen.insert(signature.clone()) {
                return Err(format!("{signature} comes twice"));
            }
        }
        Ok(seen)
    }
}

/// The field that contains the messages.
pub fn list_of(wire: WireFormat) -> &'static str {
    match wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiChat => "messages",
        WireFormat::OpenAiResponses => "input",
        WireFormat::Gemini => "contents",
    }
}

/// The signature that is sent with a Gemini call that no Gemini model has made.
const NOT_CHECKED: &str = "skip_thought_signature_validator";

/// Each signature of a request, with the digest of everything that precedes it.
fn signatures(wire: WireFormat, body: &Value) -> Vec<(String, String)> {
    let mut walk = Walk { digest: Sha256::new(), role: String::new(), in_text: false, found: Vec::new() };
    walk.feed(&body["tools"]);
    walk.feed(match wire {
        WireFormat::AnthropicMessages => &body["system"],
        WireFormat::OpenAiResponses => &body["instructions"],
        WireFormat::Gemini => &body["systemInstruction"],
        // Chat Completions has no signatures.
        WireFormat::OpenAiChat => return Vec::new(),
    });
    for message in list(&body[list_of(wire)]) {
        match wire {
            WireFormat::AnthropicMessages => {
                walk.enter(message["role"].as_str().unwrap_or_default());
                list(&message["content"]).iter().for_each(|block| walk.block(block));
            }
            WireFormat::OpenAiResponses => walk.item(message),
            WireFormat::Gemini => {
                walk.enter(message["role"].as_str().unwrap_or_default());
                list(&message["parts"]).iter().for_each(|part| walk.part(part));
            }
            WireFormat::OpenAiChat => {}
        }
    }
    walk.found
}

struct Walk {
    digest: Sha256,
    /// The role of the last message: adjacent messages of one role are joined.
    role: String,
    in_text: bool,
    found: Vec<(String, String)>,
}

impl Walk {
    fn enter(&mut self, role: &str) {
        if self.role != role {
            self.digest.update([0, 1]);
            self.digest.update(role);
            role.clone_into(&mut self.role);
            self.in_text = false;
        }
    }

    fn found(&mut self, signature: &str) {
        let digest = self.digest.clone().finalize();
        let hex = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        self.found.push((signature.to_owned(), hex));
    }

    /// A content block of Anthropic's format.
    fn block(&mut self, block: &Value) {
        match block["type"].as_str() {
            Some("thinking") => self.found(block["signature"].as_str().unwrap_or_default()),
            Some("redacted_thinking") => self.found(block["data"].as_str().unwrap_or_default()),
            Some(_) | None => {}
        }
        match block["text"].as_str() {
            // The service writes blank texts and refuses to get them back: they return at the beginning of a text, or not.
            Some(text) if self.in_text => self.text(text),
            Some(text) if text.trim().is_empty() => {}
            Some(text) => self.text(text.trim_start()),
            None => {
                self.feed(block);
                self.in_text = false;
            }
        }
    }

    /// Adjacent texts are joined, however they were split.
    fn text(&mut self, text: &str) {
        if !self.in_text {
            self.digest.update([0, 5]);
        }
        self.digest.update(text);
        self.in_text = true;
    }

    /// An item of the Responses format.
    fn item(&mut self, item: &Value) {
        match item["type"].as_str().unwrap_or("message") {
            "reasoning" => {
                self.enter("");
                let signature = item["encrypted_content"].as_str().unwrap_or_default();
                self.found(signature);
                self.digest.update([0, 2]);
                self.digest.update(signature);
            }
            "function_call" => {
                self.enter("");
                self.digest.update([0, 3]);
                self.feed(&item["call_id"]);
                self.feed(&item["name"]);
                let arguments = item["arguments"].as_str().unwrap_or_default();
                self.feed(&serde_json::from_str(arguments).unwrap_or(Value::Null));
            }
            "message" => {
                self.enter(item["role"].as_str().unwrap_or_default());
                for part in list(&item["content"]) {
                    match part["text"].as_str() {
                        Some(text) => self.text(text),
                        None => self.feed(part),
                    }
                }
            }
            _ => {
                self.enter("");
                self.feed(item);
            }
        }
    }

    /// A part of Gemini's format.
    fn part(&mut self, part: &Value) {
        let signature = part["thoughtSignature"].as_str().filter(|signature| *signature != NOT_CHECKED);
        if let Some(signature) = signature {
            self.found(signature);
        }
        match part["text"].as_str() {
            // Summaries of thoughts are for display only.
            Some(_) if part["thought"] == true => {}
            Some(text) => self.text(text),
            None => {
                self.feed(part);
                self.in_text = false;
            }
        }
        if let Some(signature) = signature {
            self.digest.update([0, 6]);
            self.digest.update(signature);
        }
    }

    /// Digests a value independent of the order of its fields.
    fn feed(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().filter(|(name, _)| *name != "cache_control").collect();
                fields.sort_by_key(|(name, _)| *name);
                for (name, value) in fields {
                    self.digest.update(name);
                    self.digest.update([0, b':']);
                    self.feed(value);
                }
                self.digest.update([0, b'}']);
            }
            Value::Array(members) => {
                members.iter().for_each(|member| self.feed(member));
                self.digest.update([0, b']']);
            }
            Value::String(text) => {
                self.digest.update([0, b'"']);
                self.digest.update(text);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.digest.update(value.to_string()),
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A reply as sent back by a client that omits nothing.
pub fn echo(wire: WireFormat, parts: &[Part]) -> Vec<Value> {
    match wire {
        WireFormat::AnthropicMessages => vec![json!({"role": "assistant", "content": blocks(parts)})],
        WireFormat::OpenAiResponses => items(parts),
        WireFormat::OpenAiChat => Vec::new(),
        WireFormat::Gemini => vec![json!({"role": "model", "parts": gemini_parts(parts)})],
    }
}

/// A service's own compaction of a conversation; `None` if it has no such feature.
pub fn short(wire: WireFormat, number: usize) -> Option<Value> {
    let signature = format!("short{number}end");
    match wire {
        WireFormat::AnthropicMessages => {
            let content = format!("Of old, by request {number}.");
            Some(json!({"type": "compaction", "content": content, "signature": signature}))
        }
        WireFormat::OpenAiResponses => {
            let id = format!("cmp_{number}");
            Some(json!({"type": "compaction", "id": id, "encrypted_content": signature}))
        }
        WireFormat::OpenAiChat | WireFormat::Gemini => None,
    }
}

/// The same as a stream of Anthropic's.
pub fn stream_short(item: &Value) -> String {
    let start = json!({"type": "compaction", "content": null});
    let mut delta = item.clone();
    delta["type"] = "compaction_delta".into();
    let events = [
        json!({"type": "message_start", "message": {}}),
        json!({"type": "content_block_start", "index": 0, "content_block": start}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "compaction"}}),
        json!({"type": "message_stop"}),
    ];
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// A reply as its service streams it.
pub fn stream(wire: WireFormat, parts: &[Part]) -> String {
    let events = match wire {
        WireFormat::AnthropicMessages => {
            let mut events = vec![json!({"type": "message_start", "message": {}})];
            for (index, block) in blocks(parts).into_iter().enumerate() {
                let mut start = block.clone();
                let mut deltas = Vec::new();
                let mut delta = |kind: &str, field: &str, to: &str, empty: Value| {
                    let value = std::mem::replace(&mut start[field], empty);
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    deltas.push(json!({"type": kind, to: value}));
                };
                match block["type"].as_str() {
                    Some("thinking") => {
                        delta("thinking_delta", "thinking", "thinking", "".into());
                        delta("signature_delta", "signature", "signature", "".into());
                    }
                    Some("text") => delta("text_delta", "text", "text", "".into()),
                    Some("tool_use") => delta("input_json_delta", "input", "partial_json", json!({})),
                    Some(_) | None => {}
                }
                events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
                events.extend(
                    deltas
                        .into_iter()
                        .map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})),
                );
                events.push(json!({"type": "content_block_stop", "index": index}));
            }
            events.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}));
            events.push(json!({"type": "message_stop"}));
            events
        }
        WireFormat::OpenAiResponses => {
            let mut events = Vec::new();
            for (index, item) in items(parts).into_iter().enumerate() {
                let event = |kind: &str| json!({"type": kind, "output_index": index, "item": item});
                events.push(event("response.output_item.added"));
                if item["type"] == "message" {
                    let (id, delta) = (&item["id"], &item["content"][0]["text"]);
                    events.push(json!({"type": "response.output_text.delta", "item_id": id,
                        "output_index": index, "content_index": 0, "delta": delta}));
                }
                events.push(event("response.output_item.done"));
            }
            events.push(json!({"type": "response.completed", "response": {"status": "completed"}}));
            events
        }
        WireFormat::OpenAiChat => {
            let mut calls = 0..;
            let deltas = parts.iter().map(|part| match part {
                Part::Thought(_) | Part::Hidden(_) => json!({"reasoning_content": "hm"}),
                Part::Text(text) => json!({ "content": text }),
                Part::Call { id, input } => {
                    let function = json!({"name": "look", "arguments": input.to_string()});
                    json!({"tool_calls": [{"index": calls.next(), "id": id, "function": function}]})
                }
            });
            let deltas: Vec<Value> = deltas.map(|delta| json!({"choices": [{"delta": delta}]})).collect();
            let end = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
            deltas.into_iter().chain([end]).collect()
        }
        WireFormat::Gemini => {
            let end = json!({"candidates": [{"finishReason": "STOP"}]});
            let chunks = gemini_parts(parts).into_iter();
            let chunks = chunks.map(|part| json!({"candidates": [{"content": {"parts": [part]}}]}));
            chunks.chain([end]).collect()
        }
    };
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

fn blocks(parts: &[Part]) -> Vec<Value> {
    let block = |part: &Part| match part {
        Part::Thought(signature) => json!({"type": "thinking", "thinking": "hm", "signature": signature}),
        Part::Hidden(signature) => json!({"type": "redacted_thinking", "data": signature}),
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Call { id, input } => json!({"type": "tool_use", "id": id, "name": "look", "input": input}),
    };
    parts.iter().map(block).collect()
}

fn items(parts: &[Part]) -> Vec<Value> {
    let item = |(at, part): (usize, &Part)| match part {
        Part::Thought(signature) | Part::Hidden(signature) => {
            json!({"type": "reasoning", "id": format!("rs_{at}"), "summary": [],
                "encrypted_content": signature})
        }
        Part::Text(text) => {
            let content = json!([{"type": "output_text", "text": text}]);
            json!({"type": "message", "id": format!("msg_{at}"), "role": "assistant", "content": content})
        }
        Part::Call { id, input } => {
            json!({"type": "function_call", "id": format!("fc_{at}"), "call_id": id, "name": "look",
                "arguments": input.to_string()})
        }
    };
    parts.iter().enumerate().map(item).collect()
}

/// Each step has one signature: on the first of its calls, or else on its last text.
fn gemini_parts(parts: &[Part]) -> Vec<Value> {
    let mut signature = None;
    let mut said: Vec<Value> = Vec::new();
    for part in parts {
        match part {
            Part::Thought(made) | Part::Hidden(made) => {
                if signature.is_none() {
                    signature = Some(made);
                    said.push(json!({"text": "hm", "thought": true}));
                }
            }
            Part::Text(text) => said.push(json!({ "text": text })),
            Part::Call { id, input } => {
                said.push(json!({"functionCall": {"id": id, "name": "look", "args": input}}));
            }
        }
    }
    if let Some(signature) = signature {
        let call = said.iter().position(|part| part["functionCall"].is_object());
        let signed = call.unwrap_or(said.len() - 1);
        said[signed]["thoughtSignature"] = signature.as_str().into();
    }
    said
}
