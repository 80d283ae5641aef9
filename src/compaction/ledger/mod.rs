//! The ledger: what a conversation holds that must not be lost, found by code. Pure.
//!
//! ```text
//!  log ─► reading, each entry by itself
//!    Said, Replied ─► spoken ── cues ─► sentences: rules, decisions, tasks ─┐
//!                       └─► values, names                                   ├─► notes ─► store::Store ► told
//!    call + outcome ─► outcomes ── files, commands ─► printed: errors ──────┘    in order, │
//!                                                     what is newer takes the place of what was
//! ```
//!
//! It needs no model and can't fail. Everything is a heuristic: what it finds is quoted in the words in which it
//! was said, with the ids of its entries (files by their paths alone), and what it misses is still in the log. What costs is bounded, so that
//! no text, however long or odd, takes more than a pass over it.

mod beside;
mod blocks;
mod calls;
mod cues;
mod ending;
mod fact;
mod joined;
mod judge;
mod layout;
mod names;
mod notes;
mod outcomes;
mod printed;
mod rank;
mod reading;
mod said;
mod segments;
mod sentences;
mod shell;
mod shown;
mod spoken;
mod store;
mod things;
mod told;
mod values;
mod words;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fact::Kind;
use reading::{Asked, Of, Reading};
use store::Store;

use crate::thread::{CallId, Change, Content, Entry, Origin, Seq, Thread};
use crate::tokens::Ruler;

/// Calls that wait for their outcomes. A log that holds more is damaged; the rest are read without them.
const CALLS_MAX: usize = 4096;

/// The facts of one thread's log. It is kept up to date entry by entry and never forgets by itself.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Entries of the log that are taken in.
    seen: usize,
    store: Store,
    calls: HashMap<CallId, Asked>,
    /// Entries by which a hook may have rewritten others.
    layers: Vec<Seq>,
    /// Where the plan was written last.
    planned: Option<Seq>,
}

/// The ledger as a model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Markdown; empty where there is nothing to tell.
    pub text: String,
    /// Facts in it.
    pub facts: u32,
    /// The entries of facts that there was no room for, oldest first.
    pub left_out: Vec<Seq>,
}

impl Ledger {
    /// Takes in what was appended since. The work is that of the new entries alone.
    /// Where the conversation was taken back, or brought again, all of it is read anew: what was taken back is no
    /// fact of it.
    pub fn follow(&mut self, thread: &Thread) {
        let new = &thread.entries()[self.seen.min(thread.entries().len())..];
        let readings: Vec<Reading> = if new.iter().any(|entry| turns_back(thread, &entry.change)) {
            *self = Ledger::default();
            let standing: HashSet<Seq> = thread.standing().map(|entry| entry.seq).collect();
            // What was undone may be redone, and is known then.
            let is_read = |entry: &&Arc<Entry>| entry.change.can_be_undone() || standing.contains(&entry.seq);
            thread.entries().iter().filter(is_read).filter_map(|entry| self.reading(entry)).collect()
        } else {
            new.iter().filter_map(|entry| self.reading(entry)).collect()
        };
        for notes in reading::read(thread, &readings) {
            notes.keep(&mut self.store);
        }
        self.seen = thread.entries().len();
    }

    /// The facts that are not in the entries of `kept`, within so many tokens.
    ///
    /// What a hook rewrote is not in it, as long as that holds. Of what has one value at a time only the
    /// newest is told.
    pub fn told(&self, ruler: &Ruler, thread: &Thread, kept: &HashSet<Seq>, tokens_max: u64) -> Told {
        told::told(self, ruler, thread, kept, tokens_max)
    }

    /// The entries in which something was found that the person wants, decided or asked for, or a value, and that
    /// holds; with the bytes of it.
    pub fn found(&self) -> HashMap<Seq, usize> {
        let mut found: HashMap<Seq, usize> = HashMap::new();
        for kind in [Kind::Rule, Kind::Pending, Kind::Decision, Kind::Rejected, Kind::Value] {
            for fact in self.store.of(kind).iter().filter(|fact| fact.over.is_none() && !fact.is_replaced()) {
                for source in &fact.sources {
                    *found.entry(source.entry).or_default() += fact.text.len();
                }
            }
        }
        found
    }

    /// Facts that were found and are not held: the weakest, where a text or a thread has more than there
    /// is room for.
    pub fn beyond(&self) -> u64 {
        self.store.beyond
    }

    /// What of an entry is to be read. Calls and their outcomes are brought together here, as the log has them.
    fn reading<'a>(&mut self, entry: &'a Entry) -> Option<Reading<'a>> {
        let of = match &entry.change {
            Change::Said { message, origin } => match origin {
                Origin::Person | Origin::Queue { .. } => Of::Person(message),
                // The rest is the recipe's text, the same each time.
                Origin::Recipe { typed, .. } => Of::Typed(typed),
                Origin::Hook { .. } | Origin::Context { .. } | Origin::Instructions { .. } => return None,
            },
            Change::Replied { message, .. } => {
                for (part, content) in message.content.iter().enumerate() {
                    if let Content::Call(call) = content {
                        self.asked(&call.id, Asked { entry: entry.seq, part, given: entry.seq });
                    }
                }
                Of::Agent(message)
            }
            Change::CallChanged { call, .. } => {
                if let Some(asked) = self.calls.get_mut(call) {
                    asked.given = entry.seq;
                }
                return None;
            }
            Change::ToolFinished { outcome } => Of::Outcome(outcome, self.calls.remove(&outcome.call)),
            Change::Planned { .. } => {
                self.planned = Some(entry.seq);
                return None;
            }
            Change::Mutated { .. } | Change::Edited { .. } => {
                self.layers.push(entry.seq);
                return None;
            }
            // Summaries quote what is in the log anyway; the rest says nothing, or nothing to the model.
            Change::Opened { .. }
            | Change::Framed { .. }
            | Change::Queued { .. }
            | Change::Commanded { .. }
            | Change::Compacted { .. }
            | Change::Pruned { .. }
            | Change::Withheld { .. }
            | Change::Hooked { .. }
            | Change::GoalSet { .. }
            | Change::ThinkingDropped { .. }
            | Change::Undone { .. }
            | Change::Redone { .. }
            | Change::Rewound { .. }
            | Change::FilesRewound { .. }
            | Change::Forked { .. }
            | Change::Noted { .. }
            | Change::ModelChosen { .. }
            | Change::ModeChosen { .. }
            | Change::ThoughtChosen { .. }
            | Change::Titled { .. }
            | Change::Allowed { .. }
            | Change::Spent { .. }
            | Change::Forgotten { .. }
            | Change::TurnEnded { .. } => return None,
        };
        Some(Reading { entry: entry.seq, of })
    }

    fn asked(&mut self, id: &CallId, asked: Asked) {
        if self.calls.len() >= CALLS_MAX {
            self.calls.clear();
        }
        self.calls.insert(id.clone(), asked);
    }
}

/// Whether other entries of the log count from here on.
fn turns_back(thread: &Thread, change: &Change) -> bool {
    let is_rewind = |layer: Seq| {
        let layer = usize::try_from(layer.0).ok().and_then(|layer| thread.entries().get(layer));
        layer.is_some_and(|layer| matches!(layer.change, Change::Rewound { .. }))
    };
    match change {
        Change::Rewound { .. } => true,
        Change::Undone { entry } | Change::Redone { entry } => is_rewind(*entry),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_joined;
#[cfg(test)]
mod tests_outcomes;
#[cfg(test)]
mod tests_random;
#[cfg(test)]
mod tests_said;
