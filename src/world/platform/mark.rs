//! The mark of a command's processes: a variable in the environment that all its descendants inherit.
//! `system::stragglers` finds processes by their mark.

use std::process::Command;

pub use crate::COMMAND_VARIABLE as VARIABLE;

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
}
