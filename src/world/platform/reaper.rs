//! A helper process that ends commands after Epitome was killed.
//!
//! On an orderly exit the daemon ends its commands (`group`). `kill -9` and crashes need a second process: Epitome's
//! executable, started with a hidden argument before the first command. Its standard input is a pipe on which the
//! process groups of commands are announced. When the pipe closes, which the kernel guarantees however the daemon
//! ends, the helper ends every announced group and every process with the daemon's mark (`stragglers`), and then
//! exits.
//!
//! It executes no other program and writes no files.
//!
//! - *A command can't run before it is announced*: it announces its group between fork and exec. If the daemon is
//!   killed in between, either the group is on the list or the command never ran. A line is `+key group`, and `-key`
//!   removes the entry. The daemon chooses the keys, so that it can also remove the announcement of a child whose
//!   exec failed and whose process number it never received. `~key` means that the group is a server's, which ends
//!   when its standard input is closed and gets time for it.
//! - *Process numbers are reused*: a group is removed from the list after its KILL and before its leader is reaped,
//!   so while the daemon lives, the list never contains a number that may belong to another process. After its death,
//!   init reaps the leaders that had already ended; a number could only be reused within `KILL_GRACE` if all other
//!   numbers were used first. That risk remains.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit, setsid, test_kill_process_group,
};

use super::group::{EndPolicy, KILL_GRACE, RunningCommand, SERVER_GRACE};
use super::leader::Leader;
use super::memory_trim;
use super::sandbox::Confinement;
use super::system;
use super::system::launcher::{self, Launcher};
use super::system::stragglers::ProcessMark;

/// The hidden argument: `epitome __reap`.
pub const REAP_ARGUMENT: &str = "__reap";

/// Starts commands in separate process groups that can't outlive the daemon.
pub struct Reaper {
    /// The executable of the helper process; `None` disables it.
    pub(super) program: Option<PathBuf>,
    /// Prefix of the marks of all commands of this process.
    mark: ProcessMark,
    link: Mutex<ReaperLink>,
    /// Read by each start of a command until the command is in the list.
    pub(super) starting: RwLock<()>,
    /// The helper that starts sandboxed commands.
    launcher: Mutex<Launcher>,
}

/// Identifies an announcement; never reused.
pub(super) type AnnouncementKey = u64;

/// A group, as recorded by the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnnouncedGroup {
    id: i32,
    policy: EndPolicy,
    /// Whether its processes have a mark. The helper doesn't know.
    is_marked: bool,
}

/// The helper process and the groups announced to it.
#[derive(Default)]
struct ReaperLink {
    process: Option<(Child, Arc<OwnedFd>)>,
    /// Announced groups by key; they are announced again if the helper has to be restarted.
    groups: BTreeMap<AnnouncementKey, AnnouncedGroup>,
    next: AnnouncementKey,
}

impl Reaper {
    /// Uses the running executable, whose `main` must call `reap_main` when its first argument is `REAP_ARGUMENT`.
    pub fn for_this_executable() -> Reaper {
        match super::process::this_program() {
            Ok(program) => Reaper::with_program(program),
            Err(_) => Reaper::disabled(),
        }
    }

    /// Uses another executable that supports the hidden argument.
    pub fn with_program(program: PathBuf) -> Reaper {
        Reaper::new(Some(program))
    }

    /// Disables the helpers: commands end with their calls, but survive if the daemon is killed, and can't be
    /// sandboxed. For tests.
    pub fn disabled() -> Reaper {
        Reaper::new(None)
    }

    fn new(program: Option<PathBuf>) -> Reaper {
        keep_descriptors();
        Reaper {
            program,
            mark: ProcessMark::generate(),
            link: Mutex::default(),
            starting: RwLock::default(),
            launcher: Mutex::default(),
        }
    }

    /// Starts a command with a mark, so that processes that leave its group are ended too.
    pub fn spawn_marked(self: &Arc<Reaper>, command: &mut Command) -> io::Result<RunningCommand> {
        self.spawn_with(command, true, EndPolicy::Terminate)
    }

