//! The sandbox for commands: restricts what a command line written by the model can read, write and connect
//! to.
//!
//! This module decides what is allowed; `epitome_platform::sandbox` enforces it.
//!
//! Only the model's commands are sandboxed. Hooks and the shell calls of recipes are programs that the user
//! consented to; they run without it.

mod denied;
mod git;
mod hint;
mod places;
mod repositories;

use std::io;
use std::path::PathBuf;

use epitome_platform::sandbox::{Confinement, Reach};
pub use epitome_platform::sandbox::{Namespaces, Support, support};
use epitome_thread::Mode;
pub use hint::{HOW_TO_ASK, hint};
pub use repositories::Found;

use super::Workspace;

/// Directories for temporary files that programs use whatever the environment specifies.
pub const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Sandbox settings for a session's commands. The default is no sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub enabled: bool,
    /// Whether the sandbox also applies in full mode.
    pub in_full_mode: bool,
    pub network: bool,
    /// Whether Unix sockets in the file system may be used: the daemons that listen on them run outside of
    /// every sandbox.
    pub unix_sockets: bool,
    /// Processes and threads that one command may have at a time; `None` is unlimited.
    pub processes: Option<u64>,
    /// Directories for temporary files, in addition to the one named by the environment.
    pub temporary: Vec<PathBuf>,
    /// Additional files and directories that commands may change; absolute.
    pub write: Vec<PathBuf>,
    /// Additional files and directories that commands may not read; absolute.
    pub hide: Vec<PathBuf>,
    /// Path patterns of deny rules for reading; what they match when a command starts is hidden from it.
    pub deny_read: Vec<String>,
}

impl Rules {
    /// Whether a command that did not request to run outside of the sandbox is sandboxed.
    pub fn hold_in(&self, mode: Mode) -> bool {
        self.enabled && (self.in_full_mode || mode != Mode::Full)
    }

    /// Whether the sandbox is enabled, and this system has all that it needs.
    pub fn is_complete(&self) -> bool {
        self.enabled && support().gap().is_none()
    }

    /// Why commands are only partially sandboxed or not at all, as a message for the user; `None` if the
    /// sandbox is complete or disabled.
    pub fn gap(&self) -> Option<String> {
        if self.enabled { support().gap() } else { None }
    }
}

/// Prepares the sandbox for one command; reads the disk and blocks. `None` if this system supports none of the
/// mechanisms. `changes_git`: whether the user agreed that the command may change the workspace's repositories.
pub fn confinement(
    rules: &Rules,
    workspace: &Workspace,
    changes_git: bool,
) -> io::Result<Option<Confinement>> {
    let support = support();
    if support.is_nothing() {
        return Ok(None);
    }
    let places = places::find(rules, workspace, changes_git, support);
    let reach =
        Reach { network: rules.network, unix_sockets: rules.unix_sockets, processes: rules.processes };
    Confinement::prepare(&places, &workspace.cwd, reach, support).map(Some)
}
