//! The rows in sled: a copy of the journals for listing and searching. The only module that uses sled.
//!
//! Nothing here is authoritative, so nothing is repaired: damage is reported, and the index is rebuilt. sled
//! 0.34 panics on damaged files, so every call must be wrapped in `catch_unwind`, as `index_thread` does. No
//! batches or transactions are used: they take a lock shared by all databases of the process, and a database
//! that is closed while another waits for it never ends. The order of writes makes up for that.
//!
//! | Tree | Key | Value |
//! | --- | --- | --- |
//! | `header` | session | header and the journal's state, JSON |
//! | `log` | session, seq (u64 BE); further parts: and part (u16 BE) | the journal's line |
//! | `time` | updated_at (u64 BE), session | nothing |
//!
//! Each value has an envelope: version, flags, CRC-32 (little endian), payload.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use sled::{Db, IVec, Tree};

use super::header::MarkedHeader;
use epitome_thread::SessionId;

/// Size of sled's cache, in bytes; the default is 1 GB.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// Interval at which sled flushes, in milliseconds. A loss costs a catch-up, not data.
const FLUSH_EVERY_MS: u64 = 500;

/// Longest value, in bytes. sled puts values over 128 KB into separate files, which it never syncs.
const PART_BYTES_MAX: usize = 64 * 1024;

/// Version of the envelope. Other versions are treated as damage, and so rebuilt.
const ENVELOPE_VERSION: u8 = 1;

/// Flag of a value whose payload continues in the next part.
const FLAG_CONTINUES: u8 = 1;

/// Version, flags and checksum.
const ENVELOPE_BYTES: usize = 6;

/// The open database.
pub(super) struct Rows {
    header: Tree,
    log: Tree,
    time: Tree,
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
    /// Opens or creates the database and reads all headers once, because sled detects much damage only on
    /// reading.
    pub fn open(directory: &Path) -> Result<Rows, RowsError> {
        let db = sled::Config::new()
            .path(directory)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSH_EVERY_MS))
            .open()?;
        let rows = Rows {
            header: db.open_tree("header")?,
            log: db.open_tree("log")?,
            time: db.open_tree("time")?,
            _db: db,
        };
        rows.headers()?;
        Ok(rows)
    }

    /// The header row of a session; `None` if it is missing or unreadable.
    pub fn header(&self, session: &SessionId) -> Result<Option<MarkedHeader>, RowsError> {
        Ok(self.header.get(session.0.as_bytes())?.and_then(|value| read_header(&value)))
    }

    /// All readable header rows.
    pub fn headers(&self) -> Result<BTreeMap<SessionId, MarkedHeader>, RowsError> {
        let mut headers = BTreeMap::new();
        for row in self.header.iter() {
            let (_, value) = row?;
            if let Some(marked) = read_header(&value) {
                headers.insert(marked.header.session.clone(), marked);
            }
        }
        Ok(headers)
    }

    /// Writes lines numbered from `from`, and then the header that covers them. `old_time` is the time under
    /// which the session was filed before.
    pub fn append<'a>(
        &self,
        marked: &MarkedHeader,
        from: u64,
        lines: impl Iterator<Item = &'a [u8]>,
        old_time: Option<u64>,
    ) -> Result<(), RowsError> {
        let session = &marked.header.session;
        for (seq, line) in (from..).zip(lines) {
            let parts = line.len().div_ceil(PART_BYTES_MAX).max(1);
            for part in 0..parts {
                let start = part * PART_BYTES_MAX;
                let payload = &line[start..line.len().min(start + PART_BYTES_MAX)];
                let flags = if part + 1 < parts { FLAG_CONTINUES } else { 0 };
                self.log.insert(log_key(session, seq, part), seal(flags, payload))?;
            }
        }
        // The header is written last: if it exists, so do its rows.
        let json = serde_json::to_vec(marked).map_err(|error| RowsError::Damaged(error.to_string()))?;
        self.header.insert(session.0.as_bytes(), seal(0, &json))?;
        if let Some(old_time) = old_time {
            self.time.remove(time_key(old_time, session))?;
        }
        self.time.insert(time_key(marked.header.updated_at, session), seal(0, &[]))?;
        Ok(())
    }

    /// Removes all rows of a session.
    pub fn remove(&self, session: &SessionId) -> Result<(), RowsError> {
        // The header is removed first, so that the remains after a crash don't look like a complete session.
        if let Some(value) = self.header.remove(session.0.as_bytes())?
            && let Some(marked) = read_header(&value)
        {
            self.time.remove(time_key(marked.header.updated_at, session))?;
        }
        self.remove_lines(session, 0)
    }

    /// Removes the lines of a session, starting at number `from`.
    pub fn remove_lines(&self, session: &SessionId, from: u64) -> Result<(), RowsError> {
        // The largest possible key of a line of the session.
        let last = log_key(session, u64::MAX, u16::MAX.into());
        for key in self.log.range(log_key(session, from, 0)..=last).keys() {
            self.log.remove(key?)?;
        }
        Ok(())
    }

    /// The lines of a session in order; fails on the first unreadable one.
    pub fn lines(&self, session: &SessionId) -> Result<Vec<Vec<u8>>, RowsError> {
        let mut lines = Vec::new();
        let mut goes_on = false;
        for row in self.log.scan_prefix(session.0.as_bytes()) {
            let (_, value) = row?;
            let (flags, payload) =
                open_envelope(&value).ok_or_else(|| RowsError::Damaged("a row has a bad checksum".into()))?;
            match lines.last_mut() {
                Some(line) if goes_on => Vec::extend_from_slice(line, payload),
                _ => lines.push(payload.to_vec()),
            }
            goes_on = flags & FLAG_CONTINUES != 0;
        }
        Ok(lines)
    }
}

