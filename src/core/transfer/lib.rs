//! Conversations as files: Epitome's own export format, and what a reader of another format hands over. Pure: converts text
//! to entries and back. Opens no files and stores nothing.
//!
//! The other formats are read by the program `epitome-import` (`src/import`).

mod export;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use epitome_thread::problem::Problem;
use epitome_thread::{Change, Entry, SessionId};

pub use export::{draft_from_log, entry_json, is_export, json_lines, read};

/// Maximum size in bytes of an imported file.
pub const IMPORT_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// The agents whose sessions can be found on a machine: the name on the command line, and the one shown to the user.
pub const AGENTS: [(&str, &str); 9] = [
    ("claude-code", "Claude Code"),
    ("codex", "Codex"),
    ("opencode", "opencode"),
    ("gemini", "Gemini CLI"),
    ("cline", "Cline and Roo Code"),
    ("copilot", "Copilot CLI"),
    ("kimi", "Kimi"),
    ("kodelet", "kodelet"),
    ("aider", "aider"),
];

/// The replacement for a summary that only Codex can use.
pub const ENCRYPTED: &str = "(A summary that the service encrypted, so that only Codex can use it.)";

/// The program or format that a file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImportSource {
    Export,
    Transcript,
    Pi,
    ClaudeCode,
    Codex,
    Opencode,
    Gemini,
    Cline,
    Copilot,
    Kimi,
    Kodelet,
    Aider,
    SweAgent,
    Messages,
}

impl ImportSource {
    /// A description for the user.
    pub fn words(self) -> &'static str {
        match self {
            ImportSource::Export => "an export of Epitome",
            ImportSource::Transcript => "a transcript",
            ImportSource::Pi => "a session of pi",
            ImportSource::ClaudeCode => "a session of Claude Code",
            ImportSource::Codex => "a session of Codex",
            ImportSource::Opencode => "a session of opencode",
            ImportSource::Gemini => "a session of Gemini CLI",
            ImportSource::Cline => "a session of Cline",
            ImportSource::Copilot => "a session of Copilot CLI",
            ImportSource::Kimi => "a session of Kimi",
            ImportSource::Kodelet => "a session of kodelet",
            ImportSource::Aider => "a session of aider",
            ImportSource::SweAgent => "a trajectory of SWE-agent",
            ImportSource::Messages => "messages of a request",
        }
    }

    /// Whether it is a session of another agent with a permanent id.
    pub fn is_foreign(self) -> bool {
        use ImportSource::{Export, Messages, SweAgent, Transcript};
        !matches!(self, Export | Transcript | SweAgent | Messages)
    }
}

/// A conversation that has been read but not stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportDraft {
    pub source: ImportSource,
    /// Its id, if it is one of Epitome's.
    pub session: Option<SessionId>,
    /// Its id in another agent.
    pub foreign_id: Option<String>,
    /// The log: numbered from 0, beginning with `Opened`.
    pub entries: Vec<Entry>,
    /// Sentences about skipped contents and other facts that the user should know.
    pub notes: Vec<String>,
}

impl ImportDraft {
    /// Returns the log as that of the session `name`.
    pub fn into_entries(self, name: &SessionId) -> Vec<Arc<Entry>> {
        let mut entries = self.entries;
        for entry in &mut entries {
            if let Change::Opened { session, .. } = &mut entry.change {
                *session = name.clone();
            }
        }
        entries.into_iter().map(Arc::new).collect()
    }

    /// Returns the id of the session that an import of this one from another agent creates. It is deterministic, so that a
    /// second import finds the first.
    pub fn imported_id(&self, file: &Path) -> SessionId {
        let name = self.foreign_id.clone().unwrap_or_else(|| file.display().to_string());
        imported_id(self.source, &name)
    }
}

/// The id of the session that an import creates of one with this name.
pub fn imported_id(source: ImportSource, name: &str) -> SessionId {
    let digest = Sha256::digest(format!("{}\n{name}", source.words()));
    let digits: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    SessionId(format!("s_{digits}"))
}

/// The answer of `epitome-import` about a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadAnswer {
    Drafts(Vec<ImportDraft>),
    /// Why it can't be read, as in a `Problem`.
    Refused {
        #[serde(rename = "place")]
        position: Option<(u64, u64)>,
        message: String,
        hint: Option<String>,
    },
}

/// A session of another agent on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForeignSession {
    /// Its id in that agent.
    pub id: String,
    pub file: PathBuf,
    /// Empty if the beginning of the file does not contain it.
    pub cwd: PathBuf,
    /// Its title, or otherwise its first prompt.
    pub title: Option<String>,
    /// Time of the last change, in milliseconds since the Unix epoch.
    pub updated_at: u64,
    pub bytes: u64,
    /// The id of the session that an import of it creates.
    pub session: SessionId,
}

/// The imported file, for messages.
#[derive(Clone, Copy)]
pub struct ImportFile<'a> {
    pub path: &'a Path,
}

impl ImportFile<'_> {
    pub fn problem(self, line: usize, message: impl Into<String>) -> Problem {
        Problem::new(self.path, message).at((line as u64, 1))
    }

    /// Describes a line that is not valid JSON, or not of the expected form. The column comes from serde.
    pub fn json_problem(self, line: usize, error: &serde_json::Error) -> Problem {
        let column = error.column().max(1) as u64;
        // serde's position is relative to the parsed line.
        let words = error.to_string();
        let words = words.rsplit_once(" at line ").map_or(words.as_str(), |(words, _)| words);
        let mut problem = self.problem(line, format!("this line can't be read: {words}"));
        problem.position = Some((line as u64, column));
        problem
    }
}
