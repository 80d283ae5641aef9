//! Programs that are copied into memory before they run, so that nobody can change them in between.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

/// A copy of a program that can't change.
pub struct SealedProgram(Arc<OwnedFd>);

impl SealedProgram {
    pub fn new(bytes: &[u8]) -> io::Result<SealedProgram> {
        let copy = memfd_create(c"program", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)?;
        File::from(copy.try_clone()?).write_all(bytes)?;
        fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(SealedProgram(Arc::new(copy)))
    }

    /// Returns a command that executes it. Its process inherits the descriptor, because an interpreter opens the script that
    /// it runs.
    pub fn command(&self) -> Command {
        let copy = self.0.clone();
        let mut command = Command::new(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        // SAFETY: between fork and exec, it makes one system call on a descriptor that it owns, and allocates nothing.
        unsafe { command.pre_exec(move || Ok(fcntl_setfd(&*copy, FdFlags::empty())?)) };
        command
    }
}
