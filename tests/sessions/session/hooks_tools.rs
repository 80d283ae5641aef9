//! Changes of tool calls and outcomes by hooks.

use epitome::session::{SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{Change, OutcomeContent, OutcomeStatus, StopReason, ToolDisplay, ToolOutcome};
use epitome_scripted_model::{ModelStep, SeenPart};
use epitome_test_harness::in_turn;
use epitome_test_harness::session::{Setup, TestSession, call};
use serde_json::{Value, json};

use super::stage::{notices, payloads, recorder, refused, script, sent, with_hooks};

fn outcomes(test: &TestSession) -> Vec<ToolOutcome> {
    let outcomes = test.log().into_iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    outcomes.collect()
}

fn declared(event: &str, then: Value) -> String {
    json!({"events": [event], "then": then}).to_string()
}

/// A session whose model calls the tool once with this input.
fn once(hooks: &[(&str, String)], input: Value) -> TestSession {
    with_hooks(hooks, &[], vec![vec![call(input)]])
}

#[test]
fn a_blocked_call_has_the_reason_as_its_outcome_and_runs_later_hooks() {
    let block = declared("before_tool_call", json!({"blocked": true, "reason": "Not on Sundays."}));
    let audit = recorder("after_tool_call");
    let mut test = once(&[("audit", audit), ("block.json", block)], json!({"bytes": 10}));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let outcome = &outcomes(&test)[0];
    assert_eq!((outcome.status, outcome.model_text().as_str()), (OutcomeStatus::Denied, "Not on Sundays."));
    assert!(sent(&test).contains("Not on Sundays.") && !sent(&test).contains("done done"));
    let after = &payloads(&test)[0];
    assert_eq!((&after["blocked"], &after["tool_output"]["success"]), (&json!(true), &json!(false)));
}

#[test]
fn a_changed_input_runs_and_the_model_sees_its_own() {
    let change = declared("before_tool_call", json!({"input": {"says": "new"}}));
    let mut test = once(&[("change.json", change)], json!({"says": "old"}));
    test.ask("Go");
    let (input, by) = test.client.entry(|change| match change {
        Change::CallChanged { input, by, .. } => Some((input.clone(), by.clone())),
        _ => None,
    });
    assert_eq!((input, by), (json!({"says": "new"}), "change.json".to_owned()));
    let seen = test.last_request().seen();
    assert!(
        seen.iter()
            .any(|seen| matches!(seen, SeenPart::AgentCall { .. }) && format!("{seen:?}").contains("old")),
        "{seen:?}"
    );
    assert_eq!(outcomes(&test)[0].model_text(), "new");
}

#[test]
fn an_input_that_the_tool_rejects_is_refused_and_reported() {
    let change = declared("before_tool_call", json!({"input": {"asks": "the impossible"}}));
    let mut test = once(&[("change.json", change)], json!({"says": "old"}));
    test.ask("Go");
    assert_eq!(outcomes(&test)[0].model_text(), "old");
    assert!(refused(&test)[0].contains("that can't be done"), "{:?}", refused(&test));
    assert!(notices(&mut test).iter().any(|text| text.contains("that can't be done")));
}

#[test]
fn a_hook_may_decide_a_permission_request_or_require_one() {
    let decide = |decision| ("gate.json", declared("before_tool_call", json!({"decision": decision})));
    let mut allowed = once(&[decide("allow")], json!({"asks": "person", "says": "ran"}));
    allowed.ask("Go");
    assert_eq!(outcomes(&allowed)[0].model_text(), "ran");
    assert!(!allowed.client.seen.iter().any(|out| matches!(out, SessionEvent::Ask { .. })));

    let mut denied = once(&[decide("deny")], json!({"says": "ran"}));
    denied.ask("Go");
    assert_eq!(outcomes(&denied)[0].status, OutcomeStatus::Denied);

    let mut asked = once(&[decide("ask")], json!({"says": "ran"}));
    let ticket = asked.prompt("Go");
    let ask = asked.client.until(|out| match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    asked.send(SessionCommand::Decide { ask, decision: UserDecision::Reject });
    assert_eq!(asked.reason(ticket), StopReason::EndTurn);
    assert_eq!(outcomes(&asked)[0].status, OutcomeStatus::Denied);
}

#[test]
fn a_hook_cannot_allow_what_the_mode_forbids() {
    let allow = declared("before_tool_call", json!({"decision": "allow"}));
    let mut test = once(&[("gate.json", allow)], json!({"asks": "person"}));
    test.choose("mode", "read_only").expect("a mode");
    test.ask("Go");
    assert_eq!(outcomes(&test)[0].status, OutcomeStatus::Denied);
}

#[test]
fn concurrent_calls_have_separate_chains() {
    let change = script(
        "before_tool_call",
        r#"id=$(sed -n 's/.*"tool_call_id":"\([^"]*\)".*/\1/p'); echo "{\"input\": {\"says\": \"$id\"}}""#,
    );
    let calls = vec![call(json!({"says": "one"})), call(json!({"says": "two"}))];
    let mut test = with_hooks(&[("change", change)], &[], vec![calls]);
    test.ask("Go");
    for outcome in outcomes(&test) {
        assert_eq!(outcome.model_text(), outcome.call.0);
    }
    assert_eq!(outcomes(&test).len(), 2);
}

/// A redaction by a hook applies to the model, the client and the log, and live output is not shown.
#[test]
fn a_changed_outcome_is_changed_everywhere() {
    let redact = declared("after_tool_call", json!({"output_text": "[redacted]"}));
    let input = json!({"says": "key walnut", "prints": "walnut", "image": true});
    let mut test = once(&[("redact.json", redact)], input);
    test.ask("Go");
    let outcome = &outcomes(&test)[0];
    assert_eq!(outcome.model_text(), "[redacted]");
    assert!(outcome.content.iter().any(|content| matches!(content, OutcomeContent::Image { .. })));
    let result = test.last_request().seen().into_iter().find(|seen| matches!(seen, SeenPart::Result { .. }));
    let result = format!("{:?}", result.expect("a result"));
    assert!(result.contains("[redacted]") && !result.contains("walnut"), "{result}");
    assert!(!test.client.seen.iter().any(|out| matches!(out, SessionEvent::CallProgress { .. })));

    // Without the hook, live output is shown.
    let mut open = once(&[], json!({"prints": "walnut", "do": "wait"}));
    let ticket = open.prompt("Go");
    open.client.until(|out| matches!(out, SessionEvent::CallProgress { .. }).then_some(()));
    open.release_tool();
    assert_eq!(open.reason(ticket), StopReason::EndTurn);
}

#[test]
fn context_of_a_hook_follows_the_outcome() {
    let note = declared("after_tool_call", json!({"context": "Run the linter."}));
    let mut test = once(&[("note.json", note)], json!({"says": "written"}));
    test.ask("Go");
    let text = outcomes(&test)[0].model_text();
    assert!(text.starts_with("written") && text.contains("Run the linter."), "{text}");
}

/// Regression: a hook added what a linter had found, and the editor no longer showed what had changed in the file.
#[test]
fn a_note_leaves_the_shown_change_of_a_file() {
    let note = declared("after_tool_call", json!({"context": "The linter found nothing."}));
    let files = [("home/hooks/note.json", note.as_str()), ("home/config.toml", "mode = \"full\"\n")];
    let input = json!({"file_path": "a.txt", "text": "new\n"});
    let write = ModelStep::Call { name: "file_write".into(), input };
    let mut test = Setup::with_files(&files).built_in_tools().start(in_turn(vec![vec![write]]));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let outcome = &outcomes(&test)[0];
    let [ToolDisplay::Diff { new, .. }, ToolDisplay::Text { text }] = &outcome.shown[..] else {
        panic!("{:?}", outcome.shown)
    };
    assert_eq!(new, "new\n");
    assert!(text.contains("The linter found nothing."), "{text}");
    let read = outcome.model_text();
    assert!(read.starts_with("Created a.txt") && read.contains("The linter found nothing."), "{read}");
}

/// Regression: context that a hook provided before the call was marked as done in the trail, but never reached the
/// model.
#[test]
fn context_from_before_a_call_follows_its_outcome() {
    let settings = json!({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command":
        r#"echo '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "additionalContext": "Mind the gap."}}'"#
    }]}]}});
    let mut test = with_hooks(
        &[],
        &[
            (".claude/settings.json", &settings.to_string()),
            ("home/config.toml", "[hooks]\ntrust = \"run\"\n"),
        ],
        vec![vec![call(json!({"says": "ran"}))]],
    );
    test.ask("Go");
    let text = outcomes(&test)[0].model_text();
    assert!(text.starts_with("ran") && text.contains("Mind the gap."), "{text}");
}

