//! Loggers, guards and reminders in kodelet's format: `hook` prints one event, `run` reads the payload.

use super::project::*;

/// Appends each payload with a timestamp, like a shell history.
const AUDIT: &str = r#"#!/bin/sh
if [ "$1" = "hook" ]; then
    echo "after_tool_call"
    exit 0
fi

if [ "$1" = "run" ]; then
    entry=$(cat)
    printf '%s %s\n' "$(date -u +%H:%M)" "$entry" >> ~/.kodelet/seen.log
    exit 0
fi

exit 1
"#;

#[test]
fn an_audit_log_has_a_line_for_each_tool_call() {
    let project = Project::new();
    project.hook("tool_journal", AUDIT);
    let heard = project.run("run echo one");
    assert_eq!(heard.tool_results(), ["one\n[exit code 0]"], "the result is untouched");
    let heard = project.follow("run exit 3");
    assert_eq!(heard.results(), [("failed", "(no output)\n[exit code 3]")]);

    let log = project.read_home(".kodelet/seen.log");
    let payloads: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line.split_once(' ').expect("a time").1).expect("a payload"))
        .collect();
    let [one, failed] = payloads.as_slice() else { panic!("one line a call: {log}") };
    assert_eq!((&one["event"], &one["tool_name"]), (&"after_tool_call".into(), &"bash".into()));
    assert_eq!(one["tool_input"]["command"], "echo one");
    assert_eq!(one["tool_output"]["toolName"], "bash");
    assert_eq!(one["tool_output"]["success"], true);
    assert_eq!(failed["tool_output"]["success"], false);
    assert_eq!(one["conv_id"], project.user.session());
    assert_eq!((&one["invoked_by"], &one["invoked_recipe"]), (&"main".into(), &"".into()));
    assert_eq!(project.trail(), ["quiet 1", "quiet 1"]);
}

/// Blocks commands that contain one of its words; prints `blocked: false` for all others.
const GUARD: &str = r#"#!/bin/sh
[ $# -lt 1 ] && exit 1
if [ "$1" = "hook" ]; then echo "before_tool_call"; exit 0; fi
if [ "$1" = "run" ]; then
    payload=$(cat)
    case "$payload" in
        *'"tool_name":"bash"'*) ;;
        *) echo '{"blocked": false}'; exit 0 ;;
    esac
    for word in 'rm -r' 'sudo' '| sh'; do
        if printf '%s' "$payload" | grep -qF "$word"; then
            printf '{"blocked": true, "reason": "House rule: %s is not for agents"}\n' "$word"
            exit 0
        fi
    done
    echo '{"blocked": false}'
    exit 0
fi
exit 1
"#;

#[test]
fn a_guard_blocks_matching_commands_and_nothing_else() {
    let project = Project::new();
    project.hook("guard", GUARD);
    let heard = project.run("run sudo touch stopped");
    let reason = "House rule: sudo is not for agents";
    assert_eq!(heard.results(), [("denied", reason)]);
    assert_eq!(heard.tool_results(), [reason]);
    assert!(!project.path("stopped").exists());
    assert_eq!(heard.said(), "I run it.Done.", "the turn goes on");

    let heard = project.follow("run touch done");
    assert_eq!(heard.results(), [("completed", "(no output)\n[exit code 0]")]);
    assert!(project.path("done").exists());
    project.follow("write sudo.txt");
    assert!(project.path("sudo.txt").exists(), "it looks at the shell alone");
    assert_eq!(project.trail(), ["before_tool_call guard done: block", "quiet 1", "quiet 1"]);
}

/// Requests the removal of a file while it exists.
const FOLLOW_UP: &str = r#"#!/bin/sh
case "$1" in
    hook)
        echo "agent_stop"
        ;;
    run)
        payload=$(cat)
        invoked_by=$(printf '%s\n' "$payload" | sed -n 's/.*"invoked_by":"\([a-z]*\)".*/\1/p')
        if [ "$invoked_by" != "main" ]; then
            exit 0
        fi
        if [ -f "./left.txt" ]; then
            echo '{"follow_up_messages":["run rm ./left.txt"]}'
        fi
        ;;
    *)
        exit 1
        ;;
esac
"#;

#[test]
fn a_follow_up_is_the_next_message_that_the_model_reads() {
    let project = Project::new();
    project.hook("tidy_up", FOLLOW_UP);
    project.write("left.txt", "x");
    let heard = project.run("say hello");
    assert_eq!(heard.reason(), "end_turn");
    assert!(!project.path("left.txt").exists(), "it runs in the session's directory");
    let seen = heard.last_seen();
    assert_eq!(seen[..3], [user("say hello"), agent("You said hello."), user("run rm ./left.txt")]);
    assert!(heard.notices().iter().any(|notice| notice.contains("tidy_up: run rm ./left.txt")));
    assert_eq!(project.trail(), ["agent_stop tidy_up done: continue with 1 message", "quiet 1"]);

    let origins: Vec<_> = project.export().into_iter().filter(|entry| entry["change"] == "said").collect();
    assert_eq!(origins[1]["origin"], serde_json::json!({ "from": "hook", "hook": "tidy_up" }));
}

