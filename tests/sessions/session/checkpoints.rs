//! Rewinding a turn: files, the conversation, or both, as seen by the model, the log and the user.

use std::fs;
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use epitome::session::SessionAnswer;
use epitome::session::port::StoredSessionPort as _;
use epitome::thread::{Change, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text};
use serde_json::{Value, json};

/// A session with the real tools and all permissions.
fn started(script: Vec<Vec<ModelStep>>) -> TestSession {
    let mut test = Setup::new().built_in_tools().start(in_turn(script));
    test.choose("mode", "full").expect("a mode");
    test
}

fn call(name: &str, input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: name.into(), input }]
}

fn at(test: &TestSession, path: &str) -> PathBuf {
    test.cwd().join(path)
}

/// The machine-readable outcome of a command.
fn outcome(test: &mut TestSession, typed: &str, command: &str) -> Value {
    let ticket = test.prompt(typed);
    match test.client.answer(ticket) {
        Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, meta: Some(meta), .. }) => {
            meta["epitome"][command].clone()
        }
        other => panic!("{typed}: {other:?}"),
    }
}

/// The first turn writes `a.txt`; the second one changes it, and creates another file with a command.
fn story() -> TestSession {
    let mut test = started(vec![
        call("file_write", json!({ "file_path": "a.txt", "text": "one\n" })),
        vec![text("Written.")],
        call("bash", json!({ "command": "echo two >> a.txt; mkdir -p sub; echo new > sub/new.txt" })),
        vec![text("Changed.")],
        vec![text("I see.")],
        vec![text("And now.")],
    ]);
    test.ask("Write a file");
    test.ask("Change it by a command");
    test
}

#[test]
fn the_last_turn_is_rewound_with_its_files_and_restored() {
    let mut test = story();
    let listed = outcome(&mut test, "/checkpoints", "checkpoints");
    let files: Vec<usize> = listed["turns"]
        .as_array()
        .expect("turns")
        .iter()
        .map(|turn| turn["files"].as_array().expect("files").len())
        .collect();
    assert_eq!(files, [3, 1], "{listed}");

    let dry = outcome(&mut test, "/rewind dry", "rewind");
    assert_eq!((&dry["status"], dry["files"].as_array().map(Vec::len)), (&json!("dry"), Some(3)), "{dry}");
    assert!(at(&test, "sub/new.txt").exists());

    let done = outcome(&mut test, "/rewind", "rewind");
    assert_eq!(done["status"], "done", "{done}");
    assert_eq!(fs::read_to_string(at(&test, "a.txt")).expect("it is there"), "one\n");
    assert!(!at(&test, "sub").exists());

    test.ask("What do you know?");
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("Write a file") && !sent.contains("Change it by a command"), "{sent}");
    assert!(sent.contains("reverted changes to files") && sent.contains("sub/new.txt (deleted)"), "{sent}");

    // Later messages stay; the rewound ones are in the view again, and the files are restored.
    let undone = outcome(&mut test, "/rewind undo", "rewind");
    assert_eq!(undone["status"], "done", "{undone}");
    assert_eq!(fs::read_to_string(at(&test, "a.txt")).expect("it is there"), "one\ntwo\n");
    test.ask("And now?");
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("Change it by a command") && sent.contains("What do you know?"), "{sent}");
    let none = outcome(&mut test, "/rewind undo", "rewind");
    assert_eq!(none["status"], "refused", "{none}");
}

/// What `/why` says.
fn why(test: &mut TestSession) -> String {
    test.ask("/why");
    let said = test.log().iter().rev().find_map(|entry| match &entry.change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    });
    said.expect("it says something")
}

#[test]
fn files_and_conversation_can_be_rewound_separately() {
    let mut test = story();
    let files = outcome(&mut test, "/rewind files", "rewind");
    assert_eq!((&files["status"], &files["conversation"]), (&json!("done"), &json!(false)), "{files}");
    assert_eq!(fs::read_to_string(at(&test, "a.txt")).expect("it is there"), "one\n");
    test.ask("What do you know?");
    assert!(test.last_request().body.to_string().contains("Change it by a command"));

    let first =
        test.log().iter().find(|entry| matches!(entry.change, Change::Said { .. })).expect("a prompt").seq;
    let conversation = outcome(&mut test, &format!("/rewind {first} conversation"), "rewind");
    assert_eq!(conversation["files"], json!([]), "{conversation}");
    assert!(at(&test, "a.txt").exists());
    // Regression: the user read that they had gone back to before e1, the first entry of the turn.
    assert!(why(&mut test).contains(&format!("to before {first} (/rewind)")));
    test.ask("And now?");
    let sent = test.last_request().body.to_string();
    assert!(!sent.contains("Write a file") && sent.contains("Files were left as they are now"), "{sent}");
}

