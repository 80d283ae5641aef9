//! The sandbox of commands: what a command line that the model wrote can read, write and reach.
//!
//! Three things of Linux, each where the kernel has it, each beside the others:
//!
//! - *landlock* lists what may be opened: reading everywhere but the person's secrets, writing in the workspace,
//!   the temporary directory and the usual caches of builds.
//! - *Namespaces* of mounts and of the network take away what landlock can't subtract below a directory that it
//!   allows: in the workspace, what runs later without anybody being asked (`.git/hooks`) is mounted read-only. The
//!   network that a command sees is a loopback of its own.
//!   In a user namespace of its own the kernel also counts a command's processes apart from the person's others, so
//!   that they can be bounded.
//! - *A filter of system calls* (seccomp) refuses sockets, and what would lead around the other two.
//!
//! All is made ready before the fork (`Confinement::prepare`) and put on between fork and exec
//! (`Confinement::enter`), where nothing may allocate. What is put on can't be taken off, and children inherit it.
//!
//! It holds commands of the model. Hooks, and the shell calls of recipes, are programs that the person consented
//! to; they are not held.

mod enter;
mod filter;
mod grants;
mod hint;
mod places;
mod support;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

pub use hint::{HOW_TO_ASK, hint};
pub use support::{Namespaces, Support, support};

use super::Workspace;
use crate::thread::Mode;

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

/// All that a command needs to be held, made ready before the fork.
pub struct Confinement {
    ruleset: Option<std::os::fd::OwnedFd>,
    filter: seccompiler::BpfProgram,
    world: Option<enter::World>,
}

impl Confinement {
    /// Looks at the disk for what may be read and written; blocks. `None` where this system has nothing to hold a
    /// command with.
    pub fn prepare(rules: &Rules, workspace: &Workspace) -> io::Result<Option<Confinement>> {
        let support = support();
        if support.is_nothing() {
            return Ok(None);
        }
        let places = places::Places::find(rules, workspace, support);
        let loopback = !rules.network && support.namespaces != Namespaces::None;
        let ruleset = match support.landlock {
            0 => None,
            _ => grants::ruleset(&places, rules.network || loopback)?,
        };
        let world = enter::World::new(&places, support.namespaces, loopback, rules.processes)?;
        let filter = match support.filter {
            true => filter::program(rules.network || loopback, rules.network, rules.unix_sockets)?,
            false => Vec::new(),
        };
        Ok(Some(Confinement { ruleset, filter, world }))
    }

    /// Has a command put it on before it runs.
    pub(super) fn hold(self, command: &mut Command) {
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. `enter` makes system calls on data
        // that the closure owns, and allocates nothing.
        unsafe {
            command.pre_exec(move || self.enter());
        }
    }

    /// Puts it on, for good. For between fork and exec: it makes system calls alone, and allocates nothing.
    fn enter(&self) -> io::Result<()> {
        if let Some(world) = &self.world {
            world.enter()?;
        }
        enter::give_up_rights()?;
        if let Some(ruleset) = &self.ruleset {
            enter::restrict(ruleset)?;
        }
        if self.filter.is_empty() {
            return Ok(());
        }
        // It has no text of its own to make for an error of a system call.
        seccompiler::apply_filter(&self.filter).map_err(|_| io::Error::last_os_error())
    }
}
