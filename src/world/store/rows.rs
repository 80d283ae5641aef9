//! The rows in sled: the header of each session, for listings. The only module that uses sled.
//!
//! Nothing here is authoritative, so nothing is repaired: damage is reported, and the index is rebuilt. sled
//! 0.34 panics on damaged files, so every call must be wrapped in `catch_unwind`, as `index_thread` does. No
//! batches or transactions are used: they take a lock shared by all databases of the process, and a database
//! that is closed while another waits for it never ends.
//!
//! The tree `header` maps session ids to a version, a CRC-32 (little endian) and the header as JSON. Indexes
//! of earlier versions have further trees, which are ignored.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sled::{Db, Tree};

use super::header::MarkedHeader;
use epitome_platform::late_timers::LateTimers;
use epitome_thread::SessionId;

/// Size of sled's cache, in bytes; the default is 1 GB.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

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
        Ok(Rows { headers, known, _db: db })
    }

    /// All readable rows, as sled has them now.
    pub fn headers(&self) -> Result<Headers, RowsError> {
        read(&self.headers)
    }

    /// All readable rows, as they were read and changed since the database was opened.
    pub fn known(&self) -> Arc<Headers> {
        self.known.borrow().clone()
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
        Ok(())
    }
}

fn read(tree: &Tree) -> Result<Headers, RowsError> {
    let mut headers = BTreeMap::new();
    for row in tree.iter() {
        let (_, value) = row?;
        if let Some(marked) = decode(&value) {
            headers.insert(marked.header.session.clone(), Arc::new(marked));
        }
    }
    Ok(headers)
}

/// The file that sled locks while it is open.
pub(super) fn lock_file(directory: &Path) -> PathBuf {
    directory.join("db")
}

fn encode(marked: &MarkedHeader) -> Result<Vec<u8>, RowsError> {
    let json = serde_json::to_vec(marked).map_err(|error| RowsError::Damaged(error.to_string()))?;
    let mut value = vec![VERSION];
    value.extend_from_slice(&crc32fast::hash(&json).to_le_bytes());
    value.extend_from_slice(&json);
    Ok(value)
}

/// `None` if the checksum or version is wrong.
fn decode(value: &[u8]) -> Option<MarkedHeader> {
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
                assert_eq!(decode(&flipped), None, "byte {at}, bit {bit}");
            }
        }
    }
}
