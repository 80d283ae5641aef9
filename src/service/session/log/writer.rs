//! Writes staged entries to the journal in order on a blocking thread, and reports its progress. The thread exists
//! only while there are entries to write.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use epitome_platform::blocking;
use epitome_store::{JournalHead, JournalWriter, StoreError, Syncer};
use epitome_thread::{Entry, Seq, SessionId};

/// The writer of a session's log. Dropping it lets other processes open the session.
pub struct LogWriter {
    shared: Arc<SharedWriter>,
    progress: watch::Receiver<WriteProgress>,
}

/// An entry that could not be written.
#[derive(Clone, Debug)]
pub struct WriteFailure {
    pub from: Seq,
    pub error: Arc<StoreError>,
}

/// Makes all entries durable that were staged when it was created.
pub struct LogSyncer {
    progress: watch::Receiver<WriteProgress>,
    /// All entries before this one are synced.
    through: Seq,
    rewinds: u64,
    shared: Arc<SharedSync>,
}

/// The state that the writer and the syncers of a log share.
struct SharedSync {
    session: SessionId,
    syncer: Syncer,
    /// All entries before this one are on disk.
    synced: AtomicU64,
}

struct SharedWriter {
    sync: Arc<SharedSync>,
    queue: Mutex<WriteQueue>,
    /// `None` once it is closed.
    journal: Mutex<Option<JournalWriter>>,
    progress: watch::Sender<WriteProgress>,
}

#[derive(Default)]
struct WriteQueue {
    entries: VecDeque<Arc<Entry>>,
    has_thread: bool,
    /// The thread syncs the journal once the queue is empty.
    syncs_then: bool,
}

/// The progress of a writer.
#[derive(Clone, Debug, Default)]
struct WriteProgress {
    /// All entries before this one are written.
    next: Seq,
    /// A failure stops all writing until the session rewinds.
    failure: Option<WriteFailure>,
    rewinds: u64,
    /// The failure that caused the last rewind.
    rewound: Option<WriteFailure>,
    /// The writing thread is going to sync the journal, or is doing it.
    is_syncing: bool,
    /// The last sync of the writing thread: of all entries before this one.
    sync: Option<(Seq, Result<(), Arc<StoreError>>)>,
}

impl LogWriter {
    pub fn new(journal: JournalWriter, head: &JournalHead) -> LogWriter {
        let (sender, progress) =
            watch::channel(WriteProgress { next: head.next(), ..WriteProgress::default() });
        let sync = SharedSync {
            session: journal.session().clone(),
            syncer: head.syncer(),
            synced: AtomicU64::new(head.next().0),
        };
        let shared = SharedWriter {
            sync: Arc::new(sync),
            queue: Mutex::default(),
            journal: Mutex::new(Some(journal)),
            progress: sender,
        };
        LogWriter { shared: Arc::new(shared), progress }
    }

    pub fn write(&self, entry: Arc<Entry>) {
        let mut queue = self.shared.queue.lock();
        queue.entries.push_back(entry);
        self.shared.start(&mut queue);
    }

    /// Syncs the staged entries, on the thread that writes them: the answer need not wait for another thread to wake
    /// up. Entries that are staged from now on are written after the sync.
    pub fn sync_then(&self) {
        let mut queue = self.shared.queue.lock();
        queue.syncs_then = true;
        self.shared.progress.send_modify(|progress| progress.is_syncing = true);
        self.shared.start(&mut queue);
    }

    /// Waits until an entry is written or has failed.
    pub async fn wrote(&mut self, entry: Seq) -> Result<(), WriteFailure> {
        let is_over = |progress: &WriteProgress| progress.next > entry || progress.failure.is_some();
        // The sender lives in `shared`, so waiting can't fail.
        let progress = self.progress.wait_for(is_over).await;
        let failure = progress.ok().and_then(|progress| progress.failure.clone());
        failure.map_or(Ok(()), Err)
    }

    /// Resumes writing after a failure; entries staged since are discarded.
    pub fn rewind(&self) {
        // Under the lock, so that no older entry is dequeued and written afterwards.
        let mut queue = self.shared.queue.lock();
        queue.entries.clear();
        self.shared.progress.send_modify(|progress| {
            progress.rewound = progress.failure.take();
            progress.rewinds += 1;
        });
    }

    /// Lets other processes open the session. Nothing is written any more, although a writing thread may keep `shared` alive a
    /// little longer.
    pub fn close(&self) {
        drop(self.shared.journal.lock().take());
    }

