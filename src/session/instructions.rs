//! Instructions behind the frame: a file that changed since the system text was made, and files that lie
//! below the working directory, once a call has touched something beside them.
//!
//! What the model knows of them is what its view says, as with the goal. Before each model call the files are
//! looked at, and what is not known is said. Files are read again only where they changed.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::actor::Session;
use super::prompt::{self, Instructions, Place};
use crate::problem::Problem;
use crate::thread::{Change, Content, Edit, Entry, Message, Origin, OutcomeStatus, Seq, Thread};

/// Directories below the working directory whose instructions are followed. Who touches more is on a tour.
const NESTED_MAX: usize = 32;

/// Messages with instructions that a thread may have: a file that changes all the time must not fill it.
const TOLD_MAX: usize = 100;

/// The files that may hold instructions, as they were when they were looked at last.
#[derive(Debug, Default)]
pub struct Watch {
    places: Vec<Watched>,
    /// The view's revision when everything in it was known to the model.
    told_at: Option<Seq>,
}

#[derive(Debug)]
struct Watched {
    place: Place,
    is_nested: bool,
    /// Of its candidates; `None` before the first look.
    stamps: Option<[Option<Stamp>; 2]>,
    file: Option<Instructions>,
}

/// What changes when a file does: its length, its time and which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    time: (i64, i64),
    inode: u64,
}

impl Watch {
    /// What the system text is made of.
    pub fn files(&self) -> Vec<Instructions> {
        let of_frame = self.places.iter().filter(|watched| !watched.is_nested);
        of_frame.filter_map(|watched| watched.file.clone()).collect()
    }

    /// Takes in places that are not known yet; the nearest of the nested ones come last.
    fn add(&mut self, places: Vec<Place>, is_nested: bool) {
        for place in places {
            let nested = self.places.iter().filter(|watched| watched.is_nested).count();
            let is_known = self.places.iter().any(|watched| watched.place.directory == place.directory);
            if !is_known && !(is_nested && nested == NESTED_MAX) {
                self.places.push(Watched { place, is_nested, stamps: None, file: None });
                self.told_at = None;
            }
        }
        self.places.sort_by_key(|watched| match watched.is_nested {
            true => watched.place.directory.components().count(),
            false => 0,
        });
    }

    /// Reads what has changed since the last look.
    fn look(&mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for watched in &mut self.places {
            let stamps = watched.place.candidates().map(|path| stamp(&path));
            if watched.stamps.replace(stamps) == Some(stamps) {
                continue;
            }
            let (file, new) = watched.place.read();
            problems.extend(new);
            if watched.file != file {
                self.told_at = None;
            }
            watched.file = file;
        }
        problems
    }

    /// What the model has to be told, in order: each file with the words.
    fn untold(&self, thread: &Thread) -> Vec<(PathBuf, String)> {
        let files = self.places.iter().flat_map(|watched| {
            watched.place.candidates().map(|path| {
                let own = watched.file.as_ref().filter(|file| file.path == path);
                let text = own.map(|file| file.text.clone()).unwrap_or_default();
                (path, text)
            })
        });
        files.filter_map(|(path, text)| Some((path.clone(), untold(thread, &path, &text)?))).collect()
    }
}

impl Session {
    /// Looks at the files that hold for the working directory, for what was touched last, and at those that
    /// were told of.
    pub(super) fn look_for_instructions(&mut self) {
        if self.instructions.places.is_empty() {
            self.instructions.add(prompt::places(&self.workspace.cwd, &self.services.paths.home), false);
            let told = told_paths(&self.thread);
            self.instructions.add(told.iter().flat_map(|path| self.nested(path)).collect(), true);
        }
        let touched = touched(&self.thread);
        self.instructions.add(touched.iter().flat_map(|path| self.nested(path)).collect(), true);
        let problems = self.instructions.look();
        self.show_problems(&problems);
    }

