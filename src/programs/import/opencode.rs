//! Sessions of opencode, in the format of `opencode export`: `{info, messages: [{info, parts}]}`. Its database and
//! the directories of older versions are converted to this format when they are read.
//!
//! - A reply contains its calls and their results as parts, in steps. Each step is imported as a reply.
//! - A compaction is a user message with a `compaction` part, which may name the first message to keep, and a reply
//!   with the summary.
//! - `revert` names the message from which the user reverted everything.
//! - The messages of version 2 have a `type` instead of a role, and other fields.

use serde_json::{Value, json};

use super::builder::Builder;
use super::{
    ImportContext, data_url_part, list, model_name, ran, text_of, text_part, thinking_part, tokens,
    with_cache, with_thinking,
};
use epitome_thread::{Content, OutcomeStatus, ReplyCut, StopReason, Trigger, Usage};
use epitome_transfer::ImportFile;

/// The author of messages that opencode added.
const BY: &str = "opencode";

/// Prefixes of titles of unnamed sessions.
const UNTITLED: [&str; 2] = ["New session - ", "Child session - "];

/// Start of the result of a call that the user or a rule refused.
const REFUSED: [&str; 2] = [
    "The user rejected permission to use this specific tool call",
    "The user has specified a rule which prevents you from using this specific tool call",
];

/// The error of a reply that the user cancelled.
const ABORTED_ERROR: &str = "MessageAbortedError";

/// The result of an aborted call.
const ABORTED: &str = "Tool execution aborted";

/// Types of parts that are not part of the conversation.
const SILENT: [&str; 5] = ["step-finish", "snapshot", "patch", "retry", "agent"];

pub(super) fn read(session: &Value, _: ImportFile, context: &ImportContext) -> Builder {
    let info = &session["info"];
    let messages: Vec<&Value> = list(&session["messages"]).collect();
    let mut reader = OpencodeReader {
        log: Builder::new(info["directory"].as_str(), info["time"]["created"].as_u64(), context),
        compaction: None,
    };
    let revert = &info["revert"];
    for (at, message) in messages.iter().enumerate() {
        if revert["messageID"].is_string() && revert["messageID"] == *about(message, "id") {
            if let Some(part) = revert["partID"].as_str() {
                reader.message(message, Some(part));
            }
            reader.log.left_out_times(messages.len() - at, "messages that were undone");
            break;
        }
        reader.message(message, None);
    }
    let title =
        text_of(&info["title"]).filter(|title| !UNTITLED.iter().any(|start| title.starts_with(start)));
    let mut log = reader.log;
    log.title(title.unwrap_or_default());
    log.foreign_id(info["id"].as_str().unwrap_or_default());
    if let Some(unreadable) = session["unreadable"].as_u64().filter(|count| *count > 0) {
        log.remark(format!("{unreadable} records of it can't be read and were left out"));
    }
    log
}

/// A field of a message, which version 1 has in its `info`.
fn about<'a>(message: &'a Value, field: &str) -> &'a Value {
    if message["info"].is_object() { &message["info"][field] } else { &message[field] }
}

fn part_in_version_1(part: &Value) -> Value {
    if part["type"] != "tool" {
        return part.clone();
    }
    let state = &part["state"];
    let texts = || list(&state["content"]).filter_map(|content| text_of(&content["text"]));
    let files: Vec<Value> =
        list(&state["content"]).filter(|content| content["type"] == "file").map(file_in_version_1).collect();
    let error = text_of(&state["error"]["message"]).or_else(|| text_of(&state["error"]));
    let failure: Vec<&str> = error.into_iter().chain(texts()).collect();
    let mut metadata =
        if state["metadata"].is_object() { state["metadata"].clone() } else { state["structured"].clone() };
    json!({
        "type": "tool", "id": part["id"], "callID": part["id"], "tool": part["name"],
        "state": {
            "status": state["status"], "input": state["input"], "metadata": metadata.take(),
            "output": texts().collect::<Vec<_>>().join("\n"), "error": failure.join("\n"),
            "attachments": files, "time": { "end": part["time"]["completed"] },
        },
    })
}

/// Converts a file, whose contents are in `data` or in a URL.
fn file_in_version_1(file: &Value) -> Value {
    let data = file["data"].as_str().filter(|data| !data.is_empty());
    let mime = file["mime"].as_str().unwrap_or_default();
    let url = data.map(|data| json!(format!("data:{mime};base64,{data}")));
    let url = url.unwrap_or_else(|| {
        if file["uri"].is_string() { file["uri"].clone() } else { file["source"]["uri"].clone() }
    });
    json!({ "type": "file", "url": url, "filename": file["name"] })
}