    /// Starts a command as the leader of a new session and process group, announced to the helper process.
    ///
    /// The new session detaches it from the terminal; otherwise password prompts would appear on the screen of an
    /// editor that runs in that terminal. Blocks for the duration of a fork and an exec.
    pub(super) fn spawn_with(
        self: &Arc<Reaper>,
        command: &mut Command,
        is_marked: bool,
        policy: EndPolicy,
    ) -> io::Result<RunningCommand> {
        let _starting = self.starting.read();
        let (key, mark, pipe) = self.prepare();
        let mark = is_marked.then_some(mark);
        if let Some(mark) = &mark {
            mark.put_on(command);
        }
        let before = DESCRIPTORS_BEFORE.get().copied();
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes system calls
        // (setsid, setrlimit, write) on data that it owns, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                let group = setsid()?;
                if let Some(before) = before {
                    setrlimit(Resource::Nofile, before)?;
                }
                if let Some(pipe) = &pipe {
                    let mut line = [0; LINE_BYTES];
                    rustix::io::write(&**pipe, announcement(key, group.as_raw_nonzero().get(), &mut line))?;
                }
                Ok(())
            });
        }
        let child = command.spawn().inspect_err(|_| self.forget(key))?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("the system gave an impossible process number"))?;
        self.add(key, group, policy, is_marked);
        RunningCommand::new(Leader::new(group, mark), policy, self.clone(), key)
    }

    /// Starts a marked command in a sandbox. Of `command` counts the program, its arguments, and the variables that are
    /// set; it gets no others, and `streams` for its input, output and errors. `policy` says how its group is ended.
    pub fn spawn_confined(
        self: &Arc<Reaper>,
        command: &Command,
        streams: [BorrowedFd<'_>; 3],
        policy: EndPolicy,
        confinement: Confinement,
    ) -> io::Result<RunningCommand> {
        launcher::spawn(self, &self.launcher, command, streams, policy, confinement)
    }

    /// Removes a group from the list. Called before its leader is reaped.
    pub(super) fn forget(&self, key: AnnouncementKey) {
        let mut link = self.link.lock();
        link.groups.remove(&key);
        if let Some((_, pipe)) = &link.process {
            // If the helper is gone, its successor never receives this group.
            let _ = rustix::io::write(&**pipe, format!("-{key}\n").as_bytes());
        }
    }

    /// Whether this process is the first of a running command that was started with a mark. It may have executed another
    /// program since, without the mark in its environment. Waits for the commands that are being started: they run before they
    /// are in the list.
    pub fn has_command(&self, process: Pid) -> bool {
        drop(self.starting.write());
        let id = process.as_raw_nonzero().get();
        self.link.lock().groups.values().any(|group| group.is_marked && group.id == id)
    }

    /// Returns a new key, the mark that goes with it, and the pipe to a live helper process.
    pub(super) fn prepare(&self) -> (AnnouncementKey, ProcessMark, Option<Arc<OwnedFd>>) {
        let mut link = self.link.lock();
        link.next += 1;
        let pipe = self.program.as_ref().and_then(|program| link.pipe(program, &self.mark));
        (link.next, self.mark.of_command(link.next), pipe)
    }

    /// Adds a group that has announced itself.
    pub(super) fn add(&self, key: AnnouncementKey, group: Pid, policy: EndPolicy, is_marked: bool) {
        let group = AnnouncedGroup { id: group.as_raw_nonzero().get(), policy, is_marked };
        let mut link = self.link.lock();
        link.groups.insert(key, group);
        if let (EndPolicy::ClosedInput, Some((_, pipe))) = (policy, &link.process) {
            // If the helper is gone, its successor gets this from the list.
            let _ = rustix::io::write(&**pipe, server_announcement(key).as_bytes());
        }
    }
}

impl ReaperLink {
    /// Returns the pipe to the helper process, which is started if it isn't alive. `None` if it can't be started;
    /// commands run nevertheless.
    fn pipe(&mut self, program: &Path, mark: &ProcessMark) -> Option<Arc<OwnedFd>> {
        if let Some((child, pipe)) = &mut self.process {
            if matches!(child.try_wait(), Ok(None)) {
                return Some(pipe.clone());
            }
            self.process = None;
        }
        match start(program, mark, &self.groups) {
            Ok((child, pipe)) => {
                let pipe = Arc::new(pipe);
                self.process = Some((child, pipe.clone()));
                Some(pipe)
            }
            Err(error) => {
                tracing::warn!(program = %program.display(), %error, "no reaper: commands may outlive a kill -9");
                None
            }
        }
    }
}

/// The descriptor limit at startup, if it has been raised since.
pub(super) static DESCRIPTORS_BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's descriptor limit to the maximum: each session has a journal, a connection to its
/// provider and client connections. Commands still start with the original limit, because some programs rely
/// on small descriptor numbers. Returns the limit; `None` means unlimited.
pub fn raise_descriptors() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some() && now.current != now.maximum {
        let current = now.maximum.or(system::DESCRIPTORS_MAX);
        let raised = Rlimit { current, maximum: now.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => drop(DESCRIPTORS_BEFORE.set(now)),
            Err(error) => tracing::info!(%error, "the number of open files can't be raised"),
        }
    }
    getrlimit(Resource::Nofile).current
}

