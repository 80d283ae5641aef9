//! What a decision looks at: a view, and the tokens of each of its entries, counted once. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::budget::Budget;
use super::prune::RECALL;
use super::text::shortened;
use epitome_thread::{Change, Content, Edit, Entry, OutcomeContent, Seq, Thread};
use epitome_tokens::{Count, Ruler};

/// Bytes of a view up to which its tokens are counted with the vocabulary. Of a longer one they are estimated:
/// a count takes half a millisecond for a thousand tokens, and a decision must not be waited for.
const EXACT_BYTES_MAX: usize = 64 * 1024;

/// Tokens by which the margin of a count is measured; any large number does.
const MARGIN_PROBE_TOKENS: u64 = 1_000_000;

/// What `recall` does with an entry that is shown shorter.
pub(super) const READS_ALL: &str = "reads all of it";

/// A thread, a budget, and what is asked of them again and again in one decision. Who decides and then makes the change
/// of the same thread does both by one of these: to weigh a long view takes a part of the time of each.
pub struct Scene<'a> {
    pub(super) ruler: Ruler,
    pub(super) thread: &'a Thread,
    pub(super) budget: &'a Budget,
    /// The tokens of each entry of the view.
    pub(super) weights: Vec<u64>,
    /// All of them.
    pub(super) before: u64,
    /// Tokens that we may count in a view that surely fits beside the frame and the reply.
    pub(super) limit: u64,
    /// Entries that are pinned as a whole.
    pub(super) pinned: HashSet<Seq>,
    /// Where in the view whole outcomes of `recall` stand that the running turn asked for: what the model has just
    /// fetched back is the last of the outcomes to leave again.
    pub(super) recalled: BTreeSet<usize>,
    /// Whether the model has the tool `recall`: the tools of an older session may be without it.
    pub(super) has_recall: bool,
}

impl<'a> Scene<'a> {
    /// Weighs the view of a thread as it is now.
    pub fn of(ruler: &Ruler, thread: &'a Thread, budget: &'a Budget) -> Scene<'a> {
        let entries = thread.view().entries();
        let ruler = quick(ruler, thread);
        let weights: Vec<u64> = entries.iter().map(|entry| ruler.entry(entry)).collect();
        let before = weights.iter().sum();
        let probe = ruler.at_most(Count { reported: 0, counted: MARGIN_PROBE_TOKENS });
        let limit = u128::from(budget.room()) * u128::from(MARGIN_PROBE_TOKENS) / u128::from(probe.max(1));
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let whole = thread.pinned().into_iter().filter(|part| part.part.is_none());
        let pinned = whole.map(|part| part.entry).collect();
        let recalled = recalled(thread);
        let has_recall = thread.frame().is_none_or(|(_, tools)| tools.iter().any(|tool| tool.name == RECALL));
        Scene { ruler, thread, budget, weights, before, limit, pinned, recalled, has_recall }
    }

    pub(super) fn entries(&self) -> &'a [Arc<Entry>] {
        self.thread.view().entries()
    }

    /// How what is left out of an entry can be read, behind what it is; nothing, where it can't.
    pub(super) fn recall_hint(&self, entry: Seq, what: &str) -> String {
        match self.has_recall {
            true => format!("; `{RECALL}` with entry {entry} {what}"),
            false => String::new(),
        }
    }

    /// The beginning and the end of a text of an entry, and how to read the rest.
    pub(super) fn head_and_tail(&self, text: &str, bytes_max: usize, entry: Seq) -> String {
        match text.len() <= bytes_max {
            true => text.to_owned(),
            false => shortened(text, bytes_max, &self.recall_hint(entry, READS_ALL)),
        }
    }

    /// The tokens of the view from this entry on.
    pub(super) fn from(&self, at: usize) -> u64 {
        self.weights[at.min(self.weights.len())..].iter().sum()
    }

    /// Where in the view what a layer replaces ends that reaches up to and with `through`.
    pub(super) fn cut(&self, through: Seq) -> usize {
        self.weights.len() - self.thread.view().kept_behind(through).len()
    }

    /// Where the current round begins: what was said and not answered yet, or the calls whose outcomes the
    /// model has not seen, with what came behind them. The end of the view, where the agent has answered.
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

    /// Where in the view the oldest round begins that recalled something in the running turn, before the current
    /// round; `None` where there is none.
    pub(super) fn recalled_before_round(&self) -> Option<usize> {
        let oldest = self.recalled.range(..self.round()).next()?;
        Some(self.cut(self.thread.through(*oldest)))
    }

    /// Whether something was said since the compaction that the view begins with.
    pub(super) fn has_news(&self) -> bool {
        let head = self.entries().first().filter(|entry| matches!(entry.change, Change::Compacted { .. }));
        head.is_none_or(|head| self.entries().iter().any(|entry| entry.seq > head.seq))
    }
}

