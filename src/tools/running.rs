//! Which commands run in this process, and in which directories: an editor is not asked to write a file while one might
//! put a link in its way.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Workspace;

/// The directories of each running command. They are of all sessions, because several can work in one directory.
static RUNNING: Mutex<Vec<Arc<Vec<PathBuf>>>> = Mutex::new(Vec::new());

/// A command that runs, until it is dropped.
pub(super) struct RunningNote(Arc<Vec<PathBuf>>);

impl RunningNote {
    pub fn new(workspace: &Workspace) -> RunningNote {
        let directories = workspace.roots().iter().map(|root| root.path().to_path_buf());
        let note = Arc::new(directories.collect());
        running().push(Arc::clone(&note));
        RunningNote(note)
    }
}

impl Drop for RunningNote {
    fn drop(&mut self) {
        running().retain(|note| !Arc::ptr_eq(note, &self.0));
    }
}

/// Whether a command of any session runs in a directory of this workspace, or in one around or below it.
pub(super) fn is_any_in(workspace: &Workspace) -> bool {
    let is_shared = |directory: &PathBuf| {
        workspace
            .roots()
            .iter()
            .map(|root| root.path())
            .any(|own| own.starts_with(directory) || directory.starts_with(own))
    };
    running().iter().any(|directories| directories.iter().any(is_shared))
}

fn running() -> MutexGuard<'static, Vec<Arc<Vec<PathBuf>>>> {
    // Nothing that could panic runs under this lock.
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
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
        let note = RunningNote::new(&workspace("a"));
        assert!(is_any_in(&workspace("a")) && is_any_in(&workspace("a/below")));
        assert!(!is_any_in(&workspace("b")));
        drop(note);
        assert!(!is_any_in(&workspace("a")));
    }
}
