//! Slash commands: parsing of typed commands and the list shown by clients. Pure.
//!
//! Only declared keys are arguments. All other text is kept byte for byte, so that pasted `a=b` or
//! apostrophes survive.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::definition::{Argument, Recipe, RecipeSyntax, VARIABLES};
use super::expand;
use super::parse;
use super::shell_quotes::{shell_quoted, word};
use super::template::Template;

/// Names of built-in commands, sorted. A recipe with such a name can't be typed; hooks and other recipes may
/// still call it.
pub const RESERVED: &[&str] = &[
    "checkpoints",
    "context",
    "goal",
    "help",
    "history",
    "hooks",
    "mcp",
    "permissions",
    "pin",
    "redo",
    "rename",
    "repair",
    "rewind",
    "shell",
    "undo",
    "unpin",
    "usage",
    "why",
    "worktree",
];

/// A slash command as listed by clients; `name` has no slash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandInfo {
    pub name: String,
    pub description: String,
    /// A hint for the text after the name; `None` if the command takes no arguments.
    pub hint: Option<String>,
    /// The file of a skill, which the model may use as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<PathBuf>,
}

/// A possible command; the caller checks whether `name` exists. `/usr/bin is full` also parses as a command,
/// with a name that no recipe has, and is then plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Typed<'a> {
    pub name: &'a str,
    pub rest: &'a str,
}

/// Splits a prompt's text into a command and its arguments. `None` if the text is not a command.
pub fn parse(text: &str) -> Option<Typed<'_>> {
    let text = text.trim().strip_prefix('/')?;
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (!name.is_empty()).then(|| Typed { name, rest: rest.trim() })
}

/// Arguments of a recipe call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecipeArguments {
    /// Declared arguments that were given or have a default.
    pub named: BTreeMap<String, String>,
    /// The remaining text.
    pub free: String,
}

/// An invalid call. `message` says why, `usage` shows the correct form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}\nUsage: {usage}")]
pub struct UsageError {
    pub message: String,
    pub usage: String,
}

/// Parses the text after a recipe's name into arguments.
pub fn bind(recipe: &Recipe, rest: &str) -> Result<RecipeArguments, UsageError> {
    let wrong = |message: String| UsageError { message, usage: usage(recipe) };
    let is_template = recipe.syntax == RecipeSyntax::Template && rest.contains('=');
    let template = is_template.then(|| parse::compiled(recipe).ok()).flatten();
    let mut arguments = RecipeArguments::default();
    let mut at = 0;
    while at < rest.len() {
        let piece = &rest[at..];
        let space = piece.len() - piece.trim_start().len();
        if space > 0 {
            arguments.free.push_str(&piece[..space]);
            at += space;
            continue;
        }
        match key(recipe, template.as_ref(), piece) {
            Some(key) => {
                let value_at = at + key.len() + 1;
                let (value, length) = word(&rest[value_at..])
                    .map_err(|quote| wrong(format!("the value of {key:?} has no closing {quote}")))?;
                if arguments.named.insert(key.to_owned(), value).is_some() {
                    return Err(wrong(format!("{key:?} is given twice")));
                }
                at = value_at + length;
                // Drop one adjacent white-space character together with the argument.
                let follows = &rest[at..];
                at += follows.chars().next().filter(|c| c.is_whitespace()).map_or(0, char::len_utf8);
            }
            None => {
                let length = free_word(piece);
                arguments.free.push_str(&piece[..length]);
                at += length;
            }
        }
    }
    arguments.free = arguments.free.trim().to_owned();
    complete(recipe, arguments).map_err(|why| wrong(why.to_string()))
}

/// Why a recipe can't be called with some arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    #[error("/{recipe} needs {name}=…{}", if description.is_empty() { String::new() } else { format!(" ({description})") })]
    Missing { recipe: String, name: String, description: String },
    #[error("{name} can be {choices}, not {value:?}")]
    NotAChoice { name: String, choices: String, value: String },
}

