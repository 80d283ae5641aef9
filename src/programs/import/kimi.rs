//! Sessions of Kimi Code (`wire.jsonl`, records of what happened) and of Kimi CLI, which came before it (`context.jsonl`, the
//! messages that the model gets).
//!
//! - A reply is a series of events: pieces of text and thinking, calls, and the end of a step. Some versions repeat it as a
//!   message after them.
//! - `context.undo` removes the last turns, but none before a compaction.
//! - Messages with another `origin` than the user, and those that begin with `<system`, are the program's.

use std::path::Path;

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, arguments, begins_with, contents_of, list, model_name, text_of, thinking_part,
    token_counts, tokens, trigger_of, with_cache,
};
use epitome_thread::{Content, OutcomeStatus, StopReason, Trigger};
use epitome_transfer::ImportFile;

/// The author of messages that the program added.
const BY: &str = "Kimi";

/// Roles of the lines of `context.jsonl` that are no messages.
const MARKERS: [&str; 3] = ["_system_prompt", "_checkpoint", "_usage"];

/// Precedes the session's directory in the system prompt of Kimi CLI.
const DIRECTORY: &str = "working directory is `";

/// Whether a line is one of a session's file.
pub(super) fn is_record(value: &Value) -> bool {
    match value["type"].as_str() {
        Some("metadata") => value["protocol_version"].is_string(),
        Some(kind) => kind.starts_with("context.append_"),
        None => value["role"].as_str().is_some_and(|role| MARKERS.contains(&role)),
    }
}

pub(super) fn read(records: Vec<Value>, file: ImportFile, context: &ImportContext) -> Builder {
    let (records, undone) = without_undone(records);
    let cwd = records.iter().find_map(|record| match text_of(&record["content"]) {
        Some(prompt) if record["role"] == "_system_prompt" => {
            prompt.split_once(DIRECTORY)?.1.split_once('`').map(|(directory, _)| directory)
        }
        _ => text_of(&record["cwd"]).filter(|_| record["type"] == "config.update"),
    });
    let at = records.iter().find_map(|record| record["time"].as_u64().or(record["created_at"].as_u64()));
    let mut reader =
        KimiReader { log: Builder::new(cwd, at, context), has_events: false, trigger: Trigger::Threshold };
    reader.log.model(model_name(None, "kimi", None));
    records.iter().for_each(|record| reader.record(record));
    let mut log = reader.log;
    log.left_out_times(undone, "records that were undone");
    log.foreign_id(session_of(file.path).unwrap_or_default());
    log
}

/// A session is a directory. In that of Kimi Code, each agent has one of its own.
fn session_of(path: &Path) -> Option<&str> {
    let directory = path.parent()?;
    let is_of_agent = directory.parent().is_some_and(|parent| parent.ends_with("agents"));
    let session = if is_of_agent { directory.parent()?.parent()? } else { directory };
    session.file_name()?.to_str()
}

/// Returns the records without those of turns that were undone, and the number of the latter.
fn without_undone(records: Vec<Value>) -> (Vec<Value>, usize) {
    let (mut kept, mut undone): (Vec<Value>, usize) = (Vec::new(), 0);
    for record in records {
        if record["type"] != "context.undo" {
            kept.push(record);
            continue;
        }
        for _ in 0..tokens(&record["count"]) {
            let is_floor = |record: &Value| {
                matches!(record["type"].as_str(), Some("context.apply_compaction" | "context.clear"))
            };
            let floor = kept.iter().rposition(is_floor).map_or(0, |at| at + 1);
            let is_prompt = |record: &Value| {
                let message = &record["message"];
                message["role"] == "user" && is_of_user(message)
            };
            let Some(at) = kept[floor..].iter().rposition(is_prompt) else { break };
            undone += kept.len() - floor - at;
            kept.truncate(floor + at);
        }
    }
    (kept, undone)
}

fn is_of_user(message: &Value) -> bool {
    message["origin"]["kind"].as_str().is_none_or(|kind| kind == "user")
}

struct KimiReader {
    log: Builder,
    /// Whether events have shown the replies of this turn.
    has_events: bool,
    /// The trigger of the next compaction.
    trigger: Trigger,
}

