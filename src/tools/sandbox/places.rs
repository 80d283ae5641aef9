//! Determines which paths a command may read, change or not see at all. Reads the disk and decides;
//! enforcement is elsewhere.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Namespaces, Rules, Support};
use crate::Workspace;
use crate::permission::{DIRECTORIES_THAT_RUN, FILES_THAT_RUN};
use crate::secret_places::SecretPlaces;
use epitome_files::atomic_file::AtomicFile;
use epitome_platform::sandbox::{Places, all_but};

/// Paths below a home directory where package managers and compilers cache downloads and builds. If a file
/// next to the cache is executed when programs start, the entry is narrowed to exclude that file.
const CACHES_IN_HOME: [&str; 24] = [
    ".cache",
    ".cargo/registry",
    ".cargo/git",
    ".cargo/.package-cache",
    ".cargo/.package-cache-mutate",
    ".cargo/.global-cache",
    ".npm",
    ".pnpm-store",
    ".local/share/pnpm/store",
    ".yarn/berry/cache",
    ".bun/install/cache",
    ".gradle/caches",
    ".gradle/daemon",
    ".m2/repository",
    ".ivy2/cache",
    "go/pkg",
    ".nuget/packages",
    ".bundle/cache",
    ".cabal/packages",
    ".composer/cache",
    ".conda/pkgs",
    ".julia/compiled",
    ".hex/packages",
    ".pub-cache/hosted",
];

/// Devices that every program may use; no others can be read.
const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];

/// Entries of a Git directory that make Git execute something: hooks, the configuration, and the file that
/// names another directory for both.
const OF_GIT: [&str; 4] = ["hooks", "config", OF_WORKTREES, COMMON];

/// Configuration of a single worktree; Git reads it if `extensions.worktreeConfig` is set.
const OF_WORKTREES: &str = "config.worktree";

/// Names the directory with a repository's configuration and hooks if that is a different one, as for a
/// worktree.
const COMMON: &str = "commondir";

/// Content for a `commondir` file that was missing: the same directory. Git also accepts ".", but libgit2
/// then finds no repository.
const COMMON_TEXT: &str = "./\n";

/// Mode of created files; readable by others, like the files that Git writes.
const READABLE: u32 = 0o644;

/// Maximum number of submodules and worktrees of a repository that are looked up.
const MODULES_MAX: usize = 64;

/// Depth of the search for submodules: their paths are module names, which may contain slashes.
const MODULES_DEPTH_MAX: usize = 4;

pub(super) fn find(rules: &Rules, workspace: &Workspace, support: &Support) -> Places {
    let home = workspace.home();
    let in_home = |names: &[&str]| -> Vec<PathBuf> {
        home.iter().flat_map(|home| names.iter().map(|name| home.join(name))).collect()
    };
    let mut hidden = SecretPlaces::find(home.as_deref()).paths().to_vec();
    hidden.extend(real(rules.hide.clone()));
    hidden.sort();
    hidden.dedup();

    let real_home = home.as_ref().and_then(|home| home.canonicalize().ok());
    // A session in `/` or above the home directory: that can't all be the workspace.
    let is_too_wide = |root: &PathBuf| {
        root.parent().is_none()
            || real_home.as_ref().is_some_and(|home| home != root && home.starts_with(root))
    };
    let mut roots = real(std::iter::once(workspace.cwd.clone()).chain(workspace.directories.clone()));
    roots.retain(|root| !is_too_wide(root));
    let gits = roots.iter().filter_map(|root| git_directory(root)).collect::<Vec<_>>();

    let mut places = Places { devices: real(DEVICES.map(PathBuf::from)), hidden, ..Places::default() };
    for root in &roots {
        freeze(&mut places, root);
    }
    for git in &gits {
        freeze_git(&mut places, git, support);
    }
    let temporary = real(temporary(rules, workspace));
    let mut wide = roots;
    wide.extend(gits);
    let mut rest = real(in_home(&CACHES_IN_HOME));
    rest.extend(real(rules.write.clone()));
    // Hidden paths take precedence over caches and configured writable paths.
    rest.retain(|path| !places.hidden.iter().any(|hidden| path.starts_with(hidden)));
    let is_below = |hidden: &PathBuf, above: &[PathBuf]| above.iter().any(|path| hidden.starts_with(path));
    match support.namespaces {
        Namespaces::OfAdministrator | Namespaces::OfUser => {
            wide.extend(temporary);
            wide.extend(rest);
            let covered = places.hidden.iter().filter(|hidden| is_below(hidden, &wide));
            places.covered = covered.cloned().collect();
            places.writable = wide;
        }
        Namespaces::None => {
            // Nothing can be excluded below a writable directory: hidden paths stay hidden, and their
            // siblings can be changed, but none can be created. That would make the temporary directory
            // useless, so there the hidden paths are given up instead.
            for path in wide.iter().chain(&rest) {
                all_but(path, &places.hidden, &mut places.writable);
            }
            places.hidden.retain(|hidden| !is_below(hidden, &temporary));
            places.writable.extend(temporary);
            places.frozen.clear();
            places.fixed.clear();
            places.closed.clear();
        }
    }
    places
}

