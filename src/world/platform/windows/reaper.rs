//! Starts commands that can't outlive this process: each is in a job object, which the system ends with it (`leader`).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use parking_lot::Mutex;

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
    /// The processes, and whether they were started for a session.
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

    /// Starts a command of a session: such processes may not command the daemon. Blocks until the process exists.
    pub fn spawn_marked(self: &Arc<Reaper>, command: &mut Command) -> io::Result<RunningCommand> {
        self.spawn_with(command, true, EndPolicy::Terminate)
    }

    /// Starts a command that is ended according to this policy.
    pub(super) fn spawn_with(
        self: &Arc<Reaper>,
        command: &mut Command,
        is_marked: bool,
        policy: EndPolicy,
    ) -> io::Result<RunningCommand> {
        let (leader, key) = {
            // `has_command` waits for the start: a command runs before it is in the list.
            let mut running = self.0.lock();
            let leader = Leader::start(command)?;
            running.next += 1;
            let key = running.next;
            running.leaders.insert(key, (leader.id(), is_marked));
            (leader, key)
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
        self.0.lock().leaders.remove(&key);
    }

    /// Whether this process is the first of a running command of a session.
    pub fn has_command(&self, process: Pid) -> bool {
        self.0.lock().leaders.values().any(|leader| *leader == (process, true))
    }
}

/// The number of handles is not limited.
pub fn raise_descriptors() -> Option<u64> {
    None
}

pub fn reap_main() -> i32 {
    eprintln!("epitome: this system needs no helper process to end commands");
    2
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::Duration;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::group::CommandExit;
    use crate::pipe;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("cmd");
        command.args(["/c", line]).stdin(Stdio::null());
        command
    }

    #[tokio::test]
    async fn a_command_is_read_to_its_end() {
        let reaper = Arc::new(Reaper::default());
        assert!(reaper.spawn_marked(&mut Command::new("no-such-program")).is_err());
        let (mut output, theirs) = pipe::from_child().expect("a pipe");
        let mut command = shell("echo hello& exit 7");
        command.stdout(Stdio::from(theirs)).stderr(Stdio::null());
        let mut running = reaper.spawn_marked(&mut command).expect("it runs");
        assert!(reaper.has_command(running.id()));
        drop(command);
        let mut text = String::new();
        output.read_to_string(&mut text).await.expect("the end is seen");
        assert_eq!(text.trim(), "hello");
        running.release();
        assert_eq!((&mut running.ending).await, Ok(CommandExit::Code(7)));
        let (id, end) = (running.id(), running.group_end());
        assert!(
            tokio::task::spawn_blocking(move || end.wait(Duration::from_secs(20))).await.expect("no panic")
        );
        assert!(!reaper.has_command(id));
    }

    /// The inner shell would keep the pipe open.
    #[tokio::test]
    async fn what_a_command_started_ends_with_it() {
        let reaper = Arc::new(Reaper::default());
        let (mut output, theirs) = pipe::from_child().expect("a pipe");
        let (_input, stdin) = pipe::to_child().expect("a pipe");
        let mut command = shell("echo started& cmd /c pause");
        command.stdin(Stdio::from(stdin)).stdout(Stdio::from(theirs)).stderr(Stdio::null());
        let running = reaper.spawn_marked(&mut command).expect("it runs");
        drop(command);
        output.read_exact(&mut [0; 7]).await.expect("it starts");
        running.end();
        output.read_to_end(&mut Vec::new()).await.expect("nothing keeps the pipe open");
    }
}
