//! Prompts during a turn.

use epitome::session::{Out, SessionCommand, SessionError};
use epitome::store::Store;
use epitome::thread::{
    Change, Content, FORMAT_VERSION, Message, MessageId, Origin, SessionId, StopReason, Thread,
};
use epitome_scripted_model::{ModelStep, Seen, Stop};

use super::desk::{Desk, call, text};
use serde_json::json;

fn is_queued(change: &Change) -> Option<()> {
    matches!(change, Change::Queued { .. }).then_some(())
}

fn streamed(out: &Out) -> Option<()> {
    matches!(out, Out::Text { .. }).then_some(())
}

/// The prompt was answered with the end of the compaction and never sent: an instruction was lost.
#[test]
fn a_prompt_during_compact_is_answered_by_the_model() {
    let flood = vec![ModelStep::Flood { count: 2000, text: "many words ".into() }];
    let mut desk = Desk::new(vec![flood, vec![text("Sum"), ModelStep::Wait, text("mary.")]]);
    desk.ask("Say many words.");
    let compact = desk.prompt("/compact");
    desk.client.entry(|change| matches!(change, Change::Commanded { .. }).then_some(()));
    let image = Content::Image { mime_type: "image/png".into(), data: "aGk=".into(), uri: None };
    let next = desk.prompt_with(vec![Content::Text { text: "And this?".into() }, image]);
    desk.client.entry(is_queued);
    desk.model.release();
    assert_eq!((desk.reason(compact), desk.reason(next)), (StopReason::EndTurn, StopReason::EndTurn));
    let request = desk.last_request();
    assert_eq!(
        request.seen().len(),
        6,
        "four parts of the message, the words and the image: {:?}",
        request.seen()
    );
    assert!(request.body.to_string().contains("And this?") && request.body.to_string().contains("aGk="));
}

/// A reply that ended abnormally discarded the queue.
#[test]
fn a_prompt_during_a_truncated_or_refused_reply_is_answered() {
    for stop in [Stop::MaxTokens, Stop::Refusal("no".into())] {
        let first = vec![text("I"), ModelStep::Wait, ModelStep::Stop(stop)];
        let mut desk = Desk::new(vec![first, vec![text("Second.")]]);
        let one = desk.prompt("First");
        desk.client.until(streamed);
        let two = desk.prompt("Second");
        desk.client.entry(is_queued);
        desk.model.release();
        assert_eq!((desk.reason(one), desk.reason(two)), (StopReason::EndTurn, StopReason::EndTurn));
        assert_eq!(desk.last_request().last_user_text(), "Second");
    }
}

#[test]
fn a_prompt_after_a_queued_command_follows_it() {
    let mut desk = Desk::new(vec![vec![text("a"), ModelStep::Wait]]);
    let first = desk.prompt("First");
    desk.client.until(streamed);
    let command = desk.prompt("/undo");
    let after = desk.prompt("After the command");
    desk.model.release();
    for ticket in [first, command, after] {
        assert_eq!(desk.reason(ticket), StopReason::EndTurn);
    }
    let said: Vec<String> = desk
        .log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::Said { message, .. } => Some(message.text()),
            Change::Commanded { typed, .. } => Some(typed.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(said, ["First", "/undo", "After the command"]);
}

#[test]
fn more_than_sixty_four_queued_prompts_are_refused() {
    let mut desk = Desk::new(vec![vec![call(json!({"do": "wait"}))]]);
    let first = desk.prompt("First");
    desk.client.until(|out| matches!(out, Out::CallStarted { .. }).then_some(()));
    let tickets: Vec<_> = (0..64).map(|at| desk.prompt(&format!("more {at}"))).collect();
    let refused = desk.prompt("too many");
    assert_eq!(desk.client.answer(refused).err(), Some(SessionError::Busy(64)));
    desk.send(SessionCommand::Cancel);
    for ticket in std::iter::once(first).chain(tickets) {
        assert_eq!(desk.reason(ticket), StopReason::Cancelled);
    }
    desk.release_tool();
    assert_eq!(desk.ask("Again"), StopReason::EndTurn);
    let seen = format!("{:?}", desk.last_request().seen());
    assert!(!seen.contains("more 1"), "what was cancelled is not sent: {seen}");
}

#[test]
fn a_queued_prompt_survives_a_crash_and_enters_with_the_next_one() {
    let mut desk = Desk::new(Vec::new());
    let session = SessionId("s_00000000000000000abc".into());
    let message =
        |id, text: &str| Message { id: MessageId(id), content: vec![Content::Text { text: text.into() }] };
    let opened =
        Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: desk.cwd().to_path_buf() };
    let store = Store::new(&epitome::paths::Paths::below(&desk.home));
    let (mut journal, _) = store.create(&session, opened).expect("a journal");
    for change in [
        Change::Said { message: message(1, "First"), origin: Origin::Person },
        Change::Queued { message: message(2, "And this") },
    ] {
        journal.append(change).expect("an entry");
    }
    drop(journal);

    desk.session = session;
    desk.load(desk.environment());
    assert_eq!(desk.ask("Go on"), StopReason::EndTurn);
    let said = ["First", "And this", "Go on"].map(|text| Seen::User(text.into()));
    assert_eq!(desk.last_request().seen(), said);
    let thread = Thread::replay(desk.log()).expect("a log");
    assert!(thread.queued().is_empty());
}
