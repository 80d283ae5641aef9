//! Reads commands and skills in the formats of other agents. Pure.
//!
//! Only fields that affect the prompt and its turn are read. In Claude Code, `allowed-tools` *grants* tools; here a
//! file grants nothing, so the field is ignored and the session's permissions apply. File references (`@path`) are
//! left unchanged: the agent reads files itself.

use std::path::Path;

use super::command;
use super::definition::{AGENT_DEFAULT, Parsed, Recipe, RecipeModel, RecipeSource, RecipeSyntax};
use super::front_matter::{LINES_BEFORE, SplitFile, split};
use super::lenient::{self, LenientField};
use super::plugins::Plugin;
use epitome_thread::problem::Problem;

pub use super::definition::{ForeignFields, PluginFolders};

/// Maximum length of a skill's name (agentskills.io/specification).
const SKILL_NAME_CHARS_MAX: usize = 64;

/// Reads a file of `.claude/commands`, a prompt of Codex or a command of opencode; all have the same format.
pub fn claude_command(id: &str, source: RecipeSource, text: &str) -> Parsed {
    let path = source.path().to_path_buf();
    let (mut recipe, fields) = read(id, source, text);
    recipe.description = first_line(&recipe.body).unwrap_or(recipe.description);
    let remarks = set_all(&mut recipe, &fields);
    let note = |(position, message): FieldFault| Problem::new(&path, message).at(position);
    Parsed { recipe, notes: remarks.into_iter().map(note).collect() }
}

/// Reads a `SKILL.md`. Errors become remarks, since Claude Code loads such a skill anyway (CHANGELOG 2.1.186).
pub fn skill(folder: &str, directory: &Path, source: RecipeSource, text: &str) -> Parsed {
    let path = source.path().to_path_buf();
    let (mut recipe, fields) = read(folder, source, text);
    recipe.foreign.directory = Some(directory.to_path_buf());
    recipe.callable_by.agent = true;
    recipe.description = first_line(&recipe.body).unwrap_or_else(|| format!("Use the {folder} skill"));
    let mut remarks = set_all(&mut recipe, &fields);
    if let Some(name) = find(&fields, "name") {
        let id = name.text();
        match skill_name_fault(&id) {
            None => recipe.id = id,
            Some(fault) => remarks.push((name.position, fault)),
        }
    }
    recipe.name = recipe.id.clone();
    let note = |(position, message): FieldFault| Problem::new(&path, message).at(position);
    let hint = "a skill begins with a line `---`, name: and description:, then `---`";
    let fault = skill_fault(text, &fields).map(|message| note(((1, 1), message)).with_hint(hint));
    let notes = remarks.into_iter().map(note).chain(fault).collect();
    Parsed { recipe, notes }
}

/// Reads a file of `.gemini/commands`.
pub fn gemini_command(id: &str, source: RecipeSource, text: &str) -> Result<Recipe, Problem> {
    let problem = |message: &str| {
        let hint = "a Gemini command has `prompt = \"…\"` and `description = \"…\"`";
        Problem::new(source.path(), message).with_hint(hint)
    };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let position = error.span().map(|span| epitome_thread::problem::position_in(text, span.start));
        Problem { position, ..problem(&format!("the command is not valid TOML: {}", error.message())) }
    })?;
    let prompt = table.get("prompt").and_then(toml::Value::as_str);
    let prompt = prompt.ok_or_else(|| problem("the command has no prompt"))?;
    let mut recipe = Recipe::plain(id, source.clone(), RecipeSyntax::GeminiCommand, prompt, 1);
    if let Some(description) = table.get("description").and_then(toml::Value::as_str) {
        recipe.description = description.to_owned();
    }
    Ok(recipe)
}

/// Adds the command's name with Epitome's separator and without the prefix of its folder as an alias.
pub(super) fn add_aliases(recipe: &mut Recipe, prefix: &str) {
    if recipe.syntax == RecipeSyntax::Template || recipe.is_skill() || !recipe.id.contains(':') {
        return;
    }
    let id = recipe.id.strip_prefix(prefix).unwrap_or(&recipe.id);
    recipe.aliases.push(id.replace(':', "/"));
}

