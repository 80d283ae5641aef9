//! The view: what the model sees of a thread, as a fold of its log.
//!
//! The fold itself has no thresholds, clock or token counts. Every decision that shapes the view is an entry of the
//! log.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::change::{Change, Entry, Origin, Seq};
use super::choices::ModelName;
use super::entry_log::Entries;
use super::hooked::{HistoryMessage, PartId, Role};
use super::hosted_search::HostedSearch;
use super::message::{Content, Message, ToolCall, ToolOutcome};

/// The entries that the model sees, in the order in which it sees them.
///
/// These are only `Said`, `Replied`, `ToolFinished` and `Compacted` entries, and each outcome follows the
/// reply that requested it, in the order of the calls. Where a hook, a mask or dropped thinking changed what
/// is shown, the view contains a derived entry with the same number and other content. The messages of a
/// mutation are `Said` and `Replied` entries with the mutation's number.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct View {
    pub(super) shown: Vec<Arc<Entry>>,
    /// For each entry of `shown`, how its parts are numbered.
    pub(super) part_numbers: Vec<PartNumbers>,
    /// Number of entries that the newest compaction or mutation put in front. They are newer than the entries
    /// that follow them.
    pub(super) head: usize,
    revision: Seq,
}

/// How the parts of a shown entry are numbered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartNumbers {
    /// The number, from 1, of the message within its mutation or edit.
    pub nth: Option<u32>,
    /// The original numbers of the remaining calls, if some of the reply's calls were dropped.
    pub calls: Option<Vec<u32>>,
}

