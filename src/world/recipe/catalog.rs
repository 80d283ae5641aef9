//! Finds a session's recipes on disk, within limits and without running anything. A broken file is reported as a
//! problem and does not affect other recipes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock};

use super::command::{self, CommandInfo};
use super::definition::{Parsed, Recipe, RecipeOwner, RecipeSource};
use super::folders::{FolderKind, RecipeFolder, SKILL_FILE, extra_folder, hook_folders, id_of, locations};
use super::foreign;
use super::handlers::{self, UnknownHandler};
use super::parse;
use super::plugins::{Plugin, PluginCatalog, PluginFormat};
use super::text_file::{TextFileError, read_text};
use super::walk::{ENTRIES_MAX, FolderWalk};
use super::watch::{ExistingFolders, WatchPlan};
use epitome_files::paths::Paths;
use epitome_thread::problem::Problem;

/// Maximum size of a recipe file in bytes. A prompt of this size would fill a small model's context window.
pub const RECIPE_BYTES_MAX: u64 = 256 * 1024;
/// Maximum recipes per session and owner. Clients show them in one menu.
pub const RECIPES_MAX: usize = 1000;
/// Maximum problems kept per catalog; more than that is usually one repeated mistake.
pub const PROBLEMS_MAX: usize = 50;

/// Prefix for the id of a repository's recipe that has the name of a built-in one.
const REPOSITORY_PREFIX: &str = "repository/";

const BUILT_IN: [(&str, &str); 8] = [
    ("commit", include_str!("recipes/commit.md")),
    ("compact", include_str!("recipes/compact.md")),
    ("compact-brief", include_str!("recipes/compact-brief.md")),
    ("handoff", include_str!("recipes/handoff.md")),
    ("init", include_str!("recipes/init.md")),
    ("pr", include_str!("recipes/pr.md")),
    ("review", include_str!("recipes/review.md")),
    ("summary", include_str!("recipes/summary.md")),
];

/// Parsed once for all sessions. A test ensures that all of them are valid.
static BUILT_IN_READ: LazyLock<Vec<Arc<Recipe>>> = LazyLock::new(|| {
    let read =
        |(id, text)| parse::parse(id, RecipeSource::BuiltIn, text).map(|parsed| Arc::new(parsed.recipe));
    BUILT_IN.into_iter().map(read).collect::<Result<_, _>>().expect("built-in recipes are tested to parse")
});

/// A recipe whose file can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct SourceError {
    path: PathBuf,
    source: TextFileError,
}

/// The recipes available to a session.
#[derive(Clone, Debug, Default)]
pub struct RecipeCatalog {
    /// One recipe per id, from the folder of highest precedence; in the order of the folders.
    pub recipes: Vec<Arc<Recipe>>,
    pub problems: Vec<Problem>,
    /// Files whose id is already taken by a file of an earlier folder.
    pub shadowed: Vec<Shadowed>,
    /// The folders of the user's own skills and plugins, with links resolved: the agent reads their files.
    pub readable: Vec<PathBuf>,
}

/// A recipe that is unused because another one has the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    pub id: String,
    pub source: RecipeSource,
    /// The recipe that is used instead.
    pub by: RecipeSource,
}

impl RecipeCatalog {
    /// Loads recipes from all folders; the earlier folder wins if ids clash. `extra` are additional folders of
    /// the user. Blocks on disk I/O: call it on a blocking thread.
    pub fn load(cwd: &Path, paths: &Paths, extra: &[PathBuf]) -> RecipeCatalog {
        let roots = paths.repository_roots(cwd);
        let mut loader = Loader::new(&roots, hook_folders(&roots, paths));
        for location in locations(&roots, paths, extra) {
            loader.location(&location);
        }
        for plugin in &PluginCatalog::of_roots(&roots, paths).plugins {
            loader.plugin(plugin);
        }
        loader.built_in();
        loader.check_extra(&roots, extra);
        let mut catalog = loader.catalog;
        catalog.readable = readable(&catalog.recipes, paths);
        catalog
    }

    /// Loads the recipes of a plugin. Blocks on disk I/O.
    pub fn of_plugin(plugin: &Arc<Plugin>) -> RecipeCatalog {
        let mut loader = Loader::new(plugin.repository.as_slice(), Vec::new());
        loader.plugin(plugin);
        loader.catalog
    }

