//! Prompts during a turn.

use epitome::session::port::SessionPort as _;
use epitome::session::{PendingPrompt, Replay, SessionAnswer, SessionCommand, SessionError, SessionEvent};
use epitome::store::Store;
use epitome::thread::{
    Change, Content, FORMAT_VERSION, Message, MessageId, Origin, SessionId, StopReason, Thread,
};
use epitome_scripted_model::{ModelStep, ScriptedStop, SeenPart};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;

use serde_json::json;

fn is_queued(change: &Change) -> Option<()> {
    matches!(change, Change::Queued { .. }).then_some(())
}

fn streamed(out: &SessionEvent) -> Option<()> {
    matches!(out, SessionEvent::Text { .. }).then_some(())
}

/// Regression: a prompt that the user sent during `/compact` was answered when the compaction ended and never reached
/// the model.
#[test]
fn a_prompt_during_compact_is_answered_by_the_model() {
    let flood = vec![ModelStep::Flood { count: 2000, text: "many words ".into() }];
    let mut test = TestSession::new(vec![flood, vec![text("Sum"), ModelStep::Wait, text("mary.")]]);
    test.ask("Say many words.");
    let compact = test.prompt("/compact");
    test.client.entry(|change| matches!(change, Change::Commanded { .. }).then_some(()));
    let image = Content::Image { mime_type: "image/png".into(), data: "aGk=".into(), uri: None };
    let next = test.prompt_with(vec![Content::Text { text: "And this?".into() }, image]);
    test.client.entry(is_queued);
    test.model.release();
    assert_eq!((test.reason(compact), test.reason(next)), (StopReason::EndTurn, StopReason::EndTurn));
    let request = test.last_request();
    assert_eq!(
        request.seen().len(),
        6,
        "four parts of the message, the words and the image: {:?}",
        request.seen()
    );
    assert!(request.body.to_string().contains("And this?") && request.body.to_string().contains("aGk="));
}

/// Regression: a reply that ended abnormally discarded the queued prompts.
#[test]
fn a_prompt_during_a_truncated_or_refused_reply_is_answered() {
    for stop in [ScriptedStop::MaxTokens, ScriptedStop::Refusal("no".into())] {
        let first = vec![text("I"), ModelStep::Wait, ModelStep::Stop(stop)];
        let mut test = TestSession::new(vec![first, vec![text("Second.")]]);
        let one = test.prompt("First");
        test.client.until(streamed);
        let two = test.prompt("Second");
        test.client.entry(is_queued);
        test.model.release();
        assert_eq!((test.reason(one), test.reason(two)), (StopReason::EndTurn, StopReason::EndTurn));
        assert_eq!(test.last_request().last_user_text(), "Second");
    }
}

#[test]
fn a_prompt_after_a_queued_command_follows_it() {
    let mut test = TestSession::new(vec![vec![text("a"), ModelStep::Wait]]);
    let first = test.prompt("First");
    test.client.until(streamed);
    let command = test.prompt("/undo");
    let after = test.prompt("After the command");
    test.model.release();
    for ticket in [first, command, after] {
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
    }
    let said: Vec<String> = test
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
    let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))]]);
    let first = test.prompt("First");
    test.client.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
    let tickets: Vec<_> = (0..64).map(|at| test.prompt(&format!("more {at}"))).collect();
    let refused = test.prompt("too many");
    assert_eq!(test.client.answer(refused).err(), Some(SessionError::Busy(64)));
    test.send(SessionCommand::Cancel);
    for ticket in std::iter::once(first).chain(tickets) {
        assert_eq!(test.reason(ticket), StopReason::Cancelled);
    }
    test.release_tool();
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
    let seen = format!("{:?}", test.last_request().seen());
    assert!(!seen.contains("more 1"), "what was cancelled is not sent: {seen}");
}

/// Loads another session, whose process crashed when its log ended with these changes.
fn load_after_crash(test: &mut TestSession, changes: Vec<Change>) {
    write_log(test, changes);
    test.load(test.environment());
}

/// Writes the log of a session whose daemon has died.
fn write_log(test: &mut TestSession, changes: Vec<Change>) {
    let session = SessionId("s_00000000000000000abc".into());
    let opened =
        Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: test.cwd().to_path_buf() };
    let store = Store::new(&epitome::paths::Paths::below(&test.home));
    let (mut journal, _) = store.create(&session, opened).expect("a journal");
    for change in changes {
        journal.append(change).expect("an entry");
    }
    drop(journal);
    test.session = session;
}

fn message(id: u64, text: &str) -> Message {
    Message { id: MessageId(id), content: vec![Content::Text { text: text.into() }], author: None }
}

