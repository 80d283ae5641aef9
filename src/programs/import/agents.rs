//! Finds the sessions that other agents store on this machine. Never writes to their files.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::files::read_sibling;
use super::{ImportContext, stored};
use epitome_thread::Change;
use epitome_transfer::{AGENTS, ForeignSession};

/// Bytes read from the start of a session for a listing. That includes the first prompt, after any preamble that some
/// agents write.
const HEAD_BYTES_MAX: u64 = 256 * 1024;

/// Bytes read of a session that is a single document, or that has no conversation in its first `HEAD_BYTES_MAX` bytes.
const DOCUMENT_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// An agent whose sessions can be found.
#[derive(Debug)]
pub struct ForeignAgent {
    /// The name on the command line.
    pub name: &'static str,
    /// Environment variable with its directory, which overrides `folders`.
    variable: Option<&'static str>,
    folders: &'static [&'static str],
    /// Patterns of its session files below that directory; `*` matches anything within a name.
    files: &'static [&'static str],
}

/// All supported agents. A directory that does not start with `~/` is relative to the current directory.
const FOREIGN_AGENTS: [ForeignAgent; AGENTS.len()] = [
    ForeignAgent {
        name: "claude-code",
        variable: Some("CLAUDE_CONFIG_DIR"),
        folders: &["~/.claude", "~/.config/claude"],
        files: &["projects/*/*.jsonl"],
    },
    ForeignAgent {
        name: "codex",
        variable: Some("CODEX_HOME"),
        folders: &["~/.codex"],
        files: &["sessions/*/*/*/rollout-*.jsonl", "archived_sessions/rollout-*.jsonl"],
    },
    ForeignAgent {
        name: "opencode",
        variable: Some("XDG_DATA_HOME"),
        folders: &["~/.local/share"],
        files: &["opencode/opencode*.db", "opencode/storage/session/*/ses_*.json"],
    },
    ForeignAgent {
        name: "gemini",
        variable: None,
        folders: &["~/.gemini"],
        files: &["tmp/*/chats/session-*.json", "tmp/*/chats/session-*.jsonl"],
    },
    ForeignAgent {
        name: "cline",
        variable: None,
        folders: &[
            "~/.cline/data",
            "~/.config/Code/User/globalStorage/saoudrizwan.claude-dev",
            "~/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline",
            "~/.vscode-server/data/User/globalStorage/saoudrizwan.claude-dev",
            "~/.vscode-server/data/User/globalStorage/rooveterinaryinc.roo-cline",
            "~/Library/Application Support/Code/User/globalStorage/saoudrizwan.claude-dev",
            "~/Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline",
        ],
        files: &["tasks/*/api_conversation_history.json", "sessions/*/*.messages.json"],
    },
    ForeignAgent {
        name: "copilot",
        variable: Some("COPILOT_HOME"),
        folders: &["~/.copilot"],
        files: &["session-state/*/events.jsonl"],
    },
    ForeignAgent {
        name: "kimi",
        variable: Some("KIMI_CODE_HOME"),
        folders: &["~/.kimi-code", "~/.kimi"],
        files: &["sessions/*/*/agents/main/wire.jsonl", "sessions/*/*/context.jsonl"],
    },
    ForeignAgent {
        name: "kodelet",
        variable: Some("KODELET_BASE_PATH"),
        folders: &["~/.kodelet"],
        files: &["storage.db"],
    },
    ForeignAgent { name: "aider", variable: None, folders: &[""], files: &[".aider.chat.history.md"] },
];

/// The machine's properties that determine where sessions are stored.
pub struct Machine<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub home: Option<&'a Path>,
    pub cwd: &'a Path,
}

impl ForeignAgent {
    /// All of them, in the order of `AGENTS`.
    pub fn all() -> impl Iterator<Item = &'static ForeignAgent> {
        FOREIGN_AGENTS.iter()
    }

    pub fn named(name: &str) -> Option<&'static ForeignAgent> {
        FOREIGN_AGENTS.iter().find(|agent| agent.name == name)
    }

    /// Returns the agent's session files, newest first; a file may contain many sessions. Unreadable directories are
    /// skipped.
    fn files(&self, machine: &Machine) -> Vec<PathBuf> {
        let default = |folder: &&str| match folder.strip_prefix("~/") {
            Some(below) => Some(machine.home?.join(below)),
            None => Some(machine.cwd.join(folder)),
        };
        let folders = match self.variable.and_then(machine.variable).filter(|folder| !folder.is_empty()) {
            Some(folder) => vec![machine.cwd.join(folder)],
            None => self.folders.iter().filter_map(default).collect(),
        };
        let mut files: Vec<(u64, PathBuf)> = Vec::new();
        for folder in folders {
            for pattern in self.files {
                let names: Vec<&str> = pattern.split('/').collect();
                matching(&folder, &names, &mut files);
            }
        }
        files.sort_by(|one, other| other.cmp(one));
        files.into_iter().map(|(_, file)| file).collect()
    }

    /// Returns the number of its sessions.
    pub fn count(&self, machine: &Machine) -> usize {
        let (databases, files): (Vec<PathBuf>, Vec<PathBuf>) =
            self.files(machine).into_iter().partition(|file| stored::is_database(file));
        let kept: HashSet<String> =
            databases.iter().flat_map(|file| database_sessions(file)).map(|kept| kept.id).collect();
        let is_other =
            |file: &&PathBuf| file.file_stem().is_none_or(|name| !kept.contains(&*name.to_string_lossy()));
        kept.len() + files.iter().filter(is_other).count()
    }

    /// Returns its sessions, those of the current directory first, then newest first. Files without a conversation
    /// are skipped: most agents create one before the first prompt.
    pub fn sessions(&self, machine: &Machine) -> Vec<ForeignSession> {
        let files = self.files(machine);
        let of_file = |file: &PathBuf| match stored::is_database(file) {
            true => database_sessions(file),
            false => foreign_session(file, machine.cwd).into_iter().collect(),
        };
        let mut sessions: Vec<ForeignSession> = files.iter().flat_map(of_file).collect();
        // Sessions that opencode migrated from files to its database exist in both.
        let mut seen = HashSet::new();
        sessions.retain(|session| seen.insert(session.session.clone()));
        sessions.sort_by_key(|session| Reverse((session.cwd == machine.cwd, session.updated_at)));
        sessions
    }
}

