//! The index thread: writes sled's rows asynchronously and recovers from failures of sled.
//!
//! After damage, a lost lock or a full disk, everything is read again from the journals. It opens sled when
//! there is work and closes it soon after, because an open sled uses memory and locks other processes out. It
//! never writes a journal.

use epitome_platform::os::OpenOptionsExt;
use std::fs::{File, OpenOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::header::JournalMark;
use super::health::{IndexState, Rebuilt, bytes_below};
use super::index::{IndexWork, OldIndex, PendingUpdates, QUEUE_MAX, RowUpdate, UnsavedThread};
use super::index_compare::IndexComparison;
use super::rows::{Headers, Rows, RowsError};
use super::saved_thread::{SavedEntries, SavedThread};
use super::{StoreError, StorePaths, chain, now, scan};
use epitome_files::atomic_file::private_directory;
use epitome_platform::holder::holder;
use epitome_platform::library_threads::create_private_files;
use epitome_thread::SessionId;

/// How long to wait for a lock that no known process holds.
const JUST_HELD: Duration = Duration::from_millis(500);

/// Time without work after which sled is closed.
const IDLE_CLOSES: Duration = Duration::from_secs(10);

/// How long an update waits for others: a turn appends several entries, and each would wake the thread up and write
/// the row anew.
const UPDATES_GATHER: Duration = Duration::from_millis(200);

/// Time without work after which what was written is flushed to disk. Only then can others read it in sled's files; its own
/// flushing is late, see [`Rows::open`].
const QUIET_FLUSHES: Duration = Duration::from_millis(500);

/// How long to leave sled alone after it was unavailable. Another process that has it open keeps it for at
/// least `IDLE_CLOSES` anyway.
const REFUSED_WAITS: Duration = Duration::from_secs(10);

/// Time limit for sled to end its threads and release its file. It can hang there, especially after a panic,
/// and an instance that has not ended would write into its successor.
const CLOSE_WAITS: Duration = Duration::from_secs(5);

/// Damaged directories that one process sets aside before it continues without sled, so that a failing disk
/// is not filled with them.
const SET_ASIDE_MAX: usize = 3;

pub(super) struct IndexThread {
    paths: StorePaths,
    pending: Arc<PendingUpdates>,
    open: Option<OpenIndex>,
    /// Nothing was written since sled was last flushed.
    is_flushed: bool,
    /// When sled was last unavailable.
    refused: Option<Instant>,
    given_up: bool,
    set_aside: usize,
}

/// An open sled, with the lock that keeps other processes from setting it aside.
struct OpenIndex {
    rows: Rows,
    lock: File,
}

/// Why the index was not rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the index thread does not answer")]
    NoAnswer,
    #[error("sled has not ended; restart and try again")]
    NotEnded,
    #[error("the index is open in {0}; it closes it when no session is at work, so try again later")]
    InUse(String),
    #[error("the index cannot be locked: {0}")]
    Lock(#[source] std::io::Error),
    #[error("the old index cannot be moved or removed: {0}")]
    Move(#[source] std::io::Error),
    #[error(transparent)]
    Write(Box<dyn std::error::Error + Send + Sync>),
}

impl IndexThread {
    /// Starts the thread; it ends when all senders of requests are dropped.
    pub fn start(
        paths: StorePaths,
        pending: Arc<PendingUpdates>,
        requests: Receiver<IndexWork>,
    ) -> std::io::Result<()> {
        let thread = IndexThread::new(paths, pending);
        let started = std::thread::Builder::new().name("epitome-index".into()).spawn(|| thread.run(requests));
        started.map(drop)
    }

    fn new(paths: StorePaths, pending: Arc<PendingUpdates>) -> IndexThread {
        IndexThread {
            paths,
            pending,
            open: None,
            is_flushed: true,
            refused: None,
            given_up: false,
            set_aside: 0,
        }
    }

    fn run(mut self, requests: Receiver<IndexWork>) {
        // sled has no option for the modes of its files.
        create_private_files();
        // When updates are written that nobody waits for.
        let mut due: Option<Instant> = None;
        loop {
            let first = match (due, &self.open) {
                (Some(due), _) => requests.recv_timeout(due.saturating_duration_since(Instant::now())),
                (None, Some(_)) if self.is_flushed => requests.recv_timeout(IDLE_CLOSES),
                (None, Some(_)) => requests.recv_timeout(QUIET_FLUSHES),
                (None, None) => requests.recv().map_err(RecvTimeoutError::from),
            };
            match first {
                Ok(IndexWork::Update) => {
                    due.get_or_insert_with(|| Instant::now() + UPDATES_GATHER);
                    continue;
                }
                Ok(IndexWork::Request(work)) => work(&mut self),
                Err(RecvTimeoutError::Timeout) if due.is_none() => {
                    match self.is_flushed {
                        true => self.close(),
                        false => self.flush(),
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // Updates are processed even if requests fill the queue as fast as it is drained.
            for work in requests.try_iter().take(QUEUE_MAX) {
                if let IndexWork::Request(work) = work {
                    work(&mut self);
                }
            }
            due = None;
            self.process_updates();
        }
        self.process_updates();
        self.close();
    }

    /// The headers of all rows; empty if sled is unavailable.
    pub fn headers(&mut self) -> Arc<Headers> {
        // A listing alone does not create a database.
        let exists = self.exists();
        let headers = if exists { self.with(|rows| Ok(rows.known())) } else { None };
        headers.unwrap_or_default()
    }

    fn exists(&self) -> bool {
        self.open.is_some() || self.paths.db().exists()
    }

    /// Takes the lock, retrying briefly if no process is known to hold it: it is then just being released,
    /// for example by a child process between fork and exec.
    fn lock_soon(&self) -> std::io::Result<File> {
        let until = Instant::now() + JUST_HELD;
        loop {
            match self.lock() {
                Err(error)
                    if error.kind() == std::io::ErrorKind::WouldBlock
                        && Instant::now() < until
                        && holder(&self.paths.db_lock()).is_none() =>
                {
                    std::thread::sleep(JUST_HELD / 100);
                }
                locked => return locked,
            }
        }
    }

    /// Begins a comparison of the rows with the journals, or says why there are none. Repairs nothing, so that problems
    /// are reported.
    pub fn comparison(&mut self) -> Result<IndexComparison, IndexState> {
        if let Some(open) = &self.open {
            return Ok(IndexComparison::new(guarded(|| open.rows.headers())?));
        }
        if !self.paths.db().exists() {
            return Err(IndexState::Absent);
        }
        let lock = self.lock_soon().map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => IndexState::Elsewhere { holder: holder(&self.paths.db_lock()) },
            _ => IndexState::Unknown { reason: error.to_string() },
        })?;
        let rows = guarded(|| Rows::open(&self.paths.db()))?;
        let stored = guarded(|| rows.headers());
        self.end(OpenIndex { rows, lock });
        Ok(IndexComparison::new(stored?))
    }

    /// Moves the old database away and writes a new one.
    pub fn rebuild(&mut self, keep: OldIndex) -> Result<Rebuilt, RebuildError> {
        self.close();
        if self.given_up {
            return Err(RebuildError::NotEnded);
        }
        let lock = self.lock_soon().map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                let who = holder(&self.paths.db_lock()).unwrap_or_else(|| "another process".to_owned());
                RebuildError::InUse(who)
            }
            _ => RebuildError::Lock(error),
        })?;
        let directory = self.paths.db();
        let bytes_before = bytes_below(&directory, 0);
        let (irreplaceable, lock) = match guarded(|| Rows::open(&directory)) {
            Ok(rows) => {
                let found = guarded(|| irreplaceable(&self.paths, &rows));
                (found.unwrap_or_default(), self.end(OpenIndex { rows, lock }).ok_or(RebuildError::NotEnded)?)
            }
            // It is kept.
            Err(_) if keep == OldIndex::Aside => (Vec::new(), lock),
            Err(error) => return Err(RebuildError::Write(error.into())),
        };
        let old = self.retired(match keep {
            OldIndex::Aside => "db.corrupt",
            OldIndex::Nothing => "db.old",
        });
        std::fs::rename(&directory, &old).map_err(RebuildError::Move)?;
        self.refused = None;
        // A crash here leaves no index; the next use rebuilds it from the journals.
        let (written, _lock) = match guarded(|| Rows::open(&directory)) {
            Ok(rows) => {
                let written = guarded(|| {
                    irreplaceable
                        .iter()
                        .try_for_each(|(session, entry, line)| rows.put_line(session, *entry, line))?;
                    write_all(&self.paths, &rows)
                });
                (written, self.end(OpenIndex { rows, lock }).ok_or(RebuildError::NotEnded)?)
            }
            Err(error) => (Err(error), lock),
        };
        match written {
            Ok(sessions) => {
                let bytes_after = bytes_below(&directory, 0);
                let kept = match keep {
                    OldIndex::Aside => Some(old),
                    OldIndex::Nothing => {
                        std::fs::remove_dir_all(&old).map_err(RebuildError::Move)?;
                        None
                    }
                };
                Ok(Rebuilt { sessions, bytes_before, bytes_after, kept })
            }
            Err(error) => {
                let restored =
                    std::fs::remove_dir_all(&directory).and_then(|()| std::fs::rename(&old, &directory));
                if let Err(error) = restored {
                    tracing::warn!(%error, old = %old.display(), "the old index cannot be restored");
                }
                Err(RebuildError::Write(error.into()))
            }
        }
    }

    /// Path under which the database is kept once it is no longer used.
    fn retired(&self, kind: &str) -> PathBuf {
        self.paths.data.join(format!("{kind}-{}", now()))
    }

    /// Writes all pending updates. Those that fail stay pending until the next request.
    pub fn process_updates(&mut self) {
        loop {
            let set_aside = self.set_aside;
            let (updates, mut threads) = self.pending.take();
            self.is_flushed &= updates.is_empty();
            for (session, update) in updates {
                let thread = threads.remove(&session);
                match self.write(&session, &update) {
                    true => thread.into_iter().for_each(|thread| self.save(&session, &thread)),
                    false => self.pending.put_back(session, update, thread),
                }
            }
            // Damage found on the way makes every session pending again.
            if self.set_aside == set_aside {
                return;
            }
        }
    }

    /// Updates the row of a session; returns whether it is done.
    fn write(&mut self, session: &SessionId, update: &RowUpdate) -> bool {
        let header = match update {
            RowUpdate::Header(header) => {
                let paths = self.paths.clone();
                let put = |rows: &Rows| {
                    follow(&paths, rows, session, header.mark)?;
                    rows.put(header)
                };
                return self.with(put).is_some();
            }
            // A row that can't be written is not worth reading a journal.
            RowUpdate::FromJournal if (self.given_up || self.paths.db().exists()) && !self.is_available() => {
                return false;
            }
            RowUpdate::FromJournal => scan::read_header(&self.paths, session),
        };
        match header {
            Ok(header) => self.with(|rows| rows.put(&Arc::new(header))).is_some(),
            Err(StoreError::NotFound(_)) => {
                !self.exists() || self.with(|rows| rows.remove(session)).is_some()
            }
            // Its row stays unchanged; a listing detects that it is outdated.
            Err(error) => {
                tracing::debug!(%session, %error, "a journal cannot be indexed");
                true
            }
        }
    }

    /// Saves the state of a thread whose journal's lines are stored.
    fn save(&mut self, session: &SessionId, thread: &UnsavedThread) {
        let UnsavedThread { marked, opening, state, stored } = thread;
        let save = |rows: &Rows| {
            // A damaged journal is not followed beyond the damage.
            if rows.followed(session)?.is_none_or(|mark| mark.entries < marked.mark.entries) {
                return Ok(());
            }
            let line_of = |entry| rows.line(session, entry);
            if let Some(saved) = SavedThread::new(marked, opening, state.clone(), line_of)? {
                rows.put_thread(session, marked.mark.entries, &saved)?;
                *stored.lock() = Some(SavedEntries { end: marked.mark, page_crcs: saved.page_crcs });
            }
            Ok(())
        };
        self.with(save);
    }

    /// Reads from sled, if there is one; `None` if it is unavailable.
    pub fn read<T>(&mut self, read: impl FnOnce(&Rows) -> Result<T, RowsError>) -> Option<T> {
        if self.exists() { self.with(read) } else { None }
    }

    /// See [`Index::follow_again`](super::index::Index::follow_again).
    pub fn follow_again(&mut self, session: &SessionId, until: JournalMark) {
        let paths = self.paths.clone();
        self.with(|rows| {
            rows.set_followed(session, JournalMark::default())?;
            follow(&paths, rows, session, until)
        });
    }

    /// See [`Index::examine`](super::index::Index::examine).
    pub fn examine(&mut self, session: &SessionId, until: JournalMark) -> bool {
        // A session that was deleted since is not damaged.
        if chain::is_sound(&self.paths, session, until) || !self.paths.journal(session).exists() {
            return true;
        }
        tracing::warn!(%session, "damage was found in the older part of a log");
        self.with(|rows| rows.remove_thread(session));
        false
    }

    /// Runs work on an open sled; `None` if it is unavailable or fails.
    fn with<T>(&mut self, work: impl FnOnce(&Rows) -> Result<T, RowsError>) -> Option<T> {
        if !self.is_available() {
            return None;
        }
        let open = self.open.as_ref()?;
        match guarded(|| work(&open.rows)) {
            Ok(done) => Some(done),
            Err(RowsError::Unavailable(error)) => {
                // After a full disk sled's handle stays unusable, so it is reopened later.
                self.refuse(&error.to_string());
                self.close();
                None
            }
            Err(RowsError::Damaged(reason)) => {
                self.replace(&reason);
                None
            }
        }
    }

    /// Whether sled is open; opens it if possible.
    fn is_available(&mut self) -> bool {
        if self.open.is_none() {
            self.open = self.open();
        }
        self.open.is_some()
    }

    fn open(&mut self) -> Option<OpenIndex> {
        let resting = self.refused.is_some_and(|refused| refused.elapsed() < REFUSED_WAITS);
        if self.given_up || resting {
            return None;
        }
        self.try_open().unwrap_or_else(|error| {
            self.refuse(&error.to_string());
            None
        })
    }

    /// `None` if sled was given up.
    fn try_open(&mut self) -> Result<Option<OpenIndex>, RowsError> {
        let lock = self.lock().map_err(RowsError::Unavailable)?;
        let directory = self.paths.db();
        let mut opened = guarded(|| Rows::open(&directory));
        if let Err(RowsError::Damaged(reason)) = &opened {
            if !self.set_aside(reason) {
                return Ok(None);
            }
            opened = guarded(|| Rows::open(&directory));
        }
        Ok(Some(OpenIndex { rows: opened?, lock }))
    }

    /// Takes the lock next to the database. sled's own lock would move with the directory when that is set
    /// aside.
    fn lock(&self) -> std::io::Result<File> {
        private_directory(&self.paths.data)?;
        private_directory(&self.paths.db())?;
        let lock = OpenOptions::new()
            .mode(0o600)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.paths.db_lock())?;
        lock.try_lock()?;
        Ok(lock)
    }

    fn refuse(&mut self, reason: &str) {
        tracing::debug!(reason, "sled cannot be used for now; listings read the journals");
        self.refused = Some(Instant::now());
    }

    /// Sets a sled aside that failed while it was open.
    fn replace(&mut self, reason: &str) {
        let Some(open) = self.open.take() else { return };
        if let Some(_lock) = self.end(open) {
            self.set_aside(reason);
        }
    }

    fn flush(&mut self) {
        self.is_flushed = true;
        self.with(Rows::flush);
    }

    pub fn close(&mut self) {
        self.is_flushed = true;
        if let Some(open) = self.open.take() {
            self.end(open);
        }
    }

    /// Closes sled and returns the lock. If sled does not end in time, gives up on it for this process.
    fn end(&mut self, OpenIndex { rows, lock }: OpenIndex) -> Option<File> {
        let directory = self.paths.db();
        let ended = end_within(CLOSE_WAITS, move || rows.close(&directory));
        if ended {
            return Some(lock);
        }
        tracing::error!("sled does not end; going on without an index");
        self.given_up = true;
        // No other process may use the directory while sled's threads are alive.
        std::mem::forget(lock);
        None
    }

    /// Renames the directory and schedules a complete rebuild. The lock must be held.
    fn set_aside(&mut self, reason: &str) -> bool {
        let directory = self.paths.db();
        let aside = self.retired("db.corrupt");
        self.set_aside += 1;
        if self.set_aside > SET_ASIDE_MAX {
            tracing::error!(reason, "sled broke again; going on without an index");
            self.given_up = true;
            return false;
        }
        if let Err(error) = std::fs::rename(&directory, &aside) {
            tracing::error!(reason, %error, "a damaged sled cannot be set aside; going on without an index");
            self.given_up = true;
            return false;
        }
        tracing::warn!(reason, aside = %aside.display(), "sled was damaged and is rebuilt from the journals");
        self.pending.read_from_journal(self.paths.sessions().unwrap_or_default());
        true
    }
}

