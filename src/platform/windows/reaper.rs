//! Starts commands that can't outlive this process: each is in a job object, which the system ends with it (`leader`).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::group::{EndPolicy, RunningCommand};
use super::leader::Leader;
use super::os::{BorrowedFd, Pid};
use super::sandbox::Confinement;

/// The hidden argument of a helper process that other systems need.
pub const REAP_ARGUMENT: &str = "__reap";

/// Starts commands and lists those that run.
#[derive(Default)]
pub struct Reaper(Mutex<RunningCommands>);

#[derive(Default)]
struct RunningCommands {
    next: AnnouncementKey,
    /// With whether they were started for a session.
    leaders: BTreeMap<AnnouncementKey, (Pid, bool)>,
}

/// Identifies a command; never reused.
pub(super) type AnnouncementKey = u64;

impl Reaper {
    pub fn for_this_executable() -> Reaper {
        Reaper::default()
    }

    /// There is no helper process here.
    pub fn with_program(_: PathBuf) -> Reaper {
        Reaper::default()
    }

    pub fn disabled() -> Reaper {
        Reaper::default()
    }

    /// Starts a command. Blocks until the process exists.
    pub fn spawn(self: &Arc<Reaper>, command: &mut Command) -> io::Result<RunningCommand> {
        self.spawn_with(command, false, EndPolicy::Terminate)
    }

    /// Like `spawn`, for a command of a session: such processes may not command the daemon.
    pub fn spawn_marked(self: &Arc<Reaper>, command: &mut Command) -> io::Result<RunningCommand> {
        self.spawn_with(command, true, EndPolicy::Terminate)
    }

    /// Like `spawn_marked`, for a server that ends when its standard input is closed.
    pub fn spawn_server(self: &Arc<Reaper>, command: &mut Command) -> io::Result<RunningCommand> {
        self.spawn_with(command, true, EndPolicy::ClosedInput)
    }

    fn spawn_with(
        self: &Arc<Reaper>,
        command: &mut Command,
        is_marked: bool,
        policy: EndPolicy,
    ) -> io::Result<RunningCommand> {
        let leader = Leader::start(command)?;
        let key = {
            let mut running = self.running();
            running.next += 1;
            let key = running.next;
            running.leaders.insert(key, (leader.id(), is_marked));
            key
        };
        RunningCommand::new(leader, policy, self.clone(), key)
    }

    /// There is no sandbox here, so nothing asks for one.
    pub fn spawn_confined(
        self: &Arc<Reaper>,
        _: &Command,
        _: [BorrowedFd<'_>; 3],
        _: EndPolicy,
        _: Confinement,
    ) -> io::Result<RunningCommand> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "there is no sandbox on Windows"))
    }

    /// Removes a command from the list.
    pub(super) fn forget(&self, key: AnnouncementKey) {
        self.running().leaders.remove(&key);
    }

    /// Whether this process is the first of a running command of a session.
    pub fn has_command(&self, process: Pid) -> bool {
        self.running().leaders.values().any(|leader| *leader == (process, true))
    }

    fn running(&self) -> MutexGuard<'_, RunningCommands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of handles is not limited.
pub fn raise_descriptors() {}

pub fn reap_main() -> i32 {
    eprintln!("epitome: this system needs no helper process to end commands");
    2
}
