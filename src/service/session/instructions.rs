//! Instructions outside of the frame: from files that changed since the system prompt was made, and from files in
//! subdirectories, once a call has touched something there.
//!
//! As with the goal, the view determines what the model knows of them. Before each model call the files are scanned,
//! and the model is sent what is missing from the view. Files are only read again if they changed.

pub mod client;
pub mod folders;
mod imports;
mod known;
mod room;

use super::SessionError;
use epitome_platform::os::MetadataExt;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use folders::{InstructionFile, InstructionFolder};
use known::{known_paths, reminder, touched};

use super::core::Core;
use epitome_files::paths::Paths;
use epitome_recipe::agents::AgentCatalog;
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Origin, Seq, Thread};
use epitome_tools::{Workspace, task};

/// Maximum number of subdirectories whose instructions are used; a model that touches more is only browsing.
const NESTED_MAX: usize = 32;

/// Maximum number of messages with instructions in a view, so that a file that changes constantly can't fill it.
const MESSAGES_MAX: usize = 100;

/// The files that may contain instructions, as of the last scan.
#[derive(Debug, Default)]
pub struct InstructionWatch {
    folders: Vec<Watched>,
    /// The view's revision and the model's window, in tokens, when the model last had all instructions that fit.
    complete_at: Option<(Seq, u64)>,
}

#[derive(Debug)]
struct Watched {
    folder: InstructionFolder,
    is_nested: bool,
    /// Stamps of all current and former candidates; `None` before the first scan.
    stamps: Option<BTreeMap<PathBuf, Option<InstructionStamp>>>,
    files: Vec<InstructionFile>,
}

/// Metadata that changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InstructionStamp {
    length: u64,
    time: (i64, i64),
    inode: u64,
}

impl InstructionWatch {
    /// The files that go into the system prompt.
    pub fn files(&self) -> Vec<InstructionFile> {
        let of_frame = self.folders.iter().filter(|watched| !watched.is_nested);
        of_frame.flat_map(|watched| watched.files.clone()).collect()
    }

    /// Adds unknown folders. Nested ones are sorted by depth, the deepest last.
    fn add(&mut self, folders: Vec<InstructionFolder>, is_nested: bool) {
        for folder in folders {
            let nested = self.folders.iter().filter(|watched| watched.is_nested).count();
            let is_known = self.folders.iter().any(|watched| watched.folder.directory == folder.directory);
            let is_too_many = is_nested && nested == NESTED_MAX;
            if !is_known && !is_too_many {
                self.folders.push(Watched { folder, is_nested, stamps: None, files: Vec::new() });
                self.complete_at = None;
            }
        }
        self.folders.sort_by_key(|watched| match watched.is_nested {
            true => watched.folder.directory.components().count(),
            false => 0,
        });
    }

    /// Reads the folders that changed since the last scan.
    fn look(&mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for watched in &mut self.folders {
            // A removed file may come back.
            let known = watched.stamps.iter().flat_map(|stamps| stamps.keys().cloned());
            let candidates: BTreeSet<PathBuf> =
                watched.folder.candidates().into_iter().chain(known).collect();
            let mut stamps: BTreeMap<_, _> =
                candidates.into_iter().map(|path| (path.clone(), stamp(&path))).collect();
            if watched.stamps.as_ref() == Some(&stamps) {
                continue;
            }
            let (files, new) = watched.folder.read();
            problems.extend(new);
            let imported = files.iter().flat_map(|file| &file.imports);
            stamps.extend(imported.map(|path| (path.clone(), stamp(path))));
            watched.stamps = Some(stamps);
            if watched.files != files {
                self.complete_at = None;
            }
            watched.files = files;
        }
        problems
    }

    /// The files whose instructions the model does not have, in order, each with the message for the model.
    fn missing(&self, thread: &Thread) -> Vec<(PathBuf, String)> {
        let files = self.folders.iter().flat_map(|watched| {
            let read = watched.files.iter().map(|file| (file.path.clone(), file.text.clone()));
            let gone = watched.stamps.iter().flat_map(|stamps| stamps.keys());
            let gone = gone.filter(|path| !watched.files.iter().any(|file| file.path == **path));
            gone.map(|path| (path.clone(), String::new())).chain(read)
        });
        files.filter_map(|(path, text)| Some((path.clone(), reminder(thread, &path, &text)?))).collect()
    }
}

/// The result of a scan.
#[derive(Default)]
pub struct ScannedInstructions {
    pub watch: InstructionWatch,
    pub problems: Vec<Problem>,
    pub agents: Option<AgentCatalog>,
}

