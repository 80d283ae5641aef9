//! The scan before a command, stored on the disk while the command runs, so that it survives a crash. Changes since
//! the previous scan are appended to a list of paths. A small file next to the list marks a running command.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::node::FileNode;
use super::record::{self, PathName, remove};
use super::scan::{KnownNode, ScannedPath, WorkspaceSnapshot, zip_paths};
use super::walk::order;
use super::{CheckpointDisk, CheckpointError};
use epitome_files::disk::{OpenMode, PutMode};
use epitome_thread::Seq;

/// The list is rewritten when it has this many times more lines than the scan has paths.
const GROWTH_MAX: usize = 4;

/// The list is not rewritten while it has fewer lines than this.
const LINES_MIN: usize = 1_000;

/// Marks a running command, and identifies its baseline scan.
#[derive(Serialize, Deserialize)]
pub struct OpenCommand {
    pub turn: Seq,
    pub roots: Vec<PathName>,
    began: i64,
    is_whole: bool,
    /// Length of the list at the time of the scan.
    bytes: u64,
}

/// A line of the list: the node at a path, which replaces that of earlier lines.
#[derive(Serialize, Deserialize)]
struct BaselineLine(PathName, FileNode);

/// The baseline files of a session.
pub struct Baseline {
    disk: CheckpointDisk,
    directory: PathBuf,
    written: Option<WrittenList>,
}

/// The list as last written by this process.
struct WrittenList {
    found: Arc<Vec<ScannedPath>>,
    bytes: u64,
    lines: usize,
}

impl Baseline {
    /// Creates the object without accessing the disk.
    pub fn new(disk: CheckpointDisk, directory: &Path) -> Baseline {
        Baseline { disk, directory: directory.to_path_buf(), written: None }
    }

    /// Records the start of a command, and the scan before it.
    pub fn open(
        &mut self,
        turn: Seq,
        roots: Vec<PathName>,
        seen: &WorkspaceSnapshot,
    ) -> Result<(), CheckpointError> {
        // If a write failed, the list is rewritten.
        let before = self.written.take();
        let path = self.list_path();
        let written = self
            .write(before, seen)
            .map_err(|error| CheckpointError::io("write the scan before a command to", &path, &error))?;
        let (began, is_whole, bytes) = (seen.began, seen.is_whole, written.bytes);
        self.written = Some(written);
        let open = OpenCommand { turn, roots, began, is_whole, bytes };
        record::save(&self.disk, &self.open_path(), &open, PutMode::Unsynced)
    }

    /// Records that no command is running.
    pub fn close(&self) -> Result<(), CheckpointError> {
        remove(&self.disk, &self.open_path())
    }

    /// The mark and scan left by a process that ended while a command was running.
    pub fn left_open(&self) -> Result<Option<(OpenCommand, WorkspaceSnapshot)>, CheckpointError> {
        let Some(open) = record::load::<OpenCommand>(&self.disk, &self.open_path())? else { return Ok(None) };
        let path = self.list_path();
        let nodes = read(&self.disk, &path, open.bytes)
            .map_err(|error| CheckpointError::io("read the scan before a command from", &path, &error))?;
        let found = nodes.into_iter().map(|(PathName(path), node)| {
            let known = Arc::new(KnownNode::from_earlier(node));
            ScannedPath { path: path.into(), known }
        });
        let mut found: Vec<ScannedPath> = found.collect();
        found.sort_unstable_by(|a, b| order(&a.path, &b.path));
        let (began, is_whole) = (open.began, open.is_whole);
        Ok(Some((
            open,
            WorkspaceSnapshot { found: Arc::new(found), began, is_whole, ..WorkspaceSnapshot::default() },
        )))
    }

    /// Removes the list from the disk; the next command rewrites it.
    pub fn remove_list(&mut self) -> Result<(), CheckpointError> {
        self.written = None;
        remove(&self.disk, &self.list_path())
    }

    fn write(&self, before: Option<WrittenList>, seen: &WorkspaceSnapshot) -> io::Result<WrittenList> {
        let lines_max = LINES_MIN.max(seen.found.len().saturating_mul(GROWTH_MAX));
        let before = before.filter(|before| before.lines <= lines_max);
        let known = before.as_ref().map(|before| before.found.clone()).unwrap_or_default();
        let (mut text, mut lines) = (Vec::new(), 0);
        for (old, new) in zip_paths(&known, &seen.found) {
            let (path, node) = match (old, new) {
                (Some(old), Some(new)) if old.is_same(new) => continue,
                (_, Some(new)) => (&new.path, &new.known.node),
                (Some(old), None) => (&old.path, &FileNode::Missing),
                (None, None) => continue,
            };
            // Serialized like `BaselineLine`.
            serde_json::to_writer(&mut text, &(PathName(path.to_path_buf()), node))?;
            text.push(b'\n');
            lines += 1;
        }
        let (old_bytes, old_lines) = before.as_ref().map_or((0, 0), |before| (before.bytes, before.lines));
        let written = WrittenList {
            found: seen.found.clone(),
            bytes: old_bytes + text.len() as u64,
            lines: old_lines + lines,
        };
        if before.is_some() && text.is_empty() {
            return Ok(written);
        }
        self.disk.disk.make_directory(&self.directory)?;
        match before {
            Some(_) => self.disk.disk.open(&self.list_path(), OpenMode::Append)?.append(&text)?,
            None => {
                let list = self.disk.disk.open(&self.list_path(), OpenMode::Overwrite)?;
                list.set_len(0)?;
                list.write_at(&text, 0)?;
            }
        }
        Ok(written)
    }

    fn open_path(&self) -> PathBuf {
        self.directory.join("open.json")
    }

    fn list_path(&self) -> PathBuf {
        self.directory.join("look.jsonl")
    }
}

/// Returns the node at each path, according to the path's last line.
fn read(disk: &CheckpointDisk, path: &Path, bytes: u64) -> io::Result<BTreeMap<PathName, FileNode>> {
    let mut nodes = BTreeMap::new();
    let list = disk.disk.read(path, bytes)?;
    for line in list.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line)? {
            BaselineLine(path, FileNode::Missing) => drop(nodes.remove(&path)),
            BaselineLine(path, node) => drop(nodes.insert(path, node)),
        }
    }
    Ok(nodes)
}
