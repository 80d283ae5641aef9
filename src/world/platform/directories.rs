//! Opens paths relative to the descriptors of directories, so that a directory that is moved away or replaced by a link
//! can't redirect them.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::root::FileKind;
use super::system::{self, PATH_ONLY, metadata_at, unnamed_file};

/// Flags for opening directories through which others are opened.
const STEP: OFlags = PATH_ONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Flags for opening entries: never blocks on a pipe, acquires a terminal or follows a link.
const ENTRY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Permissions of new directories and files, subject to the umask.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

/// Device and inode of a file: they identify the file while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub fn read(file: impl AsFd) -> io::Result<FileIdentity> {
        Ok(FileIdentity::of(&rustix::fs::fstat(file)?))
    }

    pub(super) fn of(stat: &Stat) -> FileIdentity {
        // On macOS, it has a sign.
        #[allow(clippy::unnecessary_cast)]
        FileIdentity { device: stat.st_dev as u64, inode: stat.st_ino }
    }
}

/// A workspace directory, opened with `O_PATH` where the system has it.
pub(super) type RootDirectory = OwnedFd;

/// Opens a workspace directory by its resolved path.
pub(super) fn open_root(path: &Path) -> io::Result<RootDirectory> {
    open_at(CWD, path, PATH_ONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Returns the directory from which a path is opened, and the rest of the path.
fn start<'a, 'b>(above: Option<(&'a RootDirectory, &'b Path)>, real: &'b Path) -> (BorrowedFd<'a>, &'b Path) {
    above.map_or((CWD, real), |(directory, rest)| (directory.as_fd(), rest))
}

/// A name in an opened directory. Replacing a directory above it doesn't redirect operations on it.
#[derive(Debug)]
pub struct DirectoryEntry {
    directory: OwnedFd,
    name: OsString,
}

impl DirectoryEntry {
    /// Returns the entry with this absolute path, which must not contain links.
    pub fn at(real: &Path) -> io::Result<DirectoryEntry> {
        DirectoryEntry::below(CWD, real)
    }

    /// Returns the entry with a resolved path. `above`: the workspace directory that contains it, and the rest of the path.
    pub(super) fn find(above: Option<(&RootDirectory, &Path)>, real: &Path) -> io::Result<DirectoryEntry> {
        let (start, rest) = start(above, real);
        DirectoryEntry::below(start, rest)
    }

    /// Like `find`, but creates missing parent directories.
    pub(super) fn with_parents(
        above: Option<(&RootDirectory, &Path)>,
        real: &Path,
    ) -> io::Result<DirectoryEntry> {
        let (start, rest) = start(above, real);
        let mut at = rustix::fs::openat(start, beginning(rest), STEP, Mode::empty())?;
        for part in rest.parent().into_iter().flat_map(names) {
            at = match step(&at, part) {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&at, part, DIRECTORY_MODE) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    step(&at, part)?
                }
                found => found?,
            };
        }
        Ok(DirectoryEntry { directory: at, name: name_of(rest) })
    }

    fn below(start: BorrowedFd<'_>, rest: &Path) -> io::Result<DirectoryEntry> {
        let parent = rest.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(beginning(rest));
        let directory = open_at(start, parent, PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(DirectoryEntry { directory, name: name_of(rest) })
    }

    /// Its directory.
    pub fn directory(&self) -> io::Result<DirectoryHandle> {
        Ok(DirectoryHandle(self.directory.try_clone()?))
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The metadata of the entry; a link is not followed.
    pub fn metadata(&self) -> io::Result<Metadata> {
        metadata_at(&self.directory, &self.name)
    }

    pub fn read(&self) -> io::Result<File> {
        self.open(OFlags::RDONLY)
    }

    /// Opens an existing file and empties it.
    pub fn overwrite(&self) -> io::Result<File> {
        self.open(OFlags::WRONLY | OFlags::TRUNC)
    }

    /// Opens or creates a file for appending.
    pub fn append(&self) -> io::Result<File> {
        self.open(OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
    }

    /// Creates a file that only its owner can read.
    pub fn create_private(&self) -> io::Result<File> {
        let flags = ENTRY | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(rustix::fs::openat(&self.directory, &self.name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.directory, &self.name, ENTRY | flags, FILE_MODE)?.into())
    }

    pub fn read_link(&self) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.directory, &self.name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    pub fn link_to(&self, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.directory, &self.name)?)
    }

    pub fn create_directory(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.directory, &self.name, DIRECTORY_MODE)?)
    }

    /// Sets the mode. Fails for a link. Needs no permission to read.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        system::set_mode_at(&self.directory, &self.name, mode)
    }

    pub fn remove_file(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty())?)
    }

    pub fn remove_directory(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::REMOVEDIR)?)
    }

    /// Gives the entry another name in its directory, and replaces what has it.
    pub fn rename_to(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.directory, &self.name, &self.directory, name)?)
    }

    /// Replaces the entry `to`, which must be in the same file system.
    pub fn rename(&self, to: &DirectoryEntry) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.directory, &self.name, &to.directory, &to.name)?)
    }
}

