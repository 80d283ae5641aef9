//! Hooks in a project's `.claude/settings.json`, allowed by `--trust-hooks`.

use serde_json::{Value, json};

use super::project::*;

/// A project with one command for one event.
fn project(event: &str, matcher: Option<&str>, command: &str) -> Project {
    let project = Project::new();
    let mut group = json!({ "hooks": [{ "type": "command", "command": command }] });
    if let Some(matcher) = matcher {
        group["matcher"] = matcher.into();
    }
    project.write(".claude/settings.json", &json!({ "hooks": { event: [group] } }).to_string());
    project
}

#[track_caller]
fn trusted(project: &Project, arguments: &[&str]) -> Heard {
    project.run_with(&[&["--trust-hooks"], arguments].concat())
}

#[test]
fn exit_2_blocks_a_call_with_stderr_as_the_reason() {
    let project = project("PreToolUse", Some("Bash"), "\"$CLAUDE_PROJECT_DIR\"/.claude/hooks/guard.sh");
    let guard = "#!/bin/sh\nif grep -q '\"command\":\"rm '; then echo 'No rm here' >&2; exit 2; fi\n";
    project.write(".claude/hooks/guard.sh", guard);
    project.write("kept.txt", "x");
    let heard = trusted(&project, &["run rm kept.txt"]);
    assert_eq!(heard.told_results(), ["No rm here"]);
    assert_eq!(heard.results(), [("denied", "No rm here")]);
    assert!(project.path("kept.txt").exists());
    let heard = trusted(&project, &["--follow", "run echo fine"]);
    assert_eq!(heard.told_results(), ["No rm here", "fine\n[exit code 0]"]);
    let name = "PreToolUse[Bash]#1@.claude/settings.json";
    assert_eq!(project.trail(), [format!("before_tool_call {name} done: deny"), "quiet 1".to_owned()]);
}

#[test]
fn an_updated_input_is_what_runs() {
    let project = project("PreToolUse", Some("Edit|Bash"), "sh .claude/update.sh");
    let answer = json!({ "hookSpecificOutput": {
        "hookEventName": "PreToolUse", "permissionDecision": "allow",
        "permissionDecisionReason": "tamed", "updatedInput": { "command": "echo tame" },
    } });
    project.write(".claude/update.sh", &format!("cat > /dev/null\ncat <<'END'\n{answer}\nEND\n"));
    let heard = trusted(&project, &["run echo wild"]);
    assert_eq!(heard.told_results(), ["tame\n[exit code 0]"]);
    assert_eq!(project.stored("call_changed"), 1);
    let asked = "before_tool_call PreToolUse[Edit|Bash]#1@.claude/settings.json done: allow, changed input";
    assert_eq!(project.trail(), [asked]);
}

#[test]
fn additional_context_is_sent_to_the_model_with_the_prompt() {
    let answer = json!({ "hookSpecificOutput": {
        "hookEventName": "UserPromptSubmit", "additionalContext": "The branch is main.",
    } });
    let project = project("UserPromptSubmit", None, &format!("echo '{answer}'"));
    let heard = trusted(&project, &["say hello"]);
    let told = heard.asked[0].last_user_text();
    assert!(told.starts_with("say hello") && told.contains("The branch is main."), "{told}");
    let said: Vec<Value> = project.export().into_iter().filter(|entry| entry["change"] == "said").collect();
    assert_eq!(said.len(), 2, "the prompt is stored as it was typed, the context behind it");
    assert_eq!(said[0]["message"]["content"], json!([{ "type": "text", "text": "say hello" }]));
    assert_eq!(said[1]["origin"]["from"], "context");
}

/// Regression: the file in which scripts define environment variables for a project's commands was never read.
#[test]
fn what_hooks_of_the_start_export_reaches_later_commands() {
    let project = project("SessionStart", None, "echo \"export COLOR='dark blue'\" >> \"$CLAUDE_ENV_FILE\"");
    let heard = trusted(&project, &["run echo $COLOR"]);
    assert_eq!(heard.told_results(), ["dark blue\n[exit code 0]"]);
}

