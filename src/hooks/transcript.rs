//! The conversation as a file of JSON lines, in the form in which Claude Code's hooks know it.
//!
//! It holds what the model sees, oldest first, without thinking and without the data of images. It is
//! written for hooks that want it, is private to the person, and is gone when the session is.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::claude_tools::{theirs, tool_name};
use super::moment::{Base, Call, Moment};
use super::payload::timestamp;
use crate::thread::{Change, Content, Entry, Message, OutcomeStatus, ToolOutcome, Usage};

/// Only the person may look into the folder.
const FOLDER_MODE: u32 = 0o700;

/// A session's transcript. The folder is made with the first one, and removed with this.
#[derive(Default)]
pub struct Transcript {
    folder: std::sync::Arc<Mutex<Option<TempDir>>>,
}

impl Transcript {
    /// Writes the conversation of a moment, in the place of the one before, and gives back the path: the
    /// same one for the whole session. The error is a sentence.
    pub async fn write(&self, moment: &Moment) -> Result<PathBuf, String> {
        let (folder, base) = (self.folder.clone(), moment.base.clone());
        let written = tokio::task::spawn_blocking(move || {
            let mut folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
            write(&mut folder, &base)
        });
        let written = written.await.unwrap_or_else(|_| Err(io::Error::other("the writing broke off")));
        written.map_err(|error| format!("the conversation could not be written to a file for it: {error}"))
    }
}

fn write(folder: &mut Option<TempDir>, base: &Base) -> io::Result<PathBuf> {
    let folder = match folder {
        Some(folder) => folder,
        None => {
            let mode = Permissions::from_mode(FOLDER_MODE);
            folder.insert(tempfile::Builder::new().prefix("epitome-").permissions(mode).tempdir()?)
        }
    };
    let path = folder.path().join("transcript.jsonl");
    let whole = folder.path().join("transcript.new");
    // A hook that still reads the one before keeps it: it is replaced, not written over.
    let mut file = io::BufWriter::new(File::create(&whole)?);
    file.get_ref().set_permissions(Permissions::from_mode(0o600))?;
    for line in lines(base) {
        serde_json::to_writer(&mut file, &line)?;
        file.write_all(b"\n")?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(&whole, &path)?;
    Ok(path)
}

/// The lines, each with the one before as its parent.
fn lines(base: &Base) -> Vec<Value> {
    let mut lines: Vec<Value> = Vec::new();
    for (at, entry) in base.view.entries().iter().enumerate() {
        let Some((kind, message)) = said(base, entry) else { continue };
        let parent = lines.last().map_or(Value::Null, |line| line["uuid"].clone());
        let mut line = json!({
            "parentUuid": parent,
            "isSidechain": false,
            "userType": "external",
            "cwd": base.cwd.to_string_lossy(),
            "sessionId": base.session,
            "version": env!("CARGO_PKG_VERSION"),
            "type": kind,
            "message": message,
            // Entries that a hook made of one have its number together.
            "uuid": format!("{}-{at}-{}", base.session, entry.seq),
            "timestamp": timestamp(entry.at),
        });
        if matches!(entry.change, Change::Compacted { .. }) {
            line["isCompactSummary"] = json!(true);
        }
        lines.push(line);
    }
    lines
}

/// Who speaks, and the message; `None` for entries that no view has.
fn said(base: &Base, entry: &Entry) -> Option<(&'static str, Value)> {
    match &entry.change {
        Change::Said { message, .. } | Change::Compacted { summary: message, .. } => {
            Some(("user", json!({"role": "user", "content": message.text()})))
        }
        Change::Replied { message, model, usage, .. } => {
            let called = message.calls().next().is_some();
            let message = json!({
                "id": format!("msg_{}", entry.seq),
                "type": "message",
                "role": "assistant",
                "model": model.0,
                "content": blocks(base, message),
                "stop_reason": if called { "tool_use" } else { "end_turn" },
                "stop_sequence": null,
                "usage": usage.as_ref().map(tokens),
            });
            Some(("assistant", message))
        }
        Change::ToolFinished { outcome } => {
            Some(("user", json!({"role": "user", "content": [result(outcome)]})))
        }
        _ => None,
    }
}

fn blocks(base: &Base, message: &Message) -> Vec<Value> {
    let block = |content: &Content| match content {
        Content::Text { text } => Some(json!({"type": "text", "text": text})),
        Content::Call(call) => {
            let (id, tool) = (call.id.to_string(), call.name.clone());
            let input = call.input.as_object().cloned().unwrap_or_else(Map::new);
            let call = Call { id, tool, input, kind: call.card.kind };
            let input = theirs(&call, &base.cwd);
            Some(json!({"type": "tool_use", "id": call.id, "name": tool_name(&call.tool), "input": input}))
        }
        Content::Thinking { .. }
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    };
    message.content.iter().filter_map(block).collect()
}

fn result(outcome: &ToolOutcome) -> Value {
    json!({
        "tool_use_id": outcome.call.to_string(),
        "type": "tool_result",
        "content": outcome.model_text(),
        "is_error": outcome.status != OutcomeStatus::Completed,
    })
}

fn tokens(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
    })
}
