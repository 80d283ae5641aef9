//! Properties of threads that a library starts and that it has no option for.

use std::time::Duration;

/// While this exists, timers of the calling thread, and of the threads that are started by it, may expire late. Those
/// threads keep this property. It is for threads of a library that poll although nothing is to be done.
pub struct LateTimers {
    slack_before: libc::c_int,
}

impl LateTimers {
    /// Timers may expire by this much too late.
    pub fn by(time: Duration) -> LateTimers {
        // SAFETY: it takes no pointers, and changes the calling thread only.
        let slack_before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        set_timer_slack(libc::c_ulong::try_from(time.as_nanos()).unwrap_or(libc::c_ulong::MAX));
        LateTimers { slack_before }
    }
}

impl Drop for LateTimers {
    fn drop(&mut self) {
        // 0 is the default.
        set_timer_slack(libc::c_ulong::try_from(self.slack_before).unwrap_or(0));
    }
}

/// From now on, only the owner can read files that are created by the calling thread and by those that it starts: for a
/// library that creates files without a mode. If the system refuses, the process's umask still applies.
pub fn create_private_files() {
    // SAFETY: it takes no pointers. The thread then has a umask of its own.
    if unsafe { libc::unshare(libc::CLONE_FS) } == 0 {
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
}

fn set_timer_slack(nanoseconds: libc::c_ulong) {
    // SAFETY: it takes no pointers, and changes the calling thread only. A failure leaves the timers exact.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slack() -> libc::c_int {
        // SAFETY: it takes no pointers.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
    }

    /// With a umask of 000, everyone could write sled's files, were they not in a private directory.
    #[test]
    fn a_thread_can_create_private_files_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let mode_of = |name: &str| {
            let file = std::fs::File::create(directory.path().join(name)).expect("a file");
            std::os::unix::fs::MetadataExt::mode(&file.metadata().expect("its metadata")) & 0o777
        };
        let before = mode_of("before");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                create_private_files();
                assert_eq!(mode_of("private"), 0o600);
                scope.spawn(|| assert_eq!(mode_of("started"), 0o600));
            });
        });
        assert_eq!(mode_of("after"), before);
    }

    /// A library's threads that wake up each second kept an idle daemon from resting.
    #[test]
    fn threads_inherit_late_timers_and_the_starter_gets_its_own_back() {
        let before = slack();
        let late = LateTimers::by(Duration::from_secs(1));
        let (go, going) = std::sync::mpsc::channel::<()>();
        let started = std::thread::spawn(move || {
            going.recv().expect("the starter has dropped its guard");
            slack()
        });
        drop(late);
        go.send(()).expect("the thread waits");
        assert_eq!(started.join().expect("it only reads"), 1_000_000_000);
        assert_eq!(slack(), before);
    }
}
