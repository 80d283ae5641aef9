//! The input of a compaction decision: a view with the tokens of its entries, counted once. Pure.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use super::budget::Budget;
use super::calls::{RECALL, asked, tools, user_reply};
use super::text::{most_telling_lines, shortened};
use epitome_thread::{Change, Entry, Seq, Thread};
use epitome_tokens::{Count, Ruler};

/// Maximum size in tokens of a view that is counted with the vocabulary. A longer one is estimated: counting takes half
/// a millisecond per thousand tokens, and a decision must not block.
const EXACT_TOKENS_MAX: u64 = 16 * 1024;

/// Number of tokens used to measure the margin of a count; any large number works.
const MARGIN_PROBE_TOKENS: u64 = 1_000_000;

/// Divisor: the largest part of a conversation for the tables, and the size in tokens up to which they may take more of it.
const CARRIED_PART: u64 = 2;
const CARRIED_TOKENS: u64 = 4 * 1024;

/// The end of a recall hint for a shortened entry.
pub(super) const READS_ALL: &str = "reads all of it";

/// The reader of a compaction's message.
#[derive(Clone, Debug, PartialEq)]
pub enum SummaryReader {
    /// The model of the session. Places in the log are named, and the result is smaller than the view by a tenth.
    Session,
    /// Another agent, which has no log. It has chosen the size, so the result only has to fit. `recall` is a clause that says
    /// how it finds what is no longer in view.
    OtherAgent { recall: Option<String> },
}

impl SummaryReader {
    /// A place in the log, if the reader has it.
    pub(super) fn place<T>(&self, place: T) -> Option<T> {
        (*self == SummaryReader::Session).then_some(place)
    }
}

/// A thread, a budget and the values that a decision needs repeatedly. A caller that decides on a compaction and then
/// composes it should use the same `CompactionInput` for both, since counting a long view takes a considerable part of
/// the time.
pub struct CompactionInput<'a> {
    pub(super) ruler: Ruler,
    pub(super) thread: &'a Thread,
    pub(super) budget: &'a Budget,
    pub(super) reader: &'a SummaryReader,
    /// Tokens of each entry of the view.
    pub(super) weights: Vec<u64>,
    /// The sum of `weights`.
    pub(super) before: u64,
    /// Limit for the counted tokens of a view, such that it certainly fits together with the frame, and by this count
    /// also with the reply.
    pub(super) limit: u64,
    /// Entries that are pinned completely.
    pub(super) pinned: HashSet<Seq>,
    /// Outcomes in the view that are the user's own words: answers to questions, and reasons for refusals.
    pub(super) answers: HashSet<Seq>,
    /// Indices in the view of unshortened `recall` outcomes requested by the running turn. They are the last
    /// outcomes to be cut, since the model has just fetched them.
    pub(super) recalled: BTreeSet<usize>,
    /// Whether the model has the `recall` tool. An older session may have been started without it.
    pub(super) has_recall: bool,
}