/// Regression: a hook caused a permission request, but the request did not show the hook's reason to the user.
#[test]
fn a_permission_request_caused_by_a_hook_shows_its_reason() {
    let gate =
        declared("before_tool_call", json!({"decision": "ask", "reason": "It touches the deployment."}));
    let mut test = once(&[("gate.json", gate)], json!({"says": "ran"}));
    let ticket = test.prompt("Go");
    let (ask, preview) = test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.preview.clone())),
        _ => None,
    });
    assert!(format!("{preview:?}").contains("It touches the deployment."), "{preview:?}");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::Reject });
    test.reason(ticket);
}

/// Providers reject an empty text block.
#[test]
fn an_emptied_outcome_is_sent_without_an_empty_block() {
    let empty = declared("after_tool_call", json!({"output_text": ""}));
    let mut test =
        with_hooks(&[("empty.json", empty)], &[], vec![vec![call(json!({"image": true})), call(json!({}))]]);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    fn check(value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(check),
            Value::Object(object) => {
                if object.get("type") == Some(&json!("text")) {
                    assert!(!object["text"].as_str().unwrap_or_default().trim().is_empty(), "{value}");
                }
                object.values().for_each(check);
            }
            _ => {}
        }
    }
    check(&test.last_request().body["messages"]);
    assert!(outcomes(&test).iter().all(|outcome| !outcome.content.is_empty()));
}

