//! Unsaved text in the user's editor. Before a file tool reads or changes a file, the editor of the user who sent the
//! prompt is queried for its text; this module decides whether to use that text or the one on the disk.
//!
//! Editors may answer with stale text if a file was changed on the disk, usually by a command, so a difference alone
//! proves nothing. The editor's text is used only if it can't be an older state of the disk (`judge`); in doubt the
//! disk wins. The module doesn't know clients: the session forwards requests to one and returns the answers.

mod judge;
mod route;

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

pub use self::judge::DiskStamp;
use self::judge::{BufferStatus, Busy, Compared, TextForm, Trail, as_on_disk, judge, same, when};
pub use self::route::WriteRoute;
use self::route::{EditorText, WriteFacts, route};
use super::{ToolError, Workspace, disk};
use epitome_config::EditorWrites;
use epitome_thread::ToolDisplay;
use epitome_thread::attached::FileType;

/// Maximum size in bytes of a file, and of an editor's text, that are compared. Larger files aren't edited by hand.
pub const TEXT_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Maximum size in bytes of a text sent to an editor; some accept no line above 10 MiB, and JSON escaping enlarges
/// the text.
const PUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of files per call for which the editor is queried; the others are read from the disk.
const ASKED_MAX: usize = 32;

const WAITING_MAX: usize = 64;

/// Maximum number of files whose history is kept. Beyond it, the least recently checked ones are forgotten.
const FILES_MAX: usize = 2_000;

const FILES_LET_GO: usize = 200;

/// A request to an editor. Paths are below a directory as named by the editor itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EditorRequest {
    /// Return the entire text of a file.
    Text { path: PathBuf },
    /// Replace the text of a file.
    Put { path: PathBuf, text: String },
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditorResponse {
    Text(String),
    /// The editor accepted the text.
    Taken,
    /// The editor doesn't know the file.
    Missing,
    /// The editor refused, failed or didn't answer in time.
    Failed(String),
}

pub struct PendingEditorRequest {
    pub request: EditorRequest,
    pub answer: oneshot::Sender<EditorResponse>,
}

/// The requests that an editor supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EditorSupport {
    pub reads: bool,
    pub writes: bool,
    /// Whether its change review contains only what the editor writes.
    pub reviews_writes: bool,
}

/// The state of editors' texts in one session, and the channel for requests.
pub struct Buffers {
    requests: mpsc::Sender<PendingEditorRequest>,
    known: Mutex<KnownBuffers>,
}

#[derive(Default)]
struct KnownBuffers {
    files: HashMap<PathBuf, BufferHistory>,
    /// Incremented with each check.
    clock: u64,
    busy: Busy,
}

struct BufferHistory {
    trail: Trail,
    at: u64,
}

impl Buffers {
    /// Creates the state of a session and the receiver of its requests. For a restored session, `before` is
    /// the time since which it may have changed files.
    pub fn new(before: Option<SystemTime>) -> (Buffers, mpsc::Receiver<PendingEditorRequest>) {
        let (requests, receiver) = mpsc::channel(WAITING_MAX);
        let known = KnownBuffers { busy: Busy::since(before), ..KnownBuffers::default() };
        (Buffers { requests, known: Mutex::new(known) }, receiver)
    }

    /// Moves the state to a new instance with a new channel, for a session that is resumed.
    pub fn with_new_channel(&self) -> (Buffers, mpsc::Receiver<PendingEditorRequest>) {
        let (requests, receiver) = mpsc::channel(WAITING_MAX);
        (Buffers { requests, known: Mutex::new(std::mem::take(&mut *self.known.lock())) }, receiver)
    }

    /// Records whether work of the session is running that may change files.
    pub fn set_busy(&self, is_busy: bool) {
        self.known.lock().busy.set(is_busy, SystemTime::now);
    }

    async fn ask(&self, request: EditorRequest) -> EditorResponse {
        let gone = || EditorResponse::Failed("no client is attached".to_owned());
        let (answer, answered) = oneshot::channel();
        match self.requests.try_send(PendingEditorRequest { request, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| gone()),
            Err(_) => gone(),
        }
    }

    /// Decides about one file, and records what was seen of it.
    fn decide(&self, real: &Path, found: &DiskText, text: &str) -> BufferStatus {
        let mut known = self.known.lock();
        let changed = when(found.stamp.changed(), SystemTime::now(), &known.busy);
        let trail = known.trail(real);
        let status = judge(&Compared {
            editor: text,
            disk: &found.text,
            is_in_step: trail.in_step == Some(found.stamp),
            was_on_disk: trail.was_on_disk(text),
            changed,
        });
        if matches!(status, BufferStatus::Same | BufferStatus::Unsaved) {
            trail.in_step = Some(found.stamp);
        }
        trail.on_disk(&found.text);
        status
    }