impl InstructionWatch {
    /// Returns the function that scans the instruction files: for the working directory, for recently touched files,
    /// and those that the model has been sent. It reads the disk, which may be slow, so it does not run in the session's
    /// task.
    pub(super) fn look_at(&mut self, core: &Core) -> impl FnOnce() -> ScannedInstructions + Send + use<> {
        let mut watch = std::mem::take(self);
        // Files in the log are watched from the first scan on.
        let sent = if watch.folders.is_empty() { known_paths(&core.thread) } else { BTreeSet::new() };
        let (workspace, paths) = (core.workspace.clone(), core.services.paths.clone());
        let touched = touched(&core.thread);
        // Agents are listed for the model once, in the frame.
        let looks_for_agents =
            core.thread.frame().is_none() && core.services.toolbox.get(task::NAME).is_some();
        move || {
            let nested =
                |of: BTreeSet<PathBuf>| of.iter().flat_map(|path| nested(&workspace, path, &paths)).collect();
            if watch.folders.is_empty() {
                watch.add(folders::all(&workspace.cwd, &paths), false);
                watch.add(nested(sent), true);
            }
            watch.add(nested(touched), true);
            let problems = watch.look();
            let agents = looks_for_agents.then(|| AgentCatalog::load(&workspace.cwd, &paths));
            ScannedInstructions { watch, problems, agents }
        }
    }

    /// Compares with the view again, after entries of it were undone.
    pub(super) fn require_check(&mut self) {
        self.complete_at = None;
    }

    /// Sends the model instructions that are missing from its view or outdated there. Must only be called after a scan
    /// and without open calls. Does nothing in a child, which sees what its parent sees.
    pub(super) fn remind(&mut self, core: &mut Core) -> Result<(), SessionError> {
        let at = (core.thread.view().revision(), core.model.window());
        if core.lineage.is_child() || self.complete_at == Some(at) {
            return Ok(());
        }
        let shown =
            core.thread.view().entries().iter().filter(|entry| {
                matches!(entry.change, Change::Said { origin: Origin::Instructions { .. }, .. })
            });
        let left = MESSAGES_MAX.saturating_sub(shown.count());
        let missing = self.missing(&core.thread).into_iter();
        let fitting: Vec<_> =
            missing.filter(|(path, text)| core.has_room_for(path, text)).take(left).collect();
        for (path, text) in fitting {
            let said = Change::Said { message: core.message(text), origin: Origin::Instructions { path } };
            core.commit(said)?;
        }
        self.complete_at = Some(at);
        Ok(())
    }
}

/// The folders from `touched` up to the workspace's root, without the working directory, which the system prompt
/// covers. Excludes folders outside of the workspace, reached by a symbolic link.
fn nested(workspace: &Workspace, touched: &Path, paths: &Paths) -> Vec<InstructionFolder> {
    let mut roots = std::iter::once(&workspace.cwd).chain(&workspace.directories);
    let Some(root) = roots.find(|root| touched.starts_with(root)) else { return Vec::new() };
    // Checks that the directory exists first: a path with thousands of missing components would take minutes otherwise.
    let is_inside = |directory: &&Path| directory.is_dir() && workspace.contains(directory);
    let below = touched.ancestors().take_while(|directory| directory.starts_with(root));
    let folder = |directory: &Path| InstructionFolder::of_project(directory, Some(root)).importing(paths);
    below.filter(|directory| *directory != workspace.cwd).filter(is_inside).map(folder).collect()
}

fn stamp(path: &Path) -> Option<InstructionStamp> {
    let metadata = path.metadata().ok()?;
    Some(InstructionStamp {
        length: metadata.len(),
        time: (metadata.mtime(), metadata.mtime_nsec()),
        inode: metadata.ino(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_only_where_it_changed() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let path = directory.path().join("AGENTS.md");
        let folder = InstructionFolder::of_project(directory.path(), None);
        let mut watch = InstructionWatch::default();
        watch.add(vec![folder.clone(), folder], false);
        assert_eq!(watch.folders.len(), 1);
        watch.look();
        assert!(watch.files().is_empty());

        std::fs::write(&path, "one").expect("a file");
        watch.complete_at = Some((Seq(0), 1));
        watch.look();
        assert_eq!(watch.files()[0].text, "one");
        assert_eq!(watch.complete_at, None, "a change has it compared with the view again");

        watch.complete_at = Some((Seq(0), 1));
        watch.look();
        assert_eq!(watch.complete_at, Some((Seq(0), 1)));
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(directory.path().join("CLAUDE.md"), "two").expect("a file");
        watch.look();
        assert_eq!(watch.files()[0].text, "two");
    }

    #[test]
    fn nested_places_are_bounded_and_the_nearest_comes_last() {
        let folder = |name: String| InstructionFolder::of_project(Path::new(&name), None);
        let mut watch = InstructionWatch::default();
        watch.add(vec![folder("/w/a/b/c".to_owned()), folder("/w/a".to_owned())], true);
        watch.add(vec![folder("/a/very/long/way/to/w".to_owned())], false);
        let names: Vec<_> = watch.folders.iter().map(|watched| watched.folder.directory.clone()).collect();
        assert_eq!(names, ["/a/very/long/way/to/w", "/w/a", "/w/a/b/c"].map(PathBuf::from));
        watch.add((0..NESTED_MAX).map(|at| folder(format!("/w/{at}"))).collect(), true);
        assert_eq!(watch.folders.len(), 1 + NESTED_MAX);
    }
}
