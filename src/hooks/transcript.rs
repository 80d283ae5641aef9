//! The conversation as a file of JSON lines, in the form in which Claude Code's hooks know it.
//!
//! It holds what the model sees, oldest first, without thinking and without the data of images. It is
//! written for hooks that want it, is private to the person, and is gone when the session is. Where a process is
//! killed the file stays; it lies with the person's other files and not in a directory that is everybody's, and goes
//! when another session writes one a day later.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use super::claude_tools::{theirs, tool_name};
use super::moment::{Base, Call, Moment};
use super::payload::timestamp;
use epitome_files::paths::Paths;
use epitome_files::whole::Unfinished;
use epitome_thread::{Change, Content, Entry, Message, OutcomeStatus, ToolOutcome, Usage};

/// Only the person may look into the folder, and read what is in it.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// What nobody wrote to for so long was left by a process that was killed: a live session writes at each moment that
/// a hook wants it for.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// A session's transcript. The file is made when it is first asked for, and removed with this.
pub struct Transcript {
    place: Arc<Place>,
}

struct Place {
    path: PathBuf,
    /// Whether the folder is there. Held by who writes.
    made: Mutex<bool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A session whose hooks never asked for one has none.
        let _ = fs::remove_file(&self.path);
    }
}

impl Transcript {
    /// That of the session with this id. Touches no disk.
    pub fn of(paths: &Paths, session: &str) -> Transcript {
        let path = paths.state.join("transcripts").join(format!("{session}.jsonl"));
        Transcript { place: Arc::new(Place { path, made: Mutex::new(false) }) }
    }

    /// Writes the conversation of a moment, in the place of the one before, and gives back the path: the
    /// same one for the whole session. The error is a sentence.
    pub async fn write(&self, moment: &Moment) -> Result<PathBuf, String> {
        let (place, base) = (self.place.clone(), moment.base.clone());
        let written = tokio::task::spawn_blocking(move || place.write(&base));
        let written = written.await.unwrap_or_else(|_| Err(io::Error::other("the writing broke off")));
        written.map_err(|error| {
            let path = self.place.path.display();
            format!("the conversation could not be written for it to {path}: {error}")
        })
    }
}

impl Place {
    fn write(&self, base: &Base) -> io::Result<PathBuf> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        if !*made {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
            sweep(folder);
            *made = true;
        }
        // A hook that still reads the one before keeps it: it is replaced, not written over.
        let mut whole = Unfinished::begin(folder, FILE_MODE)?;
        let mut file = io::BufWriter::new(whole.file());
        for line in lines(base) {
            serde_json::to_writer(&mut file, &line)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
        drop(file);
        whole.put_unsynced(&self.path)?;
        Ok(self.path.clone())
    }
}

/// Removes what processes left that were killed. What can't be removed or looked at stays.
fn sweep(folder: &Path) {
    let Ok(files) = fs::read_dir(folder) else { return };
    for file in files.flatten() {
        let written = file.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
        if age.is_some_and(|age| age > LEFT_BEHIND_AFTER) {
            let _ = fs::remove_file(file.path());
        }
    }
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
