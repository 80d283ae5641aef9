//! Durable threads. Journals are the source of truth; sled holds the threads as they are read, which can be rebuilt from
//! the journals.
//!
//! A `Store` is a handle on one data directory:
//!
//! ```text
//! <data>/journals/<session>.jsonl   the log, one entry per line          (files, scan, line)
//! <data>/journals/<session>.synced  how much of it is on the disk        (sync_mark)
//! <data>/journals/<session>.torn    unfinished last writes left by crashes
//! <data>/journals/<session>.damaged-<time>   a journal without an intact line, or from an older version's repair
//! <data>/blobs/<session>/<sha256>   bodies too big for a line            (blobs)
//! <data>/checkpoints/<session>/     file checkpoints; deleted with the session
//! <data>/drafts/<session>           the reply that is streaming; deleted with the session
//! <data>/grants/<session>           permissions given here, if the logs are elsewhere; deleted with the session
//! <data>/listing                    the newest sessions, saved for the next process (listing, saved_listing)
//! <data>/db/                        sled: threads as they are read       (rows, index, index_thread, saved_thread, resume, listing)
//! ```
//!
//! `check` inspects all of it, `repair` fixes it, `copies` makes forks, imports and backups.
//!
//! The logs can also be in another place than the files (`log::LogStore`). Then checkpoints and drafts remain here, and
//! everything in this crate that checks, repairs, backs up or indexes files does not apply.
//!
//! A journal can also exist only in memory (`Journal::in_memory`), independently of a store.
//!
//! Everything except sled is read and written through a [`disk::Disk`].
//!
//! The store never rewrites an entry and never guesses the content of a line with a wrong checksum. Damage costs only
//! the damaged lines, and the session is read-only until the user accepts the loss (`Journal::acceptance`). Only
//! listings wait for sled, and only for a bounded time. All calls block on the disk and belong on a blocking thread,
//! except those of `JournalHead`, which only numbers entries.

mod append_times;
mod blobs;
mod chain;
mod check;
mod copies;
mod files;
mod header;
mod health;
mod index;
mod index_compare;
mod index_thread;
mod journal;
mod line;
mod listing;
mod log;
mod query;
mod repair;
mod restore;
mod resume;
mod rows;
mod saved_listing;
mod saved_thread;
mod scan;
mod sync_mark;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use blobs::BlobStore;
use disk::{Disk, FileStat, RealDisk};
use epitome_files::paths::Paths;
use epitome_thread::{Change, Entry, FORMAT_VERSION, ReplayError, SessionId, Thread};
use files::Files;
use index::Index;
use serde::{Deserialize, Serialize};

pub use append_times::AppendTimes;
pub use blobs::{Blobs, INLINE_BYTES_MAX, digest};
pub use copies::{ForkedSession, Outside};
pub use epitome_files::disk;
pub use header::{ForkOrigin, Header};
pub use health::{
    Backup, Finding, FindingKind, FindingSeverity, Health, IndexState, Rebuilt, Repair, Repaired, StoreSizes,
};
pub use journal::{Journal, JournalHead, JournalWriter, Syncer};
pub use line::JournalLine;
pub use log::{Log, LogStore, StoredLog, WholeLog};
pub use query::SessionQuery;
pub use scan::Scan;

/// A handle on the durable threads of one data directory. Clones share one index thread.
#[derive(Clone)]
pub struct Store {
    paths: StorePaths,
    index: Index,
    logs: Arc<dyn LogStore>,
    /// The location of the logs for messages, if they are not in files.
    elsewhere: Option<Arc<str>>,
}

