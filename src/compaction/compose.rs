//! The change that a compaction is, and whether it is worth it. Pure.

use super::budget::Budget;
use super::carryover::Carryover;
use super::fit::{Fitted, Unfit, fitted};
use super::material::Material;
use super::parts::{Summary, names};
use super::plan::{NO_GAIN, Plan};
use super::scene::Scene;
use super::unknown::flagged;
use epitome_thread::edits::Replacement;
use epitome_thread::{
    Account, Change, Content, Mask, Message, MessageId, ModelName, Part, Seq, Share, Thread, Usage,
};
use epitome_tokens::Ruler;
use std::collections::HashSet;

/// What a model wrote, or why none did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// The summary; without one the computed tables stand alone.
    pub text: Option<String>,
    /// The provider's own form of it, for the model that made it: stands in front of all else.
    pub native: Vec<Content>,
    /// Who wrote it, and what it took.
    pub by: Option<(ModelName, Usage)>,
    /// Why there is none of the kind that was wanted, in words.
    pub fallback: Option<String>,
}

/// The change that puts a summary in the place of the view up to and with `plan.through`, or why that gains
/// nothing, in words.
///
/// `id` is the new message's. It holds the summary, the tables computed from the log, instructions that were given on
/// the way, the goal, what the user said, what is pinned, and the last request: verbatim, unless they stay in view
/// anyway. Where that would not fit, or not gain a tenth, parts are dropped one after the other, pins never. An
/// automatic compaction may in the end give up the part that was to stay, and one that must be made accepts any gain.
pub fn compacted(
    ruler: &Ruler,
    thread: &Thread,
    budget: &Budget,
    plan: &Plan,
    id: MessageId,
    written: Written,
) -> Result<Change, String> {
    compacted_in(&Scene::of(ruler, thread, budget), plan, id, written)
}

/// As `compacted`, of what was weighed already.
pub fn compacted_in(
    scene: &Scene<'_>,
    plan: &Plan,
    id: MessageId,
    written: Written,
) -> Result<Change, String> {
    let Written { text, native, by, fallback } = written;
    let text = text.filter(|text| !text.trim().is_empty());
    // Only a model makes names up.
    let text = text.map(|text| if by.is_some() { flagged(text, scene.thread) } else { text });
    let summary = |material: &Material| match (&text, &material.earlier) {
        (Some(text), _) => Summary::New(text.clone()),
        // A summary that can't be had now must not lose what an earlier one held.
        (None, Some(earlier)) => Summary::Earlier(earlier.clone()),
        (None, None) => Summary::None,
    };
    let made = fitted(scene, plan, &native, summary).map_err(|unfit| why_not(scene, &unfit))?;
    let account = account(scene, &made, fallback);
    let Fitted { content: parts, through, masks, tokens_after, .. } = made;
    let (model, usage) = by.unzip();
    Ok(Change::Compacted {
        through,
        summary: Message { id, content: parts.content },
        trigger: plan.trigger,
        focus: plan.focus.clone(),
        tokens_before: scene.before,
        tokens_after,
        window: None,
        model,
        usage,
        masks,
        account,
    })
}

/// The tables that a compaction by this plan carries over, for the model that writes its summary: what they say it need
/// not repeat. Empty where there is nothing to tell.
pub fn tables(ruler: &Ruler, thread: &Thread, budget: &Budget, plan: &Plan) -> String {
    let scene = Scene::of(ruler, thread, budget);
    let kept = scene.entries()[scene.cut(plan.through)..].iter().map(|entry| entry.seq).collect();
    Carryover::of(&scene, &kept).within(&scene.ruler, budget.carried_max).text
}

/// What becomes of an entry of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays as it is.
    Kept,
    /// It stays, and is shown shorter.
    Masked,
    /// It goes, and the one message has it word for word.
    Quoted,
    /// It goes, and the summary stands for it.
    Summarised,
}

