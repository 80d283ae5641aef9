//! The user's words in what hooks left of the history. Pure.
//!
//! A hook that replaces the history, or edits the message of a compaction, may have removed something. Nothing that it
//! rewrote is quoted from the log again, so its own text is the only place for the instructions in it.

use super::text::said;
use super::unfold::unfolded;
use super::wording::COMPACTED;
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
/// or together with other messages; then each quote in it becomes a text, and everything after the quotes except for the
/// sentence about what left the view.
fn split(text: &str) -> Vec<String> {
    let composed = text.find(COMPACTED).and_then(|at| unfolded(&text[at..]));
    let Some((message, rest)) = composed.filter(|(message, _)| !message.said.is_empty()) else {
        return vec![text.to_owned()];
    };
    let rest = rest.split("\n\n").filter(|part| !part.contains("no longer in view")).collect::<Vec<_>>();
    let rest = rest.join("\n\n").trim().to_owned();
    message.said.into_iter().chain((!rest.is_empty()).then_some(rest)).collect()
}
