//! Tests of the edits and histories of hooks that are accepted, of their effect on the view, and of refusals.

use serde_json::json;

use super::*;
use crate::{
    CallDisplay, FORMAT_VERSION, ModelName, Native, Origin, OutcomeStatus, SessionId, ToolCall, ToolOutcome,
    Trigger,
};

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn message(content: Vec<Content>) -> Message {
    Message { id: MessageId(0), content, author: None }
}

fn call(id: &str) -> Content {
    let id = CallId(id.to_owned());
    Content::Call(ToolCall {
        id,
        name: "bash".into(),
        input: json!({ "n": 1 }),
        card: CallDisplay::default(),
    })
}

fn thinking() -> Content {
    let native = Native { provider: "anthropic".into(), model: "m".into(), data: json!({}) };
    Content::Thinking { text: "hm".into(), native: Some(native) }
}

fn replied(content: Vec<Content>) -> Change {
    let model = ModelName("a/b".into());
    Change::Replied { message: message(content), model, usage: None, cut: None }
}

fn finished(call: &str, text: &str) -> Change {
    Change::ToolFinished {
        outcome: ToolOutcome::text(CallId(call.to_owned()), OutcomeStatus::Completed, text),
    }
}

fn append(thread: &mut Thread, change: Change) -> Seq {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
    seq
}

/// e1 is a prompt, e2 a reply with two calls, e3 and e4 their outcomes, e5 a reply, and e6 a reply whose call
/// is still running.
fn thread() -> Thread {
    let opened = Change::Opened {
        format: FORMAT_VERSION,
        session: SessionId("s_00000000000000000001".into()),
        cwd: "/w".into(),
    };
    let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
    let mut thread = Thread::replay([opened]).expect("an opened thread");
    for change in [
        Change::Said { message: message(vec![text("go")]), origin: Origin::Person },
        replied(vec![thinking(), text("I look."), call("c1"), call("c2")]),
        finished("c1", "one"),
        finished("c2", "two"),
        replied(vec![text("Both are there.")]),
        replied(vec![text("And now?"), call("c3")]),
    ] {
        append(&mut thread, change);
    }
    thread
}

fn at(part: &str) -> PartId {
    part.parse().expect("a part's id")
}

fn drop(part: &str) -> ViewEdit {
    ViewEdit::Drop { at: at(part) }
}

fn mask(part: &str, note: &str) -> ViewEdit {
    ViewEdit::Mask { at: at(part), note: note.to_owned() }
}

fn replace(part: &str, content: Content) -> ViewEdit {
    ViewEdit::Replace { at: at(part), content: vec![content] }
}

fn added(role: Role, content: Content) -> ViewEdit {
    ViewEdit::Append { role, message: message(vec![content]) }
}

/// The view with one line for each part; entries with thinking are listed first.
fn seen(thread: &Thread) -> Vec<String> {
    let thinks = thread.view().entries().iter().filter_map(|entry| match &entry.change {
        Change::Replied { message, .. } => {
            let thinking = message.content.iter().any(|content| matches!(content, Content::Thinking { .. }));
            thinking.then(|| format!("{} thinks", entry.seq))
        }
        _ => None,
    });
    let parts = thread.view().pieces();
    thinks.chain(parts.iter().map(|(part, piece)| format!("{part} {}", piece.text()))).collect()
}

#[test]
fn an_edit_changes_its_target_and_what_depends_on_it() {
    let whole = seen(&thread());
    assert_eq!(whole[0], "e2 thinks");
    let cases: Vec<(Vec<ViewEdit>, Vec<&str>, Vec<&str>)> = vec![
        (vec![drop("e2")], vec!["e2 thinks", "e2 I look."], vec![]),
        (vec![drop("e2.1")], vec!["e2 thinks", "e2.1 bash {\"n\":1}", "e3 one"], vec![]),
        (vec![drop("e4")], vec!["e2 thinks", "e2.2 bash {\"n\":1}", "e4 two"], vec![]),
        (
            vec![drop("e2.1"), drop("e2"), drop("e2.2")],
            vec!["e2 thinks", "e2 I look.", "e2.1 bash {\"n\":1}", "e2.2 bash {\"n\":1}", "e3 one", "e4 two"],
            vec![],
        ),
        (
            vec![mask("e2", "long\n story")],
            vec!["e2 thinks", "e2 I look."],
            vec!["e2 [masked by h: long story; entry e2]"],
        ),
        (
            vec![mask("e2.2", "")],
            vec!["e2 thinks", "e2.2 bash {\"n\":1}"],
            vec!["e2.2 bash {\"masked\":\"[masked by h; entry e2.2]\"}"],
        ),
        (vec![mask("e3", "x")], vec!["e3 one"], vec!["e3 [masked by h: x; entry e3]"]),
        (vec![replace("e1", text("stop"))], vec!["e1 go"], vec!["e1 stop"]),
        (vec![replace("e5", text("None."))], vec!["e5 Both are there."], vec!["e5 None."]),
        (vec![replace("e4", text("2"))], vec!["e4 two"], vec!["e4 2"]),
        (
            vec![added(Role::System, text("A.")), added(Role::Assistant, text("B."))],
            vec![],
            vec!["e7.1 A.", "e7.2 B."],
        ),
        (vec![ViewEdit::Pin { at: at("e2.1") }], vec![], vec![]),
    ];
    for (edits, gone, new) in cases {
        let mut thread = thread();
        let made = check(&thread, thread.view().revision(), MessageId(9), &edits);
        let made = made.unwrap_or_else(|why| panic!("{edits:?}: {why}"));
        append(&mut thread, Change::Edited { by: "h".into(), edits: made });
        let now = seen(&thread);
        let left: Vec<&String> = whole.iter().filter(|line| !now.contains(line)).collect();
        let came: Vec<&String> = now.iter().filter(|line| !whole.contains(line)).collect();
        assert_eq!(left, gone, "{edits:?}");
        assert_eq!(came, new, "{edits:?}");
    }
}

