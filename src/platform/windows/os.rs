//! What the standard library has on Unix only, by the same names. What Windows does not have is fixed: files have no
//! owners and no permission bits, and every file counts as a program.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::FileExt as _;
use std::os::windows::io::AsHandle;
use std::os::windows::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use windows_sys::Win32::System::Threading::CREATE_NEW_PROCESS_GROUP;

pub use std::os::windows::fs::MetadataExt as _;
pub use std::os::windows::io::{BorrowedHandle as BorrowedFd, OwnedHandle as OwnedFd};

/// The file that is always empty.
pub const NULL_DEVICE: &str = "NUL";

/// Programs that run command lines, if there is no `bash` in the PATH. The `bash` of Windows itself works in another file
/// system, that of WSL.
pub const SHELLS: [&str; 2] =
    ["C:\\Program Files\\Git\\bin\\bash.exe", "C:\\Program Files (x86)\\Git\\bin\\bash.exe"];

/// Variables that programs need to start at all.
pub const SYSTEM_VARIABLES: &[&str] = &[
    "SystemRoot",
    "SystemDrive",
    "USERPROFILE",
    "USERNAME",
    "COMPUTERNAME",
    "APPDATA",
    "LOCALAPPDATA",
    "ProgramData",
    "ComSpec",
    "PATHEXT",
    "TEMP",
    "TMP",
];

/// Permissions of files that are not write-protected, and of those that are.
const MODE: u32 = 0o700;
const MODE_WITHOUT_WRITING: u32 = 0o500;

/// Between the epochs of Windows, 1601, and of Unix, 1970, in units of 100 ns.
const EPOCHS_APART: i64 = 116_444_736_000_000_000;

const UNITS_PER_SECOND: i64 = 10_000_000;

/// The number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pid(u32);

impl Pid {
    pub(crate) fn from_number(number: u32) -> Pid {
        Pid(number)
    }

    pub fn as_raw_pid(self) -> i32 {
        self.0.cast_signed()
    }
}

pub trait AsFd {
    fn as_fd(&self) -> BorrowedFd<'_>;
}

impl<T: AsHandle> AsFd for T {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.as_handle()
    }
}

pub trait OsStrExt {
    fn as_bytes(&self) -> &[u8];
    fn from_bytes(bytes: &[u8]) -> OsString;
}

impl OsStrExt for OsStr {
    /// UTF-8, if it is Unicode.
    fn as_bytes(&self) -> &[u8] {
        self.as_encoded_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> OsString {
        OsStringExt::from_vec(bytes.to_vec())
    }
}

pub trait OsStringExt: Sized {
    /// Bytes that are not UTF-8 are replaced.
    fn from_vec(bytes: Vec<u8>) -> Self;
    fn into_vec(self) -> Vec<u8>;
}

impl OsStringExt for OsString {
    fn from_vec(bytes: Vec<u8>) -> OsString {
        match String::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned().into(),
        }
    }

    fn into_vec(self) -> Vec<u8> {
        self.into_encoded_bytes()
    }
}

pub trait MetadataExt {
    fn dev(&self) -> u64;
    fn ino(&self) -> u64;
    fn nlink(&self) -> u64;
    fn uid(&self) -> u32;
    fn mode(&self) -> u32;
    fn mtime(&self) -> i64;
    fn mtime_nsec(&self) -> i64;
    fn ctime(&self) -> i64;
    fn ctime_nsec(&self) -> i64;
}

impl MetadataExt for Metadata {
    fn dev(&self) -> u64 {
        0
    }

    /// The time of its creation, in place of the number that only an open file has: another file at the same path has
    /// another one.
    fn ino(&self) -> u64 {
        self.creation_time()
    }

    fn nlink(&self) -> u64 {
        1
    }

    fn uid(&self) -> u32 {
        user_id()
    }

    fn mode(&self) -> u32 {
        self.permissions().mode()
    }

    fn mtime(&self) -> i64 {
        since_epoch(self).div_euclid(UNITS_PER_SECOND)
    }

    fn mtime_nsec(&self) -> i64 {
        since_epoch(self).rem_euclid(UNITS_PER_SECOND) * 100
    }

    fn ctime(&self) -> i64 {
        self.mtime()
    }

    fn ctime_nsec(&self) -> i64 {
        self.mtime_nsec()
    }
}

fn since_epoch(metadata: &Metadata) -> i64 {
    metadata.last_write_time().cast_signed() - EPOCHS_APART
}

pub trait PermissionsExt {
    fn mode(&self) -> u32;
}

impl PermissionsExt for std::fs::Permissions {
    fn mode(&self) -> u32 {
        if self.readonly() { MODE_WITHOUT_WRITING } else { MODE }
    }
}

pub trait FileTypeExt {
    fn is_fifo(&self) -> bool;
    fn is_socket(&self) -> bool;
}

impl FileTypeExt for FileType {
    fn is_fifo(&self) -> bool {
        false
    }

    fn is_socket(&self) -> bool {
        false
    }
}

pub trait FileExt {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl FileExt for File {
    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.seek_write(bytes, offset)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }
}

pub trait OpenOptionsExt {
    fn mode(&mut self, mode: u32) -> &mut Self;
}

impl OpenOptionsExt for OpenOptions {
    /// New files have the access list of their directory; that of the user's profile admits only the user.
    fn mode(&mut self, _: u32) -> &mut OpenOptions {
        self
    }
}

pub trait DirBuilderExt {
    fn mode(&mut self, mode: u32) -> &mut Self;
}

impl DirBuilderExt for DirBuilder {
    fn mode(&mut self, _: u32) -> &mut DirBuilder {
        self
    }
}

pub trait CommandExt {
    fn arg0<S: AsRef<OsStr>>(&mut self, name: S) -> &mut Command;
    fn process_group(&mut self, group: i32) -> &mut Command;
}

impl CommandExt for Command {
    /// A program has the name of its file.
    fn arg0<S: AsRef<OsStr>>(&mut self, _: S) -> &mut Command {
        self
    }

    fn process_group(&mut self, _: i32) -> &mut Command {
        self.creation_flags(CREATE_NEW_PROCESS_GROUP)
    }
}

/// The number of the user of this process: here all have the same, which is that of all files as well.
pub fn user_id() -> u32 {
    0
}

/// The directory for files that last as long as the user is logged in, if the environment names none: the user's own
/// temporary one.
pub fn runtime_directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

/// The name of this machine.
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// The version of the system's kernel. Unknown here.
pub fn kernel_release() -> String {
    "unknown".to_owned()
}

/// Whether a path can be written, as far as the write protection of files shows.
pub fn can_write(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_dir() || !metadata.permissions().readonly())
}

pub fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

/// Makes a directory accessible to the user alone. That of the user's profile is from the start.
pub fn make_private(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Gives a new file the write protection of another one.
pub fn copy_owner_and_mode(from: &Metadata, to: &File) -> io::Result<()> {
    to.set_permissions(from.permissions())
}

/// Kills a command that was started as a process group. Processes that it has started are not.
pub fn kill_group(child: &mut Child) {
    // The process may have ended already.
    let _ = child.kill();
}
