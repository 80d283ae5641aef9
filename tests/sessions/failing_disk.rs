//! A disk that fails to write or sync a session's log.

use std::path::Path;
use std::sync::Arc;

use epitome::session::port::SessionPort as _;
use epitome::session::{Opening, Replay, SessionCommand, SessionError, SessionEvent};
use epitome::thread::{Change, Content, Mode, StopReason, Thread};
use epitome_simulated_disk::{FileCall, SimDisk};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::Setup;
use epitome_test_harness::text;

/// After a failed sync the kernel may have dropped the written data, so later syncs cannot be trusted. Regressions: each
/// further prompt still called the model, was charged to the user, and then ended with an error. Later each was refused
/// until the user closed the session and loaded it again, although the disk had recovered.
#[test]
fn after_a_failed_sync_the_log_is_opened_again() {
    let disk = SimDisk::new(1, Path::new("/home/data"));
    let setup = Setup::new().disk(Arc::new(disk.clone()));
    let mut test = setup.start(|_| vec![text("fine")]);
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);

    disk.fail_next(FileCall::Sync);
    let ticket = test.prompt("Is this kept?");
    assert!(matches!(test.client.answer(ticket), Err(SessionError::Store(_))));
    assert_eq!(test.ask("And now?"), StopReason::EndTurn);
    let seen = test.last_request().seen();
    let words = format!("{seen:?}");
    assert!(words.contains("Hello") && words.contains("Is this kept?"), "{words}");
    assert_eq!(words.matches("And now?").count(), 1, "{words}");
}

/// Entries are written outside of the session's task. The consequences of an entry that cannot be written must not be
/// visible: a client would show a mode that the session no longer has after a reload, and the user would pay for the
/// answer to a prompt that is not stored.
#[test]
fn what_the_log_does_not_take_is_not_shown_and_calls_no_model() {
    let disk = SimDisk::new(1, Path::new("/home/data"));
    let setup = Setup::new().disk(Arc::new(disk.clone()));
    let mut test = setup.start(|_| vec![text("fine")]);
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    let called = test.model.requests().len();

    disk.fail_next(FileCall::Write);
    match test.choose("mode", "read_only") {
        Err(SessionError::Store(message)) => assert!(message.contains("can't be written"), "{message}"),
        other => panic!("the disk's refusal was expected: {other:?}"),
    }
    let is_shown = |out: &SessionEvent| match out {
        SessionEvent::Entry { entry, .. } => matches!(entry.change, Change::ModeChosen { .. }),
        _ => false,
    };
    assert!(!test.client.arrived().iter().any(is_shown));
    // The present options follow the answer; those that were not written were never shown.
    let shown = test.client.until(|out| match out {
        SessionEvent::Options(options) => Some(options.mode),
        _ => None,
    });
    assert_eq!(shown, Mode::Ask);

    disk.fail_next(FileCall::Write);
    let ticket = test.prompt("Is there room?");
    assert!(matches!(test.client.answer(ticket), Err(SessionError::Store(_))));
    assert_eq!(test.model.requests().len(), called);

    test.choose("mode", "read_only").expect("the disk takes it");
    assert_eq!(test.ask("And now?"), StopReason::EndTurn);
    let log = test.services.store.read(&test.session).expect("a whole log");
    assert_eq!(log.iter().filter(|entry| matches!(entry.change, Change::ModeChosen { .. })).count(), 1);
    let thread = Thread::replay(log.iter().cloned()).expect("a log without gaps");
    assert_eq!((thread.mode(), thread.in_turn()), (Mode::ReadOnly, false));
    let is_refused = |change: &Change| matches!(change, Change::Said { message, .. } if message.text() == "Is there room?");
    assert!(!log.iter().any(|entry| is_refused(&entry.change)));
}

/// Regression: the disk was full, and an editor of version 2 was answered that its prompt was in the conversation, as this
/// message. The log did not have it.
#[test]
fn a_prompt_that_the_log_does_not_take_is_not_reported_as_a_message() {
    let disk = SimDisk::new(1, Path::new("/home/data"));
    let mut test = Setup::new().disk(Arc::new(disk.clone())).start(|_| vec![text("fine")]);
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    let mut editor = TestClient::that_follows_state(2);
    test.attach(&editor, Replay::Nothing);
    let client = editor.id;
    let mut send = |words: &str| {
        let ticket = test.ticket();
        let content = vec![Content::Text { text: words.into() }];
        test.send(SessionCommand::Prompt { ticket, client, content, key: Some(words.into()) });
        ticket
    };
    let is_inserted = |out: &SessionEvent| matches!(out, SessionEvent::Inserted { .. });

    disk.fail_next(FileCall::Write);
    let refused = send("Is there room?");
    assert!(matches!(editor.answer(refused), Err(SessionError::Store(_))));
    assert!(!editor.arrived().iter().any(is_inserted));
    let taken = send("Is there room?");
    editor
        .until(|out| matches!(out, SessionEvent::Inserted { ticket, .. } if *ticket == taken).then_some(()));
}

/// Regression: a window was attached beside another one, and the log did not take the mode that it came with. It was told so,
/// but the prompt that it had sent meanwhile was never answered.
#[test]
fn a_client_whose_attachment_the_log_does_not_take_gets_an_answer_to_its_prompt() {
    for is_alone in [false, true] {
        let disk = SimDisk::new(1, Path::new("/home/data"));
        let mut test = Setup::new().disk(Arc::new(disk.clone())).start(|_| vec![text("fine")]);
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        if is_alone {
            let ticket = test.ticket();
            test.send(SessionCommand::Close { ticket, client: test.client.id });
            test.client.answer(ticket).expect("it closes");
        }
        let mut window = TestClient::new(2);
        let choices = vec![("mode".to_owned(), "read_only".to_owned())];
        let opening = Opening { choices, ..test.opening(&window, test.environment()) };
        let (attached, prompted) = (test.ticket(), test.ticket());
        disk.fail_next(FileCall::Write);
        test.sessions.attach(attached, test.session.clone(), opening, Replay::Nothing);
        let content = vec![Content::Text { text: "Is there room?".into() }];
        test.send(SessionCommand::Prompt { ticket: prompted, client: window.id, content, key: None });
        assert!(matches!(window.answer(attached), Err(SessionError::Store(_))), "alone: {is_alone}");
        assert!(window.answer(prompted).is_err(), "alone: {is_alone}");
    }
}