    /// Tells the model of instructions that its view does not say, or says in an old form. No call is open
    /// here. What a child sees is its parent's.
    pub(super) fn tell_instructions(&mut self) -> Result<(), String> {
        // A reply that its provider paused is what it goes on from: nothing may stand behind it.
        let is_paused = self.work.as_ref().is_some_and(|work| work.turn.is_paused());
        if is_paused || self.lineage.is_child() {
            return Ok(());
        }
        self.look_for_instructions();
        let revision = self.thread.view().revision();
        if self.instructions.told_at == Some(revision) {
            return Ok(());
        }
        let left = TOLD_MAX.saturating_sub(instructed(&self.thread).count());
        for (path, text) in self.instructions.untold(&self.thread).into_iter().take(left) {
            let message = Message { id: self.fresh_message(), content: vec![Content::Text { text }] };
            let said = Change::Said { message, origin: Origin::Instructions { path } };
            self.commit(said).map_err(|error| error.to_string())?;
        }
        self.instructions.told_at = Some(revision);
        Ok(())
    }

    /// The directories between the workspace and what was touched, that itself too, without those that the
    /// system text speaks of. None that a link leads out of the workspace.
    fn nested(&self, touched: &Path) -> Vec<Place> {
        let workspace = &self.workspace;
        let mut roots = std::iter::once(&workspace.cwd).chain(&workspace.directories);
        let Some(root) = roots.find(|root| touched.starts_with(root)) else { return Vec::new() };
        let is_inside = |directory: &&Path| workspace.contains(directory) && directory.is_dir();
        let below = touched.ancestors().take_while(|directory| directory.starts_with(root));
        let place =
            |directory: &Path| Place { directory: directory.to_path_buf(), within: Some(root.clone()) };
        below.filter(|directory| *directory != workspace.cwd).filter(is_inside).map(place).collect()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = path.metadata().ok()?;
    Some(Stamp {
        length: metadata.len(),
        time: (metadata.mtime(), metadata.mtime_nsec()),
        inode: metadata.ino(),
    })
}

/// What the newest reply's calls touched.
fn touched(thread: &Thread) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for entry in thread.entries().iter().rev() {
        match &entry.change {
            Change::Replied { .. } => break,
            Change::ToolFinished { outcome } => match outcome.status {
                OutcomeStatus::Completed | OutcomeStatus::Failed => {
                    let card = thread.input_of(&outcome.call).map(|(_, card)| card.locations.as_slice());
                    let locations = outcome.locations.iter().chain(card.unwrap_or_default());
                    paths.extend(locations.map(|location| location.path.clone()));
                }
                OutcomeStatus::Denied | OutcomeStatus::Interrupted => {}
            },
            _ => {}
        }
    }
    paths
}

/// The entries that tell instructions, with their files, newest first.
fn instructed(thread: &Thread) -> impl Iterator<Item = (&Entry, &Path)> {
    thread.entries().iter().rev().filter_map(|entry| match &entry.change {
        Change::Said { origin: Origin::Instructions { path }, .. } => Some((entry.as_ref(), path.as_path())),
        _ => None,
    })
}

fn told_paths(thread: &Thread) -> BTreeSet<PathBuf> {
    instructed(thread).map(|(_, path)| path.to_path_buf()).collect()
}

/// The words that tell a file's instructions, an empty text being none; `None` where the view says the same.
fn untold(thread: &Thread, path: &Path, text: &str) -> Option<String> {
    let block = prompt::block(path, text);
    match known(thread, path) {
        Some(said) if said.contains(&block) => None,
        None if text.trim().is_empty() => None,
        Some(_) if text.trim().is_empty() => {
            Some(format!("The instructions in {} are gone and hold no longer:\n\n{block}", path.display()))
        }
        Some(_) => Some(format!(
            "These are the project's instructions in {} as they are now; they replace what was said of that file \
             before:\n\n{block}",
            path.display()
        )),
        None => Some(format!(
            "Instructions for what lies in {} and below it; where they disagree with those of a directory above, \
             these win:\n\n{block}",
            path.parent().unwrap_or(path).display()
        )),
    }
}

