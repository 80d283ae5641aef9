//! Parses one recipe file: Markdown with optional YAML front matter. Pure: the input is text, not a path.
//!
//! A file with any error is rejected entirely: a recipe with mistyped `allowed_tools` must not run with all
//! tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::foreign::ForeignFields;
use super::handlers::UnknownHandler;
use super::{front_matter, template};
use epitome_thread::problem::Problem;

/// A recipe, with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The name of the slash command: the path below its folder, without `.md`.
    pub id: String,
    pub name: String,
    pub description: String,
    pub source: RecipeSource,
    pub syntax: RecipeSyntax,
    /// The text after the front matter.
    pub body: String,
    /// The line of the file, 1-based, at which the body begins.
    pub body_line: u64,
    pub aliases: Vec<String>,
    /// Works when typed, but is not listed.
    pub hidden: bool,
    /// `None` inherits the session's tools; an empty list allows none.
    pub allowed_tools: Option<Vec<String>>,
    /// Like `allowed_tools`, for shell command lines.
    pub allowed_commands: Option<Vec<String>>,
    /// Declared arguments, including those of the older `defaults` map.
    pub arguments: BTreeMap<String, Argument>,
    /// Shown instead of the hint generated from the arguments (`argument-hint` of other formats).
    pub argument_hint: Option<String>,
    /// The `hooks` table of the file; `Null` if it has none.
    pub hooks: Value,
    /// Handlers in `hooks` that are not built in and, once the catalog has checked, not hooks on disk.
    pub unknown_handlers: Vec<UnknownHandler>,
    pub output: OutputMode,
    /// `None`: in the session when typed, isolated when called by a hook.
    pub context: Option<Context>,
    pub history: HistoryMode,
    pub model: RecipeModel,
    pub max_turns: Option<u32>,
    pub callable_by: CallableBy,
    pub run_hooks: bool,
    pub foreign: ForeignFields,
}

/// The origin of a recipe, which determines how far it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecipeSource {
    BuiltIn,
    /// A file in one of the user's own folders.
    User(PathBuf),
    /// A file of a repository: its shell calls run only after the user has allowed them.
    Repository(PathBuf),
}

impl RecipeSource {
    /// The file's path; a placeholder for built-in recipes.
    pub fn path(&self) -> &Path {
        match self {
            RecipeSource::BuiltIn => Path::new("(built in)"),
            RecipeSource::User(path) | RecipeSource::Repository(path) => path,
        }
    }
}

/// How the body becomes a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecipeSyntax {
    /// Go's `text/template`.
    Template,
    /// `$ARGUMENTS`, `$1`, ``!`command` ``: commands and skills of Claude Code.
    ClaudeCommand,
    /// `{{args}}`, `!{command}`.
    GeminiCommand,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Argument {
    pub description: String,
    pub default: Option<String>,
    pub required: bool,
    /// Allowed values; empty allows any.
    pub choices: Vec<String>,
}

/// How a callback uses the resulting text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputMode {
    Message,
    Mutate,
    Append,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Context {
    Session,
    Isolated,
    None,
}

/// How the history is passed to an isolated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryMode {
    Native,
    Flat,
    Auto,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecipeModel {
    Main,
    Small,
    #[serde(untagged)]
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallableBy {
    pub user: bool,
    pub hook: bool,
    pub agent: bool,
}

impl Default for CallableBy {
    fn default() -> CallableBy {
        CallableBy { user: true, hook: true, agent: false }
    }
}

impl Recipe {
    /// Whether the recipe runs as a compaction: its reply, written without tools, replaces the conversation.
    pub fn is_compaction(&self) -> bool {
        self.swaps_context() && self.allowed_tools.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether the recipe replaces the history (`/compact` and similar): it declares a `swap_context` or
    /// `compact_context` handler.
    pub fn swaps_context(&self) -> bool {
        super::front_matter::declares_swap(&self.hooks)
    }

    /// A recipe with the given body and defaults for all other fields.
    pub fn plain(id: &str, source: RecipeSource, syntax: RecipeSyntax, body: &str, body_line: u64) -> Recipe {
        Recipe {
            id: id.to_owned(),
            name: id.to_owned(),
            description: format!("Run the {id} recipe"),
            source,
            syntax,
            body: body.to_owned(),
            body_line,
            aliases: Vec::new(),
            hidden: false,
            allowed_tools: None,
            allowed_commands: None,
            arguments: BTreeMap::new(),
            argument_hint: None,
            hooks: Value::Null,
            unknown_handlers: Vec::new(),
            output: OutputMode::Message,
            context: None,
            history: HistoryMode::Auto,
            model: RecipeModel::Main,
            max_turns: None,
            callable_by: CallableBy::default(),
            run_hooks: true,
            foreign: ForeignFields::default(),
        }
    }

    /// The arguments that have a default, with it.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &str)> {
        self.arguments
            .iter()
            .filter_map(|(name, argument)| Some((name.as_str(), argument.default.as_deref()?)))
    }

    /// Whether the recipe is a skill, which the agent may load automatically.
    pub fn is_skill(&self) -> bool {
        self.foreign.directory.is_some()
    }
}

/// A valid recipe, with remarks on unknown fields and fields without effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub recipe: Recipe,
    pub notes: Vec<Problem>,
}

