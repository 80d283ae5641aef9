//! Opens paths that no link redirects.
//!
//! Windows opens files by their paths only. So a directory is opened in a way that keeps it, and all directories above it,
//! from being renamed or removed; then the path that it was really opened at is compared with the expected one. As long as
//! it is open, its path can be used.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::fs::{MetadataExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::{Component, Path, PathBuf};

use windows_sys::Win32::Foundation::ERROR_STOPPED_ON_SYMLINK;
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_LIST_DIRECTORY, FILE_NAME_NORMALIZED, FILE_READ_ATTRIBUTES,
    FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE, GetFileInformationByHandle,
    GetFinalPathNameByHandleW,
};

use super::os::AsFd;
use super::root::FileKind;

/// The longest path, in units of UTF-16.
const PATH_UNITS_MAX: usize = 32_768;

/// The prefix with which Windows takes a path literally. Paths of opened files have it; those that users type do not.
pub(super) const VERBATIM: &str = r"\\?\";

/// Volume and index of a file: they identify the file while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    volume: u32,
    index: u64,
}

impl FileIdentity {
    /// Returns the identity of the file at a path; a link is not followed.
    pub(super) fn at(path: &Path) -> io::Result<FileIdentity> {
        let flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT;
        FileIdentity::read(
            OpenOptions::new().access_mode(FILE_READ_ATTRIBUTES).custom_flags(flags).open(path)?,
        )
    }

    pub(super) fn numbers(self) -> (u64, u64) {
        (self.volume.into(), self.index)
    }

    pub fn read(file: impl AsFd) -> io::Result<FileIdentity> {
        // SAFETY: a structure of integers.
        let mut found: BY_HANDLE_FILE_INFORMATION = unsafe { zeroed() };
        // SAFETY: the file is open, and the result is written to a local variable.
        if unsafe { GetFileInformationByHandle(file.as_fd().as_raw_handle(), &mut found) } == 0 {
            return Err(io::Error::last_os_error());
        }
        let index = u64::from(found.nFileIndexHigh) << 32 | u64::from(found.nFileIndexLow);
        Ok(FileIdentity { volume: found.dwVolumeSerialNumber, index })
    }
}

/// A workspace directory. It may be renamed.
pub(super) type RootDirectory = File;

/// Opens a workspace directory by its resolved path.
pub(super) fn open_root(path: &Path) -> io::Result<RootDirectory> {
    open_directory(path, FILE_SHARE_DELETE)
}

/// Resolves the links of a path.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// An opened directory, which is not renamed or removed while it is open, nor are those above it.
#[derive(Debug)]
struct KeptDirectory {
    _directory: File,
    path: PathBuf,
}

impl KeptDirectory {
    /// Opens a directory by its resolved path. Fails if the path contains a link.
    fn open(path: &Path) -> io::Result<KeptDirectory> {
        Ok(KeptDirectory { _directory: open_directory(path, 0)?, path: path.to_path_buf() })
    }

    fn join(&self, name: &OsStr) -> PathBuf {
        if name == "." { self.path.clone() } else { self.path.join(name) }
    }
}

/// A name in an opened directory.
#[derive(Debug)]
pub struct DirectoryEntry {
    directory: KeptDirectory,
    name: OsString,
}

impl DirectoryEntry {
    /// Returns the entry with this absolute path, which must not contain links.
    pub fn at(real: &Path) -> io::Result<DirectoryEntry> {
        DirectoryEntry::find(None, real)
    }

    /// Returns the entry with a resolved path.
    pub(super) fn find(_: Option<(&RootDirectory, &Path)>, real: &Path) -> io::Result<DirectoryEntry> {
        let directory = KeptDirectory::open(real.parent().unwrap_or(real))?;
        Ok(DirectoryEntry { directory, name: name_of(real) })
    }