    /// Returns only the built-in recipes.
    pub fn built_in() -> RecipeCatalog {
        let mut loader = Loader::new(&[], Vec::new());
        loader.built_in();
        loader.catalog
    }

    /// Loads the given files and folders, each independently of the others. Blocks on disk I/O.
    pub fn named(cwd: &Path, paths: &Paths, given: &[PathBuf]) -> RecipeCatalog {
        let roots = paths.repository_roots(cwd);
        let mut all = RecipeCatalog::default();
        for path in given {
            let mut loader = Loader::new(&roots, hook_folders(&roots, paths));
            loader.named(&cwd.join(path));
            all.recipes.extend(loader.catalog.recipes);
            all.problems.extend(loader.catalog.problems);
            all.shadowed.extend(loader.catalog.shadowed);
        }
        all
    }

    /// The source text of a recipe.
    pub fn source_text(recipe: &Recipe) -> Result<String, SourceError> {
        match &recipe.source {
            RecipeSource::BuiltIn => {
                let found = BUILT_IN.into_iter().find(|(known, _)| *known == recipe.id);
                Ok(found.map(|(_, text)| text).unwrap_or_default().to_owned())
            }
            RecipeSource::User(path) | RecipeSource::Repository(path) => {
                read_text(path, "a recipe", RECIPE_BYTES_MAX)
                    .map_err(|source| SourceError { path: path.clone(), source })
            }
        }
    }

    /// Finds a recipe by id, then by alias. Does not check `callable_by`.
    pub fn find(&self, name: &str) -> Option<&Arc<Recipe>> {
        let by_id = self.recipes.iter().find(|recipe| recipe.id == name);
        by_id.or_else(|| self.recipes.iter().find(|recipe| recipe.aliases.iter().any(|alias| alias == name)))
    }

    /// The recipe that a user calls by this name. A compaction of the repository, which is only a text for the model, takes
    /// the name of the built-in one then; nothing else uses it by that name until it is [trusted](RecipeCatalog::trust).
    pub fn called(&self, name: &str) -> Option<&Arc<Recipe>> {
        let of_repository = self.find(&format!("{REPOSITORY_PREFIX}{name}"));
        of_repository.filter(|recipe| recipe.is_compaction()).or_else(|| self.find(name))
    }

    /// Lets the repository's compactions that the user trusts replace the built-in ones for all callers.
    pub fn trust(&mut self, is_trusted: impl Fn(&Recipe) -> bool) {
        for at in 0..self.recipes.len() {
            let recipe = &self.recipes[at];
            let Some(name) = recipe.id.strip_prefix(REPOSITORY_PREFIX).map(str::to_owned) else { continue };
            let replaced = self.recipes.iter().position(|other| other.id == name);
            if let Some(replaced) = replaced.filter(|_| recipe.is_compaction() && is_trusted(recipe)) {
                let named = Recipe { id: name, ..Recipe::clone(recipe) };
                self.recipes[replaced] = Arc::new(named);
            }
        }
    }

    /// The problem of the file that a name without a recipe would be in.
    pub fn fault(&self, name: &str) -> Option<&Problem> {
        let last = name.rsplit([':', '/']).next().unwrap_or(name);
        let name_of = |path: &Path| match path.ends_with(SKILL_FILE) {
            true => path.parent().and_then(Path::file_name).map(OsStr::to_owned),
            false => path.file_stem().map(OsStr::to_owned),
        };
        self.problems.iter().find(|problem| name_of(&problem.path).is_some_and(|name| name == last))
    }

    /// The slash commands to list in clients.
    pub fn commands(&self) -> Vec<CommandInfo> {
        command::commands(self.recipes.iter().map(Arc::as_ref))
    }

