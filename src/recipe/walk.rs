//! Looks through the folders where recipes can be: within bounds, and out of a repository by no link.

use std::fs;
use std::path::{Path, PathBuf};

use super::places::{Owner, Place, PlaceKind};

/// Directory entries looked at for one catalog; a folder that is none of recipes ends here.
pub const ENTRIES_MAX: usize = 10_000;
/// Folders within folders; also what ends a loop of links.
pub const FOLDER_DEPTH_MAX: usize = 8;

/// Looks through folders, within bounds.
pub(super) struct Walk {
    /// Entries that may still be looked at.
    budget: usize,
    /// The repository's real path; `None` where there is none.
    root: Option<PathBuf>,
}

impl Walk {
    /// `repository`: a directory and then, perhaps, the root above it.
    pub(super) fn new(repository: &[PathBuf]) -> Walk {
        let root = repository.last().map(|root| root.canonicalize().unwrap_or_else(|_| root.clone()));
        Walk { budget: ENTRIES_MAX, root }
    }

    /// Whether a file or folder may be looked into. A link from a cloned repository to the person's own
    /// files would put these into menus and prompts.
    pub(super) fn may_enter(&self, owner: Owner, path: &Path) -> bool {
        match owner {
            Owner::Person => true,
            Owner::Repository => {
                let real = path.canonicalize();
                real.is_ok_and(|real| self.root.as_ref().is_some_and(|root| real.starts_with(root)))
            }
        }
    }

    /// Whether nothing more may be looked at.
    pub(super) fn is_spent(&self) -> bool {
        self.budget == 0
    }

    /// The folders to walk of a place, with the prefix of their ids.
    pub(super) fn folders(&mut self, place: &Place) -> Vec<(PathBuf, String)> {
        let folders = match place.kind {
            PlaceKind::Plugins => {
                let plugins = self.children(&place.folder).into_iter();
                plugins
                    .filter_map(|plugin| {
                        Some((plugin.join("recipes"), format!("{}/", plugin.file_name()?.to_str()?)))
                    })
                    .collect()
            }
            PlaceKind::Recipes
            | PlaceKind::RecipesWithFrontMatter
            | PlaceKind::ClaudeCommands
            | PlaceKind::GeminiCommands
            | PlaceKind::Skills => vec![(place.folder.clone(), String::new())],
        };
        folders
            .into_iter()
            .filter(|(folder, _)| folder.is_dir() && self.may_enter(place.owner, folder))
            .collect()
    }

    /// Calls `visit` for what lies below a folder.
    pub(super) fn below(&mut self, owner: Owner, folder: &Path, depth: usize, visit: &mut impl FnMut(Found)) {
        for path in self.children(folder) {
            if !path.is_dir() {
                visit(Found::File(path));
            } else if depth < FOLDER_DEPTH_MAX && (!path.is_symlink() || self.may_enter(owner, &path)) {
                self.below(owner, &path, depth + 1, visit);
                visit(Found::Folder(path));
            }
        }
    }

    /// What is in a folder, without hidden files and backups, sorted. A missing folder is empty.
    fn children(&mut self, folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut paths = Vec::new();
        for entry in entries.flatten() {
            if self.budget == 0 {
                break;
            }
            self.budget -= 1;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with('.') && !name.ends_with('~') {
                paths.push(entry.path());
            }
        }
        paths.sort();
        paths
    }
}

pub(super) enum Found {
    File(PathBuf),
    Folder(PathBuf),
}
