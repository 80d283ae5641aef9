//! Conversations of kodelet, which stores each in one row of its SQLite database `storage.db`. The messages in it have the
//! form of the provider that they were sent to: Anthropic's messages, Gemini's contents, or OpenAI's chat messages or
//! items. A row is converted to a JSON object with the key `kodelet` when it is read.
//!
//! A compaction replaces the messages; those before it are kept in segments, each with the summary that replaced it.

use serde_json::{Value, json};

use super::builder::Builder;
use super::{
    ImportContext, contents, data_url_part, document, file_part, list, model_name, moment, outcome_content,
    text, text_of, text_part, thinking_part,
};
use epitome_thread::problem::Problem;
use epitome_thread::{Content, OutcomeStatus, Trigger};
use epitome_transfer::{ENCRYPTED, ImportDraft, ImportFile, ImportSource};

/// Start of the result of a call that failed.
const FAILED: &str = "<error>";

/// Parses a time as Go writes it: `2026-01-02 15:04:05.99 +0100 CET`, or in RFC 3339.
pub(super) fn time(text: &str) -> Option<u64> {
    let mut words = text.split(' ');
    let (date, time, offset) = (words.next()?, words.next(), words.next());
    match (time, offset.and_then(|offset| offset.split_at_checked(3))) {
        (None, _) => moment(&json!(date)),
        (Some(time), Some((hours, minutes))) => moment(&json!(format!("{date}T{time}{hours}:{minutes}"))),
        (Some(time), None) => moment(&json!(format!("{date}T{}Z", time.trim_end_matches('Z')))),
    }
}

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let session = document(file, text)?;
    let about = &session["kodelet"];
    let started = about["created"].as_str().and_then(time);
    let provider = text_of(&about["provider"]);
    let model = session["metadata"]["model"].as_str();
    let mut reader = KodeletReader {
        log: Builder::new(text_of(&about["cwd"]), started, context),
        model: model_name(provider, "kodelet", model),
        parts: Vec::new(),
    };
    let mut messages: &[Value] = session["messages"].as_array().map_or(&[], Vec::as_slice);
    for segment in list(&session["history"]["segments"]) {
        list(&segment["rawMessages"]).for_each(|message| reader.message(message));
        reader.flush();
        let summary = text_of(&segment["marker"]["summary"]).unwrap_or(ENCRYPTED);
        reader.log.summarized(None, summary, Trigger::Threshold, 0);
    }
    if !session["history"].is_null() {
        // What precedes this message is the summary.
        let first = session["history"]["activeDisplayStart"].as_u64().unwrap_or_default();
        messages = messages.get(usize::try_from(first).unwrap_or(usize::MAX)..).unwrap_or_default();
    }
    messages.iter().for_each(|message| reader.message(message));
    reader.flush();
    reader.log.title(about["title"].as_str().unwrap_or_default());
    reader.log.foreign_id(about["id"].as_str().unwrap_or_default());
    reader.log.finish(ImportSource::Kodelet, file, None)
}

struct KodeletReader {
    log: Builder,
    model: String,
    /// The parts of a reply that may be incomplete.
    parts: Vec<Content>,
}

impl KodeletReader {
    fn message(&mut self, message: &Value) {
        match (message["type"].as_str(), message["role"].as_str()) {
            (None | Some("message"), Some("user")) => self.user(message),
            (None | Some("message"), Some("assistant" | "model")) => self.reply(message),
            (None, Some("tool")) => self.result(&message["tool_call_id"], &message["content"], false),
            // The system prompt.
            (None | Some("message"), Some("system" | "developer")) => {}
            (Some("reasoning"), _) => self.parts.extend(thinking_part(&message["content"])),
            (Some("function_call"), _) => {
                self.call(&message["call_id"], &message["name"], &message["arguments"])
            }
            (Some("function_call_output"), _) => {
                let printed = &message["output"];
                let printed = if printed.is_string() { printed } else { &message["raw_output"] };
                self.result(&message["call_id"], printed, false);
            }
            (kind, role) => self.log.left_out_kind("messages", kind.or(role).unwrap_or("unknown")),
        }
    }

    /// The parts of a message, in the form of any provider.
    fn parts_of(message: &Value) -> &Value {
        let raw = &message["raw_item"]["content"];
        [raw, &message["parts"], &message["content"]]
            .into_iter()
            .find(|parts| !parts.is_null())
            .unwrap_or(raw)
    }

    fn user(&mut self, message: &Value) {
        self.flush();
        let parts = Self::parts_of(message);
        for part in list(parts) {
            let response = &part["functionResponse"];
            if part["type"] == "tool_result" {
                self.result(&part["tool_use_id"], &part["content"], part["is_error"] == true);
            } else if response.is_object() {
                let printed = &response["response"];
                let is_error = printed["error"].is_string();
                let printed = ["output", "result", "error"]
                    .iter()
                    .map(|key| &printed[*key])
                    .find(|text| text.is_string());
                self.result(&response["id"], printed.unwrap_or(&response["response"]), is_error);
            }
        }
        self.log.prompt(contents(parts, content));
    }

    fn reply(&mut self, message: &Value) {
        let parts = Self::parts_of(message);
        match parts {
            Value::Array(parts) => {
                for part in parts {
                    let called = &part["functionCall"];
                    match part["type"].as_str() {
                        Some("thinking") => self.parts.extend(thinking_part(&part["thinking"])),
                        Some("tool_use") => self.call(&part["id"], &part["name"], &part["input"]),
                        _ if called.is_object() => self.call(&called["id"], &called["name"], &called["args"]),
                        _ if part["thought"] == true => self.parts.extend(thinking_part(&part["text"])),
                        _ => self.parts.extend(content(part)),
                    }
                }
            }
            words => self.parts.extend(text_part(words)),
        }
        for call in list(&message["tool_calls"]) {
            self.call(&call["id"], &call["function"]["name"], &call["function"]["arguments"]);
        }
    }

    fn call(&mut self, id: &Value, name: &Value, input: &Value) {
        let parsed = input.as_str().and_then(|text| serde_json::from_str(text).ok());
        let call = self.log.call(id.as_str(), name.as_str(), parsed.as_ref().unwrap_or(input));
        self.parts.push(call);
    }

    fn result(&mut self, call: &Value, printed: &Value, is_error: bool) {
        self.flush();
        let content = match printed {
            Value::Object(_) => vec![text(printed.to_string())],
            printed => contents(printed, content),
        };
        let begins = content.first().and_then(Content::as_text).is_some_and(|text| text.starts_with(FAILED));
        let status = if is_error || begins { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
        self.log.outcome(call.as_str(), status, outcome_content(content), None);
    }

    /// Completes the reply.
    fn flush(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        if !parts.is_empty() {
            self.log.reply(parts, &self.model, None, None);
        }
    }
}

/// Converts a text, an image or a document.
fn content(part: &Value) -> Option<Content> {
    let (source, data) = (&part["source"], &part["inlineData"]);
    if let Some(words) = text_part(&part["text"]) {
        return Some(words);
    }
    let url = part["image_url"].as_str().or_else(|| part["image_url"]["url"].as_str());
    match url {
        Some(url) => data_url_part(url, None),
        None if data.is_object() => file_part(data["mimeType"].as_str()?, data["data"].as_str()?, None),
        None => file_part(source["media_type"].as_str()?, source["data"].as_str()?, None),
    }
}
