//! Enforces the sandbox for commands.
//!
//! Three independent Linux mechanisms, each used if the kernel supports it:
//!
//! - *Landlock* restricts which files may be opened: reading everywhere except the user's secrets; writing in the
//!   workspace, the temporary directory and the usual build caches.
//! - *Namespaces*: all mounts are read-only except those of the writable paths, which also covers operations that
//!   Landlock doesn't restrict (modes, owners, times); inside of those, files that are executed later without a
//!   prompt (`.git`) are read-only again. The only network is a private loopback. The command sees only its own
//!   processes and terminals, and none of its processes survives it. Its first process ends the others when they use too much memory. In a
//!   user namespace the kernel also counts a command's processes separately from the user's others, so that they can
//!   be limited.
//! - *A system call filter* (seccomp) rejects sockets, and system calls that would bypass the other two.
//!
//! Everything happens in the command's process, which a helper process forks (`launcher`): first paths are looked up,
//! then the sandbox is entered. It can't be undone, and children inherit it. The files that the paths led to when
//! they were looked up are mounted and allowed: if a path leads elsewhere in the meantime, the start fails.

mod enter;
mod filter;
mod grants;
mod mounts;
mod probe;
mod processes;

use std::io;

use crate::sandbox::{Confinement, Namespaces};
pub use probe::probe;

/// The sandbox of a system that has none.
pub const NONE: &str = "no landlock, no namespaces, no seccomp";

/// Enters the sandbox irrevocably. The process must have only one thread. This may return in another process than
/// the calling one, which then waits for it.
pub(crate) fn enter(confinement: &Confinement) -> io::Result<()> {
    let Confinement { paths, start, reach, support } = confinement;
    let loopback = !reach.network && support.namespaces != Namespaces::None;
    let is_networked = reach.network || loopback;
    let ruleset = match support.landlock {
        0 => None,
        _ => grants::ruleset(paths, is_networked)?,
    };
    let mut world = enter::SandboxWorld::new(paths, start, support, loopback, reach.processes)?;
    let filters: &[_] = match support.filter {
        true => filter::programs(is_networked, reach.network, reach.unix_sockets)?,
        false => &[],
    };
    enter::raise_oom_score();
    let entered = world.as_mut().map(enter::SandboxWorld::enter).transpose()?.unwrap_or_default();
    enter::drop_capabilities()?;
    if let Some(ruleset) = &ruleset {
        if let Some(proc) = &entered.proc {
            enter::allow(ruleset, proc, enter::READ)?;
        }
        if let Some(terminals) = &entered.terminals {
            enter::allow(ruleset, terminals, enter::use_terminals(support.landlock))?;
        }
        if let Some(memory) = &entered.shared_memory {
            enter::allow(ruleset, memory, enter::change_files(support.landlock))?;
        }
        enter::restrict(ruleset)?;
    }
    for filter in filters {
        seccompiler::apply_filter(filter).map_err(|_| io::Error::last_os_error())?;
    }
    let Some(mut command) = entered.command else { return Ok(()) };
    // The kernel's per-user process limits don't apply to root on every system; the count of the namespace is
    // exact.
    let processes = reach.processes.filter(|_| !support.namespaces.count_processes());
    command.limits = processes::CommandLimits { memory: reach.memory, processes };
    command.start()
}

/// Compiles the system call filters, so that forks of this process inherit them.
pub(crate) fn prepare_filters() {
    // A command that needs the filter reports the error.
    let _ = filter::programs(false, false, false);
}

/// The result of a system call that returns 0 if it succeeds.
fn check(done: libc::c_int) -> io::Result<()> {
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
