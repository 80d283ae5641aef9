//! Sessions of Claude Code and Codex in their storage format: found, listed, imported, and compared with the summaries
//! that those agents wrote.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use epitome::compaction::{self, LostKind};
use epitome::thread::{Change, Entry, SessionId, Thread, ViewItem};
use epitome::transfer::ImportSource;
use epitome_import::{ForeignAgent, ImportContext, Machine};
use epitome_test_harness::user::User;
use serde_json::{Value, json};

/// Reads one session; `beside` reads the other files of its folder.
fn read_with(text: &str, sibling: &dyn Fn(&Path) -> Option<String>) -> Result<(Thread, Vec<String>), String> {
    let context = ImportContext { cwd: Path::new("/elsewhere"), now: 1_000, read_sibling: sibling };
    let path = Path::new("0b0e4b4c-5a5f-4d8e-9c3a-6a1f2b3c4d5e.jsonl");
    let mut drafts = epitome_import::read(path, text, &context).map_err(|problem| problem.to_string())?;
    assert_eq!(drafts.len(), 1);
    let draft = drafts.remove(0);
    let notes = draft.notes.clone();
    let entries = draft.into_entries(&SessionId("s_0123456789abcdef0123".to_owned()));
    let thread = Thread::replay(entries).expect("an import is a log");
    assert!(thread.open_calls().is_empty(), "every call has its outcome");
    assert!(!thread.in_turn(), "every turn has its end");
    Ok((thread, notes))
}

fn read(text: &str) -> (Thread, Vec<String>) {
    read_with(text, &|_| None).expect("it can be read")
}

