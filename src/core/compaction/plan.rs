//! Decides what a compaction drops, cuts and keeps. Pure.

use super::GAIN_MIN_PERCENT;
use super::budget::Budget;
use super::input::CompactionInput;
use super::prune::{self, PruneCuts};
use super::refusal::CompactionRefusal;
use epitome_thread::{Change, Entry, Mask, Seq, Thread, Trigger};
use std::sync::Arc;

/// A smaller view, in tokens, contains nothing that a summary could shorten, so no model is asked for one.
const VIEW_TOKENS_MIN: u64 = 400;

/// Divisor: the part of the view that an automatic compaction keeps if all of it is within the share to keep.
const NEWEST_PART: u64 = 3;

/// Divisor: the share of the room that is reserved for the compaction message, however much is kept after it. An eighth changes
/// nothing on 65 recorded sessions, and a half loses a little where two fifths of the window are kept.
const MESSAGE_PART: u64 = 4;

/// By how much of the window, in percent, what was kept may be larger than the share to keep before it is compacted again.
const SLACK_PERCENT: u64 = 3;

/// How much of the newest part of the view is kept after a summary. Rounds are kept or dropped as a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum KeptTail {
    #[default]
    Nothing,
    /// The newest messages, this many, extended to complete rounds.
    Messages(usize),
    /// As much as fits into this share of the window, from 0 to 1.
    Ratio(f64),
    /// Everything from this entry on, extended to a complete round.
    From(Seq),
}

/// A request for a compaction.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionRequest {
    pub trigger: Trigger,
    pub keep: KeptTail,
    /// The topic that the user wants the summary to focus on.
    pub focus: Option<String>,
    /// Whether a summary is made even if cutting old outcomes would be enough.
    pub summary: bool,
}

/// The decision about a compaction.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactionDecision {
    /// Nothing, for this reason.
    Nothing(CompactionRefusal),
    /// Cut old outcomes, without a model.
    Prune(Vec<Mask>),
    Summarise(CompactionPlan),
}

/// The part of a view that a summary replaces. A pure function of the log, the budget and the request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionPlan {
    pub trigger: Trigger,
    pub focus: Option<String>,
    /// The revision of the view that it was made for.
    pub revision: Seq,
    /// The newest entry that the summary replaces.
    pub through: Seq,
    /// Kept entries that are shown shortened.
    pub masks: Vec<Mask>,
}

/// Decides what a compaction of this view does.
///
/// An automatic compaction keeps the current round and shortens only as much of it as needed to fit; it gives up the
/// round only if that is not enough. Outcomes that the running turn recalled are kept with it, and are cut only after
/// all other outcomes. A compaction requested by the user or a hook keeps what the request specifies.
///
/// If everything fits into the part to keep, an automatic compaction keeps a part of it, and a requested one compacts
/// everything, even if nothing is gained, except for a view that was just compacted and has no new entries: compacting it
/// again would lose what was just kept. [`KeptTail::From`] is always respected, even if then nothing can be compacted.
pub fn decide(input: &CompactionInput<'_>, request: &CompactionRequest) -> CompactionDecision {
    if input.limit == 0 {
        let Budget { frame, window, reserve, .. } = *input.budget;
        return CompactionDecision::Nothing(CompactionRefusal::NoRoom { frame, window, reserve });
    }
    let is_full = input.before > input.limit;
    // The provider's verdict takes precedence over Epitome's counts.
    let is_urgent = request.trigger == Trigger::Overflow || request.trigger.is_automatic() && is_full;
    let has_news = input.has_news();
    let is_done = request.trigger.is_automatic() || keeps_no_more(input, request);
    if is_done && !has_news && !is_urgent {
        return CompactionDecision::Nothing(CompactionRefusal::NoGain);
    }
    if !request.summary
        && let Some(masks) = prune::enough(input)
    {
        return CompactionDecision::Prune(masks);
    }
    let (from, masks) = find_kept_part(input, request);
    let end = input.entries().len();
    let (from, masks) = if !request.trigger.is_automatic() {
        match requested_part(input, request, from) {
            Some(from) => (from, masks),
            None => return CompactionDecision::Nothing(CompactionRefusal::NothingLeft),
        }
    } else if gains(input, from, is_urgent) {
        (from, masks)
    } else if !is_urgent && (!has_news || matches!(request.keep, KeptTail::From(_))) {
        return CompactionDecision::Nothing(CompactionRefusal::NoGain);
    } else if input.recalled_before_round().is_some()
        && let Some(masks) = cuts_around_recalled(input, is_urgent)
    {
        return CompactionDecision::Prune(masks);
    } else if !is_urgent && input.recalled_before_round().is_some() {
        return CompactionDecision::Nothing(CompactionRefusal::NoGain);
    } else if gains(input, input.round(), is_urgent) {
        // Everything is within the share to keep, for example with a low threshold.
        let newest = newest_within(input, input.before / NEWEST_PART).min(input.round());
        let keeps_more = !is_urgent && gains(input, newest, is_urgent);
        (if keeps_more { newest } else { input.round() }, Vec::new())
    } else if let Some(masks) = in_place(input, is_urgent) {
        return CompactionDecision::Prune(masks);
    } else if gains(input, end, is_urgent) && (is_urgent || input.round() == end) {
        (end, Vec::new())
    } else {
        return CompactionDecision::Nothing(CompactionRefusal::NoGain);
    };
    CompactionDecision::Summarise(CompactionPlan {
        trigger: request.trigger,
        focus: request.focus.clone(),
        revision: input.thread.view().revision(),
        through: input.thread.through(from),
        masks,
    })
}

