//! The index thread: writes sled's rows behind the journals, and survives sled.
//!
//! No session waits for it. What the queue cannot take is fetched from the journal later, and so is
//! everything after a damage, a lost lock or a full disk: the journals are all that it needs. It opens
//! sled when there is something to do and closes it soon after, because an open sled costs memory and
//! keeps other processes out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use super::header::{Mark, MarkedHeader};
use super::line::Bodies;
use super::rows::{self, Rows, RowsError};
use super::scan::{self, Scan, ScannedLine};
use super::{Places, StoreError, open_private, private_directory};
use crate::thread::SessionId;

/// Notes that wait for the thread. A turn makes some tens of entries.
const QUEUE_NOTES_MAX: usize = 256;

/// Bytes of lines that wait for the thread. Beyond, reading them from the journal is cheaper than
/// keeping them.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long sled stays open with nothing to do.
const IDLE_CLOSES: Duration = Duration::from_secs(10);

/// How long to leave sled alone after it could not be had. Another process that has it keeps it for
/// at least `IDLE_CLOSES` anyway.
const REFUSED_WAITS: Duration = Duration::from_secs(10);

/// How long a listing waits for sled's headers. Opening 500 MB takes half a second.
const HEADERS_WAIT: Duration = Duration::from_secs(1);

/// How long sled may take to end its threads and let go of its file. It can hang in there, above all
/// after a panic, and one that has not ended would write into its successor.
const CLOSE_WAITS: Duration = Duration::from_secs(5);

/// How long an orderly exit waits for the index. Nothing is lost if it takes longer.
const SETTLE_WAITS: Duration = Duration::from_secs(10);

/// Damaged directories that one process sets aside before it goes on without sled: a disk that
/// breaks each new one must not fill up with them.
const SET_ASIDE_MAX: usize = 3;

/// A handle on the thread, which starts with the first note and ends with the last handle.
#[derive(Clone)]
pub(super) struct Index {
    shared: Arc<Shared>,
}

struct Shared {
    places: Places,
    /// `None` inside if the thread could not be started: then there is no index.
    queue: OnceLock<Option<SyncSender<Note>>>,
    backlog: Arc<Backlog>,
}

/// What sessions and the thread both change.
#[derive(Default)]
struct Backlog {
    /// Sessions whose rows must be compared with their journal.
    behind: Mutex<BTreeSet<SessionId>>,
    /// Bytes of lines in the queue.
    queued_bytes: AtomicUsize,
}

enum Note {
    Row(Box<Row>),
    /// There is something in the backlog.
    Behind,
    Headers(SyncSender<BTreeMap<SessionId, MarkedHeader>>),
    Settle(SyncSender<()>),
}

/// An entry that was appended.
struct Row {
    before: Mark,
    after: MarkedHeader,
    /// Without its newline.
    line: Vec<u8>,
}

impl Index {
    pub fn new(places: Places) -> Index {
        Index { shared: Arc::new(Shared { places, queue: OnceLock::new(), backlog: Arc::default() }) }
    }

    /// Takes in an appended line; never blocks.
    pub fn row(&self, before: Mark, after: MarkedHeader, mut line: Vec<u8>) {
        line.pop();
        let bytes = line.len();
        let queued = self.shared.backlog.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let session = after.header.session.clone();
        let row = Note::Row(Box::new(Row { before, after, line }));
        if queued + bytes > QUEUE_BYTES_MAX || !self.offer(row) {
            self.shared.backlog.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.catch_up(&session);
        }
    }

    /// Has the session's rows compared with its journal, or removed with it; never blocks.
    pub fn catch_up(&self, session: &SessionId) {
        self.shared.backlog.add([session.clone()]);
        // A queue that is full has a note behind which the backlog will be looked at.
        self.offer(Note::Behind);
    }

    /// The headers that sled knows; none if it cannot be had in time.
    pub fn headers(&self) -> BTreeMap<SessionId, MarkedHeader> {
        let (answer, headers) = sync_channel(1);
        if !self.offer(Note::Headers(answer)) {
            return BTreeMap::new();
        }
        headers.recv_timeout(HEADERS_WAIT).unwrap_or_default()
    }

