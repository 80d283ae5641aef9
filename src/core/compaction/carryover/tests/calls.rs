//! Examples of calls of other agents: their commands, scripts and results.

use super::*;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, ModelName, Origin, OutcomeContent, ToolCall, ToolOutcome,
};

const FAILING: &str = "Commands that failed when last run, newest first";
const OTHERS: &str = "Other commands, most frequent first";
const FILES: &str = "Files, newest first";

/// Adds a call whose result has several texts.
fn calls_with_texts(conversation: &mut TestConversation, tool: &str, input: Value, texts: &[&str]) -> Seq {
    let id = CallId(format!("c{}", conversation.0.next_seq()));
    let call = ToolCall { id: id.clone(), name: tool.into(), input, card: CallDisplay::default() };
    let message = conversation.message(vec![Content::Call(call)]);
    conversation.add(Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None });
    let mut outcome = ToolOutcome::text(id, DONE, "");
    outcome.content = texts.iter().map(|text| OutcomeContent::Text { text: (*text).into() }).collect();
    conversation.add(Change::ToolFinished { outcome })
}

fn script(conversation: &mut TestConversation, script: &str, texts: &[&str]) -> Seq {
    calls_with_texts(conversation, "exec", json!({ "input": script }), texts)
}

const COMPLETED: &str = "Script completed\nWall time 0.1 seconds\nOutput:\n";

/// From version 0.144 on, the model of Codex writes scripts that call its tools, and the first text of a result is a
/// heading. Only that text was read, so a compaction listed no file, command or commit of such a session.
#[test]
fn the_commands_and_patches_in_scripts_are_listed() {
    let mut conversation = TestConversation::new();
    let patch = "const patch = \"*** Begin Patch\\n*** Update File: /w/src/a.rs\\n+fn added_there() {}\\n*** End Patch\";\n\
                 text(await tools.apply_patch(patch));";
    let patched = script(&mut conversation, patch, &[COMPLETED, "{}"]);
    let read = r#"const r = await tools.exec_command({cmd:"cd src && sed -n '1,9p' b.rs","workdir":"/w"}); text(r.output);"#;
    script(&mut conversation, read, &[COMPLETED, "see docs/found.md"]);
    let commit = r#"const r = await tools.exec_command({cmd:"git commit -m x"}); text(r.output);"#;
    script(&mut conversation, commit, &[COMPLETED, "[main 1a2b3c4] Add it\n"]);
    let test = r#"const r = await tools.exec_command({cmd:"cargo test"}); text(r.output);"#;
    let tested = script(&mut conversation, test, &[COMPLETED, "test result: ok"]);
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, FILES), [&format!("- changed: src/a.rs ({patched})"), "- read or used: src/b.rs"]);
    assert_eq!(part(&text, "Files named in results"), ["docs/found.md"]);
    assert_eq!(part(&text, "Names defined in edits"), ["- a.rs: added_there"]);
    assert_eq!(part(&text, "Version control, newest first"), ["- branch: main", "- 1a2b3c4 on main: Add it"]);
    assert_eq!(
        part(&text, OTHERS),
        [format!("- `cargo test` (1×, last {tested}): last line: test result: ok")]
    );
}

