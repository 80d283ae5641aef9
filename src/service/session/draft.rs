//! The streaming reply, saved in a file next to the log until it is an entry.
//!
//! The log gets a message when it is complete. To keep what the user has already read if the process crashes, new text
//! is appended to the file about once a second, without a sync: that survives a killed process, but not a power
//! failure. The file is only read when a session is opened whose turn was left open. Its text then becomes the
//! interrupted reply in the log.

use epitome_platform::os::OpenOptionsExt;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::TextKind;
use epitome_files::atomic_file::private_directory;
use epitome_provider::collect::ReplyPiece;
use epitome_store::draft_path;
use epitome_thread::{Change, Content, Message, MessageId, ModelName, ReplyCut, SessionId};

/// Maximum delay between showing a text and saving it.
const SAVE_WITHIN: Duration = Duration::from_secs(1);

/// Maximum size of a file that is read. Limits on replies are far lower.
const BYTES_MAX: u64 = 256 * 1024 * 1024;

/// See the module. Without a file (for a child, which is not stored) nothing is saved.
#[derive(Default)]
pub(super) struct ReplyDraft {
    file: Option<Arc<DraftFile>>,
    /// A save is scheduled or running.
    is_saving: bool,
    /// The message of the last save.
    saved: Option<MessageId>,
}

/// The file, shared with the thread that writes it.
struct DraftFile {
    path: PathBuf,
    state: Mutex<DraftState>,
}

#[derive(Default)]
struct DraftState {
    open: Option<Open>,
    /// Messages up to this one are entries, so saves of them are obsolete.
    committed: Option<MessageId>,
}

struct Open {
    message: MessageId,
    file: File,
    /// Number of bytes written of each part.
    written: BTreeMap<u32, usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Reply { message: MessageId, model: ModelName },
    Text { part: u32, kind: TextKind, text: String },
}

impl ReplyDraft {
    pub fn of(data: &Path, session: &SessionId) -> ReplyDraft {
        let file = DraftFile { path: draft_path(data, session), state: Mutex::default() };
        ReplyDraft { file: Some(Arc::new(file)), ..ReplyDraft::default() }
    }

    /// More of a reply was shown. Returns a future that waits until the next save, unless one is scheduled already.
    pub fn wrote(&mut self) -> Option<impl Future<Output = ()> + use<>> {
        let starts = self.file.is_some() && !std::mem::replace(&mut self.is_saving, true);
        starts.then(|| tokio::time::sleep(SAVE_WITHIN))
    }

    /// A save was due, but there is nothing to save.
    pub fn skip(&mut self) {
        self.is_saving = false;
    }

    /// Returns the blocking function that saves the text of the streaming reply; `None` without a file.
    pub fn save(
        &mut self,
        message: MessageId,
        model: ModelName,
        shown: Vec<ReplyPiece>,
    ) -> Option<impl FnOnce() -> io::Result<()> + Send + use<>> {
        let file = self.file.clone()?;
        self.saved = Some(message);
        Some(move || file.save(message, &model, shown))
    }

    pub fn saved(&mut self, result: &io::Result<()>) {
        self.is_saving = false;
        if let Err(error) = result {
            tracing::warn!(%error, "the streaming reply could not be saved");
        }
    }

    /// A change was committed. Returns the blocking function that removes the saved reply if it is an entry now.
    pub fn committed(&mut self, change: &Change) -> Option<impl FnOnce() + Send + use<>> {
        let is_over = matches!(change, Change::Replied { .. } | Change::TurnEnded { .. });
        let saved = self.saved.take_if(|_| is_over)?;
        let file = self.file.clone()?;
        Some(move || file.remove(saved))
    }

    /// Reads the unfinished reply that an earlier process saved, as the change to commit; the file is removed after the
    /// commit. Blocks on disk access; called at most once per session.
    pub fn take(&mut self, is_known: impl Fn(MessageId) -> bool) -> Option<Change> {
        let file = self.file.as_ref()?;
        let bytes = match std::fs::metadata(&file.path) {
            Ok(metadata) if metadata.len() <= BYTES_MAX => std::fs::read(&file.path).ok()?,
            Ok(_) | Err(_) => return None,
        };
        let (id, model, content) = reply(&bytes)?;
        if is_known(id) {
            // The process ended after committing the entry and before removing the file.
            file.remove(id);
            return None;
        }
        self.saved = Some(id);
        let cut = Some(ReplyCut::Broken { reason: "the agent's process ended".to_owned() });
        Some(Change::Replied { message: Message { id, content, author: None }, model, usage: None, cut })
    }
}

