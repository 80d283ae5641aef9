//! Changes of a history by hooks, and their guards: target session, last message, cost, and pins.

use epitome::session::{Answer, SessionCommand};
use epitome::thread::{Change, HookRun, Origin, Part, SessionId, StopReason, Verdict};
use epitome_scripted_model::ModelStep;
use serde_json::json;

use super::desk::{Client, Desk, call, text};

/// Installs a hook for the user with a constant result, and reloads the session's hooks.
fn with_hook(desk: &mut Desk, name: &str, declared: serde_json::Value) {
    let hooks = desk.home.join("hooks");
    std::fs::create_dir_all(&hooks).expect("a directory");
    std::fs::write(hooks.join(format!("{name}.json")), declared.to_string()).expect("a hook");
    let environment = desk.environment();
    desk.reload(environment);
}

fn runs(desk: &Desk) -> Vec<HookRun> {
    let log = desk.log();
    let runs = log.iter().filter_map(|entry| match &entry.change {
        Change::Hooked { runs, .. } => Some(runs.clone()),
        _ => None,
    });
    runs.flatten().collect()
}

fn mutations(desk: &Desk, session: &SessionId) -> Vec<String> {
    let log = desk.services.store.read(session).expect("a log");
    let made = log.iter().filter_map(|entry| match &entry.change {
        Change::Mutated { by, messages, .. } => Some(format!("{by}: {}", messages[0].message.text())),
        _ => None,
    });
    made.collect()
}

