//! Atomic file writes.
//!
//! A file has no name until it is complete, so that a process killed during a write leaves nothing behind: the kernel
//! removes unnamed files. A temporary file can be left behind only between two consecutive system calls, one that
//! names it and one that renames it to its destination.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use epitome_platform::os::{
    DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, copy_owner_and_mode,
};
use epitome_platform::root::DirectoryHandle;

/// A file that is being written. Its directory stays the one that was opened, even if that is moved.
pub struct AtomicFile {
    file: File,
    directory: DirectoryHandle,
    /// The temporary name, if the system doesn't support unnamed files or while the file is being renamed.
    name: Option<OsString>,
}

impl AtomicFile {
    /// Creates a file in a directory, which must be the destination's. `mode` contains the permissions of a new file,
    /// subject to the process's umask.
    pub fn begin(directory: &Path, mode: u32) -> io::Result<AtomicFile> {
        AtomicFile::begin_in(DirectoryHandle::open(directory)?, mode)
    }

    /// Like `begin`, in an opened directory.
    pub fn begin_in(directory: DirectoryHandle, mode: u32) -> io::Result<AtomicFile> {
        let (file, name) = match directory.create_unnamed(mode)? {
            Some(file) => (file, None),
            None => {
                let name = fresh_name();
                (directory.create(&name, mode)?, Some(name))
            }
        };
        Ok(AtomicFile { file, directory, name })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Atomically renames the file to the last component of `path`. Readers see either the old or the new file, even
    /// after a power loss.
    pub fn put(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        self.put_unsynced(path)
    }

    /// Syncs the content to the disk. Without this, some file systems would contain an empty file after a power loss.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Like `put`, for callers that sync the content themselves.
    pub fn put_unsynced(mut self, path: &Path) -> io::Result<()> {
        let to = name_of(path)?;
        if self.name.is_none() {
            let name = fresh_name();
            self.directory.name(&self.file, &name)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            self.directory.rename(name, to)?;
        }
        self.name = None;
        Ok(())
    }

    /// Like `put`, but fails if a file of that name already exists.
    pub fn put_new(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        let to = name_of(path)?;
        let directory = &self.directory;
        let Some(name) = &self.name else { return directory.name(&self.file, to) };
        // The temporary name is removed on drop.
        match directory.link(name, to) {
            // The file system has no hard links, which each reports in its own way. Another error is that of the rename, too.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists && !directory.contains(to) => {
                directory.rename(name, to)
            }
            linked => linked,
        }
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // An incomplete file is useless.
            let _ = self.directory.remove(name);
        }
    }
}

fn fresh_name() -> OsString {
    format!(".epitome-{:016x}.tmp", fastrand::u64(..)).into()
}

fn name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Atomically replaces a file with one that only its owner can read.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_private(path, bytes)?.put(path)
}

/// Atomically replaces a file and keeps its owner and permissions. A new file can only be read by its owner.
pub fn replace_keeping_mode(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = write_private(path, bytes)?;
    match std::fs::metadata(path) {
        Ok(old) => copy_owner_and_mode(&old, new.file())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    new.put(path)
}

/// Locks a file against changes by other processes until the result is dropped, using a private lock file next to it.
/// Creates the directory. The file itself can't be locked, because each change replaces it.
pub fn lock_for_change(path: &Path) -> io::Result<File> {
    private_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(path.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Like `replace_private`, but creates the directory if missing.
pub fn replace_in_private_directory(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    replace_private(path, bytes)
}

/// Like `replace_private`, but doesn't wait until the file is on the disk.
pub fn replace_private_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_private(path, bytes)?.put_unsynced(path)
}

/// Like `replace_private`, but fails if the file exists.
pub fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_private(path, bytes)?.put_new(path)
}

/// Why a file with a secret is not used. The text continues a sentence that begins with the path.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    #[error("can't be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("can be read by others: `chmod 600 {}` changes that", .0.display())]
    Public(PathBuf),
}

/// Maximum bytes that are read of a file with secrets: of a list of passwords, for example.
const PRIVATE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Reads a file with a secret, which others must not be able to read.
pub fn read_private(path: &Path) -> Result<String, PrivateFileError> {
    let file = File::open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Err(PrivateFileError::Public(path.to_path_buf()));
    }
    let mut text = String::new();
    // A part of it would be taken for all of it, and might be written back.
    let bytes = file.take(PRIVATE_BYTES_MAX + 1).read_to_string(&mut text)? as u64;
    let too_large = || PrivateFileError::from(io::Error::from(io::ErrorKind::FileTooLarge));
    (bytes <= PRIVATE_BYTES_MAX).then_some(text).ok_or_else(too_large)
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
    use std::fs;
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

    /// Regression: of a file that was too large, the first part was used as if it were all of it.
    #[test]
    fn a_private_file_is_read_whole_or_not_at_all() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("passwords");
        for (bytes, is_read) in [(PRIVATE_BYTES_MAX, true), (PRIVATE_BYTES_MAX + 1, false)] {
            let text = "x".repeat(bytes as usize);
            replace_private(&path, text.as_bytes()).expect("written");
            match read_private(&path) {
                Ok(read) => assert!(is_read && read == text, "{bytes}"),
                Err(why) => assert!(!is_read && why.to_string().contains("too large"), "{bytes}: {why}"),
            }
        }
    }

    /// `epitome mcp add` made a config.toml that others could read, such as one in a repository of settings, private.
    #[test]
    fn a_replaced_file_keeps_its_mode() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("config.toml");
        let mode = || fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        replace_keeping_mode(&path, b"one").expect("written");
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        replace_keeping_mode(&path, b"two").expect("written");
        assert_eq!((mode(), &*fs::read(&path).expect("there")), (0o644, &b"two"[..]));
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
