//! Determines which paths a command may read, change or not see. Reads the disk and decides;
//! `epitome_platform::sandbox` enforces the result.

pub(super) mod caches;
pub(crate) mod home;
pub(crate) mod repositories;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use caches::RUN_FROM_CACHE;

use super::command_disk::CommandDisk;
use super::{Namespaces, SandboxRules, Support, denied, git};
use crate::Workspace;
use crate::secret_paths::is_secret_place;
use epitome_files::atomic_file::private_directory;
use epitome_platform::root::{Root, resolve};
use epitome_platform::sandbox::{SandboxPaths, all_but};

/// The directory for copies of settings. Not one for temporary files, which every command may change.
pub(super) const STAGING: &str = ".cache/epitome/staging";

/// The directories of a home in which programs have their own.
const PROGRAMS: [&str; 5] = ["", ".cache", ".config", ".local/share", ".local/state"];

/// A name that no file has.
const LATER: &str = ".login-of-later";

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
    disk: &CommandDisk<'_>,
    changes_git: bool,
    support: &Support,
) -> SandboxPaths {
    let home = disk.home();
    let real_home = disk.real_home().map(Path::to_path_buf);
    let mut roots = writable_roots(disk, real_home.as_deref());
    // Settings of agents have hooks, commands and servers, which run outside of the sandbox.
    roots.retain(|root| !home::is_of_settings(root, real_home.as_deref(), rules.settings.as_deref()));
    let mut paths = SandboxPaths {
        devices: real(DEVICES.map(PathBuf::from)),
        hidden: hidden(rules, disk),
        ..SandboxPaths::default()
    };
    let entries = match roots.iter().eq(disk.roots().iter().map(Root::path)) {
        true => disk.entries(),
        false => &disk.found().entries(roots.iter().map(PathBuf::as_path)),
    };
    let of_user = git::settings_of_user(disk);
    let mut commands = Vec::new();
    if let Some(home) = real_home.as_ref().filter(|home| roots.contains(home) && home::is_of_user(home)) {
        roots.retain(|root| root != home);
        roots.extend(home::visible_directories(home));
        roots.sort();
        roots.dedup();
        let is_inside = |path: &PathBuf| path.starts_with(home) && path != home;
        commands.extend(home::directories_of_commands(disk).filter(is_inside));
    }
    let gits = repositories::protect(&mut paths, entries, &roots, disk, &of_user, changes_git, support);
    for directory in commands {
        fix_above(&mut paths, &roots, &directory);
        freeze(&mut paths, directory);
    }
    let mut obeyed = home::linked(disk);
    obeyed.extend(repositories::included(disk, &of_user));
    let is_inside = |path: &PathBuf| roots.iter().chain(&gits).any(|root| path.starts_with(root));
    if support.excludes_below_writable() {
        // Only an existing file can be protected.
        for path in obeyed.iter().filter(|path| is_inside(path)) {
            let _ = path.parent().map(fs::create_dir_all);
            git::put_new(path, "");
        }
    }
    let frozen = disk.frozen().iter().cloned().chain(obeyed).chain(rules.settings.clone());
    let frozen: Vec<PathBuf> = frozen.filter_map(|path| resolve(&path).ok()).collect();
    for path in frozen.into_iter().filter(is_inside) {
        fix_above(&mut paths, &[&roots[..], &gits].concat(), &path);
        freeze(&mut paths, path);
    }
    paths.fixed.sort();
    paths.fixed.dedup();
    // Moving a root away would allow a link to another directory in its place.
    paths.fixed.splice(..0, roots.iter().cloned());
    let temporary = real(temporary(rules, disk));
    let home_elsewhere = real_home.clone().filter(|home| !roots.contains(home));
    let mut wide = roots;
    wide.extend(gits);
    let caches = home.iter().flat_map(|home| caches::in_home(home));
    let mut rest = real(caches.chain(rules.write.clone()));
    let programs = real_home.as_ref().map(|home| home.join(RUN_FROM_CACHE));
    let programs = programs.filter(|path| path.parent().is_some_and(Path::is_dir));
    // Hidden paths take precedence over caches and configured writable paths.
    rest.retain(|path| !paths.hidden.iter().any(|hidden| path.starts_with(hidden)));
    let is_below = |hidden: &PathBuf, above: &[PathBuf]| above.iter().any(|path| hidden.starts_with(path));
    match support.excludes_below_writable() {
        true => {
            if let Some(programs) = programs {
                // Only an existing directory can be made read-only.
                let _ = fs::create_dir(&programs);
                freeze(&mut paths, programs);
            }
            wide.extend(temporary.iter().chain(&rest).cloned());
            if let Some(home) = home_elsewhere {
                home::shield(&mut paths, &temporary, &wide, &home);
            }
            if let Some(settings) = &rules.settings {
                home::protect(&mut paths, &[temporary, rest].concat(), settings);
            }
            caches::close_go_versions(&mut paths, real_home.as_deref());
            let covered = paths.hidden.iter().filter(|hidden| is_below(hidden, &wide) && hidden.exists());
            paths.covered = covered.cloned().collect();
            paths.writable = wide;
        }
        false => {
            // Nothing can be excluded below a writable directory: hidden paths stay hidden and their siblings can be
            // changed, but new entries can't be created. That would make the temporary directory useless, so hidden
            // paths inside it are not protected.
            rest.retain(|path| programs.as_ref().is_none_or(|programs| !programs.starts_with(path)));
            for path in wide.iter().chain(&rest) {
                all_but(path, &paths.hidden, &mut paths.writable);
            }
            paths.hidden.retain(|hidden| !is_below(hidden, &temporary));
            paths.writable.extend(temporary);
            paths.frozen.clear();
            paths.fixed.clear();
            paths.closed.clear();
        }
    }
    paths.find_readable();
    close_later(&mut paths, rules, disk);
    paths
}

