//! What outlives us: a small process that ends the commands of an Epitome that was killed.
//!
//! When we end in an orderly way we end our commands ourselves (`group`). Against `kill -9` and a crash
//! a second process is needed. It is our own executable, started with a hidden argument before the first
//! command; its standard input is a pipe on which the process groups of commands are announced. When
//! the pipe closes, which the kernel does however we end, it ends every announced group and itself.
//!
//! It never runs anything, reads nothing else and writes nothing.
//!
//! - *A command cannot outrun its announcement*: it announces itself, after the fork and before the
//!   exec. If we are killed in between, the group is on the list or the command never ran.
//! - *Numbers are reused*: a group leaves the list after it got its KILL and before its leader is
//!   reaped, so at no time while we live does the list hold a number that could be somebody else's.
//!   Once we are dead the leaders that had ended are reaped by init; for their numbers to be given out
//!   again within `KILL_GRACE` all others would have to be used up first. That risk remains.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, setsid, test_kill_process_group};

use super::group::{KILL_GRACE, Running};

/// The hidden argument: `epitome __reap`.
pub const REAP_ARGUMENT: &str = "__reap";

/// Starts commands in process groups of their own that cannot outlive us.
pub struct Reaper {
    /// What is started as the second process; `None` for none.
    program: Option<PathBuf>,
    link: Mutex<Link>,
}

/// The second process, and what it knows.
#[derive(Default)]
struct Link {
    process: Option<(Child, Arc<OwnedFd>)>,
    /// The announced groups, to be told again to a new process should the old one be gone.
    groups: BTreeSet<i32>,
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
        Reaper { program: Some(program), link: Mutex::default() }
    }

    /// No second process: commands end with their calls, but not if we are killed. For tests.
    pub fn none() -> Reaper {
        Reaper { program: None, link: Mutex::default() }
    }

    /// Starts a command as the leader of a new session and process group, known to the second process.
    ///
    /// A session of its own takes the terminal away from it: an editor that runs in one would
    /// otherwise find password prompts on its screen. Blocks for the time of a fork and an exec.
    pub fn spawn(self: &Arc<Reaper>, command: &mut Command) -> io::Result<Running> {
        let pipe = self.pipe();
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. The closure makes
        // two system calls (setsid, write) on data that it owns, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                let group = setsid()?;
                if let Some(pipe) = &pipe {
                    let mut line = [0; LINE_BYTES];
                    let line = announcement(b'+', group.as_raw_nonzero().get(), &mut line);
                    rustix::io::write(&**pipe, line)?;
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        self.link().groups.insert(i32::try_from(child.id()).unwrap_or_default());
        Running::new(child, self.clone())
    }

    /// Takes a group off the list. Called before its leader is reaped.
    pub(super) fn forget(&self, group: Pid) {
        let number = group.as_raw_nonzero().get();
        let mut link = self.link();
        link.groups.remove(&number);
        if let Some((_, pipe)) = &link.process {
            let mut line = [0; LINE_BYTES];
            // If the process is gone its successor will not hear of this group at all.
            let _ = rustix::io::write(&**pipe, announcement(b'-', number, &mut line));
        }
    }

    /// The pipe to a second process that is alive; `None` when there is none and none can be had,
    /// which does not keep commands from running.
    fn pipe(&self) -> Option<Arc<OwnedFd>> {
        let program = self.program.as_ref()?;
        let mut link = self.link();
        if let Some((child, pipe)) = &mut link.process {
            if matches!(child.try_wait(), Ok(None)) {
                return Some(pipe.clone());
            }
            link.process = None;
        }
        match start(program, &link.groups) {
            Ok((child, pipe)) => {
                let pipe = Arc::new(pipe);
                link.process = Some((child, pipe.clone()));
                Some(pipe)
            }
            Err(error) => {
                tracing::warn!(program = %program.display(), %error, "no reaper: commands may outlive a kill -9");
                None
            }
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(program: &Path, groups: &BTreeSet<i32>) -> io::Result<(Child, OwnedFd)> {
    let (read, write) = io::pipe()?;
    let write = OwnedFd::from(write);
    // A process that was stopped must not stop us: a full pipe fails the command instead.
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK)?;
    let child = Command::new(program)
        .arg0(OsStr::new("epitome"))
        .arg(REAP_ARGUMENT)
        // Its own group at once: an editor may end ours while it is still starting.
        .process_group(0)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(read)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    for group in groups {
        let mut line = [0; LINE_BYTES];
        rustix::io::write(&write, announcement(b'+', *group, &mut line))?;
    }
    Ok((child, write))
}

/// A sign, ten digits and a line break.
const LINE_BYTES: usize = 12;

/// Writes `+123\n` to the end of `line` without allocating; a pipe takes that in one piece.
fn announcement(sign: u8, group: i32, line: &mut [u8; LINE_BYTES]) -> &[u8] {
    let mut at = LINE_BYTES - 1;
    line[at] = b'\n';
    let mut rest = group.unsigned_abs();
    loop {
        at -= 1;
        line[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    at -= 1;
    line[at] = sign;
    &line[at..]
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
    0
}

/// How often the second process looks whether the groups have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Keeps the list that is read from `announcements` until its end, then ends all that is on it.
fn reap(announcements: impl BufRead) {
    let mut groups = BTreeSet::new();
    for line in announcements.split(b'\n') {
        match line {
            Ok(line) => take(&mut groups, &line),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let groups: Vec<Pid> = groups.into_iter().filter_map(Pid::from_raw).collect();
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
fn take(groups: &mut BTreeSet<i32>, line: &[u8]) {
    let Some((sign, digits)) = line.split_first() else { return };
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i32>().ok());
    // 0 would mean our own group, and 1 with its sign turned everything that there is.
    let Some(number) = number.filter(|number| *number > 1) else { return };
    match sign {
        b'+' => {
            groups.insert(number);
        }
        b'-' => {
            groups.remove(&number);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_a_sign_and_a_number() {
        assert_eq!(announcement(b'+', 4711, &mut [0; LINE_BYTES]), b"+4711\n");
        assert_eq!(announcement(b'-', i32::MAX, &mut [0; LINE_BYTES]), b"-2147483647\n");
    }

    #[test]
    fn the_list_holds_what_was_announced_and_not_taken_back() {
        let mut groups = BTreeSet::new();
        for line in ["+20", "+30", "-20", "", "+", "+1", "+0", "+-5", "nonsense", "+40x", "*50"] {
            take(&mut groups, line.as_bytes());
        }
        assert_eq!(groups, BTreeSet::from([30]));
    }

    #[test]
    fn when_the_pipe_closes_every_announced_group_is_ended() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep runs");
        let list = format!("+{}\n", child.id());
        let ended = thread::spawn(move || child.wait());
        reap(list.as_bytes());
        let status = ended.join().expect("no panic").expect("the child can be waited for");
        assert!(!status.success(), "it did not sleep to its end");
    }

    #[test]
    fn a_group_that_was_taken_back_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep runs");
        reap(format!("+{0}\n-{0}\n", child.id()).as_bytes());
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
        reap(format!("+{}\n", child.id()).as_bytes());
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().expect("it ended").signal(), Some(Signal::KILL.as_raw()));
    }
}
