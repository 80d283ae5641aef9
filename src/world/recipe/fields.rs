//! The fields of a user-written declaration in YAML or JSON, each with its position, and conversions of their
//! values. Shared by recipes and hooks. Pure and bounded.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use serde_json::value::RawValue;
use serde_saphyr::Spanned;

use epitome_thread::problem::{Problem, nearest, position_in};

/// Maximum YAML nodes per declaration. The longest known front matter has about a hundred.
const NODES_MAX: usize = 4096;
/// Maximum nesting depth; a `hooks` table needs six levels.
const DEPTH_MAX: usize = 32;
/// Maximum events that YAML aliases of one declaration may replay.
const ALIASES_MAX: usize = 1024;

/// The fields of a declaration, by name.
pub type RecipeFields = BTreeMap<String, RecipeField>;

/// A field's value and its position: line and column, both 1-based.
#[derive(Clone, Debug)]
pub struct RecipeField {
    pub value: Value,
    pub position: (u64, u64),
}

/// Parses YAML. `lines_before` is the number of lines in the file before the text; `what` names the text in a
/// problem.
pub fn from_yaml(text: &str, path: &Path, lines_before: u64, what: &str) -> Result<RecipeFields, Problem> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: NODES_MAX,
            max_depth: DEPTH_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIASES_MAX },
        with_snippet: false,
    };
    if text.trim().is_empty() {
        return Ok(RecipeFields::new());
    }
    let read = serde_saphyr::from_str_with_options::<Option<BTreeMap<String, Spanned<Value>>>>(text, options);
    let fields = read.map(Option::unwrap_or_default).map_err(|error| {
        let position = error.location().map(|position| (position.line() + lines_before, position.column()));
        let error = error.to_string();
        let error = error.lines().next().unwrap_or_default();
        Problem::new(path, format!("{what} is not valid YAML: {error}"))
            .at(position.filter(|(line, _)| *line > lines_before).unwrap_or((lines_before + 1, 1)))
            .with_hint("put quotes around text that holds `: `, `[`, `{`, `#` or `*`")
    })?;
    let placed = |field: Spanned<Value>| {
        let position = (field.referenced.line() + lines_before, field.referenced.column());
        RecipeField { value: field.value, position }
    };
    Ok(fields.into_iter().map(|(name, field)| (name, placed(field))).collect())
}

/// Parses one JSON object.
pub fn from_json(text: &str, path: &Path, what: &str) -> Result<RecipeFields, Problem> {
    let problem = |error: serde_json::Error| {
        let position = (error.line().max(1) as u64, error.column().max(1) as u64);
        Problem::new(path, format!("{what} is not a JSON object: {error}")).at(position)
    };
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(problem)?;
    let field = |raw: &RawValue| {
        // The raw value borrows from the text, so the pointer difference is its offset.
        let offset = raw.get().as_ptr() as usize - text.as_ptr() as usize;
        let value = serde_json::from_str(raw.get()).map_err(problem)?;
        Ok(RecipeField { value, position: position_in(text, offset) })
    };
    fields.into_iter().map(|(name, raw)| Ok((name, field(raw)?))).collect()
}

/// Sets each field that is not `null`. `known` lists the names that `set` understands, also for suggestions; `set`
/// returns a remark on a value that has no effect. Other names get the remark `unknown`. A value of the wrong type is
/// an error.
pub fn set_all(
    fields: &RecipeFields,
    path: &Path,
    known: &str,
    unknown: impl Fn(&str) -> String,
    mut set: impl FnMut(&str, &RecipeField) -> Result<Option<String>, ExpectedKind>,
) -> Result<Vec<Problem>, Problem> {
    let mut remarks = Vec::new();
    for (name, field) in fields {
        let problem = |message: String| Problem::new(path, message).at(field.position);
        if !known.split(' ').any(|known| known == name) {
            let hint = nearest(name, known.split(' ')).map(|known| format!("did you mean {known:?}?"));
            remarks.push(Problem { hint, ..problem(unknown(name)) });
        } else if !field.value.is_null() {
            let remark = set(name, field).map_err(|wanted| problem(format!("{name:?} must be {wanted}")))?;
            remarks.extend(remark.map(problem));
        }
    }
    Ok(remarks)
}

/// A whole number above 0.
pub fn positive(value: &Value) -> Result<u32, ExpectedKind> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or_else(|| "a whole number above 0".to_owned())
}

/// Description of the expected value, if a field has another kind.
pub type ExpectedKind = String;

pub fn text(value: &Value) -> Result<String, ExpectedKind> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err("text".to_owned()),
    }
}

pub fn truth(value: &Value) -> Result<bool, ExpectedKind> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        Value::String(text) if text == "true" || text == "yes" => Ok(true),
        Value::String(text) if text == "false" || text == "no" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// A list, or comma-separated text; `none` is the empty list.
pub fn names(value: &Value) -> Result<Vec<String>, ExpectedKind> {
    let wanted = || "a list of names, or names with commas between them".to_owned();
    match value {
        Value::String(all) if all.trim() == "none" => Ok(Vec::new()),
        Value::String(all) => {
            Ok(all.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
        }
        Value::Array(items) => items.iter().map(|item| text(item).map_err(|_| wanted())).collect(),
        _ => Err(wanted()),
    }
}

pub fn text_map(value: &Value) -> Result<BTreeMap<String, String>, ExpectedKind> {
    let wanted = || "a map from names to text".to_owned();
    let map = value.as_object().ok_or_else(wanted)?;
    map.iter().map(|(name, value)| Ok((name.clone(), text(value).map_err(|_| wanted())?))).collect()
}

pub fn choice<T: Copy>(value: &Value, kinds: &[(&str, T)]) -> Result<T, ExpectedKind> {
    let chosen = value.as_str().and_then(|name| kinds.iter().find(|(known, _)| *known == name));
    chosen.map(|(_, kind)| *kind).ok_or_else(|| {
        let known: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        format!("one of {}", known.join(", "))
    })
}