/// Freezes existing files and directories of a workspace directory that are executed later.
fn freeze(places: &mut Places, root: &Path) {
    let directories = DIRECTORIES_THAT_RUN.iter().filter(|name| **name != ".git");
    for name in directories.chain(&FILES_THAT_RUN) {
        let path = root.join(name);
        // A link can't be mounted over, and its target is elsewhere.
        if path.symlink_metadata().is_ok_and(|file| !file.file_type().is_symlink()) {
            places.frozen.push(path);
        }
    }
    let git = root.join(".git");
    if git.symlink_metadata().is_ok_and(|file| file.is_file()) {
        places.frozen.push(git);
    }
}

/// Freezes entries that make Git execute something, in a Git directory, its submodules and its worktrees.
fn freeze_git(places: &mut Places, git: &Path, support: &Support) {
    let has_namespaces = support.namespaces != Namespaces::None;
    let mut found = Vec::new();
    modules(&git.join("modules"), MODULES_DEPTH_MAX, &mut found);
    if is_placed_by_its_settings(git) {
        if has_namespaces {
            // Git creates it with the first commit in a worktree, which would fail in a closed directory.
            let _ = std::fs::create_dir(git.join("logs"));
        }
        let inner = directories(git).filter(|path| !path.ends_with("hooks"));
        places.fixed.extend(inner.chain([git.to_path_buf()]));
        places.closed.push(git.to_path_buf());
    } else {
        found.insert(0, git.to_path_buf());
    }
    for own in found {
        if has_namespaces {
            complete(&own);
        }
        freeze_in(places, &own, &OF_GIT);
        fix_below(places, git, &own);
    }
    for own in directories(&git.join("worktrees")).take(MODULES_MAX) {
        if has_namespaces && is_true(git, "extensions", "worktreeconfig") {
            put_new(&own.join(OF_WORKTREES), "");
        }
        freeze_in(places, &own, &[COMMON, OF_WORKTREES]);
        fix_below(places, git, &own);
    }
    places.fixed.sort();
    places.fixed.dedup();
}

fn freeze_in(places: &mut Places, directory: &Path, names: &[&str]) {
    let there = |path: &PathBuf| path.symlink_metadata().is_ok_and(|file| !file.file_type().is_symlink());
    places.frozen.extend(names.iter().map(|name| directory.join(name)).filter(there));
}

/// Fixes a directory and its parents up to `git`: renaming any of them would move it out of the way.
fn fix_below(places: &mut Places, git: &Path, directory: &Path) {
    let above = directory.ancestors().take_while(|path| path.starts_with(git));
    places.fixed.extend(above.map(PathBuf::from));
}

/// Creates the missing entries through which a command could make Git execute something, because only
/// existing paths can be frozen. They are left in place, because a mount ends with the file below it.
fn complete(git: &Path) {
    // Git itself creates this directory in most repositories.
    let _ = std::fs::create_dir(git.join("hooks"));
    put_new(&git.join(COMMON), COMMON_TEXT);
    if is_true(git, "extensions", "worktreeconfig") {
        put_new(&git.join(OF_WORKTREES), "");
    }
}

/// Creates a file if the path doesn't exist. If that fails, a command can't create it either.
fn put_new(path: &Path, text: &str) {
    let Some(directory) = path.parent().filter(|_| path.symlink_metadata().is_err()) else { return };
    let put = AtomicFile::begin(directory, READABLE).and_then(|mut new| {
        new.file().write_all(text.as_bytes())?;
        new.put_new(path)
    });
    if let Err(error) = put {
        tracing::debug!(path = %path.display(), %error, "not put there to be frozen");
    }
}

/// Whether a repository's configuration makes it bare or sets another work tree. Git honours that only
/// without a `commondir`, or if each worktree has its own configuration.
fn is_placed_by_its_settings(git: &Path) -> bool {
    (is_true(git, "core", "bare") || setting(git, "core", "worktree").is_some())
        && !is_true(git, "extensions", "worktreeconfig")
}

fn is_true(git: &Path, section: &str, key: &str) -> bool {
    setting(git, section, key).is_some_and(|value| {
        matches!(value.as_str(), "true" | "yes" | "on") || value.parse().is_ok_and(|number: i64| number != 0)
    })
}