/// Why a store operation failed. Each variant names the session or file, never content.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no session {0}")]
    NotFound(SessionId),
    #[error("session {0} exists already")]
    Exists(SessionId),
    /// Two writers would corrupt the log.
    #[error("session {0} is open in {1}")]
    InUse(SessionId, SessionHolder),
    #[error(
        "session {session} was written by a newer Epitome (format {found}, this one reads up to {}); \
         its file was not changed",
        FORMAT_VERSION
    )]
    FutureFormat { session: SessionId, found: u32 },
    /// Lines are damaged or missing. The session can be read, but not written until the user accepts that.
    #[error(
        "the log of session {session} is damaged at line {line}: {reason}; {} lost, everything else can be read; \
         nothing is written to the session until you accept the loss with `/repair` in it, or with \
         `epitome doctor --repair` for all sessions",
        entries(*.lost)
    )]
    Damaged {
        session: SessionId,
        /// Counted from 1.
        line: u64,
        /// Entries that are lost.
        lost: u64,
        reason: String,
    },
    /// Everything else of the session can be read and written.
    #[error(
        "session {session} lacks {}: missing or changed in the store, with a note in the place of each",
        images_or_texts(*.bodies)
    )]
    BodiesLost { session: SessionId, bodies: u64 },
    /// Its journal contains nothing readable.
    #[error("no line of the journal of session {0} is intact; the file was not changed")]
    Unreadable(SessionId),
    /// The file of a session contains the log of another one.
    #[error("the journal of session {session} is that of session {named}: the file has the wrong name")]
    Misnamed { session: SessionId, named: SessionId },
    /// The entry can't be serialized as JSON, for example because of a path that is not UTF-8. Nothing was
    /// written, and the journal stays usable.
    #[error("an entry of session {session} cannot be stored: {reason}")]
    Unstorable { session: SessionId, reason: String },
    /// An earlier sync failed, so the state on disk is unknown. Persists until the journal is opened again.
    #[error("an earlier write of session {0} did not reach the disk, so its log has to be opened again")]
    SyncFailed(SessionId),
    /// Its file was deleted, moved or replaced while it was open: what is written to it would be lost.
    #[error(
        "the journal of session {0} was deleted or replaced while the session was open; nothing more is written to it"
    )]
    Replaced(SessionId),
    /// Damage was found in the part of the log that was not read when the session was opened. Persists until the journal is
    /// opened again.
    #[error("an older part of the log of session {0} is damaged, so it has to be opened again")]
    DamageFound(SessionId),
    /// Its entries are readable, and are not a log.
    #[error("the log of session {session} can't be folded: {source}")]
    Unfoldable { session: SessionId, source: ReplayError },
    /// Another process has taken over the session, because this one did not renew its lease in time.
    #[error(
        "session {session} was taken over by {holder}; nothing more is written to it here until it is closed there"
    )]
    TakenOver { session: SessionId, holder: String },
    /// The place of the logs cannot be used at the moment.
    #[error("cannot {doing} in {place}: {reason}")]
    Unreachable { doing: &'static str, place: String, reason: String },
    /// The logs are not in files, and this works only with files.
    #[error("cannot {doing}: the sessions are in {place}, and not in files of this machine")]
    NotFiles { doing: &'static str, place: String },
    #[error("cannot {doing} {}: {source}{}", path.display(), way_out(source))]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

/// A hint for a place where nothing can be written, such as a read-only home.
fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; check its owner and mode, or set EPITOME_HOME to a directory where you can write"
        }
        _ => "",
    }
}

/// The process that has a session open, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHolder {
    /// The machine and process, for people.
    pub process: Option<String>,
    /// The address at which it serves clients of other machines.
    pub address: Option<String>,
}

impl fmt::Display for SessionHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another process")?;
        self.process.as_ref().map_or(Ok(()), |process| write!(f, " ({process})"))
    }
}

/// Path of the data of a session that is not in its log yet; deleted with the session.
pub fn draft_path(data: &Path, session: &SessionId) -> PathBuf {
    data.join("drafts").join(&session.0)
}

/// Path of the record of the permissions that were given in a session on this machine; deleted with the session.
pub fn grants_path(data: &Path, session: &SessionId) -> PathBuf {
    data.join("grants").join(&session.0)
}

/// A random id of 80 bits: unique across processes and restarts.
pub fn new_id() -> SessionId {
    SessionId(format!("s_{:08x}{:012x}", fastrand::u32(..), fastrand::u64(..) & 0xffff_ffff_ffff))
}

