//! Recipes and functions that hooks call: their input, and the use of their output.

use std::sync::Arc;

use epitome::hooks::functions::{CallbackInput, CallbackOutput, Functions};
use epitome::hooks::output::Utterance;
use epitome::session::{SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{Change, HookRunResult, Origin, Role, StopReason};
use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::{in_turn, text};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::stage::{
    answers, count, payload_fields, payloads, puppet, recorder, refused, sent, stage, trail, with_hooks,
};

const MAIN_STOP: &str = r#"{"protocol": 2, "events": ["agent_stop"], "match": {"invoked_by": ["main"]}}"#;

fn recipe(fields: &str) -> String {
    format!(
        "---\ndescription: Notes\n{fields}\n---\nWrite a note{{{{if .about}}}} about {{{{.about}}}}{{{{end}}}}.\n"
    )
}

/// A session with a recipe `note` that has these fields, a puppet hook, and a model that replies "A note." to the
/// recipe.
fn with_note(fields: &str) -> TestSession {
    let note = recipe(fields);
    stage(
        &[("asks", puppet(MAIN_STOP)), ("audit", recorder(r#"{"protocol": 2, "events": ["turn_end"]}"#))],
        &[("home/recipes/note.md", &note)],
        Functions::default(),
        |request: &RecordedRequest| match request.last_user_text().starts_with("Write a note") {
            true => vec![text("A note.")],
            false => vec![text("Well.")],
        },
    )
}

fn calls(name: &str) -> Value {
    json!({"result": "callback", "callback": name})
}

#[test]
fn a_recipes_reply_is_used_as_its_output_field_declares() {
    type Check = fn(&[SeenPart]) -> bool;
    let cases: [(&str, Check); 4] = [
        ("message", |seen| {
            seen.contains(&SeenPart::User("A note.".into())) && seen.contains(&SeenPart::User("Hello".into()))
        }),
        ("append", |seen| {
            format!("{seen:?}").contains("context from") && format!("{seen:?}").contains("A note.")
        }),
        ("mutate", |seen| *seen == [SeenPart::User("A note.".into()), SeenPart::User("Next".into())]),
        ("none", |seen| !format!("{seen:?}").contains("A note.") && seen.len() == 3),
    ];
    for (output, holds) in cases {
        let mut test = with_note(&format!("allowed_tools: []\noutput: {output}"));
        answers(&test, &calls("note"));
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        assert_eq!(test.model.requests().len(), 2, "{output}");
        test.ask("Next");
        let seen = test.last_request().seen();
        assert!(holds(&seen), "{output}: {seen:?}");
        let run = trail(&test).into_iter().find(|run| run.hook == "asks").expect("it asked");
        assert_eq!((run.verdict, run.asked.as_str()), (HookRunResult::Done, "callback note"));
    }
}

#[test]
fn hooks_in_a_callback_receive_recipe_depth_and_arguments() {
    let mut test = with_note("allowed_tools: []\noutput: none\narguments:\n  about: {description: a}");
    answers(
        &test,
        &json!({"result": "callback", "callback": "note", "callback_args": {"about": "tea", "n": 3}}),
    );
    test.ask("Hello");
    assert_eq!(payload_fields(&test, "invoked_by"), ["main", "subagent"]);
    let child = &payloads(&test)[1];
    assert_eq!((&child["callback_depth"], &child["invoked_recipe"]), (&json!(1), &json!("note")));
    assert_eq!(child["callback_args"], json!({"about": "tea", "n": "3"}));
    assert_eq!(test.last_request().last_user_text(), "Write a note about tea.");
}

/// Regression: arguments that the recipe did not declare were dropped.
#[test]
fn a_callbacks_arguments_need_no_declaration() {
    let mut test = with_note("allowed_tools: []\noutput: none");
    answers(&test, &json!({"result": "callback", "callback": "note", "callback_args": {"about": "tea"}}));
    test.ask("Hello");
    assert_eq!(test.last_request().last_user_text(), "Write a note about tea.");
}

#[test]
fn a_recipe_with_tools_asks_the_user_of_its_parent() {
    let note = recipe("output: append");
    let mut replies = vec![
        vec![text("Well.")],
        vec![call(json!({"asks": "person", "says": "asked"}))],
        vec![text("A note.")],
    ]
    .into_iter();
    let mut test = stage(
        &[("asks", puppet(MAIN_STOP))],
        &[("home/recipes/note.md", &note)],
        Functions::default(),
        move |_| replies.next().unwrap_or_else(|| vec![text("ok")]),
    );
    answers(&test, &calls("note"));
    let ticket = test.prompt("Hello");
    let (ask, permission) = test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.clone())),
        _ => None,
    });
    assert!(permission.card.title.starts_with("note: "), "{}", permission.card.title);
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert!(sent(&test).contains("asked"));
    test.ask("Next");
    assert!(sent(&test).contains("A note."));
}

