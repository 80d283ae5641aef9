//! Restores files: all contents are first staged in temporary files near their targets, and only then renamed. After
//! a crash, a rewind is either completed or was never started. The caller decides which files to restore.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::blobs::CheckpointBlobs;
use super::node::{self, FileNode};
use super::plan::RestoreStep;
use super::record::{self, Durable, PathName};
use super::{CheckpointError, TEMPORARY};
use epitome_platform::disk::sync_files;
use epitome_platform::root::{self, DirectoryEntry};
use epitome_thread::Seq;

/// A rewind: its steps, the previous state and its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {
    pub number: u32,
    /// The first turn to be undone.
    pub from: Seq,
    /// The turns that it undoes.
    pub turns: Vec<Seq>,
    /// The rewind that this one undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<u32>,
    pub steps: Vec<RestoreStep>,
    /// For each step, the temporary file of its staged content.
    #[serde(rename = "beside")]
    pub staged: Vec<Option<PathName>>,
    pub came: Progress,
    /// Whether it was undone.
    #[serde(default)]
    pub undone: bool,
    /// Whether it is recorded in the session's log.
    #[serde(default)]
    pub told: bool,
}

/// Progress of a rewind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Contents are being staged; no file is changed yet.
    Staging,
    /// Everything is staged; files are being renamed.
    Applying,
    Done,
}

/// A path that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreFailure {
    pub path: PathBuf,
    pub why: String,
}

impl Rewind {
    /// Whether it is in effect: it neither undoes another rewind nor was undone.
    pub fn is_in_effect(&self) -> bool {
        !self.undone && self.undoes.is_none()
    }

    pub fn save(&self, directory: &Path) -> Result<(), CheckpointError> {
        record::save(&self.path(directory), self, Durable::Yes)
    }

    pub fn remove(&self, directory: &Path) {
        // If the file can't be removed, its state still shows the progress.
        let _ = fs::remove_file(self.path(directory));
    }

    fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.json", self.number))
    }

    /// Chooses the temporary files. They must be recorded on the disk before the first one is written.
    pub fn choose_staging_paths(&mut self) {
        let places = self.steps.iter().enumerate();
        self.staged = places.map(|(nth, step)| self.staging_path(nth, step).map(PathName)).collect();
    }

    /// Stages all contents. On failure, the temporary files are removed and no file has changed.
    pub fn stage(&self, blobs: &CheckpointBlobs) -> Result<(), CheckpointError> {
        for (nth, step) in self.steps.iter().enumerate() {
            if let Err(error) = self.stage_one(nth, step, blobs) {
                self.unstage();
                return Err(error);
            }
        }
        let steps = self.steps.iter().zip(&self.staged);
        let files = steps.filter(|(step, _)| matches!(step.to, FileNode::File { .. }));
        let files: Vec<PathBuf> =
            files.filter_map(|(_, staged)| staged.as_ref().map(|PathName(path)| path.clone())).collect();
        // Without syncing, some file systems would contain empty files after a power loss.
        sync_files(&files).map_err(|error| {
            self.unstage();
            CheckpointError(format!("the contents to restore can't be synced to the disk: {error}"))
        })
    }

    /// Removes the temporary files.
    pub fn unstage(&self) {
        for PathName(staged) in self.staged.iter().flatten() {
            // It may have been renamed already, or never written.
            let _ = DirectoryEntry::at(staged).and_then(|staged| staged.remove_file());
        }
    }

    fn stage_one(
        &self,
        nth: usize,
        step: &RestoreStep,
        blobs: &CheckpointBlobs,
    ) -> Result<(), CheckpointError> {
        let failed = |why: &dyn std::fmt::Display| {
            CheckpointError(format!("{} can't be written: {why}", step.path.display()))
        };
        let staged = || {
            self.staged_file(nth)
                .ok_or_else(|| failed(&"a directory above it is a link, or can't be entered"))
        };
        match &step.to {
            FileNode::File { hash, bytes, mode } => {
                let content = blobs.get(hash, *bytes).map_err(|why| failed(&why))?;
                write_staged(staged()?, &content, *mode).map_err(|error| failed(&error))
            }
            FileNode::Link { target } => {
                let link = || {
                    let staged = DirectoryEntry::at(staged()?).map_err(|error| failed(&error))?;
                    let _ = staged.remove_file();
                    staged.link_to(target).map_err(|error| failed(&error))
                };
                link()
            }
            FileNode::Missing | FileNode::Unkept { .. } | FileNode::Directory { .. } | FileNode::Other => {
                Ok(())
            }
        }
    }

    fn staged_file(&self, nth: usize) -> Option<&Path> {
        self.staged.get(nth)?.as_ref().map(|PathName(path)| path.as_path())
    }

    /// Chooses a temporary file in the nearest parent directory that exists and will not be removed.
    fn staging_path(&self, nth: usize, step: &RestoreStep) -> Option<PathBuf> {
        if !matches!(step.to, FileNode::File { .. } | FileNode::Link { .. }) {
            return None;
        }
        // The parent must be a real directory that isn't reached through a link, because a step may replace that link
        // by a directory. Links above the workspace were resolved when the path was recorded.
        let is_real = |above: &&Path| {
            fs::symlink_metadata(above).is_ok_and(|found| found.is_dir())
                && above.canonicalize().is_ok_and(|real| real == **above)
        };
        let directory = step.path.parent()?.ancestors().find(is_real)?;
        Some(directory.join(format!("{TEMPORARY}{}-{nth}.tmp", self.number)))
    }

    /// Applies all steps and returns the failures. Steps that are already done are skipped, so that this can
    /// be repeated after a crash.
    pub fn apply(&self, blobs: &CheckpointBlobs) -> Vec<RestoreFailure> {
        let mut failures = Vec::new();
        let mut fail = |path: &Path, error: &dyn std::fmt::Display| {
            failures.push(RestoreFailure { path: path.to_path_buf(), why: error.to_string() });
        };
        // Remove nodes that are in the way, contents before their directories.
        for step in self.steps.iter().rev() {
            if let Err(error) = make_room(step) {
                fail(&step.path, &error);
            }
        }
        for (nth, step) in self.steps.iter().enumerate() {
            let done = match &step.to {
                FileNode::Directory { .. } => make_directory(&step.path),
                FileNode::File { .. } | FileNode::Link { .. } => self.name(nth, step, blobs),
                FileNode::Missing | FileNode::Unkept { .. } | FileNode::Other => Ok(()),
            };
            if let Err(error) = done {
                fail(&step.path, &error);
            }
        }
        // Set directory modes last: a directory may become read-only.
        for step in self.steps.iter().rev() {
            if let FileNode::Directory { mode } = step.to
                && let Err(error) = set_mode(&step.path, mode)
            {
                fail(&step.path, &error);
            }
        }
        self.unstage();
        failures
    }

    fn name(&self, nth: usize, step: &RestoreStep, blobs: &CheckpointBlobs) -> io::Result<()> {
        let entry = entry(&step.path)?;
        let staged =
            self.staged_file(nth).ok_or_else(|| io::Error::other("no temporary file was chosen for it"))?;
        let from = DirectoryEntry::at(staged)?;
        if from.metadata().is_ok() {
            return from.rename(&entry);
        }
        // After a crash, the rename may have been done already.
        let now = node::look(&step.path, |path, found| super::scan::name(path, found, u64::MAX))?;
        if now == step.to {
            return Ok(());
        }
        self.stage_one(nth, step, blobs).map_err(io::Error::other)?;
        from.rename(&entry)
    }
}

