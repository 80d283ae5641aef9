//! Ends processes that left their command's process group, such as daemons in a separate session.
//!
//! A command's environment contains a mark, which all its descendants inherit and the kernel exposes in `/proc`.
//! Marked processes are searched for after the command has ended. Not covered: programs that both remove the mark
//! from their environment and leave the group, and processes started on the command's behalf by another program, such
//! as a container runtime or a system daemon.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

pub use crate::mark::{ProcessMark, VARIABLE};

/// Maximum search rounds; each finds processes that were forked during the previous one. Two are enough for
/// processes that don't fork; a program that forks and exits continuously is a different process by the time
/// it is found, and has to be chased.
const ROUNDS_MAX: usize = 256;

/// Pause between search rounds while a process is starting a program.
const STARTING_WAIT: Duration = Duration::from_millis(1);

/// `PF_KTHREAD` in the flags of `/proc/PID/stat`, from `include/linux/sched.h`.
const KERNEL_THREAD_FLAG: u64 = 0x0020_0000;

/// Maximum bytes of an environment that are searched. Linux allows larger ones; a mark beyond this limit isn't found.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are read at once of a file of a process: as a rule all of it. Files in `/proc` have no size, and reading
/// them in growing pieces takes twice as long.
pub(super) const READ_AT_ONCE_BYTES: usize = 8 * 1024;

impl ProcessMark {
    /// The entry in the environment: name and value.
    pub fn variable(&self) -> OsString {
        format!("{VARIABLE}={}", self.text()).into()
    }

    /// Kills every process with this mark. Blocks for some milliseconds; does nothing without `/proc`.
    pub fn end_all(&self) {
        // An empty mark would match every process.
        if self.text().is_empty() {
            return;
        }
        let mut known = CheckedProcesses::default();
        known.without.insert(std::process::id().cast_signed());
        for _ in 0..ROUNDS_MAX {
            match self.end_some(&mut known) {
                RoundResult::NoneLeft => return,
                RoundResult::SomeMayBeLeft => {}
                // Gives processes that are starting a program time to finish that.
                RoundResult::SomeAreStarting => std::thread::sleep(STARTING_WAIT),
            }
        }
    }

    /// Runs one search round: kills the marked processes that it finds. Each process that had the mark, or that
    /// exited before its environment could be read, may have left a child behind.
    fn end_some(&self, known: &mut CheckedProcesses) -> RoundResult {
        let Ok(entries) = std::fs::read_dir("/proc") else { return RoundResult::NoneLeft };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let mut result = RoundResult::NoneLeft;
        // Read lazily: a process that is forked during the search usually has a higher number and is still found.
        for number in numbers {
            if known.without.contains(&number) {
                continue;
            }
            match self.end(number) {
                CheckResult::Without => drop(known.without.insert(number)),
                CheckResult::Bare if !known.bare.insert(number) => {}
                CheckResult::Starting => result = RoundResult::SomeAreStarting,
                CheckResult::Bare | CheckResult::Marked | CheckResult::Gone => {
                    result = result.max(RoundResult::SomeMayBeLeft);
                }
            }
        }
        result
    }

    /// Kills a process if it has the mark. Its pidfd is opened first, so that its number can't be reused in between.
    fn end(&self, number: i32) -> CheckResult {
        let Some(process) = Pid::from_raw(number) else { return CheckResult::Bare };
        let gone = |is_gone: bool| if is_gone { CheckResult::Gone } else { CheckResult::Bare };
        let handle = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(error) => return gone(error == Errno::SRCH),
        };
        let is_alive = || test_kill_process(process) != Err(Errno::SRCH);
        let seen = self.judge(environment(number), is_alive, || {
            status_line(number).is_ok_and(|line| is_starting(&line))
        });
        if seen == CheckResult::Marked {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
        seen
    }