/// End of the name of a journal.
const JOURNAL_SUFFIX: &str = ".jsonl";

/// The result of [`Store::list`].
#[derive(Debug, Default)]
pub struct Listing {
    /// Newest first.
    pub headers: Vec<Header>,
    /// Sessions whose journal can't be read.
    pub problems: Vec<(SessionId, StoreError)>,
}

impl Store {
    /// Creates a handle without touching the disk or starting a thread.
    pub fn new(paths: &Paths) -> Store {
        let paths = StorePaths { data: Arc::from(paths.data.as_path()), disk: Arc::new(RealDisk) };
        Store::of_files(Index::new(paths.clone()), paths)
    }

    /// Creates a handle on sessions whose logs are elsewhere. `place` names that in messages.
    pub fn elsewhere(paths: &Paths, logs: Arc<dyn LogStore>, place: &str) -> Store {
        let paths = StorePaths { data: Arc::from(paths.data.as_path()), disk: Arc::new(RealDisk) };
        let index = Index::absent(paths.clone());
        Store { paths, index, logs, elsewhere: Some(Arc::from(place)) }
    }

    fn of_files(index: Index, paths: StorePaths) -> Store {
        let logs = Arc::new(Files { paths: paths.clone(), index: index.clone(), listed: Arc::default() });
        Store { paths, index, logs, elsewhere: None }
    }

    /// Returns a name for the location of the logs, if they are not in files.
    pub fn place(&self) -> Option<&str> {
        self.elsewhere.as_deref()
    }

    /// How long appends of this process took.
    pub fn append_times(&self) -> AppendTimes {
        AppendTimes::now(if self.elsewhere.is_some() { "postgres" } else { "files" })
    }

    /// Makes known where this process serves clients of other machines. Matters only for logs that several machines use.
    pub fn advertise(&self, address: &str) {
        self.logs.advertise(address);
    }

    /// Fails if the logs are not in files.
    fn only_files(&self, doing: &'static str) -> Result<(), StoreError> {
        match &self.elsewhere {
            None => Ok(()),
            Some(place) => Err(StoreError::NotFiles { doing, place: place.to_string() }),
        }
    }

    /// Creates a handle on a different disk than the machine's, without an index.
    pub fn on_disk(data: &Path, disk: Arc<dyn Disk>) -> Store {
        let paths = StorePaths { data: Arc::from(data), disk };
        Store::of_files(Index::absent(paths.clone()), paths)
    }

    /// Bytes of headers waiting to be indexed. The index is written asynchronously.
    pub fn index_waits(&self) -> usize {
        self.index.waiting_bytes()
    }

    /// Creates a session's log with its opening entry, which must name the session. Does not sync.
    pub fn create(&self, session: &SessionId, opened: Change) -> Result<(Journal, Arc<Entry>), StoreError> {
        Journal::create(&*self.logs, session, opened)
    }

    /// Opens a session's log for writing and reads all of it. The remains of an interrupted write are moved to the
    /// session's `.torn` file. A damaged log can be read, but not written: see `Journal::damage`.
    pub fn load(&self, session: &SessionId) -> Result<(Journal, Vec<Arc<Entry>>), StoreError> {
        Journal::load(&*self.logs, session)
    }

    /// Opens a session for writing, with its thread. Reads only the end of a long log if the state of its thread was saved;
    /// damage in the rest is then found a moment later, and [`JournalHead::can_append`] fails from then on.
    pub fn open(&self, session: &SessionId) -> Result<(Journal, Thread), StoreError> {
        if let Some(resumed) = Journal::resume(&*self.logs, session)? {
            return Ok(resumed);
        }
        let (journal, entries) = self.load(session)?;
        Ok((journal, folded(session, entries)?))
    }

    /// Reads a session's thread, even while another process writes its log, with what is missing in the part of the log that
    /// was read.
    pub fn thread(&self, session: &SessionId) -> Result<(Thread, Option<StoreError>), StoreError> {
        if SessionId::parse(&session.0).is_some()
            && let Some(thread) = self.logs.read_resumed(session)?
        {
            return Ok((thread, None));
        }
        let (entries, damage) = self.read_with_damage(session)?;
        Ok((folded(session, entries)?, damage))
    }

