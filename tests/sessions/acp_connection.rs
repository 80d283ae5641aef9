//! The connection as an editor sees it, over two pipes, with simulated sessions.

mod editor;
mod played;
mod scopes;

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;

use epitome::acp::connection::{ConnectionExit, LINE_BYTES_MAX, LineDirection, Tap};
use epitome::acp::server::PAGE_SESSIONS;
use epitome::session::registry::Header;
use epitome::session::{AskId, ClientId, QuestionReply, Ticket, UserDecision};
use epitome::thread::SessionId;
use parking_lot::Mutex;
use serde_json::{Value, json};

use editor::{Editor, Wire, prompt};
use played::long_text;

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer} is an error"))
}

#[test]
fn initialize_reports_the_agents_capabilities() {
    for params in [
        json!({ "protocolVersion": 1, "clientCapabilities": {} }),
        json!({ "protocolVersion": 99_999, "clientInfo": { "name": "x" } }),
        json!({ "protocolVersion": "2025-01-01", "clientCapabilities": [1], "_meta": 5 }),
        json!({}),
        json!(null),
        json!([1, 2]),
    ] {
        let answer = Editor::new().call("initialize", params);
        assert_eq!(
            answer["result"],
            json!({
                "protocolVersion": 1,
                "agentCapabilities": {
                    "loadSession": true,
                    "promptCapabilities": { "image": true, "audio": false, "embeddedContext": true },
                    "mcpCapabilities": { "http": true, "sse": true, "acp": true },
                    "sessionCapabilities": { "list": {}, "delete": {}, "additionalDirectories": {},
                        "resume": {}, "close": {}, "fork": {}, "systemPrompt": { "mode": { "override": {} } },
                        "archive": {}, "status": {}, "title": {}, "options": {} },
                    "auth": { "logout": {}, "status": {} },
                    "providers": {},
                },
                "authMethods": [],
                "agentInfo": { "name": "epitome", "title": "Epitome", "version": env!("CARGO_PKG_VERSION") },
                "_meta": { "steering": { "supported": true } },
            })
        );
    }
}

/// Regression: authentication succeeded even without a key. An editor that ignores the text of a prompt's error showed
/// the user a login button, which succeeded, and the same button again at the next prompt.
#[test]
fn authenticate_fails_with_instructions_until_a_model_is_configured() {
    let mut editor = Editor::with(false, None);
    let answer = editor.call("initialize", json!({ "protocolVersion": 1 }));
    let id = answer["result"]["authMethods"][0]["id"].clone();
    assert!(id.is_string() && answer["result"]["authMethods"][0].get("type").is_none());
    for _ in 0..2 {
        let refused = editor.call("authenticate", json!({ "methodId": id }));
        assert_eq!(code(&refused), -32000);
        assert_eq!(refused["error"]["message"], "Set EXAMPLE_API_KEY.");
    }
    assert_eq!(code(&editor.call("authenticate", json!({ "methodId": "other" }))), -32602);

    let mut editor = Editor::initialized();
    assert_eq!(editor.call("authenticate", json!({ "methodId": id }))["result"], json!({}));
}

/// Zed shows the error message of `session/new`, but not that of a prompt that fails because a login is required.
#[test]
fn a_client_that_drops_the_reason_later_gets_it_when_it_opens_a_session() {
    let new = json!({ "cwd": "/w", "mcpServers": [] });
    let zed = json!({ "protocolVersion": 1, "clientInfo": { "name": "zed" },
        "clientCapabilities": { "auth": { "terminal": true } } });
    let mut editor = Editor::with(false, None);
    let answer = editor.call("initialize", zed.clone());
    let method = &answer["result"]["authMethods"][0];
    assert_eq!((&method["type"], &method["args"]), (&json!("terminal"), &json!(["login"])));
    assert_eq!(method["_meta"]["terminal-auth"]["args"], json!(["acp", "login"]));
    let refused = editor.call("session/new", new.clone());
    assert_eq!((code(&refused), &refused["error"]["message"]), (-32000, &json!("Set EXAMPLE_API_KEY.")));
    assert_eq!(code(&editor.call("authenticate", json!({ "methodId": method["id"] }))), -32602);

    let mut editor = Editor::with(true, None);
    assert_eq!(editor.call("initialize", zed)["result"]["authMethods"], json!([]));
    assert!(editor.call("session/new", new.clone())["result"].is_object());

    let mut editor = Editor::with(false, None);
    let answer = editor.call("initialize", json!({ "protocolVersion": 1 }));
    assert_eq!(answer["result"]["authMethods"].as_array().expect("a list").len(), 1, "it has no terminal");
    assert!(editor.call("session/new", new)["result"].is_object(), "its prompts say what is missing");
}

