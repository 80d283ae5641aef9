//! What the person's editor holds of a file and has not saved. Before a file tool reads or changes a file, the editor
//! of whoever sent the prompt is asked for its text; here is decided whether that text or the disk counts.
//!
//! Editors answer with stale text when a file changed behind them, mostly by a command: a difference alone means
//! nothing. The editor's text counts only where it can't be an older state of the disk (`judge`); in doubt the disk
//! does. It names no client: the session brings questions to one, and what it answers back.

mod judge;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

pub use self::judge::Stamp;
use self::judge::{Busy, Compared, Form, Standing, Trail, as_on_disk, judge, same, when};
use super::{Workspace, disk};
use epitome_thread::attached::FileType;

/// Bytes of a file, and of an editor's text, that are compared. Nobody types into larger ones.
pub const TEXT_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Bytes of a text that an editor is given; some read no line above 10 MiB, and JSON makes a text longer.
const PUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Files of one call that the editor is asked for; of more, the rest is taken from the disk.
const ASKED_MAX: usize = 32;

/// Questions that may wait for the session.
const WAITING_MAX: usize = 64;

/// Files of which it is kept how they stood. Of more, those that were looked at the longest ago are begun anew.
const FILES_MAX: usize = 2_000;

/// Files that are let go together.
const FILES_LET_GO: usize = 200;

/// Something that is wanted of an editor. Paths are below a directory as the editor itself has named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// The whole text of a file.
    Text { path: PathBuf },
    /// To hold this text from now on.
    Put { path: PathBuf, text: String },
}

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Text(String),
    /// It holds the text.
    Taken,
    /// It knows no such file.
    Missing,
    /// It would not or could not, for this reason; or it said nothing in time.
    Failed(String),
}

/// A wish with who waits for its answer.
pub struct Wished {
    pub wish: Wish,
    pub answer: oneshot::Sender<Answer>,
}

/// What an editor offers to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    pub reads: bool,
    pub writes: bool,
}

/// What a session knows of editors' texts, and the way of its wishes.
pub struct Buffers {
    wishes: mpsc::Sender<Wished>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    files: HashMap<PathBuf, Kept>,
    /// Counts the looks.
    clock: u64,
    busy: Busy,
}

struct Kept {
    trail: Trail,
    at: u64,
}

impl Buffers {
    /// The knowledge of a new session, and where its wishes come out. Of a session that had a life before, it is told
    /// since when it may have changed files.
    pub fn new(before: Option<SystemTime>) -> (Buffers, mpsc::Receiver<Wished>) {
        let (wishes, receiver) = mpsc::channel(WAITING_MAX);
        let known = Known { busy: Busy::since(before), ..Known::default() };
        (Buffers { wishes, known: Mutex::new(known) }, receiver)
    }

    /// The same knowledge with another way, for a session that goes on.
    pub fn on_another_way(&self) -> (Buffers, mpsc::Receiver<Wished>) {
        let (wishes, receiver) = mpsc::channel(WAITING_MAX);
        (Buffers { wishes, known: Mutex::new(std::mem::take(&mut *self.known())) }, receiver)
    }

    /// Notes whether something of the session runs that may change files.
    pub fn set_busy(&self, is_busy: bool) {
        self.known().busy.set(is_busy, SystemTime::now);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, wish: Wish) -> Answer {
        let gone = || Answer::Failed("nobody is there to be asked".to_owned());
        let (answer, answered) = oneshot::channel();
        match self.wishes.try_send(Wished { wish, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| gone()),
            Err(_) => gone(),
        }
    }

    /// Decides about one file, and keeps what was seen of it.
    fn decide(&self, real: &Path, found: &OnDisk, said: &str) -> Standing {
        let mut known = self.known();
        let changed = when(found.stamp.changed(), SystemTime::now(), &known.busy);
        let trail = known.trail(real);
        let standing = judge(&Compared {
            editor: said,
            disk: &found.text,
            is_in_step: trail.is_in_step(found.stamp),
            was_on_disk: trail.was_on_disk(said),
            changed,
        });
        match standing {
            Standing::Same | Standing::Unsaved => trail.in_step(found.stamp),
            Standing::Doubtful(_) => {}
        }
        trail.on_disk(&found.text);
        standing
    }

    /// Keeps that the editor took a text, and tells whether it is in the file now.
    fn took(&self, real: &Path, before: &str, text: &str, now: Option<OnDisk>) -> Saved {
        let mut known = self.known();
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
        match saved {
            // Whatever it says next, it says of this state of the disk.
            Saved::Yes | Saved::NotYet => trail.in_step(now.stamp),
            Saved::Otherwise => {}
        }
        saved
    }
}

impl Known {
    fn trail(&mut self, real: &Path) -> &mut Trail {
        self.clock += 1;
        if self.files.len() >= FILES_MAX && !self.files.contains_key(real) {
            let mut times: Vec<u64> = self.files.values().map(|kept| kept.at).collect();
            let (_, first_kept, _) = times.select_nth_unstable(FILES_LET_GO);
            self.files.retain(|_, kept| kept.at >= *first_kept);
        }
        let kept = self.files.entry(real.to_path_buf()).or_insert(Kept { trail: Trail::default(), at: 0 });
        kept.at = self.clock;
        &mut kept.trail
    }
}

/// A look at what the editor holds of the files of one call, which is yet to be taken.
pub struct Look {
    pub buffers: Arc<Buffers>,
    pub offers: Offers,
    /// With every link followed.
    pub paths: Vec<PathBuf>,
    pub workspace: Arc<Workspace>,
}

