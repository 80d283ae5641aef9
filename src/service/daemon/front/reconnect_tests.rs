//! Tests of the front end's recorded state, as sequences of lines.

use std::time::Instant;

use proptest::prelude::*;
use serde_json::Value;

use super::reconnect::{
    DaemonMessage, Elsewhere, LineAction, ReconnectState, request, stays_because, unserved,
};
use crate::handshake::RETURN_TIME_MAX;
use crate::messages::{FrontendMessage, MessageKind, PositionStep};
use epitome_acp::{answers, writer};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;
const V1: &str = r#"{"protocolVersion":1}"#;
const NEW: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[{"name":"m"}]}}"#;

/// A front end's memory, driven by a simulated editor and daemon.
#[derive(Default)]
struct ReconnectFixture {
    reconnect: ReconnectState,
}

impl ReconnectFixture {
    /// Starts with an open session `s_1`.
    fn with_session() -> ReconnectFixture {
        let mut fixture = ReconnectFixture::default();
        assert_eq!(fixture.reconnect.from_editor(INITIALIZE.as_bytes()), LineAction::Forward);
        fixture.answered("0", V1);
        assert_eq!(fixture.reconnect.from_editor(NEW.as_bytes()), LineAction::Forward);
        fixture.answered("1", r#"{"sessionId":"s_1","modes":{}}"#);
        fixture
    }

    fn editor(&mut self, line: &str) -> LineAction {
        self.reconnect.from_editor(line.as_bytes())
    }

    fn request(&mut self, id: u64, method: &str, params: &str) {
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let action = self.editor(&line);
        assert!(matches!(action, LineAction::Forward | LineAction::Instead(_)), "{action:?}");
    }

    fn frame(&mut self, kind: MessageKind, id: &str, body: &str) -> DaemonMessage {
        let body = format!("{body}\n");
        self.reconnect.from_daemon(&FrontendMessage { kind, id, lines: body.as_bytes(), steps: &[] })
    }

    /// The daemon shows a session up to this position.
    fn shown(&mut self, session: &str, at: &str, begins: bool) {
        let step = format!(r#"{{"session":"{session}","lines":0,"begins":{begins},"at":{at}}}"#);
        let step: PositionStep = serde_json::from_str(&step).expect("a step");
        let message =
            FrontendMessage { kind: MessageKind::Notifications, id: "", lines: b"", steps: &[step] };
        assert_eq!(self.reconnect.from_daemon(&message), DaemonMessage::Show);
    }

    fn answered(&mut self, id: &str, result: &str) -> DaemonMessage {
        self.frame(MessageKind::Response, id, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
    }

    fn refused(&mut self, id: &str) -> DaemonMessage {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32002,"message":"gone"}}}}"#);
        self.frame(MessageKind::Response, id, &body)
    }

    /// The daemon sends a permission request with this id.
    fn permission_request(&mut self, id: u64) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission"}}"#);
        assert_eq!(self.frame(MessageKind::Request, &id.to_string(), &body), DaemonMessage::Show);
    }

    fn allow(&mut self, id: u64) -> LineAction {
        self.editor(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"outcome":{{"outcome":"selected","optionId":"allow_once"}}}}}}"#
        ))
    }
}

fn messages(lines: &[u8]) -> Vec<Value> {
    assert!(lines.is_empty() || lines.ends_with(b"\n"));
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("each line is JSON")).collect()
}

/// The ids of the requests that these lines answer as interrupted.
fn interrupted(lines: &[u8]) -> Vec<String> {
    let ids = messages(lines).into_iter().map(|message| {
        let sentence = message["error"]["message"].as_str().expect("an error").to_owned();
        assert!(sentence.contains("Interrupted") && sentence.contains("send it again"), "{sentence}");
        message["id"].to_string()
    });
    ids.collect()
}

fn methods(lines: &[u8]) -> Vec<String> {
    let named = |message: &Value| message["method"].as_str().expect("a request").to_owned();
    messages(lines).iter().map(named).collect()
}

/// A user who saw a permission request, lost the daemon and clicked "allow" afterwards must not have allowed
/// anything, neither what another daemon asks for nor what the dead one wanted.
#[test]
fn a_late_allow_for_a_dead_daemons_request_is_dropped() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.permission_request(70);
    let answers = messages(&fixture.reconnect.lost());
    let [cancel] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!((&cancel["method"], &cancel["params"]["requestId"]), (&"$/cancel_request".into(), &70.into()));
    assert_eq!(fixture.allow(70), LineAction::Drop);
    // The next daemon uses ids above all that were seen.
    assert_eq!(fixture.reconnect.ids_above(), 70);
    fixture.permission_request(71);
    assert_eq!(fixture.allow(70), LineAction::Drop);
    assert_eq!(fixture.allow(71), LineAction::Forward);
    assert_eq!(fixture.allow(71), LineAction::Drop, "each card has one answer");
}

#[test]
fn a_withdrawn_request_is_forgotten() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.permission_request(70);
    fixture.frame(MessageKind::Withdrawn, "70", "{}");
    assert_eq!(fixture.allow(70), LineAction::Drop);
    assert!(fixture.reconnect.lost().is_empty());
}

