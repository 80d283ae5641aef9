//! The repositories of a workspace: what commands may not change in them, so that the user's Git runs no program that
//! they have put there.

use std::path::{Path, PathBuf};

use super::{fix_above, freeze};
use crate::real_path;
use crate::sandbox::command_disk::CommandDisk;
use crate::sandbox::git::SettingsFiles;
use crate::sandbox::{Support, git};
use epitome_platform::sandbox::SandboxPaths;

/// Protects the repositories and the directories of their hooks. `entries`: the `.git` entries of the workspace, and
/// what else is executed later. Returns the Git directories that commands may change; none if they may not change Git.
pub(super) fn protect(
    paths: &mut SandboxPaths,
    entries: &[PathBuf],
    roots: &[PathBuf],
    disk: &CommandDisk<'_>,
    of_user: &SettingsFiles,
    changes_git: bool,
    support: &Support,
) -> Vec<PathBuf> {
    let mut gits = Vec::new();
    let git = entries.iter().filter(|entry| entry.ends_with(".git"));
    let mut worktrees: Vec<&Path> = git.filter_map(|git| git.parent()).collect();
    for entry in entries.iter().cloned() {
        let git = entry.ends_with(".git").then(|| entry.parent().and_then(git::directory)).flatten();
        match git.filter(|_| changes_git) {
            // A repository is completely read-only, so that no list of the files that make Git run something is
            // needed. With the user's consent, only the known files are.
            Some(git) => {
                if git != entry {
                    freeze(paths, entry);
                }
                // Those of a worktree are those of its repository.
                if !gits.contains(&git) {
                    git::freeze(paths, &git, support);
                    gits.push(git);
                }
            }
            None => {
                paths.frozen.extend(git::outside_links(&entry));
                freeze(paths, entry);
            }
        }
    }
    // A `.git` file may name a directory of the workspace that has another name: a bare clone with worktrees.
    for git in worktrees.iter().filter_map(|worktree| git::common_directory(worktree)) {
        let is_below = |above: &PathBuf| git.starts_with(above);
        let is_known = paths.frozen.iter().chain(&gits).any(is_below) || is_closed(paths, &worktrees, &git);
        let is_inside = roots.iter().any(|root| git.starts_with(root) && git != *root);
        if is_known || !is_inside || !git.join("HEAD").exists() {
            continue;
        }
        fix_above(paths, roots, &git);
        match changes_git {
            true => {
                git::freeze(paths, &git, support);
                gits.push(git);
            }
            false => freeze_around(paths, git, &worktrees),
        }
    }
    // A session may be below the root of its repository.
    worktrees
        .extend(roots.iter().filter_map(|root| root.ancestors().find(|path| path.join(".git").exists())));
    worktrees.sort();
    worktrees.dedup();
    let home = disk.home();
    let hooks = worktrees.iter().flat_map(|worktree| {
        let settings = git::settings_of(worktree, home.as_deref());
        git::hooks_paths(worktree, home.as_deref(), settings.all().chain(of_user.all()))
    });
    for hooks in hooks {
        fix_above(paths, roots, &hooks);
        freeze(paths, hooks);
    }
    for git in worktrees.iter().map(|worktree| worktree.join(".git")) {
        fix_above(paths, roots, &git);
    }
    gits
}

/// Returns the files that the settings of the workspace's repositories, of the user and of the system include. With dotfiles,
/// they are in a repository, which may be the workspace. A file may be missing.
pub(crate) fn included(disk: &CommandDisk<'_>, of_user: &SettingsFiles) -> Vec<PathBuf> {
    let home = disk.home();
    let of_repositories = disk.worktrees().flat_map(|tree| git::settings_of(tree, home.as_deref()).included);
    let included = of_repositories.chain(of_user.included.iter().cloned());
    included.map(|path| real_path(&path)).collect()
}

/// Makes a repository read-only, except for worktrees in it.
fn freeze_around(paths: &mut SandboxPaths, git: PathBuf, worktrees: &[&Path]) {
    let inside = worktrees.iter().filter(|worktree| worktree.starts_with(&git));
    let inside: Vec<PathBuf> = inside.map(|worktree| worktree.to_path_buf()).collect();
    if inside.is_empty() {
        return freeze(paths, git);
    }
    paths.fixed.extend(inside);
    paths.closed.push(git);
}

/// Whether a repository is read-only as a part of another one, outside of its worktrees. It must get no mounts then, which
/// would be writable.
fn is_closed(paths: &SandboxPaths, worktrees: &[&Path], git: &Path) -> bool {
    let closes = |above: &Path| paths.closed.iter().any(|closed| closed == above);
    git.ancestors().find(|above| closes(above) || worktrees.contains(above)).is_some_and(closes)
}
