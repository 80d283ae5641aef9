//! Layers in small logs. Each log is given by the changes after its opening entry e0.

use super::*;
use crate::{
    CallDisplay, CallId, Content, FORMAT_VERSION, HistoryMessage, Mask, Message, MessageId, ModelName,
    Origin, OutcomeStatus, PartId, Role, SessionId, ToolCall, ToolOutcome, Trigger,
};

fn thread(changes: Vec<Change>) -> Thread {
    let session = SessionId("s_00000000000000000000".into());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    let log = [opened].into_iter().chain(changes).zip(0..);
    Thread::replay(log.map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change })))
        .expect("the log begins with its opening entry")
}

fn message(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.into() }], author: None }
}

fn said(text: &str) -> Change {
    Change::Said { message: message(text), origin: Origin::Person }
}

fn replied(text: &str) -> Change {
    Change::Replied { message: message(text), model: ModelName("a/b".into()), usage: None, cut: None }
}

/// A reply with one call. [`came`] adds its outcome.
fn called(id: &str) -> Change {
    let call = ToolCall {
        id: CallId(id.into()),
        name: "bash".into(),
        input: serde_json::json!({}),
        card: CallDisplay::default(),
    };
    let message = Message { id: MessageId(0), content: vec![Content::Call(call)], author: None };
    Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None }
}

fn came(id: &str, text: &str) -> Change {
    Change::ToolFinished { outcome: ToolOutcome::text(CallId(id.into()), OutcomeStatus::Completed, text) }
}

fn compacted(through: u64, masks: &[u64]) -> Change {
    Change::Compacted {
        through: Seq(through),
        summary: message("So far."),
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 9,
        tokens_after: 1,
        window: None,
        model: None,
        usage: None,
        masks: masks.iter().map(|entry| mask(*entry)).collect(),
        account: Default::default(),
    }
}

fn mask(entry: u64) -> Mask {
    Mask { entry: Seq(entry), text: "[shorter]".into() }
}

fn pruned(entries: &[u64]) -> Change {
    let masks = entries.iter().map(|entry| mask(*entry)).collect();
    Change::Pruned { masks, trigger: Trigger::Threshold, tokens_before: 9, tokens_after: 1, window: None }
}

fn mutated(through: u64) -> Change {
    let messages = vec![HistoryMessage { role: Role::User, message: message("Another past.") }];
    Change::Mutated {
        through: Seq(through),
        messages,
        by: "swap".into(),
        tokens_before: 9,
        tokens_after: 1,
        window: None,
    }
}

fn at(entry: u64) -> PartId {
    PartId { entry: Seq(entry), part: None }
}

fn edited(edits: Vec<ViewEdit>) -> Change {
    Change::Edited { by: "tidy".into(), edits }
}

fn masked(entry: u64) -> ViewEdit {
    ViewEdit::Mask { at: at(entry), note: String::new() }
}

fn undone(entry: u64) -> Change {
    Change::Undone { entry: Seq(entry) }
}

fn redone(entry: u64) -> Change {
    Change::Redone { entry: Seq(entry) }
}

/// Drops everything that [`talk`] said.
fn all_dropped() -> Change {
    edited((1..=5).map(|entry| ViewEdit::Drop { at: at(entry) }).collect())
}

/// e1 to e4: two rounds, the first with a tool outcome; e5 is the next prompt.
fn talk() -> Vec<Change> {
    vec![said("Look."), called("c1"), came("c1", "long output"), replied("Done."), said("And now?")]
}

fn after(later: Vec<Change>) -> Thread {
    thread(talk().into_iter().chain(later).collect())
}

