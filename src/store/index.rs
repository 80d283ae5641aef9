//! The handle on the index: sessions report appended entries, listings request headers.
//!
//! No session ever waits for it. Rows that don't fit into the queue are later read from the journal. It does
//! not access sled; the thread at the end of the queue does (`index_thread`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::Places;
use super::header::{Mark, MarkedHeader};
use super::health::{IndexState, Rebuilt};
use super::index_thread::{Thread, end_within};
use epitome_thread::SessionId;

/// Notes that may wait for the thread. A turn produces a few dozen entries.
pub(super) const QUEUE_NOTES_MAX: usize = 256;

/// Bytes of lines that may wait for the thread. Beyond that, reading them from the journal is cheaper than
/// keeping them.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a listing waits for sled's headers. Opening 500 MB takes half a second.
const HEADERS_WAIT: Duration = Duration::from_secs(1);

/// How long a clean exit waits for the index. Nothing is lost if it takes longer.
const SETTLE_WAITS: Duration = Duration::from_secs(10);

/// How long a caller waits while the complete index is compared or rebuilt.
const WHOLE_WAITS: Duration = Duration::from_secs(600);

/// A handle on the index thread, which starts with the first note and ends with the last handle.
#[derive(Clone)]
pub(super) struct Index {
    shared: Arc<Shared>,
}

struct Shared {
    places: Places,
    /// Contains `None` if the thread could not be started; then there is no index.
    queue: OnceLock<Option<SyncSender<Note>>>,
    backlog: Arc<Backlog>,
}

/// State shared by sessions and the thread.
#[derive(Default)]
pub(super) struct Backlog {
    /// Sessions whose rows must be compared with their journal.
    behind: Mutex<BTreeSet<SessionId>>,
    /// Bytes of lines in the queue.
    pub queued_bytes: AtomicUsize,
}

pub(super) enum Note {
    Row(Box<Row>),
    /// There are sessions in the backlog.
    Behind,
    Headers(SyncSender<BTreeMap<SessionId, MarkedHeader>>),
    Settle(SyncSender<()>),
    Compare(SyncSender<IndexState>),
    Rebuild(Keep, SyncSender<Result<Rebuilt, String>>),
}

/// What happens to the old index on a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// It is renamed and kept, because it was damaged.
    Aside,
    /// It is removed, because the new one has the same content.
    Nothing,
}

/// An appended entry.
pub(super) struct Row {
    pub before: Mark,
    pub after: MarkedHeader,
    /// Without its newline.
    pub line: Vec<u8>,
}

impl Index {
    pub fn new(places: Places) -> Index {
        Index { shared: Arc::new(Shared { places, queue: OnceLock::new(), backlog: Arc::default() }) }
    }

    /// Bytes of rows waiting for the thread.
    pub fn waiting_bytes(&self) -> usize {
        self.shared.backlog.queued_bytes.load(Ordering::Relaxed)
    }

    /// Queues an appended line; never blocks.
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

    /// Requests that the session's rows are updated from its journal, or removed if that is gone; never
    /// blocks.
    pub fn catch_up(&self, session: &SessionId) {
        self.shared.backlog.add([session.clone()]);
        // If the queue is full, the backlog is processed after the notes already in it.
        self.offer(Note::Behind);
    }

    /// The headers stored in sled; empty if it is not available in time.
    pub fn headers(&self) -> BTreeMap<SessionId, MarkedHeader> {
        let (answer, headers) = sync_channel(1);
        if !self.offer(Note::Headers(answer)) {
            return BTreeMap::new();
        }
        headers.recv_timeout(HEADERS_WAIT).unwrap_or_default()
    }

    /// Compares sled with the journals, reading all of both.
    pub fn compare(&self) -> IndexState {
        let (answer, state) = sync_channel(1);
        let asked = self.offer(Note::Compare(answer));
        let state = asked.then(|| state.recv_timeout(WHOLE_WAITS).ok()).flatten();
        state.unwrap_or_else(|| IndexState::Unknown { reason: "the index thread does not answer".to_owned() })
    }

    /// Rebuilds sled from the journals. The error is a sentence.
    pub fn rebuild(&self, keep: Keep) -> Result<Rebuilt, String> {
        let (answer, rebuilt) = sync_channel(1);
        let asked = self.offer(Note::Rebuild(keep, answer));
        let rebuilt = asked.then(|| rebuilt.recv_timeout(WHOLE_WAITS).ok()).flatten();
        rebuilt.unwrap_or_else(|| Err("the index thread does not answer".to_owned()))
    }

    /// Waits until everything is indexed and sled is closed, at most `SETTLE_WAITS`.
    pub fn settle(&self) {
        let Some(Some(queue)) = self.shared.queue.get() else { return };
        let queue = queue.clone();
        let settled = end_within(SETTLE_WAITS, move || {
            let (answer, settled) = sync_channel(1);
            if queue.send(Note::Settle(answer)).is_ok() {
                // An error means that the thread has ended, which closes sled as well.
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
        let started = Thread::start(self.shared.places.clone(), self.shared.backlog.clone(), notes);
        match started {
            Ok(()) => Some(queue),
            Err(error) => {
                tracing::warn!(%error, "the index thread cannot start; listings read the journals");
                None
            }
        }
    }
}

impl Backlog {
    pub fn add(&self, sessions: impl IntoIterator<Item = SessionId>) {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).extend(sessions);
    }

    pub fn take(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut *self.behind.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
