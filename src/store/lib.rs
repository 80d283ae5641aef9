//! Durable threads: journals are the truth, sled holds rows and headers that can be rebuilt from them.
//!
//! A `Store` is a handle on one data directory:
//!
//! ```text
//! <data>/journals/<session>.jsonl   the log, one line an entry        (journal, scan, line)
//! <data>/journals/<session>.torn    last lines that a crash broke off
//! <data>/journals/<session>.damaged-<time>   a journal as it was before a repair
//! <data>/blobs/<session>/<sha256>   bodies too big for a line         (blobs)
//! <data>/checkpoints/<session>/     files as they were; deleted with the session
//! <data>/db/                        sled: rows and headers            (rows, index, index_thread)
//! ```
//!
//! `check` looks at all of it, `repair` puts it right, `copies` makes forks, imports and backups.
//!
//! A journal can also be in memory alone (`Journal::in_memory`); then none of this knows it.
//!
//! It refuses to rewrite an entry, to guess at a line whose checksum is wrong, and to let anything
//! wait for sled but a listing, and that for a bounded time. All calls block on the disk; `create`
//! and `append` are short enough for a session's task, the others belong on a blocking thread.

mod blobs;
mod check;
mod copies;
mod header;
mod health;
mod index;
mod index_thread;
mod index_whole;
mod journal;
mod line;
mod repair;
mod rows;
mod scan;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blobs::Blobs;
use epitome_files::paths::Paths;
use epitome_thread::{Change, Entry, FORMAT_VERSION, SessionId};
use index::Index;
use line::Bodies;
use scan::Scan;

pub use copies::Forked;
pub use header::{ForkOrigin, Header};
pub use health::{
    Backup, Finding, FindingKind, Health, IndexState, Rebuilt, Repair, Repaired, Severity, Sizes,
};
pub use journal::{Journal, Syncer};

/// A handle on the durable threads of one data directory. Clones share one index thread.
#[derive(Clone)]
pub struct Store {
    places: Places,
    index: Index,
}

/// Why the store did not do what it was asked. Each names the session or file, and no content.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no session {0}")]
    NotFound(SessionId),
    #[error("session {0} exists already")]
    Exists(SessionId),
    /// Two writers of one log would destroy it.
    #[error("session {0} is open in another process")]
    InUse(SessionId),
    #[error(
        "session {session} was written by a newer Epitome (format {found}, this one reads up to {}); \
         its file was left as it is",
        FORMAT_VERSION
    )]
    FutureFormat { session: SessionId, found: u32 },
    /// A line other than the last is not what was written. `read_whole_part` has what stands before.
    #[error(
        "the journal of session {session} is damaged at line {line}: {reason}; \
         it was left as it is; `epitome sessions show {session}` prints what stands before, and \
         `epitome doctor --repair` goes on with that"
    )]
    Damaged {
        session: SessionId,
        /// From 1.
        line: u64,
        reason: String,
    },
    /// The entry cannot be written as JSON, as with a path that is not UTF-8. Nothing was written,
    /// and the journal goes on.
    #[error("an entry of session {session} cannot be stored: {reason}")]
    Unstorable { session: SessionId, reason: String },
    /// The disk refused an earlier sync, so that nobody knows what is on it. Sticks to the journal
    /// until it is loaded again.
    #[error("an earlier write of session {0} did not reach the disk; load the session again")]
    SyncFailed(SessionId),
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

/// Eighty bits by chance: no two sessions share one, across processes and restarts too.
pub fn new_id() -> SessionId {
    SessionId(format!("s_{:08x}{:012x}", fastrand::u32(..), fastrand::u64(..) & 0xffff_ffff_ffff))
}

/// What `Store::list` found.
#[derive(Debug, Default)]
pub struct Listing {
    /// Newest first.
    pub headers: Vec<Header>,
    /// Sessions that have a file that cannot be read.
    pub problems: Vec<(SessionId, StoreError)>,
}

impl Store {
    /// Makes a handle. It touches no disk and starts no thread.
    pub fn new(paths: &Paths) -> Store {
        let places = Places { data: Arc::from(paths.data.as_path()) };
        Store { index: Index::new(places.clone()), places }
    }

    /// Bytes of rows that the index has not taken in yet. It is written behind the journals, from a bounded queue.
    pub fn index_waits(&self) -> usize {
        self.index.waiting_bytes()
    }

    /// Begins a session's log with its opening entry, which must name the session. It never syncs.
    pub fn create(&self, session: &SessionId, opened: Change) -> Result<(Journal, Arc<Entry>), StoreError> {
        Journal::create(&self.places, &self.index, session, opened)
    }

    /// Opens a session's log for writing and reads all of it. A broken last line is moved to the
    /// `.torn` file beside it.
    pub fn load(&self, session: &SessionId) -> Result<(Journal, Vec<Arc<Entry>>), StoreError> {
        Journal::load(&self.places, &self.index, session)
    }

    /// Reads a session's log, also one that another process is writing. It changes nothing; a last
    /// line that is broken, or not yet whole, is left out.
    pub fn read(&self, session: &SessionId) -> Result<Vec<Arc<Entry>>, StoreError> {
        let (entries, damage) = self.read_whole_part(session)?;
        match damage {
            None => Ok(entries),
            Some(damage) => Err(damage),
        }
    }

