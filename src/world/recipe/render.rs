//! Renders a recipe's prompt. Pure: commands that the body wants to run are returned to the caller, which
//! decides whether they may run and calls again with their output.
//!
//! For a [`RecipeSource::Repository`](super::parse::RecipeSource) recipe that the user has not allowed, the caller
//! must not run the commands; it passes [`NOT_RUN`] as their output.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::command::RecipeArguments;
use super::definition::{Recipe, RecipeSyntax, VARIABLES};
use super::expand::{self, ExpandWith};
use super::parse::{compiled, template_problem};
use super::template::{self, Evaluated, TemplateScope, TemplateValue};
use epitome_thread::problem::Problem;

pub use super::rendered::{Rendered, RenderedPrompt, ShellCall, ShellOutputs};

/// Replaces the output of a call that depends on the output of another one, where the model may run only calls that
/// were decided about before.
pub const NOT_DECIDED: &str =
    "[not run: it depends on the output of another command, so it could not be checked before]";

/// Replaces the output of a repository recipe's call that is not allowed.
pub const NOT_RUN: &str =
    "[not run: this recipe came with the repository, and nobody has allowed its commands]";

/// Variables available to a recipe in addition to its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderContext {
    pub conversation_id: String,
    pub cwd: String,
    /// The current date, as `2026-05-31`.
    pub date: String,
    /// `templates.go_compat`.
    pub go_compat: bool,
    /// Whether the arguments come from the model or from a hook. They are then quoted in shell lines, so that they
    /// can't add commands. The user's text is inserted as it is, like in Claude Code.
    pub quotes_arguments: bool,
}

/// Renders a recipe. An error has its position in the recipe's file.
pub fn render(
    recipe: &Recipe,
    arguments: &RecipeArguments,
    surroundings: &RenderContext,
    outputs: &ShellOutputs,
) -> Result<Rendered, Problem> {
    let too_long = |error: expand::TooLong| {
        Problem::new(recipe.source.path(), error.to_string()).with_hint("give it less input")
    };
    let (evaluated, takes_input) = match recipe.syntax {
        RecipeSyntax::Template => render_template(recipe, arguments, surroundings, outputs)?,
        RecipeSyntax::ClaudeCommand => {
            let variables = variables(recipe, surroundings);
            let (free, names) = (&arguments.free, &recipe.foreign.names[..]);
            let quotes = surroundings.quotes_arguments;
            let with = ExpandWith { free, names, variables: &variables, quotes };
            expand::render_claude(&recipe.body, with, outputs).map_err(too_long)?
        }
        RecipeSyntax::GeminiCommand => {
            expand::render_gemini(&recipe.body, &arguments.free, outputs).map_err(too_long)?
        }
    };
    Ok(match evaluated {
        Rendered::Done(mut prompt) => {
            prompt.text.truncate(prompt.text.trim_end().len());
            if let Some(directory) = &recipe.foreign.directory {
                let head = format!("Files that these instructions name are below `{}`.", directory.display());
                prompt.text = format!("{head}\n\n{}", prompt.text.trim_start());
            }
            if !takes_input && !arguments.free.trim().is_empty() {
                prompt.text.push_str("\n\n## Additional instructions\n\n");
                prompt.text.push_str(&arguments.free);
            }
            Rendered::Done(prompt)
        }
        needs @ Rendered::Needs(_) => needs,
    })
}

/// The shell calls of a recipe, before arguments are inserted. They include everything that may become a part of a
/// command.
pub fn shell_calls(recipe: &Recipe) -> Vec<&str> {
    match recipe.syntax {
        RecipeSyntax::Template => template::commands(&recipe.body),
        RecipeSyntax::ClaudeCommand => expand::claude_calls(&recipe.body, &recipe.foreign.names),
        RecipeSyntax::GeminiCommand => expand::gemini_calls(&recipe.body),
    }
}