impl Look {
    /// Asks once for each file, side by side. What is no text, too large or outside of the workspace is not asked for.
    pub async fn take(self) -> Unsaved {
        let Look { buffers, offers, mut paths, workspace } = self;
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
        let asked = found.into_iter().map(|(real, name, found)| {
            let buffers = &buffers;
            async move {
                let answer = buffers.ask(Wish::Text { path: name.clone() }).await;
                (real, name, found, answer)
            }
        });
        let mut files = HashMap::new();
        for (real, name, found, answer) in join_all(asked).await {
            let said = match answer {
                Answer::Text(said) if said.len() as u64 <= TEXT_BYTES_MAX && !said.contains('\0') => said,
                Answer::Text(_) | Answer::Taken | Answer::Missing | Answer::Failed(_) => continue,
            };
            // What was read is not what stands there any more.
            let is_still = fs::symlink_metadata(&real).is_ok_and(|now| Stamp::of(&now) == found.stamp);
            if !is_still {
                continue;
            }
            match buffers.decide(&real, &found, &said) {
                Standing::Same => {}
                Standing::Doubtful(why) => {
                    tracing::debug!(path = %real.display(), why, "the editor's text is left aside");
                }
                Standing::Unsaved => {
                    let (text, form) = as_on_disk(said, &found.text);
                    files.insert(real, Held { name, text, form, disk: found.text });
                }
            }
        }
        Unsaved { files, way: Some(Way { buffers, writes: offers.writes, workspace }) }
    }
}

/// The unsaved texts of the files of one call; mostly none.
#[derive(Default)]
pub struct Unsaved {
    files: HashMap<PathBuf, Held>,
    way: Option<Way>,
}

impl fmt::Debug for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

struct Held {
    /// The path as the editor knows it.
    name: PathBuf,
    /// As the file would be if it were saved.
    text: String,
    form: Form,
    /// What the file holds.
    disk: String,
}

struct Way {
    buffers: Arc<Buffers>,
    writes: bool,
    workspace: Arc<Workspace>,
}

/// Whether a text that an editor took is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    Yes,
    NotYet,
    /// The file holds something else: the editor formats what it saves, or somebody else wrote.
    Otherwise,
}

impl Saved {
    /// What the model is told, behind the name of the file.
    pub fn told(self) -> &'static str {
        match self {
            Saved::Yes => {
                "The edit went through the person's editor, which has saved it together with their unsaved changes."
            }
            Saved::NotYet => {
                "The edit is in the person's editor, beside their unsaved changes, and is not saved yet: the file on \
                 the disk, which commands see, is still the old one."
            }
            Saved::Otherwise => {
                "The edit went through the person's editor, and the file on the disk holds a text that is not quite \
                 the same (an editor may format what it saves). Read it again before you change more of it."
            }
        }
    }
}

/// What stands behind the text of a file that is not saved.
pub const NOTE: &str = "[this text is what the person's editor holds, with changes that are not saved; the file on the \
                        disk, which commands see, is older]";

impl Unsaved {
    /// What the editor holds of a file that has these bytes on the disk, where that counts.
    pub fn text(&self, real: &Path, disk: &[u8]) -> Option<&str> {
        let held = self.files.get(real).filter(|held| held.disk.as_bytes() == disk)?;
        Some(&held.text)
    }

    /// Refuses what can't be done to a file while its text is not saved.
    pub fn refuse_change(&self, name: &str) -> Result<(), String> {
        match &self.way {
            Some(way) if way.writes => Ok(()),
            Some(_) | None => Err(format!(
                "{name} has changes in the person's editor that are not saved, and this editor takes no edits. Ask \
                 the person to save it first."
            )),
        }
    }

    /// Has the editor hold a text in the place of an unsaved one. Blocks for as long as the editor takes; not for
    /// the runtime's own threads. The error is a sentence without the file's name.
    pub fn put(&self, real: &Path, text: &str) -> Result<Saved, String> {
        let (Some(held), Some(way)) = (self.files.get(real), &self.way) else {
            return Err("the editor holds no unsaved text of it".to_owned());
        };
        if text.len() > PUT_BYTES_MAX {
            return Err(format!(
                "the person's editor holds unsaved changes of it and is given no more than {PUT_BYTES_MAX} bytes"
            ));
        }
        let wish = Wish::Put { path: held.name.clone(), text: held.form.in_editor(text) };
        let answer = tokio::runtime::Handle::current().block_on(way.buffers.ask(wish));
        match answer {
            Answer::Taken | Answer::Text(_) => {
                Ok(way.buffers.took(real, &held.disk, text, on_disk(real, &way.workspace)))
            }
            Answer::Missing => Err("the person's editor knows no such file".to_owned()),
            Answer::Failed(why) => Err(format!(
                "the person's editor, which holds unsaved changes of it, did not take the edit ({why})"
            )),
        }
    }
}

/// A file as it is on the disk.
struct OnDisk {
    text: String,
    stamp: Stamp,
}

/// A file's text; `None` for what is no text, is too large or can't be read: the tool says that itself.
fn on_disk(real: &Path, workspace: &Workspace) -> Option<OnDisk> {
    let (file, metadata) = disk::open(real, workspace).ok()?;
    if metadata.len() > TEXT_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > TEXT_BYTES_MAX || bytes.contains(&0) || FileType::of(&bytes).is_some() {
        return None;
    }
    Some(OnDisk { text: String::from_utf8(bytes).ok()?, stamp: Stamp::of(&metadata) })
}

/// A path below the directory that it lies in as the editor gave that, links not followed; `None` outside of the
/// workspace.
fn as_named(real: &Path, workspace: &Workspace) -> Option<PathBuf> {
    std::iter::once(&workspace.cwd).chain(&workspace.directories).find_map(|root| {
        let below = real.strip_prefix(root.canonicalize().ok()?).ok()?;
        Some(root.join(below))
    })
}
