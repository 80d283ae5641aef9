//! Version 2 of the protocol, as a client of it sees the built program with a daemon. Every line is held against the
//! official schema in both directions.

mod additions;
mod client_mcp;
mod gates;
mod library;
mod remote;
mod schema;
mod system_prompt;
mod terminals;
mod window;

use std::fs;
use std::process::Command;

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::agent::{Agent, agent_text, end_by, is_question, kind, obey, person_said};
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text};
use rustix::process::Signal;
use serde_json::{Value, json};
use window::Window;

const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const NOT_FOUND: i64 = -32002;
const UNSUPPORTED_VERSION: i64 = -32022;
const CANCELLED: i64 = -32800;

fn user(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> User {
    User::with_model(script)
}

fn initialize() -> Value {
    json!({ "protocolVersion": 2, "info": { "name": "test", "version": "1.0.0" }, "capabilities": {} })
}

/// V1: a client that offers version 2 gets version 1 if the user has turned version 2 off.
#[test]
fn version_2_can_be_turned_off() {
    let user = User::with_model(obey);
    user.write(".epitome/config.toml", "acp_v2 = false\n");
    let mut agent = Agent::spawn(user.agent_command(&[]));
    let answer = agent.call("initialize", initialize());
    assert_eq!(answer["protocolVersion"], 1);
    assert!(answer["agentCapabilities"].is_object() && answer["agentInfo"].is_object());
    assert!(answer.get("capabilities").is_none() && answer.get("info").is_none());
    let session = user.new_session(&mut agent);
    assert_eq!(agent.turn(&session, "say one").1, "end_turn");
}

/// V2: only an integer of at least 2 chooses version 2, and the choice is final once it was used.
#[test]
fn a_connection_chooses_its_version_in_initialize() {
    for is_on in [false, true] {
        let user = User::with_model(obey);
        user.write(".epitome/config.toml", &format!("acp_v2 = {is_on}\n"));
        let mut agent = Agent::spawn(user.agent_command(&[]));
        let id = agent.request("session/new", json!({ "cwd": "/" }));
        assert_eq!(agent.answer(id).1["error"]["code"], INVALID_REQUEST);
        for asked in [json!("2"), json!(1), json!(1.5), Value::Null] {
            let answer = agent.call("initialize", json!({ "protocolVersion": asked }));
            assert_eq!(answer["protocolVersion"], 1, "{asked}");
            assert!(answer["agentCapabilities"].is_object());
        }
        // No version is at or below 0. Version 1 has no error for that.
        let id = agent.request("initialize", json!({ "protocolVersion": 0 }));
        let answer = agent.answer(id).1;
        match is_on {
            true => assert_eq!(answer["error"]["data"], json!({ "requested": 0, "supported": [1, 2] })),
            false => assert_eq!(answer["result"]["protocolVersion"], 1),
        }
        let mut params = initialize();
        params["protocolVersion"] = json!(3);
        let answer = agent.call("initialize", params);
        assert_eq!(answer["protocolVersion"], if is_on { 2 } else { 1 });
        if !is_on {
            continue;
        }
        let id = agent.request("initialize", json!({ "protocolVersion": 1 }));
        let refused = agent.answer(id).1;
        assert_eq!(refused["error"]["code"], UNSUPPORTED_VERSION);
        assert_eq!(refused["error"]["data"], json!({ "requested": 1, "supported": [1, 2] }));
        agent.call("session/list", json!({}));
        let id = agent.request("initialize", initialize());
        assert_eq!(agent.answer(id).1["error"]["code"], INVALID_REQUEST);
        agent.send(&json!({ "jsonrpc": "2.0", "id": null, "method": "session/list", "params": {} }));
        let answer = agent.until("an answer", |message| message["id"].is_null()).pop().unwrap();
        assert_eq!(answer["error"]["code"], INVALID_REQUEST);
    }
}

/// V3: a prompt is answered when it is in the conversation, before the model says anything, and every window sees it.
#[test]
fn a_prompt_is_answered_with_its_message_before_the_model_says_anything() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    window.turn(&session, "say one");
    let mut second = Window::start(&user, &[]);
    let params = json!({ "sessionId": session, "cwd": user.project(), "replayFrom": { "type": "start" } });
    second.call("session/resume", params);
    assert_eq!(second.of_kind("replay_complete").len(), 1, "before the answer");
    let mut old = user.start();
    user.load(&mut old, &session);
    // The model hangs.
    let id = window.prompt(&session, "hang");
    let answer = window.answer(id);
    let message = answer["result"]["messageId"].as_str().expect("an id").to_owned();
    if window.text(&message).is_empty() {
        window.update("user_message", |update| update["messageId"] == message);
    }
    assert_eq!(window.text(&message), "hang");
    second.update("user_message", |update| update["messageId"] == message);
    let shown = old.until("the prompt", |seen| kind(seen) == "user_message_chunk").pop().unwrap();
    assert_eq!(shown["params"]["update"]["messageId"], message);
    second.agent.cancel(&session);
    for window in [&mut window, &mut second] {
        assert_eq!(window.idle()["stopReason"], "cancelled");
    }
}

