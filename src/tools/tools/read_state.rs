//! Tracks which state of which file the model knows. Edits of a file that the model has not read, or that has changed
//! since, are refused with a description of the changes. Reads no files.
//!
//! File tools record the files that they read or wrote in their result (`raw.files`), so that this state can be
//! rebuilt from the log after a restart. Tools also record it here immediately, because the next call of the same
//! reply may begin before the previous result is logged.

use epitome_platform::file_uri;
use epitome_platform::os::MetadataExt;
use std::collections::HashMap;
use std::fs::Metadata;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::{Access, BoxFuture, ToolError, Workspace, truncate};
use epitome_thread::diff::{DiffLine, DiffTag, diff, line_ops};
use epitome_thread::{Change, Content, Entry, RAW_FILES, Thread, ToolDisplay, ToolOutcome};

/// Maximum number of files whose state is kept per session. Beyond it, the least recently accessed ones have to be
/// read again.
const FILES_MAX: usize = 10_000;

/// Number of files dropped at once: finding the oldest one takes as long as finding all of these.
const FILES_LET_GO: usize = 1_000;

/// Maximum lines of the diff in a refusal: enough to show the change, but no substitute for reading the file.
const CHANGE_LINES_MAX: usize = 60;

/// Bytes of such a diff.
const CHANGE_BYTES_MAX: usize = 4 * 1024;

/// Maximum total bytes of the two texts that are compared; the time of a comparison grows quadratically.
const COMPARED_BYTES_MAX: usize = 512 * 1024;

/// The model's knowledge of files in one session, and the order in which the calls of a reply access them.
#[derive(Debug, Default)]
pub struct ReadState {
    known: Mutex<KnownFiles>,
    order: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct KnownFiles {
    files: HashMap<PathBuf, SeenFile>,
    /// Number of log entries processed.
    followed: usize,
    /// Incremented with each recorded state.
    clock: u64,
}

#[derive(Clone, Debug)]
struct SeenFile {
    /// Identifies the content of the file.
    state: String,
    /// The newest entry that shows this content, once it exists.
    entry: Option<Arc<Entry>>,
    /// Value of `KnownFiles::clock` when it was recorded.
    at: u64,
}

/// The state of a file that is about to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileStatus {
    Current,
    Unread,
    Changed,
}