/// Regression: a script that prints the result of `exec_command` whole had its JSON as the last line of each command, and nine commands
/// that had ended well, or failed, since were listed with their first output.
#[test]
fn a_result_that_a_script_prints_as_an_object_has_its_status() {
    let mut conversation = TestConversation::new();
    let run = |line: &str| {
        format!("const r = await tools.exec_command({{cmd:{line:?}}}); text(JSON.stringify(r));")
    };
    let chunk = |state: &str, output: &str| {
        format!(
            "{{\"chunk_id\":\"a1\",\"wall_time_seconds\":30.5,{state},\"original_token_count\":9,\"output\":{}}}",
            json!(output)
        )
    };
    script(&mut conversation, &run("make a"), &[COMPLETED, &chunk("\"exit_code\":0", "made")]);
    script(
        &mut conversation,
        &run("make b"),
        &[COMPLETED, &chunk("\"exit_code\":2", "\u{1b}[31mbroken\u{1b}[0m")],
    );
    // The middle of a long output is left out, so that the object can't be parsed.
    let cut = format!(
        "Warning: truncated output (original token count: 9000)\nTotal output lines: 1\n\n{}",
        &chunk("\"session_id\":7", "one")[..70]
    );
    script(&mut conversation, &run("make c"), &[COMPLETED, &cut]);
    let read = "const r = await tools.write_stdin({session_id:7}); text(JSON.stringify(r));";
    script(&mut conversation, read, &[COMPLETED, &chunk("\"exit_code\":0", "two")]);
    script(&mut conversation, &run("make d"), &[COMPLETED, &chunk("\"session_id\":8", "begun")]);
    let text = carried(&conversation, 5_000);
    let failed = part(&text, FAILING).concat();
    assert!(failed.starts_with("- `make b` ") && failed.ends_with(": broken"), "{failed}");
    let others = part(&text, OTHERS).concat();
    for wanted in ["`make a` (1×", "`make c` (1×", "`make d` (1×"] {
        assert!(others.contains(wanted), "{wanted}: {others}");
    }
    assert_eq!(
        (others.matches(": succeeded").count(), others.matches(": still running").count()),
        (2, 1),
        "{others}"
    );
    assert!(!text.contains("chunk_id"), "{text}");
}

/// Regression: Codex had a shell command for patches in 2025. Joined with blanks, each line of a patch was a command, and no file of such a
/// session was called changed.
#[test]
fn a_patch_in_a_shell_command_is_an_edit() {
    let mut conversation = TestConversation::new();
    let patch =
        "*** Begin Patch\n*** Update File: src/a.rs\n@@\n-fn old() {}\n+fn renamed() {}\n*** End Patch";
    let input = json!({ "command": ["apply_patch", patch], "workdir": "/w" });
    let last = conversation.calls_with("shell", input, DONE, "Exit code: 0\nOutput:\nSuccess.");
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, FILES), [format!("- changed: src/a.rs ({last})")]);
    assert_eq!(part(&text, "Names defined in edits"), ["- a.rs: renamed"]);
    assert!(part(&text, OTHERS).is_empty(), "{text}");
}

/// Regression: Gemini CLI names the command above its output and its state below it. So the output quoted of a failed command was
/// that it has no background processes, and no commit was found.
#[test]
fn the_results_of_gemini_are_read() {
    let result = |output: &str, code: i32| {
        format!(
            "Command: x\nDirectory: (root)\nOutput: {output}\nError: (none)\nExit Code: {code}\nSignal: 0\nBackground PIDs: (none)\nProcess Group PGID: 92"
        )
    };
    let mut conversation = TestConversation::new();
    for (line, output, code) in [
        ("git commit -m x", "[main 1a2b3c4] Add it", 0),
        ("make", "no rule", 2),
        ("netstat | findstr 80", "(empty)", 1),
    ] {
        conversation.calls_with("run_shell_command", json!({ "command": line }), DONE, result(output, code));
    }
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, "Version control, newest first"), ["- branch: main", "- 1a2b3c4 on main: Add it"]);
    let failed = part(&text, FAILING).concat();
    assert!(failed.starts_with("- `make` ") && failed.ends_with(": no rule"), "{failed}");
    let others = part(&text, OTHERS).concat();
    assert!(others.ends_with("exit status 1, no output"), "{others}");
}

