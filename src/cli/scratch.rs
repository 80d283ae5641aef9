//! A private temporary directory that is removed when dropped.

use epitome_platform::os::DirBuilderExt;
use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};

pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the directory. `purpose` is part of its name, so that leftovers of a killed process can be recognized.
    pub(super) fn new(purpose: &str) -> io::Result<Scratch> {
        // Canonical, because tools resolve links.
        let base = std::env::temp_dir().canonicalize()?;
        let path = base.join(format!("epitome-{purpose}-{:016x}", fastrand::u64(..)));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes the directory. Errors are ignored, because it is in the system's temporary directory.
pub(super) fn remove(path: &Path) {
    drop(std::fs::remove_dir_all(path));
}
