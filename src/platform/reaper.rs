//! What outlives us: a small process that ends the commands of an Epitome that was killed.
//!
//! When we end in an orderly way we end our commands ourselves (`group`). Against `kill -9` and a crash
//! a second process is needed. It is our own executable, started with a hidden argument before the first
//! command; its standard input is a pipe on which the process groups of commands are announced. When
//! the pipe closes, which the kernel does however we end, it ends every announced group, all that bears our mark
//! (`stragglers`), and itself.
//!
//! It never runs anything, reads nothing else and writes nothing.
//!
//! - *A command cannot outrun its announcement*: it announces itself, after the fork and before the
//!   exec. If we are killed in between, the group is on the list or the command never ran. A line is
//!   `+key group`, and `-key` takes it back: the key is ours, so that we can take back also what a child
//!   announced whose exec then failed, and whose number we never learned.
//! - *Numbers are reused*: a group leaves the list after it got its KILL and before its leader is
//!   reaped, so at no time while we live does the list hold a number that could be somebody else's.
//!   Once we are dead the leaders that had ended are reaped by init; for their numbers to be given out
//!   again within `KILL_GRACE` all others would have to be used up first. That risk remains.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit, setsid, test_kill_process_group,
};

use super::group::{KILL_GRACE, Running};
use super::stragglers::Mark;

/// The hidden argument: `epitome __reap`.
pub const REAP_ARGUMENT: &str = "__reap";

/// Starts commands in process groups of their own that cannot outlive us.
pub struct Reaper {
    /// What is started as the second process; `None` for none.
    program: Option<PathBuf>,
    /// Begins the marks of all commands of this process.
    mark: Mark,
    link: Mutex<Link>,
}

/// Names an announcement; given out once.
pub(super) type Key = u64;

/// The second process, and what it knows.
#[derive(Default)]
struct Link {
    process: Option<(Child, Arc<OwnedFd>)>,
    /// The announced groups by key, to be told again to a new process should the old one be gone.
    groups: BTreeMap<Key, i32>,
    next: Key,
}

impl Reaper {
    /// Uses the running executable, whose `main` must call `reap_main` when its first argument is
    /// `REAP_ARGUMENT`.
    pub fn of_this_executable() -> Reaper {
        // The name under /proc means the running file even after an upgrade replaced or removed it.
        let own = Path::new("/proc/self/exe");
        match if own.exists() { Ok(own.to_path_buf()) } else { std::env::current_exe() } {
            Ok(program) => Reaper::with_program(program),
            Err(_) => Reaper::none(),
        }
    }

    /// Uses another executable that knows the hidden argument.
    pub fn with_program(program: PathBuf) -> Reaper {
        Reaper::new(Some(program))
    }

    /// No second process: commands end with their calls, but not if we are killed. For tests.
    pub fn none() -> Reaper {
        Reaper::new(None)
    }

    fn new(program: Option<PathBuf>) -> Reaper {
        keep_descriptors();
        Reaper { program, mark: Mark::of_this_process(), link: Mutex::default() }
    }

    /// Starts a command as the leader of a new session and process group, known to the second process.
    ///
    /// A session of its own takes the terminal away from it: an editor that runs in one would
    /// otherwise find password prompts on its screen. Blocks for the time of a fork and an exec.
    pub fn spawn(self: &Arc<Reaper>, command: &mut Command) -> io::Result<Running> {
        self.spawn_with(command, false)
    }

    /// The same for a command of which nothing may stay behind, wherever it goes: it gets a mark.
    pub fn spawn_marked(self: &Arc<Reaper>, command: &mut Command) -> io::Result<Running> {
        self.spawn_with(command, true)
    }

    fn spawn_with(self: &Arc<Reaper>, command: &mut Command, is_marked: bool) -> io::Result<Running> {
        let (key, pipe) = self.prepare();
        let mark = is_marked.then(|| self.mark.of_command(key));
        if let Some(mark) = &mark {
            mark.put_on(command);
        }
        let before = DESCRIPTORS_BEFORE.get().copied();
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes
        // three system calls (setsid, setrlimit, write) on data that it owns, and allocates nothing.
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
        self.link().groups.insert(key, group.as_raw_nonzero().get());
        Running::new(child, group, mark, self.clone(), key)
    }

