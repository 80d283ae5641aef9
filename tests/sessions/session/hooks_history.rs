//! Changes of the history by hooks, and their undo.

use epitome::session::{SessionAnswer, SessionEvent};
use epitome::thread::{Change, PartId, StopReason, Thread};
use epitome_scripted_model::{ModelStep, SeenPart};
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;
use serde_json::{Value, json};

use super::stage::{answers, count, flood, payload_fields, puppet, recorder, refused, sent, with_hooks};

fn mutated(change: &Change) -> bool {
    matches!(change, Change::Mutated { .. })
}

fn user(text: &str) -> SeenPart {
    SeenPart::User(text.into())
}

#[test]
fn the_next_model_call_uses_a_mutation_made_within_a_turn() {
    let mut test = with_hooks(
        &[("short", puppet("turn_end"))],
        &[],
        vec![vec![text("I look."), call(json!({}))], vec![text("Done.")]],
    );
    answers(&test, &json!({"result": "mutate", "messages": ["It was looked at."]}));
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    let requests = test.model.requests();
    assert_eq!(requests[1].seen(), [user("It was looked at.")]);
    test.client.entry(|change| mutated(change).then_some(()));
    // The client immediately receives the new context usage.
    test.client.until(|out| matches!(out, SessionEvent::Usage(_)).then_some(()));

    test.reload(test.environment());
    test.ask("And now?");
    let short = [user("It was looked at."), SeenPart::Agent("Done.".into()), user("And now?")];
    assert_eq!(test.last_request().seen(), short);

    test.ask("/undo");
    test.ask("Again");
    let seen = test.last_request().seen();
    assert_eq!(seen[0], user("Hello"));
    assert!(seen.iter().any(|seen| matches!(seen, SeenPart::Result { .. })), "{seen:?}");
    assert!(!format!("{seen:?}").contains("It was looked at."));
}

#[test]
fn a_mutation_at_the_stop_is_undone_byte_for_byte() {
    let mut test = with_hooks(&[("short", puppet("agent_stop"))], &[], vec![vec![text("One.")]]);
    test.ask("Hello");
    test.ask("Next");
    let before = Thread::replay(test.log()).expect("a log").view().clone();
    let plain = test.last_request().seen();
    answers(&test, &json!({"replace_messages": ["All was said."]}));
    test.ask("Third");
    assert_eq!(count(&test, mutated), 1);
    test.ask("Fourth");
    assert_eq!(test.last_request().seen(), [user("All was said."), user("Fourth")]);
    test.ask("/undo");
    test.ask("Fifth");
    assert_eq!(test.last_request().seen()[..plain.len()], plain);
    let after = Thread::replay(test.log()).expect("a log");
    let kept: Vec<_> =
        after.view().entries().iter().take(before.entries().len()).map(|entry| entry.seq).collect();
    assert_eq!(kept, before.entries().iter().map(|entry| entry.seq).collect::<Vec<_>>());
}

#[test]
fn the_newest_messages_may_be_kept_after_a_mutation() {
    let mut test =
        with_hooks(&[("short", puppet("agent_stop"))], &[], vec![vec![text("One.")], vec![text("Two.")]]);
    test.ask("First");
    answers(&test, &json!({"result": "mutate", "messages": ["Before."], "preserve_recent": 2}));
    test.ask("Second");
    test.ask("Third");
    let seen = [user("Before."), user("Second"), SeenPart::Agent("Two.".into()), user("Third")];
    assert_eq!(test.last_request().seen(), seen);
}

#[test]
fn an_unsendable_mutation_is_refused() {
    let config = "[models.\"anthropic/claude-sonnet-4-5\"]\ncontext_window = 20000\n";
    let config = format!("model = \"anthropic/claude-sonnet-4-5\"\n{config}");
    let mut test = with_hooks(&[("bad", puppet("agent_stop"))], &[("home/config.toml", &config)], Vec::new());
    for bad in [
        json!({"result": "mutate", "messages": []}),
        json!({"result": "mutate", "messages": [" "]}),
        json!({"result": "mutate", "messages": ["S"], "target_conversation_id": "s_another"}),
        json!({"result": "mutate", "messages": ["many words ".repeat(20_000)]}),
    ] {
        answers(&test, &bad);
        test.ask("Hello");
        assert_eq!(count(&test, mutated), 0, "{}", bad.to_string().chars().take(80).collect::<String>());
    }
    assert!(refused(&test).len() >= 2, "{:?}", refused(&test));
    test.ask("Next");
    assert!(test.last_request().seen().len() > 8, "the history is as it was");
}

