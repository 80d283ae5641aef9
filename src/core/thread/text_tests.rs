//! Threads rendered for the user.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    CallDisplay, FORMAT_VERSION, HistoryMessage, HookRun, HookRunResult, MessageId, ModelName, OutcomeStatus,
    PartId, SessionId, StopReason, ToolCall, ToolKind, Trigger, Usage, Withheld,
};

fn message(id: u64, content: Vec<Content>) -> Message {
    Message { id: MessageId(id), content, author: None }
}

fn words(text: &str) -> Vec<Content> {
    vec![Content::Text { text: text.to_owned() }]
}

fn thread(changes: Vec<Change>) -> Thread {
    let opened = Change::Opened {
        format: FORMAT_VERSION,
        session: SessionId("s_00000000000000000001".to_owned()),
        cwd: "/w".into(),
    };
    let entries = std::iter::once(opened)
        .chain(changes)
        .enumerate()
        .map(|(seq, change)| Arc::new(Entry { seq: Seq(seq as u64), at: 0, change }));
    Thread::replay(entries).expect("a log in order")
}

fn a_read() -> Vec<Change> {
    let call = ToolCall {
        id: CallId("c1".to_owned()),
        name: "file_read".to_owned(),
        input: json!({ "path": "a.txt" }),
        card: CallDisplay { title: "Read a.txt".to_owned(), kind: ToolKind::Read, locations: Vec::new() },
    };
    let mut reply = words("I look.");
    reply.push(Content::Call(call));
    vec![
        Change::Titled { title: "What is in a.txt?".to_owned() },
        Change::Said { message: message(0, words("What is in a.txt?")), origin: Origin::Person },
        Change::Replied {
            message: message(1, reply),
            model: ModelName("local/small".to_owned()),
            usage: None,
            cut: None,
        },
        Change::ToolFinished {
            outcome: ToolOutcome::text(
                CallId("c1".to_owned()),
                OutcomeStatus::Completed,
                "1\n2\n3\n4\n5\n6\n7\n8",
            ),
        },
    ]
}

#[test]
fn a_call_is_shown_with_its_outcome() {
    let text = readable(&thread(a_read()), DetailLevel::Short);
    let expected = "\
s_00000000000000000001  What is in a.txt?
/w · mode ask · 5 entries

e2  you
  What is in a.txt?

e3  agent (local/small)
  I look.
  ● Read a.txt → completed
    1
    2
    3
    4
    5
    6
    … 2 more lines

The model sees all of it: e2 to e4.
";
    assert_eq!(text, expected);
}

#[test]
fn entries_that_left_the_view_are_shown_and_marked() {
    let mut changes = a_read();
    changes.push(Change::Compacted {
        through: Seq(4),
        summary: message(2, words("a.txt counts to 8")),
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 12_400,
        tokens_after: 900,
        window: None,
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    });
    changes.push(Change::TurnEnded {
        reason: StopReason::EndTurn,
        usage: Usage::default(),
        quiet_hooks: 0,
        failure: None,
    });
    let text = readable(&thread(changes.clone()), DetailLevel::Full);
    assert!(text.contains("e2  you  [left the view]\n  What is in a.txt?"), "{text}");
    assert!(text.contains("e5  Compacted: 12.4k → 900 tokens."), "{text}");
    assert!(text.ends_with("The model sees e5. Left the view: e2 to e4.\n"), "{text}");

    changes.push(Change::Undone { entry: Seq(5) });
    let text = readable(&thread(changes), DetailLevel::Full);
    assert!(text.contains("e5  Compacted: 12.4k → 900 tokens."), "{text}");
    assert!(text.contains("[no longer in the view]"), "{text}");
    assert!(text.ends_with("The model sees e2 to e4. Left the view: e5.\n"), "{text}");
}

#[test]
fn hook_runs_are_shown_where_they_happened() {
    let mut changes = a_read();
    let origin = Origin::Context { by: "style".to_owned() };
    changes.insert(2, Change::Said { message: message(7, words("British spelling.")), origin });
    let at = PartId { entry: Seq(5), part: None };
    let run = HookRun {
        hook: "guard".to_owned(),
        event: "Stop".to_owned(),
        milliseconds: 12,
        end: "exit 0".to_owned(),
        asked: "block".to_owned(),
        verdict: HookRunResult::Done,
        remarks: vec!["a banner".to_owned()],
        ..HookRun::default()
    };
    changes.extend([
        Change::Edited {
            by: "tidy".to_owned(),
            edits: vec![
                ViewEdit::Mask { at, note: "long".to_owned() },
                ViewEdit::Append { role: Role::User, message: message(8, words("Go on.")) },
            ],
        },
        Change::Said {
            message: message(9, words("Please run the linter.")),
            origin: Origin::Hook { hook: "lint".to_owned() },
        },
        Change::Withheld {
            message: message(10, words("The key is sk-1.")),
            note: MessageId(11),
            why: Withheld::Blocked { hook: "guard".to_owned(), reason: "That is a secret.".to_owned() },
        },
        Change::Hooked { event: "agent_stop".to_owned(), runs: vec![run] },
        Change::GoalSet { goal: Some("all green".to_owned()) },
        Change::Mutated {
            through: Seq(6),
            messages: vec![HistoryMessage { role: Role::User, message: message(12, words("so far")) }],
            by: "swap".to_owned(),
            tokens_before: 12_400,
            tokens_after: 900,
            window: None,
        },
    ]);
    let text = readable(&thread(changes.clone()), DetailLevel::Short);
    let expected = "
e6  History edited by tidy: 1 masked, 1 appended; /undo undoes it.
    mask e5: long
    append: user: Go on.

e7  the hook lint
  Please run the linter.

e8  you  [withheld]
  The key is sk-1.
  That is a secret.

e9  hooks, agent_stop
  guard (Stop, 12 ms, exit 0) asked for block: done
    a banner

e10  Goal: all green

e11  History replaced by swap: 12.4k → 900 tokens; /undo undoes it.
    user: so far

The model sees e7, e11. Left the view: e2 to e6.
";
    assert!(text.ends_with(expected), "{text}");
    assert!(text.contains("e3  context, from style  [left the view]\n"), "{text}");

    changes.pop();
    let text = readable(&thread(changes.clone()), DetailLevel::Short);
    assert!(text.ends_with("The model sees all of it: e2 to e7.\n"), "{text}");
    let markdown = markdown(&thread(changes));
    for words in ["## Context, from style", "## The hook lint", "*That is a secret.*", "*Goal: all green*"] {
        assert!(markdown.contains(words), "{words} in {markdown}");
    }
}

