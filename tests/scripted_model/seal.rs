//! Signatures of thinking, like those of services that bind thinking to everything before it. Pure.
//!
//! A signature identifies the model, the preceding conversation and the content, so that it can be verified
//! without storing anything. The preceding conversation is normalized as by the service: cache marks, item
//! ids and the division of texts into parts make no difference.

use serde_json::Value;
use sha2::{Digest, Sha256};

use epitome_config::WireFormat;

/// Length of each of a signature's three pieces: 16 bytes in hexadecimal, which is also valid Base64.
const PIECE_LETTERS: usize = 32;

/// The running digest of the conversation before a part.
#[derive(Clone, Debug)]
pub(super) struct Before {
    wire: WireFormat,
    model: String,
    digest: Sha256,
    /// The last role: adjacent messages of one role are merged.
    role: String,
    in_text: bool,
}

impl Before {
    /// The digest before the reply to this request.
    pub(super) fn reply(wire: WireFormat, model: &str, body: &Value) -> Before {
        let mut before = walk(wire, model, body, |_, _, _| {});
        match wire {
            WireFormat::AnthropicMessages => before.enter("assistant"),
            WireFormat::Gemini => before.enter("model"),
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat => {}
        }
        before
    }

    /// Signs a part at this position.
    pub(super) fn seal(&self, content: &str) -> String {
        [digest(self.model.as_bytes()), hex(self.digest.clone()), digest(content.as_bytes())].concat()
    }

    /// A hexadecimal number that differs at each position of each conversation.
    pub(super) fn number(&self) -> String {
        let mut number = hex(self.digest.clone());
        number.truncate(16);
        number
    }

    /// Adds a block, item or part of this format to the digest.
    pub(super) fn add(&mut self, role: &str, part: &Value) {
        self.enter(role);
        let text = part["text"].as_str();
        match (self.wire, text) {
            // Thought summaries are only for display, and an empty text only carries its signature.
            (WireFormat::Gemini, _) if part["thought"] == true => return,
            (WireFormat::Gemini, Some("")) => return,
            // The service writes blank texts and refuses to get them back.
            (WireFormat::AnthropicMessages, Some(text)) if text.trim().is_empty() => return,
            // Gemini streams a text in many parts and accepts it back as one.
            (WireFormat::Gemini, Some(text)) if self.in_text => self.digest.update(text),
            (_, Some(text)) => {
                self.digest.update([0, 2]);
                self.digest.update(text);
            }
            (_, None) => {
                self.digest.update([0, 3]);
                feed(part, &mut self.digest);
            }
        }
        self.in_text = text.is_some();
    }

    /// Switches to this role.
    fn enter(&mut self, role: &str) {
        if self.role != role {
            self.digest.update([0, 1]);
            self.digest.update(role);
            role.clone_into(&mut self.role);
            self.in_text = false;
        }
    }

    /// Adds an item of the Responses format to the digest.
    pub(super) fn add_item(&mut self, item: &Value) {
        match item["type"].as_str().unwrap_or("message") {
            "message" => {
                self.digest.update([0, 4]);
                feed(&item["role"], &mut self.digest);
                match &item["content"] {
                    Value::String(text) => self.digest.update(text),
                    content => {
                        for part in content.as_array().into_iter().flatten() {
                            match part["text"].as_str() {
                                Some(text) => self.digest.update(text),
                                None => feed(part, &mut self.digest),
                            }
                        }
                    }
                }
            }
            "function_call" => {
                self.digest.update([0, 5]);
                feed(&item["call_id"], &mut self.digest);
                feed(&item["name"], &mut self.digest);
                // Arguments are JSON in a string, which clients may have parsed and serialized again.
                let arguments = item["arguments"].as_str().unwrap_or_default();
                let read = serde_json::from_str(arguments);
                feed(&read.unwrap_or_else(|_| Value::String(arguments.to_owned())), &mut self.digest);
            }
            "reasoning" => {
                self.digest.update([0, 6]);
                feed(&item["encrypted_content"], &mut self.digest);
            }
            _ => {
                self.digest.update([0, 7]);
                feed(item, &mut self.digest);
            }
        }
    }
}

