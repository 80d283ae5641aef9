//! A session's log on its way to disk: entries that are numbered but not yet written or not yet synced, and the ids
//! of its messages.
//!
//! The session numbers an entry and continues; a [`LogWriter`] writes it on another thread. Once an entry is written,
//! clients see it, and the model or tool call that follows it starts: `core::settle` waits for that.

mod writer;

use std::sync::Arc;
use std::time::Duration;

use super::SessionError;
use super::draft::ReplyDraft;
use epitome_platform::blocking;
use epitome_store::{Journal, JournalHead, Store, StoreError};
use epitome_thread::{Change, Entry, MessageId, SessionId, Thread};
use writer::LogWriter;
pub(super) use writer::{LogSyncer, WriteFailure};

/// Maximum time between appending an entry and syncing it.
const SYNC_WITHIN: Duration = Duration::from_secs(1);

/// Entries after which the state of the thread is saved again. Reading them is fast, and the state of a full window is a
/// megabyte.
const SAVED_AFTER: u64 = 256;

/// Entries of a turn that wait for the writer before the turn does.
const STAGED_MAX: usize = 64;

/// Entries that wait for the writer in all: those of a turn, and what one event adds. An event that ends a turn adds an
/// outcome for each call of one reply; every other event adds a few entries.
const UNWRITTEN_MAX: usize = 1_024;

/// See the module.
pub(super) struct SessionLog {
    head: JournalHead,
    writer: LogWriter,
    /// Entries that are not known to be written, at most [`UNWRITTEN_MAX`]: a session waits for them between two events,
    /// and within a turn after [`STAGED_MAX`]. The writer's queue holds no others.
    staged: Vec<Arc<Entry>>,
    /// The streaming reply, which is not an entry yet.
    pub draft: ReplyDraft,
    is_sync_due: bool,
    next_message: u64,
    /// The entries that the log had when the state of the thread was saved.
    saved: u64,
    is_closed: bool,
}

/// The result of waiting for staged entries.
pub(super) struct Settled {
    pub written: Vec<Arc<Entry>>,
    /// Why the rest was not written. Their numbers are free again.
    pub failure: Option<WriteFailure>,
}

impl SessionLog {
    pub fn new(journal: Journal, draft: ReplyDraft, thread: &Thread) -> SessionLog {
        let (head, writer) = journal.split();
        SessionLog {
            writer: LogWriter::new(writer, &head),
            head,
            staged: Vec::new(),
            draft,
            is_sync_due: false,
            next_message: thread.next_message().0,
            saved: thread.entries().older() as u64,
            is_closed: false,
        }
    }

    // ── Writing ────────────────────────────────────────────────────────────────────────────────

    /// Numbers a change as the next entry and queues it for writing. A damaged log accepts only its acceptance.
    pub fn stage(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        let entry = self.head.stage(change)?;
        if self.head.is_stored() {
            debug_assert!(
                self.staged.len() < UNWRITTEN_MAX,
                "a session waits for its log between two events"
            );
            self.staged.push(entry.clone());
            self.writer.write(entry.clone());
        }
        Ok(entry)
    }

    /// Whether entries may not be written yet.
    pub fn is_behind(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Whether a turn has to wait until its entries are written before it adds more.
    pub fn is_full(&self) -> bool {
        self.staged.len() >= STAGED_MAX
    }

    /// Waits until the staged entries are written, or one can't be; that one and those behind it are given up.
    pub async fn settle(&mut self) -> Settled {
        let failure = match self.staged.last() {
            Some(last) => self.writer.wrote(last.seq).await.err(),
            None => None,
        };
        let mut written = std::mem::take(&mut self.staged);
        if let Some(failure) = &failure {
            written.retain(|entry| entry.seq < failure.from);
            self.head.rewind(failure.from);
            self.writer.rewind();
        }
        Settled { written, failure }
    }

    /// The damage that prevents writing to the log, and what the user can do about it; `None` if there is none.
    pub fn damage(&self) -> Option<StoreError> {
        self.head.damage()
    }

    /// The change with which the user accepts the damage.
    pub fn acceptance(&self) -> Option<Change> {
        self.head.acceptance()
    }

    /// Whether appended entries can still reach the disk. Checked before anything that costs money.
    pub fn can_append(&self) -> Result<(), StoreError> {
        self.head.can_append()
    }

    /// Whether the log has to be opened again before anything is written to it.
    pub fn has_failed(&self) -> bool {
        self.head.has_failed()
    }

    /// Whether that has not been tried yet.
    pub fn has_just_failed(&self) -> bool {
        self.has_failed() && !self.is_closed
    }

    /// Gives up a log that has failed, so that it can be opened again.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.writer.close();
    }

