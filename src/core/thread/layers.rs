//! The layers over a thread's view: which are active, which are covered by others, and which can be undone or
//! redone. Pure.
//!
//! A layer is inside a later active layer that covers everything it did. Undoing only the inner one would
//! change nothing that is shown, and would surprise the user when the outer one is undone.

use std::collections::HashSet;
use std::sync::Arc;

use super::view::active_entries;
use super::{Change, Entry, PINNED_BY_PERSON, PartId, Seq, Thread, View, ViewEdit};

/// A compaction, pruning, mutation, edit or rewind of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    pub entry: Seq,
    /// Whether it shapes the view; `false` if it is undone or rewound.
    pub holds: bool,
    /// The nearest active layer that covers everything that this one did or would do again.
    pub inside: Option<Seq>,
}

/// How an entry appears in the current view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryVisibility {
    /// Never in the view.
    NeverShown,
    /// In the view, unchanged.
    Whole,
    /// In the view, last changed by this entry.
    Changed { by: Seq },
    /// Removed from the view by this entry.
    Left { by: Seq },
}

/// Why a layer can be neither undone nor redone, or a turn not be rewound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayerRefusal {
    #[error("there is no entry {0}; /history lists what can be undone")]
    NoEntry(Seq),
    #[error("{0} did nothing to the history; /history lists what did")]
    NoLayer(Seq),
    #[error("{0} is undone already; /redo {0} redoes it")]
    Undone(Seq),
    #[error("{0} is in effect; only what was undone can be redone")]
    InEffect(Seq),
    #[error("{layer} was made from what {edit} has changed since, and would restore that")]
    Outdated { layer: Seq, edit: String },
    #[error("{layer} is covered by {by}: undo that first")]
    Covered { layer: Seq, by: String },
    #[error("{switch} {layer}, nothing of the conversation would be left")]
    Empties { switch: &'static str, layer: String },
    #[error("the conversation would begin with the agent's words, which no model takes")]
    BeginsWithAgent,
    #[error("{0} is pinned and would leave the view: /unpin {0} first")]
    LosesPin(PartId),
    #[error("{to} is rewound already, by {by}")]
    Rewound { to: Seq, by: String },
    #[error("no turn begins at {0}")]
    NoTurn(Seq),
}

impl Thread {
    /// All layers of the log, oldest first, including undone ones.
    pub fn layers(&self) -> Vec<Layer> {
        let layers = self.view_changes().iter().filter(|entry| entry.change.is_layer());
        layers.map(|entry| self.layer_of(entry)).collect()
    }

    /// The layer made by this entry; `None` if it is not a layer.
    pub fn layer(&self, entry: Seq) -> Option<Layer> {
        let entry = self.entry(entry)?;
        entry.change.is_layer().then(|| self.layer_of(entry))
    }

    /// The layer that was undone last and not redone since.
    pub fn last_undone(&self) -> Option<Seq> {
        self.view_changes().iter().rev().find_map(|entry| match &entry.change {
            Change::Undone { entry: layer } if self.is_undone(*layer) && self.layer(*layer).is_some() => {
                Some(*layer)
            }
            _ => None,
        })
    }

    /// Checks whether a layer can be undone; if not, returns the reason.
    pub fn can_undo(&self, layer: Seq) -> Result<(), LayerRefusal> {
        self.known_layer(layer)?;
        if self.is_undone(layer) {
            return Err(LayerRefusal::Undone(layer));
        }
        self.is_outermost(layer)?;
        self.can_become(&self.with(Change::Undone { entry: layer }), layer)
    }

    /// Checks whether an undone layer can be redone; if not, returns the reason.
    pub fn can_redo(&self, layer: Seq) -> Result<(), LayerRefusal> {
        let Layer { holds, .. } = self.known_layer(layer)?;
        if holds {
            return Err(LayerRefusal::InEffect(layer));
        }
        self.is_outermost(layer)?;
        if let Some(edit) = self.edit_that_it_would_hide(layer) {
            return Err(LayerRefusal::Outdated { layer, edit: self.named(edit) });
        }
        self.can_become(&self.with(Change::Redone { entry: layer }), layer)
    }

