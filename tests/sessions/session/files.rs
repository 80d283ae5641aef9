//! The model's knowledge of files, across the calls of one reply, a restart, and edits by the user.

use epitome::session::Out;
use epitome::thread::{Change, OutcomeStatus};
use epitome_scripted_model::ModelStep;
use serde_json::json;

use super::desk::{Desk, text};

const EDITS: (&str, &str) = ("home/config.toml", "mode = \"accept_edits\"\n");

fn desk(files: &[(&str, &str)], replies: Vec<Vec<ModelStep>>) -> Desk {
    Desk::with_tools(&["file_read", "file_edit", "apply_patch"], files, replies)
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
fn outcomes(desk: &Desk) -> Vec<(OutcomeStatus, String)> {
    let log = desk.log();
    let outcomes = log.iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some((outcome.status, outcome.model_text())),
        _ => None,
    });
    outcomes.collect()
}

fn on_disk(desk: &Desk) -> String {
    std::fs::read_to_string(desk.cwd().join("a.txt")).expect("it is there")
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
    let mut desk = desk(&[EDITS, ("a.txt", "one\ntwo\nthree\n")], replies);
    desk.ask("Read it.");
    desk.reload(desk.environment());
    desk.ask("Edit it.");
    assert_eq!(on_disk(&desk), "one\n2\nthree\n");
    desk.reload(desk.environment());
    std::fs::write(desk.cwd().join("a.txt"), "one\n2\nTHREE\n").expect("written");
    desk.ask("Edit it again.");
    let outcomes = outcomes(&desk);
    let (status, why) = outcomes.last().expect("three calls");
    assert_eq!((*status, outcomes.len()), (OutcomeStatus::Failed, 3));
    assert!(why.contains("a.txt changed after you read it") && why.contains("- three\n+ THREE"), "{why}");
    assert_eq!(on_disk(&desk), "one\n2\nTHREE\n");
}

/// Calls of one reply ran concurrently: two edits of a file both started from its old text, and one was lost.
#[test]
fn edits_of_one_reply_are_applied_in_sequence() {
    let mut calls = vec![read()];
    calls.extend((0..8).map(|number| edit(&format!("line {number}\n"), &format!("LINE {number}\n"))));
    let before: String = (0..8).map(|number| format!("line {number}\n")).collect();
    let mut desk = desk(&[EDITS, ("a.txt", &before)], vec![calls]);
    desk.ask("Edit it.");
    assert_eq!(on_disk(&desk), before.to_uppercase(), "{:?}", outcomes(&desk));
}

#[test]
fn an_edit_that_cannot_be_applied_fails_without_a_permission_request() {
    let patch = json!({"input": "*** Begin Patch\n*** Update File: a.txt\n-three\n+3\n*** End Patch"});
    let replies = vec![vec![edit("one", "1")], vec![read()], vec![tool("apply_patch", patch)]];
    let mut desk = desk(&[("a.txt", "one\ntwo\n")], replies);
    desk.ask("Edit it.");
    let outcomes = outcomes(&desk);
    assert!(outcomes[0].1.contains("not read in this session"), "{outcomes:?}");
    assert!(outcomes[2].1.contains("does not fit"), "{outcomes:?}");
    assert!(!desk.client.seen.iter().any(|out| matches!(out, Out::Ask { .. })));
}
