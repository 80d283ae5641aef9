//! Previews of compactions, for the user. Pure.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::budget::Budget;
use super::compose::{EntryTreatment, treatments};
use super::fit::{FittedCompaction, fitted, longest_summary};
use super::input::CompactionInput;
use super::parts::{Summary, SummaryPart};
use super::plan::{CompactionDecision, CompactionRequest, decide};
use super::prune::tokens as tokens_of_text;
use epitome_thread::{Content, Entry, Mask, Message, MessageId, Seq, Thread};
use epitome_tokens::Ruler;

/// Number of bytes of a digest that are shown, in hexadecimal.
const DIGEST_BYTES: usize = 6;

/// The effect of a compaction on each entry. Applied to the same log, the compaction does exactly this, and the bytes
/// are the ones shown here, except for a summary written by a model.
///
/// That summary affects the other parts in three cases: if there is no room for the longest summary, or nothing would be
/// gained with it, the parts are chosen for the actual summary, and in the preview for none. If it is longer than
/// expected (`tokens_after`), other parts are shortened for it, and so they are in the preview for an earlier summary
/// that takes more than a quarter of the room.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// 12 hexadecimal digits over the complete decision: the same decision has the same digest.
    pub digest: String,
    pub decision: CompactionDecision,
    /// The entries of the view, in order.
    pub lines: Vec<PreviewLine>,
    pub tokens_before: u64,
    /// The sizes without a model's summary, and with the longest one.
    pub tokens_after: (u64, u64),
    /// The text of the compaction message without a model's summary; empty if there is no message.
    pub carried: String,
    /// The user's messages and instruction files that the message has no room for. Many are in no view since an earlier
    /// compaction, which quoted them.
    pub left_out: Vec<Seq>,
    /// The number of these, with the user's messages before them.
    pub left_out_count: usize,
}

/// The effect on an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewLine {
    pub entry: Seq,
    pub fate: EntryTreatment,
    pub tokens: u64,
    /// Its size in the view afterwards. Zero for dropped entries, even if the message quotes them.
    pub tokens_after: u64,
}

/// Decides what a compaction of this thread would do and describes it.
pub fn preview(ruler: &Ruler, thread: &Thread, budget: &Budget, request: &CompactionRequest) -> Preview {
    let input = CompactionInput::new(ruler, thread, budget);
    let mut decision = decide(&input, request);
    let (mut made, mut masks) = (None, Vec::new());
    match &decision {
        CompactionDecision::Nothing(_) => {}
        CompactionDecision::Prune(prune) => masks.clone_from(prune),
        CompactionDecision::Summarise(plan) => match fitted(&input, plan, &Summary::default()) {
            Ok(fitted) => {
                masks.clone_from(&fitted.masks);
                made = Some(fitted);
            }
            Err(why) => decision = CompactionDecision::Nothing(why),
        },
    }
    let treatments = treatments(&input, made.as_ref(), &masks);
    let line = |((entry, tokens), fate): ((&Arc<Entry>, &u64), EntryTreatment)| {
        let tokens_after = match fate {
            EntryTreatment::Kept => *tokens,
            EntryTreatment::Masked => {
                let mask = masks.iter().find(|mask| mask.entry == entry.seq);
                mask.map_or(0, |mask| tokens_of_text(&input, &mask.text))
            }
            EntryTreatment::Quoted | EntryTreatment::Shortened | EntryTreatment::Summarised => 0,
        };
        PreviewLine { entry: entry.seq, fate, tokens: *tokens, tokens_after }
    };
    let entries = input.entries().iter().zip(&input.weights);
    let lines: Vec<PreviewLine> = entries.zip(treatments).map(line).collect();
    let stays = lines.iter().map(|line| line.tokens_after).sum();
    let mut shown = Preview {
        digest: String::new(),
        decision,
        lines,
        tokens_before: input.before,
        tokens_after: (stays, stays),
        carried: String::new(),
        left_out: Vec::new(),
        left_out_count: 0,
    };
    if let Some(FittedCompaction { message, left_out_earlier, tokens_after, .. }) = made {
        shown.tokens_after = (tokens_after, tokens_after + longer(&input, &message.content));
        shown.left_out_count =
            message.left_out.len() + left_out_earlier.map_or(0, |earlier| earlier.entries as usize);
        shown.left_out = message.left_out;
        shown.carried = Message { id: MessageId(0), content: message.content, author: None }.text();
    }
    Preview { digest: digest(&shown.decision, &shown.carried, &masks), ..shown }
}

/// The additional size of the message if it had the longest summary instead of its current one.
fn longer(input: &CompactionInput<'_>, content: &[Content]) -> u64 {
    let own = Message { id: MessageId(0), content: content.iter().take(1).cloned().collect(), author: None };
    let intro = input.ruler.text(&SummaryPart::new(Some(" "), None).part(usize::MAX));
    (intro + longest_summary(input)).saturating_sub(input.ruler.message(&own))
}

/// A digest over the complete decision.
fn digest(decision: &CompactionDecision, carried: &str, masks: &[Mask]) -> String {
    let mut digest = Sha256::new();
    let mut take = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    match decision {
        CompactionDecision::Nothing(why) => take(&why.to_string()),
        CompactionDecision::Prune(_) => take("prune"),
        CompactionDecision::Summarise(plan) => {
            take(&format!("{:?} {} {}", plan.trigger, plan.revision, plan.through));
            take(plan.focus.as_deref().unwrap_or_default());
        }
    }
    for mask in masks {
        take(&mask.entry.to_string());
        take(&mask.text);
    }
    take(carried);
    digest.finalize().iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect()
}
