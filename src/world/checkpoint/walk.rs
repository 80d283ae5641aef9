//! Lists everything in a workspace that isn't ignored, each path once and with its metadata. Opens only ignore files,
//! and follows no links.

use epitome_platform::os::OsStrExt;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ignore::{DirEntry, WalkBuilder, WalkState};
use parking_lot::Mutex;

use super::TEMPORARY;
use super::node;
use super::scan::ScanScope;

/// Number of threads. More would take CPU time from other processes.
const THREADS: usize = 2;

/// Maximum number of paths that one thread lists. Starting more threads takes longer than listing so few, and each looks
/// only every millisecond whether the others are done.
const FEW_PATHS: usize = 500;

const IGNORE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Directories of version control systems, whose state belongs to the user.
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".svn", ".jj"];

/// The result of a walk.
#[derive(Default)]
pub struct Walked {
    /// Sorted by `order`.
    pub paths: Vec<(PathBuf, Metadata)>,
    /// Number of unreadable directories and other errors.
    pub unread: u64,
    /// Whether it was stopped because it took too long.
    pub is_late: bool,
    /// Whether there are more paths than the limit.
    pub is_over: bool,
}

/// The order of paths in a scan: directories precede their contents. Compares bytes, because comparing components
/// takes ten times as long.
pub fn order(a: &Path, b: &Path) -> Ordering {
    a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes())
}

/// Lists a workspace, at most until the given time. `expected` is the number of paths that the scan before found.
pub fn walk(scope: &ScanScope<'_>, expected: usize, until: Instant) -> Walked {
    if scope.roots.iter().any(|root| blocks(root)) {
        return Walked { unread: 1, ..Walked::default() };
    }
    let Some(builder) = builder(scope) else { return Walked::default() };
    let paths_max = scope.bounds.paths;
    let mut walked = Walked { is_over: true, ..Walked::default() };
    if expected < FEW_PATHS {
        walked = in_order(builder.clone(), scope, FEW_PATHS.min(paths_max), until);
    }
    if walked.is_over && expected < paths_max {
        walked = at_once(&builder, scope, until);
    }
    if walked.is_over {
        // Each scan must omit the same paths.
        walked = in_order(builder, scope, paths_max, until);
    }
    walked.paths.sort_unstable_by(|(a, _), (b, _)| order(a, b));
    walked
}

/// Lists with several threads, in any order.
fn at_once(builder: &WalkBuilder, scope: &ScanScope<'_>, until: Instant) -> Walked {
    let all = Mutex::new(Walked::default());
    builder.build_parallel().run(|| {
        Box::new(|entry| {
            let found = read_entry(entry);
            let mut walked = all.lock();
            walked.take(found);
            walked.is_over |= walked.paths.len() > scope.bounds.paths;
            walked.is_late |= Instant::now() >= until;
            if walked.is_over || walked.is_late { WalkState::Quit } else { WalkState::Continue }
        })
    });
    let mut walked = all.into_inner();
    if scope.roots.len() > 1 {
        // The roots may overlap.
        walked.paths.sort_unstable_by(|(a, _), (b, _)| order(a, b));
        walked.paths.dedup_by(|(a, _), (b, _)| a == b);
    }
    walked
}

/// Lists in path order, up to a number of paths.
fn in_order(mut builder: WalkBuilder, scope: &ScanScope<'_>, paths_max: usize, until: Instant) -> Walked {
    let mut walked = Walked::default();
    let mut known: HashSet<PathBuf> = HashSet::new();
    for entry in builder.sort_by_file_name(OsStr::cmp).build() {
        if Instant::now() >= until {
            walked.is_late = true;
            break;
        }
        let found = read_entry(entry);
        if let Ok(Some((path, _))) = &found {
            // The roots may overlap.
            if scope.roots.len() > 1 && !known.insert(path.clone()) {
                continue;
            }
            if walked.paths.len() >= paths_max {
                walked.is_over = true;
                break;
            }
        }
        walked.take(found);
    }
    walked
}

impl Walked {
    fn take(&mut self, found: io::Result<Option<(PathBuf, Metadata)>>) {
        match found {
            Ok(found) => self.paths.extend(found),
            Err(_) => self.unread += 1,
        }
    }
}

/// Returns the path and its metadata; `None` for what isn't a part of a scan.
fn read_entry(entry: Result<DirEntry, ignore::Error>) -> io::Result<Option<(PathBuf, Metadata)>> {
    let entry = entry.map_err(io::Error::other)?;
    if entry.depth() == 0 || is_ours(entry.path()) {
        return Ok(None);
    }
    let path = entry.into_path();
    match std::fs::symlink_metadata(&path) {
        Err(error) if node::is_absence(&error) => Ok(None),
        found => Ok(Some((path, found?))),
    }
}

/// Returns `None` if there are no roots.
fn builder(scope: &ScanScope<'_>) -> Option<WalkBuilder> {
    let (first, others) = scope.roots.split_first()?;
    let excluded = scope.excluded.to_path_buf();
    let mut builder = WalkBuilder::new(first);
    for root in others {
        builder.add(root);
    }
    builder
        .hidden(false)
        .follow_links(false)
        // The global file is that of the daemon's environment, not of the session's.
        .git_global(false)
        .require_git(false)
        .threads(THREADS)
        .filter_entry(move |entry| {
            let is_foreign = || VERSION_CONTROL.iter().any(|name| entry.file_name() == *name);
            let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
            entry.depth() == 0
                || !(is_foreign() || entry.path() == excluded || (is_directory && blocks(entry.path())))
        });
    Some(builder)
}

/// Whether an ignore file of a directory can't be read safely: it is a pipe, a device or huge.
fn blocks(directory: &Path) -> bool {
    [".ignore", ".gitignore", ".git/info/exclude"].iter().any(|name| {
        let file = std::fs::metadata(directory.join(name));
        file.is_ok_and(|file| !file.is_dir() && (!file.is_file() || file.len() > IGNORE_BYTES_MAX))
    })
}

/// Whether a path is one of Epitome's temporary files.
fn is_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.as_bytes();
        name.starts_with(TEMPORARY.as_bytes()) && name.ends_with(b".tmp")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::Bounds;

    /// A named pipe `.ignore` made the scan before each command wait forever for a writer.
    #[test]
    fn an_ignore_file_that_is_a_pipe_is_not_waited_for() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let root = scratch.path().canonicalize().expect("it is there");
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::write(root.join("a"), "").expect("written");
        let made = std::process::Command::new("mkfifo").arg(root.join("sub/.ignore")).status();
        assert!(made.expect("mkfifo runs").success());
        let (roots, bounds) = ([root.clone()], Bounds::default());
        let scope = ScanScope { roots: &roots, excluded: Path::new("/none"), bounds: &bounds };
        let until = Instant::now() + Duration::from_secs(30);
        let paths = walk(&scope, 0, until).paths;
        assert_eq!(paths.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(), [root.join("a")]);
    }
}
