//! Compares the index with the journals.

use super::header::{Header, MarkedHeader};
use super::health::IndexState;
use super::rows::{Headers, RowsError};
use super::scan::Scan;
use epitome_thread::SessionId;

/// A comparison of the rows with the journals, which the caller reads: reading them twice would take twice as long.
pub(super) struct IndexComparison {
    /// Rows whose journal was not seen yet.
    stored: Headers,
    sessions: u64,
    behind: u64,
    wrong: Vec<SessionId>,
}

impl From<RowsError> for IndexState {
    fn from(error: RowsError) -> IndexState {
        match error {
            RowsError::Damaged(reason) => IndexState::Damaged { reason },
            RowsError::Unavailable(error) => IndexState::Unknown { reason: error.to_string() },
        }
    }
}

impl IndexComparison {
    pub(super) fn new(stored: Headers) -> IndexComparison {
        IndexComparison { stored, sessions: 0, behind: 0, wrong: Vec::new() }
    }

    /// Compares the row of a session with its journal, if that can be read.
    pub(super) fn add(&mut self, session: &SessionId, scan: Option<&Scan>) {
        let marked = self.stored.remove(session);
        // Findings of their own report damaged journals.
        let Some(scan) = scan.filter(|scan| scan.damage.count == 0) else { return };
        match marked {
            None => self.behind += u64::from(scan.header.has_prompt),
            Some(marked) if was_header_of(&marked, scan) => {
                self.sessions += 1;
                self.behind += u64::from(marked.mark != scan.mark);
            }
            Some(_) => self.wrong.push(session.clone()),
        }
    }

    pub(super) fn end(self) -> IndexState {
        // The rest are rows of sessions that were deleted since.
        let IndexComparison { stored, sessions, behind, wrong } = self;
        match wrong.is_empty() {
            true => IndexState::Agrees { sessions, behind: behind + stored.len() as u64 },
            false => IndexState::Disagrees { sessions: wrong },
        }
    }
}

/// Whether this is the header of the journal or of a beginning of it.
fn was_header_of(marked: &MarkedHeader, scan: &Scan) -> bool {
    let Some(last) = marked.mark.entries.checked_sub(1).and_then(|last| scan.lines.get(last as usize)) else {
        return false;
    };
    if last.crc != marked.mark.crc || last.bytes.end as u64 + 1 != marked.mark.bytes {
        return false;
    }
    let mut entries = scan.entries[..marked.mark.entries as usize].iter();
    let header = entries.next().and_then(|first| Header::opened(first)).map(|mut header| {
        entries.for_each(|entry| header.apply(entry));
        header
    });
    header.as_ref() == Some(&marked.header)
}
