//! Pruning: cutting old tool outcomes in batches, and shortening kept entries. Pure.
//!
//! Each change of an old entry costs provider cache: everything after the first cut is written again instead of read.
//! So outcomes are not cut one by one as they age, but many at a time, and only if that pays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::budget::Budget;
use super::calls::{RECALL, tools};
use super::input::{CompactionInput, READS_ALL, quick};
use super::text::said;
use epitome_thread::{
    Change, Content, Mask, Message, MessageId, Origin, OutcomeContent, Seq, Thread, ToolOutcome, Trigger,
};
use epitome_tokens::Ruler;

/// Minimum number of tokens that a batch must free if it is made only to reduce cost. On 65 recorded sessions at Anthropic's
/// prices, 114 such batches save 23 % of what the conversations cost, and 27 % where writing to the cache is free. With 10,000
/// tokens, 353 batches would save 30 %, but leave less to read; with 60,000, it would be 10 % (`benches/keep/prune-cost.py`).
const BATCH_TOKENS_MIN: u64 = 30_000;

/// How far below the threshold a batch must bring the view when it is about to overflow, in percent of the window. On the same
/// sessions in a window of 64,000 tokens, 101 summaries were due with 10, 143 with 20, and 287 without such batches; costs
/// differ by less than 2 % between 2 and 30.
const BELOW_PERCENT: u64 = 10;

/// The size in bytes to which an outcome of the current round is cut, attempt by attempt.
const OUTCOME_BYTES: [usize; 4] = [64 * 1024, 16 * 1024, 4 * 1024, 1024];

/// The size in bytes below which a user's message is never cut.
pub(super) const SAID_BYTES_MIN: usize = 512;

/// The cuts that justify a changed prefix by their cost alone, because they free so much. `None` if there are no such cuts.
pub fn due(ruler: &Ruler, thread: &Thread, budget: &Budget) -> Option<Vec<Mask>> {
    let (masks, freed) = batch(&CompactionInput::new(ruler, thread, budget));
    (freed >= BATCH_TOKENS_MIN).then_some(masks)
}

/// The cuts that make a summary unnecessary when the view is about to become too long: they bring it well below the
/// threshold and below the limit. `None` if they are not enough.
pub(super) fn enough(input: &CompactionInput<'_>) -> Option<Vec<Mask>> {
    let (masks, freed) = batch(input);
    let budget = input.budget;
    let step = (budget.window.saturating_mul(BELOW_PERCENT) / 100).max(1);
    let used = input.ruler.in_context(input.thread).max(budget.frame + input.before);
    let goal = budget.due_at.min(budget.frame + input.limit).saturating_sub(step);
    (freed >= step && used.saturating_sub(freed) <= goal).then_some(masks)
}

/// The change that shows entries of the view as these texts from now on.
pub fn pruned(ruler: &Ruler, thread: &Thread, masks: Vec<Mask>, trigger: Trigger) -> Change {
    let ruler = quick(ruler, thread);
    let change = |masks, tokens_before, tokens_after| Change::Pruned {
        masks,
        trigger,
        tokens_before,
        tokens_after,
        window: None,
    };
    let after = thread.with(change(masks.clone(), 0, 0));
    change(masks, ruler.view(thread.view()), ruler.view(after.view()))
}

/// An entry of the view that is shown shortened.
#[derive(Clone, Debug)]
pub(super) struct PruneCut {
    /// Its index in the view.
    pub at: usize,
    pub mask: Mask,
    /// Tokens saved compared with the entry as it is shown now.
    pub freed: u64,
}

/// The cuts of all old outcomes that can be cut, in the order of the view, except those that the running turn recalled, and
/// how many tokens they save.
fn batch(input: &CompactionInput<'_>) -> (Vec<Mask>, u64) {
    let old = input.thread.view().newest(input.budget.prune.keep_recent).min(input.round());
    let is_kept = |at: &usize| input.recalled.contains(at);
    let cuts = (0..old).filter(|at| !is_kept(at)).filter_map(|at| placeholder(input, at));
    let (masks, freed): (Vec<Mask>, Vec<u64>) = cuts.map(|cut| (cut.mask, cut.freed)).unzip();
    (masks, freed.into_iter().sum())
}

/// Cuts an outcome to its beginning and a hint how to read the rest; `None` if it is pinned, is not an outcome, or
/// would not become shorter.
fn placeholder(input: &CompactionInput<'_>, at: usize) -> Option<PruneCut> {
    let outcome = outcome(input, at)?;
    let text = outcome.model_text();
    let rule = input.budget.prune;
    let is_long = text.chars().nth(rule.min_chars).is_some();
    let attached = attached(outcome);
    if !is_long && attached == 0 {
        return None;
    }
    let end = if is_long { text.char_indices().nth(rule.keep_chars).map(|(end, _)| end) } else { None };
    let head = &text[..end.unwrap_or(text.len())];
    let entry = input.entries()[at].seq;
    let what = size(original(input, at).unwrap_or(outcome), attached);
    let text = format!("{head}\n[… cut to save room: {what}{}]", input.recall_hint(entry, READS_ALL));
    cut(input, at, text)
}

