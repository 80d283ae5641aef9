//! Cutting old outcomes, in batches, and what must be cut of a part that stays. Pure.
//!
//! Each change of an old entry costs the provider's cache: all behind the first cut is written again instead of
//! read. So outcomes are not cut one by one as they grow old, but many at once, and only where that pays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::budget::Budget;
use super::pace;
use super::scene::{READS_ALL, Scene, quick, tools};
use super::text::said;
use epitome_thread::{
    Change, Content, Entry, Mask, Message, MessageId, Origin, OutcomeContent, Seq, Thread, ToolOutcome,
    Trigger,
};
use epitome_tokens::Ruler;

/// Tokens that a batch frees at least, where nothing but its price asks for it.
const BATCH_TOKENS_MIN: u64 = 30_000;

/// Calls of the model between two changes of the prefix, where nothing but its price asks for the second: no more than
/// three of a hundred calls lose the cache for it.
const CALLS_BETWEEN_MIN: usize = 34;

/// What a token costs that is read from the cache, and one that is written to it, in per cent of one that is
/// neither. The services that have a price for writing take so much, and the others less.
const READ_PERCENT: u64 = 10;
const WRITE_PERCENT: u64 = 125;

/// Model calls that a conversation is expected to go on for. What is cut is read from the cache in none of
/// them, and what stands behind the first cut is written anew in the first.
const CALLS_EXPECTED: u64 = 30;

/// A batch that the budget asks for brings the view so far below the threshold, in per cent of the window:
/// with less, a summary would be due soon after, and the cache would be lost twice.
const BELOW_PERCENT: u64 = 10;

/// A cut that saves fewer tokens is none.
const MASK_TOKENS_MIN: u64 = 32;

/// What stays of an outcome of the current round, in bytes, from try to try.
const OUTCOME_BYTES: [usize; 4] = [64 * 1024, 16 * 1024, 4 * 1024, 1024];

/// What stays of a message of the person's however little room there is, in bytes.
pub(super) const SAID_BYTES_MIN: usize = 512;

/// The tool that reads what is no longer in the view.
pub(super) const RECALL: &str = epitome_recall::NAME;

/// The cuts that are worth a changed prefix by themselves: they free at least 30,000 tokens, what reading those would
/// cost in the calls to come is more than writing what stands behind the first cut once more, and no change of the
/// prefix is fewer than 34 calls ago. `None` where there are none.
pub fn due(ruler: &Ruler, thread: &Thread, budget: &Budget) -> Option<Vec<Mask>> {
    if !has_held(thread) {
        return None;
    }
    let scene = Scene::of(ruler, thread, budget);
    let batch = batch(&scene);
    let freed: u64 = batch.iter().map(|cut| cut.freed).sum();
    let first = batch.iter().map(|cut| cut.at).min()?;
    let written = scene.from(first).saturating_sub(freed);
    let saved = freed.saturating_mul(READ_PERCENT * CALLS_EXPECTED);
    let pays = saved >= written.saturating_mul(WRITE_PERCENT - READ_PERCENT);
    (freed >= BATCH_TOKENS_MIN && pays).then(|| masks(batch))
}

/// Whether the prefix, once it was changed, has held long enough to be changed again for its price alone.
fn has_held(thread: &Thread) -> bool {
    let Some(since) = pace::last_swap(thread) else { return true };
    let newer = thread.entries().iter().rev().take_while(|entry| entry.seq > since);
    newer.filter(|entry| matches!(entry.change, Change::Replied { .. })).nth(CALLS_BETWEEN_MIN - 1).is_some()
}

