//! Determines which paths a command may read, change or not see. Reads the disk and decides;
//! `epitome_platform::sandbox` enforces the result.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Namespaces, SandboxRules, Support, denied, git};
use crate::Workspace;
use crate::secret_places::SecretPlaces;
use epitome_files::atomic_file::private_directory;
use epitome_platform::sandbox::{SandboxPaths, all_but};

/// Paths below a home directory where package managers and compilers cache downloads and builds. If a file next to
/// the cache is executed when programs start, the entry is narrowed to exclude that file. Of `~/.cache`, the list
/// contains only what the next build or check reads: shells and browsers execute other parts of it, such as the machine
/// code of shaders. Nor does it contain programs that `npx`, `uvx`, `pnpm dlx`, `pixi exec` and the like start from a cache
/// without a check, nor stores whose files are those of installed programs, by hard links: those of pnpm, Bun, Conda and
/// pixi.
const CACHES_IN_HOME: [&str; 45] = [
    ".cache/bazel",
    ".cache/ccache",
    ".cache/clangd",
    ".cache/composer",
    ".cache/coursier/v1",
    ".cache/fontconfig",
    ".cache/go-build",
    ".cache/golangci-lint",
    ".cache/gopls",
    ".cache/matplotlib",
    ".cache/mypy",
    ".cache/node-gyp",
    ".cache/pdm",
    ".cache/pip",
    ".cache/pnpm",
    ".cache/pypoetry/artifacts",
    ".cache/pypoetry/cache",
    ".cache/rattler/cache/repodata",
    ".cache/ruff",
    ".cache/sccache",
    ".cache/staticcheck",
    ".cache/turbo",
    ".cache/typescript",
    ".cache/yarn",
    ".cache/zig",
    ".cargo/registry",
    ".cargo/git",
    ".cargo/.package-cache",
    ".cargo/.package-cache-mutate",
    ".cargo/.global-cache",
    ".npm/_cacache",
    ".npm/_logs",
    ".yarn/berry/cache",
    ".gradle/caches",
    ".gradle/daemon",
    ".m2/repository",
    ".ivy2/cache",
    "go/pkg",
    ".nuget/packages",
    ".bundle/cache",
    ".cabal/packages",
    ".composer/cache",
    ".julia/compiled",
    ".hex/packages",
    ".pub-cache/hosted",
];

/// Directories in a home from which Epitome runs hooks as the user's own, besides its settings.
const HOOKS_IN_HOME: [&str; 2] = [".kodelet", ".claude"];

/// A directory of such programs in one of the caches.
const RUN_FROM_CACHE: &str = ".cache/pnpm/dlx";

/// Go's cache of modules.
const GO_MODULES: &str = "go/pkg/mod";

/// The directories in it that may contain other versions of Go, which `go` starts when a `go.mod` asks for them. Ordinary
/// modules next to them are in `x`.
const GO_VERSIONS: [&str; 2] = ["golang.org", "cache/download/golang.org"];

/// Visible directories of a home with programs. On macOS, `Library` has those that are started at login.
const PROGRAMS_IN_HOME: [&str; 4] = ["bin", "snap", "Applications", "Library"];

/// Maximum number of directories of a home that commands of a session in it may change.
const VISIBLE_MAX: usize = 256;

/// A cache of programs that is separate from the user's: the variable that names it, the user's cache, without which it
/// isn't needed, and its directory.
pub(super) struct SeparateCache(&'static str, Option<&'static str>, &'static str);

/// The environments of `uvx` and of the user's projects share the files of uv's cache.
pub(super) const CACHES_OF_COMMANDS: [SeparateCache; 1] =
    [SeparateCache("UV_CACHE_DIR", Some(".cache/uv"), ".cache/epitome/uv")];

/// Commands with a network can install packages, but not into the user's stores. Without one, what the user's stores have
/// is of more use than empty caches.
pub(super) const CACHES_WITH_NETWORK: [SeparateCache; 3] = [
    SeparateCache("BUN_INSTALL_CACHE_DIR", Some(".bun"), ".cache/epitome/bun"),
    SeparateCache("CONDA_PKGS_DIRS", Some(".conda"), ".cache/epitome/conda"),
    SeparateCache("RATTLER_CACHE_DIR", Some(".cache/rattler"), ".cache/epitome/rattler"),
];

/// Servers are often started by `uvx`, `npx` and `bunx`, which install them. Commands can't change these.
pub(super) const CACHES_OF_SERVERS: [SeparateCache; 3] = [
    SeparateCache("UV_CACHE_DIR", None, ".cache/epitome/servers/uv"),
    SeparateCache("npm_config_cache", None, ".cache/epitome/servers/npm"),
    SeparateCache("BUN_INSTALL_CACHE_DIR", Some(".bun"), ".cache/epitome/servers/bun"),
];

/// The directory for copies of settings. Not one for temporary files, which every command may change.
const STAGING: &str = ".cache/epitome/staging";

/// Devices that every program may use; no others can be read. The terminals in `/dev/pts` are the user's; each command
/// gets its own there, if there are namespaces.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/shm",
];

