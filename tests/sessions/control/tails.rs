//! Clients that tail a session receive its events, can answer its questions, and never slow it down.

use std::sync::Arc;

use epitome::daemon::attachments::fresh_client;
use epitome::session::{Attachment, EventSink, Opening, Replay, SessionCommand, SessionEvent, Ticket};
use epitome::thread::SessionId;
use epitome_scripted_model::ModelStep;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::in_process::{TestDaemon, text};

fn bash(command: &str) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: "bash".into(), input: json!({ "command": command }) }]
}

#[tokio::test]
async fn a_tail_replays_the_log_and_continues_live() {
    let test = TestDaemon::new(vec![text("one"), text("two")]);
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let session = test.session(&mut wire).await;
    let begun = tail.call("sessions.tail", json!({ "session": session })).await;
    let subscription = begun["result"].clone();
    let replay = tail.item("entry").await;
    assert_eq!((&replay["session"], &replay["data"]["replay"]), (&json!(session), &json!(true)));
    assert_eq!(replay["data"]["entry"]["change"], "opened");
    let prompt = json!({ "session": session, "text": "again", "environment": test.environment() });
    wire.call("sessions.prompt", prompt).await;
    assert_eq!(tail.item("text").await["data"]["text"], "two");

    let ended = tail.call("sessions.untail", json!({ "subscription": subscription })).await;
    assert_eq!(ended["result"], true);
    let again = tail.call("sessions.untail", json!({ "subscription": subscription })).await;
    assert_eq!(again["result"], false);
}

#[tokio::test]
async fn a_tail_starts_at_the_requested_entry() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let session = test.session(&mut wire).await;
    wire.call("sessions.tail", json!({ "session": session, "from": "e3" })).await;
    assert_eq!(wire.item("entry").await["data"]["entry"]["seq"], 3);
    let none = wire.call("sessions.tail", json!({ "session": "s_00000000000000000000" })).await;
    assert_eq!(none["error"]["data"]["kind"], "not_found");
}

/// Subscription numbers are scoped to a connection. With a shared table, a second client that ends its subscription 1
/// would end that of the first client.
#[tokio::test]
async fn subscription_numbers_are_scoped_to_a_connection() {
    let test = TestDaemon::new(Vec::new());
    let (mut one, mut two) = (test.connect(), test.connect());
    let session = test.session(&mut one).await;
    let first = one.call("sessions.tail", json!({ "session": session })).await["result"].clone();
    let second = two.call("sessions.tail", json!({ "session": session })).await["result"].clone();
    assert_eq!(first, second, "each counts from one");
    assert_eq!(two.call("sessions.untail", json!({ "subscription": second })).await["result"], true);
    let prompt = json!({ "session": session, "text": "again", "environment": test.environment() });
    two.call("sessions.prompt", prompt).await;
    assert_eq!(one.item("text").await["data"]["text"], "ok");
}

#[tokio::test]
async fn without_a_tail_permission_requests_are_denied() {
    let test = TestDaemon::new(vec![bash("touch here"), text("it was denied")]);
    let mut wire = test.connect();
    let params = json!({ "cwd": test.cwd, "text": "go", "environment": test.environment() });
    let said = wire.call("sessions.prompt", params).await;
    assert_eq!(said["result"]["text"], "it was denied", "{said}");
    assert!(!test.cwd.join("here").exists());
}

#[tokio::test]
async fn a_tailing_client_may_answer_permission_requests() {
    let test = TestDaemon::new(vec![bash("touch here"), text("it was allowed")]);
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let made = wire.call("sessions.new", json!({ "cwd": test.cwd })).await["result"]["session"].clone();
    tail.call("sessions.tail", json!({ "session": made })).await;
    let params = json!({ "session": made, "text": "go", "environment": test.environment() });
    let prompt = wire.send("sessions.prompt", params).await;
    let ask = tail.item("ask").await["data"].clone();
    assert_eq!(ask["permission"]["tool"], "bash");
    let decided = json!({ "session": made, "ask": ask["ask"], "decision": "allow_once" });
    assert!(tail.call("sessions.decide", decided).await["result"].is_object());
    assert_eq!(wire.answer(prompt).await["result"]["text"], "it was allowed");
    assert!(test.cwd.join("here").exists());
}

/// A tailing client that declares support for forms receives them like an editor, and answers for the user.
#[tokio::test]
async fn a_tailing_client_may_answer_forms() {
    let input = json!({"question": "Which colour?", "options": ["red", "blue"]});
    let asks = vec![ModelStep::Call { name: "ask_user".into(), input }];
    let test = TestDaemon::new(vec![asks, text("blue, then")]);
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let made = wire.call("sessions.new", json!({ "cwd": test.cwd })).await["result"]["session"].clone();
    tail.call("sessions.tail", json!({ "session": made, "questions": ["form"] })).await;
    let params = json!({ "session": made, "text": "go", "environment": test.environment() });
    let prompt = wire.send("sessions.prompt", params).await;
    let asked = tail.item("question").await["data"].clone();
    assert_eq!(asked["question"]["message"], "Which colour?");
    assert_eq!(asked["question"]["wants"]["mode"], "form");
    let answer = |action: &str, content: Option<Value>| {
        let mut params = json!({ "session": made, "ask": asked["ask"], "action": action });
        if let Some(content) = content {
            params["content"] = content;
        }
        params
    };
    let wrong = tail.call("sessions.answer", answer("decline", Some(json!({})))).await;
    assert_eq!(wrong["error"]["data"]["kind"], "invalid_params", "{wrong}");
    let accepted = answer("accept", Some(json!({ "answer": "blue" })));
    assert!(tail.call("sessions.answer", accepted).await["result"].is_object());
    tail.item("withdrawn").await;
    assert_eq!(wire.answer(prompt).await["result"]["text"], "blue, then");
    let requests = test.model.requests();
    assert!(requests[1].body["messages"].to_string().contains("blue"), "the model reads the answer");
}

