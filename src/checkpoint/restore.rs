//! Puts files back: what is to stand at each path is written beside it first, all of it, and only then given its
//! name. What a crash breaks off is finished, or never began. It decides nothing about which files.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::blobs::{Blobs, Durable, sync_all};
use super::node::{self, Node};
use super::plan::Step;
use super::record::{self, PathName};
use super::{CheckpointError, TEMPORARY};
use epitome_thread::Seq;

/// One rewind: what it does, what was there before, and how far it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {
    pub number: u32,
    /// The first turn whose changes are taken back.
    pub from: Seq,
    /// The turns that it takes back.
    pub turns: Vec<Seq>,
    /// The rewind that this one takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<u32>,
    pub steps: Vec<Step>,
    /// Beside each step, where its content waits for its name.
    pub beside: Vec<Option<PathName>>,
    pub came: Came,
    /// It was taken back.
    #[serde(default)]
    pub undone: bool,
    /// The session's log tells of it.
    #[serde(default)]
    pub told: bool,
}

/// How far a rewind came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Came {
    /// What is to stand there is being written beside. No file is changed yet.
    Staging,
    /// All is written; files are given their names.
    Applying,
    Done,
}

/// A path that could not be put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub path: PathBuf,
    pub why: String,
}

impl Rewind {
    /// It is none of a rewind, and was not taken back.
    pub fn holds(&self) -> bool {
        !self.undone && self.undoes.is_none()
    }

    pub fn save(&self, directory: &Path) -> Result<(), CheckpointError> {
        record::save(&self.path(directory), self, Durable::Yes)
    }

    pub fn remove(&self, directory: &Path) {
        // It says of itself how far it came, should it stay.
        let _ = fs::remove_file(self.path(directory));
    }

    fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.json", self.number))
    }

    /// Says where each content waits for its name. It must be known, and kept, before the first is written.
    pub fn choose_places(&mut self) {
        let places = self.steps.iter().enumerate();
        self.beside = places.map(|(nth, step)| self.place_beside(nth, step).map(PathName)).collect();
    }

    /// Writes all contents beside the places where they belong. Where one can't be, none is left, and no file has
    /// changed.
    pub fn stage(&self, blobs: &Blobs) -> Result<(), CheckpointError> {
        for (nth, step) in self.steps.iter().enumerate() {
            if let Err(error) = self.stage_one(nth, step, blobs) {
                self.unstage();
                return Err(error);
            }
        }
        let is_file = |step: &Step| matches!(step.to, Node::File { .. });
        let files = self.steps.iter().zip(&self.beside).filter(|(step, _)| is_file(step));
        let mut files =
            files.filter_map(|(_, beside)| beside.as_ref().map(|PathName(path)| path.clone())).peekable();
        let Some(directory) = files.peek().and_then(|first| first.parent()).map(Path::to_path_buf) else {
            return Ok(());
        };
        // Some file systems would otherwise show empty files after a loss of power.
        sync_all(&directory, files).map_err(|error| {
            self.unstage();
            CheckpointError(format!("what is to be put back can't be brought to the disk: {error}"))
        })
    }

    /// Takes away what was written beside.
    pub fn unstage(&self) {
        for PathName(beside) in self.beside.iter().flatten() {
            // It may have been given its name, or not been written.
            let _ = fs::remove_file(beside);
        }
    }

    fn stage_one(&self, nth: usize, step: &Step, blobs: &Blobs) -> Result<(), CheckpointError> {
        let failed = |why: &dyn std::fmt::Display| {
            CheckpointError(format!("{} can't be written: {why}", step.path.display()))
        };
        let beside = || {
            self.beside(nth)
                .ok_or_else(|| failed(&"a directory on the way to it is a link, or can't be entered"))
        };
        match &step.to {
            Node::File { hash, bytes, mode } => {
                let content = blobs.get(hash, *bytes).map_err(|why| failed(&why))?;
                write_beside(beside()?, &content, *mode).map_err(|error| failed(&error))
            }
            Node::Link { target } => {
                let beside = beside()?;
                let _ = fs::remove_file(beside);
                symlink(target, beside).map_err(|error| failed(&error))
            }
            Node::Missing | Node::Unkept { .. } | Node::Directory { .. } | Node::Other => Ok(()),
        }
    }

    fn beside(&self, nth: usize) -> Option<&Path> {
        self.beside.get(nth)?.as_ref().map(|PathName(path)| path.as_path())
    }

    /// The nearest directory above that is there and will be.
    fn place_beside(&self, nth: usize, step: &Step) -> Option<PathBuf> {
        if !matches!(step.to, Node::File { .. } | Node::Link { .. }) {
            return None;
        }
        // Itself, and nothing that a link on the way to it leads to: such a link may be what a step puts a directory
        // in the place of. Links above the workspace were followed when the path was recorded.
        let is_real = |above: &&Path| {
            fs::symlink_metadata(above).is_ok_and(|found| found.is_dir())
                && above.canonicalize().is_ok_and(|real| real == **above)
        };
        let directory = step.path.parent()?.ancestors().find(is_real)?;
        Some(directory.join(format!("{TEMPORARY}{}-{nth}.tmp", self.number)))
    }

    /// Gives every path what is to stand there. What stands there already is passed over, so that it can be done
    /// again after a crash. Says what could not be done.
    pub fn apply(&self, blobs: &Blobs) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut fail = |path: &Path, error: &dyn std::fmt::Display| {
            failures.push(Failure { path: path.to_path_buf(), why: error.to_string() });
        };
        // What makes room comes first, the deepest paths before the directories that they are in.
        for step in self.steps.iter().rev() {
            if let Err(error) = make_room(step) {
                fail(&step.path, &error);
            }
        }
        for (nth, step) in self.steps.iter().enumerate() {
            let done = match &step.to {
                Node::Directory { .. } => make_directory(&step.path),
                Node::File { .. } | Node::Link { .. } => self.name(nth, step, blobs),
                Node::Missing | Node::Unkept { .. } | Node::Other => Ok(()),
            };
            if let Err(error) = done {
                fail(&step.path, &error);
            }
        }
        // A directory that may not be written gets that mode when all is in it.
        for step in self.steps.iter().rev() {
            if let Node::Directory { mode } = step.to
                && let Err(error) = set_mode(&step.path, mode)
            {
                fail(&step.path, &error);
            }
        }
        self.unstage();
        failures
    }

    fn name(&self, nth: usize, step: &Step, blobs: &Blobs) -> io::Result<()> {
        if !node::is_reached_without_links(&step.path) {
            return Err(io::Error::other("a directory on the way to it is a link"));
        }
        let staged = self.beside(nth).ok_or_else(|| io::Error::other("there is no place beside it"))?;
        if fs::symlink_metadata(staged).is_ok() {
            return fs::rename(staged, &step.path);
        }
        // A crash came behind its name.
        let now = node::look(&step.path, |path, found| super::scan::name(path, found, u64::MAX))?;
        if now == step.to {
            return Ok(());
        }
        self.stage_one(nth, step, blobs).map_err(io::Error::other)?;
        fs::rename(staged, &step.path)
    }
}

