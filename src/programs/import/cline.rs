//! Sessions of Cline and its fork Roo Code: messages in the form in which they were sent.
//!
//! | program | file |
//! | --- | --- |
//! | Cline in an editor and its CLI up to version 2, Roo Code | `api_conversation_history.json`, an array |
//! | Cline's CLI from version 3 on | `ID.messages.json`, an object; the folder is in `ID.json` |
//!
//! - For models without tool support, calls are written as tags in the text. Their results are text too, and follow
//!   `[TOOL for '…'] Result:`, which distinguishes the tags of calls from others. Results of other calls may have that form
//!   too.
//! - Messages that are no longer sent are determined by `conversationHistoryDeletedRange` in `ui_messages.json`
//!   (Cline), or by an inserted message (Roo Code, CLI). A summary, if any, starts with a fixed text or is marked.

use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::builder::Builder;
use super::{ImportContext, joined_text, list, part, text, text_of, thinking, time, token_counts};
use epitome_thread::{
    Change, Content, OutcomeStatus, PlanPriority, PlanStatus, PlanStep, Seq, Trigger, Usage,
};
use epitome_transfer::ImportFile;

/// The author of messages that the user did not type.
const BY: &str = "Cline";

/// Calls that are messages of the agent to the user, with the parameter that contains the text.
const WORDS: [(&str, &str); 4] = [
    ("attempt_completion", "result"),
    ("plan_mode_respond", "response"),
    ("act_mode_respond", "response"),
    ("submit_and_exit", "summary"),
];

/// Parameters whose values may contain tags.
const LONG: [&str; 7] = ["content", "diff", "result", "response", "context", "args", "message"];

/// Tags around the text that the user typed.
const TYPED: [&str; 4] = ["task", "feedback", "user_message", "user_input"];

/// Text that is added to messages and not imported.
const SURROUNDINGS: [&str; 4] = ["<environment_details>", "# task_progress", "# TODO LIST", "# Todo List"];

/// Start of a compaction's summary, which is recorded as the result of a call.
const CONTINUED: &str = "This session is being continued from a previous conversation";

const DENIED: &str = "The user denied this operation";

static RESULT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)^\[([a-z_]+)\b.{0,4000}?\] Result:[ \n]*").expect("a valid pattern"));
static EXIT_CODE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)\bexit(?:ed with)? code:? (\d+)").expect("a valid pattern"));
static FOLDER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^# Current (?:Working|Workspace) Directory \((.+?)\) Files").expect("a valid pattern")
});
static MODEL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"<model>([^<\n]+)</model>").expect("a valid pattern"));
static STEP: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^\s*[-*] \[([ xX~-])\] (.+)$").expect("a valid pattern"));

pub(super) fn read(session: &Value, file: ImportFile, context: &ImportContext) -> Builder {
    let messages = session.as_array().or_else(|| session["messages"].as_array());
    let messages = messages.map_or(&[][..], Vec::as_slice);
    let stem = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let sibling = |name: &str| -> Value {
        let text = (context.read_sibling)(Path::new(name));
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    };
    let about = match stem.strip_suffix(".messages.json") {
        Some(id) => sibling(&format!("{id}.json")),
        None => Value::Null,
    };
    let task = session.is_array().then(|| task_id(file.path)).flatten();
    let cwd = about["cwd"].as_str().map(str::to_owned).or_else(|| find(messages, &FOLDER));
    let started = messages.first().and_then(at).or_else(|| task?.parse().ok());
    let model = find(messages, &MODEL).or_else(|| {
        let used = &sibling("task_metadata.json")["model_usage"];
        let newest = used.as_array()?.last()?;
        Some(format!("{}/{}", newest["model_provider_id"].as_str()?, newest["model_id"].as_str()?))
    });
    let mut reader = ClineReader {
        log: Builder::new(cwd.as_deref(), started, context),
        tags: texts(messages).filter_map(|text| Some(RESULT.captures(text.trim())?[1].to_owned())).collect(),
        deleted: if session.is_array() { deleted(&sibling("ui_messages.json")) } else { Vec::new() },
        open: Vec::new(),
        calls: 0,
        task: None,
        steps: None,
    };
    reader.tags.extend(WORDS.map(|(tool, _)| tool.to_owned()));
    let model = model.unwrap_or_else(|| "unknown".to_owned());
    reader.log.model(if model.contains('/') { model } else { format!("cline/{model}") });
    for (index, message) in messages.iter().enumerate() {
        reader.message(index, message);
    }
    reader.truncated(messages.len());
    let mut log = reader.log;
    log.title(about["metadata"]["title"].as_str().unwrap_or_default());
    log.foreign_id(session["sessionId"].as_str().or(task).unwrap_or_default());
    log
}

