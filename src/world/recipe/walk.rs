//! Walks recipe folders within bounds, without following links out of a repository.

use std::fs;
use std::path::{Path, PathBuf};

use super::definition::RecipeOwner;
use super::folders::{FolderKind, RecipeFolder};
use super::plugins::records::InstalledRecords;
use super::text_file::{LEADS_OUT, read_text};
use epitome_thread::problem::Problem;

/// Maximum directory entries read per catalog and owner; stops the walk in folders that contain something else.
pub const ENTRIES_MAX: usize = 10_000;
/// Maximum folder depth; also ends loops of links.
pub const FOLDER_DEPTH_MAX: usize = 8;

pub(super) struct FolderWalk {
    /// Directory entries that may still be read: of the user's folders, and of the repository's. A repository must not
    /// use up what is for the user's.
    budgets: [usize; 2],
    /// The canonical path of the repository, or of the session's directory outside of one; `None` without both.
    root: Option<PathBuf>,
}

impl FolderWalk {
    /// `repository`: the session's directory, followed by its repository root if there is one.
    pub(super) fn new(repository: &[PathBuf]) -> FolderWalk {
        let root = repository.last().map(|root| root.canonicalize().unwrap_or_else(|_| root.clone()));
        FolderWalk { budgets: [ENTRIES_MAX; 2], root }
    }

    /// Whether a file or folder may be read. A link from a cloned repository to the user's own files would
    /// expose them in menus and prompts.
    pub(super) fn may_enter(&self, owner: RecipeOwner, path: &Path) -> bool {
        match owner {
            RecipeOwner::User => true,
            RecipeOwner::Repository => {
                let real = path.canonicalize();
                real.is_ok_and(|real| self.root.as_ref().is_some_and(|root| real.starts_with(root)))
            }
        }
    }

    /// Reads a text file that may be entered; see [`read_text`].
    pub(super) fn read(
        &self,
        owner: RecipeOwner,
        path: &Path,
        what: &'static str,
        bytes_max: u64,
    ) -> Result<String, Problem> {
        if !self.may_enter(owner, path) {
            return Err(Problem::new(path, LEADS_OUT));
        }
        read_text(path, what, bytes_max).map_err(|why| Problem::new(path, why.to_string()))
    }

    /// Whether the owner's budget of entries is used up.
    pub(super) fn is_spent(&self, owner: RecipeOwner) -> bool {
        self.budgets[owner as usize] == 0
    }

    /// The folders to walk below a folder of recipes, each with the prefix of its ids.
    pub(super) fn folders(&mut self, location: &RecipeFolder) -> Vec<(PathBuf, String)> {
        let folders = match location.kind {
            FolderKind::Plugins => {
                // The user agreed to what `Plugin` reads of an installed one.
                let installed = match location.owner {
                    RecipeOwner::User => InstalledRecords::load(&location.folder),
                    RecipeOwner::Repository => Ok(InstalledRecords::default()),
                };
                // `PluginCatalog` reports unreadable records.
                let Ok(installed) = installed else { return Vec::new() };
                let plugins = self.children(location.owner, &location.folder).into_iter();
                plugins
                    .filter_map(|plugin| {
                        let name = plugin.file_name()?.to_str()?;
                        let is_installed = installed.plugins.contains_key(name);
                        (!is_installed).then(|| (plugin.join("recipes"), format!("{name}/")))
                    })
                    .collect()
            }
            FolderKind::Recipes
            | FolderKind::RecipesWithFrontMatter
            | FolderKind::ClaudeCommands
            | FolderKind::CodexPrompts
            | FolderKind::OpencodeCommands
            | FolderKind::GeminiCommands
            | FolderKind::Skills => {
                vec![(location.folder.clone(), location.kind.prefix().to_owned())]
            }
        };
        folders
            .into_iter()
            .filter(|(folder, _)| folder.is_dir() && self.may_enter(location.owner, folder))
            .collect()
    }

    /// Calls `visit` for every file and folder below a folder, with whether it is a folder.
    pub(super) fn below(
        &mut self,
        owner: RecipeOwner,
        folder: &Path,
        depth: usize,
        visit: &mut impl FnMut(PathBuf, bool),
    ) {
        for path in self.children(owner, folder) {
            if !path.is_dir() {
                visit(path, false);
            } else if depth < FOLDER_DEPTH_MAX && (!path.is_symlink() || self.may_enter(owner, &path)) {
                self.below(owner, &path, depth + 1, visit);
                visit(path, true);
            }
        }
    }

    /// Entries of a folder without hidden files and backups, sorted. A missing folder is empty.
    fn children(&mut self, owner: RecipeOwner, folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let budget = &mut self.budgets[owner as usize];
        let mut paths = Vec::new();
        for entry in entries.flatten() {
            if *budget == 0 {
                break;
            }
            *budget -= 1;
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