#[test]
fn cancelling_withdraws_the_permission_request_of_a_callback() {
    let note = recipe("output: append");
    let mut test = stage(
        &[("asks", puppet(MAIN_STOP))],
        &[("home/recipes/note.md", &note)],
        Functions::default(),
        in_turn(vec![vec![text("Well.")], vec![call(json!({"asks": "person"}))]]),
    );
    answers(&test, &calls("note"));
    let ticket = test.prompt("Hello");
    let ask = test.client.until(|out| match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    test.client.until(|out| {
        matches!(out, SessionEvent::Withdrawn { ask: withdrawn } if *withdrawn == ask).then_some(())
    });
    assert_eq!(test.ask("Next"), StopReason::EndTurn);
    assert!(sent(&test).contains("Well."), "the reply stays");
}

#[test]
fn an_invalid_callback_is_refused_with_a_reason() {
    for (fields, name, why) in [
        ("allowed_tools: []", "nothing", "\"nothing\""),
        ("callable_by: [user]", "note", "callable_by"),
        ("arguments:\n  about: {description: a, required: true}", "note", "about"),
    ] {
        let mut test = with_note(fields);
        answers(&test, &calls(name));
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        assert!(refused(&test)[0].contains(why), "{:?}", refused(&test));
        assert_eq!(test.model.requests().len(), 1);
    }
}

/// The hook also runs when the recipe itself stops, and requests the recipe again.
#[test]
fn a_callback_calls_no_other() {
    let always =
        json!({"events": ["agent_stop"], "then": {"result": "callback", "callback": "note"}}).to_string();
    let note = recipe("allowed_tools: []\noutput: none");
    let mut test = with_hooks(
        &[("always.json", always), ("audit", recorder(r#"{"protocol": 2, "events": ["agent_stop"]}"#))],
        &[("home/recipes/note.md", &note)],
        Vec::new(),
    );
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    assert_eq!(test.model.requests().len(), 2);
    assert_eq!(payload_fields(&test, "callback_depth"), ["0", "1"]);
    // If the user calls the recipe, its own stop does not start it again.
    assert_eq!(test.ask("/note"), StopReason::EndTurn);
    assert_eq!(test.model.requests().len(), 3);
    assert!(refused(&test).iter().any(|why| why.contains("running already")), "{:?}", refused(&test));
}

#[test]
fn a_callback_that_times_out_or_is_cancelled_changes_nothing() {
    let note = recipe("allowed_tools: []\noutput: mutate");
    let hangs = |request: &RecordedRequest| match request.last_user_text().starts_with("Write a note") {
        true => vec![ModelStep::Hang],
        false => vec![text("Well.")],
    };
    let mut test = stage(
        &[("asks", puppet(MAIN_STOP))],
        &[("home/recipes/note.md", &note), ("home/config.toml", "[hooks]\ncallback_timeout_s = 1\n")],
        Functions::default(),
        hangs,
    );
    answers(&test, &calls("note"));
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    assert!(refused(&test)[0].contains("within 1 s"), "{:?}", refused(&test));

    let begun = Arc::new(Semaphore::new(0));
    let signal = begun.clone();
    let mut test = stage(
        &[("asks", puppet(MAIN_STOP))],
        &[("home/recipes/note.md", &note)],
        Functions::default(),
        move |request| {
            let steps = hangs(request);
            if steps == [ModelStep::Hang] {
                signal.add_permits(1);
            }
            steps
        },
    );
    answers(&test, &calls("note"));
    let ticket = test.prompt("Hello");
    test.wait_for(async { begun.acquire().await.expect("it is open").forget() });
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    assert_eq!(count(&test, |change| matches!(change, Change::Mutated { .. })), 0);
    test.ask("Next");
    assert!(sent(&test).contains("Hello") && sent(&test).contains("Well."));
}

fn says(text: &str) -> Utterance {
    Utterance { role: Role::User, text: text.into() }
}

#[test]
fn a_function_returns_a_new_history() {
    let mut functions = Functions::default();
    functions.register_callback("shorten", |input: CallbackInput| async move {
        assert_eq!(input.hook_context.expect("a moment").what.event().name(), "agent_stop");
        let first = input.messages.first().map(|said| said.text.clone()).unwrap_or_default();
        let messages = vec![says(&format!("{first}, {}", input.args["how"]))];
        // The text is ignored if there are messages.
        Ok(CallbackOutput { messages, text: "no".into(), go_on: false })
    });
    functions.register_callback("fails", |_| async { Err("no key".into()) });
    let mut test = stage(&[("asks", puppet(MAIN_STOP))], &[], functions, |_| vec![text("Well.")]);
    answers(
        &test,
        &json!({"result": "callback", "callback": "shorten", "callback_args": {"how": "briefly"}}),
    );
    test.ask("Hello");
    answers(&test, &calls("fails"));
    test.ask("Next");
    assert_eq!(
        test.last_request().seen(),
        [SeenPart::User("Hello, briefly".into()), SeenPart::User("Next".into())]
    );
    assert!(refused(&test)[0].contains("no key"), "{:?}", refused(&test));
    assert_eq!(count(&test, |change| matches!(change, Change::Mutated { .. })), 1);
}

#[test]
fn a_function_of_the_configuration_returns_a_new_history() {
    let config = "[hooks.functions]\nredact-pii = \"sed 's/ann@example.org/(mail)/g'\"\n\
                  fails = \"echo no key >&2; exit 3\"\n";
    let files = [("home/config.toml", config)];
    let functions = Functions::default();
    let mut test = stage(&[("asks", puppet(MAIN_STOP))], &files, functions, |_| {
        vec![text("I write to ann@example.org.")]
    });
    answers(&test, &calls("redact-pii"));
    test.ask("Write to ann@example.org");
    answers(&test, &calls("fails"));
    test.ask("Next");
    assert_eq!(
        test.last_request().seen(),
        [
            SeenPart::User("Write to (mail)".into()),
            SeenPart::Agent("I write to (mail).".into()),
            SeenPart::User("Next".into())
        ]
    );
    let why = &refused(&test)[0];
    assert!(why.contains("fails") && why.contains("ended with exit code 3: no key"), "{why}");
}

/// A test with the function `later`, which returns when the test releases it.
fn with_later() -> (TestSession, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let waits = gate.clone();
    let mut functions = Functions::default();
    functions.register_callback("later", move |_| {
        let waits = waits.clone();
        async move {
            waits.acquire().await.expect("it is open").forget();
            Ok(CallbackOutput { messages: vec![says("In short.")], ..CallbackOutput::default() })
        }
    });
    let test = stage(&[("asks", puppet(MAIN_STOP))], &[], functions, |_| vec![text("Well.")]);
    (test, gate)
}

fn in_background() -> Value {
    json!({"result": "callback", "callback": "later", "async": true})
}

fn applied(test: &mut TestSession) -> (HookRunResult, String) {
    test.client.entry(|change| match change {
        Change::Hooked { event, runs } if event == "background_callback" => {
            Some((runs[0].verdict, runs[0].remarks.join(" ")))
        }
        _ => None,
    })
}

#[test]
fn a_background_callback_replaces_the_history_it_was_made_from() {
    let (mut test, gate) = with_later();
    answers(&test, &in_background());
    assert_eq!(test.ask("First"), StopReason::EndTurn);
    answers(&test, &in_background());
    test.ask("Second");
    assert!(refused(&test)[0].contains("one at a time"), "{:?}", refused(&test));
    gate.add_permits(1);
    assert_eq!(applied(&mut test).0, HookRunResult::Done);
    test.ask("Third");
    let seen = ["In short.", "Second", "Third"];
    let users: Vec<String> = test
        .last_request()
        .seen()
        .into_iter()
        .filter_map(|seen| match seen {
            SeenPart::User(text) => Some(text),
            _ => None,
        })
        .collect();
    assert_eq!(users, seen);
}

#[test]
fn a_background_callback_is_dropped_if_the_history_has_changed() {
    let (mut test, gate) = with_later();
    answers(&test, &in_background());
    test.ask("First");
    answers(&test, &json!({"result": "mutate", "messages": ["Edited."]}));
    test.ask("Second");
    gate.add_permits(1);
    let (verdict, why) = applied(&mut test);
    assert!(verdict == HookRunResult::Refused && why.contains("stale"), "{why}");
    test.ask("Third");
    assert!(sent(&test).contains("Edited.") && !sent(&test).contains("In short."));
}

/// Regression: a callback ended during a turn that was then canceled, and was not applied until the end of the next
/// turn.
#[test]
fn a_callback_that_ends_during_a_cancelled_turn_is_applied() {
    let gate = Arc::new(Semaphore::new(0));
    let (waits, ended) = (gate.clone(), Arc::new(Semaphore::new(0)));
    let signal = ended.clone();
    let mut functions = Functions::default();
    functions.register_callback("later", move |_| {
        let (waits, signal) = (waits.clone(), signal.clone());
        async move {
            waits.acquire().await.expect("it is open").forget();
            signal.add_permits(1);
            Ok(CallbackOutput { messages: vec![says("In short.")], ..CallbackOutput::default() })
        }
    });
    let mut replies = vec![vec![text("Well.")], vec![text("I"), ModelStep::Wait]].into_iter();
    let mut test = stage(&[("asks", puppet(MAIN_STOP))], &[], functions, move |_| {
        replies.next().unwrap_or_else(|| vec![text("ok")])
    });
    answers(&test, &in_background());
    test.ask("First");
    let ticket = test.prompt("Second");
    test.client.until(|out| matches!(out, SessionEvent::Text { text, .. } if text == "I").then_some(()));
    gate.add_permits(1);
    test.wait_for(async { ended.acquire().await.expect("it is open").forget() });
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    assert_eq!(applied(&mut test).0, HookRunResult::Done);
    test.ask("Third");
    assert!(sent(&test).contains("In short.") && sent(&test).contains("Second"), "{}", sent(&test));
}

#[test]
fn a_callbacks_message_names_its_hook() {
    let mut test = with_note("allowed_tools: []\noutput: message");
    answers(&test, &calls("note"));
    test.ask("Hello");
    let by = test.client.entry(|change| match change {
        Change::Said { origin: Origin::Hook { hook }, .. } => Some(hook.clone()),
        _ => None,
    });
    assert_eq!(by, "asks");
}

#[test]
fn a_recipe_with_commands_is_called_with_their_output() {
    let note = "---\ndescription: Notes\nallowed_tools: []\n---\nWrite a note on {{bash \"date\"}}.\n";
    let mut test = stage(
        &[("asks", puppet(MAIN_STOP))],
        &[("home/recipes/note.md", note)],
        Functions::default(),
        |_| vec![text("Well.")],
    );
    answers(&test, &calls("note"));
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    let asked = test.last_request().last_user_text();
    assert!(asked.starts_with("Write a note on ") && !asked.contains("not run"), "{asked}");
    assert_ne!(asked, "Write a note on .");
}

#[test]
fn a_typed_recipe_uses_its_own_model_and_limit_of_turns() {
    let note = recipe("model: anthropic/claude-haiku-4-5\nmax_turns: 1");
    let mut test = stage(&[], &[("home/recipes/note.md", &note)], Functions::default(), |request| {
        match request.last_user_text().starts_with("Write a note") {
            true => vec![call(json!({"says": "done"}))],
            false => vec![text("Well.")],
        }
    });
    assert_eq!(test.ask("/note"), StopReason::MaxRounds);
    assert_eq!(test.last_request().body["model"], "claude-haiku-4-5");
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    assert_ne!(test.last_request().body["model"], "claude-haiku-4-5", "the session keeps its own");
}
