//! The storage of sessions' logs: the interface between journals and a backend. The files are one backend (`files`); a
//! crate outside of this one can be another.
//!
//! A backend stores lines and bodies and never looks into them. What lines mean (numbers, checksums, damage, headers)
//! is the same everywhere, so a log can be copied between backends byte for byte. All calls block.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::blobs::{Blobs, BodyReader};
use super::header::Header;
use super::line::{self, Bodies, JournalLine, LineLink};
use super::query::SessionQuery;
use super::saved_thread::ResumedThread;
use super::scan::Scan;
use super::sync_mark::{Reached, SyncMark};
use super::{Listing, StoreError};
use epitome_thread::{Entry, FORMAT_VERSION, OlderEntries, Seq, SessionId, Thread, ThreadState};

/// The logs of all sessions of one place.
pub trait LogStore: Send + Sync + fmt::Debug {
    /// Creates a log with its first line, opened for appending.
    fn create(
        &self,
        session: &SessionId,
        line: &JournalLine,
        header: &Header,
    ) -> Result<Arc<dyn Log>, StoreError>;

    /// Opens a log for appending, which excludes all other writers, and reads all of it.
    fn open(&self, session: &SessionId) -> Result<(Arc<dyn Log>, Scan), StoreError>;

    /// Like `open`, with a saved state of the thread, so that only the rest of the log is read. `None` if there is none.
    fn resume(&self, _: &SessionId) -> Result<Option<ResumedLog>, StoreError> {
        Ok(None)
    }

    /// Like `resume`, for reading: the log may be open elsewhere.
    fn read_resumed(&self, _: &SessionId) -> Result<Option<Thread>, StoreError> {
        Ok(None)
    }

    /// Reads a log, which may be open elsewhere.
    fn read(&self, session: &SessionId) -> Result<StoredLog, StoreError>;

    fn header(&self, session: &SessionId) -> Result<Header, StoreError>;

    /// All sessions, newest first.
    fn list(&self) -> Result<Listing, StoreError> {
        self.page(&SessionQuery::default())
    }

    /// Some sessions, newest first.
    fn page(&self, query: &SessionQuery) -> Result<Listing, StoreError>;

    /// Prepares for many listings by this process.
    fn keep_listing(&self) {}

    /// Whether `save_listing` would prepare something. Does not block.
    fn has_unsaved_listing(&self) -> bool {
        false
    }

    /// Prepares for the first listing of the next process.
    fn save_listing(&self) {}

    /// Stores a complete log, whose bodies are already stored, as a new session: all of it or nothing, durably.
    fn publish(&self, session: &SessionId, log: &WholeLog, header: &Header) -> Result<(), StoreError>;

    /// Deletes a log and its bodies. Deleting an unknown session succeeds; deleting an open one fails.
    fn delete(&self, session: &SessionId) -> Result<(), StoreError>;

    /// Whether a log is open, in this process or another.
    fn is_in_use(&self, session: &SessionId) -> bool;

    /// The bodies of a session. They may be stored before the session is.
    fn blobs(&self, session: &SessionId) -> Box<dyn Blobs>;

    /// Gives another session the same body; false if there is no such body.
    fn share_blob(&self, hash: &str, from: &SessionId, to: &SessionId) -> Result<bool, StoreError> {
        let Some(body) = self.blobs(from).get(hash)? else { return Ok(false) };
        self.blobs(to).put(hash, &body).map(|()| true)
    }

    /// Makes known to the processes of other machines where this one serves clients.
    fn advertise(&self, _address: &str) {}

    /// Finishes what may be done after a call has returned, before the process ends.
    fn settle(&self);
}

/// A log that is open for appending, with the thread that was read with a saved state.
pub type ResumedLog = (Arc<dyn Log>, ResumedThread);

/// A log that is open for appending.
pub trait Log: Send + Sync {
    /// Appends the next line, with the header that the session has then. After an error the log contains nothing of
    /// the line, and the next append first removes what may be left of it.
    fn append(&self, seq: Seq, line: &JournalLine, header: &Header) -> Result<(), StoreError>;

    /// Returns once all appended lines are durable.
    fn sync(&self) -> Result<(), StoreError>;

    /// How many bytes of the log are known to be durable.
    fn synced_bytes(&self) -> u64;

    /// Fails if appended lines can't become durable. Cheap enough to check before each model call.
    fn check(&self) -> Result<(), StoreError>;

    /// Whether it is known that appended lines can't become durable until the log is opened again: a sync has failed, damage
    /// was found, or another process has the log. Does no input or output.
    fn has_failed(&self) -> bool;

    /// Saves the state that the thread has after this number of entries, if these are all of the log, so that the log can be
    /// resumed. Does not wait.
    fn save_thread(&self, _: &ThreadState, _entries: u64) {}

    /// The number of entries that can be read from a store since a state was saved, and what reads them. `None` if there are
    /// no more than the last time.
    fn take_older(&self) -> Option<(u64, Arc<dyn OlderEntries>)> {
        None
    }

    /// Lets others open the log. Does not wait.
    fn release(&self);
}

/// The lines of a log as they are stored.
#[derive(Clone, Debug)]
pub struct StoredLog {
    /// Each line with its newline.
    pub bytes: Vec<u8>,
    /// How much of it is known to have been durable.
    pub(super) mark: Option<SyncMark>,
}