impl<'a> CompactionInput<'a> {
    /// Counts the current view of a thread.
    pub fn new(ruler: &Ruler, thread: &'a Thread, budget: &'a Budget) -> CompactionInput<'a> {
        let entries = thread.view().entries();
        let ruler = quick(ruler, thread);
        let weights: Vec<u64> = entries.iter().map(|entry| ruler.entry(entry)).collect();
        let before = weights.iter().sum();
        let probe = ruler.at_most(Count { reported: 0, counted: MARGIN_PROBE_TOKENS });
        let counted = budget.frame.saturating_add(before);
        let window = match budget.used {
            // The provider counts less, so more by Epitome's count fits.
            Some(used) if used < counted => {
                u128::from(budget.window).saturating_mul(counted.into()) / u128::from(used.max(1))
            }
            Some(_) | None => u128::from(budget.window),
        };
        let most = window.saturating_sub(u128::from(budget.frame));
        let limit = most.saturating_mul(MARGIN_PROBE_TOKENS.into()) / u128::from(probe.max(1));
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).min(budget.room());
        let whole = thread.pinned().into_iter().filter(|part| part.part.is_none());
        let pinned = whole.map(|part| part.entry).collect();
        let asked = asked(entries);
        let answered = |entry: &Arc<Entry>| {
            let outcome = entry.change.outcome()?;
            user_reply(asked.contains(outcome.call.0.as_str()), outcome).map(|_| entry.seq)
        };
        let answers = entries.iter().filter_map(answered).collect();
        let recalled = recalled(thread);
        let has_recall = thread.frame().is_none_or(|(_, tools)| tools.iter().any(|tool| tool.name == RECALL));
        CompactionInput {
            ruler,
            thread,
            budget,
            reader: &SummaryReader::Session,
            weights,
            before,
            limit,
            pinned,
            answers,
            recalled,
            has_recall,
        }
    }

    pub(super) fn entries(&self) -> &'a [Arc<Entry>] {
        self.thread.view().entries()
    }

    /// Limit for the tables: at most half of a conversation, beyond a minimum. Of one that was compacted before, the tables
    /// are about the log and not about the view.
    pub(super) fn carried_max(&self) -> u64 {
        let most = self.budget.carried_max;
        let is_compacted =
            self.entries().first().is_some_and(|head| matches!(head.change, Change::Compacted { .. }));
        if is_compacted { most } else { most.min((self.before / CARRIED_PART).max(CARRIED_TOKENS)) }
    }

    /// The same, for a message that somebody else reads.
    pub fn for_reader(self, reader: &'a SummaryReader) -> CompactionInput<'a> {
        CompactionInput { reader, ..self }
    }

    /// A hint how to read an omitted part of an entry; empty without the `recall` tool.
    pub(super) fn recall_hint(&self, entry: Seq, what: &str) -> String {
        match self.has_recall {
            true => format!("; `{RECALL}` with entry {entry} {what}"),
            false => String::new(),
        }
    }

    /// An attribute with a place in the log; empty if the reader of the message has no log.
    pub(super) fn entry_attribute(&self, place: impl Display) -> String {
        self.reader.place(place).map_or(String::new(), |place| format!(" entry=\"{place}\""))
    }

    /// The head and tail of an entry's text, with a hint how to read the rest.
    pub(super) fn head_and_tail(&self, text: &str, bytes_max: usize, entry: Seq) -> String {
        match text.len() <= bytes_max {
            true => text.to_owned(),
            false => shortened(text, bytes_max, &self.recall_hint(entry, READS_ALL)),
        }
    }

    /// Like `head_and_tail`, with a length in characters, and with lines from the middle.
    pub(super) fn most_telling_lines(&self, text: &str, chars_max: usize, entry: Seq) -> String {
        match text.chars().nth(chars_max) {
            None => text.to_owned(),
            Some(_) => most_telling_lines(text, chars_max, &self.recall_hint(entry, READS_ALL)),
        }
    }

    /// Tokens of the view from this index on.
    pub(super) fn from(&self, at: usize) -> u64 {
        self.weights[at.min(self.weights.len())..].iter().sum()
    }

    /// The index in the view after the last entry that a layer up to and including `through` replaces.
    pub(super) fn cut(&self, through: Seq) -> usize {
        self.weights.len() - self.thread.view().kept_after(through).len()
    }

    /// The index at which the current round begins: messages without a reply, or calls whose outcomes the
    /// model has not seen, and everything after them. The end of the view if the agent has answered.
    pub(super) fn round(&self) -> usize {
        let entries = self.entries();
        let mut at = entries.len();
        let mut outcomes = false;
        while at > 0 {
            match &entries[at - 1].change {
                Change::Said { .. } if !outcomes => {}
                Change::ToolFinished { .. } => outcomes = true,
                Change::Replied { message, .. } if message.calls().next().is_some() => return at - 1,
                _ => break,
            }
            at -= 1;
        }
        at
    }

    /// The index at which the oldest round begins that precedes the current one and contains an outcome
    /// recalled in the running turn, if any.
    pub(super) fn recalled_before_round(&self) -> Option<usize> {
        let oldest = self.recalled.range(..self.round()).next()?;
        Some(self.cut(self.thread.through(*oldest)))
    }

    /// Whether the view has entries newer than the compaction that it begins with.
    pub(super) fn has_news(&self) -> bool {
        let head = self.entries().first().filter(|entry| matches!(entry.change, Change::Compacted { .. }));
        head.is_none_or(|head| self.entries().iter().any(|entry| entry.seq > head.seq))
    }
}

/// The indices of outcomes that the running turn recalled and that are still shown unshortened.
fn recalled(thread: &Thread) -> BTreeSet<usize> {
    if !thread.in_turn() {
        return BTreeSet::new();
    }
    let ended = thread.entries().iter().rev().find(|entry| matches!(entry.change, Change::TurnEnded { .. }));
    let since = ended.map(|entry| entry.seq);
    let entries = thread.view().entries();
    let tools = tools(entries);
    let is_recalled = |entry: &Arc<Entry>| {
        let tool = entry.change.outcome().and_then(|outcome| tools.get(outcome.call.0.as_str()));
        // A shortened outcome is a derived entry, different from the logged one.
        Some(entry.seq) > since && tool == Some(&RECALL) && thread.is_as_logged(entry)
    };
    (0..entries.len()).filter(|at| is_recalled(&entries[*at])).collect()
}

/// A ruler that counts a short view with the vocabulary and estimates a long one.
pub(super) fn quick(ruler: &Ruler, thread: &Thread) -> Ruler {
    let estimate = ruler.clone().exact(None);
    // Stops where the view is too long: each of its entries is estimated again for the decision.
    let left = thread
        .view()
        .entries()
        .iter()
        .try_fold(EXACT_TOKENS_MAX, |left, entry| left.checked_sub(estimate.entry(entry)));
    if left.is_some() { ruler.clone() } else { estimate }
}