impl DraftFile {
    fn save(&self, message: MessageId, model: &ModelName, shown: Vec<ReplyPiece>) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.committed.is_some_and(|committed| message <= committed) {
            return Ok(());
        }
        let mut lines = Vec::new();
        let mut put = |line: &Line| {
            serde_json::to_writer(&mut lines, line)?;
            lines.push(b'\n');
            io::Result::Ok(())
        };
        // After an error it is unknown what the file contains, so the next save begins a new one.
        let mut open = match state.open.take().filter(|open| open.message == message) {
            Some(open) => open,
            None => {
                if let Some(directory) = self.path.parent() {
                    private_directory(directory)?;
                }
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(&self.path)?;
                put(&Line::Reply { message, model: model.clone() })?;
                Open { message, file, written: BTreeMap::new() }
            }
        };
        for piece in shown {
            let ReplyPiece::Text { part, kind, text } = piece else { continue };
            let written = open.written.entry(part).or_default();
            if let Some(more) = text.get(*written..).filter(|more| !more.is_empty()) {
                put(&Line::Text { part, kind, text: more.to_owned() })?;
                *written = text.len();
            }
        }
        open.file.write_all(&lines)?;
        state.open = Some(open);
        Ok(())
    }

    fn remove(&self, committed: MessageId) {
        let mut state = self.state.lock();
        state.committed = state.committed.max(Some(committed));
        state.open = None;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.path.display(), "a saved reply could not be removed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// Parses a file; `None` if it has no usable text. An incomplete last line is ignored.
fn reply(bytes: &[u8]) -> Option<(MessageId, ModelName, Vec<Content>)> {
    let mut lines = bytes.split(|byte| *byte == b'\n').map_while(|line| serde_json::from_slice(line).ok());
    let Some(Line::Reply { message, model }) = lines.next() else { return None };
    let mut parts: BTreeMap<u32, (TextKind, String)> = BTreeMap::new();
    for line in lines {
        let Line::Text { part, kind, text } = line else { break };
        parts.entry(part).or_insert((kind, String::new())).1.push_str(&text);
    }
    let mut content: Vec<Content> = parts
        .into_values()
        .map(|(kind, text)| match kind {
            TextKind::Reply => Content::Text { text },
            TextKind::Thinking => Content::Thinking { text, native: None },
        })
        .collect();
    // As for any interrupted reply: unsigned thinking without text after it is useless.
    while content.pop_if(|part| !matches!(part, Content::Text { text } if !text.trim().is_empty())).is_some()
    {
    }
    (!content.is_empty()).then_some((message, model, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_provider::collect::TextKind;

    fn text(part: u32, text: &str) -> ReplyPiece {
        ReplyPiece::Text { part, kind: TextKind::Reply, text: text.to_owned() }
    }

    fn said(change: Option<Change>) -> Option<String> {
        change.map(|change| match change {
            Change::Replied { message, .. } => message.text(),
            other => panic!("a reply was expected: {other:?}"),
        })
    }

    /// A daemon was killed six seconds into a reply: the user had read 30,462 characters, and the log had none of them.
    #[test]
    fn saved_text_becomes_the_interrupted_reply() {
        let home = tempfile::tempdir().expect("a directory");
        let session = SessionId("s_00000000000000000001".to_owned());
        let model = ModelName("a/b".to_owned());
        let mut draft = ReplyDraft::of(home.path(), &session);
        let file = draft.file.clone().expect("it has one");
        for shown in [vec![text(0, "one ")], vec![text(0, "one two "), text(2, "three")]] {
            let save = draft.save(MessageId(7), model.clone(), shown).expect("it has a file");
            save().expect("it is writable");
        }
        let next = || ReplyDraft::of(home.path(), &session);
        assert_eq!(said(next().take(|_| false)).as_deref(), Some("one two \n\nthree"));
        let saved = std::fs::read(&file.path).expect("a file");
        assert_eq!(said(next().take(|id| id == MessageId(7))), None, "the log has it");
        assert!(!file.path.exists(), "what the log has is removed");
        assert_eq!(String::from_utf8_lossy(&saved).matches("one").count(), 1, "text is written once");
        std::fs::write(&file.path, &saved[..saved.len() - 4]).expect("a cut file");
        assert_eq!(said(next().take(|_| false)).as_deref(), Some("one two "));
        let replied = next().take(|_| false).expect("it is there");
        let remove = draft.committed(&replied).expect("something was saved");
        remove();
        assert_eq!(said(next().take(|_| false)), None);
        file.save(MessageId(7), &model, vec![text(0, "late")]).expect("it does nothing");
        assert!(!file.path.exists(), "a save that comes after the entry leaves no file");
    }

    /// After a full disk had cut one save in the middle, everything that was saved later was lost with it.
    #[test]
    fn a_save_that_fails_in_the_middle_loses_no_later_text() {
        let home = tempfile::tempdir().expect("a directory");
        let session = SessionId("s_00000000000000000001".to_owned());
        let model = ModelName("a/b".to_owned());
        let file = ReplyDraft::of(home.path(), &session).file.expect("it has one");
        let save = |shown: &str| file.save(MessageId(7), &model, vec![text(0, shown)]);
        save("one ").expect("there is room");
        {
            let mut state = file.state.lock();
            let open = state.open.as_mut().expect("the reply is open");
            open.file.write_all(br#"{"text":{"part":0,"ki"#).expect("a part of a line");
            // It can only be read.
            open.file = File::open(&file.path).expect("a file");
        }
        save("one two ").expect_err("it can't be written");
        save("one two three").expect("there is room again");
        let next = ReplyDraft::of(home.path(), &session).take(|_| false);
        assert_eq!(said(next).as_deref(), Some("one two three"));
    }

    #[test]
    fn thinking_alone_is_not_kept() {
        let line = |line: &Line| serde_json::to_string(line).expect("JSON") + "\n";
        let head = line(&Line::Reply { message: MessageId(1), model: ModelName("a/b".to_owned()) });
        let thought = line(&Line::Text { part: 0, kind: TextKind::Thinking, text: "hm".to_owned() });
        let words = line(&Line::Text { part: 1, kind: TextKind::Reply, text: "so".to_owned() });
        assert!(reply(format!("{head}{thought}").as_bytes()).is_none());
        let (_, _, content) = reply(format!("{head}{thought}{words}").as_bytes()).expect("a reply");
        assert_eq!(content.len(), 2);
        assert!(reply(b"").is_none() && reply(b"nonsense\n").is_none());
    }
}
