//! The invariants that are checked after each step. Each check takes its data as arguments, so that `proofs`
//! can pass invalid data.

use std::collections::BTreeMap;
use std::sync::Arc;

use epitome::config::WireFormat;
use epitome::provider::wire::encoding::Encoded;
use epitome::thread::{CallId, Change, Content, Entry, Message, PartId, Seq, Thread, View, ViewPart};

/// How often each check had something to check.
pub type Counts = BTreeMap<&'static str, u64>;

pub fn count(counts: &mut Counts, what: &'static str, times: u64) {
    *counts.entry(what).or_default() += times;
}

/// An incrementally updated view equals a fold of the entire log.
pub fn same_view(kept: &View, cold: &View) -> Result<(), String> {
    if kept.revision() != cold.revision() {
        return Err(format!("revision {} is kept, {} is folded", kept.revision(), cold.revision()));
    }
    let numbers = |view: &View| -> Vec<Seq> { view.entries().iter().map(|entry| entry.seq).collect() };
    if numbers(kept) != numbers(cold) {
        return Err(format!("{:?} is kept, {:?} is folded", numbers(kept), numbers(cold)));
    }
    for (kept, cold) in kept.entries().iter().zip(cold.entries()) {
        // Most entries are shared with the log.
        if Arc::ptr_eq(kept, cold) {
            continue;
        }
        let (kept, cold) = (line(kept), line(cold));
        if kept != cold {
            return Err(format!("{kept} is kept, {cold} is folded"));
        }
    }
    let parts = |view: &View| -> Vec<PartId> { view.pieces().into_iter().map(|(part, _)| part).collect() };
    if parts(kept) != parts(cold) {
        return Err(format!("{:?} are kept, {:?} are folded", parts(kept), parts(cold)));
    }
    Ok(())
}

/// An entry in journal format.
pub fn line(entry: &Entry) -> String {
    serde_json::to_string(entry).expect("an entry can be written")
}

/// An incrementally encoded request equals one that is encoded from scratch.
pub fn same_request(kept: &Encoded, cold: &Encoded) -> Result<(), String> {
    if kept.prefix != cold.prefix {
        return Err(format!("the prefix {} is kept, {} is written again", kept.prefix, cold.prefix));
    }
    if kept.bytes() != cold.bytes() {
        let text = |encoded: &Encoded| String::from_utf8_lossy(&encoded.bytes()).into_owned();
        return Err(format!("kept: {}\nanew: {}", text(kept), text(cold)));
    }
    Ok(())
}

/// A request's list of messages as it is sent, from the first message to the last, without cache marks.
pub fn messages(wire: WireFormat, text: &str) -> &str {
    let open = format!("\"{}\":[", super::service::list_of(wire));
    // Texts cannot contain it, because their quotes are escaped.
    let at = text.find(&open).expect("a request has a list of messages") + open.len();
    &text[at..text.len() - "]}".len()]
}

/// A later request begins with the messages of an earlier one.
pub fn continues(before: &str, now: &str) -> Result<(), String> {
    if now.starts_with(before) && matches!(now.as_bytes().get(before.len()), None | Some(b',')) {
        return Ok(());
    }
    Err(format!("what was sent has changed:\nbefore: {before}\nnow: {now}"))
}

/// Each outcome in a view follows its call, and each call has an outcome or is open.
pub fn paired(view: &View, open: &[CallId]) -> Result<u64, String> {
    let mut waiting: Vec<&CallId> = Vec::new();
    let mut pairs = 0;
    let unanswered = |waiting: &[&CallId]| match waiting.iter().find(|call| !open.contains(call)) {
        Some(call) => Err(format!("the call {call} has no outcome")),
        None => Ok(()),
    };
    for entry in view.entries() {
        match &entry.change {
            Change::ToolFinished { outcome } => {
                // The calls that it skips must be open.
                let Some(at) = waiting.iter().position(|call| **call == outcome.call) else {
                    return Err(format!("{} answers no call before it: {}", entry.seq, outcome.call));
                };
                unanswered(&waiting[..at])?;
                waiting.drain(..=at);
                pairs += 1;
            }
            Change::Replied { message, .. } => {
                unanswered(&waiting)?;
                waiting = message.calls().map(|call| &call.id).collect();
            }
            _ => {
                unanswered(&waiting)?;
                waiting.clear();
            }
        }
    }
    unanswered(&waiting)?;
    Ok(pairs)
}

