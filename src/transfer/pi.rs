//! Sessions of the pi coding agent: a header and JSON lines, which form a tree by `id` and `parentId` from
//! version 2 on. The branch of the newest line is imported, the others are left out.
//!
//! Thinking is imported as text only: its signatures are valid only for the requests that pi sent.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use serde_json::Value;

use super::build::{Builder, ForeignCall};
use super::{Circumstances, Draft, File, Source, text, text_of, time};
use epitome_problem::Problem;
use epitome_thread::{
    Change, Content, Cut, OutcomeContent, OutcomeStatus, Seq, StopReason, ThoughtLevel, Trigger, Usage,
};

/// The newest supported version.
const VERSION_MAX: u64 = 3;

/// The author of messages that pi added itself.
const BY: &str = "pi";

/// A line of the file after its header.
struct Line {
    number: usize,
    /// Its own id, or one made from its position in files without ids.
    id: String,
    parent: Option<String>,
    value: Value,
}

pub(super) fn read(file: File, text: &str, circumstances: &Circumstances) -> Result<Draft, Problem> {
    let (header, lines) = lines(file, text)?;
    if let Some(version) = header["version"].as_u64().filter(|version| *version > VERSION_MAX) {
        let message =
            format!("this session has version {version} of pi's format; up to {VERSION_MAX} can be read");
        return Err(file.problem(1, message));
    }
    let cwd = header["cwd"].as_str().map_or_else(|| circumstances.cwd.to_path_buf(), PathBuf::from);
    let started = time(&header).unwrap_or(circumstances.now);
    let total = lines.len();
    let branch = newest_branch(file, lines)?;
    let mut reader = Reader { log: Builder::new(&cwd, started), first: HashMap::new() };
    for _ in branch.len()..total {
        reader.log.left_out("entries of other branches");
    }
    for line in &branch {
        if let Some(at) = time(&line.value) {
            reader.log.at(at);
        }
        let next = reader.log.next_seq();
        let seq = reader.line(file, line)?;
        reader.first.insert(line.id.clone(), seq.unwrap_or(next));
    }
    if reader.log.is_empty() {
        return Err(file.problem(1, "nothing is said in this session"));
    }
    Ok(reader.log.finish(Source::Pi))
}

/// Reads the header and the lines after it.
fn lines(file: File, text: &str) -> Result<(Value, Vec<Line>), Problem> {
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
    let mut lines: Vec<Line> = Vec::new();
    for (at, (number, value)) in (1..).zip(values) {
        // In version 1, lines are a plain list, and a compaction counts them from the header.
        let id = value["id"].as_str().map_or_else(|| format!("#{at}"), str::to_owned);
        let parent = match value.get("parentId") {
            Some(parent) => parent.as_str().map(str::to_owned),
            None => lines.last().map(|line| line.id.clone()),
        };
        lines.push(Line { number, id, parent, value });
    }
    Ok((header, lines))
}

