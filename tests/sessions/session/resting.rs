//! Sessions that are suspended while idle, and resumed unchanged.

use std::time::Duration;

use epitome::config::set_policy_of_store;
use epitome::session::port::{SessionPort as _, StoredSessionPort as _};
use epitome::session::{
    ClientId, QuestionReply, QuestionSupport, Replay, SessionAnswer, SessionCommand, SessionError,
    SessionEvent,
};
use epitome::thread::{Change, Mode, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::{in_turn, own_process, text, within};
use serde_json::{Value, json};

use super::stage::{payload_fields, recorder};

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

/// Regression: an idle session was opened on a machine whose policy allows more, and set to a mode that the policy here
/// forbids. The window that was still open here went on in that mode.
#[test]
fn a_mode_from_elsewhere_is_left_if_the_policy_forbids_it() {
    own_process::alone(
        concat!(module_path!(), "::a_mode_from_elsewhere_is_left_if_the_policy_forbids_it"),
        || {
            set_policy_of_store("a database", Some("policy.modes = [\"ask\"]"));
            let mut test = quick(&[]);
            test.ask("First");
            rests(&test);
            let (mut journal, _) = test.services.store.load(&test.session).expect("nobody holds it");
            journal.append(Change::ModeChosen { mode: Mode::Full }).expect("it can be written");
            drop(journal);
            test.ask("Second");
            let log = test.log();
            let mode = log.iter().rev().find_map(|entry| match &entry.change {
                Change::ModeChosen { mode } => Some(*mode),
                _ => None,
            });
            assert_eq!(mode, Some(Mode::Ask));
        },
    );
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
    assert_eq!(payload_fields(&test, "event"), ["session_start"]);
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

/// Another process had the journal open when a suspended session got a prompt. From then on, the open window got "there
/// is no such session" for everything.
#[test]
fn a_session_that_cannot_be_resumed_stays_suspended() {
    let mut test = quick(&[]);
    test.ask("First");
    rests(&test);
    let journal = test.services.store.load(&test.session).expect("nobody holds it");
    for _ in 0..2 {
        let ticket = test.prompt("Second");
        match test.client.answer(ticket) {
            Err(SessionError::InUse(session, _)) => assert_eq!(session, test.session),
            other => panic!("an error was expected: {other:?}"),
        }
        rests(&test);
    }
    drop(journal);
    assert_eq!(test.ask("Third"), StopReason::EndTurn);
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("First") && sent.contains("Third") && !sent.contains("Second"), "{sent}");
}

/// Regression: a user had allowed a session to spend the amount of its limit again. After five idle minutes, the next call
/// asked for it once more.
#[test]
fn what_the_user_allows_beyond_the_budget_survives_a_suspension() {
    let setup = Setup::with_config("[budget]\nsession_tokens = 900000\n");
    let mut test = setup
        .suspend_after(Duration::from_millis(30))
        .start(|_| vec![text("Done."), ModelStep::Usage { input: 500_000, output: 10 }]);
    let mut asked = TestClient::that_shows(2, QuestionSupport { forms: true, urls: false });
    test.attach(&asked, Replay::Nothing);
    assert_eq!(test.ask("One."), StopReason::EndTurn);
    assert_eq!(test.ask("Two."), StopReason::EndTurn);
    let ticket = test.prompt("Three.");
    let ask = asked.until(|out| match out {
        SessionEvent::Question { ask, .. } => Some(*ask),
        _ => None,
    });
    let yes = [("go_on".to_owned(), json!("yes"))].into_iter().collect();
    test.send(SessionCommand::Answer { ask, reply: QuestionReply::Accepted(yes) });
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    rests(&test);
    assert_eq!(test.ask("Four."), StopReason::EndTurn);
}

/// The variables that a hook defined for a project's commands were gone after five idle minutes.
#[test]
fn what_hooks_of_the_start_export_survives_a_suspension() {
    let hook =
        json!({"type": "command", "command": "echo \"export COLOR='dark blue'\" >> \"$CLAUDE_ENV_FILE\""});
    let settings = json!({"hooks": {"SessionStart": [{"hooks": [hook]}]}});
    let config = "mode = \"full\"\n[hooks]\ntrust = \"run\"\n";
    let files = [(".claude/settings.json", settings.to_string()), ("home/config.toml", config.to_owned())];
    let bash = || vec![ModelStep::Call { name: "bash".into(), input: json!({"command": "echo $COLOR"}) }];
    let script = in_turn(vec![bash(), vec![text("one")], bash(), vec![text("two")]]);
    let setup = Setup::with_files(&files).built_in_tools().suspend_after(Duration::from_millis(30));
    let mut test = setup.start(script);
    for prompt in ["Which color?", "And now?"] {
        assert_eq!(test.ask(prompt), StopReason::EndTurn);
        let outcome = test.client.entry(|change| match change {
            Change::ToolFinished { outcome } => Some(outcome.model_text()),
            _ => None,
        });
        assert!(outcome.contains("dark blue"), "{prompt} {outcome}");
        rests(&test);
    }
}

/// A hook that ran the tests in the background after each reply was killed when the user read for five minutes, although
/// it had ten; neither the user nor the model ever learned the result.
#[test]
fn a_hook_in_the_background_is_not_ended_by_a_suspension() {
    let output = json!({
        "systemMessage": "the checks have ended",
        "hookSpecificOutput": {"additionalContext": "All 7 checks passed."},
    });
    // Ten times as long as the session may be idle.
    let hook = json!({"type": "command", "async": true, "command": format!("sleep 0.3; echo '{output}'")});
    let settings = json!({"hooks": {"Stop": [{"hooks": [hook]}]}});
    let config = "[hooks]\ntrust = \"run\"\n";
    let mut test = quick(&[
        (".claude/settings.json".to_owned(), settings.to_string()),
        ("home/config.toml".to_owned(), config.to_owned()),
    ]);
    test.ask("First");
    test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } => text.contains("the checks have ended").then_some(()),
        _ => None,
    });
    rests(&test);
    test.ask("Second");
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("All 7 checks passed."), "{sent}");
}