#[test]
fn a_rewind_after_a_restart_keeps_the_users_own_edit() {
    let mut test = story();
    fs::write(at(&test, "a.txt"), "mine\n").expect("written");
    test.reload(test.environment());
    let done = outcome(&mut test, "/rewind files", "rewind");
    assert_eq!(done["conflicts"][0]["force"], true, "{done}");
    assert_eq!(fs::read_to_string(at(&test, "a.txt")).expect("it is there"), "mine\n");
    assert!(!at(&test, "sub").exists());
    let explained = why(&mut test);
    assert!(explained.contains("(/rewind)") && explained.contains("1 file left as they were"), "{explained}");
    // Deleting the session deletes its checkpoints.
    let kept = test.home.join("data/checkpoints").join(&test.session.0);
    assert!(kept.exists());
    let (sessions, session) = (test.sessions.clone(), test.session.clone());
    let deleted = test.spawn(async move { sessions.delete(&session).await });
    test.wait_for(deleted).expect("no panic").expect("deleted");
    assert!(!kept.exists());
}

#[test]
fn invalid_rewind_arguments_are_refused_and_change_nothing() {
    let mut test = story();
    for typed in ["/rewind everything", "/rewind e999", "/rewind undo", "/rewind undo e3"] {
        let refused = outcome(&mut test, typed, "rewind");
        assert_eq!(refused["status"], "refused", "{typed}: {refused}");
    }
    assert_eq!(fs::read_to_string(at(&test, "a.txt")).expect("it is there"), "one\ntwo\n");
}

/// A canceled command may have changed files.
#[test]
fn changes_of_a_cancelled_command_are_rewound_too() {
    let mut test = started(vec![
        call("bash", json!({ "command": "echo half > half.txt; sleep 600" })),
        vec![text("Yes.")],
    ]);
    let ticket = test.prompt("Run it");
    while !at(&test, "half.txt").exists() {
        std::thread::yield_now();
    }
    test.send(epitome::session::SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    let done = outcome(&mut test, "/rewind", "rewind");
    assert_eq!(done["status"], "done", "{done}");
    assert!(!at(&test, "half.txt").exists(), "{done}");
}

/// A rewind restores files by path. If a directory became a link, it must not write or delete in the link's target.
#[test]
fn a_rewind_does_not_follow_a_symlink_to_a_directory() {
    let outside = tempfile::tempdir().expect("a scratch directory");
    let changes = "echo two > sub/new.txt; rm sub/old.txt; mkdir deep; echo two > deep/new.txt";
    let mut test = started(vec![
        call("file_write", json!({ "file_path": "sub/new.txt", "text": "one\n" })),
        vec![text("Written.")],
        call("bash", json!({ "command": changes })),
        vec![text("Changed.")],
    ]);
    fs::create_dir_all(at(&test, "sub")).expect("made");
    fs::write(at(&test, "sub/old.txt"), "old\n").expect("written");
    test.ask("Write a file");
    test.ask("Change it");
    for directory in ["sub", "deep"] {
        fs::remove_dir_all(at(&test, directory)).expect("removed");
        // The link's target is identical to the directory as the turn left it.
        let theirs = outside.path().join(directory);
        fs::create_dir(&theirs).expect("made");
        fs::write(theirs.join("new.txt"), "two\n").expect("written");
        std::os::unix::fs::symlink(theirs, at(&test, directory)).expect("linked");
    }
    for typed in ["/rewind files", "/rewind files force"] {
        let result = outcome(&mut test, typed, "rewind");
        for directory in ["sub", "deep"] {
            let theirs = outside.path().join(directory);
            let text = fs::read_to_string(theirs.join("new.txt")).expect("it is there");
            assert_eq!(text, "two\n", "{typed}, {directory}: {result}");
            assert_eq!(
                fs::read_dir(theirs).expect("readable").count(),
                1,
                "nothing is put next to it: {result}"
            );
        }
    }
}

/// The same applies to a file that became a link, also with `force`.
#[test]
fn a_rewind_replaces_a_symlink_instead_of_following_it() {
    let outside = tempfile::tempdir().expect("a scratch directory");
    let theirs = outside.path().join("theirs.txt");
    fs::write(&theirs, "one\ntwo\n").expect("written");
    let mut test = story();
    fs::remove_file(at(&test, "a.txt")).expect("removed");
    std::os::unix::fs::symlink(&theirs, at(&test, "a.txt")).expect("linked");
    for typed in ["/rewind files", "/rewind files force"] {
        let result = outcome(&mut test, typed, "rewind");
        assert_eq!(fs::read_to_string(&theirs).expect("it is there"), "one\ntwo\n", "{typed}: {result}");
    }
}

/// Regression: the session ended with `/rewind` or `/checkpoints` if a turn had written a file whose name is not UTF-8.
#[cfg(unix)]
#[test]
fn a_file_whose_name_is_not_utf8_is_listed_and_rewound() {
    let mut test = started(vec![
        call("bash", json!({ "command": "printf new > \"$(printf 'caf\\351')\"" })),
        vec![text("Written.")],
    ]);
    test.ask("Write it");
    let file = test.cwd().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    assert!(file.exists());
    for (typed, command) in
        [("/checkpoints", "checkpoints"), ("/rewind dry", "rewind"), ("/rewind", "rewind")]
    {
        let done = outcome(&mut test, typed, command);
        assert!(done.to_string().contains("caf\u{fffd}"), "{typed}: {done}");
    }
    assert!(!file.exists());
    assert_eq!(outcome(&mut test, "/rewind undo", "rewind")["status"], "done");
    assert!(file.exists());
}
