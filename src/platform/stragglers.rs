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
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

/// The environment variable with the mark.
pub const VARIABLE: &str = "EPITOME_COMMAND";

/// Maximum search rounds; each finds processes that were forked during the previous one. Two are enough for
/// processes that don't fork; a program that forks and exits continuously is a different process by the time
/// it is found, and has to be chased.
const ROUNDS_MAX: usize = 256;

/// Maximum bytes of an environment that are searched. Linux allows larger ones; a mark beyond this limit isn't found.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// The mark of a command's processes, or the common prefix of the marks of all commands of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMark(String);

impl ProcessMark {
    /// Returns a mark that no other process has or had.
    pub fn generate() -> ProcessMark {
        ProcessMark(format!("{}-{:016x}-", std::process::id(), fastrand::u64(..)))
    }

    pub fn of_command(&self, key: u64) -> ProcessMark {
        ProcessMark(format!("{}{key}-", self.0))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Parses a mark that was passed as text.
    pub fn read(text: String) -> ProcessMark {
        ProcessMark(text)
    }

    pub fn put_on(&self, command: &mut Command) {
        command.env(VARIABLE, &self.0);
    }

    /// The entry in the environment: name and value.
    pub fn variable(&self) -> OsString {
        format!("{VARIABLE}={}", self.0).into()
    }

    /// Kills every process with this mark. Blocks for some milliseconds; does nothing without `/proc`.
    pub fn end_all(&self) {
        // An empty mark would match every process.
        if self.0.is_empty() {
            return;
        }
        let mut known = CheckedProcesses::default();
        known.without.insert(std::process::id().cast_signed());
        for _ in 0..ROUNDS_MAX {
            if self.end_some(&mut known) == 0 {
                return;
            }
        }
    }

    /// Runs one search round. Returns the number of processes that had the mark, or that exited before their
    /// environment could be read. Each of them may have left a child behind; after a round that returns 0, no marked
    /// process is left.
    fn end_some(&self, known: &mut CheckedProcesses) -> usize {
        let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let mut may_have_left_some = 0;
        // Read lazily: a process that is forked during the search usually has a higher number and is still found.
        for number in numbers {
            if known.without.contains(&number) {
                continue;
            }
            match self.end(number) {
                CheckResult::Without => drop(known.without.insert(number)),
                CheckResult::Bare => may_have_left_some += usize::from(known.bare.insert(number)),
                // A marked process that had already exited may have left a child behind.
                CheckResult::Marked | CheckResult::Gone => may_have_left_some += 1,
            }
        }
        may_have_left_some
    }

    /// Kills a process if it has the mark. Its pidfd is opened first, so that its number can't be reused in between.
    fn end(&self, number: i32) -> CheckResult {
        let Some(process) = Pid::from_raw(number) else { return CheckResult::Bare };
        let gone = |is_gone: bool| if is_gone { CheckResult::Gone } else { CheckResult::Bare };
        let held = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(held) => held,
            Err(error) => return gone(error == Errno::SRCH),
        };
        let seen = self.judge(environment(number), || test_kill_process(process) != Err(Errno::SRCH));
        if seen == CheckResult::Marked {
            let _ = pidfd_send_signal(&held, Signal::KILL);
        }
        seen
    }

    /// Interprets the result of reading a process's environment.
    fn judge(&self, environment: io::Result<Vec<u8>>, is_alive: impl FnOnce() -> bool) -> CheckResult {
        let wanted = format!("{VARIABLE}={}", self.0);
        match environment {
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
    let mut environment = Vec::new();
    File::open(format!("/proc/{number}/environ"))?
        .take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut environment)?;
    Ok(environment)
}

/// Returns the mark in an environment, as read from `/proc`.
pub(crate) fn mark_in(environment: File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
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

/// The result of checking a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckResult {
    /// It has an environment that lacks the mark.
    Without,
    /// It has no environment: a kernel thread, a zombie, or a process in the middle of an exec.
    Bare,
    /// It has the mark.
    Marked,
    /// It exited before it could be checked; it may have left a child behind.
    Gone,
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

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
            assert_eq!(mark.judge(environment, || is_alive), seen, "{what}");
        }
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
