//! What the standard library has on Unix only, by names that exist on each system.

use std::fs::{File, Metadata, Permissions};
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

/// Programs that run command lines, if there is no `bash` in the PATH.
pub const SHELLS: [&str; 2] = ["/bin/bash", "/usr/bin/bash"];

/// Variables that programs need to start at all.
pub const SYSTEM_VARIABLES: &[&str] = &[];

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

/// Whether a path can be written. Also false for a read-only file system.
pub fn can_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
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