#[test]
fn after_a_logout_new_sessions_need_a_login() {
    let mut editor = Editor::with(false, None);
    editor.call("initialize", json!({ "protocolVersion": 1 }));
    assert_eq!(editor.call("logout", json!({}))["result"], json!({}));
    assert_eq!(code(&editor.call("session/new", json!({ "cwd": "/w", "mcpServers": [] }))), -32000);

    let mut editor = Editor::initialized();
    let kept = editor.call("logout", json!({}));
    assert!(kept["error"]["message"].as_str().expect("a sentence").contains("environment"), "{kept}");
}

#[test]
fn requests_before_initialize_are_rejected_and_pipelined_ones_are_served() {
    let mut editor = Editor::new();
    assert_eq!(code(&editor.call("session/new", json!({ "cwd": "/w", "mcpServers": [] }))), -32600);
    let first = editor.request("initialize", json!({ "protocolVersion": 1 }));
    let second = editor.request("session/new", json!({ "cwd": "/w", "mcpServers": [] }));
    assert_eq!(editor.read()["id"], first);
    let answer = editor.read();
    assert_eq!(answer["id"], second);
    assert_eq!(answer["result"]["modes"]["currentModeId"], "ask");
    assert_eq!(answer["result"]["configOptions"][0]["category"], "model");
}

#[test]
fn malformed_lines_are_answered_and_do_not_end_the_connection() {
    let mut editor = Editor::initialized();
    for (line, expected) in [
        (&b"not json"[..], Some((json!(null), -32700))),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":", Some((json!(null), -32700))),
        (b"\xff\xfe{}", Some((json!(null), -32700))),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\"}]", Some((json!(null), -32600))),
        (b"17", Some((json!(null), -32600))),
        (b"{\"id\":\"a\"}", Some((json!("a"), -32600))),
        (b"", None),
        (b"\r", None),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"no/such\",\"params\":[1]}", None),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{\"sessionId\":5}}", None),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\",\"params\":{\"requestId\":77}}", None),
        (b"{\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}", None),
    ] {
        editor.write(line);
        if let Some((id, expected)) = expected {
            let answer = editor.read();
            assert_eq!((&answer["id"], code(&answer)), (&id, expected), "{}", String::from_utf8_lossy(line));
        }
        // The next request is served, with a CRLF line ending.
        editor.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"\\u0041\",\"method\":\"session/list\"}\r");
        assert_eq!(editor.read(), json!({ "jsonrpc": "2.0", "id": "A", "result": { "sessions": [] } }));
    }
}

#[test]
fn malformed_input_is_throttled_until_its_answers_are_read() {
    const LINES: usize = 20_000;
    let mut editor = Editor::initialized();
    let mut writer = editor.wire.to_agent.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for _ in 0..LINES {
            writer.write_all(b"nonsense\n").unwrap();
        }
    });
    for _ in 0..LINES {
        assert_eq!(code(&editor.read()), -32700);
    }
    writing.join().unwrap();
    editor.new_session();
}

#[test]
fn a_line_may_arrive_byte_by_byte() {
    let mut editor = Editor::initialized();
    for byte in b"{\"id\":1,\"method\":\"session/list\"}\n" {
        editor.wire.to_agent.write_all(&[*byte]).unwrap();
    }
    assert_eq!(editor.read()["result"], json!({ "sessions": [] }));
}

#[test]
fn an_oversized_line_is_answered_and_skipped() {
    let mut editor = Editor::initialized();
    let piece = vec![b'x'; 1024 * 1024];
    for _ in 0..=LINE_BYTES_MAX / piece.len() {
        editor.wire.to_agent.write_all(&piece).unwrap();
    }
    editor.write(b"");
    let answer = editor.read();
    assert_eq!((&answer["id"], code(&answer)), (&json!(null), -32600));
    editor.new_session();
}

