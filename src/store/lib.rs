//! Durable threads. Journals are the source of truth; sled holds their headers, which can be rebuilt from them.
//!
//! A `Store` is a handle on one data directory:
//!
//! ```text
//! <data>/journals/<session>.jsonl   the log, one entry per line          (journal, scan, line)
//! <data>/journals/<session>.torn    incomplete last lines left by crashes
//! <data>/journals/<session>.damaged-<time>   a journal as it was before a repair
//! <data>/blobs/<session>/<sha256>   bodies too big for a line            (blobs)
//! <data>/checkpoints/<session>/     file checkpoints; deleted with the session
//! <data>/drafts/<session>           the reply that is streaming; deleted with the session
//! <data>/db/                        sled: headers, for listings          (rows, index, index_thread)
//! ```
//!
//! `check` inspects all of it, `repair` fixes it, `copies` makes forks, imports and backups.
//!
//! A journal can also exist only in memory (`Journal::in_memory`), independently of a store.
//!
//! It never rewrites an entry and never guesses the content of a line with a wrong checksum. Only listings
//! wait for sled, and only for a bounded time. All calls block on the disk; `create` and `append` are short
//! enough for a session's task, the others belong on a blocking thread.

mod blobs;
mod check;
mod copies;
mod header;
mod health;
mod index;
mod index_compare;
mod index_thread;
mod journal;
mod line;
mod repair;
mod rows;
mod scan;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blobs::BlobStore;
use epitome_files::atomic_file::private_directory;
use epitome_files::paths::Paths;
use epitome_thread::{Change, Entry, FORMAT_VERSION, SessionId};
use index::Index;
use line::Bodies;
use scan::Scan;

pub use copies::ForkedSession;
pub use header::{ForkOrigin, Header};
pub use health::{
    Backup, Finding, FindingKind, FindingSeverity, Health, IndexState, Rebuilt, Repair, Repaired, StoreSizes,
};
pub use journal::{Journal, Syncer};

/// A handle on the durable threads of one data directory. Clones share one index thread.
#[derive(Clone)]
pub struct Store {
    paths: StorePaths,
    index: Index,
}

/// Why a store operation failed. Each variant names the session or file, never content.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no session {0}")]
    NotFound(SessionId),
    #[error("session {0} exists already")]
    Exists(SessionId),
    /// Two writers would corrupt the log.
    #[error("session {0} is open in another process")]
    InUse(SessionId),
    #[error(
        "session {session} was written by a newer Epitome (format {found}, this one reads up to {}); \
         its file was not changed",
        FORMAT_VERSION
    )]
    FutureFormat { session: SessionId, found: u32 },
    /// A line other than the last is damaged. `read_whole_part` returns the entries before it.
    #[error(
        "the journal of session {session} is damaged at line {line}: {reason}; \
         the file was not changed; `epitome sessions show {session}` prints the part before the damage, and \
         `epitome doctor --repair` continues with that part"
    )]
    Damaged {
        session: SessionId,
        /// Counted from 1.
        line: u64,
        reason: String,
    },
    /// The entry can't be serialized as JSON, for example because of a path that is not UTF-8. Nothing was
    /// written, and the journal stays usable.
    #[error("an entry of session {session} cannot be stored: {reason}")]
    Unstorable { session: SessionId, reason: String },
    /// An earlier sync failed, so the state on disk is unknown. Persists until the journal is loaded again.
    #[error("an earlier write of session {0} did not reach the disk; load the session again")]
    SyncFailed(SessionId),
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

/// Where a session keeps what is not in its log yet; deleted with the session.
pub fn draft_path(data: &Path, session: &SessionId) -> PathBuf {
    data.join("drafts").join(&session.0)
}

