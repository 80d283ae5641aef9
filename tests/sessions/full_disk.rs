//! A disk that becomes full during a turn, and then has room again. In a process of its own, because the
//! limit that simulates the full disk applies to the entire process.

use epitome::session::{Decision, Out, SessionCommand, SessionError};
use epitome::thread::{CallId, Change, OutcomeStatus, StopReason, Thread};
use epitome_test_harness::own_process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::session::desk::{Desk, call, text};

/// Limits the files of this process to `bytes`; `None` lifts the limit.
fn limit_files(bytes: Option<u64>) {
    let hard = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(hard), maximum: hard }).expect("a soft limit");
}

/// The turn stayed open in the log: the next view contained a call without an outcome, which every provider
/// rejects, so the session was unusable although the disk had room again.
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
    let mut desk = Desk::new(vec![vec![text("fine")], calls, vec![text("done")]]);
    // Without a handler the kernel kills a process that writes past the limit.
    let _listening = desk.on_runtime(|| {
        let too_large = tokio::signal::unix::SignalKind::from_raw(25);
        tokio::signal::unix::signal(too_large).expect("SIGXFSZ can be listened to")
    });
    assert_eq!(desk.ask("Hello"), StopReason::EndTurn);

    let ticket = desk.prompt("Go");
    let ask = desk.client.until(|out| match out {
        Out::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    desk.client.entry(|change| matches!(change, Change::ToolFinished { .. }).then_some(()));
    // Room for a part of a line: the written part must be removed again.
    let before = std::fs::metadata(desk.journal()).expect("a journal").len();
    limit_files(Some(before + 10));
    desk.send(SessionCommand::Decide { ask, decision: Decision::Reject });
    match desk.client.answer(ticket) {
        Err(SessionError::Store(message)) => assert!(message.contains("can't be written"), "{message}"),
        other => panic!("the disk's refusal was expected: {other:?}"),
    }
    let while_full = desk.prompt("Is there room?");
    assert!(matches!(desk.client.answer(while_full), Err(SessionError::Store(_))));
    assert_eq!(std::fs::metadata(desk.journal()).expect("a journal").len(), before);

    limit_files(None);
    assert_eq!(desk.ask("And now?"), StopReason::EndTurn);
    let log = desk.log();
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