/// Returns the index at which the kept part of a requested compaction begins, given where the request puts it; `None` if
/// nothing is left to replace. What a user, a recipe or a hook requests is done even if nothing is gained by it.
fn requested_part(input: &CompactionInput<'_>, request: &CompactionRequest, from: usize) -> Option<usize> {
    let (end, has_news) = (input.entries().len(), input.has_news());
    let is_compacted = |entry: &&Arc<Entry>| matches!(entry.change, Change::Compacted { .. });
    let replaces = |from: usize| from > input.entries().first().filter(is_compacted).iter().count();
    match request.keep {
        KeptTail::Ratio(_) if gains(input, from, false) => Some(from),
        KeptTail::Nothing | KeptTail::Messages(_) | KeptTail::From(_) if replaces(from) => Some(from),
        KeptTail::From(_) => None,
        KeptTail::Nothing | KeptTail::Messages(_) | KeptTail::Ratio(_) => {
            Some(end).filter(|end| has_news && replaces(*end))
        }
    }
}

/// Whether the entries after the leading summary already take no more than the share to keep.
fn keeps_no_more(input: &CompactionInput<'_>, request: &CompactionRequest) -> bool {
    // A provider that counts more does so by a larger part after a compaction, since its own text stays.
    let kept_max = |share: u64| {
        let slack = input.budget.window.saturating_mul(SLACK_PERCENT) / 100;
        by_our_count(input, share).max(share).saturating_add(slack)
    };
    matches!(request.keep, KeptTail::Ratio(share) if input.from(1) <= kept_max(share_of(input, share)))
}

/// Returns the index in the view at which the kept part begins, and the entries of it that are shortened.
fn find_kept_part(input: &CompactionInput<'_>, request: &CompactionRequest) -> (usize, Vec<Mask>) {
    let end = input.entries().len();
    // The requested part is kept, but a share of the window only if it fits together with the message.
    let (from, tail) = match request.keep {
        KeptTail::Ratio(share) => {
            let share = by_our_count(input, share_of(input, share));
            let from = newest_within(input, share.min(room_for_kept(input)));
            (from, input.from(from))
        }
        keep => (start(input.thread, keep).unwrap_or(end), 0),
    };
    if !request.trigger.is_automatic() {
        return (from, Vec::new());
    }
    // A pending round is not replaced by a summary of its question.
    let from = from.min(input.round());
    let from = input.cut(input.thread.through(from));
    let tokens_max = room_for_kept(input).max(tail);
    if let Some(recalled) = input.recalled_before_round().filter(|recalled| *recalled < from) {
        let mut shorter = PruneCuts::new(input, recalled);
        // The entries in between would otherwise have been dropped.
        shorter.old(input, recalled..from);
        if shorter.all(input, recalled, tokens_max) {
            return (recalled, shorter.masks());
        }
    }
    let mut shorter = PruneCuts::new(input, from);
    match shorter.all(input, from, tokens_max) {
        true => (from, shorter.masks()),
        false => (end, Vec::new()),
    }
}

