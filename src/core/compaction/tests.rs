//! Tests of the parts that a summary replaces, quotes, and must not restore.

pub(super) mod conversation;

use super::*;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, HistoryMessage, Mask, Message, MessageId,
    ModelName, Origin, OutcomeStatus, PartId, Role, Seq, SessionId, Thread, ToolCall, ToolOutcome, Trigger,
    ViewEdit, edits,
};
use epitome_tokens::Ruler;
use std::sync::Arc;

fn message(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

fn said(text: &str, origin: Origin) -> Change {
    Change::Said { message: message(text), origin }
}

fn replied(text: &str, call: Option<&str>) -> Change {
    let mut message = message(text);
    message.content.extend(call.map(|id| {
        let id = CallId(id.to_owned());
        let input = serde_json::json!({});
        Content::Call(ToolCall { id, name: "bash".into(), input, card: CallDisplay::default() })
    }));
    Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None }
}

fn append(thread: &mut Thread, change: Change) -> Seq {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
    seq
}

/// e1 is a prompt, e2 a long reply with a call, e3 its outcome, e4 a long reply, e5 a prompt, e6 a reply.
fn thread() -> Thread {
    let session = SessionId("s_00000000000000000001".into());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
    let mut thread = Thread::replay([opened]).expect("an opened thread");
    let done = ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Completed, "walnut ".repeat(100));
    for change in [
        said("the first request", Origin::Person),
        replied(&"many words ".repeat(400), Some("c1")),
        Change::ToolFinished { outcome: done },
        replied(&"more words ".repeat(400), None),
        said("the last request", Origin::Person),
        replied("Yes.", None),
    ] {
        append(&mut thread, change);
    }
    thread
}

fn compact(thread: &Thread, keep: KeptTail) -> Option<Change> {
    made(thread, through(thread, keep)).ok()
}

fn through(thread: &Thread, keep: KeptTail) -> Seq {
    thread.through(plan::start(thread, keep).expect("no share of the window"))
}

fn made(thread: &Thread, through: Seq) -> Result<Change, CompactionRefusal> {
    made_by(Trigger::Manual, thread, through)
}

fn made_by(trigger: Trigger, thread: &Thread, through: Seq) -> Result<Change, CompactionRefusal> {
    let plan = CompactionPlan {
        trigger,
        focus: None,
        revision: thread.view().revision(),
        through,
        masks: Vec::new(),
    };
    let budget = Budget::new(&Default::default(), 1_000_000, 0, 0);
    let written = Summary { text: Some("SUMMARY".into()), ..Summary::default() };
    let id = thread.next_message();
    compacted(&CompactionInput::new(&Ruler::for_model(None), thread, &budget), &plan, id, written)
}

fn summary_of(change: &Change) -> String {
    match change {
        Change::Compacted { summary, .. } => summary.text(),
        other => panic!("{} is no compaction", other.kind()),
    }
}

#[test]
fn the_summary_is_extracted_from_its_tags() {
    let cases = [
        ("<analysis>hm</analysis>\n<summary>\nA.\n</summary>", Some("A.")),
        ("<summary>cut off", Some("cut off")),
        ("<analysis>hm</analysis>\nA.", Some("A.")),
        ("<analysis>hm <summary> of it</analysis>\n<summary>\nA.\n</summary>", Some("A.")),
        ("<analysis>hm <summary> tag</analysis>", None),
        ("<analysis>cut off", None),
        ("<analysis>not closed\n<summary>A.</summary>", Some("A.")),
        (
            "<summary>The tags <analysis> and </analysis>.</summary>",
            Some("The tags <analysis> and </analysis>."),
        ),
        ("A.", Some("A.")),
        ("<summary> </summary>", None),
        ("", None),
    ];
    for (reply, summary) in cases {
        assert_eq!(extract(reply).as_deref(), summary, "{reply}");
    }
}

