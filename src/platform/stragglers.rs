//! Ends what left its command's process group: daemons that a command forked into a session of their own.
//!
//! A command has a mark in its environment, which all that it starts inherits and the kernel shows below `/proc`. It
//! is looked for when the command is over. Out of reach is a program that takes the mark out of its environment and
//! leaves the group, too, and what another program started for the command (a container's or a system's daemon).

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

/// The variable that holds the mark.
const VARIABLE: &str = "EPITOME_COMMAND";

/// How often it is looked for those that were forked while it was looked. Two are enough for what stands still; a
/// program that forks and ends all the time is another process by the time that it is found, and is run after.
const ROUNDS_MAX: usize = 256;

/// Bytes of an environment that are searched; Linux allows more to programs of which we are none.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// Marks the processes of a command or, as the beginning of such marks, those of all commands of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// One that no other process has, or had.
    pub fn of_this_process() -> Mark {
        Mark(format!("{}-{:016x}-", std::process::id(), fastrand::u64(..)))
    }

    pub fn of_command(&self, key: u64) -> Mark {
        Mark(format!("{}{key}-", self.0))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// One that was passed on as a text.
    pub fn read(text: String) -> Mark {
        Mark(text)
    }

    pub fn put_on(&self, command: &mut Command) {
        command.env(VARIABLE, &self.0);
    }

    /// Ends every process that bears it. Blocks for some milliseconds; does nothing without `/proc`.
    pub fn end_all(&self) {
        // Nobody marks everything.
        if self.0.is_empty() {
            return;
        }
        let mut known = Known::default();
        known.without.insert(std::process::id().cast_signed());
        for _ in 0..ROUNDS_MAX {
            if self.end_some(&mut known) == 0 {
                return;
            }
        }
    }

    /// How many bore the mark, or had gone or ended before that could be seen: any of them may have left another one
    /// behind, and where there are none, none is left.
    fn end_some(&self, known: &mut Known) -> usize {
        let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let mut may_have_left_some = 0;
        // One by one: what is forked meanwhile has a higher number, and is still to come.
        for number in numbers {
            if known.without.contains(&number) {
                continue;
            }
            match self.end(number) {
                Seen::Without => drop(known.without.insert(number)),
                Seen::Bare => may_have_left_some += usize::from(known.bare.insert(number)),
                Seen::Gone => may_have_left_some += 1,
            }
        }
        may_have_left_some
    }

    /// Ends one process if it bears the mark. It is held before it is looked at, so that its number can't become
    /// another's in between.
    fn end(&self, number: i32) -> Seen {
        let Some(process) = Pid::from_raw(number) else { return Seen::Bare };
        let gone = |is_gone: bool| if is_gone { Seen::Gone } else { Seen::Bare };
        let held = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(held) => held,
            Err(error) => return gone(error == Errno::SRCH),
        };
        match self.is_on(number) {
            Ok(Some(true)) => {
                // If it has gone by now, it may have left another one behind.
                let _ = pidfd_send_signal(&held, Signal::KILL);
                Seen::Gone
            }
            Ok(Some(false)) => Seen::Without,
            Ok(None) => Seen::Bare,
            // Newer kernels say of one without an environment what they say of one that is gone.
            Err(_) => gone(test_kill_process(process) == Err(Errno::SRCH)),
        }
    }

    /// Whether the environment of a process has the mark; `None` where it is empty.
    fn is_on(&self, number: i32) -> io::Result<Option<bool>> {
        let mut environment = Vec::new();
        File::open(format!("/proc/{number}/environ"))?
            .take(ENVIRONMENT_BYTES_MAX)
            .read_to_end(&mut environment)?;
        let wanted = format!("{VARIABLE}={}", self.0);
        let mut variables = environment.split(|byte| *byte == 0);
        Ok((!environment.is_empty()).then(|| variables.any(|one| one.starts_with(wanted.as_bytes()))))
    }
}

/// The processes that were looked at in earlier rounds.
#[derive(Debug, Default)]
struct Known {
    /// Those without the mark: neither they nor what they start will ever bear it, and they are not looked at again.
    without: HashSet<i32>,
    /// Those without an environment: what these have started was there by then.
    bare: HashSet<i32>,
}

/// What was seen of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It has an environment without the mark.
    Without,
    /// It has none: the kernel's own, one that has ended and was not waited for, or one that just becomes another
    /// program.
    Bare,
    /// It bore the mark and was ended, or was gone before that could be seen: it may have left another one behind.
    Gone,
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Since Linux 6.16 the environment of the kernel's threads and of zombies can't be opened: "no such process", as
    /// of one that is gone. Each command was followed by 256 searches of all processes for what those may have left
    /// behind, half a second of CPU time or more.
    #[test]
    fn what_has_no_environment_is_looked_at_twice_at_most() {
        let mark = Mark::of_this_process();
        let mut dead = Command::new("true").stdin(Stdio::null()).spawn().expect("true runs");
        let number = dead.id().cast_signed();
        let process = Pid::from_raw(number).expect("a number");
        waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("it ends");
        assert_eq!(mark.end(number), Seen::Bare, "a zombie");
        let mut known = Known::default();
        mark.end_some(&mut known);
        assert!(known.bare.contains(&number) && !known.bare.insert(number));
        dead.wait().expect("it can be waited for");
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(mark.end(2), Seen::Bare, "a thread of the kernel");
        }
        assert_eq!(mark.end(std::process::id().cast_signed()), Seen::Without);
    }

    #[test]
    fn what_bears_the_mark_is_ended_and_its_neighbour_is_not() {
        let mark = Mark::of_this_process();
        let sleep = |mark: &Mark| {
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