/// Cuts an outcome to its first and last bytes.
fn halved(input: &CompactionInput<'_>, at: usize, bytes_max: usize) -> Option<PruneCut> {
    let outcome = outcome(input, at)?;
    let text = outcome.model_text();
    if text.len() <= bytes_max && attached(outcome) == 0 {
        return None;
    }
    let attached = attached(outcome);
    let entry = input.entries()[at].seq;
    let mut text = input.head_and_tail(&text, bytes_max, entry);
    if attached > 0 {
        let hint = input.recall_hint(entry, "lists them");
        text.push_str(&format!("\n[{} left out{hint}]", files(attached)));
    }
    cut(input, at, text)
}

/// The cuts to be made in the kept part of the view.
#[derive(Clone, Debug, Default)]
pub(super) struct PruneCuts {
    /// The cuts by index in the view.
    pub cuts: BTreeMap<usize, PruneCut>,
    /// Tokens of the part with these cuts.
    pub tokens: u64,
}

impl PruneCuts {
    /// The part from this index on, without cuts.
    pub fn new(input: &CompactionInput<'_>, from: usize) -> PruneCuts {
        PruneCuts { cuts: BTreeMap::new(), tokens: input.from(from) }
    }

    /// Adopts cuts that were decided earlier, ignoring those outside of the part.
    pub fn take(&mut self, input: &CompactionInput<'_>, from: usize, masks: &[Mask]) {
        if masks.is_empty() {
            return;
        }
        let texts: HashMap<Seq, &str> = masks.iter().map(|mask| (mask.entry, mask.text.as_str())).collect();
        for at in from..input.entries().len() {
            let may_be_cut = outcome(input, at).is_some() || spoken(input, at).is_some();
            let text = texts.get(&input.entries()[at].seq).filter(|_| may_be_cut);
            if let Some(cut) = text.and_then(|text| cut(input, at, (*text).to_owned())) {
                self.put(cut);
            }
        }
    }

    fn put(&mut self, cut: PruneCut) {
        let freed = cut.freed;
        if let Some(known) = self.cuts.insert(cut.at, cut) {
            self.tokens += known.freed;
        }
        self.tokens = self.tokens.saturating_sub(freed);
    }

    /// The cuts in the form stored in the log, in the order of the view.
    pub fn masks(&self) -> Vec<Mask> {
        self.cuts.values().map(|cut| cut.mask.clone()).collect()
    }

    /// Cuts everything possible until the part takes at most `tokens_max`: outcomes, then recalled outcomes
    /// of the running turn, then messages. Returns whether that is enough.
    pub fn all(&mut self, input: &CompactionInput<'_>, from: usize, tokens_max: u64) -> bool {
        self.outcomes(input, from, tokens_max)
            || self.recalled(input, from, tokens_max)
            || self.messages(input, from, tokens_max)
    }

    /// Cuts the outcomes at these indices to their beginnings, except those that the running turn recalled.
    pub fn old(&mut self, input: &CompactionInput<'_>, places: Range<usize>) {
        let old = places.filter(|at| !input.recalled.contains(at)).map(|at| placeholder(input, at));
        self.make(old, 0);
    }

    /// Cuts outcomes until the part takes at most `tokens_max`: first those that earlier turns recalled, then
    /// those before the current round, oldest first, and finally those of the round, to their head and tail.
    /// Outcomes that the running turn recalled are not cut. Returns whether that is enough.
    pub fn outcomes(&mut self, input: &CompactionInput<'_>, from: usize, tokens_max: u64) -> bool {
        let tools = tools(input.entries());
        let is_recalled = |at: &usize| {
            outcome(input, *at).is_some_and(|outcome| tools.get(outcome.call.0.as_str()) == Some(&RECALL))
        };
        let round = input.round().max(from);
        let is_kept = |at: &usize| input.recalled.contains(at);
        let (recalled, others): (Vec<usize>, Vec<usize>) =
            (from..round).filter(|at| !is_kept(at)).partition(is_recalled);
        let old = recalled.into_iter().chain(others).map(|at| placeholder(input, at));
        let of_round: Vec<usize> = (round..input.entries().len()).filter(|at| !is_kept(at)).collect();
        self.make(old.chain(all_halved(input, &of_round)), tokens_max)
    }