/// An item of the view, in the form that the provider encoders use.
#[derive(Clone, Debug)]
pub enum ViewItem<'a> {
    User(&'a Message),
    /// The message of a compaction, which is the first item.
    Summary(&'a Message),
    Agent(&'a Message, &'a ModelName),
    /// All outcomes of the preceding reply, in the order of its calls.
    Outcomes(Vec<&'a ToolOutcome>),
}

/// A part of the view, in the form that hooks see.
#[derive(Clone, Copy, Debug)]
pub enum ViewPart<'a> {
    Said(&'a Message, &'a Origin),
    Summary(&'a Message),
    /// The text of a reply.
    Reply(&'a Message),
    Call(&'a ToolCall),
    Outcome(&'a ToolOutcome),
}

impl ViewPart<'_> {
    /// The text that the model reads. For a call, its name and input.
    pub fn text(&self) -> String {
        match self {
            ViewPart::Said(message, _) | ViewPart::Summary(message) | ViewPart::Reply(message) => {
                message.text()
            }
            ViewPart::Call(call) => format!("{} {}", call.name, call.input),
            ViewPart::Outcome(outcome) => outcome.model_text(),
        }
    }

    /// The text that a pin of this part keeps: of a message, with its attached files.
    pub fn pin_text(&self) -> String {
        match self {
            ViewPart::Said(message, _) => message.text_with_files(),
            ViewPart::Summary(_) | ViewPart::Reply(_) | ViewPart::Call(_) | ViewPart::Outcome(_) => {
                self.text()
            }
        }
    }
}

impl View {
    /// Folds a log, leaving out undone layers and everything that a rewind removed.
    pub fn fold<'a>(entries: impl Into<Entries<'a>>, undone: &HashSet<Seq>) -> View {
        let entries = entries.into();
        let mut view = View::default();
        let is_active = |seq: Seq| !undone.contains(&seq);
        active_entries(entries.clone(), is_active).for_each(|entry| view.take(entry));
        // Entries that a rewind removed have changed the view too, so they count for the revision.
        let rewrites = |entry: &&Arc<Entry>| match &entry.change {
            Change::Undone { .. } | Change::Redone { .. } => true,
            change => change.rewrites() && !(change.can_be_undone() && undone.contains(&entry.seq)),
        };
        view.revision = entries.rev().find(rewrites).map_or(Seq(0), |entry| entry.seq);
        view
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.shown
    }

    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// Whether the view ends with the agent's own words. Newer models refuse such a request: they only
    /// continue after a user message or tool outcomes.
    pub fn ends_with_agent(&self) -> bool {
        let last = self.shown.last().map(|entry| &entry.change);
        matches!(last, Some(Change::Replied { message, .. }) if message.calls().next().is_none())
    }

    /// Whether the last prompt follows one that had no reply: its turn was refused or cancelled.
    pub fn follows_unanswered_prompt(&self) -> bool {
        let mut before = self.shown.iter().rev().map(|entry| &entry.change);
        before.find(|change| change.is_said_by_user());
        before
            .find(|change| {
                change.is_said_by_user()
                    || matches!(change, Change::Replied { .. } | Change::ToolFinished { .. })
            })
            .is_some_and(|change| !matches!(change, Change::Replied { .. }))
    }

    /// Whether the view begins with the agent, which no model accepts.
    pub(super) fn begins_with_agent(&self) -> bool {
        match self.shown.first().map(|entry| &entry.change) {
            None | Some(Change::Said { .. } | Change::Compacted { .. }) => false,
            Some(_) => true,
        }
    }

    /// The last entry that changed the view other than by appending.
    pub fn revision(&self) -> Seq {
        self.revision
    }

    /// The view as a list of items. Consecutive outcomes are combined into one.
    pub fn items(&self) -> Vec<ViewItem<'_>> {
        let mut items: Vec<ViewItem<'_>> = Vec::with_capacity(self.shown.len());
        for entry in &self.shown {
            match &entry.change {
                Change::Said { message, .. } => items.push(ViewItem::User(message)),
                Change::Compacted { summary, .. } => items.push(ViewItem::Summary(summary)),
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

    /// Everything that an edit can address, in the order of the view. A reply without text has no text part.
    pub fn pieces(&self) -> Vec<(PartId, ViewPart<'_>)> {
        let mut pieces = Vec::with_capacity(self.shown.len());
        for (entry, numbers) in self.shown.iter().zip(&self.part_numbers) {
            let own = PartId { entry: entry.seq, part: numbers.nth };
            match &entry.change {
                Change::Said { message, origin } => pieces.push((own, ViewPart::Said(message, origin))),
                Change::Compacted { summary, .. } => pieces.push((own, ViewPart::Summary(summary))),
                Change::ToolFinished { outcome } => pieces.push((own, ViewPart::Outcome(outcome))),
                Change::Replied { message, .. } => {
                    if has_text(&message.content) {
                        pieces.push((own, ViewPart::Reply(message)));
                    }
                    let calls = message.calls().enumerate();
                    pieces.extend(calls.map(|(at, call)| {
                        let part = Some(numbers.call_number(at));
                        (PartId { entry: entry.seq, part }, ViewPart::Call(call))
                    }));
                }
                _ => unreachable!("only what the model sees is put into the view"),
            }
        }
        pieces
    }

    /// The shown content of a part, if it is in the view.
    pub fn piece(&self, part: PartId) -> Option<ViewPart<'_>> {
        self.pieces().into_iter().find_map(|(known, piece)| (known == part).then_some(piece))
    }

    /// The part of the view that a layer up to and including `through` replaces, as a separate view.
    pub fn replaced_by(&self, through: Seq) -> View {
        let cut = self.cut(through);
        View {
            shown: self.shown[..cut].to_vec(),
            part_numbers: self.part_numbers[..cut].to_vec(),
            head: self.head,
            revision: self.revision,
        }
    }

    /// The part of the view that a layer up to and including `through` keeps.
    pub fn kept_after(&self, through: Seq) -> &[Arc<Entry>] {
        &self.shown[self.cut(through)..]
    }

    /// The index at which the newest `messages` messages begin, counting all outcomes of a reply as one. It
    /// never separates a call from its outcome, so more may be included.
    pub fn newest(&self, messages: usize) -> usize {
        let mut at = self.shown.len();
        let mut left = messages;
        while at > 0 && left > 0 {
            at -= 1;
            if !(is_outcome(&self.shown[at]) && at > 0 && is_outcome(&self.shown[at - 1])) {
                left -= 1;
            }
        }
        while self.is_inside_round(at) {
            at -= 1;
        }
        at
    }

    /// Whether a cut before this entry would separate a call from its outcome.
    pub fn is_inside_round(&self, at: usize) -> bool {
        at > 0 && self.shown.get(at).is_some_and(is_outcome)
    }

    /// The `through` of a layer that keeps the view from this index on, or from the nearest older entry whose
    /// number separates it from those before. Entries that the newest layer put in front cannot be kept.
    /// `None` if nothing is kept.
    pub(super) fn through(&self, kept_from: usize) -> Option<Seq> {
        let mut at = kept_from.max(self.head);
        if at >= self.shown.len() {
            return None;
        }
        let newest_before = |at: usize| self.shown[self.head..at].iter().map(|entry| entry.seq).max();
        let oldest_kept = |at: usize| self.shown[at..].iter().map(|entry| entry.seq).min();
        while at > self.head && (newest_before(at) >= oldest_kept(at) || self.is_inside_round(at)) {
            at -= 1;
        }
        let oldest = oldest_kept(at)?;
        Some(newest_before(at).unwrap_or(Seq(oldest.0.saturating_sub(1))))
    }

    /// Applies an active entry that is neither an undo nor a redo.
    pub(super) fn take(&mut self, entry: &Arc<Entry>) {
        match &entry.change {
            Change::Said { .. } | Change::Replied { .. } => self.push(entry.clone(), PartNumbers::default()),
            Change::ToolFinished { outcome } => self.insert_outcome(entry, outcome),
            Change::Compacted { through, masks, .. } => {
                self.put_in_front(*through, vec![(entry.clone(), PartNumbers::default())]);
                self.mask_all(masks);
            }
            Change::Pruned { masks, .. } => self.mask_all(masks),
            Change::Mutated { through, messages, by, .. } => {
                let derived = (1..).zip(messages).map(|(nth, spoken)| {
                    (spoken_entry(entry, spoken, by), PartNumbers { nth: Some(nth), calls: None })
                });
                self.put_in_front(*through, derived.collect());
            }
            Change::Edited { by, edits } => {
                let mut appended = 0;
                for edit in edits {
                    // An edit without a target changes nothing: the log may be imported.
                    let _ = self.edit(entry, by, edit, &mut appended);
                }
            }
            Change::ThinkingDropped { through, .. } => {
                for shown in self.shown.iter_mut().filter(|shown| shown.seq <= *through) {
                    if let Some(plain) = without_own_thinking(shown) {
                        *shown = plain;
                    }
                }
            }
            // Undone layers and rewinds are handled before folding, by `active_entries`.
            _ => {}
        }
        if entry.change.rewrites() {
            self.revision = entry.seq;
        }
    }

    pub(super) fn set_revision(&mut self, seq: Seq) {
        self.revision = seq;
    }

    pub(super) fn push(&mut self, entry: Arc<Entry>, numbers: PartNumbers) {
        self.shown.push(entry);
        self.part_numbers.push(numbers);
    }

    /// Inserts an outcome after its reply, before the outcomes of later calls. An outcome without a call, or
    /// a second one for a call, is not shown.
    fn insert_outcome(&mut self, entry: &Arc<Entry>, outcome: &ToolOutcome) {
        let Some(reply_at) = self.shown.iter().rposition(|shown| rank(shown, outcome).is_some()) else {
            return;
        };
        let own = rank(&self.shown[reply_at], outcome).expect("the reply was found by its rank");
        let reply = self.shown[reply_at].clone();
        let after = self.shown[reply_at + 1..].iter().take_while(|shown| is_outcome(shown));
        let end = reply_at + 1 + after.count();
        let mut at = end;
        // From the end, as outcomes arrive mostly in the order of their calls, and a reply may have thousands.
        for earlier_at in (reply_at + 1..end).rev() {
            let Change::ToolFinished { outcome: earlier } = &self.shown[earlier_at].change else { break };
            match rank(&reply, earlier) {
                Some(other) if other == own => return,
                Some(other) if other < own => break,
                Some(_) => at = earlier_at,
                None => {}
            }
        }
        self.shown.insert(at, entry.clone());
        self.part_numbers.insert(at, PartNumbers::default());
    }

    fn put_in_front(&mut self, through: Seq, derived: Vec<(Arc<Entry>, PartNumbers)>) {
        let cut = self.cut(through);
        let (entries, part_numbers): (Vec<_>, Vec<_>) = derived.into_iter().unzip();
        self.head = entries.len();
        self.shown.splice(..cut, entries);
        self.part_numbers.splice(..cut, part_numbers);
    }

    /// The index after the last entry that a layer replaces. It includes all entries that an older layer put
    /// in front, whatever their number, and keeps a call and its outcome together.
    fn cut(&self, through: Seq) -> usize {
        let behind = &self.shown[self.head..];
        let mut cut =
            self.head + behind.iter().rposition(|entry| entry.seq <= through).map_or(0, |at| at + 1);
        while self.is_inside_round(cut) {
            cut += 1;
        }
        cut
    }
}

/// The entries that make up the view, oldest first: without inactive layers, and without entries that an
/// active rewind removes.
pub(super) fn active_entries(
    entries: Entries<'_>,
    holds: impl Fn(Seq) -> bool,
) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
    let rewound = rewound(entries.clone(), &holds);
    active_among(entries, rewound, holds)
}

/// Returns the entries that are neither inactive nor in one of the `rewound` ranges.
pub(super) fn active_among(
    entries: Entries<'_>,
    rewound: Vec<RangeInclusive<Seq>>,
    holds: impl Fn(Seq) -> bool,
) -> impl DoubleEndedIterator<Item = &Arc<Entry>> {
    let is_rewound = move |seq: Seq| {
        let at = rewound.partition_point(|range| *range.end() < seq);
        rewound.get(at).is_some_and(|range| range.contains(&seq))
    };
    let is_active = move |entry: &&Arc<Entry>| {
        !is_rewound(entry.seq) && (!entry.change.can_be_undone() || holds(entry.seq))
    };
    entries.filter(is_active)
}

/// The ranges of entries that active rewinds remove, each with its rewind, oldest first. A rewind that a later one
/// removes has no effect.
pub(super) fn rewound(entries: Entries<'_>, holds: impl Fn(Seq) -> bool) -> Vec<RangeInclusive<Seq>> {
    let mut ranges: Vec<RangeInclusive<Seq>> = Vec::new();
    for entry in entries.rev() {
        if let Change::Rewound { to } = &entry.change
            && ranges.last().is_none_or(|later| entry.seq < *later.start())
            && holds(entry.seq)
        {
            // An imported log may name an entry that comes later; then there is nothing to remove.
            ranges.push((*to).min(entry.seq)..=entry.seq);
        }
    }
    ranges.reverse();
    ranges
}

impl PartNumbers {
    /// The number, from 1, of the reply's call at this index.
    pub fn call_number(&self, at: usize) -> u32 {
        match &self.calls {
            Some(numbers) => numbers[at],
            None => at as u32 + 1,
        }
    }
}

/// Converts a message of a hook's history into an entry of the view. A reply that no model made contains only
/// text.
pub(super) fn spoken_entry(layer: &Entry, spoken: &HistoryMessage, by: &str) -> Arc<Entry> {
    let HistoryMessage { role, message } = spoken;
    let sayable = |content: &&Content| {
        content.as_text().is_some() || (content.is_attachment() && *role != Role::Assistant)
    };
    let content = message.content.iter().filter(sayable).cloned().collect();
    let message = Message { id: message.id, content, author: None };
    let change = match role {
        Role::User | Role::System => Change::Said { message, origin: Origin::Hook { hook: by.to_owned() } },
        Role::Assistant => {
            Change::Replied { message, model: ModelName(String::new()), usage: None, cut: None }
        }
    };
    Arc::new(Entry { seq: layer.seq, at: layer.at, change })
}

/// A copy of a reply or summary without the provider's native form of its reasoning or summary; `None` if the
/// entry contains none.
fn without_own_thinking(entry: &Entry) -> Option<Arc<Entry>> {
    entry.change.shown_message()?.content.iter().find(|content| content.has_native())?;
    let mut plain = entry.clone();
    if let Change::Replied { message, .. } | Change::Compacted { summary: message, .. } = &mut plain.change {
        for content in &mut message.content {
            if let Content::Thinking { native, .. } | Content::Search(HostedSearch { native, .. }) = content {
                *native = None;
            }
        }
    }
    Some(Arc::new(plain))
}

/// Whether there is a text part that is not blank.
pub(super) fn has_text(content: &[Content]) -> bool {
    content.iter().any(|content| matches!(content, Content::Text { text } if !text.trim().is_empty()))
}

pub(super) fn is_outcome(entry: &Arc<Entry>) -> bool {
    matches!(entry.change, Change::ToolFinished { .. })
}

/// The index of the reply's call that the outcome belongs to; `None` if the entry is not that reply.
pub(super) fn rank(entry: &Entry, outcome: &ToolOutcome) -> Option<usize> {
    entry.change.calls().position(|call| call.id == outcome.call)
}