/// The content that a part's signature covers, as text for comparison.
pub(super) fn sealed_content(wire: WireFormat, part: &Value) -> String {
    match wire {
        WireFormat::AnthropicMessages => part["thinking"].as_str().unwrap_or_default().to_owned(),
        // The encrypted content is in the signature itself; the summary is only for display.
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat => String::new(),
        WireFormat::Gemini if part["functionCall"].is_object() => {
            part["functionCall"]["name"].as_str().unwrap_or_default().to_owned()
        }
        WireFormat::Gemini => String::new(),
    }
}

/// Signs a compaction of the conversation in a request. The signature covers the model, the conversation and
/// the compaction's text, but not its position: it comes back at the start of a conversation without what was
/// compacted.
pub(super) fn of_compaction(wire: WireFormat, model: &str, body: &Value, content: &str) -> String {
    let made_of = hex(walk(wire, model, body, |_, _, _| {}).digest);
    [digest(model.as_bytes()), made_of.clone(), digest((made_of + content).as_bytes())].concat()
}

/// The fault in the signature of a compaction that comes back, if there is one.
fn fault_of_compaction(model: &str, part: &Value, pieces: [Option<&str>; 3]) -> Option<Fault> {
    let [by, of, says] = pieces;
    let content = part["content"].as_str().unwrap_or_default();
    if by != Some(&digest(model.as_bytes())) {
        return Some(Fault::OtherModel);
    }
    let right = digest((of.unwrap_or_default().to_owned() + content).as_bytes());
    (says != Some(&right)).then_some(Fault::Changed)
}

/// In the id of a Responses item, separates its own number from the id of the reasoning that it was generated
/// with.
pub(super) const OF_REASONING: &str = "_of_";

/// Why a service would reject the thinking in a request, in the service's wording.
///
/// The real services silently drop thinking of another model, and Responses' reasoning after a different
/// prefix. Here both are rejected, because they reveal a client that sends useless data.
pub(super) fn problems(wire: WireFormat, model: &str, body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(wire, model, body, |before, part, seal| {
        let pieces = |at: usize| seal.get(at * PIECE_LETTERS..(at + 1) * PIECE_LETTERS);
        let right = before.seal(&sealed_content(wire, part));
        let right = |at: usize| right.get(at * PIECE_LETTERS..(at + 1) * PIECE_LETTERS);
        let fault = if seal.len() != 3 * PIECE_LETTERS {
            Fault::NotOurs
        } else if part["type"] == "compaction" {
            match fault_of_compaction(model, part, [pieces(0), pieces(1), pieces(2)]) {
                Some(fault) => fault,
                None => return,
            }
        } else if pieces(0) != right(0) {
            Fault::OtherModel
        } else if pieces(2) != right(2) {
            Fault::Changed
        } else if pieces(1) != right(1) {
            Fault::OtherPrefix
        } else {
            return;
        };
        found.push(fault.describe(wire, part));
    });
    if wire == WireFormat::OpenAiResponses {
        without_reasoning(body, &mut found);
    }
    found
}

