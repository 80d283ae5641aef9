//! The folders to search for recipes, in order of precedence, and the ids of files in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::definition::RecipeOwner;
use super::plugins::Plugin;
use epitome_files::paths::Paths;

/// A folder of recipes, and how its files are read.
pub(super) struct RecipeFolder {
    pub(super) folder: PathBuf,
    pub(super) kind: FolderKind,
    pub(super) owner: RecipeOwner,
    /// The plugin that it belongs to, whose name prefixes its ids.
    pub(super) plugin: Option<Arc<Plugin>>,
}

impl RecipeFolder {
    pub(super) fn plain(folder: PathBuf, kind: FolderKind, owner: RecipeOwner) -> RecipeFolder {
        RecipeFolder { folder, kind, owner, plugin: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderKind {
    Recipes,
    /// `<cwd>/recipes` may be an unrelated folder: only files with front matter count.
    RecipesWithFrontMatter,
    /// Each subfolder is a plugin with a `recipes` folder; the plugin's name prefixes its recipe ids.
    Plugins,
    ClaudeCommands,
    /// `~/.codex/prompts`: only the files directly in the folder.
    CodexPrompts,
    OpencodeCommands,
    GeminiCommands,
    Skills,
}

impl FolderKind {
    /// The separator of folders and name in an id. Claude Code uses `/frontend:component` (CHANGELOG 1.0.45), and so
    /// does Gemini (geminicli.com/docs/cli/custom-commands).
    fn separator(self) -> &'static str {
        match self {
            FolderKind::ClaudeCommands | FolderKind::GeminiCommands => ":",
            FolderKind::Recipes
            | FolderKind::RecipesWithFrontMatter
            | FolderKind::Plugins
            | FolderKind::CodexPrompts
            | FolderKind::OpencodeCommands
            | FolderKind::Skills => "/",
        }
    }

    /// The prefix of ids. Codex calls its prompts `/prompts:name`.
    pub(super) fn prefix(self) -> &'static str {
        if self == FolderKind::CodexPrompts { "prompts:" } else { "" }
    }
}

/// All folders, in order of precedence. `repository` contains the session's directory and the root of its
/// repository; relative paths in `extra` are relative to the former.
pub(super) fn locations(repository: &[PathBuf], paths: &Paths, extra: &[PathBuf]) -> Vec<RecipeFolder> {
    use FolderKind::{
        ClaudeCommands, CodexPrompts, GeminiCommands, OpencodeCommands, Plugins, Recipes,
        RecipesWithFrontMatter, Skills,
    };
    use RecipeOwner::{Repository, User};
    let mut locations = Vec::new();
    let mut add = |folder: PathBuf, kind, owner| locations.push(RecipeFolder::plain(folder, kind, owner));
    for root in repository {
        add(root.join(".epitome/recipes"), Recipes, Repository);
        add(root.join(".kodelet/recipes"), Recipes, Repository);
        add(root.join("recipes"), RecipesWithFrontMatter, Repository);
        add(root.join(".epitome/plugins"), Plugins, Repository);
        add(root.join(".kodelet/plugins"), Plugins, Repository);
    }
    let home = paths.user_home.as_deref();
    let kodelet = home.map(|home| home.join(".kodelet"));
    for (below, kind) in [("recipes", Recipes), ("plugins", Plugins)] {
        for folder in [&paths.home].into_iter().chain(&kodelet) {
            add(folder.join(below), kind, User);
        }
    }
    for folder in extra {
        add(extra_folder(repository, folder), Recipes, User);
    }
    let of_repository = repository.iter().map(|root| (root.as_path(), Repository));
    let roots: Vec<(&Path, RecipeOwner)> = of_repository.chain(home.map(|home| (home, User))).collect();
    for (root, owner) in &roots {
        add(root.join(".claude/skills"), Skills, *owner);
        add(root.join(".agents/skills"), Skills, *owner);
        if *owner == Repository {
            add(root.join(".epitome/skills"), Skills, Repository);
        }
    }
    add(paths.home.join("skills"), Skills, User);
    // A skill takes precedence over a command with its name (code.claude.com/docs/en/skills).
    for (root, owner) in &roots {
        add(root.join(".claude/commands"), ClaudeCommands, *owner);
    }
    for (root, owner) in &roots {
        add(root.join(".gemini/commands"), GeminiCommands, *owner);
    }
    // opencode.ai/docs/commands documents both names of the folder.
    for (root, owner) in &roots {
        let folder = if *owner == User { root.join(".config/opencode") } else { root.join(".opencode") };
        add(folder.join("command"), OpencodeCommands, *owner);
        add(folder.join("commands"), OpencodeCommands, *owner);
    }
    if let Some(home) = home {
        add(home.join(".codex/prompts"), CodexPrompts, User);
    }
    // If the session is in the home directory, its folders are the user's, not a repository's.
    let of_user: BTreeSet<PathBuf> = locations
        .iter()
        .filter(|location| location.owner == User)
        .map(|location| location.folder.clone())
        .collect();
    locations.retain(|location| location.owner == User || !of_user.contains(&location.folder));
    locations
}

/// An additional folder; a relative path is relative to the session's directory.
pub(super) fn extra_folder(repository: &[PathBuf], folder: &Path) -> PathBuf {
    repository.first().map_or_else(|| folder.to_path_buf(), |cwd| cwd.join(folder))
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
pub(super) fn id_of(kind: FolderKind, folder: &Path, path: &Path) -> Option<String> {
    let below = path.strip_prefix(folder).ok()?;
    let below = match kind {
        FolderKind::Recipes | FolderKind::RecipesWithFrontMatter | FolderKind::Plugins => {
            match below.extension().and_then(|extension| extension.to_str()) {
                None | Some("md") => below.with_extension(""),
                Some(_) => return None,
            }
        }
        FolderKind::CodexPrompts if below.components().count() > 1 => return None,
        FolderKind::ClaudeCommands | FolderKind::CodexPrompts | FolderKind::OpencodeCommands
            if below.extension()? == "md" =>
        {
            below.with_extension("")
        }
        FolderKind::GeminiCommands if below.extension()? == "toml" => below.with_extension(""),
        FolderKind::Skills if below.file_name()? == SKILL_FILE => below.parent()?.to_path_buf(),
        FolderKind::ClaudeCommands
        | FolderKind::CodexPrompts
        | FolderKind::OpencodeCommands
        | FolderKind::GeminiCommands
        | FolderKind::Skills => return None,
    };
    let parts: Option<Vec<&str>> = below.iter().map(|part| part.to_str()).collect();
    parts.map(|parts| parts.join(kind.separator())).filter(|id| !id.is_empty())
}

/// The file that makes a folder a skill.
pub(super) const SKILL_FILE: &str = "SKILL.md";
