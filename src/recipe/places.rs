//! The folders to search for recipes, in order of precedence, and the ids of files in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use epitome_files::paths::Paths;

/// A folder of recipes, and how its files are read.
pub(super) struct RecipeFolder {
    pub(super) folder: PathBuf,
    pub(super) kind: PlaceKind,
    pub(super) owner: RecipeOwner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RecipeOwner {
    User,
    Repository,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceKind {
    Recipes,
    /// `<cwd>/recipes` may be an unrelated folder: only files with front matter count.
    RecipesWithFrontMatter,
    /// Each subfolder is a plugin with a `recipes` folder; the plugin's name prefixes its recipe ids.
    Plugins,
    ClaudeCommands,
    GeminiCommands,
    Skills,
}

/// All folders, in order of precedence. `repository` contains the session's directory and the root of its
/// repository; relative paths in `extra` are relative to the former.
pub(super) fn places(repository: &[PathBuf], paths: &Paths, extra: &[PathBuf]) -> Vec<RecipeFolder> {
    use PlaceKind::{ClaudeCommands, GeminiCommands, Plugins, Recipes, RecipesWithFrontMatter, Skills};
    use RecipeOwner::{Repository, User};
    let mut places = Vec::new();
    let mut add = |folder: PathBuf, kind, owner| places.push(RecipeFolder { folder, kind, owner });
    for root in repository {
        add(root.join(".epitome/recipes"), Recipes, Repository);
        add(root.join(".kodelet/recipes"), Recipes, Repository);
        add(root.join("recipes"), RecipesWithFrontMatter, Repository);
        add(root.join(".epitome/plugins"), Plugins, Repository);
        add(root.join(".kodelet/plugins"), Plugins, Repository);
    }
    add(paths.home.join("recipes"), Recipes, User);
    let home = paths.user_home.as_deref();
    if let Some(home) = home {
        add(home.join(".kodelet/recipes"), Recipes, User);
    }
    add(paths.home.join("plugins"), Plugins, User);
    if let Some(home) = home {
        add(home.join(".kodelet/plugins"), Plugins, User);
    }
    for folder in extra {
        add(repository.first().map_or_else(|| folder.clone(), |cwd| cwd.join(folder)), Recipes, User);
    }
    let of_repository = repository.iter().map(|root| (root.as_path(), Repository));
    let roots: Vec<(&Path, RecipeOwner)> = of_repository.chain(home.map(|home| (home, User))).collect();
    for (root, owner) in &roots {
        add(root.join(".claude/commands"), ClaudeCommands, *owner);
    }
    for (root, owner) in &roots {
        add(root.join(".claude/skills"), Skills, *owner);
        add(root.join(".agents/skills"), Skills, *owner);
        let own = if *owner == User { paths.home.join("skills") } else { root.join(".epitome/skills") };
        add(own, Skills, *owner);
    }
    for (root, owner) in &roots {
        add(root.join(".gemini/commands"), GeminiCommands, *owner);
    }
    // If the session is in the home directory, its folders are the user's, not a repository's.
    let of_user: BTreeSet<PathBuf> =
        places.iter().filter(|place| place.owner == User).map(|place| place.folder.clone()).collect();
    places.retain(|place| place.owner == User || !of_user.contains(&place.folder));
    places
}

/// Hook folders of the user and of the repository. Recipes may use the names of these hooks as handlers.
pub(super) fn hook_folders(repository: &[PathBuf], paths: &Paths) -> Vec<PathBuf> {
    let of_repository =
        repository.iter().flat_map(|root| [root.join(".epitome/hooks"), root.join(".kodelet/hooks")]);
    let of_user = [paths.home.join("hooks/enforced"), paths.home.join("hooks")];
    let of_kodelet = paths.user_home.iter().map(|home| home.join(".kodelet/hooks"));
    of_repository.chain(of_user).chain(of_kodelet).collect()
}

/// Derives the id from a file's path; `None` if the file is not a recipe.
pub(super) fn id_of(kind: PlaceKind, folder: &Path, path: &Path) -> Option<String> {
    let below = path.strip_prefix(folder).ok()?;
    let below = match kind {
        PlaceKind::Recipes | PlaceKind::RecipesWithFrontMatter | PlaceKind::Plugins => {
            match below.extension().and_then(|extension| extension.to_str()) {
                None | Some("md") => below.with_extension(""),
                Some(_) => return None,
            }
        }
        PlaceKind::ClaudeCommands if below.extension()? == "md" => below.with_extension(""),
        PlaceKind::GeminiCommands if below.extension()? == "toml" => below.with_extension(""),
        PlaceKind::Skills if below.file_name()? == "SKILL.md" => below.parent()?.to_path_buf(),
        PlaceKind::ClaudeCommands | PlaceKind::GeminiCommands | PlaceKind::Skills => return None,
    };
    let parts: Option<Vec<&str>> = below.iter().map(|part| part.to_str()).collect();
    parts.map(|parts| parts.join("/")).filter(|id| !id.is_empty())
}
