//! `/undo`, `/redo` and `/history`: undo, redo and list the changes of the view.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::core::Core;
use super::{CommandContext, CommandOutcome, CommandRefusal, why};
use epitome_thread::text::trigger as trigger_word;
use epitome_thread::{Change, Entry, Layer, LayerRefusal, PINNED_BY_PERSON, PartId, Seq, Thread, ViewEdit};

/// Layers listed, in the text and in JSON; the rest are counted.
const LAYERS_SHOWN_MAX: usize = 100;

/// The differences between `/undo` and `/redo`.
struct LayerDirection {
    /// The command's name, and the key of its result.
    name: &'static str,
    done: &'static str,
    change: fn(Seq) -> Change,
    can: fn(&Thread, Seq) -> Result<(), LayerRefusal>,
    /// The default layer, if the command names none.
    newest: fn(&Thread) -> Option<Seq>,
    nothing: &'static str,
    /// Whether the view is afterwards one with or without the layer.
    with: &'static str,
    /// The end of the message for the user.
    back: &'static str,
}

const UNDO: LayerDirection = LayerDirection {
    name: "undo",
    done: "undone",
    change: |entry| Change::Undone { entry },
    can: Thread::can_undo,
    newest: |thread| thread.last_layer().map(|entry| entry.seq),
    nothing: "Nothing left to undo. /rewind puts back what the agent has changed in files.",
    with: "without",
    back: "/redo restores it.",
};

const REDO: LayerDirection = LayerDirection {
    name: "redo",
    done: "redone",
    change: |entry| Change::Redone { entry },
    can: Thread::can_redo,
    newest: Thread::last_undone,
    nothing: "Nothing left to redo.",
    with: "with",
    back: "/undo undoes it again.",
};

/// A description of a layer for the user.
fn what_it_is(thread: &Thread, layer: Seq) -> String {
    let quoted =
        |part| thread.text_of(part).map_or_else(String::new, |text| format!(" {:?}", why::line(&text)));
    match thread.entries().get(layer.0 as usize).map(|entry| &entry.change) {
        Some(Change::Compacted { .. }) => "the compaction".to_owned(),
        Some(Change::Pruned { masks, .. }) => {
            format!("the shortening of {}", why::counted(masks.len(), "entry"))
        }
        Some(Change::Mutated { by, .. }) => format!("the history by {by}"),
        Some(Change::Rewound { .. }) => "the rewind".to_owned(),
        Some(Change::Edited { by, edits }) if by == PINNED_BY_PERSON => match edits.last() {
            Some(ViewEdit::Pin { at }) => format!("your pin{}", quoted(*at)),
            Some(ViewEdit::Unpin { at }) if edits.len() == 1 => format!("the end of your pin{}", quoted(*at)),
            _ => "your change of pins".to_owned(),
        },
        Some(Change::Edited { by, .. }) => format!("the edit by {by}"),
        Some(_) | None => "the change".to_owned(),
    }
}

/// Parses an entry such as `e12`.
pub(super) fn entry_named(typed: &str) -> Option<Seq> {
    let part: PartId = typed.trim().to_ascii_lowercase().parse().ok()?;
    part.part.is_none().then_some(part.entry)
}

pub(super) fn undo(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    turn_layer(core, &UNDO, typed)
}

pub(super) fn redo(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    turn_layer(core, &REDO, typed)
}

pub(super) fn show_history(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    if !typed.is_empty() {
        let text = format!(
            "Not listed: /history takes no arguments, and got {:?}. /why with an entry explains one.",
            why::line(typed)
        );
        return CommandOutcome::refused("history", text);
    }
    let layers = core.thread.layers();
    let meta = json!({ "status": "done", "layers": history_json(&core.thread, &layers) });
    CommandOutcome::text(history(&core.thread, &layers)).with("history", meta)
}

fn turn_layer(core: &mut Core, way: &LayerDirection, typed: &str) -> CommandOutcome {
    let layer = match (typed, entry_named(typed)) {
        ("", _) => (way.newest)(&core.thread),
        (_, Some(entry)) => Some(entry),
        (other, None) => {
            let text = format!(
                "Not {}: {:?} is not an entry such as e12. /history lists the entries.",
                way.done,
                why::line(other)
            );
            return CommandOutcome::refused(way.name, text);
        }
    };
    let Some(layer) = layer else {
        return CommandOutcome::text(way.nothing).with(way.name, json!({ "status": "nothing_to_do" }));
    };
    let checked =
        (way.can)(&core.thread, layer).map_err(CommandRefusal::from).and_then(|()| sizes(core, way, layer));
    match checked {
        Ok((before, after)) => {
            let kind = core.thread.entries()[layer.0 as usize].change.kind();
            tracing::info!(session = %core.id(), %layer, kind, "a layer is {}", way.done);
            let meta = json!({
                "status": way.done, "entry": layer.to_string(),
                "pre_tokens": before, "post_tokens": after,
            });
            let mut done = way.done.to_owned();
            done[..1].make_ascii_uppercase();
            let text = format!("{done}: {} ({layer}). {}", what_it_is(&core.thread, layer), way.back);
            CommandOutcome { changes: vec![(way.change)(layer)], ..CommandOutcome::text(text) }
                .with(way.name, meta)
        }
        Err(why) => {
            let meta = json!({ "status": "refused", "entry": layer.to_string(), "reason": why.to_string() });
            CommandOutcome::text(format!("Not {}: {why}.", way.done)).with(way.name, meta)
        }
    }
}

