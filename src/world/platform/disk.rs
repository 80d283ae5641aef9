//! Syncs files to the disk, and knows how much space is free.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::statvfs;
use rustix::time::clock_gettime;

use super::system;

pub use super::system::sync_paths;

/// Syncs the names of a directory.
pub fn sync_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The bytes that this user can still write to the file system of a path, which must exist. 0 if it has no room for another
/// file.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let known = statvfs(path)?;
    if known.f_blocks == 0 {
        // Such a file system does not count.
        return Err(io::ErrorKind::Unsupported.into());
    }
    let takes_files = known.f_files == 0 || known.f_favail > 0;
    Ok(if takes_files { known.f_bavail.saturating_mul(known.f_frsize) } else { 0 })
}

/// The time stamp that a file changed now would get, in nanoseconds since the epoch. The clock of file stamps lags behind
/// the precise one: by up to a tick, and on a busy virtual machine by far more.
pub fn file_time() -> i64 {
    let now = clock_gettime(system::FILE_CLOCK);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
