//! The messages of a request to a model, as Anthropic's Messages, OpenAI's Chat Completions or OpenAI's Responses take them:
//! an array, or an object with `messages` or `input`. Each message is read by its own form.
//!
//! What stays with the program that sends the request (system and developer messages, encrypted reasoning) is left out.

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, contents, data_url_part, document, file_part, list, model_name, outcome_content, text_of,
    text_part, thinking_part,
};
use epitome_thread::problem::Problem;
use epitome_thread::{Content, OutcomeStatus};
use epitome_transfer::{ImportDraft, ImportFile, ImportSource};

/// Whether a document consists of messages of which at least one has a form that no agent's file has.
pub(super) fn is_request(value: &Value) -> bool {
    let Some(messages) = messages_of(value) else { return false };
    let is_own = |message: &Value| {
        let role = message["role"].as_str().unwrap_or_default();
        matches!(role, "system" | "developer" | "tool")
            || message["tool_calls"].is_array()
            || message["type"].as_str().is_some_and(|kind| kind.starts_with("function_call"))
    };
    let is_request = value["model"].is_string() && value["sessionId"].is_null() && value["info"].is_null();
    is_request || messages.iter().any(is_own)
}

/// The messages of a request, or the array itself.
fn messages_of(value: &Value) -> Option<&Vec<Value>> {
    value.as_array().or_else(|| value["messages"].as_array()).or_else(|| value["input"].as_array())
}

/// Whether a message has the result of a call, and must therefore stay with the message that has the call.
pub fn is_result(message: &Value) -> bool {
    message["role"] == "tool"
        || message["type"] == "function_call_output"
        || list(&message["content"]).any(|part| part["type"] == "tool_result")
}

/// Whether a message has a call.
pub fn has_call(message: &Value) -> bool {
    message["type"] == "function_call"
        || list(&message["tool_calls"]).next().is_some()
        || list(&message["content"]).any(|part| part["type"] == "tool_use")
}

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let request = document(file, text)?;
    let messages = messages_of(&request).ok_or_else(|| {
        file.problem(1, "this is neither an array of messages nor a request with `messages` or `input`")
    })?;
    log_of(messages, request["model"].as_str(), context).finish(ImportSource::Messages, file, None)
}

pub(super) fn log_of(messages: &[Value], model: Option<&str>, context: &ImportContext) -> Builder {
    let mut reader =
        MessagesReader { log: Builder::new(None, None, context), model: model_name(None, "unknown", model) };
    messages.iter().for_each(|message| reader.message(message));
    reader.log
}

struct MessagesReader {
    log: Builder,
    model: String,
}

impl MessagesReader {
    fn message(&mut self, message: &Value) {
        match (message["role"].as_str(), message["type"].as_str()) {
            (Some("user"), _) => self.user(message),
            (Some("assistant"), _) => self.reply(message),
            (Some("tool"), _) => self.result(&message["tool_call_id"], &message["content"], false),
            (_, Some("function_call")) => {
                let call = self.call(&message["call_id"], message);
                self.log.reply(vec![call], &self.model, None, None);
            }
            (_, Some("function_call_output")) => {
                self.result(&message["call_id"], &message["output"], false);
            }
            (Some("system" | "developer"), _) | (_, Some("reasoning")) => {}
            (Some(other), _) | (None, Some(other)) => {
                self.log.left_out(&format!("messages of the kind {other:?}"));
            }
            (None, None) => self.log.left_out("messages without a role"),
        }
    }

    fn user(&mut self, message: &Value) {
        for part in list(&message["content"]).filter(|part| part["type"] == "tool_result") {
            self.result(&part["tool_use_id"], &part["content"], part["is_error"] == true);
        }
        self.log.prompt(contents(&message["content"], part));
    }

    fn reply(&mut self, message: &Value) {
        let mut content = Vec::from_iter(thinking_part(&message["reasoning_content"]));
        content.extend(text_part(&message["content"]));
        for part in list(&message["content"]) {
            match part["type"].as_str() {
                Some("text" | "output_text") => content.extend(text_part(&part["text"])),
                Some("thinking") => content.extend(thinking_part(&part["thinking"])),
                Some("tool_use") => {
                    let (id, name) = (part["id"].as_str(), part["name"].as_str());
                    content.push(self.log.call(id, name, &part["input"]));
                }
                Some("redacted_thinking") => {}
                Some(other) => self.log.left_out(&format!("parts of replies of the kind {other:?}")),
                None => self.log.left_out("parts of replies without a kind"),
            }
        }
        for call in list(&message["tool_calls"]) {
            let call = self.call(&call["id"], &call["function"]);
            content.push(call);
        }
        self.log.reply(content, &self.model, None, None);
    }

    /// A call of OpenAI's forms, whose arguments are JSON in a text.
    fn call(&mut self, id: &Value, function: &Value) -> Content {
        let arguments = function["arguments"].as_str().unwrap_or_default();
        let input = serde_json::from_str(arguments).unwrap_or_else(|_| function["arguments"].clone());
        self.log.call(id.as_str(), function["name"].as_str(), &input)
    }

    fn result(&mut self, id: &Value, content: &Value, is_error: bool) {
        let status = if is_error { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
        let content = outcome_content(contents(content, part));
        self.log.outcome(id.as_str(), status, content, None);
    }
}

/// A part of a user's message or of a result; `None` for a kind that is no content.
fn part(part: &Value) -> Option<Content> {
    let source = &part["source"];
    match part["type"].as_str()? {
        "text" | "input_text" => text_part(&part["text"]),
        "image" | "document" => {
            file_part(source["media_type"].as_str()?, source["data"].as_str()?, text_of(&part["title"]))
        }
        "image_url" => data_url_part(part["image_url"]["url"].as_str()?, None),
        "input_image" => data_url_part(part["image_url"].as_str()?, None),
        _ => None,
    }
}