    /// Records that the editor accepted a text; returns whether the file contains it now.
    fn took(&self, real: &Path, before: &str, text: &str, now: Option<DiskText>) -> Saved {
        let mut known = self.known.lock();
        let trail = known.trail(real);
        trail.on_disk(before);
        trail.on_disk(text);
        let Some(now) = now else { return Saved::Otherwise };
        trail.on_disk(&now.text);
        let saved = match (same(&now.text, text), same(&now.text, before)) {
            (true, _) => Saved::Yes,
            (false, true) => Saved::NotYet,
            (false, false) => Saved::Otherwise,
        };
        // The editor's next text will derive from this disk state.
        if matches!(saved, Saved::Yes | Saved::NotYet) {
            trail.in_step = Some(now.stamp);
        }
        saved
    }
}

impl KnownBuffers {
    fn trail(&mut self, real: &Path) -> &mut Trail {
        self.clock += 1;
        if self.files.len() >= FILES_MAX && !self.files.contains_key(real) {
            let mut times: Vec<u64> = self.files.values().map(|history| history.at).collect();
            let (_, first_kept, _) = times.select_nth_unstable(FILES_LET_GO);
            self.files.retain(|_, history| history.at >= *first_kept);
        }
        let history =
            self.files.entry(real.to_path_buf()).or_insert(BufferHistory { trail: Trail::default(), at: 0 });
        history.at = self.clock;
        &mut history.trail
    }
}

/// A pending query for the editor's text of one call's files.
pub struct BufferQuery {
    pub link: EditorLink,
    /// The paths with symbolic links resolved.
    pub paths: Vec<PathBuf>,
}

/// The way to the editor.
pub struct EditorLink {
    pub buffers: Arc<Buffers>,
    pub offers: EditorSupport,
    /// When edits are sent to the editor.
    pub setting: EditorWrites,
    pub workspace: Arc<Workspace>,
}

impl BufferQuery {
    /// Queries all files concurrently. Skips files that aren't text, are too large or are outside of the
    /// workspace.
    pub async fn take(self) -> Unsaved {
        let BufferQuery { link, mut paths } = self;
        let EditorLink { buffers, workspace, .. } = &link;
        paths.truncate(ASKED_MAX);
        let at = workspace.clone();
        let found = disk::blocking(move |_| {
            let named = |real: PathBuf| {
                let name = as_named(&real, &at)?;
                let found = on_disk(&real, &at)?;
                Some((real, name, found))
            };
            paths.into_iter().filter_map(named).collect::<Vec<_>>()
        })
        .await;
        let asked = found.into_iter().map(|(real, name, found)| async move {
            let answer = buffers.ask(EditorRequest::Text { path: name.clone() }).await;
            (real, name, found, answer)
        });
        let mut files = HashMap::new();
        for (real, name, found, answer) in join_all(asked).await {
            let EditorResponse::Text(text) = answer else { continue };
            let now = disk::metadata(&real, workspace).ok().flatten();
            let is_changed = now.is_none_or(|now| DiskStamp::of(&now) != found.stamp);
            if text.len() as u64 > TEXT_BYTES_MAX || text.contains('\0') || is_changed {
                continue;
            }
            let status = buffers.decide(&real, &found, &text);
            if let BufferStatus::Doubtful(why) = status {
                tracing::debug!(path = %real.display(), why, "the editor's text is left aside");
                continue;
            }
            let (text, form) = as_on_disk(text, &found.text);
            let unsaved = (status == BufferStatus::Unsaved).then_some(text);
            files.insert(real, KnownText { name, unsaved, form, disk: found.text });
        }
        Unsaved { files, link: Some(link) }
    }
}

/// The editor's state of one call's files: unsaved text, or the text on the disk.
#[derive(Default)]
pub struct Unsaved {
    files: HashMap<PathBuf, KnownText>,
    link: Option<EditorLink>,
}

struct KnownText {
    /// The path as the editor knows it.
    name: PathBuf,
    /// The file's content as it would be after saving; `None` if nothing is unsaved.
    unsaved: Option<String>,
    form: TextForm,
    /// The file's content on the disk.
    disk: String,
}

/// Whether the file contains a text that an editor accepted, or what else is to be known of a file that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    Yes,
    NotYet,
    /// The file has other content: the editor formats on save, or another program wrote it.
    Otherwise,
    /// It was written by replacing the file, whose other names (hard links) still have the old content.
    Detached,
}

impl Saved {
    /// A note for the model.
    pub fn note(self) -> &'static str {
        match self {
            Saved::Yes => {
                "The edit went through the user's editor, which has saved it together with their unsaved changes."
            }
            Saved::NotYet => {
                "The edit is in the user's editor, together with their unsaved changes, and is not saved yet: \
                 the file on disk, which commands see, is still the old one."
            }
            Saved::Otherwise => {
                "The edit went through the user's editor, and the file on the disk holds a text that is not quite \
                 the same (an editor may format what it saves). Read it again before you change more of it."
            }
            Saved::Detached => {
                "The file had other names (hard links). They keep the old content, because the file was replaced."
            }
        }
    }

    /// The note beside the diff that the person sees. The other notes are about their editor, which shows its state.
    pub fn shown(self, note: &str) -> Option<ToolDisplay> {
        (self == Saved::Detached).then(|| ToolDisplay::Text { text: note.to_owned() })
    }
}

