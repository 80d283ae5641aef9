//! Items that the standard library has on Unix only, under names that exist on every system.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::process::{Signal, kill_process_group};

pub use rustix::process::Pid;
pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
pub use std::os::unix::ffi::{OsStrExt, OsStringExt};
pub use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt,
};
pub use std::os::unix::process::CommandExt;

/// The file that is always empty.
pub const NULL_DEVICE: &str = "/dev/null";

/// The program that opens an address in the user's browser, and its first arguments.
pub const OPENER: &[&str] = if cfg!(target_os = "macos") { &["open"] } else { &["xdg-open"] };

/// The endings of programs' file names, after the name of the command.
pub const PROGRAM_ENDINGS: [&str; 1] = [""];

/// The shell that is tried if there is no other, and what is missing if it is not there.
pub const LAST_SHELL: &str = "/bin/sh";
pub const NO_SHELL: &str = "there is neither a bash in the PATH nor /bin/sh";

/// Variables that programs need to start at all.
pub const SYSTEM_VARIABLES: &[&str] = &[];

/// The environment of this process.
pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Programs that run command lines, if there is no `bash` in the PATH.
pub fn usual_shells(_: &[(OsString, OsString)]) -> Vec<PathBuf> {
    ["/bin/bash", "/usr/bin/bash"].map(PathBuf::from).into()
}

/// Whether a shell works with the files of this system.
pub fn is_shell_for_files(_: &Path) -> bool {
    true
}

/// The number of the user of this process.
pub fn user_id() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The directory for files that last as long as the user is logged in, if the environment names none.
pub fn runtime_directory(name: &str) -> PathBuf {
    let user = user_id();
    let usual = PathBuf::from(format!("/run/user/{user}"));
    match std::fs::metadata(&usual) {
        Ok(metadata) if metadata.is_dir() && metadata.uid() == user => usual.join(name),
        Ok(_) | Err(_) => PathBuf::from(format!("/tmp/{name}-{user}")),
    }
}

/// The name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The version of the system's kernel.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// How a path is written in a URI, before characters are escaped.
pub(crate) fn path_in_uri(path: &Path) -> Cow<'_, [u8]> {
    Cow::Borrowed(path.as_os_str().as_bytes())
}

pub(crate) fn path_from_uri(path: Vec<u8>) -> PathBuf {
    OsString::from_vec(path).into()
}

/// Device and inode of an open file, which has this metadata.
pub fn id_of(_: &File, metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Device and inode of the file at a path, which has this metadata.
pub fn id_at(_: impl FnOnce() -> PathBuf, metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A path as programs expect it.
pub fn for_programs(path: &Path) -> Cow<'_, Path> {
    Cow::Borrowed(path)
}

/// Whether a path can be written. Also false for a read-only file system.
pub fn can_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Takes the lock of a file, which others can read and write all the same.
pub fn try_lock(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}

/// Like `try_lock`, for a lock that several can have.
pub fn try_lock_shared(file: &File) -> Result<(), TryLockError> {
    file.try_lock_shared()
}

pub fn unlock(file: &File) -> io::Result<()> {
    file.unlock()
}

/// Makes a directory accessible to the user alone.
pub fn make_private(directory: &Path) -> io::Result<()> {
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))
}

/// Gives a new file the owner and the permissions of another one. Only root may always change the owner; otherwise
/// the file belongs to the current user, as with most editors.
pub fn copy_owner_and_mode(from: &Metadata, to: &File) -> io::Result<()> {
    let new = to.metadata()?;
    if (new.uid(), new.gid()) != (from.uid(), from.gid()) {
        let _ = std::os::unix::fs::fchown(to, Some(from.uid()), Some(from.gid()));
    }
    to.set_permissions(from.permissions())
}

/// Kills a command that was started as a process group. It must not have been waited for, so that its number is its own.
pub fn kill_group(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The process may have ended already.
        let _ = kill_process_group(group, Signal::KILL);
    }
}
