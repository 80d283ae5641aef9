//! Files without a name (`O_TMPFILE`), which the kernel removes if they are never named.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

/// The kernel's directory of a process's open files; missing in some minimal containers.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Creates an unnamed file in a directory; `None` if the system doesn't support that. `mode` contains its
/// permissions, subject to the process's umask.
pub fn create(directory: impl AsFd, mode: u32) -> io::Result<Option<File>> {
    // Unnamed files are linked through the path of their descriptor.
    if !Path::new(DESCRIPTORS).is_dir() {
        return Ok(None);
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(mode)) {
        Ok(file) => Ok(Some(File::from(file))),
        // Kernels and file systems without support return different errors.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Gives an unnamed file a name in a directory; fails if the name exists.
pub fn link(file: &File, directory: impl AsFd, name: &OsStr) -> io::Result<()> {
    let own = format!("{DESCRIPTORS}/{}", file.as_raw_fd());
    Ok(linkat(CWD, own, directory, name, AtFlags::SYMLINK_FOLLOW)?)
}
