//! Tracks which commands run in which directories: an editor is not asked to write a file while a command might
//! create a link on its path.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Workspace;

/// The directories of each running command, of all sessions that share this list: several sessions can work in one
/// directory.
#[derive(Clone, Debug, Default)]
pub struct RunningCommands(Arc<Mutex<Vec<Arc<Vec<PathBuf>>>>>);

/// Marks a command as running until it is dropped.
pub(super) struct RunningNote {
    directories: Arc<Vec<PathBuf>>,
    commands: RunningCommands,
}

impl RunningCommands {
    /// Records a command that starts in the directories of this workspace.
    pub(super) fn note(&self, workspace: &Workspace) -> RunningNote {
        let directories = workspace.roots().iter().map(|root| root.path().to_path_buf());
        let directories = Arc::new(directories.collect());
        self.0.lock().push(Arc::clone(&directories));
        RunningNote { directories, commands: self.clone() }
    }

    /// Whether a command of any session runs in a directory of this workspace, or in a parent or child of one.
    pub(super) fn are_in(&self, workspace: &Workspace) -> bool {
        let is_shared = |directory: &PathBuf| {
            workspace
                .roots()
                .iter()
                .map(|root| root.path())
                .any(|own| own.starts_with(directory) || directory.starts_with(own))
        };
        self.0.lock().iter().any(|directories| directories.iter().any(is_shared))
    }
}

impl Drop for RunningNote {
    fn drop(&mut self) {
        self.commands.0.lock().retain(|directories| !Arc::ptr_eq(directories, &self.directories));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_in_its_directories_while_it_runs() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        for made in ["a/below", "b"] {
            std::fs::create_dir_all(base.join(made)).expect("made");
        }
        let workspace = |name: &str| Workspace::new(base.join(name), Vec::new(), Arc::default());
        let commands = RunningCommands::default();
        let note = commands.note(&workspace("a"));
        assert!(commands.are_in(&workspace("a")) && commands.are_in(&workspace("a/below")));
        assert!(!commands.are_in(&workspace("b")));
        drop(note);
        assert!(!commands.are_in(&workspace("a")));
    }
}