/// Regression: a form was assigned to a client that then left, and the turn waited for half an hour.
#[tokio::test]
async fn a_form_is_withdrawn_when_the_last_capable_client_leaves() {
    let asks = vec![ModelStep::Call { name: "ask_user".into(), input: json!({"question": "Which?"}) }];
    let test = TestDaemon::new(vec![asks, text("without, then")]);
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let made = wire.call("sessions.new", json!({ "cwd": test.cwd })).await["result"]["session"].clone();
    tail.call("sessions.tail", json!({ "session": made, "questions": ["form"] })).await;
    let params = json!({ "session": made, "text": "go", "environment": test.environment() });
    let prompt = wire.send("sessions.prompt", params).await;
    tail.item("question").await;
    drop(tail);
    assert_eq!(wire.answer(prompt).await["result"]["text"], "without, then");
}

/// Regression: a question was assigned to a client that then left, and the prompt waited forever.
#[tokio::test]
async fn a_question_is_denied_when_the_last_capable_client_leaves() {
    let test = TestDaemon::new(vec![bash("touch here"), text("it was denied")]);
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let made = wire.call("sessions.new", json!({ "cwd": test.cwd })).await["result"]["session"].clone();
    tail.call("sessions.tail", json!({ "session": made })).await;
    let params = json!({ "session": made, "text": "go", "environment": test.environment() });
    let prompt = wire.send("sessions.prompt", params).await;
    tail.item("ask").await;
    drop(tail);
    assert_eq!(wire.answer(prompt).await["result"]["text"], "it was denied");
}

#[tokio::test]
async fn a_prompt_to_a_busy_session_steers_its_turn() {
    let test = TestDaemon::new(vec![vec![ModelStep::Text("first".into()), ModelStep::Wait], text("both")]);
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let made = wire.call("sessions.new", json!({ "cwd": test.cwd })).await["result"]["session"].clone();
    tail.call("sessions.tail", json!({ "session": made })).await;
    let prompt = |text: &str| json!({ "session": made, "text": text, "environment": test.environment() });
    let first = wire.send("sessions.prompt", prompt("begin")).await;
    tail.item("text").await;
    let second = wire.send("sessions.prompt", prompt("and this")).await;
    let queued = |line: &Value| line["params"]["result"]["data"]["entry"]["change"] == "queued";
    tail.until(queued).await;
    test.model.release();
    assert_eq!(wire.answer(first).await["result"]["reason"], "end_turn");
    assert_eq!(wire.answer(second).await["result"]["text"], "both");
}

/// An unread tail does not block the session; the client is informed at which entry to resume.
#[tokio::test]
async fn an_unread_tail_lags_and_resumes_at_the_reported_entry() {
    /// Exceeds the capacity of the tail's queue, the pending lines and a socket: each choice causes an entry and an
    /// options event.
    const CHOICES: usize = 1600;
    let test = TestDaemon::new(Vec::new());
    let (mut wire, mut tail) = (test.connect(), test.connect());
    let session = test.session(&mut wire).await;
    tail.call("sessions.tail", json!({ "session": session })).await;
    // This client uses no socket, for speed.
    let session = SessionId(session);
    let (sender, mut answers) = mpsc::unbounded_channel();
    let client = fresh_client();
    let opening = Opening {
        attachment: Attachment { client, outlet: Arc::new(Answers(sender)) },
        cwd: test.cwd.clone(),
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: Arc::new(test.pairs()),
        overrides: Arc::default(),
        instructions: None,
        choices: Vec::new(),
    };
    test.daemon.sessions.attach(Ticket(1), session.clone(), opening, Replay::Nothing);
    answers.recv().await.expect("it is attached");
    for at in 0..CHOICES {
        let mode = if at % 2 == 0 { "full" } else { "ask" };
        let (ticket, mode) = (Ticket(2), mode.to_owned());
        let choice = SessionCommand::SetMode { ticket, client, mode };
        test.daemon.sessions.send(&session, choice).expect("it lives");
        answers.recv().await.expect("nobody waits for the tail");
    }
    let from = tail.item("lagged").await["data"]["from"].clone();
    let again = tail.call("sessions.tail", json!({ "session": session, "from": from })).await;
    assert!(again["result"].is_number(), "{again}");
    let entry = tail.until(|line| line["params"]["subscription"] == again["result"]).await;
    let seq = entry["params"]["result"]["data"]["entry"]["seq"].clone();
    assert_eq!(json!(format!("e{seq}")), from, "nothing is left out");
    test.daemon.sessions.detach(client);
}

/// Collects the client's answers.
struct Answers(mpsc::UnboundedSender<()>);

impl EventSink for Answers {
    fn put(&self, _: &SessionId, out: SessionEvent) {
        if let SessionEvent::Answer { .. } = out {
            // A finished test has dropped the receiver.
            let _ = self.0.send(());
        }
    }
}
