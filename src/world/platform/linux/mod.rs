//! The functions of this crate that use features of Linux. `portable` has the same functions for other systems.

pub mod confinement;
pub mod directory_watch;
pub mod entry_watch;
pub mod holder;
pub mod launcher;
pub mod library_threads;
pub mod memory_trim;
pub mod place_watch;
pub mod sandbox;
pub mod sealed;
pub mod stragglers;
pub mod unnamed_file;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

/// Opens a file or directory only to refer to it, which needs no permission to read.
pub const PATH_ONLY: OFlags = OFlags::PATH;

/// Maximum number of open files of a process whose number is not limited.
pub const DESCRIPTORS_MAX: Option<u64> = None;

/// The clock of file stamps.
pub const FILE_CLOCK: ClockId = ClockId::RealtimeCoarse;

/// Returns the path of the running executable. It is valid even after an upgrade has replaced or removed the file.
pub fn this_program() -> io::Result<PathBuf> {
    let own = Path::new("/proc/self/exe");
    if own.exists() { Ok(own.to_path_buf()) } else { std::env::current_exe() }
}

/// Sets the name of this process in `ps` and `top`: it is started through `/proc/self/exe` and would be called `exe`.
pub fn set_process_name(name: &str) {
    // The name is cosmetic.
    let _ = std::fs::write("/proc/self/comm", name);
}

/// Returns the resident memory of this process in bytes; `None` if `/proc` is not mounted.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Marks all descriptors except stdin, stdout and stderr as close-on-exec; returns whether the kernel could.
pub fn close_range_on_exec() -> bool {
    // SAFETY: a system call on integers. The descriptors stay open until exec.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    marked == 0
}

/// Syncs what is at these paths to the disk, without following links: each file system as a whole, because syncing files
/// individually takes ten milliseconds each.
pub fn sync_paths(paths: &[PathBuf]) -> io::Result<()> {
    let mut synced = BTreeSet::new();
    for path in paths {
        let found = std::fs::symlink_metadata(path)?;
        if synced.insert(found.dev()) {
            let within = path.parent().filter(|_| !found.is_dir()).unwrap_or(path);
            rustix::fs::syncfs(File::open(within)?)?;
        }
    }
    Ok(())
}

pub fn metadata_at(directory: impl AsFd, name: &OsStr) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?).metadata()
}

pub fn set_mode_at(directory: impl AsFd, name: &OsStr, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

/// Opens a path that contains no links in one step. `None` on Linux before 5.6, or in a container that forbids the call.
pub fn open_resolved(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Option<Result<OwnedFd, Errno>> {
    let beneath = if path.is_absolute() { ResolveFlags::empty() } else { ResolveFlags::BENEATH };
    let how = beneath | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(&directory, path, flags, mode, how) {
            // Interrupted by a rename elsewhere.
            Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {}
            Err(Errno::NOSYS | Errno::PERM) => return None,
            opened => return Some(opened),
        }
    }
}
