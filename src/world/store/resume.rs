//! Opens a session without folding its whole journal: with the state that sled has of its thread at one position, the rest
//! of the journal, and older entries when somebody reads them.
//!
//! Nothing of it is believed without the journal. The state belongs to a position whose line must be in the journal, the
//! lines behind it must continue the chain of checksums, and each page of older lines must end with a checksum that was
//! saved with the state and be a chain in itself. If anything else is found, the whole journal is read, as it is without
//! sled.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::blobs::BodyReader;
use super::chain::{first_line, next_line};
use super::header::MarkedHeader;
use super::index::Index;
use super::line::{self, Bodies};
use super::saved_thread::{ResumedThread, SavedEntries, SavedThread};
use super::sync_mark::SyncMark;
use super::{StoreError, StorePaths, rows, scan};
use epitome_thread::{
    Change, Entry, FOLD_ID, OlderEntries, PAGE_ENTRIES, Seq, SessionId, Thread, ThreadState,
};

/// Shorter journals are read whole, which takes 11 ms for this many bytes: sled may be closed, and opening a large one took
/// 15 to 47 ms.
const BYTES_MIN: u64 = 2 * 1024 * 1024;

/// Reads a thread with its saved state. `None` if there is none, or the journal does not continue from it without a fault.
/// `is_open_elsewhere`: another process may be writing a line, so an incomplete one at the end is left out.
pub(super) fn resume(
    paths: &StorePaths,
    index: &Index,
    session: &SessionId,
    is_open_elsewhere: bool,
) -> Result<Option<ResumedThread>, StoreError> {
    if paths.disk.stat(&paths.journal(session)).is_ok_and(|journal| journal.bytes < BYTES_MIN) {
        return Ok(None);
    }
    let saved = index.saved_thread(session).and_then(|value| rows::decode::<SavedThread>(&value));
    let Some(saved) = saved.filter(|saved| saved.fold == FOLD_ID) else { return Ok(None) };
    let SavedThread { marked, last_line, opening, page_crcs, state, .. } = saved;
    let (path, saved) = (paths.journal(session), marked.mark);
    // A mark that is read first is not newer than the journal.
    let reached = SyncMark::read(paths, session).filter(|mark| mark.opening == opening.as_bytes());
    let reached = reached.and_then(|mark| mark.reached).unwrap_or_default();
    let read = |range: Range<u64>| paths.disk.read_range(&path, range);
    let (Ok(first), Ok(bytes)) = (read(0..opening.len() as u64), read(last_line..u64::MAX)) else {
        return Ok(None);
    };
    let blobs = paths.blobs(session);
    let bodies = BodyReader::new(&blobs);
    let mut rest = &bytes[..];
    let (mut mark, mut synced) = (saved, reached.bytes);
    let last = first_line(&mut rest).filter(|line| line.crc == saved.crc && first == opening.as_bytes());
    let Some(last) = last.and_then(|line| line.chain) else { return Ok(None) };
    synced = synced.max(last.synced);
    let mut entries = Vec::new();
    while let Some((sealed, _)) = next_line(&mut rest, &mut mark) {
        synced = synced.max(sealed.chain.map_or(0, |chain| chain.synced));
        match line::decode(sealed, Bodies::Whole(&bodies)) {
            Ok(entry) if !matches!(entry.change, Change::Opened { .. }) => entries.push(Arc::new(entry)),
            _ => return Ok(None),
        }
    }
    let is_whole = rest.is_empty() || is_open_elsewhere && !rest.contains(&b'\n');
    let is_complete = reached.bytes <= mark.bytes && reached.entries <= mark.entries && saved.bytes <= synced;
    if !(is_whole && is_complete && bodies.finish()?.is_empty()) {
        return Ok(None);
    }
    let mut newest = MarkedHeader { mark, ..marked };
    entries.iter().for_each(|entry| newest.header.apply(entry));
    let (older, source) = older_entries(paths, index, session, SavedEntries { end: saved, page_crcs });
    let mut thread = Thread::restore(ThreadState::clone(&state), older, source);
    if thread.follow(entries).is_err() {
        return Ok(None);
    }
    let end = (mark.bytes - last_line) as usize;
    let unsynced = bytes[(synced.min(mark.bytes) - last_line) as usize..end].to_vec();
    let (opening, synced) = (opening.into_bytes(), synced.min(mark.bytes));
    Ok(Some(ResumedThread { thread, newest, opening, synced, unsynced, saved }))
}

