//! Reports which entries of a directory have changed, so that nobody has to look at each of them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::{Errno, ioctl_fionread};

/// Bytes of events per read.
pub(super) const EVENTS_BYTES: usize = 16 * 1024;

/// Most events between two calls. The kernel keeps as many by default, so more come faster than they are read.
const EVENTS_MAX: usize = 16_384;

/// File systems whose changes the kernel reports completely: no other machine changes them. The names are ext2 to ext4,
/// XFS, Btrfs, bcachefs, F2FS, ZFS, tmpfs and overlayfs.
const LOCAL: [u32; 8] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xCA45_1A4E, 0xF2F5_2010, 0x2FC1_2FC1, 0x0102_1994, 0x794C_7630];

/// Watches a directory from its creation on, until the directory is moved, replaced or removed.
#[derive(Debug)]
pub struct DirectoryWatch {
    changes: OwnedFd,
    directory: PathBuf,
    identity: (u64, u64),
}

impl DirectoryWatch {
    /// Fails if changes may go unreported, as on a network file system.
    pub fn new(directory: &Path) -> io::Result<DirectoryWatch> {
        let identity = identity(directory)?;
        if !is_local(directory)? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let changes = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let kinds = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        add_watch(&changes, directory, kinds)?;
        let watch = DirectoryWatch { changes, directory: directory.to_path_buf(), identity };
        if watch.is_in_place() { Ok(watch) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// The names of entries that were created, written, renamed or removed since the last call. `None` if more may have
    /// changed; then a new watch is needed.
    pub fn changed(&self) -> Option<BTreeSet<OsString>> {
        let mut names = BTreeSet::new();
        let mut space = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = Reader::new(&self.changes, &mut space);
        for _ in 0..EVENTS_MAX {
            match events.next() {
                Ok(event) if event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED) => {
                    return None;
                }
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    names.extend(name.filter(|name| !names.contains(*name)).map(OsStr::to_owned));
                }
                Err(Errno::AGAIN) => return self.is_in_place().then_some(names),
                Err(_) => return None,
            }
        }
        None
    }

    /// Whether there are changes for `changed` to report, at the cost of one system call.
    pub fn has_changes(&self) -> bool {
        ioctl_fionread(&self.changes).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the path still leads to the directory that is watched.
    fn is_in_place(&self) -> bool {
        identity(&self.directory).is_ok_and(|found| found == self.identity)
    }
}

/// Whether the kernel reports all changes of a directory.
pub(super) fn is_local(directory: &Path) -> io::Result<bool> {
    Ok(LOCAL.contains(&(rustix::fs::statfs(directory)?.f_type as u32)))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn changes_of_entries_are_reported_once_by_name() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let directory = parent.path().join("watched");
        fs::create_dir(&directory).expect("created");
        let path = |name: &str| directory.join(name);
        for name in ["appended", "cut", "moved", "removed", "untouched"] {
            fs::write(path(name), "text").expect("written");
        }
        let watch = DirectoryWatch::new(&directory).expect("a local file system");
        let changed = || watch.changed().map(|names| names.into_iter().collect::<Vec<_>>());
        assert_eq!(changed(), Some(Vec::new()));
        assert!(!watch.has_changes());

        let mut open = fs::OpenOptions::new().append(true).open(path("appended")).expect("opened");
        open.write_all(b"more").expect("appended");
        fs::OpenOptions::new().write(true).open(path("cut")).expect("opened").set_len(1).expect("cut");
        fs::hard_link(path("untouched"), path("linked")).expect("linked");
        fs::rename(path("moved"), path("new")).expect("renamed");
        fs::remove_file(path("removed")).expect("removed");
        fs::read(path("untouched")).expect("read");
        let all = ["appended", "cut", "linked", "moved", "new", "removed"].map(OsString::from);
        assert_eq!(changed(), Some(all.into()));
        open.write_all(b"more").expect("appended");
        assert!(watch.has_changes());
        assert_eq!(changed(), Some(vec!["appended".into()]));

        // Nothing of the directory itself has changed.
        fs::rename(&directory, parent.path().join("old")).expect("renamed");
        fs::create_dir(&directory).expect("created");
        assert_eq!(changed(), None);
    }

    #[test]
    fn a_removed_directory_and_more_events_than_the_kernel_keeps_end_a_watch() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let files = ["a", "b"].map(|name| fs::File::create(directory.path().join(name)).expect("created"));
        let watch = DirectoryWatch::new(directory.path()).expect("a local file system");
        // Events of the same file in succession are merged.
        for _ in 0..=EVENTS_MAX {
            files.iter().for_each(|mut file| file.write_all(b"x").expect("appended"));
        }
        assert_eq!(watch.changed(), None);

        let watch = DirectoryWatch::new(directory.path()).expect("a local file system");
        drop(directory);
        assert_eq!(watch.changed(), None);
    }

    #[test]
    fn changes_of_other_file_systems_are_not_known() {
        let error = DirectoryWatch::new(Path::new("/proc/self")).expect_err("it is not in the list");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
