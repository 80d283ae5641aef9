//! A cancel at each point at which hooks can be running.

use std::io::{BufRead, BufReader, Read};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use epitome::session::SessionCommand;
use epitome::thread::{Change, OutcomeStatus, StopReason, Withheld};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::{WITHIN, in_turn, text, within};
use serde_json::json;

use super::stage::{count, flood, script, sent, with_hooks};

/// A test with a hook that hangs at its first run: the hook and its child keep a pipe open as long as they
/// live.
fn hanging(event: &str, replies: Vec<Vec<ModelStep>>) -> TestSession {
    let body = "cd \"$EPITOME_CWD\"; [ -p pipe ] || exit 0; exec 3> pipe; rm pipe; echo began >&3; sleep 600";
    let test = with_hooks(&[("hangs", script(event, body))], &[], replies);
    let made = Command::new("mkfifo").arg(test.cwd().join("pipe")).status().expect("mkfifo");
    assert!(made.success());
    test
}

/// Sends the prompt, cancels it when the hook hangs, and waits until all processes of the hook have ended.
fn cancelled(test: &mut TestSession, prompt: &str) {
    let pipe = test.cwd().join("pipe");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(std::fs::File::open(pipe).expect("the pipe"));
        let mut line = String::new();
        pipe.read_line(&mut line).expect("a line");
        sender.send(line.clone()).expect("the test waits");
        pipe.read_to_string(&mut line).expect("an end");
        sender.send(line).expect("the test waits");
    });
    let ticket = test.prompt(prompt);
    assert_eq!(receiver.recv_timeout(WITHIN).expect("it began"), "began\n");
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    receiver.recv_timeout(WITHIN).expect("nothing of it lives");
    assert_eq!(test.ask("Next"), StopReason::EndTurn);
}

fn withheld(test: &TestSession) -> usize {
    count(test, |change| matches!(change, Change::Withheld { why: Withheld::Cancelled, .. }))
}

#[test]
fn a_prompt_cancelled_in_its_hook_is_withheld() {
    let mut test = hanging("user_message_send", Vec::new());
    cancelled(&mut test, "The word is walnut");
    assert_eq!(withheld(&test), 1);
    assert_eq!(test.model.requests().len(), 1);
    assert!(!sent(&test).contains("walnut"));
}

/// Regression: after the cancel the session counted as started, so the context of its start hooks was never added.
#[test]
fn after_a_cancel_in_session_start_the_next_prompt_starts_the_session() {
    let start = json!({"events": ["session_start"], "then": {"context": "Speak Welsh."}}).to_string();
    let body = "cd \"$EPITOME_CWD\"; [ -p pipe ] || exit 0; exec 3> pipe; rm pipe; echo began >&3; sleep 600";
    let hooks = [("hangs", script("session_start", body)), ("start.json", start)];
    let mut test = with_hooks(&hooks, &[], Vec::new());
    assert!(Command::new("mkfifo").arg(test.cwd().join("pipe")).status().expect("mkfifo").success());
    cancelled(&mut test, "Hello");
    assert_eq!(withheld(&test), 1);
    assert!(test.last_request().body["system"].to_string().contains("Speak Welsh."));
}

#[test]
fn a_tool_call_cancelled_in_its_hook_is_interrupted() {
    for (event, said) in
        [("before_tool_call", "Not run: the turn was cancelled."), ("after_tool_call", "Interrupted")]
    {
        let mut test = hanging(event, vec![vec![text("I look."), call(json!({"says": "walnut"}))]]);
        cancelled(&mut test, "Hello");
        let outcomes = count(
            &test,
            |change| matches!(change, Change::ToolFinished { outcome } if outcome.status == OutcomeStatus::Interrupted),
        );
        assert_eq!(outcomes, 1, "{event}");
        assert!(sent(&test).contains(said), "{event}");
    }
}