/// Returns the id of a task, which is the name of its directory: a timestamp or a UUID.
fn task_id(path: &Path) -> Option<&str> {
    let name = path.parent()?.file_name()?.to_str()?;
    let is_id = name.len() >= 12 && name.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    is_id.then_some(name)
}

/// Returns the first match in the text of the messages.
fn find(messages: &[Value], pattern: &Regex) -> Option<String> {
    texts(messages).find_map(|text| Some(pattern.captures(text)?[1].to_owned()))
}

fn texts(messages: &[Value]) -> impl Iterator<Item = &str> {
    messages.iter().flat_map(blocks).filter_map(block_text)
}

/// For each truncation, returns the index of the message before which it happened, and of the first message that was
/// still sent.
fn deleted(shown: &Value) -> Vec<(usize, usize)> {
    let behind = |index: &Value| usize::try_from(index.as_i64()?.checked_add(1)?).ok();
    let mut deleted: Vec<(usize, usize)> = Vec::new();
    for message in list(shown) {
        let index = behind(&message["conversationHistoryIndex"]);
        let sent = behind(&message["conversationHistoryDeletedRange"][1]);
        if let (Some(index), Some(sent)) = (index, sent)
            && deleted.last().is_none_or(|(_, last)| *last < sent)
        {
            deleted.push((index.max(sent), sent));
        }
    }
    deleted
}

fn at(message: &Value) -> Option<u64> {
    message["ts"].as_u64().or_else(|| time(message))
}

/// Returns the parts of a message; a plain text is a single part.
fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    match &message["content"] {
        Value::Array(blocks) => blocks.as_slice(),
        content => std::slice::from_ref(content),
    }
    .iter()
}

fn block_text(block: &Value) -> Option<&str> {
    match block {
        Value::String(_) => text_of(block),
        block => text_of(&block["text"]),
    }
}

struct ClineReader {
    log: Builder,
    /// The names of the tags that are calls.
    tags: HashSet<String>,
    deleted: Vec<(usize, usize)>,
    /// Calls of the newest reply that have no result yet.
    open: Vec<ClineCall>,
    /// Number of calls so far, for generating ids.
    calls: usize,
    /// The user's first prompt.
    task: Option<String>,
    /// The plan in the newest reply.
    steps: Option<Vec<PlanStep>>,
}

/// A call, which may become several calls in the log.
struct ClineCall {
    /// Its original id; `None` for calls by tags.
    id: Option<String>,
    name: String,
    /// The ids of the resulting calls in the log.
    names: Vec<String>,
}

impl ClineReader {
    fn message(&mut self, index: usize, message: &Value) {
        self.truncated(index);
        self.log.mark(index);
        self.log.at(at(message));
        match message["role"].as_str() {
            _ if message["isTruncationMarker"] == true => self.without_summary(None),
            _ if message["isSummary"] == true || message["metadata"]["kind"] == "compaction_summary" => {
                self.summary(message);
            }
            Some("user") => self.user(message),
            Some("assistant") => self.reply(message),
            Some(_) | None => self.log.left_out("messages of an unknown role"),
        }
    }

    /// Adds the truncations that happened before this message.
    fn truncated(&mut self, index: usize) {
        while let Some((_, sent)) = self.deleted.first().copied().filter(|(at, _)| *at <= index) {
            self.deleted.remove(0);
            self.without_summary(self.log.marked(sent));
        }
    }

    fn without_summary(&mut self, kept: Option<Seq>) {
        if self.log.is_empty() {
            return;
        }
        let mut words =
            "The conversation up to here was left out of the context, without a summary.".to_owned();
        if let Some(task) = &self.task {
            words = format!("{words} It began with:\n\n{task}");
        }
        self.log.compacted(kept, words, Trigger::Threshold, 0);
    }

