//! Hooks in a project's `.claude/settings.json`, allowed by `--trust-hooks`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::{call, text};
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
    assert_eq!(heard.tool_results(), ["No rm here"]);
    assert_eq!(heard.results(), [("denied", "No rm here")]);
    assert!(project.path("kept.txt").exists());
    let heard = trusted(&project, &["--follow", "run echo fine"]);
    assert_eq!(heard.tool_results(), ["No rm here", "fine\n[exit code 0]"]);
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
    assert_eq!(heard.tool_results(), ["tame\n[exit code 0]"]);
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
    let text = heard.asked[0].last_user_text();
    assert!(text.starts_with("say hello") && text.contains("The branch is main."), "{text}");
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
    assert_eq!(heard.tool_results(), ["dark blue\n[exit code 0]"]);
}

/// A syntax error in that file must not prevent commands from running.
#[test]
fn a_broken_export_leaves_commands_alone() {
    let project = project("SessionStart", None, "echo 'if then' >> \"$CLAUDE_ENV_FILE\"");
    let heard = trusted(&project, &["run echo fine"]);
    assert!(heard.tool_results()[0].ends_with("fine\n[exit code 0]"), "{:?}", heard.tool_results());
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
    let text = heard.asked[1].body.to_string();
    assert!(text.contains("There are 7 files."), "{text}");
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
    assert_eq!(heard.tool_results(), ["one\n[exit code 0]"]);
    assert!(!project.path("it-ran").exists());
    let asked: Vec<&Value> = heard.lines.iter().filter(|line| line["type"] == "permission").collect();
    assert!(asked.len() == 1 && asked[0]["by"] == "nobody", "{asked:?}");
    assert!(project.trail().is_empty());
}

/// Regression: a user who ran a prompt without a terminal was advised to try `--mode full`, which does not allow hooks.
#[test]
fn without_a_terminal_a_hint_explains_how_to_trust_a_projects_hooks() {
    let project = project("PreToolUse", None, "exit 2");
    let text = project.user.run(&["run", "say hello"]).exited(0).err;
    assert!(text.contains("Run 1 hook of this repository. To allow them: `epitome hooks trust`"), "{text}");
    assert!(!text.contains("--mode"), "{text}");
}

/// Hooks of the type `prompt` were refused. A model's answer stops a call or continues the work as exit code 2 does.
#[test]
fn a_model_decides_for_a_hook_with_a_prompt() {
    let decides = |request: &RecordedRequest| {
        let body = request.body.to_string();
        if !body.contains("You decide for a hook") {
            return obey(request);
        }
        match body.contains("rm kept.txt") {
            true => vec![text("```json\n{\"ok\": false, \"reason\": \"Nothing is deleted here.\"}\n```")],
            false => vec![text("{\"ok\": true}")],
        }
    };
    let project = Project::with(decides);
    let hook = json!({ "type": "prompt", "prompt": "Is this harmless? $ARGUMENTS" });
    let hooks = json!({ "PreToolUse": [{ "matcher": "Bash", "hooks": [hook] }] });
    project.write(".claude/settings.json", &json!({ "hooks": hooks }).to_string());
    project.write("kept.txt", "x");
    let heard = trusted(&project, &["run rm kept.txt"]);
    assert_eq!(heard.tool_results(), ["Nothing is deleted here."]);
    assert!(project.path("kept.txt").exists());
    let heard = trusted(&project, &["--follow", "run echo fine"]);
    assert_eq!(heard.tool_results().last().map(String::as_str), Some("fine\n[exit code 0]"));
    let shown = project.user.run(&["hooks", "list"]).ok();
    let (when, what) = ("asks a model at `PreToolUse` of `Bash`", "Is this harmless? $ARGUMENTS");
    assert!(shown.contains(when) && shown.contains(what), "{shown}");
}

