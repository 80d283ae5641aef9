//! The first process of a command, and those that it starts: a process group, and the processes with its mark.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid};

use super::group::CommandExit;
use super::system::stragglers::ProcessMark;

pub(super) struct Leader {
    id: Pid,
    /// The mark in the environment of all processes that the command starts.
    mark: Option<ProcessMark>,
}

impl Leader {
    pub fn new(id: Pid, mark: Option<ProcessMark>) -> Leader {
        Leader { id, mark }
    }

    pub fn id(&self) -> Pid {
        self.id
    }

    /// Asks its group to end. Must not be called after `reap`.
    pub fn terminate(&self) {
        // Fails only if the group has no processes left.
        let _ = kill_process_group(self.id, Signal::TERM);
    }

    /// Ends its group. Must not be called after `reap`.
    pub fn kill(&self) {
        // Fails only if the group has no processes left.
        let _ = kill_process_group(self.id, Signal::KILL);
    }

    /// Ends the processes that have left the group.
    pub fn end_stragglers(&self) {
        if let Some(mark) = &self.mark {
            mark.end_all();
        }
    }

    /// Waits for its end, without reaping it.
    pub fn wait(&self) -> CommandExit {
        loop {
            match waitid(WaitId::Pid(self.id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(Some(status)) => {
                    let code = status.exit_status().map(CommandExit::Code);
                    let signal = status.terminating_signal().map(CommandExit::Signal);
                    return code.or(signal).unwrap_or(CommandExit::Unknown);
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return CommandExit::Unknown,
            }
        }
    }

    pub fn reap(&self) {
        while rustix::process::waitpid(Some(self.id), WaitOptions::empty()).is_err_and(|e| e == Errno::INTR) {
        }
    }
}