/// Returns the state of a file with this content.
pub fn state_of(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

/// Returns the state of a file that is too large to be read completely.
pub fn state_of_large(metadata: &Metadata) -> String {
    format!("large:{}:{}.{:09}", metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// The error for a file that `file_read` can't display; a request to read it first would be pointless.
pub fn binary(name: &str) -> String {
    format!("{name} is a binary file, which is not changed here. Use a command for that.")
}

/// Encodes the states of files for a tool result; `None` is a deleted file.
pub fn raw(files: &[(PathBuf, Option<String>)]) -> Value {
    let files: Vec<Value> =
        files.iter().map(|(path, state)| json!({ "path": path.to_string_lossy(), "state": state })).collect();
    json!({ RAW_FILES: files })
}

impl ReadState {
    /// Processes new log entries: all of them on the session's first call, and only those from the user later,
    /// because the tools record their states directly and are ahead of the log.
    pub fn follow(&self, thread: &Thread, workspace: &Workspace) {
        let mut known = self.known.lock();
        let is_first = known.followed == 0;
        for entry in thread.entries().range(known.followed..thread.entries().len()) {
            match &entry.change {
                Change::ToolFinished { outcome } => {
                    for (path, state) in recorded_files(outcome) {
                        known.showed(&path, state, entry, is_first);
                    }
                }
                Change::Said { message, .. } => {
                    for (uri, text) in message.content.iter().filter_map(resource) {
                        if let Some(path) = file_uri::path(uri) {
                            let state = Some(state_of(text.as_bytes()));
                            known.showed(&workspace.real(&path.to_string_lossy()), state, entry, true);
                        }
                    }
                }
                _ => {}
            }
        }
        known.followed = thread.entries().len();
    }

    /// Records files that were just read or written, by their resolved paths.
    pub fn note(&self, files: &[(PathBuf, Option<String>)]) {
        let mut known = self.known.lock();
        for (path, state) in files {
            known.set(path, state.clone(), None);
        }
    }

    pub fn status(&self, path: &Path, state: &str) -> FileStatus {
        match self.known.lock().files.get(path) {
            None => FileStatus::Unread,
            Some(seen) if seen.state == state => FileStatus::Current,
            Some(_) => FileStatus::Changed,
        }
    }

    /// Returns an error with instructions if the model doesn't know the file's current state. `content` is
    /// the file's text, if it is text.
    pub fn check(
        &self,
        path: &Path,
        state: &str,
        content: Option<&str>,
        name: &str,
    ) -> Result<(), ToolError> {
        let again =
            format!("Read it with file_read (file_path {name:?}), then base the change on its contents");
        match self.status(path, state) {
            FileStatus::Current => Ok(()),
            FileStatus::Unread if content.is_some_and(|content| content.contains('\0')) => {
                Err(binary(name).into())
            }
            FileStatus::Unread => Err(ToolError::new(format!(
                "{name} was not read in this session, so it is not changed. {again}."
            ))),
            FileStatus::Changed => {
                let entry = self.known.lock().files.get(path).and_then(|seen| seen.entry.clone());
                let before = entry.as_deref().and_then(|entry| before(entry, path));
                let changed = match (before, content) {
                    (Some(before), Some(content)) => what_changed(&before, content),
                    _ => None,
                };
                let changed =
                    changed.map(|lines| format!(" What changed:\n{lines}\n")).unwrap_or(" ".to_owned());
                Err(ToolError::new(format!(
                    "{name} changed after you read it (by a command, an editor or another program), so it is not \
                     changed now.{changed}{again} now."
                )))
            }
        }
    }

    /// Queues a call after the earlier ones: writers are exclusive, readers wait for earlier writers. A command waits
    /// for earlier calls that change files, but blocks none.
    pub fn enter(&self, access: &Access) -> QueuedAccess {
        let order = self.order.clone();
        let mut waiting: QueuedAccess = match access {
            Access::Write(_) => Box::pin(async { AccessTurn::Writing(order.write_owned().await) }),
            Access::Read(_) => Box::pin(async { AccessTurn::Reading(order.read_owned().await) }),
            Access::Command { .. } => Box::pin(async {
                drop(order.read_owned().await);
                AccessTurn::Free
            }),
            Access::Nothing | Access::Remember(_) | Access::Fetch { .. } | Access::External { .. } => {
                Box::pin(ready(AccessTurn::Free))
            }
        };
        // The first poll takes the position in the queue.
        match (&mut waiting).now_or_never() {
            Some(turn) => Box::pin(ready(turn)),
            None => waiting,
        }
    }
}

/// A position in the queue of a session's file calls. Await it for the call's turn, which ends when the result is dropped.
pub type QueuedAccess = BoxFuture<AccessTurn>;

/// The right to access files, until it is dropped.
pub enum AccessTurn {
    Free,
    Reading(OwnedRwLockReadGuard<()>),
    Writing(OwnedRwLockWriteGuard<()>),
}

impl KnownFiles {
    /// Processes an entry that shows a file in some state. If `sets`, the state is recorded; otherwise the entry is
    /// only attached to a matching state.
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
        // A repeated read of an unchanged file keeps the earlier entry, which may show more of it, until a newer one
        // exists.
        let kept =
            self.files.get(path).filter(|seen| seen.state == state).and_then(|seen| seen.entry.clone());
        let seen = SeenFile { state, entry: entry.or(kept), at: self.clock };
        self.files.insert(path.to_path_buf(), seen);
        if self.files.len() > FILES_MAX {
            let mut times: Vec<u64> = self.files.values().map(|seen| seen.at).collect();
            let (_, first_kept, _) = times.select_nth_unstable(FILES_LET_GO);
            self.files.retain(|_, seen| seen.at >= *first_kept);
        }
    }
}

fn recorded_files(outcome: &ToolOutcome) -> Vec<(PathBuf, Option<String>)> {
    let files = outcome.raw.as_ref().and_then(|raw| raw.get(RAW_FILES)).and_then(Value::as_array);
    let one = |file: &Value| {
        let path = file.get("path")?.as_str()?;
        Some((PathBuf::from(path), file.get("state").and_then(Value::as_str).map(str::to_owned)))
    };
    files.into_iter().flatten().filter_map(one).collect()
}

fn resource(content: &Content) -> Option<(&str, &str)> {
    if let Content::Resource { uri, text } = content { Some((uri, text)) } else { None }
}

/// The content of a file as shown to the model.
#[derive(Debug, PartialEq, Eq)]
struct ShownContent {
    text: String,
    /// Otherwise, only some consecutive lines.
    is_whole: bool,
}

/// Returns the content of a file according to an entry.
fn before(entry: &Entry, path: &Path) -> Option<ShownContent> {
    let whole = |text: String| ShownContent { text, is_whole: true };
    match &entry.change {
        Change::ToolFinished { outcome } => {
            let written = outcome.shown.iter().find_map(|shown| match shown {
                ToolDisplay::Diff { path: shown, new, .. } if same_file(shown, path) => Some(new.clone()),
                ToolDisplay::Diff { .. } | ToolDisplay::Text { .. } => None,
            });
            let read = || numbered(&outcome.whole.clone().unwrap_or_else(|| outcome.model_text()));
            written.map(whole).or_else(read)
        }
        Change::Said { message, .. } => {
            let texts = message.content.iter().filter_map(resource);
            let mut texts =
                texts.filter(|(uri, _)| file_uri::path(uri).is_some_and(|named| same_file(&named, path)));
            texts.next().map(|(_, text)| whole(text.to_owned()))
        }
        _ => None,
    }
}

/// Whether two paths name the same file. The displayed path may be the requested one, with unresolved links.
fn same_file(shown: &Path, real: &Path) -> bool {
    shown == real || shown.canonicalize().is_ok_and(|shown| shown == real)
}

/// Parses a file's lines as `file_read` displays them; `None` if they aren't consecutive or were truncated.
fn numbered(text: &str) -> Option<ShownContent> {
    let mut shown = ShownContent { text: String::new(), is_whole: false };
    let mut expected = None;
    for line in text.lines() {
        let number =
            line.split_once('\t').and_then(|(number, rest)| Some((number.trim().parse::<u64>().ok()?, rest)));
        match (number, expected) {
            (Some((number, _)), Some(expected)) if number != expected => return None,
            (Some((_, rest)), _) if rest.ends_with(" bytes of this line left out]") => return None,
            (Some((number, rest)), _) => {
                shown.text.push_str(rest);
                shown.text.push('\n');
                expected = Some(number + 1);
            }
            // A note of `file_read` about the rest of the file.
            (None, _) if line.starts_with('[') && !line.contains("left out here") => {}
            (None, _) => return None,
        }
    }
    expected.map(|_| shown)
}

/// Returns a short diff between the content shown to the model and the current one; `None` if the texts are too long
/// to compare.
fn what_changed(before: &ShownContent, now: &str) -> Option<String> {
    let lines_only = |text: &str| {
        let mut text = text.replace("\r\n", "\n");
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    };
    let now = lines_only(now);
    let old = lines_only(&before.text);
    if old.len() + now.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let now = if before.is_whole { now } else { window(&old, &now) };
    let lines: Vec<String> = diff(Some(&old), &now).iter().map(DiffLine::signed).collect();
    if lines.is_empty() {
        return Some(match before.is_whole {
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

/// Returns the part of a text that corresponds to an earlier excerpt, without the lines before and after it.
fn window(part: &str, text: &str) -> String {
    let ops = line_ops(part, text);
    let matched = || ops.iter().filter(|op| op.tag() != DiffTag::Insert);
    let (Some(first), Some(last)) = (matched().next(), matched().next_back()) else { return text.to_owned() };
    // Lines that replaced those at the excerpt's ends may include lines from outside the excerpt.
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
        Workspace::new("/w", Vec::new(), Arc::default())
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

    fn files(changes: Vec<Change>) -> ReadState {
        let files = ReadState::default();
        files.follow(&thread(changes), &workspace());
        files
    }

    #[test]
    fn the_status_depends_on_the_state_that_was_read() {
        let files = files(vec![read("/w/a", "     1\tone", "s1")]);
        assert_eq!(files.status(Path::new("/w/a"), "s1"), FileStatus::Current);
        assert_eq!(files.status(Path::new("/w/a"), "s2"), FileStatus::Changed);
        assert_eq!(files.status(Path::new("/w/b"), "s1"), FileStatus::Unread);
        let why = files.check(Path::new("/w/b"), "s1", Some(""), "b").expect_err("it was not read");
        assert!(
            why.to_string().contains("not read in this session")
                && why.to_string().contains("file_read (file_path \"b\")"),
            "{why}"
        );
    }

    #[test]
    fn least_recently_touched_files_are_dropped() {
        // Regression test: each drop searched for the oldest file, so restoring a long log took seconds.
        let path = |nth: usize| PathBuf::from(format!("/w/f{nth}"));
        let files = ReadState::default();
        for nth in (0..FILES_MAX).chain([0, FILES_MAX]) {
            files.note(&[(path(nth), Some("s1".to_owned()))]);
        }
        let status = |nth: usize| files.status(&path(nth), "s1");
        let gone = [1, FILES_LET_GO].map(status);
        let kept = [0, FILES_LET_GO + 1, FILES_MAX].map(status);
        assert_eq!((gone, kept), ([FileStatus::Unread; 2], [FileStatus::Current; 3]));
    }

    #[test]
    fn refusal_describes_the_change() {
        let files =
            files(vec![read("/w/a", "     2\ttwo\n     3\tthree\n[lines 4-5 remain: offset=4]", "s1")]);
        let changed =
            |now: &str| files.check(Path::new("/w/a"), "s2", Some(now), "a").expect_err("it changed");
        let why = changed("one\r\ntwo\r\n3\r\nfour\r\nfive\r\n");
        assert!(
            why.to_string().contains("What changed:\n  two\n- three\n+ 3\nRead it with file_read"),
            "{why}"
        );
        let why = changed("one\ntwo\nthree\nfour\nFIVE\n");
        assert!(
            why.to_string().contains("(nothing in the lines that you read; something in others)"),
            "{why}"
        );
        let old = ShownContent { text: "old\n".repeat(1_000), is_whole: true };
        let long = what_changed(&old, &"new\n".repeat(1_000));
        let long = long.expect("they are compared");
        assert!(long.contains("more lines of this diff]") && long.len() < 2 * CHANGE_BYTES_MAX, "{long}");
    }

    #[test]
    fn own_edit_updates_the_state_and_its_content() {
        let diff = ToolDisplay::Diff { path: "/w/a".into(), old: Some("1\n".into()), new: "2\n".into() };
        let Change::ToolFinished { outcome } = read("/w/a", "Edited a at line 1.", "s2") else {
            unreachable!()
        };
        let edited = Change::ToolFinished { outcome: ToolOutcome { shown: vec![diff], ..outcome } };
        let files = files(vec![read("/w/a", "     1\t1", "s1"), edited]);
        assert_eq!(files.status(Path::new("/w/a"), "s2"), FileStatus::Current);
        let why = files.check(Path::new("/w/a"), "s3", Some("3\n"), "a").expect_err("it changed");
        assert!(why.to_string().contains("- 2\n+ 3"), "{why}");
    }

    #[test]
    fn attached_files_count_as_read_but_excerpts_do_not() {
        let content = |uri: &str| Content::Resource { uri: uri.to_owned(), text: "x\n".to_owned() };
        let content = vec![content("file:///w/a%20b.rs"), content("file:///w/c.rs#L1-2")];
        let said = Change::Said {
            message: Message { id: MessageId(0), content, author: None },
            origin: Origin::Person,
        };
        let files = files(vec![said]);
        assert_eq!(files.status(Path::new("/w/a b.rs"), &state_of(b"x\n")), FileStatus::Current);
        assert_eq!(files.status(Path::new("/w/c.rs"), &state_of(b"x\n")), FileStatus::Unread);
    }

    /// Regression test for two edits in one reply: the first result was logged after the second edit, and its state
    /// was taken for the newest.
    #[test]
    fn older_log_entries_do_not_override_newer_states() {
        let files = files(Vec::new());
        files.note(&[("/w/a".into(), Some("s2".to_owned()))]);
        files.follow(&thread(vec![read("/w/a", "     1\tone", "s1")]), &workspace());
        assert_eq!(files.status(Path::new("/w/a"), "s2"), FileStatus::Current);
        files.note(&[("/w/a".into(), None)]);
        assert_eq!(files.status(Path::new("/w/a"), "s2"), FileStatus::Unread);
    }

    #[tokio::test]
    async fn file_calls_run_in_order() {
        let files = ReadState::default();
        let (read, write) = (Access::Read(Vec::new()), Access::Write(Vec::new()));
        let command = Access::Command { line: "make".into(), confined: true, changes_git: false };
        let first = files.enter(&read);
        let mut second = files.enter(&write);
        let mut third = files.enter(&command);
        let waits = |entrance: &mut QueuedAccess| entrance.now_or_never();
        let first = first.now_or_never();
        assert!(matches!(first, Some(AccessTurn::Reading(_))));
        assert!(waits(&mut second).is_none(), "a file is read");
        assert!(waits(&mut third).is_none(), "the edit before it is not done");
        drop(first);
        let writing = waits(&mut second).expect("the reader has gone");
        assert!(waits(&mut third).is_none());
        drop(writing);
        assert!(matches!(waits(&mut third), Some(AccessTurn::Free)));
        assert!(
            matches!(files.enter(&write).now_or_never(), Some(AccessTurn::Writing(_))),
            "a command delays nothing"
        );
    }
}
