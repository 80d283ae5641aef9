//! What a repository brings runs after the person's word, and a changed script asks again.

use serde_json::json;

use crate::desk::Desk;
use crate::editor::{Editor, questions, statuses};

#[test]
fn the_person_is_asked_once_for_each_version_of_a_projects_hooks() {
    let desk = Desk::new();
    let group =
        json!([{ "matcher": "Bash", "hooks": [{ "type": "command", "command": ".claude/guard.sh" }] }]);
    desk.write(".claude/settings.json", &json!({ "hooks": { "PreToolUse": group } }).to_string());
    desk.program(".claude/guard.sh", "#!/bin/sh\necho ran >> guard.log\n");
    let ran = || std::fs::read_to_string(desk.project.join("guard.log")).unwrap_or_default().lines().count();

    let mut editor = Editor::start(&desk);
    let session = editor.new_session(&desk);
    let seen = editor.turn(&session, "run echo one", "allow_always");
    let [question] = questions(&seen)[..] else { panic!("one question: {seen:#?}") };
    assert!(question.to_string().contains(".claude/settings.json"), "{question}");
    assert_eq!((ran(), statuses(&seen)), (1, vec!["completed"]));
    let seen = editor.turn(&session, "run echo two", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (0, 2));

    // Another agent, on another day: the word is kept.
    drop(editor);
    let mut editor = Editor::start(&desk);
    let session = editor.new_session(&desk);
    let seen = editor.turn(&session, "run echo three", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (0, 3));

    // The settings are the same to the byte; the script that they name is not.
    drop(editor);
    desk.program(".claude/guard.sh", "#!/bin/sh\necho ran >> guard.log\necho changed >> guard.log\n");
    let mut editor = Editor::start(&desk);
    let session = editor.new_session(&desk);
    let seen = editor.turn(&session, "run echo four", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (1, 3), "no word, no run");
    assert_eq!(statuses(&seen), ["completed"], "the work goes on without it");
    drop(editor);
    let mut editor = Editor::start(&desk);
    let session = editor.new_session(&desk);
    let seen = editor.turn(&session, "run echo five", "allow_always");
    assert_eq!((questions(&seen).len(), ran()), (1, 5));
}

/// A hook in the person's own folder that changes while a session is open is the person's own change.
#[test]
fn hooks_of_the_person_are_never_asked_about() {
    let desk = Desk::new();
    desk.hook(
        "guard",
        "#!/bin/sh\ncase $1 in hook) echo before_tool_call ;; run) echo ran >> guard.log ;; esac\n",
    );
    let mut editor = Editor::start(&desk);
    let session = editor.new_session(&desk);
    let seen = editor.turn(&session, "run echo one", "reject_once");
    assert_eq!((questions(&seen).len(), statuses(&seen)), (0, vec!["completed"]));
    assert!(desk.project.join("guard.log").exists());
}