#[test]
fn markdown_keeps_fences_of_an_output_inside_its_own() {
    let mut changes = a_read();
    if let Some(Change::ToolFinished { outcome }) = changes.last_mut() {
        *outcome = ToolOutcome::text(outcome.call.clone(), OutcomeStatus::Failed, "```\nx\n```");
    }
    let text = markdown(&thread(changes));
    assert!(text.contains("# What is in a.txt?"), "{text}");
    assert!(text.contains("**Read a.txt** → failed"), "{text}");
    assert!(text.contains("````\n```\nx\n```\n````"), "{text}");
}

#[test]
fn attachments_are_named_in_texts_and_their_bytes_are_not_shown() {
    let attached = vec![
        Content::Text { text: "Look.".into() },
        Content::Image { mime_type: "image/png".into(), data: "iVBORw0K".into(), uri: None },
        Content::Document {
            mime_type: "application/pdf".into(),
            data: "JVBERi0x".into(),
            name: Some("plan.pdf".into()),
        },
    ];
    let thread = thread(vec![Change::Said { message: message(0, attached), origin: Origin::Person }]);
    for text in [markdown(&thread), readable(&thread, DetailLevel::Full)] {
        assert!(text.contains("[image, image/png]"), "{text}");
        assert!(text.contains("[document, application/pdf, plan.pdf]"), "{text}");
        assert!(!text.contains("iVBOR") && !text.contains("JVBER"), "{text}");
    }
}

#[test]
fn call_titles_are_one_line_with_the_tool_name_for_commands() {
    let cases = [
        ("bash", "cargo test", ToolKind::Execute, "bash cargo test"),
        ("bash", "a\nb", ToolKind::Execute, "bash a …"),
        ("file_read", "Read a.txt", ToolKind::Read, "Read a.txt"),
        ("grep_tool", "", ToolKind::Search, "grep_tool"),
    ];
    for (tool, title_text, kind, expected) in cases {
        let card = CallDisplay { title: title_text.to_owned(), kind, locations: Vec::new() };
        assert_eq!(title(tool, &card), expected);
    }
}

#[test]
fn usage_includes_the_cached_share() {
    let usage = Usage { input: 12_400, output: 950, cache_read: 10_540, ..Usage::default() };
    assert_eq!(spent(&usage, Some(0.01234)), "12.4k tokens in (85 % from the cache), 950 out, $0.0123");
    assert_eq!(spent(&Usage::default(), None), "0 tokens in, 0 out");
}

#[test]
fn tokens_are_short() {
    let cases = [(0, "0"), (999, "999"), (1_000, "1.0k"), (999_949, "999.9k"), (1_200_000, "1.2M")];
    for (count, expected) in cases {
        assert_eq!(tokens(count), expected);
    }
}

/// Regression: entries shortened by Epitome were attributed to a hook.
#[test]
fn shortened_outcomes_are_marked_and_full_detail_shows_all_of_them() {
    let mut changes = a_read();
    for change in &mut changes {
        if let Change::ToolFinished { outcome } = change {
            outcome.whole = Some("all of the output".to_owned());
        }
    }
    let outcome = changes.iter().position(|change| matches!(change, Change::ToolFinished { .. }));
    let entry = Seq(outcome.expect("a read has an outcome") as u64 + 1);
    let masks = vec![crate::Mask { entry, text: "[shorter]".to_owned() }];
    let before = thread(changes.clone());
    changes.push(Change::Pruned {
        masks,
        trigger: Trigger::Threshold,
        tokens_before: 9,
        tokens_after: 1,
        window: None,
    });
    let shown = readable(&thread(changes), DetailLevel::Full);
    assert!(shown.contains("→ completed  [shortened in the view]\n"), "{shown}");
    assert!(shown.contains("all of the output") && !shown.contains("by a hook"), "{shown}");
    assert!(!readable(&before, DetailLevel::Short).contains("all of the output"));
}
