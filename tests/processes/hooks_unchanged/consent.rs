//! Hooks of a repository run after the user's consent, and a changed script requires it again.

use serde_json::json;

use super::desk::Desk;
use super::editor::{Editor, questions, statuses};

#[test]
fn consent_is_requested_once_for_each_version_of_a_projects_hooks() {
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

    // A different agent process: the decision is stored.
    drop(editor);
    let mut editor = Editor::start(&desk);
    let session = editor.new_session(&desk);
    let seen = editor.turn(&session, "run echo three", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (0, 3));

    // The settings are byte-identical, but the script that they name is not.
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

/// A hook in the user's own folder that changes during a session is the user's own change.
#[test]
fn the_users_own_hooks_never_require_consent() {
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