    /// Checks what is left in the view after this layer was undone or redone.
    fn can_become(&self, after: &Thread, layer: Seq) -> Result<(), LayerRefusal> {
        self.begins_with_user(after.view())?;
        self.leaves_something(layer, after.view())?;
        self.keeps_pins(after)
    }

    /// Returns how an entry appears in the current view, and which entry caused that.
    pub fn fate(&self, seq: Seq) -> EntryVisibility {
        let of_entry = |view: &View| -> Vec<Arc<Entry>> {
            view.entries().iter().filter(|shown| shown.seq == seq).cloned().collect()
        };
        let mut view = View::default();
        let (mut fate, mut shown) = (EntryVisibility::NeverShown, Vec::new());
        for entry in self.entries().iter().filter(|entry| self.is_folded(entry)) {
            match &entry.change {
                Change::Rewound { .. } => view = self.fold_to(entry.seq, |seq| !self.is_undone(seq)),
                _ => view.take(entry),
            }
            if entry.seq < seq || (entry.seq > seq && !entry.change.rewrites()) {
                continue;
            }
            let now = of_entry(&view);
            fate = match (fate, now.is_empty()) {
                (EntryVisibility::NeverShown, true) => EntryVisibility::NeverShown,
                (EntryVisibility::NeverShown, false) => EntryVisibility::Whole,
                (EntryVisibility::Left { by }, true) => EntryVisibility::Left { by },
                (_, true) => EntryVisibility::Left { by: entry.seq },
                (fate, false) if now == shown => fate,
                (_, false) => EntryVisibility::Changed { by: entry.seq },
            };
            shown = now;
        }
        fate
    }

    /// A layer's name for the user: `the compaction e40`.
    pub fn named(&self, layer: Seq) -> String {
        match self.entry(layer).map(|entry| &entry.change) {
            Some(Change::Compacted { .. }) => format!("the compaction {layer}"),
            Some(Change::Pruned { .. }) => format!("the shortening {layer}"),
            Some(Change::Mutated { by, .. }) => format!("the history {layer} by {by}"),
            Some(Change::Edited { by, .. }) => format!("the edit {layer} by {by}"),
            Some(Change::Rewound { .. }) => format!("the rewind {layer}"),
            Some(_) | None => layer.to_string(),
        }
    }

    fn known_layer(&self, layer: Seq) -> Result<Layer, LayerRefusal> {
        self.layer(layer).ok_or_else(|| match self.entry(layer) {
            Some(_) => LayerRefusal::NoLayer(layer),
            None => LayerRefusal::NoEntry(layer),
        })
    }

    fn layer_of(&self, entry: &Arc<Entry>) -> Layer {
        let inside = self.rewound_by(entry.seq).or_else(|| match &entry.change {
            Change::Compacted { .. } | Change::Mutated { .. } | Change::Rewound { .. } => {
                self.next_replacement(entry.seq)
            }
            _ => self.covered_by(entry),
        });
        let holds = !self.is_undone(entry.seq) && !self.is_taken_back(entry.seq);
        Layer { entry: entry.seq, holds, inside }
    }

    /// The next active compaction or mutation. It always replaces what an older one put in front, and was
    /// made from the view that a rewind had left.
    fn next_replacement(&self, layer: Seq) -> Option<Seq> {
        let later = self.active_view_changes().filter(|later| later.seq > layer);
        let replaces = |change: &Change| matches!(change, Change::Compacted { .. } | Change::Mutated { .. });
        later.into_iter().find(|later| replaces(&later.change)).map(|later| later.seq)
    }

    /// The active rewind that removed this entry from the conversation.
    pub(super) fn rewound_by(&self, seq: Seq) -> Option<Seq> {
        let mut below = Seq(u64::MAX);
        for entry in self.view_changes().iter().rev().take_while(|entry| entry.seq > seq) {
            if let Change::Rewound { to } = &entry.change
                && entry.seq < below
                && !self.is_undone(entry.seq)
            {
                below = (*to).min(entry.seq);
                if seq >= below {
                    return Some(entry.seq);
                }
            }
        }
        None
    }