    /// Takes a group off the list. Called before its leader is reaped.
    pub(super) fn forget(&self, key: Key) {
        let mut link = self.link();
        link.groups.remove(&key);
        if let Some((_, pipe)) = &link.process {
            // If the process is gone its successor will not hear of this group at all.
            let _ = rustix::io::write(&**pipe, format!("-{key}\n").as_bytes());
        }
    }

    /// A new key, and the pipe to a second process that is alive.
    fn prepare(&self) -> (Key, Option<Arc<OwnedFd>>) {
        let mut link = self.link();
        link.next += 1;
        (link.next, self.program.as_ref().and_then(|program| link.pipe(program, &self.mark)))
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// The pipe to the second process, which is started if none is alive. `None` when none can be had,
    /// which does not keep commands from running.
    fn pipe(&mut self, program: &Path, mark: &Mark) -> Option<Arc<OwnedFd>> {
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

/// The descriptors that this process might open when it began, once that is more now.
static DESCRIPTORS_BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Lets this process open as many descriptors as it may: each session has a journal, a connection to its model,
/// and those of its clients. Commands still begin with what there was, because some count on small numbers.
pub fn raise_descriptors() {
    let now = getrlimit(Resource::Nofile);
    // None is no limit.
    if now.current.is_some() && now.current != now.maximum {
        let raised = Rlimit { current: now.maximum, maximum: now.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => drop(DESCRIPTORS_BEFORE.set(now)),
            Err(error) => tracing::info!(%error, "the number of open files can't be raised"),
        }
    }
}

/// Keeps descriptors that we inherited from children of ours.
///
/// Those that we open are close-on-exec from the start. Editors pass on some of theirs by mistake, and a
/// command that holds such a pipe open would keep the editor waiting for its end.
fn keep_descriptors() {
    let Ok(entries) = std::fs::read_dir("/dev/fd") else { return };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for number in numbers.filter(|number| *number > 2).collect::<Vec<_>>() {
        // SAFETY: the descriptor is not owned here, only flagged. If it was closed meanwhile the call
        // fails, and if it was opened anew it has the flag already.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        // The only error is that it was closed meanwhile.
        let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
    }
}

fn start(program: &Path, mark: &Mark, groups: &BTreeMap<Key, i32>) -> io::Result<(Child, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let write = OwnedFd::from(write);
    // A process that was stopped must not stop us: a full pipe fails the command instead.
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK)?;
    let child = Command::new(program)
        .arg0(OsStr::new("epitome"))
        .arg(REAP_ARGUMENT)
        .arg(mark.text())
        // Its own group at once: an editor may end ours while it is still starting.
        .process_group(0)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(read)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    for (key, group) in groups {
        rustix::io::write(&write, announcement(*key, *group, &mut [0; LINE_BYTES]))?;
    }
    Ok((child, write))
}

/// A sign, the longest key, a blank, the longest number, a line break.
const LINE_BYTES: usize = 1 + 20 + 1 + 10 + 1;

/// Writes `+7 123\n` to the end of `line` without allocating; a pipe takes that in one piece.
fn announcement(key: Key, group: i32, line: &mut [u8; LINE_BYTES]) -> &[u8] {
    let mut at = LINE_BYTES;
    let mut put = |byte: u8| {
        at -= 1;
        line[at] = byte;
    };
    put(b'\n');
    digits(group.unsigned_abs().into(), &mut put);
    put(b' ');
    digits(key, &mut put);
    put(b'+');
    &line[at..]
}

/// The digits of a number, the last one first.
fn digits(mut number: u64, mut put: impl FnMut(u8)) {
    loop {
        put(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
}

/// The whole life of the second process; what it returns is the exit code.
///
/// `main` calls it before anything else when the first argument is `REAP_ARGUMENT`.
pub fn reap_main() -> i32 {
    // Signals meant for us, or for everything, must not end it before it has done its work. Handlers
    // that do nothing are as good as ignoring, and need no unsafe code.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let _entered = runtime.as_ref().ok().map(tokio::runtime::Runtime::enter);
    use tokio::signal::unix::{SignalKind, signal};
    let ignored =
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _handlers: Vec<_> = ignored.into_iter().map(signal).collect();
    reap(BufReader::new(io::stdin().lock()));
    // Of an older program that started this one there is none.
    if let Some(mark) = std::env::args().nth(2) {
        Mark::read(mark).end_all();
    }
    0
}

/// How often the second process looks whether the groups have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Keeps the list that is read from `announcements` until its end, then ends all that is on it.
fn reap(announcements: impl BufRead) {
    let mut groups = BTreeMap::new();
    for line in announcements.split(b'\n') {
        match line {
            Ok(line) => take(&mut groups, &line),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let groups: Vec<Pid> = groups.into_values().filter_map(Pid::from_raw).collect();
    for group in &groups {
        // Errors say that the group is gone, or was never ours to end.
        let _ = kill_process_group(*group, Signal::TERM);
    }
    let deadline = Instant::now() + KILL_GRACE;
    while groups.iter().any(|group| test_kill_process_group(*group).is_ok()) && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
    for group in &groups {
        let _ = kill_process_group(*group, Signal::KILL);
    }
}

/// Applies one announcement. What is not one is skipped: the next one may be.
fn take(groups: &mut BTreeMap<Key, i32>, line: &[u8]) {
    let Ok(line) = std::str::from_utf8(line) else { return };
    if let Some(key) = line.strip_prefix('-').and_then(|key| key.parse().ok()) {
        groups.remove(&key);
    }
    let Some((key, group)) = line.strip_prefix('+').and_then(|rest| rest.split_once(' ')) else { return };
    if let (Ok(key), Ok(group)) = (key.parse(), group.parse::<i32>())
        // 0 would mean our own group, and 1 with its sign turned everything that there is.
        && group > 1
    {
        groups.insert(key, group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Ending;

    #[test]
    fn an_announcement_is_a_key_and_a_number() {
        assert_eq!(announcement(1, 4711, &mut [0; LINE_BYTES]), b"+1 4711\n");
        let longest = format!("+{} {}\n", Key::MAX, i32::MAX);
        assert_eq!(announcement(Key::MAX, i32::MAX, &mut [0; LINE_BYTES]), longest.as_bytes());
    }

    #[test]
    fn the_list_holds_what_was_announced_and_not_taken_back() {
        let mut groups = BTreeMap::new();
        for line in ["+1 20", "+2 30", "-1", "", "+", "+3 1", "+4 0", "+5 -5", "nonsense", "+6 40x", "*7 50"]
        {
            take(&mut groups, line.as_bytes());
        }
        assert_eq!(groups, BTreeMap::from([(2, 30)]));
    }

    #[tokio::test]
    async fn a_command_announces_itself_before_it_runs_and_is_taken_back_after_its_end() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (program, list) = (directory.path().join("fake"), directory.path().join("list"));
        std::fs::write(&program, format!("#!/bin/sh\nexec cat > '{}'\n", list.display())).expect("written");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("set");
        let reaper = Arc::new(Reaper::with_program(program));
        assert!(reaper.spawn(&mut Command::new("/no/such/program")).is_err());
        let mut running = reaper.spawn(Command::new("sh").args(["-c", "exit 7"])).expect("sh runs");
        let group = running.id().as_raw_nonzero();
        running.release();
        assert_eq!((&mut running.ending).await, Ok(Ending::Code(7)));
        let expected = format!("-1\n+2 {group}\n-2\n");
        let deadline = Instant::now() + Duration::from_secs(20);
        // The child whose exec failed announced itself with a number that nobody knows.
        let told = || std::fs::read_to_string(&list).unwrap_or_default();
        while !told().ends_with(&expected) {
            assert!(Instant::now() < deadline, "{:?} ends with {expected:?}", told());
            thread::sleep(LOOK_EVERY);
        }
        assert!(told().starts_with("+1 "), "{:?}", told());
    }

    #[test]
    fn when_the_pipe_closes_every_announced_group_is_ended() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep runs");
        let list = format!("+1 {}\n", child.id());
        let ended = thread::spawn(move || child.wait());
        reap(list.as_bytes());
        let status = ended.join().expect("no panic").expect("the child can be waited for");
        assert!(!status.success(), "it did not sleep to its end");
    }

    #[test]
    fn a_group_that_was_taken_back_is_left_alone() {
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
