//! What a compaction does to a view: what goes, what is cut, what stays. Pure.

use std::sync::Arc;

use super::budget::Budget;
use super::prune;
use crate::thread::{Change, Entry, Mask, Seq, Thread, Trigger, View};
use crate::tokens::Ruler;

/// Why a conversation is left as it is.
pub const NO_GAIN: &str = "a summary would not be shorter than what it replaces";

/// A view below this many tokens holds nothing that a summary could shorten.
const VIEW_TOKENS_MIN: u64 = 200;

/// What of the newest part of the view stays as it is behind a summary. A round stays whole or goes whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Keep {
    #[default]
    Nothing,
    /// The newest so many messages, and with the first of them its whole round.
    Messages(usize),
    /// As much as fits this share of the window, from 0 to 1.
    Ratio(f64),
    /// From this entry on, and with it its whole round.
    From(Seq),
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub trigger: Trigger,
    pub keep: Keep,
    /// What the person wants kept above all.
    pub focus: Option<String>,
    /// A summary is wanted even where cutting old outcomes would do.
    pub summary: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nothing, and why, in words.
    Nothing(String),
    /// Old outcomes are cut, and no model is asked.
    Prune(Vec<Mask>),
    Summarise(Plan),
}

/// What a summary takes the place of. A pure function of the log, the budget and the wish.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub trigger: Trigger,
    pub focus: Option<String>,
    /// The view that it was made for.
    pub revision: Seq,
    /// The newest entry that the summary replaces.
    pub through: Seq,
    /// What of the rest is shown shorter.
    pub masks: Vec<Mask>,
}

/// The change that cuts old outcomes.
pub fn pruned(ruler: &Ruler, thread: &Thread, masks: Vec<Mask>, trigger: Trigger) -> Change {
    let tokens_before = ruler.view(thread.view());
    let mut cut = thread.clone();
    let change = |tokens_after| Change::Pruned { masks: masks.clone(), trigger, tokens_before, tokens_after };
    cut.apply(Arc::new(Entry { seq: thread.next_seq(), at: 0, change: change(0) }));
    change(ruler.view(cut.view()))
}

/// Decides what a compaction of this thread does.
pub fn decide(ruler: &Ruler, thread: &Thread, budget: &Budget, wish: &Wish) -> Decision {
    let mut through = through(ruler, thread, wish.keep, budget.window);
    if !can_shrink(ruler, &thread.view().replaced_by(through)) {
        // All fits into what is to be kept: a compaction that was asked for is made all the same.
        through = self::through(ruler, thread, Keep::Nothing, budget.window);
        if !can_shrink(ruler, &thread.view().replaced_by(through)) {
            return Decision::Nothing(NO_GAIN.to_owned());
        }
    }
    if !wish.summary
        && let Some(masks) = prune::enough(ruler, thread, budget)
    {
        return Decision::Prune(masks);
    }
    Decision::Summarise(Plan {
        trigger: wish.trigger,
        focus: wish.focus.clone(),
        revision: thread.view().revision(),
        through,
        masks: Vec::new(),
    })
}

/// The newest entry that a compaction replaces which keeps so much. `window` is the model's, in tokens.
/// What an older layer has put in front of the view is never kept.
pub fn through(ruler: &Ruler, thread: &Thread, keep: Keep, window: u64) -> Seq {
    let view = thread.view();
    let from = match keep {
        Keep::Nothing => view.entries().len(),
        Keep::Messages(messages) => view.newest(messages),
        Keep::From(first) => {
            let entries = view.entries();
            let mut at = entries.iter().position(|entry| entry.seq >= first).unwrap_or(entries.len());
            while view.is_inside_round(at) {
                at -= 1;
            }
            at
        }
        Keep::Ratio(share) => newest_within(ruler, view, (window as f64 * share.clamp(0.0, 1.0)) as u64),
    };
    thread.through(from)
}

/// Where the newest rounds begin that together take at most so many tokens.
fn newest_within(ruler: &Ruler, view: &View, tokens_max: u64) -> usize {
    let entries = view.entries();
    let mut from = entries.len();
    let mut taken = 0;
    for (at, entry) in entries.iter().enumerate().rev() {
        taken += ruler.entry(entry);
        if taken > tokens_max {
            break;
        }
        if !view.is_inside_round(at) {
            from = at;
        }
    }
    from
}

/// Whether a summary could be shorter than this view, or part of one (`View::replaced_by`).
pub fn can_shrink(ruler: &Ruler, replaced: &View) -> bool {
    let only_a_summary = matches!(
        replaced.entries(),
        [entry] if matches!(entry.change, Change::Compacted { .. })
    );
    !only_a_summary && ruler.view(replaced) >= VIEW_TOKENS_MIN
}
