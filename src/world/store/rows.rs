//! The rows in sled: threads as they are read. The only module that uses sled.
//!
//! Nothing here is authoritative, so nothing is repaired: damage is reported, and the index is rebuilt. sled
//! 0.34 panics on damaged files, so every call must be wrapped in `catch_unwind`, as `index_thread` does. No
//! batches or transactions are used: they take a lock shared by all databases of the process, and a database
//! that is closed while another waits for it never ends.
//!
//! | tree | key | value |
//! | --- | --- | --- |
//! | `header` | session | its [`MarkedHeader`], for listings |
//! | `entry` | session, number of the entry (big endian) | the entry's line in the journal, without its newline |
//! | `followed` | session | the [`JournalMark`] up to which `entry` follows the journal |
//! | `thread` | session, entries that the thread had, number of the part (big endian) | a part of its saved state (`saved_thread`) |
//!
//! A line has its own checksum. Other values consist of a version, a CRC-32 (little endian) and JSON. Indexes of earlier
//! versions have further trees, which are ignored.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sled::{Db, Tree};

use super::header::{JournalMark, MarkedHeader};
use epitome_platform::library_threads::LateTimers;
use epitome_thread::SessionId;

/// Size of sled's cache, in bytes; the default is 1 GB.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Longest value of a saved state, in bytes. sled keeps larger ones in files, and earlier values of a row beside the newest.
const PART_BYTES: usize = 16 * 1024;

/// Interval at which sled flushes, in milliseconds. A loss costs a catch-up, not data.
const FLUSH_EVERY_MS: u64 = 500;

/// How late timers of sled's threads may expire. Seven of them never end once a database was opened, and look for work
/// each second although new work wakes them. Flushing may be as late.
const TIMERS_LATE: Duration = Duration::from_secs(60);

/// Version of a row. Rows of other versions count as missing, and are written again.
pub(super) const VERSION: u8 = 2;

/// All rows, as they are shared with listings.
pub(super) type Headers = BTreeMap<SessionId, Arc<MarkedHeader>>;

/// The open database.
pub(super) struct Rows {
    headers: Tree,
    entries: Tree,
    followed: Tree,
    threads: Tree,
    /// The content of `headers`: a listing decodes nothing.
    known: RefCell<Arc<Headers>>,
    /// Last, because dropping it ends sled's threads.
    _db: Db,
}

/// Why a sled operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowsError {
    /// Another process has it open, the disk is full, or a directory is not writable: a later attempt may
    /// succeed.
    #[error("sled cannot be used now: {0}")]
    Unavailable(io::Error),
    /// Its files are unusable.
    #[error("sled's files are damaged: {0}")]
    Damaged(String),
}

impl From<sled::Error> for RowsError {
    fn from(error: sled::Error) -> RowsError {
        match error {
            sled::Error::Io(error) => match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
                    RowsError::Damaged(error.to_string())
                }
                _ => RowsError::Unavailable(error),
            },
            error => RowsError::Damaged(error.to_string()),
        }
    }
}