    /// Returns the directories to watch for changes that affect `load`. Blocks on disk I/O.
    pub fn watched(cwd: &Path, paths: &Paths, extra: &[PathBuf]) -> WatchPlan {
        let (mut directories, mut existing) = (BTreeSet::new(), ExistingFolders::default());
        let mut roots = Vec::new();
        let repository = paths.repository_roots(cwd);
        let mut walk = FolderWalk::new(&repository);
        for location in locations(&repository, paths, extra) {
            // For a missing folder, its nearest existing ancestor is watched.
            directories.extend(existing.nearest(&location.folder));
            let folders =
                if existing.contains(&location.folder) { walk.folders(&location) } else { Vec::new() };
            for (folder, _) in folders {
                walk.below(location.owner, &folder, 1, &mut |path, is_folder| {
                    directories.extend(is_folder.then_some(path));
                });
                directories.insert(folder);
            }
            roots.push(location.folder);
        }
        WatchPlan { directories, roots }
    }
}

struct Loader {
    walk: FolderWalk,
    hook_folders: Vec<PathBuf>,
    catalog: RecipeCatalog,
    ids: BTreeSet<String>,
    /// Number of recipes of the user, and of the repository.
    counts: [usize; 2],
}

impl Loader {
    fn new(repository: &[PathBuf], hook_folders: Vec<PathBuf>) -> Loader {
        let walk = FolderWalk::new(repository);
        let (catalog, ids) = (RecipeCatalog::default(), BTreeSet::new());
        Loader { walk, hook_folders, catalog, ids, counts: [0; 2] }
    }

    fn location(&mut self, location: &RecipeFolder) {
        for (folder, prefix) in self.walk.folders(location) {
            let mut files = Vec::new();
            self.walk.below(location.owner, &folder, 1, &mut |path, is_folder| {
                files.extend((!is_folder).then_some(path));
            });
            if self.walk.is_spent(location.owner) {
                let message = format!("more than {ENTRIES_MAX} files; recipes from here on are not read");
                self.problem(Problem::new(&folder, message));
            }
            // `a` and `a.md` have the same id; sort so that precedence does not depend on directory order.
            files.sort();
            for file in files {
                self.file(location, &folder, &prefix, &file);
            }
        }
    }

    /// Reports the additional folders that can't be read. They are not errors of the command line, because they may be
    /// created while the session is open.
    fn check_extra(&mut self, roots: &[PathBuf], extra: &[PathBuf]) {
        for folder in extra.iter().map(|folder| extra_folder(roots, folder)) {
            let message = match std::fs::read_dir(&folder) {
                Ok(_) => continue,
                Err(error) => format!("no recipes are read from here, as an option asks: {error}"),
            };
            self.problem(Problem::new(folder, message).with_hint("create the folder, or give another one"));
        }
    }

