//! The entries of a log in memory. A store can keep the older ones until somebody reads them.

use std::fmt;
use std::ops::{Index, Range};
use std::sync::{Arc, OnceLock};

use super::change::{Entry, Seq};

/// Number of older entries that are read together.
pub const PAGE_ENTRIES: usize = 256;

/// The place where older entries of a log are kept. What it returns never changes, so a thread with such entries is
/// the same as one that has all of them in memory.
pub trait OlderEntries: fmt::Debug + Send + Sync {
    /// Reads these entries, one for each number of the range. An entry that can't be read is `Change::Lost`. May block
    /// on the disk.
    fn read(&self, range: Range<u64>) -> Vec<Arc<Entry>>;
}

/// All entries of a log, in order. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct EntryLog {
    older: Option<Arc<OlderPages>>,
    newer: Arc<Vec<Arc<Entry>>>,
}

/// Older entries, of which each page is read when it is first needed.
#[derive(Debug)]
struct OlderPages {
    source: Arc<dyn OlderEntries>,
    entries: usize,
    pages: Vec<OnceLock<Vec<Arc<Entry>>>>,
}

impl OlderPages {
    fn new(source: Arc<dyn OlderEntries>, entries: usize) -> OlderPages {
        let pages = (0..entries.div_ceil(PAGE_ENTRIES)).map(|_| OnceLock::new()).collect();
        OlderPages { source, entries, pages }
    }

    fn get(&self, at: usize) -> &Arc<Entry> {
        let page = at / PAGE_ENTRIES;
        let first = page * PAGE_ENTRIES;
        let read = || {
            let range = first as u64..self.entries.min(first + PAGE_ENTRIES) as u64;
            let entries = self.source.read(range.clone());
            assert_eq!(entries.len() as u64, range.end - range.start, "one entry for each number");
            entries
        };
        &self.pages[page].get_or_init(read)[at - first]
    }
}

impl EntryLog {
    /// A log whose first entries are read when they are needed.
    pub(super) fn with_older(source: Arc<dyn OlderEntries>, entries: u64) -> EntryLog {
        EntryLog { older: Some(Arc::new(OlderPages::new(source, entries as usize))), newer: Arc::default() }
    }

    pub(super) fn push(&mut self, entry: Arc<Entry>) {
        Arc::make_mut(&mut self.newer).push(entry);
    }

    /// Keeps the first entries no longer: they are read from `source` when they are needed. Clones keep them.
    pub(super) fn move_older(&mut self, source: Arc<dyn OlderEntries>, entries: u64) {
        let entries = entries as usize;
        if (self.older() + 1..=self.len()).contains(&entries) {
            self.newer = Arc::new(self.range(entries..self.len()).cloned().collect());
            self.older = Some(Arc::new(OlderPages::new(source, entries)));
        }
    }

    /// Forgets the older entries that were read. Clones keep them.
    pub(super) fn forget_older(&mut self) {
        if let Some(older) = &mut self.older
            && older.pages.iter().any(|page| page.get().is_some())
        {
            *older = Arc::new(OlderPages::new(older.source.clone(), older.entries));
        }
    }

    /// The number of entries that are read when they are needed; the others are in memory.
    pub fn older(&self) -> usize {
        self.older.as_ref().map_or(0, |older| older.entries)
    }

    pub fn len(&self) -> usize {
        self.older() + self.newer.len()
    }

    /// A log has its opening entry, so only one that is being made is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, at: usize) -> Option<&Arc<Entry>> {
        match &self.older {
            Some(older) if at < older.entries => Some(older.get(at)),
            _ => self.newer.get(at - self.older()),
        }
    }

    pub fn first(&self) -> Option<&Arc<Entry>> {
        self.get(0)
    }

    pub fn last(&self) -> Option<&Arc<Entry>> {
        self.get(self.len().checked_sub(1)?)
    }

    pub fn iter(&self) -> Entries<'_> {
        self.range(0..self.len())
    }

    /// The entries of a range of indices, as far as it is within the log.
    pub fn range(&self, range: Range<usize>) -> Entries<'_> {
        let end = range.end.min(self.len());
        Entries { from: EntriesOf::Log(self), range: range.start.min(end)..end }
    }

    /// The entries before this one.
    pub fn before(&self, seq: Seq) -> Entries<'_> {
        self.range(0..index(seq))
    }

    /// The entries from this one on.
    pub fn since(&self, seq: Seq) -> Entries<'_> {
        self.range(index(seq)..self.len())
    }
}

fn index(seq: Seq) -> usize {
    usize::try_from(seq.0).unwrap_or(usize::MAX)
}

impl From<Vec<Arc<Entry>>> for EntryLog {
    fn from(entries: Vec<Arc<Entry>>) -> EntryLog {
        EntryLog { older: None, newer: Arc::new(entries) }
    }
}

impl Index<usize> for EntryLog {
    type Output = Arc<Entry>;

    fn index(&self, at: usize) -> &Arc<Entry> {
        self.get(at).expect("the index is within the log")
    }
}

impl<'a> IntoIterator for &'a EntryLog {
    type Item = &'a Arc<Entry>;
    type IntoIter = Entries<'a>;

    fn into_iter(self) -> Entries<'a> {
        self.iter()
    }
}

/// Some consecutive entries. Skipping entries at either end reads none of them.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    from: EntriesOf<'a>,
    range: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
enum EntriesOf<'a> {
    Log(&'a EntryLog),
    Slice(&'a [Arc<Entry>]),
}

impl<'a> EntriesOf<'a> {
    fn get(self, at: usize) -> &'a Arc<Entry> {
        match self {
            EntriesOf::Log(log) => &log[at],
            EntriesOf::Slice(entries) => &entries[at],
        }
    }
}

impl<'a> From<&'a [Arc<Entry>]> for Entries<'a> {
    fn from(entries: &'a [Arc<Entry>]) -> Entries<'a> {
        Entries { from: EntriesOf::Slice(entries), range: 0..entries.len() }
    }
}

impl<'a> From<&'a Vec<Arc<Entry>>> for Entries<'a> {
    fn from(entries: &'a Vec<Arc<Entry>>) -> Entries<'a> {
        entries.as_slice().into()
    }
}

impl<'a> From<&'a EntryLog> for Entries<'a> {
    fn from(log: &'a EntryLog) -> Entries<'a> {
        log.iter()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a Arc<Entry>;

    fn next(&mut self) -> Option<&'a Arc<Entry>> {
        self.range.next().map(|at| self.from.get(at))
    }

    fn nth(&mut self, skipped: usize) -> Option<&'a Arc<Entry>> {
        self.range.nth(skipped).map(|at| self.from.get(at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }

    fn last(mut self) -> Option<&'a Arc<Entry>> {
        self.next_back()
    }
}

impl DoubleEndedIterator for Entries<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().map(|at| self.from.get(at))
    }

    fn nth_back(&mut self, skipped: usize) -> Option<Self::Item> {
        self.range.nth_back(skipped).map(|at| self.from.get(at))
    }
}

impl ExactSizeIterator for Entries<'_> {}