/// Checks values and fills in defaults. Also used by callers that have a map instead of text.
pub fn complete(recipe: &Recipe, mut arguments: RecipeArguments) -> Result<RecipeArguments, ArgumentError> {
    for (name, argument) in &recipe.arguments {
        let given = arguments.named.get(name).cloned();
        let Some(value) = given.or_else(|| argument.default.clone()) else {
            if argument.required {
                let (recipe, description) = (recipe.id.clone(), argument.description.clone());
                return Err(ArgumentError::Missing { recipe, name: name.clone(), description });
            }
            continue;
        };
        if !argument.choices.is_empty() && !argument.choices.contains(&value) {
            let choices = argument.choices.join(", ");
            return Err(ArgumentError::NotAChoice { name: name.clone(), choices, value });
        }
        arguments.named.insert(name.clone(), value);
    }
    Ok(arguments)
}

/// Formats the arguments that differ from their defaults as they would be typed after the name, each with a
/// leading space.
pub fn typed(recipe: &Recipe, arguments: &RecipeArguments) -> String {
    let is_plain = |value: &str| {
        !value.is_empty() && value.chars().all(|c| c.is_alphanumeric() || "-_./:,@%+=".contains(c))
    };
    let default = |name: &str| recipe.arguments.get(name).and_then(|argument| argument.default.as_ref());
    let differing = arguments.named.iter().filter(|(name, value)| default(name) != Some(value));
    differing
        .map(|(name, value)| match is_plain(value) {
            true => format!(" {name}={value}"),
            false => format!(" {name}={}", shell_quoted(value)),
        })
        .collect()
}

/// The key that starts the text and is followed by an equals sign: a declared one, or a variable of the template that only an
/// argument can set.
fn key<'a>(recipe: &'a Recipe, template: Option<&Template>, text: &'a str) -> Option<&'a str> {
    let is_key = |key: &&str| text.strip_prefix(*key).is_some_and(|behind| behind.starts_with('='));
    let mut declared = recipe.arguments.keys().map(String::as_str).filter(|key| !key.is_empty());
    declared.find(is_key).or_else(|| {
        let (key, _) = text.split_once('=')?;
        template.is_some_and(|template| template.mentions(key) && !VARIABLES.contains(&key)).then_some(key)
    })
}

/// The length of a word of free text; a quoted span is one word, so nothing inside it is an argument.
fn free_word(text: &str) -> usize {
    let plain = text.find(char::is_whitespace).unwrap_or(text.len());
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else { return plain };
    match text[1..].find(quote) {
        // A leading apostrophe that is not a quote ('tis) would be closed by one in the middle of another
        // word.
        Some(length) if text[length + 2..].chars().next().is_none_or(char::is_whitespace) => length + 2,
        _ => plain,
    }
}

/// The hint that clients show after a command's name: the arguments in sorted order, then the free text.
pub fn hint(recipe: &Recipe) -> String {
    if let Some(hint) = &recipe.argument_hint {
        return hint.clone();
    }
    let mut hint = String::new();
    for (name, argument) in &recipe.arguments {
        let Argument { default, required, choices, .. } = argument;
        let value = match default {
            Some(default) if default.contains(char::is_whitespace) => format!("{default:?}"),
            Some(default) => default.clone(),
            None if choices.is_empty() => format!("<{name}>"),
            None => choices.join("|"),
        };
        let optional = !required || default.is_some();
        let (open, close) = if optional { ("[", "]") } else { ("", "") };
        let _ = write!(hint, "{open}{name}={value}{close} ");
    }
    hint + "additional instructions"
}

/// Whether a call may be typed with more than its name. Clients wait for input where there is a hint.
fn takes_arguments(recipe: &Recipe) -> bool {
    let is_declared = recipe.argument_hint.is_some() || !recipe.arguments.is_empty();
    is_declared
        || match recipe.syntax {
            RecipeSyntax::Template => recipe.is_compaction() || recipe.body.contains(".input"),
            RecipeSyntax::ClaudeCommand => expand::takes_arguments(&recipe.body, &recipe.foreign.names),
            RecipeSyntax::GeminiCommand => recipe.body.contains("{{args}}"),
        }
}

fn usage(recipe: &Recipe) -> String {
    format!("/{} {}", recipe.id, hint(recipe))
}

/// Maximum characters of a description in a list. Skill descriptions are written for models and are long;
/// menus show one line.
const DESCRIPTION_CHARS_MAX: usize = 200;

fn one_line(description: &str) -> String {
    let line = description.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(DESCRIPTION_CHARS_MAX) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line,
    }
}

