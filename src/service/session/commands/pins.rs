//! `/pin` and `/unpin`: texts that every compaction keeps verbatim.
//!
//! A pin keeps the text that is in the log. Text that a hook removed from the history can't be pinned, since
//! the pin would restore it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::core::Core;
use super::{CommandContext, CommandOutcome, CommandRefusal, why};
use epitome_compaction as compaction;
use epitome_thread::{Change, EntryVisibility, PINNED_BY_PERSON, PartId, Role, Thread, ViewEdit};
use epitome_tokens::Ruler;

/// Pins listed with their first line; the rest are counted.
const PINS_SHOWN_MAX: usize = 50;

/// How a part can be pinned.
#[derive(Clone, Debug, PartialEq)]
enum PinStatus {
    /// The view contains it unchanged.
    InView,
    /// The view does not contain it, so the text must be added again.
    Again(String),
}

pub(super) fn pin(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    match typed.parse::<PartId>() {
        _ if typed.is_empty() => {
            let text = listed(&core.ruler(), &core.thread, core.pin_tokens_max());
            CommandOutcome::text(text).with("pin", pin_meta(core, "done"))
        }
        Ok(part) => match how(&core.thread, part) {
            Ok(_) if core.thread.pinned().contains(&part) => {
                let meta = pin_meta(core, "nothing_to_do");
                CommandOutcome::text(format!("{part} is pinned already.")).with("pin", meta)
            }
            Ok(PinStatus::InView) => pin_by(core, vec![ViewEdit::Pin { at: part }], part),
            Ok(PinStatus::Again(text)) => {
                let text = format!("<pinned entry=\"{part}\">\n{text}\n</pinned>");
                let again = append(core, text);
                pin_by(core, vec![again, ViewEdit::Pin { at: part }], part)
            }
            Err(why) => not_pinned(core, &why.to_string()),
        },
        Err(()) => {
            // It becomes the first message of the entry that these edits create.
            let at = PartId { entry: core.thread.next_seq(), part: Some(1) };
            let said = append(core, typed.to_owned());
            pin_by(core, vec![said, ViewEdit::Pin { at }], at)
        }
    }
}

pub(super) fn unpin(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let pinned = core.thread.pinned();
    let wanted: Vec<PartId> = match (typed, typed.parse::<PartId>()) {
        ("all", _) => pinned,
        (_, Ok(part)) if pinned.contains(&part) => vec![part],
        (_, Ok(part)) => {
            let text = format!("{part} is not pinned. /pin lists what is.");
            return CommandOutcome::text(text).with("unpin", pin_meta(core, "nothing_to_do"));
        }
        (_, Err(())) => {
            let text = "Name an entry, as in /unpin e12, or use /unpin all. /pin lists the pins.";
            return CommandOutcome::text(text).with("unpin", pin_meta(core, "refused"));
        }
    };
    if wanted.is_empty() {
        let meta = pin_meta(core, "nothing_to_do");
        return CommandOutcome::text("Nothing is pinned.").with("unpin", meta);
    }
    let edits: Vec<ViewEdit> = wanted.iter().map(|at| ViewEdit::Unpin { at: *at }).collect();
    let change = Change::Edited { by: PINNED_BY_PERSON.to_owned(), edits };
    let mut then = core.thread.clone();
    then.apply_trial(change.clone());
    let mut meta = pins_json("unpinned", &core.ruler(), &then, core.pin_tokens_max());
    meta["entries"] = json!(names(&wanted));
    CommandOutcome::from_changes(vec![change]).with("unpin", meta)
}

fn append(core: &mut Core, text: String) -> ViewEdit {
    ViewEdit::Append { role: Role::User, message: core.message(text) }
}

/// Makes these edits, the last of which pins `at`, unless the pins would become too large.
fn pin_by(core: &mut Core, edits: Vec<ViewEdit>, at: PartId) -> CommandOutcome {
    let change = Change::Edited { by: PINNED_BY_PERSON.to_owned(), edits };
    let mut then = core.thread.clone();
    then.apply_trial(change.clone());
    let tokens_max = core.pin_tokens_max();
    if let Some(why) = compaction::pins_too_large(&core.ruler(), &then, tokens_max) {
        return not_pinned(core, &why);
    }
    let mut meta = pins_json("pinned", &core.ruler(), &then, tokens_max);
    meta["entry"] = json!(at.to_string());
    CommandOutcome::from_changes(vec![change]).with("pin", meta)
}

fn not_pinned(core: &mut Core, why: &str) -> CommandOutcome {
    let mut meta = pin_meta(core, "refused");
    meta["reason"] = json!(why);
    CommandOutcome::text(format!("Not pinned: {why}.")).with("pin", meta)
}

fn pin_meta(core: &Core, status: &str) -> Value {
    pins_json(status, &core.ruler(), &core.thread, core.pin_tokens_max())
}

