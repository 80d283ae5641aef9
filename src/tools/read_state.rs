//! Which state of which file the model knows. An edit of a file that it has not read, or that changed since, is
//! refused, and it is told what changed. It reads no file itself.
//!
//! What a file tool read or wrote is in its outcome (`raw.files`), so that the log tells all of this again after a
//! restart. In between the tools note it at once: the next call of the same reply may begin before the outcome of
//! the one before is an entry.

use std::collections::HashMap;
use std::fs::Metadata;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use similar::{DiffTag, TextDiff};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::{Access, Workspace, truncate};
use epitome_thread::diff::{DiffLine, diff};
use epitome_thread::{Change, Content, Entry, Shown, Thread, ToolOutcome};

/// Files whose state is kept for a session. Of more, those that were touched the longest ago have to be read again.
const FILES_MAX: usize = 10_000;

/// Files that are let go together, where there are more: to look for the oldest one takes as long as for these.
const FILES_LET_GO: usize = 1_000;

/// Lines of a diff that a refusal shows: enough to see what somebody else did, and no reading of the file.
const CHANGE_LINES_MAX: usize = 60;

/// Bytes of such a diff.
const CHANGE_BYTES_MAX: usize = 4 * 1024;

/// Bytes of both texts together that are compared; the time of a comparison grows with the square of them.
const COMPARED_BYTES_MAX: usize = 512 * 1024;

/// Where in an outcome's `raw` the states are.
const FILES: &str = epitome_thread::RAW_FILES;

/// What a session's model knows of files, and the order in which the calls of one reply touch them.
#[derive(Debug, Default)]
pub struct Files {
    known: Mutex<Known>,
    order: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct Known {
    files: HashMap<PathBuf, Seen>,
    /// Entries of the log that were looked at.
    followed: usize,
    /// Counts what was noted.
    clock: u64,
}

#[derive(Clone, Debug)]
struct Seen {
    /// Tells one content of the file from another.
    state: String,
    /// The entry that shows this content, once there is one.
    entry: Option<Arc<Entry>>,
    /// When it was noted, by `Known::clock`.
    at: u64,
}

/// How a file stands that is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Current,
    Unread,
    Changed,
}