/// The fate of each entry of the view, where those from `cut` on stay.
pub(super) fn fates(scene: &Scene<'_>, cut: usize, masks: &[Mask], quoted: &[Seq]) -> Vec<Fate> {
    let masked: HashSet<Seq> = masks.iter().map(|mask| mask.entry).collect();
    let quoted: HashSet<Seq> = quoted.iter().copied().collect();
    let fate = |(at, entry): (usize, &std::sync::Arc<epitome_thread::Entry>)| match at < cut {
        true if quoted.contains(&entry.seq) => Fate::Quoted,
        true => Fate::Summarised,
        false if masked.contains(&entry.seq) => Fate::Masked,
        false => Fate::Kept,
    };
    scene.entries().iter().enumerate().map(fate).collect()
}

fn account(scene: &Scene<'_>, made: &Fitted, fallback: Option<String>) -> Account {
    let parts = &made.content;
    let mut left_out = parts.left_out.clone();
    left_out.sort_unstable();
    left_out.dedup();
    let mut account = Account {
        quoted: parts.quoted.clone(),
        facts: made.carried.lines,
        left_out,
        fallback,
        ..Account::default()
    };
    let fates = fates(scene, made.cut, &made.masks, &parts.quoted);
    for (fate, tokens) in fates.into_iter().zip(&scene.weights) {
        let share: &mut Share = match fate {
            Fate::Kept => &mut account.kept,
            Fate::Masked => &mut account.masked,
            Fate::Summarised => &mut account.summarised,
            // Named one by one.
            Fate::Quoted => continue,
        };
        share.entries += 1;
        share.tokens += tokens;
    }
    account
}

/// Why there is no compaction: by the pins, where there would be one without them. They never give way.
fn why_not(scene: &Scene<'_>, unfit: &Unfit) -> String {
    let Unfit { tokens_after, pins, fits } = unfit;
    let pinned = tokens_of(&scene.ruler, pins);
    let without = tokens_after.saturating_sub(pinned);
    let by_pins = match fits {
        true => without * 100 <= scene.before * (100 - super::GAIN_MIN_PERCENT),
        false => without <= scene.limit,
    };
    if pinned > 0 && by_pins {
        return format!("{}; unpin some of them first", pins_in_words(&scene.ruler, pins));
    }
    if !fits {
        return format!(
            "the shortest that can be made of it takes about {tokens_after} tokens, and the model's window has room \
             for {} beside the system text and the reply; choose a model with a larger window",
            scene.limit
        );
    }
    NO_GAIN.to_owned()
}

/// The change that puts a hook's history in its place, or why it is too large: the view would take more
/// than `tokens_max`.
pub fn mutated(
    ruler: &Ruler,
    thread: &Thread,
    replacement: Replacement,
    by: String,
    tokens_max: u64,
) -> Result<Change, String> {
    let Replacement { through, messages } = replacement;
    let kept = thread.view().kept_behind(through);
    let behind: u64 = kept.iter().map(|entry| ruler.entry(entry)).sum();
    let put: u64 = messages.iter().map(|spoken| ruler.message(&spoken.message)).sum();
    let tokens_after = behind + put;
    if tokens_after > tokens_max {
        return Err(format!(
            "the new history takes about {tokens_after} tokens, and there is room for {tokens_max}"
        ));
    }
    let tokens_before = ruler.view(thread.view());
    Ok(Change::Mutated { through, messages, by, tokens_before, tokens_after, window: None })
}

/// Why pins may not grow to what they are in `thread`: they would take more than `tokens_max`, and they
/// stay in every view.
pub fn pins_too_large(ruler: &Ruler, thread: &Thread, tokens_max: u64) -> Option<String> {
    let pins = thread.pins();
    let too_large = tokens_of(ruler, &pins) > tokens_max;
    too_large
        .then(|| format!("{}, and pins may take {tokens_max} of the window", pins_in_words(ruler, &pins)))
}

fn tokens_of(ruler: &Ruler, pins: &[(Part, String)]) -> u64 {
    pins.iter().map(|(_, text)| ruler.text(text)).sum()
}

fn pins_in_words(ruler: &Ruler, pins: &[(Part, String)]) -> String {
    format!("the pinned parts {} take about {} tokens", names(pins), tokens_of(ruler, pins))
}
