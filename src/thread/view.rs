//! The view: what the model sees of a thread, as a fold of its log.
//!
//! It has no thresholds, clock or token counts of its own; every decision that shapes it is an entry.

use std::collections::HashSet;
use std::sync::Arc;

use super::change::{Change, Entry, ModelName, Seq};
use super::message::{Message, ToolOutcome};

/// The entries that the model sees, in the order in which it sees them.
///
/// Only `Said`, `Replied`, `ToolFinished` and `Compacted` entries are in it, and each outcome stands
/// behind the reply that asked for it, in the order of the calls.
#[derive(Clone, Debug, Default)]
pub struct View {
    shown: Vec<Arc<Entry>>,
    revision: Seq,
}

/// One stretch of the view, as a provider's encoder wants it.
#[derive(Clone, Debug)]
pub enum ViewItem<'a> {
    User(&'a Message),
    Agent(&'a Message, &'a ModelName),
    /// All outcomes of the reply before, in the order of its calls.
    Outcomes(Vec<&'a ToolOutcome>),
}

impl View {
    /// Folds a log, leaving out the layers that were undone.
    pub fn fold(entries: &[Arc<Entry>], undone: &HashSet<Seq>) -> View {
        let mut view = View::default();
        for entry in entries {
            match &entry.change {
                Change::Said { .. } | Change::Replied { .. } => view.push(entry.clone()),
                Change::ToolFinished { .. } => view.insert_outcome(entry.clone()),
                Change::Compacted { .. } if !undone.contains(&entry.seq) => view.compact(entry.clone()),
                Change::Undone { .. } => view.set_revision(entry.seq),
                Change::Compacted { .. }
                | Change::Opened { .. }
                | Change::Framed { .. }
                | Change::Queued { .. }
                | Change::Commanded { .. }
                | Change::Noted { .. }
                | Change::ModelChosen { .. }
                | Change::ModeChosen { .. }
                | Change::ThoughtChosen { .. }
                | Change::Titled { .. }
                | Change::Planned { .. }
                | Change::Allowed { .. }
                | Change::Mutated { .. }
                | Change::Edited { .. }
                | Change::CallChanged { .. }
                | Change::Withheld { .. }
                | Change::Hooked { .. }
                | Change::GoalSet { .. }
                | Change::TurnEnded { .. } => {}
            }
        }
        view
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.shown
    }

    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// The last change that altered the view other than by appending.
    pub fn revision(&self) -> Seq {
        self.revision
    }

    /// The view as messages; neighbouring outcomes come as one item.
    pub fn items(&self) -> Vec<ViewItem<'_>> {
        let mut items: Vec<ViewItem<'_>> = Vec::with_capacity(self.shown.len());
        for entry in &self.shown {
            match &entry.change {
                Change::Said { message, .. } => items.push(ViewItem::User(message)),
                Change::Compacted { summary, .. } => items.push(ViewItem::User(summary)),
                Change::Replied { message, model, .. } => items.push(ViewItem::Agent(message, model)),
                Change::ToolFinished { outcome } => match items.last_mut() {
                    Some(ViewItem::Outcomes(outcomes)) => outcomes.push(outcome),
                    _ => items.push(ViewItem::Outcomes(vec![outcome])),
                },
                _ => unreachable!("only what the model sees is put into the view"),
            }
        }
        items
    }

    pub(super) fn push(&mut self, entry: Arc<Entry>) {
        self.shown.push(entry);
    }

    /// Puts an outcome behind its reply, before the outcomes of later calls. An outcome without a
    /// call, or a second one for a call, stays in the log alone.
    pub(super) fn insert_outcome(&mut self, entry: Arc<Entry>) {
        let Change::ToolFinished { outcome } = &entry.change else { return };
        let Some(reply_at) = self.shown.iter().rposition(|shown| rank(shown, outcome).is_some()) else {
            return;
        };
        let own = rank(&self.shown[reply_at], outcome).expect("the reply was found by its rank");
        let reply = self.shown[reply_at].clone();
        let mut at = reply_at + 1;
        while let Some(Change::ToolFinished { outcome: earlier }) =
            self.shown.get(at).map(|shown| &shown.change)
        {
            match rank(&reply, earlier) {
                Some(other) if other == own => return,
                Some(other) if other > own => break,
                Some(_) | None => at += 1,
            }
        }
        self.shown.insert(at, entry);
    }

    pub(super) fn compact(&mut self, entry: Arc<Entry>) {
        let Change::Compacted { through, .. } = &entry.change else { return };
        self.shown.retain(|shown| shown.seq > *through);
        self.shown.insert(0, entry.clone());
        self.revision = entry.seq;
    }

    pub(super) fn set_revision(&mut self, seq: Seq) {
        self.revision = seq;
    }
}

/// Which of the reply's calls the outcome answers; `None` if the entry is no reply or not the one.
fn rank(entry: &Entry, outcome: &ToolOutcome) -> Option<usize> {
    match &entry.change {
        Change::Replied { message, .. } => message.calls().position(|call| call.id == outcome.call),
        _ => None,
    }
}
