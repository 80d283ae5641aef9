//! Sessions of opencode, in the format of `opencode export`: `{info, messages: [{info, parts}]}`. Its
//! database and the folders of older versions are converted to this format when they are read.
//!
//! - A reply contains its calls and their results as parts, in steps. Each step is imported as a reply.
//! - A compaction is a user message with a `compaction` part, which may name the first message to keep, and a
//!   reply with the summary.
//! - `revert` names the message from which on the user undid everything.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use super::build::{Builder, ForeignCall};
use super::{Circumstances, Draft, File, Source, text, text_of};
use epitome_problem::Problem;
use epitome_thread::{Content, Cut, OutcomeContent, OutcomeStatus, Seq, StopReason, Trigger, Usage};

/// The author of messages that opencode added itself.
const BY: &str = "opencode";

/// Prefixes of titles of unnamed sessions.
const UNTITLED: [&str; 2] = ["New session - ", "Child session - "];

/// Start of the result of a call that the user or a rule refused.
const REFUSED: [&str; 2] = [
    "The user rejected permission to use this specific tool call",
    "The user has specified a rule which prevents you from using this specific tool call",
];

/// The result of a call that was aborted.
const ABORTED: &str = "Tool execution aborted";

/// Types of parts that are not part of the conversation.
const SILENT: [&str; 5] = ["step-finish", "snapshot", "patch", "retry", "agent"];

pub(super) fn read(file: File, text: &str, circumstances: &Circumstances) -> Result<Draft, Problem> {
    let session = file.document(text)?;
    let info = &session["info"];
    let messages: &[Value] = session["messages"].as_array().map_or(&[], Vec::as_slice);
    let cwd = info["directory"].as_str().map_or_else(|| circumstances.cwd.to_path_buf(), PathBuf::from);
    let started = info["time"]["created"].as_u64().unwrap_or(circumstances.now);
    let mut reader = Reader {
        log: Builder::new(&cwd, started),
        first: HashMap::new(),
        compaction: None,
        content: Vec::new(),
    };
    let taken_back = &info["revert"];
    for (at, message) in messages.iter().enumerate() {
        let is_taken_back = |value: &Value| value.is_string() && *value == message["info"]["id"];
        if is_taken_back(&taken_back["messageID"]) {
            if let Some(part) = taken_back["partID"].as_str() {
                reader.message(message, Some(part));
            }
            for _ in at..messages.len() {
                reader.log.left_out("messages that were taken back");
            }
            break;
        }
        reader.message(message, None);
    }
    if reader.log.is_empty() {
        return Err(file.problem(1, "nothing is said in this session"));
    }
    let title =
        text_of(&info["title"]).filter(|title| !UNTITLED.iter().any(|start| title.starts_with(start)));
    reader.log.title(title.unwrap_or_default());
    reader.log.foreign_id(info["id"].as_str().unwrap_or_default());
    if let Some(unreadable) = session["unreadable"].as_u64().filter(|count| *count > 0) {
        reader.log.remark(format!("{unreadable} records of it can't be read and were left out"));
    }
    Ok(reader.log.finish(Source::Opencode))
}

struct Reader {
    log: Builder,
    /// The first entry of each message, for compactions.
    first: HashMap<String, Seq>,
    /// The first message that the most recently requested compaction keeps, and its trigger.
    compaction: Option<(Option<String>, Trigger)>,
    /// The contents of the current step.
    content: Vec<Content>,
}

impl Reader {
    /// Reads a message, up to the part with the id `end`.
    fn message(&mut self, message: &Value, end: Option<&str>) {
        let info = &message["info"];
        if let Some(at) = info["time"]["created"].as_u64() {
            self.log.at(at);
        }
        if let Some(id) = info["id"].as_str() {
            self.first.insert(id.to_owned(), self.log.next_seq());
        }
        let parts = message["parts"].as_array().into_iter().flatten();
        let parts: Vec<&Value> =
            parts.take_while(|part| end.is_none() || part["id"].as_str() != end).collect();
        match info["role"].as_str() {
            Some("user") => self.prompt(&parts),
            Some("assistant") if info["summary"] == true => self.summary(info, &parts),
            Some("assistant") => self.reply(info, &parts),
            Some(_) | None => self.log.left_out("messages of an unknown role"),
        }
    }