/// An opened directory, in which files are created. It stays the one that was opened, even if that is moved.
pub struct DirectoryHandle(OwnedFd);

impl DirectoryHandle {
    pub fn open(path: &Path) -> io::Result<DirectoryHandle> {
        let flags = PATH_ONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(DirectoryHandle(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// Creates a file without a name, which is removed if it never gets one. `None` if the system can't.
    pub fn create_unnamed(&self, permissions: u32) -> io::Result<Option<File>> {
        unnamed_file::create(&self.0, permissions)
    }

    /// Names a file that was created without. Fails if the name exists.
    pub fn name(&self, file: &File, name: &OsStr) -> io::Result<()> {
        unnamed_file::link(file, &self.0, name)
    }

    /// Creates a file. Fails if it exists.
    pub fn create(&self, name: &OsStr, permissions: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, mode(permissions))?.into())
    }

    pub fn contains(&self, name: &OsStr) -> bool {
        rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Renames a file, and replaces what has the name.
    pub fn rename(&self, name: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &self.0, to)?)
    }

    /// Gives a file another name. Fails if it exists.
    pub fn link(&self, name: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.0, name, &self.0, to, AtFlags::empty())?)
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }
}

/// An opened directory whose entries can be listed.
#[derive(Debug)]
pub struct OpenDirectory(OwnedFd);

impl OpenDirectory {
    /// Opens a directory by its resolved path; `above` as for an entry.
    pub(super) fn find(above: Option<(&RootDirectory, &Path)>, real: &Path) -> io::Result<OpenDirectory> {
        let (start, rest) = start(above, real);
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        open_at(start, rest, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).map(OpenDirectory)
    }

    /// Returns the names and types of its entries, unordered. Entries that disappear in the meantime are omitted.
    pub fn entries(&self) -> io::Result<Vec<(OsString, FileKind)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let name = OsStr::from_bytes(name).to_os_string();
            let kind = match entry.file_type() {
                rustix::fs::FileType::RegularFile => FileKind::File,
                rustix::fs::FileType::Directory => FileKind::Directory,
                // Some file systems don't report the type.
                rustix::fs::FileType::Unknown => match self.metadata(&name) {
                    Ok(metadata) => FileKind::from_file_type(metadata.file_type()),
                    Err(_) => continue,
                },
                _ => FileKind::Other,
            };
            entries.push((name, kind));
        }
        Ok(entries)
    }

    /// Opens a directory in this one; fails for a link.
    pub fn directory(&self, name: &OsStr) -> io::Result<OpenDirectory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(OpenDirectory(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Opens a regular file in this directory for reading; fails for anything else, without blocking.
    pub fn file(&self, name: &OsStr) -> io::Result<(File, Metadata)> {
        let file = File::from(rustix::fs::openat(&self.0, name, ENTRY | OFlags::RDONLY, Mode::empty())?);
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok((file, metadata)),
            false => Err(io::Error::other("it is not a regular file")),
        }
    }

    /// The metadata of an entry; a link is not followed.
    pub fn metadata(&self, name: &OsStr) -> io::Result<Metadata> {
        metadata_at(&self.0, name)
    }
}

