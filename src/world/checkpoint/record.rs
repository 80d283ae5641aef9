//! The record of a turn's file changes, stored as one JSON file per turn. Contains the data types, and reads and
//! writes them.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::node::{FileNode, written};
use super::{CheckpointDisk, CheckpointError};
use epitome_files::disk::PutMode;
use epitome_thread::Seq;

/// File changes of one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The first entry of the turn.
    pub turn: Seq,
    pub files: Vec<TouchedPath>,
    /// Paths that may or may not have existed before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsure: Vec<PathName>,
    /// Descriptions of exceeded limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<String>,
    /// The number of the rewind that undid this turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<u32>,
}

/// A path in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathName(#[serde(with = "written")] pub PathBuf);

/// The change of one path by a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedPath {
    #[serde(with = "written")]
    pub path: PathBuf,
    pub before: FileNode,
    /// The state that the turn left; `None` while a call is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileNode>,
    /// Whether something else changed it between two calls of the turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Number of added and removed lines; `None` if it isn't text, or is too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<LineCount>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCount {
    pub added: u64,
    pub removed: u64,
}

impl TouchedPath {
    pub(super) fn new(path: PathBuf, before: FileNode, after: Option<FileNode>) -> TouchedPath {
        TouchedPath { path, before, after, shared: false, lines: None }
    }

    pub fn is_changed(&self) -> bool {
        self.after.as_ref() != Some(&self.before)
    }

    /// A short description of the change.
    pub fn verb(&self) -> &'static str {
        let Some(after) = &self.after else { return "being changed" };
        match (&self.before, after) {
            (FileNode::Missing, FileNode::Directory { .. }) => "directory created",
            (FileNode::Directory { .. }, FileNode::Missing) => "directory deleted",
            (FileNode::Missing, _) => "created",
            (_, FileNode::Missing) => "deleted",
            (FileNode::File { hash: a, .. }, FileNode::File { hash: b, .. }) if a == b => "mode changed",
            (FileNode::Directory { .. }, FileNode::Directory { .. }) => "mode changed",
            (_, _) => "changed",
        }
    }

    pub fn is_directory(&self) -> bool {
        self.before.is_directory() || self.after.as_ref().is_some_and(FileNode::is_directory)
    }
}

impl TurnRecord {
    pub fn new(turn: Seq) -> TurnRecord {
        TurnRecord { turn, files: Vec::new(), unsure: Vec::new(), beyond: Vec::new(), taken_back: None }
    }

    /// The paths that differ between the start and the end of the turn.
    pub fn changed(&self) -> impl Iterator<Item = &TouchedPath> {
        self.files.iter().filter(|touched| touched.is_changed())
    }

    pub fn is_empty(&self) -> bool {
        self.changed().next().is_none() && self.unsure.is_empty()
    }

    /// Hashes of the contents that the record refers to.
    pub fn hashes(&self) -> impl Iterator<Item = &str> {
        let nodes = self.files.iter().flat_map(|touched| [Some(&touched.before), touched.after.as_ref()]);
        nodes.flatten().filter_map(FileNode::hash)
    }

    pub fn record_beyond_limits(&mut self, what: impl IntoIterator<Item = String>) {
        what.into_iter().for_each(|what| add_new(&mut self.beyond, what));
    }

    pub(super) fn save(&self, disk: &CheckpointDisk, directory: &Path) -> Result<(), CheckpointError> {
        save(disk, &path(directory, self.turn), self, PutMode::Unsynced)
    }

    pub(super) fn remove(&self, disk: &CheckpointDisk, directory: &Path) {
        // If the file can't be removed now, it is removed with the session.
        let _ = disk.disk.remove_file(&path(directory, self.turn));
    }
}

/// Appends an item that isn't in the list yet.
pub fn add_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn path(directory: &Path, turn: Seq) -> PathBuf {
    directory.join(format!("{turn}.json"))
}

/// Reads all records of a directory, oldest first. Also returns the paths of unreadable ones.
pub fn all(
    disk: &CheckpointDisk,
    directory: &Path,
) -> Result<(Vec<TurnRecord>, Vec<PathBuf>), CheckpointError> {
    let (mut records, unreadable): (Vec<TurnRecord>, _) = load_all(disk, directory)?;
    records.sort_by_key(|record| record.turn);
    Ok((records, unreadable))
}

/// Reads the JSON files of a directory, if it exists. Also returns the paths of unreadable ones.
pub fn load_all<T: DeserializeOwned>(
    disk: &CheckpointDisk,
    directory: &Path,
) -> Result<(Vec<T>, Vec<PathBuf>), CheckpointError> {
    let names = match disk.disk.names(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(|error| CheckpointError::io("list", directory, &error))?,
    };
    let (mut loaded, mut unreadable) = (Vec::new(), Vec::new());
    for path in names.iter().filter(|name| name.ends_with(".json")).map(|name| directory.join(name)) {
        match load(disk, &path) {
            Ok(found) => loaded.extend(found),
            Err(_) => unreadable.push(path),
        }
    }
    Ok((loaded, unreadable))
}

/// Reads a JSON file of the checkpoints; `None` if it doesn't exist.
pub fn load<T: DeserializeOwned>(disk: &CheckpointDisk, path: &Path) -> Result<Option<T>, CheckpointError> {
    let bytes = match disk.disk.read(path, u64::MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| CheckpointError::io("read", path, &error))?,
    };
    let read = serde_json::from_slice(&bytes);
    read.map(Some).map_err(|error| CheckpointError(format!("{} can't be parsed: {error}", path.display())))
}

/// Atomically writes a JSON file of the checkpoints, creating its directory if needed. Its name is as durable as its
/// content.
pub fn save(
    disk: &CheckpointDisk,
    path: &Path,
    what: &impl Serialize,
    mode: PutMode,
) -> Result<(), CheckpointError> {
    let bytes = serde_json::to_vec(what)
        .map_err(|error| CheckpointError(format!("{} can't be written as JSON: {error}", path.display())))?;
    let written = disk.put(path, &bytes, mode).and_then(|()| match mode {
        PutMode::Unsynced => Ok(()),
        PutMode::Replace | PutMode::New => disk.sync_names(path.parent().unwrap_or(path)),
    });
    written.map_err(|error| CheckpointError::io("write", path, &error))
}

/// Removes a file of the checkpoints, if it exists.
pub fn remove(disk: &CheckpointDisk, path: &Path) -> Result<(), CheckpointError> {
    match disk.disk.remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| CheckpointError::io("remove", path, &error)),
    }
}