/// A hook that cleans up at the end of a session did not run if the session was idle when its window was closed.
#[test]
fn hooks_for_the_end_run_when_the_last_client_leaves_a_suspended_session() {
    let recorder = recorder(r#"{"protocol": 2, "events": ["session_start", "session_end"]}"#);
    let files = [("home/hooks/audit".to_owned(), recorder)];
    let mut test = quick(&files);
    test.ask("Hello");
    rests(&test);
    test.sessions.detach(test.client.id);
    test.wait_for(test.sessions.settled());
    assert_eq!(payload_fields(&test, "event"), ["session_start", "session_end"]);
    assert_eq!(test.sessions.live_sessions(), []);

    let environment = test.environment();
    test.load(environment);
    test.ask("Again");
    rests(&test);
    test.wait_for(test.sessions.set_archived(&test.session, true)).expect("it is archived");
    assert_eq!(payload_fields(&test, "event")[2..], ["session_start", "session_end"]);
}

/// A tool that follows a session got nothing more after the session's window was closed while it was suspended and
/// opened again.
#[test]
fn an_observer_stays_attached_when_a_suspended_session_ends() {
    let mut test = quick(&[]);
    test.ask("First");
    let mut observer = TestClient::new(9);
    let attachment = test.opening(&observer, Vec::new()).attachment;
    test.sessions.watch(&test.session, epitome::thread::Seq(0), attachment).expect("it lives");
    rests(&test);
    test.sessions.detach(test.client.id);
    assert_eq!(test.sessions.live_sessions(), []);
    let environment = test.environment();
    test.load(environment);
    test.ask("Second");
    for prompt in ["First", "Second"] {
        observer.entry(|change| match change {
            Change::Said { message, .. } if message.text() == prompt => Some(()),
            _ => None,
        });
    }
}

/// An editor or script that connected once a minute kept every idle session of the daemon in memory.
#[test]
fn connections_of_others_keep_no_session_from_being_suspended() {
    let mut test = quick(&[]);
    test.ask("First");
    within("the suspension", || {
        test.sessions.detach(ClientId(77));
        test.sessions.unwatch(ClientId(77));
        test.sessions.live_sessions().iter().all(|live| live.resting).then_some(())
    });
}

/// A hostile file had the model call a tool with 125 nested arrays. The entry could be written but not read, so that
/// the session was damaged as soon as it had been idle.
#[test]
fn a_deeply_nested_call_leaves_the_session_readable() {
    let nested = (0..120).fold(Value::Null, |inner, _| json!([inner]));
    let script = in_turn(vec![vec![call(json!({ "a": nested }))], vec![text("done")]]);
    let mut test = Setup::new().suspend_after(Duration::from_millis(30)).start(script);
    assert_eq!(test.ask("Call it"), StopReason::EndTurn);
    rests(&test);
    assert_eq!(test.ask("Still there?"), StopReason::EndTurn);
    let call = test.log().iter().find_map(|entry| match &entry.change {
        Change::Replied { message, .. } => message.calls().next().cloned(),
        _ => None,
    });
    assert!(call.expect("the call").input["invalid_json"].is_string());
}
