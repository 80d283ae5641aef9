//! The journal: the append-only log of one session, the source of truth for its thread.
//!
//! It numbers entries, encodes them as lines, keeps the header, and knows the damage. A [`Log`] stores the lines.
//!
//! Work that must not be stored, such as that of a hook's callback, has a journal in memory: the same calls,
//! without a log.

use std::sync::Arc;
use std::time::Instant;

use super::append_times;
use super::blobs::Blobs;
use super::header::{Header, MarkedHeader};
use super::line::{self, LineLink};
use super::log::{Log, LogStore};
use super::saved_thread::ResumedThread;
use super::scan::{JournalDamage, Scan};
use super::{StoreError, now};
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId, Thread};

/// A session's log, open for appending. Dropping it lets other processes open the session.
pub struct Journal {
    head: JournalHead,
    writer: JournalWriter,
}

/// Gives each new entry of a log its number and time, without waiting for the disk. A [`JournalWriter`] then writes the
/// entries in that order.
pub struct JournalHead {
    session: SessionId,
    next: Seq,
    updated_at: u64,
    damage: JournalDamage,
    /// The staged entry that accepts the damage, with the number of places that were accepted before it.
    acceptance: Option<(Seq, u64)>,
    /// `None` for a journal in memory.
    log: Option<Arc<dyn Log>>,
}

/// Writes the entries that its [`JournalHead`] has numbered. Dropping it lets other processes open the session.
pub struct JournalWriter {
    /// `None` for a journal in memory.
    stored: Option<StoredJournal>,
    header: Header,
    next: Seq,
}

/// The storage of a journal's entries.
struct StoredJournal {
    log: Arc<dyn Log>,
    blobs: Box<dyn Blobs>,
    format: u32,
    /// Checksum of the last entry's line; 0 if that is lost.
    crc: u32,
}

impl Journal {
    pub(super) fn create(
        logs: &dyn LogStore,
        session: &SessionId,
        opened: Change,
    ) -> Result<(Journal, Arc<Entry>), StoreError> {
        let format = match &opened {
            Change::Opened { session: named, format, .. } if named == session => *format,
            _ => panic!("a log begins with the opening entry of its session"),
        };
        if SessionId::parse(&session.0).is_none() {
            let reason = "its id is not valid".to_owned();
            return Err(StoreError::Unstorable { session: session.clone(), reason });
        }
        let entry = Arc::new(Entry { seq: Seq(0), at: now(), change: opened });
        let blobs = logs.blobs(session);
        let line = line::encode(session, &entry, LineLink::in_format(format, 0, 0), &*blobs)?;
        let header = Header::opened(&entry).expect("the change was asserted to be an opening");
        let log = logs.create(session, &line, &header)?;
        let stored = StoredJournal { log, blobs, format, crc: line.crc };
        Ok((Journal::new(Some(stored), header, Seq(1), JournalDamage::default()), entry))
    }

    pub(super) fn load(
        logs: &dyn LogStore,
        session: &SessionId,
    ) -> Result<(Journal, Vec<Arc<Entry>>), StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Err(StoreError::NotFound(session.clone()));
        }
        let (log, scan) = logs.open(session)?;
        let Scan { entries, header, mark, format, damage, .. } = scan;
        if damage.is_open() {
            tracing::warn!(%session, places = damage.count, lost = damage.lost, "a log is damaged");
        }
        let stored = StoredJournal { log, blobs: logs.blobs(session), format, crc: mark.crc };
        Ok((Journal::new(Some(stored), header, Seq(mark.entries), damage), entries))
    }

    pub(super) fn resume(
        logs: &dyn LogStore,
        session: &SessionId,
    ) -> Result<Option<(Journal, Thread)>, StoreError> {
        if SessionId::parse(&session.0).is_none() {
            return Err(StoreError::NotFound(session.clone()));
        }
        let Some((log, resumed)) = logs.resume(session)? else { return Ok(None) };
        let ResumedThread { thread, newest: MarkedHeader { header, mark }, .. } = resumed;
        // Only logs whose lines are chained have saved states.
        let stored = StoredJournal { log, blobs: logs.blobs(session), format: FORMAT_VERSION, crc: mark.crc };
        let journal = Journal::new(Some(stored), header, Seq(mark.entries), JournalDamage::default());
        Ok(Some((journal, thread)))
    }

    /// Creates a log without a file, from an opening entry and any further changes. It holds no lock, does
    /// not appear in listings, and its syncer does nothing.
    pub fn in_memory(opened: Change, more: Vec<Change>) -> (Journal, Vec<Arc<Entry>>) {
        let first = Arc::new(Entry { seq: Seq(0), at: now(), change: opened });
        let header = Header::opened(&first).expect("a log begins with an opening entry");
        let mut journal = Journal::new(None, header, Seq(1), JournalDamage::default());
        let mut entries = vec![first];
        for change in more {
            entries.push(journal.append(change).expect("memory refuses nothing"));
        }
        (journal, entries)
    }

    fn new(stored: Option<StoredJournal>, header: Header, next: Seq, damage: JournalDamage) -> Journal {
        let head = JournalHead {
            session: header.session.clone(),
            next,
            updated_at: header.updated_at,
            damage,
            acceptance: None,
            log: stored.as_ref().map(|stored| stored.log.clone()),
        };
        Journal { head, writer: JournalWriter { stored, header, next } }
    }

    /// Splits the journal, to number entries in one place and write them in another.
    pub fn split(self) -> (JournalHead, JournalWriter) {
        (self.head, self.writer)
    }

    /// Appends a change as the next entry, with one write.
    ///
    /// After an error the log contains nothing of the change, and the next append acts as the retry: it must first
    /// remove the remains of the failed write. The entry is durable only after a sync that started later. A damaged
    /// log accepts only its acceptance.
    pub fn append(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        let entry = self.head.stage(change)?;
        if let Err(error) = self.writer.write(&entry) {
            self.head.rewind(entry.seq);
            return Err(error);
        }
        Ok(entry)
    }

    /// See [`JournalHead::can_append`].
    pub fn can_append(&self) -> Result<(), StoreError> {
        self.head.can_append()
    }

    /// See [`JournalHead::damage`].
    pub fn damage(&self) -> Option<StoreError> {
        self.head.damage()
    }

    /// See [`JournalHead::acceptance`].
    pub fn acceptance(&self) -> Option<Change> {
        self.head.acceptance()
    }

    /// The current listing header of the session.
    pub fn header(&self) -> &Header {
        &self.writer.header
    }

    /// A handle that makes written entries durable, from any thread.
    pub fn syncer(&self) -> Syncer {
        self.head.syncer()
    }
}

