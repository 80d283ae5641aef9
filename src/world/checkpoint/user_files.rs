//! The user's files, as checkpoints see and restore them. As a trait, so that tests replace them by those of a simulated
//! disk. No call follows a link, and none reaches a path through one.

use epitome_platform::os::set_mode;
use std::fmt::Debug;
use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::node::NodeStamp;
use epitome_platform::disk;
use epitome_platform::root::{self, DirectoryEntry};

/// See the module.
pub trait UserFiles: Debug + Send + Sync {
    fn stat(&self, path: &Path) -> io::Result<NodeStat>;
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    /// Reads a regular file of at most `bytes_max` bytes; `None` if it is larger. Never blocks on a pipe.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;
    /// Whether this is a directory that is reached without links.
    fn is_real_directory(&self, path: &Path) -> bool;
    /// Writes a file, in the place of any that is there.
    fn write(&self, path: &Path, content: &[u8], mode: u32) -> io::Result<()>;
    /// Makes a link, in the place of any file that is there.
    fn link(&self, path: &Path, target: &Path) -> io::Result<()>;
    /// Moves a file, to the place of any that is there, in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes files and the names in directories durable.
    fn sync(&self, paths: &[PathBuf]) -> io::Result<()>;
}

/// The kind and the stamp of the node at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStat {
    pub kind: NodeKind,
    pub stamp: NodeStamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    File,
    Directory,
    Link,
    /// A pipe, a socket or a device.
    Other,
}

impl From<&Metadata> for NodeStat {
    fn from(metadata: &Metadata) -> NodeStat {
        let kind = metadata.file_type();
        let kind = if kind.is_symlink() {
            NodeKind::Link
        } else if kind.is_dir() {
            NodeKind::Directory
        } else if kind.is_file() {
            NodeKind::File
        } else {
            NodeKind::Other
        };
        NodeStat { kind, stamp: NodeStamp::from_metadata(metadata) }
    }
}

/// The files of the machine.
#[derive(Clone, Copy, Debug)]
pub struct RealFiles;

impl UserFiles for RealFiles {
    fn stat(&self, path: &Path) -> io::Result<NodeStat> {
        Ok(NodeStat::from(&DirectoryEntry::at(path)?.metadata()?))
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        DirectoryEntry::at(path)?.read_link()
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let file = DirectoryEntry::at(path)?.read()?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file any more"));
        }
        let capacity = usize::try_from(metadata.len().min(bytes_max)).unwrap_or_default();
        let mut bytes = Vec::with_capacity(capacity);
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
    }

    fn is_real_directory(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
            && path.canonicalize().is_ok_and(|real| real == *path)
    }

    fn write(&self, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        let entry = entry(path)?;
        let _ = entry.remove_file();
        let mut file = entry.create_private()?;
        file.write_all(content)?;
        set_mode(&file, mode)
    }

    fn link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let entry = entry(path)?;
        let _ = entry.remove_file();
        entry.link_to(target)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        entry(from)?.rename(&entry(to)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        entry(path)?.remove_file()
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        entry(path)?.create_directory()
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        entry(path)?.remove_directory()
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        entry(path)?.set_mode(mode)
    }

    fn sync(&self, paths: &[PathBuf]) -> io::Result<()> {
        disk::sync_paths(paths)
    }
}

/// The entry with this path, which must have no link above it.
fn entry(path: &Path) -> io::Result<DirectoryEntry> {
    DirectoryEntry::at(path).map_err(|error| match root::is_link(&error) {
        true => io::Error::other("a directory above it is a link"),
        false => error,
    })
}