    /// Waits until all is taken in and sled is closed, or has had its time.
    pub fn settle(&self) {
        let Some(Some(queue)) = self.shared.queue.get() else { return };
        let queue = queue.clone();
        let settled = end_within(SETTLE_WAITS, move || {
            let (answer, settled) = sync_channel(1);
            if queue.send(Note::Settle(answer)).is_ok() {
                // An error means that the thread is gone, and sled with it.
                let _ = settled.recv();
            }
        });
        if !settled {
            tracing::warn!("the index did not settle in time");
        }
    }

    fn offer(&self, note: Note) -> bool {
        let queue = self.shared.queue.get_or_init(|| self.start());
        match queue.as_ref().map(|queue| queue.try_send(note)) {
            Some(Ok(())) => true,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => false,
        }
    }

    fn start(&self) -> Option<SyncSender<Note>> {
        let (queue, notes) = sync_channel(QUEUE_NOTES_MAX);
        let thread = Thread {
            places: self.shared.places.clone(),
            backlog: self.shared.backlog.clone(),
            open: None,
            refused: None,
            given_up: false,
            set_aside: 0,
        };
        let started = std::thread::Builder::new().name("epitome-index".into()).spawn(|| thread.run(notes));
        match started {
            Ok(_) => Some(queue),
            Err(error) => {
                tracing::warn!(%error, "the index thread cannot start; listings read the journals");
                None
            }
        }
    }
}