/// Marks inherited descriptors close-on-exec, so that child processes don't get them.
///
/// Descriptors that Epitome opens have the flag from the start. Editors leak some of theirs by mistake; a command
/// that keeps such a pipe open would leave the editor waiting for EOF.
fn keep_descriptors() {
    let Ok(entries) = std::fs::read_dir("/dev/fd") else { return };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| *number > 2).collect::<Vec<_>>() {
        // SAFETY: the descriptor is only flagged, not owned. If it was closed in the meantime, the call fails; if it
        // was reopened, it already has the flag.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        // Fails only if the descriptor was closed in the meantime.
        let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
    }
}

fn start(
    program: &Path,
    mark: &ProcessMark,
    groups: &BTreeMap<AnnouncementKey, AnnouncedGroup>,
) -> io::Result<(Child, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let write = OwnedFd::from(write);
    // A stopped helper must not block the daemon: if the pipe is full, starting a command fails instead.
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK)?;
    let child = Command::new(program)
        .arg0(OsStr::new("epitome"))
        .arg(REAP_ARGUMENT)
        .arg(mark.text())
        // A separate group from the start: an editor may end the daemon's group while the helper is still starting.
        .process_group(0)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(read)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    for (key, group) in groups {
        rustix::io::write(&write, announcement(*key, group.id, &mut [0; LINE_BYTES]))?;
        if group.policy == EndPolicy::ClosedInput {
            rustix::io::write(&write, server_announcement(*key).as_bytes())?;
        }
    }
    Ok((child, write))
}

/// A sign, the longest key, a space, the longest number and a line break.
pub(super) const LINE_BYTES: usize = 1 + 20 + 1 + 10 + 1;

/// Writes `+7 123\n` to `line` without allocating. It is short enough for an atomic pipe write.
pub(super) fn announcement(key: AnnouncementKey, group: i32, line: &mut [u8; LINE_BYTES]) -> &[u8] {
    let mut rest = &mut line[..];
    // The longest line fits.
    let _ = writeln!(rest, "+{key} {group}");
    let left = rest.len();
    &line[..LINE_BYTES - left]
}

/// The announcement that the group with this key is a server's.
fn server_announcement(key: AnnouncementKey) -> String {
    format!("~{key}\n")
}

/// Runs the helper process and returns its exit code.
///
/// `main` calls this before anything else if the first argument is `REAP_ARGUMENT`.
pub fn reap_main() -> i32 {
    // Signals sent to the daemon or to all processes must not end the helper before its work is done. Handlers that
    // do nothing have the same effect as ignoring the signals, and need no unsafe code.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let _entered = runtime.as_ref().ok().map(tokio::runtime::Runtime::enter);
    use tokio::signal::unix::{SignalKind, signal};
    let ignored =
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _handlers: Vec<_> = ignored.into_iter().map(signal).collect();
    // From here on, it mostly waits.
    memory_trim::let_go_of_program();
    reap(BufReader::new(io::stdin().lock()));
    // Daemons of older versions don't pass a mark.
    if let Some(mark) = std::env::args().nth(2) {
        ProcessMark::read(mark).end_all();
    }
    0
}

