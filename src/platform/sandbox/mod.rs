//! The enforcement of the sandbox for commands.
//!
//! Three independent Linux mechanisms, each used if the kernel supports it:
//!
//! - *Landlock* lists what may be opened: reading everywhere except the user's secrets; writing in the
//!   workspace, the temporary directory and the usual build caches.
//! - *Namespaces*: all mounts are read-only but those of the places that may be written, which also covers what
//!   Landlock doesn't know (modes, owners, times); inside of those, files that are executed later without a prompt
//!   (`.git`) are read-only again. The only network is a private loopback. The command sees no processes but its
//!   own, and none of them survives it. In a user namespace the kernel also counts a command's processes
//!   separately from the user's others, so that they can be limited.
//! - *A system call filter* (seccomp) rejects sockets, and calls that would bypass the other two.
//!
//! Everything is prepared before the fork (`Confinement::prepare`) and applied between fork and exec
//! (`Confinement::enter`), where nothing may allocate. It can't be undone, and children inherit it. Whatever a path
//! led to when it was prepared is what is mounted and allowed: if it leads elsewhere by then, the start fails.

mod enter;
mod filter;
mod grants;
mod mounts;
mod processes;
mod support;

use std::io;
use std::path::{Path, PathBuf};

pub use grants::all_but;
pub use support::{Namespaces, Support, support};

/// The restrictions for the commands of one workspace. All paths exist and are canonical.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPaths {
    /// May be neither read nor changed.
    pub hidden: Vec<PathBuf>,
    /// The hidden paths below writable ones, which Landlock can't exclude: something empty is mounted over
    /// them.
    pub covered: Vec<PathBuf>,
    /// May be changed.
    pub writable: Vec<PathBuf>,
    /// May be read and written; devices, not stored files.
    pub devices: Vec<PathBuf>,
    /// Below writable paths, but read-only.
    pub frozen: Vec<PathBuf>,
    /// Directories that can't be renamed: moving one would move the frozen paths in it out of the way.
    pub fixed: Vec<PathBuf>,
    /// Directories in which nothing can be created, changed or removed, except inside their fixed
    /// subdirectories.
    pub closed: Vec<PathBuf>,
}

/// What a command may use in addition to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxAllowances {
    pub network: bool,
    /// Whether Unix sockets in the file system may be used: the daemons that listen on them run outside of
    /// every sandbox.
    pub unix_sockets: bool,
    /// Maximum number of processes and threads; `None` means no limit.
    pub processes: Option<u64>,
}

/// Everything needed to sandbox one command, prepared before the fork.
pub struct Confinement {
    ruleset: Option<std::os::fd::OwnedFd>,
    filters: Vec<seccompiler::BpfProgram>,
    world: Option<enter::SandboxWorld>,
}

impl Confinement {
    /// Looks up the readable and writable paths on the disk; blocks. `start`: the directory that the command
    /// starts in.
    pub fn prepare(
        places: &SandboxPaths,
        start: &Path,
        reach: SandboxAllowances,
        support: &Support,
    ) -> io::Result<Confinement> {
        let SandboxAllowances { network, unix_sockets, processes } = reach;
        let loopback = !network && support.namespaces != Namespaces::None;
        let ruleset = match support.landlock {
            0 => None,
            _ => grants::ruleset(places, network || loopback)?,
        };
        let world = enter::SandboxWorld::new(places, start, support, loopback, processes)?;
        let filters = match support.filter {
            true => filter::programs(network || loopback, network, unix_sockets)?,
            false => Vec::new(),
        };
        Ok(Confinement { ruleset, filters, world })
    }

    /// Enters the sandbox irrevocably. For use between fork and exec: makes system calls only and allocates
    /// nothing. The process that returns may be another than the one that called, which then waits for it.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        enter::raise_oom_score();
        let entered = self.world.as_mut().map(enter::SandboxWorld::enter).transpose()?.unwrap_or_default();
        enter::drop_capabilities()?;
        if let Some(ruleset) = &self.ruleset {
            if let Some(proc) = &entered.proc {
                enter::allow_reading(ruleset, proc)?;
            }
            enter::restrict(ruleset)?;
        }
        for filter in self.filters.iter().filter(|filter| !filter.is_empty()) {
            // Take the error of the system call: the conversion of the crate's error would allocate.
            seccompiler::apply_filter(filter).map_err(|_| io::Error::last_os_error())?;
        }
        entered.command.map_or(Ok(()), processes::PendingCommand::start)
    }
}