/// A syntax error in that file must not prevent commands from running.
#[test]
fn a_broken_export_leaves_commands_alone() {
    let project = project("SessionStart", None, "echo 'if then' >> \"$CLAUDE_ENV_FILE\"");
    let heard = trusted(&project, &["run echo fine"]);
    assert!(heard.told_results()[0].ends_with("fine\n[exit code 0]"), "{:?}", heard.told_results());
}

/// Regression: the output of background hooks was lost.
#[test]
fn a_hook_in_the_background_adds_context_when_it_has_ended() {
    let project = Project::new();
    let output = json!({"systemMessage": "indexed", "hookSpecificOutput": {"additionalContext": "There are 7 files."}});
    let hook =
        json!({"type": "command", "async": true, "command": format!("echo $$ > pid; echo '{output}'")});
    let settings = json!({"hooks": {"PreToolUse": [{"hooks": [hook]}]}});
    project.write(".claude/settings.json", &settings.to_string());
    // The hook's process is reaped after its end was reported.
    let waits = "until test -s pid && ! kill -0 $(cat pid) 2>/dev/null; do :; done";
    let heard = trusted(&project, &["--mode", "full", &format!("run {waits}")]);
    let told = heard.asked[1].body.to_string();
    assert!(told.contains("There are 7 files."), "{told}");
}

#[test]
fn a_blocked_stop_continues_once_with_the_reason() {
    let project = project("Stop", None, ".claude/stop.sh");
    let stop = "#!/bin/sh\nif grep -q '\"stop_hook_active\":true'; then exit 0; fi\n\
                echo '{\"decision\": \"block\", \"reason\": \"say the tests ran\"}'\n";
    project.write(".claude/stop.sh", stop);
    let heard = trusted(&project, &["say hello"]);
    assert_eq!(heard.said(), "You said hello.You said the tests ran.");
    let asked = "agent_stop Stop#1@.claude/settings.json done: continue with 1 message";
    assert_eq!(project.trail(), [asked, "quiet 1"]);
}

#[test]
fn a_pre_compact_hook_receives_the_trigger() {
    let project = project("PreCompact", Some("manual"), "cat > compact.json");
    trusted(&project, &["fill"]);
    let heard = trusted(&project, &["--follow", "-r", "compact"]);
    assert!(heard.notices().iter().any(|notice| notice.starts_with("Compacted")), "{:?}", heard.notices());
    let payload = std::fs::read_to_string(project.path("compact.json")).expect("it ran");
    let payload: Value = serde_json::from_str(&payload).expect("one JSON object");
    assert_eq!(payload["hook_event_name"], "PreCompact");
    assert_eq!(
        (&payload["trigger"], &payload["session_id"]),
        (&"manual".into(), &project.user.session().into())
    );
    assert_eq!(project.stored("compacted"), 1);
}

#[test]
fn without_consent_no_hook_of_a_project_runs() {
    let project = project("PreToolUse", None, "touch it-ran; exit 2");
    let heard = project.run("run echo one");
    assert_eq!(heard.told_results(), ["one\n[exit code 0]"]);
    assert!(!project.path("it-ran").exists());
    let asked: Vec<&Value> = heard.lines.iter().filter(|line| line["type"] == "permission").collect();
    assert!(asked.len() == 1 && asked[0]["by"] == "nobody", "{asked:?}");
    assert!(project.trail().is_empty());
}

/// Regression: a user who ran a prompt without a terminal was advised to try `--mode full`, which does not allow hooks.
#[test]
fn without_a_terminal_a_hint_explains_how_to_trust_a_projects_hooks() {
    let project = project("PreToolUse", None, "exit 2");
    let told = project.user.run(&["run", "say hello"]).exited(0).err;
    assert!(told.contains("Run 1 hook of this repository. To let them: `epitome hooks trust`"), "{told}");
    assert!(!told.contains("--mode"), "{told}");
}