/// The id, as hooks receive it, of the entry that contains this user message.
fn said(test: &TestSession, text: &str) -> String {
    let found = test.log().into_iter().find_map(|entry| match &entry.change {
        Change::Said { message, .. } if message.text() == text => Some(entry.seq),
        _ => None,
    });
    PartId { entry: found.expect("it was said"), part: None }.to_string()
}

#[test]
fn each_context_edit_has_its_effect() {
    type Check = fn(&str) -> bool;
    let cases: [(&str, Value, Check); 5] = [
        ("mask", json!({"note": "a secret"}), |sent| !sent.contains("walnut") && sent.contains("a secret")),
        ("replace", json!({"content": "a nut"}), |sent| !sent.contains("walnut") && sent.contains("a nut")),
        ("drop", json!({}), |sent| !sent.contains("walnut") && sent.contains("First")),
        ("pin", json!({}), |sent| sent.contains("walnut")),
        ("append", json!({"role": "user", "content": "Be brief."}), |sent| sent.contains("Be brief.")),
    ];
    for (op, fields, holds) in cases {
        let mut test = with_hooks(&[("edits", puppet("agent_stop"))], &[], Vec::new());
        test.ask("First");
        test.ask("The word is walnut");
        let mut edit = fields;
        edit["op"] = op.into();
        if op != "append" {
            edit["entry"] = said(&test, "The word is walnut").into();
        }
        answers(&test, &json!({"context_edits": [edit]}));
        test.ask("Third");
        assert_eq!(refused(&test), Vec::<String>::new(), "{op}");
        assert_eq!(count(&test, |change| matches!(change, Change::Edited { .. })), 1, "{op}");
        test.ask("Fourth");
        assert!(holds(&sent(&test)), "{op}: {}", sent(&test));
        let pinned = Thread::replay(test.log()).expect("a log").pinned();
        assert_eq!(pinned.len(), usize::from(op == "pin"));
    }
}

#[test]
fn edits_with_an_old_revision_or_an_unknown_entry_are_refused_entirely() {
    let mut test = with_hooks(&[("edits", puppet("agent_stop"))], &[], Vec::new());
    test.ask("The word is walnut");
    let id = said(&test, "The word is walnut");
    let mask = json!({"op": "mask", "entry": id, "note": "n"});
    for (revision, edits) in
        [(json!(99_999), json!([mask])), (Value::Null, json!([mask, {"op": "drop", "entry": "e99999"}]))]
    {
        answers(&test, &json!({"context_edits": edits, "revision": revision}));
        test.ask("Hello");
    }
    assert_eq!(
        (refused(&test).len(), count(&test, |change| matches!(change, Change::Edited { .. }))),
        (2, 0)
    );
    assert!(sent(&test).contains("walnut"));
}

fn compacted(change: &Change) -> bool {
    matches!(change, Change::Compacted { .. })
}

const NO_MODEL: (&str, &str) = ("home/config.toml", "[compaction]\nmodel = \"none\"\n");

/// Regression: hooks of the round's end see a compaction by command before it replaces the history. Their edits were
/// written to the log, and then the compaction that had been composed before them: it quoted the text that a hook had
/// just removed, and did not have the one that it had pinned.
#[test]
fn a_compaction_by_command_respects_the_edits_of_round_end_hooks() {
    let mut test = with_hooks(&[("edits", puppet("turn_end"))], &[NO_MODEL], vec![flood()]);
    test.ask("The key is walnut");
    test.ask("Remember the hazel");
    test.ask("Go on");
    let edits = json!([
        {"op": "replace", "entry": said(&test, "The key is walnut"), "content": "REDACTED"},
        {"op": "pin", "entry": said(&test, "Remember the hazel")},
    ]);
    answers(&test, &json!({ "context_edits": edits }));
    assert_eq!(test.ask("/compact"), StopReason::EndTurn);
    assert_eq!((count(&test, compacted), refused(&test)), (1, Vec::new()));
    test.ask("Next");
    let sent = sent(&test);
    assert!(sent.contains("REDACTED") && !sent.contains("walnut"), "{sent}");
    assert!(sent.contains("<pinned entry=") && sent.contains("hazel"), "{sent}");
}

