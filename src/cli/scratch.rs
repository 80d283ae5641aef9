//! A directory for a while: of its owner alone, and removed at its end.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// `purpose` is in its name, for whoever finds one that a killed process left.
    pub(super) fn new(purpose: &str) -> io::Result<Scratch> {
        // By its real path, because tools follow links.
        let base = std::env::temp_dir().canonicalize()?;
        let path = base.join(format!("epitome-{purpose}-{:016x}", fastrand::u64(..)));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it and gives its path.
    pub(super) fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes it before its end. What cannot be removed is left to whoever empties the temporary directory.
pub(super) fn remove(path: &Path) {
    drop(std::fs::remove_dir_all(path));
}