/// The last value of this key in a repository's own configuration, in lower case.
fn setting(git: &Path, section: &str, key: &str) -> Option<String> {
    let text = std::fs::read(git.join("config")).ok()?;
    let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
    let (mut is_in_section, mut found) = (false, None);
    for line in text.lines() {
        let mut line = line.trim();
        if let Some((header, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            is_in_section = header.trim() == section;
            line = rest.trim();
        }
        let line = line.split(['#', ';']).next().unwrap_or_default();
        // A key without a value is true.
        let (name, value) = line.split_once('=').unwrap_or((line, "true"));
        if is_in_section && name.trim() == key {
            found = Some(value.trim().to_owned());
        }
    }
    found
}

/// Directories for temporary files.
fn temporary(rules: &Rules, workspace: &Workspace) -> Vec<PathBuf> {
    let named = workspace.environment.iter().find(|(name, _)| name == "TMPDIR");
    let named = named
        .map(|(_, path)| PathBuf::from(path))
        .filter(|path| path.is_absolute() && path.parent().is_some());
    named.into_iter().chain(rules.temporary.clone()).collect()
}

/// The Git directory of the repository with this root, or, for a worktree, that of its repository.
///
/// A worktree's `.git` file names that directory, but a command could write such a file. It is therefore
/// accepted only if the directory names the worktree too: a command can't have written there.
fn git_directory(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    let metadata = git.symlink_metadata().ok()?;
    if metadata.is_dir() {
        return git.join("HEAD").exists().then_some(git);
    }
    if !metadata.is_file() {
        return None;
    }
    let text = std::fs::read_to_string(&git).ok()?;
    let own = root.join(text.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    let back = std::fs::read_to_string(own.join("gitdir")).ok()?;
    let is_ours = Path::new(back.trim()).canonicalize().is_ok_and(|back| back == git);
    let worktrees = own.parent().filter(|parent| parent.ends_with("worktrees"))?;
    let common = worktrees.parent()?.to_path_buf();
    (is_ours && common.join("HEAD").exists()).then_some(common)
}

/// Collects the submodules' directories below this one.
fn modules(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if depth == 0 {
        return;
    }
    for path in directories(directory) {
        if found.len() >= MODULES_MAX {
            return;
        }
        if path.join("HEAD").exists() {
            found.push(path.clone());
            modules(&path.join("modules"), depth - 1, found);
        } else {
            modules(&path, depth - 1, found);
        }
    }
}

/// The directories in this one, without symbolic links.
fn directories(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The canonical forms of the paths that exist.
fn real(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().filter_map(|path| path.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;

    const ALL: Support =
        Support { landlock: 7, namespaces: Namespaces::OfUser, own_processes: true, filter: true };

    struct Disk {
        root: PathBuf,
        _directory: tempfile::TempDir,
    }

    impl Disk {
        fn with(files: &[&str]) -> Disk {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let root = directory.path().canonicalize().expect("it is there");
            for file in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().expect("it is below")).expect("made");
                match file.ends_with('/') {
                    true => fs::create_dir_all(path).expect("made"),
                    false => fs::write(path, "").expect("written"),
                }
            }
            Disk { root, _directory: directory }
        }

        fn places(&self, cwd: &str, support: Support) -> Places {
            let home = self.root.join("home").into_os_string();
            let workspace =
                Workspace::new(self.root.join(cwd), Vec::new(), Arc::new(vec![("HOME".into(), home)]));
            let rules = Rules { hide: vec![self.root.join("home/.epitome/data")], ..Rules::default() };
            find(&rules, &workspace, &support)
        }

        fn below(&self, paths: &[PathBuf]) -> Vec<String> {
            let below = |path: &PathBuf| Some(path.strip_prefix(&self.root).ok()?.display().to_string());
            paths.iter().filter_map(below).collect()
        }
    }

    #[test]
    fn workspace_is_writable_except_for_files_executed_later() {
        let disk = Disk::with(&[
            "w/.git/HEAD",
            "w/.git/config",
            "w/.git/modules/lib/deep/HEAD",
            "w/.envrc",
            "w/.epitome/hooks/a",
            "w/src/.envrc",
            "home/.cache/x",
            "home/.ssh/id",
        ]);
        let places = disk.places("w", ALL);
        assert_eq!(disk.below(&places.writable), ["w", "w/.git", "home/.cache"]);
        let frozen = [
            "w/.epitome",
            "w/.envrc",
            "w/.git/hooks",
            "w/.git/config",
            "w/.git/commondir",
            "w/.git/modules/lib/deep/hooks",
            "w/.git/modules/lib/deep/commondir",
        ];
        assert_eq!(disk.below(&places.frozen), frozen);
        let fixed = ["w/.git", "w/.git/modules", "w/.git/modules/lib", "w/.git/modules/lib/deep"];
        assert_eq!(disk.below(&places.fixed), fixed);
        assert_eq!(disk.below(&places.hidden), ["home/.ssh"]);
    }

    /// Files that point Git to its configuration are created if missing, and existing ones stay untouched.
    #[test]
    fn missing_commondir_and_worktree_config_are_created() {
        let disk = Disk::with(&["w/.git/HEAD", "w/.git/config", "w/.git/worktrees/t/commondir"]);
        let text = |path: &str| fs::read_to_string(disk.root.join("w/.git").join(path)).ok();
        disk.places("w", Support { namespaces: Namespaces::None, ..ALL });
        assert_eq!(text("commondir"), None, "without mounts it would hold nothing");
        let places = disk.places("w", ALL);
        assert_eq!(text("commondir").as_deref(), Some("./\n"));
        assert_eq!(text("worktrees/t/commondir").as_deref(), Some(""));
        assert_eq!(text("config.worktree"), None, "Git would not read it");
        let frozen = ["w/.git/hooks", "w/.git/config", "w/.git/commondir", "w/.git/worktrees/t/commondir"];
        assert_eq!(disk.below(&places.frozen), frozen);
        assert_eq!(disk.below(&places.fixed), ["w/.git", "w/.git/worktrees", "w/.git/worktrees/t"]);

        fs::write(disk.root.join("w/.git/config"), "[extensions]\n\tworktreeConfig = true\n")
            .expect("written");
        disk.places("w", ALL);
        assert_eq!(text("config.worktree").as_deref(), Some(""));
        assert_eq!(text("worktrees/t/config.worktree").as_deref(), Some(""));
    }

    /// With a `commondir` Git ignores `core.bare`: it would report a bare repository's files as deleted.
    #[test]
    fn a_bare_repository_is_closed_instead() {
        let disk =
            Disk::with(&["w/.git/HEAD", "w/.git/hooks/", "w/.git/objects/", "w/.git/worktrees/t/HEAD"]);
        let config = |text: &str| fs::write(disk.root.join("w/.git/config"), text).expect("written");
        config("[core]\n\tbare = true\n");
        let places = disk.places("w", ALL);
        assert!(!disk.root.join("w/.git/commondir").exists());
        assert_eq!(disk.below(&places.closed), ["w/.git"]);
        let fixed = ["w/.git", "w/.git/logs", "w/.git/objects", "w/.git/worktrees", "w/.git/worktrees/t"];
        assert_eq!(disk.below(&places.fixed), fixed);
        for (text, is_closed) in [
            ("[core]\n\tbare = false\n", false),
            ("[Core] Bare ; as it is\n", true),
            ("[core]\n\tworktree = ../elsewhere\n", true),
            ("[remote \"core\"]\n\tbare = true\n", false),
            ("[core]\n\tbare = true\n[extensions]\n\tworktreeConfig = true\n", false),
        ] {
            config(text);
            assert_eq!(!disk.places("w", ALL).closed.is_empty(), is_closed, "{text}");
        }
    }

    #[test]
    fn a_home_as_workspace_keeps_its_secrets() {
        let disk = Disk::with(&["home/.ssh/id", "home/.epitome/data/x", "home/notes/a", "home/b"]);
        let places = disk.places("home", ALL);
        assert_eq!(disk.below(&places.covered), ["home/.epitome/data", "home/.ssh"]);
        assert_eq!(disk.below(&places.writable), ["home"]);
        // Without mounts the siblings can be changed, but none can be created.
        let places = disk.places("home", Support { namespaces: Namespaces::None, ..ALL });
        let mut writable = disk.below(&places.writable);
        writable.sort();
        assert_eq!(writable, ["home/b", "home/notes"]);
        assert!(places.covered.is_empty() && places.frozen.is_empty());
    }

    #[test]
    fn directory_above_a_home_is_not_writable() {
        let disk = Disk::with(&["home/a"]);
        assert_eq!(disk.below(&disk.places("", ALL).writable), Vec::<String>::new());
    }

    /// A command could write a `.git` file that names any directory, and would get access to it the next
    /// time.
    #[test]
    fn worktree_needs_a_back_reference_from_its_repository() {
        let disk = Disk::with(&["main/.git/HEAD", "main/.git/worktrees/w/HEAD", "w/", "home/.ssh/HEAD"]);
        let own = disk.root.join("main/.git/worktrees/w");
        fs::write(disk.root.join("w/.git"), format!("gitdir: {}\n", own.display())).expect("written");
        assert_eq!(git_directory(&disk.root.join("w")), None, "nothing names it yet");
        fs::write(own.join("gitdir"), format!("{}\n", disk.root.join("w/.git").display())).expect("written");
        assert_eq!(git_directory(&disk.root.join("w")), Some(disk.root.join("main/.git")));
        fs::write(disk.root.join("w/.git"), "gitdir: ../home/.ssh\n").expect("written");
        assert_eq!(git_directory(&disk.root.join("w")), None);
    }
}
