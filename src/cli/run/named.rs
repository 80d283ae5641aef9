//! Checks whether `-r NAME` names a recipe and `/NAME` a command, and explains why if not.

use crate::cli::recipes::find;
use crate::cli::{CliError, EXIT_USAGE};
use crate::problem::nearest;
use crate::recipe::catalog::RecipeCatalog;
use crate::session::{CommandInfo, command_name_in};

/// How the names of MCP servers' prompts begin.
const PROMPT_OF_SERVER: &str = "mcp__";

/// Returns why a name is not that of a recipe; `None` if it is one. The menu contains neither aliases nor hidden
/// recipes nor files with errors, so the files are decisive.
pub fn refused(
    name: &str,
    commands: &[CommandInfo],
    catalog: impl FnOnce() -> RecipeCatalog,
) -> Option<CliError> {
    if commands.iter().any(|command| command.name == name) {
        return None;
    }
    find(&catalog(), name).err().map(|error| CliError { code: EXIT_USAGE, ..error })
}

/// Returns why a prompt that looks like a command is none. The model would only be asked what it means.
pub fn unknown(
    prompt: &str,
    commands: &[CommandInfo],
    catalog: impl FnOnce() -> RecipeCatalog,
) -> Option<CliError> {
    // A server may still be connecting.
    let name = command_name_in(prompt).filter(|name| !name.starts_with(PROMPT_OF_SERVER))?;
    if commands.iter().any(|command| command.name == name) {
        return None;
    }
    let catalog = catalog();
    let error = find(&catalog, name).err()?;
    if catalog.fault(name).is_some() {
        return Some(CliError { code: EXIT_USAGE, ..error });
    }
    let near = nearest(name, commands.iter().map(|command| command.name.as_str()));
    let near = near.map_or_else(String::new, |near| format!("did you mean /{near}? "));
    let hint = format!("{near}`epitome run /help` lists all; to send it as text, begin with another word");
    Some(CliError::usage(format!("there is no command /{name}")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;

    /// Regression test: a recipe with an error was reported as missing, although `epitome recipes check` found the
    /// error.
    #[test]
    fn a_recipe_with_a_fault_is_named_with_its_fault() {
        let home = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = home.path().join("recipes").join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("bad.md", "---\nname: bad\nmax_turns: many\n---\n");
        write("long-name.md", "---\naliases: [ln]\nhidden: true\n---\nDo.");
        let load = || RecipeCatalog::load(home.path(), &Paths::below(home.path()), &[]);
        let commands = load().commands();
        let why = |name: &str| refused(name, &commands, load).map(|error| error.message);
        let bad = why("bad").expect("it has a fault");
        assert!(bad.contains("the recipe \"bad\" can't be used") && bad.contains("bad.md:3:12:"), "{bad}");
        assert_eq!(why("gone").as_deref(), Some("there is no recipe \"gone\""));
        assert_eq!((why("ln"), why("long-name"), why("commit")), (None, None, None));
        let typed = |prompt: &str| unknown(prompt, &commands, load).map(|error| error.message);
        assert_eq!(typed("/gone now").as_deref(), Some("there is no command /gone"));
        assert!(typed("/bad").is_some_and(|why| why.contains("bad.md:3:12:")));
        for fine in ["/ln", "/commit", "gone", "/tmp is full", "/no/such", "/* no */", "/mcp__a__b"] {
            assert_eq!(typed(fine), None, "{fine}");
        }
    }
}
