//! Replacing old entries of a view by a summary: the words around it, and whether it is worth taking.
//!
//! Pure. Who calls the model and commits is the session.

pub mod pace;

use std::sync::Arc;

use crate::thread::edits::Replacement;
use crate::thread::{
    Change, Content, Entry, Message, MessageId, ModelName, Part, Seq, Thread, Trigger, Usage, View,
};
use crate::tokens::Ruler;

/// A compaction that does not shrink the view by a tenth is none: it would soon be needed again.
const GAIN_MIN_PERCENT: u64 = 10;

/// Why a conversation is left as it is.
pub const NO_GAIN: &str = "a summary would not be shorter than what it replaces";

/// A view below this many tokens holds nothing that a summary could shorten.
const VIEW_TOKENS_MIN: u64 = 200;

/// What of the last request is quoted however little room there is, in bytes.
const QUOTE_BYTES_MIN: usize = 512;

/// What of the newest part of the view stays as it is behind a summary. A round stays whole or goes whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Keep {
    #[default]
    Nothing,
    /// The newest so many messages, and with the first of them its whole round.
    Messages(usize),
    /// As much as fits this share of the window, from 0 to 1.
    Ratio(f64),
}

/// How a compaction is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub trigger: Trigger,
    /// What the person wants kept above all.
    pub focus: Option<String>,
    /// What the summary replaces, as `through` gives it.
    pub through: Seq,
    /// Bytes for which there is room beside the summary and what stays behind it.
    pub room_bytes: usize,
}

/// The newest entry that a compaction replaces which keeps so much. `window` is the model's, in tokens.
/// What an older layer has put in front of the view is never kept.
pub fn through(ruler: &Ruler, thread: &Thread, keep: Keep, window: u64) -> Seq {
    let view = thread.view();
    let from = match keep {
        Keep::Nothing => view.entries().len(),
        Keep::Messages(messages) => view.newest(messages),
        Keep::Ratio(share) => newest_within(ruler, view, (window as f64 * share.clamp(0.0, 1.0)) as u64),
    };
    thread.through(from)
}

/// Where the newest rounds begin that together take at most so many tokens.
fn newest_within(ruler: &Ruler, view: &View, tokens_max: u64) -> usize {
    let entries = view.entries();
    let mut from = entries.len();
    let mut taken = 0;
    for (at, entry) in entries.iter().enumerate().rev() {
        taken += ruler.entry(entry);
        if taken > tokens_max {
            break;
        }
        if !view.is_inside_round(at) {
            from = at;
        }
    }
    from
}

/// Whether a summary could be shorter than this view, or part of one (`View::replaced_by`).
pub fn can_shrink(ruler: &Ruler, replaced: &View) -> bool {
    let only_a_summary = matches!(
        replaced.entries(),
        [entry] if matches!(entry.change, Change::Compacted { .. })
    );
    !only_a_summary && ruler.view(replaced) >= VIEW_TOKENS_MIN
}

/// The summary in a model's reply: what stands between `<summary>` tags, else the reply without
/// `<analysis>`. `None` if nothing is left.
pub fn extract(reply: &str) -> Option<String> {
    let body = match (reply.find("<summary>"), reply.rfind("</summary>")) {
        (Some(open), Some(close)) if open < close => reply[open + "<summary>".len()..close].to_owned(),
        (Some(open), _) => reply[open + "<summary>".len()..].to_owned(),
        (None, _) => without_analysis(reply),
    };
    let body = body.trim();
    (!body.is_empty()).then(|| body.to_owned())
}

