//! `/why` for a small conversation with many changes.

use super::*;
use crate::reminders::logs_tests::message;
pub use crate::reminders::logs_tests::thread;
use epitome_thread::{HistoryMessage, HookRunResult, MessageId, ModelName, Role, StopReason, Usage};

fn run(hook: &str, asked: &str, verdict: HookRunResult, remarks: &[&str]) -> HookRun {
    HookRun {
        hook: hook.to_owned(),
        event: "turn_end".to_owned(),
        digest: "0123456789abcdef".to_owned(),
        milliseconds: 12,
        end: "exit 0".to_owned(),
        asked: asked.to_owned(),
        verdict,
        remarks: remarks.iter().map(|remark| (*remark).to_owned()).collect(),
        stderr: String::new(),
    }
}

fn ended(quiet_hooks: u32) -> Change {
    Change::TurnEnded { reason: StopReason::EndTurn, usage: Usage::default(), quiet_hooks, failure: None }
}

fn compacted(through: u64, trigger: Trigger) -> Change {
    Change::Compacted {
        through: Seq(through),
        summary: message("They sorted files."),
        trigger,
        focus: None,
        tokens_before: 4_000,
        tokens_after: 900,
        window: Some(200_000),
        model: Some(ModelName("anthropic/claude".into())),
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    }
}

/// e1 a prompt, e2 its reply, e5 a mutation by a hook; e7 and e10 compactions, the latter undone by e12;
/// e13 a prompt that a hook stopped.
pub fn long_story() -> Thread {
    let by = || "shrink".to_owned();
    let messages = vec![HistoryMessage { role: Role::User, message: message("Only this matters.") }];
    thread(vec![
        Change::Said { message: message("Sort the files."), origin: Origin::Person },
        Change::Replied {
            message: message("Sorted."),
            model: ModelName("anthropic/claude".into()),
            usage: None,
            cut: None,
        },
        Change::Edited { by: by(), edits: vec![ViewEdit::Pin { at: PartId { entry: Seq(2), part: None } }] },
        Change::Hooked {
            event: "turn_end".into(),
            runs: vec![run("shrink", "mutate with 1 message", HookRunResult::Done, &[])],
        },
        Change::Mutated {
            through: Seq(2),
            messages,
            by: by(),
            tokens_before: 12_000,
            tokens_after: 4_000,
            window: None,
        },
        ended(2),
        compacted(6, Trigger::Manual),
        ended(1),
        Change::Said { message: message("And the folders."), origin: Origin::Person },
        compacted(9, Trigger::Threshold),
        ended(0),
        Change::Undone { entry: Seq(10) },
        Change::Withheld {
            message: message("Delete all."),
            note: MessageId(9),
            why: Withheld::Blocked { hook: "guard".into(), reason: "not today".into() },
        },
        Change::Hooked {
            event: "user_message_send".into(),
            runs: vec![
                run("guard", "block", HookRunResult::Done, &["says: not today"]),
                run("shrink", "mutate with 2 messages", HookRunResult::Refused, &["one", "two", "three"]),
            ],
        },
        Change::Said { message: message("A hook's context"), origin: Origin::Context { by: by() } },
        ended(0),
    ])
}

#[test]
fn the_newest_comes_first() {
    assert_eq!(
        text(&long_story(), ""),
        "Newest first:\n\
         \n\
         - e14: guard at user_message_send: block, done (exit 0, 12 ms)\n\
         \x20 - says: not today\n\
         - e14: shrink at user_message_send: mutate with 2 messages, refused (exit 0, 12 ms)\n\
         \x20 - one\n\
         \x20 - two\n\
         \x20 - and 1 more remark\n\
         - e13: guard stopped the prompt \"Delete all.\": not today\n\
         - e12: you undid e10 (/undo)\n\
         - e10: compacted up to e9, context 4.0k → 900 of 200k; the window filled up; summary by \
         anthropic/claude (undone since)\n\
         - e7: compacted up to e6, context 4.0k → 900 of 200k; you asked for it; summary by \
         anthropic/claude\n\
         - e5: shrink replaced the history up to e2 by 1 message, 12.0k → 4.0k tokens\n\
         - e4: shrink at turn_end: mutate with 1 message, done (exit 0, 12 ms)\n\
         - e3: shrink edited the history: pin e2\n\
         \n\
         /why with an entry or a hook's name shows more."
    );
}

#[test]
fn an_entry_is_explained_with_its_origin_and_its_effects() {
    let thread = long_story();
    for (asked, wanted) in [
        (
            "e5",
            "e5: shrink replaced the history up to e2 by 1 message, 12.0k → 4.0k tokens.\n\
             \n\
             Hooks that asked for something in this turn:\n\
             \n\
             - e4: shrink at turn_end: mutate with 1 message, done (exit 0, 12 ms)\n\
             \n\
             The model no longer sees it: e7 summarised it. The log keeps all of it: `epitome sessions show \
             s_00000000000000000000 --full`.",
        ),
        (
            "e2",
            "e2 is a reply of anthropic/claude: Sorted.\n\
             \n\
             What happened to it since:\n\
             \n\
             - e3: shrink edited the history: pin e2\n\
             - e5: shrink replaced the history up to e2 by 1 message, 12.0k → 4.0k tokens\n\
             \n\
             The model no longer sees it: shrink replaced the history (e5). The log keeps all of \
             it: `epitome sessions show s_00000000000000000000 --full`.",
        ),
        (
            "e9",
            "e9 is your message: And the folders.\n\
             \n\
             What happened to it since:\n\
             \n\
             - e10: compacted up to e9, context 4.0k → 900 of 200k; the window filled up; summary by \
             anthropic/claude (undone since)\n\
             \n\
             The model sees it unchanged.",
        ),
        ("e6", "e6 is an entry of the kind turn_ended"),
        ("e99", "There is no entry e99; the newest is e16."),
    ] {
        assert_eq!(text(&thread, asked), wanted, "{asked}");
    }
}

#[test]
fn the_runs_of_a_hook_are_shown_in_full() {
    let shown = text(&long_story(), "shrink");
    assert_eq!(
        shown,
        "Runs of shrink that did or asked for something, newest first:\n\
         \n\
         - e14: shrink at user_message_send: mutate with 2 messages, refused (exit 0, 12 ms)\n\
         \x20 - one\n\
         \x20 - two\n\
         \x20 - three\n\
         \x20 - its version: 0123456789ab\n\
         - e4: shrink at turn_end: mutate with 1 message, done (exit 0, 12 ms)\n\
         \x20 - its version: 0123456789ab"
    );
    let unknown = text(&long_story(), "shrnk");
    assert!(unknown.contains("these did: guard, shrink"), "{unknown}");
}

#[test]
fn what_has_no_history_needs_no_explanation() {
    assert!(text(&thread(Vec::new()), "").starts_with("Nothing to explain"));
}

#[test]
fn a_long_trail_is_cut_and_says_where_the_rest_is() {
    let one = |_| Change::Hooked {
        event: "turn_end".into(),
        runs: vec![run("shrink", &"very ".repeat(500), HookRunResult::Done, &[])],
    };
    let thread = thread((0..100).map(one).collect());
    let shown = text(&thread, "");
    assert_eq!(shown.matches("\n- e").count(), SHOWN_MAX, "{shown}");
    assert!(shown.contains("epitome hooks log s_0000"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() < LINE_CHARS_MAX + 100), "{shown}");
}
