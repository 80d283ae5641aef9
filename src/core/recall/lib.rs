//! Recall: searches and reads a thread's log, including entries that left the view. Pure.
//!
//! The model uses it through the tool of this name. It never returns content that a hook removed from the history,
//! withheld prompts, thinking, or what the user has rewound. Texts are complete, even if the view shows only a part.

mod ask;
mod error;
mod record;
mod search;
mod time;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

pub use ask::{EntryRange, RecallQuery, RecordKind};
pub use error::RecallError;
pub use search::TextMatcher;
pub use time::Clock;

use epitome_thread::{Change, Entry, EntryLog, PartId, RewrittenEntries, Seq, Thread};
use record::Record;

/// The tool's name. Its outcomes are truncated first when space is short, and are omitted from a summary from flat
/// text, because the log contains the original text.
pub const NAME: &str = "recall";

/// Maximum size of an answer in bytes: a page of about 6,000 tokens.
pub const ANSWER_BYTES_MAX: usize = 24 * 1024;

/// Minimum size limit of an answer in bytes; it fits into the smallest window.
const ANSWER_BYTES_MIN: usize = 1024;

/// A snapshot of a thread's log, without content that recall must not return. It can be searched outside of the
/// session's task.
#[derive(Clone, Debug, Default)]
pub struct RecallLog {
    entries: EntryLog,
    hidden: HiddenEntries,
    /// Entries that the view shows unchanged.
    shown: HashSet<Seq>,
    cwd: PathBuf,
    answer_bytes: usize,
}

/// A search result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchHit {
    pub part: PartId,
    /// A short description: `said`, `call of bash (make)`.
    pub what: String,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    /// Matching lines, each with its byte offset: `offset 12: …`.
    pub places: Vec<String>,
}

/// Entries that a hook removed, undone layers, and what was rewound.
#[derive(Clone, Debug, Default)]
struct HiddenEntries {
    rewritten: RewrittenEntries,
    others: HashSet<Seq>,
}

impl RecallLog {
    /// Takes a snapshot for the model. `answer_bytes` limits the size of an answer; it is clamped to a sensible range.
    /// Entries that the user rewound no longer apply, so they are not found.
    pub fn snapshot(thread: &Thread, answer_bytes: usize) -> RecallLog {
        let active: HashSet<Seq> = thread.active_entries().map(|entry| entry.seq).collect();
        let mut log = RecallLog::with_rewound(thread, answer_bytes);
        let rewound = thread.entries().iter().map(|entry| entry.seq).filter(|seq| !active.contains(seq));
        log.hidden.others.extend(rewound);
        log
    }

    /// Like `snapshot`, but for the user's own search, which finds what was rewound.
    pub fn with_rewound(thread: &Thread, answer_bytes: usize) -> RecallLog {
        let hidden = HiddenEntries::collect(thread);
        let entries = thread.entries();
        let as_it_is = |shown: &&Arc<Entry>| match &shown.change {
            Change::Said { .. } | Change::ToolFinished { .. } => {
                let own = entries.get(shown.seq.0 as usize);
                own.is_some_and(|own| is_layer(own) || thread.is_as_logged(shown) && !is_part(own))
            }
            // Either shown completely or removed by a hook; in other cases only its thinking can be missing.
            _ => true,
        };
        RecallLog {
            entries: entries.clone(),
            hidden,
            shown: thread.view().entries().iter().filter(as_it_is).map(|entry| entry.seq).collect(),
            cwd: thread.cwd().to_path_buf(),
            answer_bytes: answer_bytes.clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX),
        }
    }

    /// Answers a query with text for the model, or returns an error if the query is invalid. `stop` is polled; when
    /// it returns true, the search ends early.
    pub fn answer(
        &self,
        ask: &RecallQuery,
        clock: &Clock,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, RecallError> {
        let text = if ask.is_search() {
            search::search(self, ask, clock, stop)?
        } else {
            search::read(self, ask, clock)?
        };
        let is_all_shown = self.records().iter().all(|record| self.is_shown(record));
        let note =
            if is_all_shown { "\n\n[Nothing has left your view: all of this is still in it.]" } else { "" };
        Ok(text + note)
    }

    /// Returns the newest results of a search, at most `ask.limit`, and their total number. A stopped search returns
    /// the results found so far.
    pub fn find(
        &self,
        ask: &RecallQuery,
        clock: &Clock,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Vec<SearchHit>, usize), RecallError> {
        search::find(self, ask, clock, stop)
    }

    /// Returns all searchable records, oldest first.
    fn records(&self) -> Vec<Record<'_>> {
        let mut records = Vec::with_capacity(self.entries.len());
        let mut calls = HashMap::new();
        for entry in &self.entries {
            record::of(entry, &mut calls, &mut records);
        }
        records.retain(|record| !self.hidden.has(record));
        records
    }

    fn is_shown(&self, record: &Record) -> bool {
        self.shown.contains(&record.part.entry)
    }
}

impl HiddenEntries {
    fn collect(thread: &Thread) -> HiddenEntries {
        let mut hidden = HiddenEntries::default();
        // Entries that a layer inserted at the front of the view are removed together with the history that they
        // belong to.
        let mut fronts: Vec<Seq> = Vec::new();
        for entry in thread.entries() {
            if thread.is_undone(entry.seq) {
                hidden.others.insert(entry.seq);
                continue;
            }
            // Edits that a rewind removed count as well: what they edited may have been removed by it too.
            hidden.rewritten.take(thread, entry);
            match &entry.change {
                Change::Compacted { .. } => fronts.push(entry.seq),
                Change::Mutated { .. } => {
                    hidden.others.extend(fronts.drain(..));
                    fronts.push(entry.seq);
                }
                _ => {}
            }
        }
        hidden
    }

    fn has_entry(&self, entry: Seq) -> bool {
        self.rewritten.contains(entry) || self.others.contains(&entry)
    }

    fn has(&self, record: &Record) -> bool {
        self.has_entry(record.part.entry)
            || record.call_id().is_some_and(|id| self.rewritten.contains_call(id))
    }
}

/// Whether the view shows only a part of the entry.
fn is_part(entry: &Entry) -> bool {
    matches!(&entry.change, Change::ToolFinished { outcome } if outcome.whole.is_some())
}

/// Whether the entry's messages are in the view in derived form.
fn is_layer(entry: &Entry) -> bool {
    matches!(entry.change, Change::Mutated { .. } | Change::Edited { .. })
}

#[cfg(test)]
mod tests;
