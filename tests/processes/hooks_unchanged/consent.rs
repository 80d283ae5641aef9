//! Hooks of a repository run after the user's consent, and a changed script requires it again.

use epitome_test_harness::agent::{Agent, final_statuses, is_answer, is_question};
use serde_json::{Value, json};

use super::project::Project;

/// Sends a prompt and answers each permission request with this option. Returns all messages up to the response.
fn turn(editor: &mut Agent, session: &str, words: &str, option: &str) -> Vec<Value> {
    let id = editor.prompt(session, words);
    let mut seen = Vec::new();
    loop {
        seen.extend(editor.until("an answer", |message| is_question(message) || is_answer(message, id)));
        let last = seen.last().expect("it came");
        if is_answer(last, id) {
            return seen;
        }
        editor.decide(last, option);
    }
}

fn questions(messages: &[Value]) -> Vec<&Value> {
    messages.iter().filter(|message| is_question(message)).collect()
}

/// Statuses of the completed calls, without the question about trust.
fn statuses(messages: &[Value]) -> Vec<&str> {
    let is_of_trust = |message: &&Value| {
        let call = message["params"]["update"]["toolCallId"].as_str();
        call.is_some_and(|id| id.starts_with("trust"))
    };
    final_statuses(messages.iter().filter(|message| !is_of_trust(message)))
}

#[test]
fn consent_is_requested_once_for_each_version_of_a_projects_hooks() {
    let project = Project::new();
    let group =
        json!([{ "matcher": "Bash", "hooks": [{ "type": "command", "command": ".claude/guard.sh" }] }]);
    project.write(".claude/settings.json", &json!({ "hooks": { "PreToolUse": group } }).to_string());
    project.write(".claude/guard.sh", "#!/bin/sh\necho ran >> guard.log\n");
    let ran = || std::fs::read_to_string(project.path("guard.log")).unwrap_or_default().lines().count();

    let mut editor = project.user.start();
    let session = project.user.new_session(&mut editor);
    let seen = turn(&mut editor, &session, "run echo one", "allow_always");
    let [question] = questions(&seen)[..] else { panic!("one question: {seen:#?}") };
    assert!(question.to_string().contains(".claude/settings.json"), "{question}");
    assert_eq!((ran(), statuses(&seen)), (1, vec!["completed"]));
    let seen = turn(&mut editor, &session, "run echo two", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (0, 2));

    // A different agent process: the decision is stored.
    drop(editor);
    let mut editor = project.user.start();
    let session = project.user.new_session(&mut editor);
    let seen = turn(&mut editor, &session, "run echo three", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (0, 3));

    // The settings are byte-identical, but the script that they name is not.
    drop(editor);
    project.write(".claude/guard.sh", "#!/bin/sh\necho ran >> guard.log\necho changed >> guard.log\n");
    let mut editor = project.user.start();
    let session = project.user.new_session(&mut editor);
    let seen = turn(&mut editor, &session, "run echo four", "reject_once");
    assert_eq!((questions(&seen).len(), ran()), (1, 3), "no word, no run");
    assert_eq!(statuses(&seen), ["completed"], "the work goes on without it");
    drop(editor);
    let mut editor = project.user.start();
    let session = project.user.new_session(&mut editor);
    let seen = turn(&mut editor, &session, "run echo five", "allow_always");
    assert_eq!((questions(&seen).len(), ran()), (1, 5));
}

/// A changed hook in the user's own folder counts as the user's change and requires no consent, even during a session.
#[test]
fn the_users_own_hooks_never_require_consent() {
    let project = Project::new();
    project.hook(
        "guard",
        "#!/bin/sh\ncase $1 in hook) echo before_tool_call ;; run) echo ran >> guard.log ;; esac\n",
    );
    let mut editor = project.user.start();
    let session = project.user.new_session(&mut editor);
    let seen = turn(&mut editor, &session, "run echo one", "reject_once");
    assert_eq!((questions(&seen).len(), statuses(&seen)), (0, vec!["completed"]));
    assert!(project.path("guard.log").exists());
}