    /// Reads a session's log, even while another process writes it. Changes nothing. Damaged entries are
    /// `Change::Lost`, an unfinished last write is ignored.
    pub fn read(&self, session: &SessionId) -> Result<Vec<Arc<Entry>>, StoreError> {
        self.read_with_damage(session).map(|(entries, _)| entries)
    }

    /// Like [`Store::read`], with what is missing: damage that the user has not accepted (`StoreError::Damaged`), or bodies
    /// (`StoreError::BodiesLost`).
    pub fn read_with_damage(
        &self,
        session: &SessionId,
    ) -> Result<(Vec<Arc<Entry>>, Option<StoreError>), StoreError> {
        let scan = self.logs.read(session)?.scan(session, &*self.logs.blobs(session))?;
        let loss = scan.loss(session);
        Ok((scan.entries, loss))
    }

    /// The lines of a session's journal, up to the last complete one.
    pub fn raw(&self, session: &SessionId) -> Result<Vec<u8>, StoreError> {
        let StoredLog { mut bytes, .. } = self.logs.read(session)?;
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        Ok(bytes)
    }

    /// Keeps what listings have found, and looks only at what has changed since. For a process that goes on for a while.
    pub fn keep_listing(&self) {
        self.logs.keep_listing();
    }

    /// Whether listings that are kept differ from what `save_listing` has saved. Does not block.
    pub fn has_unsaved_listing(&self) -> bool {
        self.logs.has_unsaved_listing()
    }

    /// Saves what listings have found for the next process, however this one ends.
    pub fn save_listing(&self) {
        self.logs.save_listing();
    }

    /// Lists all sessions, including those without a prompt.
    pub fn list(&self) -> Result<Listing, StoreError> {
        self.logs.list()
    }

    /// Lists some sessions.
    pub fn page(&self, query: &SessionQuery) -> Result<Listing, StoreError> {
        self.logs.page(query)
    }

    /// Whether a process has a session open, this one included.
    pub fn is_in_use(&self, session: &SessionId) -> bool {
        SessionId::parse(&session.0).is_some() && self.logs.is_in_use(session)
    }

    /// Deletes a session: its journal, blobs, checkpoints and rows. Deleting an unknown or partially deleted
    /// session succeeds; deleting an open one fails.
    pub fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Ok(());
        }
        self.logs.delete(session)?;
        for path in [draft_path, grants_path] {
            self.paths.remove_file(&path(&self.paths.data, session))?;
        }
        let checkpoints = self.paths.checkpoints(session);
        remove_directory(&self.paths, &checkpoints).doing("remove", &checkpoints)
    }

    /// Waits until the index has processed everything and closed sled, or the leases of ended sessions are given back. For a clean exit and for tests;
    /// nothing is lost without it.
    pub fn settle(&self) {
        self.logs.settle();
    }
}

fn folded(session: &SessionId, entries: Vec<Arc<Entry>>) -> Result<Thread, StoreError> {
    Thread::replay(entries).map_err(|source| StoreError::Unfoldable { session: session.clone(), source })
}

/// Paths below the data directory.
#[derive(Clone, Debug)]
struct StorePaths {
    data: Arc<Path>,
    disk: Arc<dyn Disk>,
}

impl StorePaths {
    fn journals(&self) -> PathBuf {
        self.data.join("journals")
    }

