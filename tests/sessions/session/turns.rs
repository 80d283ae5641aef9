//! Each call has exactly one outcome and each prompt exactly one response, whatever happens to a turn.

use std::sync::Arc;

use epitome::config::WireFormat;
use epitome::provider::spent::Spent;
use epitome::session::port::SessionPort as _;
use epitome::session::{Replay, SessionAnswer, SessionCommand, SessionError, SessionEvent, UserDecision};
use epitome::thread::{Change, OutcomeStatus, StopReason, Thread};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::text;
use serde_json::json;

#[test]
fn a_panicking_tool_only_fails_its_own_call() {
    let mut test = TestSession::new(vec![vec![call(json!({"do": "panic"})), call(json!({"do": "wait"}))]]);
    let ticket = test.prompt("Go");
    let first = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    assert_eq!(first.status, OutcomeStatus::Failed);
    test.release_tool();
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    let statuses: Vec<OutcomeStatus> = test
        .log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some(outcome.status),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [OutcomeStatus::Failed, OutcomeStatus::Completed]);
}

/// Regression: a connection broke while the model wrote a long call. Calls are shown when they are complete, so this
/// one was still invisible, but the user was asked to send the prompt again.
#[test]
fn a_reply_that_breaks_off_within_a_call_is_requested_again() {
    for format in WireFormat::ALL {
        let mut replies =
            vec![vec![call(json!({"says": "one"})), ModelStep::Cut], vec![text("Done.")]].into_iter();
        let mut test =
            Setup::new().format(format).start(move |_| replies.next().expect("no more is asked for"));
        assert_eq!(test.ask("Go"), StopReason::EndTurn, "{format:?}");
        let whole = test.log().iter().filter(|entry| matches!(entry.change, Change::Replied { .. })).count();
        assert_eq!((whole, test.model.requests().len()), (1, 2), "{format:?}");
    }
}

/// Regression: a provider wanted fewer requests, and the user chose another model. The turn went on waiting for the first
/// one, up to a minute before each attempt, and called it again.
#[test]
fn a_model_that_is_chosen_while_a_call_waits_is_called_at_once() {
    let limited = ModelStep::Error { status: 429, retry_after: Some(50), message: None };
    let mut test = TestSession::new(vec![vec![limited], vec![text("Done.")]]);
    let ticket = test.prompt("Go");
    test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } => text.contains("Trying again in").then_some(()),
        _ => None,
    });
    test.choose("model", "anthropic/claude-haiku-4-5").expect("it is offered");
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert_eq!(test.last_request().body["model"], "claude-haiku-4-5");
}

/// Regression: a user cancelled while the model was thinking. Nothing of the reply could be kept, and what it had cost was
/// neither in the usage of the turn nor in the session's cost.
#[test]
fn a_reply_that_is_cancelled_before_its_text_is_paid_for() {
    let usage = ModelStep::Usage { input: 70_000, output: 10 };
    let mut test = TestSession::new(vec![vec![ModelStep::Think("Hm.".into()), usage, ModelStep::Hang]]);
    let ticket = test.prompt("Go");
    test.client.until(|out| matches!(out, SessionEvent::Text { .. }).then_some(()));
    test.send(SessionCommand::Cancel);
    match test.client.answer(ticket) {
        Ok(SessionAnswer::TurnEnded { reason: StopReason::Cancelled, usage, .. }) => {
            assert_eq!(usage.input, 70_000);
        }
        other => panic!("a cancelled turn was expected: {other:?}"),
    }
    let thread = Thread::replay(test.log()).expect("a log");
    assert_eq!(Spent::total(&Default::default(), &thread).usage.input, 70_000);
}

/// Regression: a connection broke while the model wrote a call, and the call was made again. The first attempt's cost was
/// missing in the same way.
#[test]
fn an_attempt_that_breaks_off_unseen_is_paid_for() {
    let mut test =
        TestSession::new(vec![vec![call(json!({"says": "one"})), ModelStep::Cut], vec![text("Done.")]]);
    let ticket = test.prompt("Go");
    match test.client.answer(ticket) {
        // A scripted reply takes 1,000 tokens.
        Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, usage, .. }) => {
            assert_eq!(usage.input, 2_000);
        }
        other => panic!("the turn's end was expected: {other:?}"),
    }
}

