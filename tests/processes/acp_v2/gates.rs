//! V16: what a client does not advertise is never sent to it, and methods that the agent does not advertise do not exist.

use std::collections::BTreeSet;

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::agent::{Agent, is_question, kind, obey, wants_summary};
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text};
use serde_json::{Value, json};

use super::window::Window;
use super::{INVALID_PARAMS, METHOD_NOT_FOUND};

/// A turn that has a reason for everything that is gated: a plan, a question, a command, an agent, and a file that an
/// editor may hold. Then a summary.
fn everything(request: &RecordedRequest) -> Vec<ModelStep> {
    if wants_summary(request) || request.last_user_text().starts_with("say ") {
        return obey(request);
    }
    let is_child = request.last_user_text().contains("Count the files.");
    match request.number {
        0 => {
            let steps = json!([{ "content": "Look", "status": "in_progress", "priority": "high" }]);
            let question = json!({ "question": "Which?" });
            let agent = json!({ "description": "Count", "prompt": "Count the files." });
            vec![
                text("I begin."),
                call("todo_write", json!({ "todos": steps })),
                call("ask_user", question),
                call("bash", json!({ "command": "printf 'a\\377\\n'" })),
                call("file_read", json!({ "file_path": "main.rs" })),
                call("task", agent),
            ]
        }
        _ if is_child => vec![text("There is one file.")],
        _ => vec![text("Done.")],
    }
}

fn user(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> User {
    let user = super::user(script);
    std::fs::write(user.project().join("main.rs"), "fn main() {}\n").expect("the project is there");
    // A recipe with a mistake is a reason for a notice.
    user.write(".epitome/recipes/bad.md", "---\nallowed_tools: 7\n---\nx\n");
    user
}

/// All that the agent sends from now on, until `is_last`. Permissions are granted.
fn heard(agent: &mut Agent, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let message = agent.until("the end", |_| true).pop().expect("it was read");
        if is_question(&message) {
            agent.decide(&message, "allow_once");
        }
        let ends = is_last(&message);
        all.push(message);
        if ends {
            return all;
        }
    }
}

#[test]
fn a_client_of_version_1_without_capabilities_is_sent_nothing_that_is_gated() {
    let user = user(everything);
    let mut agent = Agent::spawn(user.agent_command(&[]));
    let params = json!({ "protocolVersion": 1, "clientCapabilities": {} });
    let offered = agent.call("initialize", params);
    let session = user.new_session(&mut agent);
    let mut seen = Vec::new();
    for words in ["everything", "/compact", "say one"] {
        let id = agent.prompt(&session, words);
        seen.extend(heard(&mut agent, |message| message["id"] == id && message.get("method").is_none()));
    }
    let methods: BTreeSet<&str> = seen.iter().filter_map(|message| message["method"].as_str()).collect();
    assert_eq!(methods, BTreeSet::from(["session/request_permission", "session/update"]));
    let kinds: BTreeSet<&str> = seen.iter().map(kind).filter(|kind| !kind.is_empty()).collect();
    let always = [
        "agent_message_chunk",
        "agent_thought_chunk",
        "available_commands_update",
        "plan",
        "session_info_update",
        "tool_call",
        "tool_call_update",
        "usage_update",
    ];
    assert!(kinds.is_subset(&BTreeSet::from(always)), "{kinds:?}");
    assert!(kinds.contains("plan"), "{kinds:?}");
    let sent = Value::Array(seen).to_string();
    assert!(!sent.contains(r#""type":"terminal""#) && !sent.contains("terminal_output"), "no terminals");
    assert!(!sent.contains(r#""type":"session""#) && !sent.contains(r#""type":"boolean""#));
    assert!(offered["authMethods"].as_array().is_some_and(|methods| methods.is_empty()));
    for method in [
        "auth/login",
        "auth/logout",
        "tool_call/cancel",
        "terminal/cancel",
        "session/set_model",
        "session/rewind",
        "mcp/message",
        "fs/read_text_file",
        "nes/start",
    ] {
        let id = agent.request(method, json!({ "sessionId": session, "methodId": "x" }));
        assert_eq!(agent.answer(id).1["error"]["code"], METHOD_NOT_FOUND, "{method}");
    }
}

#[test]
fn a_client_of_version_2_is_sent_no_form_of_version_1_and_nothing_that_is_gated() {
    let user = user(everything);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let id = window.prompt(&session, "everything");
    window.answer(id);
    let mut methods = BTreeSet::new();
    loop {
        let message = window.until("a message", |_| true);
        methods.extend(message["method"].as_str().map(str::to_owned));
        if is_question(&message) {
            window.agent.decide(&message, "allow_once");
        }
        if message["params"]["sessionId"] == session && message["params"]["update"]["state"] == "idle" {
            break;
        }
    }
    window.turn(&session, "/compact");
    window.turn(&session, "say one");
    // Neither questions in forms nor files and terminals of the client, and the window has checked each update.
    let known = BTreeSet::from(["session/request_permission".to_owned(), "session/update".to_owned()]);
    assert_eq!(methods, known);
    let kinds: BTreeSet<String> = window
        .updates
        .iter()
        .map(|message| message["params"]["update"]["sessionUpdate"].as_str().expect("a kind").to_owned())
        .collect();
    for kind in ["plan_update", "terminal_update", "subagent_update", "state_update"] {
        assert!(kinds.contains(kind), "{kind} needs no capability: {kinds:?}");
    }
    for kind in ["tool_call", "plan", "current_mode_update"] {
        assert!(!kinds.contains(kind), "{kind}");
    }
    for method in
        ["session/load", "session/set_mode", "authenticate", "logout", "session/rewind", "mcp/message"]
    {
        assert_eq!(window.error(method, json!({ "sessionId": session })), METHOD_NOT_FOUND, "{method}");
    }
    let skill = json!({ "sessionId": session, "prompt": [{ "type": "skill", "name": "x" }] });
    assert_eq!(window.error("session/prompt", skill), INVALID_PARAMS);
}
