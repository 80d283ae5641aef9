//! Syncs files to the disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::time::clock_gettime;

use super::system;

/// Syncs what is at these paths to the disk, without following links: on Linux each file system as a whole, because
/// syncing files individually takes ten milliseconds each.
pub fn sync_paths(paths: &[PathBuf]) -> io::Result<()> {
    system::sync_paths(paths)
}

/// Syncs the names of a directory.
pub fn sync_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The time stamp that a file changed now would get, in nanoseconds since the epoch. The clock of file stamps lags behind
/// the precise one: by up to a tick, and on a busy virtual machine by far more.
pub fn file_time() -> i64 {
    let now = clock_gettime(system::FILE_CLOCK);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