/// Names a plugin's command `/plugin:name`. It also works without the prefix unless another command has that name
/// (code.claude.com/docs/en/plugins).
pub(super) fn add_plugin(recipe: &mut Recipe, plugin: &Plugin) {
    let bare = std::mem::take(&mut recipe.id);
    recipe.id = match bare.strip_prefix(&plugin.name) {
        Some(rest) if rest.starts_with(':') => bare.clone(),
        _ => format!("{}:{bare}", plugin.name),
    };
    if !command::RESERVED.contains(&bare.as_str()) && bare != recipe.id {
        recipe.aliases.push(bare);
    }
    recipe.foreign.plugin = Some(plugin.folders.clone());
}

/// A model by its name in Claude Code. Short names indicate a size: `haiku` is the small model, the others are the
/// conversation's model.
pub(super) fn model(name: &str) -> RecipeModel {
    match name.trim() {
        "" | "inherit" | "main" | "sonnet" | "opus" | "opusplan" | "best" | "default" => RecipeModel::Main,
        "small" | "haiku" => RecipeModel::Small,
        name => RecipeModel::Named(name.to_owned()),
    }
}

/// Reads a file into a recipe with the text after the front matter, and the fields of the front matter.
fn read<'a>(id: &str, source: RecipeSource, text: &'a str) -> (Recipe, Vec<LenientField<'a>>) {
    let (front, body, line) = match split(text) {
        Some(SplitFile { front, body: Some((body, line)) }) => (front, body, line),
        Some(SplitFile { body: None, .. }) | None => ("", text, 1),
    };
    let recipe = Recipe::plain(id, source, RecipeSyntax::ClaudeCommand, body, line);
    (recipe, lenient::read(front, LINES_BEFORE, |_| true))
}

fn find<'f, 'a>(fields: &'f [LenientField<'a>], name: &str) -> Option<&'f LenientField<'a>> {
    fields.iter().find(|field| field.name == name)
}

/// An invalid value: its position, and a message.
type FieldFault = ((u64, u64), String);

/// Sets the fields that commands and skills share. Returns invalid values with their positions.
fn set_all(recipe: &mut Recipe, fields: &[LenientField<'_>]) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    for field in fields {
        let text = field.text();
        let mut truth = |wanted: &mut bool, is_negated: bool| match truth(&text) {
            Some(value) => *wanted = value != is_negated,
            None => faults.push((field.position, format!("{:?} must be true or false", field.name))),
        };
        match field.name {
            "description" if !text.is_empty() => recipe.description = text,
            "argument-hint" => recipe.argument_hint = Some(text).filter(|hint| !hint.is_empty()),
            "arguments" => recipe.foreign.names = field.items(),
            "model" => recipe.model = model(&text),
            "disable-model-invocation" if recipe.foreign.directory.is_some() => {
                truth(&mut recipe.callable_by.agent, true);
            }
            "user-invocable" => truth(&mut recipe.hidden, true),
            "context" if text == "fork" && recipe.is_skill() => {
                let agent = find(fields, "agent").map(LenientField::text).filter(|agent| !agent.is_empty());
                recipe.foreign.fork = Some(agent.unwrap_or_else(|| AGENT_DEFAULT.to_owned()));
            }
            "context" => faults.push((field.position, format!("`context: {text}` has no effect here"))),
            "paths" if recipe.is_skill() => recipe.foreign.paths = field.globs(),
            "paths" => faults.push((field.position, "`paths` has no effect in a command".to_owned())),
            "hooks" => {
                let message = "its `hooks` are not run: write them into the settings or a plugin";
                faults.push((field.position, message.to_owned()));
            }
            "disallowed-tools" => {
                let (whole, parts): (Vec<String>, Vec<String>) =
                    field.tools().into_iter().partition(|tool| !tool.contains('('));
                recipe.foreign.without_tools = whole;
                let fault = |part| {
                    (field.position, format!("{part} has no effect: only whole tools can be disallowed"))
                };
                faults.extend(parts.into_iter().map(fault));
            }
            _ => {}
        }
    }
    if let Some(context) = find(fields, "context").filter(|_| recipe.foreign.fork.is_some())
        && !recipe.callable_by.agent
    {
        let message = "`context: fork` has no effect, because the model may not use the skill: it runs in the conversation";
        faults.push((context.position, message.to_owned()));
    }
    // Claude Code appends it to the description that the model chooses by.
    if let Some(when) = find(fields, "when_to_use").map(LenientField::text).filter(|when| !when.is_empty()) {
        recipe.description = format!("{} {when}", recipe.description);
    }
    faults
}