impl KimiReader {
    fn record(&mut self, record: &Value) {
        self.log.at(record["time"].as_u64());
        match record["type"].as_str() {
            None if record["role"].is_string() => self.message(record),
            None => self.log.left_out("records without a type"),
            Some("context.append_message") => self.message(&record["message"]),
            Some("context.append_loop_event") => self.event(&record["event"]),
            Some("config.update") => {
                if let Some(model) = text_of(&record["modelAlias"]) {
                    let (provider, name) = model.split_once('/').unwrap_or(("kimi", model));
                    self.log.model(model_name(Some(provider), "kimi", Some(name)));
                }
            }
            Some("full_compaction.begin") => self.trigger = trigger_of(&record["source"]),
            Some("context.apply_compaction") => {
                let trigger = std::mem::replace(&mut self.trigger, Trigger::Threshold);
                match text_of(&record["contextSummary"]).or(text_of(&record["summary"])) {
                    Some(summary) => {
                        self.log.summarized(None, summary, trigger, tokens(&record["tokensBefore"]));
                    }
                    None => self.log.left_out("compactions without a summary"),
                }
            }
            Some("turn.ended") => {
                let is_cancelled = record["reason"] == "cancelled";
                self.log.turn_ended(if is_cancelled { StopReason::Cancelled } else { StopReason::EndTurn });
            }
            // Other records are part of the conversation only if they have a message.
            Some(kind) if kind.starts_with("context.") || record["message"].is_object() => {
                self.log.left_out_kind("records", kind);
            }
            Some(_) => {}
        }
    }

    fn message(&mut self, message: &Value) {
        let content = contents_of(&message["content"], part);
        match message["role"].as_str().unwrap_or_default() {
            "user" => {
                let is_of_program = content.first().is_some_and(|part| begins_with(part, &["<system"]));
                if is_of_program || !is_of_user(message) {
                    return self.log.context(content, BY);
                }
                self.has_events = false;
                self.log.prompt(content);
            }
            // The events have shown these already.
            "assistant" | "tool" if self.has_events => {}
            "assistant" => {
                self.log.take_reply();
                self.log.add(content);
                for call in list(&message["toolCalls"]).chain(list(&message["tool_calls"])) {
                    let function = if call["function"].is_object() { &call["function"] } else { call };
                    self.log.call(&call["id"], &function["name"], &arguments(&function["arguments"]));
                }
                self.log.replied(None, None);
            }
            "tool" => {
                let call = message["toolCallId"].as_str().or(message["tool_call_id"].as_str());
                let is_error = content.first().is_some_and(|part| begins_with(part, &["<system>ERROR"]));
                self.outcome(call, is_error, content);
            }
            marker if MARKERS.contains(&marker) => {}
            role => self.log.left_out_kind("messages", role),
        }
    }

    fn event(&mut self, event: &Value) {
        self.has_events = true;
        match event["type"].as_str().unwrap_or_default() {
            "step.begin" => self.log.replied(None, None),
            "content.part" => match part(&event["part"]) {
                Some(part) => self.log.add_piece(part),
                None => {
                    let kind = event["part"]["type"].as_str().unwrap_or("without a type");
                    self.log.left_out_kind("parts of replies", kind);
                }
            },
            "tool.call" => self.log.call(&event["toolCallId"], &event["name"], &event["args"]),
            "tool.result" => {
                let result = &event["result"];
                let content = contents_of(&result["output"], part);
                self.outcome(event["toolCallId"].as_str(), result["isError"] == true, content);
            }
            "step.end" => {
                let names = ["inputOther", "output", "inputCacheRead", "inputCacheCreation", ""];
                // A step may end after the results of its calls.
                self.log.replied(token_counts(&event["usage"], names).map(with_cache), None);
            }
            kind => self.log.left_out_kind("events", kind),
        }
    }

    fn outcome(&mut self, call: Option<&str>, is_error: bool, content: Vec<Content>) {
        let status = if is_error { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
        self.log.outcome(call, status, content, None);
    }
}

/// A part of a message or of a result; `None` for a kind that is no content, or a blank one.
fn part(part: &Value) -> Option<Content> {
    match part["type"].as_str()? {
        // A piece of a text may be blank.
        "text" => part["text"].as_str().filter(|text| !text.is_empty()).map(super::text),
        "think" => thinking_part(&part["think"]).or(thinking_part(&part["text"])),
        _ => super::part(part),
    }
}