/// Logs how full the context is, to stderr and to a file for the test.
const TURN_LOGGER: &str = r#"#!/bin/sh
case "$1" in
    hook)
        echo "after_turn"
        ;;
    run)
        payload=$(cat)
        number() { printf '%s\n' "$payload" | sed -n "s/.*\"$1\":\([0-9a-z]*\).*/\1/p"; }
        current=$(number current_context_window)
        max=$(number max_context_window)
        ratio=$((current * 100 / max))
        echo "Turn $(number turn_number): context ${ratio}% (tools: $(number tools_used))" >&2
        echo "$(number turn_number) ${ratio}% $(number tools_used)" >> ~/turns.log
        exit 0
        ;;
    *)
        exit 1
        ;;
esac
"#;

#[test]
fn a_turn_end_hook_runs_after_each_reply() {
    let project = Project::new();
    project.hook("turn_logger", TURN_LOGGER);
    let heard = project.run("run echo one");
    assert_eq!(heard.said(), "I run it.Done.");
    project.follow("fill");
    assert_eq!(project.read_home("turns.log"), "1 5% true\n2 5% false\n1 75% false\n");
    // The log has a record of each run that writes to stderr.
    assert_eq!(project.trail(), ["turn_end turn_logger nothing"; 3]);
    assert_eq!(project.stored("compacted"), 0);
}

/// Counts the turns of recipes, by a field that only they have.
const RECIPE_LOGGER: &str = r#"#!/bin/sh
case "$1" in
hook) echo turn_end ;;
run)
    name=$(sed -n 's/.*"recipe_name":"\([^"]*\)".*/\1/p')
    [ -n "$name" ] && echo "turn of $name" >> ~/recipes.log
    exit 0 ;;
esac
"#;

#[test]
fn a_recipe_logger_writes_a_line_for_each_turn_of_a_recipe() {
    let project = Project::new();
    project.hook("recipe_logger", RECIPE_LOGGER);
    project.write("recipes/tour.md", "---\ndescription: Look around\n---\nrun ls\n");
    project.run("say hello");
    assert_eq!(project.read_home("recipes.log"), "");
    let heard = project.follow("/tour");
    assert_eq!(heard.results().len(), 1);
    assert_eq!(project.read_home("recipes.log"), "turn of tour\nturn of tour\n", "two replies, two turns");
    project.follow("say bye");
    assert_eq!(project.read_home("recipes.log"), "turn of tour\nturn of tour\n");
}

/// Requests a check after files were written: it searches for the tool's name in the messages.
const LINT: &str = r#"#!/bin/sh
case "$1" in
    hook)
        echo "agent_stop"
        ;;
    run)
        if grep -qE '"content":"[^"]*(file_edit|file_write)'; then
            echo '{"result": "continue", "messages": [{"role": "user", "content": "say the linter ran"}]}'
        fi
        ;;
esac
"#;

#[test]
fn a_reminder_that_repeats_itself_stops_with_a_notice() {
    let project = Project::new();
    project.hook("lint", LINT);
    let heard = project.run("say hello");
    assert_eq!(heard.said(), "You said hello.");
    let heard = project.follow("write a.txt");
    assert_eq!(heard.said(), "I write it.Done.You said the linter ran.");
    assert_eq!(heard.reason(), "end_turn");
    let notices: Vec<_> = heard.notices().into_iter().filter(|notice| notice.contains("the same")).collect();
    assert_eq!(notices.len(), 1, "the user is informed once why it ends: {:?}", heard.notices());
    let trail = project.trail();
    let [_, once, again] = trail.as_slice() else { panic!("{trail:?}") };
    assert_eq!(once, "agent_stop lint done: continue with 1 message");
    assert_eq!(again, "agent_stop lint refused: continue with 1 message");
}

/// Always requests another turn, each time in different words.
const NAGGING: &str = r#"#!/bin/sh
case "$1" in
    hook) echo "agent_stop" ;;
    run)
        cat > /dev/null
        echo x >> ~/asked
        echo "{\"result\": \"continue\", \"messages\": [\"say reminder $(wc -l < ~/asked | tr -d ' ')\"]}"
        ;;
esac
"#;

#[test]
fn a_reminder_in_ever_new_words_continues_a_prompt_three_times() {
    let project = Project::new();
    project.hook("nag", NAGGING);
    let heard = project.run("say hello");
    assert_eq!(heard.said(), "You said hello.You said reminder 1.You said reminder 2.You said reminder 3.");
    assert_eq!((heard.asked.len(), heard.reason()), (4, "end_turn"));
    let done = "agent_stop nag done: continue with 1 message";
    let refused = "agent_stop nag refused: continue with 1 message";
    assert_eq!(project.trail(), [done, done, done, refused]);
}

/// Regression: two scripts each repeated one text. Only the last follow-up was remembered, so they alternated until the
/// limit.
#[test]
fn two_reminders_that_repeat_themselves_stop_together() {
    let project = Project::new();
    for name in ["one", "two"] {
        let answer = format!("{{\"follow_up_messages\":[\"say {name}\"]}}");
        project.hook(
            name,
            &format!("#!/bin/sh\ncase $1 in hook) echo agent_stop ;; run) echo '{answer}' ;; esac\n"),
        );
    }
    let heard = project.run("say hello");
    assert_eq!(heard.asked.len(), 2, "{:?}", project.trail());
    let done = ["one", "two"].map(|name| format!("agent_stop {name} done: continue with 1 message"));
    let refused = ["one", "two"].map(|name| format!("agent_stop {name} refused: continue with 1 message"));
    assert_eq!(project.trail(), [done, refused].concat());
}
