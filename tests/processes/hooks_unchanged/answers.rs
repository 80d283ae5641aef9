//! Results and failures of scripts: none of them stops the work.

use super::project::*;

/// A script for one event that runs these lines.
fn script(event: &str, run: &str) -> String {
    format!("#!/bin/sh\ncase \"$1\" in\nhook) echo {event} ;;\nrun)\n{run}\n;;\nesac\n")
}

#[test]
fn a_blocked_prompt_reaches_no_model() {
    let project = Project::new();
    let secrets = "grep -q '\"message\":\"[^\"]*password' && echo '{\"blocked\": true, \"reason\": \"no secrets here\"}'\nexit 0";
    project.hook("secrets", &script("user_message_send", secrets));
    let heard = project.refused("say my password is x");
    assert_eq!((heard.asked.len(), heard.reason()), (0, "refusal"));
    assert!(heard.notices().iter().any(|notice| notice.contains("no secrets here")), "{:?}", heard.notices());
    let heard = project.follow("say hello");
    assert_eq!(heard.last_seen(), [user("say hello")], "what was blocked is not sent later either");
    assert_eq!((project.stored("withheld"), project.stored("said")), (1, 1));
    assert_eq!(project.trail(), ["user_message_send secrets done: block", "quiet 1"]);
}

#[test]
fn a_changed_input_is_what_runs() {
    let project = Project::new();
    let safer = "cat > /dev/null\necho '{\"blocked\": false, \"input\": {\"command\": \"echo safer\"}}'";
    project.hook("safer", &script("before_tool_call", safer));
    let heard = project.run("run touch made");
    assert_eq!(heard.tool_results(), ["safer\n[exit code 0]"]);
    assert!(!project.path("made").exists());
    assert_eq!(project.stored("call_changed"), 1);
    assert_eq!(project.trail(), ["before_tool_call safer done: changed input"]);
}

#[test]
fn an_input_that_the_tool_rejects_leaves_the_call_unchanged() {
    let project = Project::new();
    project.hook(
        "wrong",
        &script("before_tool_call", "cat > /dev/null\necho '{\"input\": {\"comand\": \"ls\"}}'"),
    );
    let heard = project.run("run echo mine");
    assert_eq!(heard.tool_results(), ["mine\n[exit code 0]"]);
    assert_eq!(project.stored("call_changed"), 0);
    assert_eq!(project.trail(), ["before_tool_call wrong refused: changed input"]);
}

#[test]
fn a_changed_output_is_sent_to_model_and_client_and_stored() {
    let project = Project::new();
    let answer = r#"cat > /dev/null
echo '{"output": {"toolName": "bash", "success": true, "metadata": {"stdout": "masked"}, "timestamp": "2026-01-01T00:00:00Z"}, "output_text": "masked"}'"#;
    project.hook("mask", &script("after_tool_call", answer));
    let heard = project.run("run echo hush-hush");
    assert_eq!(heard.tool_results(), ["masked"]);
    assert_eq!(heard.results(), [("completed", "masked")]);
    let finished: Vec<_> =
        project.export().into_iter().filter(|entry| entry["change"] == "tool_finished").collect();
    assert!(finished.len() == 1 && !finished[0].to_string().contains("hush"), "{finished:?}");
    assert!(finished[0].to_string().contains("masked"));
    assert_eq!(project.trail(), ["after_tool_call mask done: changed output"]);
}

/// However a script fails, the call runs and the turn ends normally.
#[test]
fn a_failing_script_stops_nothing() {
    let cases = [
        ("exit 1", "failed", "exit 1"),
        ("echo '{\"blocked\": true}'; exit 1", "failed", "exit 1"),
        ("echo Hello, I am a hook!", "failed", "not a JSON object: Hello, I am a hook!"),
        ("echo '[1, 2]'", "failed", "JSON that is not an object"),
        ("echo '{\"blocked\": [1]}'", "nothing", "`blocked`"),
        ("kill -9 $$", "failed", "signal"),
    ];
    for (run, verdict, why) in cases {
        let project = Project::new();
        project.hook("broken", &script("before_tool_call", &format!("cat > /dev/null\n{run}")));
        let heard = project.run("run echo one");
        assert_eq!(heard.tool_results(), ["one\n[exit code 0]"], "{run}");
        assert_eq!(heard.reason(), "end_turn", "{run}");
        assert_eq!(project.trail(), [format!("before_tool_call broken {verdict}")], "{run}");
        let record = project.trail_entries()[0].to_string();
        let expected = serde_json::Value::from(why).to_string();
        assert!(record.contains(expected.trim_matches('"')), "{run}: {record}");
        assert!(
            heard.notices().iter().any(|notice| notice.contains("broken")),
            "{run}: the user gets a notice"
        );
    }
}

#[test]
fn a_silent_or_allowing_script_is_only_counted() {
    for run in ["exit 0", "cat > /dev/null", "echo '{}'", "echo '{\"blocked\": false, \"reason\": \"\"}'"] {
        let project = Project::new();
        project.hook("calm", &script("before_tool_call", run));
        let heard = project.run("run echo one");
        assert_eq!(heard.tool_results(), ["one\n[exit code 0]"], "{run}");
        assert!(heard.notices().is_empty(), "{run}: {:?}", heard.notices());
        assert_eq!(project.trail(), ["quiet 1"], "{run}");
    }
}

#[test]
fn a_banner_before_the_result_is_skipped() {
    let project = Project::new();
    let run =
        "cat > /dev/null\necho 'nvm: now using node'\necho '{\"blocked\": true, \"reason\": \"not today\"}'";
    project.hook("chatty", &script("before_tool_call", run));
    assert_eq!(project.run("run echo one").tool_results(), ["not today"]);
    assert_eq!(project.trail(), ["before_tool_call chatty done: block"]);
}

#[test]
fn a_script_that_exceeds_its_time_limit_is_killed() {
    let project = Project::new();
    project
        .user
        .write(".epitome/config.toml", "mode = \"full\"\n[hooks.overrides.sleepy]\ntimeout_ms = 200\n");
    project.hook("sleepy", &script("before_tool_call", "sleep 100000\necho '{\"blocked\": true}'"));
    let heard = project.run("run echo one");
    assert_eq!(heard.tool_results(), ["one\n[exit code 0]"]);
    assert_eq!(project.trail(), ["before_tool_call sleepy failed"]);
}

/// A child process that is still running keeps the pipe open. A hook that waited for it would fail at its time limit.
#[test]
fn a_child_that_keeps_the_pipe_open_causes_no_delay() {
    let project = Project::new();
    let run =
        "cat > /dev/null\nsleep 100000 &\necho '{\"blocked\": true, \"reason\": \"said before the child\"}'";
    project.hook("parent", &script("before_tool_call", run));
    let heard = project.run("run echo one");
    assert_eq!(heard.tool_results(), ["said before the child"]);
    assert_eq!(project.trail(), ["before_tool_call parent done: block"]);
}

/// Files that look like hooks but are not are reported when hooks are listed, and never run.
#[test]
fn invalid_hooks_are_listed_and_never_run() {
    let project = Project::new();
    project.hook("silent", "#!/bin/sh\nexit 0\n");
    project.hook("unknown", "#!/bin/sh\necho before_breakfast\n");
    project.hook("off.disable", &script("before_tool_call", "echo '{\"blocked\": true}'"));
    assert_eq!(project.run("run echo one").tool_results(), ["one\n[exit code 0]"]);
    let listed = project.user.run(&["hooks", "list"]).ok();
    for name in ["silent", "unknown", "off.disable"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    assert!(project.trail().is_empty());
}