/// The state of a file with this content.
pub fn state_of(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The state of a file that is too large to be read whole.
pub fn state_of_large(metadata: &Metadata) -> String {
    format!("large:{}:{}.{:09}", metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// What is said of a file that `file_read` does not show: to have it read first would lead nowhere.
pub fn binary(name: &str) -> String {
    format!("{name} is a binary file, which is not changed here. Use a command for that.")
}

/// What an outcome tells of files, with the state of each; `None` is a file that is gone.
pub fn raw(files: &[(PathBuf, Option<String>)]) -> Value {
    let files: Vec<Value> =
        files.iter().map(|(path, state)| json!({ "path": path.to_string_lossy(), "state": state })).collect();
    json!({ FILES: files })
}

impl Files {
    /// Takes in what the log tells and was not looked at yet. All of it at a session's first call; later only what
    /// the person brought, because the tools note the rest themselves and are ahead of the log.
    pub fn follow(&self, thread: &Thread, workspace: &Workspace) {
        let mut known = self.known();
        let is_first = known.followed == 0;
        for entry in &thread.entries()[known.followed.min(thread.entries().len())..] {
            match &entry.change {
                Change::ToolFinished { outcome } => {
                    for (path, state) in told(outcome) {
                        known.showed(&path, state, entry, is_first);
                    }
                }
                Change::Said { message, .. } => {
                    for (uri, text) in message.content.iter().filter_map(resource) {
                        if let Some(path) = path_of(uri) {
                            let state = Some(state_of(text.as_bytes()));
                            known.showed(&workspace.real(&path), state, entry, true);
                        }
                    }
                }
                _ => {}
            }
        }
        known.followed = thread.entries().len();
    }

    /// Notes what was read or written just now; the paths are real ones.
    pub fn note(&self, files: &[(PathBuf, Option<String>)]) {
        let mut known = self.known();
        for (path, state) in files {
            known.set(path, state.clone(), None);
        }
    }

    pub fn standing(&self, path: &Path, state: &str) -> Standing {
        match self.known().files.get(path) {
            None => Standing::Unread,
            Some(seen) if seen.state == state => Standing::Current,
            Some(_) => Standing::Changed,
        }
    }

    /// Says why a file may not be changed, and what to do; nothing where the model knows it as it is.
    /// `content` is what the file holds, where that is text.
    pub fn check(&self, path: &Path, state: &str, content: Option<&str>, name: &str) -> Result<(), String> {
        let again =
            format!("Read it with file_read (file_path {name:?}), then make the change to what it holds");
        match self.standing(path, state) {
            Standing::Current => Ok(()),
            Standing::Unread if content.is_some_and(|content| content.contains('\0')) => Err(binary(name)),
            Standing::Unread => {
                Err(format!("{name} was not read in this session, so it is not changed. {again}."))
            }
            Standing::Changed => {
                let entry = self.known().files.get(path).and_then(|seen| seen.entry.clone());
                let before = entry.as_deref().and_then(|entry| before(entry, path));
                let changed = match (before, content) {
                    (Some(before), Some(content)) => what_changed(&before, content),
                    _ => None,
                };
                let changed =
                    changed.map(|lines| format!(" What changed:\n{lines}\n")).unwrap_or(" ".to_owned());
                Err(format!(
                    "{name} changed after you read it (by a command, an editor or another program), so it is not \
                     changed now.{changed}{again} now."
                ))
            }
        }
    }

    /// Puts a call behind those before it, in the order of these calls: who writes is alone, who reads waits for who
    /// wrote before. A command waits for the edits before it and holds nobody up.
    pub fn enter(&self, access: &Access) -> Entrance {
        let order = self.order.clone();
        let mut waiting: Pin<Box<dyn Future<Output = Turn> + Send>> = match access {
            Access::Write(_) => Box::pin(async { Turn::Writing(order.write_owned().await) }),
            Access::Read(_) => Box::pin(async { Turn::Reading(order.read_owned().await) }),
            Access::Command { .. } => Box::pin(async {
                drop(order.read_owned().await);
                Turn::Free
            }),
            Access::Nothing | Access::Fetch { .. } | Access::External { .. } => {
                return Entrance::Entered(Turn::Free);
            }
        };
        // Its place in the queue is taken when it is asked for the first time.
        match (&mut waiting).now_or_never() {
            Some(turn) => Entrance::Entered(turn),
            None => Entrance::Waiting(waiting),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue of a session's file calls.
pub enum Entrance {
    Entered(Turn),
    Waiting(Pin<Box<dyn Future<Output = Turn> + Send>>),
}

impl Entrance {
    /// Waits for the turn. It is over when it is dropped.
    pub async fn turn(self) -> Turn {
        match self {
            Entrance::Entered(turn) => turn,
            Entrance::Waiting(waiting) => waiting.await,
        }
    }
}

/// The right to touch files, as long as it is held.
pub enum Turn {
    Free,
    Reading(OwnedRwLockReadGuard<()>),
    Writing(OwnedRwLockWriteGuard<()>),
}

impl Known {
    /// An entry shows a file in a state. With `sets` that is news; without, it only says where to look.
    fn showed(&mut self, path: &Path, state: Option<String>, entry: &Arc<Entry>, sets: bool) {
        if sets {
            return self.set(path, state, Some(entry.clone()));
        }
        if let Some(seen) = self.files.get_mut(path)
            && Some(&seen.state) == state.as_ref()
        {
            seen.entry = Some(entry.clone());
        }
    }

    fn set(&mut self, path: &Path, state: Option<String>, entry: Option<Arc<Entry>>) {
        self.clock += 1;
        let Some(state) = state else {
            self.files.remove(path);
            return;
        };
        // A file that is read again as it was keeps the entry that shows more of it, until there is a newer one.
        let kept =
            self.files.get(path).filter(|seen| seen.state == state).and_then(|seen| seen.entry.clone());
        let seen = Seen { state, entry: entry.or(kept), at: self.clock };
        self.files.insert(path.to_path_buf(), seen);
        if self.files.len() > FILES_MAX {
            let mut times: Vec<u64> = self.files.values().map(|seen| seen.at).collect();
            let (_, first_kept, _) = times.select_nth_unstable(FILES_LET_GO);
            self.files.retain(|_, seen| seen.at >= *first_kept);
        }
    }
}

/// The files that an outcome tells of.
fn told(outcome: &ToolOutcome) -> Vec<(PathBuf, Option<String>)> {
    let files = outcome.raw.as_ref().and_then(|raw| raw.get(FILES)).and_then(Value::as_array);
    let one = |file: &Value| {
        let path = file.get("path")?.as_str()?;
        Some((PathBuf::from(path), file.get("state").and_then(Value::as_str).map(str::to_owned)))
    };
    files.into_iter().flatten().filter_map(one).collect()
}

fn resource(content: &Content) -> Option<(&str, &str)> {
    match content {
        Content::Resource { uri, text } => Some((uri, text)),
        Content::Text { .. }
        | Content::Thinking { .. }
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::ResourceLink { .. }
        | Content::Call(_) => None,
    }
}

/// The file that a URI names; one with a part of it (`#L10-20`) was not shown as a whole.
fn path_of(uri: &str) -> Option<String> {
    let path =
        uri.strip_prefix("file://").filter(|path| path.starts_with('/') && !path.contains(['#', '?']))?;
    percent_decode_str(path).decode_utf8().ok().map(|path| path.into_owned())
}

/// What the model was shown of a file.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    Whole(String),
    /// Lines that follow each other.
    Part(String),
}

/// What an entry shows of a file.
fn before(entry: &Entry, path: &Path) -> Option<Before> {
    match &entry.change {
        Change::ToolFinished { outcome } => {
            let written = outcome.shown.iter().find_map(|shown| match shown {
                Shown::Diff { path: shown, new, .. } if same_file(shown, path) => Some(new.clone()),
                Shown::Diff { .. } | Shown::Text { .. } => None,
            });
            let read = || {
                let text = outcome.whole.clone().unwrap_or_else(|| outcome.model_text());
                numbered(&text)
            };
            written.map(Before::Whole).or_else(read)
        }
        Change::Said { message, .. } => {
            let texts = message.content.iter().filter_map(resource);
            let mut texts =
                texts.filter(|(uri, _)| path_of(uri).is_some_and(|named| same_file(Path::new(&named), path)));
            texts.next().map(|(_, text)| Before::Whole(text.to_owned()))
        }
        _ => None,
    }
}

/// What is shown may be the path that was asked for, with links in it.
fn same_file(shown: &Path, real: &Path) -> bool {
    shown == real || shown.canonicalize().is_ok_and(|shown| shown == real)
}

/// The lines of a file as `file_read` shows them; `None` where they do not follow each other or were cut.
fn numbered(text: &str) -> Option<Before> {
    let mut part = String::new();
    let mut expected = None;
    for line in text.lines() {
        let number =
            line.split_once('\t').and_then(|(number, rest)| Some((number.trim().parse::<u64>().ok()?, rest)));
        match (number, expected) {
            (Some((number, _)), Some(expected)) if number != expected => return None,
            (Some((_, rest)), _) if rest.ends_with(" bytes of this line left out]") => return None,
            (Some((number, rest)), _) => {
                part.push_str(rest);
                part.push('\n');
                expected = Some(number + 1);
            }
            // What `file_read` says of the rest.
            (None, _) if line.starts_with('[') && !line.contains("left out here") => {}
            (None, _) => return None,
        }
    }
    expected.map(|_| Before::Part(part))
}

/// A short diff of what the model was shown and what is there. `None` where the texts are too long to compare.
fn what_changed(before: &Before, now: &str) -> Option<String> {
    let lines_only = |text: &str| {
        let mut text = text.replace("\r\n", "\n");
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    };
    let now = lines_only(now);
    let (old, whole) = match before {
        Before::Whole(text) => (lines_only(text), true),
        Before::Part(text) => (lines_only(text), false),
    };
    if old.len() + now.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let now = if whole { now } else { window(&old, &now) };
    let lines: Vec<String> = diff(Some(&old), &now).iter().map(DiffLine::signed).collect();
    if lines.is_empty() {
        return Some(match whole {
            true => "(only its line ends)".to_owned(),
            false => "(nothing in the lines that you read; something in others)".to_owned(),
        });
    }
    let mut shown = String::new();
    for (at, line) in lines.iter().enumerate() {
        let line = truncate::line(line, truncate::LINE_BYTES_MAX / 8);
        if at == CHANGE_LINES_MAX || shown.len() + line.len() > CHANGE_BYTES_MAX {
            shown.push_str(&format!("[… {} more lines of this diff]\n", lines.len() - at));
            break;
        }
        shown.push_str(&line);
        shown.push('\n');
    }
    Some(shown.trim_end_matches('\n').to_owned())
}

/// The part of a text that stands where another one was read: without what comes before and behind.
fn window(part: &str, text: &str) -> String {
    let compared = TextDiff::from_lines(part, text);
    let matched = || compared.ops().iter().filter(|op| op.tag() != DiffTag::Insert);
    let (Some(first), Some(last)) = (matched().next(), matched().next_back()) else { return text.to_owned() };
    // What took the place of the lines at the borders may have what came before or behind in it.
    let (first_new, last_new) = (first.new_range(), last.new_range());
    let end = last_new.start + last_new.len().min(last.old_range().len());
    let start = match first.old_range() == last.old_range() {
        true => first_new.start,
        false => first_new.end - first_new.len().min(first.old_range().len()),
    };
    text.split_inclusive('\n').skip(start).take(end - start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{CallId, FORMAT_VERSION, Message, MessageId, Origin, OutcomeStatus, Seq, SessionId};

    fn workspace() -> Workspace {
        Workspace { cwd: "/w".into(), directories: Vec::new(), environment: Arc::default() }
    }

    fn thread(changes: Vec<Change>) -> Thread {
        let session = SessionId("s_00000000000000000000".to_owned());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: PathBuf::from("/w") };
        let log = [opened].into_iter().chain(changes).zip(0..);
        Thread::replay(log.map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change })))
            .expect("the log begins with its opening entry")
    }

    fn read(path: &str, text: &str, state: &str) -> Change {
        let outcome = ToolOutcome::text(CallId("c".to_owned()), OutcomeStatus::Completed, text);
        let raw = raw(&[(PathBuf::from(path), Some(state.to_owned()))]);
        Change::ToolFinished { outcome: ToolOutcome { raw: Some(raw), ..outcome } }
    }

    fn files(changes: Vec<Change>) -> Files {
        let files = Files::default();
        files.follow(&thread(changes), &workspace());
        files
    }

    #[test]
    fn a_file_must_have_been_read_as_it_is() {
        let files = files(vec![read("/w/a", "     1\tone", "s1")]);
        assert_eq!(files.standing(Path::new("/w/a"), "s1"), Standing::Current);
        assert_eq!(files.standing(Path::new("/w/a"), "s2"), Standing::Changed);
        assert_eq!(files.standing(Path::new("/w/b"), "s1"), Standing::Unread);
        let why = files.check(Path::new("/w/b"), "s1", Some(""), "b").expect_err("it was not read");
        assert!(
            why.contains("not read in this session") && why.contains("file_read (file_path \"b\")"),
            "{why}"
        );
    }

    #[test]
    fn of_too_many_files_those_that_were_touched_the_longest_ago_are_let_go() {
        // One was looked for among all of them each time: a long log took seconds to be taken up.
        let path = |nth: usize| PathBuf::from(format!("/w/f{nth}"));
        let files = Files::default();
        for nth in (0..FILES_MAX).chain([0, FILES_MAX]) {
            files.note(&[(path(nth), Some("s1".to_owned()))]);
        }
        let standing = |nth: usize| files.standing(&path(nth), "s1");
        let gone = [1, FILES_LET_GO].map(standing);
        let kept = [0, FILES_LET_GO + 1, FILES_MAX].map(standing);
        assert_eq!((gone, kept), ([Standing::Unread; 2], [Standing::Current; 3]));
    }

    #[test]
    fn a_refusal_says_what_changed() {
        let files =
            files(vec![read("/w/a", "     2\ttwo\n     3\tthree\n[lines 4-5 remain: offset=4]", "s1")]);
        let changed =
            |now: &str| files.check(Path::new("/w/a"), "s2", Some(now), "a").expect_err("it changed");
        let why = changed("one\r\ntwo\r\n3\r\nfour\r\nfive\r\n");
        assert!(why.contains("What changed:\n  two\n- three\n+ 3\nRead it with file_read"), "{why}");
        let why = changed("one\ntwo\nthree\nfour\nFIVE\n");
        assert!(why.contains("(nothing in the lines that you read; something in others)"), "{why}");
        let long = what_changed(&Before::Whole("old\n".repeat(1_000)), &"new\n".repeat(1_000));
        let long = long.expect("they are compared");
        assert!(long.contains("more lines of this diff]") && long.len() < 2 * CHANGE_BYTES_MAX, "{long}");
    }

    #[test]
    fn an_edit_of_its_own_renews_the_state_and_shows_what_was_there() {
        let diff = Shown::Diff { path: "/w/a".into(), old: Some("1\n".into()), new: "2\n".into() };
        let Change::ToolFinished { outcome } = read("/w/a", "Edited a at line 1.", "s2") else {
            unreachable!()
        };
        let edited = Change::ToolFinished { outcome: ToolOutcome { shown: vec![diff], ..outcome } };
        let files = files(vec![read("/w/a", "     1\t1", "s1"), edited]);
        assert_eq!(files.standing(Path::new("/w/a"), "s2"), Standing::Current);
        let why = files.check(Path::new("/w/a"), "s3", Some("3\n"), "a").expect_err("it changed");
        assert!(why.contains("- 2\n+ 3"), "{why}");
    }

    #[test]
    fn what_the_person_attached_was_read_and_a_part_of_it_was_not() {
        let content = |uri: &str| Content::Resource { uri: uri.to_owned(), text: "x\n".to_owned() };
        let content = vec![content("file:///w/a%20b.rs"), content("file:///w/c.rs#L1-2")];
        let said = Change::Said { message: Message { id: MessageId(0), content }, origin: Origin::Person };
        let files = files(vec![said]);
        assert_eq!(files.standing(Path::new("/w/a b.rs"), &state_of(b"x\n")), Standing::Current);
        assert_eq!(files.standing(Path::new("/w/c.rs"), &state_of(b"x\n")), Standing::Unread);
    }

    /// Two edits in one reply: the outcome of the first came into the log when the second was done, and the state
    /// that it told was taken for the newest.
    #[test]
    fn an_older_outcome_does_not_take_back_what_was_noted_since() {
        let files = files(Vec::new());
        files.note(&[("/w/a".into(), Some("s2".to_owned()))]);
        files.follow(&thread(vec![read("/w/a", "     1\tone", "s1")]), &workspace());
        assert_eq!(files.standing(Path::new("/w/a"), "s2"), Standing::Current);
        files.note(&[("/w/a".into(), None)]);
        assert_eq!(files.standing(Path::new("/w/a"), "s2"), Standing::Unread);
    }

    #[tokio::test]
    async fn calls_touch_files_in_their_order() {
        let files = Files::default();
        let (read, write) = (Access::Read(Vec::new()), Access::Write(Vec::new()));
        let command = Access::Command { line: "make".into(), confined: true };
        let first = files.enter(&read);
        let mut second = files.enter(&write);
        let mut third = files.enter(&command);
        assert!(matches!(first, Entrance::Entered(Turn::Reading(_))));
        assert!(matches!((&second, &third), (Entrance::Waiting(_), Entrance::Waiting(_))));
        let waits = |entrance: &mut Entrance| match entrance {
            Entrance::Waiting(waiting) => waiting.now_or_never(),
            Entrance::Entered(_) => None,
        };
        assert!(waits(&mut third).is_none(), "the edit before it is not done");
        drop(first);
        let writing = waits(&mut second).expect("the reader has gone");
        assert!(waits(&mut third).is_none());
        drop(writing);
        assert!(matches!(waits(&mut third), Some(Turn::Free)));
        assert!(
            matches!(files.enter(&write), Entrance::Entered(Turn::Writing(_))),
            "a command holds nobody up"
        );
    }
}
