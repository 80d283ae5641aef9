//! The user's words in what hooks left of the history. Pure.
//!
//! A hook that replaces the history, or edits the message of a compaction, may have removed something. Nothing that it
//! rewrote is quoted from the log again, so its own text is the only place for the instructions in it.

use super::text::said;
use super::wording::{COMPACTED, REQUEST_HEAD, USER_HEAD};
use epitome_thread::{Change, PartId, Role, Seq, Thread, ViewEdit};

/// The words in the newest history or compaction message that a hook wrote, oldest first, with its entry.
pub(super) fn words(thread: &Thread) -> Option<(Seq, Vec<String>)> {
    let rewritten = thread.rewritten();
    let is_by_hook = |change: &Change, seq| match change {
        Change::Mutated { .. } => true,
        Change::Compacted { .. } => rewritten.contains(seq),
        _ => false,
    };
    let layer = thread.active_view_changes().rfind(|entry| is_by_hook(&entry.change, entry.seq))?;
    let layer = thread.entry(layer.seq)?;
    let texts: Vec<String> = match &layer.change {
        Change::Mutated { messages, .. } => {
            let numbered = (1..).zip(messages).filter(|(_, spoken)| spoken.role == Role::User);
            let texts = numbered.filter_map(|(number, spoken)| {
                let at = PartId { entry: layer.seq, part: Some(number) };
                edited(thread, at).unwrap_or_else(|| Some(said(&spoken.message.content)))
            });
            texts.collect()
        }
        _ => rewritten.content(layer.seq).map(said).into_iter().collect(),
    };
    Some((layer.seq, texts.iter().flat_map(|text| split(text)).collect()))
}

/// The text that the newest edit gave to a part of a hook's history; `Some(None)` if it removed the part.
fn edited(thread: &Thread, part: PartId) -> Option<Option<String>> {
    let edits = thread.active_view_changes().filter_map(|entry| match &entry.change {
        Change::Edited { edits, .. } => Some(edits),
        _ => None,
    });
    let newest = edits.flatten().rfind(|edit| edit.rewrites() && edit.at() == Some(part))?;
    Some(match newest {
        ViewEdit::Replace { content, .. } => Some(said(content)),
        _ => None,
    })
}

/// The messages of the user that a text contains, oldest first. A hook may return the message of a compaction changed
/// or together with other messages; then each quote in it becomes a text, and everything after the quotes.
fn split(text: &str) -> Vec<String> {
    let heads = [USER_HEAD, REQUEST_HEAD];
    let from = heads.iter().filter_map(|head| text.find(head)).min().filter(|_| text.contains(COMPACTED));
    let Some(from) = from else { return vec![text.to_owned()] };
    let (user, request) = match text[from..].split_once("<last_request>\n") {
        Some((user, request)) => (user.rsplit_once("\n</user>").map_or("", |(user, _)| user), Some(request)),
        None => (&text[from..], None),
    };
    let mut words = Vec::new();
    for quote in user.split("<said entry=").skip(1) {
        let quote = quote.split_once(">\n").map_or(quote, |(_, quote)| quote);
        add(quote, "\n</said>", &mut words);
    }
    if let Some(request) = request {
        add(request, "\n</last_request>", &mut words);
    }
    if words.is_empty() { vec![text[from..].to_owned()] } else { words }
}

/// Adds a quote, and what follows its end except for gaps and for the sentence about what left the view.
fn add(quote: &str, end: &str, words: &mut Vec<String>) {
    let (own, rest) = quote.split_once(end).unwrap_or((quote, ""));
    let rest = rest.replace("\n</user>", "\n");
    let is_wanted = |part: &&str| !part.contains("no longer in view") && part.trim() != "[…]";
    let rest = rest.split("\n\n").filter(is_wanted).collect::<Vec<_>>().join("\n\n");
    words.extend(
        [own, &rest].iter().map(|text| text.trim()).filter(|text| !text.is_empty()).map(str::to_owned),
    );
}
