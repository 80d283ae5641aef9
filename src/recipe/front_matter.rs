//! Reads the YAML front matter of a recipe into its fields. Pure and bounded.
//!
//! A known field of the wrong kind is an error with its place; an unknown field is a remark.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use serde_saphyr::Spanned;

use super::handlers;
use super::parse::{Argument, CallableBy, Context, History, ModelChoice, Output, Parsed, Recipe};
use crate::problem::{Problem, nearest};

/// Nodes of one front matter. The longest recipe known has about a hundred.
const FRONT_MATTER_NODES_MAX: usize = 4096;
/// Nesting of one front matter; a `hooks` table needs six levels.
const FRONT_MATTER_DEPTH_MAX: usize = 32;
/// Events that aliases in one front matter may add.
const FRONT_MATTER_ALIASES_MAX: usize = 1024;

/// Fills a recipe from its front matter, whose first line is the second of the file.
pub(super) fn read(recipe: Recipe, front: &str, path: &Path) -> Result<Parsed, Problem> {
    let fields = read_fields(front, path)?;
    Reader { path, front, recipe, notes: Vec::new() }.read(fields)
}

type Fields = BTreeMap<String, Spanned<Value>>;

/// Reads YAML with bounds; its lines are counted from the file's second.
fn read_fields(front: &str, path: &Path) -> Result<Fields, Problem> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: FRONT_MATTER_NODES_MAX,
            max_depth: FRONT_MATTER_DEPTH_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: FRONT_MATTER_ALIASES_MAX },
        with_snippet: false,
    };
    if front.trim().is_empty() {
        return Ok(Fields::new());
    }
    serde_saphyr::from_str_with_options::<Option<Fields>>(front, options)
        .map(Option::unwrap_or_default)
        .map_err(|error| {
            let place = error.location().map(|place| (place.line() + 1, place.column()));
            Problem {
                path: path.to_path_buf(),
                place: place.filter(|(line, _)| *line > 1).or(Some((2, 1))),
                message: format!("the front matter is not valid YAML: {}", first_line(&error.to_string())),
                hint: Some("put quotes around text that holds `: `, `[`, `{`, `#` or `*`".to_owned()),
            }
        })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

struct Reader<'a> {
    path: &'a Path,
    front: &'a str,
    recipe: Recipe,
    notes: Vec<Problem>,
}

/// A field's value that is of the wrong kind: what was wanted instead.
type Wanted = String;

impl Reader<'_> {
    fn read(mut self, fields: Fields) -> Result<Parsed, Problem> {
        let mut defaults = BTreeMap::new();
        let mut output = None;
        for (name, field) in &fields {
            let place = (field.referenced.line() + 1, field.referenced.column());
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

/// What there is to say about a field that has no effect.
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

fn text(value: &Value) -> Result<String, Wanted> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err("text".to_owned()),
    }
}

fn truth(value: &Value) -> Result<bool, Wanted> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        Value::String(text) if text == "true" || text == "yes" => Ok(true),
        Value::String(text) if text == "false" || text == "no" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// A list, or text with commas; `none` is the empty list.
fn names(value: &Value) -> Result<Vec<String>, Wanted> {
    let wanted = || "a list of names, or names with commas between them".to_owned();
    match value {
        Value::String(all) if all.trim() == "none" => Ok(Vec::new()),
        Value::String(all) => {
            Ok(all.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
        }
        Value::Array(items) => items.iter().map(|item| text(item).map_err(|_| wanted())).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(wanted()),
    }
}

fn text_map(value: &Value) -> Result<BTreeMap<String, String>, Wanted> {
    let wanted = || "a map from names to text".to_owned();
    let map = value.as_object().ok_or_else(wanted)?;
    map.iter().map(|(name, value)| Ok((name.clone(), text(value).map_err(|_| wanted())?))).collect()
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

fn choice<T: Copy>(value: &Value, kinds: &[(&str, T)]) -> Result<T, Wanted> {
    let chosen = value.as_str().and_then(|name| kinds.iter().find(|(known, _)| *known == name));
    chosen.map(|(_, kind)| *kind).ok_or_else(|| {
        let known: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        format!("one of {}", known.join(", "))
    })
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

/// Whether a hook of the recipe replaces the history; then its text is meant for that.
pub(super) fn declares_swap(hooks: &Value) -> bool {
    match hooks {
        Value::String(handler) => matches!(handler.as_str(), "swap_context" | "compact_context"),
        Value::Array(items) => items.iter().any(declares_swap),
        Value::Object(fields) => fields.iter().any(|(name, value)| name != "params" && declares_swap(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
