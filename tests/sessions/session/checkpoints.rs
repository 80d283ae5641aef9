//! Rewinding a turn: files, the conversation, or both; and what model, log and user see of it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::session::SessionAnswer;
use epitome::session::registry::{SessionServices, Sessions};
use epitome::thread::{Change, StopReason};
use epitome::tools::Toolbox;
use epitome::tools::reaper::Reaper;
use epitome_scripted_model::ModelStep;
use serde_json::{Value, json};

use super::desk::{Desk, text};

/// A desk whose sessions have the real tools and all permissions.
fn desk(script: Vec<Vec<ModelStep>>) -> Desk {
    let mut desk = Desk::new(script);
    let toolbox = Toolbox::built_in(Arc::new(Reaper::disabled()));
    let services = SessionServices { toolbox, ..desk.services.clone() };
    desk.sessions = desk.on_runtime(|| Sessions::new(services, tokio::runtime::Handle::current()));
    let ticket = desk.ticket();
    desk.session = desk.sessions.create(ticket, desk.opening(&desk.client, desk.environment()));
    desk.client.answer(ticket).expect("a session");
    desk.choose("mode", "full").expect("a mode");
    desk
}

fn call(name: &str, input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: name.into(), input }]
}

fn at(desk: &Desk, path: &str) -> PathBuf {
    desk.cwd().join(path)
}

/// The machine-readable outcome of a command.
fn outcome(desk: &mut Desk, typed: &str, command: &str) -> Value {
    let ticket = desk.prompt(typed);
    match desk.client.answer(ticket) {
        Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, meta: Some(meta), .. }) => {
            meta["epitome"][command].clone()
        }
        other => panic!("{typed}: {other:?}"),
    }
}

/// A first turn writes `a.txt`; a second one changes it, and creates another file with a command.
fn story() -> Desk {
    let mut desk = desk(vec![
        call("file_write", json!({ "file_path": "a.txt", "text": "one\n" })),
        vec![text("Written.")],
        call("bash", json!({ "command": "echo two >> a.txt; mkdir -p sub; echo new > sub/new.txt" })),
        vec![text("Changed.")],
        vec![text("I see.")],
        vec![text("And now.")],
    ]);
    desk.ask("Write a file");
    desk.ask("Change it by a command");
    desk
}

#[test]
fn the_last_turn_is_rewound_with_its_files_and_restored() {
    let mut desk = story();
    let listed = outcome(&mut desk, "/checkpoints", "checkpoints");
    let files: Vec<usize> = listed["turns"]
        .as_array()
        .expect("turns")
        .iter()
        .map(|turn| turn["files"].as_array().expect("files").len())
        .collect();
    assert_eq!(files, [3, 1], "{listed}");

    let dry = outcome(&mut desk, "/rewind dry", "rewind");
    assert_eq!((&dry["status"], dry["files"].as_array().map(Vec::len)), (&json!("dry"), Some(3)), "{dry}");
    assert!(at(&desk, "sub/new.txt").exists());

    let done = outcome(&mut desk, "/rewind", "rewind");
    assert_eq!(done["status"], "done", "{done}");
    assert_eq!(fs::read_to_string(at(&desk, "a.txt")).expect("it is there"), "one\n");
    assert!(!at(&desk, "sub").exists());

    desk.ask("What do you know?");
    let sent = desk.last_request().body.to_string();
    assert!(sent.contains("Write a file") && !sent.contains("Change it by a command"), "{sent}");
    assert!(sent.contains("reverted changes to files") && sent.contains("sub/new.txt (deleted)"), "{sent}");

    // Later messages stay; the rewound ones are in the view again, and the files restored.
    let undone = outcome(&mut desk, "/rewind undo", "rewind");
    assert_eq!(undone["status"], "done", "{undone}");
    assert_eq!(fs::read_to_string(at(&desk, "a.txt")).expect("it is there"), "one\ntwo\n");
    desk.ask("And now?");
    let sent = desk.last_request().body.to_string();
    assert!(sent.contains("Change it by a command") && sent.contains("What do you know?"), "{sent}");
    let none = outcome(&mut desk, "/rewind undo", "rewind");
    assert_eq!(none["status"], "refused", "{none}");
}

#[test]
fn files_and_conversation_can_be_rewound_separately() {
    let mut desk = story();
    let files = outcome(&mut desk, "/rewind files", "rewind");
    assert_eq!((&files["status"], &files["conversation"]), (&json!("done"), &json!(false)), "{files}");
    assert_eq!(fs::read_to_string(at(&desk, "a.txt")).expect("it is there"), "one\n");
    desk.ask("What do you know?");
    assert!(desk.last_request().body.to_string().contains("Change it by a command"));

    let first =
        desk.log().iter().find(|entry| matches!(entry.change, Change::Said { .. })).expect("a prompt").seq;
    let conversation = outcome(&mut desk, &format!("/rewind {first} conversation"), "rewind");
    assert_eq!(conversation["files"], json!([]), "{conversation}");
    assert!(at(&desk, "a.txt").exists());
    desk.ask("And now?");
    let sent = desk.last_request().body.to_string();
    assert!(!sent.contains("Write a file") && sent.contains("Files were left as they are now"), "{sent}");
}

