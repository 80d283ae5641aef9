//! The file system node at a path, determined without following links anywhere in the path. Read-only.

use epitome_platform::os::MetadataExt;
use epitome_platform::os::{OsStrExt, OsStringExt};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::user_files::{NodeKind, NodeStat, UserFiles};
use epitome_platform::root;

/// The bits of a mode that are kept: permissions, setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;

/// The file system node at a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum FileNode {
    Missing,
    /// A file whose content is stored under its hash.
    File {
        hash: String,
        bytes: u64,
        mode: u32,
    },
    /// A file whose content isn't stored; it is only identified by its stamp.
    Unkept {
        bytes: u64,
        mode: u32,
        stamp: NodeStamp,
    },
    Link {
        #[serde(with = "written")]
        target: PathBuf,
    },
    Directory {
        mode: u32,
    },
    /// A pipe, a socket or a device; never restored.
    Other,
}

/// Metadata that changes when a file does. Times are nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeStamp {
    pub bytes: u64,
    pub modified: i64,
    /// Unlike `modified`, programs can't set this time back.
    pub changed: i64,
    pub inode: u64,
    pub mode: u32,
}

impl NodeStamp {
    pub fn from_metadata(metadata: &Metadata) -> NodeStamp {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        NodeStamp {
            bytes: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            mode: metadata.mode() & MODE_BITS,
        }
    }
}

impl FileNode {
    pub fn is_directory(&self) -> bool {
        matches!(self, FileNode::Directory { .. })
    }

    /// The hash of the content that must be kept for this node.
    pub fn hash(&self) -> Option<&str> {
        if let FileNode::File { hash, .. } = self { Some(hash) } else { None }
    }
}

/// Returns the node at a path. `keep` converts a regular file to a node.
pub fn look(
    files: &dyn UserFiles,
    path: &Path,
    keep: impl FnOnce(&Path, &NodeStat) -> io::Result<FileNode>,
) -> io::Result<FileNode> {
    match files.stat(path) {
        Ok(stat) => of(files, path, &stat, keep),
        Err(error) if is_absence(&error) => Ok(FileNode::Missing),
        Err(error) => Err(error),
    }
}

/// Returns the node at a path that is known to contain no links.
pub fn of(
    files: &dyn UserFiles,
    path: &Path,
    stat: &NodeStat,
    keep: impl FnOnce(&Path, &NodeStat) -> io::Result<FileNode>,
) -> io::Result<FileNode> {
    match stat.kind {
        NodeKind::Link => Ok(FileNode::Link { target: files.read_link(path)? }),
        NodeKind::Directory => Ok(FileNode::Directory { mode: stat.stamp.mode }),
        NodeKind::File => keep(path, stat),
        NodeKind::Other => Ok(FileNode::Other),
    }
}

/// Creates a node for a file that is identified only by its stamp.
pub fn unkept(stat: &NodeStat) -> FileNode {
    FileNode::Unkept { bytes: stat.stamp.bytes, mode: stat.stamp.mode, stamp: stat.stamp }
}

/// Whether an error means that nothing exists at the path. A file that is reached through a link belongs to another
/// path.
pub fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) || root::is_link(error)
}

/// Serializes paths to JSON: as text if they are UTF-8, otherwise as base64.
pub mod written {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum PathForm {
        Text(String),
        Bytes { base64: String },
    }

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match path.to_str() {
            Some(text) => PathForm::Text(text.to_owned()),
            None => PathForm::Bytes { base64: STANDARD.encode(path.as_os_str().as_bytes()) },
        };
        form.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        match PathForm::deserialize(deserializer)? {
            PathForm::Text(text) => Ok(text.into()),
            PathForm::Bytes { base64 } => {
                let bytes = STANDARD.decode(base64).map_err(serde::de::Error::custom)?;
                Ok(OsString::from_vec(bytes).into())
            }
        }
    }
}