impl Backlog {
    fn add(&self, sessions: impl IntoIterator<Item = SessionId>) {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).extend(sessions);
    }

    fn take(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut *self.behind.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The thread's own state.
struct Thread {
    places: Places,
    backlog: Arc<Backlog>,
    open: Option<Open>,
    /// When sled could not be had.
    refused: Option<Instant>,
    given_up: bool,
    set_aside: usize,
}

/// An open sled, with the lock that keeps others from setting it aside meanwhile.
struct Open {
    rows: Rows,
    /// What the rows of a session are known to agree with.
    known: HashMap<SessionId, MarkedHeader>,
    lock: File,
}

impl Thread {
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
            // The backlog gets its turn even if sessions fill the queue as fast as it empties.
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
                // A listing alone is no reason to make a database.
                let exists = self.open.is_some() || self.places.db().exists();
                let headers = if exists { self.with(|open| open.rows.headers()) } else { None };
                // Whoever asked may have gone on without.
                let _ = answer.try_send(headers.unwrap_or_default());
            }
            Note::Settle(answer) => {
                self.work_off();
                self.close();
                let _ = answer.try_send(());
            }
        }
    }

    /// Writes a row if it is the next one of its session, and has the session caught up otherwise.
    fn write(&mut self, row: &Row) {
        let session = &row.after.header.session;
        let written = self.with(|open| {
            let known = open.known.get(session);
            if known.is_some_and(|known| known.mark.entries >= row.after.mark.entries) {
                // A catch-up took it from the journal while it waited here.
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

    /// Makes the rows of all sessions in the backlog what their journals say. What cannot be done
    /// now waits for the next note.
    fn work_off(&mut self) {
        // Damage on the way puts every session into the backlog again, hence a second round.
        for _ in 0..2 {
            for session in self.backlog.take() {
                if !self.catch_up(&session) {
                    self.backlog.add([session]);
                }
            }
        }
    }

    /// Whether the session needs no more.
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
            // Its rows stay as they are; a listing sees that they are not up to date.
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

    /// Does something with an open sled; `None` if it cannot be had or broke on the way.
    fn with<T>(&mut self, work: impl FnOnce(&mut Open) -> Result<T, RowsError>) -> Option<T> {
        if self.open.is_none() {
            self.open = self.open();
        }
        let open = self.open.as_mut()?;
        match guarded(|| work(open)) {
            Ok(done) => Some(done),
            Err(RowsError::Unavailable(error)) => {
                // A full disk makes sled's handle useless for good, so it is opened anew later.
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
            // Only a name that begins with `snap.` counts for sled.
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

    /// Takes the lock beside the database. sled has one of its own, but that one goes with the
    /// directory when it is set aside.
    fn lock(&self) -> std::io::Result<File> {
        private_directory(&self.places.data)?;
        private_directory(&self.places.db())?;
        let lock = open_private().write(true).create(true).open(self.places.data.join("db.lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(lock)
    }

    fn refuse(&mut self, reason: &str) {
        tracing::debug!(reason, "sled cannot be used for now; listings read the journals");
        self.refused = Some(Instant::now());
    }

    /// Puts a sled that broke while it was open out of the way.
    fn replace(&mut self, reason: &str) {
        let Some(Open { rows, known: _, lock }) = self.open.take() else { return };
        if self.end(rows) {
            self.set_aside(reason);
            drop(lock);
        } else {
            // As long as its threads live, nobody else may use the directory.
            std::mem::forget(lock);
        }
    }

    fn close(&mut self) {
        let Some(Open { rows, known: _, lock }) = self.open.take() else { return };
        if self.end(rows) {
            drop(lock);
        } else {
            std::mem::forget(lock);
        }
    }

    /// Ends sled, or gives it up for this process if it does not end in time.
    fn end(&mut self, rows: Rows) -> bool {
        let file = rows::lock_file(&self.places.db());
        let ended = end_within(CLOSE_WAITS, move || {
            drop(rows);
            // Its threads may hold the file for a moment longer: have its lock once, to see it free.
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

    /// Renames the directory and has everything rebuilt. The lock must be held.
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

/// Whether the mark is one that the journal of these lines once had.
fn ends_in(lines: &[ScannedLine], mark: &Mark) -> bool {
    let last = usize::try_from(mark.entries).ok().and_then(|entries| entries.checked_sub(1));
    last.and_then(|last| lines.get(last))
        .is_some_and(|line| line.crc == mark.crc && line.bytes.end as u64 + 1 == mark.bytes)
}

/// Runs something that may panic in sled.
fn guarded<T>(work: impl FnOnce() -> Result<T, RowsError>) -> Result<T, RowsError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without words");
        Err(RowsError::Damaged(format!("it panicked: {message}")))
    })
}

/// Whether the work ended in time. If not, it goes on by itself.
fn end_within(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (ended, end) = sync_channel(1);
    let started = std::thread::Builder::new().name("epitome-index-end".into()).spawn(move || {
        let _ = catch_unwind(AssertUnwindSafe(work));
        let _ = ended.try_send(());
    });
    started.is_ok() && end.recv_timeout(limit).is_ok()
}

fn now_millis() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::paths::Paths;
    use crate::thread::{Change, FORMAT_VERSION, MessageId};

    fn session(number: u64) -> SessionId {
        SessionId(format!("s_{number:020x}"))
    }

    fn titled(title: &str) -> Change {
        Change::Titled { title: title.to_owned() }
    }

    /// What a person said: only then is a session indexed.
    fn prompted(typed: &str) -> Change {
        Change::Commanded { message: MessageId(0), typed: typed.to_owned() }
    }

    /// Writes a session of so many entries beside its opening, and closes it.
    fn write_session(store: &Store, number: u64, entries: usize) {
        let opened = Change::Opened { format: FORMAT_VERSION, session: session(number), cwd: "/w".into() };
        let (mut journal, _) = store.create(&session(number), opened).unwrap();
        (0..entries).for_each(|n| drop(journal.append(prompted(&n.to_string())).unwrap()));
    }

    /// Whether sled says of a session just what its journal says.
    fn agrees(store: &Store, number: u64) -> bool {
        store.settle();
        let bytes = scan::read_file(&store.places, &session(number)).unwrap();
        let scan = Scan::of(&session(number), &bytes, Bodies::Inline).unwrap();
        let lines: Vec<&[u8]> = scan.lines.iter().map(|line| &bytes[line.bytes.clone()]).collect();
        let rows = Rows::open(&store.places.db()).unwrap();
        let marked = rows.header(&session(number)).unwrap();
        rows.lines(&session(number)).unwrap() == lines
            && marked == Some(MarkedHeader { header: scan.header, mark: scan.mark })
    }

    fn home() -> (tempfile::TempDir, Store) {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(&Paths::below(home.path()));
        (home, store)
    }

    #[test]
    fn sled_says_what_the_journal_says() {
        let (_home, store) = home();
        write_session(&store, 1, 3);
        assert!(agrees(&store, 1));
        let (mut journal, _) = store.load(&session(1)).unwrap();
        journal.append(titled(&"x".repeat(60_000))).unwrap();
        journal.append(Change::Planned { steps: Vec::new() }).unwrap();
        assert!(agrees(&store, 1), "also after sled was closed and opened again");
    }

    #[test]
    fn what_the_queue_does_not_take_is_fetched_from_the_journal() {
        let (_home, store) = home();
        // The thread cannot be quicker than this many appends, but need not be slower either: both
        // ways must come to the same.
        write_session(&store, 1, 10 * QUEUE_NOTES_MAX);
        write_session(&store, 2, 1);
        assert!(agrees(&store, 1));
        assert!(agrees(&store, 2));
    }

    #[test]
    fn a_journal_that_is_ahead_is_replayed() {
        let (home, store) = home();
        write_session(&store, 1, 3);
        store.settle();
        // As by a process that cannot have sled.
        let lock = File::open(home.path().join("data/db.lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let other = Store::new(&Paths::below(home.path()));
        let (mut journal, _) = other.load(&session(1)).unwrap();
        journal.append(titled("unseen")).unwrap();
        drop(journal);
        other.settle();
        drop(lock);

        let (mut journal, _) = store.load(&session(1)).unwrap();
        journal.append(titled("seen")).unwrap();
        assert!(agrees(&store, 1));
    }

    #[test]
    fn a_sled_that_is_ahead_drops_what_the_journal_lost() {
        let (_home, store) = home();
        write_session(&store, 1, 5);
        store.settle();
        // A power loss took the last two entries from the journal alone.
        let path = store.places.journal(&session(1));
        let bytes = std::fs::read(&path).unwrap();
        let scan = Scan::of(&session(1), &bytes, Bodies::Inline).unwrap();
        std::fs::write(&path, &bytes[..scan.lines[3].bytes.end + 1]).unwrap();

        let (mut journal, entries) = store.load(&session(1)).unwrap();
        assert_eq!(entries.len(), 4);
        journal.append(titled("another life")).unwrap();
        assert!(agrees(&store, 1));
    }

    #[test]
    fn rows_of_a_deleted_session_go() {
        let (_home, store) = home();
        write_session(&store, 1, 5);
        write_session(&store, 2, 5);
        store.settle();
        store.delete(&session(1)).unwrap();
        assert!(agrees(&store, 2));
        let rows = Rows::open(&store.places.db()).unwrap();
        assert_eq!(rows.header(&session(1)).unwrap(), None);
        assert!(rows.lines(&session(1)).unwrap().is_empty());
    }

    #[test]
    fn a_directory_that_sled_cannot_open_is_set_aside_and_rebuilt() {
        let (home, store) = home();
        write_session(&store, 1, 5);
        write_session(&store, 2, 5);
        store.settle();
        std::fs::write(store.places.db().join("conf"), "no configuration of sled's").unwrap();
        drop(store);

        let store = Store::new(&Paths::below(home.path()));
        let (mut journal, _) = store.load(&session(1)).unwrap();
        journal.append(titled("seen")).unwrap();
        assert!(agrees(&store, 1));
        assert!(agrees(&store, 2), "also what nobody has touched since");
        let names = std::fs::read_dir(&store.places.data).unwrap();
        let aside = names
            .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("db.corrupt-"));
        assert_eq!(aside.count(), 1);
    }

    #[test]
    fn a_panic_in_an_open_sled_ends_it_alone() {
        let (_home, store) = home();
        write_session(&store, 1, 5);
        store.settle();
        let mut thread = Thread {
            places: store.places.clone(),
            backlog: Arc::default(),
            open: None,
            refused: None,
            given_up: false,
            set_aside: 0,
        };
        assert!(thread.with(|_| Ok(())).is_some());
        assert!(thread.with::<()>(|_| panic!("as sled does")).is_none());
        thread.work_off();
        assert!(thread.open.is_some());
        thread.close();
        assert!(agrees(&store, 1));

        // A disk that breaks each new one is not filled up with them.
        for _ in 0..2 * SET_ASIDE_MAX {
            thread.with::<()>(|_| panic!("as sled does"));
        }
        assert!(thread.given_up);
        let count = std::fs::read_dir(&store.places.data).unwrap().count();
        assert!(count < 10, "{count}");
    }
}
