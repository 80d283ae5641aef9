//! Conversations as files: what is written for others, and what is read from them. Pure: text in, entries
//! out, and back. It opens no file and stores nothing.
//!
//! | what is read | known by | module |
//! | --- | --- | --- |
//! | our own export | its first line opens a log | `ours` |
//! | a transcript of the protocol, as `--transcript` records | `editor>` lines | `recorded` |
//! | a session of the pi coding agent, versions 1 to 3 | its first line has `"type":"session"` | `pi` |
//!
//! An import is all of a conversation or nothing of it: what cannot be read is a `Problem` with its line.
//! What has no place in a log (another branch, an image that we don't know) is left out and said.

mod build;
mod ours;
mod pi;
mod recorded;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::problem::Problem;
use crate::thread::{Change, Entry, SessionId};

pub use ours::{entry_json, json_lines, of_log};

/// Bytes of a file that is read.
pub const IMPORT_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// What a file is a conversation of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Export,
    Transcript,
    Pi,
}

impl Source {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Source::Export => "an export of Epitome",
            Source::Transcript => "a transcript",
            Source::Pi => "a session of pi",
        }
    }
}

/// What an import needs that its file may not tell.
pub struct Circumstances<'a> {
    /// The working directory of a conversation that names none.
    pub cwd: &'a Path,
    /// Milliseconds since the epoch, for entries that have no time of their own.
    pub now: u64,
}

/// A conversation that was read and is not stored yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    pub source: Source,
    /// The id that it had, where it is one of ours.
    pub session: Option<SessionId>,
    /// A log: numbered from 0, beginning with its opening.
    pub entries: Vec<Entry>,
    /// What was left out or should be known, each a sentence.
    pub notes: Vec<String>,
}

impl Draft {
    /// The log as that of this session.
    pub fn into_entries(self, name: &SessionId) -> Vec<Arc<Entry>> {
        let mut entries = self.entries;
        for entry in &mut entries {
            if let Change::Opened { session, .. } = &mut entry.change {
                *session = name.clone();
            }
        }
        entries.into_iter().map(Arc::new).collect()
    }
}

/// Reads the conversations of a file; `path` is for messages alone. A transcript may hold several.
pub fn read(path: &Path, text: &str, circumstances: &Circumstances) -> Result<Vec<Draft>, Problem> {
    let file = File { path };
    match Source::of(text) {
        Some(Source::Export) => ours::read(file, text).map(|draft| vec![draft]),
        Some(Source::Pi) => pi::read(file, text, circumstances).map(|draft| vec![draft]),
        Some(Source::Transcript) => recorded::read(file, text, circumstances),
        None => Err(Problem {
            path: path.to_path_buf(),
            place: None,
            message: "this is no conversation that is known".to_owned(),
            hint: Some(
                "import takes what `epitome sessions export` writes, a journal, a transcript of `epitome acp \
                 --transcript`, and a session file of pi"
                    .to_owned(),
            ),
        }),
    }
}

impl Source {
    /// What a text is, by its beginning.
    fn of(text: &str) -> Option<Source> {
        let first = text.lines().find(|line| !line.trim().is_empty())?;
        if let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(first) {
            let has = |name: &str, value: &str| fields.get(name).and_then(Value::as_str) == Some(value);
            return match () {
                () if has("change", "opened") => Some(Source::Export),
                () if has("type", "session") => Some(Source::Pi),
                () => None,
            };
        }
        text.lines().any(|line| line.starts_with("editor>")).then_some(Source::Transcript)
    }
}

/// The file that is read, for messages.
#[derive(Clone, Copy)]
struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    fn problem(self, line: usize, message: impl Into<String>) -> Problem {
        Problem {
            path: PathBuf::from(self.path),
            place: Some((line as u64, 1)),
            message: message.into(),
            hint: None,
        }
    }

    /// A line that is no JSON, or not the JSON that it must be. serde tells the column.
    fn json_problem(self, line: usize, error: &serde_json::Error) -> Problem {
        let column = error.column().max(1) as u64;
        // Its own place is within the line.
        let words = error.to_string();
        let words = words.rsplit_once(" at line ").map_or(words.as_str(), |(words, _)| words);
        let mut problem = self.problem(line, format!("this line can't be read: {words}"));
        problem.place = Some((line as u64, column));
        problem
    }
}

#[cfg(test)]
mod tests;