/// Determines the paths. `changes_git`: whether the user permitted this command to change the workspace's
/// repositories.
pub(super) fn find(
    rules: &SandboxRules,
    workspace: &Workspace,
    changes_git: bool,
    support: &Support,
) -> SandboxPaths {
    let home = workspace.home();
    let in_home = |names: &[&str]| -> Vec<PathBuf> {
        home.iter().flat_map(|home| names.iter().map(|name| home.join(name))).collect()
    };
    let mut hidden = SecretPlaces::find(home.as_deref()).paths().to_vec();
    hidden.extend(real(rules.hide.clone()));
    hidden.extend(real(denied::find(&rules.deny_read, workspace)));
    hidden.sort();
    hidden.dedup();

    let real_home = home.as_ref().and_then(|home| home.canonicalize().ok());
    // The session's directory is `/` or a parent of the home directory, which can't entirely be the workspace.
    let is_too_wide = |root: &PathBuf| {
        root.parent().is_none()
            || real_home.as_ref().is_some_and(|home| home != root && home.starts_with(root))
    };
    // Use the paths that the directories had when they were opened: a link may have replaced them since.
    let opened = workspace.roots().iter().filter(|root| root.identity().is_some());
    let mut roots: Vec<PathBuf> = opened.map(|root| root.path().to_path_buf()).collect();
    roots.retain(|root| !is_too_wide(root));

    let mut places =
        SandboxPaths { devices: real(DEVICES.map(PathBuf::from)), hidden, ..SandboxPaths::default() };
    let mut gits = Vec::new();
    let entries = workspace.found().entries(roots.iter().map(PathBuf::as_path));
    let mut commands = Vec::new();
    if let Some(home) = real_home.as_ref().filter(|home| roots.contains(home) && is_of_user(home)) {
        roots.retain(|root| root != home);
        roots.extend(visible_directories(home));
        roots.sort();
        roots.dedup();
        let is_inside = |path: &PathBuf| path.starts_with(home) && path != home;
        commands.extend(directories_of_commands(workspace).filter(is_inside));
    }
    // A session may be below the root of its repository.
    let git = entries.iter().filter(|entry| entry.ends_with(".git"));
    let mut worktrees: Vec<&Path> = git.filter_map(|git| git.parent()).collect();
    for entry in entries.iter().cloned() {
        let git = entry.ends_with(".git").then(|| entry.parent().and_then(git::directory)).flatten();
        match git.filter(|_| changes_git) {
            // A repository is completely read-only, so that no list of the files that make Git run something is
            // needed. With the user's consent, only the known files are.
            Some(git) => {
                git::freeze(&mut places, &git, support);
                if git != entry {
                    freeze(&mut places, entry);
                }
                gits.push(git);
            }
            None => {
                places.frozen.extend(git::outside_links(&entry));
                freeze(&mut places, entry);
            }
        }
    }
    // A `.git` file may name a directory of the workspace that has another name: a bare clone with worktrees.
    for git in worktrees.iter().filter_map(|worktree| git::common_directory(worktree)) {
        let is_below = |above: &PathBuf| git.starts_with(above);
        let is_known =
            places.frozen.iter().chain(&gits).any(is_below) || is_closed(&places, &worktrees, &git);
        let is_inside = roots.iter().any(|root| git.starts_with(root) && git != *root);
        if is_known || !is_inside || !git.join("HEAD").exists() {
            continue;
        }
        fix_above(&mut places, &roots, &git);
        match changes_git {
            true => {
                git::freeze(&mut places, &git, support);
                gits.push(git);
            }
            false => freeze_around(&mut places, git, &worktrees),
        }
    }
    worktrees
        .extend(roots.iter().filter_map(|root| root.ancestors().find(|path| path.join(".git").exists())));
    worktrees.sort();
    worktrees.dedup();
    for hooks in worktrees.iter().flat_map(|worktree| git::hooks_paths(worktree, home.as_deref())) {
        fix_above(&mut places, &roots, &hooks);
        freeze(&mut places, hooks);
    }
    for git in worktrees.iter().map(|worktree| worktree.join(".git")) {
        fix_above(&mut places, &roots, &git);
    }
    for directory in commands {
        fix_above(&mut places, &roots, &directory);
        freeze(&mut places, directory);
    }
    places.fixed.sort();
    places.fixed.dedup();
    // Moving a root away would allow a link to another directory in its place.
    places.fixed.splice(..0, roots.iter().cloned());
    let temporary = real(temporary(rules, workspace));
    let home_elsewhere = real_home.clone().filter(|home| !roots.contains(home));
    let mut wide = roots;
    wide.extend(gits);
    let mut rest = real(in_home(&CACHES_IN_HOME));
    let programs = real_home.as_ref().map(|home| home.join(RUN_FROM_CACHE));
    let programs = programs.filter(|path| path.parent().is_some_and(Path::is_dir));
    rest.extend(real(rules.write.clone()));
    // Hidden paths take precedence over caches and configured writable paths.
    rest.retain(|path| !places.hidden.iter().any(|hidden| path.starts_with(hidden)));
    let is_below = |hidden: &PathBuf, above: &[PathBuf]| above.iter().any(|path| hidden.starts_with(path));
    match support.excludes_below_writable() {
        true => {
            if let Some(programs) = programs {
                // Only an existing directory can be made read-only.
                let _ = fs::create_dir(&programs);
                freeze(&mut places, programs);
            }
            wide.extend(temporary.iter().chain(&rest).cloned());
            if let Some(home) = home_elsewhere {
                shield(&mut places, &temporary, &wide, &home);
            }
            if let Some(settings) = &rules.settings {
                protect(&mut places, &[temporary, rest].concat(), settings);
            }
            close_go_versions(&mut places, real_home.as_deref());
            let covered = places.hidden.iter().filter(|hidden| is_below(hidden, &wide));
            places.covered = covered.cloned().collect();
            places.writable = wide;
        }
        false => {
            // Nothing can be excluded below a writable directory: hidden paths stay hidden and their siblings can be
            // changed, but new entries can't be created. That would make the temporary directory useless, so hidden
            // paths inside it are not protected.
            rest.retain(|path| programs.as_ref().is_none_or(|programs| !programs.starts_with(path)));
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

/// Keeps a home in a directory for temporary files from being changed: from hooks to the settings of shells, it has much
/// that runs later, outside of the sandbox. `writable`: what stays writable in it.
fn shield(places: &mut SandboxPaths, temporary: &[PathBuf], writable: &[PathBuf], home: &Path) {
    if temporary.iter().any(|path| path == home) {
        // All of it can't be read-only.
        return HOOKS_IN_HOME.iter().for_each(|name| protect(places, temporary, &home.join(name)));
    }
    if temporary.iter().any(|path| home.starts_with(path)) {
        let inside = writable.iter().filter(|path| path.starts_with(home)).cloned();
        places.fixed.splice(..0, parents(temporary, home).into_iter().chain(inside).collect::<Vec<_>>());
        places.closed.push(home.to_path_buf());
    }
}

/// Makes a directory read-only if one above it may be changed.
fn protect(places: &mut SandboxPaths, shared: &[PathBuf], path: &Path) {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let Some(path) = parent.zip(path.file_name()).map(|(parent, name)| parent.join(name)) else { return };
    if places.closed.iter().any(|closed| path.starts_with(closed))
        || !shared.iter().any(|above| path.starts_with(above) && path != *above)
    {
        return;
    }
    // Only an existing directory can be made read-only.
    let _ = fs::create_dir(&path);
    places.fixed.splice(..0, parents(shared, &path));
    freeze(places, path);
}

/// The directories between a path and those above it that commands may change, from the outside in. Moving one away
/// would allow another in its place.
fn parents(shared: &[PathBuf], path: &Path) -> Vec<PathBuf> {
    let is_below = |parent: &&Path| shared.iter().any(|above| parent.starts_with(above) && parent != above);
    let mut parents: Vec<PathBuf> =
        path.ancestors().skip(1).take_while(is_below).map(Path::to_path_buf).collect();
    parents.reverse();
    parents
}

/// Whether a home is one in which shells start: in some containers `HOME` is the directory of a project.
fn is_of_user(home: &Path) -> bool {
    [".bashrc", ".profile", ".bash_profile", ".zshrc", ".zprofile", ".config/fish"]
        .iter()
        .any(|file| home.join(file).exists())
}

/// Returns what commands of a session in a home may change: hidden entries of a home are settings, which programs run or
/// obey, and so are new ones.
fn visible_directories(home: &Path) -> Vec<PathBuf> {
    let is_visible = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_of_programs = name.starts_with('.') || PROGRAMS_IN_HOME.contains(&&*name);
        !is_of_programs && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    entries.filter(is_visible).map(|entry| entry.path()).take(VISIBLE_MAX).collect()
}

/// Returns the directories on the user's `PATH`, resolved.
fn directories_of_commands(workspace: &Workspace) -> impl Iterator<Item = PathBuf> {
    let path = workspace.environment.iter().find(|(name, _)| name == "PATH");
    let directories = path.into_iter().flat_map(|(_, path)| std::env::split_paths(path));
    directories
        .filter(|directory| directory.is_absolute())
        .filter_map(|directory| directory.canonicalize().ok())
}

/// Protects the versions of Go in the cache of modules.
fn close_go_versions(places: &mut SandboxPaths, home: Option<&Path>) {
    let modules = home.and_then(|home| home.join(GO_MODULES).canonicalize().ok());
    let Some(modules) = modules.filter(|modules| modules.is_dir()) else { return };
    for path in GO_VERSIONS.map(|name| modules.join(name)) {
        let ordinary = path.join("x");
        // Only an existing directory can be protected.
        let _ = fs::create_dir_all(&ordinary);
        if ordinary.canonicalize().is_ok_and(|real| real == ordinary) {
            let above = path.ancestors().skip(1).take_while(|above| above.starts_with(&modules));
            places.fixed.extend(above.map(Path::to_path_buf));
            places.fixed.push(ordinary);
            places.closed.push(path);
        }
    }
}

/// Creates separate caches, makes them writable, and returns the variables for them. Variables that the user has set stay.
pub(super) fn separate(
    caches: &[SeparateCache],
    workspace: &Workspace,
    places: &mut SandboxPaths,
) -> Vec<(OsString, OsString)> {
    let Some(home) = workspace.home().and_then(|home| home.canonicalize().ok()) else { return Vec::new() };
    let is_set = |variable: &str| workspace.environment.iter().any(|(name, _)| name == variable);
    let mut variables = Vec::new();
    for SeparateCache(variable, of_user, own) in caches {
        let path = home.join(own);
        let is_needed = of_user.is_none_or(|of_user| home.join(of_user).is_dir()) && !is_set(variable);
        if is_needed && fs::create_dir_all(&path).is_ok() {
            open(places, path.clone());
            variables.push(((*variable).into(), path.into()));
        }
    }
    variables
}

/// Makes a directory writable, also in one that is closed.
pub(super) fn open(places: &mut SandboxPaths, path: PathBuf) {
    if places.closed.iter().any(|closed| path.starts_with(closed)) {
        places.fixed.push(path.clone());
    }
    places.writable.push(path);
}

/// Returns the directory for copies of settings, which commands can't change. Where it is below a directory that this
/// command may change, the directory is made read-only and can't be used: `None`. Also without namespaces.
pub(super) fn staging(
    workspace: &Workspace,
    support: &Support,
    places: &mut SandboxPaths,
) -> Option<PathBuf> {
    let home = workspace.home().filter(|_| support.namespaces != Namespaces::None)?;
    let staging = home.join(STAGING);
    private_directory(&staging).ok()?;
    let staging = staging.canonicalize().ok()?;
    let is_below = |paths: &[PathBuf]| paths.iter().any(|path| staging.starts_with(path));
    if is_below(&places.writable) && !is_below(&places.closed) {
        // Moving a parent away would allow another directory in its place.
        places.fixed.extend(
            [".cache", ".cache/epitome"].iter().filter_map(|path| home.join(path).canonicalize().ok()),
        );
        freeze(places, staging);
        return None;
    }
    Some(staging)
}

/// The `.git` entries of the workspace.
pub(super) fn repositories(workspace: &Workspace) -> impl Iterator<Item = PathBuf> {
    let entries = workspace.found().entries(workspace.roots().iter().map(epitome_platform::root::Root::path));
    entries.into_iter().filter(|entry| entry.ends_with(".git"))
}

/// Protects the directories above a path in the workspace against renaming: another path could take its place.
fn fix_above(places: &mut SandboxPaths, roots: &[PathBuf], path: &Path) {
    let Some(root) = roots.iter().find(|root| path.starts_with(root)) else { return };
    let above = path.ancestors().skip(1).take_while(|above| above.starts_with(root) && *above != root);
    places.fixed.extend(above.map(Path::to_path_buf));
}

/// Makes a file or directory read-only. For a link, both the link and its target.
pub(super) fn freeze(places: &mut SandboxPaths, path: PathBuf) {
    if path.symlink_metadata().is_ok_and(|file| file.file_type().is_symlink()) {
        places.frozen.extend(path.canonicalize().ok());
    }
    places.frozen.push(path);
}

/// Makes a repository read-only, except for worktrees in it.
fn freeze_around(places: &mut SandboxPaths, git: PathBuf, worktrees: &[&Path]) {
    let inside = worktrees.iter().filter(|worktree| worktree.starts_with(&git));
    let inside: Vec<PathBuf> = inside.map(|worktree| worktree.to_path_buf()).collect();
    if inside.is_empty() {
        return freeze(places, git);
    }
    places.fixed.extend(inside);
    places.closed.push(git);
}

/// Whether a repository is read-only as a part of another one, outside of its worktrees. It must get no mounts then, which
/// would be writable.
fn is_closed(places: &SandboxPaths, worktrees: &[&Path], git: &Path) -> bool {
    let closes = |above: &Path| places.closed.iter().any(|closed| closed == above);
    git.ancestors().find(|above| closes(above) || worktrees.contains(above)).is_some_and(closes)
}

/// Returns the directories for temporary files.
fn temporary(rules: &SandboxRules, workspace: &Workspace) -> Vec<PathBuf> {
    let named = workspace.environment.iter().find(|(name, _)| name == "TMPDIR");
    let named = named
        .map(|(_, path)| PathBuf::from(path))
        .filter(|path| path.is_absolute() && path.parent().is_some());
    named.into_iter().chain(rules.temporary.clone()).collect()
}

/// Returns the canonical forms of the paths that exist.
fn real(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().filter_map(|path| path.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ALL: Support = Support {
        landlock: 7,
        namespaces: Namespaces::OfUser,
        own_processes: true,
        filter: true,
        seatbelt: false,
    };

    struct SandboxDisk {
        root: PathBuf,
        _directory: tempfile::TempDir,
    }

    impl SandboxDisk {
        fn with(files: &[&str]) -> SandboxDisk {
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
            SandboxDisk { root, _directory: directory }
        }

        /// The paths for a command that may change repositories.
        fn places(&self, cwd: &str, support: Support) -> SandboxPaths {
            self.places_of(cwd, true, support)
        }

        fn places_of(&self, cwd: &str, changes_git: bool, support: Support) -> SandboxPaths {
            let home = self.root.join("home");
            let path = home.join("go/bin").into_os_string();
            let environment = vec![("HOME".into(), home.into_os_string()), ("PATH".into(), path)];
            let workspace = Workspace::new(self.root.join(cwd), Vec::new(), Arc::new(environment));
            let rules =
                SandboxRules { hide: vec![self.root.join("home/.epitome/data")], ..SandboxRules::default() };
            find(&rules, &workspace, changes_git, &support)
        }

        fn below(&self, paths: &[PathBuf]) -> Vec<String> {
            let below = |path: &PathBuf| Some(path.strip_prefix(&self.root).ok()?.display().to_string());
            paths.iter().filter_map(below).collect()
        }
    }

    #[test]
    fn workspace_is_writable_except_for_files_executed_later() {
        let disk = SandboxDisk::with(&[
            "w/.git/HEAD",
            "w/.git/config",
            "w/.git/modules/lib/deep/HEAD",
            "w/.envrc",
            "w/.epitome/hooks/a",
            "w/src/.envrc",
            "home/.cache/pip/x",
            "home/.ssh/id",
        ]);
        let places = disk.places("w", ALL);
        assert_eq!(disk.below(&places.writable), ["w", "w/.git", "home/.cache/pip"]);
        let frozen = [
            "w/.envrc",
            "w/.epitome",
            "w/.git/hooks",
            "w/.git/config",
            "w/.git/commondir",
            "w/.git/modules/lib/deep/hooks",
            "w/.git/modules/lib/deep/commondir",
            "w/src/.envrc",
        ];
        assert_eq!(disk.below(&places.frozen), frozen);
        let fixed = ["w", "w/.git", "w/.git/modules", "w/.git/modules/lib", "w/.git/modules/lib/deep"];
        assert_eq!(disk.below(&places.fixed), fixed);
        assert_eq!(disk.below(&places.hidden), ["home/.ssh"]);
    }

    /// A list of files that make Git run something was never complete: `commondir`, settings of worktrees, entries of
    /// the index for other repositories.
    #[test]
    fn repositories_are_read_only_unless_the_user_agreed() {
        let disk = SandboxDisk::with(&[
            "w/.git/HEAD",
            "w/.git/hooks/",
            "w/lib/.git",
            "w/a/b/.git/HEAD",
            "w/a/.envrc",
            "h/x",
        ]);
        std::os::unix::fs::symlink("../../h", disk.root.join("w/a/.idea")).expect("linked");
        let places = disk.places_of("w", false, ALL);
        assert_eq!(disk.below(&places.writable), ["w"]);
        let frozen = ["w/.git", "w/a/.envrc", "h", "w/a/.idea", "w/a/b/.git", "w/lib/.git"];
        assert_eq!(disk.below(&places.frozen), frozen);
        assert_eq!(disk.below(&places.fixed), ["w", "w/a", "w/a/b", "w/lib"]);
        assert!(!disk.root.join("w/.git/commondir").exists());
        let places = disk.places_of("w", true, ALL);
        assert_eq!(disk.below(&places.writable), ["w", "w/.git", "w/a/b/.git"]);
        assert!(!disk.below(&places.frozen).contains(&"w/.git".to_owned()));
        assert!(disk.below(&places.frozen).contains(&"w/a/b/.git/commondir".to_owned()));
    }

    /// Where a bare clone and its worktrees are side by side, a `.git` file names the clone, which has another name. Every
    /// command could change its settings, and the user's next `git status` ran a program of the command's choice.
    #[test]
    fn a_repository_that_a_git_file_names_is_protected() {
        let disk = SandboxDisk::with(&["w/in/.bare/HEAD", "w/in/.bare/config", "w/src/x", "w/sub/x"]);
        fs::write(disk.root.join("w/.git"), "gitdir: ./in/.bare\n").expect("written");
        fs::write(disk.root.join("w/src/.git"), "gitdir: ../sub\n").expect("written");
        let places = disk.places_of("w", false, ALL);
        assert_eq!(disk.below(&places.frozen), ["w/.git", "w/src/.git", "w/in/.bare"]);
        assert_eq!(disk.below(&places.fixed), ["w", "w/in", "w/src"]);
        let places = disk.places("w", ALL);
        let frozen = ["hooks", "config", "commondir"].map(|name| format!("w/in/.bare/{name}"));
        assert_eq!(disk.below(&places.frozen)[2..], frozen);
        assert_eq!(disk.below(&places.fixed), ["w", "w/in", "w/in/.bare", "w/src"]);
    }

    /// Regression: in a session above a bare clone that has its worktrees in it, all of them were read-only.
    #[test]
    fn worktrees_in_a_bare_clone_stay_writable() {
        let module = "worktrees/t/modules/lib";
        let files = ["w/b.git/HEAD", "w/b.git/worktrees/t/HEAD", "w/b.git/t/lib/x"];
        let disk = SandboxDisk::with(&[&files[..], &[&*format!("w/b.git/{module}/HEAD")]].concat());
        for (file, text) in [
            ("worktrees/t/commondir", "../..\n"),
            ("t/.git", "gitdir: ../worktrees/t\n"),
            ("t/lib/.git", &*format!("gitdir: ../../{module}\n")),
        ] {
            fs::write(disk.root.join("w/b.git").join(file), text).expect("written");
        }
        let places = disk.places_of("w", false, ALL);
        assert_eq!(disk.below(&places.frozen), ["w/b.git/t/.git", "w/b.git/t/lib/.git"]);
        assert_eq!(disk.below(&places.closed), ["w/b.git"]);
        assert_eq!(disk.below(&places.fixed), ["w", "w/b.git", "w/b.git/t", "w/b.git/t/lib"]);
    }

    /// The settings of submodules were protected only in the repository's own directory, if their names had at most four
    /// parts, and of 64 of them. With permission for a `git add`, a command could change the others: the user's next
    /// `git status` ran what they named.
    #[test]
    fn settings_of_all_submodules_and_worktrees_are_protected() {
        let deeper = format!("w/.git/modules/{}", ["x"; 12].join("/"));
        let usual = ["w/.git/modules/a/b/c/d/lib", "w/.git/worktrees/t/modules/lib"].map(str::to_owned);
        let many = |of: &str| -> Vec<String> {
            (0..=git::MODULES_MAX).map(|number| format!("w/.git/{of}/{number}")).collect()
        };
        for directories in [usual.to_vec(), vec![deeper], many("modules/many"), many("worktrees")] {
            let mut files: Vec<String> = directories.iter().map(|path| format!("{path}/HEAD")).collect();
            files.extend(directories.iter().map(|path| format!("{path}/commondir")));
            files.push("w/.git/HEAD".to_owned());
            let disk = SandboxDisk::with(&files.iter().map(String::as_str).collect::<Vec<_>>());
            let places = disk.places("w", ALL);
            let is_frozen = |path: &str, name: &str| {
                places.frozen.iter().any(|above| disk.root.join(path).join(name).starts_with(above))
            };
            for path in &directories {
                assert!(is_frozen(path, "commondir"), "{path}");
                if usual.contains(path) {
                    assert!(is_frozen(path, "hooks") && !is_frozen(path, "index"), "{path}");
                }
            }
        }
    }

    #[test]
    fn a_directory_of_hooks_that_settings_name_is_read_only() {
        let disk = SandboxDisk::with(&["w/.git/HEAD", "w/.githooks/pre-commit", "w/tools/Hooks/x", "home/x"]);
        fs::write(disk.root.join("home/.gitconfig"), "[core]\n\thooksPath = .githooks\n").expect("written");
        assert!(disk.below(&disk.places("w", ALL).frozen).contains(&"w/.githooks".to_owned()));
        fs::write(disk.root.join("w/.git/config"), "[core]\n\thooksPath = \"tools/Hooks\"\n")
            .expect("written");
        let places = disk.places_of("w", false, ALL);
        assert!(disk.below(&places.frozen).contains(&"w/tools/Hooks".to_owned()));
        // A command moved `tools` away and created another one, and the user's next `git commit` ran its hook.
        assert_eq!(disk.below(&places.fixed), ["w", "w/tools"]);
    }

    /// Files that refer Git to its configuration are created if missing, and existing ones stay unchanged.
    #[test]
    fn missing_commondir_and_worktree_config_are_created() {
        let disk = SandboxDisk::with(&["w/.git/HEAD", "w/.git/config", "w/.git/worktrees/t/commondir"]);
        let text = |path: &str| fs::read_to_string(disk.root.join("w/.git").join(path)).ok();
        disk.places("w", Support { namespaces: Namespaces::None, ..ALL });
        assert_eq!(text("commondir"), None, "without mounts it would hold nothing");
        let places = disk.places("w", ALL);
        assert_eq!(text("commondir").as_deref(), Some("./\n"));
        assert_eq!(text("worktrees/t/commondir").as_deref(), Some(""));
        assert_eq!(text("config.worktree"), None, "Git would not read it");
        let frozen = ["w/.git/hooks", "w/.git/config", "w/.git/commondir", "w/.git/worktrees/t/commondir"];
        assert_eq!(disk.below(&places.frozen), frozen);
        assert_eq!(disk.below(&places.fixed), ["w", "w/.git", "w/.git/worktrees", "w/.git/worktrees/t"]);

        fs::write(disk.root.join("w/.git/config"), "[extensions]\n\tworktreeConfig = true\n")
            .expect("written");
        disk.places("w", ALL);
        assert_eq!(text("config.worktree").as_deref(), Some(""));
        assert_eq!(text("worktrees/t/config.worktree").as_deref(), Some(""));
    }

    /// With a `commondir` Git ignores `core.bare`: it would report a bare repository's files as deleted.
    #[test]
    fn a_bare_repository_is_closed_instead() {
        let disk = SandboxDisk::with(&[
            "w/.git/HEAD",
            "w/.git/hooks/",
            "w/.git/objects/",
            "w/.git/worktrees/t/HEAD",
        ]);
        let config = |text: &str| fs::write(disk.root.join("w/.git/config"), text).expect("written");
        config("[core]\n\tbare = true\n");
        let places = disk.places("w", ALL);
        assert!(!disk.root.join("w/.git/commondir").exists());
        assert_eq!(disk.below(&places.closed), ["w/.git"]);
        let fixed =
            ["w", "w/.git", "w/.git/logs", "w/.git/objects", "w/.git/worktrees", "w/.git/worktrees/t"];
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

    /// With software rendering, Mesa keeps machine code in its cache: what a command wrote there, the user's browser ran.
    #[test]
    fn a_cache_of_machine_code_is_not_writable() {
        let disk = SandboxDisk::with(&["w/x", "home/.cache/mesa_shader_cache/x", "home/.cache/ruff/x"]);
        assert_eq!(disk.below(&disk.places_of("w", false, ALL).writable), ["w", "home/.cache/ruff"]);
    }

    /// In a session in the home, every command could write to `.config/autostart` or `.local/bin`, create a `.zshrc` and
    /// replace programs in `go/bin`, without a prompt in mode auto.
    #[test]
    fn a_home_as_workspace_keeps_its_settings_and_secrets() {
        let files = ["home/.bashrc", "home/.ssh/id", "home/bin/x", "home/notes/a", "home/go/bin/x", "home/b"];
        let disk = SandboxDisk::with(&[&files[..], &["home/Library/LaunchAgents/x"]].concat());
        for support in [ALL, Support { namespaces: Namespaces::None, ..ALL }] {
            let places = disk.places("home", support);
            assert_eq!(disk.below(&places.writable), ["home/go", "home/notes"]);
            assert!(places.covered.is_empty());
        }
        let frozen = disk.below(&disk.places("home", ALL).frozen);
        assert!(frozen.contains(&"home/go/bin".to_owned()), "{frozen:?}");
        // Regression: with the home itself on PATH, nothing in it could be changed.
        let paths = ["home", "home/go/bin"].map(|path| disk.root.join(path));
        let path = std::env::join_paths(&paths).expect("no colons");
        let environment = vec![("HOME".into(), paths[0].clone().into_os_string()), ("PATH".into(), path)];
        let workspace = Workspace::new(&paths[0], Vec::new(), Arc::new(environment));
        let places = find(&SandboxRules::default(), &workspace, false, &ALL);
        assert!(places.frozen.contains(&paths[1]) && !places.frozen.contains(&paths[0]));
    }

    /// In a container, where no shell starts in the directory of a project that is `HOME`.
    #[test]
    fn a_project_that_is_home_is_writable_except_for_secrets() {
        let disk = SandboxDisk::with(&["home/.ssh/id", "home/.epitome/data/x", "home/notes/a", "home/b"]);
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

    /// Regression: with a home below `/tmp`, a command could write a hook into `~/.epitome/hooks`, which then ran outside of
    /// the sandbox, and the settings of the user's shells.
    #[test]
    fn a_home_in_a_directory_for_temporary_files_is_read_only() {
        let disk = SandboxDisk::with(&["tmp/users/ann/w/a", "tmp/users/ann/.cache/pip/x", "tmp/own/"]);
        let places = |home: &str, settings: &str| {
            let environment = vec![("HOME".into(), disk.root.join(home).into_os_string())];
            let cwd = disk.root.join("tmp/users/ann/w");
            let rules = SandboxRules {
                temporary: vec![disk.root.join("tmp")],
                settings: Some(disk.root.join(settings)),
                ..SandboxRules::default()
            };
            find(&rules, &Workspace::new(cwd, Vec::new(), Arc::new(environment)), false, &ALL)
        };
        let found = places("tmp/users/ann", "tmp/users/ann/.epitome");
        assert_eq!(disk.below(&found.closed), ["tmp/users/ann"]);
        let fixed = ["tmp/users", "tmp/users/ann/w", "tmp/users/ann/.cache/pip", "tmp/users/ann/w"];
        assert_eq!((disk.below(&found.fixed), found.frozen), (fixed.map(str::to_owned).into(), Vec::new()));
        // Of a home that is the directory for temporary files, only directories with hooks can be kept.
        let found = places("tmp", "tmp/own/epitome");
        assert_eq!(disk.below(&found.frozen), ["tmp/.kodelet", "tmp/.claude", "tmp/own/epitome"]);
        assert!(found.closed.is_empty() && disk.below(&found.fixed) == ["tmp/own", "tmp/users/ann/w"]);
    }

    #[test]
    fn directory_above_a_home_is_not_writable() {
        let disk = SandboxDisk::with(&["home/a"]);
        assert_eq!(disk.below(&disk.places("", ALL).writable), Vec::<String>::new());
    }

    /// A command could write a `.git` file that names any directory, and the next command would get access to it.
    #[test]
    fn worktree_needs_a_back_reference_from_its_repository() {
        let disk =
            SandboxDisk::with(&["main/.git/HEAD", "main/.git/worktrees/w/HEAD", "w/", "home/.ssh/HEAD"]);
        let own = disk.root.join("main/.git/worktrees/w");
        fs::write(disk.root.join("w/.git"), format!("gitdir: {}\n", own.display())).expect("written");
        assert_eq!(git::directory(&disk.root.join("w")), None, "nothing names it yet");
        fs::write(own.join("gitdir"), format!("{}\n", disk.root.join("w/.git").display())).expect("written");
        assert_eq!(git::directory(&disk.root.join("w")), Some(disk.root.join("main/.git")));
        fs::write(disk.root.join("w/.git"), "gitdir: ../home/.ssh\n").expect("written");
        assert_eq!(git::directory(&disk.root.join("w")), None);
    }
}