/// An answer that is none lets work go on, and is reported.
#[test]
fn a_model_that_does_not_answer_is_a_failure_of_its_hook() {
    let project = Project::new();
    let hook = json!({ "type": "prompt", "prompt": "Is all done?" });
    let hooks = json!({ "hooks": { "Stop": [{ "hooks": [hook] }] } });
    project.write(".claude/settings.json", &hooks.to_string());
    trusted(&project, &["say hello"]);
    let trail = project.trail().join("\n");
    assert!(trail.contains("agent_stop Stop#1@.claude/settings.json failed"), "{trail}");
}

/// Hooks of the type `http` were refused. The payload is posted, with the variables that the hook names and no others.
#[test]
fn a_payload_is_posted_and_the_reply_read_like_output() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/guard", listener.local_addr().expect("an address"));
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            reader.read_line(&mut head).expect("a line");
        }
        for line in head.to_lowercase().lines() {
            length =
                line.strip_prefix("content-length: ").map_or(length, |text| text.parse().expect("a number"));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let reply = json!({ "hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "Not today",
        } });
        let reply = reply.to_string();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{reply}", reply.len())
            .expect("it reads");
        (head, String::from_utf8(body).expect("text"))
    });
    let mut project = Project::new();
    project.user.set("TEAM_NAME", "core");
    project.user.set("OTHER_NAME", "hidden");
    let headers = json!({ "X-Team": "t-$TEAM_NAME-${OTHER_NAME}" });
    let hook = json!({ "type": "http", "url": url, "headers": headers, "allowedEnvVars": ["TEAM_NAME"] });
    let hooks = json!({ "hooks": { "PreToolUse": [{ "hooks": [hook] }] } });
    project.write(".claude/settings.json", &hooks.to_string());
    let heard = trusted(&project, &["run echo x"]);
    assert_eq!(heard.tool_results(), ["Not today"]);
    let (head, body) = served.join().expect("it served");
    assert!(head.contains("t-core-\r\n"), "{head}");
    assert!(
        body.contains("\"hook_event_name\":\"PreToolUse\"") && body.contains("\"tool_name\":\"Bash\""),
        "{body}"
    );
}

/// A hook's remark about a completed item reaches the model with its next call.
#[test]
fn completed_items_of_the_plan_are_events() {
    let plan = |status: &str| {
        let item = json!({ "content": "Fix it", "status": status, "priority": "high" });
        call("todo_write", json!({ "todos": [item] }))
    };
    let mut rounds = 0;
    let project = Project::with(move |request| {
        rounds += 1;
        match rounds {
            1 => vec![plan("in_progress")],
            2 | 3 => vec![plan("completed")],
            // Until the hook has ended.
            _ if !request.body.to_string().contains("no test was added") => {
                vec![call("bash", json!({ "command": format!("echo {rounds}") }))]
            }
            _ => vec![text("Done.")],
        }
    });
    let command = "cat >> seen; echo 'no test was added' >&2; exit 2";
    let hooks =
        json!({ "hooks": { "TaskCompleted": [{ "hooks": [{ "type": "command", "command": command }] }] } });
    project.write(".claude/settings.json", &hooks.to_string());
    let heard = trusted(&project, &["Work"]);
    let seen = std::fs::read_to_string(project.path("seen")).unwrap_or_default();
    assert_eq!(seen.matches("\"hook_event_name\":\"TaskCompleted\"").count(), 1, "{seen}");
    assert!(seen.contains("\"task_subject\":\"Fix it\""), "{seen}");
    assert_eq!(heard.said(), "Done.");
}

#[test]
fn a_prompt_that_fails_is_an_event() {
    let fails =
        |_: &RecordedRequest| vec![ModelStep::Error { status: 400, retry_after: None, message: None }];
    let project = Project::with(fails);
    let hook = json!({ "type": "command", "command": "cat >> \"$HOME/seen\"" });
    let hooks = json!({ "hooks": { "StopFailure": [{ "matcher": "invalid_request", "hooks": [hook] }] } });
    project.user.write(".claude/settings.json", &hooks.to_string());
    project.user.run(&["run", "say hello"]).exited(1);
    let seen = project.read_home("seen");
    assert!(
        seen.contains("\"hook_event_name\":\"StopFailure\"")
            && seen.contains("\"error\":\"invalid_request\""),
        "{seen}"
    );
}