    fn named(&mut self, path: &Path) {
        let location =
            |folder: &Path, kind| RecipeFolder::plain(folder.to_path_buf(), kind, RecipeOwner::User);
        if path.is_dir() {
            return self.location(&location(path, FolderKind::Recipes));
        }
        let folder = path.parent().unwrap_or(path);
        let name = path.file_name().unwrap_or_default();
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => FolderKind::GeminiCommands,
            Some("md") if name.eq_ignore_ascii_case(SKILL_FILE) => FolderKind::Skills,
            _ => FolderKind::Recipes,
        };
        // A skill is named after its folder.
        let folder = if kind == FolderKind::Skills { folder.parent().unwrap_or(folder) } else { folder };
        if kind != FolderKind::Skills && id_of(kind, folder, path).is_none() {
            return self.problem(Problem::new(path, "a recipe's file is called name.md or name"));
        }
        self.file(&location(folder, kind), folder, "", path);
    }

    /// Adds all commands and skills of a plugin as `/plugin:name`.
    fn plugin(&mut self, plugin: &Arc<Plugin>) {
        let skills = plugin.skills.iter().map(|path| (path, FolderKind::Skills));
        let kind = match plugin.format {
            PluginFormat::ClaudeCode | PluginFormat::Codex => FolderKind::ClaudeCommands,
            PluginFormat::Gemini => FolderKind::GeminiCommands,
        };
        let commands = plugin.commands.iter().map(|path| (path, kind));
        // A skill takes precedence over a command with its name (code.claude.com/docs/en/skills).
        for (path, kind) in skills.chain(commands) {
            // A declared skill may be the folder of its file.
            let is_one = kind == FolderKind::Skills && path.join(SKILL_FILE).is_file();
            let file = if is_one { path.join(SKILL_FILE) } else { path.clone() };
            let folder = match (is_one, path.is_dir()) {
                (false, true) => path,
                _ => path.parent().unwrap_or(path),
            };
            let location = RecipeFolder {
                plugin: Some(plugin.clone()),
                ..RecipeFolder::plain(folder.to_path_buf(), kind, plugin.owner())
            };
            match file.is_dir() {
                true => self.location(&location),
                false => self.file(&location, folder, "", &file),
            }
        }
    }

    fn file(&mut self, location: &RecipeFolder, folder: &Path, prefix: &str, path: &Path) {
        let name = path.file_name().unwrap_or_default();
        if location.kind == FolderKind::Skills && name != SKILL_FILE && name.eq_ignore_ascii_case(SKILL_FILE)
        {
            let message = format!("this is not read: the file of a skill is called {SKILL_FILE}");
            return self.problem(Problem::new(path, message).at((1, 1)).with_hint("rename the file"));
        }
        let Some(id) = id_of(location.kind, folder, path) else { return };
        let id = format!("{prefix}{id}");
        if id.contains(char::is_whitespace) {
            let message = "a command's name cannot have white space";
            return self.problem(Problem::new(path, message).with_hint("rename the file"));
        }
        match self.read(location, &id, path) {
            Ok(Some(parsed)) => self.add(parsed),
            Ok(None) => {}
            Err(problem) => self.problem(problem),
        }
    }

    fn read(&self, location: &RecipeFolder, id: &str, path: &Path) -> Result<Option<Parsed>, Problem> {
        let text = self.walk.read(location.owner, path, "a recipe", RECIPE_BYTES_MAX)?;
        let source = location.owner.source(path);
        let without_notes = |recipe| Parsed { recipe, notes: Vec::new() };
        let mut parsed = match location.kind {
            FolderKind::RecipesWithFrontMatter if !parse::has_front_matter(&text) => return Ok(None),
            FolderKind::Recipes | FolderKind::RecipesWithFrontMatter | FolderKind::Plugins => {
                parse::parse(id, source, &text)?
            }
            FolderKind::ClaudeCommands | FolderKind::CodexPrompts | FolderKind::OpencodeCommands => {
                foreign::claude_command(id, source, &text)
            }
            FolderKind::GeminiCommands => without_notes(foreign::gemini_command(id, source, &text)?),
            FolderKind::Skills => {
                let folder = path.parent().unwrap_or(path);
                foreign::skill(id, folder, source, &text)
            }
        };
        match &location.plugin {
            Some(plugin) => foreign::add_plugin(&mut parsed.recipe, plugin),
            None => foreign::add_aliases(&mut parsed.recipe, location.kind.prefix()),
        }
        if location.kind == FolderKind::Plugins && id.contains('@') {
            // Plugins are installed as `org@repo` and called as `org/repo/name`; the folder's spelling
            // becomes an alias.
            parsed.recipe.aliases.push(id.to_owned());
            parsed.recipe.id = id.replacen('@', "/", 1);
        }
        Ok(Some(parsed))
    }

    fn add(&mut self, parsed: Parsed) {
        let Parsed { mut recipe, notes } = parsed;
        let is_of_repository = matches!(recipe.source, RecipeSource::Repository(_));
        if let Some(replaced) = BUILT_IN_READ.iter().find(|built_in| built_in.id == recipe.id) {
            if replaced.is_compaction() {
                recipe.replace_history_like(replaced);
            }
            if is_of_repository {
                // A familiar command must not get another text because of a checkout.
                let (id, path) = (recipe.id, recipe.source.path().to_path_buf());
                recipe.id = format!("{REPOSITORY_PREFIX}{id}");
                let (message, hint) = match recipe.is_compaction() {
                    true => (
                        format!("/{id} uses this recipe of the repository, and automatic compactions do not"),
                        format!(
                            "to use it for them as well, copy the file to your own recipes, or allow /{}",
                            recipe.id
                        ),
                    ),
                    false => (
                        format!(
                            "/{id} stays the built-in command; this recipe of the repository is /{}",
                            recipe.id
                        ),
                        format!("to replace /{id}, copy the file to your own recipes"),
                    ),
                };
                self.problem(Problem::new(path, message).with_hint(hint));
            }
        }
        if self.counts[usize::from(is_of_repository)] >= RECIPES_MAX {
            let message = format!("more than {RECIPES_MAX} recipes; this one is left out");
            return self.problem(Problem::new(recipe.source.path(), message));
        }
        if !self.ids.insert(recipe.id.clone()) {
            return self.shadowed(&recipe);
        }
        // A handler may be the name of a hook; whether that hook is valid is checked when it runs.
        recipe.unknown_handlers.retain(|handler| !self.is_hook(&handler.name));
        let problems = handler_problems(&recipe).into_iter().chain(name_problems(&recipe));
        notes.into_iter().chain(problems).for_each(|note| self.problem(note));
        self.counts[usize::from(is_of_repository)] += 1;
        self.catalog.recipes.push(Arc::new(recipe));
    }

    fn shadowed(&mut self, Recipe { id, source, .. }: &Recipe) {
        let winner = self.catalog.recipes.iter().find(|recipe| recipe.id == *id);
        if let Some(winner) = winner.filter(|_| self.catalog.shadowed.len() < RECIPES_MAX) {
            let by = winner.source.clone();
            self.catalog.shadowed.push(Shadowed { id: id.clone(), source: source.clone(), by });
        }
    }

    fn is_hook(&self, name: &str) -> bool {
        let is_name = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        is_name && self.hook_folders.iter().any(|folder| folder.join(name).is_file())
    }

    fn problem(&mut self, problem: Problem) {
        if self.catalog.problems.len() < PROBLEMS_MAX {
            self.catalog.problems.push(problem);
        }
    }

    fn built_in(&mut self) {
        for recipe in BUILT_IN_READ.iter() {
            match self.ids.insert(recipe.id.clone()) {
                true => self.catalog.recipes.push(recipe.clone()),
                false => self.shadowed(recipe),
            }
        }
    }
}

