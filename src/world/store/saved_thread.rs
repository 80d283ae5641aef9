//! The state of a thread that sled has, so that a session is opened without folding its whole journal: the state at one
//! position, the rest of the journal, and older entries when somebody reads them.
//!
//! Nothing of it is believed without the journal. The state belongs to a position whose line must be in the journal, the
//! lines behind it must continue the chain of checksums, and each page of older lines must end with a checksum that was
//! saved with the state and be a chain in itself. If anything else is found, the whole journal is read, as it is without
//! sled.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blobs::BodyReader;
use super::files::Files;
use super::header::{Header, JournalMark, MarkedHeader};
use super::line::{self, Bodies, Sealed};
use super::sync_mark::SyncMark;
use super::{StoreError, StorePaths, rows, scan};
use epitome_thread::{
    Change, Entry, FOLD_ID, OlderEntries, PAGE_ENTRIES, Seq, SessionId, Thread, ThreadState,
};

/// Bytes of a journal that are read at once.
const READ_BYTES: u64 = 1024 * 1024;

/// What a row of the tree `thread` contains.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedThread {
    /// Names the code that made the state.
    fold: String,
    /// The position, with the header that the session had there.
    marked: MarkedHeader,
    /// Where the last line before the position begins, in bytes.
    last_line: u64,
    /// The journal's first line, without its newline.
    opening: String,
    /// The checksum of the last line of each page of entries before the position.
    page_crcs: Arc<[u32]>,
    state: Arc<ThreadState>,
}

/// The entries before the position of a saved state.
#[derive(Debug)]
pub(super) struct SavedEntries {
    end: JournalMark,
    /// The checksum of the last line of each page.
    page_crcs: Arc<[u32]>,
}

impl SavedEntries {
    /// The number of entries, and the source that reads them.
    pub fn of(self, files: &Files, session: &SessionId) -> (u64, Arc<dyn OlderEntries>) {
        let entries = self.end.entries;
        (entries, Arc::new(StoredEntries { files: files.clone(), session: session.clone(), saved: self }))
    }
}

/// A thread that was read with a saved state.
pub struct ResumedThread {
    pub(super) thread: Thread,
    pub(super) header: Header,
    pub(super) mark: JournalMark,
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

    /// The entries before the position, once they and the state are stored.
    pub fn older(&self) -> SavedEntries {
        SavedEntries { end: self.marked.mark, page_crcs: self.page_crcs.clone() }
    }

    fn read(files: &Files, session: &SessionId) -> Option<SavedThread> {
        let value = files.index.saved_thread(session)?;
        rows::decode::<SavedThread>(&value).filter(|saved| saved.fold == FOLD_ID)
    }
}

/// Reads a thread with its saved state. `None` if there is none, or the journal does not continue from it without a fault.
/// `is_open_elsewhere`: another process may be writing a line, so an incomplete one at the end is left out.
pub(super) fn resume(
    files: &Files,
    session: &SessionId,
    is_open_elsewhere: bool,
) -> Result<Option<ResumedThread>, StoreError> {
    let Some(SavedThread { marked, last_line, opening, page_crcs, state, .. }) =
        SavedThread::read(files, session)
    else {
        return Ok(None);
    };
    let (path, saved) = (files.paths.journal(session), marked.mark);
    // A mark that is read first is not newer than the journal.
    let reached = SyncMark::read(&files.paths, session).filter(|mark| mark.opening == opening.as_bytes());
    let reached = reached.and_then(|mark| mark.reached).unwrap_or_default();
    let read = |range: Range<u64>| files.paths.disk.read_range(&path, range);
    let (Ok(first), Ok(bytes)) = (read(0..opening.len() as u64), read(last_line..u64::MAX)) else {
        return Ok(None);
    };
    let blobs = files.paths.blobs(session);
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
    let mut header = marked.header;
    entries.iter().for_each(|entry| header.apply(entry));
    let (older, source) = SavedEntries { end: saved, page_crcs }.of(files, session);
    let mut thread = Thread::restore(ThreadState::clone(&state), older, source);
    if thread.follow(entries).is_err() {
        return Ok(None);
    }
    let end = (mark.bytes - last_line) as usize;
    let unsynced = bytes[(synced.min(mark.bytes) - last_line) as usize..end].to_vec();
    let (opening, synced) = (opening.into_bytes(), synced.min(mark.bytes));
    Ok(Some(ResumedThread { thread, header, mark, opening, synced, unsynced, saved }))
}

/// Whether the journal has an unbroken chain of lines up to this position.
pub(super) fn is_sound(paths: &StorePaths, session: &SessionId, until: JournalMark) -> bool {
    let mut mark = JournalMark::default();
    walk(paths, session, &mut mark, until, |_, _| Ok::<_, Infallible>(())).is_ok_and(|()| mark == until)
}

