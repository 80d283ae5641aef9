//! Compares the index with the journals.

use super::header::{Header, MarkedHeader};
use super::health::IndexState;
use super::index_thread::guarded;
use super::rows::{Headers, Rows, RowsError};
use super::scan::{self, Scan};
use super::{StoreError, StorePaths};

/// Compares all rows with the journals, reading all of both.
pub(super) fn compare(paths: &StorePaths, rows: &Rows) -> IndexState {
    match guarded(|| rows.headers()) {
        Ok(stored) => compare_stored(paths, stored)
            .unwrap_or_else(|error| IndexState::Unknown { reason: error.to_string() }),
        Err(error) => error.into(),
    }
}

impl From<RowsError> for IndexState {
    fn from(error: RowsError) -> IndexState {
        match error {
            RowsError::Damaged(reason) => IndexState::Damaged { reason },
            RowsError::Unavailable(error) => IndexState::Unknown { reason: error.to_string() },
        }
    }
}

fn compare_stored(paths: &StorePaths, mut stored: Headers) -> Result<IndexState, StoreError> {
    let (mut sessions, mut behind, mut wrong) = (0, 0, Vec::new());
    for session in paths.sessions()? {
        let marked = stored.remove(&session);
        // Listings report damaged journals.
        let scan = scan::read(paths, &session);
        let Some((scan, _)) = scan.ok().filter(|(scan, _)| scan.damage.count == 0) else { continue };
        let Some(marked) = marked else {
            behind += u64::from(scan.header.has_prompt);
            continue;
        };
        sessions += 1;
        if was_header_of(&marked, &scan) {
            behind += u64::from(marked.mark != scan.mark);
        } else {
            wrong.push(session);
        }
    }
    // Rows of sessions that were deleted since.
    behind += stored.len() as u64;
    Ok(match wrong.is_empty() {
        true => IndexState::Agrees { sessions, behind },
        false => IndexState::Disagrees { sessions: wrong },
    })
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
