//! The entries of a Git directory that make Git execute something. They stay read-only even for a command that may
//! change the repository. Reads the disk, and creates entries that have to exist to be protected.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Support;
use crate::Workspace;
use epitome_files::atomic_file::AtomicFile;
use epitome_platform::os::OsStrExt as _;
use epitome_platform::root::{read_regular, resolve};
use epitome_platform::sandbox::SandboxPaths;

/// Entries of a Git directory that make Git execute something: hooks, the configuration, the file that names another
/// directory for both, and directories with remotes, whose hooks run.
const OF_GIT: [&str; 6] = ["hooks", "config", OF_WORKTREES, COMMON, "remotes", "branches"];

/// Configuration of a single worktree; Git reads it if `extensions.worktreeConfig` is set.
pub(super) const OF_WORKTREES: &str = "config.worktree";

/// Names the directory with a repository's configuration and hooks if that is a different one, as for a worktree.
const COMMON: &str = "commondir";

/// Content of a `commondir` file that is created because it is missing: the same directory. Git also accepts ".", but
/// libgit2 then finds no repository.
const COMMON_TEXT: &str = "./\n";

/// Mode of created files; readable by others, like the files that Git writes.
const READABLE: u32 = 0o644;

/// Maximum number of submodules of a repository and its worktrees, and of worktrees, in which single entries are
/// frozen; all of the others is.
pub(super) const MODULES_MAX: usize = 256;

/// Maximum bytes of a file of Git that is read, other than an index.
pub(super) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Maximum entries of a Git directory that are searched for links, objects not counted.
const ENTRIES_MAX: usize = if cfg!(test) { 1_000 } else { 1_000_000 };

/// Maximum files that settings include, directly or through others.
const INCLUDED_MAX: usize = 64;

/// The prefix of the content of a `.git` file.
const GITDIR: &[u8] = b"gitdir: ";

/// Maximum depth of the search for submodules: their paths are module names, which may contain slashes.
const MODULES_DEPTH_MAX: usize = 8;

/// Freezes entries that make Git execute something, in a Git directory, its submodules and its worktrees.
pub(super) fn freeze(paths: &mut SandboxPaths, git: &Path, support: &Support) {
    let excludes = support.excludes_below_writable();
    let mut worktrees: Vec<PathBuf> = directories(&git.join("worktrees")).collect();
    let beyond = worktrees.split_off(worktrees.len().min(MODULES_MAX));
    let mut modules = Modules { found: Vec::new(), beyond };
    // A worktree has its own copies of the submodules.
    for own in std::iter::once(git).chain(worktrees.iter().map(PathBuf::as_path)) {
        modules.find(&own.join("modules"), MODULES_DEPTH_MAX);
    }
    let Modules { mut found, beyond } = modules;
    if is_placed_by_its_settings(git) {
        if excludes {
            // Git creates it with the first commit in a worktree, which would fail in a read-only directory.
            let _ = std::fs::create_dir(git.join("logs"));
        }
        let inner = directories(git).filter(|path| !path.ends_with("hooks"));
        paths.fixed.extend(inner.chain([git.to_path_buf()]));
        paths.closed.push(git.to_path_buf());
    } else {
        found.insert(0, git.to_path_buf());
    }
    for own in found {
        if excludes {
            complete(&own);
        }
        freeze_in(paths, &own, &OF_GIT);
        fix_below(paths, git, &own);
    }
    for own in worktrees {
        if excludes && is_true(git, "extensions", "worktreeconfig") {
            put_new(&own.join(OF_WORKTREES), "");
        }
        freeze_in(paths, &own, &[COMMON, OF_WORKTREES]);
        fix_below(paths, git, &own);
    }
    for path in beyond {
        fix_below(paths, git, &path);
        paths.frozen.push(path);
    }
    paths.fixed.sort();
    paths.fixed.dedup();
}

/// The settings files of a working tree's repository and of the working tree, with those that they include.
pub(super) fn settings_of(worktree: &Path, home: Option<&Path>) -> SettingsFiles {
    let git = worktree.join(".git");
    let own = if git.is_dir() { Some(git) } else { named_directory(worktree) };
    let common = own.as_ref().and_then(|own| Some(own.join(path_in(&own.join(COMMON), b"")?)));
    let files =
        common.into_iter().chain(own).flat_map(|git| ["config", OF_WORKTREES].map(|name| git.join(name)));
    SettingsFiles::find(files.collect(), home)
}

