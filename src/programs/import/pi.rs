//! Sessions of the pi coding agent: a header and JSON lines, which in versions 2 and later form a tree by `id` and
//! `parentId`. The branch of the newest line is imported, the others are skipped.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, contents, list, model_name, outcome_content, ran, text, text_of, text_part, thinking_part,
    time, token_counts, with_cache,
};
use epitome_thread::problem::Problem;
use epitome_thread::{
    Change, Content, OutcomeStatus, ReplyCut, Seq, StopReason, ThoughtLevel, Trigger, Usage,
};
use epitome_transfer::{ImportDraft, ImportFile, ImportSource};

/// The newest supported version.
const VERSION_MAX: u64 = 3;

/// The author of messages that pi added.
const BY: &str = "pi";

/// A line of the file after its header.
struct PiLine {
    number: usize,
    /// Its recorded id, or one made from its position in files without ids.
    id: String,
    parent: Option<String>,
    value: Value,
}

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let (header, lines) = lines(file, text)?;
    if let Some(version) = header["version"].as_u64().filter(|version| *version > VERSION_MAX) {
        let message =
            format!("this session has version {version} of pi's format; up to {VERSION_MAX} can be read");
        return Err(file.problem(1, message));
    }
    let total = lines.len();
    let branch = newest_branch(file, lines)?;
    let log = Builder::new(header["cwd"].as_str(), time(&header), context);
    let mut reader = PiReader { log, first: HashMap::new() };
    reader.log.foreign_id(header["id"].as_str().unwrap_or_default());
    reader.log.left_out_times(total - branch.len(), "entries of other branches");
    for line in &branch {
        if let Some(at) = time(&line.value) {
            reader.log.at(at);
        }
        let next = reader.log.next_seq();
        reader.line(&line.value).map_err(|message| file.problem(line.number, message))?;
        reader.first.insert(line.id.clone(), reader.log.message_since(next));
    }
    reader.log.finish(ImportSource::Pi, file, None)
}

/// Reads the header and the lines after it.
fn lines(file: ImportFile, text: &str) -> Result<(Value, Vec<PiLine>), Problem> {
    let mut values = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value = serde_json::from_str(line).map_err(|error| file.json_problem(number, &error))?;
        if !value["type"].is_string() {
            return Err(file.problem(number, "this line has no type"));
        }
        values.push((number, value));
    }
    let mut values = values.into_iter();
    let (_, header) = values.next().ok_or_else(|| file.problem(1, "the file is empty"))?;
    let mut lines: Vec<PiLine> = Vec::new();
    for (at, (number, value)) in (1..).zip(values) {
        // In version 1, lines form a plain list, and a compaction counts them from the header.
        let id = value["id"].as_str().map_or_else(|| format!("#{at}"), str::to_owned);
        let parent = match value.get("parentId") {
            Some(parent) => parent.as_str().map(str::to_owned),
            None => lines.last().map(|line| line.id.clone()),
        };
        lines.push(PiLine { number, id, parent, value });
    }
    Ok((header, lines))
}

/// Returns the lines from the root to the newest one.
fn newest_branch(file: ImportFile, lines: Vec<PiLine>) -> Result<Vec<PiLine>, Problem> {
    let by_id: HashMap<&str, &PiLine> = lines.iter().map(|line| (line.id.as_str(), line)).collect();
    let mut wanted = HashSet::new();
    let mut next = lines.last();
    while let Some(line) = next {
        if !wanted.insert(line.number) {
            return Err(file.problem(line.number, "this line is its own ancestor"));
        }
        next = match &line.parent {
            None => None,
            Some(parent) => match by_id.get(parent.as_str()) {
                Some(parent) => Some(parent),
                None => {
                    let message = format!("its parent {parent} is not in the file");
                    return Err(file.problem(line.number, message));
                }
            },
        };
    }
    Ok(lines.into_iter().filter(|line| wanted.contains(&line.number)).collect())
}

struct PiReader {
    log: Builder,
    /// The entry made from each line, for compactions; if there is none, the one after it.
    first: HashMap<String, Seq>,
}

impl PiReader {
    /// Adds the entries of a line. The error is a sentence.
    fn line(&mut self, value: &Value) -> Result<(), String> {
        match value["type"].as_str().unwrap_or_default() {
            "message" => self.message(&value["message"])?,
            "compaction" => self.compaction(value),
            "branch_summary" => {
                let summary = text_of(&value["summary"]);
                let words = summary.map(|summary| format!("What was done on another branch:\n\n{summary}"));
                self.log.context(words.into_iter().map(text).collect(), BY);
            }
            "custom_message" => self.log.context(contents(&value["content"]), BY),
            "thinking_level_change" => {
                if let Some(level) = value["thinkingLevel"].as_str().and_then(thought) {
                    self.log.push(Change::ThoughtChosen { level });
                }
            }
            "session_info" => self.log.title(value["name"].as_str().unwrap_or_default()),
            // Not part of the conversation: each reply names its model, and the others are internal to pi.
            "model_change" | "label" | "custom" => {}
            other => self.log.left_out(&format!("entries of the type {other:?}")),
        }
        Ok(())
    }