fn write_staged(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let entry = entry(path)?;
    let _ = entry.remove_file();
    let mut file = entry.create_private()?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))
}

/// Removes a node that is to be deleted, or replaced by one of another kind.
fn make_room(step: &RestoreStep) -> io::Result<()> {
    let found = DirectoryEntry::at(&step.path).and_then(|entry| Ok((entry.metadata()?, entry)));
    let (found, entry) = match found {
        // The old node may have disappeared with a directory that was replaced by a link.
        Err(error) if node::is_absence(&error) => return Ok(()),
        found => found?,
    };
    match (&step.to, found.is_dir()) {
        (FileNode::Directory { .. }, true) => Ok(()),
        (_, true) => entry.remove_directory().map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => io::Error::other(
                "the directory was not removed: it contains files that no recorded turn created",
            ),
            _ => error,
        }),
        // These are replaced by a rename, so that the path always exists.
        (FileNode::File { .. } | FileNode::Link { .. }, false) => Ok(()),
        (FileNode::Missing | FileNode::Directory { .. }, false) => entry.remove_file(),
        (FileNode::Unkept { .. } | FileNode::Other, false) => Ok(()),
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    match entry(path)?.create_directory() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let entry = entry(path)?;
    let found = entry.metadata()?;
    match found.is_dir() && node::mode_of(&found) != mode {
        true => entry.set_mode(mode),
        false => Ok(()),
    }
}

/// Returns the entry with this path, which must not contain links.
fn entry(path: &Path) -> io::Result<DirectoryEntry> {
    DirectoryEntry::at(path).map_err(|error| match root::is_link(&error) {
        true => io::Error::other("a directory above it is a link"),
        false => error,
    })
}

/// Returns all rewinds of a directory, oldest first.
pub fn all(directory: &Path) -> Result<Vec<Rewind>, CheckpointError> {
    let mut rewinds = Vec::new();
    for path in record::json_files(directory)? {
        // Damaged files are skipped; they aren't expected, because writes are atomic.
        rewinds.extend(record::load::<Rewind>(&path).ok().flatten());
    }
    rewinds.sort_by_key(|rewind| rewind.number);
    Ok(rewinds)
}
