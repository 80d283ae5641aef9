//! The same functions as `linux`, with what every Unix has. macOS has a sandbox of its own (`sandbox`); elsewhere
//! commands run without one, and are only ended as process groups.
//!
//! Nothing is found out about other processes: commands that leave their process group are not found, clients of the
//! daemon are judged by their user and the token alone, and the holder of a lock is not named.

mod absent;
pub mod library_threads;
pub mod sandbox;

pub use absent::{confinement, directory_watch, entry_watch, holder, memory_trim, place_watch, sealed};

use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

/// Opens a directory to refer to it. Without `O_PATH`, that needs permission to read it.
pub const PATH_ONLY: OFlags = OFlags::RDONLY;

/// Maximum number of open files of a process whose number is not limited: macOS refuses to raise it further.
pub const DESCRIPTORS_MAX: Option<u64> = Some(10_240);

/// The clock of file stamps. That of Linux is coarse.
#[cfg(not(target_os = "linux"))]
pub const FILE_CLOCK: ClockId = ClockId::Realtime;
#[cfg(target_os = "linux")]
pub const FILE_CLOCK: ClockId = ClockId::RealtimeCoarse;

/// Returns the path of the running executable.
pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// The name of a process can't be set.
pub fn set_process_name(_: &str) {}

/// The resident memory of this process is not known.
pub fn resident_bytes() -> Option<u64> {
    None
}

pub fn close_range_on_exec() -> bool {
    false
}

/// Syncs what is at these paths to the disk, without following links.
pub fn sync_paths(paths: &[PathBuf]) -> io::Result<()> {
    for path in paths {
        let found = std::fs::symlink_metadata(path)?;
        let is_content = found.is_file() || found.is_dir();
        let synced = path.parent().filter(|_| !is_content).unwrap_or(path);
        File::open(synced)?.sync_all()?;
    }
    Ok(())
}

/// The metadata of an entry, by the present path of the directory: without `O_PATH`, links, pipes and files without
/// permission to read can't be opened.
pub fn metadata_at(directory: impl AsFd, name: &OsStr) -> io::Result<Metadata> {
    std::fs::symlink_metadata(path_of(directory)?.join(name))
}

#[cfg(target_vendor = "apple")]
fn path_of(directory: impl AsFd) -> io::Result<PathBuf> {
    Ok(OsStr::from_bytes(rustix::fs::getpath(directory)?.as_bytes()).into())
}

#[cfg(not(target_vendor = "apple"))]
fn path_of(directory: impl AsFd) -> io::Result<PathBuf> {
    let path = rustix::fs::readlink(format!("/dev/fd/{}", directory.as_fd().as_raw_fd()), Vec::new())?;
    Ok(OsStr::from_bytes(path.as_bytes()).into())
}

pub fn set_mode_at(directory: impl AsFd, name: &OsStr, mode: u32) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    let directory = directory.as_fd().as_raw_fd();
    // SAFETY: the descriptor and the text outlive the call.
    match unsafe { libc::fchmodat(directory, name.as_ptr(), mode as libc::mode_t, libc::AT_SYMLINK_NOFOLLOW) }
    {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn open_resolved(_: impl AsFd, _: &Path, _: OFlags, _: Mode) -> Option<Result<OwnedFd, Errno>> {
    None
}

/// Starts sandboxed commands.
pub mod launcher {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use crate::group::{EndPolicy, RunningCommand};
    use crate::reaper::Reaper;
    use crate::sandbox::Confinement;

    /// The hidden argument of the helper process that only Linux has.
    pub const LAUNCH_ARGUMENT: &str = "__launch";

    #[derive(Default)]
    pub(crate) struct Launcher;

    pub(crate) fn spawn(
        reaper: &Arc<Reaper>,
        _: &Mutex<Launcher>,
        command: &Command,
        streams: [BorrowedFd<'_>; 3],
        policy: EndPolicy,
        confinement: Confinement,
    ) -> io::Result<RunningCommand> {
        let mut confined = super::sandbox::command(command, &confinement)?;
        let [input, output, errors] = streams;
        confined.stdin(Stdio::from(input.try_clone_to_owned()?));
        confined.stdout(Stdio::from(output.try_clone_to_owned()?));
        confined.stderr(Stdio::from(errors.try_clone_to_owned()?));
        reaper.spawn_with(&mut confined, true, policy)
    }

    pub fn launch_main() -> i32 {
        eprintln!("epitome: this system needs no helper process to start commands");
        2
    }
}

/// Marks commands in their environment. Nothing searches for the marks here.
pub mod stragglers {
    pub use crate::mark::ProcessMark;

    impl ProcessMark {
        pub fn end_all(&self) {}
    }
}

/// Files without a name, which only Linux has.
pub mod unnamed_file {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::io;
    use std::os::fd::AsFd;

    pub fn create(_: impl AsFd, _: u32) -> io::Result<Option<File>> {
        Ok(None)
    }

    pub fn link(_: &File, _: impl AsFd, _: &OsStr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
