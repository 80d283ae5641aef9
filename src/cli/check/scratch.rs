//! A scratch directory with a workspace and a home, removed at its end.

use std::io;
use std::path::{Path, PathBuf};

/// How often a taken name is tried again before giving up.
const NAMES_TRIED_MAX: u32 = 16;

pub(super) struct Scratch {
    root: PathBuf,
    workspace: PathBuf,
    home: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> io::Result<Scratch> {
        let base = std::env::temp_dir().canonicalize()?;
        let mut tried = 0;
        let root = loop {
            let root = base.join(format!("epitome-check-{:016x}", fastrand::u64(..)));
            match std::fs::create_dir(&root) {
                Ok(()) => break root,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES_TRIED_MAX => {
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let scratch = Scratch { workspace: root.join("workspace"), home: root.join("home"), root };
        std::fs::create_dir(&scratch.workspace)?;
        std::fs::create_dir(&scratch.home)?;
        Ok(scratch)
    }

    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }

    pub(super) fn home(&self) -> &Path {
        &self.home
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever empties the temporary directory.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