/// The file that sled locks while it is open.
pub(super) fn lock_file(directory: &Path) -> PathBuf {
    directory.join("db")
}

/// The newest snapshot of sled; snapshots are the files that it most often fails to read.
pub(super) fn newest_snapshot(directory: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let snapshots = files.filter(|file| file.file_name().to_string_lossy().starts_with("snap."));
    // Their names end in a fixed-width hexadecimal number, so they sort by age.
    snapshots.map(|file| file.path()).max()
}

fn log_key(session: &SessionId, seq: u64, part: usize) -> Vec<u8> {
    let mut key = session.0.as_bytes().to_vec();
    key.extend_from_slice(&seq.to_be_bytes());
    if part > 0 {
        let part = u16::try_from(part).expect("a line of 4 GB cannot be written");
        key.extend_from_slice(&part.to_be_bytes());
    }
    key
}

fn time_key(at: u64, session: &SessionId) -> Vec<u8> {
    let mut key = at.to_be_bytes().to_vec();
    key.extend_from_slice(session.0.as_bytes());
    key
}

fn read_header(value: &IVec) -> Option<MarkedHeader> {
    let (_, payload) = open_envelope(value)?;
    serde_json::from_slice(payload).ok()
}

fn seal(flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(ENVELOPE_BYTES + payload.len());
    value.extend_from_slice(&[ENVELOPE_VERSION, flags]);
    value.extend_from_slice(&checksum(flags, payload).to_le_bytes());
    value.extend_from_slice(payload);
    value
}

/// Flags and payload; `None` if the checksum or version is wrong.
fn open_envelope(value: &[u8]) -> Option<(u8, &[u8])> {
    let (head, payload) = value.split_at_checked(ENVELOPE_BYTES)?;
    let [version, flags, crc @ ..] = head else { return None };
    let good = *version == ENVELOPE_VERSION && crc == checksum(*flags, payload).to_le_bytes();
    good.then_some((*flags, payload))
}

/// Covers the flags as well: a lost `FLAG_CONTINUES` would split a line in two.
fn checksum(flags: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[flags]);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::header::{Header, Mark};
    use super::*;

    fn session() -> SessionId {
        SessionId("s_00000000000000000001".into())
    }

    fn marked(entries: u64, updated_at: u64) -> MarkedHeader {
        let header = Header {
            session: session(),
            cwd: "/w".into(),
            title: None,
            model: None,
            created_at: 1,
            updated_at,
            entries,
            turns: 0,
            has_prompt: false,
            forked: None,
        };
        MarkedHeader { header, mark: Mark { entries, bytes: 7, crc: 9 } }
    }

    #[test]
    fn lines_of_any_length_roundtrip() {
        let directory = tempfile::tempdir().unwrap();
        let rows = Rows::open(directory.path()).unwrap();
        let lines: Vec<Vec<u8>> = [0, 1, PART_BYTES_MAX, PART_BYTES_MAX + 1, 5 * PART_BYTES_MAX]
            .map(|length| vec![b'x'; length])
            .to_vec();
        rows.append(&marked(5, 2), 0, lines.iter().map(Vec::as_slice), None).unwrap();
        assert_eq!(rows.lines(&session()).unwrap(), lines);
        assert_eq!(rows.header(&session()).unwrap(), Some(marked(5, 2)));
    }

    #[test]
    fn a_session_is_filed_only_under_its_newest_time() {
        let directory = tempfile::tempdir().unwrap();
        let rows = Rows::open(directory.path()).unwrap();
        rows.append(&marked(1, 2), 0, [b"a".as_slice()].into_iter(), None).unwrap();
        rows.append(&marked(2, 3), 1, [b"b".as_slice()].into_iter(), Some(2)).unwrap();
        let times: Vec<IVec> = rows.time.iter().keys().map(Result::unwrap).collect();
        assert_eq!(times, [time_key(3, &session())]);
    }

    #[test]
    fn a_removed_session_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let rows = Rows::open(directory.path()).unwrap();
        let lines = vec![b"line".as_slice(); 1000];
        rows.append(&marked(1, 2), 0, lines.into_iter(), None).unwrap();
        rows.remove(&session()).unwrap();
        assert!(rows.header.is_empty() && rows.log.is_empty() && rows.time.is_empty());
    }

    #[test]
    fn every_flipped_bit_of_a_value_is_detected() {
        let value = seal(0, b"payload");
        assert_eq!(open_envelope(&value), Some((0, b"payload".as_slice())));
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut flipped = value.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(open_envelope(&flipped), None, "byte {at}, bit {bit}");
            }
        }
    }
}
