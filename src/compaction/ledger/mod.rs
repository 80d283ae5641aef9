//! The ledger: what a conversation holds that must not be lost, found by code. Pure.
//!
//! ```text
//!  log, entry by entry
//!    Said, Replied ─► spoken ── cues ─► sentences: rules, decisions, tasks ─┐
//!                       └─► values, names                                   ├─► store::Store ► told
//!    call + outcome ─► outcomes ── files, commands ─► printed: errors ──────┘     │
//!                                                     what is newer takes the place of what was
//! ```
//!
//! It needs no model and can't fail. Everything is a heuristic: what it finds is quoted in the words in which it
//! was said, with the ids of its entries, and what it misses is still in the log. What costs is bounded, so that
//! no text, however long or odd, takes more than a pass over it.

mod blocks;
mod calls;
mod cues;
mod ending;
mod fact;
mod judge;
mod layout;
mod names;
mod outcomes;
mod printed;
mod rank;
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

use calls::Called;
use fact::{Kind, Source};
use spoken::Side;
use store::Store;

use crate::thread::{CallId, Change, Content, Entry, Message, Origin, Seq, Thread};
use crate::tokens::Ruler;

/// Calls that wait for their outcomes. A log that holds more is damaged; the rest are read without them.
const CALLS_MAX: usize = 4096;

/// The facts of one thread's log. It is kept up to date entry by entry and never forgets by itself.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Entries of the log that are taken in.
    seen: usize,
    store: Store,
    calls: HashMap<CallId, Called>,
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
        if new.iter().any(|entry| turns_back(thread, &entry.change)) {
            *self = Ledger::default();
            let standing: HashSet<Seq> = thread.standing().map(|entry| entry.seq).collect();
            // What was undone may be redone, and is known then.
            let is_read = |entry: &&Arc<Entry>| entry.change.can_be_undone() || standing.contains(&entry.seq);
            for entry in thread.entries().iter().filter(is_read) {
                self.take(thread, entry);
            }
        } else {
            for entry in new {
                self.take(thread, entry);
            }
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

    fn take(&mut self, thread: &Thread, entry: &Entry) {
        let source = Source { entry: entry.seq, call: None };
        match &entry.change {
            Change::Said { message, origin } => match origin {
                Origin::Person | Origin::Queue { .. } => self.said(thread, message, source),
                // The rest is the recipe's text, the same each time.
                Origin::Recipe { typed, .. } => spoken::take(&mut self.store, typed, Side::Person, source),
                Origin::Hook { .. } | Origin::Context { .. } | Origin::Instructions { .. } => {}
            },
            Change::Replied { message, .. } => {
                for content in &message.content {
                    match content {
                        Content::Text { text } => spoken::take(&mut self.store, text, Side::Agent, source),
                        Content::Call(call) => {
                            let called = Called::read(entry.seq, &call.name, &call.input, &call.card);
                            self.called(call.id.clone(), called);
                        }
                        Content::Thinking { .. }
                        | Content::Image { .. }
                        | Content::Document { .. }
                        | Content::Resource { .. }
                        | Content::ResourceLink { .. } => {}
                    }
                }
            }
            Change::CallChanged { call, input, card, .. } => {
                if let Some(old) = self.calls.get(call) {
                    let called = Called::read(old.entry, &old.name.clone(), input, card);
                    self.called(call.clone(), called);
                }
            }
            Change::ToolFinished { outcome } => {
                let called = self.calls.remove(&outcome.call);
                outcomes::take(&mut self.store, thread.cwd(), called, outcome, entry.seq);
            }
            Change::Planned { .. } => self.planned = Some(entry.seq),
            Change::Mutated { .. } | Change::Edited { .. } => self.layers.push(entry.seq),
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
            | Change::TurnEnded { .. } => {}
        }
    }

    fn said(&mut self, thread: &Thread, message: &Message, source: Source) {
        for content in &message.content {
            match content {
                Content::Text { text } => spoken::take(&mut self.store, text, Side::Person, source),
                Content::Resource { uri, text } => {
                    outcomes::attached(&mut self.store, thread.cwd(), uri, source);
                    printed::take_pasted(&mut self.store, text, source);
                }
                Content::ResourceLink { uri, .. } => {
                    outcomes::attached(&mut self.store, thread.cwd(), uri, source);
                }
                Content::Thinking { .. }
                | Content::Image { .. }
                | Content::Document { .. }
                | Content::Call(_) => {}
            }
        }
    }

    fn called(&mut self, id: CallId, called: Called) {
        if self.calls.len() >= CALLS_MAX {
            self.calls.clear();
        }
        self.calls.insert(id, called);
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
mod tests_outcomes;
#[cfg(test)]
mod tests_random;
#[cfg(test)]
mod tests_said;
