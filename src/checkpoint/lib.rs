//! Checkpoints: what the files of a workspace were before a turn changed them, so that they can be taken back.
//!
//! ```text
//!  a file tool ─► the named files, exactly ─┐                         ┌─► listed (/checkpoints)
//!  a command ──► a look before, one behind ─┴─► record of the turn ───┴─► plan ─► restore ─► journal, files
//!                     (scan, with stamps)                                  ▲
//!                                                        what stands there now: a person's edit is a conflict
//! ```
//!
//! All of it lies below `checkpoints/<session>` of the data directory, private to the user, and goes with its
//! session. The person's version control is neither used nor touched. A workspace is looked at only where a
//! command or another server's tool runs; what ignore files leave out is left out here too. Nothing follows a link
//! or writes through one, and nothing is overwritten that is not kept first.
//!
//! It blocks on the disk, and belongs on a thread that may.

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
mod walk;

use std::path::{Path, PathBuf};
use std::time::Duration;

use epitome_thread::SessionId;

pub use plan::{Conflict, Why};
pub use record::{LineCount, Touched, TurnRecord};
pub use restore::{Came, Failure};
pub use tracker::{Asked, Checkpoints, Report, What};

/// How the names of files begin that have not their own name yet.
const TEMPORARY: &str = ".epitome-rewind-";

/// What is kept at most. What is beyond is told when files are taken back.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Bytes of one file that a command may change. More are data, and would fill the disk with each look.
    pub file_bytes: u64,
    /// Bytes of one file that a file tool names: it is kept in any case that a machine can bear.
    pub named_bytes: u64,
    /// Files and directories that a look takes in. More is no project but a home directory.
    pub paths: usize,
    /// Bytes on the disk for one session. The oldest turns' go first.
    pub session_bytes: u64,
    /// How long it may take to find out which files there are and which of them changed, and to read those that a
    /// command changed when it has ended.
    pub scan_time: Duration,
    /// How long a command may wait for files to be read. The first look reads them all; those that there is no time
    /// for are read before the next commands.
    pub copy_time: Duration,
    /// Turns that are kept.
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

/// Why something about checkpoints was not done, with what was tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointError(pub String);

impl CheckpointError {
    fn io(doing: &str, path: &Path, error: &std::io::Error) -> CheckpointError {
        CheckpointError(format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Where a session's checkpoints are, below the data directory.
pub fn directory(data: &Path, session: &SessionId) -> PathBuf {
    data.join(DIRECTORY).join(&session.0)
}

/// The directory of all sessions' checkpoints, below the data directory.
pub const DIRECTORY: &str = "checkpoints";
