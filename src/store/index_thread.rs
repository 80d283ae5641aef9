//! The index thread: writes sled's rows asynchronously and recovers from failures of sled.
//!
//! After damage, a lost lock or a full disk, everything is read again from the journals. It opens sled when
//! there is work and closes it soon after, because an open sled uses memory and locks other processes out. It
//! never writes a journal.

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use super::header::{Mark, MarkedHeader};
use super::health::{IndexState, Rebuilt};
use super::index::{Backlog, Keep, Note, QUEUE_NOTES_MAX, Row};
use super::index_whole;
use super::line::Bodies;
use super::rows::{self, Rows, RowsError};
use super::scan::{self, Scan, ScannedLine};
use super::{Places, StoreError, open_private, private_directory};
use epitome_platform::holder::holder;
use epitome_thread::SessionId;

/// How long to wait for a lock that no known process holds.
const JUST_HELD: Duration = Duration::from_millis(500);

/// Time without work after which sled is closed.
const IDLE_CLOSES: Duration = Duration::from_secs(10);

/// How long to leave sled alone after it was unavailable. Another process that has it open keeps it for at
/// least `IDLE_CLOSES` anyway.
const REFUSED_WAITS: Duration = Duration::from_secs(10);

/// Time limit for sled to end its threads and release its file. It can hang there, especially after a panic,
/// and an instance that has not ended would write into its successor.
const CLOSE_WAITS: Duration = Duration::from_secs(5);

/// Damaged directories that one process sets aside before it continues without sled, so that a failing disk
/// is not filled with them.
const SET_ASIDE_MAX: usize = 3;

/// State of the index thread.
pub(super) struct Thread {
    places: Places,
    backlog: Arc<Backlog>,
    open: Option<Open>,
    /// When sled was last unavailable.
    refused: Option<Instant>,
    given_up: bool,
    set_aside: usize,
}

/// An open sled, with the lock that prevents other processes from setting it aside meanwhile.
struct Open {
    rows: Rows,
    /// The header that the rows of a session are known to match.
    known: HashMap<SessionId, MarkedHeader>,
    lock: File,
}

impl Thread {
    /// Starts the thread; it ends when all senders of notes are dropped.
    pub fn start(places: Places, backlog: Arc<Backlog>, notes: Receiver<Note>) -> std::io::Result<()> {
        let thread = Thread::new(places, backlog);
        let started = std::thread::Builder::new().name("epitome-index".into()).spawn(|| thread.run(notes));
        started.map(drop)
    }

    fn new(places: Places, backlog: Arc<Backlog>) -> Thread {
        Thread { places, backlog, open: None, refused: None, given_up: false, set_aside: 0 }
    }