/// A random id of 80 bits: unique across processes and restarts.
pub fn new_id() -> SessionId {
    SessionId(format!("s_{:08x}{:012x}", fastrand::u32(..), fastrand::u64(..) & 0xffff_ffff_ffff))
}

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
        let paths = StorePaths { data: Arc::from(paths.data.as_path()) };
        Store { index: Index::new(paths.clone()), paths }
    }

    /// Bytes of headers waiting to be indexed. The index is written asynchronously.
    pub fn index_waits(&self) -> usize {
        self.index.waiting_bytes()
    }

    /// Creates a session's log with its opening entry, which must name the session. Does not sync.
    pub fn create(&self, session: &SessionId, opened: Change) -> Result<(Journal, Arc<Entry>), StoreError> {
        Journal::create(&self.paths, &self.index, session, opened)
    }

    /// Opens a session's log for writing and reads all of it. An incomplete last line is moved to the
    /// session's `.torn` file.
    pub fn load(&self, session: &SessionId) -> Result<(Journal, Vec<Arc<Entry>>), StoreError> {
        Journal::load(&self.paths, &self.index, session)
    }

    /// Reads a session's log, even while another process writes it. Changes nothing; an incomplete last line
    /// is ignored.
    pub fn read(&self, session: &SessionId) -> Result<Vec<Arc<Entry>>, StoreError> {
        let (entries, damage) = self.read_whole_part(session)?;
        match damage {
            None => Ok(entries),
            Some(damage) => Err(damage),
        }
    }

    /// Like [`Store::read`], but returns the entries before the first damaged line together with the damage.
    pub fn read_whole_part(
        &self,
        session: &SessionId,
    ) -> Result<(Vec<Arc<Entry>>, Option<StoreError>), StoreError> {
        let bytes = scan::read_file(&self.paths, session)?;
        let blobs = self.paths.blobs(session);
        let scan = Scan::read(session, &bytes, Bodies::Whole(&blobs))?;
        Ok((scan.entries, scan.damage))
    }

    /// A session's journal file, up to the last complete line.
    pub fn raw(&self, session: &SessionId) -> Result<Vec<u8>, StoreError> {
        let mut bytes = scan::read_file(&self.paths, session)?;
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        Ok(bytes)
    }

    /// Reads a journal outside the store, for example from a backup, with the blobs next to its directory.
    /// Fails unless all of it is readable.
    pub fn read_outside(path: &Path, session: &SessionId) -> Result<Vec<Arc<Entry>>, StoreError> {
        let bytes = std::fs::read(path).map_err(|source| io_error("read", path, source))?;
        let beside = path.parent().and_then(Path::parent).unwrap_or(Path::new("")).join("blobs");
        let blobs = BlobStore::new(beside.join(&session.0));
        let scan = Scan::read(session, &bytes, Bodies::Whole(&blobs))?;
        if let Some(damage) = scan.damage {
            return Err(damage);
        }
        for (line, at) in (1..).zip(&scan.lines) {
            let lost =
                line::moved(&bytes[at.bytes.clone()]).into_iter().find_map(|hash| blobs.check(&hash).err());
            if let Some(reason) = lost {
                let reason = format!("a body that it names {reason} below {}", beside.display());
                return Err(StoreError::Damaged { session: session.clone(), line, reason });
            }
        }
        Ok(scan.entries)
    }

    /// Lists all sessions, including those without a prompt. Headers come from sled where it is up to date,
    /// and otherwise from the journals, so that the listing is the same without sled. Damage that does not
    /// change a journal's length is not noticed here.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut found: BTreeMap<SessionId, u64> = BTreeMap::new();
        for session in self.paths.sessions()? {
            if let Ok(metadata) = std::fs::metadata(self.paths.journal(&session)) {
                found.insert(session, metadata.len());
            }
        }
        let mut listing = Listing::default();
        let mut known = if found.is_empty() { BTreeMap::new() } else { self.index.headers() };
        for (session, bytes) in found {
            match known.remove(&session) {
                Some(marked) if marked.mark.bytes == bytes => listing.headers.push(marked.header),
                Some(_) | None => match scan::read_header(&self.paths, &session) {
                    Ok(marked) => {
                        listing.headers.push(marked.header);
                        self.index.catch_up(&session);
                    }
                    Err(StoreError::NotFound(_)) => {}
                    Err(problem) => listing.problems.push((session, problem)),
                },
            }
        }
        for deleted in known.keys() {
            self.index.catch_up(deleted);
        }
        for header in &mut listing.headers {
            let path = self.paths.journal(&header.session);
            header.updated_at = header::used_at(header.updated_at, written_at(&path), journal::now());
        }
        listing.headers.sort_by(|a, b| (b.updated_at, &b.session).cmp(&(a.updated_at, &a.session)));
        Ok(listing)
    }

    /// Deletes a session: its journal, blobs, checkpoints and rows. Deleting an unknown or partially deleted
    /// session succeeds; deleting an open one fails.
    pub fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Ok(());
        }
        journal::remove(&self.paths, session)?;
        self.index.catch_up(session);
        Ok(())
    }

    /// Waits until the index has processed everything and closed sled. For a clean exit and for tests;
    /// nothing is lost without it.
    pub fn settle(&self) {
        self.index.settle();
    }
}

/// Paths below the data directory.
#[derive(Clone, Debug)]
struct StorePaths {
    data: Arc<Path>,
}

impl StorePaths {
    fn journals(&self) -> PathBuf {
        self.data.join("journals")
    }

    fn journal(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}.jsonl"))
    }

    fn torn(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}.torn"))
    }

    /// Damaged journals of a session that were kept by repairs.
    fn damaged(&self, session: &SessionId) -> Result<Vec<PathBuf>, StoreError> {
        let begin = format!("{session}.damaged-");
        let names = check::names(&self.journals())?.into_iter().filter(|name| name.starts_with(&begin));
        Ok(names.map(|name| self.journals().join(name)).collect())
    }

    fn blobs(&self, session: &SessionId) -> BlobStore {
        BlobStore::new(self.data.join("blobs").join(&session.0))
    }

    /// The session's file checkpoints. They are managed elsewhere; the store only deletes them with the
    /// session.
    fn checkpoints(&self, session: &SessionId) -> PathBuf {
        self.data.join("checkpoints").join(&session.0)
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
        let names = check::names(&self.journals())?;
        Ok(names.iter().filter_map(|name| SessionId::parse(name.strip_suffix(".jsonl")?)).collect())
    }
}

/// When a file was written last, in milliseconds since the Unix epoch; 0 if that is unknown.
fn written_at(path: &Path) -> u64 {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let since = modified.ok().and_then(|modified| modified.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_millis() as u64)
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { doing, path: path.to_path_buf(), source }
}

/// Options for a file that only its owner can access.
fn open_private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes the names in a directory durable. Some network file systems don't support this, which is ignored.
fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}