/// The description as listed, with a remark on unknown handlers.
pub fn described(recipe: &Recipe) -> String {
    let remarks =
        recipe.unknown_handlers.iter().map(|handler| format!(" (handler {} is unknown)", handler.name));
    one_line(&recipe.description) + &remarks.collect::<String>()
}

/// Lists the recipes that a user can call.
pub fn commands<'a>(recipes: impl IntoIterator<Item = &'a Recipe>) -> Vec<CommandInfo> {
    recipes
        .into_iter()
        .filter(|recipe| recipe.callable_by.user && !recipe.hidden && !RESERVED.contains(&&*recipe.id))
        .map(|recipe| CommandInfo {
            name: recipe.id.clone(),
            description: described(recipe),
            hint: takes_arguments(recipe).then(|| hint(recipe)),
            skill: recipe.is_skill().then(|| recipe.source.path().to_path_buf()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::foreign::claude_command;
    use super::super::parse::{RecipeSource, parse as parse_file};
    use super::*;

    fn recipe(front: &str) -> Recipe {
        let text = format!("---\n{front}\n---\nDo it.");
        parse_file("pr", RecipeSource::BuiltIn, &text).expect("test recipes are sound").recipe
    }

    fn bound(recipe: &Recipe, rest: &str) -> (Vec<(String, String)>, String) {
        let arguments = bind(recipe, rest).expect("it binds");
        (arguments.named.into_iter().collect(), arguments.free)
    }

    #[test]
    fn a_command_is_a_slash_and_a_name() {
        let typed = |text| parse(text).map(|typed| (typed.name, typed.rest));
        assert_eq!(typed("/init"), Some(("init", "")));
        assert_eq!(typed("/github/pr target=main polish"), Some(("github/pr", "target=main polish")));
        assert_eq!(typed("  /init  "), Some(("init", "")));
        assert_eq!(typed("/compact\nfoo\n bar"), Some(("compact", "foo\n bar")));
        assert_eq!(typed("/"), None);
        assert_eq!(typed("/ init"), None);
        assert_eq!(typed("init"), None);
        assert_eq!(typed("see /init"), None);
        // The caller finds no recipe with this name and treats it as text.
        assert_eq!(typed("/usr/bin is full"), Some(("usr/bin", "is full")));
    }

    #[test]
    fn declared_keys_are_arguments_and_the_rest_is_text() {
        let recipe = recipe("arguments:\n  target: {}\n  title: {}");
        let named = |target: &str| vec![("target".to_owned(), target.to_owned())];
        for (rest, target, free) in [
            ("target=main", "main", ""),
            ("target=main polish it", "main", "polish it"),
            ("polish target=main it", "main", "polish it"),
            ("target=\"two words\" x", "two words", "x"),
            ("target='a \"b\"'", "a \"b\"", ""),
            (r#"target="a \"b\" \n""#, r#"a "b" \n"#, ""),
            (r"target=two\ words", "two words", ""),
            ("target=a\"b\"'c'", "abc", ""),
            ("target=main\nline one\n\nline two", "main", "line one\n\nline two"),
            ("target=", "", ""),
        ] {
            assert_eq!(bound(&recipe, rest), (named(target), free.to_owned()), "{rest}");
        }
    }

    /// Another agent treats every `a=b` as an argument and drops it from the prompt.
    #[test]
    fn undeclared_keys_stay_byte_for_byte() {
        let recipe = recipe("arguments:\n  target: {}");
        for text in [
            "set x=1 and y = 2",
            "don't lose it's quotes",
            "say \"target=main\" aloud",
            "my-target=main",
            "a  b\n\tc",
            "'tis open",
            "\"open",
        ] {
            assert_eq!(bound(&recipe, text), (Vec::new(), text.to_owned()));
        }
    }

    #[test]
    fn a_variable_of_the_text_is_an_argument_without_a_declaration() {
        let text = "---\ndescription: d\n---\nWork with {{.key}} on {{.date}}.";
        let recipe =
            super::super::parse::parse("r", RecipeSource::BuiltIn, text).expect("it is sound").recipe;
        assert_eq!(
            bound(&recipe, "key=value date=now"),
            (vec![("key".to_owned(), "value".to_owned())], "date=now".to_owned())
        );
    }

    #[test]
    fn defaults_fill_in_and_given_values_win() {
        let recipe = recipe("arguments:\n  a: {default: 1}\n  b: {}\ndefaults: {a: 0, c: z}");
        let named = |a: &str| vec![("a".to_owned(), a.to_owned()), ("c".to_owned(), "z".to_owned())];
        assert_eq!(bound(&recipe, ""), (named("1"), String::new()));
        assert_eq!(bound(&recipe, "a=2"), (named("2"), String::new()));
    }

    #[test]
    fn an_invalid_call_shows_the_usage() {
        let recipe =
            recipe("arguments:\n  target: {required: true, description: branch}\n  kind: {choices: [a, b]}");
        let wrong = |rest| bind(&recipe, rest).expect_err("it is wrong").to_string();
        let usage = "\nUsage: /pr [kind=a|b] target=<target> additional instructions";
        assert_eq!(wrong("go"), format!("/pr needs target=… (branch){usage}"));
        assert_eq!(wrong("target=x kind=c"), format!("kind can be a, b, not \"c\"{usage}"));
        assert_eq!(wrong("target=\"x"), format!("the value of \"target\" has no closing \"{usage}"));
        assert_eq!(wrong("target=x target=y"), format!("\"target\" is given twice{usage}"));
    }

    #[test]
    fn the_hint_lists_arguments_in_sorted_order_with_their_defaults() {
        let recipe = recipe("arguments:\n  target: {default: main}\n  draft: {default: a b}\n  issue: {}");
        assert_eq!(hint(&recipe), "[draft=\"a b\"] [issue=<issue>] [target=main] additional instructions");
    }

    /// Regression: a dry run of `/compact keep=2` described its result as that of plain `/compact`.
    #[test]
    fn typed_arguments_bind_to_the_same_values() {
        let recipe = recipe("arguments:\n  keep: {default: \"0\"}\n  tone: free\n  who: free");
        for (rest, wanted) in [
            ("", ""),
            ("keep=0", ""),
            ("keep=2 the parser", " keep=2"),
            (r#"tone="it's dry" who="" "#, r" tone='it'\''s dry' who=''"),
        ] {
            let arguments = bind(&recipe, rest).expect("it binds");
            let typed = typed(&recipe, &arguments);
            assert_eq!(typed, wanted, "{rest}");
            assert_eq!(bind(&recipe, &typed).expect("it binds").named, arguments.named, "{rest}");
        }
    }

    #[test]
    fn hidden_and_hook_only_recipes_are_not_listed() {
        let all = [recipe("hidden: true"), recipe("callable_by: hook"), recipe("description: Shown")];
        let listed: Vec<String> = commands(&all).into_iter().map(|command| command.description).collect();
        assert_eq!(listed, ["Shown"]);
    }

    /// Regression: every command had an input hint, so an editor treated all of them as wanting arguments.
    #[test]
    fn only_a_command_that_takes_arguments_has_a_hint() {
        let hint = |front: &str, body: &str| {
            let text = format!("---\n{front}\n---\n{body}");
            let recipe = parse_file("x", RecipeSource::BuiltIn, &text).expect("it is sound").recipe;
            commands([&recipe]).remove(0).hint
        };
        let free = Some("additional instructions".to_owned());
        assert_eq!(hint("name: x", "Do it."), None);
        assert_eq!(hint("name: x", "Do {{.input}}."), free);
        assert_eq!(hint("argument-hint: \"[file]\"", "Do it.").as_deref(), Some("[file]"));
        let claude =
            |text| commands([&claude_command("x", RecipeSource::BuiltIn, text).recipe]).remove(0).hint;
        assert_eq!(
            (claude("Fix it."), claude("Fix $ARGUMENTS."), claude("Fix $1.")),
            (None, free.clone(), free)
        );
    }

    #[test]
    fn descriptions_are_listed_as_one_line() {
        let recipe = recipe(&format!("description: |\n  Reads\n  PDFs {}", "ä".repeat(300)));
        let listed = commands([&recipe]).remove(0).description;
        assert!(listed.starts_with("Reads PDFs ää") && listed.ends_with("ä…"), "{listed}");
        assert_eq!(listed.chars().count(), DESCRIPTION_CHARS_MAX + 1);
    }
}
