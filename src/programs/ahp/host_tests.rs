//! Tests of the messages of clients and the daemon that pass through a host, without sockets.

use std::cell::RefCell;
use std::rc::Rc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::host::{AhpHost, FrameSink, SESSIONS_MAX};
use super::uri;
use epitome_client::AcpLink;

/// A session in the daemon's list.
const SESSION: &str = "ahp-session:/s_listed";

/// The frames to all clients.
#[derive(Clone, Default)]
struct FramesOfClient(Rc<RefCell<Vec<Value>>>);

impl FrameSink for FramesOfClient {
    fn send(&self, frame: String) -> bool {
        self.0.borrow_mut().push(serde_json::from_str(&frame).expect("JSON"));
        true
    }
}

/// A host and its daemon, which shows the updates when a session is opened or prompted.
struct HostWithDaemon {
    host: AhpHost<FramesOfClient>,
    frames: FramesOfClient,
    requests: u64,
    created: usize,
    updates: Vec<Value>,
}

impl HostWithDaemon {
    fn new() -> HostWithDaemon {
        let host = AhpHost::new(AcpLink::default(), "/w".into(), Timestamp::UNIX_EPOCH);
        HostWithDaemon {
            host,
            frames: FramesOfClient::default(),
            requests: 0,
            created: 0,
            updates: Vec::new(),
        }
    }

    /// Connects a client that sends this first.
    fn connect(&mut self, client: u64, method: &str, params: Value) -> Value {
        self.host.connected(client, self.frames.clone());
        self.call(client, method, params)
    }

    fn initialize(&mut self, client: u64, id: &str) {
        self.connect(client, "initialize", json!({ "protocolVersions": ["1.0.0"], "clientId": id }));
    }

