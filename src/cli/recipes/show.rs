//! Formats recipes as text. Pure.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::location;
use crate::recipe::catalog::{RecipeCatalog, Shadowed};
use crate::recipe::command;
use crate::recipe::parse::Recipe;
use crate::recipe::shown::fields;

/// Formats one line per recipe, then the hidden ones and the number of problems.
pub fn list(catalog: &RecipeCatalog, cwd: &Path) -> String {
    let mut text = String::new();
    let width = catalog.recipes.iter().map(|recipe| recipe.id.chars().count()).max().unwrap_or(0);
    for recipe in &catalog.recipes {
        let mut notes = vec![location(&recipe.source, cwd)];
        if !recipe.aliases.is_empty() {
            notes.push(format!("also {}", recipe.aliases.join(", ")));
        }
        if recipe.hidden {
            notes.push("hidden".to_owned());
        }
        let (id, description, notes) = (&recipe.id, command::described(recipe), notes.join("; "));
        let _ = writeln!(text, "{id:width$}  {description} [{notes}]");
    }
    if !catalog.shadowed.is_empty() {
        text += "\nHidden by a recipe of the same name:\n";
        for Shadowed { id, source, by } in &catalog.shadowed {
            let _ =
                writeln!(text, "{id:width$}  {} is hidden by {}", location(source, cwd), location(by, cwd));
        }
    }
    if !catalog.problems.is_empty() {
        let count = catalog.problems.len();
        let _ = writeln!(text, "\nProblems in recipe files: {count}; `epitome recipes check` shows them");
    }
    text
}

/// Formats the fields that have a value as lines, followed by a horizontal rule.
pub fn head(recipe: &Recipe) -> String {
    let mut text = String::new();
    for (name, value) in fields(recipe) {
        let value = match value {
            Value::Null => continue,
            Value::Array(items) if items.is_empty() && name != "allowed_tools" => continue,
            Value::Object(fields) if fields.is_empty() => continue,
            Value::String(value) => value,
            value => value.to_string(),
        };
        let _ = writeln!(text, "{name}: {value}");
    }
    text + "\n────────\n"
}