#[test]
fn the_replay_initializes_and_resumes_open_sessions() {
    let mut fixture = ReconnectFixture::with_session();
    let load = r#"{"sessionId":"s_2","cwd":"/x","mcpServers":[]}"#;
    fixture.request(2, "session/load", load);
    fixture.answered("2", "{}");
    fixture.request(3, "session/load", r#"{"sessionId":"s_gone","cwd":"/x","mcpServers":[]}"#);
    fixture.refused("3");
    assert!(fixture.reconnect.lost().is_empty());
    let replay = fixture.reconnect.replay();
    assert_eq!(methods(&replay), ["initialize", "session/resume", "session/resume"]);
    let requests = messages(&replay);
    assert_eq!(requests[0]["params"], serde_json::json!({ "protocolVersion": 1 }));
    assert_eq!(
        requests[1]["params"],
        serde_json::json!({
            "cwd": "/w", "mcpServers": [{ "name": "m" }], "sessionId": "s_1",
            "_meta": { "epitome": { "rest": {}, "prompts": [] } },
        })
    );
    let mut again: Value = serde_json::from_str(load).expect("JSON");
    again["_meta"] = serde_json::json!({ "epitome": { "rest": {}, "prompts": [] } });
    assert_eq!(requests[2]["params"], again);
    // Responses to the replay are for the front end; ids of the editor still belong to the editor.
    for message in &requests {
        assert_eq!(fixture.answered(&message["id"].to_string(), V1), DaemonMessage::Instead(Vec::new()));
    }
    assert!(fixture.reconnect.is_settled());
    fixture.request(4, "session/list", "{}");
    assert_eq!(fixture.answered("4", "{}"), DaemonMessage::Show);
}

#[test]
fn closed_and_deleted_sessions_are_not_resumed() {
    for (method, answers, stays) in [
        ("session/close", true, false),
        ("session/delete", true, false),
        // Regression: the next daemon opened an archived session again.
        ("session/archive", true, false),
        // The daemon died during the call, but closing was the intent.
        ("session/close", false, false),
        ("session/set_mode", true, true),
    ] {
        let mut fixture = ReconnectFixture::with_session();
        fixture.request(2, method, r#"{"sessionId":"s_1"}"#);
        if answers {
            fixture.answered("2", "{}");
        }
        fixture.reconnect.lost();
        let taken_up = methods(&fixture.reconnect.replay()).contains(&"session/resume".to_owned());
        assert_eq!(taken_up, stays, "{method}");
    }
}

/// Regression: a prompt was never answered if its session was deleted, archived or closed while it was running and the daemon
/// died before the end. Later, it was reported as interrupted although it had been done, because its session was not resumed.
#[test]
fn the_prompt_of_a_session_that_was_ending_is_answered_before_the_session_ends() {
    for method in ["session/delete", "session/archive", "session/close"] {
        let mut fixture = ReconnectFixture::with_session();
        fixture.request(2, "session/prompt", r#"{"sessionId":"s_1","prompt":[1]}"#);
        fixture.request(3, method, r#"{"sessionId":"s_1"}"#);
        for _ in 0..2 {
            fixture.reconnect.lost();
            let replay = fixture.reconnect.replay();
            assert_eq!(methods(&replay), ["initialize", "session/resume", method]);
            assert!(fixture.reconnect.answers_at_once().is_empty(), "the next daemon answers {method}");
        }
        // A request that every daemon dies of is not sent again. The session is as open as it was.
        fixture.reconnect.lost();
        let replay = fixture.reconnect.replay();
        assert_eq!(methods(&replay), ["initialize", "session/resume"]);
        assert_eq!(interrupted(&fixture.reconnect.answers_at_once()), ["3"]);
        assert_eq!(fixture.answered("2", r#"{"stopReason":"end_turn"}"#), DaemonMessage::Show);
    }
}

/// Regression: a listing and a load were answered as interrupted, though the next daemon could answer them. The user
/// of a finished turn was asked to send the prompt again.
#[test]
fn requests_are_repeated_and_prompts_go_along_with_their_session() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.shown("s_1", r#"{"after":7}"#, false);
    fixture.request(5, "session/prompt", r#"{"sessionId":"s_1","prompt":[1]}"#);
    fixture.shown("s_1", r#"{"after":9,"text":{}}"#, false);
    fixture.request(6, "session/list", "{}");
    fixture.request(7, "session/new", r#"{"cwd":"/w","mcpServers":[]}"#);
    fixture.request(8, "session/prompt", r#"{"sessionId":"s_unknown","prompt":[]}"#);
    fixture.request(9, "session/fork", r#"{"sessionId":"s_1","cwd":"/w"}"#);
    fixture.request(10, "session/close", r#"{"sessionId":"s_2"}"#);
    assert!(fixture.reconnect.lost().is_empty(), "nothing is answered before the next daemon knows of it");
    let replay = fixture.reconnect.replay();
    assert_eq!(methods(&replay), ["initialize", "session/resume", "session/list", "session/new"]);
    let replay = messages(&replay);
    let continued = &replay[1]["params"]["_meta"]["epitome"];
    assert_eq!(continued["rest"], serde_json::json!({ "after": 9, "text": {} }));
    assert_eq!(continued["prompts"].as_array().map(Vec::len), Some(1));
    assert_eq!(continued["prompts"][0]["id"], 5);
    assert_eq!((&replay[2]["id"], &replay[3]["id"]), (&6.into(), &7.into()));
    let answers = messages(&fixture.reconnect.answers_at_once());
    let closed = answers.iter().position(|answer| answer["id"] == 10).expect("it is answered");
    assert_eq!(answers[closed]["result"], serde_json::json!({}));
    let lines: String =
        answers.iter().filter(|answer| answer["id"] != 10).map(|line| format!("{line}\n")).collect();
    assert_eq!(interrupted(lines.as_bytes()), ["8", "9"]);
    assert!(fixture.reconnect.owes());
    assert_eq!(fixture.answered("5", r#"{"stopReason":"end_turn"}"#), DaemonMessage::Show);
    assert_eq!(fixture.answered(&replay[1]["id"].to_string(), "{}"), DaemonMessage::Instead(Vec::new()));
    assert_eq!(fixture.answered("6", "{}"), DaemonMessage::Show);
    assert!(!fixture.reconnect.owes());
}

/// Regression: a load was half shown when its daemon died. Sending it again showed the first half twice.
#[test]
fn an_interrupted_load_continues_where_it_was() {
    let mut fixture = ReconnectFixture::with_session();
    let load = r#"{"sessionId":"s_1","cwd":"/w","mcpServers":[]}"#;
    fixture.shown("s_1", r#"{"after":7}"#, false);
    fixture.request(2, "session/load", load);
    fixture.reconnect.lost();
    // Nothing of it was shown, and the editor waits for all of it.
    let replay = messages(&fixture.reconnect.replay());
    let [_, load] = &replay[..] else { panic!("no resumption besides the load: {replay:?}") };
    assert_eq!((&load["id"], &load["method"]), (&2.into(), &"session/load".into()));
    assert_eq!(load["params"]["_meta"]["epitome"]["rest"], serde_json::json!({ "replay": true }));
    fixture.shown("s_1", r#"{"after":0,"replay":true}"#, true);
    fixture.shown("s_1", r#"{"after":3,"replay":true}"#, false);
    fixture.reconnect.lost();
    let replay = messages(&fixture.reconnect.replay());
    let [_, load] = &replay[..] else { panic!("no resumption besides the load: {replay:?}") };
    assert_eq!((&load["id"], &load["method"]), (&2.into(), &"session/load".into()));
    assert_eq!(load["params"]["_meta"]["epitome"]["rest"], serde_json::json!({ "after": 3, "replay": true }));
}

/// A request that kills every daemon must not be sent forever.
#[test]
fn a_request_is_repeated_a_few_times_only() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(2, "session/list", "{}");
    for _ in 0..2 {
        fixture.reconnect.lost();
        assert_eq!(methods(&fixture.reconnect.replay()), ["initialize", "session/resume", "session/list"]);
        assert!(fixture.reconnect.answers_at_once().is_empty());
    }
    fixture.reconnect.lost();
    assert_eq!(methods(&fixture.reconnect.replay()), ["initialize", "session/resume"]);
    assert_eq!(interrupted(&fixture.reconnect.answers_at_once()), ["2"]);
}

#[test]
fn a_daemon_that_answers_a_prompt_too_late_is_not_forwarded() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(5, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
    fixture.reconnect.lost();
    fixture.reconnect.replay();
    assert_eq!(interrupted(&fixture.reconnect.answers_overdue()), ["5"]);
    assert_eq!(fixture.answered("5", "{}"), DaemonMessage::Instead(Vec::new()));
}

/// It is unknown whether it entered the interrupted turn, so the editor has to ask the user.
#[test]
fn an_interrupted_steering_request_is_answered_immediately() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(2, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
    fixture.request(3, "_session/steering", r#"{"sessionId":"s_1","prompt":[]}"#);
    fixture.reconnect.lost();
    fixture.reconnect.replay();
    assert_eq!(interrupted(&fixture.reconnect.answers_at_once()), ["3"]);
}

#[test]
fn a_prompt_is_answered_even_if_its_session_is_not_resumed() {
    let prompted = || {
        let mut fixture = ReconnectFixture::with_session();
        fixture.request(5, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
        fixture.reconnect.lost();
        let replay = messages(&fixture.reconnect.replay());
        assert!(fixture.reconnect.answers_at_once().is_empty());
        (fixture, replay[1]["id"].to_string())
    };
    let (mut late, _) = prompted();
    assert_eq!(interrupted(&late.reconnect.answers_overdue()), ["5"]);
    let (mut gone, resume) = prompted();
    let DaemonMessage::Instead(answers) = gone.refused(&resume) else { panic!("ours") };
    assert_eq!(interrupted(&answers), ["5"]);
    assert_eq!(
        gone.answered("5", "{}"),
        DaemonMessage::Instead(Vec::new()),
        "the daemon's own comes too late"
    );
    gone.reconnect.lost();
    assert_eq!(methods(&gone.reconnect.replay()), ["initialize"], "and it is forgotten");
    let (mut again, _) = prompted();
    again.reconnect.lost();
    assert!(again.reconnect.owes(), "a second death on the way changes nothing");
    assert_eq!(interrupted(&again.reconnect.give_up()), ["5"]);
}

/// Regression: a daemon died during a turn, and the next one could not read the session because the disk was full. In
/// version 2 the prompt had been answered when its turn began, so nothing was left to answer, and the window showed for
/// good that the session was running.
#[test]
fn a_session_that_cannot_be_resumed_is_shown_as_idle_in_version_2() {
    let mut fixture = ReconnectFixture::default();
    fixture.request(0, "initialize", r#"{"protocolVersion":2}"#);
    fixture.answered("0", r#"{"protocolVersion":2}"#);
    fixture.request(1, "session/new", r#"{"cwd":"/w"}"#);
    fixture.answered("1", r#"{"sessionId":"s_1"}"#);
    fixture.reconnect.lost();
    let resume = messages(&fixture.reconnect.replay())[1]["id"].to_string();
    let DaemonMessage::Instead(lines) = fixture.refused(&resume) else { panic!("ours") };
    let updates = messages(&lines);
    assert_eq!((updates.len(), &updates[0]["params"]["sessionId"]), (1, &"s_1".into()));
    assert_eq!(updates[0]["params"]["update"]["state"], "idle");
}

/// Regression: a running session was archived, and each daemon died before it had answered (world 922626). In version 2 the window
/// was told that archiving had failed, and showed for good that the session was running.
#[test]
fn a_session_that_is_not_continued_is_shown_as_idle_in_version_2() {
    let states = |lines: &[u8]| -> Vec<String> {
        let states = messages(lines).into_iter().map(|line| line["params"]["update"]["state"].to_string());
        states.filter(|state| state != "null").collect()
    };
    let idle = [r#""idle""#];
    for method in ["session/archive", "session/delete", "session/close"] {
        let mut fixture = ReconnectFixture::default();
        fixture.request(0, "initialize", r#"{"protocolVersion":2}"#);
        fixture.answered("0", r#"{"protocolVersion":2}"#);
        fixture.request(1, "session/new", r#"{"cwd":"/w"}"#);
        fixture.answered("1", r#"{"sessionId":"s_1"}"#);
        assert_eq!(states(&fixture.reconnect.give_up()), idle, "no daemon can be reached");
        fixture.request(2, method, r#"{"sessionId":"s_1"}"#);
        assert_eq!(states(&fixture.reconnect.lost()), idle, "{method}");
    }
    // A load that began to show the session, and that no daemon answers or the next one refuses.
    for deaths in 1..=3 {
        let mut fixture = ReconnectFixture::default();
        fixture.request(0, "initialize", r#"{"protocolVersion":2}"#);
        fixture.answered("0", r#"{"protocolVersion":2}"#);
        fixture.request(1, "session/load", r#"{"sessionId":"s_1","cwd":"/w"}"#);
        fixture.shown("s_1", r#"{"seq":1}"#, true);
        for death in 1..=deaths {
            let lines = fixture.reconnect.lost();
            assert_eq!(states(&lines).len(), usize::from(death == 3), "{death} of {deaths}");
            fixture.reconnect.replay();
        }
        if deaths < 3 {
            let DaemonMessage::Instead(lines) = fixture.refused("1") else { panic!("it is shown as idle") };
            assert_eq!(states(&lines), idle);
            assert_eq!(messages(&lines)[1]["id"], 1, "its answer follows");
        }
    }
}

/// The sessions that show with these lines what is waited for.
fn shown_waiting(lines: &[u8]) -> Vec<String> {
    let updates = messages(lines);
    let shown = updates.iter().map(|shown| {
        assert_eq!(shown["params"]["update"]["sessionUpdate"], "agent_thought_chunk");
        assert_eq!(shown["params"]["update"]["content"]["text"], "No server\n\n");
        shown["params"]["sessionId"].as_str().expect("an id").to_owned()
    });
    shown.collect()
}

const PROMPT: &str = r#"{"sessionId":"s_1","prompt":[]}"#;

#[test]
fn sessions_with_a_running_turn_show_what_is_waited_for() {
    let mut fixture = ReconnectFixture::with_session();
    let now = Instant::now();
    assert!(fixture.reconnect.wait_begins("No server", now).is_empty(), "no turn runs");
    fixture.request(2, "session/prompt", PROMPT);
    fixture.reconnect.lost();
    assert_eq!(shown_waiting(&fixture.reconnect.wait_begins("No server", now)), ["s_1"]);
}

/// Regression: a server that was reached again, and vanished once more before its session could be used, had a window
/// show twice in a row that it waits for the server.
#[test]
fn what_is_waited_for_is_said_once() {
    let mut fixture = ReconnectFixture::with_session();
    let now = Instant::now();
    fixture.request(2, "session/prompt", PROMPT);
    fixture.reconnect.lost();
    assert_eq!(shown_waiting(&fixture.reconnect.wait_begins("No server", now)), ["s_1"]);
    fixture.reconnect.wait_ends();
    assert!(fixture.reconnect.wait_begins("No server", now).is_empty());
    let later = now + 2 * RETURN_TIME_MAX;
    assert_eq!(shown_waiting(&fixture.reconnect.wait_begins("No server", later)), ["s_1"]);
}

/// Regression: a user sent a prompt while the window waited for its server. For up to a minute, nothing was shown.
#[test]
fn a_prompt_that_is_sent_during_a_wait_shows_it() {
    let mut fixture = ReconnectFixture::with_session();
    let now = Instant::now();
    let prompt = request("2", "session/prompt", PROMPT);
    assert!(fixture.reconnect.shown_waiting_for(prompt.as_bytes()).is_empty(), "there is a daemon");
    fixture.reconnect.lost();
    assert!(fixture.reconnect.wait_begins("No server", now).is_empty(), "no turn runs");
    for other in [
        request("3", "session/list", "{}"),
        request("4", "session/load", r#"{"sessionId":"s_2"}"#),
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s_1"}}"#.to_owned(),
    ] {
        assert!(fixture.reconnect.shown_waiting_for(other.as_bytes()).is_empty(), "{other}");
    }
    assert_eq!(shown_waiting(&fixture.reconnect.shown_waiting_for(prompt.as_bytes())), ["s_1"]);
    assert!(fixture.reconnect.shown_waiting_for(prompt.as_bytes()).is_empty(), "it is shown");
    fixture.reconnect.wait_ends();

    // Its answer came before the next wait.
    assert!(fixture.reconnect.wait_begins("No server", now).is_empty(), "no turn runs");
    let next = request("5", "session/prompt", PROMPT);
    assert_eq!(shown_waiting(&fixture.reconnect.shown_waiting_for(next.as_bytes())), ["s_1"]);
    fixture.reconnect.wait_ends();
    assert!(fixture.reconnect.shown_waiting_for(next.as_bytes()).is_empty(), "there is a daemon");
}

/// Regression: a user cancelled a prompt that waited in the queue, and sent the same words again. The next daemon took the
/// cancelled prompt for the one in the log, and reported the kept one as not begun.
#[test]
fn the_next_daemon_gets_unanswered_prompts_with_their_keys() {
    let mut fixture = ReconnectFixture::with_session();
    let mut sent = Vec::new();
    for (id, null) in [(5, ""), (6, ""), (7, r#","idempotencyKey":null"#), (8, "")] {
        let params = format!(r#"{{"sessionId":"s_1","prompt":[]{null}}}"#);
        let action = fixture.editor(&request(&id.to_string(), "session/prompt", &params));
        let LineAction::Instead(line) = action else { panic!("it gets a key") };
        let params = &messages(&line)[0]["params"];
        assert_eq!((&params["sessionId"], &params["prompt"]), (&"s_1".into(), &serde_json::json!([])));
        sent.push(params.clone());
    }
    let own = r#"{"sessionId":"s_1","prompt":[],"idempotencyKey":"k"}"#;
    assert_eq!(fixture.editor(&request("9", "session/prompt", own)), LineAction::Forward, "it has one");
    fixture.editor(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":8}}"#);
    fixture.answered("5", r#"{"stopReason":"end_turn"}"#);
    fixture.answered("6", r#"{"stopReason":"cancelled"}"#);
    fixture.reconnect.lost();
    let replay = messages(&fixture.reconnect.replay());
    let expected = serde_json::json!([
        { "id": 7, "key": sent[2]["idempotencyKey"], "cancelled": false, "params": sent[2] },
        { "id": 8, "key": sent[3]["idempotencyKey"], "cancelled": true, "params": sent[3] },
        {
            "id": 9, "key": "k", "cancelled": false,
            "params": { "sessionId": "s_1", "prompt": [], "idempotencyKey": "k" },
        },
    ]);
    assert_eq!(replay[1]["params"]["_meta"]["epitome"]["prompts"], expected);
}

#[test]
fn an_unanswered_initialize_is_sent_again_unchanged() {
    let mut fixture = ReconnectFixture::default();
    fixture.editor(INITIALIZE);
    assert!(fixture.reconnect.lost().is_empty());
    assert_eq!(fixture.reconnect.replay(), format!("{INITIALIZE}\n").into_bytes());
    assert!(fixture.reconnect.answers_at_once().is_empty());
    assert_eq!(fixture.answered("0", V1), DaemonMessage::Show);
    // Without an `initialize` there is nothing to replay.
    assert!(ReconnectState::default().replay().is_empty());
    let mut hopeless = ReconnectFixture::default();
    hopeless.editor(INITIALIZE);
    hopeless.reconnect.lost();
    assert_eq!(interrupted(&hopeless.reconnect.give_up()), ["0"]);
}

/// Regression: a user switched version 2 off, and later the daemon was replaced. The front end sent the editor's
/// `initialize` again and ignored the answer: the next daemon chose version 1, and the window, which went on with
/// version 2, showed nothing any more.
#[test]
fn the_next_daemon_continues_with_the_same_version_or_not_at_all() {
    let v2 = r#"{"protocolVersion":2}"#;
    for (asked, given, pinned) in [
        (
            r#"{"protocolVersion":2,"_meta":{"x":1}}"#,
            v2,
            serde_json::json!({ "x": 1, "epitome": { "continued": true } }),
        ),
        (r#"{"protocolVersion":9,"_meta":5}"#, v2, serde_json::json!({ "epitome": { "continued": true } })),
        // A daemon that has learned version 2 since continues with version 1.
        (r#"{"protocolVersion":2}"#, V1, Value::Null),
    ] {
        let mut fixture = ReconnectFixture::default();
        fixture.request(0, "initialize", asked);
        fixture.answered("0", given);
        fixture.reconnect.lost();
        let replay = messages(&fixture.reconnect.replay());
        let given: Value = serde_json::from_str(given).expect("JSON");
        assert_eq!(replay[0]["params"]["protocolVersion"], given["protocolVersion"], "{asked}");
        assert_eq!(replay[0]["params"]["_meta"], pinned, "{asked}");
        let id = replay[0]["id"].to_string();
        let other =
            format!(r#"{{"protocolVersion":{}}}"#, 3 - given["protocolVersion"].as_u64().expect("1 or 2"));
        assert_eq!(fixture.answered(&id, &other), DaemonMessage::Unusable);
        fixture.reconnect.lost();
        let id = messages(&fixture.reconnect.replay())[0]["id"].to_string();
        assert_eq!(fixture.refused(&id), DaemonMessage::Unusable);
        fixture.reconnect.lost();
        let id = messages(&fixture.reconnect.replay())[0]["id"].to_string();
        assert_eq!(fixture.answered(&id, &given.to_string()), DaemonMessage::Instead(Vec::new()));
    }
}

/// Regression: an editor sent a second `initialize`, which was refused. The next daemon got that one.
#[test]
fn only_an_initialize_that_succeeded_is_replayed() {
    let mut fixture = ReconnectFixture::default();
    fixture.request(0, "initialize", r#"{"protocolVersion":2}"#);
    fixture.answered("0", r#"{"protocolVersion":2}"#);
    fixture.request(9, "initialize", r#"{"protocolVersion":1}"#);
    fixture.refused("9");
    fixture.reconnect.lost();
    let replay = messages(&fixture.reconnect.replay());
    assert_eq!((replay.len(), &replay[0]["params"]["protocolVersion"]), (1, &2.into()));
}

/// Regression: a daemon was stopped with a listing unanswered. The front end waited for the editor to say something
/// else, and the editor waited for its list.
#[test]
fn a_request_that_a_stopped_daemon_left_open_needs_another_daemon() {
    for (method, params, is_wanted) in [
        ("initialize", r#"{"protocolVersion":1}"#, true),
        ("session/list", "{}", true),
        ("session/new", r#"{"cwd":"/w","mcpServers":[]}"#, true),
        // These are answered as interrupted.
        ("session/fork", r#"{"sessionId":"s_1","cwd":"/w"}"#, false),
        ("session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#, false),
    ] {
        let mut fixture = ReconnectFixture::with_session();
        fixture.reconnect.lost();
        assert!(!fixture.reconnect.wants_daemon());
        fixture.request(2, method, params);
        fixture.reconnect.lost();
        assert_eq!(fixture.reconnect.wants_daemon(), is_wanted, "{method}");
    }
}

/// Regression: an editor loaded a session that it had open, and was refused because its directory was relative. It went
/// on with the session until the daemon died; after that its prompts failed, because the session was not resumed.
#[test]
fn a_session_stays_open_if_loading_it_again_is_refused() {
    let resumed = |replay: &[u8]| methods(replay).contains(&"session/resume".to_owned());
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(2, "session/load", r#"{"sessionId":"s_1","cwd":"w"}"#);
    fixture.refused("2");
    fixture.reconnect.lost();
    assert!(resumed(&fixture.reconnect.replay()));
    // The next daemon is only asked to load it, and has no session if it refuses.
    fixture.request(3, "session/load", r#"{"sessionId":"s_1","cwd":"w"}"#);
    fixture.reconnect.lost();
    assert!(!resumed(&fixture.reconnect.replay()));
    fixture.refused("3");
    fixture.reconnect.lost();
    assert!(!resumed(&fixture.reconnect.replay()));
}

/// Regression: a prompt was interrupted because its session could not be resumed. When the editor used its id again, the
/// answer was taken for a late answer to that prompt, and the editor waited for ever.
#[test]
fn an_id_can_be_used_again_after_its_request_was_answered() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(3, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
    fixture.reconnect.lost();
    let resume = messages(&fixture.reconnect.replay())[1]["id"].to_string();
    let DaemonMessage::Instead(answers) = fixture.refused(&resume) else {
        panic!("it is the front end's own")
    };
    assert_eq!(interrupted(&answers), ["3"]);
    fixture.request(3, "session/list", "{}");
    assert_eq!(fixture.answered("3", "{}"), DaemonMessage::Show);
    // The same if the daemon took too long.
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(3, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
    fixture.reconnect.lost();
    assert_eq!(interrupted(&fixture.reconnect.answers_overdue()), ["3"]);
    fixture.request(3, "session/list", "{}");
    assert_eq!(fixture.answered("3", "{}"), DaemonMessage::Show);
}

/// Regression: a prompt typed after the daemon died but before its end was noticed was lost.
#[test]
fn a_line_that_a_daemon_did_not_receive_goes_to_the_next() {
    let prompt = r#"{"id":5,"method":"session/prompt","params":{"sessionId":"s_1"}}"#;
    // Before the death is noted, and after it.
    for noted in [false, true] {
        let mut fixture = ReconnectFixture::with_session();
        fixture.editor(prompt);
        if noted {
            fixture.reconnect.lost();
        }
        assert!(fixture.reconnect.take_back(prompt.as_bytes()));
        if !noted {
            fixture.reconnect.lost();
        }
        assert!(fixture.reconnect.answers_overdue().is_empty(), "it has its answer from the next daemon");
        assert!(!fixture.reconnect.take_back(prompt.as_bytes()));
    }
    let mut fixture = ReconnectFixture::with_session();
    fixture.editor(prompt);
    fixture.reconnect.lost();
    assert_eq!(interrupted(&fixture.reconnect.answers_overdue()), ["5"]);
    assert!(!fixture.reconnect.take_back(prompt.as_bytes()), "the client was asked to send it again");
    let mut early = ReconnectFixture::default();
    early.editor(INITIALIZE);
    assert!(!early.reconnect.take_back(INITIALIZE.as_bytes()), "the next daemon hears it first of all");
    assert_eq!(methods(&early.reconnect.replay()), ["initialize"]);
}

fn returned(fixture: &mut ReconnectFixture, id: &str) -> DaemonMessage {
    let mut line = Vec::new();
    writer::response(&mut line, id, Err(answers::returned()));
    fixture.frame(MessageKind::Response, id, str::from_utf8(line.trim_ascii_end()).expect("text"))
}

const CANCELS: [&str; 2] = [
    r#"{"method":"session/cancel","params":{"sessionId":"s_1"}}"#,
    r#"{"method":"$/cancel_request","params":{"requestId":5}}"#,
];

/// Whether these lines answer prompt 5, and nothing else, as cancelled.
fn is_cancelled(lines: &[u8]) -> bool {
    let [answer] = &messages(lines)[..] else { return false };
    answer["id"] == 5 && answer["result"]["stopReason"] == "cancelled"
}

/// A rolling update: a prompt that was sent to a server which was just being ended had to be sent again by its user.
#[test]
fn a_prompt_that_a_server_returns_goes_to_the_next_unless_it_is_cancelled() {
    let of_other = r#"{"method":"session/cancel","params":{"sessionId":"s_2"}}"#;
    for cancel in ["", of_other, CANCELS[0], CANCELS[1]] {
        let mut fixture = ReconnectFixture::with_session();
        fixture.request(5, "session/prompt", r#"{"sessionId":"s_1"}"#);
        assert_eq!(returned(&mut fixture, "5"), DaemonMessage::Instead(Vec::new()));
        fixture.editor(cancel);
        let is_sent = !CANCELS.contains(&cancel);
        assert_eq!(fixture.reconnect.wants_daemon(), is_sent);
        fixture.reconnect.lost();
        let replay = fixture.reconnect.replay();
        let wanted = &["initialize", "session/resume", "session/prompt"][..2 + usize::from(is_sent)];
        assert_eq!(methods(&replay), wanted, "{cancel}");
        assert!(!String::from_utf8_lossy(&replay).contains("\"prompts\":[{"), "no daemon has had it");
        assert_eq!(is_cancelled(&fixture.reconnect.answers_at_once()), !is_sent, "{cancel}");
        assert!(fixture.reconnect.answers_overdue().is_empty());
        if is_sent {
            assert_eq!(fixture.answered("5", r#"{"stopReason":"end_turn"}"#), DaemonMessage::Show);
        }
    }
}

/// Regression: the server was gone, and a prompt that was sent to nobody was answered as if it might have begun.
#[test]
fn a_prompt_that_no_server_gets_is_answered_as_not_sent() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(5, "session/prompt", PROMPT);
    returned(&mut fixture, "5");
    fixture.reconnect.lost();
    let answers = messages(&fixture.reconnect.give_up());
    let sentence = answers[0]["error"]["message"].to_string();
    assert!(answers.len() == 1 && sentence.contains("nothing of it was done"), "{sentence}");
}

/// Regression: a user cancelled a prompt, and the daemon died before it had answered. The editor was asked to send the prompt
/// again.
#[test]
fn a_cancelled_prompt_is_answered_as_cancelled() {
    let interrupted = r#"{"jsonrpc":"2.0","id":5,"error":{"code":-31002,"message":"Interrupted"}}"#;
    for cancel in CANCELS {
        let cancelled = || {
            let mut fixture = ReconnectFixture::with_session();
            fixture.request(5, "session/prompt", PROMPT);
            fixture.editor(cancel);
            fixture.request(6, "session/prompt", PROMPT);
            fixture.reconnect.lost();
            let replay = fixture.reconnect.replay();
            assert_eq!(methods(&replay), ["initialize", "session/resume", "$/cancel_request"]);
            assert_eq!(messages(&replay)[2]["params"]["requestId"], 5, "if it still runs");
            (fixture, messages(&replay)[1]["id"].to_string())
        };
        let (mut resumed, _) = cancelled();
        let DaemonMessage::Instead(answer) = resumed.frame(MessageKind::Response, "5", interrupted) else {
            panic!("it asks to send it again")
        };
        assert!(is_cancelled(&answer));
        let later = interrupted.replace(":5", ":6");
        assert_eq!(
            resumed.frame(MessageKind::Response, "6", &later),
            DaemonMessage::Show,
            "it was sent later"
        );
        let (mut done, _) = cancelled();
        assert_eq!(
            done.answered("5", r#"{"stopReason":"end_turn"}"#),
            DaemonMessage::Show,
            "it was done before"
        );
        let (mut refused, resume) = cancelled();
        let DaemonMessage::Instead(answers) = refused.refused(&resume) else { panic!("ours") };
        let answers = answers.split_inclusive(|byte| *byte == b'\n').collect::<Vec<_>>();
        assert!(answers.len() == 2 && is_cancelled(answers[0]));

        let mut early = ReconnectFixture::with_session();
        early.request(5, "session/prompt", PROMPT);
        early.editor(cancel);
        let DaemonMessage::Instead(answer) = returned(&mut early, "5") else { panic!("no daemon has it") };
        assert!(is_cancelled(&answer));

        let mut waiting = ReconnectFixture::with_session();
        waiting.request(5, "session/prompt", PROMPT);
        returned(&mut waiting, "5");
        waiting.reconnect.lost();
        assert!(is_cancelled(&waiting.reconnect.cancelled_without_daemon(cancel.as_bytes())));
        assert_eq!(methods(&waiting.reconnect.replay()), ["initialize", "session/resume"]);
    }
}

#[test]
fn invalid_lines_are_left_to_the_daemon_to_answer() {
    let mut fixture = ReconnectFixture::with_session();
    for line in ["no json", "[]", r#"{"id":5}"#] {
        assert_eq!(fixture.editor(line), LineAction::Forward, "{line}");
    }
    assert_eq!(fixture.editor("\n"), LineAction::Drop);
    assert!(fixture.reconnect.lost().is_empty() && fixture.reconnect.answers_at_once().is_empty());
}

#[test]
fn an_editor_with_too_many_open_requests_is_refused() {
    let mut fixture = ReconnectFixture::with_session();
    let refused = (10..20_000).map(|id| fixture.editor(&format!(r#"{{"id":{id},"method":"session/list"}}"#)));
    let Some(LineAction::Answer(answer)) = refused.last() else { panic!("it is refused") };
    assert_eq!(messages(&answer)[0]["id"], 19_999);
}

#[test]
fn without_a_daemon_requests_fail_with_the_reason() {
    let answer = unserved(br#"{"id":"x","method":"session/list"}"#, "the disk is full").expect("an answer");
    let sentence = messages(&answer)[0]["error"]["message"].to_string();
    assert!(sentence.contains("the disk is full"), "{sentence}");
    assert_eq!(unserved(br#"{"method":"session/cancel"}"#, "x"), None);
}

proptest! {
    /// For any order of requests, responses and crashes, each of the editor's requests gets exactly one
    /// response, and no request of a dead daemon can be answered.
    #[test]
    fn each_request_gets_exactly_one_response(steps in prop::collection::vec((0u8..8, 0usize..4), 1..60)) {
        let mut fixture = ReconnectFixture::with_session();
        let (mut next_id, mut next_card) = (100u64, 1000u64);
        // Requests that the current daemon has, those that it has to resume, and its own.
        let (mut open, mut resuming, mut requests): (Vec<u64>, Vec<u64>, Vec<u64>) = Default::default();
        // Requests that were answered without the daemon, which does not know that.
        let mut late: Vec<u64> = Vec::new();
        let mut dead: Vec<u64> = Vec::new();
        let mut answers: Vec<String> = Vec::new();
        let mut asked = 0;
        let mut resumes: Vec<String> = Vec::new();
        for (step, which) in steps {
            match step {
                0 | 1 => {
                    let session = ["s_1", "s_other"][which % 2];
                    fixture.request(next_id, "session/prompt", &format!(r#"{{"sessionId":"{session}"}}"#));
                    open.push(next_id);
                    next_id += 1;
                    asked += 1;
                }
                2 if !open.is_empty() => {
                    let id = open.remove(which % open.len());
                    prop_assert_eq!(fixture.answered(&id.to_string(), "{}"), DaemonMessage::Show);
                    answers.push(id.to_string());
                }
                2 if !late.is_empty() => {
                    let id = late.remove(which % late.len());
                    prop_assert_eq!(fixture.answered(&id.to_string(), "{}"), DaemonMessage::Instead(Vec::new()));
                }
                3 => {
                    fixture.permission_request(next_card);
                    requests.push(next_card);
                    next_card += 1;
                }
                4 if !requests.is_empty() => {
                    let card = requests.remove(which % requests.len());
                    prop_assert_eq!(fixture.allow(card), LineAction::Forward);
                }
                5 => {
                    let lost = messages(&fixture.reconnect.lost());
                    prop_assert_eq!(lost.len(), requests.len());
                    dead.append(&mut requests);
                    late.clear();
                    resuming.append(&mut open);
                    let replay = messages(&fixture.reconnect.replay());
                    resumes = replay
                        .iter()
                        .filter(|message| message["method"] == "session/resume")
                        .map(|message| message["id"].to_string())
                        .collect();
                    let at_once = interrupted(&fixture.reconnect.answers_at_once());
                    resuming.retain(|id| !at_once.contains(&id.to_string()));
                    answers.extend(at_once);
                }
                6 => {
                    if let Some(resume) = resumes.pop() {
                        prop_assert_eq!(fixture.answered(&resume, "{}"), DaemonMessage::Instead(Vec::new()));
                        open.append(&mut resuming);
                    }
                }
                7 => {
                    let overdue = interrupted(&fixture.reconnect.answers_overdue());
                    prop_assert_eq!(overdue.len(), resuming.len());
                    answers.extend(overdue);
                    late.append(&mut resuming);
                }
                _ => {}
            }
            for card in &dead {
                prop_assert_eq!(fixture.allow(*card), LineAction::Drop);
            }
        }
        fixture.reconnect.lost();
        answers.extend(interrupted(&fixture.reconnect.give_up()));
        prop_assert_eq!(answers.len(), asked);
        answers.sort();
        answers.dedup();
        prop_assert_eq!(answers.len(), asked, "none has two");
    }
}

/// The daemon refuses a request because the server at this address has the session.
fn refused_for(reconnect: &mut ReconnectState, id: &str, address: &str) -> Option<Elsewhere> {
    let error = format!(r#"{{"code":-32603,"message":"it is open","data":{{"openAt":"{address}"}}}}"#);
    let lines = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n");
    let kind = MessageKind::Response;
    reconnect.elsewhere(&FrontendMessage { kind, id, lines: lines.as_bytes(), steps: &[] })
}

fn go(address: &str) -> Option<Elsewhere> {
    Some(Elsewhere::Go(address.to_owned()))
}

#[test]
fn a_window_goes_to_the_server_that_has_its_session() {
    let mut fixture = ReconnectFixture::default();
    fixture.editor(INITIALIZE);
    fixture.answered("0", V1);
    fixture.request(1, "session/load", r#"{"sessionId":"s_1"}"#);
    assert_eq!(refused_for(&mut fixture.reconnect, "1", "wss://b"), go("wss://b"));
    fixture.reconnect.lost();
    let replay = messages(&fixture.reconnect.replay());
    assert_eq!(replay[1]["method"], "session/load", "the next server gets the request: {replay:?}");
    fixture.answered("1", "{}");

    // Its next prompt is no prompt of that server any more: the session was opened elsewhere meanwhile.
    fixture.request(2, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
    assert_eq!(refused_for(&mut fixture.reconnect, "2", "wss://c"), go("wss://c"));
    fixture.reconnect.lost();
    let replay = messages(&fixture.reconnect.replay());
    let methods: Vec<&Value> = replay.iter().map(|message| &message["method"]).collect();
    assert_eq!(methods, ["initialize", "session/resume", "session/prompt"], "no server has had it");
}

#[test]
fn a_window_with_other_sessions_stays() {
    let mut fixture = ReconnectFixture::with_session();
    fixture.request(2, "session/load", r#"{"sessionId":"s_2"}"#);
    let stays = refused_for(&mut fixture.reconnect, "2", "wss://b");
    assert!(matches!(stays, Some(Elsewhere::Stay(_))), "{stays:?}");
    let line = r#"{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no","data":{"openAt":"wss://b"}}}"#;
    let shown = messages(&stays_because(line.as_bytes(), "it is busy"));
    assert_eq!(shown[0]["error"]["data"]["openAt"], "wss://b");
    assert!(shown[0]["error"]["message"].as_str().is_some_and(|why| why.contains("it is busy")), "{shown:?}");
}

#[test]
fn servers_that_refer_a_window_to_each_other_are_given_up() {
    let mut fixture = ReconnectFixture::with_session();
    let mut moves = 0;
    fixture.request(2, "session/prompt", r#"{"sessionId":"s_1","prompt":[]}"#);
    while refused_for(&mut fixture.reconnect, "2", "wss://b") == go("wss://b") {
        moves += 1;
        fixture.reconnect.lost();
        fixture.reconnect.replay();
    }
    assert_eq!(moves, 4);
}
