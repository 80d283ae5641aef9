//! The messages of a request to a model, as Anthropic's Messages, OpenAI's Chat Completions or OpenAI's Responses take them:
//! an array, or an object with `messages` or `input`. Each message is read by its own form; that of Gemini is known, too,
//! because kodelet stores it.
//!
//! What stays with the program that sends the request (system and developer messages, encrypted reasoning) is left out.

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, arguments, begins_with, contents, document, list, model_name, outcome_content, text,
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
    let log = Builder::new(None, None, context);
    let mut reader = MessagesReader::new(log, model_name(None, "unknown", model));
    reader.messages(messages);
    reader.log
}

/// Start of the result of a call that failed, as kodelet and Cline write it.
const FAILED: &str = "<error>";

/// Adds messages to a log.
pub(super) struct MessagesReader {
    pub log: Builder,
    model: String,
    /// The parts of a reply that may be incomplete: OpenAI's Responses have an item for each.
    parts: Vec<Content>,
}

impl MessagesReader {
    pub fn new(log: Builder, model: String) -> MessagesReader {
        MessagesReader { log, model, parts: Vec::new() }
    }

    pub fn messages(&mut self, messages: &[Value]) {
        messages.iter().for_each(|message| self.message(message));
        self.flush();
    }

    fn message(&mut self, message: &Value) {
        match (message["type"].as_str(), message["role"].as_str()) {
            (Some("reasoning"), _) => self.parts.extend(thinking_part(&message["content"])),
            (Some("function_call"), _) => {
                self.call(&message["call_id"], &message["name"], &message["arguments"]);
            }
            (Some("function_call_output"), _) => {
                let printed = &message["output"];
                let printed = if printed.is_null() { &message["raw_output"] } else { printed };
                self.result(&message["call_id"], printed, false);
            }
            (None | Some("message"), Some("user")) => self.user(message),
            (kind @ (None | Some("message")), Some("assistant" | "model")) => {
                if kind.is_none() {
                    self.flush();
                }
                self.reply(message);
            }
            (_, Some("tool")) => self.result(&message["tool_call_id"], &message["content"], false),
            (_, Some("system" | "developer")) => {}
            (kind, role) => self.log.left_out_kind("messages", kind.or(role).unwrap_or("without a role")),
        }
    }

    /// The parts of a message, in the form of any provider. kodelet also stores OpenAI's own item.
    fn parts_of(message: &Value) -> &Value {
        let forms = [&message["raw_item"]["content"], &message["parts"]];
        forms.into_iter().find(|parts| !parts.is_null()).unwrap_or(&message["content"])
    }

    fn user(&mut self, message: &Value) {
        self.flush();
        let parts = Self::parts_of(message);
        for part in list(parts) {
            let answer = &part["functionResponse"];
            if part["type"] == "tool_result" {
                self.result(&part["tool_use_id"], &part["content"], part["is_error"] == true);
            } else if answer.is_object() {
                let printed = &answer["response"];
                let mut texts = ["output", "result", "error"].map(|key| &printed[key]).into_iter();
                let text = texts.find(|text| text.is_string());
                self.result(&answer["id"], text.unwrap_or(printed), printed["error"].is_string());
            }
        }
        self.log.prompt(contents(parts));
    }

    fn reply(&mut self, message: &Value) {
        self.parts.extend(thinking_part(&message["reasoning_content"]));
        let parts = Self::parts_of(message);
        self.parts.extend(text_part(parts));
        for part in list(parts) {
            let called = &part["functionCall"];
            match part["type"].as_str() {
                Some("thinking") => self.parts.extend(thinking_part(&part["thinking"])),
                Some("tool_use") => self.call(&part["id"], &part["name"], &part["input"]),
                Some("redacted_thinking") => {}
                _ if called.is_object() => self.call(&called["id"], &called["name"], &called["args"]),
                _ if part["thought"] == true => self.parts.extend(thinking_part(&part["text"])),
                _ if part["text"].is_string() => self.parts.extend(text_part(&part["text"])),
                kind => match super::part(part) {
                    Some(content) => self.parts.push(content),
                    None => self.log.left_out_kind("parts of replies", kind.unwrap_or("without a kind")),
                },
            }
        }
        for call in list(&message["tool_calls"]) {
            self.call(&call["id"], &call["function"]["name"], &call["function"]["arguments"]);
        }
    }

    fn call(&mut self, id: &Value, name: &Value, input: &Value) {
        let call = self.log.call(id.as_str(), name.as_str(), &arguments(input));
        self.parts.push(call);
    }

    fn result(&mut self, id: &Value, printed: &Value, is_error: bool) {
        self.flush();
        let content = match printed {
            Value::Object(_) => vec![text(printed.to_string())],
            printed => contents(printed),
        };
        let is_error = is_error || content.first().is_some_and(|part| begins_with(part, &[FAILED]));
        let status = if is_error { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
        self.log.outcome(id.as_str(), status, outcome_content(content), None);
    }

    /// Completes the reply.
    fn flush(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        if !parts.is_empty() {
            self.log.reply(parts, &self.model, None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Regression: of the calls that a model made at once, each was a reply of its own, so that all but the last one had lost
    /// their results.
    #[test]
    fn calls_that_were_made_at_once_are_one_reply() {
        let call = |id: &str| {
            format!(r#"{{"type":"function_call","call_id":"{id}","name":"bash","arguments":"{{}}"}}"#)
        };
        let output =
            |id: &str| format!(r#"{{"type":"function_call_output","call_id":"{id}","output":"of {id}"}}"#);
        let text = format!(
            r#"[{{"role":"user","content":"Go."}},{},{},{},{}]"#,
            call("a"),
            call("b"),
            output("a"),
            output("b")
        );
        let context = ImportContext { cwd: Path::new("/w"), now: 0, read_sibling: &|_| None };
        let draft = read(ImportFile { path: Path::new("x") }, &text, &context).expect("a request");
        let outcomes = draft.entries.iter().filter_map(|entry| entry.change.outcome());
        assert_eq!(outcomes.map(|outcome| outcome.model_text()).collect::<Vec<_>>(), ["of a", "of b"]);
        assert_eq!(draft.notes, Vec::<String>::new());
    }
}
