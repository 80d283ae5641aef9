//! Syncs files to the disk, and knows how much space is free.

use std::fs::File;
use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::time::SystemTime;

use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;

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

/// The bytes that this user can still write to the file system of a directory, which must exist.
pub fn free_bytes(directory: &Path) -> io::Result<u64> {
    let name: Vec<u16> = directory.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: the name ends with a zero, and the other two numbers are not asked for.
    let is_known = unsafe { GetDiskFreeSpaceExW(name.as_ptr(), &mut free, null_mut(), null_mut()) };
    if is_known == 0 { Err(io::Error::last_os_error()) } else { Ok(free) }
}

/// The time stamp that a file changed now would get, in nanoseconds since the epoch.
pub fn file_time() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
