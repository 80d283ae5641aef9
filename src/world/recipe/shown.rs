//! Recipes as JSON, for machine-readable output. Pure.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::catalog::{RecipeCatalog, Shadowed};
use super::command;
use super::parse::{CallableBy, Recipe, RecipeSource};
use epitome_thread::problem::Problem;

/// All recipes of a catalog, shadowed recipes, and problems.
pub fn list(catalog: &RecipeCatalog) -> Value {
    let recipe = |recipe: &Arc<Recipe>| {
        json!({
            "id": recipe.id,
            "description": command::described(recipe),
            "source": source(&recipe.source),
            "aliases": recipe.aliases,
            "hidden": recipe.hidden,
        })
    };
    let shadowed = |Shadowed { id, source: hidden, by }: &Shadowed| {
        let reason = "an earlier location has this name";
        json!({ "id": id, "source": source(hidden), "by": source(by), "reason": reason })
    };
    json!({
        "recipes": catalog.recipes.iter().map(recipe).collect::<Vec<_>>(),
        "shadowed": catalog.shadowed.iter().map(shadowed).collect::<Vec<_>>(),
        "problems": catalog.problems.iter().map(Problem::to_json).collect::<Vec<_>>(),
    })
}

/// All fields of a recipe, including defaults, under their names in a recipe file.
pub fn fields(recipe: &Recipe) -> Map<String, Value> {
    let unknown: Vec<&str> = recipe.unknown_handlers.iter().map(|handler| handler.name.as_str()).collect();
    let CallableBy { user, hook, agent } = recipe.callable_by;
    let callable: Vec<&str> = [("user", user), ("hook", hook), ("agent", agent)]
        .into_iter()
        .filter_map(|(name, may)| may.then_some(name))
        .collect();
    let fields = json!({
        "id": recipe.id,
        "name": recipe.name,
        "description": recipe.description,
        "source": source(&recipe.source),
        "syntax": recipe.syntax,
        "usage": format!("/{} {}", recipe.id, command::hint(recipe)),
        "aliases": recipe.aliases,
        "hidden": recipe.hidden,
        "arguments": recipe.arguments,
        "allowed_tools": recipe.allowed_tools,
        "allowed_commands": recipe.allowed_commands,
        "hooks": recipe.hooks,
        "unknown_handlers": unknown,
        "run_hooks": recipe.run_hooks,
        "output": recipe.output,
        "context": recipe.context,
        "history": recipe.history,
        "model": recipe.model,
        "max_turns": recipe.max_turns,
        "callable_by": callable,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn source(source: &RecipeSource) -> Value {
    match source {
        RecipeSource::BuiltIn => json!({ "kind": "built_in" }),
        RecipeSource::User(path) => json!({ "kind": "person", "path": path.display().to_string() }),
        RecipeSource::Repository(path) => json!({ "kind": "repository", "path": path.display().to_string() }),
    }
}