/// The change that puts a summary in the place of the view up to and with `order.through`, or why
/// that gains nothing, in words.
///
/// `id` is the new message's. What is pinned, the goal and the person's last request are quoted byte for
/// byte, where they don't stay behind the summary anyway. Only where the request would not fit
/// (`room_bytes`), or an overflow leaves no other way to gain anything, its middle is left out.
pub fn compacted(
    ruler: &Ruler,
    thread: &Thread,
    id: MessageId,
    summary: &str,
    written: Option<(ModelName, Usage)>,
    order: Order,
) -> Result<Change, String> {
    let Order { trigger, focus, through, room_bytes } = order;
    let kept = thread.view().kept_behind(through);
    let before = ruler.view(thread.view());
    let behind: u64 = kept.iter().map(|entry| ruler.entry(entry)).sum();
    let request = last_request(thread, kept);
    let pins = quoted_pins(thread, kept);
    let mut quoted_max = request.as_ref().map_or(0, String::len).min(room_bytes);
    let (summary, after) = loop {
        let quote = request.as_ref().map(|request| head_and_tail(request, quoted_max));
        let text = frame(summary, quote.as_deref(), thread.goal(), &pins);
        let message = Message { id, content: vec![Content::Text { text }] };
        let after = ruler.message(&message) + behind;
        if after * 100 <= before * (100 - GAIN_MIN_PERCENT) {
            break (message, after);
        }
        // A person who asked for it loses no word to a compaction; a request that is too long must shrink.
        let may_cut = match trigger {
            Trigger::Overflow | Trigger::Threshold | Trigger::Hook => quoted_max > QUOTE_BYTES_MIN,
            Trigger::Manual => false,
        };
        if !may_cut {
            return Err(no_gain(ruler, &pins, before, after));
        }
        quoted_max /= 2;
    };
    let (model, usage) = written.unzip();
    Ok(Change::Compacted {
        through,
        summary,
        trigger,
        focus,
        tokens_before: before,
        tokens_after: after,
        model,
        usage,
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

/// The view as plain text, for a model that can't take it as messages: an earlier summary, because all
/// that is older is nowhere else, and then the newest parts that fit `bytes_max`.
pub fn flat(view: &View, bytes_max: usize) -> String {
    let (earlier, entries) = match view.entries() {
        [first, rest @ ..] if matches!(first.change, Change::Compacted { .. }) => (Some(first), rest),
        entries => (None, entries),
    };
    let earlier = earlier.map(|entry| head_and_tail(&flat_entry(&entry.change), bytes_max / 3));
    let mut bytes = earlier.as_ref().map_or(0, String::len);
    let mut parts: Vec<String> = Vec::new();
    for entry in entries.iter().rev() {
        // One long outcome must not push out all that is older.
        let part = head_and_tail(&flat_entry(&entry.change), bytes_max / 4);
        bytes += part.len() + 2;
        if bytes > bytes_max {
            parts.push("[earlier parts left out]".to_owned());
            break;
        }
        parts.push(part);
    }
    parts.extend(earlier);
    parts.reverse();
    parts.join("\n\n")
}

/// What stands for a summary that no model could write: the conversation's own words, as many as there
/// is room for.
pub fn without_model(view: &View, room_bytes: usize) -> String {
    format!(
        "(No summary could be written. These are the conversation's own words instead; what is oldest is \
         left out, and long parts are cut.)\n\n{}",
        flat(view, room_bytes)
    )
}

fn flat_entry(change: &Change) -> String {
    match change {
        Change::Said { message, .. } => format!("USER: {}", said(message)),
        Change::Compacted { summary, .. } => format!("EARLIER SUMMARY: {}", summary.text()),
        Change::Replied { message, .. } => {
            let mut text = format!("AGENT: {}", message.text());
            for call in message.calls() {
                text.push_str(&format!("\nCALL {} {}", call.name, call.input));
            }
            text
        }
        Change::ToolFinished { outcome } => format!("RESULT: {}", outcome.model_text()),
        // Nothing else is in a view.
        _ => String::new(),
    }
}

fn without_analysis(reply: &str) -> String {
    match (reply.find("<analysis>"), reply.rfind("</analysis>")) {
        (Some(open), Some(close)) if open < close => {
            format!("{}{}", &reply[..open], &reply[close + "</analysis>".len()..])
        }
        _ => reply.to_owned(),
    }
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

/// A person's message as text; what can't be quoted is named.
fn said(message: &Message) -> String {
    let mut parts: Vec<String> = Vec::new();
    for content in &message.content {
        match content {
            Content::Text { text } => parts.push(text.clone()),
            Content::Image { mime_type, uri, .. } => {
                let name = uri.as_deref().unwrap_or(mime_type);
                parts.push(format!("[image that was attached: {name}]"));
            }
            Content::Document { mime_type, name, .. } => {
                let name = name.as_deref().unwrap_or(mime_type);
                parts.push(format!("[document that was attached: {name}]"));
            }
            Content::Resource { uri, .. } | Content::ResourceLink { uri, .. } => {
                parts.push(format!("[file that was attached: {uri}]"));
            }
            Content::Thinking { .. } | Content::Call(_) => {}
        }
    }
    parts.join("\n\n")
}

fn head_and_tail(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(bytes_max / 2);
    let tail = text.ceil_char_boundary(text.len() - bytes_max / 2);
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests;
