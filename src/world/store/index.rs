//! The handle on the index: sessions report their headers, listings request all of them.
//!
//! No session ever waits for it. It does not access sled; the thread at the end of the queue does
//! (`index_thread`).

use super::index_thread::RebuildError;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::StorePaths;
use super::header::{JournalMark, MarkedHeader};
use super::health::{IndexState, Rebuilt};
use super::index_compare::IndexComparison;
use super::index_thread::{IndexThread, end_within};
use super::rows::{Headers, Rows};
use super::saved_thread::SavedEntries;
use epitome_thread::{SessionId, ThreadState};

/// Requests that may wait for the thread. Updates are not lost beyond that: they wait in `PendingUpdates`.
pub(super) const QUEUE_MAX: usize = 256;

/// How long a listing waits for sled's headers.
const HEADERS_WAIT: Duration = Duration::from_secs(1);

/// How long the opening of a session, and the reading of its older entries, wait for sled before they read the journal.
const THREAD_WAIT: Duration = Duration::from_secs(1);

/// How long a clean exit waits for the index. Nothing is lost if it takes longer.
const SETTLE_WAITS: Duration = Duration::from_secs(10);

/// How long a caller waits while the complete index is compared or rebuilt.
const WHOLE_WAITS: Duration = Duration::from_secs(600);

/// A handle on the index thread, which starts with the first request and ends with the last handle.
#[derive(Clone)]
pub(super) struct Index {
    paths: StorePaths,
    /// Contains `None` if the thread could not be started; then there is no index.
    queue: Arc<OnceLock<Option<SyncSender<IndexWork>>>>,
    pending: Arc<PendingUpdates>,
}

/// Updates that wait for the thread: of each session only the newest.
#[derive(Default)]
pub(super) struct PendingUpdates(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    updates: BTreeMap<SessionId, RowUpdate>,
    /// States of threads that are to be saved.
    threads: BTreeMap<SessionId, UnsavedThread>,
    /// The thread knows that there are some.
    is_announced: bool,
}

/// The state of a thread at the end of its journal, which is to be saved.
pub(super) struct UnsavedThread {
    pub marked: Arc<MarkedHeader>,
    /// The journal's first line, without its newline.
    pub opening: Vec<u8>,
    pub state: Arc<ThreadState>,
    /// Receives the entries before its position, once they are stored.
    pub stored: Arc<Mutex<Option<SavedEntries>>>,
}

/// A change of one session's row.
pub(super) enum RowUpdate {
    Header(Arc<MarkedHeader>),
    /// Read it from the session's journal, or remove the row if the journal does not exist.
    FromJournal,
}

/// Something for the thread to do.
pub(super) enum IndexWork {
    /// Updates are pending. Those of the next moment are written with them.
    Update,
    /// Work that somebody waits for; then the pending updates are written.
    Request(Box<dyn FnOnce(&mut IndexThread) + Send>),
}

/// The fate of the old index in a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldIndex {
    /// It is renamed and kept, because it was damaged.
    Aside,
    /// It is removed, because the new one has the same content.
    Nothing,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Index").field(&self.paths.data).finish()
    }
}

impl Index {
    pub fn new(paths: StorePaths) -> Index {
        Index { paths, queue: Arc::default(), pending: Arc::default() }
    }

    /// An index that is never available.
    pub fn absent(paths: StorePaths) -> Index {
        let index = Index::new(paths);
        // The cell is new, so setting it succeeds.
        let _ = index.queue.set(None);
        index
    }

    /// Bytes of headers waiting for the thread, without their texts.
    pub fn waiting_bytes(&self) -> usize {
        self.pending.0.lock().updates.len() * size_of::<MarkedHeader>()
    }

    /// Stores a session's newest header; never blocks.
    pub fn update(&self, header: Arc<MarkedHeader>) {
        if let Some(None) = self.queue.get() {
            return;
        }
        self.announce(header.header.session.clone(), RowUpdate::Header(header));
    }

    /// Requests that a session's header is read from its journal, or removed if the journal does not exist; never
    /// blocks.
    pub fn catch_up(&self, session: &SessionId) {
        self.announce(session.clone(), RowUpdate::FromJournal);
    }

    /// Saves the state of a thread, after everything up to its position is stored; never blocks.
    pub fn save_thread(&self, thread: UnsavedThread) {
        if let Some(None) = self.queue.get() {
            return;
        }
        let (session, marked) = (thread.marked.header.session.clone(), thread.marked.clone());
        self.pending.0.lock().threads.insert(session.clone(), thread);
        self.announce(session, RowUpdate::Header(marked));
    }

    /// The saved state of a thread; `None` if there is none, or sled is not available in time.
    pub fn saved_thread(&self, session: &SessionId) -> Option<Vec<u8>> {
        let session = session.clone();
        self.request(THREAD_WAIT, move |thread| thread.read(|rows| rows.thread(&session)))??
    }

    /// The lines of these entries; `None` if sled is not available in time.
    pub fn lines(&self, session: &SessionId, entries: Range<u64>) -> Option<Vec<Vec<u8>>> {
        let session = session.clone();
        self.request(THREAD_WAIT, move |thread| thread.read(|rows| rows.lines(&session, entries)))?
    }

