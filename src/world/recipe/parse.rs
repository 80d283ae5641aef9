//! Parses one recipe file: Markdown with optional YAML front matter. Pure: the input is text, not a path.
//!
//! A file with any error is rejected entirely: a recipe with mistyped `allowed_tools` must not run with all
//! tools.

use super::front_matter::{self, SplitFile, split};
use super::template;
use epitome_thread::problem::Problem;

pub use super::definition::{
    Argument, CallableBy, Context, HistoryMode, OutputMode, Parsed, Recipe, RecipeModel, RecipeSource,
    RecipeSyntax,
};
pub(super) use super::front_matter::has_front_matter;

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

pub(super) fn compiled(recipe: &Recipe) -> Result<template::Template, Problem> {
    let problem = |error| template_problem(recipe, &error, "cannot parse the template");
    template::compile(&recipe.body).map_err(problem)
}

/// An error in a recipe's body, with its position in the file.
pub(super) fn template_problem(recipe: &Recipe, error: &template::TemplateError, trying: &str) -> Problem {
    let (line, column) = error.position(&recipe.body);
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
        (problem.position, problem.message)
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
            notes.iter().map(|n| (n.position, n.message.as_str(), n.hint.as_deref())).collect();
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
        let (position, message) = refused("---\nname: a\ndescription: b: c\n---\nText");
        assert_eq!(position.map(|(line, _)| line), Some(3), "{message}");
        assert_eq!(refused("---\nname: a\nText").1, "the front matter is not closed");
        assert!(refused("---\n- a\n---\n").1.contains("not valid YAML"));
    }

    #[test]
    fn template_errors_have_file_positions() {
        let (position, message) = refused("---\nname: a\n---\n\nHello {{name}}\n");
        assert_eq!(position, Some((5, 9)));
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