#[test]
fn errors_name_the_faulty_edit() {
    let pin = |part: &str| ViewEdit::Pin { at: at(part) };
    let cases: Vec<(Vec<ViewEdit>, &str)> = vec![
        (vec![], "the list of edits is empty"),
        (vec![drop("e99")], "edit 1 of 1, drop e99: there is no such entry"),
        (vec![drop("e5"), drop("e5")], "edit 2 of 2, drop e5: it is not in the view any more"),
        (vec![drop("e2.3")], "edit 1 of 1, drop e2.3: there is no such entry"),
        (vec![drop("e1")], "edit 1 of 1, drop e1: the view would no longer begin with a user message"),
        (
            vec![mask("e6", "x")],
            "edit 1 of 1, mask e6: its round is not over: the tool call c3 is still running",
        ),
        (
            vec![drop("e6.1")],
            "edit 1 of 1, drop e6.1: its round is not over: the tool call c3 is still running",
        ),
        (
            vec![replace("e2.1", text("x"))],
            "edit 1 of 1, replace e2.1: a tool call can't be replaced; mask or drop it",
        ),
        (vec![replace("e5", text(" \n"))], "edit 1 of 1, replace e5: it is blank"),
        (
            vec![replace("e5", call("c9"))],
            "edit 1 of 1, replace e5: it may hold neither thinking nor tool calls",
        ),
        (vec![added(Role::User, text(""))], "edit 1 of 1, append: it is blank"),
        (
            vec![added(Role::Assistant, Content::ResourceLink { uri: "u".into(), name: "n".into() })],
            "edit 1 of 1, append: the agent's words can only be text",
        ),
        (vec![ViewEdit::Unpin { at: at("e1") }], "edit 1 of 1, unpin e1: it is not pinned"),
        (vec![pin("e1"), mask("e1", "")], "edit 2 of 2, mask e1: it is pinned"),
        (vec![pin("e2.1"), drop("e3")], "edit 2 of 2, drop e3: e2.1 goes with it, and that is pinned"),
        (
            vec![mask("e1", ""), pin("e1")],
            "edit 2 of 2, pin e1: a hook changed it, and a pin would restore the old text",
        ),
    ];
    let thread = thread();
    for (edits, expected) in cases {
        let refused = check(&thread, thread.view().revision(), MessageId(9), &edits);
        assert_eq!(refused.map_err(|why| why.to_string()), Err(expected.to_owned()), "{edits:?}");
    }
    let stale = check(&thread, Seq(4), MessageId(9), &[drop("e5")]);
    let expected = "it was made for the view of revision e4, which was changed since (now e0)";
    assert_eq!(stale.map_err(|why| why.to_string()), Err(expected.to_owned()));
    let many = vec![drop("e5"); EDITS_MAX + 1];
    assert!(
        check(&thread, Seq(0), MessageId(9), &many).is_err_and(|why| why.to_string().contains("at most 256"))
    );
}

/// A list is one change: a later edit may repair what an earlier one breaks.
#[test]
fn edits_are_checked_as_a_list() {
    let mut thread = thread();
    append(&mut thread, finished("c3", "three"));
    let all = [drop("e1"), drop("e2"), drop("e3"), drop("e4"), drop("e5"), drop("e6"), drop("e7")];
    let refused = check(&thread, Seq(0), MessageId(9), &all).expect_err("nothing would be left");
    assert_eq!(refused.to_string(), "edit 1 of 7, drop e1: nothing would be left in the view");
    let mut mended = all.to_vec();
    mended.push(added(Role::User, text("Begin anew.")));
    let edits = check(&thread, Seq(0), MessageId(9), &mended).expect("it is whole at the end");
    append(&mut thread, Change::Edited { by: "h".into(), edits });
    assert_eq!(seen(&thread), ["e8.1 Begin anew."]);
    assert_eq!(thread.next_message(), MessageId(10));
}

