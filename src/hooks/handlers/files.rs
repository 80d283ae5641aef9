//! What handlers may do on the disk: read and write files of the workspace, and nothing that is run
//! later or holds secrets.
//!
//! A recipe declares the file, and the person invoked the recipe; so a write is judged as if edits were
//! accepted, in a read-only session refused, and full access gives no more than that.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::output::HookOutput;
use epitome_thread::Mode;
use epitome_tools::disk::{self, Stop};
use epitome_tools::permission::{self, Verdict};
use epitome_tools::{Access, Workspace};

/// Bytes of a file that is appended to; a log that grows for ever is nobody's wish.
pub const APPENDED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Runs work on the disk within a limit.
pub async fn on_disk(
    work: impl FnOnce() -> Result<HookOutput, String> + Send + 'static,
    limit: Duration,
) -> Result<HookOutput, String> {
    let gave_up = |_| Err(format!("the disk took more than {} seconds", limit.as_secs()));
    tokio::time::timeout(limit, disk::blocking(move |_| work())).await.unwrap_or_else(gave_up)
}

/// Writes the whole of a file, with its directories.
pub fn write(path: &str, bytes: &[u8], mode: Mode, workspace: &Workspace) -> Result<(), String> {
    let real = writable(path, mode, workspace)?;
    disk::replace(&real, bytes, &Stop::default()).map_err(|error| trouble("write", path, &error))
}

/// Appends to a file, which is made with its directories where it is not there.
pub fn append(path: &str, bytes: &[u8], mode: Mode, workspace: &Workspace) -> Result<(), String> {
    let real = writable(path, mode, workspace)?;
    let trouble = |error| trouble("append to", path, &error);
    if let Some(directory) = real.parent() {
        std::fs::create_dir_all(directory).map_err(trouble)?;
    }
    // Not through a link that was put there meanwhile, and no waiting for the other end of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.append(true).create(true).custom_flags(flags.bits().cast_signed());
    let mut file = options.open(&real).map_err(trouble)?;
    let metadata = file.metadata().map_err(trouble)?;
    if !metadata.is_file() {
        return Err(format!("cannot append to {path}: it is not a file"));
    }
    if metadata.len().saturating_add(bytes.len() as u64) > APPENDED_BYTES_MAX {
        return Err(format!(
            "cannot append to {path}: it would be larger than {APPENDED_BYTES_MAX} bytes; move it away"
        ));
    }
    // One write: lines of calls that run side by side do not mix.
    file.write_all(bytes).map_err(trouble)
}

/// Reads a file of the workspace.
pub fn read(path: &str, workspace: &Workspace) -> Result<Vec<u8>, String> {
    let real = inside(path, workspace)?;
    if permission::is_secret(&real) {
        return Err(format!("{path} may hold secrets, so a recipe may not read it"));
    }
    disk::read_whole(&real, workspace)
}

fn writable(path: &str, mode: Mode, workspace: &Workspace) -> Result<PathBuf, String> {
    let real = inside(path, workspace)?;
    let judged_as = match mode {
        Mode::ReadOnly => Mode::ReadOnly,
        Mode::Ask | Mode::AcceptEdits | Mode::Full => Mode::AcceptEdits,
    };
    let access = Access::Write(vec![real.clone()]);
    match permission::decide(&access, judged_as, &[], |path| workspace.contains(path)) {
        Verdict::Allow { .. } => Ok(real),
        Verdict::Ask { .. } => Err(format!(
            "{path} may be run later or hold secrets, so a recipe may not write it; choose another path"
        )),
        Verdict::Deny { .. } => Err(format!("{path} was not written: the session is read-only")),
    }
}

/// The path with all links followed, which must still be in the workspace.
fn inside(path: &str, workspace: &Workspace) -> Result<PathBuf, String> {
    let real = workspace.real(path);
    match workspace.contains(&real) && !path.contains('\0') {
        true => Ok(real),
        false => Err(format!("{path} is outside of {}", Path::display(&workspace.cwd))),
    }
}

fn trouble(what: &str, path: &str, error: &std::io::Error) -> String {
    format!("cannot {what} {path}: {error}")
}