/// Closes what has appeared in a home since its secrets were searched, such as a login: it was not known as hidden, but is
/// listed now. It may even be gone at this moment.
fn close_later(paths: &mut SandboxPaths, rules: &SandboxRules, disk: &CommandDisk<'_>) {
    let homes = disk.homes();
    let own: Vec<&Path> =
        disk.roots().iter().map(Root::path).chain(rules.write.iter().map(PathBuf::as_path)).collect();
    // Directories of programs that were there are listed by their entries.
    let is_new = |path: &Path, home: &Path| {
        let above = path.parent().and_then(|above| above.strip_prefix(home).ok());
        above.is_some_and(|above| PROGRAMS.iter().any(|programs| above == Path::new(programs)))
            && (path.parent() != Some(home) || is_hidden(path))
            && !path.is_file()
    };
    paths.read.retain(|path| {
        let is_kept = |home: &PathBuf| {
            !path.starts_with(home)
                || own.contains(&home.as_path())
                || !(is_secret_place(path, home) || is_new(path, home))
        };
        homes.iter().all(is_kept) || own.iter().any(|own| own.starts_with(path) || path.starts_with(own))
    });
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Returns the paths that no command may read.
fn hidden(rules: &SandboxRules, disk: &CommandDisk<'_>) -> Vec<PathBuf> {
    let mut hidden = disk.secrets().paths().to_vec();
    // The user has opened these.
    let open = real(rules.write.clone());
    hidden.retain(|path| !open.contains(path));
    hidden.extend(later_logins(disk));
    hidden.extend(real(rules.hide.clone()));
    hidden.extend(real(denied::find(&rules.deny_read, disk)));
    hidden.sort();
    hidden.dedup();
    hidden
}

/// Paths that may not exist yet, in directories where programs keep logins: only the entries that exist when a command starts
/// can be read in these.
fn later_logins(disk: &CommandDisk<'_>) -> Vec<PathBuf> {
    let homes = disk.homes();
    let all: Vec<PathBuf> = homes.iter().flat_map(|home| PROGRAMS.map(|name| home.join(name))).collect();
    let is_of_program = |entry: &fs::DirEntry, above: &Path| {
        (!homes.contains(above) || is_hidden(&entry.path()))
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let opened = all.iter().flat_map(|above| {
        let entries = fs::read_dir(above).into_iter().flatten().flatten();
        entries.filter(|entry| is_of_program(entry, above)).map(|entry| entry.path())
    });
    opened.chain(all.clone()).map(|directory| directory.join(LATER)).collect()
}

/// Returns the workspace's directories that commands may change.
fn writable_roots(disk: &CommandDisk<'_>, home: Option<&Path>) -> Vec<PathBuf> {
    // The session's directory is `/` or a parent of the home directory, which can't entirely be the workspace.
    let is_too_wide = |root: &Path| {
        root.parent().is_none() || home.is_some_and(|home| home != root && home.starts_with(root))
    };
    // Use the paths that the directories had when they were opened: a link may have replaced them since.
    let opened = disk.roots().iter().filter(|root| root.identity().is_some()).map(|root| root.path());
    opened.filter(|root| !is_too_wide(root)).map(Path::to_path_buf).collect()
}

/// Makes a directory writable, also in one that is closed.
pub(super) fn open(paths: &mut SandboxPaths, path: PathBuf) {
    if paths.closed.iter().any(|closed| path.starts_with(closed)) {
        paths.fixed.push(path.clone());
    }
    paths.writable.push(path);
}

/// Returns the directory for copies of settings, which commands can't change. Where it is below a directory that this
/// command may change, the directory is made read-only and can't be used: `None`. Also without namespaces.
pub(super) fn staging(
    disk: &CommandDisk<'_>,
    support: &Support,
    paths: &mut SandboxPaths,
) -> Option<PathBuf> {
    let home = disk.home().filter(|_| support.namespaces != Namespaces::None)?;
    let staging = home.join(STAGING);
    private_directory(&staging).ok()?;
    let staging = resolve(&staging).ok()?;
    let is_below = |paths: &[PathBuf]| paths.iter().any(|path| staging.starts_with(path));
    if is_below(&paths.writable) && !is_below(&paths.closed) {
        // Moving a parent away would allow another directory in its place.
        paths
            .fixed
            .extend([".cache", ".cache/epitome"].iter().filter_map(|path| resolve(&home.join(path)).ok()));
        freeze(paths, staging);
        return None;
    }
    Some(staging)
}

/// Protects the directories above a path in the workspace against renaming: another path could take its place.
fn fix_above(paths: &mut SandboxPaths, roots: &[PathBuf], path: &Path) {
    let Some(root) = roots.iter().find(|root| path.starts_with(root)) else { return };
    let above = path.ancestors().skip(1).take_while(|above| above.starts_with(root) && *above != root);
    paths.fixed.extend(above.map(Path::to_path_buf));
}

/// Makes a file or directory read-only. For a link, both the link and its target.
pub(super) fn freeze(paths: &mut SandboxPaths, path: PathBuf) {
    if path.symlink_metadata().is_ok_and(|file| file.file_type().is_symlink()) {
        paths.frozen.extend(resolve(&path).ok());
    }
    paths.frozen.push(path);
}

/// Returns the directories for temporary files.
fn temporary(rules: &SandboxRules, workspace: &Workspace) -> Vec<PathBuf> {
    let named = workspace.variable("TMPDIR").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute() && path.parent().is_some());
    named.into_iter().chain(rules.temporary.clone()).collect()
}

/// Returns the canonical forms of the paths that exist.
fn real(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().filter_map(|path| resolve(&path).ok()).collect()
}
