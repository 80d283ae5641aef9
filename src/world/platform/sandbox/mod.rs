//! The rights of a sandboxed command, and the part of them that the system can enforce. `system::sandbox` enforces it:
//! on Linux with Landlock, namespaces and seccomp, on macOS with Seatbelt.

mod support;

use std::path::{Path, PathBuf};

pub use support::{Namespaces, Support, support};

/// Maximum number of individually allowed paths. Entries beyond it, in the largest directories that contain secrets, can't
/// be read.
const ENTRIES_MAX: usize = 4_096;

/// The restrictions for the commands of one workspace. All paths exist and are canonical.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPaths {
    /// May be neither read nor changed.
    pub hidden: Vec<PathBuf>,
    /// May be read: what `all_but` finds without the hidden ones.
    pub read: Vec<PathBuf>,
    /// The hidden paths below writable ones, which Landlock can't exclude: something empty is mounted over them.
    pub covered: Vec<PathBuf>,
    /// May be changed.
    pub writable: Vec<PathBuf>,
    /// May be read and written; devices, not stored files.
    pub devices: Vec<PathBuf>,
    /// Read-only paths below writable ones.
    pub frozen: Vec<PathBuf>,
    /// Directories that can't be renamed: moving one would also move the frozen paths in it.
    pub fixed: Vec<PathBuf>,
    /// Directories in which nothing can be created, changed or removed, except inside their fixed
    /// subdirectories.
    pub closed: Vec<PathBuf>,
    /// Files in whose place the command sees a symbolic link, in the order of `links`. If that is impossible, they
    /// are frozen.
    pub replaced: Vec<PathBuf>,
    /// The paths of the links.
    pub links: Vec<PathBuf>,
}

/// Resources other than files that a command may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxAllowances {
    pub network: bool,
    /// Whether Unix sockets in the file system may be used: the daemons that listen on them run outside of every
    /// sandbox.
    pub unix_sockets: bool,
    /// Maximum number of processes and threads; `None` means no limit.
    pub processes: Option<u64>,
    /// Maximum bytes of memory that all its processes use together; `None` means no limit.
    pub memory: Option<u64>,
}

/// The sandbox of one command.
#[derive(Clone, Debug)]
pub struct Confinement {
    pub paths: SandboxPaths,
    /// The directory in which the command starts.
    pub start: PathBuf,
    pub reach: SandboxAllowances,
    pub support: Support,
}

/// The directory of all devices. It is never readable as a whole: root could otherwise read raw disks, bypassing file
/// permissions.
const ALL_DEVICES: &str = "/dev";

impl SandboxPaths {
    /// Sets what may be read: everything that is not hidden now.
    pub fn find_readable(&mut self) {
        let devices = [PathBuf::from(ALL_DEVICES)];
        self.read.clear();
        all_but(Path::new("/"), &[&self.hidden[..], &devices].concat(), &mut self.read);
    }
}

/// Appends `path` or, if it contains paths of `without`, the entries of all directories on the way to them, without these.
/// The largest directories come last, so that they do not take the place of others. Symbolic links are skipped, because
/// their targets are listed separately.
pub fn all_but(path: &Path, without: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    let (mut whole, mut directories) = (Vec::new(), Vec::new());
    let mut without: Vec<&Path> = without.iter().map(PathBuf::as_path).collect();
    without.sort_unstable();
    if without.iter().all(|without| !path.starts_with(without)) {
        sort_in(path.to_path_buf(), &without, &mut whole, &mut directories);
    }
    directories.push(whole);
    directories.sort_by_key(Vec::len);
    for mut entries in directories {
        entries.sort();
        entries.truncate(ENTRIES_MAX.saturating_sub(allowed.len()));
        allowed.append(&mut entries);
    }
}

/// Adds `path` to `whole` if it contains nothing of `without`, or a list for each directory that does to `directories`.
/// `without` is sorted, and has nothing above `path`.
fn sort_in(path: PathBuf, without: &[&Path], whole: &mut Vec<PathBuf>, directories: &mut Vec<Vec<PathBuf>>) {
    // In sorted order, the contents of a directory follow it. There may be a thousand paths, and as many entries.
    let without = &without[without.partition_point(|without| *without < path.as_path())..];
    let without = &without[..without.partition_point(|without| without.starts_with(&path))];
    match without.first() {
        None => return whole.push(path),
        Some(first) if *first == path.as_path() => return,
        Some(_) => {}
    }
    let Ok(entries) = std::fs::read_dir(&path) else { return };
    let entries = entries.flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
    let mut list = Vec::new();
    entries.for_each(|entry| sort_in(entry.path(), without, &mut list, directories));
    directories.push(list);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with more than 4,000 entries in `/tmp`, where something is hidden, `/usr` was not allowed any more: it is
    /// behind `/tmp` in the alphabet. All commands ended with "Permission denied".
    #[test]
    fn a_large_directory_leaves_room_for_others() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("it exists");
        let make = |path: &str| std::fs::create_dir_all(root.join(path)).expect("directories can be made");
        (0..ENTRIES_MAX).for_each(|number| make(&format!("large/{number}")));
        ["large/secret", "home/work", "home/secret/key", "usr/bin"].iter().for_each(|path| make(path));
        let without = ["large/secret", "home/secret"].map(|path| root.join(path));
        let mut allowed = Vec::new();
        all_but(&root, &without, &mut allowed);
        assert_eq!(allowed.len(), ENTRIES_MAX);
        assert_eq!(allowed[..2], ["home/work", "usr"].map(|path| root.join(path)));
        assert!(allowed[2..].iter().all(|path| path.starts_with(root.join("large"))));
        assert!(!allowed.iter().any(|path| without.iter().any(|without| path.starts_with(without))));
    }
}