/// Returns the sessions of a database; none if it can't be read.
fn database_sessions(database: &Path) -> Vec<ForeignSession> {
    stored::sessions(database).unwrap_or_else(|error| {
        tracing::warn!(database = %database.display(), %error, "the sessions of a database can't be read");
        Vec::new()
    })
}

/// Collects the files below a directory whose path matches `names`, with their modification times.
fn matching(folder: &Path, names: &[&str], found: &mut Vec<(u64, PathBuf)>) {
    let [name, deeper @ ..] = names else { return };
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| is_named(&entry.file_name().to_string_lossy(), name)) {
        let path = entry.path();
        if !deeper.is_empty() {
            matching(&path, deeper, found);
        } else if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            found.push((changed_at(&metadata), path));
        }
    }
}

/// Whether a name matches a pattern with at most one `*`.
fn is_named(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
        }
        None => name == pattern,
    }
}

fn changed_at(metadata: &fs::Metadata) -> u64 {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    modified.map_or(0, |since| since.as_millis() as u64)
}

/// Reads a session's metadata from the beginning of its file; `None` if it has no conversation.
fn foreign_session(path: &Path, cwd: &Path) -> Option<ForeignSession> {
    let metadata = fs::metadata(path).ok()?;
    let folder = path.parent()?;
    let sibling = |name: &Path| read_sibling(folder, name);
    let nowhere = Path::new("");
    // For agents that store sessions within the project, the directory defaults to the current one.
    let default = if path.starts_with(cwd) { cwd } else { nowhere };
    let context = ImportContext { cwd: default, now: 0, read_sibling: &sibling };
    let draft = |text: io::Result<String>| {
        super::read(path, &text.ok()?, &context).ok().and_then(|drafts| drafts.into_iter().next())
    };
    let draft = match stored::text(path) {
        Some(text) => draft(text),
        None if path.extension().is_none_or(|extension| extension != "jsonl") => {
            draft(head(path, DOCUMENT_BYTES_MAX))
        }
        // The first prompt may contain an image.
        None => draft(head(path, HEAD_BYTES_MAX)).or_else(|| {
            (metadata.len() > HEAD_BYTES_MAX).then(|| draft(head(path, DOCUMENT_BYTES_MAX))).flatten()
        }),
    }?;
    let cwd = draft.entries.iter().find_map(|entry| match &entry.change {
        Change::Opened { cwd, .. } => Some(cwd.clone()),
        _ => None,
    });
    let title = draft.entries.iter().rev().find_map(|entry| match &entry.change {
        Change::Titled { title } => Some(title.clone()),
        _ => None,
    });
    Some(ForeignSession {
        session: draft.imported_id(path),
        id: draft.foreign_id.unwrap_or_else(|| path.display().to_string()),
        file: path.to_path_buf(),
        cwd: cwd.unwrap_or_default(),
        title,
        updated_at: changed_at(&metadata),
        bytes: metadata.len(),
    })
}

/// Returns all of a file, or the complete lines at its start if it is larger.
fn head(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == bytes_max {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        bytes.truncate(end);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_that_is_offered_is_found() {
        assert!(ForeignAgent::all().map(|agent| agent.name).eq(AGENTS.map(|(name, _)| name)));
    }

    #[test]
    fn file_names_match_patterns_with_one_star() {
        for (name, pattern, is) in [
            ("a.jsonl", "*.jsonl", true),
            ("rollout-1.jsonl", "rollout-*.jsonl", true),
            ("rollout-.json", "rollout-*.jsonl", false),
            ("x", "*", true),
            ("aa", "a*a", true),
            ("a", "a*a", false),
            ("chats", "chats", true),
        ] {
            assert_eq!(is_named(name, pattern), is, "{name} {pattern}");
        }
    }
}
