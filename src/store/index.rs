//! The handle on the index: sessions report their headers, listings request all of them.
//!
//! No session ever waits for it. It does not access sled; the thread at the end of the queue does
//! (`index_thread`).

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::StorePaths;
use super::header::MarkedHeader;
use super::health::{IndexState, Rebuilt};
use super::index_thread::{IndexThread, end_within};
use super::rows::Headers;
use epitome_thread::SessionId;

/// Requests that may wait for the thread. Updates are not lost beyond that: they wait in `PendingUpdates`.
pub(super) const QUEUE_MAX: usize = 256;

/// How long a listing waits for sled's headers.
const HEADERS_WAIT: Duration = Duration::from_secs(1);

/// How long a clean exit waits for the index. Nothing is lost if it takes longer.
const SETTLE_WAITS: Duration = Duration::from_secs(10);

/// How long a caller waits while the complete index is compared or rebuilt.
const WHOLE_WAITS: Duration = Duration::from_secs(600);

/// A handle on the index thread, which starts with the first request and ends with the last handle.
#[derive(Clone)]
pub(super) struct Index {
    shared: Arc<IndexShared>,
}

struct IndexShared {
    paths: StorePaths,
    /// Contains `None` if the thread could not be started; then there is no index.
    queue: OnceLock<Option<SyncSender<IndexRequest>>>,
    pending: Arc<PendingUpdates>,
}

/// Updates that wait for the thread: of each session only the newest.
#[derive(Default)]
pub(super) struct PendingUpdates(Mutex<BTreeMap<SessionId, RowUpdate>>);

/// A change of one session's row.
pub(super) enum RowUpdate {
    Header(Arc<MarkedHeader>),
    /// Read it from the session's journal, or remove the row if the journal does not exist.
    FromJournal,
}

pub(super) enum IndexRequest {
    /// There are pending updates.
    Update,
    Headers(SyncSender<Arc<Headers>>),
    Settle(SyncSender<()>),
    Compare(SyncSender<IndexState>),
    Rebuild(OldIndex, SyncSender<Result<Rebuilt, String>>),
}

/// What a rebuild does with the old index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldIndex {
    /// It is renamed and kept, because it was damaged.
    Aside,
    /// It is removed, because the new one has the same content.
    Nothing,
}

impl Index {
    pub fn new(paths: StorePaths) -> Index {
        Index { shared: Arc::new(IndexShared { paths, queue: OnceLock::new(), pending: Arc::default() }) }
    }

    /// An index that is never available.
    pub fn absent(paths: StorePaths) -> Index {
        let index = Index::new(paths);
        // The cell is new, so setting it succeeds.
        let _ = index.shared.queue.set(None);
        index
    }

    /// Bytes of headers waiting for the thread, without their texts.
    pub fn waiting_bytes(&self) -> usize {
        self.shared.pending.lock().len() * size_of::<MarkedHeader>()
    }

    /// Stores a session's newest header; never blocks.
    pub fn update(&self, header: Arc<MarkedHeader>) {
        if let Some(None) = self.shared.queue.get() {
            return;
        }
        let session = header.header.session.clone();
        self.shared.pending.lock().insert(session, RowUpdate::Header(header));
        // If the queue is full, the update is processed after the requests already in it.
        self.send(IndexRequest::Update);
    }

    /// Requests that a session's header is read from its journal, or removed if the journal does not exist; never
    /// blocks.
    pub fn catch_up(&self, session: &SessionId) {
        self.shared.pending.read_from_journal([session.clone()]);
        self.send(IndexRequest::Update);
    }

    /// The headers stored in sled; empty if it is not available in time.
    pub fn headers(&self) -> Arc<Headers> {
        self.request(HEADERS_WAIT, IndexRequest::Headers).unwrap_or_default()
    }

    /// Compares sled with the journals, reading all of both.
    pub fn compare(&self) -> IndexState {
        let state = self.request(WHOLE_WAITS, IndexRequest::Compare);
        state.unwrap_or_else(|| IndexState::Unknown { reason: "the index thread does not answer".to_owned() })
    }

    /// Rebuilds sled from the journals. The error is a sentence.
    pub fn rebuild(&self, keep: OldIndex) -> Result<Rebuilt, String> {
        let rebuilt = self.request(WHOLE_WAITS, |answer| IndexRequest::Rebuild(keep, answer));
        rebuilt.unwrap_or_else(|| Err("the index thread does not answer".to_owned()))
    }

    /// Waits until everything is indexed and sled is closed, at most `SETTLE_WAITS`.
    pub fn settle(&self) {
        let Some(Some(queue)) = self.shared.queue.get() else { return };
        let queue = queue.clone();
        let settled = end_within(SETTLE_WAITS, move || {
            let (answer, settled) = sync_channel(1);
            if queue.send(IndexRequest::Settle(answer)).is_ok() {
                // An error means that the thread has ended, which closes sled as well.
                let _ = settled.recv();
            }
        });
        if !settled {
            tracing::warn!("the index did not settle in time");
        }
    }

    /// Sends a request and waits for its answer; `None` if there is none in time.
    fn request<T>(&self, limit: Duration, request: impl FnOnce(SyncSender<T>) -> IndexRequest) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        if self.send(request(answer)) { answered.recv_timeout(limit).ok() } else { None }
    }

    fn send(&self, request: IndexRequest) -> bool {
        let queue = self.shared.queue.get_or_init(|| self.start());
        match queue.as_ref().map(|queue| queue.try_send(request)) {
            Some(Ok(())) => true,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => false,
        }
    }

    fn start(&self) -> Option<SyncSender<IndexRequest>> {
        let (queue, requests) = sync_channel(QUEUE_MAX);
        let started = IndexThread::start(self.shared.paths.clone(), self.shared.pending.clone(), requests);
        match started {
            Ok(()) => Some(queue),
            Err(error) => {
                tracing::warn!(%error, "the index thread cannot start; listings read the journals");
                None
            }
        }
    }
}

impl PendingUpdates {
    pub fn read_from_journal(&self, sessions: impl IntoIterator<Item = SessionId>) {
        self.lock().extend(sessions.into_iter().map(|session| (session, RowUpdate::FromJournal)));
    }

    pub fn take(&self) -> BTreeMap<SessionId, RowUpdate> {
        std::mem::take(&mut *self.lock())
    }

    /// Returns updates that failed, unless there are newer ones.
    pub fn put_back(&self, session: SessionId, update: RowUpdate) {
        self.lock().entry(session).or_insert(update);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, RowUpdate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
