//! Sessions with several clients and observers.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use epitome::session::port::{SessionPort as _, StoredSessionPort as _};
use epitome::session::registry::Sessions;
use epitome::session::{
    Attachment, ClientId, EventSink, Opening, Replay, SessionAnswer, SessionCommand, SessionError,
    SessionEvent,
};
use epitome::thread::{Change, Seq, SessionId, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;
use parking_lot::Mutex;
use serde_json::json;

use super::stage::{script, with_hooks};

/// A second client of the test's session, with this key in its environment.
fn second(test: &mut TestSession, key: &str) -> TestClient {
    let mut client = TestClient::new(2);
    let ticket = test.ticket();
    let opening = test.opening(&client, with_key(test, key));
    test.sessions.attach(ticket, test.session.clone(), opening, Replay::Nothing);
    client.answer(ticket).expect("it attaches");
    client
}

fn with_key(test: &TestSession, key: &str) -> Vec<(OsString, OsString)> {
    let mut environment = test.environment();
    environment.retain(|(name, _)| name != "ANTHROPIC_API_KEY");
    environment.push(("ANTHROPIC_API_KEY".into(), key.into()));
    environment
}

fn prompt(test: &mut TestSession, client: &TestClient, words: &str) -> epitome::session::Ticket {
    let ticket = test.ticket();
    let content = vec![epitome::thread::Content::Text { text: words.into() }];
    test.send(SessionCommand::Prompt { ticket, client: client.id, content, key: None });
    ticket
}

fn is_end(change: &Change) -> Option<()> {
    matches!(change, Change::TurnEnded { .. }).then_some(())
}

/// Regression: a turn used the keys of the client that had attached last, so a second window took over the first one's
/// requests, and paid for them.
#[test]
fn a_turn_uses_the_environment_of_the_client_that_sent_its_prompt() {
    let mut test = TestSession::new(vec![]);
    let mut other = second(&mut test, "sk-test-2");
    assert_eq!(test.ask("Mine"), StopReason::EndTurn);
    assert_eq!(test.last_request().header("x-api-key"), Some("sk-test-1"));
    let ticket = prompt(&mut test, &other, "Yours");
    other.answer(ticket).expect("an answer");
    assert_eq!(test.last_request().header("x-api-key"), Some("sk-test-2"));
    assert_eq!(test.ask("Mine again"), StopReason::EndTurn);
    assert_eq!(test.last_request().header("x-api-key"), Some("sk-test-1"));
}

/// Regression: a window loaded a session while another did, and sent a command along. The session could not be opened, and
/// the command was never answered.
#[test]
fn every_client_of_a_session_that_cannot_be_opened_gets_its_answers() {
    let mut test = TestSession::new(vec![]);
    // Sessions run only while this runtime is waited for.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let sessions = Sessions::new(test.services.clone(), runtime.handle().clone());
    let missing = epitome::store::new_id();
    let mut clients = [TestClient::new(1), TestClient::new(2)];
    for client in &clients {
        let (ticket, opening) = (test.ticket(), test.opening(client, test.environment()));
        sessions.attach(ticket, missing.clone(), opening, Replay::Nothing);
    }
    let tickets = clients.each_ref().map(|client| {
        let ticket = test.ticket();
        let command = SessionCommand::SetMode { ticket, client: client.id, mode: "ask".to_owned() };
        sessions.send(&missing, command).expect("it is being opened");
        ticket
    });
    runtime.block_on(sessions.settled());
    for (client, ticket) in clients.iter_mut().zip(tickets) {
        client.answer(ticket).expect_err("there is no such session");
    }
}

/// Regression: a window archived a session that another had open, and opened it again. A prompt of the other window was
/// never answered.
#[test]
fn a_client_of_a_session_that_ended_is_refused_once_others_have_it_open() {
    let mut test = TestSession::new(vec![]);
    let other = second(&mut test, "sk-test-2");
    test.ask("Hello");
    test.wait_for(test.sessions.set_archived(&test.session, true)).expect("it is archived");
    test.load(test.environment());
    let ticket = test.ticket();
    let mode = SessionCommand::SetMode { ticket, client: other.id, mode: "ask".to_owned() };
    let refused = test.sessions.send(&test.session, mode).expect_err("it has to load the session");
    assert_eq!(refused, SessionError::NotFound(test.session.clone()));
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
}

#[test]
fn a_following_client_that_closes_does_not_affect_the_turn() {
    let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))], vec![text("done")]]);
    let mut other = second(&mut test, "sk-test-2");
    let turn = test.prompt("Do it");
    other.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let close = test.ticket();
    test.send(SessionCommand::Close { ticket: close, client: other.id });
    assert!(matches!(other.answer(close), Ok(SessionAnswer::Closed)), "it need not wait for the turn");
    test.release_tool();
    assert_eq!(test.reason(turn), StopReason::EndTurn);
}

