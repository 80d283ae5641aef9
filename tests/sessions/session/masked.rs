//! Keys in texts that reach the model other than as the result of a tool.

use epitome::thread::StopReason;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{call, in_turn, text, write_file};
use serde_json::json;

use super::stage::{script, with_hooks};

const CONFIG: &str = "mode = \"full\"\n[sandbox]\nenabled = false\n[diagnostics]\nstart = \"always\"\n";

/// A language server that quotes a key in what it reports.
const SERVER: &str = r#"#!/bin/sh
emit() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
emit '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}'
while IFS= read -r line; do
  case "$line" in *textDocument/didOpen*)
    uri=$(printf '%s' "$line" | sed 's/.*"uri":"\([^"]*\)".*/\1/')
    emit '{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"'"$uri"'","diagnostics":[{"range":{"start":{"line":0,"character":0},"end":{"line":0,"character":3}},"severity":1,"message":"undefined: KEY"}]}}' ;;
  esac
done
"#;

/// A fake key; concatenated here so that no scanner reports it as a leak.
fn key() -> String {
    format!("ghp_{}", "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fG3hJ6")
}

fn assert_masked(test: &TestSession) {
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("[secret masked: looks like a GitHub token]"), "{sent}");
    assert!(!sent.contains(&key()), "{sent}");
    let log = std::fs::read(test.journal()).expect("the log");
    assert!(!String::from_utf8_lossy(&log).contains(&key()), "the log has it");
}

/// Regression test: what a recipe's commands print was never masked, so `{{bash "cat" ".env"}}` sent the user's keys to
/// the model and stored them.
#[test]
fn keys_in_the_output_of_a_recipes_commands_are_masked() {
    let files = [
        ("home/config.toml", CONFIG.to_owned()),
        ("home/recipes/show.md", "It says {{bash \"cat\" \"notes.env\"}}.".to_owned()),
        ("notes.env", format!("{}\n", key())),
    ];
    let mut test = Setup::with_files(&files).built_in_tools().start(|_| vec![text("ok")]);
    assert_eq!(test.ask("/show"), StopReason::EndTurn);
    assert_masked(&test);
}

/// Regression test: language servers quote what they reject. Their reports went to the model and the log unmasked.
#[test]
fn keys_in_the_reports_of_language_servers_are_masked() {
    let directory = tempfile::tempdir().expect("a directory");
    write_file(&directory.path().join("gopls"), &SERVER.replace("KEY", &key()));
    let replies = vec![
        vec![call("file_write", json!({"file_path": "a.go", "text": "package a\n"}))],
        // Waits for the server.
        vec![call("diagnostics", json!({"file_path": "a.go"}))],
        vec![text("Done.")],
    ];
    let files = [("home/config.toml", CONFIG), ("go.mod", "module a\n")];
    let mut test = Setup::with_files(&files).built_in_tools().start(in_turn(replies));
    let mut environment = test.environment();
    for (name, value) in &mut environment {
        if *name == *"PATH" {
            *value = format!("{}:{}", directory.path().display(), value.to_string_lossy()).into();
        }
    }
    test.reload(environment);
    assert_eq!(test.ask("Write it."), StopReason::EndTurn);
    let sent = test.last_request().body.to_string();
    assert!(sent.contains("New errors in files that you changed"), "{sent}");
    assert_masked(&test);
}

/// Regression test: the text that a hook adds to the conversation was masked only if it changed a tool's result. A hook that
/// appended a file with a key, or quoted it in a follow-up, put it into the log and the next request.
#[test]
fn keys_in_texts_of_hooks_are_masked() {
    let edits = json!([{"op": "append", "role": "user", "content": key()}]);
    for answer in [
        json!({"follow_up_messages": [key()]}),
        json!({"context_edits": edits, "follow_up_messages": ["Go on."]}),
    ] {
        let body = format!("[ -e seen ] || echo '{answer}'; touch seen");
        let hook = script("agent_stop", &format!("cd \"$EPITOME_CWD\"; {body}"));
        let mut test = with_hooks(&[("quotes", hook)], &[], Vec::new());
        assert_eq!(test.ask("Hello"), StopReason::EndTurn);
        assert_eq!(test.model.requests().len(), 2, "{answer}");
        assert_masked(&test);
    }
}