/// How a part can be pinned, or why it can't be.
fn how(thread: &Thread, part: PartId) -> Result<PinStatus, CommandRefusal> {
    let Some(text) = thread.text_of(part) else {
        return Err(CommandRefusal::NoText(part));
    };
    if text.trim().is_empty() {
        return Err(CommandRefusal::Blank(part));
    }
    if thread.view().piece(part).is_some_and(|piece| piece.pin_text() == text) {
        return Ok(PinStatus::InView);
    }
    if thread.is_undone(part.entry) {
        return Err(CommandRefusal::Undone { part });
    }
    let by = match thread.fate(part.entry) {
        EntryVisibility::Changed { by } | EntryVisibility::Left { by } => thread.entries().get(by.0 as usize),
        EntryVisibility::Whole | EntryVisibility::NeverShown => None,
    };
    let is_by_hook = by.is_some_and(|by| matches!(by.change, Change::Edited { .. } | Change::Mutated { .. }));
    if is_by_hook || thread.is_rewritten(part.entry) {
        return Err(CommandRefusal::Rewritten(part));
    }
    Ok(PinStatus::Again(text))
}

fn listed(ruler: &Ruler, thread: &Thread, tokens_max: u64) -> String {
    let pins = thread.pins();
    if pins.is_empty() {
        return "Nothing is pinned. /pin with an entry (such as e12) or a text keeps it word for word through \
                every compaction."
            .to_owned();
    }
    let tokens: u64 = pins.iter().map(|(_, text)| ruler.text(text)).sum();
    let mut out = format!("Pinned: about {tokens} tokens of the {tokens_max} that pins may take.\n\n");
    for (part, text) in pins.iter().take(PINS_SHOWN_MAX) {
        let _ = writeln!(out, "- {part} ({} tokens): {}", ruler.text(text), why::line(text));
    }
    why::more(&mut out, pins.len(), PINS_SHOWN_MAX);
    out.push_str("\n/unpin with an entry unpins it; /unpin all unpins everything.");
    out
}

fn pins_json(status: &str, ruler: &Ruler, thread: &Thread, tokens_max: u64) -> Value {
    let (parts, texts): (Vec<PartId>, Vec<String>) = thread.pins().into_iter().unzip();
    let tokens: u64 = texts.iter().map(|text| ruler.text(text)).sum();
    json!({
        "status": status, "pinned": names(&parts), "texts": texts, "tokens": tokens, "tokens_max": tokens_max,
    })
}

fn names(parts: &[PartId]) -> Vec<String> {
    parts.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::{long_story, thread};
    use super::*;
    use epitome_thread::{Content, Mask, Message, MessageId, Origin, Seq, Trigger};

    fn text_reply(text: &str) -> Change {
        let content = vec![Content::Text { text: text.to_owned() }];
        Change::Said { message: Message { id: MessageId(0), content, author: None }, origin: Origin::Person }
    }

    #[test]
    fn a_pin_that_left_the_view_is_sent_again_unless_a_hook_removed_it() {
        let at = |entry: u64, part| PartId { entry: Seq(entry), part };
        let masks = vec![Mask { entry: Seq(1), text: "[shorter]".into() }];
        let pruned = Change::Pruned {
            masks,
            trigger: Trigger::Threshold,
            tokens_before: 9,
            tokens_after: 1,
            window: None,
        };
        let edited = |edit| Change::Edited { by: "tidy".into(), edits: vec![edit] };
        let dropped = edited(ViewEdit::Drop { at: at(1, None) });
        let again = |text: &str| Ok(PinStatus::Again(text.to_owned()));
        for (story, changes, part, wanted) in [
            ("in view", vec![text_reply("one")], at(1, None), Ok(PinStatus::InView)),
            ("shortened", vec![text_reply("one"), text_reply("two"), pruned], at(1, None), again("one")),
            (
                "dropped by a hook",
                vec![text_reply("one"), text_reply("two"), dropped],
                at(1, None),
                Err("a hook changed e1, and a pin would restore the old text".to_owned()),
            ),
            ("blank", vec![text_reply("  ")], at(1, None), Err("e1 has no text to pin".to_owned())),
            (
                "nothing that was said",
                vec![text_reply("one")],
                at(0, None),
                Err("e0 has no text; /why with an entry explains it".to_owned()),
            ),
            (
                "no such part",
                vec![text_reply("one")],
                at(1, Some(2)),
                Err("e1.2 has no text; /why with an entry explains it".to_owned()),
            ),
        ] {
            assert_eq!(how(&thread(changes), part).map_err(|why| why.to_string()), wanted, "{story}");
        }
        // In the long story, a hook replaced e2, and the compaction e10 is undone.
        assert!(
            how(&long_story(), at(2, None)).is_err_and(|why| why.to_string().contains("a hook changed e2"))
        );
        assert!(how(&long_story(), at(10, None)).is_err_and(|why| why.to_string().contains("/redo e10")));
        assert_eq!(how(&long_story(), at(9, None)), Ok(PinStatus::InView));
    }

    #[test]
    fn pins_are_listed_with_what_they_take() {
        let shown = listed(&Ruler::for_model(None), &long_story(), 100);
        assert!(shown.starts_with("Pinned: about ") && shown.contains("of the 100 that"), "{shown}");
        assert!(shown.contains("\n- e2 (") && shown.contains("tokens): Sorted.\n"), "{shown}");
        assert!(listed(&Ruler::for_model(None), &thread(Vec::new()), 100).starts_with("Nothing is pinned."));
    }
}