/// The lines from the root to the newest one.
fn newest_branch(file: File, lines: Vec<Line>) -> Result<Vec<Line>, Problem> {
    let by_id: HashMap<&str, &Line> = lines.iter().map(|line| (line.id.as_str(), line)).collect();
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

struct Reader {
    log: Builder,
    /// The entry made from each line, for compactions.
    first: HashMap<String, Seq>,
}

impl Reader {
    fn line(&mut self, file: File, line: &Line) -> Result<Option<Seq>, Problem> {
        let value = &line.value;
        Ok(match value["type"].as_str().unwrap_or_default() {
            "message" => {
                self.message(&value["message"]).map_err(|message| file.problem(line.number, message))?
            }
            "compaction" => self.compaction(value),
            "branch_summary" => text_of(&value["summary"]).map(|summary| {
                self.log.context(vec![text(format!("What was done on another branch:\n\n{summary}"))], BY)
            }),
            "custom_message" => {
                let content = contents(&value["content"]);
                (!content.is_empty()).then(|| self.log.context(content, BY))
            }
            "thinking_level_change" => {
                let level = value["thinkingLevel"].as_str().and_then(thought);
                level.map(|level| self.log.push(Change::ThoughtChosen { level }))
            }
            "session_info" => {
                self.log.title(value["name"].as_str().unwrap_or_default());
                None
            }
            // Not part of the conversation: each reply names its model, and the others are internal to pi.
            "model_change" | "label" | "custom" => None,
            other => {
                self.log.left_out(&format!("entries of the type {other:?}"));
                None
            }
        })
    }

    /// The error is a sentence.
    fn message(&mut self, message: &Value) -> Result<Option<Seq>, String> {
        Ok(match message["role"].as_str() {
            Some("user") => self.log.prompt(contents(&message["content"])),
            Some("assistant") => self.reply(message),
            Some("toolResult") => self.result(message),
            Some("bashExecution") => Some(self.log.context(vec![text(ran(message))], BY)),
            Some("custom" | "hookMessage") => {
                let content = contents(&message["content"]);
                (!content.is_empty()).then(|| self.log.context(content, BY))
            }
            Some("branchSummary" | "compactionSummary") => text_of(&message["summary"])
                .map(|summary| self.log.context(vec![text(summary.to_owned())], BY)),
            Some(other) => {
                self.log.left_out(&format!("messages of the role {other:?}"));
                None
            }
            None => return Err("a message has no role".to_owned()),
        })
    }

    fn reply(&mut self, message: &Value) -> Option<Seq> {
        let mut content = Vec::new();
        for part in message["content"].as_array().into_iter().flatten() {
            match part["type"].as_str() {
                Some("text") => content.extend(text_of(&part["text"]).map(|said| text(said.to_owned()))),
                Some("thinking") => content.extend(
                    text_of(&part["thinking"])
                        .map(|thought| Content::Thinking { text: thought.to_owned(), native: None }),
                ),
                Some("toolCall") => content.push(self.log.call(ForeignCall {
                    id: part["id"].as_str().unwrap_or_default().to_owned(),
                    name: part["name"].as_str().unwrap_or("tool").to_owned(),
                    title: None,
                    kind: None,
                    locations: Vec::new(),
                    input: part["arguments"].clone(),
                })),
                Some(_) | None => self.log.left_out("parts of replies that are not known here"),
            }
        }
        let why = || message["errorMessage"].as_str().unwrap_or("it was not said why").to_owned();
        let (cut, end) = match message["stopReason"].as_str() {
            Some("length") => (Some(Cut::MaxTokens), Some(StopReason::MaxTokens)),
            Some("aborted") => (Some(Cut::Cancelled), Some(StopReason::Cancelled)),
            Some("error") => (Some(Cut::Broken { reason: why() }), Some(StopReason::Failed)),
            Some("stop") => (None, Some(StopReason::EndTurn)),
            // The turn continues with the results of its calls.
            Some(_) | None => (None, None),
        };
        let has_calls = content.iter().any(|part| matches!(part, Content::Call(_)));
        let seq = self.log.reply(content, &model(message), usage(&message["usage"]), cut);
        match end {
            // Results of the calls may still follow.
            Some(StopReason::EndTurn | StopReason::MaxTokens) if has_calls => {}
            Some(end) => self.log.turn_ended(end),
            None => {}
        }
        seq
    }

    fn result(&mut self, message: &Value) -> Option<Seq> {
        let status = match message["isError"].as_bool() {
            Some(true) => OutcomeStatus::Failed,
            Some(false) | None => OutcomeStatus::Completed,
        };
        let content = contents(&message["content"]).into_iter().filter_map(|part| match part {
            Content::Text { text } => Some(OutcomeContent::Text { text }),
            Content::Image { mime_type, data, .. } => Some(OutcomeContent::Image { mime_type, data }),
            Content::Thinking { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. }
            | Content::Call(_) => None,
        });
        let content = content.collect();
        self.log.outcome(message["toolCallId"].as_str().unwrap_or_default(), status, content)
    }

    fn compaction(&mut self, value: &Value) -> Option<Seq> {
        let summary = text_of(&value["summary"])?;
        let kept = match (value["firstKeptEntryId"].as_str(), value["firstKeptEntryIndex"].as_u64()) {
            (Some(id), _) => self.first.get(id),
            (None, Some(index)) => self.first.get(&format!("#{index}")),
            (None, None) => None,
        };
        let through = Seq(kept.copied().unwrap_or(self.log.next_seq()).0.saturating_sub(1));
        let summary = format!("A summary of what was said and done so far:\n\n{summary}");
        let tokens_before = value["tokensBefore"].as_u64().unwrap_or_default();
        Some(self.log.compacted(Some(through), summary, Trigger::Threshold, tokens_before))
    }
}

/// Text and images, from a string or a list of parts.
fn contents(value: &Value) -> Vec<Content> {
    if let Some(said) = text_of(value) {
        return vec![text(said.to_owned())];
    }
    let parts = value.as_array().into_iter().flatten().filter_map(|part| match part["type"].as_str() {
        Some("text") => text_of(&part["text"]).map(|said| text(said.to_owned())),
        Some("image") => Some(Content::Image {
            mime_type: part["mimeType"].as_str()?.to_owned(),
            data: part["data"].as_str()?.to_owned(),
            uri: None,
        }),
        Some(_) | None => None,
    });
    parts.collect()
}

/// A command that the user ran outside of the conversation, with its output.
fn ran(message: &Value) -> String {
    let end = match (message["cancelled"].as_bool(), message["exitCode"].as_i64()) {
        (Some(true), _) => "It was cancelled.".to_owned(),
        (_, Some(code)) if code != 0 => format!("It ended with exit code {code}."),
        _ => String::new(),
    };
    let (command, output) =
        (message["command"].as_str().unwrap_or_default(), message["output"].as_str().unwrap_or_default());
    format!("The person ran `{command}`:\n\n{output}\n\n{end}").trim_end().to_owned()
}

/// `provider/model`, with our names for providers.
fn model(message: &Value) -> String {
    let provider = match message["provider"].as_str() {
        Some("google") => "gemini",
        Some(provider) => provider,
        None => BY,
    };
    format!("{provider}/{}", message["model"].as_str().unwrap_or("unknown"))
}

/// pi counts cached tokens separately from the input; we include them.
fn usage(value: &Value) -> Option<Usage> {
    let count = |name: &str| value[name].as_u64().unwrap_or_default();
    let (cache_read, cache_write) = (count("cacheRead"), count("cacheWrite"));
    value.is_object().then(|| Usage {
        input: count("input") + cache_read + cache_write,
        output: count("output"),
        cache_read,
        cache_write,
        thinking: 0,
    })
}

fn thought(level: &str) -> Option<ThoughtLevel> {
    match level {
        "minimal" => Some(ThoughtLevel::Low),
        "xhigh" => Some(ThoughtLevel::Max),
        level => ThoughtLevel::parse(level),
    }
}