#[test]
fn the_last_line_may_lack_a_line_ending() {
    let mut editor = Editor::initialized();
    editor.wire.to_agent.write_all(br#"{"id":9,"method":"session/no"}"#).unwrap();
    let Editor { wire, .. } = editor;
    let Wire { to_agent, mut from_agent, served } = wire;
    drop(to_agent);
    assert_eq!(served.join().unwrap(), ConnectionExit::EndOfInput);
    let mut line = String::new();
    from_agent.read_line(&mut line).unwrap();
    assert!(line.contains("-32601"), "{line}");
}

#[test]
fn invalid_methods_and_invalid_params_have_different_errors() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let unknown = format!("s_{}", "f".repeat(20));
    for (method, params, expected) in [
        ("session/set_model", json!({ "sessionId": session, "modelId": "x" }), -32601),
        ("session/fork", json!({ "sessionId": unknown, "cwd": "/w", "mcpServers": [] }), -32002),
        (
            "session/fork",
            json!({ "sessionId": session, "cwd": "/w", "mcpServers": [], "_meta": { "epitome": { "at": "12" } } }),
            -32602,
        ),
        ("_vendor/thing", json!({}), -32601),
        ("session/new", json!({ "mcpServers": [] }), -32602),
        ("session/new", json!({ "cwd": "w", "mcpServers": [] }), -32602),
        (
            "session/new",
            json!({ "cwd": "/w", "mcpServers": [{ "type": "carrier-pigeon", "name": "p" }] }),
            -32602,
        ),
        ("session/new", json!([1]), -32602),
        ("session/prompt", json!({ "sessionId": session }), -32602),
        ("session/prompt", json!({ "sessionId": session, "prompt": [] }), -32602),
        ("session/prompt", json!({ "sessionId": session, "prompt": [{ "type": "smell" }] }), -32602),
        ("session/set_mode", json!({ "sessionId": session, "modeId": "no" }), -32602),
        (
            "session/set_config_option",
            json!({ "sessionId": session, "configId": "model", "type": "boolean", "value": "x" }),
            -32602,
        ),
        ("session/prompt", prompt("not-ours", "hi"), -32002),
        ("session/prompt", prompt("../../etc/passwd", "hi"), -32002),
        ("session/prompt", prompt(&unknown, "hi"), -32002),
        ("session/load", json!({ "sessionId": unknown, "cwd": "/w", "mcpServers": [] }), -32002),
        ("session/resume", json!({ "sessionId": unknown, "cwd": "/w" }), -32002),
        ("session/set_mode", json!({ "sessionId": unknown, "modeId": "ask" }), -32002),
        ("session/prompt", prompt(&session, "fail"), -32603),
    ] {
        let answer = editor.call(method, params.clone());
        assert_eq!(code(&answer), expected, "{method} {params}: {answer}");
        if expected == -32002 {
            assert_eq!(answer["error"]["data"]["sessionId"], params["sessionId"]);
        }
    }
    // Archiving has closed it, or another client. Only version 1 had an error for that.
    assert_eq!(editor.call("session/close", json!({ "sessionId": unknown }))["result"], json!({}));
    let failed = editor.call("session/prompt", prompt(&session, "fail"));
    assert_eq!(
        failed["error"],
        json!({ "code": -32603, "message": "The key was refused", "data": { "details": "Set another" } })
    );
}

#[test]
fn small_requests_have_small_answers() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let on = |value: Value| {
        let mut params = json!({ "sessionId": session });
        params.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        params
    };
    let done = editor.call("session/prompt", prompt(&session, "hi"));
    assert_eq!(done["result"], json!({ "stopReason": "end_turn" }));
    assert_eq!(editor.call("session/set_mode", on(json!({ "modeId": "full" })))["result"], json!({}));
    let set = editor.call("session/set_config_option", on(json!({ "configId": "mode", "value": "full" })));
    assert_eq!(set["result"]["configOptions"].as_array().unwrap().len(), 4);
    assert_eq!(editor.call("session/close", on(json!({})))["result"], json!({}));
    assert_eq!(code(&editor.call("session/prompt", prompt(&session, "hi"))), -32002);
    for id in [session.as_str(), "never-was"] {
        assert_eq!(editor.call("session/delete", json!({ "sessionId": id }))["result"], json!({}));
    }
}

/// Regression: a fork that failed, for example because the disk was full, closed the session that was to be forked.
#[test]
fn a_session_whose_fork_fails_stays_open() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let params = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    assert_eq!(code(&editor.call("session/fork", params)), -32002);
    assert!(
        editor.call("session/set_mode", json!({ "sessionId": session, "modeId": "ask" }))["result"]
            .is_object()
    );
}

#[test]
fn a_panicking_store_yields_an_internal_error() {
    let mut editor = Editor::initialized();
    let session = format!("s_{}dead", "0".repeat(16));
    assert_eq!(code(&editor.call("session/delete", json!({ "sessionId": session }))), -32603);
}