/// Opens a file for reading, without waiting for the other end of a pipe. Links are followed.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// The permissions of a new file. The system's number for them is smaller on macOS.
#[allow(clippy::unnecessary_cast)]
fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits as rustix::fs::RawMode)
}

/// Whether an error means that a resolved path contains a link after all.
pub fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Returns the last component; `.` for the directory itself.
fn name_of(rest: &Path) -> OsString {
    rest.file_name().unwrap_or(OsStr::new(".")).to_os_string()
}

fn beginning(path: &Path) -> &'static Path {
    Path::new(if path.is_absolute() { "/" } else { "." })
}

fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

fn step(at: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    open_in(at, name, STEP, Mode::empty())
}

/// Opens an entry of a directory, with `O_NOFOLLOW`. Fails with `ELOOP` for a link, as `openat2` does.
fn open_in(at: impl AsFd, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(&at, name, flags, mode) {
        Err(Errno::NOTDIR) if rustix::fs::readlinkat(&at, name, Vec::new()).is_ok() => Err(Errno::LOOP),
        opened => opened,
    }
}

/// Resolves the links of a path, like `canonicalize`, which looks at each component in a system call of its own. Most
/// paths have no links, and Linux checks that in one step.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let is_plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    let open = || system::open_resolved(CWD, path, PATH_ONLY | OFlags::CLOEXEC, Mode::empty());
    match is_plain.then(open).flatten() {
        Some(Ok(_)) => Ok(path.components().collect()),
        Some(Err(Errno::NOENT)) => Err(Errno::NOENT.into()),
        Some(Err(_)) | None => path.canonicalize(),
    }
}