fn lines(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// A short rendering of the thread as a model sees it.
fn seen(thread: &Thread) -> String {
    let mut text = String::new();
    for item in thread.view().items() {
        let _ = match item {
            ViewItem::User(message) | ViewItem::Summary(message) => {
                writeln!(text, "user: {}", message.text())
            }
            ViewItem::Agent(message, _) => {
                let calls: Vec<String> =
                    message.calls().map(|call| format!("{} {}", call.name, call.input)).collect();
                writeln!(text, "agent: {} [{}]", message.text(), calls.join("; "))
            }
            ViewItem::Outcomes(outcomes) => outcomes
                .iter()
                .try_for_each(|outcome| writeln!(text, "  {:?}: {}", outcome.status, outcome.model_text())),
        };
    }
    text
}

// ---- Claude Code ----

/// A line of the tree.
fn node(id: &str, parent: Option<&str>, kind: &str, message: Value) -> Value {
    json!({
        "parentUuid": parent, "isSidechain": false, "cwd": "/w", "sessionId": "s", "type": kind, "uuid": id,
        "timestamp": "2026-02-01T10:00:00.000Z", "message": message,
    })
}

fn user(id: &str, parent: Option<&str>, content: impl Into<Value>) -> Value {
    node(id, parent, "user", json!({ "role": "user", "content": content.into() }))
}

/// A line of the reply `reply`.
fn reply(id: &str, parent: &str, reply: &str, part: Value) -> Value {
    let usage = json!({ "input_tokens": 3, "cache_read_input_tokens": 90, "output_tokens": 7 });
    let message = json!({ "id": reply, "role": "assistant", "model": "claude-opus-4-5", "content": [part], "usage": usage });
    node(id, Some(parent), "assistant", message)
}

fn said(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({ "type": "tool_use", "id": id, "name": name, "input": input })
}

fn result(call: &str, text: &str, is_error: bool) -> Value {
    json!([{ "type": "tool_result", "tool_use_id": call, "content": text, "is_error": is_error }])
}

fn boundary(id: &str, after: &str) -> Value {
    json!({
        "type": "system", "subtype": "compact_boundary", "uuid": id, "parentUuid": null, "logicalParentUuid": after,
        "compactMetadata": { "trigger": "auto", "preTokens": 155_000 },
    })
}

fn summary(id: &str, parent: &str, text: &str) -> Value {
    let mut line = user(id, Some(parent), text);
    line["isCompactSummary"] = json!(true);
    line
}

#[test]
fn lines_of_one_reply_are_joined_and_its_results_are_found() {
    // Two calls of one reply run concurrently. The next line has the second result as its parent, so the
    // first result is not an ancestor of the newest line.
    let text = lines(&[
        user("a", None, "Look at both."),
        reply("b", "a", "m1", said("I look.")),
        reply("c", "b", "m1", call("t1", "Read", json!({ "file_path": "/w/a.rs" }))),
        reply("d", "c", "m1", call("t2", "Bash", json!({ "command": "make" }))),
        user("e", Some("c"), result("t1", "fn a() {}", false)),
        user("f", Some("d"), result("t2", "Exit code 2\nmake: no rule", true)),
        reply("g", "f", "m2", said("There is no rule.")),
    ]);
    let (thread, notes) = read(&text);
    assert_eq!(
        seen(&thread),
        "user: Look at both.\n\
         agent: I look. [Read {\"file_path\":\"/w/a.rs\"}; Bash {\"command\":\"make\"}]\n  \
         Completed: fn a() {}\n  Failed: Exit code 2\nmake: no rule\n\
         agent: There is no rule. []\n"
    );
    assert_eq!(notes, [""; 0]);
    assert_eq!((thread.cwd(), thread.title()), (Path::new("/w"), Some("Look at both.")));
    assert_eq!((thread.spent().input, thread.spent().output), (186, 14), "each reply is counted once");
}

#[test]
fn rewound_branches_and_subagent_messages_are_omitted_and_counted() {
    let mut of_subagent = user("x", None, "You are a reviewer.");
    of_subagent["isSidechain"] = json!(true);
    let text = lines(&[
        user("a", None, "One"),
        reply("b", "a", "m1", said("First")),
        user("c", Some("b"), "Left behind"),
        of_subagent,
        user("d", Some("b"), "Two"),
        json!({ "type": "novelty", "uuid": "e", "parentUuid": "d" }),
        reply("f", "e", "m2", said("Second")),
        json!({ "type": "custom-title", "customTitle": "Counting" }),
    ]);
    let (thread, notes) = read(&text);
    assert_eq!(seen(&thread), "user: One\nagent: First []\nuser: Two\nagent: Second []\n");
    assert_eq!(thread.title(), Some("Counting"));
    assert_eq!(
        notes,
        [
            "left out: messages of other branches (1)",
            "left out: messages of subagents (1)",
            "left out: lines of the type \"novelty\" (1)"
        ]
    );
}

/// Hooks write lines with one id again and again (anthropics/claude-code#22245). The last of them hid all messages before it,
/// and a session lost its first half.
#[test]
fn lines_with_the_same_id_hide_no_messages() {
    let hook = |parent: &str| json!({ "type": "saved_hook_context", "uuid": "x", "parentUuid": parent });
    let text = lines(&[
        user("a", None, "One"),
        reply("b", "a", "m1", said("First")),
        hook("b"),
        user("c", Some("x"), "Two"),
        hook("c"),
        reply("d", "x", "m2", said("Second")),
    ]);
    let (thread, _) = read(&text);
    assert_eq!(seen(&thread), "user: One\nagent: First []\nuser: Two\nagent: Second []\n");
    // A session that was resumed begins with a copy of its lines.
    let copied = [
        user("a", None, "One"),
        reply("b", "a", "m1", call("t1", "Bash", json!({ "command": "make" }))),
        user("c", Some("b"), result("t1", "ok", false)),
    ];
    let text = lines(&[&copied[..], &copied[..], &[user("d", Some("c"), "Two")]].concat());
    let (thread, notes) = read(&text);
    assert_eq!(
        seen(&thread),
        "user: One\nagent:  [Bash {\"command\":\"make\"}]\n  Completed: ok\nuser: Two\n"
    );
    assert_eq!(notes, ["left out: messages of other branches (3)"]);
}

/// The messages that a compaction keeps are written behind it, and `logicalParentUuid` refers to them there. The import
/// began with the compaction.
#[test]
fn what_a_compaction_replaced_is_before_it() {
    let mut compacted = boundary("s", "d");
    compacted["compactMetadata"]["preservedSegment"] = json!({ "headUuid": "c", "tailUuid": "d" });
    for is_copied in [false, true] {
        let kept = [user("c", Some("b"), "Two"), reply("d", "c", "m2", said("Second"))];
        let mut all = vec![user("a", None, "One"), reply("b", "a", "m1", said("First"))];
        all.extend(kept.iter().filter(|_| is_copied).cloned());
        all.extend([compacted.clone(), summary("t", "s", "One was said.")]);
        all.extend(kept);
        all.push(user("e", Some(if is_copied { "d" } else { "t" }), "Three"));
        let (thread, _) = read(&lines(&all));
        let entries = thread.entries().iter().filter_map(|entry| entry.change.shown_message());
        let texts: Vec<String> = entries.map(|message| message.text()).collect();
        assert!(texts.starts_with(&["One".to_owned(), "First".to_owned()]), "{texts:?}");
        assert_eq!(texts.last().map(String::as_str), Some("Three"));
        assert_eq!(texts.iter().filter(|text| *text == "Two").count(), usize::from(is_copied), "{texts:?}");
    }
}

/// Who publishes a session may put its origin on top, as `//` lines.
#[test]
fn comments_on_top_are_skipped() {
    let text = format!("// from a repository\n\n// MIT\n{}", lines(&[user("a", None, "One")]));
    assert_eq!(seen(&read(&text).0), "user: One\n");
}

/// A call that Claude Code's classifier, a rule or a hook refused was imported as one that failed.
#[test]
fn calls_that_were_not_allowed_are_refused_and_notices_of_tasks_imported() {
    let mut refused = user("c", Some("b"), result("t1", "Blocked by the classifier.", true));
    refused["toolDenialKind"] = json!("automode-blocked");
    let mut notice = node("d", Some("c"), "attachment", Value::Null);
    notice["attachment"] = json!({ "type": "queued_command", "commandMode": "task-notification", "prompt": "<task-notification>" });
    let mut hook = node("e", Some("d"), "attachment", Value::Null);
    hook["attachment"] = json!({ "type": "hook_success" });
    let text = lines(&[
        user("a", None, "One"),
        reply("b", "a", "m1", call("t1", "Bash", json!({ "command": "make" }))),
        refused,
        notice,
        hook,
        user("f", Some("e"), "Two"),
    ]);
    let (thread, notes) = read(&text);
    assert_eq!(
        seen(&thread),
        "user: One\nagent:  [Bash {\"command\":\"make\"}]\n  Denied: Blocked by the classifier.\n\
         user: <task-notification>\nuser: Two\n"
    );
    assert_eq!(notes, ["left out: attachments (1 hook_success)"]);
}

#[test]
fn queued_prompts_are_imported_and_local_commands_omitted() {
    let mut meta = user("g", Some("f"), json!([said("Base directory for this skill: /s")]));
    meta["isMeta"] = json!(true);
    let text = lines(&[
        user("a", None, "<command-name>/ide</command-name>\n<command-args></command-args>"),
        user("b", Some("a"), "<local-command-stdout>Connected.</local-command-stdout>"),
        user(
            "c",
            Some("b"),
            "<command-message>review</command-message>\n<command-name>/review</command-name>\n<command-args>158</command-args>",
        ),
        reply("d", "c", "m1", call("t1", "Bash", json!({ "command": "rm -r x" }))),
        // Typed while the call was running.
        json!({ "type": "queue-operation", "operation": "enqueue", "content": "Rebase first, please." }),
        json!({ "type": "queue-operation", "operation": "remove" }),
        user(
            "e",
            Some("d"),
            result(
                "t1",
                "The user doesn't want to proceed with this tool use. the user said:\nNever delete.",
                true,
            ),
        ),
        user("f", Some("e"), json!([said("[Request interrupted by user for tool use]")])),
        meta,
        reply("h", "g", "m2", said("I rebase.")),
    ]);
    let (thread, notes) = read(&text);
    assert_eq!(
        seen(&thread),
        "user: /review 158\n\
         agent:  [Bash {\"command\":\"rm -r x\"}]\n  \
         Denied: The user doesn't want to proceed with this tool use. the user said:\nNever delete.\n\
         user: Rebase first, please.\nuser: Base directory for this skill: /s\n\
         agent: I rebase. []\n"
    );
    assert_eq!(notes, ["left out: commands to Claude Code itself, such as /ide, and what they printed (2)"]);
}

/// Regression: the first request of a session was behind `/plan`, a command to Claude Code itself, and was left out with those.
#[test]
fn words_behind_a_command_to_claude_code_are_the_users() {
    let command = |name: &str, typed: &str| {
        format!(
            "<command-name>/{name}</command-name>\n<command-message>{name}</command-message>\n<command-args>{typed}</command-args>"
        )
    };
    let text = lines(&[
        user("a", None, command("plan", "/plan Show past events in a tab of their own.")),
        user("b", Some("a"), command("model", "opus")),
        user("c", Some("b"), command("compact", "keep the decisions about tabs")),
        reply("d", "c", "m1", said("Here is a plan.")),
    ]);
    let (thread, _) = read(&text);
    assert_eq!(
        seen(&thread),
        "user: /plan Show past events in a tab of their own.\nagent: Here is a plan. []\n"
    );
}

/// Regression: a session that was resumed has lines again under other ids, and each copy of a call counted as one.
#[test]
fn copies_of_a_reply_are_read_once() {
    let bash = || call("t1", "Bash", json!({ "command": "make" }));
    let text = lines(&[
        user("a", None, "Make it."),
        reply("b", "a", "m1", bash()),
        user("c", Some("b"), result("t1", "made", false)),
        reply("d", "c", "m1", bash()),
        user("e", Some("d"), "Thanks."),
    ]);
    let (thread, _) = read(&text);
    assert_eq!(seen(&thread).matches("[Bash").count(), 1, "{}", seen(&thread));
}

/// Regression: a user refused two calls by typing something else. In the log, the results followed the user's message,
/// which had closed the calls, so the results could not be attached.
#[test]
fn a_message_before_the_results_of_refused_calls_is_moved_after_them() {
    let refused = "The user doesn't want to proceed with this tool use.";
    let text = lines(&[
        user("a", None, "Rename it."),
        reply("b", "a", "m1", call("t1", "Edit", json!({ "file_path": "/w/a.rs" }))),
        user("c", Some("b"), "Is that needed?"),
        user("d", Some("c"), result("t1", refused, true)),
        reply("e", "d", "m2", said("No.")),
    ]);
    let (thread, notes) = read(&text);
    assert_eq!(
        seen(&thread),
        format!(
            "user: Rename it.\nagent:  [Edit {{\"file_path\":\"/w/a.rs\"}}]\n  Denied: {refused}\n\
             user: Is that needed?\nagent: No. []\n"
        )
    );
    assert_eq!(notes, [""; 0]);
}

#[test]
fn a_large_result_is_read_from_its_file_in_the_session_folder_only() {
    let text = |path: &str| {
        let preview =
            format!("<persisted-output>\nOutput too large. Full output saved to: {path}\n\nPreview: 1");
        lines(&[
            user("a", None, "Count."),
            reply("b", "a", "m1", call("t1", "Bash", json!({ "command": "seq 9" }))),
            user("c", Some("b"), result("t1", &preview, false)),
        ])
    };
    let whole = |path: &str| {
        let sibling = |name: &Path| {
            let wanted = Path::new("0b0e4b4c-5a5f-4d8e-9c3a-6a1f2b3c4d5e/tool-results/b1.txt");
            (name == wanted).then(|| "1 2 3".to_owned())
        };
        let (thread, _) = read_with(&text(path), &sibling).expect("it can be read");
        thread.entries().iter().find_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => outcome.whole.clone(),
            _ => None,
        })
    };
    assert_eq!(whole("/home/x/.claude/projects/-w/s/tool-results/b1.txt").as_deref(), Some("1 2 3"));
    assert_eq!(whole("/etc/passwd"), None);
}

