//! The model's knowledge of files across the calls of one reply, a restart, and edits by the user.

use epitome::session::SessionEvent;
use epitome::thread::{Change, OutcomeStatus};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text};
use serde_json::json;

const EDITS: (&str, &str) = ("home/config.toml", "mode = \"accept_edits\"\n");

fn started(files: &[(&str, &str)], replies: Vec<Vec<ModelStep>>) -> TestSession {
    Setup::with_files(files).tools(&["file_read", "file_edit", "apply_patch"]).start(in_turn(replies))
}

fn tool(name: &str, input: serde_json::Value) -> ModelStep {
    ModelStep::Call { name: name.into(), input }
}

fn read() -> ModelStep {
    tool("file_read", json!({"file_path": "a.txt"}))
}

fn edit(old: &str, new: &str) -> ModelStep {
    tool("file_edit", json!({"file_path": "a.txt", "old_text": old, "new_text": new}))
}

/// Each outcome's status and text, in the order of the log.
fn outcomes(test: &TestSession) -> Vec<(OutcomeStatus, String)> {
    let log = test.log();
    let outcomes = log.iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some((outcome.status, outcome.model_text())),
        _ => None,
    });
    outcomes.collect()
}

fn on_disk(test: &TestSession) -> String {
    std::fs::read_to_string(test.cwd().join("a.txt")).expect("it is there")
}

#[test]
fn reads_survive_a_restart_and_later_changes_are_reported() {
    let replies = vec![
        vec![read()],
        vec![text("Read.")],
        vec![edit("two", "2")],
        vec![text("Edited.")],
        vec![edit("2", "zwei")],
        vec![text("It changed.")],
    ];
    let mut test = started(&[EDITS, ("a.txt", "one\ntwo\nthree\n")], replies);
    test.ask("Read it.");
    test.reload(test.environment());
    test.ask("Edit it.");
    assert_eq!(on_disk(&test), "one\n2\nthree\n");
    test.reload(test.environment());
    std::fs::write(test.cwd().join("a.txt"), "one\n2\nTHREE\n").expect("written");
    test.ask("Edit it again.");
    let outcomes = outcomes(&test);
    let (status, why) = outcomes.last().expect("three calls");
    assert_eq!((*status, outcomes.len()), (OutcomeStatus::Failed, 3));
    assert!(why.contains("a.txt changed after you read it") && why.contains("- three\n+ THREE"), "{why}");
    assert_eq!(on_disk(&test), "one\n2\nTHREE\n");
}

/// Regression: calls of one reply ran concurrently. Two edits of a file both started from its old text, and one was
/// lost.
#[test]
fn edits_of_one_reply_are_applied_in_sequence() {
    let mut calls = vec![read()];
    calls.extend((0..8).map(|number| edit(&format!("line {number}\n"), &format!("LINE {number}\n"))));
    let before: String = (0..8).map(|number| format!("line {number}\n")).collect();
    let mut test = started(&[EDITS, ("a.txt", &before)], vec![calls]);
    test.ask("Edit it.");
    assert_eq!(on_disk(&test), before.to_uppercase(), "{:?}", outcomes(&test));
}

#[test]
fn an_edit_that_cannot_be_applied_fails_without_a_permission_request() {
    let patch = json!({"input": "*** Begin Patch\n*** Update File: a.txt\n-three\n+3\n*** End Patch"});
    let replies = vec![vec![edit("one", "1")], vec![read()], vec![tool("apply_patch", patch)]];
    let mut test = started(&[("a.txt", "one\ntwo\n")], replies);
    test.ask("Edit it.");
    let outcomes = outcomes(&test);
    assert!(outcomes[0].1.contains("not read in this session"), "{outcomes:?}");
    assert!(outcomes[2].1.contains("does not fit"), "{outcomes:?}");
    assert!(!test.client.seen.iter().any(|out| matches!(out, SessionEvent::Ask { .. })));
}