/// Cancelling a command deleted what it had written: from the screen, from the log and from what the model was sent. A
/// hook that removes secrets from outcomes must see it before anybody else, so the turn waits for it.
#[test]
fn a_cancelled_command_keeps_its_output_as_its_hooks_leave_it() {
    let redacts = r#"grep -q 'kept-42 secret' && echo '{"output_text": "kept-42 redacted; cancelled before it finished"}'"#;
    let hooked = [("redacts", script("after_tool_call", redacts))];
    for (hooks, kept) in [(&hooked[..0], "kept-42 secret"), (&hooked[..], "kept-42 redacted")] {
        let line = "echo kept-$((40+2)) secret; touch written; sleep 600";
        let command = ModelStep::Call { name: "bash".into(), input: json!({ "command": line }) };
        let hooks = hooks.iter().map(|(name, text)| (format!("home/hooks/{name}"), text.clone()));
        let setup = Setup::with_files(&hooks.collect::<Vec<_>>()).built_in_tools();
        let mut test = setup.start(in_turn(vec![vec![command]]));
        test.choose("mode", "full").expect("a mode");
        let ticket = test.prompt("Count");
        let written = test.cwd().join("written");
        within("the command's output", || written.exists().then_some(()));
        // The file is there before the output is read.
        std::thread::sleep(Duration::from_millis(300));
        test.send(SessionCommand::Cancel);
        assert_eq!(test.reason(ticket), StopReason::Cancelled);
        let is_kept = |change: &Change| match change {
            Change::ToolFinished { outcome } => {
                outcome.status == OutcomeStatus::Interrupted && outcome.model_text().contains(kept)
            }
            _ => false,
        };
        assert_eq!(count(&test, is_kept), 1, "{kept}");
        assert_eq!(test.ask("Next"), StopReason::EndTurn);
        let sent = sent(&test);
        assert!(sent.contains(kept) && sent.contains("cancelled before it finished"), "{sent}");
    }
}

/// Regression: a hook that asked somebody else for a permission went on for ten minutes after the user had cancelled the
/// turn.
#[test]
fn a_cancel_ends_the_hooks_of_an_open_permission_request() {
    let declares = r#"{"protocol": 2, "events": ["permission_request"], "timeout_ms": 600000}"#;
    let mut test = hanging(declares, vec![vec![call(json!({"asks": "person"}))]]);
    cancelled(&mut test, "Hello");
}

#[test]
fn a_cancel_in_turn_end_or_agent_stop_keeps_the_reply() {
    for event in ["turn_end", "agent_stop"] {
        let mut test = hanging(event, vec![vec![text("All is well.")]]);
        cancelled(&mut test, "Hello");
        assert!(sent(&test).contains("Hello") && sent(&test).contains("All is well."), "{event}");
    }
}

#[test]
fn a_cancel_in_pre_compact_changes_nothing() {
    let mut test = hanging("pre_compact", vec![flood()]);
    test.ask("Say many words");
    cancelled(&mut test, "/compact");
    assert_eq!(count(&test, |change| matches!(change, Change::Compacted { .. })), 0);
    assert!(sent(&test).contains("many words many words"));
}

/// Regression: a summary was paid for, and the user cancelled while hooks saw it. It was in no entry, so the session's
/// cost lacked it.
#[test]
fn a_cancel_before_the_compaction_is_committed_records_its_cost() {
    let body = "cd \"$EPITOME_CWD\"; [ -p pipe ] || exit 0; exec 3> pipe; rm pipe; echo began >&3; sleep 600";
    let summary =
        vec![text("<summary>Words were said.</summary>"), ModelStep::Usage { input: 5_000, output: 7 }];
    let mut test = with_hooks(&[("hangs", script("turn_end", body))], &[], vec![flood(), summary]);
    test.ask("Say many words");
    assert!(Command::new("mkfifo").arg(test.cwd().join("pipe")).status().expect("mkfifo").success());
    cancelled(&mut test, "/compact");
    assert_eq!(count(&test, |change| matches!(change, Change::Compacted { .. })), 0);
    let spent = |change: &Change| matches!(change, Change::Spent { usage, .. } if usage.input == 5_000);
    assert_eq!(count(&test, spent), 1);
}

#[test]
fn a_cancel_in_post_compact_keeps_the_compaction() {
    let mut test = hanging("post_compact", vec![flood(), vec![text("<summary>Words were said.</summary>")]]);
    test.ask("Say many words");
    cancelled(&mut test, "/compact");
    assert_eq!(count(&test, |change| matches!(change, Change::Compacted { .. })), 1);
    assert!(sent(&test).contains("Words were said."));
}