/// The folders of the user's own skills and plugins. A folder that contains the home directory is excluded: it is a
/// link to everything rather than a skill.
fn readable(recipes: &[Arc<Recipe>], paths: &Paths) -> Vec<PathBuf> {
    let of_user = recipes.iter().filter(|recipe| matches!(recipe.source, RecipeSource::User(_)));
    let folders = of_user.flat_map(|recipe| {
        let plugin = recipe.foreign.plugin.as_ref().map(|plugin| &plugin.root);
        recipe.foreign.directory.iter().chain(plugin)
    });
    let distinct: BTreeSet<&PathBuf> = folders.collect();
    let home = paths.user_home.as_ref().and_then(|home| home.canonicalize().ok());
    let is_narrow = |folder: &PathBuf| {
        folder.parent().is_some() && !home.as_ref().is_some_and(|home| home.starts_with(folder))
    };
    distinct.into_iter().filter_map(|folder| folder.canonicalize().ok()).filter(is_narrow).collect()
}

/// Returns a problem for each name or alias that is a built-in command, which takes precedence.
fn name_problems(recipe: &Recipe) -> Vec<Problem> {
    let names = [&recipe.id].into_iter().chain(&recipe.aliases);
    let reserved = names.filter(|name| command::RESERVED.contains(&name.as_str()));
    let problem = |name: &String| {
        let message = format!("/{name} is a built-in command, so it does not run this recipe");
        let hint = "give it another name; hooks can call it as it is";
        Problem::new(recipe.source.path(), message).with_hint(hint)
    };
    reserved.map(problem).collect()
}

/// Returns a problem for each unknown handler of a recipe.
pub fn handler_problems(recipe: &Recipe) -> Vec<Problem> {
    let problem = |handler: &UnknownHandler| {
        let message = format!("there is no handler {:?}, so nothing runs there", handler.name);
        let hint = match handler.nearest() {
            Some(near) => format!("did you mean {near:?}?"),
            None => {
                let names: Vec<&str> = handlers::names().collect();
                format!("there are {}, and the names of hooks", names.join(", "))
            }
        };
        Problem::new(recipe.source.path(), message).at(handler.position).with_hint(hint)
    };
    recipe.unknown_handlers.iter().map(problem).collect()
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
