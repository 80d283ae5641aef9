//! Programs that are copied into memory before they run, so that nobody can change them in between.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// A copy of a program that can't change. Children inherit it, because an interpreter opens the script that it runs.
pub struct SealedProgram(OwnedFd);

impl SealedProgram {
    pub fn new(bytes: &[u8]) -> io::Result<SealedProgram> {
        let copy = memfd_create(c"program", MemfdFlags::ALLOW_SEALING)?;
        File::from(copy.try_clone()?).write_all(bytes)?;
        fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(SealedProgram(copy))
    }

    /// The path by which a child process executes it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
