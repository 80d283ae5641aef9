//! Receives SIGTERM, SIGHUP and SIGINT without an async runtime: they are blocked, and a thread waits for them.

use std::io;

use libc::{SIGHUP, SIGINT, SIGTERM, sigset_t};

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
