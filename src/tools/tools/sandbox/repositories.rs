//! Finds the repositories of a workspace, and the files that programs execute automatically. A command may not change
//! them even though it may change the workspace. Reads the disk.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::git_links::Linked;
use super::link_guard::SharedLinks;
use crate::buffers::DiskStamp;
use crate::permission::later::runs_unasked;
use crate::real_path;
use epitome_platform::root::resolve;

/// Levels of directories below a root that are searched. Repositories are often checked out side by side, or below a
/// directory for vendored ones.
const LEVELS: usize = 3;

/// Maximum number of directories per search, upper ones first.
const DIRECTORIES_MAX: usize = 2_048;

/// The same for hidden directories of homes.
const DIRECTORIES_OF_HOME_MAX: usize = 4_096;

/// Directories of a home that have many others, and in which links lead to files of the same package.
const PACKAGES: [&str; 7] =
    [".git", "node_modules", "site-packages", "registry", "toolchains", "_cacache", "Trash"];

/// The entries found so far in the directories of a workspace. A found entry stays protected while it exists, however
/// many directories a command creates.
#[derive(Debug, Default)]
pub struct FoundRepositories {
    state: Mutex<RepositoryState>,
    /// The directories of homes in which links were looked for.
    homes: Mutex<HashMap<PathBuf, ScannedDirectory>>,
    pub(super) links: Arc<SharedLinks>,
}

#[derive(Debug, Default)]
struct RepositoryState {
    read: HashMap<PathBuf, ScannedDirectory>,
    entries: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
struct ScannedDirectory {
    /// `None` if it had just changed, and might change again without another stamp.
    stamp: Option<DiskStamp>,
    inner: Vec<PathBuf>,
    entries: Vec<PathBuf>,
    /// What symbolic links lead to.
    targets: Vec<PathBuf>,
}

impl FoundRepositories {
    /// Returns what symbolic links in these directories lead to, and those in their directories if these are `searched`.
    pub fn targets(&self, searched: Vec<PathBuf>, others: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
        let mut read = self.homes.lock();
        let mut found: BTreeSet<PathBuf> = BTreeSet::new();
        let mut level: Vec<PathBuf> = others.collect();
        let mut looked_at = HashSet::new();
        for depth in 0..=LEVELS + 1 {
            let mut next = if depth == 0 { searched.clone() } else { Vec::new() };
            for path in level {
                if looked_at.len() >= DIRECTORIES_OF_HOME_MAX || looked_at.contains(&path) {
                    continue;
                }
                if let Some(directory) = look(&mut read, &path, ScannedDirectory::of_home) {
                    found.extend(directory.targets.iter().cloned());
                    next.extend(directory.inner.iter().filter(|_| depth > 0).cloned());
                }
                looked_at.insert(path);
            }
            level = next;
        }
        read.retain(|path, _| looked_at.contains(path));
        found.into_iter().collect()
    }

    /// Returns the paths of `.git` entries and of files and directories that are executed later, at and below the
    /// roots, in order. They may be links. Includes the `.git` entries of submodules at any depth. Takes a
    /// millisecond per thousand unchanged directories.
    pub fn entries<'a>(&self, roots: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
        let mut state = self.state.lock();
        let mut level: Vec<PathBuf> = roots.map(Path::to_path_buf).collect();
        let mut looked_at = HashSet::new();
        for _ in 0..=LEVELS {
            let mut next = Vec::new();
            for path in level {
                if looked_at.len() >= DIRECTORIES_MAX || looked_at.contains(&path) {
                    continue;
                }
                if let Some(directory) = look(&mut state.read, &path, ScannedDirectory::of_workspace) {
                    next.extend(directory.inner.iter().cloned());
                    let entries = directory.entries.clone();
                    state.entries.extend(entries);
                }
                looked_at.insert(path);
            }
            level = next;
        }
        state.read.retain(|path, _| looked_at.contains(path));
        // A directory may have become a link since; its target has another path.
        let is_there = |path: &Path| {
            let above = path.parent().and_then(|above| Some((above, resolve(above).ok()?)));
            above.is_some_and(|(above, real)| above == real) && path.symlink_metadata().is_ok()
        };
        state.entries.retain(|path| is_there(path));
        let entries = &mut state.entries;
        let mut links = self.links.cache.lock();
        let is_git = |path: &&PathBuf| path.ends_with(".git");
        let worktrees = entries.iter().filter(is_git).filter_map(|git| git.parent());
        let linked: Vec<PathBuf> = Linked::find(worktrees, &mut links).entries().collect();
        entries.extend(linked.into_iter().filter(|path| is_there(path)));
        entries.iter().cloned().collect()
    }
}