/// V4: a prompt that is refused leaves nothing.
#[test]
fn a_refused_prompt_changes_nothing() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    window.turn(&session, "say one");
    window.updates.clear();
    for prompt in [json!([]), json!([{ "type": "audio", "data": "AAAA", "mimeType": "audio/wav" }])] {
        let params = json!({ "sessionId": session, "prompt": prompt });
        assert_eq!(window.error("session/prompt", params), INVALID_PARAMS);
    }
    let unknown =
        json!({ "sessionId": "s_00000000000000000000", "prompt": [{ "type": "text", "text": "x" }] });
    assert_eq!(window.error("session/prompt", unknown), NOT_FOUND);
    assert_eq!(window.updates.len(), 0, "{:?}", window.updates);
    assert_eq!(user.model().requests().len(), 1);
}

/// V5: what fails once the prompt was inserted is no error of the request.
#[test]
fn a_failure_of_the_model_is_the_end_of_the_work() {
    let user =
        user(|_| vec![ModelStep::Error { status: 400, retry_after: None, message: Some("no".into()) }]);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let idle = window.turn(&session, "go");
    assert_eq!(idle["stopReason"], "error", "{idle}");
    assert!(idle["error"]["message"].as_str().is_some_and(|message| message.contains("no")), "{idle}");
}

/// V6: terminals are ours, and those that go on are listed until they end.
#[test]
fn a_background_command_is_listed_until_it_ends() {
    let user = user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    let idle = window.turn(&session, "background echo up; sleep 1000");
    let terminal = idle["background"][0]["terminalId"].as_str().expect("it is listed").to_owned();
    let opened = window.of_kind("terminal_update");
    assert_eq!(opened[0]["command"], "echo up; sleep 1000");
    assert_eq!(opened[0]["capabilities"], json!({ "cancel": {} }));
    // A window that attaches later gets it before it is listed.
    let mut second = Window::start(&user, &[]);
    second.call("session/resume", json!({ "sessionId": session, "cwd": user.project() }));
    assert_eq!(second.of_kind("terminal_update")[0]["terminalId"], terminal);
    assert_eq!(second.of_kind("state_update")[0]["background"][0]["terminalId"], terminal);
    assert_eq!(second.of_kind("user_message").len(), 0, "nothing is replayed unless it is asked for");
    let idle = window.turn(&session, "say two");
    assert_eq!(idle["background"][0]["terminalId"], terminal);
    // The call has ended; its terminal has not.
    let ids = json!({ "sessionId": session, "toolCallId": terminal });
    assert_eq!(window.error("tool_call/cancel", ids), INVALID_PARAMS);
    let ids = json!({ "sessionId": session, "terminalId": terminal });
    assert_eq!(window.call("terminal/cancel", ids.clone()), json!({}));
    for window in [&mut window, &mut second] {
        let ended = window.update("terminal_update", |update| update["exitStatus"].is_object());
        assert!(ended["exitStatus"]["signal"].is_string(), "{ended}");
        assert_eq!(ended["capabilities"], Value::Null);
        assert_eq!(window.update("state_update", |_| true)["background"], json!([]));
    }
    assert_eq!(window.error("terminal/cancel", ids), INVALID_PARAMS);
}

