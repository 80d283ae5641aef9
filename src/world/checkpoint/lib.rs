//! Checkpoints: the state of workspace files before each turn changes them, recorded so that changes can be undone.
//!
//! ```text
//!  a file tool ─► the named files, exactly ─┐                         ┌─► listed (/checkpoints)
//!  a command ──► scans before and after ────┴─► record of the turn ───┴─► plan ─► restore ─► journal, files
//!                     (using file stamps)                                  ▲
//!                                                        the current state: a user's edit is a conflict
//! ```
//!
//! Everything is stored in `checkpoints/<session>` of the data directory, private to the user, and is deleted with
//! its session. The user's version control is neither used nor changed. A workspace is scanned only if a command or
//! an MCP tool runs; ignored files are skipped. Links are neither followed nor written through, and nothing is
//! overwritten before its content is saved.
//!
//! All functions block on the disk, so call them from a thread that may block.

mod baseline;
mod blobs;
mod calls;
mod node;
mod plan;
mod record;
mod restore;
mod rewinds;
mod scan;
mod tracker;
mod user_files;
mod walk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use epitome_files::disk::{Disk, PutMode, RealDisk};
use epitome_thread::SessionId;
use user_files::RealFiles;

pub use node::NodeStamp;
pub use plan::{Conflict, ConflictReason};
pub use record::{LineCount, TouchedPath, TurnRecord};
pub use restore::{Progress, RestoreFailure};
pub use tracker::{AffectedFiles, Checkpoints, RewindReport, RewindTarget};
pub use user_files::{NodeKind, NodeStat, UserFiles};

/// Name prefix of temporary files.
pub const TEMPORARY: &str = ".epitome-rewind-";

/// Limits on what is kept. Anything beyond them is reported when files are restored.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Maximum size in bytes of a file that a command may change. Larger files are usually data, and would fill the
    /// disk with each scan.
    pub file_bytes: u64,
    /// Maximum size in bytes of a file that a file tool names; higher, because such a file is kept unless it is
    /// excessively large.
    pub named_bytes: u64,
    /// Maximum number of files and directories per scan. A directory with more is a home directory rather than a
    /// project.
    pub paths: usize,
    /// Maximum bytes on the disk per session. The oldest turns are dropped first.
    pub session_bytes: u64,
    /// Maximum time to list the workspace and detect changes, and to read the files that a command changed.
    pub scan_time: Duration,
    /// Maximum delay of a command while files are read. The first scan reads all files; those that don't fit into
    /// this time are read before the following commands.
    pub copy_time: Duration,
    /// Maximum number of turns.
    pub turns: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            file_bytes: 2_000_000,
            named_bytes: 256_000_000,
            paths: 20_000,
            session_bytes: 256_000_000,
            scan_time: Duration::from_secs(5),
            copy_time: Duration::from_secs(1),
            turns: 200,
        }
    }
}

/// The storage of checkpoints, and the user's files that they are of.
#[derive(Clone, Debug)]
pub struct CheckpointDisk {
    pub disk: Arc<dyn Disk>,
    pub files: Arc<dyn UserFiles>,
}

impl CheckpointDisk {
    fn real() -> CheckpointDisk {
        CheckpointDisk { disk: Arc::new(RealDisk), files: Arc::new(RealFiles) }
    }

    /// Writes a file, and makes its directory if that is missing.
    fn put(&self, path: &Path, bytes: &[u8], mode: PutMode) -> io::Result<()> {
        match self.disk.put(path, bytes, mode) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.make_directory(path.parent().unwrap_or(path))?;
                self.disk.put(path, bytes, mode)
            }
            put => put,
        }
    }

    /// Makes the names in a directory of a session's checkpoints durable, and its own name. All of them each time: a sync
    /// that has failed when they were made must not count as done.
    fn sync_names(&self, directory: &Path) -> io::Result<()> {
        directory.ancestors().take(DIRECTORY_DEPTH).try_for_each(|path| self.disk.sync_directory(path))
    }
}

/// A failed checkpoint operation, with a description of what was attempted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointError(pub String);

impl CheckpointError {
    fn io(doing: &str, path: &Path, error: &io::Error) -> CheckpointError {
        CheckpointError(format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// The directory of a session's checkpoints, inside the data directory.
pub fn directory(data: &Path, session: &SessionId) -> PathBuf {
    data.join(DIRECTORY).join(&session.0)
}

/// The directories from one that records are in to the data directory: its kind, the session's, that of all sessions.
const DIRECTORY_DEPTH: usize = 4;

/// Name of the directory of all sessions' checkpoints, inside the data directory.
pub const DIRECTORY: &str = "checkpoints";