    /// Sends a request of a client and returns the result.
    fn call(&mut self, client: u64, method: &str, params: Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        self.send(client, json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let frames = self.frames.0.borrow();
        let answer = frames.iter().find(|frame| frame["id"] == id).expect("an answer");
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn send(&mut self, client: u64, message: Value) {
        self.host.frame(client, &message.to_string(), Timestamp::UNIX_EPOCH);
        self.answer_as_daemon();
    }

    /// Answers what the host has sent to the daemon.
    fn answer_as_daemon(&mut self) {
        loop {
            let lines = self.host.take_lines();
            if lines.is_empty() {
                return;
            }
            let requests = serde_json::Deserializer::from_slice(&lines).into_iter::<Value>();
            for request in requests.map(|line| line.expect("JSON")).filter(|line| line.get("id").is_some()) {
                let result = match request["method"].as_str().expect("a request") {
                    "session/new" => {
                        self.created += 1;
                        json!({ "sessionId": format!("s_{}", self.created) })
                    }
                    "session/list" => json!({ "sessions": [{
                        "sessionId": "s_listed", "cwd": "/w", "title": "Listed", "updatedAt": "2026-11-26T10:00:00Z",
                    }] }),
                    "session/resume" | "session/prompt" => {
                        let session = request["params"]["sessionId"].clone();
                        self.updates.clone().iter().for_each(|update| self.show(&session, update));
                        json!({})
                    }
                    _ => json!({}),
                };
                self.line(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
            }
        }
    }

    fn show(&mut self, session: &Value, update: &Value) {
        let params = json!({ "sessionId": session, "update": update });
        self.line(json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }));
    }

    fn line(&mut self, message: Value) {
        self.host.line(message.to_string().as_bytes(), Timestamp::UNIX_EPOCH);
    }
}

/// A turn as the daemon shows it.
fn turn(id: &str, prompt: &[&str], reply: &str) -> [Value; 4] {
    let content: Vec<Value> = prompt.iter().map(|text| json!({ "type": "text", "text": text })).collect();
    let said = json!([{ "type": "text", "text": reply }]);
    [
        json!({ "sessionUpdate": "state_update", "state": "running" }),
        json!({ "sessionUpdate": "user_message", "messageId": format!("{id}.0"), "content": content }),
        json!({ "sessionUpdate": "agent_message", "messageId": format!("{id}.1"), "content": said }),
        json!({ "sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn" }),
    ]
}

/// While a client was away, the host left its session, an editor continued it, and another client opened it again. The
/// client that came back was told that it had missed nothing.
#[test]
fn a_client_gets_a_snapshot_if_its_session_was_opened_again_meanwhile() {
    let mut epitome = HostWithDaemon::new();
    let channels = [SESSION.to_owned(), uri::of_chat(SESSION)];
    epitome.updates.extend(turn("m1", &["one"], "The first reply."));
    epitome.initialize(1, "first");
    for channel in &channels {
        epitome.call(1, "subscribe", json!({ "channel": channel }));
    }
    let reconnect = |epitome: &mut HostWithDaemon, client: u64, seen: u64| {
        let params = json!({ "clientId": "first", "lastSeenServerSeq": seen, "subscriptions": channels });
        epitome.connect(client, "reconnect", params)
    };
    let seen = epitome.host.log.last();
    epitome.host.disconnected(1);
    epitome.initialize(2, "second");
    for at in 0..SESSIONS_MAX / 2 {
        epitome.call(2, "createSession", json!({ "channel": format!("x:/{at}") }));
    }
    assert!(!epitome.host.sessions.contains_key(SESSION), "it was left");
    epitome.updates.extend(turn("m2", &["two"], "The missed reply."));
    epitome.call(2, "subscribe", json!({ "channel": channels[1] }));
    let answer = reconnect(&mut epitome, 3, seen);
    assert_eq!(answer["type"], "snapshot", "{answer}");
    assert!(answer.to_string().contains("The missed reply."), "{answer}");
    // Since then the session is open, so that actions are enough.
    epitome.call(2, "createSession", json!({ "channel": "x:/last" }));
    let seen = epitome.host.log.last();
    epitome.host.disconnected(3);
    for update in turn("m3", &["three"], "The third reply.") {
        epitome.show(&json!("s_listed"), &update);
    }
    let answer = reconnect(&mut epitome, 4, seen);
    assert_eq!(answer["type"], "replay", "{answer}");
    assert!(answer["actions"].to_string().contains("The third reply."), "{answer}");
}

/// If a command has an attachment, the daemon shows only the typed text, and it shows a long text in pieces. The prompt
/// was taken for one of another window: its turn ended without a reply, and the session was never left.
#[test]
fn a_prompt_is_recognized_in_the_form_in_which_the_daemon_shows_it() {
    let selected =
        json!([{ "type": "simple", "label": "selection", "modelRepresentation": "selected\ntext" }]);
    let command = json!([{ "type": "simple", "label": "first", "modelRepresentation": "/context" }]);
    for (text, attachments, shown) in [
        ("/context", &selected, &["/context"][..]),
        (" /context all\nlines ", &selected, &[" /context all\nlines "]),
        ("Explain", &command, &["/context"]),
        ("a long\ntext", &json!([]), &["a lo", "ng\nte", "xt"]),
    ] {
        let mut epitome = HostWithDaemon::new();
        let chat = uri::of_chat(SESSION);
        epitome.initialize(1, "first");
        epitome.call(1, "subscribe", json!({ "channel": chat }));
        epitome.updates = turn("m1", shown, "The reply.").to_vec();
        let message = json!({ "text": text, "origin": { "kind": "user" }, "attachments": attachments });
        let action = json!({
            "type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-11-26T10:00:00Z", "message": message,
        });
        let params = json!({ "channel": chat, "clientSeq": 1, "action": action });
        epitome.send(1, json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }));
        let session = &epitome.host.sessions[SESSION].session;
        assert!(session.is_at_rest(), "{text}");
        let [turn] = &session.chat.turns[..] else { panic!("{text}: {:?}", session.chat) };
        assert_eq!(turn.id, "t1");
        assert!(json!(turn.response_parts).to_string().contains("The reply."), "{turn:?}");
    }
}
