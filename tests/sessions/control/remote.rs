//! The crate's own client: typed calls, a tail that resumes automatically, and sessions of a daemon that are used like
//! local ones.

use std::sync::Arc;

use epitome::daemon::control::fault::FaultKind;
use epitome::daemon::control::remote::RemoteSessions;
use epitome::session::port::SessionPort;
use epitome::session::registry::SessionQuery;
use epitome::session::{
    Attachment, ClientId, Opening, Replay, SessionAnswer, SessionCommand, SessionError, SessionEvent, Ticket,
    UserDecision,
};
use epitome::thread::{Content, Seq, SessionId, StopReason};
use epitome_scripted_model::ModelStep;
use serde_json::json;

use super::in_process::{TestDaemon, text};
use epitome_test_harness::client::TestClient;

fn opening(test: &TestDaemon) -> (Opening, TestClient) {
    let client = TestClient::new(1);
    let opening = Opening {
        attachment: Attachment { client: client.id, outlet: client.outlet.clone() },
        cwd: test.cwd.clone(),
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: Arc::new(test.pairs()),
        overrides: Arc::default(),
        instructions: None,
        choices: Vec::new(),
    };
    (opening, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_has_a_kind_and_a_hint() {
    let test = TestDaemon::new(Vec::new());
    let client = test.client();
    assert_eq!(client.call("status", json!({})).await.expect("a status")["running_turns"], 0);
    let fault = client.call("sessions.show", json!({ "session": "x" })).await.expect_err("there is none");
    assert_eq!((fault.kind, fault.hint.is_some()), (FaultKind::NotFound, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_tail_yields_entries_in_order() {
    let test = TestDaemon::new(Vec::new());
    let client = test.client();
    let params = json!({ "cwd": test.cwd, "text": "hello", "environment": test.environment() });
    let said = client.call("sessions.prompt", params).await.expect("an answer");
    let session = SessionId(said["session"].as_str().expect("an id").to_owned());
    let mut tail = client.tail(&session, Seq(1)).await.expect("it is there");
    for wanted in 1..4_u64 {
        let item = tail.next().await.expect("it goes on").expect("an item");
        assert_eq!(item["data"]["entry"]["seq"], wanted, "{item}");
    }
}

/// `epitome run` is such a client: prompts, questions and choices carry the caller's tickets, and so do their answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemons_sessions_work_like_local_ones() {
    let call = ModelStep::Call { name: "bash".into(), input: json!({ "command": "touch here" }) };
    let test = TestDaemon::new(vec![vec![call], text("done")]);
    let remote = RemoteSessions::begin(test.client()).await.expect("the same version");
    let (cwd, (opening, mut editor)) = (test.cwd.clone(), opening(&test));
    let story = move || {
        let session = remote.create(Ticket(1), opening.clone());
        assert!(
            matches!(editor.answer(Ticket(1)), Ok(SessionAnswer::Attached { session: made, .. }) if made == session)
        );
        editor.until(|out| matches!(out, SessionEvent::Commands(_)).then_some(()));
        let content = vec![Content::Text { text: "go".into() }];
        let client = ClientId(1);
        remote
            .send(&session, SessionCommand::Prompt { ticket: Ticket(2), client, content, key: None })
            .expect("it lives");
        let ask = editor.until(|out| match out {
            SessionEvent::Ask { ask, .. } => Some(*ask),
            _ => None,
        });
        let decision = UserDecision::AllowOnce;
        remote.send(&session, SessionCommand::Decide { ask, decision }).expect("it lives");
        let ended = editor.answer(Ticket(2));
        assert!(
            matches!(ended, Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, .. })),
            "{ended:?}"
        );
        assert!(cwd.join("here").exists());
        assert_eq!(remote.list(&SessionQuery::default()).expect("a list").len(), 1);

        remote.detach(client);
        remote.attach(Ticket(3), session.clone(), opening, Replay::Nothing);
        assert!(editor.answer(Ticket(3)).is_ok());
        let unknown = SessionCommand::SetMode { ticket: Ticket(4), client, mode: "wild".into() };
        remote.send(&session, unknown).expect("it lives");
        assert!(matches!(editor.answer(Ticket(4)), Err(SessionError::Invalid(_))));
        let gone = SessionId("s_00000000000000000000".into());
        let sent = remote.send(&gone, SessionCommand::Cancel);
        assert_eq!(sent, Err(SessionError::NotFound(gone)));
    };
    tokio::task::spawn_blocking(story).await.expect("the story holds");
}

/// A run without a terminal cannot ask its user, and reports that over the socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_cannot_ask_its_user_reports_that_to_the_daemon() {
    let call = ModelStep::Call { name: "bash".into(), input: json!({ "command": "touch here" }) };
    let test = TestDaemon::new(vec![vec![call], text("done")]);
    let remote = RemoteSessions::begin(test.client()).await.expect("the same version");
    let (cwd, (opening, mut editor)) = (test.cwd.clone(), opening(&test));
    let story = move || {
        let session = remote.create(Ticket(1), opening);
        editor.until(|out| matches!(out, SessionEvent::Commands(_)).then_some(()));
        let (client, content) = (ClientId(1), vec![Content::Text { text: "go".into() }]);
        let prompt = SessionCommand::Prompt { ticket: Ticket(2), client, content, key: None };
        remote.send(&session, prompt).expect("it lives");
        let ask = editor.until(|out| match out {
            SessionEvent::Ask { ask, .. } => Some(*ask),
            _ => None,
        });
        remote.send(&session, SessionCommand::Absent { ask, client }).expect("it lives");
        let ended = editor.answer(Ticket(2));
        assert!(
            matches!(ended, Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, .. })),
            "{ended:?}"
        );
        assert!(!cwd.join("here").exists());
    };
    tokio::task::spawn_blocking(story).await.expect("the story holds");
}

/// Regression: the daemon died during a run, and the run waited for an answer forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_calls_fail_when_the_daemon_exits() {
    use epitome::daemon::control::ControlClient;
    use epitome::daemon::control::client::Serves;
    let test = TestDaemon::new(vec![vec![ModelStep::Text("never".into()), ModelStep::Hang]]);
    let (ours, theirs) = tokio::net::UnixStream::pair().expect("a pair of sockets");
    let served = tokio::spawn(epitome::daemon::control::serve(test.daemon.clone(), theirs));
    let remote =
        RemoteSessions::begin(ControlClient::over(ours, Serves::Daemon)).await.expect("the same version");
    let (opening, mut editor) = opening(&test);
    let story = move || {
        let session = remote.create(Ticket(1), opening);
        editor.answer(Ticket(1)).expect("a session");
        let content = vec![Content::Text { text: "go".into() }];
        let prompt = SessionCommand::Prompt { ticket: Ticket(2), client: ClientId(1), content, key: None };
        remote.send(&session, prompt).expect("it lives");
        editor.until(|out| matches!(out, SessionEvent::Text { .. }).then_some(()));
        served.abort();
        let error = editor.answer(Ticket(2)).expect_err("the daemon is gone");
        assert!(error.to_string().contains("the daemon ended"), "{error}");
    };
    tokio::task::spawn_blocking(story).await.expect("the story holds");
}
