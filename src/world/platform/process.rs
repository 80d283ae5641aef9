//! The current process: its executable, its memory, its standard streams, and how it detaches from its parent.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::os::{AsFd, NULL_DEVICE};
use super::signals::unblock_all;
use super::system;

pub use super::system::{resident_bytes, set_process_name, this_program};

/// Returns the memory of the machine in bytes; `None` if the system does not report it.
pub fn machine_memory_bytes() -> Option<u64> {
    // SAFETY: a query with an integer argument.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).ok()?.checked_mul(rustix::param::page_size() as u64).filter(|bytes| *bytes > 0)
}

/// Whether it belongs to the administrator.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Standard input and output as blocking files, without the buffers of the standard library.
pub fn standard_ends() -> io::Result<(File, File)> {
    let reader = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let writer = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    for end in [&reader, &writer] {
        // Some editors pass pipes that they have made non-blocking for their own use.
        let flags = fcntl_getfl(end)?;
        if flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(end, flags - OFlags::NONBLOCK)?;
        }
    }
    Ok((reader, writer))
}

/// Takes standard output away from this process: what is written to it later is lost.
pub fn take_stdout() -> io::Result<File> {
    let taken = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    if let Ok(null) = File::options().write(true).open(NULL_DEVICE) {
        // If this fails, the other end sees the end of the output only when this process exits.
        let _ = rustix::stdio::dup2_stdout(null);
    }
    Ok(taken)
}

/// Starts a command that survives this process, its session and its process tree.
pub fn start_detached(command: &mut Command) -> io::Result<Child> {
    // SAFETY: only async-signal-safe calls are allowed between fork and exec. `detach` makes system calls with integers and
    // a local signal set, and does not allocate.
    unsafe {
        command.pre_exec(detach);
    }
    command.spawn()
}

/// Detaches a child before exec: creates a new session, leaves the process tree by a second fork, and drops the
/// inherited descriptors and blocked signals. Makes system calls only, and does not allocate.
fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: `fork` is async-signal-safe; both processes continue with system calls only.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: `_exit` ends this process without running destructors or exit handlers.
        _ => unsafe { libc::_exit(0) },
    }
    close_on_exec();
    unblock_all();
    Ok(())
}

/// Marks all descriptors except stdin, stdout and stderr as close-on-exec.
fn close_on_exec() {
    if system::close_range_on_exec() {
        return;
    }
    /// Upper bound of the descriptors that are marked individually without `close_range`.
    const DESCRIPTORS_MAX: i32 = 1024;
    for descriptor in 3..DESCRIPTORS_MAX {
        // SAFETY: only flags are set; a number that is not an open descriptor is rejected.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