#[test]
fn load_replays_before_its_answer_and_resume_replays_nothing() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let params = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    let kinds = |messages: &[Value]| -> Vec<String> {
        let kind =
            |message: &Value| message["params"]["update"]["sessionUpdate"].as_str().unwrap().to_owned();
        messages.iter().map(kind).collect()
    };
    let (before, answer) = editor.call_after("session/load", params.clone());
    assert_eq!(kinds(&before), ["user_message_chunk", "agent_message_chunk"]);
    assert!(answer["result"]["configOptions"].is_array() && answer["result"].get("sessionId").is_none());
    let (before, answer) = editor.call_after("session/resume", params);
    // Only the available commands, no messages of the conversation.
    assert_eq!(kinds(&before), ["available_commands_update"]);
    assert!(answer["result"]["modes"].is_object());
}

/// Regression: a second load of an open session failed, and the connection forgot that the session was open: its next
/// prompt was for a session that it did not have.
#[test]
fn a_session_stays_open_if_loading_it_again_fails() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let name = SessionId(session.clone());
    let outlet = editor.played.state.lock().live.remove(&name).expect("it is open");
    let params = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    assert!(editor.call("session/load", params)["error"].is_object());
    editor.played.state.lock().live.insert(name, outlet);
    let answer = editor.call("session/prompt", prompt(&session, "hello"));
    assert_eq!(answer["result"]["stopReason"], "end_turn");
}

#[test]
fn a_session_that_is_continued_gets_the_keys_of_its_unanswered_prompts() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let sent = |id: u64| json!({ "id": id, "key": format!("key {id}"), "cancelled": false });
    let meta = json!({ "epitome": { "rest": {}, "prompts": [sent(100), sent(101)] } });
    let params = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [], "_meta": meta });
    let answer = editor.call("session/resume", params);
    assert!(answer["result"].is_object(), "{answer}");
    let pending = std::mem::take(&mut editor.played.state.lock().resumed);
    let keys: Vec<&str> = pending.iter().map(|prompt| prompt.key.as_str()).collect();
    assert_eq!(keys, ["key 100", "key 101"]);
}

/// Version 2 was switched off while a front end's daemon died: its editor goes on with the version that it has.
#[test]
fn a_front_end_keeps_the_version_of_its_editor() {
    let chosen = |params: Value| {
        let mut editor = Editor::offered(true, false, None);
        editor.call("initialize", params)["result"]["protocolVersion"].clone()
    };
    let info = json!({ "name": "x", "version": "1" });
    let continued = json!({ "epitome": { "continued": true } });
    let asks = |version: u64| json!({ "protocolVersion": version, "capabilities": {}, "info": info });
    assert_eq!(chosen(asks(2)), 1);
    for version in [1, 2] {
        let mut params = asks(version);
        params["_meta"] = continued.clone();
        assert_eq!(chosen(params), version);
    }
}

/// Regression: a connection changed from version 1 to 2 with its sessions open, in the middle of a turn.
#[test]
fn a_connection_that_is_in_use_keeps_its_version() {
    let mut editor = Editor::offered(true, true, None);
    let info = json!({ "name": "x", "version": "1" });
    let version = |editor: &mut Editor, version: u64| {
        let params = json!({ "protocolVersion": version, "capabilities": {}, "info": info });
        editor.call("initialize", params)["result"]["protocolVersion"].clone()
    };
    assert_eq!(version(&mut editor, 1), 1);
    editor.new_session();
    assert_eq!(version(&mut editor, 2), 1);
}

#[test]
fn cancel_and_cancel_request_both_end_a_prompt() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let cancelled = json!({ "stopReason": "cancelled" });
    let id = editor.prompt(&session, "wait");
    editor.send(json!({ "method": "session/cancel", "params": { "sessionId": session, "reason": "x" } }));
    let answer = editor.read();
    assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &cancelled));
    let id = editor.prompt(&session, "wait");
    editor.send(json!({ "method": "$/cancel_request", "params": { "requestId": id } }));
    let answer = editor.read();
    assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &cancelled));
}

/// Regression: a client that knew the id of a session could cancel its turn without having opened it, even if the client was
/// limited to other directories.
#[test]
fn a_client_cancels_only_sessions_that_it_has_opened() {
    let mut editor = Editor::initialized();
    editor.new_session();
    let other = SessionId("s_0000000000000000000f".to_owned());
    let played = editor.played.clone();
    let mut state = played.state.lock();
    let outlet = state.live.values().next().expect("the editor's session").clone();
    state.live.insert(other.clone(), outlet);
    state.waiting.push((other.clone(), Ticket(u64::MAX)));
    drop(state);
    editor.send(json!({ "method": "session/cancel", "params": { "sessionId": other.0 } }));
    editor.call("session/list", json!({}));
    assert_eq!(played.state.lock().waiting.len(), 1);
}