/// Everything pinned is in the view, unchanged or quoted. Returns the number of pins checked, and how many of
/// them are quoted.
pub fn pins(thread: &Thread) -> Result<(u64, u64), String> {
    let (mut looked, mut quoted) = (0, 0);
    for (part, text) in thread.pins() {
        if is_beyond_pins(thread, part) {
            continue;
        }
        looked += 1;
        let shown = thread.view().piece(part).map(|piece| piece.pin_text());
        if shown.as_ref() != Some(&text) {
            quoted += 1;
            is_quoted(thread.view(), &text).map_err(|why| format!("the pinned {part} {why}"))?;
        }
    }
    Ok((looked, quoted))
}

/// Pins survive compactions. A history made by a hook is exempt until the next compaction, and pins on a
/// layer are undone with the layer.
fn is_beyond_pins(thread: &Thread, part: PartId) -> bool {
    let holds = |entry: &&Arc<Entry>| !thread.is_undone(entry.seq);
    let newest = thread
        .entries()
        .iter()
        .rev()
        .filter(holds)
        .find(|entry| matches!(entry.change, Change::Compacted { .. } | Change::Mutated { .. }));
    newest.is_some_and(|entry| matches!(entry.change, Change::Mutated { .. })) || thread.is_undone(part.entry)
}

/// The user's newest prompt is in the view, unchanged or quoted; the middle of a long one may be cut. If a
/// hook rewrote it, or the summary that quoted it, it is not restored.
pub fn last_request(thread: &Thread) -> Result<Option<KeptRequest>, String> {
    let newest = thread.entries().iter().rev().find_map(|entry| match &entry.change {
        // Prompts that the user rewound are exempt.
        Change::Said { message, origin } if origin.is_prompt() && !thread.is_taken_back(entry.seq) => {
            Some((entry.seq, message))
        }
        _ => None,
    });
    let Some((seq, message)) = newest else { return Ok(None) };
    let is_rewritten = |entry: &Arc<Entry>| thread.is_rewritten(entry.seq);
    if thread.is_rewritten(seq) || thread.last_compaction().is_some_and(is_rewritten) {
        return Ok(None);
    }
    match thread.view().piece(PartId { entry: seq, part: None }) {
        Some(ViewPart::Said(shown, _)) if shown == message => return Ok(Some(KeptRequest::AsItIs)),
        // Shortened in place.
        Some(ViewPart::Said(shown, _)) if shows_head(&shown.text(), &message.text()) => {
            return Ok(Some(KeptRequest::InPart));
        }
        Some(_) | None => {}
    }
    let texts = texts(message);
    let Some(missing) = texts.iter().find(|text| is_quoted(thread.view(), text).is_err()) else {
        return Ok(Some(KeptRequest::Quoted));
    };
    let is_there = |summary: String| shows_head(&summary, missing);
    match summaries(thread.view()).any(is_there) {
        true => Ok(Some(KeptRequest::InPart)),
        false => Err(format!("the last request {seq} is gone: {missing}")),
    }
}

/// Whether the beginning of a text that may be cut is shown.
fn shows_head(shown: &str, text: &str) -> bool {
    let head = &text[..text.floor_char_boundary(text.len().min(HEAD_BYTES))];
    text.len() > QUOTED_BYTES_MIN && shown.contains(head)
}

/// How a view contains something that must not be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptRequest {
    AsItIs,
    Quoted,
    InPart,
}

/// A request of up to this many bytes is quoted in full, however little room there is.
const QUOTED_BYTES_MIN: usize = 256;

/// The number of bytes of a longer request that are searched for.
const HEAD_BYTES: usize = 60;

fn texts(message: &Message) -> Vec<&str> {
    let text = |content: &'_ Content| matches!(content, Content::Text { .. });
    let texts = message.content.iter().filter(|content| text(content));
    let texts = texts.filter_map(Content::as_text);
    texts.collect()
}

fn is_quoted(view: &View, text: &str) -> Result<(), String> {
    match summaries(view).any(|summary| summary.contains(text)) {
        true => Ok(()),
        false => Err(format!("is neither shown nor quoted: {text}")),
    }
}

fn summaries(view: &View) -> impl Iterator<Item = String> {
    view.entries().iter().filter_map(|entry| match &entry.change {
        Change::Compacted { summary, .. } => Some(summary.text()),
        _ => None,
    })
}