/// The settings files of the user and of the system, with those that they include.
pub(crate) fn settings_of_user(workspace: &Workspace) -> SettingsFiles {
    let home = workspace.home();
    let in_home =
        home.iter().flat_map(|home| [".gitconfig", ".config/git/config"].map(|name| home.join(name)));
    let named = |name: &str| workspace.variable(name).map(PathBuf::from);
    let moved = named("XDG_CONFIG_HOME").map(|directory| directory.join("git/config"));
    let global = named("GIT_CONFIG_GLOBAL");
    let files = in_home.chain(moved.clone()).chain(global.clone()).chain([PathBuf::from("/etc/gitconfig")]);
    let mut files = SettingsFiles::find(files.collect(), home.as_deref());
    files.included.extend(moved.into_iter().chain(global));
    files
}

/// Files of settings that Git reads together.
pub(crate) struct SettingsFiles {
    own: Vec<PathBuf>,
    /// The files that these include, directly or through others.
    pub included: Vec<PathBuf>,
}

impl SettingsFiles {
    fn find(own: Vec<PathBuf>, home: Option<&Path>) -> SettingsFiles {
        let mut files = SettingsFiles { own, included: Vec::new() };
        let mut at = 0;
        loop {
            let Some(file) = files.all().nth(at).cloned() else { return files };
            at += 1;
            let above = file.parent().unwrap_or(Path::new(""));
            let is_include = |section: &str| section.to_ascii_lowercase().starts_with("include");
            for name in settings_in(&file, is_include, "path") {
                let path = name
                    .strip_prefix("~/")
                    .zip(home)
                    .map_or_else(|| above.join(&name), |(below, home)| home.join(below));
                if files.included.len() < INCLUDED_MAX && files.all().all(|known| *known != path) {
                    files.included.push(path);
                }
            }
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.own.iter().chain(&self.included)
    }
}

/// Returns the directories that these files name for the hooks of a working tree, if they exist. Git uses one of them; which
/// one depends on settings that a command may change.
pub(super) fn hooks_paths<'a>(
    worktree: &Path,
    home: Option<&Path>,
    files: impl Iterator<Item = &'a PathBuf>,
) -> Vec<PathBuf> {
    let named = files.flat_map(|file| settings(file, "core", "hookspath"));
    let mut paths: Vec<PathBuf> = named
        .filter_map(|named| {
            let path = match (named.strip_prefix("~/"), home) {
                (Some(below), Some(home)) => home.join(below),
                _ => worktree.join(named),
            };
            // A directory that Git will look into, and that doesn't exist, can't be protected.
            let is_inside = path.starts_with(worktree) && !path.iter().any(|part| part == "..");
            if is_inside && path.symlink_metadata().is_err() {
                let _ = std::fs::create_dir_all(&path);
            }
            // Its last part may be a link, which is protected as well.
            let entry = || Some(resolve(path.parent()?).ok()?.join(path.file_name()?));
            entry().or_else(|| resolve(&path).ok()).filter(|path| path.exists())
        })
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Returns the targets of entries that are links: they may be in the workspace.
pub(super) fn outside_links(git: &Path) -> Vec<PathBuf> {
    let links = OF_GIT.iter().map(|name| git.join(name)).filter(|path| path.is_symlink());
    links.filter_map(|path| resolve(&path).ok()).collect()
}

fn freeze_in(paths: &mut SandboxPaths, directory: &Path, names: &[&str]) {
    let entries = names.iter().map(|name| directory.join(name));
    let there = entries.filter(|path| path.symlink_metadata().is_ok());
    there.for_each(|path| super::paths::freeze(paths, path));
}

/// Protects a directory and its parents up to `git` against renaming, which would bypass the protection of its path.
fn fix_below(paths: &mut SandboxPaths, git: &Path, directory: &Path) {
    let above = directory.ancestors().take_while(|path| path.starts_with(git));
    paths.fixed.extend(above.map(PathBuf::from));
}

/// Creates the missing entries through which a command could make Git execute something, because only existing paths
/// can be frozen. They are not removed, because a mount ends when the file below it is removed.
fn complete(git: &Path) {
    // Git itself creates the first of these directories in most repositories, and no longer the others.
    for name in ["hooks", "remotes", "branches"] {
        let _ = std::fs::create_dir(git.join(name));
    }
    put_new(&git.join(COMMON), COMMON_TEXT);
    if is_true(git, "extensions", "worktreeconfig") {
        put_new(&git.join(OF_WORKTREES), "");
    }
}

/// Creates a file if the path doesn't exist. If that fails, a command can't create it either.
pub(super) fn put_new(path: &Path, text: &str) {
    let Some(directory) = path.parent().filter(|_| path.symlink_metadata().is_err()) else { return };
    let put = AtomicFile::begin(directory, READABLE).and_then(|mut new| {
        new.file().write_all(text.as_bytes())?;
        new.put_new(path)
    });
    if let Err(error) = put {
        tracing::debug!(path = %path.display(), %error, "not put there to be frozen");
    }
}

/// Whether a repository's configuration makes it bare or sets another work tree. Git honors that only without a
/// `commondir`, or if each worktree has its own configuration.
fn is_placed_by_its_settings(git: &Path) -> bool {
    (is_true(git, "core", "bare") || setting(&git.join("config"), "core", "worktree").is_some())
        && !is_true(git, "extensions", "worktreeconfig")
}

fn is_true(git: &Path, section: &str, key: &str) -> bool {
    setting(&git.join("config"), section, key).is_some_and(|value| {
        matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "on")
            || value.parse().is_ok_and(|number: i64| number != 0)
    })
}

