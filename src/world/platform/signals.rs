//! Receives SIGTERM, SIGHUP and SIGINT, with a runtime or without: then they are blocked, and a thread waits for them.
//! With a runtime, also SIGTSTP and SIGCONT.

use std::io;

use libc::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGXFSZ, sigaction, sigset_t};
use rustix::process::kill_current_process_group;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Blocks the signals for this thread and for all threads started from it, until dropped. Child processes
/// inherit the blocked signals and must unblock them.
pub struct BlockedSignals {
    signals: sigset_t,
    before: sigset_t,
}

impl BlockedSignals {
    pub fn new() -> io::Result<BlockedSignals> {
        // SAFETY: both sets are local; the first is initialized before use, the second is filled by the call.
        unsafe {
            let mut signals: sigset_t = std::mem::zeroed();
            let mut before: sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            for signal in [SIGTERM, SIGHUP, SIGINT] {
                libc::sigaddset(&mut signals, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before) {
                0 => Ok(BlockedSignals { signals, before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for one of the signals.
    pub fn wait(&self) -> io::Result<()> {
        let mut signal = 0;
        // SAFETY: the set is initialized, and `signal` is a local variable.
        match unsafe { libc::sigwait(&self.signals, &mut signal) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the call that blocked the signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Unblocks all signals, as programs expect it when they start. Makes system calls only.
pub(crate) fn unblock_all() {
    // SAFETY: a local set that is initialized before use.
    unsafe {
        let mut none: sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Requests that this process end, for the runtime.
pub struct EndRequests {
    terminations: Signal,
    hangups: Signal,
    interrupts: Option<Signal>,
}

impl EndRequests {
    /// All of them.
    pub fn new() -> io::Result<EndRequests> {
        let interrupts = Some(signal(SignalKind::interrupt())?);
        Ok(EndRequests { interrupts, ..EndRequests::without_interrupts()? })
    }

    /// All but those of the keyboard.
    pub fn without_interrupts() -> io::Result<EndRequests> {
        // With a handler, a write beyond the limit of `ulimit -f` fails like one to a full disk. Without one, it ends the process.
        drop(signal(SignalKind::from_raw(SIGXFSZ))?);
        let terminations = signal(SignalKind::terminate())?;
        Ok(EndRequests { terminations, hangups: signal(SignalKind::hangup())?, interrupts: None })
    }

    /// Waits for one.
    pub async fn recv(&mut self) {
        let interrupted = async {
            match &mut self.interrupts {
                Some(interrupts) => interrupts.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminations.recv() => {}
            _ = self.hangups.recv() => {}
            _ = interrupted => {}
        }
    }
}

/// Ctrl-C, for the runtime.
pub struct Interrupts(Signal);

impl Interrupts {
    pub fn new() -> io::Result<Interrupts> {
        signal(SignalKind::interrupt()).map(Interrupts)
    }

    pub async fn recv(&mut self) {
        let _ = self.0.recv().await;
    }
}

/// Requests that this process stop and continue, for the runtime: for programs that own the terminal and have to restore
/// it before they stop.
pub struct JobControl {
    stops: Signal,
    continues: Signal,
    /// Whether the process was started with the request ignored: nobody would continue it.
    is_ignored: bool,
}

/// A request of a shell, or of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobRequest {
    Stop,
    /// The process was stopped before, perhaps without a request. Another program may have changed the terminal.
    Continue,
}

impl JobControl {
    pub fn new() -> io::Result<JobControl> {
        let is_ignored = stop_action()?.sa_sigaction == libc::SIG_IGN;
        let stops = signal(SignalKind::from_raw(SIGTSTP))?;
        Ok(JobControl { stops, continues: signal(SignalKind::from_raw(libc::SIGCONT))?, is_ignored })
    }

    /// Waits for a request.
    pub async fn recv(&mut self) -> JobRequest {
        tokio::select! {
            _ = self.stops.recv(), if !self.is_ignored => JobRequest::Stop,
            _ = self.continues.recv() => JobRequest::Continue,
        }
    }

    /// Stops the process group, as Ctrl-Z does where the terminal handles it, and returns when it continues. A shell that
    /// waits for another process of the group sees that it has stopped, too. Returns at once if there is no shell.
    pub fn stop(&self) -> io::Result<()> {
        if self.is_ignored {
            return Ok(());
        }
        let handled = stop_action()?;
        let action = |handler| sigaction { sa_sigaction: handler, ..handled };
        // The others first: a signal to the group could reach another thread after this one has gone on.
        set_stop_action(&action(libc::SIG_IGN))?;
        let sent = kill_current_process_group(rustix::process::Signal::TSTP);
        set_stop_action(&action(libc::SIG_DFL))?;
        // SAFETY: it has no preconditions. The kernel ignores it in a group that no shell controls.
        unsafe { libc::raise(SIGTSTP) };
        set_stop_action(&handled)?;
        Ok(sent?)
    }
}

fn stop_action() -> io::Result<sigaction> {
    // SAFETY: a structure of integers, which the call fills.
    unsafe {
        let mut action: sigaction = std::mem::zeroed();
        match libc::sigaction(SIGTSTP, std::ptr::null(), &mut action) {
            0 => Ok(action),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn set_stop_action(action: &sigaction) -> io::Result<()> {
    // SAFETY: the handler is the one that the runtime has set, or one of the constants.
    match unsafe { libc::sigaction(SIGTSTP, action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with a limit on the size of files, a session whose log reached it ended the daemon of all windows, without
    /// a word, at each prompt.
    #[tokio::test]
    async fn a_file_that_reaches_the_limit_ends_no_process() {
        let _requests = EndRequests::new().expect("handlers");
        // SAFETY: it has no preconditions.
        assert_eq!(unsafe { libc::raise(SIGXFSZ) }, 0);
    }
}
