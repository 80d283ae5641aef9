//! What the standard library has on Unix only, by names that exist on each system.

use std::fs::{File, Metadata, Permissions};
use std::io;

pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
pub use std::os::unix::ffi::{OsStrExt, OsStringExt};
pub use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt,
};
pub use std::os::unix::process::CommandExt;

/// The file that is always empty.
pub const NULL_DEVICE: &str = "/dev/null";

pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
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
