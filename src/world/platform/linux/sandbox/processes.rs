//! A process namespace for a command: it sees no other processes, and none of its processes survives it.
//!
//! Two forks follow the one that started the command. The *stand-in*, which the caller sees as the command's process,
//! stays outside of the namespace, waits, and ends with the command's status. The *first process* of the namespace
//! adopts the command's orphans; when it ends, the kernel kills the remaining ones. The command is the second
//! process.
//!
//! The first process also monitors the resources of all processes together, and ends them when they use too much. The
//! kernel's per-process limits (`RLIMIT_AS`, `RLIMIT_DATA`) would not help: a command may have thousands of
//! processes, and programs with sanitizers reserve terabytes that they never use. A control group would, but only
//! root and systemd can provide one.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use super::check;

/// Milliseconds between TERM and KILL for the processes that the command has left running.
const LEFT_GRACE_MILLISECONDS: i32 = 500;

/// Poll interval for their end, in milliseconds.
const LOOK_MILLISECONDS: i32 = 5;

/// Interval between checks of the command's resources in milliseconds: a process can fill about a gigabyte in one.
const WATCH_MILLISECONDS: libc::c_long = 250;

/// The resources that the processes of a command may use together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandLimits {
    /// Bytes of memory that is not shared with files.
    pub memory: Option<u64>,
    /// Number of processes, if the kernel does not count them.
    pub processes: Option<u64>,
}

/// Enters a new process namespace, which is already set up for this process's children. Returns in the first process
/// of the namespace; the stand-in never returns.
///
/// For use between fork and exec: makes system calls only.
pub(super) fn begin() -> io::Result<PendingCommand> {
    let shared = SharedStatus::new()?;
    match fork()? {
        0 => {
            // The end of the stand-in ends the namespace. This is also ensured if the stand-in is already gone: both
            // are in one group, which is killed as a whole.
            // SAFETY: a system call with integer arguments.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
            Ok(PendingCommand { ended: shared, limits: CommandLimits::default() })
        }
        first => exit_like_command(first, &shared),
    }
}

/// The command that the first process of a namespace will start.
pub(super) struct PendingCommand {
    ended: SharedStatus,
    pub limits: CommandLimits,
}

impl PendingCommand {
    /// Forks; returns in the command's process. The first process never returns.
    pub fn start(self) -> io::Result<()> {
        // The first process is in the same namespace as the command, which could otherwise trace it.
        // SAFETY: a system call with integer arguments.
        check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })?;
        match fork()? {
            0 => {
                // SAFETY: a system call with integer arguments. The signal is not inherited, but clear it anyway:
                // this process may go on to run a program that forks.
                check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) })
            }
            command => first_process(command, &self.ended, self.limits),
        }
    }
}

/// The wait status of the command, in memory that all three processes share.
struct SharedStatus(*const AtomicI32);