#[test]
fn a_compaction_becomes_a_layer_that_can_be_undone() {
    let text = lines(&[
        user("a", None, "Keep the API."),
        reply("b", "a", "m1", said("Yes.")),
        boundary("c", "b"),
        summary("d", "c", "This session is being continued. The API was discussed."),
        user("e", Some("d"), "Go on."),
        reply("f", "e", "m2", said("Done.")),
    ]);
    let (mut thread, _) = read(&text);
    assert_eq!(
        seen(&thread),
        "user: This session is being continued. The API was discussed.\nuser: Go on.\nagent: Done. []\n"
    );
    let layer = thread.layers()[0].entry;
    let seq = thread.next_seq();
    let undone = Change::Undone { entry: layer };
    thread.apply(Arc::new(Entry { seq, at: 0, change: undone }));
    assert_eq!(seen(&thread), "user: Keep the API.\nagent: Yes. []\nuser: Go on.\nagent: Done. []\n");
    // If the compacted part is in another file, only the summary is imported.
    let (thread, _) = read(&text.lines().skip(2).map(|line| format!("{line}\n")).collect::<String>());
    assert!(seen(&thread).starts_with("user: This session is being continued."), "{}", seen(&thread));
}

#[test]
fn a_truncated_line_is_reported_and_skipped() {
    let whole = lines(&[user("a", None, "One"), reply("b", "a", "m1", said("First"))]);
    let (thread, notes) = read(&format!("{whole}{{\"type\":\"user\",\"uuid\":\"c\",\"mess"));
    assert_eq!(seen(&thread), "user: One\nagent: First []\n");
    assert_eq!(notes, ["its last line is incomplete and was left out"]);
    // A killed writer leaves no line ending: the next record follows on the same line.
    let (thread, notes) = read(&format!("{}{whole}", json!({ "type": "file-history-snapshot" })));
    assert_eq!((seen(&thread).as_str(), notes.len()), ("user: One\nagent: First []\n", 0));
    let error = read_with("{\"parentUuid\":null,\"type\":\"progress\"}\n{\"ty", &|_| None)
        .expect_err("nothing is said");
    assert!(error.contains(":2:"), "{error}");
}

