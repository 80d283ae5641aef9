//! The payloads that hooks receive on stdin.

use std::path::Path;

use epitome::hooks::claude::payload::payload;
use epitome::hooks::claude::tools::{to_claude_input, to_our_input};
use epitome::hooks::hook_context::{CompactTrigger, HookContext};
use epitome::thread::Mode;
use serde_json::{Value, json};

use super::moments::*;

/// The payload without the common fields.
fn special(hook_context: &HookContext) -> Value {
    let mut payload = payload(hook_context, Path::new("/state/s_01.jsonl"));
    let fields = payload.as_object_mut().expect("a payload is an object");
    for common in ["session_id", "transcript_path", "cwd", "permission_mode"] {
        assert!(fields.shift_remove(common).is_some(), "{common} is missing");
    }
    payload
}

#[test]
fn payload_of_pre_tool_use() {
    let hook_context =
        before("bash", json!({"description": "Run the tests", "command": "make test", "timeout": 90}));
    assert_eq!(
        payload(&hook_context, Path::new("/state/s_01.jsonl")),
        json!({
            "session_id": "s_01",
            "transcript_path": "/state/s_01.jsonl",
            "cwd": "/w/app",
            "permission_mode": "default",
            "hook_event_name": "PreToolUse",
            "tool_name": "Bash",
            "tool_input": {"description": "Run the tests", "command": "make test", "timeout": 90_000},
            "tool_use_id": "call_1"
        })
    );
}

#[test]
fn payloads_of_all_other_events() {
    let bash = json!({"command": "ls"});
    let table = [
        (
            after(
                "bash",
                bash.clone(),
                result("a\n[exit code 0]", Some(json!({"stdout": "a", "stderr": "", "exitCode": 0}))),
            ),
            json!({
                "hook_event_name": "PostToolUse",
                "tool_name": "Bash",
                "tool_input": {"command": "ls"},
                "tool_use_id": "call_1",
                "duration_ms": 12,
                "tool_response": {"stdout": "a", "stderr": "", "interrupted": false, "isImage": false}
            }),
        ),
        (
            after("bash", bash, failure("[exit code 1]")),
            json!({
                "hook_event_name": "PostToolUseFailure",
                "tool_name": "Bash",
                "tool_input": {"command": "ls"},
                "tool_use_id": "call_1",
                "duration_ms": 12,
                "error": "[exit code 1]",
                "is_interrupt": false
            }),
        ),
        (prompt("Fix it"), json!({"hook_event_name": "UserPromptSubmit", "prompt": "Fix it"})),
        (
            stop(0),
            json!({"hook_event_name": "Stop", "stop_hook_active": false, "last_assistant_message": "Done."}),
        ),
        (
            stop(1),
            json!({"hook_event_name": "Stop", "stop_hook_active": true, "last_assistant_message": "Done."}),
        ),
        (
            in_subagent(stop(0), "review"),
            json!({
                "hook_event_name": "SubagentStop",
                "agent_id": "s_01",
                "agent_type": "review",
                "agent_transcript_path": "/state/s_01.jsonl",
                "stop_hook_active": false,
                "last_assistant_message": "Done."
            }),
        ),
        (
            pre_compact(CompactTrigger::Manual, Some("keep the names")),
            json!({"hook_event_name": "PreCompact", "trigger": "manual", "custom_instructions": "keep the names"}),
        ),
        (
            pre_compact(CompactTrigger::Auto, None),
            json!({"hook_event_name": "PreCompact", "trigger": "auto", "custom_instructions": null}),
        ),
        (
            post_compact(CompactTrigger::Auto),
            json!({"hook_event_name": "PostCompact", "trigger": "auto", "compact_summary": "They built a parser."}),
        ),
        (
            start("startup"),
            json!({"hook_event_name": "SessionStart", "source": "startup", "model": "some-model"}),
        ),
        (
            start("load"),
            json!({"hook_event_name": "SessionStart", "source": "resume", "model": "some-model"}),
        ),
        (end("closed"), json!({"hook_event_name": "SessionEnd", "reason": "other"})),
    ];
    for (hook_context, expected) in table {
        assert_eq!(special(&hook_context), expected);
    }
}

#[test]
fn permission_modes_have_claude_codes_names() {
    let table = [
        (Mode::Ask, "default"),
        (Mode::AcceptEdits, "acceptEdits"),
        (Mode::Auto, "acceptEdits"),
        (Mode::ReadOnly, "plan"),
        (Mode::Full, "bypassPermissions"),
    ];
    for (mode, name) in table {
        let mut hook_context = stop(0);
        hook_context.base.mode = mode;
        assert_eq!(payload(&hook_context, Path::new("/t"))["permission_mode"], name);
    }
}

