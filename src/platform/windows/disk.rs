//! Syncs files to the disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Syncs the files at these paths to the disk. Links are not followed, and what the system can't sync is left out: links
/// and directories, whose names the file system's own journal protects.
pub fn sync_paths(paths: &[PathBuf]) -> io::Result<()> {
    for path in paths {
        if std::fs::symlink_metadata(path)?.is_file() {
            File::options().write(true).open(path)?.sync_all()?;
        }
    }
    Ok(())
}

/// Syncs the names of a directory, which the file system's journal does.
pub fn sync_names(directory: &Path) -> io::Result<()> {
    std::fs::metadata(directory).map(drop)
}

/// The time stamp that a file changed now would get, in nanoseconds since the epoch.
pub fn file_time() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