impl StoredLog {
    /// A log that is completely durable, with the number of entries that were appended to it.
    pub fn durable(bytes: Vec<u8>, entries: u64) -> StoredLog {
        let opening = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
        let reached = Some(Reached { entries, bytes: bytes.len() as u64 });
        StoredLog { mark: Some(SyncMark { opening, reached }), bytes }
    }

    /// Reads the entries, with their bodies.
    pub fn scan(&self, session: &SessionId, blobs: &dyn Blobs) -> Result<Scan, StoreError> {
        let bodies = BodyReader::new(blobs);
        let scan = self.scan_with(session, Bodies::Whole(&bodies))?;
        let lost = bodies.finish()?;
        if lost.is_empty() {
            return Ok(scan);
        }
        // Lines of an interrupted write are not kept.
        let kept: BTreeSet<String> = scan.moved(&self.bytes).collect();
        let lost_bodies = lost.intersection(&kept).count() as u64;
        Ok(Scan { lost_bodies, ..scan })
    }

    pub(super) fn scan_with(&self, session: &SessionId, bodies: Bodies<'_>) -> Result<Scan, StoreError> {
        Scan::read(session, &self.bytes, self.mark.as_ref(), bodies)
    }
}

/// A log that is written at once, in the current format unless its lines are those of another log.
#[derive(Debug, Default)]
pub struct WholeLog {
    /// Each line with its newline.
    pub bytes: Vec<u8>,
    pub entries: u64,
    crc: u32,
    pub(super) has_blobs: bool,
}

impl WholeLog {
    /// The intact lines of another log, unchanged.
    pub(super) fn same_as(log: &StoredLog, scan: &Scan) -> WholeLog {
        let has_blobs = scan.moved(&log.bytes).next().is_some();
        let bytes = log.bytes[..scan.mark.bytes as usize].to_vec();
        WholeLog { bytes, entries: scan.mark.entries, crc: scan.mark.crc, has_blobs }
    }

    fn chain(&self) -> Option<LineLink> {
        LineLink::in_format(FORMAT_VERSION, self.crc, self.bytes.len() as u64)
    }

    pub(super) fn encode(
        &mut self,
        session: &SessionId,
        entry: &Entry,
        blobs: &dyn Blobs,
    ) -> Result<(), StoreError> {
        self.add(&line::encode(session, entry, self.chain(), blobs)?);
        Ok(())
    }

    /// Adds a line of another log.
    pub(super) fn push(&mut self, fields: &[u8], has_blobs: bool) {
        self.add(&JournalLine { has_blobs, ..line::seal(fields, self.chain()) });
    }

    fn add(&mut self, line: &JournalLine) {
        self.bytes.extend_from_slice(&line.bytes);
        self.has_blobs |= line.has_blobs;
        self.crc = line.crc;
        self.entries += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use parking_lot::Mutex;

    use super::*;
    use epitome_thread::{Change, Content, Message, MessageId, Origin};

    #[derive(Debug, Default)]
    struct SlowDatabase {
        bodies: Mutex<HashMap<String, Vec<u8>>>,
        is_down: AtomicBool,
        asked: AtomicUsize,
    }

    impl Blobs for SlowDatabase {
        fn put(&self, hash: &str, body: &[u8]) -> Result<(), StoreError> {
            self.bodies.lock().insert(hash.to_owned(), body.to_vec());
            Ok(())
        }

        fn get(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            match self.is_down.load(Ordering::Relaxed) {
                true => Err(StoreError::Unreachable {
                    doing: "read",
                    place: "a database".to_owned(),
                    reason: "timeout".to_owned(),
                }),
                false => Ok(self.bodies.lock().get(hash).cloned()),
            }
        }
    }

    /// A database answered slowly for ten seconds while a session was opened. The session then had "A body of this entry is
    /// lost" in place of each image and long text, and the next compaction wrote that into its log.
    #[test]
    fn a_body_that_cannot_be_read_at_the_moment_is_not_lost() {
        let session = SessionId("s_00000000000000000001".to_owned());
        let opened = Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w".into() };
        let said = |text: &str| {
            let content = vec![Content::Text { text: text.repeat(100_000) }];
            Change::Said {
                message: Message { id: MessageId(0), content, author: None },
                origin: Origin::Person,
            }
        };
        let changes = [opened, said("a"), said("b")];
        let entries: Vec<Arc<Entry>> = (0..)
            .zip(changes)
            .map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 1, change }))
            .collect();
        let (database, mut whole) = (SlowDatabase::default(), WholeLog::default());
        for entry in &entries {
            whole.encode(&session, entry, &database).unwrap();
        }
        let log = StoredLog::durable(whole.bytes, whole.entries);

        database.is_down.store(true, Ordering::Relaxed);
        let failed = log.scan(&session, &database).expect_err("its bodies are unknown");
        assert!(matches!(failed, StoreError::Unreachable { .. }), "{failed}");
        assert_eq!(database.asked.load(Ordering::Relaxed), 1, "each attempt waits");

        database.is_down.store(false, Ordering::Relaxed);
        let scan = log.scan(&session, &database).expect("it answers again");
        assert_eq!((&scan.entries, scan.loss(&session).is_none()), (&entries, true));

        database.bodies.lock().clear();
        let loss = log.scan(&session, &database).expect("the rest is there").loss(&session);
        assert!(matches!(loss, Some(StoreError::BodiesLost { bodies: 2, .. })), "{loss:?}");
    }
}
