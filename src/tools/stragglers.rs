//! Ends what left its command's process group: daemons that a command forked into a session of their own.
//!
//! A command has a mark in its environment, which all that it starts inherits and the kernel shows below `/proc`. It
//! is looked for when the command is over. Out of reach is a program that takes the mark out of its environment and
//! leaves the group, too, and what another program started for the command (a container's or a system's daemon).

use std::fs::File;
use std::io::{self, Read};
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

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
        for _ in 0..ROUNDS_MAX {
            if self.end_some() == 0 {
                return;
            }
        }
    }

    /// How many bore the mark, or were gone before that could be seen: where there are none, none is left.
    fn end_some(&self) -> usize {
        let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let own = std::process::id();
        numbers.filter(|number| number.unsigned_abs() != own).filter(|number| self.end(*number)).count()
    }

    /// Ends one process if it bears the mark; whether it did, or may have: it has gone while it was looked at. It is
    /// held before it is looked at, so that its number can't become another's in between.
    fn end(&self, number: i32) -> bool {
        let Some(process) = Pid::from_raw(number) else { return false };
        let held = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(held) => held,
            Err(error) => return error == Errno::SRCH,
        };
        match self.is_on(number) {
            Ok(false) => false,
            Ok(true) => {
                // If it has gone by now, it may have left another one behind.
                let _ = pidfd_send_signal(&held, Signal::KILL);
                true
            }
            Err(error) => {
                error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
            }
        }
    }

    fn is_on(&self, number: i32) -> io::Result<bool> {
        let mut environment = Vec::new();
        File::open(format!("/proc/{number}/environ"))?
            .take(ENVIRONMENT_BYTES_MAX)
            .read_to_end(&mut environment)?;
        let wanted = format!("{VARIABLE}={}", self.0);
        Ok(environment.split(|byte| *byte == 0).any(|one| one.starts_with(wanted.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
