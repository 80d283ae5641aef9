//! Changes of the history by hooks, and their undo.

use epitome::session::Out;
use epitome::thread::{Change, Part, StopReason, Thread};
use epitome_scripted_model::Seen;
use serde_json::{Value, json};

use super::desk::{Desk, call, text};
use super::stage::{answers, count, puppet, refused, sent, with_hooks};

fn mutated(change: &Change) -> bool {
    matches!(change, Change::Mutated { .. })
}

fn user(text: &str) -> Seen {
    Seen::User(text.into())
}

#[test]
fn the_next_model_call_uses_a_mutation_made_within_a_turn() {
    let mut desk = with_hooks(
        &[("short", puppet("turn_end"))],
        &[],
        vec![vec![text("I look."), call(json!({}))], vec![text("Done.")]],
    );
    answers(&desk, &json!({"result": "mutate", "messages": ["It was looked at."]}));
    assert_eq!(desk.ask("Hello"), StopReason::EndTurn);
    let requests = desk.model.requests();
    assert_eq!(requests[1].seen(), [user("It was looked at.")]);
    desk.client.entry(|change| mutated(change).then_some(()));
    // The client immediately receives the new usage of the window.
    desk.client.until(|out| matches!(out, Out::Usage(_)).then_some(()));

    desk.reload(desk.environment());
    desk.ask("And now?");
    let short = [user("It was looked at."), Seen::Agent("Done.".into()), user("And now?")];
    assert_eq!(desk.last_request().seen(), short);

    desk.ask("/undo");
    desk.ask("Again");
    let seen = desk.last_request().seen();
    assert_eq!(seen[0], user("Hello"));
    assert!(seen.iter().any(|seen| matches!(seen, Seen::Result { .. })), "{seen:?}");
    assert!(!format!("{seen:?}").contains("It was looked at."));
}

#[test]
fn a_mutation_at_the_stop_is_undone_byte_for_byte() {
    let mut desk = with_hooks(&[("short", puppet("agent_stop"))], &[], vec![vec![text("One.")]]);
    desk.ask("Hello");
    desk.ask("Next");
    let before = Thread::replay(desk.log()).expect("a log").view().clone();
    let plain = desk.last_request().seen();
    answers(&desk, &json!({"replace_messages": ["All was said."]}));
    desk.ask("Third");
    assert_eq!(count(&desk, mutated), 1);
    desk.ask("Fourth");
    assert_eq!(desk.last_request().seen(), [user("All was said."), user("Fourth")]);
    desk.ask("/undo");
    desk.ask("Fifth");
    assert_eq!(desk.last_request().seen()[..plain.len()], plain);
    let after = Thread::replay(desk.log()).expect("a log");
    let kept: Vec<_> =
        after.view().entries().iter().take(before.entries().len()).map(|entry| entry.seq).collect();
    assert_eq!(kept, before.entries().iter().map(|entry| entry.seq).collect::<Vec<_>>());
}

#[test]
fn the_newest_messages_may_be_kept_after_a_mutation() {
    let mut desk =
        with_hooks(&[("short", puppet("agent_stop"))], &[], vec![vec![text("One.")], vec![text("Two.")]]);
    desk.ask("First");
    answers(&desk, &json!({"result": "mutate", "messages": ["Before."], "preserve_recent": 2}));
    desk.ask("Second");
    desk.ask("Third");
    let seen = [user("Before."), user("Second"), Seen::Agent("Two.".into()), user("Third")];
    assert_eq!(desk.last_request().seen(), seen);
}

#[test]
fn an_unsendable_mutation_is_refused() {
    let config = "[models.\"anthropic/claude-sonnet-4-5\"]\ncontext_window = 20000\n";
    let config = format!("model = \"anthropic/claude-sonnet-4-5\"\n{config}");
    let mut desk = with_hooks(&[("bad", puppet("agent_stop"))], &[("home/config.toml", &config)], Vec::new());
    for bad in [
        json!({"result": "mutate", "messages": []}),
        json!({"result": "mutate", "messages": [" "]}),
        json!({"result": "mutate", "messages": ["S"], "target_conversation_id": "s_another"}),
        json!({"result": "mutate", "messages": ["many words ".repeat(20_000)]}),
    ] {
        answers(&desk, &bad);
        desk.ask("Hello");
        assert_eq!(count(&desk, mutated), 0, "{}", bad.to_string().chars().take(80).collect::<String>());
    }
    assert!(refused(&desk).len() >= 2, "{:?}", refused(&desk));
    desk.ask("Next");
    assert!(desk.last_request().seen().len() > 8, "the history is as it was");
}

/// The id, as hooks receive it, of the entry with this user message.
fn said(desk: &Desk, text: &str) -> String {
    let found = desk.log().into_iter().find_map(|entry| match &entry.change {
        Change::Said { message, .. } if message.text() == text => Some(entry.seq),
        _ => None,
    });
    Part { entry: found.expect("it was said"), part: None }.to_string()
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
        let mut desk = with_hooks(&[("edits", puppet("agent_stop"))], &[], Vec::new());
        desk.ask("First");
        desk.ask("The word is walnut");
        let mut edit = fields;
        edit["op"] = op.into();
        if op != "append" {
            edit["entry"] = said(&desk, "The word is walnut").into();
        }
        answers(&desk, &json!({"context_edits": [edit]}));
        desk.ask("Third");
        assert_eq!(refused(&desk), Vec::<String>::new(), "{op}");
        assert_eq!(count(&desk, |change| matches!(change, Change::Edited { .. })), 1, "{op}");
        desk.ask("Fourth");
        assert!(holds(&sent(&desk)), "{op}: {}", sent(&desk));
        let pinned = Thread::replay(desk.log()).expect("a log").pinned();
        assert_eq!(pinned.len(), usize::from(op == "pin"));
    }
}

#[test]
fn edits_with_an_old_revision_or_an_unknown_entry_are_refused_entirely() {
    let mut desk = with_hooks(&[("edits", puppet("agent_stop"))], &[], Vec::new());
    desk.ask("The word is walnut");
    let id = said(&desk, "The word is walnut");
    let mask = json!({"op": "mask", "entry": id, "note": "n"});
    for (revision, edits) in
        [(json!(99_999), json!([mask])), (Value::Null, json!([mask, {"op": "drop", "entry": "e99999"}]))]
    {
        answers(&desk, &json!({"context_edits": edits, "revision": revision}));
        desk.ask("Hello");
    }
    assert_eq!(
        (refused(&desk).len(), count(&desk, |change| matches!(change, Change::Edited { .. }))),
        (2, 0)
    );
    assert!(sent(&desk).contains("walnut"));
}
