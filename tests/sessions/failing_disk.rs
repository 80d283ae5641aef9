//! A disk that fails to write or sync a session's log.

use std::path::Path;
use std::sync::Arc;

use epitome::session::port::SessionPort as _;
use epitome::session::{Opening, Replay, SessionCommand, SessionError, SessionEvent};
use epitome::thread::{Change, Content, Mode, StopReason, Thread};
use epitome_scripted_model::ModelStep;
use epitome_simulated_disk::{FileCall, SimDisk};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::Setup;
use epitome_test_harness::{text, within};
use serde_json::json;

use crate::session::stage::script;

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

/// Regression: a session that had a resident hook, a hook in the background or a command in the background stayed with the log
/// that had failed. Each prompt was refused until the user closed the session, and a development server that the model has
/// started runs for days. They go on with the new log, as the same processes.
#[test]
fn what_runs_beside_the_turns_keeps_no_failed_log() {
    let declares = r#"{"protocol": 2, "events": ["turn_end"], "mode": "resident"}"#;
    let resident = script(
        declares,
        r#"cd "$EPITOME_CWD"; echo $$ >> started
while read -r line; do id=${line#*:}; echo "{\"id\":${id%%,*},\"result\":{}}"; done"#,
    );
    let aside = json!({"type": "command", "async": true, "command": "echo $$ >> started; exec sleep 1000"});
    let aside = json!({"hooks": {"SessionStart": [{"hooks": [aside]}]}}).to_string();
    let command = json!({"command": "echo $$ >> started; exec sleep 1000", "background": true});
    let command = ModelStep::Call { name: "bash".into(), input: command };
    let config = "mode = \"full\"\n[sandbox]\nenabled = false\n[hooks]\ntrust = \"run\"\n".to_owned();
    for (what, file, first) in [
        ("a resident hook", ("home/hooks/at-work", resident), vec![text("fine")]),
        ("a hook in the background", (".claude/settings.json", aside), vec![text("fine")]),
        ("a command in the background", ("notes", String::new()), vec![command]),
    ] {
        let disk = SimDisk::new(1, Path::new("/home/data"));
        let files = [(file.0, file.1), ("home/config.toml", config.clone())];
        let mut first = Some(first);
        let mut test = Setup::with_files(&files)
            .built_in_tools()
            .disk(Arc::new(disk.clone()))
            .start(move |_| first.take().unwrap_or_else(|| vec![text("fine")]));
        assert_eq!(test.ask("Hello"), StopReason::EndTurn, "{what}");
        let started = test.cwd().join("started");
        within(what, || started.exists().then_some(()));

        disk.fail_next(FileCall::Sync);
        let ticket = test.prompt("Is this kept?");
        assert!(matches!(test.client.answer(ticket), Err(SessionError::Store(_))), "{what}");
        assert_eq!(test.ask("And now?"), StopReason::EndTurn, "{what}");
        assert!(format!("{:?}", test.last_request().seen()).contains("Is this kept?"), "{what}");
        let runs: Vec<String> =
            std::fs::read_to_string(&started).expect("text").lines().map(str::to_owned).collect();
        assert_eq!(runs.len(), 1, "{what} was started again");
        assert!(Path::new("/proc").join(&runs[0]).exists(), "{what} was ended");
    }
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
