//! Atomic file writes.
//!
//! A file has no name until it is complete, so that a process killed during a write leaves nothing behind:
//! the kernel removes unnamed files. A temporary file can only be left behind between two consecutive system
//! calls, one that gives it a name and one that renames it to its destination.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind::{PermissionDenied, Unsupported};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use epitome_platform::unnamed_file;

/// A file that is being written.
pub struct AtomicFile {
    file: File,
    directory: PathBuf,
    /// The temporary name, if the system doesn't support unnamed files or while the file is being renamed.
    name: Option<PathBuf>,
}

impl AtomicFile {
    /// Creates a file in a directory, which must be the destination's. `mode` contains the permissions of a
    /// new file, subject to the process's umask.
    pub fn begin(directory: &Path, mode: u32) -> io::Result<AtomicFile> {
        let (file, name) = match unnamed_file::create(directory, mode)? {
            Some(file) => (file, None),
            None => {
                let name = fresh_name(directory);
                let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&name)?;
                (file, Some(name))
            }
        };
        Ok(AtomicFile { file, directory: directory.to_path_buf(), name })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Atomically moves the file to `path`. Readers see either the old or the new file, even after a power
    /// loss.
    pub fn put(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        self.put_unsynced(path)
    }

    /// Syncs the content to the disk. Without this, some file systems would show an empty file after a power
    /// loss.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Like `put`, for callers that sync the content themselves.
    pub fn put_unsynced(mut self, path: &Path) -> io::Result<()> {
        if self.name.is_none() {
            let name = fresh_name(&self.directory);
            unnamed_file::link(&self.file, &name)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            fs::rename(name, path)?;
        }
        self.name = None;
        Ok(())
    }

    /// Like `put`, but fails if `path` already exists.
    pub fn put_new(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        let Some(name) = &self.name else { return unnamed_file::link(&self.file, path) };
        // The temporary name is removed on drop.
        match fs::hard_link(name, path) {
            // The file system has no hard links.
            Err(error) if matches!(error.kind(), PermissionDenied | Unsupported) && !path.exists() => {
                fs::rename(name, path)
            }
            linked => linked,
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // An incomplete file is useless.
            let _ = fs::remove_file(name);
        }
    }
}

fn fresh_name(directory: &Path) -> PathBuf {
    directory.join(format!(".epitome-{:016x}.tmp", fastrand::u64(..)))
}

/// Atomically replaces a file with one that only its owner can read.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_private(path, bytes)?.put(path)
}

/// Like `replace_private`, but doesn't wait until the file is on the disk.
pub fn replace_private_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_private(path, bytes)?.put_unsynced(path)
}

/// Like `replace_private`, but fails if the file exists.
pub fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_private(path, bytes)?.put_new(path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<AtomicFile> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut new = AtomicFile::begin(directory, 0o600)?;
    new.file().write_all(bytes)?;
    Ok(new)
}

/// Creates a directory that only its owner can enter, along with its parents.
pub fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_appears_only_when_it_is_complete() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("trust.json");
        replace_private(&path, b"one").expect("written");
        let mut next = AtomicFile::begin(scratch.path(), 0o600).expect("begun");
        next.file().write_all(b"two").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"one");
        next.put(&path).expect("put");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(names(scratch.path()), ["trust.json"]);
    }

    #[test]
    fn put_new_does_not_replace_an_existing_file() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("a");
        for (text, is_put) in [(b"one", true), (b"two", false)] {
            let mut new = AtomicFile::begin(scratch.path(), 0o600).expect("begun");
            new.file().write_all(text).expect("written");
            assert_eq!(new.put_new(&path).is_ok(), is_put);
        }
        assert_eq!(fs::read(&path).expect("there"), b"one");
        assert_eq!(names(scratch.path()), ["a"]);
    }

    #[test]
    fn unfinished_file_leaves_nothing_behind() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("missing").join("a");
        assert!(replace_private(&path, b"one").is_err());
        let mut given_up = AtomicFile::begin(scratch.path(), 0o600).expect("begun");
        given_up.file().write_all(b"half").expect("written");
        drop(given_up);
        let directory = scratch.path().join("a directory");
        fs::create_dir_all(directory.join("full")).expect("made");
        assert!(replace_private(&directory, b"one").is_err(), "it is no file");
        assert_eq!(names(scratch.path()), ["a directory"]);
    }
}