impl Rows {
    /// Opens or creates the database and reads all rows once, because sled detects much damage only on
    /// reading.
    pub fn open(directory: &Path) -> Result<Rows, RowsError> {
        let _late = LateTimers::by(TIMERS_LATE);
        let db = sled::Config::new()
            .path(directory)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSH_EVERY_MS))
            .open()?;
        let headers = db.open_tree("header")?;
        let known = RefCell::new(Arc::new(read(&headers)?));
        let [entries, followed, threads] = ["entry", "followed", "thread"].map(|name| db.open_tree(name));
        Ok(Rows { headers, entries: entries?, followed: followed?, threads: threads?, known, _db: db })
    }

    /// All readable rows, as sled has them now.
    pub fn headers(&self) -> Result<Headers, RowsError> {
        read(&self.headers)
    }

    /// Closes the database in this directory, and waits until it can be opened again: sled's threads may keep the file that it
    /// locks open for a moment longer.
    pub fn close(self, directory: &Path) {
        drop(self);
        if let Ok(file) = File::open(directory.join("db")) {
            let _ = file.lock();
        }
    }

    /// All readable rows, as they were read and changed since the database was opened.
    pub fn known(&self) -> Arc<Headers> {
        self.known.borrow().clone()
    }

    /// Writes everything to disk, and waits for it.
    pub fn flush(&self) -> Result<(), RowsError> {
        self.headers.flush()?;
        Ok(())
    }

    pub fn put(&self, marked: &Arc<MarkedHeader>) -> Result<(), RowsError> {
        let session = &marked.header.session;
        self.headers.insert(session.0.as_bytes(), encode(marked)?)?;
        Arc::make_mut(&mut self.known.borrow_mut()).insert(session.clone(), marked.clone());
        Ok(())
    }

    pub fn remove(&self, session: &SessionId) -> Result<(), RowsError> {
        self.headers.remove(session.0.as_bytes())?;
        Arc::make_mut(&mut self.known.borrow_mut()).remove(session);
        self.remove_thread(session)?;
        self.followed.remove(session.0.as_bytes())?;
        self.remove_lines(session, 0..u64::MAX)
    }

    pub fn remove_lines(&self, session: &SessionId, entries: Range<u64>) -> Result<(), RowsError> {
        let range = entry_key(session, entries.start)..entry_key(session, entries.end);
        for row in self.entries.range(range).keys() {
            self.entries.remove(row?)?;
        }
        Ok(())
    }

    /// The end of the part of a journal whose lines are rows; `None` if that is unknown.
    pub fn followed(&self, session: &SessionId) -> Result<Option<JournalMark>, RowsError> {
        Ok(self.followed.get(session.0.as_bytes())?.and_then(|value| decode(&value)))
    }

    pub fn set_followed(&self, session: &SessionId, mark: JournalMark) -> Result<(), RowsError> {
        self.followed.insert(session.0.as_bytes(), encode(&mark)?)?;
        Ok(())
    }

    pub fn put_line(&self, session: &SessionId, entry: u64, line: &[u8]) -> Result<(), RowsError> {
        self.entries.insert(entry_key(session, entry), line)?;
        Ok(())
    }

    pub fn line(&self, session: &SessionId, entry: u64) -> Result<Option<Vec<u8>>, RowsError> {
        Ok(self.entries.get(entry_key(session, entry))?.map(|line| line.to_vec()))
    }

    /// The lines of these entries, or fewer if some are missing.
    pub fn lines(&self, session: &SessionId, entries: Range<u64>) -> Result<Vec<Vec<u8>>, RowsError> {
        let range = entry_key(session, entries.start)..entry_key(session, entries.end);
        self.entries.range(range).values().map(|line| Ok(line?.to_vec())).collect()
    }

    /// Replaces the saved state of a thread.
    pub fn put_thread(
        &self,
        session: &SessionId,
        entries: u64,
        saved: &impl Serialize,
    ) -> Result<(), RowsError> {
        let state = entry_key(session, entries);
        for (part, bytes) in (0_u32..).zip(encode(saved)?.chunks(PART_BYTES)) {
            self.threads.insert([&state[..], &part.to_be_bytes()].concat(), bytes)?;
        }
        for row in self.threads.scan_prefix(session.0.as_bytes()).keys() {
            let row = row?;
            if !row.starts_with(&state) {
                self.threads.remove(row)?;
            }
        }
        Ok(())
    }

    /// The newest saved state of a thread, which [`decode`] reads. The end may be missing, after a crash.
    pub fn thread(&self, session: &SessionId) -> Result<Option<Vec<u8>>, RowsError> {
        let Some(newest) = self.threads.scan_prefix(session.0.as_bytes()).keys().next_back() else {
            return Ok(None);
        };
        let newest = newest?;
        let parts = self.threads.scan_prefix(&newest[..newest.len() - size_of::<u32>()]).values();
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(Some(parts.concat()))
    }

    #[cfg(test)]
    pub fn put_part_of_thread(
        &self,
        session: &SessionId,
        entries: u64,
        part: &[u8],
    ) -> Result<(), RowsError> {
        self.threads.insert([&entry_key(session, entries)[..], &[0; 4]].concat(), part)?;
        Ok(())
    }

    pub fn remove_thread(&self, session: &SessionId) -> Result<(), RowsError> {
        for row in self.threads.scan_prefix(session.0.as_bytes()).keys() {
            self.threads.remove(row?)?;
        }
        Ok(())
    }
}

fn entry_key(session: &SessionId, entry: u64) -> Vec<u8> {
    [session.0.as_bytes(), &entry.to_be_bytes()].concat()
}

fn read(tree: &Tree) -> Result<Headers, RowsError> {
    let mut headers = BTreeMap::new();
    for row in tree.iter() {
        let (_, value) = row?;
        if let Some(marked) = decode::<MarkedHeader>(&value) {
            headers.insert(marked.header.session.clone(), Arc::new(marked));
        }
    }
    Ok(headers)
}

fn encode(content: &impl Serialize) -> Result<Vec<u8>, RowsError> {
    let json = serde_json::to_vec(content).map_err(|error| RowsError::Damaged(error.to_string()))?;
    let mut value = vec![VERSION];
    value.extend_from_slice(&crc32fast::hash(&json).to_le_bytes());
    value.extend_from_slice(&json);
    Ok(value)
}

/// `None` if the checksum or version is wrong.
pub(super) fn decode<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    let (version, rest) = value.split_first()?;
    let (crc, json) = rest.split_first_chunk::<4>()?;
    let is_sound = *version == VERSION && crc32fast::hash(json).to_le_bytes() == *crc;
    if is_sound { serde_json::from_slice(json).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::header::{Header, JournalMark};
    use super::*;

    fn marked() -> MarkedHeader {
        let header = Header {
            session: SessionId("s_00000000000000000001".to_owned()),
            cwd: "/w".into(),
            title: None,
            model: None,
            created_at: 1,
            updated_at: 2,
            entries: 3,
            turns: 0,
            in_turn: false,
            has_prompt: false,
            archived: false,
            lost: 0,
            forked: None,
        };
        MarkedHeader { header, mark: JournalMark { entries: 3, bytes: 7, crc: 9 } }
    }

    #[test]
    fn a_removed_session_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let rows = Rows::open(directory.path()).unwrap();
        rows.put(&Arc::new(marked())).unwrap();
        for headers in [rows.headers().unwrap(), Headers::clone(&rows.known())] {
            assert_eq!(headers.into_values().collect::<Vec<_>>(), [Arc::new(marked())]);
        }
        rows.remove(&marked().header.session).unwrap();
        assert!(rows.headers.is_empty() && rows.known().is_empty());
    }

    #[test]
    fn every_flipped_bit_of_a_row_is_detected() {
        let value = encode(&marked()).unwrap();
        assert_eq!(decode(&value), Some(marked()));
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut flipped = value.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(decode::<MarkedHeader>(&flipped), None, "byte {at}, bit {bit}");
            }
        }
    }
}
