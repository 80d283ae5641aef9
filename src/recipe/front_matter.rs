//! Reads the YAML front matter of a recipe into its fields. Pure.
//!
//! A known field of the wrong type is an error with its position; an unknown field is a remark.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::fields::{self, Fields, Wanted, choice, names, text, text_map, truth};
use super::handlers;
use super::parse::{Argument, CallableBy, Context, History, ModelChoice, Output, Parsed, Recipe};
use epitome_problem::{Problem, nearest};

/// Lines of a file before its front matter: the `---`.
const LINES_BEFORE: u64 = 1;

/// Fills a recipe from its front matter, which starts at the second line of the file.
pub(super) fn read(recipe: Recipe, front: &str, path: &Path) -> Result<Parsed, Problem> {
    let fields = fields::from_yaml(front, path, LINES_BEFORE, "the front matter")?;
    Reader { path, front, recipe, notes: Vec::new() }.read(fields)
}

struct Reader<'a> {
    path: &'a Path,
    front: &'a str,
    recipe: Recipe,
    notes: Vec<Problem>,
}

impl Reader<'_> {
    fn read(mut self, fields: Fields) -> Result<Parsed, Problem> {
        let mut defaults = BTreeMap::new();
        let mut output = None;
        for (name, field) in &fields {
            let place = field.place;
            self.field(name, &field.value, &mut defaults, &mut output).map_err(|wanted| Problem {
                path: self.path.to_path_buf(),
                place: Some(place),
                message: format!("{name:?} must be {wanted}"),
                hint: None,
            })?;
            if name == "hooks" {
                self.recipe.unknown_handlers = handlers::unknown(&self.recipe.hooks, self.front, place.0);
            }
            if let Some((message, hint)) = remark(name) {
                let path = self.path.to_path_buf();
                self.notes.push(Problem { path, place: Some(place), message, hint });
            }
        }
        for (name, default) in defaults {
            self.recipe.arguments.entry(name).or_default().default.get_or_insert(default);
        }
        let by_handler = if declares_swap(&self.recipe.hooks) { Output::Mutate } else { Output::Message };
        self.recipe.output = output.unwrap_or(by_handler);
        Ok(Parsed { recipe: self.recipe, notes: self.notes })
    }

    fn field(
        &mut self,
        name: &str,
        value: &Value,
        defaults: &mut BTreeMap<String, String>,
        output: &mut Option<Output>,
    ) -> Result<(), Wanted> {
        if value.is_null() {
            return Ok(());
        }
        let recipe = &mut self.recipe;
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
            "defaults" => *defaults = text_map(value)?,
            "hooks" if value.is_object() => recipe.hooks = value.clone(),
            "hooks" => return Err("a map from events to handlers".to_owned()),
            "output" => {
                let kinds = [
                    ("message", Output::Message),
                    ("mutate", Output::Mutate),
                    ("append", Output::Append),
                    ("none", Output::None),
                ];
                *output = Some(choice(value, &kinds)?);
            }
            "context" => {
                let kinds =
                    [("session", Context::Session), ("isolated", Context::Isolated), ("none", Context::None)];
                recipe.context = Some(choice(value, &kinds)?);
            }
            "history" => {
                let kinds = [("native", History::Native), ("flat", History::Flat), ("auto", History::Auto)];
                recipe.history = choice(value, &kinds)?;
            }
            "model" => {
                recipe.model = match text(value)?.as_str() {
                    "main" => ModelChoice::Main,
                    "small" => ModelChoice::Small,
                    name => ModelChoice::Named(name.to_owned()),
                }
            }
            "max_turns" => {
                let turns =
                    value.as_u64().and_then(|turns| u32::try_from(turns).ok()).filter(|turns| *turns > 0);
                recipe.max_turns = Some(turns.ok_or_else(|| "a whole number above 0".to_owned())?);
            }
            "callable_by" => recipe.callable_by = callable_by(value)?,
            "run_hooks" => recipe.run_hooks = truth(value)?,
            _ => {}
        }
        Ok(())
    }
}

/// The fields of a recipe file, for "did you mean".
const FIELDS: [&str; 18] = [
    "name",
    "description",
    "aliases",
    "hidden",
    "allowed_tools",
    "allowed_commands",
    "arguments",
    "argument-hint",
    "argument_hint",
    "defaults",
    "hooks",
    "output",
    "context",
    "history",
    "model",
    "max_turns",
    "callable_by",
    "run_hooks",
];

/// A remark on a field that has no effect.
fn remark(name: &str) -> Option<(String, Option<String>)> {
    if FIELDS.contains(&name) {
        return None;
    }
    if matches!(name, "workflow" | "profile") {
        return Some((format!("{name:?} has no effect here"), None));
    }
    let hint = nearest(name, FIELDS).map(|field| format!("did you mean {field:?}?"));
    Some((format!("unknown field {name:?}, ignored"), hint))
}

fn arguments(value: &Value) -> Result<BTreeMap<String, Argument>, Wanted> {
    let map = value.as_object().ok_or_else(|| "a map from names to arguments".to_owned())?;
    map.iter()
        .map(|(name, value)| {
            let argument =
                argument(value).map_err(|wanted| format!("a map in which {name:?} is {wanted}"))?;
            Ok((name.clone(), argument))
        })
        .collect()
}

fn argument(value: &Value) -> Result<Argument, Wanted> {
    let mut argument = Argument::default();
    let fields = match value {
        Value::Null => return Ok(argument),
        Value::String(description) => return Ok(Argument { description: description.clone(), ..argument }),
        Value::Object(fields) => fields,
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err("a map of description, default, required, choices".to_owned());
        }
    };
    for (name, value) in fields {
        let with_name = |wanted: Wanted| format!("an argument whose {name:?} is {wanted}");
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

fn callable_by(value: &Value) -> Result<CallableBy, Wanted> {
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

/// Whether a handler of the recipe replaces the history; then the recipe's output defaults to `mutate`.
pub(super) fn declares_swap(hooks: &Value) -> bool {
    match hooks {
        Value::String(handler) => matches!(handler.as_str(), "swap_context" | "compact_context"),
        Value::Array(items) => items.iter().any(declares_swap),
        Value::Object(fields) => fields.iter().any(|(name, value)| name != "params" && declares_swap(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
