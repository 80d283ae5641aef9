//! Builds the change that commits a compaction, if it is worth it. Pure.

use super::budget::Budget;
use super::carryover::Carryover;
use super::fit::{FittedCompaction, fitted};
use super::input::CompactionInput;
use super::parts::{CompactionMessage, Summary};
use super::plan::CompactionPlan;
use super::refusal::{CompactionRefusal, pins_in_words, tokens_of};
use super::text::CUT_OFF;
use epitome_thread::edits::Replacement;
use epitome_thread::{Change, CompactionStats, Entry, Mask, Message, MessageId, PartSize, Seq, Thread};
use epitome_tokens::Ruler;
use std::collections::HashSet;
use std::sync::Arc;

/// Returns the change that replaces the view up to and including `plan.through` with a summary, or the reason why that
/// gains nothing.
///
/// `id` is the id of the new message. The message contains the summary, the tables computed from the log, instructions,
/// the goal, the user's messages, pins and the last request, verbatim unless they stay in the view anyway. If it does
/// not fit or gains less than a tenth, parts are dropped one after the other, but never pins. An automatic compaction
/// may finally give up the kept part, and [`Trigger::Must`](epitome_thread::Trigger::Must) accepts any gain.
pub fn compacted(
    input: &CompactionInput<'_>,
    plan: &CompactionPlan,
    id: MessageId,
    written: Summary,
) -> Result<Change, CompactionRefusal> {
    let text = written.text.filter(|text| !text.trim().is_empty());
    let is_cut_off = text.as_ref().is_some_and(|text| text.ends_with(CUT_OFF));
    let written = Summary { text, ..written };
    let made = fitted(input, plan, &written)?;
    let account = CompactionStats { is_cut_off, ..account(input, &made, written.fallback) };
    let FittedCompaction { message, through, masks, tokens_after, .. } = made;
    let (model, usage) = written.by.unzip();
    Ok(Change::Compacted {
        through,
        summary: Message { id, content: message.content, author: None },
        trigger: plan.trigger,
        focus: plan.focus.clone(),
        tokens_before: input.before,
        tokens_after,
        window: None,
        model,
        usage,
        masks,
        account,
    })
}

/// The tables that a compaction by this plan carries over; the model gets them so that its summary need not repeat
/// them. Empty if there are none.
pub fn tables(ruler: &Ruler, thread: &Thread, budget: &Budget, plan: &CompactionPlan) -> String {
    let input = CompactionInput::new(ruler, thread, budget);
    let kept = input.entries()[input.cut(plan.through)..].iter().map(|entry| entry.seq).collect();
    Carryover::compute(&input, &kept).within(&input.ruler, input.carried_max())
}

/// How a compaction treats an entry of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryTreatment {
    /// Kept unchanged.
    Kept,
    /// Kept, but shown shortened.
    Masked,
    /// Dropped, but quoted verbatim in the message.
    Quoted,
    /// Dropped, but quoted in the message without its middle or its attached files.
    Shortened,
    /// Dropped and covered by the summary.
    Summarised,
}

/// The treatment of each entry of the view by a compaction, or by these masks alone.
pub(super) fn treatments(
    input: &CompactionInput<'_>,
    made: Option<&FittedCompaction>,
    masks: &[Mask],
) -> Vec<EntryTreatment> {
    let masked: HashSet<Seq> = masks.iter().map(|mask| mask.entry).collect();
    let cut = made.map_or(0, |made| made.cut);
    let is_in = |entries: fn(&CompactionMessage) -> &[Seq], entry| {
        made.is_some_and(|made| entries(&made.message).binary_search(&entry).is_ok())
    };
    let treatment = |(at, entry): (usize, &Arc<Entry>)| match at < cut {
        true if is_in(|message| &message.quoted, entry.seq) => EntryTreatment::Quoted,
        true if is_in(|message| &message.shortened, entry.seq) => EntryTreatment::Shortened,
        true => EntryTreatment::Summarised,
        false if masked.contains(&entry.seq) => EntryTreatment::Masked,
        false => EntryTreatment::Kept,
    };
    input.entries().iter().enumerate().map(treatment).collect()
}

fn account(
    input: &CompactionInput<'_>,
    made: &FittedCompaction,
    fallback: Option<String>,
) -> CompactionStats {
    let message = &made.message;
    let mut account = CompactionStats {
        quoted: message.quoted.clone(),
        shortened: message.shortened.clone(),
        facts: u32::try_from(message.facts).unwrap_or(u32::MAX),
        left_out: message.left_out.clone(),
        left_out_earlier: made.left_out_earlier.map(Box::new),
        fallback,
        ..CompactionStats::default()
    };
    for (treatment, tokens) in treatments(input, Some(made), &made.masks).into_iter().zip(&input.weights) {
        let share: &mut PartSize = match treatment {
            EntryTreatment::Kept => &mut account.kept,
            EntryTreatment::Masked => &mut account.masked,
            EntryTreatment::Summarised => &mut account.summarised,
            // Listed individually.
            EntryTreatment::Quoted | EntryTreatment::Shortened => continue,
        };
        share.entries += 1;
        share.tokens += tokens;
    }
    account
}

/// Returns the change for a hook's new history, or an error if the view would take more than `tokens_max`.
pub fn mutated(
    ruler: &Ruler,
    thread: &Thread,
    replacement: Replacement,
    by: String,
    tokens_max: u64,
) -> Result<Change, CompactionRefusal> {
    let Replacement { through, messages } = replacement;
    let kept = thread.view().kept_after(through);
    let behind: u64 = kept.iter().map(|entry| ruler.entry(entry)).sum();
    let put: u64 = messages.iter().map(|spoken| ruler.message(&spoken.message)).sum();
    let tokens_after = behind + put;
    if tokens_after > tokens_max {
        return Err(CompactionRefusal::HistoryTooLong { tokens: tokens_after, room: tokens_max });
    }
    let tokens_before = ruler.view(thread.view());
    Ok(Change::Mutated { through, messages, by, tokens_before, tokens_after, window: None })
}

/// Why the pins of `thread` are too large, if they take more than `tokens_max`. Pins stay in every view.
pub fn pins_too_large(ruler: &Ruler, thread: &Thread, tokens_max: u64) -> Option<String> {
    let pins = thread.pins();
    let too_large = tokens_of(ruler, &pins) > tokens_max;
    too_large
        .then(|| format!("{}, and pins may take {tokens_max} of the window", pins_in_words(ruler, &pins)))
}