    fn message(&mut self, message: &Value) -> Result<(), String> {
        match message["role"].as_str() {
            Some("user") => self.log.prompt(contents(&message["content"])),
            Some("assistant") => self.reply(message),
            Some("toolResult") => self.result(message),
            Some("bashExecution") => self.log.context(vec![command_run(message)], BY),
            Some("custom" | "hookMessage") => self.log.context(contents(&message["content"]), BY),
            Some("branchSummary" | "compactionSummary") => {
                self.log.context(Vec::from_iter(text_part(&message["summary"])), BY)
            }
            Some(other) => self.log.left_out(&format!("messages of the role {other:?}")),
            None => return Err("a message has no role".to_owned()),
        }
        Ok(())
    }

    fn reply(&mut self, message: &Value) {
        let mut content = Vec::new();
        for part in list(&message["content"]) {
            match part["type"].as_str() {
                Some("text") => content.extend(text_part(&part["text"])),
                Some("thinking") => content.extend(thinking_part(&part["thinking"])),
                Some("toolCall") => {
                    let (id, name) = (part["id"].as_str(), part["name"].as_str());
                    content.push(self.log.call(id, name, &part["arguments"]));
                }
                Some(_) | None => self.log.left_out("unknown parts of replies"),
            }
        }
        let why = || message["errorMessage"].as_str().unwrap_or("no reason was given").to_owned();
        let (cut, end) = match message["stopReason"].as_str() {
            Some("length") => (Some(ReplyCut::MaxTokens), Some(StopReason::MaxTokens)),
            Some("aborted") => (Some(ReplyCut::Cancelled), Some(StopReason::Cancelled)),
            Some("error") => (Some(ReplyCut::Broken { reason: why() }), Some(StopReason::Failed)),
            Some("stop") => (None, Some(StopReason::EndTurn)),
            // The turn continues with the results of its calls.
            Some(_) | None => (None, None),
        };
        let has_calls = content.iter().any(|part| matches!(part, Content::Call(_)));
        let model = model_name(message["provider"].as_str(), BY, message["model"].as_str());
        self.log.reply(content, &model, usage(&message["usage"]), cut);
        self.log.reply_ended(end, has_calls);
    }

    fn result(&mut self, message: &Value) {
        let status = match message["isError"].as_bool() {
            Some(true) => OutcomeStatus::Failed,
            Some(false) | None => OutcomeStatus::Completed,
        };
        let content = outcome_content(contents(&message["content"]));
        self.log.outcome(message["toolCallId"].as_str(), status, content, None);
    }

    fn compaction(&mut self, value: &Value) {
        let Some(summary) = text_of(&value["summary"]) else { return };
        let kept = match (value["firstKeptEntryId"].as_str(), value["firstKeptEntryIndex"].as_u64()) {
            (Some(id), _) => self.first.get(id),
            (None, Some(index)) => self.first.get(&format!("#{index}")),
            (None, None) => None,
        };
        let (kept, tokens_before) = (kept.copied(), value["tokensBefore"].as_u64().unwrap_or_default());
        self.log.summarized(kept, summary, Trigger::Threshold, tokens_before);
    }
}

/// Describes a command that the user ran outside of the conversation, with its output.
fn command_run(message: &Value) -> Content {
    let end = match (message["cancelled"].as_bool(), message["exitCode"].as_i64()) {
        (Some(true), _) => "It was cancelled.".to_owned(),
        (_, Some(code)) if code != 0 => format!("It ended with exit code {code}."),
        _ => String::new(),
    };
    let output = message["output"].as_str().unwrap_or_default();
    ran(message["command"].as_str().unwrap_or_default(), &format!("{output}\n\n{end}"))
}

fn usage(value: &Value) -> Option<Usage> {
    token_counts(value, ["input", "output", "cacheRead", "cacheWrite", ""]).map(with_cache)
}

fn thought(level: &str) -> Option<ThoughtLevel> {
    match level {
        "minimal" => Some(ThoughtLevel::Low),
        "xhigh" => Some(ThoughtLevel::Max),
        level => ThoughtLevel::parse(level),
    }
}