/// Parses a recipe file. `id` is derived from its path; the position of an error refers to the file.
pub fn parse(id: &str, source: RecipeSource, text: &str) -> Result<Parsed, Problem> {
    let path = source.path().to_path_buf();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = match split(text) {
        None => {
            Parsed { recipe: Recipe::plain(id, source, RecipeSyntax::Template, text, 1), notes: Vec::new() }
        }
        Some(SplitFile { body: None, .. }) => {
            let problem = Problem::new(path, "the front matter is not closed");
            return Err(problem.at((1, 1)).with_hint("end it with a line `---`"));
        }
        Some(SplitFile { front, body: Some((body, body_line)) }) => {
            let recipe = Recipe::plain(id, source, RecipeSyntax::Template, body, body_line);
            front_matter::read(recipe, front, &path)?
        }
    };
    compiled(&parsed.recipe)?;
    Ok(parsed)
}

/// The fields that the front matter of a recipe may have.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    front_matter::FIELDS.split(' ')
}

/// Whether the text starts with front matter.
pub fn has_front_matter(text: &str) -> bool {
    split(text).is_some()
}

/// A file with front matter; `body` is `None` if the front matter is not closed.
pub(super) struct SplitFile<'a> {
    pub front: &'a str,
    pub body: Option<(&'a str, u64)>,
}

/// Splits at the `---` lines. `None` if the file has no front matter and is all body.
pub(super) fn split(text: &str) -> Option<SplitFile<'_>> {
    let mut lines = text.split_inclusive('\n');
    let first = lines.next()?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut at = first.len();
    for (index, line) in lines.enumerate() {
        if line.trim_end() == "---" {
            let front = &text[first.len()..at];
            return Some(SplitFile { front, body: Some((&text[at + line.len()..], index as u64 + 3)) });
        }
        at += line.len();
    }
    // Either a horizontal rule at the top of a Markdown file, or front matter that is not closed; the latter if its
    // first line looks like a field.
    let looks_like_fields = text[first.len()..].lines().next().is_some_and(|line| line.contains(": "));
    looks_like_fields.then_some(SplitFile { front: &text[first.len()..], body: None })
}

pub(super) fn compiled(recipe: &Recipe) -> Result<template::Template, Problem> {
    let problem = |error| template_problem(recipe, &error, "cannot parse the template");
    template::compile(&recipe.body).map_err(problem)
}

