//! Files that are whole or not there, whenever we are killed.
//!
//! What is written has no name until it is complete, so that a process which dies on the way leaves nothing
//! behind: the system forgets a file without a name. Only between getting its name and taking its place, two
//! system calls in a row, a file of ours can be stranded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

/// Where the system names the open files of a process; missing in some bare containers.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A file that is being written.
pub struct Unfinished {
    file: File,
    directory: PathBuf,
    /// Where the system knows no files without a name.
    name: Option<PathBuf>,
}

impl Unfinished {
    /// Begins a file in a directory, which must be that of the place it is for. `mode` are the rights of a new
    /// file, as far as the process's mask lets them be.
    pub fn begin(directory: &Path, mode: u32) -> io::Result<Unfinished> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        // A file is given its name by that of its descriptor.
        let begun = match Path::new(DESCRIPTORS).is_dir() {
            true => rustix::fs::open(directory, flags, Mode::from_raw_mode(mode)),
            false => Err(Errno::OPNOTSUPP),
        };
        let (file, name) = match begun {
            Ok(file) => (File::from(file), None),
            // Kernels and file systems that can't do it say so in different ways.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let name = fresh_name(directory);
                let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&name)?;
                (file, Some(name))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Unfinished { file, directory: directory.to_path_buf(), name })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Puts what was written in the place of `path`, which a reader sees as it was or as it is now, also after a
    /// loss of power.
    pub fn put(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        self.put_unsynced(path)
    }

    /// Brings what was written to the disk. Some file systems would otherwise show an empty file after a loss of
    /// power.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// The same as `put` for who has seen to the disk, or will.
    pub fn put_unsynced(mut self, path: &Path) -> io::Result<()> {
        if self.name.is_none() {
            let name = fresh_name(&self.directory);
            let own = format!("{DESCRIPTORS}/{}", self.file.as_raw_fd());
            linkat(CWD, own, CWD, &name, AtFlags::SYMLINK_FOLLOW)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            fs::rename(name, path)?;
        }
        self.name = None;
        Ok(())
    }

    /// The same as `put` where nothing may be in that place: what is there stays, and that is an error.
    pub fn put_new(self, path: &Path) -> io::Result<()> {
        self.sync()?;
        let own = format!("{DESCRIPTORS}/{}", self.file.as_raw_fd());
        match &self.name {
            None => linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?,
            // The other name goes when this is dropped.
            Some(name) => fs::hard_link(name, path)?,
        }
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // What was written so far is no use to anyone.
            let _ = fs::remove_file(name);
        }
    }
}

fn fresh_name(directory: &Path) -> PathBuf {
    directory.join(format!(".epitome-{:016x}.tmp", fastrand::u64(..)))
}

/// Puts a whole file that only its owner may read in the place of another.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut new = Unfinished::begin(directory, 0o600)?;
    new.file().write_all(bytes)?;
    new.put(path)
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
    fn a_file_is_there_when_it_is_whole() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("trust.json");
        replace_private(&path, b"one").expect("written");
        let mut next = Unfinished::begin(scratch.path(), 0o600).expect("begun");
        next.file().write_all(b"two").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"one");
        next.put(&path).expect("put");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(names(scratch.path()), ["trust.json"]);
    }

    #[test]
    fn a_new_file_takes_nobody_s_place() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("a");
        for (text, is_put) in [(b"one", true), (b"two", false)] {
            let mut new = Unfinished::begin(scratch.path(), 0o600).expect("begun");
            new.file().write_all(text).expect("written");
            assert_eq!(new.put_new(&path).is_ok(), is_put);
        }
        assert_eq!(fs::read(&path).expect("there"), b"one");
        assert_eq!(names(scratch.path()), ["a"]);
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("missing").join("a");
        assert!(replace_private(&path, b"one").is_err());
        let mut given_up = Unfinished::begin(scratch.path(), 0o600).expect("begun");
        given_up.file().write_all(b"half").expect("written");
        drop(given_up);
        let directory = scratch.path().join("a directory");
        fs::create_dir_all(directory.join("full")).expect("made");
        assert!(replace_private(&directory, b"one").is_err(), "it is no file");
        assert_eq!(names(scratch.path()), ["a directory"]);
    }
}
