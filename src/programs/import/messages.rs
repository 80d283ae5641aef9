//! The messages of a request to a model, as Anthropic's Messages, OpenAI's Chat Completions or OpenAI's Responses take them:
//! an array, or an object with `messages` or `input`. Each message is read by its own form; that of Gemini is known, too,
//! because kodelet stores it.
//!
//! What stays with the program that sends the request (system and developer messages, encrypted reasoning) is left out.

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, arguments, begins_with, contents, list, model_name, text, text_part, thinking_part,
};
use epitome_thread::OutcomeStatus;
use epitome_transfer::ImportFile;

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
pub(super) fn messages_of(value: &Value) -> Option<&Vec<Value>> {
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

pub(super) fn read(request: &Value, _: ImportFile, context: &ImportContext) -> Builder {
    let mut log = Builder::new(None, None, context);
    log.model(model_name(None, "unknown", request["model"].as_str()));
    messages_of(request).into_iter().flatten().for_each(|message| add(&mut log, message));
    log
}

/// Starts of the results of calls that failed, as kodelet, Cline and Claude Code write them.
const FAILED: [&str; 2] = ["<error>", "<tool_use_error>"];

/// Start of a message that Claude Code writes for the user, with a summary.
const CONTINUED: &str = "This session is being continued from a previous conversation";

/// Adds a message to a log. OpenAI's Responses have an item for each part of a reply.
pub(super) fn add(log: &mut Builder, message: &Value) {
    match (message["type"].as_str(), message["role"].as_str()) {
        (Some("reasoning"), _) => log.add(thinking_part(&message["content"])),
        (Some("function_call"), _) => {
            log.call(&message["call_id"], &message["name"], &arguments(&message["arguments"]));
        }
        (Some("function_call_output"), _) => {
            let printed = &message["output"];
            let printed = if printed.is_null() { &message["raw_output"] } else { printed };
            result(log, &message["call_id"], printed, false);
        }
        (None | Some("message"), Some("user")) => {
            let parts = parts_of(message);
            list(parts).for_each(|part| result_part(log, part));
            let (written, typed): (Vec<_>, Vec<_>) =
                contents(parts).into_iter().partition(|part| begins_with(part, &[CONTINUED]));
            log.context(written, "Claude Code");
            log.prompt(typed);
        }
        (kind @ (None | Some("message")), Some("assistant" | "model")) => {
            if kind.is_none() {
                log.replied(None, None);
            }
            log.add(thinking_part(&message["reasoning_content"]));
            let parts = parts_of(message);
            log.add(text_part(parts));
            log.add_parts(list(parts));
            for call in list(&message["tool_calls"]) {
                let function = &call["function"];
                log.call(&call["id"], &function["name"], &arguments(&function["arguments"]));
            }
        }
        (_, Some("tool")) => result(log, &message["tool_call_id"], &message["content"], false),
        (_, Some("system" | "developer")) => {}
        (kind, role) => log.left_out_kind("messages", kind.or(role).unwrap_or("without a role")),
    }
}

/// The parts of a message, in the form of any provider. kodelet also stores OpenAI's own item.
fn parts_of(message: &Value) -> &Value {
    let forms = [&message["raw_item"]["content"], &message["parts"]];
    forms.into_iter().find(|parts| !parts.is_null()).unwrap_or(&message["content"])
}

/// Adds a result within a message of the user.
fn result_part(log: &mut Builder, part: &Value) {
    let answer = &part["functionResponse"];
    if part["type"] == "tool_result" {
        result(log, &part["tool_use_id"], &part["content"], part["is_error"] == true);
    } else if answer.is_object() {
        let printed = &answer["response"];
        let mut texts = ["output", "result", "error"].map(|key| &printed[key]).into_iter();
        let text = texts.find(|text| text.is_string());
        result(log, &answer["id"], text.unwrap_or(printed), printed["error"].is_string());
    }
}

fn result(log: &mut Builder, id: &Value, printed: &Value, is_error: bool) {
    let content = match printed {
        Value::Object(_) => vec![text(printed.to_string())],
        printed => contents(printed),
    };
    let is_error = is_error || content.first().is_some_and(|part| begins_with(part, &FAILED));
    let status = if is_error { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
    log.outcome(id.as_str(), status, content, None);
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
        let draft = super::super::read_request(Path::new("x"), &text, &context).expect("a request");
        let outcomes = draft.entries.iter().filter_map(|entry| entry.change.outcome());
        assert_eq!(outcomes.map(|outcome| outcome.model_text()).collect::<Vec<_>>(), ["of a", "of b"]);
        assert_eq!(draft.notes, Vec::<String>::new());
    }

    /// Regression: the summary that Claude Code writes for the user in a request counted as the user's words, and a refused edit as
    /// one that was made.
    #[test]
    fn a_summary_by_claude_code_is_not_the_users_and_a_tool_error_is_one() {
        let text = r#"{"model":"m","messages":[
            {"role":"user","content":"This session is being continued from a previous conversation that ran out of context. So far: x"},
            {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"Edit","input":{}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"<tool_use_error>File has changed</tool_use_error>"}]},
            {"role":"user","content":"Go on."}]}"#;
        let context = ImportContext { cwd: Path::new("/w"), now: 0, read_sibling: &|_| None };
        let draft = super::super::read_request(Path::new("x"), text, &context).expect("a request");
        let prompts = draft.entries.iter().filter(|entry| entry.change.is_prompt()).count();
        let outcome = draft.entries.iter().find_map(|entry| entry.change.outcome()).expect("a result");
        assert_eq!((prompts, outcome.status), (1, OutcomeStatus::Failed));
    }
}