/// Regression: after a panic in the preview, the permission request was never shown, and the turn waited for it
/// forever.
#[test]
fn a_panicking_preview_is_omitted_from_the_permission_request() {
    let mut test = TestSession::new(vec![vec![call(json!({"asks": "person", "preview": "panic"}))]]);
    let ticket = test.prompt("Go");
    let ask = test.client.until(asked);
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
}

/// Regression: a model read the same file 200 times, for two million tokens, until its turn had used up its rounds.
#[test]
fn a_turn_that_repeats_itself_ends_with_a_note() {
    let unknown = |request: usize| ModelStep::Call { name: "no_such".into(), input: json!({ "n": request }) };
    let mut requests = 0;
    let next = move || {
        requests += 1;
        unknown(requests)
    };
    let (mut same, mut other) = (|| call(json!({"do": "say"})), next);
    let scripts: [&mut (dyn FnMut() -> ModelStep + Send); 2] = [&mut same, &mut other];
    for (script, id) in scripts.into_iter().zip(["same_call", "unusable_calls"]) {
        let replies: Vec<Vec<ModelStep>> = (0..6).map(|_| vec![script()]).collect();
        let mut test = TestSession::new(replies);
        let ticket = test.prompt("Go");
        match test.client.answer(ticket) {
            Ok(SessionAnswer::TurnEnded { reason: StopReason::MaxRounds, meta, .. }) => {
                assert_eq!(meta, Some(json!({ "epitome": { "stopped": id } })));
            }
            other => panic!("a stopped turn was expected: {other:?}"),
        }
        assert_eq!(test.model.requests().len(), 5, "{id}");
        let note = |entry: &Arc<epitome::thread::Entry>| match &entry.change {
            Change::Noted { text, .. } => Some(text.clone()),
            _ => None,
        };
        let notes: Vec<String> = test.log().iter().filter_map(note).collect();
        assert!(notes.iter().any(|note| note.starts_with("Stopped: ")), "{notes:?}");
        assert_eq!(test.ask("go on"), StopReason::EndTurn);
    }
}

#[test]
fn a_client_that_attaches_later_gets_the_permission_request() {
    let mut test = TestSession::new(vec![vec![call(json!({"asks": "person"}))]]);
    let ticket = test.prompt("Go");
    let ask = test.client.until(asked);
    let mut other = TestClient::new(2);
    let (attach, opening) = (test.ticket(), test.opening(&other, test.environment()));
    test.sessions.attach(attach, test.session.clone(), opening, Replay::Everything);
    assert_eq!(other.until(asked), ask);
    test.send(SessionCommand::Decide { ask, decision: UserDecision::Reject });
    test.client.until(|out| matches!(out, SessionEvent::Withdrawn { .. }).then_some(()));
    other.until(|out| matches!(out, SessionEvent::Withdrawn { .. }).then_some(()));
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
}

#[test]
fn a_cancel_withdraws_a_permission_request_and_interrupts_the_call() {
    let mut test = TestSession::new(vec![vec![call(json!({"asks": "person"}))]]);
    let ticket = test.prompt("Go");
    test.client.until(asked);
    test.send(SessionCommand::Cancel);
    test.send(SessionCommand::Cancel);
    test.client.until(|out| matches!(out, SessionEvent::Withdrawn { .. }).then_some(()));
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    let interrupted = test.log().iter().filter(|entry| is_interrupted(&entry.change)).count();
    assert_eq!(interrupted, 1);
}

#[test]
fn a_cancel_before_the_first_event_leaves_no_empty_message() {
    // The request may not even have been sent.
    let mut test = TestSession::with(|request| match request.last_user_text().as_str() {
        "Go" => vec![ModelStep::Hang],
        _ => vec![text("ok")],
    });
    let ticket = test.prompt("Go");
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    assert!(!test.log().iter().any(|entry| matches!(entry.change, Change::Replied { .. })));
    // Both prompts are sent as one message.
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
}