/// Regression: each of the calls that had read the output of a command was marked as failed, because the command had; and a command
/// that the agent had interrupted was one that fails. Claude Code's reminder below a result was quoted as its last line.
#[test]
fn a_call_that_reads_output_has_not_failed_with_its_command() {
    let mut conversation = TestConversation::new();
    let running = "Chunk ID: a1\nWall time: 1.0 seconds\nProcess running with session ID 7\nOutput:\nbegun";
    let interrupted = "Chunk ID: a2\nWall time: 1.0 seconds\nProcess exited with code 130\nOutput:\n";
    for (name, input, result) in [
        ("exec_command", json!({ "cmd": "watch it" }), running),
        ("write_stdin", json!({ "session_id": 7, "chars": "" }), running),
        ("write_stdin", json!({ "session_id": 7, "chars": "\u{3}" }), interrupted),
        (
            "exec_command",
            json!({ "cmd": "make | tee log" }),
            "made\n\n<system-reminder>\nBe careful.\n</system-reminder>",
        ),
    ] {
        conversation.calls_with(name, input, DONE, result);
    }
    let text = carried(&conversation, 5_000);
    assert!(!text.contains("failed") && !text.contains("Be careful"), "{text}");
    assert!(part(&text, OTHERS).concat().contains("last line: made"), "{text}");
}

#[test]
fn the_result_of_a_script_is_quoted_once() {
    let mut conversation = TestConversation::new();
    let both =
        r#"await Promise.all([tools.exec_command({cmd:"make a"}), tools.exec_command({cmd:"make b"})])"#;
    let seq = script(&mut conversation, both, &[COMPLETED, "made"]);
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, "Newest results that left the view"), [format!("- {seq} exec_command: made")]);
    assert_eq!(part(&text, OTHERS).len(), 2, "{text}");
}

/// The end of a command that Codex or Claude Code runs in the background is the result of another call. The command was
/// listed as succeeded when it had just begun.
#[test]
fn a_running_command_has_the_status_of_its_last_result() {
    let running = |conversation: &mut TestConversation, tool: &str, input: Value, text: &str| {
        calls_with_texts(conversation, tool, input, &[text])
    };
    let codex = "Chunk ID: 1\nWall time: 10 seconds\nProcess running with session ID 7\nOutput:\n";
    let ended = |code: u8| {
        format!("Chunk ID: 2\nWall time: 1 seconds\nProcess exited with code {code}\nOutput:\nend")
    };
    let claude = "Command running in background with ID: b1. Output is being written to: /tmp/b1.output";
    let task = "<retrieval_status>success</retrieval_status>\n\n<task_id>b1</task_id>\n\n<status>completed</status>\n\n\
                <exit_code>0</exit_code>\n\n<output>\nfine\n</output>";
    for (call, begun, then, read, wanted) in [
        (json!({"cmd": "make all"}), codex, None, "", Some("still running")),
        (
            json!({"cmd": "make all"}),
            codex,
            Some(json!({"session_id": 7, "chars": ""})),
            &*ended(0),
            Some("succeeded"),
        ),
        (json!({"cmd": "make all"}), codex, Some(json!({"session_id": 7, "chars": ""})), &*ended(2), None),
        (
            json!({"cmd": "make all"}),
            codex,
            Some(json!({"session_id": 8, "chars": ""})),
            &*ended(0),
            Some("still running"),
        ),
        (json!({"command": "make all"}), claude, None, "", Some("still running")),
        (json!({"command": "make all"}), claude, Some(json!({"task_id": "b1"})), task, Some("succeeded")),
    ] {
        let mut conversation = TestConversation::new();
        let mut last = running(&mut conversation, "Bash", call, begun);
        if let Some(input) = then {
            let seq = running(&mut conversation, "write_stdin", input, read);
            last = if wanted == Some("still running") { last } else { seq };
        }
        let text = carried(&conversation, 5_000);
        match wanted {
            Some(wanted) => {
                assert_eq!(part(&text, OTHERS), [format!("- `make all` (1×, last {last}): {wanted}")])
            }
            None => assert!(
                part(&text, FAILING)[0].starts_with(&format!("- `make all` (last {last}): ")),
                "{text}"
            ),
        }
    }
}

/// Regression: JSON of a command with the key `output` was taken for a result of Codex, and the tables lost the rest of it.
#[test]
fn what_a_command_prints_is_not_interpreted() {
    let mut conversation = TestConversation::new();
    let make = r#"const r = await tools.exec_command({cmd:"make all"}); text(r.output);"#;
    script(&mut conversation, make, &["Script running with cell ID 3\nWall time 10.0 seconds\nOutput:\n"]);
    let printed = "{\"exit_code\":1,\"output\":\"no rule\"}";
    let wait = calls_with_texts(&mut conversation, "wait", json!({"cell_id": "3"}), &[COMPLETED, printed]);
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, OTHERS), [format!("- `make all` (1×, last {wait}): last line: {printed}")]);
}