#[test]
fn only_an_offered_allow_option_approves() {
    let selected =
        |option: &str| json!({ "result": { "outcome": { "outcome": "selected", "optionId": option } } });
    for (answer, expected) in [
        (selected("allow_once"), UserDecision::AllowOnce),
        (selected("reject_once"), UserDecision::Reject),
        // This option was not offered.
        (selected("allow_always"), UserDecision::Dismissed),
        (selected("yes"), UserDecision::Dismissed),
        (
            json!({ "result": { "outcome": { "outcome": "cancelled", "optionId": "allow_once" } } }),
            UserDecision::Dismissed,
        ),
        (json!({ "result": { "outcome": { "outcome": "granted" } } }), UserDecision::Dismissed),
        (json!({ "result": null }), UserDecision::Dismissed),
        // This editor cannot ask the user; another client of the session may.
        (json!({ "error": { "code": -32601, "message": "no such method" } }), UserDecision::Absent),
    ] {
        let mut editor = Editor::initialized();
        let session = editor.new_session();
        editor.prompt(&session, "ask");
        let announced = editor.read();
        assert_eq!(announced["params"]["update"]["sessionUpdate"], "tool_call");
        let question = editor.read();
        assert_eq!(question["method"], "session/request_permission");
        assert_eq!(question["params"]["toolCall"]["title"], "make");
        for _ in 0..2 {
            // The second answer arrives too late.
            let mut answer = answer.clone();
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = question["id"].clone();
            editor.send(answer);
        }
        editor.call("session/list", json!({}));
        let decisions = std::mem::take(&mut editor.played.state.lock().decisions);
        assert_eq!(decisions, [(AskId(1), expected)], "{answer}");
    }
}

/// Each row is an editor's answer to a URL, and the reply that the session receives. A client that does not
/// declare support for URLs receives none.
#[test]
fn a_url_is_sent_to_capable_clients_and_completed_once() {
    for (answer, expected) in [
        (json!({ "result": { "action": "accept" } }), QuestionReply::Accepted(serde_json::Map::new())),
        (json!({ "result": { "action": "decline" } }), QuestionReply::Declined),
        (json!({ "result": { "action": "cancel" } }), QuestionReply::Cancelled),
    ] {
        let mut editor = Editor::new();
        let shows = json!({ "elicitation": { "url": {} } });
        editor.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": shows }));
        let session = editor.new_session();
        editor.prompt(&session, "visit");
        let question = editor.read();
        assert_eq!(question["method"], "elicitation/create");
        let params = &question["params"];
        assert_eq!(
            (&params["mode"], &params["url"], &params["message"], &params["elicitationId"]),
            (&json!("url"), &json!("https://login.example/a"), &json!("Log in"), &json!("mcp_1"))
        );
        let mut answer = answer.clone();
        answer["jsonrpc"] = json!("2.0");
        answer["id"] = question["id"].clone();
        editor.send(answer.clone());
        let (before, _) = editor.call_after("session/list", json!({}));
        let completed = before.iter().filter(|message| message["method"] == "elicitation/complete");
        assert_eq!(completed.count(), 1, "{before:?}");
        let replies = std::mem::take(&mut editor.played.state.lock().replies);
        assert_eq!(replies, [(AskId(3), expected)], "{answer}");
    }

    let mut editor = Editor::initialized();
    let session = editor.new_session();
    editor.prompt(&session, "visit");
    let (before, _) = editor.call_after("session/list", json!({}));
    assert!(!before.iter().any(|message| message.to_string().contains("login.example")), "{before:?}");
}

/// Regression: the error of one window that could not show a question closed it in all others.
#[test]
fn a_question_that_an_editor_can_not_show_is_left_to_others() {
    let mut editor = Editor::new();
    let shows = json!({ "elicitation": { "url": {} } });
    editor.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": shows }));
    let session = editor.new_session();
    editor.prompt(&session, "visit");
    let question = editor.read();
    assert_eq!(question["method"], "elicitation/create");
    editor.send(json!({ "id": question["id"], "error": { "code": 1, "message": "no" } }));
    editor.call("session/list", json!({}));
    let state = editor.played.state.lock();
    assert_eq!(state.replies, []);
    assert_eq!(state.decisions, [(AskId(3), UserDecision::Absent)]);
}