/// Returns the directory, read again if it has changed.
fn look<'a>(
    known: &'a mut HashMap<PathBuf, ScannedDirectory>,
    path: &Path,
    sort: impl Fn(&mut ScannedDirectory, &DirEntry),
) -> Option<&'a ScannedDirectory> {
    let metadata = path.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
    let stamp = DiskStamp::of(&metadata);
    if known.get(path).is_none_or(|directory| directory.stamp != Some(stamp)) {
        let mut directory = ScannedDirectory {
            stamp: Some(stamp).filter(DiskStamp::is_settled),
            ..ScannedDirectory::default()
        };
        std::fs::read_dir(path).ok()?.flatten().for_each(|entry| sort(&mut directory, &entry));
        directory.inner.sort();
        known.insert(path.to_path_buf(), directory);
    }
    known.get(path)
}

impl ScannedDirectory {
    fn of_workspace(&mut self, entry: &DirEntry) {
        if runs_unasked(&entry.file_name().to_string_lossy()) {
            self.entries.push(entry.path());
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            self.inner.push(entry.path());
        }
    }

    fn of_home(&mut self, entry: &DirEntry) {
        let Ok(kind) = entry.file_type() else { return };
        if kind.is_symlink() {
            self.targets.push(real_path(&entry.path()));
        } else if kind.is_dir() && !PACKAGES.iter().any(|name| entry.file_name() == *name) {
            self.inner.push(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The user works in the parent directory of several repositories: a command could change the hooks of each of
    /// them.
    #[test]
    fn repositories_are_found_three_levels_down_and_stay_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it exists");
        for path in [".git/x/.git", "one/.git", "a/b/c/.git", "a/b/c/d/.git", "one/src/.vscode", "z/lib/.git"]
        {
            fs::create_dir_all(root.join(path)).expect("made");
        }
        fs::write(root.join("one/.envrc"), "").expect("written");
        let found = FoundRepositories::default();
        let entries = || -> Vec<String> {
            let below = |path: &PathBuf| Some(path.strip_prefix(&root).ok()?.display().to_string());
            found.entries(std::iter::once(root.as_path())).iter().filter_map(below).collect()
        };
        let expected = [".git", "a/b/c/.git", "one/.envrc", "one/.git", "one/src/.vscode", "z/lib/.git"];
        assert_eq!(entries(), expected);
        for number in 0..DIRECTORIES_MAX + 10 {
            fs::create_dir(root.join(format!("many{number}"))).expect("made");
        }
        assert_eq!(entries(), expected, "more directories than one look goes through");
        fs::remove_file(root.join("one/.envrc")).expect("removed");
        fs::create_dir(root.join(".idea")).expect("made");
        let expected = [".git", ".idea", "a/b/c/.git", "one/.git", "one/src/.vscode", "z/lib/.git"];
        assert_eq!(entries(), expected);
        // No command could be started any more: the path of a protected file led through a link.
        fs::rename(root.join("one"), root.join("two")).expect("renamed");
        std::os::unix::fs::symlink(root.join("two"), root.join("one")).expect("linked");
        let expected = [".git", ".idea", "a/b/c/.git", "z/lib/.git"];
        assert!(entries().iter().filter(|path| !path.starts_with("two")).eq(expected.iter().copied()));
    }
}
