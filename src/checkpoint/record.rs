//! What a turn did to files, as it is kept: one JSON file a turn. Data, and its reading and writing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::CheckpointError;
use super::blobs::{Durable, private_directory, write_private};
use super::node::{Node, written};
use epitome_thread::Seq;

/// What one turn did to files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The first entry of the turn.
    pub turn: Seq,
    pub files: Vec<Touched>,
    /// Paths of which is not known whether they were there before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsure: Vec<PathName>,
    /// What was beyond a bound, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<String>,
    /// The rewind that took it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<u32>,
}

/// A path in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathName(#[serde(with = "written")] pub PathBuf);

/// What a turn did to one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    #[serde(with = "written")]
    pub path: PathBuf,
    pub before: Node,
    /// What the turn left; `None` while a call works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Node>,
    /// Somebody else changed it between two calls of the turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Lines that came and went; `None` for what is no text, or too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<LineCount>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCount {
    pub added: u64,
    pub removed: u64,
}

impl Touched {
    pub fn is_changed(&self) -> bool {
        self.after.as_ref() != Some(&self.before)
    }

    /// What was done to it, in a word.
    pub fn verb(&self) -> &'static str {
        let Some(after) = &self.after else { return "being changed" };
        match (&self.before, after) {
            (Node::Missing, Node::Directory { .. }) => "directory created",
            (Node::Directory { .. }, Node::Missing) => "directory deleted",
            (Node::Missing, _) => "created",
            (_, Node::Missing) => "deleted",
            (Node::File { hash: a, .. }, Node::File { hash: b, .. }) if a == b => "mode changed",
            (Node::Directory { .. }, Node::Directory { .. }) => "mode changed",
            (_, _) => "changed",
        }
    }

    pub fn is_directory(&self) -> bool {
        self.before.is_directory() || self.after.as_ref().is_some_and(Node::is_directory)
    }
}

impl TurnRecord {
    pub fn new(turn: Seq) -> TurnRecord {
        TurnRecord { turn, files: Vec::new(), unsure: Vec::new(), beyond: Vec::new(), taken_back: None }
    }

    /// What it changed and left changed.
    pub fn changed(&self) -> impl Iterator<Item = &Touched> {
        self.files.iter().filter(|touched| touched.is_changed())
    }

    pub fn is_empty(&self) -> bool {
        self.changed().next().is_none() && self.unsure.is_empty()
    }

    /// The contents that it needs.
    pub fn hashes(&self) -> impl Iterator<Item = &str> {
        let nodes = self.files.iter().flat_map(|touched| [Some(&touched.before), touched.after.as_ref()]);
        nodes.flatten().filter_map(Node::hash)
    }

    pub fn say_beyond(&mut self, what: &[String]) {
        for what in what {
            if !self.beyond.contains(what) {
                self.beyond.push(what.clone());
            }
        }
    }

    pub fn save(&self, directory: &Path) -> Result<(), CheckpointError> {
        save(&path(directory, self.turn), self, Durable::No)
    }

    pub fn remove(&self, directory: &Path) {
        // One that stays is removed with the session.
        let _ = fs::remove_file(path(directory, self.turn));
    }
}

fn path(directory: &Path, turn: Seq) -> PathBuf {
    directory.join(format!("{turn}.json"))
}

/// All records of a directory, oldest first. One that can't be read is left out, and told of by its path.
pub fn all(directory: &Path) -> Result<(Vec<TurnRecord>, Vec<PathBuf>), CheckpointError> {
    let (mut records, mut unreadable): (Vec<TurnRecord>, Vec<PathBuf>) = Default::default();
    for path in json_files(directory)? {
        match load(&path) {
            Ok(Some(record)) => records.push(record),
            Ok(None) => {}
            Err(_) => unreadable.push(path),
        }
    }
    records.sort_by_key(|record| record.turn);
    Ok((records, unreadable))
}

/// The JSON files of a directory; none where there is no such directory.
pub fn json_files(directory: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let listing = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing.map_err(|error| CheckpointError::io("list", directory, &error))?,
    };
    let paths = listing.flatten().map(|file| file.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|end| end == "json")).collect())
}

/// Reads a file of ours; `None` if there is none.
pub fn load<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, CheckpointError> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| CheckpointError::io("read", path, &error))?,
    };
    let read = serde_json::from_slice(&bytes);
    read.map(Some)
        .map_err(|error| CheckpointError(format!("{} is not what was written: {error}", path.display())))
}

/// Writes a file of ours whole, with the directory that it is in.
pub fn save(path: &Path, what: &impl Serialize, durable: Durable) -> Result<(), CheckpointError> {
    let bytes = serde_json::to_vec(what)
        .map_err(|error| CheckpointError(format!("{} can't be written as JSON: {error}", path.display())))?;
    let written = match write_private(path, &bytes, durable) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = path.parent().map_or(Ok(()), private_directory);
            made.and_then(|()| write_private(path, &bytes, durable))
        }
        written => written,
    };
    written.map_err(|error| CheckpointError::io("write", path, &error))
}