#[test]
fn the_kept_part_begins_with_a_complete_round_after_the_summary() {
    let cases: Vec<(KeptTail, Vec<u64>)> = vec![
        (KeptTail::Nothing, vec![7]),
        (KeptTail::Messages(0), vec![7]),
        (KeptTail::Messages(1), vec![7, 6]),
        (KeptTail::Messages(3), vec![7, 4, 5, 6]),
        // Hardly anything is replaced, but it was requested.
        (KeptTail::Messages(4), vec![7, 2, 3, 4, 5, 6]),
    ];
    for (keep, expected) in cases {
        let mut thread = thread();
        let before = Ruler::for_model(None).view(thread.view());
        let change = compact(&thread, keep).unwrap_or_else(|| panic!("{keep:?} gains something"));
        append(&mut thread, change.clone());
        let view: Vec<u64> = thread.view().entries().iter().map(|entry| entry.seq.0).collect();
        assert_eq!(view, expected, "{keep:?}");
        let Change::Compacted { tokens_before, tokens_after, .. } = change else { unreachable!() };
        assert_eq!(
            (tokens_before, tokens_after),
            (before, Ruler::for_model(None).view(thread.view())),
            "{keep:?}"
        );
    }
}

#[test]
fn the_last_request_is_quoted_if_it_would_leave_the_view() {
    let thread = thread();
    let whole = summary_of(&compact(&thread, KeptTail::Nothing).expect("a gain"));
    assert!(whole.contains("<last_request>\nthe last request\n</last_request>"), "{whole}");
    let kept = summary_of(&compact(&thread, KeptTail::Messages(2)).expect("a gain"));
    assert!(!kept.contains("last_request"), "{kept}");
}

/// Messages from hooks are not the user's request.
#[test]
fn context_and_follow_ups_are_not_the_last_request() {
    let mut thread = thread();
    append(&mut thread, said("lint it", Origin::Hook { hook: "lint".into() }));
    append(&mut thread, said("British spelling", Origin::Context { by: "style".into() }));
    let summary = summary_of(&compact(&thread, KeptTail::Nothing).expect("a gain"));
    assert!(summary.contains("<last_request>\nthe last request\n"), "{summary}");
}

/// The quote is taken from the log, which still contains a masked secret.
#[test]
fn a_request_masked_by_a_hook_is_not_restored_by_its_quote() {
    let at = PartId { entry: Seq(5), part: None };
    let edit = |edit: ViewEdit| {
        let mut thread = thread();
        append(&mut thread, Change::Edited { by: "h".into(), edits: vec![edit] });
        thread
    };
    let masked = edit(ViewEdit::Mask { at, note: String::new() });
    let summary = summary_of(&compact(&masked, KeptTail::Nothing).expect("a gain"));
    assert!(summary.contains("<last_request>\n[masked by h; entry e5]\n"), "{summary}");
    let dropped = edit(ViewEdit::Drop { at });
    let summary = summary_of(&compact(&dropped, KeptTail::Nothing).expect("a gain"));
    assert!(!summary.contains("last request"), "{summary}");

    let mut again = masked;
    let first = compact(&again, KeptTail::Nothing).expect("a gain");
    append(&mut again, first);
    append(&mut again, replied(&"words ".repeat(400), None));
    let summary = summary_of(&compact(&again, KeptTail::Nothing).expect("a gain"));
    assert!(!summary.contains("the last request"), "{summary}");

    let mut swapped = thread();
    let spoken = vec![HistoryMessage { role: Role::User, message: message(&"so far ".repeat(400)) }];
    let made = edits::mutation(&swapped, Seq(0), MessageId(9), spoken, 0).expect("a history");
    let change = mutated(&Ruler::for_model(None), &swapped, made, "swap".into(), 100_000).expect("it fits");
    append(&mut swapped, change);
    let summary = summary_of(&compact(&swapped, KeptTail::Nothing).expect("a gain"));
    assert!(!summary.contains("the last request"), "{summary}");
}