// ---- Codex ----

fn rollout(kind: &str, payload: Value) -> Value {
    json!({ "timestamp": "2026-11-01T10:00:00.000Z", "type": kind, "payload": payload })
}

fn item(payload: Value) -> Value {
    rollout("response_item", payload)
}

fn message(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    json!({ "type": "message", "role": role, "content": [{ "type": kind, "text": text }] })
}

/// A session up to a failing command.
fn codex_start() -> Vec<Value> {
    let plan = r#"{"plan":[{"step":"Write the release notes","status":"pending"}]}"#;
    vec![
        rollout("session_meta", json!({ "id": "01a2", "cwd": "/w", "model_provider": "openai" })),
        item(message("developer", "<permissions instructions>")),
        item(message("user", "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>")),
        rollout("turn_context", json!({ "cwd": "/w", "model": "gpt-5.3-codex" })),
        item(message("user", "Fix the build, and never touch the vendored folder.")),
        item(json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "A build." }] })),
        item(
            json!({ "type": "function_call", "name": "exec_command", "arguments": "{\"cmd\":\"make build\"}", "call_id": "c1" }),
        ),
        item(json!({ "type": "function_call", "name": "update_plan", "arguments": plan, "call_id": "c2" })),
        item(
            json!({ "type": "function_call_output", "call_id": "c1", "output": "Wall time: 0.0 seconds\nProcess exited with code 2\nOutput:\nno rule" }),
        ),
        item(json!({ "type": "function_call_output", "call_id": "c2", "output": "Plan updated" })),
        item(message("assistant", "There is no rule.")),
    ]
}