/// Where the model was told of a file last, as far as its view goes back.
fn known(thread: &Thread, path: &Path) -> Option<String> {
    let newest = instructed(thread).find(|(_, told)| *told == path).map(|(entry, _)| entry);
    // What a hook took out is not said again before the file changes.
    if let Some(entry) = newest.filter(|entry| is_edited(thread, entry.seq)) {
        return text_of(entry);
    }
    let head = prompt::block_head(path);
    let in_view = thread.view().entries().iter().rev().find_map(|entry| match &entry.change {
        // As it was told: a compaction that shows it shorter had no room for more.
        Change::Said { origin: Origin::Instructions { path: told }, .. } if told == path => {
            thread.entries().get(entry.seq.0 as usize).and_then(|own| text_of(own))
        }
        Change::Compacted { summary, .. } => Some(summary.text()).filter(|text| text.contains(&head)),
        _ => None,
    });
    let in_frame = || thread.frame().map(|(system, _)| system).filter(|system| system.contains(&head));
    in_view.or_else(|| in_frame().map(str::to_owned))
}

fn text_of(entry: &Entry) -> Option<String> {
    match &entry.change {
        Change::Said { message, .. } => Some(message.text()),
        _ => None,
    }
}

/// Whether a hook's edit of this entry holds.
fn is_edited(thread: &Thread, entry: Seq) -> bool {
    let names = |edit: &Edit| edit.rewrites() && edit.at().is_some_and(|part| part.entry == entry);
    let later = thread.entries().iter().skip(entry.0 as usize).filter(|later| !thread.is_undone(later.seq));
    later.into_iter().any(|later| match &later.change {
        Change::Edited { edits, .. } => edits.iter().any(names),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::thread::{Account, FORMAT_VERSION, MessageId, Part, Role, SessionId, Spoken, Trigger};

    /// A thread with these changes behind its opening entry.
    fn thread(changes: Vec<Change>) -> Thread {
        let session = SessionId("s_00000000000000000000".to_owned());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: PathBuf::from("/w") };
        let log = [opened].into_iter().chain(changes).zip(0..);
        Thread::replay(log.map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change })))
            .expect("the log begins with its opening entry")
    }

    fn said(text: String, origin: Origin) -> Change {
        Change::Said { message: message(text), origin }
    }

    fn message(text: String) -> Message {
        Message { id: MessageId(0), content: vec![Content::Text { text }] }
    }

    fn compacted(through: u64, text: String) -> Change {
        Change::Compacted {
            through: Seq(through),
            summary: message(text),
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 9,
            tokens_after: 1,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Account::default(),
        }
    }

    /// Each row is a log behind its opening entry, e0, and whether the file's text now is told.
    #[test]
    fn the_model_is_told_what_neither_its_frame_nor_its_view_says() {
        let path = Path::new("/w/AGENTS.md");
        let frame = |text| Change::Framed { system: prompt::block(path, text), tools: Vec::new() };
        let told = |text| {
            let origin = Origin::Instructions { path: path.to_path_buf() };
            said(format!("They are:\n\n{}", prompt::block(path, text)), origin)
        };
        let other = || {
            let origin = Origin::Instructions { path: "/w/a/AGENTS.md".into() };
            said(prompt::block(Path::new("/w/a/AGENTS.md"), "a"), origin)
        };
        let hi = || said("hi".to_owned(), Origin::Person);
        let edited = |edit| Change::Edited { by: "hook".to_owned(), edits: vec![edit] };
        let at = Part { entry: Seq(2), part: None };
        let mutated = Change::Mutated {
            through: Seq(2),
            messages: vec![Spoken { role: Role::User, message: message("Another past.".to_owned()) }],
            by: "hook".to_owned(),
            tokens_before: 9,
            tokens_after: 1,
        };
        let (new, replaced, gone) = (Some("lies in /w"), Some("as they are now"), Some("are gone"));
        for (story, log, text, wanted) in [
            ("it is new", vec![hi()], "a", new),
            ("there is none", vec![hi()], " \n", None),
            ("the frame has it", vec![frame("a"), hi()], "a\n", None),
            ("the frame has an old one", vec![frame("a"), hi()], "b", replaced),
            ("the end of a line was added", vec![frame("a"), hi()], "a b", replaced),
            ("it was removed", vec![frame("a"), hi()], "", gone),
            ("that was told", vec![frame("a"), told("")], "", None),
            ("it came back", vec![frame("a"), told("")], "a", replaced),
            ("it was told", vec![frame("a"), told("b"), hi()], "b", None),
            ("it changed again", vec![frame("a"), told("b"), hi()], "c", replaced),
            ("it is again as in the frame", vec![frame("a"), told("b"), hi()], "a", replaced),
            ("another file was told", vec![other()], "a", new),
            (
                "a compaction brought it along",
                vec![hi(), told("a"), compacted(2, prompt::block(path, "a"))],
                "a",
                None,
            ),
            (
                "a compaction brought an old one",
                vec![hi(), told("a"), compacted(2, prompt::block(path, "a"))],
                "b",
                replaced,
            ),
            ("a compaction left it out", vec![hi(), told("a"), compacted(2, "Past.".to_owned())], "a", new),
            (
                "a newer one stays behind the compaction",
                vec![told("a"), told("b"), compacted(1, prompt::block(path, "a"))],
                "b",
                None,
            ),
            ("a hook replaced the history", vec![hi(), told("a"), mutated.clone()], "a", new),
            ("that was undone", vec![hi(), told("a"), mutated, Change::Undone { entry: Seq(3) }], "a", None),
            ("a hook dropped it", vec![hi(), told("a"), edited(Edit::Drop { at })], "a", None),
            (
                "a hook masked it, and it changed",
                vec![hi(), told("a"), edited(Edit::Mask { at, note: String::new() })],
                "b",
                replaced,
            ),
        ] {
            let words = untold(&thread(log), path, text);
            match (&words, wanted) {
                (Some(words), Some(wanted)) => {
                    assert!(words.contains(wanted), "{story}: {words}");
                    assert!(words.ends_with(&prompt::block(path, text)), "{story}: {words}");
                }
                (None, None) => {}
                (Some(_), None) | (None, Some(_)) => panic!("{story}: {words:?}"),
            }
        }
    }

    #[test]
    fn a_file_is_read_again_only_where_it_changed() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let path = directory.path().join("AGENTS.md");
        let place = Place { directory: directory.path().to_path_buf(), within: None };
        let mut watch = Watch::default();
        watch.add(vec![place.clone(), place], false);
        assert_eq!(watch.places.len(), 1);
        watch.look();
        assert!(watch.files().is_empty());

        std::fs::write(&path, "one").expect("a file");
        watch.told_at = Some(Seq(0));
        watch.look();
        assert_eq!(watch.files()[0].text, "one");
        assert_eq!(watch.told_at, None, "a change has it compared with the view again");

        watch.told_at = Some(Seq(0));
        watch.look();
        assert_eq!(watch.told_at, Some(Seq(0)));
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(directory.path().join("CLAUDE.md"), "two").expect("a file");
        watch.look();
        assert_eq!(watch.files()[0].text, "two");
    }

    #[test]
    fn nested_places_are_bounded_and_the_nearest_comes_last() {
        let place = |name: String| Place { directory: PathBuf::from(name), within: None };
        let mut watch = Watch::default();
        watch.add(vec![place("/w/a/b/c".to_owned()), place("/w/a".to_owned())], true);
        watch.add(vec![place("/a/very/long/way/to/w".to_owned())], false);
        let names: Vec<_> = watch.places.iter().map(|watched| watched.place.directory.clone()).collect();
        assert_eq!(names, ["/a/very/long/way/to/w", "/w/a", "/w/a/b/c"].map(PathBuf::from));
        watch.add((0..NESTED_MAX).map(|at| place(format!("/w/{at}"))).collect(), true);
        assert_eq!(watch.places.len(), 1 + NESTED_MAX);
    }
}
