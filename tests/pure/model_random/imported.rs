//! Sessions of realistic shape, and real ones: imported, compacted again and again, undone, redone, exported.
//!
//! `EPITOME_TRANSCRIPTS=DIRECTORY` names a directory of real sessions, searched recursively for `*.jsonl`. A
//! line is one message in Claude Code's format: `{"type": "user" | "assistant", "message": {"role": …,
//! "content": …}}`, where the content is a text or a list of blocks (`text`, `thinking`, `tool_use`,
//! `tool_result`, `image`, `document`). Other lines, and lines that are not JSON, are skipped and counted.
//! Thinking is imported for display only: its signature is bound to the requests of the other client.

use std::fs;
use std::path::{Path, PathBuf};

use epitome::thread::{
    CallDisplay, CallId, Change, Content, Message, MessageId, ModelName, Origin, OutcomeContent,
    OutcomeStatus, ToolCall, ToolOutcome, Trigger, text,
};
use serde_json::Value;

use super::model::Model;
use super::step::{Compaction, Reply, Shown, Speaker, Step, Thinks, What};
use epitome::compaction::KeptTail;

/// Maximum number of successive compactions of one session.
const COMPACTIONS_MAX: usize = 10;

/// Messages of the longest generated session.
const MESSAGES_MAX: usize = 10_000;

/// Parameters of a generated session.
struct Shape {
    name: &'static str,
    /// In tokens.
    window: u64,
    messages: usize,
    /// Words of a tool's outcome.
    words: usize,
    /// One message is larger than the window.
    huge: bool,
    attachments: bool,
    compactions: usize,
}

const SHAPES: [Shape; 6] = [
    Shape {
        name: "small",
        window: 8_000,
        messages: 60,
        words: 60,
        huge: false,
        attachments: false,
        compactions: 10,
    },
    Shape {
        name: "huge message",
        window: 8_000,
        messages: 20,
        words: 40,
        huge: true,
        attachments: false,
        compactions: 3,
    },
    Shape {
        name: "attachments",
        window: 32_000,
        messages: 60,
        words: 40,
        huge: false,
        attachments: true,
        compactions: 5,
    },
    Shape {
        name: "usual",
        window: 200_000,
        messages: 150,
        words: 120,
        huge: false,
        attachments: true,
        compactions: 3,
    },
    Shape {
        name: "large",
        window: 1_000_000,
        messages: 60,
        words: 2_000,
        huge: false,
        attachments: false,
        compactions: 1,
    },
    Shape {
        name: "long",
        window: 200_000,
        messages: MESSAGES_MAX,
        words: 8,
        huge: false,
        attachments: false,
        compactions: 1,
    },
];

#[test]
fn generated_sessions_are_compacted_undone_and_exported() {
    for shape in &SHAPES {
        let mut model = Model::new();
        generate(&mut model, shape).unwrap_or_else(|why| panic!("{}: {why}", shape.name));
        let made = live_on(&mut model, shape.window, shape.compactions);
        let made = made.unwrap_or_else(|why| panic!("{}: {why}", shape.name));
        assert!(made > 0, "{}: nothing was compacted", shape.name);
        let reasoning = model.counts.get("reasoning taken back").copied().unwrap_or(0);
        assert!(reasoning > 0, "{}: no reasoning was sent again", shape.name);
    }
}

#[test]
fn real_sessions_are_compacted_undone_and_exported() {
    let Ok(directory) = std::env::var("EPITOME_TRANSCRIPTS") else {
        println!("skipped: EPITOME_TRANSCRIPTS names no directory of sessions");
        return;
    };
    let mut files = Vec::new();
    find(Path::new(&directory), &mut files);
    assert!(!files.is_empty(), "{directory} has no *.jsonl");
    for file in &files {
        let lines = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (changes, passed_over) = import(&lines);
        println!("{}: {} entries, {passed_over} lines passed over", file.display(), changes.len());
        let mut model = Model::new();
        model.import(changes);
        live_on(&mut model, 200_000, 5).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    }
}

#[test]
fn a_session_of_another_client_is_imported() {
    let lines = r#"{"type":"summary","summary":"x"}
{"type":"user","message":{"role":"user","content":"Fix it"}}
{"type":"assistant","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"tool_use","id":"toolu_1","name":"Read","input":{"path":"a"}}]}}
{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"fn a"}],"is_error":true}]}}
{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"Done."}]}}
no JSON"#;
    let (changes, passed_over) = import(lines);
    let kinds: Vec<&str> = changes.iter().map(Change::kind).collect();
    assert_eq!((kinds, passed_over), (vec!["said", "replied", "tool_finished", "replied"], 2));
    let mut model = Model::new();
    model.import(changes);
    model.check().unwrap_or_else(|why| panic!("{why}"));
}

fn generate(model: &mut Model, shape: &Shape) -> Result<(), String> {
    let mut messages = 0;
    while messages < shape.messages {
        let at = messages;
        let what = match (shape.attachments, at % 20) {
            (true, 0) => What::Image,
            (true, 4) => What::Document,
            _ => What::Text,
        };
        let is_huge = shape.huge && at > shape.messages / 2 && at < shape.messages / 2 + 5;
        let words = if is_huge { shape.window as usize } else { 15 };
        model.make(&Step::Said { by: Speaker::Person, what, words })?;
        for round in 0..3 {
            let calls = if round == 2 { 0 } else { 1 + at % 3 };
            let reply = Reply { thinks: Thinks::Once, blank: false, text: true, calls, words: 20 };
            // With ten thousand requests, checking a sample of them with the service is enough.
            if at % 100 < 5 || shape.messages < 1_000 {
                model.make(&Step::Replied(reply))?;
            } else {
                model.reply_unseen(20);
            }
            let shown = if shape.attachments && round == 1 { Shown::Image } else { Shown::Cut };
            let (first, words, status) = (0, shape.words, OutcomeStatus::Completed);
            model.make(&Step::Outcomes { first, calls, what: shown, status, words })?;
            messages += 1 + calls;
        }
        messages += 1;
    }
    model.check()
}