/// Subagents of Codex report while the agent goes on, also between a call and its result. Their reports were left out.
#[test]
fn reports_of_codex_subagents_and_rejected_calls_are_read() {
    let call = |id: &str| json!({ "type": "custom_tool_call", "name": "exec", "input": "x", "call_id": id });
    let output = |id: &str, texts: &[&str]| {
        let texts: Vec<Value> =
            texts.iter().map(|text| json!({ "type": "input_text", "text": text })).collect();
        item(json!({ "type": "custom_tool_call_output", "call_id": id, "output": texts }))
    };
    let report = json!({ "type": "agent_message", "author": "/root/review",
        "content": [{ "type": "input_text", "text": "One finding." }, { "type": "encrypted_content" }] });
    let text = lines(&[
        rollout("session_meta", json!({ "id": "01a2", "cwd": "/w" })),
        item(message("user", "Go.")),
        item(call("c1")),
        rollout("inter_agent_communication_metadata", json!({})),
        item(report),
        output("c1", &["Script completed\nOutput:\n", "text"]),
        item(call("c2")),
        output("c2", &["Script failed\nOutput:\n", "a bug"]),
        item(call("c3")),
        output("c3", &["exec command rejected by user"]),
    ]);
    let (thread, notes) = read(&text);
    assert_eq!(notes, [""; 0]);
    assert_eq!(
        seen(&thread),
        "user: Go.\nagent:  [exec {\"input\":\"x\"}]\n  Completed: Script completed\nOutput:\n\ntext\n\
         user: One finding.\nagent:  [exec {\"input\":\"x\"}]\n  Failed: Script failed\nOutput:\n\na bug\n\
         agent:  [exec {\"input\":\"x\"}]\n  Denied: exec command rejected by user\n"
    );
}

/// Regression: what the extension for VS Code writes above a prompt counted as the user's words.
#[test]
fn what_an_editor_adds_to_a_prompt_of_codex_is_not_the_users() {
    let mut all = codex_start();
    let added = "# Context from my IDE setup:\n\n## Open tabs:\n- a.md: a.md\n\n## My request for Codex:\n";
    all.push(item(message("user", &format!("{added}Write about it.\n"))));
    let (thread, _) = read(&lines(&all));
    assert!(seen(&thread).ends_with("user: Write about it.\n"), "{}", seen(&thread));
}

#[test]
fn a_codex_rollout_is_read_without_its_scaffolding() {
    let (thread, notes) = read(&lines(&codex_start()));
    assert_eq!(
        seen(&thread),
        "user: Fix the build, and never touch the vendored folder.\n\
         agent:  [exec_command {\"cmd\":\"make build\"}; update_plan {\"plan\":[{\"step\":\"Write the release notes\",\"status\":\"pending\"}]}]\n  \
         Failed: Wall time: 0.0 seconds\nProcess exited with code 2\nOutput:\nno rule\n  \
         Completed: Plan updated\n\
         agent: There is no rule. []\n"
    );
    assert_eq!((notes.len(), thread.cwd()), (0, Path::new("/w")));
    // The same session without envelopes, as versions of 2025 wrote it.
    let mut old =
        vec![json!({ "id": "01a2", "timestamp": "2025-06-01T10:00:00.000Z", "instructions": null })];
    old.extend(
        codex_start()
            .iter()
            .filter(|line| line["type"] == "response_item")
            .map(|line| line["payload"].clone()),
    );
    assert_eq!(seen(&read(&lines(&old)).0), seen(&thread));
}