struct OpencodeReader {
    log: Builder,
    /// The first message that the most recently requested compaction keeps, and its trigger.
    compaction: Option<(Option<String>, Trigger)>,
}

impl OpencodeReader {
    /// Reads a message, up to the part with the id `end`.
    fn message(&mut self, message: &Value, end: Option<&str>) {
        let info = &message["info"];
        self.log.at(about(message, "time")["created"].as_u64());
        about(message, "id").as_str().into_iter().for_each(|id| self.log.mark(id));
        if let Some(kind) = message["type"].as_str() {
            return self.message_of_version_2(kind, message);
        }
        let parts: Vec<&Value> =
            list(&message["parts"]).take_while(|part| end.is_none() || part["id"].as_str() != end).collect();
        match info["role"].as_str() {
            Some("user") => self.prompt(&parts),
            Some("assistant") if info["summary"] == true => {
                let texts = parts.iter().filter(|part| part["type"] == "text");
                let texts = texts.filter_map(|part| text_of(&part["text"]));
                self.summary(texts.collect(), &info["tokens"], !info["error"].is_null());
            }
            Some("assistant") => self.reply(info, &parts),
            Some(_) | None => self.log.left_out("messages of an unknown role or type"),
        }
    }

    fn message_of_version_2(&mut self, kind: &str, message: &Value) {
        let text = text_part(&message["text"]);
        match kind {
            "user" => {
                let files = list(&message["files"]).map(file_in_version_1);
                let files = files.filter_map(|file| attachment(&file));
                let prompt = text.into_iter().chain(files).collect();
                self.log.prompt(prompt);
            }
            "synthetic" | "system" | "skill" => self.log.context(Vec::from_iter(text), BY),
            "shell" => {
                let printed = message["output"].as_str().or_else(|| message["output"]["output"].as_str());
                let command = message["command"].as_str().unwrap_or_default();
                self.log.prompt(vec![ran(command, printed.unwrap_or_default())]);
            }
            "compaction" => {
                let is_auto = message["reason"] == "auto";
                self.compaction = Some((None, if is_auto { Trigger::Threshold } else { Trigger::Manual }));
                let texts = [&message["summary"], &message["recent"]].into_iter().filter_map(text_of);
                let is_done = message["status"].as_str().is_none_or(|status| status == "completed");
                self.summary(texts.collect(), &message["tokens"], !is_done);
            }
            "assistant" => {
                let (model, error) = (&message["model"], &message["error"]);
                let error = error.is_object().then(|| {
                    let kind = error["type"].as_str().unwrap_or("error");
                    let is_aborted = ["abort", "interrupt", "cancel"]
                        .iter()
                        .any(|word| kind.to_lowercase().contains(word));
                    let name = if is_aborted { ABORTED_ERROR } else { kind };
                    json!({ "name": name, "data": { "message": error["message"] } })
                });
                let info = json!({
                    "tokens": message["tokens"], "providerID": model["providerID"], "modelID": model["id"],
                    "finish": message["finish"], "error": error,
                });
                let parts: Vec<Value> = list(&message["content"]).map(part_in_version_1).collect();
                self.reply(&info, &parts.iter().collect::<Vec<_>>());
            }
            // Marks in the history, such as the choice of another model.
            "agent-switched" | "model-switched" | "location-switched" | "idle" => {}
            _ => self.log.left_out("messages of an unknown role or type"),
        }
    }

    fn prompt(&mut self, parts: &[&Value]) {
        let mut prompt = Vec::new();
        let mut context = Vec::new();
        for part in parts {
            match part["type"].as_str() {
                Some("text") if part["ignored"] == true => {}
                Some("text") => {
                    let content = if part["synthetic"] == true { &mut context } else { &mut prompt };
                    content.extend(text_part(&part["text"]));
                }
                Some("file") => match attachment(part) {
                    Some(content) => prompt.push(content),
                    None => self.log.left_out("attachments of an unknown form"),
                },
                Some("subtask") => prompt.extend(text_part(&part["prompt"])),
                Some("compaction") => {
                    let trigger = match (part["auto"].as_bool(), part["overflow"].as_bool()) {
                        (_, Some(true)) => Trigger::Overflow,
                        (Some(true), _) => Trigger::Threshold,
                        (Some(false) | None, _) => Trigger::Manual,
                    };
                    self.compaction = Some((part["tail_start_id"].as_str().map(str::to_owned), trigger));
                }
                other => self.unknown(other),
            }
        }
        self.log.prompt(prompt);
        self.log.context(context, BY);
    }