    /// The first later layer after which the view is the same with and without this one.
    fn covered_by(&self, layer: &Arc<Entry>) -> Option<Seq> {
        let holds_but =
            |holds: bool| move |seq: Seq| if seq == layer.seq { holds } else { !self.is_undone(seq) };
        let mut without = self.fold_before(layer.seq);
        let mut with = self.fold_to(layer.seq, holds_but(true));
        if is_same(&with, &without) {
            return None;
        }
        let later = self.entries().since(Seq(layer.seq.0 + 1));
        for later in later.filter(|later| self.is_folded(later)) {
            match &later.change {
                Change::Rewound { .. } => {
                    with = self.fold_to(later.seq, holds_but(true));
                    without = self.fold_to(later.seq, holds_but(false));
                }
                _ => {
                    with.take(later);
                    without.take(later);
                }
            }
            if later.change.is_layer() && is_same(&with, &without) {
                return Some(later.seq);
            }
        }
        None
    }

    /// Refuses a layer that is inside another, naming the outermost one, which must be undone first.
    fn is_outermost(&self, layer: Seq) -> Result<(), LayerRefusal> {
        let mut outer = None;
        let mut next = self.layer(layer).and_then(|layer| layer.inside);
        while let Some(seq) = next {
            outer = Some(seq);
            next = self.layer(seq).and_then(|layer| layer.inside);
        }
        match outer {
            Some(outer) => Err(LayerRefusal::Covered { layer, by: self.named(outer) }),
            None => Ok(()),
        }
    }

    /// An edit that is active now but was not when the layer was made, and that rewrites something that the
    /// layer covers. The layer's text predates the edit, so the model could read again what was masked.
    fn edit_that_it_would_hide(&self, layer: Seq) -> Option<Seq> {
        let made = self.entry(layer)?;
        let undone_then = self.undone_before(layer);
        let covered = self.covers(made);
        let holds_newly = |edit: &&Arc<Entry>| {
            edit.seq != layer && !self.is_undone(edit.seq) && {
                // Later edits are made on top of the layer; only a layer with its own text, quoted from what
                // it covers, is older.
                let later = edit.seq > layer && covered.quotes;
                later || (edit.seq < layer && undone_then.contains(&edit.seq))
            }
        };
        let rewrites = |edit: &Entry| match &edit.change {
            Change::Edited { edits, .. } => edits
                .iter()
                .filter(|edit| edit.rewrites())
                .any(|edit| edit.at().is_some_and(|at| covered.has(at.entry))),
            // A mutation replaces the complete history.
            Change::Mutated { .. } => covered.quotes,
            _ => false,
        };
        self.view_changes().iter().filter(holds_newly).find(|edit| rewrites(edit)).map(|edit| edit.seq)
    }

    /// The layers that were undone when this entry was appended.
    fn undone_before(&self, seq: Seq) -> HashSet<Seq> {
        let mut undone = HashSet::new();
        for entry in self.view_changes().iter().take_while(|entry| entry.seq < seq) {
            match &entry.change {
                Change::Undone { entry } => {
                    undone.insert(*entry);
                }
                Change::Redone { entry } => {
                    undone.remove(entry);
                }
                _ => {}
            }
        }
        undone
    }

    fn covers(&self, layer: &Entry) -> Covered {
        match &layer.change {
            Change::Compacted { through, masks, .. } => {
                let mut entries = self.in_front(layer.seq, *through);
                entries.extend(masks.iter().map(|mask| mask.entry));
                Covered { through: Some(*through), entries, quotes: true }
            }
            Change::Mutated { through, .. } => {
                Covered { through: Some(*through), entries: self.in_front(layer.seq, *through), quotes: true }
            }
            Change::Pruned { masks, .. } => {
                let entries = masks.iter().map(|mask| mask.entry).collect();
                Covered { through: None, entries, quotes: false }
            }
            Change::Edited { edits, .. } => {
                let entries = edits.iter().filter_map(ViewEdit::at).map(|at| at.entry).collect();
                Covered { through: None, entries, quotes: false }
            }
            _ => Covered { through: None, entries: HashSet::new(), quotes: false },
        }
    }