/// One call is cancelled, and the turn goes on.
#[test]
fn a_call_is_cancelled_alone() {
    let user = user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    let id = window.prompt(&session, "run sleep 1000");
    window.answer(id);
    let is_running = |update: &Value| update["status"] == "in_progress";
    let started = window.update("tool_call_update", is_running);
    assert_eq!(started["capabilities"], json!({ "cancel": {} }));
    let ids = json!({ "sessionId": session, "toolCallId": started["toolCallId"] });
    assert_eq!(window.call("tool_call/cancel", ids.clone()), json!({}));
    let idle = window.idle();
    assert_eq!(idle["stopReason"], "end_turn", "the model goes on");
    let calls = window.of_kind("tool_call_update");
    let last = calls.last().expect("there are some");
    assert_eq!((&last["status"], &last["capabilities"]), (&json!("cancelled"), &Value::Null));
    assert_eq!(window.error("tool_call/cancel", ids), INVALID_PARAMS);
    let requests = user.model().requests();
    assert!(requests.last().unwrap().body.to_string().contains("The user stopped this call"));
}

/// V7: a window that comes in the middle of a turn gets the past, the state, its answer, and then the rest once.
#[test]
fn a_window_resumes_in_the_middle_of_a_turn() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let id = window.prompt(&session, "half");
    window.answer(id);
    window.hear("The first half, ");
    let mut second = Window::start(&user, &[]);
    let params = json!({ "sessionId": session, "cwd": user.project(), "replayFrom": { "type": "start" } });
    second.call("session/resume", params);
    let last = second.updates.iter().rfind(|message| kind(message) == "state_update").expect("a state");
    assert_eq!(last["params"]["update"]["state"], "running");
    user.model().release();
    for window in [&mut window, &mut second] {
        assert_eq!(window.idle()["stopReason"], "end_turn");
        let id = window.of_kind("agent_message_chunk").last().expect("text")["messageId"].clone();
        assert_eq!(window.text(id.as_str().expect("an id")), "The first half, the second half.");
    }
}

/// Regression: while the checkpoints of a session that was just loaded were read, it was reported as running, and clients
/// showed its last turn as one that goes on.
#[test]
fn a_session_that_is_loaded_does_not_run() {
    let user = user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    window.turn(&session, "run true");
    window.call("session/close", json!({ "sessionId": session }));
    let mut second = Window::start(&user, &[]);
    let params = json!({ "sessionId": session, "cwd": user.project(), "replayFrom": { "type": "start" } });
    second.call("session/resume", params);
    let states = second.of_kind("state_update");
    assert!(!states.is_empty() && states.iter().all(|state| state["state"] == "idle"), "{states:?}");
    assert_eq!(states[0]["stopReason"], "end_turn");
}

/// V8: what can't be replayed as asked is refused.
#[test]
fn an_unknown_start_of_a_replay_attaches_nothing() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let mut second = Window::start(&user, &[]);
    for from in [json!({ "type": "message", "messageId": "m1" }), json!({}), json!(7)] {
        let params = json!({ "sessionId": session, "cwd": user.project(), "replayFrom": from });
        assert_eq!(second.error("session/resume", params), INVALID_PARAMS);
    }
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
    assert_eq!(second.error("session/prompt", prompt), NOT_FOUND);
}

/// V9: a cancel ends the work, and what waits for it was never inserted.
#[test]
fn a_cancel_answers_waiting_prompts_with_an_error() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let first = window.prompt(&session, "hang");
    window.answer(first);
    let second = window.prompt(&session, "say two");
    // Commands are processed in order: after this answer, the prompt waits.
    let option = json!({ "sessionId": session, "configId": "mode", "type": "id", "value": "ask" });
    window.call("session/set_config_option", option);
    window.agent.cancel(&session);
    assert_eq!(window.answer(second)["error"]["code"], CANCELLED);
    if !window.of_kind("state_update").iter().any(|state| state["state"] == "idle") {
        window.idle();
    }
    let ends: Vec<Value> = window.of_kind("state_update");
    let ends: Vec<&Value> = ends.iter().filter(|state| state["state"] == "idle").collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["stopReason"], "cancelled");
    assert!(!window.updates.iter().any(|message| message.to_string().contains("say two")));
    assert_eq!(window.turn(&session, "say three")["stopReason"], "end_turn");
}