/// Reads the lines of a journal from a mark on, as long as they continue the chain, and moves the mark behind each line
/// that `each` has taken. Holds only a part of the journal in memory.
pub(super) fn walk<E>(
    paths: &StorePaths,
    session: &SessionId,
    mark: &mut JournalMark,
    until: JournalMark,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut read_bytes = READ_BYTES;
    while mark.bytes < until.bytes {
        let end = until.bytes.min(mark.bytes + read_bytes);
        let Ok(bytes) = paths.disk.read_range(&paths.journal(session), mark.bytes..end) else {
            return Ok(());
        };
        let (mut rest, began) = (&bytes[..], mark.bytes);
        while let Some((_, line)) = next_line(&mut rest, mark) {
            each(mark.entries - 1, line)?;
        }
        match mark.bytes > began {
            true => read_bytes = READ_BYTES,
            // A line may be longer.
            false if end < until.bytes && !rest.contains(&b'\n') => read_bytes *= 2,
            false => return Ok(()),
        }
    }
    Ok(())
}

/// Reads the next line after a mark and moves the mark behind it. `None` if the line does not continue the chain; then
/// nothing is moved.
pub(super) fn next_line<'a>(bytes: &mut &'a [u8], mark: &mut JournalMark) -> Option<(Sealed<'a>, &'a [u8])> {
    let mut rest = *bytes;
    let sealed = first_line(&mut rest)?;
    if sealed.chain?.prev != mark.crc {
        return None;
    }
    let length = bytes.len() - rest.len();
    let line = &bytes[..length - 1];
    *bytes = rest;
    let (entries, bytes) = (mark.entries + 1, mark.bytes + length as u64);
    *mark = JournalMark { entries, bytes, crc: sealed.crc };
    Some((sealed, line))
}

fn first_line<'a>(bytes: &mut &'a [u8]) -> Option<Sealed<'a>> {
    let end = memchr::memchr(b'\n', bytes)?;
    let sealed = line::open(&bytes[..end])?;
    *bytes = &bytes[end + 1..];
    Some(sealed)
}

/// The pages of a log with this number of entries.
fn pages(entries: u64) -> impl Iterator<Item = Range<u64>> {
    let size = PAGE_ENTRIES as u64;
    (0..entries.div_ceil(size)).map(move |page| page * size..entries.min((page + 1) * size))
}

/// The entries before the position of a saved state: from sled, or from the journal if sled does not have them.
#[derive(Debug)]
struct StoredEntries {
    files: Files,
    session: SessionId,
    saved: SavedEntries,
}

impl StoredEntries {
    /// `None` if a line is missing or is not that of the journal.
    fn from_rows(&self, range: &Range<u64>) -> Option<Vec<Arc<Entry>>> {
        let lines = self.files.index.lines(&self.session, range.clone())?;
        let last = self.saved.page_crcs.get(range.start as usize / PAGE_ENTRIES)?;
        let blobs = self.files.paths.blobs(&self.session);
        let bodies = BodyReader::new(&blobs);
        let mut crc = None;
        let mut entries = Vec::with_capacity(lines.len());
        for (seq, line) in range.clone().zip(&lines) {
            let sealed = line::open(line)?;
            if crc.is_some_and(|crc| sealed.chain.is_none_or(|chain| chain.prev != crc)) {
                return None;
            }
            crc = Some(sealed.crc);
            entries.push(
                line::decode(sealed, Bodies::Whole(&bodies)).ok().filter(|entry| entry.seq == Seq(seq))?,
            );
        }
        let is_whole = entries.len() as u64 == range.end - range.start && crc == Some(*last);
        is_whole.then(|| entries.into_iter().map(Arc::new).collect())
    }

    fn from_journal(&self, range: &Range<u64>) -> Result<Vec<Arc<Entry>>, StoreError> {
        let log = scan::read_stored(&self.files.paths, &self.session)?;
        let scan = log.scan(&self.session, &self.files.paths.blobs(&self.session))?;
        let found = scan.entries.get(range.start as usize..scan.entries.len().min(range.end as usize));
        Ok(found.unwrap_or_default().to_vec())
    }
}

impl OlderEntries for StoredEntries {
    fn read(&self, range: Range<u64>) -> Vec<Arc<Entry>> {
        if let Some(entries) = self.from_rows(&range) {
            tracing::debug!(session = %self.session, from = range.start, "older entries are read");
            return entries;
        }
        tracing::info!(session = %self.session, from = range.start, "older entries are read from the journal");
        self.files.index.follow_again(&self.session, self.saved.end);
        let read = self.from_journal(&range).inspect_err(|error| {
            tracing::warn!(session = %self.session, %error, "older entries cannot be read");
        });
        let mut entries = read.unwrap_or_default();
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
#[path = "saved_thread_tests.rs"]
mod tests;