impl JournalHead {
    /// Numbers a change as the next entry. A damaged log accepts only its acceptance.
    pub fn stage(&mut self, change: Change) -> Result<Arc<Entry>, StoreError> {
        assert!(!matches!(change, Change::Opened { .. }), "an opening entry is only ever the first");
        let accepts = self.damage.is_open() && change == self.damage.acceptance();
        if !accepts && let Some(error) = self.damage() {
            return Err(error);
        }
        // A clock that was set back must not make a session look older than its own entries.
        let at = now().max(self.updated_at);
        let entry = Arc::new(Entry { seq: self.next, at, change });
        if accepts {
            self.acceptance = Some((entry.seq, self.damage.accepted));
            self.damage.accepted = self.damage.count;
        }
        self.next = Seq(self.next.0 + 1);
        self.updated_at = at;
        Ok(entry)
    }

    /// Forgets the entries from `from` on, which were not written.
    pub fn rewind(&mut self, from: Seq) {
        self.next = self.next.min(from);
        if let Some((_, accepted)) = self.acceptance.take_if(|(seq, _)| *seq >= from) {
            self.damage.accepted = accepted;
        }
    }

    /// The number of the next entry.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Whether entries are stored; those of a journal in memory need no writing.
    pub fn is_stored(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the log can be appended to and synced, determined without writing: it is not damaged, no sync has
    /// failed, and its file still exists. Cheap enough to check before each model call.
    pub fn can_append(&self) -> Result<(), StoreError> {
        match (self.damage(), &self.log) {
            (Some(error), _) => Err(error),
            (None, Some(log)) => log.check(),
            (None, None) => Ok(()),
        }
    }

    /// Whether the log has to be opened again before anything is written to it. Does no input or output.
    pub fn has_failed(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.has_failed())
    }

    /// The damage that prevents writing, as an error that says what to do; `None` if there is none or the user has
    /// accepted it.
    pub fn damage(&self) -> Option<StoreError> {
        self.damage.error(&self.session)
    }

    /// The change that accepts the damage, after which the log can be written again. `None` if there is no damage.
    pub fn acceptance(&self) -> Option<Change> {
        self.damage.is_open().then(|| self.damage.acceptance())
    }

    /// Saves the state of the thread with all entries of the log, so that the next process need not read them. Does not
    /// wait, and nothing depends on it.
    pub fn save_thread(&self, thread: &Thread) {
        if let Some(log) = &self.log {
            log.save_thread(thread.state(), thread.next_seq().0);
        }
    }

    /// Frees the memory of the thread's entries that can be read from a store since its state was saved.
    pub fn move_older(&self, thread: &mut Thread) {
        if let Some((entries, source)) = self.log.as_ref().and_then(|log| log.take_older()) {
            thread.move_older(source, entries);
        }
    }

    /// A handle that makes written entries durable, from any thread.
    pub fn syncer(&self) -> Syncer {
        Syncer { log: self.log.clone() }
    }
}

impl JournalWriter {
    pub fn session(&self) -> &SessionId {
        &self.header.session
    }

    /// Writes the next entry, with one write. After an error the log contains nothing of the entry, and the next write must be
    /// that of an entry with the same number.
    pub fn write(&mut self, entry: &Entry) -> Result<(), StoreError> {
        assert_eq!(entry.seq, self.next, "entries are written in the order of their numbers");
        if let Some(StoredJournal { log, blobs, format, crc }) = &mut self.stored {
            let chain = LineLink::in_format(*format, *crc, log.synced_bytes());
            let line = line::encode(&self.header.session, entry, chain, &**blobs)?;
            let mut header = self.header.clone();
            header.apply(entry);
            let began = Instant::now();
            let appended = log.append(entry.seq, &line, &header);
            append_times::record(began.elapsed());
            appended?;
            (*crc, self.header) = (line.crc, header);
        } else {
            self.header.apply(entry);
        }
        self.next = Seq(self.next.0 + 1);
        Ok(())
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        if let Some(stored) = &self.stored {
            stored.log.release();
        }
    }
}

/// Makes a session's appended entries durable. Cheap to clone; `sync` blocks on the disk, so call it on a
/// blocking thread.
#[derive(Clone)]
pub struct Syncer {
    /// `None` for a journal in memory.
    log: Option<Arc<dyn Log>>,
}

impl Syncer {
    /// Returns once everything appended before the call is on disk; does nothing if it already is.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.log.as_deref().map_or(Ok(()), Log::sync)
    }
}