    /// Reads a log as `read` does, up to the first damaged line, which comes as the second part.
    pub fn read_whole_part(
        &self,
        session: &SessionId,
    ) -> Result<(Vec<Arc<Entry>>, Option<StoreError>), StoreError> {
        let bytes = scan::read_file(&self.places, session)?;
        let blobs = self.places.blobs(session);
        let scan = Scan::of(session, &bytes, Bodies::Whole(&blobs))?;
        Ok((scan.entries, scan.damage))
    }

    /// A session's journal as it stands in its file, up to its last whole line.
    pub fn raw(&self, session: &SessionId) -> Result<Vec<u8>, StoreError> {
        let mut bytes = scan::read_file(&self.places, session)?;
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        Ok(bytes)
    }

    /// Reads a journal that is not in the store, as one of a backup, with the bodies beside it: all of it, or
    /// nothing.
    pub fn read_outside(path: &Path, session: &SessionId) -> Result<Vec<Arc<Entry>>, StoreError> {
        let bytes = std::fs::read(path).map_err(|source| io_error("read", path, source))?;
        let beside = path.parent().and_then(Path::parent).unwrap_or(Path::new("")).join("blobs");
        let blobs = Blobs::new(beside.join(&session.0));
        let scan = Scan::of(session, &bytes, Bodies::Whole(&blobs))?;
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

    /// All sessions, also those without a prompt. What sled knows is taken where it is up to date;
    /// all else is read from the journals, so that the listing is the same without sled. Damage that
    /// leaves a journal's length as it was shows only when it is read.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut found: BTreeMap<SessionId, u64> = BTreeMap::new();
        for session in self.places.sessions()? {
            if let Ok(metadata) = std::fs::metadata(self.places.journal(&session)) {
                found.insert(session, metadata.len());
            }
        }
        let mut listing = Listing::default();
        let mut known = if found.is_empty() { BTreeMap::new() } else { self.index.headers() };
        for (session, bytes) in found {
            match known.remove(&session) {
                Some(marked) if marked.mark.bytes == bytes => listing.headers.push(marked.header),
                Some(_) | None => match scan::read_header(&self.places, &session) {
                    Ok(header) => {
                        listing.headers.push(header);
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
        listing.headers.sort_by(|a, b| (b.updated_at, &b.session).cmp(&(a.updated_at, &a.session)));
        Ok(listing)
    }

    /// Removes a session: its journal, its blobs, its rows. One that is unknown, or was removed in
    /// part, is no error; one that is open is.
    pub fn delete(&self, session: &SessionId) -> Result<(), StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Ok(());
        }
        journal::remove(&self.places, session)?;
        self.index.catch_up(session);
        Ok(())
    }

    /// Waits until the index has taken in everything and let go of sled. For an orderly exit and
    /// for tests; nothing is lost without it.
    pub fn settle(&self) {
        self.index.settle();
    }
}

/// Where things are below the data directory.
#[derive(Clone, Debug)]
struct Places {
    data: Arc<Path>,
}

impl Places {
    fn journals(&self) -> PathBuf {
        self.data.join("journals")
    }

    fn journal(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}.jsonl"))
    }

    fn torn(&self, session: &SessionId) -> PathBuf {
        self.journals().join(format!("{session}.torn"))
    }

    /// The damaged journals that repairs have kept of a session.
    fn damaged(&self, session: &SessionId) -> Result<Vec<PathBuf>, StoreError> {
        let begin = format!("{session}.damaged-");
        let names = check::names(&self.journals())?.into_iter().filter(|name| name.starts_with(&begin));
        Ok(names.map(|name| self.journals().join(name)).collect())
    }

    fn blobs(&self, session: &SessionId) -> Blobs {
        Blobs::new(self.data.join("blobs").join(&session.0))
    }

    /// What files were before turns changed them, which is kept and read elsewhere: here it goes with its session.
    fn checkpoints(&self, session: &SessionId) -> PathBuf {
        self.data.join("checkpoints").join(&session.0)
    }

    fn db(&self) -> PathBuf {
        self.data.join("db")
    }

    /// Held by whoever has sled open.
    fn db_lock(&self) -> PathBuf {
        self.data.join("db.lock")
    }

    /// The sessions that have a journal.
    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        let directory = self.journals();
        let io = |source| StoreError::Io { doing: "list", path: directory.clone(), source };
        let listing = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing.map_err(io)?,
        };
        let mut sessions = Vec::new();
        for file in listing {
            let name = file.map_err(io)?.file_name();
            let session =
                name.to_str().and_then(|name| name.strip_suffix(".jsonl")).and_then(SessionId::parse);
            sessions.extend(session);
        }
        Ok(sessions)
    }
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { doing, path: path.to_path_buf(), source }
}

/// Options for a file that only its owner reads.
fn open_private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes a directory that only its owner enters, and those above it.
fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes the names in a directory durable. Some network file systems know no such sync; there it is
/// as good as it gets.
fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}