/// V10: a close ends the work before its answer, and nothing follows.
#[test]
fn nothing_follows_a_close() {
    let user = user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    window.turn(&session, "background sleep 1000");
    let id = window.prompt(&session, "hang");
    window.answer(id);
    window.call("session/close", json!({ "sessionId": session }));
    let states = window.of_kind("state_update");
    assert!(states.iter().any(|state| state["stopReason"] == "cancelled"), "{states:?}");
    let last = states.last().expect("a state");
    assert_eq!((&last["state"], &last["background"]), (&json!("idle"), &json!([])));
    window.closed(&session);
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
    assert_eq!(window.error("session/prompt", prompt), NOT_FOUND);
    assert_eq!(window.call("session/close", json!({ "sessionId": session })), json!({}));
}

fn edits(request: &RecordedRequest) -> Vec<ModelStep> {
    match request.number {
        0 => vec![call("file_write", json!({ "file_path": "made by me.txt", "text": "new\n" }))],
        1 => vec![call("file_read", json!({ "file_path": "main.rs" }))],
        2 => {
            let input = json!({ "file_path": "main.rs", "old_text": "two", "new_text": "zwei\nund mehr" });
            vec![call("file_edit", input)]
        }
        _ => vec![text("Done.")],
    }
}

/// V12: the patches, applied to a copy, give what is on the disk.
#[test]
fn patches_apply_and_give_the_files() {
    let user = user(edits);
    let before = "one\ntwo\nthree";
    fs::write(user.project().join("main.rs"), before).unwrap();
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    window.turn(&session, "edit");
    let copy = tempfile::tempdir().expect("a directory");
    let inside = |path: &std::path::Path| copy.path().join(path.strip_prefix("/").expect("absolute"));
    fs::create_dir_all(inside(&user.project())).unwrap();
    fs::write(inside(&user.project().join("main.rs")), before).unwrap();
    let mut operations = Vec::new();
    for update in window.of_kind("tool_call_update").iter().filter(|update| update["status"] == "completed") {
        for diff in update["content"].as_array().into_iter().flatten().filter(|part| part["type"] == "diff") {
            operations.push(diff["changes"][0]["operation"].as_str().expect("an operation").to_owned());
            let patch = diff["patch"]["text"].as_str().expect("a patch");
            let file = copy.path().join("section.patch");
            fs::write(&file, patch).unwrap();
            let ran =
                Command::new("git").arg("apply").arg("-p1").arg(&file).current_dir(copy.path()).output();
            let ran = ran.expect("git runs");
            assert!(ran.status.success(), "{patch}\n{ran:?}");
        }
    }
    assert_eq!(operations, ["add", "modify"]);
    for name in ["main.rs", "made by me.txt"] {
        let real = user.project().join(name);
        assert_eq!(fs::read(inside(&real)).expect("it was made"), fs::read(&real).expect("it is there"));
    }
}

/// V13: a prompt whose answer was lost with the daemon is inserted once, however often it is sent.
#[test]
fn a_prompt_with_a_key_is_inserted_once_across_a_crash() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let keyed = |words: &str| {
        let prompt = json!([{ "type": "text", "text": words }]);
        json!({ "sessionId": session, "prompt": prompt, "idempotencyKey": "k-1" })
    };
    let id = window.request("session/prompt", keyed("say once"));
    let first = window.answer(id)["result"]["messageId"].clone();
    window.idle();
    // The same in this daemon.
    let id = window.request("session/prompt", keyed("say once"));
    assert_eq!(window.answer(id)["result"]["messageId"], first);
    end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
    // In the next daemon, from a window that has lost everything.
    let mut second = Window::start(&user, &[]);
    let params = json!({ "sessionId": session, "cwd": user.project(), "replayFrom": { "type": "start" } });
    second.call("session/resume", params);
    let id = second.request("session/prompt", keyed("say once"));
    assert_eq!(second.answer(id)["result"]["messageId"], first);
    assert_eq!(second.turn(&session, "say two")["stopReason"], "end_turn");
    assert_eq!(second.of_kind("user_message").len(), 2, "once, and the other prompt");
    assert_eq!(user.model().requests().len(), 2);
    for key in ["", &"x".repeat(256)] {
        let mut params = keyed("x");
        params["idempotencyKey"] = json!(key);
        assert_eq!(second.error("session/prompt", params), INVALID_PARAMS);
    }
}

