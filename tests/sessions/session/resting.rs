//! Sessions that are suspended while idle, and resumed unchanged.

use std::time::Duration;

use epitome::session::{SessionAnswer, SessionCommand, SessionEvent};
use epitome::thread::{Change, StopReason};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{text, within};

use super::stage::{recorder, told_of};

/// Waits until the test's session is suspended.
pub fn rests(test: &TestSession) {
    within("the suspension", || {
        let live = test.sessions.live_sessions();
        live.iter().any(|live| live.session == test.session && live.resting).then_some(())
    });
}

fn quick(files: &[(String, String)]) -> TestSession {
    let mut said = 0;
    Setup::with_files(files).suspend_after(Duration::from_millis(30)).start(move |_| {
        said += 1;
        vec![text(&format!("reply {said}"))]
    })
}

#[test]
fn a_conversation_continues_after_a_suspension() {
    let mut test = quick(&[]);
    assert_eq!(test.ask("Remember the number 12"), StopReason::EndTurn);
    rests(&test);
    assert_eq!(test.ask("Which number?"), StopReason::EndTurn);
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("Remember the number 12") && sent.contains("reply 1"), "{sent}");
    rests(&test);
    let mode = test.choose("mode", "full").expect("a choice wakes it, too");
    assert!(matches!(mode, SessionAnswer::Options(_)));
}

#[test]
fn a_suspended_session_releases_its_journal_and_shows_external_entries() {
    let mut test = quick(&[]);
    test.ask("First");
    rests(&test);
    let store = test.services.store.clone();
    let (mut journal, _) = store.load(&test.session).expect("nobody holds it");
    journal.append(Change::Titled { title: "Renamed elsewhere".into() }).expect("it can be written");
    drop(journal);
    test.client.seen.clear();
    test.ask("Second");
    test.client.entry(|change| {
        matches!(change, Change::Titled { title } if title == "Renamed elsewhere").then_some(())
    });
}

#[test]
fn session_start_hooks_run_once_despite_suspensions() {
    let recorder = recorder(r#"{"protocol": 2, "events": ["session_start"]}"#);
    let files = [("home/hooks/notes".to_owned(), recorder)];
    let mut test = quick(&files);
    for words in ["One", "Two", "Three"] {
        test.ask(words);
        rests(&test);
    }
    assert_eq!(told_of(&test, "event"), ["session_start"]);
}

#[test]
fn a_cancel_wakes_no_session_and_the_last_client_ends_it() {
    let mut test = quick(&[]);
    test.ask("First");
    rests(&test);
    test.send(SessionCommand::Cancel);
    assert!(test.sessions.live_sessions().iter().all(|live| live.resting));
    test.sessions.detach(test.client.id);
    assert_eq!(test.sessions.live_sessions(), []);
    let environment = test.environment();
    test.load(environment);
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
}

#[test]
fn an_observer_stays_attached_through_a_suspension() {
    let mut test = quick(&[]);
    test.ask("First");
    let mut observer = TestClient::new(9);
    let attachment = test.opening(&observer, Vec::new()).attachment;
    test.sessions.watch(&test.session, epitome::thread::Seq(0), attachment).expect("it lives");
    rests(&test);
    test.ask("Second");
    let ends = |out: &SessionEvent| match out {
        SessionEvent::Entry { entry, .. } => matches!(entry.change, Change::TurnEnded { .. }).then_some(()),
        _ => None,
    };
    observer.until(ends);
    observer.until(ends);
}