impl SharedStatus {
    /// A value that is not a valid status.
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

/// Waits for the first process and ends with the command's status.
fn exit_like_command(first: libc::pid_t, ended: &SharedStatus) -> ! {
    keep_only(c"epitome-wait", &[]);
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

/// Adopts and reaps the namespace's orphans until the command has ended, terminates the remaining processes, and
/// exits.
fn first_process(command: libc::pid_t, ended: &SharedStatus, limits: CommandLimits) -> ! {
    // The command's stderr stays open, to report why it was ended.
    keep_only(c"epitome-init", &[libc::STDERR_FILENO]);
    let is_watched = limits.memory.is_some() || limits.processes.is_some();
    // SAFETY: system calls with integers and pointers to local variables.
    unsafe {
        let mut status = 0;
        let mut is_due = false;
        'running: loop {
            loop {
                let process = libc::waitpid(-1, &raw mut status, if is_watched { libc::WNOHANG } else { 0 });
                if process == command {
                    ended.get().store(status, Ordering::Release);
                    break 'running;
                }
                if process == 0 || (process < 0 && errno() == libc::EINTR) {
                    break;
                }
                if process < 0 {
                    break 'running;
                }
            }
            if is_watched {
                // After the look for ended children: the end of the command must not wait for a check.
                if is_due && let Some(excess) = excess(limits) {
                    let _ = rustix::io::write(rustix::stdio::stderr(), excess.text().as_bytes());
                    libc::kill(-1, libc::SIGKILL);
                }
                wait_for_child();
                is_due = true;
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

/// Waits until a child has ended or a check is due. All signals are blocked, so that none is missed.
fn wait_for_child() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: WATCH_MILLISECONDS * 1_000_000 };
    // SAFETY: a local set and a local time, which outlive the call.
    unsafe {
        let mut ended: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut ended);
        libc::sigaddset(&raw mut ended, libc::SIGCHLD);
        libc::sigtimedwait(&raw const ended, std::ptr::null_mut(), &raw const time);
    }
}

/// A limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    Memory(u64),
    Processes(u64),
}

impl Excess {
    fn text(self) -> String {
        match self {
            Excess::Memory(limit) => format!(
                "\n[{EXCEEDED}: what it started used more than {} MiB of memory together (`memory` in [sandbox]), and \
                 all of it was ended]\n",
                limit >> 20
            ),
            Excess::Processes(limit) => format!(
                "\n[{EXCEEDED}: it had more than {limit} processes (`processes` in [sandbox]), and all of them were \
                 ended]\n"
            ),
        }
    }
}

/// Prefix of the message about a command that was ended because of a limit.
const EXCEEDED: &str = "the sandbox ended this command";

/// Checks the processes of this process's namespace through its `/proc`.
fn excess(limits: CommandLimits) -> Option<Excess> {
    let page = rustix::param::page_size() as u64;
    let (mut processes, mut bytes) = (0, 0);
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        processes += 1;
        let statm = std::fs::read_to_string(format!("/proc/{name}/statm")).unwrap_or_default();
        bytes += own_pages(&statm).saturating_mul(page);
    }
    let memory = limits.memory.filter(|limit| bytes > *limit).map(Excess::Memory);
    memory.or_else(|| limits.processes.filter(|limit| processes > *limit).map(Excess::Processes))
}

/// Returns the resident pages of a process that belong to no file, from a line of `statm`.
fn own_pages(statm: &str) -> u64 {
    let mut numbers = statm.split_ascii_whitespace().skip(1).map_while(|number| number.parse::<u64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(resident), Some(of_files)) => resident.saturating_sub(of_files),
        _ => 0,
    }
}

/// Prepares a process that only waits: closes its files, including the pipe of the command's output, and ignores the
/// signals sent to the command's group. `kept`: descriptors that stay open.
fn keep_only(name: &std::ffi::CStr, kept: &[libc::c_int]) {
    // SAFETY: system calls with integers and pointers to local variables; no Rust value of this process uses a
    // descriptor from here on.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
        let mut from = 0;
        for kept in kept.iter().filter_map(|kept| libc::c_uint::try_from(*kept).ok()) {
            if kept > from {
                libc::syscall(libc::SYS_close_range, from, kept - 1, 0_u32);
            }
            from = kept + 1;
        }
        libc::syscall(libc::SYS_close_range, from, u32::MAX, 0_u32);
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Forks without running the handlers of the C library, which may take locks.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_uses_is_read_from_its_statm() {
        assert_eq!(own_pages("2000 700 300 10 0 90 0\n"), 400);
        assert_eq!(own_pages("0 0 0 0 0 0 0\n"), 0);
        assert_eq!(own_pages(""), 0, "it ended meanwhile");
        assert!(Excess::Memory(512 << 20).text().contains("512 MiB"));
        let all = CommandLimits { memory: Some(u64::MAX), processes: Some(u64::MAX) };
        assert_eq!(excess(all), None);
        assert_eq!(excess(CommandLimits { memory: Some(0), processes: None }), Some(Excess::Memory(0)));
    }
}