fn users(texts: &[&str]) -> Vec<SeenPart> {
    texts.iter().map(|text| SeenPart::User((*text).into())).collect()
}

/// Regression: the user looked at the context before they went on. That command discarded the prompt, which had been
/// reported as kept.
#[test]
fn a_queued_prompt_survives_a_crash_and_enters_with_the_next_one() {
    let mut test = TestSession::new(Vec::new());
    let said = Change::Said { message: message(1, "First"), origin: Origin::Person };
    load_after_crash(&mut test, vec![said, Change::Queued { message: message(2, "And this") }]);
    assert_eq!(test.ask("/context"), StopReason::EndTurn);
    assert_eq!(test.ask("Go on"), StopReason::EndTurn);
    assert_eq!(test.last_request().seen(), users(&["First", "And this", "Go on"]));
    let thread = Thread::replay(test.log()).expect("a log");
    assert!(thread.queued().is_empty());
}

/// Regression: an editor sent a prompt again that a crash had left in the queue. The model read it twice. Of another
/// prompt, the editor was given the message of the queued one.
#[test]
fn a_prompt_that_is_sent_again_after_a_crash_enters_once() {
    for (words, key) in [("And this", "key 2"), ("Go on", "key 4")] {
        let mut test = TestSession::new(Vec::new());
        test.client = TestClient::that_follows_state(1);
        let changes = vec![
            Change::Said { message: message(1, "First"), origin: Origin::Person },
            Change::PromptKeyed { message: MessageId(2), key: "key 2".into() },
            Change::Queued { message: message(2, "And this") },
            Change::Queued { message: message(3, "And that") },
        ];
        load_after_crash(&mut test, changes);
        let (ticket, client, key) = (test.ticket(), test.client.id, Some(key.to_owned()));
        let content = vec![Content::Text { text: words.into() }];
        test.send(SessionCommand::Prompt { ticket, client, content, key });
        let inserted = test.client.until(|out| match out {
            SessionEvent::Inserted { ticket: of, message } if *of == ticket => Some(*message),
            _ => None,
        });
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
        let mut seen = vec!["First", "And this", "And that"];
        seen.extend(Some("Go on").filter(|added| *added == words));
        assert_eq!(test.last_request().seen(), users(&seen));
        let is_it = |change: &Change| matches!(change, Change::Said { message, .. } if message.id == inserted && message.text() == words);
        assert_eq!(test.log().iter().filter(|entry| is_it(&entry.change)).count(), 1);
    }
}

/// Regression: a user cancelled a prompt while no daemon ran, or before the editor's front end knew what the last one had
/// left. It was reported as cancelled, and the model read it with the next one.
#[test]
fn a_prompt_that_a_crash_left_can_be_cancelled() {
    for is_cancelled_before in [true, false] {
        let mut test = TestSession::new(Vec::new());
        let changes = vec![
            Change::Said { message: message(1, "First"), origin: Origin::Person },
            Change::PromptKeyed { message: MessageId(2), key: "key 2".into() },
            Change::Queued { message: message(2, "Not this") },
        ];
        write_log(&mut test, changes);
        let (attach, kept) = (test.ticket(), test.ticket());
        let prompt = PendingPrompt {
            ticket: kept,
            key: "key 2".into(),
            content: Some(vec![Content::Text { text: "Not this".into() }]),
            was_cancelled: is_cancelled_before,
        };
        let replay = Replay::Rest { position: Box::default(), prompts: vec![prompt] };
        let opening = test.opening(&test.client, test.environment());
        test.sessions.attach(attach, test.session.clone(), opening, replay);
        let answer = test.client.answer(kept);
        match is_cancelled_before {
            true => {
                assert!(matches!(answer, Ok(SessionAnswer::TurnEnded { reason: StopReason::Cancelled, .. })))
            }
            false => {
                let error = answer.expect_err("it is kept").to_string();
                assert!(error.contains("It is kept, and read with your next prompt."), "{error}");
                test.send(SessionCommand::Cancel);
            }
        }
        assert_eq!(test.ask("Go on"), StopReason::EndTurn);
        assert_eq!(test.last_request().seen(), users(&["First", "Go on"]));
    }
}