/// Stores the lines that a journal has gained, as long as they are sound. Rows of other lines are left alone: they may be
/// all that is left of lines that were damaged since.
fn follow(paths: &StorePaths, rows: &Rows, session: &SessionId, until: JournalMark) -> Result<(), RowsError> {
    let known = rows.followed(session)?.filter(|mark| mark.bytes <= until.bytes).unwrap_or_default();
    let mut mark = known;
    let put = |entry, line: &[u8]| rows.put_line(session, entry, line);
    chain::walk(paths, session, &mut mark, until, put)?;
    if mark == known && known != until && known.entries > 0 {
        // The journal was replaced.
        mark = JournalMark::default();
        chain::walk(paths, session, &mut mark, until, put)?;
    }
    if mark == known { Ok(()) } else { rows.set_followed(session, mark) }
}

/// The lines that journals have lost and sled has, each with its session and number: `/repair` restores them.
fn irreplaceable(paths: &StorePaths, rows: &Rows) -> Result<Vec<(SessionId, u64, Vec<u8>)>, RowsError> {
    let mut found = Vec::new();
    for session in paths.sessions().map_err(|error| RowsError::Damaged(error.to_string()))? {
        let Ok((scan, _)) = scan::read(paths, &session) else { continue };
        for entry in scan.lost() {
            found.extend(rows.line(&session, entry)?.map(|line| (session.clone(), entry, line)));
        }
    }
    Ok(found)
}

/// Writes the headers of all sessions with a prompt, and returns their number.
fn write_all(paths: &StorePaths, rows: &Rows) -> Result<u64, RowsError> {
    let mut written = 0;
    for session in paths.sessions().map_err(|error| RowsError::Damaged(error.to_string()))? {
        // Listings report journals that can't be read.
        let header = scan::read_header(paths, &session).ok().filter(|marked| marked.header.has_prompt);
        if let Some(header) = header {
            rows.put(&Arc::new(header))?;
            written += 1;
        }
    }
    Ok(written)
}

/// Runs work in which sled may panic.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, RowsError>) -> Result<T, RowsError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without words");
        Err(RowsError::Damaged(format!("it panicked: {message}")))
    })
}

/// Whether the work ended in time. If not, it continues in the background.
pub(super) fn end_within(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (ended, end) = sync_channel(1);
    let started = std::thread::Builder::new().name("epitome-index-end".into()).spawn(move || {
        let _ = catch_unwind(AssertUnwindSafe(work));
        let _ = ended.try_send(());
    });
    started.is_ok() && end.recv_timeout(limit).is_ok()
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