#[test]
fn pins_return_the_logged_text_however_often_the_view_changed() {
    let mut thread = thread();
    append(&mut thread, finished("c3", "three"));
    let pins =
        [ViewEdit::Pin { at: at("e2.2") }, ViewEdit::Pin { at: at("e4") }, ViewEdit::Pin { at: at("e1") }];
    append(&mut thread, Change::Edited { by: "h".into(), edits: pins.to_vec() });
    assert!(thread.last_layer().is_none(), "pins are nothing to be undone");
    append(&mut thread, Change::Edited { by: "h".into(), edits: vec![ViewEdit::Unpin { at: at("e4") }] });
    let spoken = vec![HistoryMessage { role: Role::User, message: message(vec![text("all anew")]) }];
    let made = mutation(&thread, Seq(0), MessageId(9), spoken, 0).expect("a history");
    let (through, messages) = (made.through, made.messages);
    let mutated = Change::Mutated {
        through,
        messages,
        by: "h".into(),
        tokens_before: 9,
        tokens_after: 1,
        window: None,
    };
    append(&mut thread, mutated);
    let pins: Vec<String> = thread.pins().iter().map(|(part, text)| format!("{part} {text}")).collect();
    assert_eq!(pins, ["e2.2 bash {\"n\":1}", "e1 go"]);
}

#[test]
fn a_new_history_keeps_complete_rounds() {
    let mut thread = thread();
    append(&mut thread, finished("c3", "three"));
    let spoken = |role, words: &str| vec![HistoryMessage { role, message: message(vec![text(words)]) }];
    // The newest messages, backwards: e7 (the outcome), e6, e5, e3 and e4 (one message), e2, e1.
    for (kept, begins) in
        [(0, None), (1, Some(6)), (2, Some(6)), (3, Some(5)), (4, Some(2)), (5, Some(2)), (9, Some(1))]
    {
        let made =
            mutation(&thread, Seq(0), MessageId(9), spoken(Role::User, "so far"), kept).expect("a history");
        let behind = thread.view().kept_after(made.through).first().map(|entry| entry.seq.0);
        assert_eq!(behind, begins, "{kept} kept");
    }
    let led =
        mutation(&thread, Seq(0), MessageId(9), spoken(Role::Assistant, "so far"), 0).expect("a history");
    let roles: Vec<(Role, MessageId)> =
        led.messages.iter().map(|spoken| (spoken.role, spoken.message.id)).collect();
    assert_eq!(roles, [(Role::User, MessageId(9)), (Role::Assistant, MessageId(10))]);

    for (messages, expected) in [
        (vec![], "the new history has no message"),
        (spoken(Role::System, " "), "message 1 of the new history: it is blank"),
    ] {
        let refused = mutation(&thread, Seq(0), MessageId(9), messages, 0);
        assert_eq!(refused.map_err(|why| why.to_string()), Err(expected.to_owned()));
    }
    let running = self::thread();
    let refused = mutation(&running, Seq(0), MessageId(9), spoken(Role::User, "x"), 0);
    assert_eq!(refused, Err(EditRefusal::CallRuns(CallId("c3".into()))));
}

/// Regression: a hook masked a summary that quoted a pin, and the model did not see the pinned text until the
/// next compaction.
#[test]
fn a_summary_that_quotes_a_pin_is_not_rewritten() {
    let mut thread = thread();
    append(&mut thread, finished("c3", "three"));
    append(&mut thread, Change::Edited { by: "you".into(), edits: vec![ViewEdit::Pin { at: at("e4") }] });
    let through = Seq(thread.next_seq().0 - 1);
    let pinned = thread.pins().remove(0).1;
    let summary = message(vec![text(&format!("So far. <pinned entry=\"e4\">\n{pinned}\n</pinned>"))]);
    let compaction = append(
        &mut thread,
        Change::Compacted {
            through,
            summary,
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 9,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Default::default(),
        },
    );
    let of_summary = compaction.to_string();
    for edit in [mask(&of_summary, ""), replace(&of_summary, text("Nothing so far."))] {
        let refused = check(&thread, thread.view().revision(), MessageId(20), &[edit]);
        assert!(refused.is_err_and(|why| why.to_string().ends_with("e4 goes with it, and that is pinned")));
    }
    let still_there = replace(&of_summary, text(&format!("In short: {pinned}")));
    assert!(check(&thread, thread.view().revision(), MessageId(20), &[still_there]).is_ok());
}

/// Regression: all calls with the id of the dropped one went, and the numbers of the others were wrong.
#[test]
fn of_calls_with_the_same_id_only_the_dropped_one_goes() {
    let mut thread = thread();
    let reply = append(&mut thread, replied(vec![text("Again."), call("d"), call("d"), call("e")]));
    append(&mut thread, finished("d", "one"));
    append(&mut thread, finished("e", "two"));
    let edits = vec![drop(&format!("{reply}.1"))];
    append(&mut thread, Change::Edited { by: "h".into(), edits });
    let shown = thread.view().entries().iter().find(|entry| entry.seq == reply).expect("it is shown");
    let ids: Vec<&str> = shown.change.calls().map(|call| call.id.0.as_str()).collect();
    assert_eq!(ids, ["d", "e"]);
}