/// A hook replaced the history with one that ended with an agent message and asked to continue. The request
/// ended with an assistant message, which newer models reject, and the turn failed.
#[test]
fn a_history_that_ends_with_the_agent_is_continued_with_a_user_message() {
    let mut desk = Desk::with(|request| {
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
    with_hook(&mut desk, "again", json!({ "protocol": 2, "events": ["agent_stop"], "then": then }));
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    assert!(mutations(&desk, &desk.session).len() > 1);
    assert_eq!(desk.last_request().last_user_text(), "Go on.");
    let by_us = desk.log().iter().any(|entry| {
        matches!(&entry.change, Change::Said { origin: Origin::Context { by }, .. } if by == "epitome")
    });
    assert!(by_us, "the line is in the log");
}

/// Two conversations in one directory: the first has had a prompt, the desk's client is attached to the
/// second.
fn two(settings: &str, target: Option<&str>) -> (Desk, SessionId, Client) {
    let mut desk = Desk::with(|request| {
        let is_over = request.body.to_string().contains("tool_result");
        match request.last_user_text() == "Wait" && !is_over {
            true => vec![call(json!({ "do": "wait" }))],
            false => vec![text("ok")],
        }
    });
    desk.ask("Hello, first");
    let first = desk.session.clone();
    std::fs::write(desk.home.join("config.toml"), settings).expect("settings");
    let first_client = std::mem::replace(&mut desk.client, Client::new(2));
    let ticket = desk.ticket();
    let opening = desk.opening(&desk.client, desk.environment());
    desk.session = desk.sessions.create(ticket, opening);
    desk.client.answer(ticket).expect("a session");
    let then = json!({
        "result": "mutate", "messages": ["From elsewhere"], "target_conversation_id": target.unwrap_or(&first.0),
    });
    with_hook(&mut desk, "writer", json!({ "protocol": 2, "events": ["agent_stop"], "then": then }));
    (desk, first, first_client)
}

const OPEN: &str = "[hooks]\ncross_session = true\n";

fn refused(desk: &Desk, why: &str) {
    let runs = runs(desk);
    let is_it = |run: &&HookRun| {
        run.verdict == Verdict::Refused && run.remarks.iter().any(|remark| remark.contains(why))
    };
    assert!(runs.iter().any(|run| is_it(&run)), "{why}: {runs:?}");
}

#[test]
fn another_sessions_history_is_replaced_if_the_user_permits_it() {
    let (mut desk, first, _client) = two(OPEN, None);
    let by = format!("writer of {}: From elsewhere", desk.session);
    desk.ask("Go");
    let done = runs(&desk).pop().expect("a run");
    assert_eq!(done.verdict, Verdict::Done, "{done:?}");
    assert!(done.remarks.iter().any(|remark| remark.contains(&first.0)), "{done:?}");
    let made = mutations(&desk, &first);
    assert!(made.len() == 1 && made[0].replace(".json", "") == by, "{made:?}");
    assert!(mutations(&desk, &desk.session).is_empty());
}

#[test]
fn the_history_of_a_closed_session_is_replaced_and_can_be_loaded() {
    let (mut desk, first, mut client) = two(OPEN, None);
    let ticket = desk.ticket();
    desk.sessions
        .send(&first, SessionCommand::Close { ticket, client: client.id })
        .expect("the first one lives");
    client.answer(ticket).expect("it closes");
    desk.ask("Go");
    assert_eq!(mutations(&desk, &first).len(), 1);
    desk.session = first;
    desk.client = client;
    let environment = desk.environment();
    desk.load(environment);
    desk.ask("What do you know?");
    assert!(desk.last_request().body.to_string().contains("From elsewhere"));
}

/// A closed conversation was measured with the window in the model table, regardless of the user's settings
/// or a rejected request.
#[test]
fn a_closed_session_is_limited_to_the_configured_window() {
    let models = "[models.\"anthropic/claude-haiku-4-5\"]\ncontext_window = 5\nmax_output = 1\n";
    let (mut desk, first, mut client) = two(&format!("{OPEN}{models}"), None);
    let (option, value) = ("model".to_owned(), "anthropic/claude-haiku-4-5".to_owned());
    let choice = SessionCommand::SetOption { ticket: desk.ticket(), client: client.id, option, value };
    desk.sessions.send(&first, choice).expect("the first one lives");
    let ticket = desk.ticket();
    desk.sessions
        .send(&first, SessionCommand::Close { ticket, client: client.id })
        .expect("the first one lives");
    client.answer(ticket).expect("it closes");
    desk.ask("Go");
    refused(&desk, "tokens");
    assert!(mutations(&desk, &first).is_empty());
}

#[test]
fn another_session_is_left_alone_without_the_users_permission() {
    let (mut desk, first, _client) = two("", None);
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    refused(&desk, "cross_session");
    assert!(mutations(&desk, &first).is_empty());
}

#[test]
fn a_missing_session_is_not_changed() {
    let (mut desk, ..) = two(OPEN, Some("s_00000000000000000009"));
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    refused(&desk, "there is no conversation s_00000000000000000009");
}

#[test]
fn a_session_with_a_running_prompt_is_not_changed() {
    let (mut desk, first, mut client) = two(OPEN, None);
    let ticket = desk.ticket();
    let content = vec![epitome::thread::Content::Text { text: "Wait".into() }];
    let prompt = SessionCommand::Prompt { ticket, client: client.id, content };
    desk.sessions.send(&first, prompt).expect("the first one lives");
    client.until(|out| matches!(out, epitome::session::Out::CallStarted { .. }).then_some(()));
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    refused(&desk, "a prompt runs in");
    desk.release_tool();
    client.answer(ticket).expect("it goes on");
    // Its own hook may target it.
    assert!(mutations(&desk, &first).iter().all(|made| !made.contains(&desk.session.0)));
}

/// A recipe that a hook calls at the stop, and hooks that run within it.
fn with_callback(replies: Vec<Vec<ModelStep>>, recipe: &str) -> Desk {
    let mut replies = std::collections::VecDeque::from(replies);
    let script = move |_: &_| replies.pop_front().unwrap_or_else(|| vec![text("ok")]);
    let mut desk = Desk::with_recipes(&[("look.md", recipe)], script);
    let declared = json!({
        "protocol": 2, "events": ["agent_stop"], "match": { "invoked_by": ["main"] },
        "then": { "result": "callback", "callback": "look" },
    });
    with_hook(&mut desk, "caller", declared);
    desk
}

#[test]
fn a_history_made_by_hooks_of_a_callback_replaces_its_text() {
    let mut desk = with_callback(Vec::new(), "---\nname: look\noutput: message\n---\nLook.\n");
    let target = desk.session.0.clone();
    let then = json!({ "result": "mutate", "messages": ["Made inside"], "target_conversation_id": target });
    let declared = json!({
        "protocol": 2, "events": ["agent_stop"], "match": { "invoked_by": ["subagent"] }, "then": then,
    });
    with_hook(&mut desk, "inside", declared);
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    let made = mutations(&desk, &desk.session);
    assert!(made.len() == 1 && made[0].contains("inside") && made[0].ends_with(": Made inside"), "{made:?}");
    let said = |change: &Change| matches!(change, Change::Said { origin: Origin::Hook { .. }, .. });
    assert!(!desk.log().iter().any(|entry| said(&entry.change)), "its text is not used beside");
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
        let mut desk = with_callback(replies, "---\nname: look\noutput: none\n---\nLook.\n");
        let ticket = desk.prompt("Go");
        let Ok(Answer::TurnEnded { usage, .. }) = desk.client.answer(ticket) else { panic!("it ends") };
        assert_eq!(usage.input, if fails { 3_100 } else { 8_100 });
    }
}

#[test]
fn a_truncated_callback_has_a_remark_in_the_trail() {
    let recipe = "---\nname: look\nmax_turns: 1\noutput: message\n---\nLook.\n";
    let mut desk = with_callback(vec![vec![text("Done.")], vec![text("Half"), call(json!({}))]], recipe);
    desk.ask("Go");
    let remarks: Vec<String> = runs(&desk).into_iter().flat_map(|run| run.remarks).collect();
    assert!(remarks.iter().any(|remark| remark.contains("limit of model calls")), "{remarks:?}");
}

#[test]
fn a_pin_above_its_share_of_the_window_is_refused_with_both_sizes() {
    let mut desk = Desk::new(Vec::new());
    std::fs::write(desk.home.join("config.toml"), "[compaction]\npin_share = 0.01\n").expect("settings");
    desk.ask(&"many words of a paste ".repeat(4_000));
    let entry = desk
        .log()
        .iter()
        .find_map(|entry| matches!(entry.change, Change::Said { .. }).then_some(entry.seq))
        .expect("what was said");
    let named = Part { entry, part: None }.to_string();
    let then = json!({ "context_edits": [{ "op": "pin", "entry": named }] });
    with_hook(&mut desk, "pinner", json!({ "protocol": 2, "events": ["agent_stop"], "then": then }));
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    refused(&desk, "and pins may take");
    assert!(!desk.log().iter().any(|entry| matches!(entry.change, Change::Edited { .. })));
}
