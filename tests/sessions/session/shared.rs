//! Sessions with several clients and observers.

use std::ffi::OsString;

use epitome::session::{Answer, Attachment, Out, Replay, SessionCommand};
use epitome::thread::{Change, Seq, StopReason};
use epitome_scripted_model::ModelStep;
use serde_json::json;

use super::desk::{Client, Desk, call, text};

/// A second client of the desk's session, with this key in its environment.
fn second(desk: &mut Desk, key: &str) -> Client {
    let mut client = Client::new(2);
    let ticket = desk.ticket();
    let opening = desk.opening(&client, with_key(desk, key));
    desk.sessions.attach(ticket, desk.session.clone(), opening, Replay::Nothing);
    client.answer(ticket).expect("it attaches");
    client
}

fn with_key(desk: &Desk, key: &str) -> Vec<(OsString, OsString)> {
    let mut environment = desk.environment();
    environment.retain(|(name, _)| name != "ANTHROPIC_API_KEY");
    environment.push(("ANTHROPIC_API_KEY".into(), key.into()));
    environment
}

fn prompt(desk: &mut Desk, client: &Client, words: &str) -> epitome::session::Ticket {
    let ticket = desk.ticket();
    let content = vec![epitome::thread::Content::Text { text: words.into() }];
    desk.send(SessionCommand::Prompt { ticket, client: client.id, content });
    ticket
}

fn is_end(change: &Change) -> Option<()> {
    matches!(change, Change::TurnEnded { .. }).then_some(())
}

/// A turn used the keys of the client that had attached last: a second window took over the requests of the
/// first one, and paid for them.
#[test]
fn a_turn_uses_the_environment_of_the_client_that_sent_its_prompt() {
    let mut desk = Desk::new(vec![]);
    let mut other = second(&mut desk, "sk-test-2");
    assert_eq!(desk.ask("Mine"), StopReason::EndTurn);
    assert_eq!(desk.last_request().header("x-api-key"), Some("sk-test-1"));
    let ticket = prompt(&mut desk, &other, "Yours");
    other.answer(ticket).expect("an answer");
    assert_eq!(desk.last_request().header("x-api-key"), Some("sk-test-2"));
    assert_eq!(desk.ask("Mine again"), StopReason::EndTurn);
    assert_eq!(desk.last_request().header("x-api-key"), Some("sk-test-1"));
}

#[test]
fn a_following_client_that_closes_does_not_affect_the_turn() {
    let mut desk = Desk::new(vec![vec![call(json!({"do": "wait"}))], vec![text("done")]]);
    let mut other = second(&mut desk, "sk-test-2");
    let turn = desk.prompt("Do it");
    other.until(|out| matches!(out, Out::CallStarted { .. }).then_some(()));
    let close = desk.ticket();
    desk.send(SessionCommand::Close { ticket: close, client: other.id });
    assert!(matches!(other.answer(close), Ok(Answer::Closed)), "it need not wait for the turn");
    desk.release_tool();
    assert_eq!(desk.reason(turn), StopReason::EndTurn);
}

/// Ctrl-C in a shell whose prompt had steered an editor's turn cancelled the editor's turn.
#[test]
fn cancelling_a_steering_prompt_leaves_the_turn_alone() {
    let slow = vec![call(json!({"do": "wait"}))];
    let mut desk = Desk::new(vec![slow, vec![text("half "), ModelStep::Wait, text("done")]]);
    let mut other = second(&mut desk, "sk-test-2");
    let turn = desk.prompt("Do it");
    other.until(|out| matches!(out, Out::CallStarted { .. }).then_some(()));
    let (withdrawn, taken) = (prompt(&mut desk, &other, "No, this"), prompt(&mut desk, &other, "And that"));
    let is_queued = |change: &Change| matches!(change, Change::Queued { .. }).then_some(());
    other.entry(is_queued);
    other.entry(is_queued);
    desk.send(SessionCommand::CancelPrompt { ticket: withdrawn });
    let cancelled = |answer| matches!(answer, Ok(Answer::TurnEnded { reason: StopReason::Cancelled, .. }));
    assert!(cancelled(other.answer(withdrawn)), "it waits for the next model call, and is withdrawn");
    desk.release_tool();
    other.until(|out| matches!(out, Out::Text { .. }).then_some(()));
    desk.send(SessionCommand::CancelPrompt { ticket: taken });
    assert!(cancelled(other.answer(taken)), "it is in the view, and nobody waits for it any more");
    desk.model.release();
    assert_eq!(desk.reason(turn), StopReason::EndTurn);
    assert_eq!(desk.last_request().last_user_text(), "And that");
}