/// Regression: as above, and a model had read the removed text when it wrote the summary. The summary is not used, but
/// its cost is recorded. A pin removes nothing, so the summary stays usable.
#[test]
fn a_summary_is_not_used_if_round_end_hooks_remove_what_it_was_written_from() {
    let summary =
        || vec![text("<summary>The key is walnut.</summary>"), ModelStep::Usage { input: 5_000, output: 7 }];
    let mut test = with_hooks(&[("edits", puppet("turn_end"))], &[], vec![flood(), summary(), summary()]);
    test.ask("The key is walnut");
    let entry = said(&test, "The key is walnut");
    answers(&test, &json!({"context_edits": [{"op": "replace", "entry": entry, "content": "REDACTED"}]}));
    let compact = test.prompt("/compact");
    let error = test.client.answer(compact).expect_err("nothing is replaced");
    assert!(error.to_string().contains("the conversation was changed"), "{error}");
    let spent = |change: &Change| matches!(change, Change::Spent { usage, .. } if usage.input == 5_000);
    assert_eq!((count(&test, compacted), count(&test, spent)), (0, 1));
    let entry = said(&test, "The key is walnut");
    answers(&test, &json!({"context_edits": [{"op": "pin", "entry": entry}]}));
    assert_eq!(test.ask("/compact"), StopReason::EndTurn);
    assert_eq!((count(&test, compacted), count(&test, spent)), (1, 1));
}

/// Regression: a hook of the round's end replaced the history instead of the compaction that the user had asked for. The
/// answer nevertheless reported the status "compacted", and the summary that had been paid for was in no entry.
#[test]
fn a_compaction_that_a_hook_replaces_is_not_reported_but_paid() {
    let summary =
        vec![text("<summary>Words were said.</summary>"), ModelStep::Usage { input: 5_000, output: 7 }];
    let mut test = with_hooks(&[("short", puppet("turn_end"))], &[], vec![flood(), summary]);
    test.ask("Say many words");
    answers(&test, &json!({"result": "mutate", "messages": ["It was looked at."]}));
    let compact = test.prompt("/compact");
    let Ok(SessionAnswer::TurnEnded { usage, meta, .. }) = test.client.answer(compact) else {
        panic!("it ends")
    };
    assert_eq!(meta, None);
    assert_eq!((count(&test, mutated), count(&test, compacted)), (1, 0));
    let spent = |change: &Change| matches!(change, Change::Spent { usage, .. } if usage.input == 5_000);
    assert_eq!(count(&test, spent), 1);
    assert_eq!(usage.input, 5_000, "once");
}

/// Regression: a hook replaced the history instead of `/compact`, and the turn went on with a prompt that had been sent in
/// the meantime. Hooks were given the unused summary as the model's reply to it.
#[test]
fn a_compaction_that_a_hook_replaces_leaves_no_summary_behind() {
    let summary = vec![text("<summary>A sum"), ModelStep::Wait, text("mary.</summary>")];
    let hooks = [("short", puppet("turn_end")), ("seen", recorder("turn_end"))];
    let mut test = with_hooks(&hooks, &[], vec![flood(), summary, vec![text("Answered.")]]);
    test.ask("Say many words");
    answers(&test, &json!({"result": "mutate", "messages": ["It was looked at."]}));
    let compact = test.prompt("/compact");
    test.client.entry(|change| matches!(change, Change::Commanded { .. }).then_some(()));
    let next = test.prompt("And this?");
    test.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    test.model.release();
    assert_eq!((test.reason(compact), test.reason(next)), (StopReason::EndTurn, StopReason::EndTurn));
    let responses = payload_fields(&test, "response");
    assert!(responses[1].contains("A summary."), "{responses:?}");
    assert_eq!(responses[2], "Answered.");
}
