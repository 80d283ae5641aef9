//! Changes of a history by hooks, and their guards: target session, last message, cost, and pins.

use epitome::session::port::SessionPort as _;
use epitome::session::{SessionAnswer, SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{Change, HookRun, HookRunResult, Origin, PartId, SessionId, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::text;
use serde_json::json;

/// Installs a hook for the user with a constant result, and reloads the session's hooks.
fn with_hook(test: &mut TestSession, name: &str, declared: serde_json::Value) {
    let hooks = test.home.join("hooks");
    std::fs::create_dir_all(&hooks).expect("a directory");
    std::fs::write(hooks.join(format!("{name}.json")), declared.to_string()).expect("a hook");
    let environment = test.environment();
    test.reload(environment);
}

fn runs(test: &TestSession) -> Vec<HookRun> {
    let log = test.log();
    let runs = log.iter().filter_map(|entry| match &entry.change {
        Change::Hooked { runs, .. } => Some(runs.clone()),
        _ => None,
    });
    runs.flatten().collect()
}

fn mutations(test: &TestSession, session: &SessionId) -> Vec<String> {
    let log = test.services.store.read(session).expect("a log");
    let made = log.iter().filter_map(|entry| match &entry.change {
        Change::Mutated { by, messages, .. } => Some(format!("{by}: {}", messages[0].message.text())),
        _ => None,
    });
    made.collect()
}

/// Regression: a hook replaced the history with one that ended with an agent message, and asked to continue. The
/// request ended with an assistant message, which newer models reject, and the turn failed.
#[test]
fn a_history_that_ends_with_the_agent_is_continued_with_a_user_message() {
    let mut test = TestSession::with(|request| {
        let messages = request.body["messages"].as_array().expect("messages");
        match messages.last().expect("a message")["role"].as_str() {
            Some("user") => vec![text("ok")],
            _ => {
                let message = Some("This model does not support assistant message prefill.".into());
                vec![ModelStep::Error { status: 400, retry_after: None, message }]
            }
        }
    });
    let messages = json!([
        { "role": "user", "content": "Before." },
        { "role": "assistant", "content": "Done so far." },
    ]);
    let then = json!({ "result": "mutate", "messages": messages, "continue": true });
    with_hook(&mut test, "again", json!({ "protocol": 2, "events": ["agent_stop"], "then": then }));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    assert!(mutations(&test, &test.session).len() > 1);
    assert_eq!(test.last_request().last_user_text(), "Go on.");
    let by_us = test.log().iter().any(|entry| {
        matches!(&entry.change, Change::Said { origin: Origin::Context { by }, .. } if by == "epitome")
    });
    assert!(by_us, "the line is in the log");
}

/// Two conversations in one directory: the first has had a prompt, the test's client is attached to the
/// second.
fn two(settings: &str, target: Option<&str>) -> (TestSession, SessionId, TestClient) {
    let mut test = TestSession::with(|request| {
        let is_over = request.body.to_string().contains("tool_result");
        match request.last_user_text() == "Wait" && !is_over {
            true => vec![call(json!({ "do": "wait" }))],
            false => vec![text("ok")],
        }
    });
    test.ask("Hello, first");
    let first = test.session.clone();
    std::fs::write(test.home.join("config.toml"), settings).expect("settings");
    let first_client = std::mem::replace(&mut test.client, TestClient::new(2));
    let ticket = test.ticket();
    let opening = test.opening(&test.client, test.environment());
    test.session = test.sessions.create(ticket, opening);
    test.client.answer(ticket).expect("a session");
    let then = json!({
        "result": "mutate", "messages": ["From elsewhere"], "target_conversation_id": target.unwrap_or(&first.0),
    });
    with_hook(&mut test, "writer", json!({ "protocol": 2, "events": ["agent_stop"], "then": then }));
    (test, first, first_client)
}

const OPEN: &str = "[hooks]\ncross_session = true\n";

fn refused(test: &TestSession, why: &str) {
    let runs = runs(test);
    let is_it = |run: &&HookRun| {
        run.verdict == HookRunResult::Refused && run.remarks.iter().any(|remark| remark.contains(why))
    };
    assert!(runs.iter().any(|run| is_it(&run)), "{why}: {runs:?}");
}

#[test]
fn another_sessions_history_is_replaced_if_the_user_permits_it() {
    let (mut test, first, _client) = two(OPEN, None);
    let by = format!("writer of {}: From elsewhere", test.session);
    test.ask("Go");
    let done = runs(&test).pop().expect("a run");
    assert_eq!(done.verdict, HookRunResult::Done, "{done:?}");
    assert!(done.remarks.iter().any(|remark| remark.contains(&first.0)), "{done:?}");
    let made = mutations(&test, &first);
    assert!(made.len() == 1 && made[0].replace(".json", "") == by, "{made:?}");
    assert!(mutations(&test, &test.session).is_empty());
}

#[test]
fn the_history_of_a_closed_session_is_replaced_and_can_be_loaded() {
    let (mut test, first, mut client) = two(OPEN, None);
    let ticket = test.ticket();
    test.sessions
        .send(&first, SessionCommand::Close { ticket, client: client.id })
        .expect("the first one lives");
    client.answer(ticket).expect("it closes");
    test.ask("Go");
    assert_eq!(mutations(&test, &first).len(), 1);
    test.session = first;
    test.client = client;
    let environment = test.environment();
    test.load(environment);
    test.ask("What do you know?");
    assert!(test.last_request().body.to_string().contains("From elsewhere"));
}

/// Regression: a closed session was measured with the window in the model table, regardless of the user's settings or a
/// rejected request.
#[test]
fn a_closed_session_is_limited_to_the_configured_window() {
    let models = "[models.\"anthropic/claude-haiku-4-5\"]\ncontext_window = 5\nmax_output = 1\n";
    let (mut test, first, mut client) = two(&format!("{OPEN}{models}"), None);
    let (option, value) = ("model".to_owned(), "anthropic/claude-haiku-4-5".to_owned());
    let choice = SessionCommand::SetOption { ticket: test.ticket(), client: client.id, option, value };
    test.sessions.send(&first, choice).expect("the first one lives");
    let ticket = test.ticket();
    test.sessions
        .send(&first, SessionCommand::Close { ticket, client: client.id })
        .expect("the first one lives");
    client.answer(ticket).expect("it closes");
    test.ask("Go");
    refused(&test, "tokens");
    assert!(mutations(&test, &first).is_empty());
}

/// Without the setting, the history of another session could not be replaced even if the user was there to be asked.
#[test]
fn the_user_is_asked_once_about_another_session() {
    for (decision, why) in [
        (Some(UserDecision::AllowOnce), None),
        (Some(UserDecision::Reject), Some("the user did not let hooks change")),
        (None, Some("cross_session")),
    ] {
        let (mut test, first, _client) = two("", None);
        let ticket = test.prompt("Go");
        let ask = test.client.until(|event| match event {
            SessionEvent::Ask { ask, permission } => {
                assert!(permission.card.title.contains(&first.0), "{permission:?}");
                Some(*ask)
            }
            _ => None,
        });
        assert!(mutations(&test, &first).is_empty(), "it waits for the answer");
        let is_answered = decision.is_some();
        let client = test.client.id;
        test.send(match decision {
            Some(decision) => SessionCommand::Decide { ask, decision },
            None => SessionCommand::Absent { ask, client },
        });
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
        if is_answered {
            assert_eq!(test.ask("Again"), StopReason::EndTurn, "no question is open");
        }
        assert_eq!(mutations(&test, &first).len(), if why.is_none() { 2 } else { 0 });
        if let Some(why) = why {
            refused(&test, why);
        }
    }
}

#[test]
fn a_missing_session_is_not_changed() {
    let (mut test, ..) = two(OPEN, Some("s_00000000000000000009"));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    refused(&test, "there is no conversation s_00000000000000000009");
}

#[test]
fn a_session_with_a_running_prompt_is_not_changed() {
    let (mut test, first, mut client) = two(OPEN, None);
    let ticket = test.ticket();
    let content = vec![epitome::thread::Content::Text { text: "Wait".into() }];
    let prompt = SessionCommand::Prompt { ticket, client: client.id, content, key: None };
    test.sessions.send(&first, prompt).expect("the first one lives");
    client.until(|out| matches!(out, epitome::session::SessionEvent::CallStarted { .. }).then_some(()));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    refused(&test, "a prompt runs in");
    test.release_tool();
    client.answer(ticket).expect("it goes on");
    // A hook of that session may target it.
    assert!(mutations(&test, &first).iter().all(|made| !made.contains(&test.session.0)));
}

/// A recipe that a hook calls when the agent stops, and hooks that run within it.
fn with_callback(replies: Vec<Vec<ModelStep>>, recipe: &str) -> TestSession {
    let mut replies = std::collections::VecDeque::from(replies);
    let script = move |_: &_| replies.pop_front().unwrap_or_else(|| vec![text("ok")]);
    let mut test = Setup::with_files(&[("home/recipes/look.md", recipe)]).start(script);
    let declared = json!({
        "protocol": 2, "events": ["agent_stop"], "match": { "invoked_by": ["main"] },
        "then": { "result": "callback", "callback": "look" },
    });
    with_hook(&mut test, "caller", declared);
    test
}

#[test]
fn a_history_made_by_hooks_of_a_callback_replaces_its_text() {
    let mut test = with_callback(Vec::new(), "---\nname: look\noutput: message\n---\nLook.\n");
    let target = test.session.0.clone();
    let then = json!({ "result": "mutate", "messages": ["Made inside"], "target_conversation_id": target });
    let declared = json!({
        "protocol": 2, "events": ["agent_stop"], "match": { "invoked_by": ["subagent"] }, "then": then,
    });
    with_hook(&mut test, "inside", declared);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let made = mutations(&test, &test.session);
    assert!(made.len() == 1 && made[0].contains("inside") && made[0].ends_with(": Made inside"), "{made:?}");
    let said = |change: &Change| matches!(change, Change::Said { origin: Origin::Hook { .. }, .. });
    assert!(!test.log().iter().any(|entry| said(&entry.change)), "its text is not used as well");
}

#[test]
fn the_turn_pays_for_its_callback_even_if_that_fails() {
    let usage = |input| ModelStep::Usage { input, output: 1 };
    let broken = || vec![ModelStep::Error { status: 400, retry_after: None, message: Some("no".into()) }];
    for last in [vec![text("Seen."), usage(5_000)], broken()] {
        let fails = last.len() == 1;
        let replies = vec![
            vec![text("Done."), usage(100)],
            vec![text("Looking."), call(json!({})), usage(3_000)],
            last,
        ];
        let mut test = with_callback(replies, "---\nname: look\noutput: none\n---\nLook.\n");
        let ticket = test.prompt("Go");
        let Ok(SessionAnswer::TurnEnded { usage, .. }) = test.client.answer(ticket) else {
            panic!("it ends")
        };
        assert_eq!(usage.input, if fails { 3_100 } else { 8_100 });
    }
}

#[test]
fn a_truncated_callback_has_a_remark_in_the_trail() {
    let recipe = "---\nname: look\nmax_turns: 1\noutput: message\n---\nLook.\n";
    let mut test = with_callback(vec![vec![text("Done.")], vec![text("Half"), call(json!({}))]], recipe);
    test.ask("Go");
    let remarks: Vec<String> = runs(&test).into_iter().flat_map(|run| run.remarks).collect();
    assert!(remarks.iter().any(|remark| remark.contains("limit of model calls")), "{remarks:?}");
}

#[test]
fn a_pin_above_its_share_of_the_window_is_refused_with_both_sizes() {
    let mut test = TestSession::new(Vec::new());
    std::fs::write(test.home.join("config.toml"), "[compaction]\npin_share = 0.01\n").expect("settings");
    test.ask(&"many words of a paste ".repeat(4_000));
    let entry = test
        .log()
        .iter()
        .find_map(|entry| matches!(entry.change, Change::Said { .. }).then_some(entry.seq))
        .expect("what was said");
    let named = PartId { entry, part: None }.to_string();
    let then = json!({ "context_edits": [{ "op": "pin", "entry": named }] });
    with_hook(&mut test, "pinner", json!({ "protocol": 2, "events": ["agent_stop"], "then": then }));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    refused(&test, "and pins may take");
    assert!(!test.log().iter().any(|entry| matches!(entry.change, Change::Edited { .. })));
}
