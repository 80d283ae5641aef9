//! Determines which instructions the view and the frame already contain, and the text for the others. Pure.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::prompt;
use epitome_compaction::NO_ROOM_FOR_INSTRUCTIONS;
use epitome_thread::{Change, Entry, Origin, OutcomeStatus, Seq, Thread, ViewEdit};

/// The files that the newest reply's calls touched.
pub(super) fn touched(thread: &Thread) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for entry in thread.entries().iter().rev() {
        match &entry.change {
            Change::Replied { .. } => break,
            Change::ToolFinished { outcome } => match outcome.status {
                OutcomeStatus::Completed | OutcomeStatus::Failed => {
                    let card = thread.input_of(&outcome.call).map(|(_, card)| card.locations.as_slice());
                    let locations = outcome.locations.iter().chain(card.unwrap_or_default());
                    paths.extend(locations.map(|location| location.path.clone()));
                }
                OutcomeStatus::Denied | OutcomeStatus::Interrupted => {}
            },
            _ => {}
        }
    }
    paths
}

/// The entries that contain instructions, with their files, newest first.
fn instructed(thread: &Thread) -> impl Iterator<Item = (&Entry, &Path)> {
    thread.context().iter().rev().filter_map(|entry| match &entry.change {
        Change::Said { origin: Origin::Instructions { path }, .. } => Some((entry.as_ref(), path.as_path())),
        _ => None,
    })
}

pub(super) fn known_paths(thread: &Thread) -> BTreeSet<PathBuf> {
    instructed(thread).map(|(_, path)| path.to_path_buf()).collect()
}

/// The message with a file's current instructions (empty if the file is gone); `None` if the view contains them.
pub(super) fn reminder(thread: &Thread, path: &Path, text: &str) -> Option<String> {
    let block = prompt::block(path, text);
    match known(thread, path) {
        Some(said) if said.contains(&block) => None,
        None if text.trim().is_empty() => None,
        Some(_) if text.trim().is_empty() => Some(format!(
            "The instructions in {} were removed and no longer apply:\n\n{block}",
            path.display()
        )),
        Some(_) => Some(format!(
            "These are the project's instructions in {} as they are now; they replace the earlier ones:\n\n{block}",
            path.display()
        )),
        None => Some(format!(
            "Instructions for {} and everything below it; they override those of directories above:\n\n{block}",
            path.parent().unwrap_or(path).display()
        )),
    }
}

/// The newest text about a file in the model's view or frame, if any.
fn known(thread: &Thread, path: &Path) -> Option<String> {
    let newest = instructed(thread).find(|(_, sent)| *sent == path).map(|(entry, _)| entry);
    // A text that a hook removed is not repeated until the file changes.
    if let Some(entry) = newest.filter(|entry| is_edited(thread, entry.seq)) {
        return text_of(entry);
    }
    let (head, name) = (prompt::block_head(path), path.display().to_string());
    let in_view = thread.view().entries().iter().rev().find_map(|entry| match &entry.change {
        // Compare the original text: a compaction that shortened it had no room for more.
        Change::Said { origin: Origin::Instructions { path: sent }, .. } if sent == path => {
            thread.entries().get(entry.seq.0 as usize).and_then(|own| text_of(own))
        }
        Change::Compacted { summary, .. } => {
            let summary = summary.text();
            if summary.contains(&head) {
                return Some(summary);
            }
            // They were dropped for lack of room, and the summary states that; repeating them would not fit either.
            let gave_way = summary.split(NO_ROOM_FOR_INSTRUCTIONS).skip(1).any(|named| named.contains(&name));
            newest.filter(|_| gave_way).and_then(text_of)
        }
        _ => None,
    });
    let in_frame = || thread.frame().map(|(system, _)| system).filter(|system| system.contains(&head));
    // If the frame had no room for the file, the model knows only its path.
    let named = || is_left_out(thread, path).then(|| prompt::left_out_head(path));
    in_view.or_else(|| in_frame().map(str::to_owned)).or_else(named)
}

/// Whether the frame only names this file for lack of room.
pub(super) fn is_left_out(thread: &Thread, path: &Path) -> bool {
    thread.frame().is_some_and(|(system, _)| system.contains(&prompt::left_out_head(path)))
}

fn text_of(entry: &Entry) -> Option<String> {
    match &entry.change {
        Change::Said { message, .. } => Some(message.text()),
        _ => None,
    }
}