    fn summary(&mut self, message: &Value) {
        let summary = match text_of(&message["metadata"]["summary"]) {
            Some(summary) => summary.to_owned(),
            None => blocks(message).filter_map(block_text).collect::<Vec<_>>().join("\n\n"),
        };
        if self.log.is_empty() {
            // The summarized messages are not in the file.
            self.log.context(vec![text(summary)], BY);
        } else {
            self.log.summarized(None, &summary, Trigger::Threshold, 0);
        }
    }

    fn user(&mut self, message: &Value) {
        let (mut prompt, mut context) = (Vec::new(), Vec::new());
        let mut continued = None;
        // The result of a call by tags. Its parts follow it.
        let mut result: Option<(ClineCall, Vec<Content>)> = None;
        for block in blocks(message) {
            if block["type"] == "tool_result" {
                self.native_result(block, &mut prompt);
                continue;
            }
            let Some(words) = block_text(block) else {
                match (part(block), &mut result) {
                    (Some(image), Some((_, content))) => content.push(image),
                    (Some(image), None) => prompt.push(image),
                    (None, _) => self
                        .log
                        .left_out_kind("parts of messages", block["type"].as_str().unwrap_or("unknown")),
                }
                continue;
            };
            let words = words.trim();
            if SURROUNDINGS.iter().any(|start| words.starts_with(start)) {
                continue;
            }
            if let Some(found) = RESULT.captures(words) {
                self.result(result.take(), &mut prompt);
                let rest = words[found[0].len()..].to_owned();
                if rest.starts_with(CONTINUED) {
                    continued = Some(rest.clone());
                }
                result = self.called(&found[1]).map(|call| (call, Vec::new()));
                match &mut result {
                    Some((_, content)) if !rest.is_empty() => content.push(text(rest)),
                    Some(_) => {}
                    // Messages of the agent have no result except the user's answer.
                    None => typed(&rest, &mut prompt),
                }
            } else if let Some((_, content)) = &mut result {
                content.push(text(words));
            } else if words.starts_with(CONTINUED) {
                continued = Some(words.to_owned());
            } else {
                let before = prompt.len();
                typed(words, &mut prompt);
                if prompt.len() == before {
                    context.push(text(words));
                }
            }
        }
        self.result(result, &mut prompt);
        if let Some(summary) = continued {
            self.open.clear();
            self.log.compacted(None, summary, Trigger::Threshold, 0);
        }
        // Text without tags is from the user if there was no call, unless it starts with a bracket or a heading.
        let is_program =
            |part: &Content| matches!(part, Content::Text { text } if text.starts_with(['[', '#']));
        if prompt.is_empty() && !context.is_empty() && !context.iter().any(is_program) {
            prompt = std::mem::take(&mut context);
        }
        if !prompt.is_empty() {
            self.task.get_or_insert(joined_text(&prompt));
            self.log.prompt(prompt);
        }
        self.log.context(context, BY);
    }

    /// Returns the call that a result in text belongs to; `None` for messages to the user. The calls of models with tool
    /// support may also have such results, and those of MCP servers' tools have other names in them.
    fn called(&mut self, name: &str) -> Option<ClineCall> {
        let is_message = WORDS.iter().any(|(tool, _)| *tool == name);
        let by_tag = self.open.iter().position(|call| call.id.is_none() && call.name == name);
        let by_name = || self.open.iter().position(|call| call.name == name);
        let only = || (self.open.len() == 1 && !is_message).then_some(0);
        by_tag.or_else(by_name).or_else(only).map(|index| self.open.remove(index))
    }

    fn result(&mut self, result: Option<(ClineCall, Vec<Content>)>, prompt: &mut Vec<Content>) {
        let Some((call, content)) = result else { return };
        let words = joined_text(&content);
        typed_tag(&words, "feedback", prompt);
        self.outcome(call.names.first(), &call.name, status(&words), content);
    }

    fn outcome(&mut self, id: Option<&String>, tool: &str, status: OutcomeStatus, content: Vec<Content>) {
        let texts = content.iter().filter_map(Content::as_text).filter(|_| tool.contains("command"));
        let code = texts.filter_map(|text| EXIT_CODE.captures(text.lines().next()?)?[1].parse().ok()).next();
        self.log.outcome(id.map(String::as_str), status, content, code);
    }

