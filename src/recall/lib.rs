//! Recall: finds and reads what a thread's log holds, also what left the view. Pure.
//!
//! The model asks by the tool of this name. It never finds what a hook took out of the history, nor a prompt
//! that was withheld; thinking is not read. Texts are those of the log: whole, where the view has a part.

mod ask;
mod record;
mod search;
mod time;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

pub use ask::{Ask, Kind, Range};
pub use search::Finder;
pub use time::Clock;

use epitome_thread::{CallId, Change, Edit, Entry, Part, Seq, Thread};
use record::Record;

/// The tool's name. Where room is short its outcomes are cut first, and a summary from flat text leaves them out:
/// the log has what they read.
pub const NAME: &str = "recall";

/// Bytes of one answer, whatever window there is: a page of some 6,000 tokens.
pub const ANSWER_BYTES_MAX: usize = 24 * 1024;

/// Bytes of an answer that fit into the smallest window too.
const ANSWER_BYTES_MIN: usize = 1024;

/// A thread's log as recall may see it: a snapshot, so that it can be searched away from its session.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: Vec<Arc<Entry>>,
    hidden: Hidden,
    /// Entries that the view shows as they are.
    shown: HashSet<Seq>,
    cwd: PathBuf,
    answer_bytes: usize,
}

/// Something that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Find {
    pub part: Part,
    /// What it is, in a few words: `said`, `call of bash (make)`.
    pub what: String,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    /// Lines that show where in it, each with its byte: `offset 12: …`.
    pub places: Vec<String>,
}

/// What a hook took out, or what an undo took back.
#[derive(Clone, Debug, Default)]
struct Hidden {
    /// All entries up to and with this one.
    through: Option<Seq>,
    entries: HashSet<Seq>,
    calls: HashSet<CallId>,
}

impl Log {
    /// The log of a thread. An answer has at most `answer_bytes`, within what is sensible.
    pub fn of(thread: &Thread, answer_bytes: usize) -> Log {
        let hidden = Hidden::of(thread);
        let entries = thread.entries();
        let as_it_is = |shown: &&Arc<Entry>| match &shown.change {
            Change::Said { .. } | Change::ToolFinished { .. } => {
                let own = entries.get(shown.seq.0 as usize);
                own.is_some_and(|own| is_layer(own) || Arc::ptr_eq(own, shown) && !is_part(own))
            }
            // Shown whole or, by a hook, not at all; only its thinking may go.
            _ => true,
        };
        Log {
            entries: entries.to_vec(),
            hidden,
            shown: thread.view().entries().iter().filter(as_it_is).map(|entry| entry.seq).collect(),
            cwd: thread.cwd().to_path_buf(),
            answer_bytes: answer_bytes.clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX),
        }
    }

    /// Answers in words for the model; `Err` where the question can't be answered as it is put. `stop` is
    /// asked now and then whether nobody waits any more.
    pub fn answer(&self, ask: &Ask, clock: &Clock, stop: &dyn Fn() -> bool) -> Result<String, String> {
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

    /// What a search finds, newest first, at most `ask.limit` of it, and how many there are. A search that was
    /// stopped has what it found until then.
    pub fn find(
        &self,
        ask: &Ask,
        clock: &Clock,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Vec<Find>, usize), String> {
        search::find(self, ask, clock, stop)
    }

    /// All that can be found, oldest first.
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

impl Hidden {
    fn of(thread: &Thread) -> Hidden {
        let mut hidden = Hidden::default();
        // What layers have put in front of the view goes with the next history that replaces it.
        let mut fronts: Vec<Seq> = Vec::new();
        for entry in thread.entries() {
            if thread.is_undone(entry.seq) {
                hidden.entries.insert(entry.seq);
                continue;
            }
            match &entry.change {
                Change::Compacted { .. } => fronts.push(entry.seq),
                Change::Mutated { through, .. } => {
                    hidden.entries.extend(fronts.drain(..));
                    fronts.push(entry.seq);
                    hidden.through = hidden.through.max(Some(*through));
                }
                Change::Edited { edits, .. } => {
                    for edit in edits.iter().filter(|edit| edit.rewrites()) {
                        hidden.take(thread, edit);
                    }
                }
                _ => {}
            }
        }
        hidden
    }

    /// Takes in an edit that rewrites what was shown.
    fn take(&mut self, thread: &Thread, edit: &Edit) {
        let Some(at) = edit.at() else { return };
        self.entries.insert(at.entry);
        let Some(entry) = thread.entries().get(at.entry.0 as usize) else { return };
        match &entry.change {
            // A summary speaks of all that it stands for.
            Change::Compacted { through, .. } => self.through = self.through.max(Some(*through)),
            // A call and its outcome are dropped together, by either name.
            Change::ToolFinished { outcome } if matches!(edit, Edit::Drop { .. }) => {
                self.calls.insert(outcome.call.clone());
            }
            Change::Replied { message, .. } if matches!(edit, Edit::Drop { .. }) => {
                let number = at.part.and_then(|part| usize::try_from(part).ok()?.checked_sub(1));
                self.calls.extend(number.and_then(|at| message.calls().nth(at)).map(|call| call.id.clone()));
            }
            _ => {}
        }
    }

    fn has_entry(&self, entry: Seq) -> bool {
        self.through.is_some_and(|through| entry <= through) || self.entries.contains(&entry)
    }

    fn has(&self, record: &Record) -> bool {
        self.has_entry(record.part.entry) || record.call_id().is_some_and(|id| self.calls.contains(id))
    }
}

/// Whether what the view shows of it is not all.
fn is_part(entry: &Entry) -> bool {
    matches!(&entry.change, Change::ToolFinished { outcome } if outcome.whole.is_some())
}

/// Whether its own messages are in the view, derived.
fn is_layer(entry: &Entry) -> bool {
    matches!(entry.change, Change::Mutated { .. } | Change::Edited { .. })
}

#[cfg(test)]
mod tests;
