//! Results of checking and repairing the store, as data for users and programs. It does not touch files.

use std::path::{Path, PathBuf};

use serde::Serialize;

use epitome_thread::SessionId;

/// Most findings reported by one check; on a failing disk the first ones are sufficient.
pub(super) const FINDINGS_MAX: usize = 1_000;

/// An index smaller than this is never considered bloated: even an empty one takes a few megabytes.
const BLOATED_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Size of the index, relative to the journals, from which it is bloated. Filling one gives 1.7, heavy
/// rewriting 9.
const BLOATED_TIMES: u64 = 3;

/// The state of a store. Sessions may continue during the check; what they append is not reported.
#[derive(Clone, Debug, Serialize)]
pub struct Health {
    pub sessions: u64,
    pub entries: u64,
    pub findings: Vec<Finding>,
    /// Number of findings not included in `findings`.
    pub more_findings: u64,
    pub index: IndexState,
    pub sizes: StoreSizes,
}

impl Health {
    /// Whether something is lost or unreadable.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == FindingSeverity::Error)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// For information; nothing needs to be done.
    Note,
    /// The store works, but something needs attention.
    Warning,
    /// Something is lost or unreadable.
    Error,
}

/// A deviation from what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: FindingSeverity,
    pub kind: FindingKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    pub path: PathBuf,
    /// Counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// A sentence.
    pub what: String,
    /// A hint for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

impl Finding {
    pub(super) fn new(kind: FindingKind, path: PathBuf, what: String) -> Finding {
        Finding { severity: kind.severity(), kind, session: None, path, line: None, what, todo: None }
    }

    pub(super) fn for_session(self, session: &SessionId) -> Finding {
        Finding { session: Some(session.clone()), ..self }
    }

    pub(super) fn in_line(self, line: u64) -> Finding {
        Finding { line: Some(line), ..self }
    }

    pub(super) fn todo(self, todo: &str) -> Finding {
        Finding { todo: Some(todo.to_owned()), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A line of a journal is damaged, missing or out of order.
    DamagedJournal,
    /// A journal has lost its last entries, which were on the disk.
    MissingEntries,
    /// Damage that the user knows of and has accepted.
    AcceptedDamage,
    /// The end of a journal is incomplete: a crash interrupted its write, or it is being written.
    TornLine,
    /// A journal or directory that can't be read.
    Unreadable,
    /// A journal written by a newer version.
    FutureFormat,
    /// A blob that an entry refers to does not exist.
    MissingBlob,
    /// A blob whose content was altered.
    ChangedBlob,
    /// Blobs of a session without a journal.
    OrphanBlobs,
    /// File checkpoints of a session without a journal.
    OrphanCheckpoints,
    /// A file among the blobs that no entry refers to.
    UnnamedBlob,
    /// An unfinished write left by a crash, kept when the session was opened again.
    TornKept,
    /// A damaged journal kept by a repair.
    DamagedKept,
    /// A file left by an interrupted write, or the mark of a journal that no longer exists.
    Leftover,
    /// The index differs from the journals, or can't be read.
    Index,
    /// A retired index, or remains of an interrupted rebuild.
    IndexKept,
}

impl FindingKind {
    fn severity(self) -> FindingSeverity {
        match self {
            FindingKind::DamagedJournal
            | FindingKind::MissingEntries
            | FindingKind::Unreadable
            | FindingKind::MissingBlob
            | FindingKind::ChangedBlob => FindingSeverity::Error,
            FindingKind::FutureFormat
            | FindingKind::OrphanBlobs
            | FindingKind::OrphanCheckpoints
            | FindingKind::Index => FindingSeverity::Warning,
            FindingKind::AcceptedDamage
            | FindingKind::TornLine
            | FindingKind::UnnamedBlob
            | FindingKind::TornKept
            | FindingKind::DamagedKept
            | FindingKind::Leftover
            | FindingKind::IndexKept => FindingSeverity::Note,
        }
    }
}

/// The state of the index relative to the journals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum IndexState {
    /// It does not exist; the next prompt creates it.
    Absent,
    /// It matches the journals. `behind` sessions have newer entries in their journals, which are indexed
    /// when they are used or listed.
    Agrees { sessions: u64, behind: u64 },
    /// Rows of these sessions differ from the headers of their journals.
    Disagrees { sessions: Vec<SessionId> },
    /// Its files are unusable.
    Damaged { reason: String },
    /// Another process has it open, such as a running daemon; `holder` names that process if it is known.
    Elsewhere {
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
    },
    /// It could not be checked.
    Unknown { reason: String },
}

/// Disk usage in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreSizes {
    pub journals: u64,
    pub blobs: u64,
    /// Incomplete last lines and damaged journals that were kept.
    pub kept: u64,
    pub index: u64,
    /// Retired indexes.
    pub index_kept: u64,
}

impl StoreSizes {
    pub fn total(&self) -> u64 {
        self.journals + self.blobs + self.kept + self.index + self.index_kept
    }

    /// Whether the index should be rebuilt because of its size alone. It contains only headers.
    pub fn is_index_bloated(&self) -> bool {
        self.index > BLOATED_BYTES_MIN && self.index / BLOATED_TIMES > self.journals
    }
}

/// The result of a repair.
#[derive(Clone, Debug, Serialize)]
pub struct Repair {
    pub done: Vec<Repaired>,
    /// The repairs that are not possible now, each with its reason.
    pub refused: Vec<Repaired>,
    /// The state after the repair.
    pub health: Health,
}

/// One thing that was repaired or could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// A sentence.
    pub what: String,
    /// The path to which a damaged file was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

/// A finished backup of the store.
#[derive(Clone, Debug, Serialize)]
pub struct Backup {
    pub into: PathBuf,
    pub sessions: u64,
    pub bytes: u64,
    /// Damage in the backup, copied from the store.
    pub findings: Vec<Finding>,
}

/// A rebuilt index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    pub sessions: u64,
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// Path of the old index, if it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

/// Depth to which directories are entered to count bytes.
const DEPTH_MAX: usize = 4;

/// Total size of all files below a directory; unreadable ones count as 0.
pub(super) fn bytes_below(directory: &Path, depth: usize) -> u64 {
    let Ok(listing) = std::fs::read_dir(directory) else { return 0 };
    let bytes = listing.flatten().map(|file| match file.metadata() {
        Ok(metadata) if metadata.is_dir() && depth < DEPTH_MAX => bytes_below(&file.path(), depth + 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) | Err(_) => 0,
    });
    bytes.sum()
}