/// The cuts that make the entire view fit without giving up the current round, if the view must shrink now; `None` if
/// they are not enough or nothing needs to be done.
fn in_place(input: &CompactionInput<'_>, is_urgent: bool) -> Option<Vec<Mask>> {
    let mut shorter = PruneCuts::new(input, 0);
    let fits = is_urgent && shorter.all(input, 0, room_for_kept(input));
    (fits && !shorter.cuts.is_empty()).then(|| shorter.masks())
}

/// The cuts that make room around recalled outcomes if too little precedes them for a summary. If the view already
/// fits, only other outcomes are cut, and only for a sufficient gain.
fn cuts_around_recalled(input: &CompactionInput<'_>, is_urgent: bool) -> Option<Vec<Mask>> {
    let gaining = input.before * (100 - GAIN_MIN_PERCENT) / 100;
    let mut shorter = PruneCuts::new(input, 0);
    let gains = !is_urgent && shorter.outcomes(input, 0, room_for_kept(input).min(gaining));
    let masks = (gains && !shorter.cuts.is_empty()).then(|| shorter.masks());
    masks.or_else(|| in_place(input, is_urgent))
}

/// Limit for the part kept after the compaction message, in tokens.
fn room_for_kept(input: &CompactionInput<'_>) -> u64 {
    input.limit - input.limit / MESSAGE_PART
}

/// Converts a share of the window to tokens.
fn share_of(input: &CompactionInput<'_>, share: f64) -> u64 {
    (input.budget.window as f64 * share.clamp(0.0, 1.0)) as u64
}

/// Converts tokens as the provider counts them to tokens by Epitome's count.
fn by_our_count(input: &CompactionInput<'_>, tokens: u64) -> u64 {
    let counted = u128::from(input.budget.frame + input.before);
    let Some(used) = input.budget.used.filter(|used| *used > 0) else { return tokens };
    u64::try_from(u128::from(tokens) * counted / u128::from(used)).unwrap_or(u64::MAX).max(tokens / 2)
}

/// Whether a summary could be shorter than the view up to this index. The message of an earlier compaction counts as a
/// gain only if it no longer fits, for example after a change to a model with a smaller window. Otherwise a hook that
/// compacts at each turn would pay for a model call each time, only to lose a little more of the kept text.
fn gains(input: &CompactionInput<'_>, cut: usize, is_urgent: bool) -> bool {
    // Entries that their numbers cannot separate are dropped together.
    let cut = input.cut(input.thread.through(cut));
    let replaced: u64 = input.weights[..cut].iter().sum();
    let earlier = match input.entries().first() {
        Some(first) if cut > 0 && matches!(first.change, Change::Compacted { .. }) => input.weights[0],
        _ => 0,
    };
    let is_new = (replaced - earlier) * 100 >= input.before * GAIN_MIN_PERCENT;
    replaced >= VIEW_TOKENS_MIN && (is_urgent || is_new)
}

/// The index in the view at which the kept part begins; `None` for a share, which depends on token counts.
pub(super) fn start(thread: &Thread, keep: KeptTail) -> Option<usize> {
    let view = thread.view();
    let entries = view.entries();
    match keep {
        KeptTail::Nothing => Some(entries.len()),
        KeptTail::Messages(messages) => Some(view.newest(messages)),
        KeptTail::From(first) => {
            // A summary at the front has a higher number than the entries after it.
            let own = entries.iter().position(|entry| entry.seq == first);
            let behind =
                |entry: &Arc<Entry>| entry.seq >= first && !matches!(entry.change, Change::Compacted { .. });
            let mut at = own.or_else(|| entries.iter().position(behind)).unwrap_or(entries.len());
            while view.is_inside_round(at) {
                at -= 1;
            }
            Some(at)
        }
        KeptTail::Ratio(_) => None,
    }
}

/// The index at which the newest rounds begin that together take at most `tokens_max`.
fn newest_within(input: &CompactionInput<'_>, tokens_max: u64) -> usize {
    let mut from = input.entries().len();
    let mut taken = 0;
    for (at, weight) in input.weights.iter().enumerate().rev() {
        taken += weight;
        if taken > tokens_max {
            break;
        }
        if !input.thread.view().is_inside_round(at) {
            from = at;
        }
    }
    from
}