    fn journal(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}{JOURNAL_SUFFIX}"))
    }

    fn sync_mark(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}.synced"))
    }

    fn torn(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}.torn"))
    }

    /// Damaged journals of a session that were kept by repairs.
    fn damaged(&self, session: &SessionId) -> Result<Vec<PathBuf>, StoreError> {
        let begin = format!("{session}.damaged-");
        let names = self.names(&self.journals())?.into_iter().filter(|name| name.starts_with(&begin));
        Ok(names.map(|name| self.journals().join(name)).collect())
    }

    fn blobs(&self, session: &SessionId) -> BlobStore {
        BlobStore::new(self.disk.clone(), self.data.join("blobs").join(&session.0))
    }

    /// The session's file checkpoints. They are managed elsewhere; the store only deletes them with the
    /// session.
    fn checkpoints(&self, session: &SessionId) -> PathBuf {
        self.data.join("checkpoints").join(&session.0)
    }

    fn saved_listing(&self) -> PathBuf {
        self.data.join("listing")
    }

    fn db(&self) -> PathBuf {
        self.data.join("db")
    }

    /// Lock held by the process that has sled open.
    fn db_lock(&self) -> PathBuf {
        self.data.join("db.lock")
    }

    /// All sessions that have a journal.
    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        let names = self.names(&self.journals())?;
        Ok(names.iter().filter_map(|name| SessionId::parse(name.strip_suffix(JOURNAL_SUFFIX)?)).collect())
    }

    /// All sessions that have a journal, sorted, with its metadata.
    fn session_files(&self) -> Result<Vec<(SessionId, FileStat)>, StoreError> {
        let journals = self.journals();
        let files = self.disk.stats(&journals, JOURNAL_SUFFIX).if_found().doing("list", &journals)?;
        let session = |name: &str| SessionId::parse(name.strip_suffix(JOURNAL_SUFFIX)?);
        let files = files.into_iter().flatten();
        Ok(files.filter_map(|(name, stat)| Some((session(&name)?, stat))).collect())
    }

    /// The names in a directory, sorted; empty if it does not exist.
    fn names(&self, directory: &Path) -> Result<Vec<String>, StoreError> {
        Ok(self.disk.names(directory).if_found().doing("list", directory)?.unwrap_or_default())
    }

    fn make_directory(&self, directory: &Path) -> Result<(), StoreError> {
        self.disk.make_directory(directory).doing("make the directory", directory)
    }

    fn sync_directory(&self, directory: &Path) -> Result<(), StoreError> {
        self.disk.sync_directory(directory).doing("sync the directory", directory)
    }

    /// Makes the names of new journals durable. The directories may be as new as the file.
    fn sync_journal_names(&self) -> Result<(), StoreError> {
        let journals = self.journals();
        let directories = [Some(&*journals), Some(&*self.data), self.data.parent()];
        directories.into_iter().flatten().try_for_each(|directory| self.sync_directory(directory))
    }

    /// Removes a file, if it exists.
    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.remove_file(path).if_found().doing("remove", path).map(drop)
    }
}

/// Removes a directory with its contents. A checkpoint that was in progress when its session ended may still
/// add a file.
fn remove_directory(paths: &StorePaths, path: &Path) -> io::Result<()> {
    let mut tries = 1..REMOVE_TRIES_MAX;
    loop {
        match paths.disk.remove_directory(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries.next().is_some() => {
                std::thread::yield_now();
            }
            removed => return removed.if_found().map(drop),
        }
    }
}

/// Attempts to remove a directory that is still being written to; the writer adds only a file or two.
const REMOVE_TRIES_MAX: u32 = 64;

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { doing, path: path.to_path_buf(), source }
}

trait DiskResultExt<T> {
    /// Says in the error what failed.
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, StoreError>;

    /// `None` if there is no such file or directory.
    fn if_found(self) -> io::Result<Option<T>>;
}

impl<T> DiskResultExt<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| io_error(doing, path, source))
    }

    fn if_found(self) -> io::Result<Option<T>> {
        match self {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        }
    }
}

/// A number of bodies, in words.
fn images_or_texts(number: u64) -> String {
    if number == 1 { "1 image or long text".to_owned() } else { format!("{number} images or long texts") }
}

/// A number of entries, as the subject of a sentence.
fn entries(count: u64) -> String {
    match count {
        0 => "no entry is".to_owned(),
        1 => "1 entry is".to_owned(),
        count => format!("{count} entries are"),
    }
}

/// The clock for new entries: milliseconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