/// The cuts that make a summary unnecessary where the view is about to be too long: they bring it well below
/// the threshold, and below what fits. `None` where they don't.
pub(super) fn enough(scene: &Scene<'_>) -> Option<Vec<Mask>> {
    let batch = batch(scene);
    let freed: u64 = batch.iter().map(|cut| cut.freed).sum();
    let budget = scene.budget;
    let step = (budget.window.saturating_mul(BELOW_PERCENT) / 100).max(1);
    let used = scene.ruler.in_context(scene.thread).max(budget.frame + scene.before);
    let goal = budget.due_at.min(budget.frame + scene.limit).saturating_sub(step);
    (freed >= step && used.saturating_sub(freed) <= goal).then(|| masks(batch))
}

/// The change that shows entries of the view as these texts from now on.
pub fn pruned(ruler: &Ruler, thread: &Thread, masks: Vec<Mask>, trigger: Trigger) -> Change {
    let ruler = quick(ruler, thread);
    let mut trial = thread.clone();
    let change = |masks, tokens_before, tokens_after| Change::Pruned {
        masks,
        trigger,
        tokens_before,
        tokens_after,
        window: None,
    };
    let seq = thread.next_seq();
    trial.apply(Arc::new(Entry { seq, at: 0, change: change(masks.clone(), 0, 0) }));
    change(masks, ruler.view(thread.view()), ruler.view(trial.view()))
}

/// One entry of the view that is shown shorter.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// Its place in the view.
    pub at: usize,
    pub mask: Mask,
    /// The tokens that it takes less than the entry as it is shown now.
    pub freed: u64,
}

/// All old outcomes that can be cut, in the order of the view, but for what the running turn recalled.
fn batch(scene: &Scene<'_>) -> Vec<Cut> {
    let old = scene.thread.view().newest(scene.budget.prune.keep_recent).min(scene.round());
    let is_held = |at: &usize| scene.recalled.contains(at);
    (0..old).filter(|at| !is_held(at)).filter_map(|at| placeholder(scene, at)).collect()
}

fn masks(batch: Vec<Cut>) -> Vec<Mask> {
    batch.into_iter().map(|cut| cut.mask).collect()
}

/// An outcome as its beginning and how to read the rest; `None` for what is pinned, is no outcome, or would not
/// become shorter.
fn placeholder(scene: &Scene<'_>, at: usize) -> Option<Cut> {
    let outcome = outcome(scene, at)?;
    let text = outcome.model_text();
    let rule = scene.budget.prune;
    let is_long = text.chars().nth(rule.min_chars).is_some();
    let attached = attached(outcome);
    if !is_long && attached == 0 {
        return None;
    }
    let end = if is_long { text.char_indices().nth(rule.keep_chars).map(|(end, _)| end) } else { None };
    let head = &text[..end.unwrap_or(text.len())];
    let entry = scene.entries()[at].seq;
    let what = size(original(scene, at).unwrap_or(outcome), attached);
    let text = format!("{head}\n[… cut to save room: {what}{}]", scene.recall_hint(entry, READS_ALL));
    cut(scene, at, text)
}

/// An outcome by its first and its last bytes.
fn halved(scene: &Scene<'_>, at: usize, bytes_max: usize) -> Option<Cut> {
    let outcome = outcome(scene, at)?;
    let text = outcome.model_text();
    if text.len() <= bytes_max && attached(outcome) == 0 {
        return None;
    }
    let attached = attached(outcome);
    let entry = scene.entries()[at].seq;
    let mut text = scene.head_and_tail(&text, bytes_max, entry);
    if attached > 0 {
        let hint = scene.recall_hint(entry, "tells of them");
        text.push_str(&format!("\n[{} left out{hint}]", files(attached)));
    }
    cut(scene, at, text)
}

/// What of a part that stays must be shown shorter.
#[derive(Clone, Debug, Default)]
pub(super) struct Shorter {
    /// By their places in the view.
    pub cuts: BTreeMap<usize, Cut>,
    /// What the part takes then.
    pub tokens: u64,
}

impl Shorter {
    /// The part from this entry on, as it is.
    pub fn of(scene: &Scene<'_>, from: usize) -> Shorter {
        Shorter { cuts: BTreeMap::new(), tokens: scene.from(from) }
    }

