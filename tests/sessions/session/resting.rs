//! Sessions that are suspended while idle, and resumed unchanged.

use std::time::{Duration, Instant};

use epitome::session::{Answer, Out, SessionCommand};
use epitome::thread::{Change, StopReason};

use super::desk::{Client, Desk, text};
use super::stage::{recorder, told_of};

/// Waits until the desk's session is suspended.
pub fn rests(desk: &Desk) {
    let until = Instant::now() + Duration::from_secs(20);
    while !desk.sessions.live_sessions().iter().any(|live| live.session == desk.session && live.resting) {
        assert!(Instant::now() < until, "it does not rest: {:?}", desk.sessions.live_sessions());
        std::thread::yield_now();
    }
}

fn quick(files: &[(String, String)]) -> Desk {
    let mut said = 0;
    Desk::that_rests(Duration::from_millis(30), files, move |_| {
        said += 1;
        vec![text(&format!("reply {said}"))]
    })
}

#[test]
fn a_conversation_continues_after_a_suspension() {
    let mut desk = quick(&[]);
    assert_eq!(desk.ask("Remember the number 12"), StopReason::EndTurn);
    rests(&desk);
    assert_eq!(desk.ask("Which number?"), StopReason::EndTurn);
    let sent = desk.last_request().body.to_string();
    assert!(sent.contains("Remember the number 12") && sent.contains("reply 1"), "{sent}");
    rests(&desk);
    let mode = desk.choose("mode", "full").expect("a choice wakes it, too");
    assert!(matches!(mode, Answer::Options(_)));
}

#[test]
fn a_suspended_session_releases_its_journal_and_shows_external_entries() {
    let mut desk = quick(&[]);
    desk.ask("First");
    rests(&desk);
    let store = desk.services.store.clone();
    let (mut journal, _) = store.load(&desk.session).expect("nobody holds it");
    journal.append(Change::Titled { title: "Renamed elsewhere".into() }).expect("it can be written");
    drop(journal);
    desk.client.seen.clear();
    desk.ask("Second");
    desk.client.entry(|change| {
        matches!(change, Change::Titled { title } if title == "Renamed elsewhere").then_some(())
    });
}

#[test]
fn session_start_hooks_run_once_despite_suspensions() {
    let recorder = recorder(r#"{"protocol": 2, "events": ["session_start"]}"#);
    let files = [("home/hooks/notes".to_owned(), recorder)];
    let mut desk = quick(&files);
    for words in ["One", "Two", "Three"] {
        desk.ask(words);
        rests(&desk);
    }
    assert_eq!(told_of(&desk, "event"), ["session_start"]);
}

#[test]
fn a_cancel_wakes_no_session_and_the_last_client_ends_it() {
    let mut desk = quick(&[]);
    desk.ask("First");
    rests(&desk);
    desk.send(SessionCommand::Cancel);
    assert!(desk.sessions.live_sessions().iter().all(|live| live.resting));
    desk.sessions.detach(desk.client.id);
    assert_eq!(desk.sessions.live_sessions(), []);
    let environment = desk.environment();
    desk.load(environment);
    assert_eq!(desk.ask("Again"), StopReason::EndTurn);
}

#[test]
fn an_observer_stays_attached_through_a_suspension() {
    let mut desk = quick(&[]);
    desk.ask("First");
    let mut observer = Client::new(9);
    let attachment = desk.opening(&observer, Vec::new()).attachment;
    desk.sessions.watch(&desk.session, epitome::thread::Seq(0), attachment).expect("it lives");
    rests(&desk);
    desk.ask("Second");
    let ends = |out: &Out| match out {
        Out::Entry { entry, .. } => matches!(entry.change, Change::TurnEnded { .. }).then_some(()),
        _ => None,
    };
    observer.until(ends);
    observer.until(ends);
}