    /// Cuts the outcomes that the running turn recalled to their head and tail, oldest first, until the part
    /// takes at most `tokens_max`. Returns whether that is enough.
    pub fn recalled(&mut self, input: &CompactionInput<'_>, from: usize, tokens_max: u64) -> bool {
        let recalled: Vec<usize> = input.recalled.range(from..).copied().collect();
        self.make(all_halved(input, &recalled), tokens_max)
    }

    /// Cuts messages and the user's answers to their head and tail until the part takes at most `tokens_max`: first what
    /// hooks added, then what the user wrote, each longest first. Returns whether that is enough.
    pub fn messages(&mut self, input: &CompactionInput<'_>, from: usize, tokens_max: u64) -> bool {
        let mut places: Vec<usize> =
            (from..input.entries().len()).filter(|at| spoken(input, *at).is_some()).collect();
        let is_by_user = |at: usize| match &input.entries()[at].change {
            Change::Said { origin, .. } => origin.is_prompt(),
            _ => true,
        };
        places.sort_by_key(|at| (is_by_user(*at), Reverse(input.weights[*at])));
        let texts = places.into_iter().filter_map(|at| Some((at, spoken(input, at)?)));
        let cuts = texts.flat_map(|(at, text)| {
            let half = |bytes: &usize| (*bytes > SAID_BYTES_MIN).then(|| (bytes / 2).max(SAID_BYTES_MIN));
            let sizes = std::iter::successors(Some(text.len()), half).skip(1);
            sizes.map(move |bytes_max| {
                cut(input, at, input.head_and_tail(&text, bytes_max, input.entries()[at].seq))
            })
        });
        self.make(cuts, tokens_max)
    }

    /// Makes these cuts, as far as they are possible, until the part takes at most `tokens_max`. Returns whether that is
    /// enough.
    fn make(&mut self, cuts: impl Iterator<Item = Option<PruneCut>>, tokens_max: u64) -> bool {
        for cut in cuts {
            if self.tokens <= tokens_max {
                break;
            }
            if let Some(cut) = cut {
                self.put(cut);
            }
        }
        self.tokens <= tokens_max
    }
}

/// Cuts of the outcomes at these indices to their head and tail: all to the largest size first.
fn all_halved(input: &CompactionInput<'_>, places: &[usize]) -> impl Iterator<Item = Option<PruneCut>> {
    OUTCOME_BYTES
        .into_iter()
        .flat_map(move |bytes_max| places.iter().map(move |at| halved(input, *at, bytes_max)))
}

/// Replaces an entry with another text, if that saves anything.
fn cut(input: &CompactionInput<'_>, at: usize, text: String) -> Option<PruneCut> {
    let freed = input.weights[at].checked_sub(tokens(input, &text));
    let freed = freed.filter(|freed| *freed > 0)?;
    Some(PruneCut { at, mask: Mask { entry: input.entries()[at].seq, text }, freed })
}

/// The size in tokens of an entry that consists only of this text.
pub(super) fn tokens(input: &CompactionInput<'_>, text: &str) -> u64 {
    let content = vec![Content::Text { text: text.to_owned() }];
    input.ruler.message(&Message { id: MessageId(0), content, author: None })
}

/// The outcome at this index, as it is shown; `None` if it may not be cut, or only like a message of the user.
fn outcome<'a>(input: &CompactionInput<'a>, at: usize) -> Option<&'a ToolOutcome> {
    let entry = &input.entries()[at];
    let is_protected = input.pinned.contains(&entry.seq) || input.answers.contains(&entry.seq);
    entry.change.outcome().filter(|_| !is_protected)
}

/// The message or answer of the user at this index, as text; `None` if it may not be cut: pinned entries, instructions,
/// and messages of a hook's history, which a mask cannot address.
fn spoken(input: &CompactionInput<'_>, at: usize) -> Option<String> {
    let entry = &input.entries()[at];
    let own = input.thread.entry(entry.seq)?;
    match (&entry.change, &own.change) {
        (Change::Said { origin: Origin::Instructions { .. }, .. }, _) => None,
        (Change::Said { message, .. }, Change::Said { .. }) if !input.pinned.contains(&entry.seq) => {
            Some(said(&message.content))
        }
        (Change::ToolFinished { outcome }, _)
            if input.answers.contains(&entry.seq) && !input.pinned.contains(&entry.seq) =>
        {
            Some(outcome.model_text())
        }
        _ => None,
    }
}

/// The outcome as it was logged.
fn original<'a>(input: &CompactionInput<'a>, at: usize) -> Option<&'a ToolOutcome> {
    input.thread.entry(input.entries()[at].seq)?.change.outcome()
}

fn attached(outcome: &ToolOutcome) -> usize {
    outcome.content.iter().filter(|content| content.as_text().is_none()).count()
}

fn size(outcome: &ToolOutcome, attached: usize) -> String {
    let texts = outcome.content.iter().filter_map(OutcomeContent::as_text).map(str::len);
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
