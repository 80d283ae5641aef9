//! What a compaction would do, for people. Pure.

use sha2::{Digest, Sha256};

use super::budget::Budget;
use super::compose::{Fate, Written, compacted_in, fates};
use super::fit::longest_summary;
use super::parts::Summary;
use super::plan::{Decision, Wish, decided};
use super::scene::Scene;
use epitome_thread::{Change, Mask, Message, MessageId, Seq, Thread};
use epitome_tokens::Ruler;

/// Bytes of a digest that are shown, in hexadecimal.
const DIGEST_BYTES: usize = 6;

/// What would be done, and to which entries. Applied to the same log it is done just so, and the bytes are
/// those that are shown here, but for the summary that a model writes.
///
/// There are two cases in which that summary moves the rest. Where there is no room for the longest one, or nothing
/// would be gained with it, the rest is made for the one that was written, and here for none. And one that is longer
/// than was expected (`tokens_after`) has others give way to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// 12 digits over all that is decided: the same decision has the same digest.
    pub digest: String,
    pub decision: Decision,
    /// Each entry of the view, in its order.
    pub lines: Vec<Line>,
    pub tokens_before: u64,
    /// Without a model's summary, and with the longest one.
    pub tokens_after: (u64, u64),
    /// The text of the one message as it would be without a model's summary; empty where there is none.
    pub carried: String,
}

/// What would become of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub entry: Seq,
    pub fate: Fate,
    pub tokens: u64,
    /// What it takes in the view afterwards; of what goes nothing, also where the one message quotes it.
    pub tokens_after: u64,
}

/// Decides what a compaction of this thread would do, and shows it.
pub fn preview(ruler: &Ruler, thread: &Thread, budget: &Budget, wish: &Wish) -> Preview {
    let scene = Scene::of(ruler, thread, budget);
    let mut decision = decided(&scene, wish);
    let mut carried = String::new();
    let mut cut = 0;
    let mut masks: Vec<Mask> = Vec::new();
    let mut quoted = Vec::new();
    let mut tokens_after = None;
    match &decision {
        Decision::Nothing(_) => {}
        Decision::Prune(prune) => masks.clone_from(prune),
        Decision::Summarise(plan) => {
            let id = thread.next_message();
            match compacted_in(&scene, plan, id, Written::default()) {
                Ok(Change::Compacted {
                    through, summary, masks: made, account, tokens_after: after, ..
                }) => {
                    carried = summary.text();
                    cut = scene.cut(through);
                    masks = made;
                    quoted = account.quoted;
                    tokens_after = Some((after, after + longer(&scene, &summary)));
                }
                Ok(_) => {}
                Err(why) => decision = Decision::Nothing(why),
            }
        }
    }
    let fates = fates(&scene, cut, &masks, &quoted);
    let line = |(at, fate): (usize, Fate)| {
        let entry = &scene.entries()[at];
        let tokens = scene.weights[at];
        let tokens_after = match fate {
            Fate::Kept => tokens,
            Fate::Masked => masked_tokens(&scene, &masks, entry.seq),
            Fate::Quoted | Fate::Summarised => 0,
        };
        Line { entry: entry.seq, fate, tokens, tokens_after }
    };
    let lines: Vec<Line> = fates.into_iter().enumerate().map(line).collect();
    let stays = lines.iter().map(|line| line.tokens_after).sum();
    Preview {
        digest: digest(&decision, &carried, &masks),
        decision,
        lines,
        tokens_before: scene.before,
        tokens_after: tokens_after.unwrap_or((stays, stays)),
        carried,
    }
}

/// What the message takes more with the longest summary than with what it has.
fn longer(scene: &Scene<'_>, message: &Message) -> u64 {
    let own = message.content.first().map_or(0, |first| {
        let content = vec![first.clone()];
        scene.ruler.message(&Message { id: MessageId(0), content })
    });
    let intro = scene.ruler.text(&Summary::New(String::new()).part(usize::MAX));
    (intro + longest_summary(scene)).saturating_sub(own)
}

fn masked_tokens(scene: &Scene<'_>, masks: &[Mask], entry: Seq) -> u64 {
    let mask = masks.iter().find(|mask| mask.entry == entry);
    mask.map_or(0, |mask| super::prune::tokens(scene, &mask.text))
}

/// A digest over everything that is decided.
fn digest(decision: &Decision, carried: &str, masks: &[Mask]) -> String {
    let mut digest = Sha256::new();
    let mut take = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    match decision {
        Decision::Nothing(why) => take(why),
        Decision::Prune(_) => take("prune"),
        Decision::Summarise(plan) => {
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