    fn prompt(&mut self, parts: &[&Value]) {
        let mut said = Vec::new();
        let mut told = Vec::new();
        for part in parts {
            match part["type"].as_str() {
                Some("text") if part["ignored"] == true => {}
                Some("text") => {
                    let content = if part["synthetic"] == true { &mut told } else { &mut said };
                    content.extend(text_of(&part["text"]).map(text));
                }
                Some("file") => match attachment(part) {
                    Some(content) => said.push(content),
                    None => self.log.left_out("attachments of a form that is not known here"),
                },
                Some("subtask") => said.extend(text_of(&part["prompt"]).map(text)),
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
        if !said.is_empty() {
            self.log.prompt(said);
        }
        if !told.is_empty() {
            self.log.context(told, BY);
        }
    }

    /// Reads the reply to a compaction. A failed compaction is left out.
    fn summary(&mut self, info: &Value, parts: &[&Value]) {
        let (kept, trigger) = self.compaction.take().unwrap_or((None, Trigger::Threshold));
        let texts: Vec<&str> = parts
            .iter()
            .filter_map(|part| match part["type"].as_str() {
                Some("text") => text_of(&part["text"]),
                Some(_) | None => None,
            })
            .collect();
        if let Some(usage) = usage(&info["tokens"]) {
            self.log.spent(&usage);
        }
        if !info["error"].is_null() || texts.is_empty() {
            return self.log.left_out("compactions that failed");
        }
        let summary = format!("A summary of what was said and done so far:\n\n{}", texts.join("\n\n"));
        let kept = kept.and_then(|id| self.first.get(&id)).map(|first| Seq(first.0.saturating_sub(1)));
        let tokens_before = info["tokens"]["total"].as_u64().unwrap_or_default();
        self.log.compacted(kept, summary, trigger, tokens_before);
    }

    fn reply(&mut self, info: &Value, parts: &[&Value]) {
        let model = model(info);
        let mut results = Vec::new();
        for part in parts {
            match part["type"].as_str() {
                Some("step-start") if !results.is_empty() => {
                    self.step(&model, None, None);
                    self.results(std::mem::take(&mut results));
                }
                Some("step-start") => {}
                Some("text") => self.content.extend(text_of(&part["text"]).map(text)),
                Some("reasoning") => self.content.extend(
                    text_of(&part["text"])
                        .map(|thought| Content::Thinking { text: thought.to_owned(), native: None }),
                ),
                Some("tool") => {
                    let state = &part["state"];
                    self.content.push(self.log.call(ForeignCall {
                        id: part["callID"].as_str().unwrap_or_default().to_owned(),
                        name: part["tool"].as_str().unwrap_or("tool").to_owned(),
                        title: None,
                        kind: None,
                        locations: Vec::new(),
                        input: state["input"].clone(),
                    }));
                    results.push(*part);
                }
                other => self.unknown(other),
            }
        }
        let (cut, end) = ended(info);
        let has_calls = !results.is_empty();
        self.step(&model, usage(&info["tokens"]), cut);
        self.results(results);
        match end {
            Some(StopReason::EndTurn | StopReason::MaxTokens) if has_calls => {}
            Some(end) => self.log.turn_ended(end),
            None => {}
        }
    }

    fn step(&mut self, model: &str, usage: Option<Usage>, cut: Option<Cut>) {
        let content = std::mem::take(&mut self.content);
        self.log.reply(content, model, usage, cut);
    }

    fn results(&mut self, parts: Vec<&Value>) {
        for part in parts {
            let state = &part["state"];
            let (status, words) = match state["status"].as_str() {
                Some("completed") => (OutcomeStatus::Completed, &state["output"]),
                Some("error") => {
                    let words = state["error"].as_str().unwrap_or_default();
                    let status = match words {
                        words if REFUSED.iter().any(|start| words.starts_with(start)) => {
                            OutcomeStatus::Denied
                        }
                        words if words.starts_with(ABORTED) => OutcomeStatus::Interrupted,
                        _ => OutcomeStatus::Failed,
                    };
                    (status, &state["error"])
                }
                // Still running; the builder adds an outcome.
                Some(_) | None => continue,
            };
            let words = text_of(words).map(|words| OutcomeContent::Text { text: words.to_owned() });
            let images = state["attachments"].as_array().into_iter().flatten();
            let images = images.filter_map(|file| match attachment(file)? {
                Content::Image { mime_type, data, .. } => Some(OutcomeContent::Image { mime_type, data }),
                Content::Document { mime_type, data, name } => {
                    Some(OutcomeContent::Document { mime_type, data, name })
                }
                _ => None,
            });
            if let Some(at) = state["time"]["end"].as_u64() {
                self.log.at(at);
            }
            let id = part["callID"].as_str().unwrap_or_default();
            let told = self.log.outcome(id, status, words.into_iter().chain(images).collect());
            if let (Some(_), Some(code)) = (told, state["metadata"]["exit"].as_i64()) {
                self.log.exit_code(code);
            }
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

/// An attached file: its contents from a data URL, or a link.
fn attachment(part: &Value) -> Option<Content> {
    let url = part["url"].as_str()?;
    let name = part["filename"].as_str().map(str::to_owned);
    let Some(data) = url.strip_prefix("data:") else {
        let name = name.unwrap_or_else(|| url.to_owned());
        return Some(Content::ResourceLink { uri: url.to_owned(), name });
    };
    let (form, data) = data.split_once(',')?;
    let mime_type = form.strip_suffix(";base64")?.to_owned();
    let data = data.to_owned();
    match mime_type.as_str() {
        "application/pdf" => Some(Content::Document { mime_type, data, name }),
        mime if mime.starts_with("image/") => Some(Content::Image { mime_type, data, uri: None }),
        _ => None,
    }
}

/// The way in which a reply, and its turn, ended.
fn ended(info: &Value) -> (Option<Cut>, Option<StopReason>) {
    let error = &info["error"];
    match (error["name"].as_str(), info["finish"].as_str()) {
        (Some("MessageAbortedError"), _) => (Some(Cut::Cancelled), Some(StopReason::Cancelled)),
        (Some("MessageOutputLengthError"), _) | (None, Some("length")) => {
            (Some(Cut::MaxTokens), Some(StopReason::MaxTokens))
        }
        (Some(name), _) => {
            let reason = error["data"]["message"].as_str().unwrap_or(name).to_owned();
            (Some(Cut::Broken { reason }), Some(StopReason::Failed))
        }
        (None, Some("stop")) => (None, Some(StopReason::EndTurn)),
        // The turn continues with the results of its calls.
        (None, _) => (None, None),
    }
}

/// `provider/model`, with our names for providers.
fn model(info: &Value) -> String {
    let provider = match info["providerID"].as_str() {
        Some("google") => "gemini",
        Some(provider) => provider,
        None => BY,
    };
    format!("{provider}/{}", info["modelID"].as_str().unwrap_or("unknown"))
}

/// opencode counts cached tokens separately from the input and thinking separately from the output; we
/// include both.
fn usage(tokens: &Value) -> Option<Usage> {
    let count = super::tokens;
    let (cache_read, cache_write) = (count(&tokens["cache"]["read"]), count(&tokens["cache"]["write"]));
    let thinking = count(&tokens["reasoning"]);
    tokens.is_object().then(|| Usage {
        input: count(&tokens["input"]) + cache_read + cache_write,
        output: count(&tokens["output"]) + thinking,
        cache_read,
        cache_write,
        thinking,
    })
}
