//! Previews of compactions, for the user. Pure.

use sha2::{Digest, Sha256};

use super::budget::Budget;
use super::compose::{EntryTreatment, compacted, fates};
use super::fit::longest_summary;
use super::input::CompactionInput;
use super::parts::{Summary, SummaryPart};
use super::plan::{CompactionDecision, CompactionRequest, decide};
use epitome_thread::{Change, Mask, Message, MessageId, Seq, Thread};
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
    let mut carried = String::new();
    let mut cut = 0;
    let mut masks: Vec<Mask> = Vec::new();
    let (mut quoted, mut shortened) = (Vec::new(), Vec::new());
    let (mut left_out, mut left_out_count) = (Vec::new(), 0);
    let mut tokens_after = None;
    match &decision {
        CompactionDecision::Nothing(_) => {}
        CompactionDecision::Prune(prune) => masks.clone_from(prune),
        CompactionDecision::Summarise(plan) => {
            let id = thread.next_message();
            match compacted(&input, plan, id, Summary::default()) {
                Ok(Change::Compacted {
                    through, summary, masks: made, account, tokens_after: after, ..
                }) => {
                    carried = summary.text();
                    cut = input.cut(through);
                    masks = made;
                    left_out_count = account.left_out_count();
                    left_out = account.left_out;
                    (quoted, shortened) = (account.quoted, account.shortened);
                    tokens_after = Some((after, after + longer(&input, &summary)));
                }
                Ok(_) => {}
                Err(why) => decision = CompactionDecision::Nothing(why),
            }
        }
    }
    let fates = fates(&input, cut, &masks, &quoted, &shortened);
    let line = |(at, fate): (usize, EntryTreatment)| {
        let entry = &input.entries()[at];
        let tokens = input.weights[at];
        let tokens_after = match fate {
            EntryTreatment::Kept => tokens,
            EntryTreatment::Masked => masked_tokens(&input, &masks, entry.seq),
            EntryTreatment::Quoted | EntryTreatment::Shortened | EntryTreatment::Summarised => 0,
        };
        PreviewLine { entry: entry.seq, fate, tokens, tokens_after }
    };
    let lines: Vec<PreviewLine> = fates.into_iter().enumerate().map(line).collect();
    let stays = lines.iter().map(|line| line.tokens_after).sum();
    Preview {
        digest: digest(&decision, &carried, &masks),
        decision,
        lines,
        tokens_before: input.before,
        tokens_after: tokens_after.unwrap_or((stays, stays)),
        carried,
        left_out,
        left_out_count,
    }
}

/// The additional size of the message if it had the longest summary instead of its current one.
fn longer(input: &CompactionInput<'_>, message: &Message) -> u64 {
    let own = message.content.first().map_or(0, |first| {
        let content = vec![first.clone()];
        input.ruler.message(&Message { id: MessageId(0), content, author: None })
    });
    let intro = input.ruler.text(&SummaryPart::New(String::new()).part(usize::MAX));
    (intro + longest_summary(input)).saturating_sub(own)
}

fn masked_tokens(input: &CompactionInput<'_>, masks: &[Mask], entry: Seq) -> u64 {
    let mask = masks.iter().find(|mask| mask.entry == entry);
    mask.map_or(0, |mask| super::prune::tokens(input, &mask.text))
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