#[test]
fn a_withdrawn_question_is_cancelled_and_its_late_answer_ignored() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    editor.prompt(&session, "ask");
    editor.read();
    let id = editor.read()["id"].clone();
    editor.prompt(&session, "withdraw");
    assert_eq!(
        editor.read(),
        json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": id } })
    );
    editor.send(
        json!({ "id": id, "result": { "outcome": { "outcome": "selected", "optionId": "allow_once" } } }),
    );
    editor.read();
    editor.call("session/list", json!({}));
    assert!(editor.played.state.lock().decisions.is_empty());
}

/// The child's call is in no entry of the session, so nothing else would announce or end it.
#[test]
fn a_childs_permission_request_is_framed_by_call_start_and_end() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    editor.prompt(&session, "child");
    let announced = editor.read();
    let update = &announced["params"]["update"];
    assert_eq!(
        (&update["sessionUpdate"], &update["toolCallId"]),
        (&json!("tool_call"), &json!("s_child.c1"))
    );
    let question = editor.read();
    assert_eq!(question["method"], "session/request_permission");
    assert_eq!(question["params"]["toolCall"]["toolCallId"], "s_child.c1");
    assert_eq!(editor.read()["params"]["requestId"], question["id"]);
    let ended = editor.read();
    let update = &ended["params"]["update"];
    assert_eq!((&update["toolCallId"], &update["status"]), (&json!("s_child.c1"), &json!("failed")));
}

#[test]
fn paging_returns_every_listed_session_once() {
    let header = |n: u64| Header {
        session: SessionId(format!("s_{n:020x}")),
        cwd: PathBuf::from(if n.is_multiple_of(2) { "/even" } else { "/odd" }),
        title: (n != 3).then(|| format!("Title {n}")),
        model: None,
        created_at: 0,
        // Several have the same time.
        updated_at: 1_700_000_000_000 + n / 7,
        entries: 1,
        turns: 1,
        in_turn: false,
        has_prompt: n != 4,
        archived: false,
        lost: 0,
        forked: None,
    };
    let count = 2 * PAGE_SESSIONS as u64 + 20;
    let mut editor = Editor::initialized();
    editor.played.state.lock().headers = (0..count).map(header).collect();
    let (mut seen, mut cursor, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
        let result = editor.call("session/list", params)["result"].clone();
        for info in result["sessions"].as_array().unwrap() {
            assert!(
                info["title"].is_string() && info["updatedAt"].as_str().unwrap().ends_with('Z'),
                "{info}"
            );
            seen.push(info["sessionId"].as_str().unwrap().to_owned());
        }
        pages += 1;
        // A session that is created while paging is the newest, and must not shift a page.
        let newest = Header { updated_at: 1_800_000_000_000 + pages, ..header(1_000 + pages) };
        editor.played.state.lock().headers.insert(0, newest);
        match result.get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!(pages, 3);
    assert_eq!(seen.len() as u64, count - 1, "the one without a prompt is not listed");
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len());
    let even = editor.call("session/list", json!({ "cwd": "/even" }))["result"]["sessions"].clone();
    assert!(even.as_array().unwrap().iter().all(|info| info["cwd"] == "/even"));
    assert_eq!(code(&editor.call("session/list", json!({ "cursor": "zz" }))), -32602);
    assert_eq!(code(&editor.call("session/list", json!({ "cwd": "rel" }))), -32602);
}

#[test]
fn a_thousand_mixed_requests_get_one_answer_each() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let mut writer = editor.wire.to_agent.try_clone().unwrap();
    let named = session.clone();
    let writing = std::thread::spawn(move || {
        for n in 0..1000_u64 {
            let (method, params) = match n % 8 {
                0 => ("session/prompt", prompt(&named, "wait")),
                1 => ("session/prompt", prompt(&named, "hi")),
                2 => ("session/new", json!({ "cwd": "/w", "mcpServers": [] })),
                3 => ("session/list", json!({})),
                4 => ("no/such", json!({})),
                5 => ("session/prompt", prompt("s_none", "hi")),
                6 => ("session/delete", json!({ "sessionId": "none" })),
                _ => ("session/set_mode", json!({ "sessionId": named, "modeId": "ask" })),
            };
            let request =
                json!({ "jsonrpc": "2.0", "id": format!("r{n}"), "method": method, "params": params });
            writeln!(writer, "{request}").unwrap();
            if n % 3 == 0 {
                let cancel =
                    json!({ "method": "$/cancel_request", "params": { "requestId": format!("r{n}") } });
                writeln!(writer, "{cancel}").unwrap();
            }
        }
        let cancel = json!({ "method": "session/cancel", "params": { "sessionId": named } });
        writeln!(writer, "{cancel}").unwrap();
    });
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    while answers.len() < 1000 {
        let message = editor.read();
        if let Some(id) = message["id"].as_str() {
            *answers.entry(id.to_owned()).or_default() += 1;
        }
    }
    writing.join().unwrap();
    // A duplicate response to any request would have to arrive before this one.
    let (rest, _) = editor.call_after("no/such", json!({}));
    assert!(rest.iter().all(|message| message.get("id").is_none()), "{rest:?}");
    assert!(answers.values().all(|count| *count == 1));
}

