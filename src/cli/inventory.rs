//! `epitome inventory`: lists other agents' files that apply to this directory, which of them are used, and why
//! others are not. Reads files and runs nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::terminal;
use super::{CliError, serve};
use crate::config::Settings;
use crate::hooks::claude;
use crate::hooks::discover::DECLARATION_BYTES_MAX;
use crate::hooks::hook::HookOrigin;
use crate::paths::Paths;
use crate::problem::Problem;
use crate::recipe::agents::AgentCatalog;
use crate::recipe::catalog::RecipeCatalog;
use crate::recipe::parse::RecipeSource;
use crate::recipe::plugins::PluginCatalog;
use crate::recipe::text_file::read_text;
use crate::session::instruction_files;

/// Maximum number of unused items that are printed per kind.
const LINES_MAX: usize = 20;

/// List other agents' settings that Epitome uses
#[derive(Debug, clap::Args)]
pub struct InventoryArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One kind of files.
struct InventoryKind {
    name: &'static str,
    /// Number of items used, by folder or file.
    used: BTreeMap<PathBuf, usize>,
    /// The unused items, one sentence each.
    unused: Vec<String>,
    /// The command that shows details.
    more: &'static str,
}

impl InventoryKind {
    fn new(name: &'static str, more: &'static str) -> InventoryKind {
        InventoryKind { name, used: BTreeMap::new(), unused: Vec::new(), more }
    }

    fn add(&mut self, folder: &Path) {
        *self.used.entry(folder.to_path_buf()).or_default() += 1;
    }

    fn problems(&mut self, problems: &[Problem]) {
        self.unused.extend(problems.iter().map(ToString::to_string));
    }
}

pub fn main(args: InventoryArgs) -> Result<i32, CliError> {
    let kinds = kinds(&serve::working_directory()?, &serve::paths());
    match args.json {
        true => terminal::print_pretty(&Value::from_iter(kinds.iter().map(to_json))),
        false => terminal::print_visible(&kinds.iter().map(text).collect::<String>()),
    }?;
    Ok(0)
}

fn kinds(cwd: &Path, paths: &Paths) -> Vec<InventoryKind> {
    let recipes = RecipeCatalog::load(cwd, paths, &[]);
    let plugins = PluginCatalog::load(cwd, paths);
    vec![
        recipes_of(&recipes, false),
        recipes_of(&recipes, true),
        agents(cwd, paths),
        hooks(cwd, paths, &plugins),
        plugins_of(&plugins),
        servers(cwd, paths),
        instructions(cwd, paths),
    ]
}

fn recipes_of(catalog: &RecipeCatalog, skills: bool) -> InventoryKind {
    let name = if skills { "skills" } else { "commands" };
    let mut kind = InventoryKind::new(name, "epitome recipes list");
    for recipe in catalog.recipes.iter().filter(|recipe| recipe.is_skill() == skills) {
        if let RecipeSource::User(path) | RecipeSource::Repository(path) = &recipe.source {
            kind.add(folder(path));
        }
    }
    let is_skill = |path: &Path| path.file_name().is_some_and(|name| name.eq_ignore_ascii_case("SKILL.md"));
    let problems: Vec<Problem> =
        catalog.problems.iter().filter(|problem| is_skill(&problem.path) == skills).cloned().collect();
    kind.problems(&problems);
    for shadowed in catalog.shadowed.iter().filter(|shadowed| is_skill(shadowed.source.path()) == skills) {
        let (path, by) = (shadowed.source.path().display(), shadowed.by.path().display());
        kind.unused.push(format!("{path}: {by} has the same name and comes first"));
    }
    kind
}

fn agents(cwd: &Path, paths: &Paths) -> InventoryKind {
    let catalog = AgentCatalog::load(cwd, paths);
    let mut kind = InventoryKind::new("agents", "epitome agents check");
    for agent in &catalog.agents {
        if let RecipeSource::User(path) | RecipeSource::Repository(path) = &agent.source {
            kind.add(path.parent().unwrap_or(path));
        }
    }
    kind.problems(&catalog.problems);
    let shadowed = catalog.shadowed.iter();
    kind.unused.extend(shadowed.map(|path| format!("{}: an earlier file has the same name", path.display())));
    kind
}

fn hooks(cwd: &Path, paths: &Paths, plugins: &PluginCatalog) -> InventoryKind {
    let mut kind = InventoryKind::new("hooks of Claude Code and Codex", "epitome hooks list");
    let of_repository = paths.repository_roots(cwd).into_iter().flat_map(|root| {
        ["settings.json", "settings.local.json"].map(|name| root.join(".claude").join(name))
    });
    let of_user = paths.user_home.iter().map(|home| home.join(".claude/settings.json"));
    let files = of_repository.chain(of_user).map(|path| (path, None));
    let of_plugins = plugins
        .plugins
        .iter()
        .flat_map(|plugin| plugin.hooks.iter().map(move |path| (path.clone(), Some(plugin.as_ref()))));
    for (path, plugin) in files.chain(of_plugins).filter(|(path, _)| path.exists()) {
        match read_text(&path, "a declaration of hooks", DECLARATION_BYTES_MAX) {
            Ok(text) => {
                let (hooks, problems) = claude::parse_of(&path, &text, HookOrigin::User, cwd, plugin);
                hooks.iter().for_each(|_| kind.add(&path));
                kind.problems(&problems);
            }
            Err(why) => kind.unused.push(format!("{}: {why}", path.display())),
        }
    }
    kind
}

