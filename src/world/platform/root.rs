//! Workspace directories that are opened once, and paths below them that no link redirects. `directories` has what each
//! system opens them with.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directories::{self, RootDirectory};

pub use super::directories::{
    DirectoryEntry, DirectoryHandle, FileIdentity, OpenDirectory, is_link, resolve,
};

/// A directory and its identity when it was opened.
#[derive(Debug)]
pub struct Root {
    named: PathBuf,
    path: PathBuf,
    /// `None` if the directory did not exist.
    pin: Option<Pin>,
}

/// Stays open, so that its identity is not used again.
#[derive(Debug)]
struct Pin {
    directory: RootDirectory,
    identity: FileIdentity,
}

impl Root {
    /// Opens the directory. If it does not exist, its path is kept, and nothing can be opened below it.
    pub fn open(named: &Path) -> Root {
        let path = resolve(named).unwrap_or_else(|_| named.to_path_buf());
        let pin = || {
            let directory = directories::open_root(&path)?;
            Ok::<_, io::Error>(Pin { identity: FileIdentity::read(&directory)?, directory })
        };
        Root { named: named.to_path_buf(), pin: pin().ok(), path }
    }

    /// The path as the client passed it.
    pub fn named(&self) -> &Path {
        &self.named
    }

    /// The canonical path at the time of opening; later links at that path do not change it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn identity(&self) -> Option<FileIdentity> {
        self.pin.as_ref().map(|pin| pin.identity)
    }

    /// Whether its path still leads to the opened directory, without a link.
    pub fn is_in_place(&self) -> bool {
        let Some(pin) = &self.pin else { return false };
        let now = directories::open_root(&self.path);
        now.and_then(FileIdentity::read).is_ok_and(|now| now == pin.identity)
    }
}

/// The directories of a workspace.
#[derive(Clone, Debug, Default)]
pub struct Roots(Vec<Arc<Root>>);

impl Roots {
    /// Opens the directories, reusing those that `self` contains under the same name.
    pub fn reopened<'a>(&self, named: impl IntoIterator<Item = &'a Path>) -> Roots {
        let known = |named: &Path| self.0.iter().find(|root| root.named == named).cloned();
        Roots(
            named.into_iter().map(|path| known(path).unwrap_or_else(|| Arc::new(Root::open(path)))).collect(),
        )
    }

    pub fn iter(&self) -> impl Iterator<Item = &Root> {
        self.0.iter().map(|root| &**root)
    }

    /// Returns the innermost directory that contains this resolved path, and the rest of the path.
    pub fn containing<'a, 'b>(&'a self, real: &'b Path) -> Option<(&'a Root, &'b Path)> {
        let below = |root: &'a Root| Some((root, real.strip_prefix(&root.path).ok()?));
        self.iter().filter_map(below).min_by_key(|(_, rest)| rest.as_os_str().len())
    }

    /// Returns the entry with this resolved path, whose directory must exist.
    ///
    /// Fails if its directory is reached through a link, or if the workspace directory above it is not in place any
    /// more.
    pub fn entry(&self, real: &Path) -> io::Result<DirectoryEntry> {
        DirectoryEntry::find(self.above(real)?, real)
    }

    /// Like `entry`, but creates missing parent directories.
    pub fn entry_with_parents(&self, real: &Path) -> io::Result<DirectoryEntry> {
        let above = self.above(real)?;
        match DirectoryEntry::find(above, real) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirectoryEntry::with_parents(above, real)
            }
            found => found,
        }
    }

    /// Opens a directory by its resolved path, under the same conditions as `entry`.
    pub fn directory(&self, real: &Path) -> io::Result<OpenDirectory> {
        OpenDirectory::find(self.above(real)?, real)
    }

    /// Returns the opened workspace directory that contains a resolved path, and the rest of the path; `None` for a path
    /// outside of the workspace. Fails if that directory is not in place any more.
    fn above<'a, 'b>(&'a self, real: &'b Path) -> io::Result<Option<(&'a RootDirectory, &'b Path)>> {
        let Some((root, rest)) = self.containing(real) else { return Ok(None) };
        let path = root.path.display();
        let why = match &root.pin {
            Some(pin) if root.is_in_place() => return Ok(Some((&pin.directory, rest))),
            Some(_) => "was replaced since the session began",
            None => "did not exist when the session began",
        };
        Err(io::Error::other(format!(
            "the directory {path} {why}; opening the session again uses the one that is there now"
        )))
    }
}

/// Reads a regular file of at most `bytes_max` bytes. Fails without blocking for a pipe, a device or a larger file.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file: File = directories::open_to_read(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    if file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)? as u64 > bytes_max {
        return Err(io::Error::other(format!("it is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Reads a text file like [`read_regular`].
pub fn read_regular_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read_regular(path, bytes_max)?).map_err(io::Error::other)
}

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    /// A link, a pipe, a socket or a device.
    Other,
}

impl FileKind {
    pub(super) fn from_file_type(kind: FileType) -> FileKind {
        if kind.is_file() {
            FileKind::File
        } else if kind.is_dir() {
            FileKind::Directory
        } else {
            FileKind::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_root_contains_a_path() {
        let roots = Roots::default().reopened([Path::new("/w"), Path::new("/w/sub")]);
        let found = |path: &str| {
            let (root, rest) = roots.containing(Path::new(path))?;
            Some((root.path().display().to_string(), rest.display().to_string()))
        };
        assert_eq!(found("/w/a"), Some(("/w".into(), "a".into())));
        assert_eq!(found("/w/sub/a"), Some(("/w/sub".into(), "a".into())));
        assert_eq!(found("/w"), Some(("/w".into(), String::new())));
        assert_eq!(found("/wide"), None);
    }
}
