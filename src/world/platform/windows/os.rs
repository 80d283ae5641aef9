//! Functions that the standard library has on Unix only, by the same names. Properties that Windows lacks are fixed:
//! files have no owners and no permission bits, and every file counts as a program.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io;
use std::mem::zeroed;
use std::os::windows::fs::FileExt as _;
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::os::windows::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_LOCK_VIOLATION};
use windows_sys::Win32::Storage::FileSystem::{
    LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, UnlockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;
use windows_sys::Win32::System::Threading::CREATE_NEW_PROCESS_GROUP;

use super::directories::{FileIdentity, VERBATIM};

pub use std::os::windows::fs::MetadataExt as _;
pub use std::os::windows::io::{BorrowedHandle as BorrowedFd, OwnedHandle as OwnedFd};

/// The file that is always empty.
pub const NULL_DEVICE: &str = "NUL";

/// The program that opens an address in the user's browser, and its first arguments.
pub const OPENER: &[&str] = &["rundll32", "url.dll,FileProtocolHandler"];

/// The endings of programs' file names, after the name of the command. A file without one of these is a script for
/// another shell, which Windows can't start.
pub const PROGRAM_ENDINGS: [&str; 4] = [".exe", ".cmd", ".bat", ""];

/// The shell that is tried if there is no other, and what is missing if it is not there.
pub const LAST_SHELL: &str = "C:\\Program Files\\Git\\bin\\bash.exe";
pub const NO_SHELL: &str =
    "there is no bash, which runs all commands: install Git for Windows, which brings one";

/// The directory of Git for Windows, below each of these directories.
const PROGRAM_DIRECTORIES: [(&str, &str); 3] =
    [("ProgramFiles", "Git"), ("ProgramFiles(x86)", "Git"), ("LOCALAPPDATA", "Programs\\Git")];

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

/// The upper half of the offset of the byte that is locked, beyond the end of each file.
const LOCKED_BYTE_HIGH: u32 = 0x7fff_ffff;

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

    /// The time of its creation, in place of the number that only an open file has (`id_of`): it helps to notice changes.
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

/// The environment of this process. Windows ignores the case of names, and we don't: names that Epitome reads get the
/// case in which it reads them.
pub fn environment() -> Vec<(OsString, OsString)> {
    let usual = |name: OsString| {
        let known = SYSTEM_VARIABLES.iter().chain(&["PATH"]).find(|known| name.eq_ignore_ascii_case(known));
        known.map_or(name, OsString::from)
    };
    std::env::vars_os().map(|(name, value)| (usual(name), value)).collect()
}

/// Programs that run command lines, if there is no `bash` in the PATH: the one next to the `git` in the PATH, whose
/// installer adds its directory `cmd` there, and the one of Git for Windows in its usual directories.
pub fn usual_shells(environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let bash = |git: &Path| git.join("bin").join("bash.exe");
    let of_git = crate::program::named("git", environment)
        .filter_map(|program| Some(bash(program.parent()?.parent()?)));
    let installed = PROGRAM_DIRECTORIES.iter().filter_map(|(variable, below)| {
        let (_, directory) = environment.iter().find(|(name, _)| name.eq_ignore_ascii_case(variable))?;
        Some(bash(&Path::new(directory).join(below)))
    });
    of_git.chain(installed).collect()
}

/// Whether a shell works with the files of this system. The `bash` of Windows itself starts WSL, which has others.
pub fn is_shell_for_files(bash: &Path) -> bool {
    let directory = bash.parent().and_then(Path::file_name).unwrap_or_default();
    !["System32", "WindowsApps"].iter().any(|name| directory.eq_ignore_ascii_case(name))
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

/// Volume and index of an open file.
pub fn id_of(file: &File, _: &Metadata) -> (u64, u64) {
    FileIdentity::read(file).map(FileIdentity::numbers).unwrap_or_default()
}

/// Volume and index of the file at a path; a link is not followed. The metadata has no such numbers, and a file that
/// replaces another one can get its time of creation.
pub fn id_at(path: impl FnOnce() -> PathBuf, _: &Metadata) -> (u64, u64) {
    FileIdentity::at(&path()).map(FileIdentity::numbers).unwrap_or_default()
}

/// How a path is written in a URI, before characters are escaped: `/C:/a`.
pub(crate) fn path_in_uri(path: &Path) -> Cow<'_, [u8]> {
    let text = for_programs(path).to_string_lossy().replace('\\', "/");
    Cow::Owned(format!("/{text}").into_bytes())
}

pub(crate) fn path_from_uri(path: Vec<u8>) -> PathBuf {
    let text = String::from_utf8_lossy(&path);
    text.strip_prefix('/').unwrap_or(&text).replace('/', "\\").into()
}

/// A path as programs expect it: those of opened files, and canonical ones, have a prefix that makes Windows take them as
/// they are, which shells and editors don't understand.
pub fn for_programs(path: &Path) -> Cow<'_, Path> {
    let plain = path.to_str().and_then(|text| text.strip_prefix(VERBATIM)).filter(|text| text.contains(':'));
    plain.map_or(Cow::Borrowed(path), |plain| Cow::Owned(plain.into()))
}

/// Whether a path can be written, as far as the write protection of files shows.
pub fn can_write(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_dir() || !metadata.permissions().readonly())
}

pub fn set_mode(_: &File, _: u32) -> io::Result<()> {
    Ok(())
}

/// Takes the lock of a file, which others can read and write all the same: what is locked is a byte that no file has,
/// because Windows refuses access to what is locked. The standard library's lock is on all bytes.
pub fn try_lock(file: &File) -> Result<(), TryLockError> {
    try_lock_with(file, LOCKFILE_EXCLUSIVE_LOCK)
}

/// Like `try_lock`, for a lock that several can have.
pub fn try_lock_shared(file: &File) -> Result<(), TryLockError> {
    try_lock_with(file, 0)
}

pub fn unlock(file: &File) -> io::Result<()> {
    let mut place = locked_place();
    // SAFETY: the file is open, and the structure outlives the call.
    match unsafe { UnlockFileEx(file.as_raw_handle(), 0, 1, 0, &mut place) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn locked_place() -> OVERLAPPED {
    // SAFETY: a structure of integers and an empty handle.
    let mut place: OVERLAPPED = unsafe { zeroed() };
    place.Anonymous.Anonymous.OffsetHigh = LOCKED_BYTE_HIGH;
    place
}

fn try_lock_with(file: &File, flags: u32) -> Result<(), TryLockError> {
    let mut place = locked_place();
    // SAFETY: the file is open, and the structure outlives the call, which does not wait.
    let is_locked =
        unsafe { LockFileEx(file.as_raw_handle(), flags | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &mut place) };
    if is_locked != 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(ERROR_LOCK_VIOLATION | ERROR_IO_PENDING) => Err(TryLockError::WouldBlock),
        _ => Err(TryLockError::Error(error)),
    }
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
