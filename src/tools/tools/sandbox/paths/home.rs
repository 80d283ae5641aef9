//! The parts of the user's home directory that commands may change, if it is the workspace or in a temporary directory.

use std::fs;
use std::path::{Path, PathBuf};

use super::freeze;
use crate::sandbox::command_disk::CommandDisk;
use crate::{Workspace, real_path};
use epitome_platform::root::resolve;
use epitome_platform::sandbox::SandboxPaths;

/// Directories in a home from which Epitome runs hooks as the user's own, besides its settings.
const HOOKS_IN_HOME: [&str; 2] = [".kodelet", ".claude"];

/// Visible directories of a home with programs. On macOS, `Library` has those that are started at login.
const PROGRAMS_IN_HOME: [&str; 4] = ["bin", "snap", "Applications", "Library"];

/// Directories of the system with many links to its own files.
const OF_SYSTEM: [&str; 4] = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"];

/// Maximum number of directories of a home that commands of a session in it may change.
const VISIBLE_MAX: usize = 256;

/// Keeps a home in a directory for temporary files from being changed: from hooks to the settings of shells, it has much
/// that runs later, outside of the sandbox. `writable`: what stays writable in it.
pub(super) fn shield(paths: &mut SandboxPaths, temporary: &[PathBuf], writable: &[PathBuf], home: &Path) {
    if temporary.iter().any(|path| path == home) {
        // All of it can't be read-only.
        return HOOKS_IN_HOME.iter().for_each(|name| protect(paths, temporary, &home.join(name)));
    }
    if temporary.iter().any(|path| home.starts_with(path)) {
        let inside = writable.iter().filter(|path| path.starts_with(home)).cloned();
        paths.fixed.splice(..0, parents(temporary, home).into_iter().chain(inside).collect::<Vec<_>>());
        paths.closed.push(home.to_path_buf());
    }
}

/// Makes a directory read-only if one above it may be changed.
pub(super) fn protect(paths: &mut SandboxPaths, shared: &[PathBuf], path: &Path) {
    let parent = path.parent().and_then(|parent| resolve(parent).ok());
    let Some(path) = parent.zip(path.file_name()).map(|(parent, name)| parent.join(name)) else { return };
    if paths.closed.iter().any(|closed| path.starts_with(closed))
        || !shared.iter().any(|above| path.starts_with(above) && path != *above)
    {
        return;
    }
    // Only an existing directory can be made read-only.
    let _ = fs::create_dir(&path);
    paths.fixed.splice(..0, parents(shared, &path));
    freeze(paths, path);
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
pub(in crate::sandbox) fn is_of_user(home: &Path) -> bool {
    [".bashrc", ".profile", ".bash_profile", ".zshrc", ".zprofile", ".config/fish"]
        .iter()
        .any(|file| home.join(file).exists())
}

/// Returns what commands of a session in a home may change: hidden entries of a home are settings, which programs run or
/// obey, and so are new ones.
pub(super) fn visible_directories(home: &Path) -> Vec<PathBuf> {
    let is_visible = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_of_programs = name.starts_with('.') || PROGRAMS_IN_HOME.contains(&&*name);
        !is_of_programs && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    entries.filter(is_visible).map(|entry| entry.path()).take(VISIBLE_MAX).collect()
}

/// Whether a path is in a directory of settings from which Epitome runs hooks.
pub(crate) fn is_of_settings(path: &Path, home: Option<&Path>, settings: Option<&Path>) -> bool {
    let of_home = home.into_iter().flat_map(|home| HOOKS_IN_HOME.map(|name| home.join(name)));
    of_home.chain(settings.map(Path::to_path_buf)).any(|above| path.starts_with(&above))
}

/// Returns the targets of links in a home that programs run or obey: in its hidden directories, which are settings of shells, of
/// Git, of SSH and of editors, and in those with commands. With dotfiles, they are in a repository, which may be the workspace. A
/// target may be missing.
pub(crate) fn linked(disk: &CommandDisk<'_>) -> Vec<PathBuf> {
    let homes = disk.homes();
    let (mut searched, mut direct) = (Vec::new(), Vec::new());
    for directory in homes.iter().flat_map(|home| [home.clone(), home.join(".config")]) {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_hidden = name.as_encoded_bytes().starts_with(b".") || directory.ends_with(".config");
            match entry.file_type() {
                _ if !is_hidden || name == ".cache" => {}
                Ok(kind) if kind.is_symlink() => direct.push(real_path(&entry.path())),
                Ok(kind) if kind.is_dir() => searched.push(entry.path()),
                _ => {}
            }
        }
    }
    let is_of_system = |path: &PathBuf| OF_SYSTEM.iter().any(|system| path == Path::new(system));
    let commands = directories_of_commands(disk).filter(|path| !is_of_system(path));
    let commands = commands.chain(homes.iter().map(|home| home.join("bin")));
    let mut targets = disk.found().targets(searched, commands);
    // A plugin of a shell or of an editor may be the workspace. It would have nothing that commands may change.
    targets.retain(|target| disk.roots().iter().all(|root| !root.path().starts_with(target)));
    targets.append(&mut direct);
    targets.retain(|target| homes.iter().all(|home| !home.starts_with(target)));
    targets
}

/// Returns the directories on the user's `PATH`, resolved.
pub(super) fn directories_of_commands(workspace: &Workspace) -> impl Iterator<Item = PathBuf> {
    let directories = workspace.variable("PATH").into_iter().flat_map(std::env::split_paths);
    directories.filter(|directory| directory.is_absolute()).filter_map(|directory| resolve(&directory).ok())
}