#[test]
fn an_editor_that_stops_reading_eventually_gets_the_complete_text() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    let id = editor.prompt(&session, "stream");
    // The editor reads nothing until long after the turn has ended; this must not block the session.
    let played = editor.played.clone();
    let other = editor.prompt(&session, "wait");
    while played.state.lock().waiting.is_empty() {
        std::thread::yield_now();
    }
    editor.send(json!({ "method": "session/cancel", "params": { "sessionId": session } }));
    let (mut text, mut answered) = (String::new(), HashSet::new());
    while answered.len() < 2 {
        let message = editor.read();
        match message["id"].as_u64() {
            Some(id) => assert!(answered.insert(id)),
            None => text.push_str(message["params"]["update"]["content"]["text"].as_str().unwrap()),
        }
    }
    assert_eq!(answered, HashSet::from([id, other]));
    assert!(text == long_text(), "the chunks do not come to the text");
}

#[test]
fn end_of_input_detaches_the_editor() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    editor.prompt(&session, "wait");
    // The prompt never ends, and this returns anyway.
    let (played, exit) = editor.close();
    assert_eq!(exit, ConnectionExit::EndOfInput);
    assert_eq!(played.state.lock().detached, [ClientId(1)]);
}

#[test]
fn an_editor_that_never_reads_does_not_delay_shutdown() {
    let mut editor = Editor::initialized();
    let session = editor.new_session();
    editor.prompt(&session, "stream");
    let Wire { to_agent, from_agent, served } = editor.wire;
    drop(to_agent);
    assert_eq!(served.join().unwrap(), ConnectionExit::EndOfInput);
    drop(from_agent);
}

#[test]
fn a_tap_sees_every_line_of_both_directions() {
    let seen: Arc<Mutex<Vec<(LineDirection, String)>>> = Arc::default();
    let log = seen.clone();
    let tap: Tap = Box::new(move |direction, line| {
        log.lock().push((direction, String::from_utf8(line.to_vec()).unwrap()));
    });
    let mut editor = Editor::with(true, Some(tap));
    editor.call("initialize", json!({ "protocolVersion": 1 }));
    editor.new_session();
    let (_, _) = editor.close();
    let seen = seen.lock();
    let to_client: Vec<&str> = seen
        .iter()
        .filter(|(way, _)| *way == LineDirection::ToClient)
        .map(|(_, line)| line.as_str())
        .collect();
    assert_eq!(seen.len() - to_client.len(), 2);
    assert_eq!(to_client.len(), 3);
    assert!(to_client.iter().all(|line| line.starts_with('{') && line.ends_with('}')));
}

