//! The disk operations of durable files, as a trait: tests replace the disk with a simulated one that fails and loses
//! power.
//!
//! It makes no decision about durability. Each operation is one step that can fail or be lost independently, except
//! [`Disk::put`], which is the sequence of steps that writes a file atomically.

use epitome_platform::os::{self, FileExt, MetadataExt, OpenOptionsExt};
use std::fmt::Debug;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::atomic_file;

/// A file system. All files are private to their owner.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file for reading and appending.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>>;
    /// Reads at most `most` bytes of a file.
    fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        self.read_range(path, 0..most)
    }
    /// Reads the bytes of a file that are in this range.
    fn read_range(&self, path: &Path, range: Range<u64>) -> io::Result<Vec<u8>>;
    /// Returns the metadata of a file or directory without following a link.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;
    /// Returns the names in a directory, sorted, without those that are not UTF-8.
    fn names(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Returns the names in a directory that end with `suffix`, sorted, with the metadata of each. Leaves out what is
    /// removed in the meantime.
    fn stats(&self, directory: &Path, suffix: &str) -> io::Result<Vec<(String, FileStat)>> {
        let names = self.names(directory)?.into_iter().filter(|name| name.ends_with(suffix));
        let stat = |name: String| self.stat(&directory.join(&name)).ok().map(|stat| (name, stat));
        Ok(names.filter_map(stat).collect())
    }
    /// Creates a directory and its parents.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// Writes a file that appears with its complete content or not at all. Its name is durable after the directory is
    /// synced; its content is so at once, except with [`PutMode::Unsynced`].
    fn put(&self, path: &Path, bytes: &[u8], mode: PutMode) -> io::Result<()>;
    /// Gives a file an additional name, which must be unused.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with its contents.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Makes the content of files durable that were put unsynced and are in one file system.
    fn sync_files(&self, paths: &[PathBuf]) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync {
    /// Takes the file's exclusive lock, which is released with its last descriptor; `false` if another process has
    /// it.
    fn try_lock(&self) -> io::Result<bool>;
    fn unlock(&self) -> io::Result<()>;
    /// Reads the complete file.
    fn read(&self) -> io::Result<Vec<u8>>;
    /// Appends all bytes with one write if possible; after an error, a part of them may have been written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Overwrites bytes. Only for files opened with `OpenMode::Overwrite`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Makes the content durable.
    fn sync(&self) -> io::Result<()>;
    fn stat(&self) -> io::Result<FileStat>;
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist.
    Append,
    /// The file must not exist.
    AppendNew,
    /// Creates the file if it does not exist.
    AppendOrNew,
    /// Creates the file if it does not exist; it is written with `write_at` instead of appended to.
    Overwrite,
}

/// Whether the file may already exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    Replace,
    New,
    /// Replaces a file, and doesn't wait until the content is on the disk.
    Unsynced,
}

/// The metadata of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Identifies the file, independently of its name.
    pub id: FileId,
    pub is_file: bool,
    pub bytes: u64,
    /// The number of hard links.
    pub links: u64,
    /// The time of the last change, in milliseconds since the Unix epoch. Programs can set it back.
    pub changed_at: u64,
    /// The same, also of its attributes. On Unix, programs can't set it back.
    pub touched_at: u64,
}

/// The device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// The machine's file system.
#[derive(Clone, Copy, Debug)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.mode(0o600).read(true);
        match mode {
            OpenMode::Append => options.append(true),
            OpenMode::AppendNew => options.append(true).create_new(true),
            OpenMode::AppendOrNew => options.append(true).create(true),
            OpenMode::Overwrite => options.write(true).create(true).truncate(false),
        };
        Ok(Box::new(options.open(path)?))
    }

    fn read_range(&self, path: &Path, Range { start, end }: Range<u64>) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len().min(end).saturating_sub(start);
        let mut bytes = room_for(length)?;
        file.seek(SeekFrom::Start(start))?;
        file.take(end.saturating_sub(start)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(stat_of(&metadata, os::id_at(|| path.to_path_buf(), &metadata)))
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for file in std::fs::read_dir(directory)? {
            names.extend(file?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn stats(&self, directory: &Path, suffix: &str) -> io::Result<Vec<(String, FileStat)>> {
        let mut found = Vec::new();
        for file in std::fs::read_dir(directory)? {
            let file = file?;
            let Some(name) = file.file_name().into_string().ok().filter(|name| name.ends_with(suffix)) else {
                continue;
            };
            // Relative to the directory, which costs less than a path.
            found.extend(file.metadata().ok().map(|metadata| {
                let id = os::id_at(|| file.path(), &metadata);
                (name, stat_of(&metadata, id))
            }));
        }
        found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        atomic_file::private_directory(path)
    }

    fn put(&self, path: &Path, bytes: &[u8], mode: PutMode) -> io::Result<()> {
        match mode {
            PutMode::Replace => atomic_file::replace_private(path, bytes),
            PutMode::New => atomic_file::create_private(path, bytes),
            PutMode::Unsynced => atomic_file::replace_private_unsynced(path, bytes),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn sync_files(&self, paths: &[PathBuf]) -> io::Result<()> {
        epitome_platform::disk::sync_paths(paths)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match epitome_platform::disk::sync_names(path) {
            // Some network file systems don't support this.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

/// An empty buffer for a file of this length. Fails if there is not that much memory, instead of ending the process.
fn room_for(length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    Ok(bytes)
}

impl DiskFile for File {
    fn try_lock(&self) -> io::Result<bool> {
        match os::try_lock(self) {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        os::unlock(self)
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut file = self;
        file.rewind()?;
        let mut bytes = room_for(self.metadata()?.len())?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self;
        // Normally one `write(2)`; a second one follows only after a partial write, to get its error.
        file.write_all(bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        File::set_len(self, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn stat(&self) -> io::Result<FileStat> {
        let metadata = self.metadata()?;
        Ok(stat_of(&metadata, os::id_of(self, &metadata)))
    }
}

fn stat_of(metadata: &Metadata, (device, inode): (u64, u64)) -> FileStat {
    let changed = metadata.modified().ok().and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
    FileStat {
        id: FileId { device, inode },
        is_file: metadata.is_file(),
        bytes: metadata.len(),
        links: metadata.nlink(),
        changed_at: changed.unwrap_or(Duration::ZERO).as_millis() as u64,
        touched_at: (metadata.ctime().max(0) as u64) * 1_000 + metadata.ctime_nsec() as u64 / 1_000_000,
    }
}