    /// Those of the lines of these entries that are stored; `None` if sled is not available in time.
    pub fn lines_of(&self, session: &SessionId, entries: Vec<u64>) -> Option<BTreeMap<u64, Vec<u8>>> {
        let session = session.clone();
        let read = move |rows: &Rows| {
            let line = |entry: u64| Ok(rows.line(&session, entry)?.map(|line| (entry, line)));
            entries.into_iter().filter_map(|entry| line(entry).transpose()).collect()
        };
        self.request(THREAD_WAIT, move |thread| thread.read(read))?
    }

    /// Stores the lines of a journal up to a mark again, because those that are stored are wrong; never blocks.
    pub fn follow_again(&self, session: &SessionId, until: JournalMark) {
        let session = session.clone();
        self.send(IndexWork::Request(Box::new(move |thread| thread.follow_again(&session, until))));
    }

    /// Reads a journal up to a mark, because the session was opened without reading that part. If it is damaged, forgets
    /// the saved state and reports it. Does not block; `false` if it can't be done.
    #[must_use]
    pub fn examine(
        &self,
        session: &SessionId,
        until: JournalMark,
        report: impl FnOnce() + Send + 'static,
    ) -> bool {
        let session = session.clone();
        let examine = move |thread: &mut IndexThread| {
            if !thread.examine(&session, until) {
                report();
            }
        };
        self.send(IndexWork::Request(Box::new(examine)))
    }

    fn announce(&self, session: SessionId, update: RowUpdate) {
        let mut pending = self.pending.0.lock();
        pending.updates.insert(session, update);
        if !std::mem::replace(&mut pending.is_announced, true) {
            // If the queue is full, the update is processed after the requests already in it.
            self.send(IndexWork::Update);
        }
    }

    /// The headers stored in sled; empty if it is not available in time.
    pub fn headers(&self) -> Arc<Headers> {
        self.request(HEADERS_WAIT, IndexThread::headers).unwrap_or_default()
    }

    /// Begins a comparison of sled with the journals.
    pub(super) fn comparison(&self) -> Result<IndexComparison, IndexState> {
        self.request(WHOLE_WAITS, IndexThread::comparison).unwrap_or_else(|| {
            Err(IndexState::Unknown { reason: "the index thread does not answer".to_owned() })
        })
    }

    /// Rebuilds sled from the journals.
    pub fn rebuild(&self, keep: OldIndex) -> Result<Rebuilt, RebuildError> {
        let rebuilt = self.request(WHOLE_WAITS, move |thread| thread.rebuild(keep));
        rebuilt.unwrap_or_else(|| Err(RebuildError::NoAnswer))
    }

    /// Waits until everything is indexed and sled is closed, at most `SETTLE_WAITS`.
    pub fn settle(&self) {
        let Some(Some(queue)) = self.queue.get() else { return };
        let queue = queue.clone();
        let settled = end_within(SETTLE_WAITS, move || {
            let (answer, settled) = sync_channel(1);
            let settle = move |thread: &mut IndexThread| {
                thread.process_updates();
                thread.close();
                let _ = answer.try_send(());
            };
            if queue.send(IndexWork::Request(Box::new(settle))).is_ok() {
                // An error means that the thread has ended, which closes sled as well.
                let _ = settled.recv();
            }
        });
        if !settled {
            tracing::warn!("the index did not settle in time");
        }
    }

    /// Waits for the result of some work; `None` if there is none in time.
    fn request<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&mut IndexThread) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        let work = move |thread: &mut IndexThread| drop(answer.try_send(work(thread)));
        if self.send(IndexWork::Request(Box::new(work))) { answered.recv_timeout(limit).ok() } else { None }
    }

    fn send(&self, work: IndexWork) -> bool {
        let queue = self.queue.get_or_init(|| self.start());
        queue.as_ref().is_some_and(|queue| queue.try_send(work).is_ok())
    }

    fn start(&self) -> Option<SyncSender<IndexWork>> {
        let (queue, requests) = sync_channel(QUEUE_MAX);
        IndexThread::start(self.paths.clone(), self.pending.clone(), requests)
            .inspect_err(|error| {
                tracing::warn!(%error, "the index thread cannot start; listings read the journals");
            })
            .ok()?;
        Some(queue)
    }
}

impl PendingUpdates {
    pub fn read_from_journal(&self, sessions: impl IntoIterator<Item = SessionId>) {
        let updates = sessions.into_iter().map(|session| (session, RowUpdate::FromJournal));
        self.0.lock().updates.extend(updates);
    }

    pub fn take(&self) -> (BTreeMap<SessionId, RowUpdate>, BTreeMap<SessionId, UnsavedThread>) {
        let Pending { updates, threads, .. } = std::mem::take(&mut *self.0.lock());
        (updates, threads)
    }

    /// Returns updates that failed, unless there are newer ones.
    pub fn put_back(&self, session: SessionId, update: RowUpdate, thread: Option<UnsavedThread>) {
        let mut pending = self.0.lock();
        if let Some(thread) = thread {
            pending.threads.entry(session.clone()).or_insert(thread);
        }
        pending.updates.entry(session).or_insert(update);
    }
}
