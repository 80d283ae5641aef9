//! The log of a session on its way to the disk: the journal, what of it is not synced, and the ids of its messages.

use std::sync::Arc;
use std::time::Duration;

use super::draft::ReplyDraft;
use super::work::BackgroundResult;
use epitome_store::{Journal, StoreError, Syncer};
use epitome_thread::{Change, Entry, MessageId, Thread};

/// Entries are on disk at the latest this long after they were appended.
const SYNC_WITHIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct SessionLog {
    journal: Journal,
    /// The streaming reply, which is no entry yet.
    pub draft: ReplyDraft,
    sync_due: bool,
    next_message: u64,
}

impl SessionLog {
    pub fn new(journal: Journal, draft: ReplyDraft, thread: &Thread) -> SessionLog {
        SessionLog { journal, draft, sync_due: false, next_message: thread.next_message().0 }
    }

    pub fn append(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        self.journal.append(change)
    }

    /// The damage that keeps it from being written, and what the user can do about it.
    pub fn damage(&self) -> Option<StoreError> {
        self.journal.damage()
    }

    /// The change with which the user accepts the damage.
    pub fn acceptance(&self) -> Option<Change> {
        self.journal.acceptance()
    }

    /// Whether what is appended can still reach the disk. Asked before anything that costs money.
    pub fn can_append(&self) -> Result<(), StoreError> {
        self.journal.can_append()
    }

    // ── Syncing ────────────────────────────────────────────────────────────────────────────────

    pub fn syncer(&self) -> Syncer {
        self.journal.syncer()
    }

    /// Whether entries are not known to be on the disk.
    pub fn is_sync_due(&self) -> bool {
        self.sync_due
    }

    /// What brings the newest entries to the disk in time, unless that is under way.
    pub fn sync_soon(&mut self) -> Option<impl Future<Output = BackgroundResult> + use<>> {
        let is_under_way = std::mem::replace(&mut self.sync_due, true);
        let syncer = self.syncer();
        (!is_under_way).then_some(async move {
            tokio::time::sleep(SYNC_WITHIN).await;
            BackgroundResult::Synced(
                tokio::task::spawn_blocking(move || syncer.sync()).await.unwrap_or(Ok(())),
            )
        })
    }

    /// A sync has ended, whatever came of it.
    pub fn synced(&mut self) {
        self.sync_due = false;
    }

    // ── Messages ───────────────────────────────────────────────────────────────────────────────

    /// A new message's id: unused by the log and by what is streaming.
    pub fn fresh_message(&mut self, thread: &Thread) -> MessageId {
        let id = self.next_message.max(thread.next_message().0);
        self.next_message = id + 1;
        MessageId(id)
    }

    /// Passes over ids that a change gives to its own messages.
    pub fn skip_messages(&mut self, count: usize) {
        self.next_message += count as u64;
    }
}
