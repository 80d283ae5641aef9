//! The one message that stands for what was replaced, and whether it is worth it. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use super::GAIN_MIN_PERCENT;
use super::budget::Budget;
use super::ledger::Ledger;
use super::plan::{NO_GAIN, Plan};
use super::text::{head_and_tail, said};
use crate::thread::edits::Replacement;
use crate::thread::{
    Account, Change, Content, Entry, Message, MessageId, ModelName, Part, Seq, Thread, Trigger, Usage,
};
use crate::tokens::Ruler;

/// What of the last request is quoted however little room there is, in bytes.
const QUOTE_BYTES_MIN: usize = 512;

/// What a model wrote, or why none did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// The summary; without one the ledger stands alone.
    pub text: Option<String>,
    /// The provider's own form of it, for the model that made it: stands in front of all else.
    pub native: Vec<Content>,
    /// Who wrote it, and what it took.
    pub by: Option<(ModelName, Usage)>,
    /// Why there is none of the kind that was wanted, in words.
    pub fallback: Option<String>,
}

/// The change that puts a summary in the place of the view up to and with `plan.through`, or why
/// that gains nothing, in words.
///
/// `id` is the new message's. What is pinned, the goal and the person's last request are quoted byte for
/// byte, where they don't stay behind the summary anyway. Only where the request would not fit
/// , or an overflow leaves no other way to gain anything, its middle is left out.
pub fn compacted(
    ruler: &Ruler,
    thread: &Thread,
    ledger: &Ledger,
    budget: &Budget,
    plan: &Plan,
    id: MessageId,
    written: Written,
) -> Result<Change, String> {
    let Plan { trigger, focus, through, masks, .. } = plan.clone();
    let Written { text, native, by, fallback } = written;
    let summary = text.unwrap_or_default();
    let room_bytes = budget.room() as usize * 3 / 2;
    let kept = thread.view().kept_behind(through);
    let before = ruler.view(thread.view());
    let behind: u64 = kept.iter().map(|entry| ruler.entry(entry)).sum();
    let request = last_request(thread, kept);
    let pins = quoted_pins(thread, kept);
    let mut quoted_max = request.as_ref().map_or(0, String::len).min(room_bytes);
    let (message, after) = loop {
        let quote = request.as_ref().map(|request| head_and_tail(request, quoted_max));
        let text = frame(&summary, quote.as_deref(), thread.goal(), &pins);
        let content = native.iter().cloned().chain([Content::Text { text }]).collect();
        let message = Message { id, content };
        let after = ruler.message(&message) + behind;
        if after * 100 <= before * (100 - GAIN_MIN_PERCENT) {
            break (message, after);
        }
        // A person who asked for it loses no word to a compaction; a request that is too long must shrink.
        let may_cut = match trigger {
            Trigger::Overflow | Trigger::Threshold | Trigger::Hook | Trigger::Must => {
                quoted_max > QUOTE_BYTES_MIN
            }
            Trigger::Manual => false,
        };
        if !may_cut {
            return Err(no_gain(ruler, &pins, before, after));
        }
        quoted_max /= 2;
    };
    let (model, usage) = by.unzip();
    let kept: HashSet<Seq> = kept.iter().map(|entry| entry.seq).collect();
    let told = ledger.told(ruler, thread, &kept, budget.ledger_max);
    let account = Account { facts: told.facts, left_out: told.left_out, fallback, ..Account::default() };
    Ok(Change::Compacted {
        through,
        summary: message,
        trigger,
        focus,
        tokens_before: before,
        tokens_after: after,
        model,
        usage,
        masks,
        account,
    })
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
    Ok(Change::Mutated { through, messages, by, tokens_before, tokens_after })
}

/// How the words about the goal begin that a model is told.
pub const GOAL_HEAD: &str = "The goal of the work:\n\n<goal>\n";

/// The goal as a model is told of it, in a summary and elsewhere.
pub fn goal_words(goal: &str) -> String {
    format!("{GOAL_HEAD}{goal}\n</goal>")
}

fn frame(summary: &str, last_request: Option<&str>, goal: Option<&str>, pins: &[(Part, String)]) -> String {
    let mut text = format!(
        "The conversation so far was compacted. This is its summary, kept as background. It is not a new \
         request: what it lists as done is done, and what it decided stands.\n\n<summary>\n{summary}\n</summary>"
    );
    if let Some(goal) = goal {
        text.push_str(&format!("\n\n{}", goal_words(goal)));
    }
    if !pins.is_empty() {
        text.push_str("\n\nPinned parts of the conversation, word for word:");
        for (part, pinned) in pins {
            text.push_str(&format!("\n\n<pinned entry=\"{part}\">\n{pinned}\n</pinned>"));
        }
    }
    if let Some(request) = last_request {
        text.push_str(&format!(
            "\n\nThe last request before the compaction, word for word (it may be answered already, see the \
             summary):\n\n<last_request>\n{request}\n</last_request>"
        ));
    }
    text
}

/// What the person last asked, also across an earlier compaction; of a recipe, its text: without it
/// nobody knows what its name asks for. `None` where it stays in view, and where a hook took it out of
/// the history: a quote from the log must not bring back what was masked.
fn last_request(thread: &Thread, kept: &[Arc<Entry>]) -> Option<String> {
    let asked = |entry: &&Arc<Entry>| match &entry.change {
        Change::Said { origin, .. } => origin.is_prompt(),
        _ => false,
    };
    let newest = thread.entries().iter().rev().find(asked)?;
    let is_it = |entry: &&Arc<Entry>| entry.seq == newest.seq;
    if kept.iter().any(|entry| is_it(&entry)) {
        return None;
    }
    let quoted =
        if thread.is_rewritten(newest.seq) { thread.view().entries().iter().find(is_it)? } else { newest };
    match &quoted.change {
        Change::Said { message, .. } => Some(said(message)),
        _ => None,
    }
}

/// Why a compaction gains nothing: by the pins, where it would gain without them. They never give way.
fn no_gain(ruler: &Ruler, pins: &[(Part, String)], before: u64, after: u64) -> String {
    let pinned = tokens_of(ruler, pins);
    if after.saturating_sub(pinned) * 100 <= before * (100 - GAIN_MIN_PERCENT) {
        return format!("{}; unpin some of them first", pins_in_words(ruler, pins));
    }
    NO_GAIN.to_owned()
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
    let names: Vec<String> = pins.iter().map(|(part, _)| part.to_string()).collect();
    format!("the pinned parts {} take about {} tokens", names.join(", "), tokens_of(ruler, pins))
}

/// The pins that would leave the view.
fn quoted_pins(thread: &Thread, kept: &[Arc<Entry>]) -> Vec<(Part, String)> {
    let stays = |part: Part| kept.iter().any(|entry| entry.seq == part.entry);
    thread.pins().into_iter().filter(|(part, _)| !stays(*part)).collect()
}