/// The spellings that Claude Code accepts (CHANGELOG 2.1.219).
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// The error in a skill's name, if any.
fn skill_name_fault(name: &str) -> Option<String> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if name.is_empty() {
        return Some("the skill's name is empty, so that of its folder is used".to_owned());
    }
    let is_name = name.chars().count() <= SKILL_NAME_CHARS_MAX && name.chars().all(is_part);
    (!is_name).then(|| {
        format!(
            "{name:?} can't be a skill's name (letters, digits and -, at most {SKILL_NAME_CHARS_MAX}), so that of its \
             folder is used"
        )
    })
}

/// The error in a skill's front matter, if any.
fn skill_fault(text: &str, fields: &[LenientField<'_>]) -> Option<String> {
    let guessed = "so its first line is used as description";
    match split(text) {
        None => Some(format!("the skill has no front matter, {guessed}")),
        Some(SplitFile { body: None, .. }) => Some(format!("the front matter is not closed, {guessed}")),
        Some(_) if find(fields, "description").is_none_or(|field| field.text().is_empty()) => {
            Some(format!("the skill has no description, {guessed}"))
        }
        Some(_) => None,
    }
}

/// The first line of a prompt that contains words, without heading marks; Claude Code shows it if a command has no
/// description.
fn first_line(body: &str) -> Option<String> {
    let lines = body.lines().map(|line| line.trim().trim_start_matches(['#', '-', '>', ' ']));
    lines.into_iter().find(|line| line.chars().any(char::is_alphanumeric)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill_of(text: &str) -> (Recipe, Vec<String>) {
        let source = RecipeSource::User("/s/pdf/SKILL.md".into());
        let Parsed { recipe, notes } = skill("pdf", Path::new("/s/pdf"), source, text);
        (recipe, notes.into_iter().map(|note| note.to_string()).collect())
    }

    #[test]
    fn a_gemini_command_is_toml_with_a_prompt() {
        let recipe = gemini_command(
            "git:pr",
            RecipeSource::BuiltIn,
            "description = \"D\"\nprompt = \"\"\"\nP\"\"\"\n",
        );
        let recipe = recipe.expect("it is sound");
        assert_eq!((recipe.description.as_str(), recipe.body.as_str()), ("D", "P"));
        let problem =
            gemini_command("x", RecipeSource::BuiltIn, "a = 1\nprompt =").expect_err("it is broken");
        assert_eq!(problem.position.map(|(line, _)| line), Some(2));
    }

    #[test]
    fn a_command_without_description_shows_the_first_line_of_its_prompt() {
        let described = |text| claude_command("x", RecipeSource::BuiltIn, text).recipe.description;
        assert_eq!(described("---\nmodel: haiku\n---\n\n# Fix the *build*\n\nNow."), "Fix the *build*");
        assert_eq!(described("You review code.\nThoroughly."), "You review code.");
        assert_eq!(described("---\ndescription: Mine\n---\nBody."), "Mine");
        assert_eq!(described("\n---\n"), "Run the x recipe");
    }

    #[test]
    fn fields_of_a_command_are_read() {
        let text = "---\ndescription: >\n  Fixes\n  it\nargument-hint: [issue] [branch]\narguments: [issue, branch]\n\
                    model: claude-haiku-4-5\nallowed-tools: Bash(git *)\n---\nFix $issue.";
        let recipe = claude_command("fix", RecipeSource::BuiltIn, text).recipe;
        assert_eq!(recipe.description, "Fixes it");
        assert_eq!(recipe.argument_hint.as_deref(), Some("[issue] [branch]"));
        assert_eq!(recipe.foreign.names, ["issue", "branch"]);
        assert_eq!(recipe.model, RecipeModel::Named("claude-haiku-4-5".to_owned()));
        assert_eq!((recipe.allowed_tools, recipe.body.as_str()), (None, "Fix $issue."));
        let of = |model: &str| {
            claude_command("x", RecipeSource::BuiltIn, &format!("---\nmodel: {model}\n---\n")).recipe.model
        };
        assert_eq!(
            [of("haiku"), of("sonnet"), of("inherit")],
            [RecipeModel::Small, RecipeModel::Main, RecipeModel::Main]
        );
    }

    #[test]
    fn a_skill_has_the_fields_of_a_command_and_its_folder() {
        let (recipe, remarks) = skill_of(
            "---\nname: pdf-forms\ndescription: Fills forms\nwhen_to_use: For PDFs.\nargument-hint: [file]\nmodel: haiku\n\
             disable-model-invocation: Yes\nuser-invocable: off\n---\nBody",
        );
        assert_eq!(remarks, Vec::<String>::new());
        assert_eq!((recipe.id.as_str(), recipe.description.as_str()), ("pdf-forms", "Fills forms For PDFs."));
        assert_eq!((recipe.argument_hint.as_deref(), &recipe.model), (Some("[file]"), &RecipeModel::Small));
        assert_eq!((recipe.callable_by.agent, recipe.hidden), (false, true));
        assert_eq!(recipe.foreign.directory.as_deref(), Some(Path::new("/s/pdf")));
    }

    #[test]
    fn a_skill_may_run_in_an_agent_without_some_tools_for_some_files() {
        let (recipe, remarks) = skill_of(
            "---\ndescription: d\ncontext: fork\nagent: Explore\ndisallowed-tools: Write, Bash(rm *)\n\
             paths: src/**/*.{ts,tsx}, docs/*.md\n---\nBody",
        );
        assert!(remarks.len() == 1 && remarks[0].contains("5:19: Bash(rm *) has no effect"), "{remarks:?}");
        let foreign = recipe.foreign;
        assert_eq!(
            (foreign.fork.as_deref(), &foreign.without_tools[..]),
            (Some("Explore"), &["Write".to_owned()][..])
        );
        for (file, is_for) in [
            ("src/a/b.ts", true),
            ("src/c.tsx", true),
            ("docs/a.md", true),
            ("docs/x/a.md", false),
            ("a.ts", false),
        ] {
            assert_eq!(foreign.is_for([Path::new(file)].into_iter()), is_for, "{file}");
        }
        assert!(ForeignFields::default().is_for(std::iter::empty()));
        let (recipe, _) = skill_of("---\ndescription: d\ncontext: fork\n---\nBody");
        assert_eq!(recipe.foreign.fork.as_deref(), Some(AGENT_DEFAULT));
    }

    /// Fields that did nothing were not mentioned; one of them may be a guard.
    #[test]
    fn fields_without_effect_are_reported() {
        let (_, remarks) =
            skill_of("---\ndescription: d\ncontext: fork\ndisable-model-invocation: true\n---\nB");
        assert!(remarks.len() == 1 && remarks[0].contains("`context: fork` has no effect"), "{remarks:?}");
        let text = "---\ndescription: d\npaths: src/*.rs\nhooks:\n  Stop: []\n---\nB";
        let notes = claude_command("x", RecipeSource::User("/c/x.md".into()), text).notes;
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].contains("`paths` has no effect in a command") && notes[1].contains("are not run"),
            "{notes:?}"
        );
    }

    /// Regression: broken skills were loaded without a word: `recipes check` said "nothing wrong".
    #[test]
    fn a_broken_skill_is_loaded_and_reported() {
        for (text, id, description, wanted) in [
            ("# PDF\nRead.", "pdf", "PDF", "SKILL.md:1:1: the skill has no front matter"),
            ("---\nname: x\ndescription: y\nBody", "pdf", "name: x", "1:1: the front matter is not closed"),
            ("---\nname: x\n---\nBody", "x", "Body", "1:1: the skill has no description"),
            (
                "---\nname: Bad Name\ndescription: y\n---\n",
                "pdf",
                "y",
                "2:7: \"Bad Name\" can't be a skill's name",
            ),
            (
                "---\ndescription: y\nuser-invocable: maybe\n---\n",
                "pdf",
                "y",
                "3:17: \"user-invocable\" must be true",
            ),
        ] {
            let (recipe, remarks) = skill_of(text);
            assert_eq!((recipe.id.as_str(), recipe.description.as_str()), (id, description), "{text}");
            assert!(remarks.len() == 1 && remarks[0].contains(wanted), "{text}: {remarks:?}");
        }
    }
}