#[test]
fn rollbacks_and_compactions_of_codex_are_imported() {
    let mut all = codex_start();
    all.push(item(message("user", "Delete everything.")));
    all.push(item(message("assistant", "Gone.")));
    all.push(rollout("event_msg", json!({ "type": "thread_rolled_back", "num_turns": 1 })));
    all.push(item(message("user", "Look again.")));
    all.push(item(message("assistant", "It is as it was.")));
    all.push(rollout("event_msg", json!({ "type": "task_complete" })));
    // The reply that is the summary.
    all.push(item(message("assistant", "The build was looked at.")));
    let kept = json!([message("user", "<environment_context>"), message("user", "Look again.")]);
    all.push(rollout(
        "compacted",
        json!({ "message": "Summary: The build was looked at.", "replacement_history": kept }),
    ));
    all.push(item(message("user", "And now?")));
    let (thread, notes) = read(&lines(&all));
    assert_eq!(
        seen(&thread),
        "user: What Codex kept of the conversation so far:\n\nThe user said:\nLook again.\nuser: And now?\n"
    );
    assert_eq!(notes, ["left out: turns that were undone (1)"]);
    let log = format!("{:?}", thread.entries());
    assert!(log.contains("It is as it was."), "{log}");
    assert!(!log.contains("Gone.") && !log.contains("The build was looked at."), "{log}");
}

// ---- Losses of a summary ----

/// A rollout named more turns than any session has, and the import counted to that number for years.
#[test]
fn a_rollback_of_more_turns_than_there_are_ends() {
    let mut all = codex_start();
    all.push(rollout("event_msg", json!({ "type": "thread_rolled_back", "num_turns": u64::MAX })));
    all.push(message("user", "Begin again."));
    let (thread, notes) = read(&lines(&all));
    assert_eq!(seen(&thread), "user: Begin again.\n");
    assert!(notes.iter().any(|note| note.contains("turns that were undone (1)")), "{notes:?}");
}

#[test]
fn losses_in_another_agents_summary_are_reported_without_a_model() {
    let mut all = codex_start();
    all.push(item(json!({ "type": "custom_tool_call", "name": "apply_patch", "call_id": "c3",
        "input": "*** Begin Patch\n*** Update File: src/parser.rs\n*** End Patch" })));
    all.push(item(json!({ "type": "custom_tool_call_output", "call_id": "c3", "output": "Success" })));
    let history = json!([message("user", "The build of the folder was to be fixed; src/lexer.rs is fine.")]);
    all.push(rollout("compacted", json!({ "message": "", "replacement_history": history })));
    let (thread, _) = read(&lines(&all));
    let lost = compaction::lost(&thread).expect("it was compacted");
    let forgotten: Vec<(LostKind, &str, bool)> =
        lost.forgotten.iter().map(|item| (item.kind, item.text.as_str(), item.is_ours)).collect();
    assert_eq!(
        forgotten,
        [
            (LostKind::Said, "Fix the build, and never touch the vendored folder.", true),
            (LostKind::File, "src/parser.rs", true),
            (LostKind::Failing, "make build", true),
            (LostKind::Step, "Write the release notes", true),
        ]
    );
    assert_eq!(compaction::lost(&read(&lines(&codex_start())).0), None, "nobody has compacted it");
}

// ---- Discovery ----

/// A user with two sessions of Claude Code in one project and one of Codex.
fn user_of_other_agents() -> User {
    let home = User::new();
    let project = home.project();
    let claude = |id: &str, cwd: &Path, words: &str| {
        let mut line = user("a", None, words);
        line["cwd"] = json!(cwd);
        let answer = reply("b", "a", "m1", said("Yes."));
        home.write(format!(".claude/projects/-any/{id}.jsonl"), &lines(&[line, answer]));
    };
    claude("11111111-0000-4000-8000-000000000000", Path::new("/other"), "In another folder");
    claude("22222222-0000-4000-8000-000000000000", &project, "In this folder");
    // Written at every start, before the first prompt.
    home.write(
        ".claude/projects/-any/33333333-0000-4000-8000-000000000000.jsonl",
        "{\"type\":\"summary\",\"leafUuid\":\"x\"}\n",
    );
    home.write(".codex/sessions/2026/11/01/rollout-2026-11-01T10-00-00-01a2.jsonl", &lines(&codex_start()));
    home
}