/// Regression: a window closed a session that another had open too. Its messages right behind were never answered.
#[test]
fn what_a_client_sends_after_closing_is_refused() {
    let mut test = TestSession::new(vec![]);
    let mut other = second(&mut test, "sk-test-2");
    let (close, mode, again) = (test.ticket(), test.ticket(), test.ticket());
    let client = other.id;
    test.send(SessionCommand::Close { ticket: close, client });
    test.send(SessionCommand::SetMode { ticket: mode, client, mode: "ask".to_owned() });
    test.send(SessionCommand::Close { ticket: again, client });
    assert!(matches!(other.answer(close), Ok(SessionAnswer::Closed)));
    for late in [mode, again] {
        let refused = other.answer(late).expect_err("it has left");
        assert_eq!(refused, SessionError::NotFound(test.session.clone()));
    }
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
}

/// Regression: a window opened a session that was just ending, and sent a command along, which was never answered. One that
/// closed again at once was attached when the session had ended, and stayed for ever.
#[test]
fn commands_that_follow_the_opening_of_an_ending_session_are_answered() {
    let ends = r#"{"protocol": 2, "events": ["session_end"]}"#;
    let waits = script(ends, "read -r line < \"$EPITOME_CWD/gate\"");
    let mut test = with_hooks(&[("gate", waits)], &[], Vec::new());
    let gate = test.cwd().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().expect("it runs").success());
    // Open in both directions, so that neither side waits for the other.
    let mut gate = File::options().read(true).write(true).open(gate).expect("a pipe");
    test.ask("Hello");
    let (mut stays, mut leaves) = (TestClient::new(2), TestClient::new(3));
    let client = test.client.id;
    test.send(SessionCommand::Detach { client });
    // The session waits for its hook now.
    let opened = [&stays, &leaves].map(|client| {
        let (ticket, opening) = (test.ticket(), test.opening(client, test.environment()));
        test.sessions.attach(ticket, test.session.clone(), opening, Replay::Nothing);
        ticket
    });
    let mode = test.ticket();
    test.send(SessionCommand::SetMode { ticket: mode, client: stays.id, mode: "ask".to_owned() });
    test.send(SessionCommand::Detach { client: leaves.id });
    gate.write_all(b"end\n").expect("the hook reads it");
    stays.answer(opened[0]).expect("it is opened again");
    let refused = stays.answer(mode).expect_err("it came too late");
    assert_eq!(refused, SessionError::NotFound(test.session.clone()));
    leaves.answer(opened[1]).expect_err("it has left");
}

/// A client with which the session's task panics when it shows it a prompt, just after this command was sent.
struct PanickingClient {
    sessions: Sessions,
    session: SessionId,
    command: Mutex<Option<SessionCommand>>,
}

impl EventSink for PanickingClient {
    fn put(&self, _: &SessionId, event: SessionEvent) {
        if !matches!(event, SessionEvent::Entry { entry, .. } if matches!(entry.change, Change::Said { .. }))
        {
            return;
        }
        let Some(command) = self.command.lock().take() else { return };
        self.sessions.send(&self.session, command).expect("the session lives");
        panic!("the session's task was told to panic");
    }
}