    /// Takes over cuts that were decided on before; what is not in the part any more is forgotten.
    pub fn take(&mut self, scene: &Scene<'_>, from: usize, masks: &[Mask]) {
        if masks.is_empty() {
            return;
        }
        let texts: HashMap<Seq, &str> = masks.iter().map(|mask| (mask.entry, mask.text.as_str())).collect();
        for at in from..scene.entries().len() {
            let may_be_cut = outcome(scene, at).is_some() || spoken(scene, at).is_some();
            let text = texts.get(&scene.entries()[at].seq).filter(|_| may_be_cut);
            if let Some(cut) = text.and_then(|text| cut(scene, at, (*text).to_owned())) {
                self.put(cut);
            }
        }
    }

    fn put(&mut self, cut: Cut) {
        let freed = cut.freed;
        if let Some(known) = self.cuts.insert(cut.at, cut) {
            self.tokens += known.freed;
        }
        self.tokens = self.tokens.saturating_sub(freed);
    }

    /// The cuts as the log has them, in the order of the view.
    pub fn masks(&self) -> Vec<Mask> {
        self.cuts.values().map(|cut| cut.mask.clone()).collect()
    }

    /// Cuts all that can be until the part takes at most so many tokens: outcomes, then those that the running
    /// turn recalled, then what was said. Says whether that is enough.
    pub fn all(&mut self, scene: &Scene<'_>, from: usize, tokens_max: u64) -> bool {
        self.outcomes(scene, from, tokens_max)
            || self.recalled(scene, from, tokens_max)
            || self.messages(scene, from, tokens_max)
    }

    /// Cuts the outcomes in this part of the view to their beginnings, but for what the running turn recalled.
    pub fn old(&mut self, scene: &Scene<'_>, places: Range<usize>) {
        for at in places.filter(|at| !scene.recalled.contains(at)) {
            if let Some(cut) = placeholder(scene, at) {
                self.put(cut);
            }
        }
    }

    /// Cuts outcomes until the part takes at most so many tokens: those that earlier turns recalled first, then
    /// those before the current round, oldest first, and then those of the round itself, by head and tail. What
    /// the running turn recalled stays. Says whether that is enough.
    pub fn outcomes(&mut self, scene: &Scene<'_>, from: usize, tokens_max: u64) -> bool {
        let tools = tools(scene.entries());
        let is_recalled = |at: &usize| {
            outcome(scene, *at).is_some_and(|outcome| tools.get(outcome.call.0.as_str()) == Some(&RECALL))
        };
        let round = scene.round().max(from);
        let is_held = |at: &usize| scene.recalled.contains(at);
        let (recalled, others): (Vec<usize>, Vec<usize>) =
            (from..round).filter(|at| !is_held(at)).partition(is_recalled);
        for at in recalled.into_iter().chain(others) {
            if self.tokens <= tokens_max {
                return true;
            }
            if let Some(cut) = placeholder(scene, at) {
                self.put(cut);
            }
        }
        for bytes_max in OUTCOME_BYTES {
            for at in (round..scene.entries().len()).filter(|at| !is_held(at)) {
                if self.tokens <= tokens_max {
                    return true;
                }
                if let Some(cut) = halved(scene, at, bytes_max) {
                    self.put(cut);
                }
            }
        }
        self.tokens <= tokens_max
    }

    /// Cuts what the running turn recalled by head and tail, oldest first, until the part takes at most so many
    /// tokens. Says whether that is enough.
    pub fn recalled(&mut self, scene: &Scene<'_>, from: usize, tokens_max: u64) -> bool {
        for bytes_max in OUTCOME_BYTES {
            for at in scene.recalled.range(from..) {
                if self.tokens <= tokens_max {
                    return true;
                }
                if let Some(cut) = halved(scene, *at, bytes_max) {
                    self.put(cut);
                }
            }
        }
        self.tokens <= tokens_max
    }

