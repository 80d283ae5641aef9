//! The meaning of the hooks' exit codes and outputs.

use std::time::Duration;

use epitome::hooks::claude::output::normalise;
use epitome::hooks::claude::payload::event_name;
use epitome::hooks::hook_context::{CompactTrigger, EventData, HookContext};
use epitome::hooks::output::{HookOutput, PermissionDecision, ProcessExit, Utterance};
use epitome::thread::Role;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::moments::*;

fn heard(hook_context: &HookContext, exit: ProcessExit, stdout: &str, stderr: &str) -> Option<HookOutput> {
    let registered = event_name(hook_context).expect("a moment that Claude Code has");
    normalise(registered, hook_context, exit, stdout.as_bytes(), stderr)
}

fn well(hook_context: &HookContext, stdout: &str) -> HookOutput {
    heard(hook_context, ProcessExit::Code(0), stdout, "").expect("exit 0 is a result")
}

fn nothing() -> HookOutput {
    HookOutput::default()
}

fn map(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else { panic!("not an object: {value}") };
    map
}

fn on_with(text: &str) -> Vec<Utterance> {
    vec![Utterance { role: Role::User, text: text.to_owned() }]
}

fn deny(reason: &str) -> HookOutput {
    HookOutput {
        decision: Some(PermissionDecision::Deny),
        decision_reason: Some(reason.to_owned()),
        ..nothing()
    }
}

fn context(text: &str) -> HookOutput {
    HookOutput { context: vec![text.to_owned()], ..nothing() }
}

fn bash() -> HookContext {
    before("bash", json!({"command": "rm -rf build", "timeout": 5}))
}

fn bash_done() -> HookContext {
    after("bash", json!({"command": "make"}), result("ok", None))
}

#[test]
fn exit_2_blocks_blockable_events_with_stderr_as_the_reason() {
    let table = [
        (bash(), deny("not here")),
        (prompt("hello"), HookOutput { block: Some(Some("not here".to_owned())), ..nothing() }),
        (
            pre_compact(CompactTrigger::Auto, None),
            HookOutput { block: Some(Some("not here".to_owned())), ..nothing() },
        ),
        (stop(0), HookOutput { follow_ups: on_with("not here"), ..nothing() }),
        (in_subagent(stop(0), "review"), HookOutput { follow_ups: on_with("not here"), ..nothing() }),
        (bash_done(), context("not here")),
        (after("bash", json!({}), failure("exit 1")), context("not here")),
        (start("startup"), HookOutput { notice: Some("not here".to_owned()), ..nothing() }),
        (end("closed"), HookOutput { notice: Some("not here".to_owned()), ..nothing() }),
        (post_compact(CompactTrigger::Auto), HookOutput { notice: Some("not here".to_owned()), ..nothing() }),
    ];
    for (hook_context, expected) in table {
        // Stdout is ignored, even an object that allows the call.
        for stdout in ["", "some words", r#"{"decision": "approve"}"#] {
            assert_eq!(
                heard(&hook_context, ProcessExit::Code(2), stdout, "not here\n"),
                Some(expected.clone())
            );
        }
    }
}