fn plugins_of(catalog: &PluginCatalog) -> InventoryKind {
    let mut kind = InventoryKind::new("plugins", "epitome plugins list");
    catalog.plugins.iter().for_each(|plugin| kind.add(&plugin.folders.root));
    let unused = catalog.unused.iter();
    kind.unused.extend(
        unused.map(|unused| format!("{} ({}): {}", unused.id, unused.folder.display(), unused.reason)),
    );
    kind.problems(&catalog.problems);
    kind
}

fn servers(cwd: &Path, paths: &Paths) -> InventoryKind {
    let mut kind = InventoryKind::new("MCP servers", "epitome doctor");
    let (settings, problems) = Settings::load(paths, Some(cwd), |name| std::env::var_os(name));
    settings.mcp.servers.iter().for_each(|server| kind.add(Path::new(&server.name)));
    kind.problems(&problems);
    kind
}

fn instructions(cwd: &Path, paths: &Paths) -> InventoryKind {
    let mut kind = InventoryKind::new("instructions", "/context in a session");
    for folder in instruction_files::all(cwd, paths) {
        let (files, problems) = folder.read();
        files.iter().for_each(|file| kind.add(&file.path));
        kind.problems(&problems);
        let read = |path: &Path| files.iter().any(|file| file.path == path);
        for path in folder.candidates().into_iter().filter(|path| path.is_file() && !read(path)) {
            kind.unused.push(format!("{}: another file says the same, or has precedence", path.display()));
        }
    }
    kind
}

/// Returns the directory of commands or skills that contains a file.
fn folder(path: &Path) -> &Path {
    let is_root = |folder: &&Path| {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        ["commands", "command", "skills", "prompts", "recipes"].contains(&name)
    };
    path.ancestors().skip(1).find(is_root).or_else(|| path.parent()).unwrap_or(path)
}

fn text(kind: &InventoryKind) -> String {
    let count: usize = kind.used.values().sum();
    let mut text = format!("{}: {count} used", kind.name);
    match kind.unused.len() {
        0 => text.push('\n'),
        unused => text.push_str(&format!(", {unused} with remarks or not used (`{}`)\n", kind.more)),
    }
    for (folder, count) in &kind.used {
        let _ = writeln!(text, "  {count:>4}  {}", folder.display());
    }
    for line in kind.unused.iter().take(LINES_MAX) {
        let _ = writeln!(text, "     -  {line}");
    }
    if kind.unused.len() > LINES_MAX {
        let _ = writeln!(text, "     -  and {} more", kind.unused.len() - LINES_MAX);
    }
    text
}

fn to_json(kind: &InventoryKind) -> Value {
    let used =
        kind.used.iter().map(|(folder, count)| json!({"path": folder.display().to_string(), "count": count}));
    json!({ "kind": kind.name, "used": used.collect::<Vec<_>>(), "unused": kind.unused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_other_agents_is_counted_or_explained() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("home/.claude/commands/sc/a.md", "A.");
        write("home/.claude/skills/bad/SKILL.md", "No front matter.");
        write("home/.claude/agents/one.md", "---\ndescription: One\n---\n");
        write("home/.claude/agents/two.md", "Nothing.");
        let hook = r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}, {"type": "prompt"}]}]}}"#;
        write("home/.claude/settings.json", hook);
        write(
            "home/.claude/plugins/installed_plugins.json",
            r#"{"plugins": {"x@y": {"installPath": "/gone"}}}"#,
        );
        write("w/CLAUDE.md", "Rules.");
        let home = folder.path().join("home");
        let paths = Paths { user_home: Some(home.clone()), ..Paths::below(&home.join(".epitome")) };
        let found = kinds(&folder.path().join("w"), &paths);
        let counts: Vec<_> = found
            .iter()
            .map(|kind| (kind.name, kind.used.values().sum::<usize>(), kind.unused.len()))
            .collect();
        assert_eq!(
            counts,
            [
                ("commands", 1, 0),
                ("skills", 1, 1),
                ("agents", 1, 1),
                ("hooks of Claude Code and Codex", 1, 1),
                ("plugins", 0, 1),
                ("MCP servers", 0, 0),
                ("instructions", 1, 0),
            ]
        );
        assert!(found[0].used.keys().all(|path| path.ends_with(".claude/commands")));
    }
}