/// Each tool's input in both forms; the reverse mapping is the same except for paths, which stay absolute.
#[test]
fn tool_inputs_are_mapped_in_both_directions() {
    let table = [
        (
            "bash",
            json!({"command": "ls", "description": "List", "timeout": 5}),
            json!({"command": "ls", "description": "List", "timeout": 5000}),
        ),
        (
            "file_read",
            json!({"file_path": "/w/app/a.rs", "offset": 3, "line_limit": 10}),
            json!({"file_path": "/w/app/a.rs", "offset": 3, "limit": 10}),
        ),
        (
            "file_write",
            json!({"file_path": "/w/app/a.rs", "text": "fn a() {}"}),
            json!({"file_path": "/w/app/a.rs", "content": "fn a() {}"}),
        ),
        (
            "file_edit",
            json!({"file_path": "/w/app/a.rs", "old_text": "a", "new_text": "b", "replace_all": true}),
            json!({"file_path": "/w/app/a.rs", "old_string": "a", "new_string": "b", "replace_all": true}),
        ),
        (
            "grep_tool",
            json!({"pattern": "fn", "path": "src", "include": "*.rs", "ignore_case": true, "surround_lines": 2}),
            json!({"pattern": "fn", "path": "src", "glob": "*.rs", "-i": true, "-C": 2}),
        ),
        ("glob_tool", json!({"pattern": "**/*.rs"}), json!({"pattern": "**/*.rs"})),
        (
            "todo_write",
            json!({"todos": [{"content": "Test", "status": "pending"}]}),
            json!({"todos": [{"content": "Test", "status": "pending", "activeForm": "Test"}]}),
        ),
        ("mcp__memory__store", json!({"key": "a"}), json!({"key": "a"})),
    ];
    for (tool, here, there) in table {
        let given = to_claude_input(&call(tool, here.clone()), Path::new("/w/app"));
        assert_eq!(Value::Object(given.clone()), there, "{tool}");
        assert_eq!(Value::Object(to_our_input(tool, &given)), here, "{tool}");
    }
}

/// Scripts compare paths with the project directory, and Claude Code's are always absolute.
#[test]
fn relative_paths_become_absolute() {
    let given = to_claude_input(&call("file_read", json!({"file_path": "src/a.rs"})), Path::new("/w/app"));
    assert_eq!(given["file_path"], "/w/app/src/a.rs");
}

#[test]
fn unknown_keys_are_kept() {
    let odd = json!({"file_path": 7, "timeout": "soon", "todos": "all", "extra": null});
    for tool in ["bash", "file_read", "file_edit", "todo_write", "other"] {
        let given = to_claude_input(&call(tool, odd.clone()), Path::new("/w/app"));
        assert_eq!(Value::Object(to_our_input(tool, &given)), odd);
    }
}

#[test]
fn tool_responses_have_claude_codes_forms() {
    let edit = json!({"file_path": "a.rs", "old_text": "a", "new_text": "b"});
    let table = [
        (
            after(
                "file_read",
                json!({"file_path": "a.rs"}),
                result("     4\tfn a() {\n     5\t\tb\n[lines 6-9 remain: offset=6]", None),
            ),
            json!({
                "type": "text",
                "file": {"filePath": "/w/app/a.rs", "content": "fn a() {\n\tb", "numLines": 2, "startLine": 4}
            }),
        ),
        (
            after("file_write", json!({"file_path": "/a", "text": "x"}), result("Created a.", None)),
            json!({"filePath": "/a", "content": "x", "structuredPatch": [], "originalFile": null}),
        ),
        (
            after("file_edit", edit, result("Edited a.rs.", None)),
            json!({
                "filePath": "/w/app/a.rs",
                "oldString": "a",
                "newString": "b",
                "originalFile": null,
                "structuredPatch": [],
                "userModified": false,
                "replaceAll": false
            }),
        ),
        (
            after(
                "glob_tool",
                json!({"pattern": "*"}),
                result("a.rs\nb.rs\n[the 2 newest of 9 files]", None),
            ),
            json!({"filenames": ["a.rs", "b.rs"], "numFiles": 2, "durationMs": 12, "truncated": true}),
        ),
        (
            after(
                "bash",
                json!({"command": "sleep 9"}),
                result("…", Some(json!({"stdout": "", "stderr": "", "timedOut": true}))),
            ),
            json!({"stdout": "", "stderr": "", "interrupted": true, "isImage": false}),
        ),
        (
            after(
                "task",
                json!({"prompt": "Look."}),
                result("Found.", Some(json!({"calls": 3, "tokens": {"input": 40, "output": 2}}))),
            ),
            json!({
                "status": "completed",
                "prompt": "Look.",
                "content": [{"type": "text", "text": "Found."}],
                "totalDurationMs": 12,
                "totalTokens": 42,
                "totalToolUseCount": 3
            }),
        ),
        (after("recall", json!({}), result("found", Some(json!({"hits": 2})))), json!({"hits": 2})),
        (after("recall", json!({}), result("found", None)), json!("found")),
    ];
    for (hook_context, expected) in table {
        assert_eq!(special(&hook_context)["tool_response"], expected);
    }
}