    /// The entries that a layer replaces, in the view as it is folded now.
    fn in_front(&self, layer: Seq, through: Seq) -> HashSet<Seq> {
        let replaced = self.fold_before(layer).replaced_by(through);
        replaced.entries().iter().map(|entry| entry.seq).collect()
    }

    /// The view before an entry, made of the layers that are active now.
    fn fold_before(&self, seq: Seq) -> View {
        let mut view = View::default();
        active_entries(self.entries().before(seq), |seq| !self.is_undone(seq))
            .for_each(|entry| view.take(entry));
        view
    }

    /// The view up to and including an entry, made of the layers for which `holds` returns true.
    fn fold_to(&self, seq: Seq, holds: impl Fn(Seq) -> bool) -> View {
        let mut view = View::default();
        active_entries(self.entries().before(Seq(seq.0.saturating_add(1))), holds)
            .for_each(|entry| view.take(entry));
        view
    }

    fn is_folded(&self, entry: &Entry) -> bool {
        match &entry.change {
            Change::Undone { .. } | Change::Redone { .. } => false,
            change => !(change.can_be_undone() && self.is_undone(entry.seq)),
        }
    }

    /// Refuses to leave nothing: an edit that drops a part assumes the layers that were active when it was made. Only
    /// a rewind to the first turn may, and the return to a view that was empty.
    fn leaves_something(&self, layer: Seq, after: &View) -> Result<(), LayerRefusal> {
        let is_rewind = self.entry(layer).is_some_and(|entry| matches!(entry.change, Change::Rewound { .. }));
        let empties = !is_rewind && !self.view().is_empty() && after.is_empty();
        match empties && !self.fold_before(layer).is_empty() {
            true => {
                let switch = if self.is_undone(layer) { "with" } else { "without" };
                Err(LayerRefusal::Empties { switch, layer: self.named(layer) })
            }
            false => Ok(()),
        }
    }

    /// Refuses a view that no provider accepts: one that begins with the agent's words, unless the current one does.
    pub(super) fn begins_with_user(&self, view: &View) -> Result<(), LayerRefusal> {
        match view.begins_with_agent() && !self.view().begins_with_agent() {
            true => Err(LayerRefusal::BeginsWithAgent),
            false => Ok(()),
        }
    }

    /// Whether a pin of the user has put this text into the view again, after a compaction had replaced it.
    fn sends_again(&self, text: &str) -> bool {
        let is_by_pin = |part: &PartId| match self.entry(part.entry).map(|entry| &entry.change) {
            Some(Change::Edited { by, .. }) => by == PINNED_BY_PERSON,
            Some(_) | None => false,
        };
        let pieces = self.view().pieces();
        pieces.iter().any(|(part, piece)| is_by_pin(part) && piece.pin_text().contains(text))
    }

    /// Refuses to remove a pinned part from the view: a summary quotes only what was pinned when it was made.
    pub(super) fn keeps_pins(&self, after: &Thread) -> Result<(), LayerRefusal> {
        let known = self.pinned();
        let is_lost = |(pin, text): &(PartId, String)| {
            let is_kept = self.view().has_pin(*pin, text) || !known.contains(pin);
            is_kept && !after.view().has_pin(*pin, text) && !after.sends_again(text)
        };
        match after.pins().iter().find(|pin| is_lost(pin)) {
            Some((pin, _)) => Err(LayerRefusal::LosesPin(*pin)),
            None => Ok(()),
        }
    }
}

/// The entries that a layer rewrites.
struct Covered {
    /// Everything up to and including this entry.
    through: Option<Seq>,
    entries: HashSet<Seq>,
    /// Whether it contains its own text, made from what it covers.
    quotes: bool,
}

impl Covered {
    fn has(&self, entry: Seq) -> bool {
        self.through.is_some_and(|through| entry <= through) || self.entries.contains(&entry)
    }
}

fn is_same(a: &View, b: &View) -> bool {
    let same = |(a, b): (&Arc<Entry>, &Arc<Entry>)| Arc::ptr_eq(a, b) || a == b;
    a.shown.len() == b.shown.len()
        && a.head == b.head
        && a.part_numbers == b.part_numbers
        && a.shown.iter().zip(&b.shown).all(same)
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