/// Regression: a user sent a prompt to a daemon that had just died, which their window knew in full. The next daemon asked
/// them to send it again.
#[test]
fn a_prompt_that_is_not_in_the_log_is_done_unless_it_was_cancelled_or_is_too_large_to_be_kept() {
    for (is_kept, was_cancelled) in [(true, false), (true, true), (false, false)] {
        let mut test = TestSession::new(Vec::new());
        write_log(&mut test, vec![Change::Said { message: message(1, "First"), origin: Origin::Person }]);
        let (attach, lost) = (test.ticket(), test.ticket());
        let content = is_kept.then(|| vec![Content::Text { text: "And this".into() }]);
        let prompt = PendingPrompt { ticket: lost, key: "key 2".into(), content, was_cancelled };
        let replay = Replay::Rest { position: Box::default(), prompts: vec![prompt] };
        let opening = test.opening(&test.client, test.environment());
        test.sessions.attach(attach, test.session.clone(), opening, replay);
        let answer = test.client.answer(lost);
        if is_kept && !was_cancelled {
            assert!(matches!(answer, Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, .. })));
            assert_eq!(test.last_request().seen(), users(&["First", "And this"]));
        } else {
            let error = answer.expect_err("it is not done").to_string();
            assert!(error.contains("Please send it again: it had not begun."), "{error}");
            assert_eq!(test.ask("Go on"), StopReason::EndTurn);
            assert_eq!(test.last_request().seen(), users(&["First", "Go on"]));
        }
    }
}

/// Regression: the model's provider failed while a prompt waited for the next call. It had been accepted and shown, and no
/// model ever read it.
#[test]
fn a_prompt_that_a_failed_turn_did_not_read_enters_with_the_next_one() {
    let refused = ModelStep::Error { status: 400, retry_after: None, message: Some("Out of order.".into()) };
    let mut test = TestSession::new(vec![vec![ModelStep::Wait, refused]]);
    let first = test.prompt("First");
    test.client.entry(|change| matches!(change, Change::Said { .. }).then_some(()));
    let second = test.prompt("But not the secrets");
    test.client.entry(is_queued);
    test.model.release();
    let mut failure = |ticket| test.client.answer(ticket).expect_err("the provider refuses").to_string();
    let (first, second) = (failure(first), failure(second));
    assert!(first.contains("Out of order.") && !first.contains("kept"), "{first}");
    assert!(second.contains("It is kept, and read with your next prompt."), "{second}");
    assert_eq!(test.ask("Go on"), StopReason::EndTurn);
    assert_eq!(test.last_request().seen(), users(&["First", "But not the secrets", "Go on"]));
}

/// Regression: one window had prompted last, and cancelled. That withdrew the prompt that another window had left in the queue,
/// which was not shown in the first window: it was taken for its own (fleet 71437).
#[test]
fn a_withdrawn_prompt_is_that_of_the_client_that_sent_it() {
    let refused = || ModelStep::Error { status: 400, retry_after: None, message: Some("No.".into()) };
    let mut test = TestSession::new(vec![vec![ModelStep::Wait, refused()]]);
    let mut other = TestClient::new(2);
    let (attach, opening) = (test.ticket(), test.opening(&other, test.environment()));
    test.sessions.attach(attach, test.session.clone(), opening, Replay::Nothing);
    other.answer(attach).expect("it is open");
    let first = test.prompt("First");
    test.client.entry(|change| matches!(change, Change::Said { .. }).then_some(()));
    let (ticket, content) = (test.ticket(), vec![Content::Text { text: "From elsewhere".into() }]);
    test.send(SessionCommand::Prompt { ticket, client: other.id, content, key: None });
    test.client.entry(is_queued);
    test.model.release();
    test.client.answer(first).expect_err("the provider refuses");
    test.send(SessionCommand::Cancel);
    let is_own = |out: &SessionEvent| match out {
        SessionEvent::Entry { entry, own, .. } => {
            matches!(entry.change, Change::Withheld { .. }).then_some(*own)
        }
        _ => None,
    };
    assert_eq!((test.client.until(is_own), other.until(is_own)), (false, true));
}

/// Regression: the user rewound the turn that had failed. A prompt that it had not read came back with the next one.
#[test]
fn a_prompt_that_is_rewound_is_not_read_later() {
    let mut test = TestSession::new(Vec::new());
    let said = |id, text| Change::Said { message: message(id, text), origin: Origin::Person };
    let ended =
        |reason| Change::TurnEnded { reason, usage: Default::default(), quiet_hooks: 0, failure: None };
    let changes = vec![
        said(1, "First"),
        ended(StopReason::EndTurn),
        said(2, "Second"),
        Change::Queued { message: message(3, "And this") },
        ended(StopReason::Failed),
    ];
    load_after_crash(&mut test, changes);
    assert_eq!(test.ask("/rewind conversation"), StopReason::EndTurn);
    assert_eq!(test.ask("Go on"), StopReason::EndTurn);
    let seen = format!("{:?}", test.last_request().seen());
    assert!(seen.contains("Go on") && !seen.contains("And this"), "{seen}");
}