#[test]
fn pins_and_the_goal_survive_repeated_compactions_byte_for_byte() {
    let mut thread = thread();
    let pins = ["e1", "e3"].map(|at| ViewEdit::Pin { at: at.parse().expect("a part's id") });
    append(&mut thread, Change::Edited { by: "h".into(), edits: pins.to_vec() });
    append(&mut thread, Change::GoalSet { goal: Some("all <green>".into()) });
    let walnuts = "walnut ".repeat(100);
    for _ in 0..3 {
        let change = compact(&thread, KeptTail::Nothing).expect("a gain");
        let summary = summary_of(&change);
        append(&mut thread, change);
        assert!(summary.contains("<goal>\nall <green>\n</goal>"), "{summary}");
        assert!(summary.contains("<pinned entry=\"e1\">\nthe first request\n</pinned>"), "{summary}");
        assert!(summary.contains(&format!("<pinned entry=\"e3\">\n{walnuts}\n</pinned>")), "{summary}");
        append(&mut thread, replied(&"again ".repeat(800), None));
    }
    // A pin that stays in the view is not repeated.
    let pin = ViewEdit::Pin { at: PartId { entry: thread.next_seq(), part: None } };
    append(&mut thread, said("kept", Origin::Person));
    append(&mut thread, Change::Edited { by: "h".into(), edits: vec![pin] });
    let summary = summary_of(&compact(&thread, KeptTail::Messages(1)).expect("a gain"));
    assert!(summary.contains("the first request") && !summary.contains("kept\n</pinned>"), "{summary}");
}

#[test]
fn a_history_that_does_not_fit_is_refused_with_both_sizes() {
    let thread = thread();
    let spoken = vec![HistoryMessage { role: Role::User, message: message(&"so far ".repeat(40)) }];
    let made = edits::mutation(&thread, Seq(0), MessageId(9), spoken, 2).expect("a history");
    let change =
        mutated(&Ruler::for_model(None), &thread, made.clone(), "swap".into(), 100_000).expect("it fits");
    let Change::Mutated { tokens_before, tokens_after, .. } = change else { unreachable!() };
    assert_eq!(tokens_before, Ruler::for_model(None).view(thread.view()));
    let refused = mutated(&Ruler::for_model(None), &thread, made, "swap".into(), tokens_after - 1)
        .expect_err("one too many");
    assert_eq!(refused, CompactionRefusal::HistoryTooLong { tokens: tokens_after, room: tokens_after - 1 });
}

#[test]
fn the_flat_text_of_a_replaced_part_excludes_the_kept_part() {
    let thread = thread();
    let through = through(&thread, KeptTail::Messages(2));
    let replaced = thread.view().replaced_by(through);
    let flat = flat(&replaced, 1_000_000);
    assert!(flat.contains("the first request") && !flat.contains("the last request"), "{flat}");
}

#[test]
fn pins_that_prevent_any_gain_are_named() {
    let mut thread = thread();
    let at = PartId { entry: Seq(2), part: None };
    append(&mut thread, Change::Edited { by: "h".into(), edits: vec![ViewEdit::Pin { at }] });
    let at = PartId { entry: Seq(4), part: None };
    append(&mut thread, Change::Edited { by: "h".into(), edits: vec![ViewEdit::Pin { at }] });
    let through = through(&thread, KeptTail::Nothing);
    let why = made_by(Trigger::Threshold, &thread, through).expect_err("pins take nearly all");
    let why = why.to_string();
    assert!(why.contains("e2, e4") && why.contains("unpin"), "{why}");
    let too_large = pins_too_large(&Ruler::for_model(None), &thread, 100).expect("more than 100 tokens");
    assert!(too_large.contains("e2, e4") && too_large.contains("may take 100"), "{too_large}");
    assert_eq!(pins_too_large(&Ruler::for_model(None), &thread, 1_000_000), None);
}

/// Regression: the message was cut in place, but the cut was not counted, so there seemed to be no gain. No
/// compaction was made, and every later prompt failed as well.
#[test]
fn a_message_larger_than_the_window_is_cut_in_place() {
    let mut thread = thread();
    let large = append(&mut thread, said(&"word ".repeat(12_000), Origin::Person));
    let ruler = Ruler::for_model(None);
    let masks = vec![Mask { entry: large, text: "word … word".into() }];
    let made = pruned(&ruler, &thread, masks, Trigger::Must);
    let Change::Pruned { tokens_before, tokens_after, .. } = &made else { panic!("it is {}", made.kind()) };
    assert_eq!(*tokens_before, ruler.view(thread.view()));
    let promised = *tokens_after;
    append(&mut thread, made);
    assert_eq!(ruler.view(thread.view()), promised);
}