#[test]
fn a_failing_hook_blocks_the_call_only_if_it_fails_closed() {
    for (mode, status) in [("closed", OutcomeStatus::Denied), ("open", OutcomeStatus::Completed)] {
        let manifest = json!({"protocol": 2, "events": ["before_tool_call"], "fail_mode": mode}).to_string();
        let mut test = once(&[("gate", script(&manifest, "exit 1"))], json!({}));
        test.ask("Go");
        assert_eq!(outcomes(&test)[0].status, status, "{mode}");
        assert!(notices(&mut test).iter().any(|text| text.contains("gate")));
    }
}

#[test]
fn disabled_and_invalid_hooks_do_not_run() {
    let block = declared("before_tool_call", json!({"blocked": true}));
    let off = &[("home/config.toml", "[hooks]\nenabled = false\n")];
    let mut test =
        with_hooks(&[("block.json", block.clone())], off, vec![vec![call(json!({"says": "ran"}))]]);
    test.ask("Go");
    assert_eq!(outcomes(&test)[0].model_text(), "ran");

    let broken = script("before_tool_call", "").replace("exit 0", "exit 3");
    let mut test = once(&[("broken", broken)], json!({"says": "ran"}));
    test.ask("Go");
    assert_eq!(outcomes(&test)[0].model_text(), "ran");
    assert!(notices(&mut test).iter().any(|text| text.contains("broken")), "{:?}", notices(&mut test));
}

#[test]
fn a_recipe_without_hooks_still_runs_the_enforced_ones() {
    let quiet = "---\ndescription: d\nrun_hooks: false\n---\nGo.\n";
    let recorded = recorder("before_tool_call");
    let mut test = with_hooks(
        &[("mine", recorded.clone()), ("enforced/theirs", recorded)],
        &[("home/recipes/quiet.md", quiet)],
        vec![vec![call(json!({}))]],
    );
    test.ask("/quiet");
    let names: Vec<String> = payloads(&test)
        .iter()
        .map(|payload| payload["hook_name"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(names, ["theirs"]);
}

#[test]
fn a_handler_declared_once_runs_once_per_invocation() {
    let log = "---\ndescription: d\nhooks:\n  before_tool_call:\n    handler: log_tool_usage\n    once: true\n    \
               params: {path: used.jsonl}\n---\nGo.\n";
    let twice = || vec![vec![call(json!({}))], vec![call(json!({}))], vec![ModelStep::Text("Done.".into())]];
    let replies = twice().into_iter().chain(twice()).collect();
    let mut test = with_hooks(&[], &[("home/recipes/log.md", log)], replies);
    test.ask("/log");
    test.ask("/log");
    let used = std::fs::read_to_string(test.cwd().join("used.jsonl")).expect("a log");
    assert_eq!(used.lines().count(), 2, "{used}");
}

/// A hook of Claude Code that ends the turn.
const STOP: &str = r#"{"hooks": {"PostToolUse": [{"hooks": [{"type": "command",
        "command": "echo '{\"continue\": false, \"stopReason\": \"Enough.\"}'"}]}]}}"#;

/// Regression: a hook of a compaction that ended the turn was reported as done, and the turn went on.
#[test]
fn continue_false_ends_the_turn_at_a_compaction() {
    let config = "[hooks]\ntrust = \"run\"\n[compaction]\nmodel = \"none\"\n";
    let stop = STOP.replace("PostToolUse", "PostCompact");
    let mut test = with_hooks(
        &[],
        &[(".claude/settings.json", stop.as_str()), ("home/config.toml", config)],
        vec![vec![ModelStep::Flood { count: 2000, text: "many words ".into() }]],
    );
    test.ask("Say many words");
    assert_eq!(test.ask("/compact"), StopReason::EndTurn);
    test.client.entry(|change| match change {
        Change::Noted { text, .. } => text.contains("ended this turn: Enough.").then_some(()),
        _ => None,
    });
}

#[test]
fn continue_false_ends_the_turn_after_its_round() {
    let config = "[hooks]\ntrust = \"run\"\n";
    let mut test = with_hooks(
        &[],
        &[(".claude/settings.json", STOP), ("home/config.toml", config)],
        vec![vec![call(json!({}))]],
    );
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    assert_eq!((test.model.requests().len(), outcomes(&test).len()), (1, 1));
    let note = test.client.entry(|change| match change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(note.contains("Enough."), "{note}");
}
