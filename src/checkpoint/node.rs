//! The file system node at a path, determined without following links anywhere in the path. Read-only.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use epitome_platform::root::{self, DirectoryEntry};

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
            mode: mode_of(metadata),
        }
    }
}

impl FileNode {
    pub fn is_directory(&self) -> bool {
        matches!(self, FileNode::Directory { .. })
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, FileNode::Missing)
    }

    /// The hash of the content that must be kept for this node.
    pub fn hash(&self) -> Option<&str> {
        match self {
            FileNode::File { hash, .. } => Some(hash),
            FileNode::Missing
            | FileNode::Unkept { .. }
            | FileNode::Link { .. }
            | FileNode::Directory { .. }
            | FileNode::Other => None,
        }
    }
}

/// Returns the node at a path. `keep` converts a regular file to a node.
pub fn look(
    path: &Path,
    keep: impl FnOnce(&Path, &Metadata) -> io::Result<FileNode>,
) -> io::Result<FileNode> {
    match DirectoryEntry::at(path).and_then(|entry| entry.metadata()) {
        Ok(metadata) => of(path, &metadata, keep),
        Err(error) if is_absence(&error) => Ok(FileNode::Missing),
        Err(error) => Err(error),
    }
}

/// Returns the node at a path that is known to contain no links.
pub fn of(
    path: &Path,
    metadata: &Metadata,
    keep: impl FnOnce(&Path, &Metadata) -> io::Result<FileNode>,
) -> io::Result<FileNode> {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        return Ok(FileNode::Link { target: DirectoryEntry::at(path)?.read_link()? });
    }
    if kind.is_dir() {
        return Ok(FileNode::Directory { mode: mode_of(metadata) });
    }
    match kind.is_file() {
        true => keep(path, metadata),
        false => Ok(FileNode::Other),
    }
}

/// Creates a node for a file that is identified only by its stamp.
pub fn unkept(metadata: &Metadata) -> FileNode {
    FileNode::Unkept {
        bytes: metadata.len(),
        mode: mode_of(metadata),
        stamp: NodeStamp::from_metadata(metadata),
    }
}

pub fn mode_of(metadata: &Metadata) -> u32 {
    metadata.mode() & MODE_BITS
}

/// Whether an error means that nothing exists at the path. A file that is reached through a link belongs to another
/// path.
pub fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) || root::is_link(error)
}

/// Reads a regular file of at most `bytes_max` bytes; `None` if it is larger. Never blocks on a pipe.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = DirectoryEntry::at(path)?.read()?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file any more"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(bytes_max)).unwrap_or_default());
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
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
