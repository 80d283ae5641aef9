//! Counts how Epitome interprets the files that users wrote for other agents, in a folder of cloned repositories.
//!
//! `EPITOME_REPOSITORIES=DIR cargo test --test pure other_agents -- --nocapture`, where each folder in DIR is a
//! repository. Without the variable, the test does nothing. `EPITOME_RENDERS=FILE` writes each command and skill,
//! rendered with the arguments `ALPHA "BETA two" GAMMA`, as JSON lines, to compare them with another implementation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use epitome::hooks::claude;
use epitome::hooks::hook::HookOrigin;
use epitome::recipe::agents;
use epitome::recipe::command::bind;
use epitome::recipe::foreign::{PluginFolders, claude_command, gemini_command, skill};
use epitome::recipe::parse::{Parsed, Recipe, RecipeSource};
use epitome::recipe::plugins::{Plugin, PluginFormat};
use epitome::recipe::render::{RenderContext, Rendered, ShellOutputs, render};

/// Maximum depth of folders.
const DEPTH_MAX: usize = 12;

#[derive(Debug, Default)]
struct Counts {
    counts: BTreeMap<String, usize>,
    problems: Vec<String>,
    /// JSON lines.
    renders: String,
}

impl Counts {
    fn add(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn problem(&mut self, what: &str, problem: impl std::fmt::Display) {
        self.add(&format!("{what}: not used or with remarks"));
        self.problems.push(format!("{what}: {problem}"));
    }
}

#[test]
fn counts_of_repositories() {
    let Some(folder) = std::env::var_os("EPITOME_REPOSITORIES") else { return };
    let mut files = Vec::new();
    gather(Path::new(&folder), 0, &mut files);
    let mut counts = Counts::default();
    for path in &files {
        count(path, &mut counts);
    }
    for (what, count) in &counts.counts {
        println!("{count:>6}  {what}");
    }
    for problem in &counts.problems {
        println!("{problem}");
    }
    if let Some(file) = std::env::var_os("EPITOME_RENDERS") {
        std::fs::write(file, &counts.renders).expect("the file can be written");
    }
    assert!(
        !counts.counts.is_empty(),
        "there is nothing of another agent in {}",
        Path::new(&folder).display()
    );
}

fn gather(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries.into_iter().filter(|path| !path.is_symlink() && !path.ends_with(".git")) {
        match path.is_dir() {
            true if depth < DEPTH_MAX => gather(&path, depth + 1, files),
            true => {}
            false => files.push(path),
        }
    }
}

fn count(path: &Path, counts: &mut Counts) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_below =
        |folder: &str| path.parent().is_some_and(|parent| parent.iter().any(|part| part == folder));
    let source = || RecipeSource::User(path.to_path_buf());
    let Ok(text) = std::fs::read_to_string(path) else { return };
    let formats = [PluginFormat::ClaudeCode, PluginFormat::Codex, PluginFormat::Gemini];
    if let Some(format) = formats.into_iter().find(|format| path.ends_with(format.manifest())) {
        let levels = Path::new(format.manifest()).components().count();
        let root = path.ancestors().nth(levels).unwrap_or(path).to_path_buf();
        let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        counts.add("plugins");
        match Plugin::read(PluginFolders { data: root.clone(), root }, &name, &name, None) {
            Ok(plugin) => plugin.problems.iter().for_each(|problem| counts.problem("plugins", problem)),
            Err(problem) => counts.problem("plugins", problem),
        }
    } else if name == "SKILL.md" {
        counts.add("skills");
        let Parsed { recipe, notes } = skill("x", path.parent().unwrap_or(path), source(), &text);
        notes.iter().for_each(|note| counts.problem("skills", note));
        rendered("skills", &recipe, counts);
    } else if name == "hooks.json"
        || (name.starts_with("settings") && name.ends_with(".json") && text.contains("\"hooks\""))
    {
        let (hooks, problems) = claude::parse(path, &text, HookOrigin::User, Path::new("/"));
        hooks.iter().for_each(|_| counts.add("hooks"));
        problems.iter().for_each(|problem| counts.problem("hooks", problem));
    } else if name.ends_with(".toml") && is_below("commands") {
        counts.add("Gemini commands");
        match gemini_command("x", source(), &text) {
            Ok(recipe) => rendered("Gemini commands", &recipe, counts),
            Err(problem) => counts.problem("Gemini commands", problem),
        }
    } else if name.ends_with(".md") && name != "README.md" && is_below("agents") {
        counts.add("agents");
        match agents::parse(source(), &text) {
            Ok((_, remarks)) if remarks.is_empty() => {}
            Ok(_) => counts.add("agents: with remarks"),
            Err(problem) => counts.problem("agents", problem),
        }
    } else if name.ends_with(".md") && name != "README.md" && is_below("commands") {
        counts.add("commands");
        let Parsed { recipe, notes } = claude_command("x", source(), &text);
        notes.iter().for_each(|note| counts.problem("commands", note));
        if recipe.description == "Run the x recipe" {
            counts.problem("commands", format!("{}: there is nothing to describe it by", path.display()));
        }
        rendered("commands", &recipe, counts);
    }
}

/// Represents the output of any command.
const OUTPUT: &str = "OUTPUT";

/// Renders a text, without running its commands.
fn rendered(what: &str, recipe: &Recipe, counts: &mut Counts) {
    let arguments = bind(recipe, "ALPHA \"BETA two\" GAMMA").expect("a foreign command declares no keys");
    let context =
        RenderContext { conversation_id: "s".to_owned(), cwd: "/w".to_owned(), ..RenderContext::default() };
    let mut outputs = ShellOutputs::new();
    loop {
        match render(recipe, &arguments, &context, &outputs) {
            Ok(Rendered::Done(done)) => {
                let path = recipe.source.path().display().to_string();
                let line =
                    serde_json::json!({"path": path, "text": done.text, "description": recipe.description});
                counts.renders.push_str(&format!("{line}\n"));
                return counts.add(&format!("{what}: rendered"));
            }
            Ok(Rendered::Needs(calls)) => {
                counts.add(&format!("{what}: commands"));
                outputs.extend(calls.into_iter().map(|call| (call, OUTPUT.to_owned())));
            }
            Err(problem) => return counts.problem(what, problem),
        }
    }
}