    fn native_result(&mut self, block: &Value, prompt: &mut Vec<Content>) {
        let id = block["tool_use_id"].as_str();
        let Some(index) = self.open.iter().position(|call| call.id.is_some() && call.id.as_deref() == id)
        else {
            // Messages of the agent have no result except the user's answer.
            blocks(block).filter_map(block_text).for_each(|words| typed_tag(words, "feedback", prompt));
            return;
        };
        let call = self.open.remove(index);
        let is_one = call.names.len() == 1;
        let parts: Vec<&Value> = blocks(block).collect();
        let results = if is_one { vec![&parts[..]] } else { parts.chunks(1).collect() };
        for (name, parts) in call.names.iter().zip(results) {
            let (texts, others): (Vec<&Value>, Vec<&Value>) =
                parts.iter().partition(|part| block_text(part).is_some());
            let texts = texts.into_iter().filter_map(block_text).map(str::to_owned);
            let words: Vec<String> = texts.chain(others.iter().filter_map(|part| shown(part))).collect();
            let words = words.join("\n");
            if is_one {
                typed_tag(&words, "feedback", prompt);
            }
            let has_failed = parts.iter().any(|part| part["success"] == false);
            let status = match status(&words) {
                OutcomeStatus::Completed if has_failed || is_one && block["is_error"] == true => {
                    OutcomeStatus::Failed
                }
                status => status,
            };
            let content = (!words.is_empty()).then(|| text(words)).into_iter();
            let content = content.chain(others.into_iter().filter_map(part)).collect();
            self.outcome(Some(name), &call.name, status, content);
        }
    }

    fn reply(&mut self, message: &Value) {
        self.open.clear();
        for block in blocks(message) {
            match block["type"].as_str() {
                Some("thinking" | "reasoning") => {
                    let thought = text_of(&block["thinking"]).or_else(|| text_of(&block["text"]));
                    self.log.add(thought.map(thinking));
                }
                Some("tool_use") => {
                    let name = block["name"].as_str().unwrap_or("tool");
                    self.call(block["id"].as_str(), name, &block["input"]);
                }
                Some("redacted_thinking" | "thoughtSignature") => {}
                Some("text") | None => self.words(block_text(block).unwrap_or_default()),
                Some(kind) => self.log.left_out_kind("parts of replies", kind),
            }
        }
        let used = &message["modelInfo"];
        let name = used["modelId"].as_str().or_else(|| used["id"].as_str());
        let provider = used["providerId"].as_str().or_else(|| used["provider"].as_str()).unwrap_or("cline");
        if let Some(name) = name {
            self.log.model(format!("{provider}/{name}"));
        }
        self.log.replied(usage(&message["metrics"]), None);
        if let Some(steps) = self.steps.take() {
            self.log.push(Change::Planned { steps });
        }
    }

    /// Adds a text of a reply, split at its calls by tags. A tag that is not closed is text.
    fn words(&mut self, words: &str) {
        let (mut rest, mut from) = (words, 0);
        while let Some(start) = rest[from..].find('<').map(|at| from + at) {
            from = start + 1;
            let Some((name, body)) = rest[from..].split_once('>') else { break };
            let before = rest[..start].trim_end_matches(' ');
            let is_line_start = before.is_empty() || before.ends_with('\n');
            let is_thought = name == "thinking";
            if !is_line_start || !(is_thought || self.tags.contains(name)) {
                continue;
            }
            let Some((inner, after)) = body.split_once(&format!("</{name}>")) else { continue };
            self.log.add(trimmed(&rest[..start]));
            match is_thought {
                true => self.log.add([thinking(inner.trim())]),
                false => self.call(None, name, &parameters(inner)),
            }
            (rest, from) = (after, 0);
        }
        self.log.add(trimmed(rest));
    }

    fn call(&mut self, id: Option<&str>, name: &str, input: &Value) {
        let list = text_of(&input["task_progress"]).or_else(|| text_of(&input["todos"]));
        self.steps = list.map(plan).filter(|list| !list.is_empty()).or(self.steps.take());
        let spoken = WORDS.iter().find(|(tool, _)| *tool == name);
        if let Some(words) = spoken.and_then(|(_, key)| text_of(&input[*key])) {
            return self.log.add([text(words)]);
        }
        let mut names = Vec::new();
        for input in parts(name, input) {
            self.calls += 1;
            let foreign = match id {
                Some(id) if names.is_empty() => id.to_owned(),
                Some(_) | None => format!("cline_{}", self.calls),
            };
            self.log.call(&json!(foreign), &json!(name), &input);
            names.push(foreign);
        }
        self.open.push(ClineCall { id: id.map(str::to_owned), name: name.to_owned(), names });
    }
}