#[test]
fn a_rewind_after_a_restart_keeps_the_users_own_edit() {
    let mut desk = story();
    fs::write(at(&desk, "a.txt"), "mine\n").expect("written");
    desk.reload(desk.environment());
    let done = outcome(&mut desk, "/rewind files", "rewind");
    assert_eq!(done["conflicts"][0]["force"], true, "{done}");
    assert_eq!(fs::read_to_string(at(&desk, "a.txt")).expect("it is there"), "mine\n");
    assert!(!at(&desk, "sub").exists());
    let why = |desk: &mut Desk| {
        desk.ask("/why");
        desk.log().iter().rev().find_map(|entry| match &entry.change {
            Change::Noted { text, .. } => Some(text.clone()),
            _ => None,
        })
    };
    let told = why(&mut desk).expect("it says something");
    assert!(told.contains("(/rewind)") && told.contains("1 file left as they were"), "{told}");
    // Deleting the session deletes its checkpoints.
    let kept = desk.home.join("data/checkpoints").join(&desk.session.0);
    assert!(kept.exists());
    let (sessions, session) = (desk.sessions.clone(), desk.session.clone());
    let deleted =
        desk.spawn(async move { tokio::task::spawn_blocking(move || sessions.delete(&session)).await });
    desk.wait_for(deleted).expect("no panic").expect("no panic").expect("deleted");
    assert!(!kept.exists());
}

#[test]
fn invalid_rewind_arguments_are_refused_and_change_nothing() {
    let mut desk = story();
    for typed in ["/rewind everything", "/rewind e999", "/rewind undo", "/rewind undo e3"] {
        let refused = outcome(&mut desk, typed, "rewind");
        assert_eq!(refused["status"], "refused", "{typed}: {refused}");
    }
    assert_eq!(fs::read_to_string(at(&desk, "a.txt")).expect("it is there"), "one\ntwo\n");
}

/// A cancelled command has changed files nevertheless.
#[test]
fn changes_of_a_cancelled_command_are_rewound_too() {
    let mut desk =
        desk(vec![call("bash", json!({ "command": "echo half > half.txt; sleep 600" })), vec![text("Yes.")]]);
    let ticket = desk.prompt("Run it");
    while !at(&desk, "half.txt").exists() {
        std::thread::yield_now();
    }
    desk.send(epitome::session::SessionCommand::Cancel);
    assert_eq!(desk.reason(ticket), StopReason::Cancelled);
    let done = outcome(&mut desk, "/rewind", "rewind");
    assert_eq!(done["status"], "done", "{done}");
    assert!(!at(&desk, "half.txt").exists(), "{done}");
}

/// A rewind restores files by their path. With a link in the way, it would write or delete somewhere else.
#[test]
fn a_rewind_does_not_follow_a_symlink_to_a_directory() {
    let outside = tempfile::tempdir().expect("a scratch directory");
    let changes = "echo two > sub/new.txt; rm sub/old.txt; mkdir deep; echo two > deep/new.txt";
    let mut desk = desk(vec![
        call("file_write", json!({ "file_path": "sub/new.txt", "text": "one\n" })),
        vec![text("Written.")],
        call("bash", json!({ "command": changes })),
        vec![text("Changed.")],
    ]);
    fs::create_dir_all(at(&desk, "sub")).expect("made");
    fs::write(at(&desk, "sub/old.txt"), "old\n").expect("written");
    desk.ask("Write a file");
    desk.ask("Change it");
    for directory in ["sub", "deep"] {
        fs::remove_dir_all(at(&desk, directory)).expect("removed");
        // The link's target looks exactly as the turn left the directory.
        let theirs = outside.path().join(directory);
        fs::create_dir(&theirs).expect("made");
        fs::write(theirs.join("new.txt"), "two\n").expect("written");
        std::os::unix::fs::symlink(theirs, at(&desk, directory)).expect("linked");
    }
    for typed in ["/rewind files", "/rewind files force"] {
        let told = outcome(&mut desk, typed, "rewind");
        for directory in ["sub", "deep"] {
            let theirs = outside.path().join(directory);
            let text = fs::read_to_string(theirs.join("new.txt")).expect("it is there");
            assert_eq!(text, "two\n", "{typed}, {directory}: {told}");
            assert_eq!(
                fs::read_dir(theirs).expect("readable").count(),
                1,
                "nothing is put beside it: {told}"
            );
        }
    }
}

/// The same for a file that became a link, also with `force`.
#[test]
fn a_rewind_replaces_a_symlink_instead_of_following_it() {
    let outside = tempfile::tempdir().expect("a scratch directory");
    let theirs = outside.path().join("theirs.txt");
    fs::write(&theirs, "one\ntwo\n").expect("written");
    let mut desk = story();
    fs::remove_file(at(&desk, "a.txt")).expect("removed");
    std::os::unix::fs::symlink(&theirs, at(&desk, "a.txt")).expect("linked");
    for typed in ["/rewind files", "/rewind files force"] {
        let told = outcome(&mut desk, typed, "rewind");
        assert_eq!(fs::read_to_string(&theirs).expect("it is there"), "one\ntwo\n", "{typed}: {told}");
    }
}