/// Two windows of one session, one of each version, whose daemon is killed in the middle of a turn.
#[test]
fn windows_of_both_versions_survive_their_daemon() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    window.turn(&session, "say one");
    let mut old = user.start();
    user.load(&mut old, &session);
    let id = window.prompt(&session, "half");
    window.answer(id);
    window.hear("The first half, ");
    old.hear("The first half, ");
    end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
    // The turn was interrupted. The client that waits for nothing learns of it by the state.
    let idle = window.idle();
    assert_eq!(idle["stopReason"], "error", "{idle}");
    let seen =
        old.until("the end", |message| agent_text(std::slice::from_ref(message)).contains("Interrupted"));
    assert!(!seen.iter().any(|message| kind(message) == "state_update"), "version 1 has no states");
    assert_eq!(window.turn(&session, "say two")["stopReason"], "end_turn");
    let seen = old.hear("You said two.");
    assert_eq!(person_said(&seen), ["say two"]);
    let said: Vec<Value> = window.of_kind("user_message");
    assert_eq!(said.len(), 3, "{said:?}");
}

/// V14, permissions: a card has a title and its call, and while nothing else goes on the state says so.
#[test]
fn a_permission_request_is_a_state() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let mut old = user.start();
    user.load(&mut old, &session);
    let id = window.prompt(&session, "run touch made");
    window.answer(id);
    let card = window.until("the card", is_question);
    assert_eq!(card["params"]["subject"]["type"], "tool_call");
    if !window.of_kind("state_update").iter().any(|state| state["state"] == "requires_action") {
        window.update("state_update", |update| update["state"] == "requires_action");
    }
    window.agent.decide(&card, "allow_once");
    window.update("state_update", |update| update["state"] == "running");
    assert_eq!(window.idle()["stopReason"], "end_turn");
    assert!(user.project().join("made").exists());
    // The window of version 1 was shown the same in its own terms.
    let seen = old.until("the end", |message| agent_text(std::slice::from_ref(message)).ends_with("Done."));
    let kinds: Vec<&str> = seen.iter().map(kind).collect();
    assert!(kinds.contains(&"tool_call") && !kinds.contains(&"state_update"), "{kinds:?}");
    assert!(!kinds.iter().any(|kind| kind.starts_with("terminal_")), "{kinds:?}");
}

/// Commands of our own are messages and work like prompts, and methods of version 1 are gone.
#[test]
fn commands_are_work_and_old_methods_are_gone() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    window.turn(&session, "say one");
    let idle = window.turn(&session, "/rename Numbers");
    assert_eq!(idle["stopReason"], "end_turn");
    assert_eq!(window.of_kind("session_info_update").last().expect("a title")["title"], "Numbers");
    for method in ["session/load", "session/set_mode", "authenticate", "logout", "fs/read_text_file"] {
        let params = json!({ "sessionId": session, "cwd": user.project(), "modeId": "ask" });
        assert_eq!(window.error(method, params), METHOD_NOT_FOUND, "{method}");
    }
    let untyped = json!({ "sessionId": session, "configId": "mode", "value": "ask" });
    assert_eq!(window.error("session/set_config_option", untyped), INVALID_PARAMS);
    for server in [
        json!({ "name": "x", "command": "/bin/true" }),
        json!({ "type": "stdio", "name": "x", "command": "true" }),
        json!({ "type": "sse", "name": "x", "url": "http://localhost/" }),
    ] {
        let params = json!({ "cwd": user.project(), "mcpServers": [server] });
        assert_eq!(window.error("session/new", params), INVALID_PARAMS);
    }
}
