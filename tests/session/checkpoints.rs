//! What a turn did is taken back: files, the conversation, or both; and the model, the log and the person are told.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::provider::scripted::ModelStep;
use epitome::session::Answer;
use epitome::session::registry::{Services, Sessions};
use epitome::thread::{Change, StopReason};
use epitome::tools::Toolbox;
use epitome::tools::reaper::Reaper;
use serde_json::{Value, json};

use super::desk::{Desk, text};

/// A desk whose sessions have the real tools and may use them.
fn desk(script: Vec<Vec<ModelStep>>) -> Desk {
    let mut desk = Desk::new(script);
    let toolbox = Toolbox::built_in(Arc::new(Reaper::none()));
    let services = Services { toolbox, ..desk.services.clone() };
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

/// What a command comes to, as programs are told.
fn outcome(desk: &mut Desk, typed: &str, command: &str) -> Value {
    let ticket = desk.prompt(typed);
    match desk.client.answer(ticket) {
        Ok(Answer::TurnEnded { reason: StopReason::EndTurn, meta: Some(meta), .. }) => {
            meta["epitome"][command].clone()
        }
        other => panic!("{typed}: {other:?}"),
    }
}

/// A first turn writes `a.txt`; a second one changes it and makes another by a command.
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
fn the_last_turn_is_taken_back_with_its_files_and_brought_again() {
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
    assert!(sent.contains("took changes to files back") && sent.contains("sub/new.txt (deleted)"), "{sent}");

    // What was said since stays; what was taken back stands again, files too.
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
fn files_and_conversation_are_taken_back_each_alone() {
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
fn what_a_turn_did_can_be_taken_back_after_a_restart_and_the_person_s_own_edit_stays() {
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
    // With the session goes what was kept for it.
    let kept = desk.home.join("data/checkpoints").join(&desk.session.0);
    assert!(kept.exists());
    let (sessions, session) = (desk.sessions.clone(), desk.session.clone());
    let deleted =
        desk.spawn(async move { tokio::task::spawn_blocking(move || sessions.delete(&session)).await });
    desk.wait_for(deleted).expect("no panic").expect("no panic").expect("deleted");
    assert!(!kept.exists());
}

#[test]
fn what_can_t_be_meant_is_refused_and_changes_nothing() {
    let mut desk = story();
    for typed in ["/rewind everything", "/rewind e999", "/rewind undo", "/rewind undo e3"] {
        let refused = outcome(&mut desk, typed, "rewind");
        assert_eq!(refused["status"], "refused", "{typed}: {refused}");
    }
    assert_eq!(fs::read_to_string(at(&desk, "a.txt")).expect("it is there"), "one\ntwo\n");
}

/// A command that the person cancels has changed files all the same.
#[test]
fn what_a_cancelled_command_did_is_taken_back_too() {
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

/// What a turn made is taken back by its path. Whoever puts a link in its way would have the rewind write, or delete,
/// somewhere else.
#[test]
fn a_rewind_goes_through_no_link_that_was_put_in_its_way() {
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
        // What is there looks just as the turn left it.
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

/// The same for a file that became a link, and for one by force.
#[test]
fn a_rewind_writes_over_a_link_and_not_through_it() {
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