/// The note that is appended to a file's unsaved text.
pub const NOTE: &str = "[this text is what the user's editor holds, with changes that are not saved; the file on the \
                        disk, which commands see, is older]";

impl Unsaved {
    /// Returns the editor's unsaved text of a file with the content `disk`, if that text is to be used.
    pub fn text(&self, real: &Path, disk: &[u8]) -> Option<&str> {
        let known = self.files.get(real).filter(|known| known.disk.as_bytes() == disk)?;
        known.unsaved.as_deref()
    }

    /// Refuses a change of a file with unsaved text if the editor doesn't accept edits.
    pub fn refuse_change(&self, name: &str) -> Result<(), ToolError> {
        match &self.link {
            Some(link) if link.offers.writes => Ok(()),
            Some(_) | None => Err(ToolError::new(format!(
                "{name} has changes in the user's editor that are not saved, and this editor takes no edits. Ask \
                 the user to save it first."
            ))),
        }
    }

    /// Decides how a text of this file is written. `is_unsaved`: whether it is based on the editor's unsaved text.
    pub fn route(&self, real: &Path, text: &str, is_unsaved: bool) -> WriteRoute {
        let Some(link) = &self.link else {
            return if is_unsaved { WriteRoute::Buffer } else { WriteRoute::Disk };
        };
        let on_disk = disk::metadata(real, &link.workspace);
        let editor_text = match (is_unsaved, self.files.get(real), &on_disk) {
            (true, _, _) => EditorText::Unsaved,
            (false, Some(known), _) if known.unsaved.is_none() => EditorText::Same,
            (false, None, Ok(None)) => EditorText::NoFile,
            (false, _, _) => EditorText::Unknown,
        };
        route(&WriteFacts {
            setting: link.setting,
            offers: link.offers,
            text: editor_text,
            is_direct: as_named(real, &link.workspace).is_some_and(|name| is_direct(&name, real)),
            command_runs: link.workspace.running.are_in(&link.workspace),
            fits: text.len() <= PUT_BYTES_MAX,
        })
    }

    /// Sends a file's text to the editor. Blocks until the editor answers, so it must not be called on the runtime's
    /// threads.
    pub fn put(&self, real: &Path, text: &str) -> Result<Saved, PutError> {
        let Some(link) = &self.link else { return Err(PutError::NoEditor) };
        if text.len() > PUT_BYTES_MAX {
            return Err(PutError::TooLarge);
        }
        let (name, in_editor, before) = match self.files.get(real) {
            Some(known) => (known.name.clone(), known.form.in_editor(text), known.disk.as_str()),
            // The editor has no text of a new file.
            None => match as_named(real, &link.workspace) {
                Some(name) => (name, text.to_owned(), ""),
                None => return Err(PutError::Outside),
            },
        };
        let request = EditorRequest::Put { path: name, text: in_editor };
        let answer = tokio::runtime::Handle::current().block_on(link.buffers.ask(request));
        match answer {
            EditorResponse::Taken | EditorResponse::Text(_) => {
                Ok(link.buffers.took(real, before, text, on_disk(real, &link.workspace)))
            }
            EditorResponse::Missing => Err(PutError::Unknown),
            EditorResponse::Failed(why) => Err(PutError::Refused(why)),
        }
    }
}

/// Why the user's editor did not take a text: a part of a sentence without the file's name.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    #[error("the editor is not there any more")]
    NoEditor,
    #[error("the user's editor holds unsaved changes of it and is given no more than {PUT_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it is outside of what the user's editor has open")]
    Outside,
    #[error("the user's editor knows no such file")]
    Unknown,
    #[error("the user's editor, which holds unsaved changes of it, did not take the edit ({0})")]
    Refused(String),
}

struct DiskText {
    text: String,
    stamp: DiskStamp,
}

/// Reads a file's text; `None` if it isn't text, is too large or can't be read. The tool reports these errors.
fn on_disk(real: &Path, workspace: &Workspace) -> Option<DiskText> {
    let (file, metadata) = disk::open(real, workspace).ok()?;
    if metadata.len() > TEXT_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > TEXT_BYTES_MAX || bytes.contains(&0) || FileType::detect(&bytes).is_some() {
        return None;
    }
    Some(DiskText { text: String::from_utf8(bytes).ok()?, stamp: DiskStamp::of(&metadata) })
}

/// Whether the editor's path of a file leads to it without a link below the workspace's directory.
fn is_direct(name: &Path, real: &Path) -> bool {
    match name.canonicalize() {
        Ok(found) => found == real,
        Err(_) => {
            let directory = name.parent().and_then(|directory| directory.canonicalize().ok());
            directory.as_deref().is_some_and(|directory| Some(directory) == real.parent())
                && name.symlink_metadata().is_err()
        }
    }
}

/// The file's path below its workspace directory as the editor named that directory, with links unresolved; `None`
/// outside of the workspace.
fn as_named(real: &Path, workspace: &Workspace) -> Option<PathBuf> {
    workspace.roots().containing(real).map(|_| workspace.target(real))
}