    /// Like `find`, but creates missing parent directories.
    pub(super) fn with_parents(
        _: Option<(&RootDirectory, &Path)>,
        real: &Path,
    ) -> io::Result<DirectoryEntry> {
        let parent = real.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let mut missing: Vec<&Path> = parent.ancestors().collect();
        missing.reverse();
        let mut opened = None;
        for path in missing {
            opened = Some(match KeptDirectory::open(path) {
                // The one above is open, so it is created in that one.
                Err(error) if error.kind() == io::ErrorKind::NotFound => match std::fs::create_dir(path) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    Ok(()) | Err(_) => KeptDirectory::open(path)?,
                },
                found => found?,
            });
        }
        let directory = opened.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(DirectoryEntry { directory, name: name_of(real) })
    }

    /// Its directory.
    pub fn directory(&self) -> io::Result<DirectoryHandle> {
        DirectoryHandle::open(&self.directory.path)
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// The metadata of the entry; a link is not followed.
    pub fn metadata(&self) -> io::Result<Metadata> {
        std::fs::symlink_metadata(self.path())
    }

    pub fn read(&self) -> io::Result<File> {
        open_entry(&self.path(), File::options().read(true))
    }

    /// Opens an existing file and empties it.
    pub fn overwrite(&self) -> io::Result<File> {
        // Emptied only when it is known to be no link.
        let file = open_entry(&self.path(), File::options().write(true))?;
        file.set_len(0)?;
        Ok(file)
    }

    /// Opens or creates a file for appending.
    pub fn append(&self) -> io::Result<File> {
        open_entry(&self.path(), File::options().append(true).create(true))
    }

    /// Creates a file. Only its owner can read it if that is so for its directory.
    pub fn create_private(&self) -> io::Result<File> {
        open_entry(&self.path(), File::options().write(true).create_new(true))
    }

    pub fn read_link(&self) -> io::Result<PathBuf> {
        std::fs::read_link(self.path())
    }

    pub fn link_to(&self, target: &Path) -> io::Result<()> {
        match self.directory.path.join(target).is_dir() {
            true => std::os::windows::fs::symlink_dir(target, self.path()),
            false => std::os::windows::fs::symlink_file(target, self.path()),
        }
    }

    pub fn create_directory(&self) -> io::Result<()> {
        std::fs::create_dir(self.path())
    }

    /// Files have no permission bits here.
    pub fn set_mode(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    pub fn remove_file(&self) -> io::Result<()> {
        std::fs::remove_file(self.path())
    }

    pub fn remove_directory(&self) -> io::Result<()> {
        std::fs::remove_dir(self.path())
    }

    /// Gives the entry another name in its directory, and replaces what has it.
    pub fn rename_to(&self, name: &str) -> io::Result<()> {
        std::fs::rename(self.path(), self.directory.join(OsStr::new(name)))
    }

    /// Replaces the entry `to`, which must be in the same file system.
    pub fn rename(&self, to: &DirectoryEntry) -> io::Result<()> {
        std::fs::rename(self.path(), to.path())
    }
}

/// An opened directory, in which files are created.
pub struct DirectoryHandle(KeptDirectory);

impl DirectoryHandle {
    pub fn open(path: &Path) -> io::Result<DirectoryHandle> {
        KeptDirectory::open(&path.canonicalize()?).map(DirectoryHandle)
    }

    /// All files have names here.
    pub fn create_unnamed(&self, _: u32) -> io::Result<Option<File>> {
        Ok(None)
    }

    pub fn name(&self, _: &File, _: &OsStr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Creates a file. Fails if it exists.
    pub fn create(&self, name: &OsStr, _: u32) -> io::Result<File> {
        File::options().write(true).create_new(true).open(self.0.join(name))
    }

    pub fn contains(&self, name: &OsStr) -> bool {
        self.0.join(name).symlink_metadata().is_ok()
    }

    /// Renames a file, and replaces what has the name.
    pub fn rename(&self, name: &OsStr, to: &OsStr) -> io::Result<()> {
        std::fs::rename(self.0.join(name), self.0.join(to))
    }

    /// Gives a file another name. Fails if it exists.
    pub fn link(&self, name: &OsStr, to: &OsStr) -> io::Result<()> {
        std::fs::hard_link(self.0.join(name), self.0.join(to))
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }
}

/// An opened directory whose entries can be listed.
#[derive(Debug)]
pub struct OpenDirectory(KeptDirectory);

impl OpenDirectory {
    /// Opens a directory by its resolved path.
    pub(super) fn find(_: Option<(&RootDirectory, &Path)>, real: &Path) -> io::Result<OpenDirectory> {
        KeptDirectory::open(real).map(OpenDirectory)
    }

    /// Returns the names and types of its entries, unordered. Entries that disappear in the meantime are omitted.
    pub fn entries(&self) -> io::Result<Vec<(OsString, FileKind)>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.0.path)? {
            let entry = entry?;
            if let Ok(kind) = entry.file_type() {
                entries.push((entry.file_name(), FileKind::from_file_type(kind)));
            }
        }
        Ok(entries)
    }

    /// Opens a directory in this one; fails for a link.
    pub fn directory(&self, name: &OsStr) -> io::Result<OpenDirectory> {
        KeptDirectory::open(&self.0.join(name)).map(OpenDirectory)
    }

    /// Opens a regular file in this directory for reading; fails for anything else, without blocking.
    pub fn file(&self, name: &OsStr) -> io::Result<(File, Metadata)> {
        let file = open_entry(&self.0.join(name), File::options().read(true))?;
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok((file, metadata)),
            false => Err(io::Error::other("it is not a regular file")),
        }
    }

    /// The metadata of an entry; a link is not followed.
    pub fn metadata(&self, name: &OsStr) -> io::Result<Metadata> {
        std::fs::symlink_metadata(self.0.join(name))
    }
}