/// The known `${…}` variables of Claude Code. Unknown ones are left unchanged.
pub fn variables(recipe: &Recipe, surroundings: &RenderContext) -> Vec<(&'static str, String)> {
    let path = |path: &PathBuf| path.display().to_string();
    let plugin = recipe.foreign.plugin.as_ref();
    [
        ("CLAUDE_SKILL_DIR", recipe.foreign.directory.as_ref().map(path)),
        ("CLAUDE_PLUGIN_ROOT", plugin.map(|plugin| path(&plugin.root))),
        ("CLAUDE_PLUGIN_DATA", plugin.map(|plugin| path(&plugin.data))),
        ("CLAUDE_SESSION_ID", Some(surroundings.conversation_id.clone())),
        ("CLAUDE_PROJECT_DIR", Some(surroundings.cwd.clone())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
    .collect()
}

fn render_template(
    recipe: &Recipe,
    arguments: &RecipeArguments,
    surroundings: &RenderContext,
    outputs: &ShellOutputs,
) -> Result<(Rendered, bool), Problem> {
    let template = compiled(recipe)?;
    let known = outputs
        .iter()
        .filter_map(|(call, output)| match call {
            ShellCall::Words(words) => {
                Some((words.clone(), output.trim_end_matches(['\n', '\r']).to_owned()))
            }
            ShellCall::Line(_) => None,
        })
        .collect();
    let evaluated = template::evaluate(&template, &scope(recipe, arguments, surroundings), &known)
        .map_err(|error| template_problem(recipe, &error, "cannot render the template"))?;
    let takes_input = template.mentions("input") && !arguments.named.contains_key("input");
    let rendered = match evaluated {
        Evaluated::Done { text, warnings } => Rendered::Done(RenderedPrompt { text, warnings }),
        Evaluated::Needs(calls) => Rendered::Needs(calls.into_iter().map(ShellCall::Words).collect()),
    };
    Ok((rendered, takes_input))
}

fn scope(recipe: &Recipe, arguments: &RecipeArguments, surroundings: &RenderContext) -> TemplateScope {
    let RenderContext { conversation_id, cwd, date, .. } = surroundings;
    let built_in = VARIABLES.into_iter().zip([conversation_id, cwd, date, &recipe.id, &arguments.free]);
    let named = arguments.named.iter().map(|(name, text)| (name.as_str(), text));
    // The later ones win: a hook's arguments take no variable's name that the recipe does not give them.
    let (declared, others): (Vec<_>, Vec<_>) =
        named.partition(|(name, _)| recipe.arguments.contains_key(*name));
    let variables = others
        .into_iter()
        .chain(built_in)
        .chain(declared)
        .map(|(name, text)| (name.to_owned(), TemplateValue::Text(text.clone())))
        .collect();
    let optional: BTreeSet<String> = recipe.arguments.keys().cloned().collect();
    TemplateScope { variables, optional, go_compat: surroundings.go_compat }
}

#[cfg(test)]
mod tests {
    use super::super::command::bind;
    use super::super::parse::{RecipeSource, parse};
    use super::*;

    fn rendered(text: &str, typed: &str, outputs: &ShellOutputs) -> Rendered {
        let recipe = parse("r", RecipeSource::BuiltIn, text).expect("test recipes are sound").recipe;
        let arguments = bind(&recipe, typed).expect("test calls are right");
        let surroundings = RenderContext {
            conversation_id: "s_1".to_owned(),
            cwd: "/w".to_owned(),
            date: "2026-05-31".to_owned(),
            go_compat: false,
            quotes_arguments: false,
        };
        render(&recipe, &arguments, &surroundings, outputs).expect("test recipes render")
    }

    fn text(text: &str, typed: &str) -> String {
        match rendered(text, typed, &ShellOutputs::new()) {
            Rendered::Done(prompt) => prompt.text,
            Rendered::Needs(calls) => panic!("{calls:?} are needed"),
        }
    }

    #[test]
    fn words_are_quoted_and_reach_the_program_unchanged() {
        let words = ShellCall::Words(["echo", "it's $HOME; rm"].map(str::to_owned).to_vec());
        assert_eq!(words.line(), r"'echo' 'it'\''s $HOME; rm'");
        assert_eq!(ShellCall::Line("ls | wc".to_owned()).line(), "ls | wc");
    }

    #[test]
    fn free_text_goes_where_the_body_wants_it() {
        assert_eq!(text("Do {{.input}} now.\n", "this"), "Do this now.");
        assert_eq!(text("Do.{{if .input}} Mind {{.input}}.{{end}}", ""), "Do.");
    }

    #[test]
    fn free_text_is_appended_if_the_body_does_not_use_it() {
        assert_eq!(text("Do it.\n", "and test"), "Do it.\n\n## Additional instructions\n\nand test");
        assert_eq!(text("Do it.\n", " "), "Do it.");
    }

    #[test]
    fn built_in_variables_are_defined() {
        assert_eq!(text("{{.conversation_id}} {{.cwd}} {{.recipe}} {{.date}}", ""), "s_1 /w r 2026-05-31");
    }

    #[test]
    fn command_output_is_inserted_without_its_trailing_newline() {
        let body =
            "---\narguments: {n: {default: 3}}\n---\nLog: {{bash \"git\" \"log\" (printf \"-%s\" .n)}}.";
        let call = ShellCall::Words(["git", "log", "-3"].map(str::to_owned).to_vec());
        assert_eq!(rendered(body, "", &ShellOutputs::new()), Rendered::Needs(vec![call.clone()]));
        let prompt = RenderedPrompt { text: "Log: a\nb.".to_owned(), warnings: Vec::new() };
        assert_eq!(
            rendered(body, "", &ShellOutputs::from([(call, "a\nb\n".to_owned())])),
            Rendered::Done(prompt)
        );
    }

    /// Regression: a recipe with 70,000 dots and a long argument built a text of gigabytes before its length was checked.
    #[test]
    fn a_template_stops_when_a_text_becomes_too_long() {
        let typed = "x".repeat(100 * 1024);
        for call in ["print", "println", "printf \"%s\"", "printf \"%.0s\"", "bash \"echo\""] {
            for value in [" .", " .input"] {
                let call = call.replace("%s", &"%s".repeat(70_000));
                let text = format!("{{{{{call}{}}}}}", value.repeat(70_000 / value.len()));
                let recipe = parse("r", RecipeSource::BuiltIn, &text).expect("it is sound").recipe;
                let arguments = bind(&recipe, &typed).expect("it is right");
                let rendered = render(&recipe, &arguments, &RenderContext::default(), &ShellOutputs::new());
                let problem = rendered.expect_err("it is too long").to_string();
                assert!(problem.contains("more than"), "{problem}");
            }
        }
        let text = format!("{{{{print{}}}}}", " .input".repeat(11));
        let recipe = parse("r", RecipeSource::BuiltIn, &text).expect("it is sound").recipe;
        let arguments = bind(&recipe, &typed).expect("it is right");
        let rendered = render(&recipe, &arguments, &RenderContext::default(), &ShellOutputs::new());
        assert!(rendered.expect_err("it is too long").to_string().contains("1048576 bytes"));
    }
}