/// Splits a call with several actions into one call per action, so that each has its result.
fn parts(name: &str, input: &Value) -> Vec<Value> {
    let (many, one) = match name {
        "run_commands" => ("commands", "command"),
        "read_files" => ("files", "path"),
        _ => return vec![input.clone()],
    };
    match input[many].as_array().map(Vec::as_slice) {
        Some([]) | None => vec![input.clone()],
        Some(parts) => parts
            .iter()
            .map(|part| if part.is_object() { part.clone() } else { json!({ one: part }) })
            .collect(),
    }
}

/// Returns the result of one action of a call.
fn shown(part: &Value) -> Option<String> {
    let result = match &part["result"] {
        Value::Null => "",
        Value::String(result) => result,
        other => return Some(other.to_string()),
    };
    match text_of(&part["error"]) {
        Some(error) if !result.contains(error) => Some(format!("{error}\n{result}").trim_end().to_owned()),
        _ => Some(result.to_owned()).filter(|result| !result.is_empty()),
    }
}

fn trimmed(words: &str) -> Option<Content> {
    let words = words.trim();
    (!words.is_empty()).then(|| text(words))
}

/// Parses the parameters of a call by tags.
fn parameters(body: &str) -> Value {
    let mut parameters = Map::new();
    let mut rest = body.trim_start();
    while let Some((name, behind)) = rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        let tag = format!("</{name}>");
        let end = if LONG.contains(&name) { behind.rfind(&tag) } else { behind.find(&tag) };
        let Some(end) = end else { break };
        let value = behind[..end].strip_prefix('\n').unwrap_or(&behind[..end]);
        let value = value.strip_suffix('\n').unwrap_or(value);
        parameters.insert(name.to_owned(), json!(value));
        rest = behind[end + tag.len()..].trim_start();
    }
    Value::Object(parameters)
}

/// Adds the text that the user typed, extracted from its tags.
fn typed(words: &str, prompt: &mut Vec<Content>) {
    TYPED.iter().for_each(|tag| typed_tag(words, tag, prompt));
}

fn typed_tag(words: &str, tag: &str, prompt: &mut Vec<Content>) {
    let found = words.split_once(&format!("<{tag}")).and_then(|(_, rest)| {
        // The tag may have attributes.
        let (_, rest) = rest.split_once('>')?;
        rest.rsplit_once(&format!("</{tag}>")).map(|(inner, _)| inner.trim())
    });
    prompt.extend(found.filter(|inner| !inner.is_empty()).map(text));
}

/// Returns the status of a call according to the start of its result.
fn status(words: &str) -> OutcomeStatus {
    match () {
        () if words.starts_with(DENIED) => OutcomeStatus::Denied,
        () if words.starts_with("The tool execution failed") || words.starts_with("<error>") => {
            OutcomeStatus::Failed
        }
        () => OutcomeStatus::Completed,
    }
}

/// Parses the steps of a Markdown checklist.
fn plan(list: &str) -> Vec<PlanStep> {
    let step = |found: regex::Captures| PlanStep {
        content: found[2].trim().to_owned(),
        status: match &found[1] {
            "x" | "X" => PlanStatus::Completed,
            "-" | "~" => PlanStatus::InProgress,
            _ => PlanStatus::Pending,
        },
        priority: PlanPriority::default(),
    };
    STEP.captures_iter(list).map(step).collect()
}

/// Returns the usage of a reply, with cached tokens included in the input, as some providers count them and others
/// don't.
fn usage(metrics: &Value) -> Option<Usage> {
    let counted = token_counts(&metrics["tokens"], ["prompt", "completion", "cached", "", ""]);
    counted.or_else(|| {
        let names = ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", ""];
        let usage = token_counts(metrics, names)?;
        let is_apart = usage.input < usage.cache_read + usage.cache_write;
        Some(if is_apart { super::with_cache(usage) } else { usage })
    })
}
