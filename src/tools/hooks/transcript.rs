//! The conversation as a JSON Lines file, in the format that Claude Code's hooks read.
//!
//! It contains the conversation as the model sees it, oldest first, without thinking and image data. It is
//! written for hooks that need it, is private to the user, and is removed with the session. If the process is
//! killed, the file stays; it is in the user's state directory rather than in a shared one, and is removed
//! when another session writes a transcript more than a day later.

use epitome_platform::os::{DirBuilderExt, OpenOptionsExt as _};
use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value, json};

use super::claude::tools::{to_claude_input, tool_name};
use super::hook_context::{HookCall, HookContext, PayloadBase};
use super::payload::timestamp;
use epitome_files::atomic_file::AtomicFile;
use epitome_files::paths::Paths;
use epitome_platform::root::read_regular;
use epitome_thread::{Change, Content, Entry, Message, OutcomeStatus, ToolOutcome, Usage};
use epitome_tools::sandbox::TEMPORARY;

/// Only the user may access the folder and its files.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Age after which a file is considered left over from a killed process: a live session rewrites it at each
/// event for which a hook needs it.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum bytes of the exports of hooks: every command of the session begins with them.
const EXPORTS_BYTES_MAX: u64 = 64 * 1024;

/// A session's transcript, and the file with the exports of its hooks. The files are created on demand and removed on
/// drop.
pub struct Transcript {
    file: Arc<TranscriptFile>,
}

struct TranscriptFile {
    path: PathBuf,
    /// The exports of hooks in a sandbox, in a directory that they may change.
    from_sandbox: PathBuf,
    /// Whether the folder exists. Locked while writing.
    has_folder: Mutex<bool>,
}

impl Drop for TranscriptFile {
    fn drop(&mut self) {
        // Fails if no hook ever needed them.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.exports());
        let _ = fs::remove_file(&self.from_sandbox);
    }
}

impl Transcript {
    /// The transcript of the session with this id. Does not access the disk.
    pub fn new(paths: &Paths, session: &str) -> Transcript {
        let path = paths.state.join("transcripts").join(format!("{session}.jsonl"));
        let name = format!("epitome-exports-{:016x}", fastrand::u64(..));
        let from_sandbox = Path::new(TEMPORARY[0]).join(name);
        Transcript { file: Arc::new(TranscriptFile { path, from_sandbox, has_folder: Mutex::new(false) }) }
    }

    /// Writes the conversation of a hook context, replacing the previous version, and returns the path, which is
    /// the same for the lifetime of the session.
    pub async fn write(&self, hook_context: &HookContext) -> io::Result<PathBuf> {
        let (file, base) = (self.file.clone(), hook_context.base.clone());
        let written = tokio::task::spawn_blocking(move || file.write(&base));
        let written = written.await.unwrap_or_else(|_| Err(io::Error::other("the write was aborted")));
        written.map_err(|error| {
            let path = self.file.path.display();
            let text = format!("the conversation could not be written for it to {path}: {error}");
            io::Error::new(error.kind(), text)
        })
    }

    /// Returns the file (`CLAUDE_ENV_FILE`) to which hooks write, at the session's start, the shell code with which its
    /// later commands begin. Creates its folder.
    ///
    /// A hook in a sandbox gets another file: it can't reach the folder.
    pub(super) async fn exports_file(&self, in_sandbox: bool) -> io::Result<PathBuf> {
        let file = self.file.clone();
        let make = move || {
            let _folder = file.folder()?;
            if in_sandbox {
                let mut options = fs::OpenOptions::new();
                match options.append(true).create_new(true).mode(FILE_MODE).open(&file.from_sandbox) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => return Ok(file.from_sandbox.clone()),
                }
            }
            Ok(file.exports())
        };
        let made = tokio::task::spawn_blocking(make).await;
        let made = made.unwrap_or_else(|_| Err(io::Error::other("it was aborted")));
        made.map_err(|error| {
            io::Error::new(error.kind(), format!("the folder of its CLAUDE_ENV_FILE can't be made: {error}"))
        })
    }

    /// The files that hooks may need. They may not exist.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        vec![self.file.path.clone()]
    }

    /// Reads the exports file; `None` if no hook has written any. A longer one is truncated after a line.
    pub(super) async fn exports(&self) -> Option<String> {
        let (own, from_sandbox) = (self.file.exports(), self.file.from_sandbox.clone());
        let read = move || {
            let mut bytes = read_regular(&from_sandbox, EXPORTS_BYTES_MAX - 1).unwrap_or_default();
            if let Ok(file) = fs::File::open(own) {
                file.take(EXPORTS_BYTES_MAX - bytes.len() as u64).read_to_end(&mut bytes).ok()?;
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let end = if bytes.len() as u64 == EXPORTS_BYTES_MAX { text.rfind('\n')? } else { text.len() };
            Some(text[..end].trim().to_owned()).filter(|text| !text.is_empty())
        };
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

impl TranscriptFile {
    fn exports(&self) -> PathBuf {
        self.path.with_extension("sh")
    }

    /// Creates the folder of the files, and returns its lock.
    fn folder(&self) -> io::Result<MutexGuard<'_, bool>> {
        let mut has_folder = self.has_folder.lock();
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        if !*has_folder {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
            sweep(folder);
            *has_folder = true;
        }
        Ok(has_folder)
    }

    fn write(&self, base: &PayloadBase) -> io::Result<PathBuf> {
        let _writing = self.folder()?;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        // Replaced rather than overwritten: a hook that still reads the previous version can finish.
        let mut whole = AtomicFile::begin(folder, FILE_MODE)?;
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

/// Removes leftovers of killed processes. Files that can't be removed or inspected stay.
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

/// The lines, each with the previous one as its parent.
fn lines(base: &PayloadBase) -> Vec<Value> {
    let mut lines: Vec<Value> = Vec::new();
    for (at, entry) in base.view.entries().iter().enumerate() {
        let Some((kind, message)) = message_of(base, entry) else { continue };
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
            // Entries that a hook made from one entry share its number.
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

/// The role and message of an entry; `None` for entries that are not part of a view.
fn message_of(base: &PayloadBase, entry: &Entry) -> Option<(&'static str, Value)> {
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

fn blocks(base: &PayloadBase, message: &Message) -> Vec<Value> {
    let block = |content: &Content| match content {
        Content::Text { text } => Some(json!({"type": "text", "text": text})),
        Content::Call(call) => {
            let (id, tool) = (call.id.to_string(), call.name.clone());
            let input = call.input.as_object().cloned().unwrap_or_else(Map::new);
            let call = HookCall { id, tool, input, kind: call.card.kind };
            let input = to_claude_input(&call, &base.cwd);
            Some(json!({"type": "tool_use", "id": call.id, "name": tool_name(&call.tool), "input": input}))
        }
        _ => None,
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
