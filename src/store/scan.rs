//! Reads a journal's bytes: which lines are valid, where they end, and whether what follows is damaged.
//!
//! It interprets an invalid line but changes no file; `journal` cuts off incomplete last lines.

use std::io;
use std::sync::Arc;

use super::header::{Header, JournalMark, MarkedHeader};
use super::line::{self, Bodies, LineFault};
use super::{StoreError, StorePaths, io_error};
use epitome_thread::{Change, Entry, FORMAT_VERSION, Seq, SessionId};

/// The content of a journal.
pub(super) struct Scan {
    pub entries: Vec<Arc<Entry>>,
    pub header: Header,
    /// The end of the last valid line. If there is no damage, bytes after it are an incomplete last line.
    pub mark: JournalMark,
    /// One per entry.
    pub lines: Vec<ScannedLine>,
    /// The first line that is invalid but not an incomplete last line.
    pub damage: Option<StoreError>,
}

/// Position of a line in the file, without its newline.
pub(super) struct ScannedLine {
    pub bytes: std::ops::Range<usize>,
    pub crc: u32,
}

impl Scan {
    /// Reads lines up to the end, an incomplete last line, or damage. A file without a complete line counts
    /// as not found: creating the session never finished.
    pub fn read(session: &SessionId, bytes: &[u8], bodies: Bodies<'_>) -> Result<Scan, StoreError> {
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        let mut lines = Vec::new();
        let mut header: Option<Header> = None;
        let mut mark = JournalMark { entries: 0, bytes: 0, crc: 0 };
        let mut damage = None;
        let mut start = 0;
        while start < bytes.len() {
            // Without a newline the last write was incomplete, even if the rest looks valid.
            let (text, read) = match bytes[start..].iter().position(|byte| *byte == b'\n') {
                Some(length) => {
                    let text = &bytes[start..start + length];
                    (text, read_line(session, text, bodies, header.as_mut()))
                }
                None => (&bytes[start..], Err(LineFault::Checksum)),
            };
            let end = start + text.len();
            match read {
                Ok((entry, crc)) => {
                    if header.is_none() {
                        header = Header::opened(&entry);
                    }
                    entries.push(Arc::new(entry));
                    lines.push(ScannedLine { bytes: start..end, crc });
                    mark = JournalMark { entries: mark.entries + 1, bytes: end as u64 + 1, crc };
                }
                Err(LineFault::Future(found)) => {
                    return Err(StoreError::FutureFormat { session: session.clone(), found });
                }
                Err(LineFault::Checksum) if end + 1 >= bytes.len() && !line::holds_another(text) => break,
                Err(bad) => {
                    let line = entries.len() as u64 + 1;
                    damage =
                        Some(StoreError::Damaged { session: session.clone(), line, reason: bad.reason() });
                    break;
                }
            }
            start = end + 1;
        }
        match (header, damage) {
            (Some(header), damage) => Ok(Scan { entries, header, mark, lines, damage }),
            (None, Some(damage)) => Err(damage),
            (None, None) => Err(StoreError::NotFound(session.clone())),
        }
    }
}

/// Parses one line and applies it to the header of the preceding lines, which is `None` for the first line.
fn read_line(
    session: &SessionId,
    text: &[u8],
    bodies: Bodies<'_>,
    header: Option<&mut Header>,
) -> Result<(Entry, u32), LineFault> {
    let crc = line::check(text)?;
    if header.is_none()
        && let Some(found) = line::format(text).filter(|found| *found > FORMAT_VERSION)
    {
        return Err(LineFault::Future(found));
    }
    let entry = line::decode(text, bodies)?;
    let expected = Seq(header.as_ref().map_or(0, |header| header.entries));
    if entry.seq != expected {
        return Err(LineFault::Meaning(format!("entry {} stands where {expected} must be", entry.seq)));
    }
    match (&entry.change, header) {
        (Change::Opened { session: named, .. }, None) if named == session => {}
        (Change::Opened { session: named, .. }, None) => {
            return Err(LineFault::Meaning(format!("it opens session {named}")));
        }
        (_, None) => return Err(LineFault::Meaning("it is not an opening entry".to_owned())),
        (Change::Opened { .. }, Some(_)) => {
            return Err(LineFault::Meaning("it opens the session again".to_owned()));
        }
        (_, Some(header)) => header.apply(&entry),
    }
    Ok((entry, crc))
}

/// Reads a complete journal without locking it.
pub(super) fn read_file(paths: &StorePaths, session: &SessionId) -> Result<Vec<u8>, StoreError> {
    if SessionId::parse(&session.0).is_none() {
        return Err(StoreError::NotFound(session.clone()));
    }
    let path = paths.journal(session);
    match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::NotFound(session.clone())),
        bytes => bytes.map_err(|source| io_error("read", &path, source)),
    }
}

/// Builds a session's header from its journal alone.
pub(super) fn read_header(paths: &StorePaths, session: &SessionId) -> Result<MarkedHeader, StoreError> {
    let bytes = read_file(paths, session)?;
    let scan = Scan::read(session, &bytes, Bodies::Inline)?;
    match scan.damage {
        None => Ok(MarkedHeader { header: scan.header, mark: scan.mark }),
        Some(damage) => Err(damage),
    }
}