    fn run(mut self, notes: Receiver<Note>) {
        loop {
            let first = match self.open {
                Some(_) => match notes.recv_timeout(IDLE_CLOSES) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.close();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(note) => note,
                },
                None => match notes.recv() {
                    Ok(note) => note,
                    Err(_) => break,
                },
            };
            self.take(first);
            // The backlog is processed even if sessions fill the queue as fast as it is drained.
            for note in notes.try_iter().take(QUEUE_NOTES_MAX) {
                self.take(note);
            }
            self.work_off();
        }
        self.work_off();
        self.close();
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Row(row) => {
                self.backlog.queued_bytes.fetch_sub(row.line.len(), Ordering::Relaxed);
                self.write(&row);
            }
            Note::Behind => {}
            Note::Headers(answer) => {
                // A listing alone does not create a database.
                let exists = self.open.is_some() || self.places.db().exists();
                let headers = if exists { self.with(|open| open.rows.headers()) } else { None };
                // The caller may have timed out.
                let _ = answer.try_send(headers.unwrap_or_default());
            }
            Note::Settle(answer) => {
                self.work_off();
                self.close();
                let _ = answer.try_send(());
            }
            Note::Compare(answer) => {
                let state = self.compare();
                let _ = answer.try_send(state);
            }
            Note::Rebuild(keep, answer) => {
                let rebuilt = self.rebuild(keep);
                let _ = answer.try_send(rebuilt);
            }
        }
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
                        && holder(&self.places.db_lock()).is_none() =>
                {
                    std::thread::sleep(JUST_HELD / 100);
                }
                locked => return locked,
            }
        }
    }

    /// Compares the rows with the journals. Repairs nothing, so that problems are reported.
    fn compare(&mut self) -> IndexState {
        if let Some(open) = &self.open {
            return index_whole::compare(&self.places, &open.rows);
        }
        if !self.places.db().exists() {
            return IndexState::Absent;
        }
        let lock = match self.lock_soon() {
            Ok(lock) => lock,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return IndexState::Elsewhere { holder: holder(&self.places.db_lock()) };
            }
            Err(error) => return IndexState::Unknown { reason: error.to_string() },
        };
        match guarded(|| Rows::open(&self.places.db())) {
            Ok(rows) => {
                let state = index_whole::compare(&self.places, &rows);
                self.let_go(rows, lock);
                state
            }
            Err(RowsError::Damaged(reason)) => IndexState::Damaged { reason },
            Err(RowsError::Unavailable(error)) => IndexState::Unknown { reason: error.to_string() },
        }
    }

    /// Writes a new database next to the old one and replaces it.
    fn rebuild(&mut self, keep: Keep) -> Result<Rebuilt, String> {
        self.close();
        if self.given_up {
            return Err("sled has not ended; restart and try again".to_owned());
        }
        let lock = self.lock_soon().map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                let who = holder(&self.places.db_lock()).unwrap_or_else(|| "another process".to_owned());
                format!(
                    "the index is open in {who}; it closes it when no session is at work, so try again later"
                )
            }
            _ => error.to_string(),
        })?;
        let places = self.places.clone();
        let rebuilt = index_whole::write_anew(&places, |rows, directory| self.end(rows, directory))
            .and_then(|new| index_whole::swap(&places, new, keep));
        self.refused = None;
        drop(lock);
        rebuilt
    }

    /// Closes an open sled and then releases the lock.
    fn let_go(&mut self, rows: Rows, lock: File) {
        if self.end(rows, &self.places.db()) {
            drop(lock);
        } else {
            // Nobody else may use the directory while sled's threads are alive.
            std::mem::forget(lock);
        }
    }

    /// Writes a row if it is the next one of its session; otherwise schedules the session to catch up.
    fn write(&mut self, row: &Row) {
        let session = &row.after.header.session;
        let written = self.with(|open| {
            let known = open.known.get(session);
            if known.is_some_and(|known| known.mark.entries >= row.after.mark.entries) {
                // A catch-up already read it from the journal while it was queued.
                return Ok(true);
            }
            let stored = match known {
                Some(known) => Some(known.clone()),
                None => open.rows.header(session)?,
            };
            let is_next = match &stored {
                Some(stored) => stored.mark == row.before,
                None => row.before.entries == 0,
            };
            if is_next {
                if known.is_none() {
                    // The header is written last, so a crash may have left lines beyond it.
                    open.rows.remove_lines(session, row.before.entries)?;
                }
                let old_time = stored.map(|stored| stored.header.updated_at);
                let line = std::iter::once(row.line.as_slice());
                open.rows.append(&row.after, row.before.entries, line, old_time)?;
                open.known.insert(session.clone(), row.after.clone());
            }
            Ok(is_next)
        });
        if written != Some(true) {
            self.backlog.add([session.clone()]);
        }
    }

    /// Updates the rows of all sessions in the backlog from their journals. Failures stay in the backlog
    /// until the next note.
    fn work_off(&mut self) {
        // Damage found on the way puts every session into the backlog again, hence a second pass.
        for _ in 0..2 {
            for session in self.backlog.take() {
                if !self.catch_up(&session) {
                    self.backlog.add([session]);
                }
            }
        }
    }

    /// Updates the rows of a session from its journal; returns whether it is done.
    fn catch_up(&mut self, session: &SessionId) -> bool {
        let gone = !self.places.journal(session).exists();
        if gone && self.open.is_none() && !self.places.db().exists() {
            return true;
        }
        if self.with(|_| Ok(())).is_none() {
            return false;
        }
        let bytes = match scan::read_file(&self.places, session) {
            Err(StoreError::NotFound(_)) => return self.forget(session),
            Err(error) => {
                tracing::debug!(%session, %error, "a journal cannot be indexed");
                return true;
            }
            Ok(bytes) => bytes,
        };
        let scan = match Scan::of(session, &bytes, Bodies::Inline) {
            Err(StoreError::NotFound(_)) => return self.forget(session),
            // Its rows stay unchanged; a listing detects that they are outdated.
            Err(_) => return true,
            Ok(scan) => scan,
        };
        let marked = MarkedHeader { header: scan.header, mark: scan.mark };
        let done = self.with(|open| {
            let stored = open.rows.header(session)?;
            let from = match &stored {
                Some(stored) if ends_in(&scan.lines, &stored.mark) => stored.mark.entries,
                Some(_) | None => 0,
            };
            open.rows.remove_lines(session, from)?;
            let lines = scan.lines[from as usize..].iter().map(|line| &bytes[line.bytes.clone()]);
            open.rows.append(&marked, from, lines, stored.map(|stored| stored.header.updated_at))?;
            open.known.insert(session.clone(), marked.clone());
            Ok(())
        });
        done.is_some()
    }

    fn forget(&mut self, session: &SessionId) -> bool {
        let done = self.with(|open| {
            open.known.remove(session);
            open.rows.remove(session)
        });
        done.is_some()
    }

    /// Runs work on an open sled; `None` if it is unavailable or fails.
    fn with<T>(&mut self, work: impl FnOnce(&mut Open) -> Result<T, RowsError>) -> Option<T> {
        if self.open.is_none() {
            self.open = self.open();
        }
        let open = self.open.as_mut()?;
        match guarded(|| work(open)) {
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

    fn open(&mut self) -> Option<Open> {
        let resting = self.refused.is_some_and(|refused| refused.elapsed() < REFUSED_WAITS);
        if self.given_up || resting {
            return None;
        }
        let lock = match self.lock() {
            Ok(lock) => lock,
            Err(error) => {
                self.refuse(&error.to_string());
                return None;
            }
        };
        let directory = self.places.db();
        let mut opened = guarded(|| Rows::open(&directory));
        if let Err(RowsError::Damaged(reason)) = &opened
            && let Some(snapshot) = rows::newest_snapshot(&directory)
        {
            tracing::warn!(reason, snapshot = %snapshot.display(), "sled does not open; trying without its snapshot");
            // sled only recognizes snapshots by the prefix `snap.`.
            let moved = snapshot.with_file_name(format!("unreadable-{}", now_millis()));
            if std::fs::rename(&snapshot, moved).is_ok() {
                opened = guarded(|| Rows::open(&directory));
            }
        }
        if let Err(RowsError::Damaged(reason)) = &opened {
            if !self.set_aside(reason) {
                return None;
            }
            opened = guarded(|| Rows::open(&directory));
        }
        match opened {
            Ok(rows) => Some(Open { rows, known: HashMap::new(), lock }),
            Err(error) => {
                self.refuse(&error.to_string());
                None
            }
        }
    }

    /// Takes the lock next to the database. sled's own lock would move with the directory when that is set
    /// aside.
    fn lock(&self) -> std::io::Result<File> {
        private_directory(&self.places.data)?;
        private_directory(&self.places.db())?;
        let lock = open_private().write(true).create(true).open(self.places.db_lock())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(lock)
    }

    fn refuse(&mut self, reason: &str) {
        tracing::debug!(reason, "sled cannot be used for now; listings read the journals");
        self.refused = Some(Instant::now());
    }

    /// Sets a sled aside that failed while it was open.
    fn replace(&mut self, reason: &str) {
        let Some(Open { rows, known: _, lock }) = self.open.take() else { return };
        if self.end(rows, &self.places.db()) {
            self.set_aside(reason);
            drop(lock);
        } else {
            // Nobody else may use the directory while sled's threads are alive.
            std::mem::forget(lock);
        }
    }

    fn close(&mut self) {
        if let Some(Open { rows, known: _, lock }) = self.open.take() {
            self.let_go(rows, lock);
        }
    }

    /// Closes sled, or gives it up for this process if it does not end in time.
    fn end(&mut self, rows: Rows, directory: &Path) -> bool {
        let file = rows::lock_file(directory);
        let ended = end_within(CLOSE_WAITS, move || {
            drop(rows);
            // Its threads may keep the file open for a moment longer: taking its lock once proves that it is
            // free.
            if let Ok(file) = File::open(file) {
                let _ = flock(file, FlockOperation::LockExclusive);
            }
        });
        if !ended {
            tracing::error!("sled does not end; going on without an index");
            self.given_up = true;
        }
        ended
    }

    /// Renames the directory and schedules a complete rebuild. The lock must be held.
    fn set_aside(&mut self, reason: &str) -> bool {
        let directory = self.places.db();
        let aside = self.places.data.join(format!("db.corrupt-{}", now_millis()));
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
        self.backlog.add(self.places.sessions().unwrap_or_default());
        true
    }
}

/// Whether the journal with these lines once had this mark.
pub(super) fn ends_in(lines: &[ScannedLine], mark: &Mark) -> bool {
    let last = usize::try_from(mark.entries).ok().and_then(|entries| entries.checked_sub(1));
    last.and_then(|last| lines.get(last))
        .is_some_and(|line| line.crc == mark.crc && line.bytes.end as u64 + 1 == mark.bytes)
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

pub(super) fn now_millis() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
