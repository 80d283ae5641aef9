//! Opening files without following links, and syncing a whole file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Opens a path with these options. Fails if its last component is a link, and never blocks on a pipe or
/// acquires a terminal.
pub fn open_without_following(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

/// Syncs files in one file system to the disk: on Linux all at once, because syncing them one by one takes ten
/// milliseconds each.
pub fn sync_files(files: &[PathBuf]) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(directory) = files.first().and_then(|file| file.parent()) {
        rustix::fs::syncfs(File::open(directory)?)?;
    }
    #[cfg(not(target_os = "linux"))]
    for file in files {
        File::open(file)?.sync_all()?;
    }
    Ok(())
}