#[test]
fn a_notice_ends_a_running_command() {
    for (status, wanted) in [("completed", "succeeded"), ("killed", "result unknown")] {
        let mut conversation = TestConversation::new();
        let begun = "Command running in background with ID: b1. Output is being written to: /tmp/b1.output";
        shell(&mut conversation, "make all", DONE, begun);
        let notice = format!(
            "<task-notification>\n<task-id>b1</task-id>\n<status>{status}</status>\n</task-notification>"
        );
        let notice = conversation.add_message_from(notice, Origin::Context { by: "x".into() });
        let text = carried(&conversation, 5_000);
        assert_eq!(part(&text, OTHERS), [format!("- `make all` (1×, last {notice}): {wanted}")]);
    }
}

/// What the user, a rule, a classifier or a hook refused was listed as failed.
#[test]
fn what_was_not_allowed_to_run_is_refused() {
    for result in [
        "Permission for this action has been denied. Reason: it pushes to main.",
        "Permission to use Bash with command make all has been denied.",
        "PreToolUse:Bash hook error: [guard.sh]: not here",
        "claude-x[1m] is temporarily unavailable, so auto mode cannot determine the safety of Bash right now.",
        "exec command rejected by user",
        "The user rejected permission to use this specific tool call.",
    ] {
        let mut conversation = TestConversation::new();
        shell(&mut conversation, "make all", FAILED, result);
        let text = carried(&conversation, 5_000);
        assert_eq!(part(&text, OTHERS), ["- `make all` (1×, last e2): refused, did not run"], "{result}");
    }
}

/// `cargo test; echo "exit status: $?"` was listed as succeeded above the line "exit status: 101".
#[test]
fn a_masked_exit_code_is_no_success() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "cargo test; echo \"exit status: $?\"", DONE, "1 failed\nexit status: 101");
    shell(&mut conversation, "make docs || true", DONE, "no rule");
    shell(&mut conversation, "make book; cat notes.txt", DONE, "my notes");
    shell(&mut conversation, "cd /w\nmake all 2>&1 | tail -3", DONE, "Error 2\nShell cwd was reset to /w");
    assert_eq!(
        part(&carried(&conversation, 5_000), OTHERS),
        [
            "- `make all` (1×, last e8): last line: Error 2",
            "- `make book` (1×, last e6): result unknown",
            "- `make docs || true` (1×, last e4): last line: no rule",
            "- `cargo test` (1×, last e2): result unknown",
        ]
    );
}

/// A test that failed was listed as failing after the whole suite had passed.
#[test]
fn a_failure_is_not_listed_after_the_same_thing_succeeded() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "cargo fmt && cargo test -p x", FAILED, "error");
    let lint = shell(&mut conversation, "cargo clippy", FAILED, "warning");
    shell(&mut conversation, "cargo fmt", DONE, "");
    shell(&mut conversation, "cargo test", DONE, "ok");
    let failing = format!("- `cargo clippy` (last {lint}): warning");
    assert_eq!(part(&carried(&conversation, 5_000), FAILING), [failing]);
}

/// Cline names files by `absolutePath`, and opencode's edits have `newString`.
#[test]
fn the_inputs_of_other_agents_edits_are_read() {
    let mut conversation = TestConversation::new();
    conversation.calls_with("readFile", json!({"absolutePath": "/w/a.ts"}), DONE, "text");
    let edit = json!({"filePath": "/w/b.ts", "oldString": "x", "newString": "export function renamed() {}"});
    let edited = conversation.calls_with("edit", edit, DONE, "ok");
    conversation.calls_with("read", json!({"path": "b.ts:310-345"}), DONE, "text");
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, FILES), [&format!("- changed: b.ts ({edited})"), "- read or used: a.ts"]);
    assert_eq!(part(&text, "Names defined in edits"), ["- b.ts: renamed"]);
}