/// The entries before the position of a saved state: from sled, or from the journal if sled does not have them.
#[derive(Debug)]
struct StoredEntries {
    paths: StorePaths,
    index: Index,
    session: SessionId,
    saved: SavedEntries,
    /// The entries from the journal, once sled did not have some: it is not read again for each page.
    from_journal: OnceLock<Vec<Arc<Entry>>>,
}

/// The number of these entries, and the source that reads them.
pub(super) fn older_entries(
    paths: &StorePaths,
    index: &Index,
    session: &SessionId,
    saved: SavedEntries,
) -> (u64, Arc<dyn OlderEntries>) {
    let (paths, index, session) = (paths.clone(), index.clone(), session.clone());
    let from_journal = OnceLock::new();
    (saved.end.entries, Arc::new(StoredEntries { paths, index, session, saved, from_journal }))
}

impl StoredEntries {
    /// `None` if a line is missing or is not that of the journal.
    fn rows(&self, range: &Range<u64>) -> Option<Vec<Arc<Entry>>> {
        let lines = self.index.lines(&self.session, range.clone())?;
        let last = self.saved.page_crcs.get(range.start as usize / PAGE_ENTRIES)?;
        let blobs = self.paths.blobs(&self.session);
        let bodies = BodyReader::new(&blobs);
        // The page continues from the one before it; the first line of a journal continues from 0.
        let before = (range.start as usize / PAGE_ENTRIES).checked_sub(1);
        let mut crc = before.map_or(Some(0), |before| self.saved.page_crcs.get(before).copied())?;
        let mut entries = Vec::with_capacity(lines.len());
        for (seq, line) in range.clone().zip(&lines) {
            let sealed = line::open(line)?;
            if sealed.chain?.prev != crc {
                return None;
            }
            crc = sealed.crc;
            entries.push(
                line::decode(sealed, Bodies::Whole(&bodies)).ok().filter(|entry| entry.seq == Seq(seq))?,
            );
        }
        let is_whole = entries.len() as u64 == range.end - range.start && crc == *last;
        is_whole.then(|| entries.into_iter().map(Arc::new).collect())
    }

    fn journal(&self) -> Result<Vec<Arc<Entry>>, StoreError> {
        let log = scan::read_stored(&self.paths, &self.session)?;
        let scan = log.scan(&self.session, &self.paths.blobs(&self.session))?;
        let older = scan.entries.into_iter().take(self.saved.end.entries as usize);
        Ok(older.collect())
    }
}

impl OlderEntries for StoredEntries {
    fn read(&self, range: Range<u64>) -> Vec<Arc<Entry>> {
        if self.from_journal.get().is_none()
            && let Some(entries) = self.rows(&range)
        {
            tracing::debug!(session = %self.session, from = range.start, "older entries are read");
            return entries;
        }
        let older = self.from_journal.get_or_init(|| {
            tracing::info!(session = %self.session, from = range.start, "older entries are read from the journal");
            self.index.follow_again(&self.session, self.saved.end);
            let read = self.journal().inspect_err(|error| {
                tracing::warn!(session = %self.session, %error, "older entries cannot be read");
            });
            read.unwrap_or_default()
        });
        let found = older.get(range.start as usize..older.len().min(range.end as usize));
        let mut entries = found.unwrap_or_default().to_vec();
        // As many as the range has, whatever happened to the journal since it was opened.
        let lost = range.start + entries.len() as u64..range.end;
        entries.extend(lost.clone().map(|seq| {
            let entries = if seq == lost.start { lost.end - lost.start } else { 0 };
            Arc::new(Entry { seq: Seq(seq), at: 0, change: Change::Lost { entries } })
        }));
        entries
    }
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