/// Regression: only the queue was searched for the prompt to cancel, so a prompt whose recipe was running commands
/// could not be canceled.
#[test]
fn a_prompt_can_be_cancelled_while_the_shell_calls_of_its_recipe_run() {
    let mut test =
        Setup::with_files(&[("home/recipes/slow.md", "Look: {{bash \"wait\"}}")]).start(|_| vec![text("ok")]);
    let slow = test.prompt("/slow");
    let behind = test.prompt("Behind it");
    test.send(SessionCommand::CancelPrompt { ticket: slow });
    assert_eq!(test.reason(slow), StopReason::Cancelled);
    assert_eq!(test.reason(behind), StopReason::EndTurn);
    assert_eq!(test.last_request().last_user_text(), "Behind it");
}

#[test]
fn a_cancel_ends_a_recipes_shell_calls_and_the_queued_prompts() {
    let mut test =
        Setup::with_files(&[("home/recipes/slow.md", "Look: {{bash \"wait\"}}")]).start(|_| vec![text("ok")]);
    let tickets = [test.prompt("/slow"), test.prompt("Behind it")];
    test.send(SessionCommand::Cancel);
    for ticket in tickets {
        assert_eq!(test.reason(ticket), StopReason::Cancelled);
    }
    assert_eq!(test.ask("/slow-no-such"), StopReason::EndTurn);
    assert_eq!(test.model.requests().len(), 1);
}

#[test]
fn a_model_without_a_key_is_reported_and_another_can_be_chosen() {
    let mut test = TestSession::new(Vec::new());
    test.choose("model", "anthropic/claude-haiku-4-5").expect("it is offered");
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
    assert_eq!(test.last_request().body["model"], "claude-haiku-4-5");
    let without_key =
        [("OPENAI_BASE_URL", test.model.openai_base_url()), ("OPENAI_API_KEY", "sk-test-2".into())];
    test.reload(without_key.map(|(name, value)| (name.into(), value.into())).into());
    let ticket = test.prompt("Still there?");
    match test.client.answer(ticket) {
        Err(SessionError::AuthRequired(message)) => {
            assert!(message.contains("ANTHROPIC_API_KEY"), "{message}")
        }
        other => panic!("a missing key was expected: {other:?}"),
    }
    test.choose("model", "openai/gpt-4.1").expect("it is offered");
    assert_eq!(test.ask("Still there?"), StopReason::EndTurn);
    assert_eq!(test.last_request().body["model"], "gpt-4.1");
}

/// Regression: a user's model picker still listed a provider whose key had been removed. Choosing its model failed with
/// the error that the model does not exist.
#[test]
fn choosing_a_model_without_a_key_names_the_missing_variable() {
    let mut test = TestSession::new(vec![vec![text("still here")]]);
    match test.choose("model", "gemini/gemini-3.8-flash") {
        Err(SessionError::Invalid(message)) => assert!(message.contains("GEMINI_API_KEY"), "{message}"),
        other => panic!("a missing key was expected: {other:?}"),
    }
    assert_eq!(test.ask("Hello"), StopReason::EndTurn);
}

/// Regression: an outcome could not be written, so the next prompt's view contained a call without an outcome, which
/// every provider rejects.
#[test]
fn an_unwritable_outcome_ends_the_turn_and_the_next_prompt_works() {
    let mut test =
        TestSession::new(vec![vec![call(json!({"do": "say", "bytes": 200_000}))], vec![text("fine")]]);
    let blobs = epitome::paths::Paths::below(&test.home).data.join("blobs");
    std::fs::write(&blobs, "where a directory must be").expect("a file");
    let ticket = test.prompt("Go");
    match test.client.answer(ticket) {
        Err(SessionError::Store(message)) => assert!(message.contains("can't be written"), "{message}"),
        other => panic!("the disk's refusal was expected: {other:?}"),
    }
    let log = test.log();
    assert!(log.iter().any(|entry| is_interrupted(&entry.change)));
    let ended = |entry: &Arc<epitome::thread::Entry>| matches!(entry.change, Change::TurnEnded { .. });
    assert!(log.last().is_some_and(ended));
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
}

fn asked(out: &SessionEvent) -> Option<epitome::session::AskId> {
    match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    }
}

fn is_interrupted(change: &Change) -> bool {
    matches!(change, Change::ToolFinished { outcome } if outcome.status == OutcomeStatus::Interrupted)
}
