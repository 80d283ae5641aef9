//! Restores files: all contents are first staged in temporary files near their targets, and only then renamed. After
//! a crash, a rewind is either completed or was never started. The caller decides which files to restore.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::blobs::CheckpointBlobs;
use super::node::{self, FileNode};
use super::plan::RestoreStep;
use super::record::{self, PathName};
use super::scan;
use super::user_files::{NodeKind, UserFiles};
use super::{CheckpointDisk, CheckpointError, TEMPORARY};
use epitome_files::disk::PutMode;
use epitome_thread::Seq;

/// A rewind: its steps, the previous state and its progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(default, rename = "told")]
    pub reported: bool,
}

/// Progress of a rewind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Contents are being staged; no file is changed yet.
    #[default]
    Staging,
    /// Everything is staged; files are being renamed.
    Applying,
    Done,
}

/// A path that could not be restored, or of which that is not certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreFailure {
    pub path: PathBuf,
    pub why: String,
    /// Whether it was restored all the same.
    pub is_restored: bool,
}

impl Rewind {
    /// Whether it is in effect: it neither undoes another rewind nor was undone.
    pub fn is_in_effect(&self) -> bool {
        !self.undone && self.undoes.is_none()
    }

    pub fn save(&self, disk: &CheckpointDisk, directory: &Path) -> Result<(), CheckpointError> {
        record::save(disk, &self.path(directory), self, PutMode::Replace)
    }

    pub fn remove(&self, disk: &CheckpointDisk, directory: &Path) {
        // If the file can't be removed, its state still shows the progress.
        let _ = disk.disk.remove_file(&self.path(directory));
    }

    /// Forgets a rewind that has changed no file, so that no power loss brings it back.
    pub fn discard(&self, disk: &CheckpointDisk, directory: &Path) {
        let files = &*disk.files;
        self.unstage(files);
        // Any step that fails here is repeated when the session is opened again.
        let _ = self.sync_changes(files);
        self.remove(disk, directory);
        let _ = disk.disk.sync_directory(directory);
    }

    fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.json", self.number))
    }

    /// Chooses the temporary files. They must be recorded on the disk before the first one is written.
    pub fn choose_staging_paths(&mut self, files: &dyn UserFiles) {
        let places = self.steps.iter().enumerate();
        self.staged = places.map(|(nth, step)| self.staging_path(files, nth, step).map(PathName)).collect();
    }

    /// Stages all contents and makes them durable. No file is changed. On failure, call `discard`.
    pub fn stage(&self, blobs: &CheckpointBlobs) -> Result<(), CheckpointError> {
        for (nth, step) in self.steps.iter().enumerate() {
            self.stage_one(nth, step, blobs)?;
        }
        let steps = self.steps.iter().zip(&self.staged);
        let files = steps.filter(|(step, _)| matches!(step.to, FileNode::File { .. }));
        let files: Vec<PathBuf> =
            files.filter_map(|(_, staged)| staged.as_ref().map(|PathName(path)| path.clone())).collect();
        // Without syncing, some file systems would contain empty files after a power loss. Should the staged files be
        // lost with the power, the next process writes them again.
        let wanted = self.steps.iter().filter_map(|step| step.to.hash());
        blobs.files().sync(&files).and_then(|()| blobs.sync(wanted)).map_err(|error| {
            CheckpointError(format!("the contents to restore can't be synced to the disk: {error}"))
        })
    }

    /// Removes the temporary files.
    pub fn unstage(&self, files: &dyn UserFiles) {
        for PathName(staged) in self.staged.iter().flatten() {
            // It may have been renamed already, or never written.
            let _ = files.remove_file(staged);
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
                let content = blobs.get(hash, *bytes).map_err(|why| failed(&why.to_string()))?;
                blobs.files().write(staged()?, &content, *mode).map_err(|error| failed(&error))
            }
            FileNode::Link { target } => {
                blobs.files().link(staged()?, target).map_err(|error| failed(&error))
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
    fn staging_path(&self, files: &dyn UserFiles, nth: usize, step: &RestoreStep) -> Option<PathBuf> {
        if !matches!(step.to, FileNode::File { .. } | FileNode::Link { .. }) {
            return None;
        }
        // The parent must be a real directory that isn't reached through a link, because a step may replace that link
        // by a directory. Links above the workspace were resolved when the path was recorded.
        let directory = step.path.parent()?.ancestors().find(|above| files.is_real_directory(above))?;
        Some(directory.join(format!("{TEMPORARY}{}-{nth}.tmp", self.number)))
    }

    /// Applies all steps and returns the failures. Steps that are already done are skipped, so that this can
    /// be repeated after a crash. Paths that were changed since the rewind was planned are left alone.
    pub fn apply(&self, blobs: &CheckpointBlobs) -> Vec<RestoreFailure> {
        let (files, mut failures, mut left_alone) = (blobs.files(), Vec::new(), BTreeSet::new());
        let mut fail = |path: &Path, error: &dyn std::fmt::Display| {
            failures.push(RestoreFailure {
                path: path.to_path_buf(),
                why: error.to_string(),
                is_restored: false,
            });
        };
        // Remove nodes that are in the way, contents before their directories.
        for step in self.steps.iter().rev() {
            if let Err(error) = check_unchanged(files, step) {
                left_alone.insert(&step.path);
                fail(&step.path, &error);
            } else if let Err(error) = make_room(files, step) {
                fail(&step.path, &error);
            }
        }
        for (nth, step) in self.steps.iter().enumerate() {
            if left_alone.contains(&step.path) {
                continue;
            }
            // Again, because the other paths may have taken long.
            let checked = check_unchanged(files, step);
            if checked.is_err() {
                left_alone.insert(&step.path);
            }
            let done = checked.and_then(|()| match &step.to {
                FileNode::Directory { .. } => make_directory(files, &step.path),
                FileNode::File { .. } | FileNode::Link { .. } => self.name(nth, step, blobs),
                FileNode::Missing | FileNode::Unkept { .. } | FileNode::Other => Ok(()),
            });
            if let Err(error) = done {
                fail(&step.path, &error);
            }
        }
        // Set directory modes last: a directory may become read-only.
        for step in self.steps.iter().rev() {
            if let FileNode::Directory { mode } = step.to
                && !left_alone.contains(&step.path)
                && let Err(error) = set_mode(files, &step.path, mode)
            {
                fail(&step.path, &error);
            }
        }
        self.unstage(files);
        // From here on the restore is recorded as done, so it has to survive a power loss.
        if let Err(error) = self.sync_changes(files) {
            let why = format!("it may not survive a power loss: {error}");
            failures.extend(self.steps.iter().map(|step| RestoreFailure {
                path: step.path.clone(),
                why: why.clone(),
                is_restored: true,
            }));
        }
        failures
    }

    /// Makes the names that it changes durable, in the directories that are there.
    fn sync_changes(&self, files: &dyn UserFiles) -> io::Result<()> {
        let staged = self.staged.iter().flatten().map(|PathName(staged)| staged.as_path());
        let changed = self.steps.iter().map(|step| step.path.as_path()).chain(staged);
        let parents: BTreeSet<&Path> = changed.filter_map(Path::parent).collect();
        let mut directories = BTreeSet::new();
        for parent in parents {
            for above in parent.ancestors() {
                match files.stat(above) {
                    Err(error) if node::is_absence(&error) => {}
                    found => {
                        found?;
                        directories.insert(above.to_path_buf());
                        break;
                    }
                }
            }
        }
        files.sync(&directories.into_iter().collect::<Vec<_>>())
    }

    fn name(&self, nth: usize, step: &RestoreStep, blobs: &CheckpointBlobs) -> io::Result<()> {
        let files = blobs.files();
        let staged =
            self.staged_file(nth).ok_or_else(|| io::Error::other("no temporary file was chosen for it"))?;
        match files.stat(staged) {
            Ok(_) => return files.rename(staged, &step.path),
            Err(error) if node::is_absence(&error) => {}
            Err(error) => return Err(error),
        }
        // After a crash, the rename may have been done already.
        let now = node::look(files, &step.path, |path, stat| scan::name(files, path, stat, u64::MAX))?;
        if now == step.to {
            return Ok(());
        }
        self.stage_one(nth, step, blobs).map_err(io::Error::other)?;
        if matches!(step.to, FileNode::File { .. }) {
            files.sync(&[staged.to_path_buf()])?;
        }
        files.rename(staged, &step.path)
    }
}

/// Fails if a path is neither as the rewind found and stored it, nor as it leaves it, nor in between.
fn check_unchanged(files: &dyn UserFiles, step: &RestoreStep) -> io::Result<()> {
    let known = [&step.now, &step.to];
    let bytes = known.map(|node| if let FileNode::File { bytes, .. } = node { *bytes } else { 0 });
    let most = bytes[0].max(bytes[1]);
    let now = node::look(files, &step.path, |path, stat| scan::name(files, path, stat, most))?;
    let is_known = match now {
        FileNode::Missing => true,
        // Its mode is set last, and one with contents is not removed.
        FileNode::Directory { .. } => known.iter().any(|node| matches!(node, FileNode::Directory { .. })),
        now => known.into_iter().any(|node| *node == now),
    };
    match is_known {
        true => Ok(()),
        false => Err(io::Error::other("it was changed while the rewind ran, so it was left alone")),
    }
}

/// Removes a node that is to be deleted, or replaced by one of another kind.
fn make_room(files: &dyn UserFiles, step: &RestoreStep) -> io::Result<()> {
    let is_directory = match files.stat(&step.path) {
        // The old node may have disappeared with a directory that was replaced by a link.
        Err(error) if node::is_absence(&error) => return Ok(()),
        found => found?.kind == NodeKind::Directory,
    };
    match (&step.to, is_directory) {
        (FileNode::Directory { .. }, true) => Ok(()),
        (_, true) => files.remove_directory(&step.path).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => io::Error::other(
                "the directory was not removed: it contains files that no recorded turn created",
            ),
            _ => error,
        }),
        // These are replaced by a rename, so that the path always exists.
        (FileNode::File { .. } | FileNode::Link { .. }, false) => Ok(()),
        (FileNode::Missing | FileNode::Directory { .. }, false) => files.remove_file(&step.path),
        (FileNode::Unkept { .. } | FileNode::Other, false) => Ok(()),
    }
}

fn make_directory(files: &dyn UserFiles, path: &Path) -> io::Result<()> {
    match files.create_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn set_mode(files: &dyn UserFiles, path: &Path, mode: u32) -> io::Result<()> {
    let found = files.stat(path)?;
    match found.kind == NodeKind::Directory && found.stamp.mode != mode {
        true => files.set_mode(path, mode),
        false => Ok(()),
    }
}

/// All rewinds of a directory, oldest first.
pub fn all(disk: &CheckpointDisk, directory: &Path) -> Result<Vec<Rewind>, CheckpointError> {
    // Damaged files are skipped; they aren't expected, because writes are atomic.
    let (mut rewinds, _): (Vec<Rewind>, _) = record::load_all(disk, directory)?;
    rewinds.sort_by_key(|rewind| rewind.number);
    Ok(rewinds)
}