    // ── Syncing ────────────────────────────────────────────────────────────────────────────────

    /// Returns the handle that syncs the entries staged or written so far.
    pub fn syncer(&self) -> LogSyncer {
        self.writer.syncer(&self.head)
    }

    /// Starts syncing the staged entries, right after they are written. Nothing else is written until then, so this is
    /// for the end of a turn.
    pub fn start_sync(&self) {
        if self.head.is_stored() {
            self.writer.sync_then();
        }
    }

    /// Whether any entry may not be on disk yet.
    pub fn is_unsynced(&self) -> bool {
        self.head.is_stored() && self.writer.synced() < self.head.next()
    }

    /// Returns a future that waits until the newest entries have to be synced, unless one is waiting already.
    pub fn sync_soon(&mut self) -> Option<impl Future<Output = ()> + use<>> {
        let starts = !std::mem::replace(&mut self.is_sync_due, true);
        starts.then(|| tokio::time::sleep(SYNC_WITHIN))
    }

    /// The scheduled sync begins, or was lost. It may miss what is written from now on, which gets another one.
    pub fn sync_begins(&mut self) {
        self.is_sync_due = false;
    }

    /// Saves the state of the thread if the log has grown enough since the last time, so that it is opened fast. Nothing
    /// depends on it.
    pub fn save_thread(&mut self, thread: &Thread) {
        if self.is_behind() {
            return;
        }
        let grown = thread.next_seq().0.saturating_sub(self.saved);
        // A view that was compacted is small, and so is the state with it.
        let is_replaced = thread.view().revision().0 > self.saved;
        if grown >= SAVED_AFTER || is_replaced && grown >= SAVED_AFTER / 4 {
            self.head.save_thread(thread);
            self.saved = thread.next_seq().0;
        }
    }

    /// Frees the memory of entries that can be read again: those before the saved state.
    pub fn free_older(&self, thread: &mut Thread) {
        self.head.move_older(thread);
        thread.forget_older();
    }

    // ── Messages ───────────────────────────────────────────────────────────────────────────────

    /// A new message id, used neither in the log nor by the streaming reply.
    pub fn fresh_message(&mut self, thread: &Thread) -> MessageId {
        let id = self.next_message.max(thread.next_message().0);
        self.next_message = id + 1;
        MessageId(id)
    }

    /// Skips ids that a change gives to its own messages.
    pub fn skip_messages(&mut self, count: usize) {
        self.next_message += count as u64;
    }
}

/// Opens a session's log and its thread, on a blocking thread.
pub(super) async fn read_log(store: &Store, session: &SessionId) -> Result<(Journal, Thread), SessionError> {
    let (store, name) = (store.clone(), session.clone());
    let read = blocking::start(move || store.open(&name).map_err(|error| store_error(&name, error)));
    read.await.unwrap_or_else(|error| Err(SessionError::Internal(error.to_string())))
}

pub(super) fn store_error(session: &SessionId, error: StoreError) -> SessionError {
    match error {
        StoreError::NotFound(_) => SessionError::NotFound(session.clone()),
        StoreError::InUse(_, holder) => SessionError::InUse(session.clone(), holder),
        other => SessionError::Store(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_files::paths::Paths;
    use epitome_thread::FORMAT_VERSION;

    /// An entry that was committed while a slow disk was still syncing the one before was not synced until the next
    /// commit, perhaps hours later. A power failure lost it, and until then it was reported as synced.
    #[tokio::test(start_paused = true)]
    async fn an_entry_that_is_written_during_a_sync_gets_its_own() {
        let home = tempfile::tempdir().expect("a directory");
        let session = SessionId("s_00000000000000000001".to_owned());
        let opened =
            Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: home.path().into() };
        let store = Store::new(&Paths::below(home.path()));
        let (journal, entry) = store.create(&session, opened).expect("a session");
        let thread = Thread::replay([entry]).expect("a thread");
        let mut log = SessionLog::new(journal, ReplyDraft::default(), &thread);
        let titled = |title: &str| Change::Titled { title: title.to_owned() };

        log.stage(titled("first")).expect("it is writable");
        let due = log.sync_soon().expect("the first entry schedules a sync");
        assert!(log.sync_soon().is_none(), "which covers all entries until then");
        due.await;
        log.sync_begins();
        let slow = log.syncer();

        log.stage(titled("second")).expect("it is writable");
        let due = log.sync_soon().expect("the running sync may miss the second entry");
        slow.sync().await.expect("the disk is fine");
        assert!(log.is_unsynced());
        due.await;
        log.sync_begins();
        log.syncer().sync().await.expect("the disk is fine");
        assert!(!log.is_unsynced());
    }
}