/// Regression: a session's task panicked. Messages that clients had sent it before were never answered.
#[test]
fn commands_to_a_session_that_panics_are_answered() {
    let mut test = TestSession::new(vec![vec![text("Done.")]]);
    let (attach, mode) = (test.ticket(), test.ticket());
    let command = SessionCommand::SetMode { ticket: mode, client: test.client.id, mode: "ask".to_owned() };
    let (sessions, session) = (test.sessions.clone(), test.session.clone());
    let outlet = Arc::new(PanickingClient { sessions, session, command: Mutex::new(Some(command)) });
    let attachment = Attachment { client: ClientId(9), outlet };
    let opening = Opening { attachment, ..test.opening(&test.client, test.environment()) };
    test.sessions.attach(attach, test.session.clone(), opening, Replay::Nothing);
    let prompt = test.prompt("Go");
    let refused = test.client.answer(mode).expect_err("the session has ended");
    assert_eq!(refused, SessionError::NotFound(test.session.clone()));
    test.client.answer(prompt).expect_err("the session has ended");
}

/// A client whose connection has ended.
struct EndedConnection;

impl EventSink for EndedConnection {
    fn put(&self, _: &SessionId, _: SessionEvent) {}

    fn is_gone(&self) -> bool {
        true
    }
}

/// Regression: an editor was closed while a session was opened for it in the background, as `session/fork` does. It had been
/// detached from its sessions by then, and that one stayed open for ever.
#[test]
fn no_session_is_opened_for_a_client_that_is_gone() {
    let mut test = TestSession::new(vec![]);
    let own = test.opening(&test.client, test.environment());
    let fork = test.sessions.fork(&test.session, None, &own).expect("a log to copy");
    let attachment = Attachment { client: ClientId(9), outlet: Arc::new(EndedConnection) };
    let opening = Opening { attachment, ..test.opening(&test.client, test.environment()) };
    let (attach, create) = (test.ticket(), test.ticket());
    test.sessions.attach(attach, fork, opening.clone(), Replay::Nothing);
    test.sessions.create(create, opening);
    let live: Vec<SessionId> = test.sessions.live_sessions().into_iter().map(|live| live.session).collect();
    assert_eq!(live, [test.session.clone()]);
}

/// Regression: Ctrl-C in a shell whose prompt had steered an editor's turn canceled that turn.
#[test]
fn cancelling_a_steering_prompt_leaves_the_turn_alone() {
    let slow = vec![call(json!({"do": "wait"}))];
    let mut test = TestSession::new(vec![slow, vec![text("half "), ModelStep::Wait, text("done")]]);
    let mut other = second(&mut test, "sk-test-2");
    let turn = test.prompt("Do it");
    other.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let (withdrawn, taken) = (prompt(&mut test, &other, "No, this"), prompt(&mut test, &other, "And that"));
    let is_queued = |change: &Change| matches!(change, Change::Queued { .. }).then_some(());
    other.entry(is_queued);
    other.entry(is_queued);
    test.send(SessionCommand::CancelPrompt { ticket: withdrawn });
    let cancelled =
        |answer| matches!(answer, Ok(SessionAnswer::TurnEnded { reason: StopReason::Cancelled, .. }));
    assert!(cancelled(other.answer(withdrawn)), "it waits for the next model call, and is withdrawn");
    test.release_tool();
    other.until(|out| matches!(out, SessionEvent::Text { .. }).then_some(()));
    test.send(SessionCommand::CancelPrompt { ticket: taken });
    assert!(cancelled(other.answer(taken)), "it is in the view, and nobody waits for it any more");
    test.model.release();
    assert_eq!(test.reason(turn), StopReason::EndTurn);
    assert_eq!(test.last_request().last_user_text(), "And that");
}

/// A queued prompt was attributed to the window that had queued a prompt last: that window did not show it, and its
/// sender's window showed it twice. Found by a simulated world.
#[test]
fn a_queued_prompt_belongs_to_its_sender() {
    let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))], vec![text("done")]]);
    let mut other = second(&mut test, "sk-test-2");
    let turn = test.prompt("Do it");
    other.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let is_queued = |change: &Change| matches!(change, Change::Queued { .. }).then_some(());
    prompt(&mut test, &other, "First");
    other.entry(is_queued);
    test.prompt("Second");
    other.entry(is_queued);
    test.release_tool();
    let own = |words: &'static str| {
        move |out: &SessionEvent| match out {
            SessionEvent::Entry { entry, own, .. } => match &entry.change {
                Change::Said { message, .. } if message.text() == words => Some(*own),
                _ => None,
            },
            _ => None,
        }
    };
    assert!(other.until(own("First")) && !other.until(own("Second")));
    assert!(!test.client.until(own("First")) && test.client.until(own("Second")));
    assert_eq!(test.reason(turn), StopReason::EndTurn);
}