/// The files of one patch changed places from run to run.
#[test]
fn files_of_the_same_entry_are_sorted() {
    let mut conversation = TestConversation::new();
    let heads: String = ('a'..='z').rev().map(|name| format!("*** Update File: {name}.rs\n")).collect();
    conversation.calls_with("apply_patch", json!({ "input": heads }), DONE, "ok");
    let wanted: Vec<String> = ('a'..='z').map(|name| format!("{name}.rs (e2)")).collect();
    assert_eq!(part(&carried(&conversation, 5_000), FILES)[0], format!("- changed: {}", wanted.join(", ")));
}

#[test]
fn the_files_that_commands_name_are_listed() {
    for (command, wanted) in [
        ("cat src/a.rs | head", "- read or used: src/a.rs"),
        ("cd src && sed -n '1,5p' a.rs; nl -ba /w/b.rs", "- read or used: b.rs, src/a.rs"),
        ("for f in 1 2; do rg x src/a.rs; done", "- read or used: src/a.rs"),
        ("sed -i 's/a/b/' src/a.rs", "- changed: src/a.rs (e2)"),
        ("cat > new.md <<'E'\nsee b.rs\nE", "- changed: new.md (e2)"),
        ("rm src/a.rs", "- changed: src/a.rs (deleted, e2)"),
        ("mv a.rs b.rs", "- changed: a.rs (deleted, e2), b.rs (created, e2)"),
        (
            "apply_patch <<'E'\n*** Begin Patch\n*** Add File: c.rs\n+x\n*** End Patch\nE",
            "- changed: c.rs (created, e2)",
        ),
        ("git show HEAD:src/a.rs; git add b.rs", "- read or used: b.rs, src/a.rs"),
        ("echo 'see a.rs' $x.rs; scp a.b root@host:/etc/c.toml", ""),
    ] {
        let mut conversation = TestConversation::new();
        shell(&mut conversation, command, DONE, "");
        let text = carried(&conversation, 5_000);
        assert_eq!(part(&text, FILES).first().copied().unwrap_or_default(), wanted, "{command}");
    }
}

/// The answers to opencode's and pi's questions were not quoted as the user's words.
#[test]
fn answers_to_every_agents_questions_are_the_users_words() {
    let answer = "the blue one, never the red";
    let framed = format!(
        "User has answered your questions: {answer}. You can now continue with the user's answers in mind."
    );
    for (tool, text) in [
        ("AskUserQuestion", framed.as_str()),
        ("ask_user_question", answer),
        ("question", answer),
        ("request_user_input", answer),
        ("ask_user", answer),
        ("mcp__tools__AskQuestions", answer),
    ] {
        let mut conversation = TestConversation::new();
        conversation.calls_with(tool, json!({}), DONE, text);
        conversation.replies(words(3_000));
        conversation.add_prompt("go on");
        let message = conversation.compact(10_000, Trigger::Manual, KeptTail::Nothing, None);
        let (_, quoted) =
            message.split_once("answering a question").unwrap_or_else(|| panic!("{tool}: {message}"));
        assert!(quoted.contains(answer) && !quoted.contains("You can now"), "{tool}: {message}");
    }
}

/// The instructions of a skill left the view, and nothing told the model that it had read them.
#[test]
fn the_skills_that_were_read_are_named() {
    let mut conversation = TestConversation::new();
    for (tool, input, status) in [
        ("Skill", json!({ "skill": "deploy" }), DONE),
        ("skill", json!({ "name": "review" }), DONE),
        ("skill", json!({ "name": "gone" }), OutcomeStatus::Failed),
        ("Skill", json!({ "skill": "deploy", "args": "staging" }), DONE),
    ] {
        conversation.calls_with(tool, input, status, "Read the checklist first.");
    }
    let text = carried(&conversation, 5_000);
    let skills = part(&text, "Skills whose instructions left the view, newest first");
    assert_eq!(skills, ["deploy (e8), review (e4)"]);
}