/// The tokens in context before and after, or why the change is refused: the view would no longer fit into
/// the window, so that the next prompt would only cause another compaction.
fn sizes(core: &Core, way: &LayerDirection, layer: Seq) -> Result<(u64, u64), CommandRefusal> {
    core.sizes_with((way.change)(layer)).map_err(|overflow| CommandRefusal::LayerOverflow {
        with: way.with,
        layer: core.thread.named(layer),
        overflow,
        command: way.name,
    })
}

// ── The list ───────────────────────────────────────────────────────────────────────────────────────

fn history(thread: &Thread, layers: &[Layer]) -> String {
    if layers.is_empty() {
        return "Nothing changed the history so far: no compaction, no hook, no pinned text.".to_owned();
    }
    let mut out = "What changed the history, newest first:\n\n".to_owned();
    for layer in layers.iter().rev().take(LAYERS_SHOWN_MAX) {
        let done = why::what_was_done(thread, change_of(thread, layer)).unwrap_or_default();
        let _ = writeln!(out, "- {}: {done}. {}", layer.entry, state(thread, layer));
    }
    why::older(&mut out, layers.len(), LAYERS_SHOWN_MAX);
    out.push_str("\n/why with an entry explains it. Undoing keeps everything that was said later.");
    out
}

/// Whether a layer is in effect, and how to undo or redo it.
fn state(thread: &Thread, layer: &Layer) -> String {
    let entry = layer.entry;
    let (way, is) = if layer.holds { (&UNDO, "In effect") } else { (&REDO, "Undone") };
    match (layer.inside, (way.can)(thread, entry)) {
        (Some(outer), _) if layer.holds => format!("Covered by {outer}"),
        (Some(outer), _) => format!("Undone, and {outer} covers it now"),
        (None, Ok(())) if (way.newest)(thread) == Some(entry) => format!("{is}; /{0} {0}es it", way.name),
        (None, Ok(())) => format!("{is}; /{0} {entry} {0}es it", way.name),
        (None, Err(why)) => format!("{is}: {why}"),
    }
}

fn history_json(thread: &Thread, layers: &[Layer]) -> Vec<Value> {
    let one = |layer: &Layer| {
        let change = change_of(thread, layer);
        let way = if layer.holds { &UNDO } else { &REDO };
        let refused = (way.can)(thread, layer.entry).err();
        let mut row = json!({
            "entry": layer.entry.to_string(), "kind": change.kind(), "holds": layer.holds,
            "inside": layer.inside.map(|outer| outer.to_string()),
            "can": refused.is_none().then_some(way.name),
        });
        if let Some(by) = author(change) {
            row["by"] = json!(by);
        }
        if let Some(sizes) = change.context_sizes() {
            row["pre_tokens"] = json!(sizes.before);
            row["post_tokens"] = json!(sizes.after);
        }
        if let Change::Compacted { model: Some(model), .. } = change {
            row["model"] = json!(model);
        }
        if let Some(why) = refused {
            row["reason"] = json!(why.to_string());
        }
        row
    };
    layers.iter().rev().take(LAYERS_SHOWN_MAX).map(one).collect()
}

/// The hook that made a layer, or its trigger.
fn author(change: &Change) -> Option<&str> {
    match change {
        Change::Compacted { trigger, .. } | Change::Pruned { trigger, .. } => Some(trigger_word(*trigger)),
        Change::Mutated { by, .. } | Change::Edited { by, .. } => Some(by),
        _ => None,
    }
}

fn change_of<'a>(thread: &'a Thread, layer: &Layer) -> &'a Change {
    let entry: &Entry = &thread.entries()[layer.entry.0 as usize];
    &entry.change
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::long_story;
    use super::*;

    #[test]
    fn an_entry_is_named_by_its_number() {
        for (typed, wanted) in
            [("e12", Some(12)), (" E7 ", Some(7)), ("e7.1", None), ("12", None), ("all", None)]
        {
            assert_eq!(entry_named(typed), wanted.map(Seq), "{typed}");
        }
    }

    #[test]
    fn the_history_says_what_each_layer_is_and_what_can_be_done_about_it() {
        let thread = long_story();
        assert_eq!(
            history(&thread, &thread.layers()),
            "What changed the history, newest first:\n\
             \n\
             - e10: compacted up to e9, context 4.0k → 900 of 200k; the window filled up; summary by \
             anthropic/claude. Undone; /redo redoes it\n\
             - e7: compacted up to e6, context 4.0k → 900 of 200k; you asked for it; summary by \
             anthropic/claude. In effect; /undo undoes it\n\
             - e5: shrink replaced the history up to e2 by 1 message, 12.0k → 4.0k tokens. Covered by e7\n\
             \n\
             /why with an entry explains it. Undoing keeps everything that was said later."
        );
        let rows = history_json(&thread, &thread.layers());
        assert_eq!(
            rows[2],
            json!({
                "entry": "e5", "kind": "mutated", "by": "shrink", "holds": true, "inside": "e7", "can": null,
                "pre_tokens": 12_000, "post_tokens": 4_000,
                "reason": "e5 is covered by the compaction e7: undo that first",
            })
        );
        assert_eq!((&rows[1]["can"], &rows[1]["by"]), (&json!("undo"), &json!("manual")));
    }
}