/// Reads a text file of Git, or nothing if it is not a regular file: a command may have replaced it with a pipe.
fn text_of(file: &Path) -> Option<String> {
    let bytes = read_regular(file, FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the path in a file of Git after a prefix, as Git reads it: without line ends at its end, and up to a NUL.
fn path_in(file: &Path, prefix: &[u8]) -> Option<PathBuf> {
    let bytes = read_regular(file, FILE_BYTES_MAX).ok()?;
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let path = bytes[..=end].strip_prefix(prefix)?.split(|byte| *byte == 0).next()?;
    Some(OsStr::from_bytes(path).into())
}

/// Returns the value of this key that counts: the last one.
fn setting(file: &Path, section: &str, key: &str) -> Option<String> {
    settings(file, section, key).pop()
}

/// Returns all values of this key in a settings file; section and key must be in lower case.
fn settings(file: &Path, section: &str, key: &str) -> Vec<String> {
    settings_in(file, |header| header.eq_ignore_ascii_case(section), key)
}

/// The same for all sections whose header matches.
fn settings_in(file: &Path, is_section: impl Fn(&str) -> bool, key: &str) -> Vec<String> {
    let text = text_of(file).unwrap_or_default();
    let (mut is_in_section, mut found) = (false, Vec::new());
    for line in text.lines() {
        let mut line = line.trim();
        if let Some((header, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            is_in_section = is_section(header.trim());
            line = rest.trim();
        }
        let line = line.split(['#', ';']).next().unwrap_or_default();
        // A key without a value is true.
        let (name, value) = line.split_once('=').unwrap_or((line, "true"));
        if is_in_section && name.trim().eq_ignore_ascii_case(key) {
            found.push(value.trim().trim_matches('"').to_owned());
        }
    }
    found
}

/// Returns the Git directory of the repository with this root. For a worktree, that is the one of its repository.
///
/// A worktree's `.git` file names that directory, but a command could write such a file. It is therefore accepted
/// only if the directory names the worktree in return, where a command can't have written.
pub(super) fn directory(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    let metadata = git.symlink_metadata().ok()?;
    if metadata.is_dir() {
        return git.join("HEAD").exists().then_some(git);
    }
    if !metadata.is_file() {
        return None;
    }
    let own = named_directory(root)?;
    let is_ours = back_from(&own).and_then(|back| resolve(&back).ok()).is_some_and(|back| back == git);
    let worktrees = own.parent().filter(|parent| parent.ends_with("worktrees"))?;
    let common = worktrees.parent()?.to_path_buf();
    (is_ours && common.join("HEAD").exists()).then_some(common)
}

/// A remote of the repository that contains a directory: its name and its address. `named`: a word of the command. Reads
/// only the settings of the repository.
pub(crate) fn remote(below: &Path, named: Option<&str>, pushes: bool) -> Option<(String, String)> {
    let root = below.ancestors().find(|root| root.join(".git").symlink_metadata().is_ok())?;
    let config = directory(root)?.join("config");
    let own = named_directory(root).unwrap_or_else(|| root.join(".git"));
    let head = text_of(&own.join("HEAD"))?;
    let branch = format!("branch \"{}\"", head.trim().strip_prefix("ref: refs/heads/").unwrap_or_default());
    let key = |section: &str, key| setting(&config, section, key);
    let for_push = || key(&branch, "pushremote").or_else(|| key("remote", "pushdefault"));
    let usual = || pushes.then(for_push).flatten().or_else(|| key(&branch, "remote"));
    let name = named.map(str::to_owned).or_else(usual).unwrap_or_else(|| "origin".to_owned());
    let section = format!("remote \"{name}\"");
    let mut addresses = if pushes { settings(&config, &section, "pushurl") } else { Vec::new() };
    if addresses.is_empty() {
        addresses = settings(&config, &section, "url");
    }
    (!addresses.is_empty()).then(|| (name, addresses.join(" ")))
}

/// Whether a `commondir` file, if it exists, names its own directory.
pub(super) fn is_own_common_directory(git: &Path) -> bool {
    let file = git.join(COMMON);
    match text_of(&file) {
        Some(text) => [".", "./"].contains(&text.trim_end_matches('\n')),
        None => file.symlink_metadata().is_err(),
    }
}

/// Returns the directory with the settings and hooks of a working tree that has a `.git` file, resolved. Also if a
/// command could have written that file.
pub(super) fn common_directory(worktree: &Path) -> Option<PathBuf> {
    let own = named_directory(worktree)?;
    path_in(&own.join(COMMON), b"").and_then(|name| resolve(&own.join(name)).ok()).or(Some(own))
}

/// Returns the `.git` file that the directory of a worktree names.
fn back_from(own: &Path) -> Option<PathBuf> {
    path_in(&own.join("gitdir"), b"").map(|back| own.join(back))
}

/// Returns the working trees of a repository. A command that may change it may change the indexes of all.
pub(super) fn worktrees(common: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let linked = directories(&common.join("worktrees"));
    let main = common.parent().filter(|_| common.ends_with(".git")).map(Path::to_path_buf);
    linked.filter_map(|own| Some(back_from(&own)?.parent()?.to_path_buf())).chain(main)
}

/// Returns the Git directories of submodules in a Git directory and those of its worktrees, and the directories beyond the
/// limits of the search.
pub(super) fn modules(git: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut modules = Modules { found: Vec::new(), beyond: Vec::new() };
    for own in directories(&git.join("worktrees")).chain([git.to_path_buf()]) {
        modules.find(&own.join("modules"), MODULES_DEPTH_MAX);
    }
    (modules.found, modules.beyond)
}

/// Returns the symbolic links in a Git directory, except those below its hooks, which stay read-only, and in place of its
/// objects, which Git never changes. Git follows the others when it writes: a reflog could be the user's `.bashrc`. `None` if it
/// has too many entries.
pub(super) fn links(git: &Path) -> Option<Vec<PathBuf>> {
    let (hooks, objects) = (git.join("hooks"), git.join("objects"));
    let (mut found, mut next, mut count) = (Vec::new(), vec![git.to_path_buf()], 0);
    while let Some(directory) = next.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            count += 1;
            let (path, kind) = (entry.path(), entry.file_type().ok()?);
            // Branches may be called `hooks/x` and `objects/ab`, and their reflogs are in directories with these names.
            let is_of_objects = || directory == objects && entry.file_name().len() == 2;
            if kind.is_symlink() {
                found.push(path);
            } else if kind.is_dir() && path != hooks && !is_of_objects() {
                next.push(path);
            }
        }
        if count > ENTRIES_MAX {
            return None;
        }
    }
    Some(found)
}

/// Returns the lines of unfinished operations in a Git directory and those of its worktrees with which Git runs another program
/// as soon as the user continues: `exec`, and a strategy for merges that is a path.
pub(super) fn running_lines(git: &Path) -> Vec<(PathBuf, String)> {
    let lists = ["rebase-merge/git-rebase-todo", "sequencer/todo"];
    let runs = |name: &str, line: &str| match lists.contains(&name) {
        true => ["exec", "x"].contains(&line.split_whitespace().next().unwrap_or_default()),
        false => line.contains('/'),
    };
    let mut found = Vec::new();
    for own in directories(&git.join("worktrees")).chain([git.to_path_buf()]) {
        for name in lists.into_iter().chain(["rebase-merge/strategy", "sequencer/opts"]) {
            let file = own.join(name);
            let text = text_of(&file).unwrap_or_default();
            let running = text.lines().filter(|line| runs(name, line));
            found.extend(running.map(|line| (file.clone(), line.to_owned())));
        }
    }
    found
}

/// Returns the directory that the `.git` file of a working tree names, resolved.
pub(super) fn named_directory(worktree: &Path) -> Option<PathBuf> {
    resolve(&worktree.join(path_in(&worktree.join(".git"), GITDIR)?)).ok()
}

/// Whether a `.git` file names a directory in a way that other programs than Git may read differently.
pub(super) fn is_unclear(file: &Path) -> bool {
    let bytes = read_regular(file, FILE_BYTES_MAX).unwrap_or_default();
    let Some(path) = bytes.strip_prefix(GITDIR) else { return false };
    let path = path.strip_suffix(b"\n").unwrap_or(path);
    std::str::from_utf8(path).map_or(true, |path| path.trim() != path || path.contains(char::is_control))
}

/// The Git directories of submodules.
struct Modules {
    found: Vec<PathBuf>,
    /// Directories beyond the limits of the search.
    beyond: Vec<PathBuf>,
}

impl Modules {
    fn find(&mut self, directory: &Path, depth: usize) {
        for path in directories(directory) {
            if depth == 0 || self.found.len() >= MODULES_MAX {
                self.beyond.push(path);
            } else if path.join("HEAD").exists() {
                let inner = path.join("modules");
                self.found.push(path);
                self.find(&inner, depth - 1);
            } else {
                self.find(&path, depth - 1);
            }
        }
    }
}

/// Returns the directories in this one, without symbolic links.
fn directories(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `.git` file with a NUL or a blank at its end led Git to a directory that was not examined.
    #[test]
    fn a_git_file_is_read_as_git_reads_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        for made in ["lib", "a", "a "] {
            fs::create_dir(root.join(made)).expect("made");
        }
        for (text, named, is_unclear_to_others) in [
            (&b"gitdir: ../a\n"[..], Some("a"), false),
            (b"gitdir: ../a", Some("a"), false),
            (b"gitdir: ../a\0x\n", Some("a"), true),
            (b"gitdir: ../a \n", Some("a "), true),
            (b"gitdir: ../a\r\n", Some("a"), true),
            (b"gitdir:../a\n", None, false),
            (b"gitdir: ../\xff\n", None, true),
        ] {
            fs::write(root.join("lib/.git"), text).expect("written");
            let shown = String::from_utf8_lossy(text);
            assert_eq!(named_directory(&root.join("lib")), named.map(|name| root.join(name)), "{shown:?}");
            assert_eq!(is_unclear(&root.join("lib/.git")), is_unclear_to_others, "{shown:?}");
        }
    }

    #[test]
    fn a_remote_is_found_as_git_finds_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        fs::create_dir_all(root.join(".git")).expect("made");
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
        let found = |settings: &str, named, is_for_push| {
            fs::write(root.join(".git/config"), settings).expect("written");
            remote(&root.join("sub"), named, is_for_push).map(|(name, address)| format!("{name} {address}"))
        };
        let both = "[remote \"origin\"]\n\turl = a\n[remote \"up\"]\n\turl = b\n\tpushurl = c\n";
        assert_eq!(found(both, None, true).as_deref(), Some("origin a"));
        assert_eq!(found(both, Some("up"), true).as_deref(), Some("up c"));
        assert_eq!(found(both, Some("up"), false).as_deref(), Some("up b"));
        assert_eq!(found(both, Some("other"), true), None);
        let branch = format!("{both}[branch \"main\"]\n\tremote = up\n");
        assert_eq!(found(&branch, None, false).as_deref(), Some("up b"));
        let pushed = format!("{branch}\tpushRemote = origin\n");
        assert_eq!(found(&pushed, None, true).as_deref(), Some("origin a"));
    }

    /// A command made `.git/logs/HEAD` a link to `~/.bashrc`, to which the user's next commit appended a line.
    #[test]
    fn links_that_git_would_follow_are_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let git = directory.path().canonicalize().expect("it is there");
        for made in ["logs/refs/hooks", "logs/refs/objects/ab", "objects/ab", "objects/info", "hooks"] {
            fs::create_dir_all(git.join(made)).expect("made");
        }
        // The reflogs of branches `hooks/x` and `objects/ab/x` were not found.
        let of_branches = ["logs/refs/hooks/x", "logs/refs/objects/ab/x"];
        let links = ["index", "logs/HEAD", "logs/refs/heads", "objects/info/alternates", "objects/ac"];
        let links = [&links[..], &of_branches].concat();
        for link in links.iter().chain(&["hooks/pre-commit", "objects/ab/cd"]) {
            symlink("/nowhere", git.join(link)).expect("linked");
        }
        let mut found = super::links(&git).expect("there are few");
        found.sort();
        let mut expected: Vec<PathBuf> = links.iter().map(|link| git.join(link)).collect();
        expected.sort();
        assert_eq!(found, expected);
    }
}
