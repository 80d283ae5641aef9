//! Sessions of the pi coding agent: a header and JSON lines, which in versions 2 and later form a tree by `id` and
//! `parentId`. The branch of the newest line is imported, the others are skipped.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, contents, list, model_name, ran, text, text_of, text_part, time, token_counts, with_cache,
};
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Content, OutcomeStatus, ReplyCut, StopReason, ThoughtLevel, Trigger, Usage};
use epitome_transfer::ImportFile;

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

pub(super) fn read(file: ImportFile, text: &str, context: &ImportContext) -> Result<Builder, Problem> {
    let (header, lines) = lines(file, text)?;
    if let Some(version) = header["version"].as_u64().filter(|version| *version > VERSION_MAX) {
        let message =
            format!("this session has version {version} of pi's format; up to {VERSION_MAX} can be read");
        return Err(file.problem(1, message));
    }
    let total = lines.len();
    let branch = newest_branch(file, lines)?;
    let mut log = Builder::new(header["cwd"].as_str(), time(&header), context);
    log.foreign_id(header["id"].as_str().unwrap_or_default());
    log.left_out_times(total - branch.len(), "entries of other branches");
    for line in &branch {
        log.at(time(&line.value));
        log.mark(&line.id);
        add(&mut log, &line.value).map_err(|message| file.problem(line.number, message))?;
    }
    Ok(log)
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

/// Adds the entries of a line. The error is a sentence.
fn add(log: &mut Builder, value: &Value) -> Result<(), String> {
    match value["type"].as_str().unwrap_or_default() {
        "message" => message(log, &value["message"])?,
        "compaction" => compaction(log, value),
        "branch_summary" => {
            let summary = text_of(&value["summary"]);
            let words = summary.map(|summary| format!("What was done on another branch:\n\n{summary}"));
            log.context(words.into_iter().map(text).collect(), BY);
        }
        "custom_message" => log.context(contents(&value["content"]), BY),
        "thinking_level_change" => {
            if let Some(level) = value["thinkingLevel"].as_str().and_then(thought) {
                log.push(Change::ThoughtChosen { level });
            }
        }
        "session_info" => log.title(value["name"].as_str().unwrap_or_default()),
        // Not part of the conversation: each reply names its model, and the others are internal to pi.
        "model_change" | "label" | "custom" => {}
        other => log.left_out(&format!("entries of the type {other:?}")),
    }
    Ok(())
}

fn message(log: &mut Builder, message: &Value) -> Result<(), String> {
    match message["role"].as_str() {
        Some("user") => log.prompt(contents(&message["content"])),
        Some("assistant") => reply(log, message),
        Some("toolResult") => result(log, message),
        Some("bashExecution") => log.context(vec![command_run(message)], BY),
        Some("custom" | "hookMessage") => log.context(contents(&message["content"]), BY),
        Some("branchSummary" | "compactionSummary") => {
            log.context(Vec::from_iter(text_part(&message["summary"])), BY)
        }
        Some(other) => log.left_out(&format!("messages of the role {other:?}")),
        None => return Err("a message has no role".to_owned()),
    }
    Ok(())
}

fn reply(log: &mut Builder, message: &Value) {
    log.add_parts(list(&message["content"]));
    let why = || message["errorMessage"].as_str().unwrap_or("no reason was given").to_owned();
    let (cut, end) = match message["stopReason"].as_str() {
        Some("length") => (Some(ReplyCut::MaxTokens), Some(StopReason::MaxTokens)),
        Some("aborted") => (Some(ReplyCut::Cancelled), Some(StopReason::Cancelled)),
        Some("error") => (Some(ReplyCut::Broken { reason: why() }), Some(StopReason::Failed)),
        Some("stop") => (None, Some(StopReason::EndTurn)),
        // The turn continues with the results of its calls.
        Some(_) | None => (None, None),
    };
    log.model(model_name(message["provider"].as_str(), BY, message["model"].as_str()));
    log.replied(usage(&message["usage"]), cut);
    log.reply_ended(end, list(&message["content"]).any(|part| part["type"] == "toolCall"));
}

fn result(log: &mut Builder, message: &Value) {
    let status = match message["isError"].as_bool() {
        Some(true) => OutcomeStatus::Failed,
        Some(false) | None => OutcomeStatus::Completed,
    };
    log.outcome(message["toolCallId"].as_str(), status, contents(&message["content"]), None);
}

fn compaction(log: &mut Builder, value: &Value) {
    let Some(summary) = text_of(&value["summary"]) else { return };
    let kept = match (value["firstKeptEntryId"].as_str(), value["firstKeptEntryIndex"].as_u64()) {
        (Some(id), _) => log.marked(id),
        (None, Some(index)) => log.marked(format!("#{index}")),
        (None, None) => None,
    };
    let kept = kept.map(|first| log.message_since(first));
    let tokens_before = value["tokensBefore"].as_u64().unwrap_or_default();
    log.summarized(kept, summary, Trigger::Threshold, tokens_before);
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