    /// Cuts what was said by head and tail, the longest first, until the part takes at most so many tokens. Says
    /// whether that is enough.
    pub fn messages(&mut self, scene: &Scene<'_>, from: usize, tokens_max: u64) -> bool {
        let mut places: Vec<usize> =
            (from..scene.entries().len()).filter(|at| spoken(scene, *at).is_some()).collect();
        places.sort_by_key(|at| Reverse(scene.weights[*at]));
        for at in places {
            let Some(text) = spoken(scene, at) else { continue };
            let mut bytes_max = text.len().max(SAID_BYTES_MIN);
            while self.tokens > tokens_max && bytes_max > SAID_BYTES_MIN {
                bytes_max = (bytes_max / 2).max(SAID_BYTES_MIN);
                let text = scene.head_and_tail(&text, bytes_max, scene.entries()[at].seq);
                if let Some(cut) = cut(scene, at, text) {
                    self.put(cut);
                }
            }
        }
        self.tokens <= tokens_max
    }
}

/// An entry as another text, where that saves something.
fn cut(scene: &Scene<'_>, at: usize, text: String) -> Option<Cut> {
    let freed = scene.weights[at].checked_sub(tokens(scene, &text));
    let freed = freed.filter(|freed| *freed >= MASK_TOKENS_MIN)?;
    Some(Cut { at, mask: Mask { entry: scene.entries()[at].seq, text }, freed })
}

/// What an entry takes that is this text alone.
pub(super) fn tokens(scene: &Scene<'_>, text: &str) -> u64 {
    let content = vec![Content::Text { text: text.to_owned() }];
    scene.ruler.message(&Message { id: MessageId(0), content })
}

/// The outcome at this place, as it is shown; `None` where it may not be cut.
fn outcome<'a>(scene: &Scene<'a>, at: usize) -> Option<&'a ToolOutcome> {
    let entry = &scene.entries()[at];
    match &entry.change {
        Change::ToolFinished { outcome } if !scene.pinned.contains(&entry.seq) => Some(outcome),
        _ => None,
    }
}

/// What was said at this place, as text; `None` where it may not be cut: a pinned part, instructions, what a
/// hook put in place, whose parts a mask can't name.
fn spoken(scene: &Scene<'_>, at: usize) -> Option<String> {
    let entry = &scene.entries()[at];
    let own = scene.thread.entries().get(usize::try_from(entry.seq.0).ok()?)?;
    match (&entry.change, &own.change) {
        (Change::Said { origin: Origin::Instructions { .. }, .. }, _) => None,
        (Change::Said { message, .. }, Change::Said { .. }) if !scene.pinned.contains(&entry.seq) => {
            Some(said(message))
        }
        _ => None,
    }
}

/// The outcome as the log has it.
fn original<'a>(scene: &Scene<'a>, at: usize) -> Option<&'a ToolOutcome> {
    let seq = scene.entries()[at].seq;
    match &scene.thread.entries().get(usize::try_from(seq.0).ok()?)?.change {
        Change::ToolFinished { outcome } => Some(outcome),
        _ => None,
    }
}

fn attached(outcome: &ToolOutcome) -> usize {
    let is_attached = |content: &&OutcomeContent| {
        matches!(content, OutcomeContent::Image { .. } | OutcomeContent::Document { .. })
    };
    outcome.content.iter().filter(is_attached).count()
}

fn size(outcome: &ToolOutcome, attached: usize) -> String {
    let texts = outcome.content.iter().map(|content| match content {
        OutcomeContent::Text { text } => text.len(),
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => 0,
    });
    let bytes = outcome.whole.as_ref().map_or_else(|| texts.sum(), String::len);
    match attached {
        0 => format!("{bytes} bytes in all"),
        attached => format!("{bytes} bytes of text and {} in all", files(attached)),
    }
}

fn files(count: usize) -> String {
    match count {
        1 => "1 image or document".to_owned(),
        count => format!("{count} images and documents"),
    }
}
