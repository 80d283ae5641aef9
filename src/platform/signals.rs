//! TERM, HUP and INT without a runtime: they are blocked, and a thread takes them one by one.

use std::io;

use libc::{SIGHUP, SIGINT, SIGTERM, sigset_t};

/// The signals are blocked for this thread and for all that are started from it, until this is dropped: nobody
/// takes them then, and whoever starts a process must unblock them there.
pub struct Blocked {
    signals: sigset_t,
    before: sigset_t,
}

impl Blocked {
    pub fn new() -> io::Result<Blocked> {
        // SAFETY: both sets are ours; the first is filled before it is used, the second by the call.
        unsafe {
            let mut signals: sigset_t = std::mem::zeroed();
            let mut before: sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            for signal in [SIGTERM, SIGHUP, SIGINT] {
                libc::sigaddset(&mut signals, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before) {
                0 => Ok(Blocked { signals, before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for one of them.
    pub fn wait(&self) -> io::Result<()> {
        let mut signal = 0;
        // SAFETY: the set is filled, and the number is ours.
        match unsafe { libc::sigwait(&self.signals, &mut signal) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the call that blocked them.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