    /// Reads the reply to a compaction. Skips failed compactions.
    fn summary(&mut self, texts: Vec<&str>, tokens: &Value, has_failed: bool) {
        let (kept, trigger) = self.compaction.take().unwrap_or((None, Trigger::Threshold));
        if let Some(usage) = usage(tokens) {
            self.log.spent(&usage);
        }
        if has_failed || texts.is_empty() {
            return self.log.left_out("compactions that failed");
        }
        let kept = kept.and_then(|id| self.log.marked(id));
        let tokens_before = tokens["total"].as_u64().unwrap_or_default();
        self.log.summarized(kept, &texts.join("\n\n"), trigger, tokens_before);
    }

    fn reply(&mut self, info: &Value, parts: &[&Value]) {
        self.log.model(model_name(info["providerID"].as_str(), BY, info["modelID"].as_str()));
        let mut results = Vec::new();
        for part in parts {
            match part["type"].as_str() {
                Some("step-start") if !results.is_empty() => {
                    self.log.replied(None, None);
                    self.results(std::mem::take(&mut results));
                }
                Some("step-start") => {}
                Some("text") => self.log.add(text_part(&part["text"])),
                Some("reasoning") => self.log.add(thinking_part(&part["text"])),
                Some("tool") => {
                    self.log.call(&part["callID"], &part["tool"], &part["state"]["input"]);
                    results.push(*part);
                }
                other => self.unknown(other),
            }
        }
        let (cut, end) = ended(info);
        let has_calls = !results.is_empty();
        self.log.replied(usage(&info["tokens"]), cut);
        self.results(results);
        self.log.reply_ended(end, has_calls);
    }

    fn results(&mut self, parts: Vec<&Value>) {
        for part in parts {
            let state = &part["state"];
            let (status, words) = match state["status"].as_str() {
                Some("completed") => (OutcomeStatus::Completed, &state["output"]),
                Some("error") => {
                    let words = state["error"].as_str().unwrap_or_default();
                    let status = match () {
                        () if REFUSED.iter().any(|start| words.starts_with(start)) => OutcomeStatus::Denied,
                        () if words.starts_with(ABORTED) => OutcomeStatus::Interrupted,
                        () => OutcomeStatus::Failed,
                    };
                    (status, &state["error"])
                }
                // The call is still running; the builder adds an outcome.
                Some(_) | None => continue,
            };
            let files = list(&state["attachments"]).filter_map(attachment);
            let content = text_part(words).into_iter().chain(files).collect();
            self.log.at(state["time"]["end"].as_u64());
            let exit_code = state["metadata"]["exit"].as_i64();
            self.log.outcome(part["callID"].as_str(), status, content, exit_code);
        }
    }

    fn unknown(&mut self, part: Option<&str>) {
        match part {
            Some(part) if SILENT.contains(&part) => {}
            Some(part) => self.log.left_out(&format!("parts of the type {part:?}")),
            None => self.log.left_out("parts without a type"),
        }
    }
}

/// Returns an attached file: its contents from a data URL, or a link.
fn attachment(part: &Value) -> Option<Content> {
    let url = part["url"].as_str()?;
    let name = part["filename"].as_str();
    if url.starts_with("data:") {
        return data_url_part(url, name);
    }
    Some(Content::ResourceLink { uri: url.to_owned(), name: name.unwrap_or(url).to_owned() })
}

/// Returns how a reply and its turn ended.
fn ended(info: &Value) -> (Option<ReplyCut>, Option<StopReason>) {
    let error = &info["error"];
    match (error["name"].as_str(), info["finish"].as_str()) {
        (Some(ABORTED_ERROR), _) => (Some(ReplyCut::Cancelled), Some(StopReason::Cancelled)),
        (Some("MessageOutputLengthError"), _) | (None, Some("length")) => {
            (Some(ReplyCut::MaxTokens), Some(StopReason::MaxTokens))
        }
        (Some(name), _) => {
            let reason = error["data"]["message"].as_str().unwrap_or(name).to_owned();
            (Some(ReplyCut::Broken { reason }), Some(StopReason::Failed))
        }
        (None, Some("stop")) => (None, Some(StopReason::EndTurn)),
        // The turn continues with the results of its calls.
        (None, _) => (None, None),
    }
}

fn usage(value: &Value) -> Option<Usage> {
    let usage = Usage {
        input: tokens(&value["input"]),
        output: tokens(&value["output"]),
        cache_read: tokens(&value["cache"]["read"]),
        cache_write: tokens(&value["cache"]["write"]),
        thinking: tokens(&value["reasoning"]),
        ..Usage::default()
    };
    value.is_object().then(|| with_thinking(with_cache(usage)))
}
