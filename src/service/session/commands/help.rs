//! `/help`: lists the slash commands. Pure.

use std::fmt::Write as _;
use std::path::Path;

use super::why::more;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::command::CommandInfo;
use epitome_recipe::parse::RecipeSource;

/// Recipes listed; the rest are counted.
const RECIPES_SHOWN_MAX: usize = 100;

/// `home` is the user's Epitome directory.
pub(super) fn text(built_in: &[CommandInfo], catalog: &RecipeCatalog, home: &Path) -> String {
    let mut out = "Commands:\n\n".to_owned();
    for command in built_in {
        let hint = command.hint.as_ref().map(|hint| format!(" {hint}")).unwrap_or_default();
        let _ = writeln!(out, "- /{}{hint}: {}", command.name, command.description);
    }
    let mut recipes = catalog.commands();
    recipes.sort_by(|a, b| a.name.cmp(&b.name));
    out.push_str("\nRecipes:\n\n");
    for command in recipes.iter().take(RECIPES_SHOWN_MAX) {
        let whose = match catalog.find(&command.name).map(|recipe| &recipe.source) {
            Some(RecipeSource::User(_)) => " (yours)",
            Some(RecipeSource::Repository(_)) => " (this repository's)",
            Some(RecipeSource::BuiltIn) | None => "",
        };
        let _ = writeln!(out, "- /{}: {}{whose}", command.name, command.description);
    }
    more(&mut out, recipes.len(), RECIPES_SHOWN_MAX);
    let _ = write!(
        out,
        "\nRecipes are Markdown files: yours in {}, those of a repository in its .epitome/recipes, and those \
         of other agents in their usual places. `epitome recipes list` shows the file of each, and which one \
         hides another. Hooks run programs at certain events of a session: see /hooks here, or `epitome \
         hooks` on the command line. `epitome help` lists everything else.",
        home.join("recipes").display()
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_line_with_its_hint_and_its_owner() {
        let command = CommandInfo {
            name: "goal".to_owned(),
            description: "Show, set or clear the goal".to_owned(),
            hint: Some("[goal | clear]".to_owned()),
            skill: None,
        };
        let shown = text(&[command], &RecipeCatalog::built_in(), Path::new("/home/ada/.epitome"));
        assert!(shown.starts_with("Commands:\n\n- /goal [goal | clear]: Show, set or clear the goal\n"));
        for recipe in &RecipeCatalog::built_in().recipes {
            assert!(shown.contains(&format!("\n- /{}: ", recipe.id)), "{}", recipe.id);
        }
        assert!(shown.contains("yours in /home/ada/.epitome/recipes"), "{shown}");
    }
}