/// The client from the protocol's official library, on which editors are built.
#[test]
fn the_reference_client_completes_a_session() {
    use agent_client_protocol::schema::ProtocolVersion;
    use agent_client_protocol::v1::schema as wire;
    use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

    let Editor { wire: Wire { to_agent, from_agent, served }, played, runtime, .. } = Editor::new();
    let kinds: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = kinds.clone();
    runtime.block_on(async {
        let outgoing = tokio::net::unix::pipe::Sender::from_owned_fd(to_agent.into()).unwrap();
        let incoming =
            tokio::net::unix::pipe::Receiver::from_owned_fd(from_agent.into_inner().into()).unwrap();
        let streams = agent_client_protocol::ByteStreams::new(outgoing.compat_write(), incoming.compat());
        agent_client_protocol::Client
            .v1()
            .on_receive_notification(
                async move |notification: wire::SessionNotification, _connection| {
                    let update = serde_json::to_value(notification.update).unwrap();
                    seen.lock().push(update["sessionUpdate"].as_str().unwrap().to_owned());
                    Ok(())
                },
                agent_client_protocol::on_receive_notification!(),
            )
            .on_receive_request(
                async move |request: wire::RequestPermissionRequest, responder, _connection| {
                    let chosen = wire::SelectedPermissionOutcome::new(request.options[0].option_id.clone());
                    responder.respond(wire::RequestPermissionResponse::new(
                        wire::RequestPermissionOutcome::Selected(chosen),
                    ))
                },
                agent_client_protocol::on_receive_request!(),
            )
            .connect_with(streams, async |connection: agent_client_protocol::v1::ConnectionTo<_>| {
                let initialize = wire::InitializeRequest::new(ProtocolVersion::V1);
                let about = connection.send_request(initialize).block_task().await?;
                assert!(about.agent_capabilities.load_session);
                let new = connection.send_request(wire::NewSessionRequest::new("/w")).block_task().await?;
                assert_eq!(new.config_options.unwrap().len(), 4);
                let session = new.session_id;
                let prompt = wire::PromptRequest::new(session.clone(), vec!["ask".into()]);
                let done = connection.send_request(prompt).block_task().await?;
                assert_eq!(done.stop_reason, wire::StopReason::EndTurn);
                let load = wire::LoadSessionRequest::new(session.clone(), "/w");
                let loaded = connection.send_request(load).block_task().await?;
                assert_eq!(loaded.modes.unwrap().available_modes.len(), 5);
                let listed = connection.send_request(wire::ListSessionsRequest::new()).block_task().await?;
                assert!(listed.sessions.is_empty());
                connection.send_request(wire::CloseSessionRequest::new(session.clone())).block_task().await?;
                let prompt = wire::PromptRequest::new(session, vec!["hi".into()]);
                let gone = connection.send_request(prompt).block_task().await.unwrap_err();
                assert_eq!(i32::from(gone.code), -32002);
                Ok(())
            })
            .await
            .unwrap();
    });
    assert_eq!(served.join().unwrap(), ConnectionExit::EndOfInput);
    assert_eq!(played.state.lock().decisions, [(AskId(1), UserDecision::AllowOnce)]);
    assert_eq!(
        *kinds.lock(),
        [
            "available_commands_update",
            "tool_call",
            "user_message_chunk",
            "agent_message_chunk",
            "available_commands_update"
        ]
    );
}

/// A client that has asked for the login state is notified once of a change; other clients are not notified.
#[test]
fn a_login_change_is_sent_to_clients_that_asked_for_it() {
    let mut editor = Editor::with(false, None);
    editor.call("initialize", json!({ "protocolVersion": 1 }));
    assert_eq!(editor.call("logout", json!({}))["result"], json!({}));
    assert_eq!(editor.call("auth/status", json!({}))["result"], json!({ "state": "unauthenticated" }));
    // A second logout changes nothing.
    assert_eq!(editor.call("logout", json!({}))["result"], json!({}));
    assert_eq!(code(&editor.call("session/new", json!({ "cwd": "/w", "mcpServers": [] }))), -32000);
}

#[test]
fn archived_sessions_are_listed_on_request_only() {
    let mut editor = Editor::initialized();
    let header = |n: u64| Header {
        session: SessionId(format!("s_{n:020x}")),
        cwd: PathBuf::from("/w"),
        title: None,
        model: None,
        created_at: 0,
        updated_at: n,
        entries: 1,
        turns: 1,
        in_turn: false,
        has_prompt: true,
        archived: false,
        lost: 0,
        forked: None,
    };
    editor.played.state.lock().headers = (1..=3).map(header).collect();
    let id = |n: u64| header(n).session.0;
    assert_eq!(editor.call("session/archive", json!({ "sessionId": id(2) }))["result"], json!({}));
    let mut listed = |filter: Value| {
        let answer = editor.call("session/list", json!({ "archived": filter }));
        let sessions = answer["result"]["sessions"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        sessions.iter().map(|one| (one["sessionId"].clone(), one["archived"].clone())).collect::<Vec<_>>()
    };
    let all = [(3, false), (2, true), (1, false)].map(|(n, archived)| (json!(id(n)), json!(archived)));
    assert_eq!(listed(json!("include")), all);
    assert_eq!(listed(json!("only")), all[1..2]);
    assert_eq!(listed(Value::Null), [all[0].clone(), all[2].clone()]);
    assert_eq!(code(&editor.call("session/list", json!({ "archived": "maybe" }))), -32602);
    assert_eq!(code(&editor.call("session/archive", json!({ "sessionId": id(9) }))), -32002);
}