    /// A syncer for the entries that are staged now.
    pub fn syncer(&self, head: &JournalHead) -> LogSyncer {
        let progress = self.progress.clone();
        let through = if head.is_stored() { head.next() } else { Seq(0) };
        let rewinds = progress.borrow().rewinds;
        LogSyncer { progress, through, rewinds, shared: self.shared.sync.clone() }
    }

    /// All entries before this one are on disk.
    pub fn synced(&self) -> Seq {
        Seq(self.shared.sync.synced.load(Ordering::Acquire))
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.close();
    }
}

impl SharedWriter {
    fn start(self: &Arc<SharedWriter>, queue: &mut WriteQueue) {
        if !std::mem::replace(&mut queue.has_thread, true) {
            let shared = self.clone();
            drop(blocking::start(move || shared.drain()));
        }
    }

    /// Writes until the queue is empty, and syncs then if it was asked to.
    fn drain(&self) {
        loop {
            let (entry, syncs) = {
                let mut queue = self.queue.lock();
                let has_failed = self.progress.borrow().failure.is_some();
                let entry = queue.entries.pop_front().filter(|_| !has_failed);
                let syncs = entry.is_none() && std::mem::take(&mut queue.syncs_then);
                queue.has_thread = entry.is_some() || syncs;
                (entry, syncs)
            };
            if syncs {
                let through = self.progress.borrow().next;
                let synced = self.sync(through).map_err(Arc::new);
                self.progress.send_modify(|progress| {
                    (progress.is_syncing, progress.sync) = (false, Some((through, synced)));
                });
                continue;
            }
            let Some(entry) = entry else { return };
            match self.write(&entry) {
                Ok(()) => self.progress.send_modify(|progress| progress.next = Seq(entry.seq.0 + 1)),
                Err(error) => {
                    let failure = WriteFailure { from: entry.seq, error: Arc::new(error) };
                    self.progress.send_modify(|progress| progress.failure = Some(failure));
                }
            }
        }
    }

    fn unstorable(&self, reason: &str) -> StoreError {
        StoreError::Unstorable { session: self.sync.session.clone(), reason: reason.to_owned() }
    }

    fn sync(&self, through: Seq) -> Result<(), StoreError> {
        catch_unwind(AssertUnwindSafe(|| self.sync.run(through)))
            .unwrap_or_else(|_| Err(self.unstorable("syncing it panicked")))
    }

    fn write(&self, entry: &Entry) -> Result<(), StoreError> {
        let mut journal = self.journal.lock();
        // A session ends only after its last entry is written, unless it panics.
        let Some(journal) = journal.as_mut() else { return Err(self.unstorable("the session has ended")) };
        catch_unwind(AssertUnwindSafe(|| journal.write(entry)))
            .unwrap_or_else(|_| Err(self.unstorable("writing it panicked")))
    }
}

impl SharedSync {
    /// Syncs the journal, to which all entries before this one are written. Blocks on the disk.
    fn run(&self, through: Seq) -> Result<(), StoreError> {
        self.syncer.sync()?;
        self.synced.fetch_max(through.0, Ordering::AcqRel);
        Ok(())
    }
}

impl LogSyncer {
    /// Returns once the entries are on the disk.
    pub async fn sync(mut self) -> Result<(), Arc<StoreError>> {
        let is_over = |progress: &WriteProgress| {
            progress.next >= self.through || progress.failure.is_some() || progress.rewinds != self.rewinds
        };
        let over = self.progress.wait_for(is_over).await.map(|progress| progress.clone());
        let progress = over.unwrap_or_else(|_| self.progress.borrow().clone());
        // After a rewind the numbers may belong to other entries.
        let given_up = match progress.rewinds - self.rewinds {
            0 => progress.failure.filter(|failure| failure.from < self.through),
            1 => progress.rewound.filter(|failure| failure.from < self.through),
            _ => progress.rewound,
        };
        if let Some(failure) = given_up {
            return Err(failure.error);
        }
        if progress.rewinds == self.rewinds && progress.next < self.through {
            let reason = "the session ended before it was written".to_owned();
            return Err(Arc::new(StoreError::Unstorable { session: self.shared.session.clone(), reason }));
        }
        let over = self.progress.wait_for(|progress| !progress.is_syncing).await;
        let done = over.ok().and_then(|progress| progress.sync.clone());
        if let Some((_, synced)) = done.filter(|(through, _)| *through >= self.through) {
            return synced;
        }
        let (shared, through) = (self.shared, self.through);
        blocking::run(move || shared.run(through)).await.map_err(Arc::new)
    }
}
