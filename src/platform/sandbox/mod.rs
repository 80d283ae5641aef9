//! What the sandbox of a command allows, and what the system can enforce of it. `system::sandbox` enforces it: on Linux
//! with Landlock, namespaces and seccomp, on macOS with Seatbelt.

mod support;

use std::path::{Path, PathBuf};

pub use support::{Namespaces, Support, support};

/// Maximum number of individually allowed paths. Entries beyond it, in a directory that contains secrets, can't be
/// read.
const ENTRIES_MAX: usize = 4_096;

/// The restrictions for the commands of one workspace. All paths exist and are canonical.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPaths {
    /// May be neither read nor changed.
    pub hidden: Vec<PathBuf>,
    /// The hidden paths below writable ones, which Landlock can't exclude: something empty is mounted over them.
    pub covered: Vec<PathBuf>,
    /// May be changed.
    pub writable: Vec<PathBuf>,
    /// May be read and written; devices, not stored files.
    pub devices: Vec<PathBuf>,
    /// Below writable paths, but read-only.
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
    pub places: SandboxPaths,
    /// The directory in which the command starts.
    pub start: PathBuf,
    pub reach: SandboxAllowances,
    pub support: Support,
}

/// Appends `path` or, if it contains paths of `without`, its entries recursively in the same way. Symbolic links are
/// skipped, because their targets are listed separately.
pub fn all_but(path: &Path, without: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    if without.iter().any(|without| path.starts_with(without)) || allowed.len() >= ENTRIES_MAX {
        return;
    }
    if !without.iter().any(|without| without.starts_with(path)) {
        return allowed.push(path.to_path_buf());
    }
    let Ok(entries) = std::fs::read_dir(path) else { return };
    let mut entries: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()))
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for entry in entries {
        all_but(&entry, without, allowed);
    }
}
