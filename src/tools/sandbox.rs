//! The sandbox of commands: what a command line that the model wrote can read, write and reach.
//!
//! `epitome_platform::sandbox` holds a command; here is decided to what.
//!
//! It holds commands of the model. Hooks, and the shell calls of recipes, are programs that the person consented
//! to; they are not held.

mod hint;
mod places;

use std::io;
use std::path::PathBuf;

use epitome_platform::sandbox::{Confinement, Reach};
pub use epitome_platform::sandbox::{Namespaces, Support, support};
use epitome_thread::Mode;
pub use hint::{HOW_TO_ASK, hint};

use super::Workspace;

/// Where programs put what they need for a moment, whatever the environment says.
pub const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// What holds for the commands of a session. By default nothing is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub enabled: bool,
    /// Whether it holds in full mode, too.
    pub in_full_mode: bool,
    pub network: bool,
    /// Whether sockets in the file system may be used: the daemons behind them run outside of every sandbox.
    pub unix_sockets: bool,
    /// Processes and threads that one command may have at a time; `None` bounds nothing.
    pub processes: Option<u64>,
    /// Directories for what programs need for a moment, beside the one that the environment names.
    pub temporary: Vec<PathBuf>,
    /// Further files and directories that commands may change; absolute.
    pub write: Vec<PathBuf>,
    /// Further files and directories that commands may not read; absolute.
    pub hide: Vec<PathBuf>,
}

impl Rules {
    /// Whether a command is to be held that did not ask to run outside.
    pub fn hold_in(&self, mode: Mode) -> bool {
        self.enabled && (self.in_full_mode || mode != Mode::Full)
    }

    /// Why commands that should be held are held in part or not at all, in a sentence for the person; `None` where
    /// all is well, or where they wanted none.
    pub fn gap(&self) -> Option<String> {
        if self.enabled { support().gap() } else { None }
    }
}

/// What a command needs to be held; looks at the disk and blocks. `None` where this system has nothing to hold a
/// command with.
pub fn confinement(rules: &Rules, workspace: &Workspace) -> io::Result<Option<Confinement>> {
    let support = support();
    if support.is_nothing() {
        return Ok(None);
    }
    let places = places::find(rules, workspace, support);
    let reach =
        Reach { network: rules.network, unix_sockets: rules.unix_sockets, processes: rules.processes };
    Confinement::prepare(&places, reach, support).map(Some)
}