/// Whether a hook's edit of this entry is in effect.
fn is_edited(thread: &Thread, entry: Seq) -> bool {
    let names = |edit: &ViewEdit| edit.rewrites() && edit.at().is_some_and(|part| part.entry == entry);
    let is_later = |later: &&Arc<Entry>| later.seq > entry && !thread.is_undone(later.seq);
    let later = thread.view_changes().iter().filter(is_later);
    later.into_iter().any(|later| match &later.change {
        Change::Edited { edits, .. } => edits.iter().any(names),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reminders::logs_tests::{compacted, message, mutated, person, thread};
    use epitome_thread::PartId;

    fn said(text: &str, origin: Origin) -> Change {
        Change::Said { message: message(text), origin }
    }

    /// Each row is a log after its opening entry, e0, and whether the file's current text must be sent.
    #[test]
    fn instructions_missing_from_frame_and_view_are_sent() {
        let path = Path::new("/w/AGENTS.md");
        let frame = |text| Change::Framed { system: prompt::block(path, text), tools: Vec::new() };
        let file =
            prompt::InstructionFile { path: path.to_path_buf(), text: "a".to_owned(), imports: Vec::new() };
        let left_out = || Change::Framed { system: prompt::left_out(&file), tools: Vec::new() };
        let sent = |text| {
            let origin = Origin::Instructions { path: path.to_path_buf() };
            said(&format!("They are:\n\n{}", prompt::block(path, text)), origin)
        };
        let other = || {
            let origin = Origin::Instructions { path: "/w/a/AGENTS.md".into() };
            said(&prompt::block(Path::new("/w/a/AGENTS.md"), "a"), origin)
        };
        let hi = || person("hi");
        let edited = |edit| Change::Edited { by: "hook".to_owned(), edits: vec![edit] };
        let at = PartId { entry: Seq(2), part: None };
        let (new, replaced, gone) = (Some("for /w and"), Some("as they are now"), Some("were removed"));
        for (story, log, text, wanted) in [
            ("it is new", vec![hi()], "a", new),
            ("there is none", vec![hi()], " \n", None),
            ("the frame has it", vec![frame("a"), hi()], "a\n", None),
            ("the frame has an old one", vec![frame("a"), hi()], "b", replaced),
            ("the frame had no room for it", vec![left_out(), hi()], "a", replaced),
            ("it was sent since", vec![left_out(), sent("a"), hi()], "a", None),
            ("what was left out is gone", vec![left_out(), hi()], "", gone),
            ("the end of a line was added", vec![frame("a"), hi()], "a b", replaced),
            ("it was removed", vec![frame("a"), hi()], "", gone),
            ("that was sent", vec![frame("a"), sent("")], "", None),
            ("it came back", vec![frame("a"), sent("")], "a", replaced),
            ("it was sent", vec![frame("a"), sent("b"), hi()], "b", None),
            ("it changed again", vec![frame("a"), sent("b"), hi()], "c", replaced),
            ("it is again as in the frame", vec![frame("a"), sent("b"), hi()], "a", replaced),
            ("another file was sent", vec![other()], "a", new),
            (
                "a compaction brought it along",
                vec![hi(), sent("a"), compacted(2, &prompt::block(path, "a"))],
                "a",
                None,
            ),
            (
                "a compaction brought an old one",
                vec![hi(), sent("a"), compacted(2, &prompt::block(path, "a"))],
                "b",
                replaced,
            ),
            ("a compaction left it out", vec![hi(), sent("a"), compacted(2, "Past.")], "a", new),
            (
                "a compaction had no room for it and said so",
                vec![
                    hi(),
                    sent("a"),
                    compacted(2, &format!("{NO_ROOM_FOR_INSTRUCTIONS} {}: …", path.display())),
                ],
                "a",
                None,
            ),
            (
                "a newer one stays behind the compaction",
                vec![sent("a"), sent("b"), compacted(1, &prompt::block(path, "a"))],
                "b",
                None,
            ),
            ("a hook replaced the history", vec![hi(), sent("a"), mutated(2)], "a", new),
            (
                "that was undone",
                vec![hi(), sent("a"), mutated(2), Change::Undone { entry: Seq(3) }],
                "a",
                None,
            ),
            ("a hook dropped it", vec![hi(), sent("a"), edited(ViewEdit::Drop { at })], "a", None),
            (
                "a hook masked it, and it changed",
                vec![hi(), sent("a"), edited(ViewEdit::Mask { at, note: String::new() })],
                "b",
                replaced,
            ),
        ] {
            let words = reminder(&thread(log), path, text);
            match (&words, wanted) {
                (Some(words), Some(wanted)) => {
                    assert!(words.contains(wanted), "{story}: {words}");
                    assert!(words.ends_with(&prompt::block(path, text)), "{story}: {words}");
                }
                (None, None) => {}
                (Some(_), None) | (None, Some(_)) => panic!("{story}: {words:?}"),
            }
        }
    }
}
