//! A running command and its descendants: a process group that is ended as a unit.
//!
//! A group outlives its command only by a short grace period. When the command's first process (the leader) ends, or
//! the end is requested, the rest of the group gets TERM and, after `KILL_GRACE`, KILL. The caller's thread never
//! blocks: each command has a separate thread.
//!
//! A server ends when its standard input is closed and gets time for it: TERM and KILL follow only after
//! `SERVER_GRACE` each.
//!
//! Process numbers are reused, so a signal must never be sent to a number that may already belong to another process.
//! A number is not reused until the leader is reaped, even if it is dead. The leader is therefore reaped last: its
//! end is observed (`waitid` with `NOWAIT` in `leader`), the group gets its KILL and is removed from the reaper's list, and only
//! then is the leader reaped, under the lock that every signal takes.
//!
//! Processes that deliberately leave the group (`setsid`, `set -m` in a shell, self-detaching daemons) are found by
//! the mark in their environment (`stragglers`), if the command has one. A process that also removes the mark can't
//! be found.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::leader::Leader;
use super::os::Pid;
use super::reaper::{AnnouncementKey, Reaper};

/// Time between TERM and KILL: long enough for a compiler to remove its temporary files, short enough that nothing
/// outlives its session by a second.
pub const KILL_GRACE: Duration = Duration::from_millis(500);

/// How long a server may take to exit after its standard input was closed, and again after TERM. The specification of
/// the Model Context Protocol requires this order (Lifecycle, Shutdown), without times.
pub const SERVER_GRACE: Duration = Duration::from_secs(2);

/// How a running group is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPolicy {
    /// TERM at once, KILL after `KILL_GRACE`.
    Terminate,
    /// The caller closes its standard input: TERM after `SERVER_GRACE`, KILL after another `SERVER_GRACE`.
    ClosedInput,
}

/// Maximum wait for `release` after the leader's end, before the rest of the group is ended.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(2);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandExit {
    Code(i32),
    Signal(i32),
    /// The system doesn't report it (SIGCHLD is ignored in this process).
    Unknown,
}

/// A running command. Dropping it ends the group.
pub struct RunningCommand {
    /// Resolves when the leader has ended; other processes of the group may still run.
    pub ending: oneshot::Receiver<CommandExit>,
    group: Arc<ProcessGroup>,
    policy: EndPolicy,
    release: SyncSender<()>,
}

impl RunningCommand {
    /// Takes over a leader, which is on the list of `reaper` as `key`.
    pub(super) fn new(
        leader: Leader,
        policy: EndPolicy,
        reaper: Arc<Reaper>,
        key: AnnouncementKey,
    ) -> io::Result<RunningCommand> {
        let group = Arc::new(ProcessGroup { leader, is_reaped: Mutex::new(false), reaped: Condvar::new() });
        let (tell_ending, ending) = oneshot::channel();
        let (release, released) = sync_channel(1);
        let keeper = {
            let (group, reaper) = (group.clone(), reaper.clone());
            thread::Builder::new()
                .name("command".to_string())
                .spawn(move || group.keep(tell_ending, released, &reaper, key))
        };
        if let Err(error) = keeper {
            group.kill();
            reaper.forget(key);
            group.reap();
            return Err(error);
        }
        Ok(RunningCommand { ending, group, policy, release })
    }

    /// The process group id.
    #[cfg(test)]
    pub fn id(&self) -> Pid {
        self.group.leader.id()
    }

    pub fn group_end(&self) -> GroupEnd {
        GroupEnd(self.group.clone())
    }

    /// Ends the group according to its policy. Does not block.
    pub fn end(&self) {
        self.group.end(self.policy);
    }

    /// Signals that any remaining output of the group isn't needed. Does not block.
    pub fn release(&self) {
        // A full or closed channel means that this was already called.
        let _ = self.release.try_send(());
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // After a regular end the keeper thread is already cleaning up.
        if self.ending.is_terminated() {
            self.release();
        } else {
            self.end();
        }
    }
}

/// The end of all processes of a command, however it comes about.
pub struct GroupEnd(Arc<ProcessGroup>);

impl GroupEnd {
    /// Waits for it, and returns whether it has happened. Blocks.
    pub fn wait(&self, at_most: Duration) -> bool {
        self.0.wait_until_reaped(at_most)
    }

    /// Ends all processes at once, without time to clean up. Does not block.
    pub fn force(&self) {
        self.0.kill();
    }

    /// The first process of the group. Its number may be in use again after the end.
    pub fn leader(&self) -> Pid {
        self.0.leader.id()
    }
}

struct ProcessGroup {
    leader: Leader,
    /// Whether the leader is reaped; its number may then belong to another process.
    is_reaped: Mutex<bool>,
    reaped: Condvar,
}

impl ProcessGroup {
    /// Body of the keeper thread.
    fn keep(
        &self,
        tell_ending: oneshot::Sender<CommandExit>,
        released: Receiver<()>,
        reaper: &Reaper,
        key: AnnouncementKey,
    ) {
        let ending = self.leader.wait();
        // The receiver may be gone; the cleanup is necessary anyway.
        let _ = tell_ending.send(ending);
        let _ = released.recv_timeout(RELEASE_WAIT_MAX);
        self.terminate();
        thread::sleep(KILL_GRACE);
        self.kill();
        self.leader.end_stragglers();
        reaper.forget(key);
        self.reap();
    }

    fn end(self: &Arc<ProcessGroup>, policy: EndPolicy) {
        let grace = match policy {
            EndPolicy::Terminate => {
                self.terminate();
                KILL_GRACE
            }
            EndPolicy::ClosedInput => SERVER_GRACE,
        };
        let group = self.clone();
        let killer = thread::Builder::new().name("command-end".to_string()).spawn(move || {
            group.wait_until_reaped(grace);
            if policy == EndPolicy::ClosedInput {
                group.terminate();
                group.wait_until_reaped(grace);
            }
            group.kill();
        });
        if killer.is_err() {
            // A thread to wait can't be started: killing immediately is better than never.
            self.kill();
        }
    }

    fn wait_until_reaped(&self, at_most: Duration) -> bool {
        let mut is_reaped = self.is_reaped.lock();
        self.reaped.wait_while_for(&mut is_reaped, |is_reaped| !*is_reaped, at_most);
        *is_reaped
    }

    fn terminate(&self) {
        let is_reaped = self.is_reaped.lock();
        if !*is_reaped {
            self.leader.terminate();
        }
    }

    fn kill(&self) {
        let is_reaped = self.is_reaped.lock();
        if !*is_reaped {
            self.leader.kill();
        }
    }

    fn reap(&self) {
        let mut is_reaped = self.is_reaped.lock();
        if !*is_reaped {
            // The leader has ended or got its KILL, so this doesn't block for long.
            self.leader.reap();
            *is_reaped = true;
        }
        self.reaped.notify_all();
    }
}