/// An error in a recipe's body, with its position in the file.
pub(super) fn template_problem(recipe: &Recipe, error: &template::TemplateError, trying: &str) -> Problem {
    let (line, column) = error.place(&recipe.body);
    let problem = Problem::new(recipe.source.path(), format!("{trying}: {}", error.message));
    Problem { hint: error.hint.clone(), ..problem.at((line + recipe.body_line - 1, column)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Parsed {
        parse("x", RecipeSource::BuiltIn, text).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn refused(text: &str) -> (Option<(u64, u64)>, String) {
        let problem = parse("x", RecipeSource::BuiltIn, text).expect_err("it is refused");
        (problem.place, problem.message)
    }

    #[test]
    fn a_file_without_front_matter_is_all_body() {
        let recipe = read("# Title\n\n---\n\nText").recipe;
        assert_eq!(
            recipe,
            Recipe::plain("x", RecipeSource::BuiltIn, RecipeSyntax::Template, "# Title\n\n---\n\nText", 1)
        );
        assert_eq!(recipe.description, "Run the x recipe");
        assert_eq!(read("---\n\nA rule opens this page.\n").recipe.body_line, 1);
        assert_eq!(read("").recipe.body, "");
    }

    #[test]
    fn every_field_is_read() {
        let parsed = read(
            "---\nname: PR\ndescription: Open it\naliases: [/p, q]\nhidden: true\nallowed_tools: [bash, grep]\n\
             allowed_commands: git *, gh *\narguments:\n  target:\n    description: branch\n    default: main\n    \
             required: true\n    choices: [main, dev]\n  note: free\ndefaults: {old: 1}\nhooks:\n  after_turn: {handler: redact}\n\
             output: append\ncontext: isolated\nhistory: flat\nmodel: small\nmax_turns: 3\n\
             callable_by: [user, agent]\nrun_hooks: no\n---\nBody {{.target}}\n",
        );
        assert_eq!(parsed.notes, []);
        let target = Argument {
            description: "branch".to_owned(),
            default: Some("main".to_owned()),
            required: true,
            choices: vec!["main".to_owned(), "dev".to_owned()],
        };
        let note = Argument { description: "free".to_owned(), ..Argument::default() };
        let old = Argument { default: Some("1".to_owned()), ..Argument::default() };
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let wanted = Recipe {
            name: "PR".to_owned(),
            description: "Open it".to_owned(),
            aliases: list(&["p", "q"]),
            hidden: true,
            allowed_tools: Some(list(&["bash", "grep"])),
            allowed_commands: Some(list(&["git *", "gh *"])),
            arguments: [("target", target), ("note", note), ("old", old)]
                .map(|(name, argument)| (name.to_owned(), argument))
                .into(),
            hooks: serde_json::json!({"after_turn": {"handler": "redact"}}),
            output: OutputMode::Append,
            context: Some(Context::Isolated),
            history: HistoryMode::Flat,
            model: RecipeModel::Small,
            max_turns: Some(3),
            callable_by: CallableBy { user: true, hook: false, agent: true },
            run_hooks: false,
            ..Recipe::plain(
                "x",
                RecipeSource::BuiltIn,
                RecipeSyntax::Template,
                "Body {{.target}}\n",
                parsed.recipe.body_line,
            )
        };
        assert_eq!(parsed.recipe, wanted);
    }

    #[test]
    fn an_empty_tool_list_differs_from_a_missing_one() {
        assert_eq!(read("---\nname: a\n---\n").recipe.allowed_tools, None);
        for none in ["[]", "none", "\"\""] {
            assert_eq!(
                read(&format!("---\nallowed_tools: {none}\n---\n")).recipe.allowed_tools,
                Some(Vec::new())
            );
        }
    }

    #[test]
    fn a_swap_handler_makes_the_output_a_mutation() {
        let output = |front: &str| read(&format!("---\n{front}\n---\n")).recipe.output;
        assert_eq!(output("hooks: {turn_end: {handler: swap_context}}"), OutputMode::Mutate);
        assert_eq!(
            output("hooks: {turn_end: [{handlers: [external, compact_context]}]}"),
            OutputMode::Mutate
        );
        assert_eq!(output("hooks: {turn_end: {handler: swap_context}}\noutput: none"), OutputMode::None);
        assert_eq!(
            output("hooks: {turn_end: {handler: log, params: {a: swap_context}}}"),
            OutputMode::Message
        );
    }

    #[test]
    fn unknown_and_ineffective_fields_are_noted_with_position() {
        let text = "---\nname: a\nalowed_tools: []\nworkflow: x\nallowed_commands: [git *]\n---\n";
        let notes = read(text).notes;
        let reported: Vec<_> =
            notes.iter().map(|n| (n.place, n.message.as_str(), n.hint.as_deref())).collect();
        assert_eq!(
            reported,
            [
                (
                    Some((3, 15)),
                    "unknown field \"alowed_tools\", ignored",
                    Some("did you mean \"allowed_tools\"?")
                ),
                (Some((4, 11)), "\"workflow\" has no effect here", None),
            ]
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_rejects_the_file() {
        let wanted = "\"max_turns\" must be a whole number above 0".to_owned();
        assert_eq!(refused("---\nname: a\nmax_turns: many\n---\n"), (Some((3, 12)), wanted));
        let wanted = "\"output\" must be one of message, mutate, append, none".to_owned();
        assert_eq!(refused("---\noutput: all\n---\n"), (Some((2, 9)), wanted));
    }

    #[test]
    fn yaml_errors_have_file_positions() {
        let (place, message) = refused("---\nname: a\ndescription: b: c\n---\nText");
        assert_eq!(place.map(|(line, _)| line), Some(3), "{message}");
        assert_eq!(refused("---\nname: a\nText").1, "the front matter is not closed");
        assert!(refused("---\n- a\n---\n").1.contains("not valid YAML"));
    }

    #[test]
    fn template_errors_have_file_positions() {
        let (place, message) = refused("---\nname: a\n---\n\nHello {{name}}\n");
        assert_eq!(place, Some((5, 9)));
        assert!(message.starts_with("cannot parse the template: "), "{message}");
    }

    /// Nine levels of nine references to the level below expand to a billion nodes.
    #[test]
    fn exponential_yaml_aliases_are_rejected() {
        let mut front = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (level, below) in ('b'..='i').zip('a'..) {
            front += &format!("{level}: &{level} [{}]\n", vec![format!("*{below}"); 9].join(", "));
        }
        assert!(refused(&format!("---\n{front}---\n")).1.contains("not valid YAML"));
        let deep = format!("---\na: {}{}\n---\n", "[".repeat(5000), "]".repeat(5000));
        assert!(refused(&deep).1.contains("not valid YAML"));
    }

    #[test]
    fn windows_line_ends_and_a_byte_order_mark_are_fine() {
        let recipe = read("\u{feff}---\r\nname: a\r\n---\r\nBody\r\n").recipe;
        assert_eq!((recipe.name.as_str(), recipe.body.as_str(), recipe.body_line), ("a", "Body\r\n", 4));
    }
}
