//! What stands at a path: looked at without following a link, and never through one. It writes nothing.

use std::ffi::OsString;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::OFlags;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bits of a mode that are kept: the permissions, and what stands beside them.
const MODE_BITS: u32 = 0o7777;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Node {
    Missing,
    /// A file whose content is kept below its hash.
    File {
        hash: String,
        bytes: u64,
        mode: u32,
    },
    /// A file whose content is not kept: it is known again by its stamp alone.
    Unkept {
        bytes: u64,
        mode: u32,
        stamp: Stamp,
    },
    Link {
        #[serde(with = "written")]
        target: PathBuf,
    },
    Directory {
        mode: u32,
    },
    /// A pipe, a socket, a device: left alone.
    Other,
}

/// What changes when a file does. Times are nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    pub bytes: u64,
    pub modified: i64,
    /// A program can set the other time back, and not this one.
    pub changed: i64,
    pub inode: u64,
    pub mode: u32,
}

impl Stamp {
    pub fn of(metadata: &Metadata) -> Stamp {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Stamp {
            bytes: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            mode: mode_of(metadata),
        }
    }
}

impl Node {
    pub fn is_directory(&self) -> bool {
        matches!(self, Node::Directory { .. })
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Node::Missing)
    }

    /// The name of the content that must be kept for it.
    pub fn hash(&self) -> Option<&str> {
        match self {
            Node::File { hash, .. } => Some(hash),
            Node::Missing
            | Node::Unkept { .. }
            | Node::Link { .. }
            | Node::Directory { .. }
            | Node::Other => None,
        }
    }
}

/// Looks at a path. `keep` is given the content of a file, and says how the file is to be known.
pub fn look(path: &Path, keep: impl FnOnce(&Path, &Metadata) -> io::Result<Node>) -> io::Result<Node> {
    if !is_reached_without_links(path) {
        return Ok(Node::Missing);
    }
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if is_absence(&error) => return Ok(Node::Missing),
        Err(error) => return Err(error),
    };
    of(path, &metadata, keep)
}

/// What stands at a path of which it is known already how it is reached.
pub fn of(
    path: &Path,
    metadata: &Metadata,
    keep: impl FnOnce(&Path, &Metadata) -> io::Result<Node>,
) -> io::Result<Node> {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        return Ok(Node::Link { target: fs::read_link(path)? });
    }
    if kind.is_dir() {
        return Ok(Node::Directory { mode: mode_of(metadata) });
    }
    match kind.is_file() {
        true => keep(path, metadata),
        false => Ok(Node::Other),
    }
}

/// A file that is known by its stamp.
pub fn unkept(metadata: &Metadata) -> Node {
    Node::Unkept { bytes: metadata.len(), mode: mode_of(metadata), stamp: Stamp::of(metadata) }
}

pub fn mode_of(metadata: &Metadata) -> u32 {
    metadata.mode() & MODE_BITS
}

/// Whether the directories above a path are directories and no links: what lies behind a link is another place.
/// Those that are missing are no links.
pub fn is_reached_without_links(path: &Path) -> bool {
    let Some(parent) = path.parent() else { return true };
    let Some(there) = parent.ancestors().find(|above| fs::symlink_metadata(above).is_ok()) else {
        return true;
    };
    there.canonicalize().is_ok_and(|real| real == there)
}

/// Whether an error says that there is nothing.
pub fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads a regular file of at most so many bytes; `None` if it has more. It never waits for a pipe's other end.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file any more"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(bytes_max)).unwrap_or_default());
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

/// Paths in JSON: text where they are text, else base64.
pub mod written {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes { base64: String },
    }

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match path.to_str() {
            Some(text) => Form::Text(text.to_owned()),
            None => Form::Bytes { base64: STANDARD.encode(path.as_os_str().as_bytes()) },
        };
        form.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(text.into()),
            Form::Bytes { base64 } => {
                let bytes = STANDARD.decode(base64).map_err(serde::de::Error::custom)?;
                Ok(OsString::from_vec(bytes).into())
            }
        }
    }
}
