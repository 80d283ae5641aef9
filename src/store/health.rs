//! What a look at the store tells: data for people and programs. It decides nothing about files.

use std::path::PathBuf;

use serde::Serialize;

use epitome_thread::SessionId;

/// Findings of one look that are told; of a disk that breaks everywhere the first ones say enough.
pub(super) const FINDINGS_MAX: usize = 1_000;

/// An index smaller than this is never called bloated: a fresh one takes a few megabytes for nothing.
const BLOATED_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// How many times larger than what it holds an index may be. Filling one comes to 1.7, much rewriting to 9.
const BLOATED_TIMES: u64 = 3;

/// The state of a store at one moment. Sessions may go on meanwhile: what they append is no finding.
#[derive(Clone, Debug, Serialize)]
pub struct Health {
    pub sessions: u64,
    pub entries: u64,
    pub findings: Vec<Finding>,
    /// Findings beyond those that are told.
    pub more_findings: u64,
    pub index: IndexState,
    pub sizes: Sizes,
}

impl Health {
    /// Whether something is lost or cannot be read.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is to be done.
    Note,
    /// It works, and something should be looked at.
    Warning,
    /// Something is lost, or cannot be read.
    Error,
}

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub kind: FindingKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    pub path: PathBuf,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// A sentence.
    pub what: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A line in the middle of a journal is not what was written.
    DamagedJournal,
    /// The last line of a journal is not whole: a crash broke it off, or it is being written.
    TornLine,
    /// A journal or a directory that the disk does not give.
    Unreadable,
    /// A journal of a newer version.
    FutureFormat,
    /// A body that an entry names is not there.
    MissingBlob,
    /// A body is not what was written.
    ChangedBlob,
    /// Bodies of a session that has no journal.
    OrphanBlobs,
    /// What files were, kept for a session that has no journal.
    OrphanCheckpoints,
    /// A file among the bodies that no entry names.
    UnnamedBlob,
    /// A last line that a crash broke off, kept when the session was opened again.
    TornKept,
    /// A damaged journal, kept by a repair.
    DamagedKept,
    /// The index says something else than the journals, or cannot be read.
    Index,
    /// An index that was put out of the way, or the rest of one that was being rebuilt.
    IndexKept,
}

/// How the index stands to the journals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum IndexState {
    /// There is none; the next prompt makes one.
    Absent,
    /// It says what the journals say. `behind` sessions have something newer in their journals, which is
    /// taken in as they are used or listed.
    Agrees { sessions: u64, behind: u64 },
    /// Rows of these sessions are lost or others than their journal's lines.
    Disagrees { sessions: Vec<SessionId> },
    /// Its files are of no use.
    Damaged { reason: String },
    /// Another process has it open, as a running daemon does; `holder` names it where that can be told.
    Elsewhere {
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
    },
    /// It could not be looked at.
    Unknown { reason: String },
}

/// Bytes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sizes {
    pub journals: u64,
    pub blobs: u64,
    /// Broken last lines and damaged journals that were kept.
    pub kept: u64,
    pub index: u64,
    /// Indexes that were put out of the way.
    pub index_kept: u64,
}

impl Sizes {
    pub fn total(&self) -> u64 {
        self.journals + self.blobs + self.kept + self.index + self.index_kept
    }

    /// Whether the index is worth rebuilding for its size alone. It holds a copy of the journals.
    pub fn is_index_bloated(&self) -> bool {
        self.index > BLOATED_BYTES_MIN && self.index / BLOATED_TIMES > self.journals
    }
}

/// What a repair came to.
#[derive(Clone, Debug, Serialize)]
pub struct Repair {
    pub done: Vec<Repaired>,
    /// What could not be repaired now, and why.
    pub refused: Vec<Repaired>,
    /// The state behind it.
    pub health: Health,
}

/// One thing that a repair did, or did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// A sentence.
    pub what: String,
    /// Where that which was damaged is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

/// A copy of the store.
#[derive(Clone, Debug, Serialize)]
pub struct Backup {
    pub into: PathBuf,
    pub sessions: u64,
    pub bytes: u64,
    /// What is not sound in it, because it is not in the store.
    pub findings: Vec<Finding>,
}

/// An index that was written anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    pub sessions: u64,
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// Where the old one is, if it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}