#[test]
fn other_exit_statuses_are_failures_whatever_was_printed() {
    for exit in [
        ProcessExit::Code(1),
        ProcessExit::Code(127),
        ProcessExit::Signal(9),
        ProcessExit::TimedOut(Duration::from_secs(60)),
    ] {
        assert_eq!(heard(&bash(), exit, r#"{"decision": "block"}"#, "why"), None);
    }
}

#[test]
fn plain_text_is_context_for_events_that_accept_it() {
    let text = "The branch is main.\n";
    for hook_context in [prompt("hello"), start("startup")] {
        assert_eq!(well(&hook_context, text), context("The branch is main."));
    }
    for hook_context in [bash(), bash_done(), stop(0), end("closed"), post_compact(CompactTrigger::Auto)] {
        assert_eq!(well(&hook_context, text), nothing());
    }
}

/// Regression: a user's hook passed on a result of tests with colors, in strings of JSON that were not escaped. The whole
/// JSON became context, and editors got the escape sequences.
#[test]
fn colors_of_a_program_are_removed() {
    let hook_context = start("startup");
    let red = "\u{1b}[31m1 failed\u{1b}[0m";
    let object = format!(
        r#"{{"hookSpecificOutput": {{"hookEventName": "SessionStart", "additionalContext": "{red}"}}}}"#
    );
    for printed in [red, &object] {
        assert_eq!(well(&hook_context, printed), context("1 failed"));
    }
}

#[test]
fn plain_text_before_a_compaction_extends_its_instructions() {
    let instructions =
        |before| well(&pre_compact(CompactTrigger::Manual, before), "Keep ids.").custom_instructions;
    assert_eq!(instructions(None).as_deref(), Some("Keep ids."));
    assert_eq!(instructions(Some("Be brief.")).as_deref(), Some("Be brief.\n\nKeep ids."));
}

#[test]
fn a_permission_request_is_answered() {
    let EventData::BeforeToolCall(call) = bash().what else { panic!("not a call") };
    let asked = hook_context(EventData::PermissionRequest(call));
    let printed = |decision: Value| {
        json!({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}})
            .to_string()
    };
    let decided = |decision, reason: Option<&str>| HookOutput {
        decision: Some(decision),
        decision_reason: reason.map(str::to_owned),
        ..nothing()
    };
    assert_eq!(
        well(&asked, &printed(json!({"behavior": "allow"}))),
        decided(PermissionDecision::Allow, None)
    );
    let deny = json!({"behavior": "deny", "message": "No."});
    assert_eq!(well(&asked, &printed(deny)), decided(PermissionDecision::Deny, Some("No.")));
    let refused = heard(&asked, ProcessExit::Code(2), "", "Never.");
    assert_eq!(refused, Some(decided(PermissionDecision::Deny, Some("Never."))));
}

#[test]
fn decisions_about_a_tool_call() {
    let special = |fields: Value| {
        let mut special = json!({"hookEventName": "PreToolUse"});
        special.as_object_mut().expect("an object").extend(map(fields));
        json!({"hookSpecificOutput": special})
    };
    let decided = |decision, reason: Option<&str>| HookOutput {
        decision: Some(decision),
        decision_reason: reason.map(str::to_owned),
        ..nothing()
    };
    let table = [
        (
            special(json!({"permissionDecision": "deny", "permissionDecisionReason": "Not in CI"})),
            deny("Not in CI"),
        ),
        (special(json!({"permissionDecision": "allow"})), decided(PermissionDecision::Allow, None)),
        (
            special(json!({"permissionDecision": "ask", "permissionDecisionReason": "Sure?"})),
            decided(PermissionDecision::Ask, Some("Sure?")),
        ),
        // The older spelling.
        (json!({"decision": "block", "reason": "No"}), deny("No")),
        (json!({"decision": "approve", "reason": "Fine"}), decided(PermissionDecision::Allow, Some("Fine"))),
        (
            special(
                json!({"permissionDecision": "allow", "updatedInput": {"command": "rm -ri build", "timeout": 9000}}),
            ),
            HookOutput {
                input: Some(map(json!({"command": "rm -ri build", "timeout": 9}))),
                ..decided(PermissionDecision::Allow, None)
            },
        ),
        // The input is unchanged.
        (special(json!({"updatedInput": {"command": "rm -rf build", "timeout": 5000}})), nothing()),
        (special(json!({"additionalContext": "It is slow."})), context("It is slow.")),
        (json!({"continue": true, "suppressOutput": true}), nothing()),
    ];
    for (printed, expected) in table {
        assert_eq!(well(&bash(), &printed.to_string()), expected, "{printed}");
    }
}

#[test]
fn outputs_for_other_events() {
    let table = [
        (bash_done(), json!({"decision": "block", "reason": "Lint failed"}), context("Lint failed")),
        (
            bash_done(),
            json!({"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "3 warnings"}}),
            context("3 warnings"),
        ),
        (
            bash_done(),
            json!({"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": {"stdout": "short", "stderr": ""}}}),
            HookOutput { output_text: Some("short".to_owned()), ..nothing() },
        ),
        (
            bash_done(),
            json!({"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedMCPToolOutput": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}),
            HookOutput { output_text: Some("a\nb".to_owned()), ..nothing() },
        ),
        (
            prompt("x"),
            json!({"decision": "block", "reason": "A key is in it"}),
            HookOutput { block: Some(Some("A key is in it".to_owned())), ..nothing() },
        ),
        (
            prompt("x"),
            json!({"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "It is Monday."}}),
            context("It is Monday."),
        ),
        (
            start("startup"),
            json!({"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": "Read NOTES."}}),
            context("Read NOTES."),
        ),
        (
            stop(0),
            json!({"decision": "block", "reason": "Run the tests"}),
            HookOutput { follow_ups: on_with("Run the tests"), ..nothing() },
        ),
        (
            stop(0),
            json!({"hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": "One is left."}}),
            HookOutput { follow_ups: on_with("One is left."), ..nothing() },
        ),
        (
            pre_compact(CompactTrigger::Auto, None),
            json!({"decision": "block", "reason": "Not yet"}),
            HookOutput { block: Some(Some("Not yet".to_owned())), ..nothing() },
        ),
        (
            bash_done(),
            json!({"systemMessage": "Formatted 2 files"}),
            HookOutput { notice: Some("Formatted 2 files".to_owned()), ..nothing() },
        ),
    ];
    for (hook_context, printed, expected) in table {
        assert_eq!(well(&hook_context, &printed.to_string()), expected, "{printed}");
    }
}

#[test]
fn continue_false_ends_the_turn_and_overrides_follow_ups() {
    let printed = r#"{"continue": false, "stopReason": "Budget", "decision": "block", "reason": "More"}"#;
    for hook_context in [bash_done(), prompt("x"), stop(0)] {
        let output = well(&hook_context, printed);
        assert_eq!(output.halt.as_deref(), Some("Budget"));
        assert_eq!(output.follow_ups, []);
    }
}

#[test]
fn an_invalid_field_causes_a_warning_and_the_others_apply() {
    let table = [
        (bash(), json!({"decision": 1, "systemMessage": "m"}), "`decision` must be text"),
        (bash(), json!({"decision": "maybe", "systemMessage": "m"}), "\"maybe\""),
        (bash(), json!({"async": "soon", "systemMessage": "m"}), "`async` must be true or false"),
        (
            bash(),
            json!({"hookSpecificOutput": {"permissionDecision": "defer"}, "systemMessage": "m"}),
            "`defer`",
        ),
        (
            bash(),
            json!({"hookSpecificOutput": {"hookEventName": "PostToolUse", "permissionDecision": "deny"}, "systemMessage": "m"}),
            "`PostToolUse`",
        ),
        (
            pre_compact(CompactTrigger::Auto, None),
            json!({"hookSpecificOutput": {"additionalContext": "c"}, "systemMessage": "m"}),
            "`additionalContext`",
        ),
    ];
    for (hook_context, printed, warning) in table {
        let output = well(&hook_context, &printed.to_string());
        assert_eq!(output.notice.as_deref(), Some("m"));
        assert!(output.warnings.len() == 1 && output.warnings[0].contains(warning), "{:?}", output.warnings);
        assert_eq!(HookOutput { warnings: Vec::new(), notice: None, ..output }, nothing());
    }
}

#[test]
fn malformed_json_is_text_with_a_warning() {
    let output = well(&prompt("x"), "{not json");
    assert_eq!(output.context, ["{not json"]);
    assert_eq!(output.warnings.len(), 1);
}

proptest! {
    #[test]
    fn any_output_is_accepted(stdout in any::<Vec<u8>>(), stderr in any::<String>(), code in 0..4) {
        for hook_context in [bash(), bash_done(), prompt("x"), stop(1), start("load"), end("closed")] {
            let registered = event_name(&hook_context).expect("a moment that Claude Code has");
            let read = normalise(registered, &hook_context, ProcessExit::Code(code), &stdout, &stderr);
            prop_assert_eq!(read.is_some(), code == 0 || code == 2);
        }
    }
}
