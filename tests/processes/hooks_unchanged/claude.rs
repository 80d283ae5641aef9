//! Hooks in a project's `.claude/settings.json`, allowed by `--trust-hooks`.

use serde_json::{Value, json};

use super::desk::*;

/// A project with one command for one event.
fn project(event: &str, matcher: Option<&str>, command: &str) -> Desk {
    let desk = Desk::new();
    let mut group = json!({ "hooks": [{ "type": "command", "command": command }] });
    if let Some(matcher) = matcher {
        group["matcher"] = matcher.into();
    }
    desk.write(".claude/settings.json", &json!({ "hooks": { event: [group] } }).to_string());
    desk
}

#[track_caller]
fn trusted(desk: &Desk, arguments: &[&str]) -> Heard {
    desk.run_with(&[&["--trust-hooks"], arguments].concat())
}

#[test]
fn exit_2_blocks_a_call_with_stderr_as_the_reason() {
    let desk = project("PreToolUse", Some("Bash"), "\"$CLAUDE_PROJECT_DIR\"/.claude/hooks/guard.sh");
    let guard = "#!/bin/sh\nif grep -q '\"command\":\"rm '; then echo 'No rm here' >&2; exit 2; fi\n";
    desk.program(".claude/hooks/guard.sh", guard);
    desk.write("kept.txt", "x");
    let heard = trusted(&desk, &["run rm kept.txt"]);
    assert_eq!(heard.told_results(), ["No rm here"]);
    assert_eq!(heard.results(), [("denied", "No rm here")]);
    assert!(desk.project.join("kept.txt").exists());
    let heard = trusted(&desk, &["--follow", "run echo fine"]);
    assert_eq!(heard.told_results(), ["No rm here", "fine\n[exit code 0]"]);
    let name = "PreToolUse[Bash]#1@.claude/settings.json";
    assert_eq!(desk.trail(), [format!("before_tool_call {name} done: deny"), "quiet 1".to_owned()]);
}

#[test]
fn an_updated_input_is_what_runs() {
    let desk = project("PreToolUse", Some("Edit|Bash"), "sh .claude/update.sh");
    let answer = json!({ "hookSpecificOutput": {
        "hookEventName": "PreToolUse", "permissionDecision": "allow",
        "permissionDecisionReason": "tamed", "updatedInput": { "command": "echo tame" },
    } });
    desk.write(".claude/update.sh", &format!("cat > /dev/null\ncat <<'END'\n{answer}\nEND\n"));
    let heard = trusted(&desk, &["run echo wild"]);
    assert_eq!(heard.told_results(), ["tame\n[exit code 0]"]);
    assert_eq!(desk.stored("call_changed"), 1);
    let asked = "before_tool_call PreToolUse[Edit|Bash]#1@.claude/settings.json done: allow, changed input";
    assert_eq!(desk.trail(), [asked]);
}

#[test]
fn additional_context_is_sent_to_the_model_with_the_prompt() {
    let answer = json!({ "hookSpecificOutput": {
        "hookEventName": "UserPromptSubmit", "additionalContext": "The branch is main.",
    } });
    let desk = project("UserPromptSubmit", None, &format!("echo '{answer}'"));
    let heard = trusted(&desk, &["say hello"]);
    let told = heard.asked[0].last_user_text();
    assert!(told.starts_with("say hello") && told.contains("The branch is main."), "{told}");
    let said: Vec<Value> = desk.export().into_iter().filter(|entry| entry["change"] == "said").collect();
    assert_eq!(said.len(), 2, "the prompt is stored as it was typed, the context behind it");
    assert_eq!(said[0]["message"]["content"], json!([{ "type": "text", "text": "say hello" }]));
    assert_eq!(said[1]["origin"]["from"], "context");
}

#[test]
fn a_blocked_stop_continues_once_with_the_reason() {
    let desk = project("Stop", None, ".claude/stop.sh");
    let stop = "#!/bin/sh\nif grep -q '\"stop_hook_active\":true'; then exit 0; fi\n\
                echo '{\"decision\": \"block\", \"reason\": \"say the tests ran\"}'\n";
    desk.program(".claude/stop.sh", stop);
    let heard = trusted(&desk, &["say hello"]);
    assert_eq!(heard.said(), "You said hello.You said the tests ran.");
    let asked = "agent_stop Stop#1@.claude/settings.json done: continue with 1 message";
    assert_eq!(desk.trail(), [asked, "quiet 1"]);
}

#[test]
fn a_pre_compact_hook_receives_the_trigger() {
    let desk = project("PreCompact", Some("manual"), "cat > compact.json");
    trusted(&desk, &["fill"]);
    let heard = trusted(&desk, &["--follow", "-r", "compact"]);
    assert!(heard.notices().iter().any(|notice| notice.starts_with("Compacted")), "{:?}", heard.notices());
    let payload = std::fs::read_to_string(desk.project.join("compact.json")).expect("it ran");
    let payload: Value = serde_json::from_str(&payload).expect("one JSON object");
    assert_eq!(payload["hook_event_name"], "PreCompact");
    assert_eq!((&payload["trigger"], &payload["session_id"]), (&"manual".into(), &desk.session().into()));
    assert_eq!(desk.stored("compacted"), 1);
}

#[test]
fn without_consent_no_hook_of_a_project_runs() {
    let desk = project("PreToolUse", None, "touch it-ran; exit 2");
    let heard = desk.run("run echo one");
    assert_eq!(heard.told_results(), ["one\n[exit code 0]"]);
    assert!(!desk.project.join("it-ran").exists());
    let asked: Vec<&Value> = heard.lines.iter().filter(|line| line["type"] == "permission").collect();
    assert!(asked.len() == 1 && asked[0]["by"] == "nobody", "{asked:?}");
    assert!(desk.trail().is_empty());
}

/// A user who ran a prompt without a terminal was advised to try `--mode full`, which does not allow hooks.
#[test]
fn without_a_terminal_a_hint_explains_how_to_trust_a_projects_hooks() {
    let desk = project("PreToolUse", None, "exit 2");
    let (_, told) = desk.ends_with(0, &["run", "say hello"]);
    assert!(told.contains("Run 1 hook of this repository. To let them: `epitome hooks trust`"), "{told}");
    assert!(!told.contains("--mode"), "{told}");
}