fn write_beside(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))
}

/// Takes away what stands where nothing is to stand, or something of another kind.
fn make_room(step: &Step) -> io::Result<()> {
    if !node::is_reached_without_links(&step.path) {
        // What was there went with the directory that a link has replaced.
        return Ok(());
    }
    let found = match fs::symlink_metadata(&step.path) {
        Err(error) if node::is_absence(&error) => return Ok(()),
        found => found?,
    };
    match (&step.to, found.is_dir()) {
        (Node::Directory { .. }, true) => Ok(()),
        (_, true) => fs::remove_dir(&step.path).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => io::Error::other(
                "the directory stays: there is something in it that no turn is known to have made",
            ),
            _ => error,
        }),
        // It is renamed over, so that there is no moment without it.
        (Node::File { .. } | Node::Link { .. }, false) => Ok(()),
        (Node::Missing | Node::Directory { .. }, false) => fs::remove_file(&step.path),
        (Node::Unkept { .. } | Node::Other, false) => Ok(()),
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    if !node::is_reached_without_links(path) {
        return Err(io::Error::other("a directory on the way to it is a link"));
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    match found.is_dir() && node::mode_of(&found) != mode {
        true => fs::set_permissions(path, Permissions::from_mode(mode)),
        false => Ok(()),
    }
}

/// All rewinds of a directory, oldest first.
pub fn all(directory: &Path) -> Result<Vec<Rewind>, CheckpointError> {
    let mut rewinds = Vec::new();
    for path in record::json_files(directory)? {
        // One that is damaged says nothing; it was written whole or not at all.
        rewinds.extend(record::load::<Rewind>(&path).ok().flatten());
    }
    rewinds.sort_by_key(|rewind| rewind.number);
    Ok(rewinds)
}