/// An item with its id requires the reasoning that it was generated with; an item without an id doesn't.
fn without_reasoning(body: &Value, found: &mut Vec<String>) {
    let mut known: Vec<&str> = Vec::new();
    for item in body["input"].as_array().into_iter().flatten() {
        let id = item["id"].as_str().unwrap_or_default();
        match (item["type"].as_str(), id.split_once(OF_REASONING)) {
            (Some("reasoning"), _) => known.push(id),
            (kind, Some((_, reasoning))) if !known.contains(&reasoning) => found.push(format!(
                "Item '{id}' of type '{}' was provided without its required 'reasoning' item: \
                 '{reasoning}'.",
                kind.unwrap_or("message")
            )),
            (_, _) => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NotOurs,
    OtherModel,
    Changed,
    OtherPrefix,
}

impl Fault {
    fn describe(self, wire: WireFormat, part: &Value) -> String {
        let of_compaction = part["type"] == "compaction";
        match (wire, self) {
            (WireFormat::AnthropicMessages, Fault::Changed) if of_compaction => {
                "The `compaction` block does not match its signature.".into()
            }
            (WireFormat::AnthropicMessages, _) if of_compaction => {
                "The `compaction` block's signature does not verify.".into()
            }
            (WireFormat::AnthropicMessages, Fault::NotOurs) => {
                "Invalid `signature` in `thinking` block".into()
            }
            (WireFormat::AnthropicMessages, Fault::OtherModel) => {
                "Invalid `signature` in `thinking` block. The block is bound to a different model.".into()
            }
            (WireFormat::AnthropicMessages, Fault::Changed) => {
                "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be \
                 modified. These blocks must remain as they were in the original response."
                    .into()
            }
            (WireFormat::AnthropicMessages, Fault::OtherPrefix) => {
                "Invalid `signature` in `thinking` block. The block is bound to a different conversation. \
                 Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \
                 \"drop_block\"."
                    .into()
            }
            (WireFormat::OpenAiResponses | WireFormat::OpenAiChat, fault) => format!(
                "The encrypted content for item {} could not be verified. Reason: {}.",
                part["id"],
                match fault {
                    Fault::NotOurs | Fault::Changed => {
                        "Encrypted content could not be decrypted or parsed"
                    }
                    Fault::OtherModel => "model_mismatch",
                    Fault::OtherPrefix => "prefix_mismatch",
                }
            ),
            (WireFormat::Gemini, Fault::NotOurs | Fault::Changed) => "Thought signature is not valid.".into(),
            (WireFormat::Gemini, Fault::OtherModel) => {
                "Thought signature is not valid: it was made by another model.".into()
            }
            (WireFormat::Gemini, Fault::OtherPrefix) => {
                "Thought signature is not valid: it was made in another conversation.".into()
            }
        }
    }
}

/// Signatures that Gemini accepts for calls that none of its models made.
const NOT_CHECKED: [&str; 2] = ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// Walks a request and calls `sealed` for each part with a signature, with the digest of what precedes it.
fn walk(
    wire: WireFormat,
    model: &str,
    body: &Value,
    mut sealed: impl FnMut(&Before, &Value, &str),
) -> Before {
    let mut before =
        Before { wire, model: model.to_owned(), digest: Sha256::new(), role: String::new(), in_text: false };
    let members = |value: &Value| value.as_array().cloned().unwrap_or_default();
    feed(&body["tools"], &mut before.digest);
    match wire {
        WireFormat::AnthropicMessages => {
            before.add_all("system", &body["system"], |_, _| {});
            for message in members(&body["messages"]) {
                let role = message["role"].as_str().unwrap_or_default();
                before.add_all(role, &message["content"], |before, block| {
                    if block["type"] == "thinking" || block["type"] == "compaction" {
                        sealed(before, block, block["signature"].as_str().unwrap_or_default());
                    }
                });
            }
        }
        WireFormat::OpenAiResponses => {
            feed(&body["instructions"], &mut before.digest);
            for item in members(&body["input"]) {
                if let Some(seal) = item["encrypted_content"].as_str() {
                    sealed(&before, &item, seal);
                }
                before.add_item(&item);
            }
        }
        WireFormat::OpenAiChat => {}
        WireFormat::Gemini => {
            before.add_all("system", &body["systemInstruction"]["parts"], |_, _| {});
            for content in members(&body["contents"]) {
                let role = content["role"].as_str().unwrap_or("user");
                before.add_all(role, &content["parts"], |before, part| {
                    if let Some(seal) = part["thoughtSignature"].as_str()
                        && !NOT_CHECKED.contains(&seal)
                    {
                        sealed(before, part, seal);
                    }
                });
            }
        }
    }
    before
}

impl Before {
    /// Adds all parts of a message to the digest; `each` is called before each part.
    fn add_all(&mut self, role: &str, content: &Value, mut each: impl FnMut(&Before, &Value)) {
        match content {
            Value::String(text) => self.add(role, &serde_json::json!({ "text": text })),
            Value::Array(parts) => {
                self.enter(role);
                for part in parts {
                    each(self, part);
                    self.add(role, part);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
        }
    }
}

/// Adds a value to the digest, independent of field order and without cache marks.
fn feed(value: &Value, digest: &mut Sha256) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(name, _)| *name != "cache_control").collect();
            fields.sort_by_key(|(name, _)| *name);
            for (name, value) in fields {
                digest.update(name);
                digest.update([0, b':']);
                feed(value, digest);
            }
            digest.update([0, b'}']);
        }
        Value::Array(members) => {
            for member in members {
                feed(member, digest);
                digest.update([0, b',']);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            digest.update(value.to_string());
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    hex(Sha256::new().chain_update(bytes))
}

fn hex(digest: Sha256) -> String {
    digest.finalize()[..PIECE_LETTERS / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}
