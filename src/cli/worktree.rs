//! The Git worktree that `epitome run --worktree` works in.

use std::path::{Path, PathBuf};

use super::CliError;
use crate::session::worktree::{self, Worktree};

/// Opens a worktree for a run; returns its directory.
pub fn open(cwd: &Path, name: &str) -> Result<PathBuf, CliError> {
    let opened = worktree::open(cwd, name)?;
    if opened.is_new {
        let Worktree { path, branch, .. } = &opened.worktree;
        note!("epitome: made the worktree {} with the branch {branch}", path.display());
        let left = match opened.left_behind {
            0 => return Ok(opened.directory),
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        };
        note!("epitome: uncommitted changes to {left} in {} are not in it", cwd.display());
    }
    Ok(opened.directory)
}