/// Compacts, continues, undoes and redoes, and finally undoes everything. Returns the number of compactions.
fn live_on(model: &mut Model, window: u64, compactions: usize) -> Result<u64, String> {
    let before = text::markdown(&model.thread);
    for number in 0..compactions.min(COMPACTIONS_MAX) {
        let trigger = [Trigger::Threshold, Trigger::Manual, Trigger::Overflow][number % 3];
        let keep = [KeptTail::Ratio(0.4), KeptTail::Nothing, KeptTail::Messages(4)][number % 3];
        let summary = (number % 4 != 3).then_some(80);
        let compaction = Compaction {
            trigger,
            keep,
            window,
            summary,
            focus: false,
            wanted: true,
            native: number % 2 == 1,
            recent: 8,
        };
        let reply = Reply { thinks: Thinks::Once, blank: false, text: true, calls: 2, words: 200 };
        let steps = [
            Step::Compacted(compaction),
            Step::UndoneAndRedone,
            Step::Said { by: Speaker::Person, what: What::Text, words: 100 },
            Step::Replied(reply),
            Step::Killed,
            Step::Undone(number),
            Step::Replied(Reply { calls: 0, ..reply }),
            Step::Redone(number),
        ];
        for step in &steps {
            model.take(step)?;
        }
    }
    let made = model.counts.get("compactions").copied().unwrap_or(0);
    while !model.outermost().is_empty() {
        model.take(&Step::Undone(usize::MAX))?;
    }
    // The messages are the same as without compactions, and an export only has additional entries.
    let plain = model.thread.entries().iter().filter(|entry| {
        matches!(entry.change, Change::Said { .. } | Change::Replied { .. } | Change::ToolFinished { .. })
    });
    if !plain.eq(model.thread.view().entries()) {
        return Err("an undo of all compactions does not give back what was said".to_owned());
    }
    let after = text::markdown(&model.thread);
    if !after.starts_with(before.trim_end()) {
        return Err("an export does not begin with the earlier one".to_owned());
    }
    Ok(made)
}

fn find(directory: &Path, files: &mut Vec<PathBuf>) {
    let listing = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in listing {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
}

/// The changes described by the lines, and the number of skipped lines.
fn import(lines: &str) -> (Vec<Change>, usize) {
    let (mut changes, mut passed_over) = (Vec::new(), 0);
    let mut ids = (0..).map(MessageId);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        let content = &line["message"]["content"];
        let blocks: Vec<Value> = match content {
            Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
            Value::Array(blocks) => blocks.clone(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        };
        let known = changes.len();
        match line["type"].as_str() {
            Some("user") => {
                changes.extend(blocks.iter().filter_map(outcome));
                let content: Vec<Content> = blocks.iter().filter_map(said).collect();
                if !content.is_empty() {
                    let message =
                        Message { id: ids.next().expect("there is no end to ids"), content, author: None };
                    changes.push(Change::Said { message, origin: Origin::Person });
                }
            }
            Some("assistant") => {
                let content: Vec<Content> = blocks.iter().filter_map(replied).collect();
                if !content.is_empty() {
                    let message =
                        Message { id: ids.next().expect("there is no end to ids"), content, author: None };
                    let model = ModelName("anthropic/elsewhere".into());
                    changes.push(Change::Replied { message, model, usage: None, cut: None });
                }
            }
            Some(_) | None => {}
        }
        passed_over += usize::from(changes.len() == known);
    }
    (changes, passed_over)
}

fn field(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn said(block: &Value) -> Option<Content> {
    let (mime_type, data) = (field(&block["source"], "media_type"), field(&block["source"], "data"));
    match block["type"].as_str()? {
        "text" => Some(Content::Text { text: field(block, "text") }),
        "image" => Some(Content::Image { mime_type, data, uri: None }),
        "document" => Some(Content::Document { mime_type, data, name: None }),
        _ => None,
    }
}

fn replied(block: &Value) -> Option<Content> {
    match block["type"].as_str()? {
        "text" => Some(Content::Text { text: field(block, "text") }),
        "thinking" => Some(Content::Thinking { text: field(block, "thinking"), native: None }),
        "tool_use" => Some(Content::Call(ToolCall {
            id: CallId(field(block, "id")),
            name: field(block, "name"),
            input: block["input"].clone(),
            card: CallDisplay::default(),
        })),
        _ => None,
    }
}

fn outcome(block: &Value) -> Option<Change> {
    if block["type"] != "tool_result" {
        return None;
    }
    let status = if block["is_error"] == true { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
    let text = block["content"].as_str().unwrap_or_default();
    let mut outcome = ToolOutcome::text(CallId(field(block, "tool_use_id")), status, text);
    if let Value::Array(shown) = &block["content"] {
        outcome.content = shown
            .iter()
            .filter_map(said)
            .filter_map(|content| match content {
                Content::Text { text } => Some(OutcomeContent::Text { text }),
                Content::Image { mime_type, data, .. } => Some(OutcomeContent::Image { mime_type, data }),
                _ => None,
            })
            .collect();
    }
    Some(Change::ToolFinished { outcome })
}
