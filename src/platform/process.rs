//! The current process: its executable, its memory, and how it detaches from its parent.

use std::io;
use std::path::PathBuf;

use super::system;

/// Returns the path of the running executable. On Linux it is valid even after an upgrade has replaced or removed the
/// file.
pub fn this_program() -> io::Result<PathBuf> {
    system::this_program()
}

/// Sets the name of this process in `ps` and `top`, where that is possible.
pub fn set_process_name(name: &str) {
    system::set_process_name(name);
}

/// Returns the resident memory of this process in bytes; `None` if the system does not report it as Linux does.
pub fn resident_bytes() -> Option<u64> {
    system::resident_bytes()
}

/// Returns the memory of the machine in bytes; `None` if the system does not report it.
pub fn machine_memory_bytes() -> Option<u64> {
    // SAFETY: a query with an integer argument.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).ok()?.checked_mul(rustix::param::page_size() as u64).filter(|bytes| *bytes > 0)
}

/// Detaches a child before exec: creates a new session, leaves the process tree by a second fork, and drops the
/// inherited descriptors and blocked signals. Makes system calls only, and does not allocate.
pub fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: `fork` is async-signal-safe; both processes continue with system calls only.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: `_exit` ends this process without running destructors or exit handlers.
        _ => unsafe { libc::_exit(0) },
    }
    close_on_exec();
    // SAFETY: `none` is a local set that is initialized before use.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
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
