//! A process namespace for a command: it sees no other processes, and none of its own survives it.
//!
//! Two forks follow the one that the command was started with. The *stand-in*, which the caller knows as the
//! command's process, stays outside of the namespace, waits, and ends as the command did. The *first process* of
//! the namespace adopts the command's orphans; when it ends, the kernel kills all that is left. The command itself
//! is the second.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// Milliseconds between the request to end and the kill of what the command has left running.
const LEFT_GRACE_MILLISECONDS: i32 = 500;

/// Milliseconds between two looks at whether it has ended.
const LOOK_MILLISECONDS: i32 = 5;

/// Enters a new process namespace, which this process has been given for its children. Returns in the first process
/// of the namespace; the stand-in never returns.
///
/// For use between fork and exec: makes system calls only.
pub(super) fn begin() -> io::Result<PendingCommand> {
    let shared = SharedStatus::new()?;
    match fork()? {
        0 => {
            // The stand-in's end ends the namespace. That is also reached if the stand-in is already gone: the
            // group that both are in is killed as a whole.
            // SAFETY: a system call with integer arguments.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
            Ok(PendingCommand { ended: shared })
        }
        first => exit_like_command(first, &shared),
    }
}

/// The command that the first process of a namespace is about to start.
pub(super) struct PendingCommand {
    ended: SharedStatus,
}

impl PendingCommand {
    /// Forks; returns in the command's process. The first process never returns.
    pub fn start(self) -> io::Result<()> {
        match fork()? {
            0 => {
                // SAFETY: a system call with integer arguments. The signal is not inherited, but clear it all the
                // same: this process may go on to run a program that forks.
                check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) })
            }
            command => first_process(command, &self.ended),
        }
    }
}

/// The wait status of the command, in memory that all three processes see.
struct SharedStatus(*const AtomicI32);

impl SharedStatus {
    /// No process has this status.
    const UNKNOWN: i32 = -1;

    fn new() -> io::Result<SharedStatus> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which lives as long as the process.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<AtomicI32>(), protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let shared = SharedStatus(memory.cast());
        shared.get().store(SharedStatus::UNKNOWN, Ordering::Relaxed);
        Ok(shared)
    }

    fn get(&self) -> &AtomicI32 {
        // SAFETY: it points to a mapping that is large enough, aligned to a page, and never unmapped.
        unsafe { &*self.0 }
    }
}

/// Waits for the first process and ends as the command did.
fn exit_like_command(first: libc::pid_t, ended: &SharedStatus) -> ! {
    keep_nothing(c"epitome-wait");
    let mut status = 0;
    // SAFETY: system calls with integers and a pointer to a local variable.
    unsafe {
        while libc::waitpid(first, &raw mut status, 0) < 0 && errno() == libc::EINTR {}
        let known = ended.get().load(Ordering::Acquire);
        let status = if known == SharedStatus::UNKNOWN { status } else { known };
        if libc::WIFSIGNALED(status) {
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            let signal = libc::WTERMSIG(status);
            libc::signal(signal, libc::SIG_DFL);
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut all);
            libc::sigaddset(&raw mut all, signal);
            libc::kill(libc::getpid(), signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const all, std::ptr::null_mut());
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

/// Adopts and reaps the namespace's orphans until the command has ended, asks what is left to end, and ends.
fn first_process(command: libc::pid_t, ended: &SharedStatus) -> ! {
    keep_nothing(c"epitome-init");
    // SAFETY: system calls with integers and pointers to local variables.
    unsafe {
        let mut status = 0;
        loop {
            let process = libc::waitpid(-1, &raw mut status, 0);
            if process == command {
                ended.get().store(status, Ordering::Release);
                break;
            }
            if process < 0 && errno() != libc::EINTR {
                break;
            }
        }
        libc::kill(-1, libc::SIGTERM);
        libc::kill(-1, libc::SIGCONT);
        let mut waited = 0;
        loop {
            match libc::waitpid(-1, &raw mut status, libc::WNOHANG) {
                0 if waited >= LEFT_GRACE_MILLISECONDS => break,
                0 => {
                    libc::poll(std::ptr::null_mut(), 0, LOOK_MILLISECONDS);
                    waited += LOOK_MILLISECONDS;
                }
                process if process > 0 => {}
                _ => break,
            }
        }
        libc::_exit(0)
    }
}

/// Prepares a process that only waits: closes its files, among them the pipe that the command writes to, and
/// ignores what is sent to the command's group.
fn keep_nothing(name: &std::ffi::CStr) {
    // SAFETY: system calls with integers and pointers to local variables; no Rust value of this process uses a
    // descriptor from here on.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Forks without running anything else: handlers of the C library may take locks.
fn fork() -> io::Result<libc::pid_t> {
    // SAFETY: without flags and a stack this is a plain fork, on every architecture. The child runs on a copy of
    // this stack.
    let process = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD as libc::c_long, 0, 0, 0, 0) };
    match process {
        -1 => Err(io::Error::last_os_error()),
        process => Ok(process as libc::pid_t),
    }
}

fn errno() -> libc::c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn check(done: libc::c_int) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
