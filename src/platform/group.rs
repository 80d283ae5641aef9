//! A running command and everything that it started: one process group, ended as one.
//!
//! A group lives at most as long as its command plus a moment. When the command's first process (the
//! leader) ends, or somebody asks for the end, what is left of the group gets TERM and after
//! `KILL_GRACE` KILL. Nothing here waits on the caller's thread: a thread for each command does.
//!
//! Process numbers are reused, so a signal must never be sent to a number that may already belong to
//! somebody else. A number stays ours while the leader, even dead, has not been reaped. Therefore the
//! leader is reaped last: first its end is seen (`waitid` with `NOWAIT`), then the group gets its KILL,
//! then it is taken off the reaper's list, and only then is the leader reaped, under the same lock
//! that every signal takes.
//!
//! What deliberately leaves the group (`setsid`, `set -m` in a shell, a daemon that detaches itself) is found by the
//! mark in its environment (`stragglers`), where the command has one. Out of reach is what takes that away too.

use std::io;
use std::process::Child;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use super::reaper::{Key, Reaper};
use super::stragglers::Mark;

/// Between TERM and KILL: enough for a compiler to remove its temporary files, short enough that
/// nothing outlives its session by a second.
pub const KILL_GRACE: Duration = Duration::from_millis(500);

/// How long the end of the leader waits for `release` before the rest of the group is ended anyway.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(2);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    Signal(i32),
    /// The system would not tell (someone ignores SIGCHLD for us).
    Unknown,
}

/// A command that runs. Dropping it ends the group.
pub struct Running {
    /// Resolves when the leader has ended; others of the group may still run.
    pub ending: oneshot::Receiver<Ending>,
    group: Arc<Group>,
    release: SyncSender<()>,
}

impl Running {
    /// Takes the leader of `group`, which is on the list of `reaper` as `key`.
    pub(super) fn new(
        child: Child,
        group: Pid,
        mark: Option<Mark>,
        reaper: Arc<Reaper>,
        key: Key,
    ) -> io::Result<Running> {
        let group = Group { id: group, mark, leader: Mutex::new(Some(child)), reaped: Condvar::new() };
        let group = Arc::new(group);
        let (tell_ending, ending) = oneshot::channel();
        let (release, released) = sync_channel(1);
        let keeper = {
            let (group, reaper) = (group.clone(), reaper.clone());
            thread::Builder::new()
                .name("command".to_string())
                .spawn(move || group.keep(tell_ending, released, &reaper, key))
        };
        if let Err(error) = keeper {
            group.signal(Signal::KILL);
            reaper.forget(key);
            group.reap();
            return Err(error);
        }
        Ok(Running { ending, group, release })
    }

    /// The number of the process group.
    #[cfg(test)]
    pub fn id(&self) -> Pid {
        self.group.id
    }

    /// Asks the group to end, and makes it end a moment later. Does not block.
    pub fn end(&self) {
        self.group.end();
    }

    /// Says that nobody needs what the rest of the group may still write. Does not block.
    pub fn release(&self) {
        // A full or closed channel means that it was said before.
        let _ = self.release.try_send(());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After its regular end the keeper thread is at work already, and this adds nothing.
        if self.ending.is_terminated() {
            self.release();
        } else {
            self.end();
        }
    }
}

struct Group {
    id: Pid,
    /// What all that the command starts has in its environment.
    mark: Option<Mark>,
    /// `None` once it was reaped: from then on `id` may be somebody else's.
    leader: Mutex<Option<Child>>,
    reaped: Condvar,
}

impl Group {
    /// The life of the keeper thread.
    fn keep(&self, tell_ending: oneshot::Sender<Ending>, released: Receiver<()>, reaper: &Reaper, key: Key) {
        let ending = wait_without_reaping(self.id);
        // Nobody may be listening any more; the rest is done all the same.
        let _ = tell_ending.send(ending);
        let _ = released.recv_timeout(RELEASE_WAIT_MAX);
        self.signal(Signal::TERM);
        thread::sleep(KILL_GRACE);
        self.signal(Signal::KILL);
        if let Some(mark) = &self.mark {
            mark.end_all();
        }
        reaper.forget(key);
        self.reap();
    }

    fn end(self: &Arc<Group>) {
        self.signal(Signal::TERM);
        let group = self.clone();
        let killer = thread::Builder::new().name("command-end".to_string()).spawn(move || {
            let leader = group.leader();
            let wait = group.reaped.wait_timeout_while(leader, KILL_GRACE, |leader| leader.is_some());
            drop(wait);
            group.signal(Signal::KILL);
        });
        if killer.is_err() {
            // Without a thread there is no waiting: better at once than never.
            self.signal(Signal::KILL);
        }
    }

    fn signal(&self, signal: Signal) {
        let leader = self.leader();
        if leader.is_some() {
            // The only error here is that nobody is left to be told.
            let _ = kill_process_group(self.id, signal);
        }
    }

    fn reap(&self) {
        let mut leader = self.leader();
        if let Some(mut child) = leader.take() {
            // It has ended, or got its KILL: this does not wait for long.
            let _ = child.wait();
        }
        self.reaped.notify_all();
    }

    fn leader(&self) -> MutexGuard<'_, Option<Child>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait_without_reaping(leader: Pid) -> Ending {
    loop {
        match waitid(WaitId::Pid(leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => {
                let code = status.exit_status().map(Ending::Code);
                let signal = status.terminating_signal().map(Ending::Signal);
                return code.or(signal).unwrap_or(Ending::Unknown);
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return Ending::Unknown,
        }
    }
}
