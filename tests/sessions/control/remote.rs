//! The crate's own client: typed calls, a tail that resumes automatically, and sessions of a daemon used like
//! local ones.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use epitome::daemon::control::fault::Kind;
use epitome::daemon::control::remote::RemoteSessions;
use epitome::session::port::SessionPort;
use epitome::session::{
    Answer, Attachment, ClientId, Decision, Opening, Out, Outlet, Replay, SessionCommand, SessionError,
    Ticket,
};
use epitome::thread::{Content, Seq, SessionId, StopReason};
use epitome_scripted_model::ModelStep;
use serde_json::json;

use super::desk::{Desk, WITHIN, text};

pub struct Tray(pub Mutex<Sender<Out>>);

impl Outlet for Tray {
    fn put(&self, _: &SessionId, out: Out) {
        drop(self.0.lock().expect("no panic under it").send(out));
    }
}

pub fn until<T>(news: &Receiver<Out>, wanted: impl Fn(&Out) -> Option<T>) -> T {
    loop {
        let out = news.recv_timeout(WITHIN).expect("it did not come");
        if let Some(found) = wanted(&out) {
            return found;
        }
    }
}

pub fn answer(news: &Receiver<Out>, wanted: u64) -> Result<Answer, SessionError> {
    until(news, |out| match out {
        Out::Answer { ticket: Ticket(ticket), answer } if *ticket == wanted => Some(answer.clone()),
        _ => None,
    })
}

fn opening(desk: &Desk) -> (Opening, Receiver<Out>) {
    let (sender, news) = channel();
    let attachment = Attachment { client: ClientId(1), outlet: Arc::new(Tray(Mutex::new(sender))) };
    let opening = Opening {
        attachment,
        cwd: desk.cwd.clone(),
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: Arc::new(desk.pairs()),
        overrides: Arc::default(),
    };
    (opening, news)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_has_a_kind_and_a_hint() {
    let desk = Desk::new(Vec::new());
    let client = desk.client();
    assert_eq!(client.call("status", json!({})).await.expect("a status")["running_turns"], 0);
    let fault = client.call("sessions.show", json!({ "session": "x" })).await.expect_err("there is none");
    assert_eq!((fault.kind, fault.hint.is_some()), (Kind::NotFound, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_tail_yields_entries_in_order() {
    let desk = Desk::new(Vec::new());
    let client = desk.client();
    let params = json!({ "cwd": desk.cwd, "text": "hello", "environment": desk.environment() });
    let said = client.call("sessions.prompt", params).await.expect("an answer");
    let session = SessionId(said["session"].as_str().expect("an id").to_owned());
    let mut tail = client.tail(&session, Seq(1)).await.expect("it is there");
    for wanted in 1..4_u64 {
        let item = tail.next().await.expect("it goes on").expect("an item");
        assert_eq!(item["data"]["entry"]["seq"], wanted, "{item}");
    }
}

/// `epitome run` is such a client: prompts, questions and choices are sent with the caller's own tickets, and
/// so are the answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemons_sessions_work_like_local_ones() {
    let call = ModelStep::Call { name: "bash".into(), input: json!({ "command": "touch here" }) };
    let desk = Desk::new(vec![vec![call], text("done")]);
    let remote = RemoteSessions::begin(desk.client()).await.expect("the same version");
    let (cwd, (opening, news)) = (desk.cwd.clone(), opening(&desk));
    let story = move || {
        let session = remote.create(Ticket(1), opening.clone());
        assert!(matches!(answer(&news, 1), Ok(Answer::Attached { session: made, .. }) if made == session));
        until(&news, |out| matches!(out, Out::Commands(_)).then_some(()));
        let content = vec![Content::Text { text: "go".into() }];
        let client = ClientId(1);
        remote
            .send(&session, SessionCommand::Prompt { ticket: Ticket(2), client, content })
            .expect("it lives");
        let ask = until(&news, |out| match out {
            Out::Ask { ask, .. } => Some(*ask),
            _ => None,
        });
        let decision = Decision::AllowOnce;
        remote.send(&session, SessionCommand::Decide { ask, decision }).expect("it lives");
        let ended = answer(&news, 2);
        assert!(matches!(ended, Ok(Answer::TurnEnded { reason: StopReason::EndTurn, .. })), "{ended:?}");
        assert!(cwd.join("here").exists());
        assert_eq!(remote.list(None).expect("a list").len(), 1);

        remote.detach(client);
        remote.attach(Ticket(3), session.clone(), opening, Replay::Nothing);
        assert!(answer(&news, 3).is_ok());
        let unknown = SessionCommand::SetMode { ticket: Ticket(4), client, mode: "wild".into() };
        remote.send(&session, unknown).expect("it lives");
        assert!(matches!(answer(&news, 4), Err(SessionError::Invalid(_))));
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
    let desk = Desk::new(vec![vec![call], text("done")]);
    let remote = RemoteSessions::begin(desk.client()).await.expect("the same version");
    let (cwd, (opening, news)) = (desk.cwd.clone(), opening(&desk));
    let story = move || {
        let session = remote.create(Ticket(1), opening);
        until(&news, |out| matches!(out, Out::Commands(_)).then_some(()));
        let (client, content) = (ClientId(1), vec![Content::Text { text: "go".into() }]);
        let prompt = SessionCommand::Prompt { ticket: Ticket(2), client, content };
        remote.send(&session, prompt).expect("it lives");
        let ask = until(&news, |out| match out {
            Out::Ask { ask, .. } => Some(*ask),
            _ => None,
        });
        remote.send(&session, SessionCommand::Absent { ask, client }).expect("it lives");
        let ended = answer(&news, 2);
        assert!(matches!(ended, Ok(Answer::TurnEnded { reason: StopReason::EndTurn, .. })), "{ended:?}");
        assert!(!cwd.join("here").exists());
    };
    tokio::task::spawn_blocking(story).await.expect("the story holds");
}

/// The daemon died during a run, which then waited for an answer forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_calls_fail_when_the_daemon_exits() {
    use epitome::daemon::control::Client;
    use epitome::daemon::control::client::Serves;
    let desk = Desk::new(vec![vec![ModelStep::Text("never".into()), ModelStep::Hang]]);
    let (ours, theirs) = tokio::net::UnixStream::pair().expect("a pair of sockets");
    let served = tokio::spawn(epitome::daemon::control::serve(desk.daemon.clone(), theirs));
    let remote = RemoteSessions::begin(Client::over(ours, Serves::Daemon)).await.expect("the same version");
    let (opening, news) = opening(&desk);
    let story = move || {
        let session = remote.create(Ticket(1), opening);
        answer(&news, 1).expect("a session");
        let content = vec![Content::Text { text: "go".into() }];
        let prompt = SessionCommand::Prompt { ticket: Ticket(2), client: ClientId(1), content };
        remote.send(&session, prompt).expect("it lives");
        until(&news, |out| matches!(out, Out::Text { .. }).then_some(()));
        served.abort();
        let told = answer(&news, 2).expect_err("the daemon is gone");
        assert!(told.to_string().contains("the daemon ended"), "{told}");
    };
    tokio::task::spawn_blocking(story).await.expect("the story holds");
}