#[test]
fn cancelling_the_first_prompt_of_a_turn_ends_it() {
    let mut desk = Desk::new(vec![vec![text("half "), ModelStep::Wait, text("done")]]);
    let mut other = second(&mut desk, "sk-test-2");
    let begun = prompt(&mut desk, &other, "Do it");
    other.until(|out| matches!(out, Out::Text { .. }).then_some(()));
    let steered = desk.prompt("And this");
    desk.client.entry(|change| matches!(change, Change::Queued { .. }).then_some(()));
    desk.send(SessionCommand::CancelPrompt { ticket: begun });
    for answer in [other.answer(begun), desk.client.answer(steered)] {
        assert!(matches!(answer, Ok(Answer::TurnEnded { reason: StopReason::Cancelled, .. })), "{answer:?}");
    }
}

#[test]
fn a_closing_client_leaves_its_turn_to_the_remaining_ones() {
    let mut desk = Desk::new(vec![vec![call(json!({"do": "wait"}))], vec![text("done")]]);
    let mut other = second(&mut desk, "sk-test-2");
    let turn = desk.prompt("Do it");
    other.until(|out| matches!(out, Out::CallStarted { .. }).then_some(()));
    let close = desk.ticket();
    desk.send(SessionCommand::Close { ticket: close, client: desk.client.id });
    assert_eq!(desk.reason(turn), StopReason::Cancelled, "who has left is owed an answer all the same");
    assert!(matches!(desk.client.answer(close), Ok(Answer::Closed)));
    desk.release_tool();
    let ended = other.entry(|change| match change {
        Change::TurnEnded { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(ended, StopReason::EndTurn);
}

#[test]
fn the_last_client_cancels_the_turn_by_closing() {
    let mut desk = Desk::new(vec![vec![call(json!({"do": "wait"}))]]);
    let mut other = second(&mut desk, "sk-test-2");
    let turn = desk.prompt("Do it");
    other.until(|out| matches!(out, Out::CallStarted { .. }).then_some(()));
    desk.sessions.detach(other.id);
    desk.sessions.detach(desk.client.id);
    assert_eq!(desk.reason(turn), StopReason::Cancelled);
}

#[test]
fn an_observer_sees_past_and_present_and_keeps_nothing_alive() {
    let mut desk = Desk::new(vec![]);
    desk.ask("First");
    let ticket = desk.ticket();
    desk.send(SessionCommand::Close { ticket, client: desk.client.id });
    desk.client.answer(ticket).expect("it closes");
    desk.wait_for(desk.sessions.settled());

    let mut observer = Client::new(9);
    let attachment = || Attachment { client: observer.id, ..desk.opening(&observer, Vec::new()).attachment };
    desk.sessions.watch(&desk.session, Seq(0), attachment()).expect("a log to read");
    observer.entry(is_end);
    assert_eq!(desk.sessions.live_sessions(), [], "looking on opens nothing");

    for words in ["Second", "Third"] {
        let environment = desk.environment();
        desk.load(environment);
        desk.ask(words);
        observer.entry(is_end);
        let ticket = desk.ticket();
        desk.send(SessionCommand::Close { ticket, client: desk.client.id });
        desk.client.answer(ticket).expect("it closes, whoever looks on");
    }
    let entries = desk.log().len();
    let seen: Vec<u64> = observer
        .seen
        .iter()
        .filter_map(|out| match out {
            Out::Entry { entry, .. } => Some(entry.seq.0),
            _ => None,
        })
        .collect();
    assert_eq!(seen.len() + 3, entries, "each entry is shown once: {seen:?}");

    desk.sessions.unwatch(observer.id);
    let environment = desk.environment();
    desk.load(environment);
    desk.ask("Fourth");
    observer.seen.clear();
    assert!(desk.sessions.live_sessions().iter().all(|live| live.watchers == 0));
}
