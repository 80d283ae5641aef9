//! The sandbox of commands, as the kernel has it.
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

mod enter;
mod filter;
mod grants;
mod support;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

pub use grants::all_but;
pub use support::{Namespaces, Support, support};

/// What holds for the commands of one workspace. All paths are real ones of things that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// May not be read, nor changed, wherever they are.
    pub hidden: Vec<PathBuf>,
    /// Of these, the ones that lie below what may be changed, and which landlock can't leave out there: something
    /// empty is mounted over them.
    pub covered: Vec<PathBuf>,
    /// May be changed.
    pub writable: Vec<PathBuf>,
    /// May be read and written, and are no files of anybody's.
    pub devices: Vec<PathBuf>,
    /// Below what may be changed, and may not be.
    pub frozen: Vec<PathBuf>,
    /// Directories that stay where they are: with one of them, what is frozen in it could be put aside.
    pub fixed: Vec<PathBuf>,
    /// Directories in which nothing can be made, changed or removed but in those of their directories that are fixed.
    pub closed: Vec<PathBuf>,
}

/// What a command may reach beside files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub network: bool,
    /// Whether sockets in the file system may be used: the daemons behind them run outside of every sandbox.
    pub unix_sockets: bool,
    /// Processes and threads that it may have at a time; `None` bounds nothing.
    pub processes: Option<u64>,
}

/// All that a command needs to be held, made ready before the fork.
pub struct Confinement {
    ruleset: Option<std::os::fd::OwnedFd>,
    filter: seccompiler::BpfProgram,
    world: Option<enter::World>,
}

impl Confinement {
    /// Looks at the disk for what may be opened; blocks.
    pub fn prepare(places: &Places, reach: Reach, support: &Support) -> io::Result<Confinement> {
        let Reach { network, unix_sockets, processes } = reach;
        let loopback = !network && support.namespaces != Namespaces::None;
        let ruleset = match support.landlock {
            0 => None,
            _ => grants::ruleset(places, network || loopback)?,
        };
        let world = enter::World::new(places, support.namespaces, loopback, processes)?;
        let filter = match support.filter {
            true => filter::program(network || loopback, network, unix_sockets)?,
            false => Vec::new(),
        };
        Ok(Confinement { ruleset, filter, world })
    }

    /// Has a command put it on before it runs.
    pub fn hold(self, command: &mut Command) {
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