/// Poll interval for checking whether the groups have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Maintains the list of groups from `announcements` until the pipe closes, then ends all groups on it.
fn reap(announcements: impl BufRead) {
    let mut groups = BTreeMap::new();
    for line in announcements.split(b'\n') {
        match line {
            Ok(line) => take(&mut groups, &line),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let of_policy = |policy| {
        let groups = groups.values().filter(|group: &&AnnouncedGroup| group.policy == policy);
        groups.filter_map(|group| Pid::from_raw(group.id)).collect::<Vec<Pid>>()
    };
    // The end of the daemon has closed the servers' standard input.
    let closed = Instant::now();
    terminate(&of_policy(EndPolicy::Terminate), KILL_GRACE);
    let servers = of_policy(EndPolicy::ClosedInput);
    wait_for_end(&servers, closed + SERVER_GRACE);
    terminate(&servers, SERVER_GRACE);
}

/// Sends TERM to the groups, and KILL to those that have not ended after `grace`.
fn terminate(groups: &[Pid], grace: Duration) {
    for group in groups {
        // Errors mean that the group is gone or belongs to another user.
        let _ = kill_process_group(*group, Signal::TERM);
    }
    wait_for_end(groups, Instant::now() + grace);
    for group in groups {
        let _ = kill_process_group(*group, Signal::KILL);
    }
}

fn wait_for_end(groups: &[Pid], deadline: Instant) {
    while groups.iter().any(|group| test_kill_process_group(*group).is_ok()) && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}

/// Applies one announcement. Malformed lines are skipped.
fn take(groups: &mut BTreeMap<AnnouncementKey, AnnouncedGroup>, line: &[u8]) {
    let Ok(line) = std::str::from_utf8(line) else { return };
    if let Some(key) = line.strip_prefix('-').and_then(|key| key.parse().ok()) {
        groups.remove(&key);
    }
    if let Some(group) = line.strip_prefix('~').and_then(|key| groups.get_mut(&key.parse().ok()?)) {
        group.policy = EndPolicy::ClosedInput;
    }
    let Some((key, group)) = line.strip_prefix('+').and_then(|rest| rest.split_once(' ')) else { return };
    if let (Ok(key), Ok(group)) = (key.parse(), group.parse::<i32>())
        // A group of 0 would be the helper's group, and 1 would become -1 in `kill`: every process.
        && group > 1
    {
        groups.insert(key, AnnouncedGroup { id: group, policy: EndPolicy::Terminate, is_marked: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::CommandExit;

    #[test]
    fn announcement_contains_key_and_group() {
        assert_eq!(announcement(1, 4711, &mut [0; LINE_BYTES]), b"+1 4711\n");
        let longest = format!("+{} {}\n", AnnouncementKey::MAX, i32::MAX);
        assert_eq!(announcement(AnnouncementKey::MAX, i32::MAX, &mut [0; LINE_BYTES]), longest.as_bytes());
    }

    #[test]
    fn invalid_and_removed_announcements_are_not_listed() {
        let mut groups = BTreeMap::new();
        for line in ["+1 20", "+2 30", "-1", "", "+", "+3 1", "+4 0", "+5 -5", "nonsense", "+6 40x", "*7 50"]
        {
            take(&mut groups, line.as_bytes());
        }
        let group = |policy| AnnouncedGroup { id: 30, policy, is_marked: false };
        assert_eq!(groups, BTreeMap::from([(2, group(EndPolicy::Terminate))]));
        for line in ["~2", "~1", "~", "~x"] {
            take(&mut groups, line.as_bytes());
        }
        assert_eq!(groups, BTreeMap::from([(2, group(EndPolicy::ClosedInput))]));
    }

    #[tokio::test]
    async fn command_is_announced_before_exec_and_removed_after_it_ends() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (program, list) = (directory.path().join("fake"), directory.path().join("list"));
        std::fs::write(&program, format!("#!/bin/sh\nexec cat > '{}'\n", list.display())).expect("written");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("set");
        let reaper = Arc::new(Reaper::with_program(program));
        assert!(reaper.spawn_marked(&mut Command::new("/no/such/program")).is_err());
        let mut running = reaper.spawn_marked(Command::new("sh").args(["-c", "exit 7"])).expect("sh runs");
        let group = running.id().as_raw_nonzero();
        running.release();
        assert_eq!((&mut running.ending).await, Ok(CommandExit::Code(7)));
        let expected = format!("-1\n+2 {group}\n-2\n");
        let deadline = Instant::now() + Duration::from_secs(20);
        // The child whose exec failed announced itself with an unknown number.
        let recorded = || std::fs::read_to_string(&list).unwrap_or_default();
        while !recorded().ends_with(&expected) {
            assert!(Instant::now() < deadline, "{:?} ends with {expected:?}", recorded());
            thread::sleep(LOOK_EVERY);
        }
        assert!(recorded().starts_with("+1 "), "{:?}", recorded());
    }

    #[test]
    fn announced_groups_are_ended_when_the_pipe_closes() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep runs");
        let list = format!("+1 {}\n", child.id());
        let ended = thread::spawn(move || child.wait());
        reap(list.as_bytes());
        let status = ended.join().expect("no panic").expect("the child can be waited for");
        assert!(!status.success(), "it did not sleep to its end");
    }

    /// A server that saves its data when its standard input is closed was ended by TERM before it could do so.
    #[test]
    fn a_server_may_finish_before_it_is_terminated() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let saved = directory.path().join("saved");
        let script = format!("trap 'exit 1' TERM; cat; sleep 0.7; echo saved > '{}'", saved.display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let list = format!("+1 {}\n~1\n", child.id());
        drop(child.stdin.take());
        let ended = thread::spawn(move || child.wait());
        reap(list.as_bytes());
        assert!(ended.join().expect("no panic").expect("the child can be waited for").success());
        assert!(saved.exists());
    }

    #[test]
    fn removed_group_is_not_ended() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep runs");
        reap(format!("+1 {}\n-1\n", child.id()).as_bytes());
        assert!(matches!(child.try_wait(), Ok(None)), "it still runs");
        child.kill().expect("it is ours");
        child.wait().expect("it was killed");
    }

    #[test]
    fn a_group_that_ignores_term_is_killed() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("sh runs");
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        stdout.read_line(&mut ready).expect("it says that the trap is set");
        reap(format!("+1 {}\n", child.id()).as_bytes());
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().expect("it ended").signal(), Some(Signal::KILL.as_raw()));
    }
}
