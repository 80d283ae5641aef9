//! Reads the YAML front matter of a recipe into its fields. Pure.
//!
//! A known field of the wrong type is an error with its position; an unknown field is a remark.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::definition::{Argument, CallableBy, OutputMode, Parsed, Recipe, RecipeModel};
use super::fields::{self, ExpectedKind, RecipeField, names, positive, text, text_map, truth};
use super::handlers;
use epitome_thread::problem::Problem;

/// Lines of a file before its front matter: the `---`.
pub(super) const LINES_BEFORE: u64 = 1;

/// The fields of a recipe file.
pub(super) const FIELDS: &str = "name description aliases hidden allowed_tools allowed_commands arguments argument-hint \
    argument_hint defaults hooks output context history model max_turns callable_by run_hooks";

/// Fields of kodelet that have no effect here.
const INEFFECTIVE: [&str; 2] = ["workflow", "profile"];

/// Fills a recipe from its front matter, which starts at the second line of the file.
pub(super) fn read(mut recipe: Recipe, front: &str, path: &Path) -> Result<Parsed, Problem> {
    let fields = fields::from_yaml(front, path, LINES_BEFORE, "the front matter")?;
    let mut defaults = BTreeMap::new();
    let mut output = None;
    let unknown = |name: &str| match INEFFECTIVE.contains(&name) {
        true => format!("{name:?} has no effect here"),
        false => format!("unknown field {name:?}, ignored"),
    };
    let notes = fields::set_all(&fields, path, FIELDS, unknown, |name, field| {
        match name {
            "defaults" => defaults = text_map(&field.value)?,
            "output" => output = Some(word(&field.value, "message, mutate, append, none")?),
            "hooks" if field.value.is_object() => {
                recipe.unknown_handlers = handlers::unknown(&field.value, front, field.position.0);
                recipe.hooks = field.value.clone();
            }
            "hooks" => return Err("a map from events to handlers".to_owned()),
            _ => set(&mut recipe, name, field)?,
        }
        Ok(None)
    })?;
    for (name, default) in defaults {
        recipe.arguments.entry(name).or_default().default.get_or_insert(default);
    }
    let by_handler = if recipe.swaps_context() { OutputMode::Mutate } else { OutputMode::Message };
    recipe.output = output.unwrap_or(by_handler);
    Ok(Parsed { recipe, notes })
}

/// A value that is one of these words.
fn word<T: DeserializeOwned>(value: &Value, words: &str) -> Result<T, ExpectedKind> {
    serde_json::from_value(value.clone()).map_err(|_| format!("one of {words}"))
}

fn set(recipe: &mut Recipe, name: &str, RecipeField { value, .. }: &RecipeField) -> Result<(), ExpectedKind> {
    match name {
        "name" => recipe.name = text(value)?,
        "description" => recipe.description = text(value)?,
        "aliases" => {
            let names = names(value)?.into_iter();
            recipe.aliases = names.map(|alias| alias.trim_start_matches('/').to_owned()).collect();
        }
        "hidden" => recipe.hidden = truth(value)?,
        "allowed_tools" => recipe.allowed_tools = Some(names(value)?),
        "allowed_commands" => recipe.allowed_commands = Some(names(value)?),
        "arguments" => recipe.arguments = arguments(value)?,
        "argument-hint" | "argument_hint" => recipe.argument_hint = Some(text(value)?),
        "context" => recipe.context = Some(word(value, "session, isolated, none")?),
        "history" => recipe.history = word(value, "native, flat, auto")?,
        "model" => {
            recipe.model = match text(value)?.as_str() {
                "main" => RecipeModel::Main,
                "small" => RecipeModel::Small,
                name => RecipeModel::Named(name.to_owned()),
            }
        }
        "max_turns" => recipe.max_turns = Some(positive(value)?),
        "callable_by" => recipe.callable_by = callable_by(value)?,
        "run_hooks" => recipe.run_hooks = truth(value)?,
        _ => {}
    }
    Ok(())
}

fn arguments(value: &Value) -> Result<BTreeMap<String, Argument>, ExpectedKind> {
    let map = value.as_object().ok_or_else(|| "a map from names to arguments".to_owned())?;
    map.iter()
        .map(|(name, value)| {
            let argument =
                argument(value).map_err(|wanted| format!("a map in which {name:?} is {wanted}"))?;
            Ok((name.clone(), argument))
        })
        .collect()
}

fn argument(value: &Value) -> Result<Argument, ExpectedKind> {
    let mut argument = Argument::default();
    let fields = match value {
        Value::Null => return Ok(argument),
        Value::String(description) => return Ok(Argument { description: description.clone(), ..argument }),
        Value::Object(fields) => fields,
        _ => return Err("a map of description, default, required, choices".to_owned()),
    };
    for (name, value) in fields {
        let with_name = |wanted: ExpectedKind| format!("an argument whose {name:?} is {wanted}");
        match name.as_str() {
            _ if value.is_null() => {}
            "description" => argument.description = text(value).map_err(with_name)?,
            "default" => argument.default = Some(text(value).map_err(with_name)?),
            "required" => argument.required = truth(value).map_err(with_name)?,
            "choices" => argument.choices = names(value).map_err(with_name)?,
            _ => {}
        }
    }
    Ok(argument)
}

fn callable_by(value: &Value) -> Result<CallableBy, ExpectedKind> {
    let mut callable = CallableBy { user: false, hook: false, agent: false };
    for name in names(value)? {
        match name.as_str() {
            "user" => callable.user = true,
            "hook" => callable.hook = true,
            "agent" => callable.agent = true,
            _ => return Err("a list of user, hook, agent".to_owned()),
        }
    }
    Ok(callable)
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
