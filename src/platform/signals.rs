//! Receives SIGTERM, SIGHUP and SIGINT, with a runtime or without: then they are blocked, and a thread waits for them.

use std::io;

use libc::{SIGHUP, SIGINT, SIGTERM, sigset_t};
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