#[test]
fn cancelling_the_first_prompt_of_a_turn_ends_it() {
    let mut test = TestSession::new(vec![vec![text("half "), ModelStep::Wait, text("done")]]);
    let mut other = second(&mut test, "sk-test-2");
    let begun = prompt(&mut test, &other, "Do it");
    other.until(|out| matches!(out, SessionEvent::Text { .. }).then_some(()));
    let steered = test.prompt("And this");
    test.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    test.send(SessionCommand::CancelPrompt { ticket: begun });
    for answer in [other.answer(begun), test.client.answer(steered)] {
        assert!(
            matches!(answer, Ok(SessionAnswer::TurnEnded { reason: StopReason::Cancelled, .. })),
            "{answer:?}"
        );
    }
}

/// Regression: the prompt that a closing window had queued was answered as cancelled, and carried out all the same.
#[test]
fn what_a_closing_client_had_queued_is_not_carried_out() {
    let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))], vec![text("done")]]);
    let mut other = second(&mut test, "sk-test-2");
    let turn = prompt(&mut test, &other, "Do it");
    other.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let queued = test.prompt("Delete the folder");
    test.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    let close = test.ticket();
    test.send(SessionCommand::Close { ticket: close, client: test.client.id });
    assert_eq!(test.reason(queued), StopReason::Cancelled);
    test.release_tool();
    other.answer(turn).expect("it goes on for the others");
    let seen = format!("{:?}", test.last_request().seen());
    assert!(!seen.contains("Delete the folder"), "{seen}");
}

#[test]
fn a_closing_client_leaves_its_turn_to_the_remaining_ones() {
    let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))], vec![text("done")]]);
    let mut other = second(&mut test, "sk-test-2");
    let turn = test.prompt("Do it");
    other.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let close = test.ticket();
    test.send(SessionCommand::Close { ticket: close, client: test.client.id });
    assert_eq!(test.reason(turn), StopReason::Cancelled, "who has left is owed an answer all the same");
    assert!(matches!(test.client.answer(close), Ok(SessionAnswer::Closed)));
    test.release_tool();
    let ended = other.entry(|change| match change {
        Change::TurnEnded { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(ended, StopReason::EndTurn);
}

#[test]
fn the_last_client_cancels_the_turn_by_closing() {
    let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))]]);
    let mut other = second(&mut test, "sk-test-2");
    let turn = test.prompt("Do it");
    other.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    test.sessions.detach(other.id);
    test.sessions.detach(test.client.id);
    assert_eq!(test.reason(turn), StopReason::Cancelled);
}

#[test]
fn an_observer_sees_past_and_present_and_keeps_nothing_alive() {
    let mut test = TestSession::new(vec![]);
    test.ask("First");
    let ticket = test.ticket();
    test.send(SessionCommand::Close { ticket, client: test.client.id });
    test.client.answer(ticket).expect("it closes");
    test.wait_for(test.sessions.settled());

    let mut observer = TestClient::new(9);
    let attachment = || Attachment { client: observer.id, ..test.opening(&observer, Vec::new()).attachment };
    test.sessions.watch(&test.session, Seq(0), attachment()).expect("a log to read");
    observer.entry(is_end);
    assert_eq!(test.sessions.live_sessions(), [], "looking on opens nothing");

    for words in ["Second", "Third"] {
        let environment = test.environment();
        test.load(environment);
        test.ask(words);
        observer.entry(is_end);
        let ticket = test.ticket();
        test.send(SessionCommand::Close { ticket, client: test.client.id });
        test.client.answer(ticket).expect("it closes although others are attached");
    }
    let entries = test.log().len();
    let seen: Vec<u64> = observer
        .seen
        .iter()
        .filter_map(|out| match out {
            SessionEvent::Entry { entry, .. } => Some(entry.seq.0),
            _ => None,
        })
        .collect();
    assert_eq!(seen.len() + 3, entries, "each entry is shown once: {seen:?}");

    test.sessions.unwatch(observer.id);
    let environment = test.environment();
    test.load(environment);
    test.ask("Fourth");
    observer.seen.clear();
    assert!(test.sessions.live_sessions().iter().all(|live| live.watchers == 0));
}