/// Opens a resolved path, relative to a directory or absolute. Fails with `ELOOP` if any of its components is a link:
/// the path contained none when it was resolved, so it was changed since. A relative path can't lead out of the
/// directory.
pub(crate) fn open_at(directory: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    // With `O_NOFOLLOW`, a link in place of a directory could not be distinguished from a file.
    let no_follow = if flags.contains(OFlags::DIRECTORY) { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = flags | no_follow | OFlags::CLOEXEC;
    let opened = system::open_resolved(&directory, path, flags, mode)
        .unwrap_or_else(|| open_by_steps(directory.as_fd(), path, flags | OFlags::NOFOLLOW, mode));
    Ok(opened?)
}

/// Like `open_at`, one component at a time.
fn open_by_steps(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(Errno::XDEV);
    }
    let mut at = rustix::fs::openat(directory, beginning(path), STEP, Mode::empty())?;
    let mut names = names(path).peekable();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            return open_in(&at, name, flags, mode);
        }
        at = step(&at, name)?;
    }
    rustix::fs::openat(&at, ".", flags, mode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::root::{Root, Roots};

    const READ: OFlags = OFlags::RDONLY;

    /// A background command replaced a directory with a link to the home directory while the agent wrote files into
    /// it: 91 of 118 writes landed outside of the workspace.
    #[test]
    fn a_directory_exchanged_for_a_link_leads_nowhere() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let base = scratch.path().canonicalize().expect("it exists");
        fs::create_dir_all(base.join("w/d/e")).expect("made");
        fs::create_dir_all(base.join("home/e")).expect("made");
        fs::write(base.join("w/d/e/file"), "ours").expect("written");
        fs::write(base.join("home/e/file"), "secret").expect("written");
        let root = open_root(&base.join("w")).expect("it exists");
        let beneath = |path: &str| open_at(&root, Path::new(path), READ, Mode::empty());
        let by_steps =
            |path: &str| open_by_steps(root.as_fd(), Path::new(path), READ | OFlags::NOFOLLOW, Mode::empty());
        for path in ["d/e/file", "./d/e/file", "d/e", "."] {
            assert!(beneath(path).is_ok(), "{path}");
            assert!(by_steps(path).is_ok(), "{path}");
        }
        fs::rename(base.join("w/d"), base.join("w/was")).expect("renamed");
        symlink(base.join("home"), base.join("w/d")).expect("linked");
        for path in ["d/e/file", "d/e", "d", "../home/e/file", "d/../../home"] {
            assert!(beneath(path).is_err(), "{path}");
            assert!(by_steps(path).is_err(), "{path}");
        }
        let absolute = base.join("w/d/e/file");
        assert!(open_at(rustix::fs::CWD, &absolute, READ, Mode::empty()).is_err());
        assert!(open_by_steps(rustix::fs::CWD, &absolute, READ, Mode::empty()).is_err());
    }

    #[test]
    fn entries_are_used_by_descriptor() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let base = scratch.path().canonicalize().expect("it exists");
        for directory in ["w/d", "home"] {
            fs::create_dir_all(base.join(directory)).expect("made");
        }
        fs::write(base.join("w/d/file"), "ours").expect("written");
        fs::write(base.join("home/file"), "theirs").expect("written");
        let roots = Roots::default().reopened([&*base.join("w")]);
        let entry = roots.entry(&base.join("w/d/file")).expect("it exists");
        let new = roots.entry_with_parents(&base.join("w/d/new/er/file")).expect("made");
        let listed = roots.directory(&base.join("w/d")).expect("it exists");
        fs::rename(base.join("w/d"), base.join("w/was")).expect("renamed");
        symlink(base.join("home"), base.join("w/d")).expect("linked");
        assert_eq!(io::read_to_string(entry.read().expect("opened")).expect("read"), "ours");
        assert_eq!(listed.entries().expect("listed").len(), 2);
        new.create_private().expect("created");
        entry.rename(&new).expect("renamed");
        new.remove_file().expect("removed");
        assert_eq!(fs::read_dir(base.join("home")).expect("listed").count(), 1);
        for path in ["w/d/file", "w/d/x/y"] {
            let error = roots.entry_with_parents(&base.join(path)).expect_err("it is behind a link");
            assert!(is_link(&error), "{path}: {error}");
        }
        assert!(roots.directory(&base.join("w/d")).is_err_and(|error| is_link(&error)));
        let root = open_root(&base.join("w")).expect("it exists");
        assert!(step(&root, OsStr::new("d")).is_err_and(|error| error == Errno::LOOP));
        fs::rename(base.join("w"), base.join("old")).expect("renamed");
        fs::create_dir(base.join("w")).expect("made");
        let replaced = roots.entry(&base.join("w/file")).expect_err("the root is another one");
        assert!(replaced.to_string().contains("was replaced since the session began"), "{replaced}");
        assert!(roots.entry(&base.join("home/file")).is_ok(), "outside of the roots");
    }

    #[test]
    fn an_exchanged_root_is_noticed_and_its_descriptor_keeps_the_old_directory() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let base = scratch.path().canonicalize().expect("it exists");
        fs::create_dir_all(base.join("w")).expect("made");
        fs::create_dir_all(base.join("home")).expect("made");
        fs::write(base.join("w/file"), "ours").expect("written");
        let opened = open_root(&base.join("w")).expect("it exists");
        let root = Root::open(&base.join("w"));
        assert!(root.is_in_place());
        fs::rename(base.join("w"), base.join("old")).expect("renamed");
        assert!(!root.is_in_place(), "it is gone");
        symlink(base.join("home"), base.join("w")).expect("linked");
        assert!(!root.is_in_place(), "a link is there");
        assert!(open_at(&opened, Path::new("file"), READ, Mode::empty()).is_ok());
        assert!(!Root::open(&base.join("none")).is_in_place());
    }
}
