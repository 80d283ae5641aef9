//! Checks whether `-r NAME` names a recipe, and explains why if not.

use crate::cli::recipes::find;
use crate::cli::{CliError, EXIT_USAGE};
use crate::recipe::catalog::RecipeCatalog;
use crate::session::CommandInfo;

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
    }
}
