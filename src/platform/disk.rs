//! Syncs files to the disk.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::time::clock_gettime;

use super::system;

pub use super::system::sync_paths;

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
