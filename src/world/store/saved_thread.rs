//! The saved state of a thread as sled has it. `resume` reads threads with it.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::header::{JournalMark, MarkedHeader};
use super::line;
use epitome_thread::{FOLD_ID, PAGE_ENTRIES, Thread, ThreadState};

/// The content of a row of the tree `thread`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedThread {
    /// The `FOLD_ID` of the code that made the state: only the same code uses it.
    pub fold: String,
    /// The position, with the header that the session had there.
    pub marked: MarkedHeader,
    /// Where the last line before the position begins, in bytes.
    pub last_line: u64,
    /// The journal's first line, without its newline.
    pub opening: String,
    /// The checksum of the last line of each page of entries before the position.
    pub page_crcs: Arc<[u32]>,
    pub state: Arc<ThreadState>,
}

/// The entries before the position of a saved state.
#[derive(Debug)]
pub(super) struct SavedEntries {
    pub end: JournalMark,
    /// The checksum of the last line of each page.
    pub page_crcs: Arc<[u32]>,
}

/// A thread that was read with a saved state.
pub struct ResumedThread {
    pub(super) thread: Thread,
    /// The end of the journal, with the header that the session has there.
    pub(super) newest: MarkedHeader,
    /// The journal's first line, without its newline.
    pub(super) opening: Vec<u8>,
    /// How many bytes of the journal were certainly on disk.
    pub(super) synced: u64,
    /// The part of the journal that may not have been on disk.
    pub(super) unsynced: Vec<u8>,
    /// The position of the saved state.
    pub(super) saved: JournalMark,
}

impl SavedThread {
    /// `line_of` returns the line of an entry, by its number. `None` if one of them is missing or damaged.
    pub fn new<E>(
        marked: &MarkedHeader,
        opening: &[u8],
        state: Arc<ThreadState>,
        mut line_of: impl FnMut(u64) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<SavedThread>, E> {
        let entries = marked.mark.entries;
        let mut page_crcs = Vec::new();
        let mut last_bytes = 0;
        for page in pages(entries) {
            let Some(line) = line_of(page.end - 1)? else { return Ok(None) };
            let Some(sealed) = line::open(&line) else { return Ok(None) };
            page_crcs.push(sealed.crc);
            last_bytes = line.len() as u64 + 1;
        }
        let (Some(last_line), Ok(opening)) =
            (marked.mark.bytes.checked_sub(last_bytes), String::from_utf8(opening.to_vec()))
        else {
            return Ok(None);
        };
        let is_at_mark = page_crcs.last() == Some(&marked.mark.crc);
        let (marked, page_crcs, fold) = (marked.clone(), page_crcs.into(), FOLD_ID.to_owned());
        Ok(is_at_mark.then_some(SavedThread { fold, marked, last_line, opening, page_crcs, state }))
    }
}

/// The pages of a log with this number of entries.
fn pages(entries: u64) -> impl Iterator<Item = Range<u64>> {
    let size = PAGE_ENTRIES as u64;
    (0..entries.div_ceil(size)).map(move |page| page * size..entries.min((page + 1) * size))
}