/// Lists the layers: `e6` is active, `(e6)` is undone, `e6<e8` is inside e8.
fn describe(thread: &Thread) -> String {
    let layer = |layer: &Layer| {
        let name = if layer.holds { layer.entry.to_string() } else { format!("({})", layer.entry) };
        layer.inside.map_or(name.clone(), |outer| format!("{name}<{outer}"))
    };
    thread.layers().iter().map(layer).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_layer_is_inside_the_next_one_that_covers_it() {
    for (story, later, wanted) in [
        ("nothing was done", vec![], ""),
        ("pins alone are no layer", vec![edited(vec![ViewEdit::Pin { at: at(1) }])], ""),
        ("two compactions", vec![compacted(5, &[]), said("More."), compacted(7, &[])], "e6<e8 e8"),
        (
            "three, the middle one taken back",
            vec![compacted(5, &[]), compacted(6, &[]), compacted(7, &[]), undone(7)],
            "e6<e8 (e7)<e8 e8",
        ),
        ("a compaction and a history by a hook", vec![compacted(4, &[]), mutated(5)], "e6<e7 e7"),
        ("the outer one is taken back", vec![compacted(4, &[]), mutated(5), undone(7)], "e6 (e7)"),
        ("an edit of what was compacted since", vec![edited(vec![masked(3)]), compacted(4, &[])], "e6<e7 e7"),
        ("an edit of what was kept", vec![edited(vec![masked(5)]), compacted(4, &[])], "e6 e7"),
        ("an edit of both", vec![edited(vec![masked(3), masked(5)]), compacted(4, &[])], "e6 e7"),
        (
            "a dropped entry that would have been compacted",
            vec![edited(vec![ViewEdit::Drop { at: at(1) }]), compacted(4, &[])],
            "e6<e7 e7",
        ),
        ("an outcome goes with its call", vec![pruned(&[3]), compacted(2, &[])], "e6<e7 e7"),
        (
            "a shortening that the next compaction makes again",
            vec![pruned(&[3]), compacted(1, &[3])],
            "e6<e7 e7",
        ),
        ("one that is active next to it", vec![pruned(&[3]), compacted(1, &[])], "e6 e7"),
        ("a mask by a hook over a shortening", vec![pruned(&[3]), edited(vec![masked(3)])], "e6<e7 e7"),
        (
            "a message that was added, and compacted",
            vec![
                edited(vec![ViewEdit::Append { role: Role::User, message: message("By the way.") }]),
                compacted(6, &[]),
            ],
            "e6<e7 e7",
        ),
    ] {
        assert_eq!(describe(&after(later)), wanted, "{story}");
    }
}

#[test]
fn undo_is_refused_with_a_reason() {
    let two = || after(vec![compacted(4, &[]), said("More."), compacted(7, &[])]);
    let edit_below = || after(vec![edited(vec![masked(3)]), compacted(4, &[]), compacted(7, &[])]);
    for (thread, layer, wanted) in [
        (two(), 8, Ok(())),
        (two(), 6, Err("e6 is covered by the compaction e8: undo that first")),
        // The outermost layer is named, not the nearest.
        (edit_below(), 6, Err("e6 is covered by the compaction e8: undo that first")),
        (two(), 5, Err("e5 did nothing to the history; /history lists what did")),
        (two(), 99, Err("there is no entry e99; /history lists what can be undone")),
        (after(vec![compacted(4, &[]), undone(6)]), 6, Err("e6 is undone already; /redo e6 redoes it")),
        (
            after(vec![mutated(4), mutated(5)]),
            6,
            Err("e6 is covered by the history e7 by swap: undo that first"),
        ),
        (
            after(vec![pruned(&[3]), edited(vec![masked(3)])]),
            6,
            Err("e6 is covered by the edit e7 by tidy: undo that first"),
        ),
        // The hook that dropped the prompt relied on the message that another hook had put before it.
        (
            after(vec![mutated(0), edited(vec![ViewEdit::Drop { at: at(1) }])]),
            6,
            Err("the conversation would begin with the agent's words, which no model takes"),
        ),
        (
            after(vec![mutated(0), all_dropped()]),
            6,
            Err("without the history e6 by swap, nothing of the conversation would be left"),
        ),
    ] {
        let wanted = wanted.map_err(str::to_owned);
        assert_eq!(
            thread.can_undo(Seq(layer)).map_err(|why| why.to_string()),
            wanted,
            "{layer} of {}",
            describe(&thread)
        );
    }
}

/// Regression: a hook replaced the beginning of the history, and another dropped the rest. Both were undone, and only the
/// second was redone: nothing was left, and the next reply came first.
#[test]
fn redo_leaves_something() {
    let thread = after(vec![mutated(0), all_dropped(), undone(7), undone(6)]);
    let refused = "with the edit e7 by tidy, nothing of the conversation would be left";
    assert_eq!(thread.can_redo(Seq(7)).map_err(|why| why.to_string()), Err(refused.to_owned()));
    assert_eq!(thread.can_redo(Seq(6)), Ok(()));
}

/// Regression: a compaction was undone, a hook masked a key in the entries that it had covered, and the compaction
/// was redone. Its summary contained the key.
#[test]
fn redo_never_restores_masked_text() {
    for (story, later, layer, wanted) in [
        ("right after the undo", vec![compacted(4, &[]), undone(6)], 6, Ok(())),
        ("it holds", vec![compacted(4, &[])], 6, Err("e6 is in effect; only what was undone can be redone")),
        (
            "masked since",
            vec![compacted(4, &[]), undone(6), edited(vec![masked(3)])],
            6,
            Err("e6 was made from what the edit e8 by tidy has changed since, and would restore that"),
        ),
        (
            "the mask is taken back",
            vec![compacted(4, &[]), undone(6), edited(vec![masked(3)]), undone(8)],
            6,
            Ok(()),
        ),
        ("masked since, elsewhere", vec![compacted(4, &[]), undone(6), edited(vec![masked(5)])], 6, Ok(())),
        (
            "an older mask that did not hold then",
            vec![edited(vec![masked(3)]), undone(6), compacted(4, &[]), undone(8), redone(6)],
            8,
            Err("e8 was made from what the edit e6 by tidy has changed since, and would restore that"),
        ),
        (
            "a shortening that shows the beginning of what is masked again",
            vec![edited(vec![masked(3)]), undone(6), pruned(&[3]), undone(8), redone(6)],
            8,
            Err("e8 was made from what the edit e6 by tidy has changed since, and would restore that"),
        ),
        ("the mask held then, too", vec![edited(vec![masked(3)]), compacted(4, &[]), undone(7)], 7, Ok(())),
        (
            "a later one covers it",
            vec![compacted(4, &[]), undone(6), compacted(5, &[])],
            6,
            Err("e6 is covered by the compaction e8: undo that first"),
        ),
    ] {
        let thread = after(later);
        let can = thread.can_redo(Seq(layer)).map_err(|why| why.to_string());
        assert_eq!(can, wanted.map_err(str::to_owned), "{story}");
    }
}

#[test]
fn last_undone_is_the_layer_undone_last() {
    let both = vec![compacted(4, &[]), compacted(5, &[]), undone(7), undone(6)];
    let then = |more: Vec<Change>| after(both.clone().into_iter().chain(more).collect()).last_undone();
    assert_eq!(then(vec![]), Some(Seq(6)));
    assert_eq!(then(vec![redone(6)]), Some(Seq(7)));
    assert_eq!(then(vec![redone(6), redone(7)]), None);
    assert_eq!(then(vec![redone(6), undone(6)]), Some(Seq(6)));
}

#[test]
fn the_fate_of_an_entry_is_known() {
    let drop_call = ViewEdit::Drop { at: PartId { entry: Seq(2), part: Some(1) } };
    for (story, later, entry, wanted) in [
        ("nothing", vec![], 3, EntryVisibility::Whole),
        ("compacted", vec![compacted(4, &[])], 3, EntryVisibility::Left { by: Seq(6) }),
        (
            "compacted twice",
            vec![compacted(4, &[]), compacted(5, &[])],
            3,
            EntryVisibility::Left { by: Seq(6) },
        ),
        ("and taken back", vec![compacted(4, &[]), undone(6)], 3, EntryVisibility::Whole),
        ("shortened", vec![pruned(&[3])], 3, EntryVisibility::Changed { by: Seq(6) }),
        ("its call was dropped", vec![edited(vec![drop_call])], 3, EntryVisibility::Left { by: Seq(6) }),
        (
            "a summary, compacted again",
            vec![compacted(4, &[]), compacted(6, &[])],
            6,
            EntryVisibility::Left { by: Seq(7) },
        ),
        ("what the model never sees", vec![compacted(4, &[])], 0, EntryVisibility::NeverShown),
    ] {
        assert_eq!(after(later).fate(Seq(entry)), wanted, "{story}");
    }
}

/// Regression: a compaction was undone, the user pinned something that had become visible, and the compaction
/// was redone. Its summary did not contain the pin, so the model no longer saw it.
#[test]
fn redo_is_refused_if_it_would_hide_a_new_pin() {
    // e6 is the compaction.
    let pin = |at| edited(vec![ViewEdit::Pin { at }]);
    let hidden = after(vec![compacted(5, &[]), undone(6), pin(at(4))]);
    let refused = hidden.can_redo(Seq(6));
    let why = "e4 is pinned and would leave the view: /unpin e4 first";
    assert_eq!(refused.map_err(|why| why.to_string()), Err(why.to_owned()));
    // A summary that quotes the pin may be redone.
    let quoting = match compacted(5, &[]) {
        Change::Compacted { through, trigger, account, .. } => Change::Compacted {
            through,
            summary: message(&format!("So far. {}", talk_text(4))),
            trigger,
            focus: None,
            tokens_before: 9,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account,
        },
        other => other,
    };
    let quoted = after(vec![quoting, undone(6), pin(at(4))]);
    assert_eq!(quoted.can_redo(Seq(6)), Ok(()));
}

fn talk_text(entry: u64) -> String {
    after(Vec::new()).text_of(at(entry)).expect("it was said")
}

/// Regression: `/undo` right after `/pin e3` or `/unpin e3` undid the compaction before it.
#[test]
fn what_the_user_pinned_is_undone_before_what_is_older() {
    let by = |by: &str, edit| Change::Edited { by: by.to_owned(), edits: vec![edit] };
    let pin = |by_whom| by(by_whom, ViewEdit::Pin { at: at(5) });
    // e6 is the compaction.
    let pinned = vec![compacted(4, &[]), pin(PINNED_BY_PERSON)];
    let unpinned: Vec<Change> =
        pinned.iter().cloned().chain([by(PINNED_BY_PERSON, ViewEdit::Unpin { at: at(5) })]).collect();
    let newest = |changes: &[Change]| after(changes.to_vec()).last_layer().map(|entry| entry.seq);
    assert_eq!((newest(&pinned), newest(&unpinned)), (Some(Seq(7)), Some(Seq(8))));
    let then = |entries: &[u64]| {
        after(unpinned.iter().cloned().chain(entries.iter().map(|entry| undone(*entry))).collect())
    };
    assert_eq!(then(&[8]).pinned(), [at(5)]);
    assert!(then(&[8, 7]).pinned().is_empty());
    assert_eq!(then(&[8, 7]).last_layer().map(|entry| entry.seq), Some(Seq(6)));
    // A hook may pin after each compaction, which `/undo` is then meant for.
    assert_eq!(newest(&[compacted(4, &[]), pin("keep")]), Some(Seq(6)));
}

/// Regression: a pin that sends a text again was undone, and could not be redone: it was said to remove the text.
#[test]
fn a_pin_that_sends_a_text_again_can_be_redone() {
    // e6 is the compaction, e7 the pin.
    let again = message(&format!("<pinned entry=\"e4\">\n{}\n</pinned>", talk_text(4)));
    let edits = vec![ViewEdit::Append { role: Role::User, message: again }, ViewEdit::Pin { at: at(4) }];
    let pin = Change::Edited { by: PINNED_BY_PERSON.into(), edits };
    let thread = after(vec![compacted(5, &[]), pin, undone(7), undone(6), redone(6)]);
    assert_eq!(thread.can_redo(Seq(7)), Ok(()));
}