/// The places of what the running turn recalled and still sees whole.
fn recalled(thread: &Thread) -> BTreeSet<usize> {
    if !thread.in_turn() {
        return BTreeSet::new();
    }
    let ended = thread.entries().iter().rev().find(|entry| matches!(entry.change, Change::TurnEnded { .. }));
    let since = ended.map(|entry| entry.seq);
    let entries = thread.view().entries();
    let tools = tools(entries);
    let is_recalled = |entry: &Arc<Entry>| match &entry.change {
        Change::ToolFinished { outcome } => {
            // What is shown shorter is another entry than that of the log.
            let own = usize::try_from(entry.seq.0).ok().and_then(|seq| thread.entries().get(seq));
            Some(entry.seq) > since
                && tools.get(outcome.call.0.as_str()) == Some(&RECALL)
                && own.is_some_and(|own| Arc::ptr_eq(own, entry))
        }
        _ => false,
    };
    (0..entries.len()).filter(|at| is_recalled(&entries[*at])).collect()
}

/// A ruler that counts a short view with the vocabulary and estimates a long one.
pub(super) fn quick(ruler: &Ruler, thread: &Thread) -> Ruler {
    let mut left = Some(EXACT_BYTES_MAX);
    for entry in thread.view().entries() {
        left = left.and_then(|left| left.checked_sub(text_bytes(entry)));
    }
    if left.is_some() { ruler.clone() } else { ruler.clone().exact(None) }
}

/// The bytes of text in an entry, as far as they count.
fn text_bytes(entry: &Entry) -> usize {
    let of_content = |content: &Content| match content {
        Content::Text { text } | Content::Thinking { text, .. } => text.len(),
        Content::Resource { text, .. } => text.len(),
        // What an input takes is only known when it is written; what most take is little.
        Content::Call(call) => call
            .input
            .as_object()
            .map_or(0, |input| input.values().map(|value| value.as_str().map_or(0, str::len)).sum::<usize>()),
        Content::Image { .. } | Content::Document { .. } | Content::ResourceLink { .. } => 0,
    };
    match &entry.change {
        Change::Said { message, .. }
        | Change::Replied { message, .. }
        | Change::Compacted { summary: message, .. } => message.content.iter().map(of_content).sum(),
        Change::ToolFinished { outcome } => {
            let of_outcome = |content: &OutcomeContent| match content {
                OutcomeContent::Text { text } => text.len(),
                OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => 0,
            };
            outcome.content.iter().map(of_outcome).sum()
        }
        _ => 0,
    }
}

/// Which entries hooks rewrote, alone or with the history around them, and that still holds: as
/// `Thread::is_rewritten` for each of them, in one pass over the log.
pub(super) struct Rewritten {
    /// Up to and with this one, all.
    through: Option<Seq>,
    single: HashSet<Seq>,
}

impl Rewritten {
    pub fn of(thread: &Thread) -> Rewritten {
        let mut rewritten = Rewritten { through: None, single: HashSet::new() };
        for entry in thread.standing() {
            match &entry.change {
                Change::Mutated { through, .. } => {
                    rewritten.through = rewritten.through.max(Some(*through));
                }
                Change::Edited { edits, .. } => {
                    let parts = edits.iter().filter(|edit| edit.rewrites()).filter_map(Edit::at);
                    rewritten.single.extend(parts.map(|part| part.entry));
                }
                _ => {}
            }
        }
        rewritten
    }

    pub fn contains(&self, entry: Seq) -> bool {
        Some(entry) <= self.through || self.single.contains(&entry)
    }
}

/// The tool that each call of the view asks for.
pub(super) fn tools(entries: &[Arc<Entry>]) -> HashMap<&str, &str> {
    let calls = entries.iter().filter_map(|entry| match &entry.change {
        Change::Replied { message, .. } => Some(message.calls()),
        _ => None,
    });
    calls.flatten().map(|call| (call.id.0.as_str(), call.name.as_str())).collect()
}