#[test]
fn sessions_of_other_agents_are_found_in_their_folders() {
    let home = user_of_other_agents();
    let (path, project) = (home.home(), home.project());
    let variable = |_: &str| None;
    let machine = Machine { variable: &variable, home: Some(&path), cwd: &project };
    let of = |name: &str, machine: &Machine| {
        let sessions = ForeignAgent::named(name).expect("an agent").sessions(machine);
        sessions
            .into_iter()
            .map(|session| (session.id, session.title.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let title = |id: &str, title: &str| (id.to_owned(), title.to_owned());
    assert_eq!(
        of("claude-code", &machine),
        [
            title("22222222-0000-4000-8000-000000000000", "In this folder"),
            title("11111111-0000-4000-8000-000000000000", "In another folder"),
        ]
    );
    assert_eq!(of("codex", &machine), [title("01a2", "Fix the build, and never touch the vendored folder.")]);
    assert_eq!(of("gemini", &machine), []);
    // The agent's own environment variable overrides the folder.
    let moved = |name: &str| (name == "CODEX_HOME").then(|| "/nowhere".into());
    let machine = Machine { variable: &moved, ..machine };
    assert_eq!((of("codex", &machine).len(), of("claude-code", &machine).len()), (0, 2));
}

#[test]
fn a_session_is_imported_once_unless_again_is_given() {
    let home = user_of_other_agents();
    let listed = home.run(&["sessions", "import", "--from", "claude-code"]).ok();
    assert!(listed.starts_with("22222222-000"), "{listed}");
    assert!(!listed.contains("imported as"), "{listed}");
    let latest = ["sessions", "import", "--from", "claude-code", "latest"];
    let first = home.run(&latest).ok();
    assert!(first.starts_with("s_"), "{first}");
    assert_eq!(home.run(&latest).ok(), first, "the same session");
    let json = home.run(&["sessions", "import", "--from", "claude-code", "2222", "--json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON")[0]["is_known"], true, "{json}");
    assert_ne!(home.run(&["sessions", "import", "--from", "claude-code", "2222", "--again"]).ok(), first);
    let listed = home.run(&["sessions", "import", "--from", "claude-code"]).ok();
    assert!(listed.contains(&format!("imported as {}", first.trim())), "{listed}");
    assert_eq!(home.run(&["sessions", "list", "--json"]).ok().lines().count(), 2);
    for (arguments, words) in [
        (&["sessions", "import"][..], "claude-code  3 sessions"),
        (&["sessions", "import", "--from", "claude"], "possible values: claude-code, codex"),
        (&["sessions", "import", "--from", "claude-code", "9"], "has no session 9"),
        (&["sessions", "import", "--from", "codex", "latest"], "has no session in"),
    ] {
        let ran = home.run(arguments);
        assert!(ran.code != Some(0) && ran.err.contains(words), "{arguments:?}: {ran:?}");
    }
}

/// Who continued in the other agent had to import the session once more, without the compactions and pins of the first import.
#[test]
fn a_session_that_was_continued_gets_what_is_new() {
    let home = User::new();
    let file = home.project().join("session.jsonl");
    let part = |text: &str| json!({ "type": "text", "text": text });
    let call = json!({ "type": "tool_use", "id": "t1", "name": "Bash", "input": { "command": "make" } });
    let result = json!([{ "type": "tool_result", "tool_use_id": "t1", "content": "done" }]);
    // It is imported while a command runs.
    let mut all = vec![
        user("a", None, "Build it."),
        reply("b", "a", "m1", part("I build it.")),
        reply("c", "b", "m2", call),
    ];
    let import = |all: &[Value]| {
        std::fs::write(&file, lines(all)).expect("written");
        let json = home.run(&["sessions", "import", "session.jsonl", "--json"]).ok();
        serde_json::from_str::<Value>(&json).expect("JSON")[0].clone()
    };
    let first = import(&all);
    let session = first["session"].as_str().expect("an id").to_owned();
    assert_eq!(import(&all)["added"], Value::Null);
    home.run(&["run", "--resume", &session, "--no-hooks", "/goal Ship it"]).ok();
    all.push(user("d", Some("c"), result));
    all.push(reply("e", "d", "m3", part("It is built.")));
    all.push(user("f", Some("e"), "And test it."));
    let grown = import(&all);
    assert_eq!((grown["session"].as_str(), grown["is_known"].as_bool()), (Some(&*session), Some(true)));
    assert!(
        grown["added"].as_u64().is_some_and(|added| added >= 3) && grown["notes"] == json!([]),
        "{grown}"
    );
    let shown = home.run(&["sessions", "show", &session]).ok();
    for words in [
        "e2  you\n  Build it.",
        "Goal: Ship it",
        "  It is built.",
        "  And test it.",
        "which came later:\n\n  done",
    ] {
        assert_eq!(shown.matches(&format!("{words}\n")).count(), 1, "{words}: {shown}");
    }
    assert_eq!(import(&all)["added"], Value::Null);
    // What differs is not mixed.
    all[0] = user("a", None, "Build something else.");
    let other = import(&all);
    assert!(
        other["notes"][0].as_str().is_some_and(|note| note.contains("both have changed since")),
        "{other}"
    );
}

/// Each compaction of a pi session with `epitome compact --store` imported the whole session once more. A copy that pi continues
/// elsewhere has the id of its original, and stays a session of its own.
#[test]
fn a_session_of_pi_is_imported_once_and_its_copies_apart() {
    let home = User::new();
    let header = json!({ "type": "session", "version": 3, "id": "p1", "timestamp": "2026-11-28T10:00:00.000Z", "cwd": "/w" });
    let said = |id: &str, parent: Option<&str>, text: &str| {
        let message = json!({ "role": "user", "content": [{ "type": "text", "text": text }] });
        json!({
            "type": "message", "id": id, "parentId": parent, "timestamp": "2026-11-28T10:00:00.000Z", "message": message,
        })
    };
    let import = |texts: &[&str]| {
        let mut all = vec![header.clone()];
        for (at, text) in texts.iter().enumerate() {
            let parent = at.checked_sub(1).map(|at| at.to_string());
            all.push(said(&at.to_string(), parent.as_deref(), text));
        }
        home.write("project/pi.jsonl", &lines(&all));
        home.run(&["sessions", "import", "pi.jsonl"]).ok()
    };
    let first = import(&["Build it."]);
    assert_eq!(import(&["Build it.", "And test it."]), first);
    assert_ne!(import(&["Build it.", "And ship it."]), first);
    assert_eq!(home.run(&["sessions", "list", "--json"]).ok().lines().count(), 2);
}

/// The newest session began with a screenshot, whose line is longer than what a listing reads. It was not listed, and
/// `latest` imported an older session.
#[test]
fn a_session_that_begins_with_an_image_is_listed() {
    let home = user_of_other_agents();
    let image = json!({ "type": "base64", "media_type": "image/png", "data": "A".repeat(400_000) });
    let content = json!([{ "type": "image", "source": image }, said("Fix what the screenshot shows.")]);
    let mut line = user("a", None, content);
    line["cwd"] = json!(home.project());
    let session = "44444444-0000-4000-8000-000000000000";
    let answer = reply("b", "a", "m1", said("Yes."));
    home.write(format!(".claude/projects/-any/{session}.jsonl"), &lines(&[line, answer]));
    let listed = home.run(&["sessions", "import", "--from", "claude-code"]).ok();
    assert!(listed.starts_with("44444444"), "{listed}");
    assert!(listed.contains("Fix what the screenshot shows."), "{listed}");
}

/// Claude Code was killed in the middle of a character. The import failed, although it skips incomplete lines.
#[test]
fn a_session_with_a_truncated_character_is_imported() {
    let home = User::new();
    let text = lines(&[user("a", None, "Gr\u{fc}n?"), reply("b", "a", "m1", said("Yes."))]);
    let mut bytes = text.into_bytes();
    bytes.extend("{\"type\":\"user\",\"message\":{\"content\":\"Gr\u{fc}".as_bytes());
    bytes.pop();
    let file = home.project().join("11111111-0000-4000-8000-000000000000.jsonl");
    std::fs::write(&file, &bytes).expect("written");
    let ran = home.run(&["sessions", "import", &file.to_string_lossy()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("not UTF-8"), "{ran:?}");
    let session = ran.out.trim();
    let shown = home.run(&["sessions", "show", session]).ok();
    assert!(shown.contains("Gr\u{fc}n?") && shown.contains("Yes."), "{shown}");
    // A file of no known kind has its error.
    std::fs::write(&file, b"Gr\xfcn").expect("written");
    let ran = home.run(&["sessions", "import", &file.to_string_lossy()]);
    assert!(ran.code != Some(0) && ran.err.contains("byte 2 is not UTF-8"), "{ran:?}");
}

#[test]
fn the_source_of_a_file_is_detected_by_its_first_lines() {
    let claude = lines(&[json!({ "type": "file-history-snapshot" }), user("a", None, "x")]);
    for (text, source) in [
        (claude.as_str(), Some(ImportSource::ClaudeCode)),
        (&lines(&codex_start()), Some(ImportSource::Codex)),
        ("{\"type\":\"session.start\",\"data\":{}}", Some(ImportSource::Copilot)),
        (
            "{\n  \"sessionId\": \"s\",\n  \"projectHash\": \"h\",\n  \"messages\": []\n}",
            Some(ImportSource::Gemini),
        ),
        ("{\n  \"info\": {},\n  \"messages\": []\n}", Some(ImportSource::Opencode)),
        ("[\n  {\"role\": \"user\", \"content\": []}\n]", Some(ImportSource::Cline)),
        ("\n# aider chat started at 2026-01-01 10:00:00\n", Some(ImportSource::Aider)),
        ("{\"type\":\"session\",\"id\":\"x\"}", Some(ImportSource::Pi)),
        ("{\"type\":\"user\"}", None),
        ("notes", None),
        ("", None),
    ] {
        assert_eq!(epitome_import::detect(text), source, "{text}");
    }
}
