//! File access for handlers: reads and writes files of the workspace, except files that could be executed
//! later or contain secrets.
//!
//! A recipe declares the file and the user invoked the recipe, so a write is checked as in accept-edits mode.
//! It is refused in a read-only session, and full access allows nothing more.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HandlerError;
use crate::output::HookOutput;
use epitome_thread::Mode;
use epitome_tools::disk::{self, CancelFlag};
use epitome_tools::permission::{self, DiskFacts, PermissionVerdict};
use epitome_tools::secret_paths::is_secret_name;
use epitome_tools::{Access, Workspace};

/// Maximum size in bytes of a file that is appended to; an endlessly growing log is of no use.
pub const APPENDED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Runs blocking disk work with a timeout.
pub async fn on_disk(
    work: impl FnOnce() -> Result<HookOutput, HandlerError> + Send + 'static,
    limit: Duration,
) -> Result<HookOutput, HandlerError> {
    let gave_up = |_| Err(HandlerError::new(format!("the disk took more than {} seconds", limit.as_secs())));
    tokio::time::timeout(limit, disk::blocking(move |_| work())).await.unwrap_or_else(gave_up)
}

/// Writes a file, creating its directories. An existing file must begin with `head`, like one that was written before.
pub fn write(
    path: &str,
    bytes: &[u8],
    head: &str,
    mode: Mode,
    workspace: &Workspace,
) -> Result<(), HandlerError> {
    let real = writable(path, mode, workspace)?;
    let is_there = disk::metadata(&real, workspace).map_err(|error| trouble("write", path, error))?.is_some();
    if is_there && !disk::read_whole(&real, workspace)?.starts_with(head.as_bytes()) {
        return Err(HandlerError::new(format!(
            "{path} is not an export, so it is not overwritten; choose another path"
        )));
    }
    disk::replace(&real, bytes, workspace, &CancelFlag::default())
        .map(drop)
        .map_err(|error| trouble("write", path, error))
}

/// Appends to a file, creating it and its directories if necessary.
pub fn append(path: &str, bytes: &[u8], mode: Mode, workspace: &Workspace) -> Result<(), HandlerError> {
    let real = writable(path, mode, workspace)?;
    let trouble = |error| trouble("append to", path, error);
    let entry = workspace.roots().entry_with_parents(&real).map_err(trouble)?;
    let mut file = entry.append().map_err(trouble)?;
    let metadata = file.metadata().map_err(trouble)?;
    if !metadata.is_file() {
        return Err(HandlerError::new(format!("cannot append to {path}: it is not a file")));
    }
    if metadata.len().saturating_add(bytes.len() as u64) > APPENDED_BYTES_MAX {
        return Err(HandlerError::new(format!(
            "cannot append to {path}: it would be larger than {APPENDED_BYTES_MAX} bytes; move it away"
        )));
    }
    // A single write, so that lines of concurrent calls are not interleaved.
    file.write_all(bytes).map_err(trouble)
}

/// Reads a file of the workspace.
pub fn read(path: &str, workspace: &Workspace) -> Result<Vec<u8>, HandlerError> {
    let real = inside(path, workspace)?;
    if is_secret_name(&real) || workspace.secrets().contain(&real) {
        return Err(HandlerError::new(format!("{path} may hold secrets, so a recipe may not read it")));
    }
    Ok(disk::read_whole(&real, workspace)?)
}

fn writable(path: &str, mode: Mode, workspace: &Workspace) -> Result<PathBuf, HandlerError> {
    let real = inside(path, workspace)?;
    let judged_as = if mode == Mode::ReadOnly { mode } else { Mode::AcceptEdits };
    let access = Access::Write(vec![real.clone()]);
    let facts = DiskFacts::look_up(&access, workspace);
    match permission::decide(&access, judged_as, &[], workspace, &facts) {
        PermissionVerdict::Allow { .. } => Ok(real),
        PermissionVerdict::Ask { .. } => Err(HandlerError::new(format!(
            "{path} may be run later or hold secrets, so a recipe may not write it; choose another path"
        ))),
        PermissionVerdict::Deny { .. } => {
            Err(HandlerError::new(format!("{path} was not written: the session is read-only")))
        }
    }
}

/// The path with all links resolved, which must still be inside the workspace.
fn inside(path: &str, workspace: &Workspace) -> Result<PathBuf, HandlerError> {
    let real = workspace.real(path);
    match workspace.contains(&real) && !path.contains('\0') {
        true => Ok(real),
        false => Err(HandlerError::new(format!("{path} is outside of {}", Path::display(&workspace.cwd)))),
    }
}

fn trouble(what: &'static str, path: &str, source: std::io::Error) -> HandlerError {
    HandlerError::File { what, path: path.to_owned(), source }
}
