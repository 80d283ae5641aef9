//! A disk that becomes full during a turn, and then has room again. Runs in a separate process, because the limit that
//! simulates the full disk applies to the entire process.

use epitome::session::{SessionCommand, SessionError, SessionEvent, UserDecision};
use epitome::thread::{CallId, Change, OutcomeStatus, StopReason, Thread};
use epitome_test_harness::own_process;
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

/// Limits the files of this process to `bytes`; `None` lifts the limit.
fn limit_files(bytes: Option<u64>) {
    let hard = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(hard), maximum: hard }).expect("a soft limit");
}

/// Regression: the turn was left open in the log. The next view contained a call without an outcome, which every
/// provider rejects, so the user could not continue the session although the disk had room again.
#[test]
fn a_session_continues_after_a_full_disk_has_room_again() {
    own_process::alone(
        concat!(module_path!(), "::a_session_continues_after_a_full_disk_has_room_again"),
        || {
            continues_after_a_full_disk();
        },
    );
}

fn continues_after_a_full_disk() {
    let calls = vec![call(json!({"do": "say"})), call(json!({"do": "wait", "asks": "person"}))];
    let mut test = TestSession::new(vec![vec![text("fine")], calls, vec![text("done")]]);
    // Without a handler the kernel kills a process that writes past the limit.
    let _listening = test.on_runtime(|| {
        let too_large = tokio::signal::unix::SignalKind::from_raw(25);
        tokio::signal::unix::signal(too_large).expect("SIGXFSZ can be listened to")
    });
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);

    let ticket = test.prompt("Go");
    let ask = test.client.until(|out| match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    test.client.entry(|change| matches!(change, Change::ToolFinished { .. }).then_some(()));
    // Room for a part of a line: the written part must be removed.
    let before = std::fs::metadata(test.journal()).expect("a journal").len();
    limit_files(Some(before + 10));
    test.send(SessionCommand::Decide { ask, decision: UserDecision::Reject });
    match test.client.answer(ticket) {
        Err(SessionError::Store(message)) => assert!(message.contains("can't be written"), "{message}"),
        other => panic!("the disk's refusal was expected: {other:?}"),
    }
    let while_full = test.prompt("Is there room?");
    assert!(matches!(test.client.answer(while_full), Err(SessionError::Store(_))));
    assert_eq!(std::fs::metadata(test.journal()).expect("a journal").len(), before);

    limit_files(None);
    assert_eq!(test.ask("And now?"), StopReason::EndTurn);
    let log = test.log();
    let thread = Thread::replay(log.iter().cloned()).expect("a log without gaps");
    assert!(thread.open_calls().is_empty() && !thread.in_turn());
    let outcomes: Vec<(CallId, OutcomeStatus)> = log
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some((outcome.call.clone(), outcome.status)),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    assert_eq!(outcomes[1].1, OutcomeStatus::Interrupted);
    assert!(!log.iter().any(
        |entry| matches!(&entry.change, Change::Said { message, .. } if message.text() == "Is there room?")
    ));
}