/// Opens a file for reading. Links are followed.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Whether an error means that a resolved path contains a link after all.
pub fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_STOPPED_ON_SYMLINK.cast_signed())
}

fn link_error() -> io::Error {
    io::Error::from_raw_os_error(ERROR_STOPPED_ON_SYMLINK.cast_signed())
}

/// Returns the last component; `.` for a drive.
fn name_of(path: &Path) -> OsString {
    path.file_name().unwrap_or(OsStr::new(".")).to_os_string()
}

/// Opens a directory by its resolved path. Fails if a part of the path is a link: it contained none when it was resolved.
/// `share` says what else others may do with it, besides reading and writing what is in it.
fn open_directory(path: &Path, share: u32) -> io::Result<File> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Without a right to read, others could rename it whatever is shared.
    let directory = OpenOptions::new()
        .access_mode(FILE_LIST_DIRECTORY | FILE_READ_ATTRIBUTES)
        .share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE | share)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
        .open(path)?;
    let metadata = directory.metadata()?;
    if metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0
        || !is_same(&final_path(&directory)?, path)
    {
        return Err(link_error());
    }
    if metadata.is_dir() { Ok(directory) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Opens an entry of a directory that is kept. Fails for a link.
fn open_entry(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path)?;
    match file.metadata()?.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT {
        0 => Ok(file),
        _ => Err(link_error()),
    }
}

/// The path of an opened file, without links.
fn final_path(file: &File) -> io::Result<PathBuf> {
    let mut path = vec![0_u16; PATH_UNITS_MAX];
    // SAFETY: the file is open, and the buffer has this length.
    let length = unsafe {
        GetFinalPathNameByHandleW(
            file.as_raw_handle(),
            path.as_mut_ptr(),
            PATH_UNITS_MAX as u32,
            FILE_NAME_NORMALIZED,
        )
    } as usize;
    match path.get(..length) {
        Some(path) if length > 0 => Ok(OsString::from_wide(path).into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether two paths are equal but for case, which file systems ignore.
fn is_same(one: &Path, other: &Path) -> bool {
    let plain = |path: &Path| {
        let text = path.components().as_path().to_string_lossy().to_lowercase();
        text.strip_prefix(VERBATIM).unwrap_or(&text).trim_end_matches('\\').to_owned()
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::root::Roots;

    #[test]
    fn a_directory_that_is_used_can_not_be_replaced() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let base = scratch.path().canonicalize().expect("it exists");
        fs::create_dir_all(base.join("w").join("d")).expect("made");
        fs::write(base.join("w").join("d").join("file"), "ours").expect("written");
        let roots = Roots::default().reopened([&*base.join("w")]);
        let entry = roots.entry(&base.join("w").join("d").join("file")).expect("it exists");
        assert!(fs::rename(base.join("w").join("d"), base.join("w").join("was")).is_err(), "it is in use");
        assert_eq!(io::read_to_string(entry.read().expect("opened")).expect("read"), "ours");
        drop(entry);
        let deep = base.join("w").join("new").join("er").join("file");
        let new = roots.entry_with_parents(&deep).expect("made");
        io::Write::write_all(&mut new.create_private().expect("created"), b"1").expect("written");
        assert!(new.create_private().is_err(), "it exists");
        drop(new);
        let listed = roots.directory(&base.join("w")).expect("it exists").entries().expect("listed");
        assert_eq!(listed.len(), 2);
        fs::rename(base.join("w"), base.join("old")).expect("renamed");
        fs::create_dir(base.join("w")).expect("made");
        let replaced = roots.entry(&base.join("w").join("file")).expect_err("the root is another one");
        assert!(replaced.to_string().contains("was replaced since the session began"), "{replaced}");
        assert!(roots.entry(&base.join("old").join("file")).is_ok(), "outside of the roots");
    }

    #[test]
    fn paths_are_compared_without_case_and_prefix() {
        assert!(is_same(Path::new(r"\\?\C:\A\b"), Path::new(r"c:\a\B")));
        assert!(!is_same(Path::new(r"C:\a"), Path::new(r"C:\ab")));
    }
}