    /// Interprets the result of reading a process's environment.
    fn judge(
        &self,
        environment: io::Result<Vec<u8>>,
        is_alive: impl FnOnce() -> bool,
        is_starting: impl FnOnce() -> bool,
    ) -> CheckResult {
        let wanted = format!("{VARIABLE}={}", self.text());
        match environment {
            Ok(environment) if environment.is_empty() && is_starting() => CheckResult::Starting,
            Ok(environment) if environment.is_empty() => CheckResult::Bare,
            Ok(environment) => {
                let mut variables = environment.split(|byte| *byte == 0);
                match variables.any(|one| one.starts_with(wanted.as_bytes())) {
                    true => CheckResult::Marked,
                    false => CheckResult::Without,
                }
            }
            // Newer kernels report ESRCH for processes without an environment, as for those that are gone.
            Err(_) if is_alive() => CheckResult::Bare,
            Err(_) => CheckResult::Gone,
        }
    }
}

fn environment(number: i32) -> io::Result<Vec<u8>> {
    let mut environment = Vec::with_capacity(READ_AT_ONCE_BYTES);
    File::open(format!("/proc/{number}/environ"))?
        .take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut environment)?;
    Ok(environment)
}

/// Reads the fields of a process from `/proc/PID/stat`, as proc_pid_stat(5) describes them.
fn status_line(number: i32) -> io::Result<String> {
    let mut line = Vec::with_capacity(READ_AT_ONCE_BYTES);
    File::open(format!("/proc/{number}/stat"))?.read_to_end(&mut line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// The parent of a process; `None` if it is not visible.
pub(super) fn parent(number: i32) -> Option<i32> {
    let line = status_line(number).ok()?;
    // The name, field 2, is in parentheses and may contain spaces and parentheses.
    let (_, fields) = line.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a process without an environment is in the middle of an exec: it is neither a zombie nor a kernel thread,
/// and the kernel has not yet written the new program's environment (`env_end`, field 51, is 0).
fn is_starting(status_line: &str) -> bool {
    // The name, field 2, is in parentheses and may contain spaces and parentheses.
    let Some((_, fields)) = status_line.rsplit_once(')') else { return false };
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    let is_kernel_thread = field(9).parse::<u64>().is_ok_and(|flags| flags & KERNEL_THREAD_FLAG != 0);
    !matches!(field(3), "Z" | "X") && !is_kernel_thread && field(51) == "0"
}

/// Returns the mark in an environment, as read from `/proc`.
pub(crate) fn mark_in(environment: File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(READ_AT_ONCE_BYTES);
    environment.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes)?;
    let mut variables = bytes.split(|byte| *byte == 0);
    let mark = |one: &[u8]| one.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    Ok(variables.find_map(mark))
}

/// Processes that were checked in earlier rounds.
#[derive(Debug, Default)]
struct CheckedProcesses {
    /// Processes without the mark; neither they nor their descendants can ever have it, so they aren't
    /// checked again.
    without: HashSet<i32>,
    /// Processes without an environment. Everything that they had started existed by the time they were first
    /// checked.
    bare: HashSet<i32>,
}

/// The result of a search round, in order of how much is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RoundResult {
    /// No marked process is left.
    NoneLeft,
    /// Another round has to look for children of the processes that were found.
    SomeMayBeLeft,
    /// Another round has to look again at processes whose environment can't be read yet.
    SomeAreStarting,
}

/// The result of checking a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckResult {
    /// It has an environment that lacks the mark.
    Without,
    /// It has no environment: a kernel thread, a zombie, or a program that was started without one.
    Bare,
    /// It is in the middle of an exec, and its environment can't be read yet.
    Starting,
    /// It has the mark.
    Marked,
    /// It exited before it could be checked; it may have left a child behind.
    Gone,
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Since Linux 6.16 the environment of kernel threads and zombies can't be opened and fails with ESRCH, as for a
    /// process that is gone. After each command, all processes were scanned 256 times in search of their supposed
    /// children: half a second of CPU time or more.
    #[test]
    fn processes_without_an_environment_are_checked_at_most_twice() {
        let mark = ProcessMark::generate();
        let mut dead = Command::new("true").stdin(Stdio::null()).spawn().expect("true runs");
        let number = dead.id().cast_signed();
        let process = Pid::from_raw(number).expect("a number");
        waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("it ends");
        assert_eq!(mark.end(number), CheckResult::Bare, "a zombie");
        let mut known = CheckedProcesses::default();
        mark.end_some(&mut known);
        assert!(known.bare.contains(&number) && !known.bare.insert(number));
        dead.wait().expect("it can be waited for");
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(mark.end(2), CheckResult::Bare, "a thread of the kernel");
        }
        assert_eq!(mark.end(std::process::id().cast_signed()), CheckResult::Without);
    }

    /// The results of reading `/proc/PID/environ` on different kernels.
    #[test]
    fn the_environment_of_a_process_is_judged_alike_on_all_kernels() {
        let mark = ProcessMark::generate();
        let error = |errno: Errno| Err(io::Error::from_raw_os_error(errno.raw_os_error()));
        let with = |variables: &str| Ok(variables.as_bytes().to_vec());
        let marked = format!("PATH=/bin\0{VARIABLE}={}7-\0", mark.text());
        type KernelAnswer<'r> = (&'r str, io::Result<Vec<u8>>, bool, CheckResult);
        let rows: [KernelAnswer<'_>; 10] = [
            ("5.15, 6.1, 6.12: a thread of the kernel", with(""), true, CheckResult::Bare),
            ("5.15, 6.1, 6.12: a zombie", with(""), true, CheckResult::Bare),
            ("6.16, 6.18: a thread of the kernel", error(Errno::SRCH), true, CheckResult::Bare),
            ("6.16, 6.18: a zombie", error(Errno::SRCH), true, CheckResult::Bare),
            ("all: gone before it was opened", error(Errno::NOENT), false, CheckResult::Gone),
            ("all: gone before it was read", error(Errno::SRCH), false, CheckResult::Gone),
            ("all: of another user", error(Errno::ACCESS), true, CheckResult::Bare),
            ("all: of another user, not dumpable", error(Errno::PERM), true, CheckResult::Bare),
            ("all: a process of ours", with("PATH=/bin\0HOME=/root\0"), true, CheckResult::Without),
            ("all: a process of the command", with(&marked), true, CheckResult::Marked),
        ];
        for (what, environment, is_alive, seen) in rows {
            assert_eq!(mark.judge(environment, || is_alive, || false), seen, "{what}");
        }
    }

    /// On a busy machine, a command's leftover survived: it was in the middle of an exec when it was checked, twice
    /// within a millisecond. Then the kernel shows no environment yet, and it was taken for a kernel thread.
    #[test]
    fn processes_that_are_starting_a_program_are_checked_again() {
        let mark = ProcessMark::generate();
        assert_eq!(mark.judge(Ok(Vec::new()), || true, || true), CheckResult::Starting);
        // `/proc/PID/stat` up to field 9, zeros in between, and fields 48 to 52, as Linux 6.12 writes them.
        let line = |name: &str, state: &str, flags: u32, env_end: &str| {
            format!("7 ({name}) {state} 1 7 7 0 -1 {flags} {}1 2 3 {env_end} 0\n", "0 ".repeat(38))
        };
        let rows = [
            ("in the middle of an exec", line("sh", "R", 4_194_304, "0"), true),
            ("with a name that looks like fields", line("a) Z (b", "R", 4_194_304, "0"), true),
            ("started without an environment", line("sh", "S", 4_194_304, "140722520571880"), false),
            ("a zombie", line("sh", "Z", 4_228_108, "0"), false),
            ("a kernel thread", line("kthreadd", "S", 2_129_984, "0"), false),
            ("not a status line", String::new(), false),
        ];
        for (what, line, expected) in rows {
            assert_eq!(is_starting(&line), expected, "{what}: {line}");
        }
        let own = status_line(std::process::id().cast_signed()).expect("the own line is readable");
        assert!(!is_starting(&own), "{own}");
    }

    #[test]
    fn only_processes_with_the_mark_are_ended() {
        let mark = ProcessMark::generate();
        let sleep = |mark: &ProcessMark| {
            let mut command = Command::new("sleep");
            command.arg("60");
            mark.put_on(&mut command);
            command.spawn().expect("sleep runs")
        };
        let (mut one, mut ten) = (sleep(&mark.of_command(1)), sleep(&mark.of_command(10)));
        mark.of_command(1).end_all();
        assert!(!one.wait().expect("it can be waited for").success());
        assert!(matches!(ten.try_wait(), Ok(None)), "another command's number only begins alike");
        mark.end_all();
        assert!(!ten.wait().expect("it can be waited for").success());
    }
}
