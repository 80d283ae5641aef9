//! Determines which sandbox mechanisms this system supports by trying them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{enter, filter, processes};
use crate::sandbox::{Namespaces, Support};

/// Tries the mechanisms; forks.
pub fn probe() -> Support {
    let namespaces = [Namespaces::OfAdministrator, Namespaces::OfUser]
        .into_iter()
        .find(|namespaces| can_have(*namespaces, false))
        .unwrap_or(Namespaces::None);
    Support {
        landlock: enter::landlock_version(),
        namespaces,
        own_processes: namespaces != Namespaces::None && can_have(namespaces, true),
        filter: filter::programs(false, false, false).is_ok_and(|programs| !programs.is_empty()),
        seatbelt: false,
    }
}

/// Whether a child can enter these namespaces. The program deliberately doesn't exist: a not-found error means that
/// everything before the exec succeeded.
fn can_have(namespaces: Namespaces, own_processes: bool) -> bool {
    let mut world = enter::SandboxWorld::bare(namespaces, own_processes);
    let mut command = Command::new("/proc/self/no-such-program");
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `enter` makes system calls on
    // data that was prepared before, and allocates nothing.
    unsafe {
        command.pre_exec(move || world.enter()?.command.map_or(Ok(()), processes::PendingCommand::start));
    }
    match command.spawn() {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(mut child) => {
            // Unreachable in practice; a child that did start would have to be reaped.
            let _ = child.kill();
            let _ = child.wait();
            false
        }
    }
}
