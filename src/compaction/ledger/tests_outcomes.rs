//! What the ledger finds in what came of tool calls.

use std::collections::HashSet;

use super::Ledger;
use super::tests::Line::{Run, Tool};
use super::tests::{append, below, opened, told, told_of};
use crate::thread::{
    CallId, Card, Change, Content, Message, MessageId, ModelName, OutcomeStatus, ToolCall, ToolKind,
    ToolOutcome,
};
use crate::tokens::Ruler;

#[test]
fn errors_are_open_until_their_command_runs_well() {
    let printed = "   Compiling x v0.1.0\nwarning: unused variable: `errors`\nerror[E0382]: borrow of moved value: `config`\n  --> src/main.rs:14:20\n   |\nerror: aborting due to 1 previous error\nerror: could not compile `x`";
    let failed = [Run("cd /w && cargo test parser 2>&1 | tail -20", printed, 101)];
    let text = told(&failed);
    assert_eq!(
        below(&text, "Open errors"),
        "- error[E0382]: borrow of moved value: `config` (src/main.rs:14:20) [cargo test parser] (e2)"
    );
    let solved = told(&[
        Run("cargo test parser", printed, 101),
        Run("ls", "a", 0),
        Run("cargo test", "test result: ok. 12 passed; 0 failed", 0),
    ]);
    assert_eq!(below(&solved, "Open errors"), "");
    assert!(below(&solved, "Errors that no longer show").contains("E0382"), "{solved}");
    assert!(
        below(&solved, "Commands").contains("`cargo test` → ok: test result: ok. 12 passed; 0 failed"),
        "{solved}"
    );
}

#[test]
fn the_lines_that_tell_an_error_are_found_in_many_outputs() {
    for (printed, code, expected) in [
        (
            "thread 'main' panicked at src/a.rs:3:5:\nindex out of bounds: the len is 3\nnote: run with",
            101,
            "thread 'main' panicked at src/a.rs:3:5: index out of bounds: the len is 3",
        ),
        (
            "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    x()\nValueError: bad magic number in 'x'",
            1,
            "ValueError: bad magic number in 'x'",
        ),
        ("fatal: refusing to merge unrelated histories", 128, "fatal: refusing to merge unrelated histories"),
        ("test parser::deep ... FAILED\n\nfailures:\n", 101, "test parser::deep ... FAILED"),
        (
            "--- FAIL: TestUpload (0.03s)\n    upload_test.go:41: got 3, want 4\nFAIL",
            1,
            "--- FAIL: TestUpload (0.03s)",
        ),
        ("npm ERR! Missing script: \"buidl\"", 1, "npm ERR! Missing script: \"buidl\""),
        ("bash: kubctl: command not found", 127, "bash: kubctl: command not found"),
        (
            "src/a.ts(4,7): error TS2322: Type 'string' is not assignable to type 'number'.",
            2,
            "error TS2322: Type 'string'",
        ),
        (
            "2026-01-03 10:00:01 ERROR db: connection to 10.0.0.3 refused (code 61)",
            0,
            "ERROR db: connection to 10.0.0.3 refused",
        ),
        (
            "FAILED tests/test_a.py::test_b - AssertionError: 1 != 2\r\n",
            1,
            "FAILED tests/test_a.py::test_b - AssertionError: 1 != 2",
        ),
        ("something odd happened", 3, "something odd happened"),
    ] {
        let told = told(&[Run("./run", printed, code)]);
        assert!(told.contains(expected), "{printed}: {told}");
    }
}

#[test]
fn an_output_that_is_full_of_the_word_is_no_error() {
    for (command, printed) in [
        ("cargo test", "test errors::are_told ... ok\ntest result: ok. 3 passed; 0 failed"),
        ("npm run lint", "0 errors, 0 warnings"),
        ("./check", "no errors found"),
    ] {
        let told = told(&[Run(command, printed, 0)]);
        assert_eq!(below(&told, "Open errors"), "", "{printed}: {told}");
    }
    let source =
        "pub enum Error { Failed }\n// error: never\nreturn Err(Error::Failed); // fatal: no\n".repeat(50);
    let read = told(&[Tool("file_read", serde_json::json!({"file_path": "/w/src/error.rs"}), &source)]);
    assert_eq!(below(&read, "Open errors"), "", "{read}");
}

#[test]
fn of_a_command_the_newest_run_is_told() {
    let told = told(&[
        Run("make all", "error: no rule", 2),
        Run("make all", "built in 3s", 0),
        Run("make all", "make: *** No rule. Stop: error: x", 2),
    ]);
    let commands = below(&told, "Commands");
    assert_eq!(commands.lines().count(), 1, "{told}");
    assert!(commands.contains("`make all` → exit 2: "), "{told}");
}

#[test]
fn files_are_told_by_what_was_done_last() {
    let told = told(&[
        Tool("file_read", serde_json::json!({"file_path": "src/a.rs"}), "1\tfn a() {}"),
        Tool("file_read", serde_json::json!({"file_path": "src/only_read.rs"}), "1\tfn b() {}"),
        Tool(
            "file_edit",
            serde_json::json!({"file_path": "/w/src/a.rs", "old_text": "a", "new_text": "b"}),
            "Replaced 1.",
        ),
        Tool(
            "str_replace_based_edit_tool",
            serde_json::json!({"command": "create", "path": "src/new.rs", "file_text": "x"}),
            "ok",
        ),
        Tool(
            "apply_patch",
            serde_json::json!({"input": "*** Begin Patch\n*** Update File: lib/x.py\n@@\n*** Delete File: lib/y.py\n*** End Patch"}),
            "ok",
        ),
        Run("mv docs/a.md docs/b.md && sed -i 's/x/y/' Makefile", "", 0),
        Run("rm src/new.rs", "rm: error: no", 1),
    ]);
    let changed = below(&told, "Files changed");
    for line in [
        "/w/src/a.rs",
        "src/new.rs created",
        "lib/x.py",
        "lib/y.py deleted",
        "docs/a.md deleted",
        "docs/b.md moved",
        "Makefile",
    ] {
        assert!(changed.contains(line), "{line}: {told}");
    }
    assert!(below(&told, "Files read").contains("src/only_read.rs"), "{told}");
    assert!(!below(&told, "Files read").contains("src/a.rs"), "{told}");
}

/// Calls of one reply may have been given other inputs, and their outcomes come in any order: each is read as it was
/// run, whether the ledger followed in between or not.
#[test]
fn a_call_is_read_as_it_was_run() {
    let card = || Card { title: String::new(), kind: ToolKind::Edit, locations: Vec::new() };
    let id = |name: &str| CallId(name.to_owned());
    let written = |path: &str| serde_json::json!({"path": path, "content": "x"});
    let call = |call: &str, path: &str| {
        let name = "file_write".to_owned();
        Content::Call(ToolCall { id: id(call), name, input: written(path), card: card() })
    };
    let mut thread = opened();
    let mut stepwise = Ledger::default();
    let content = vec![call("a", "src/a.rs"), call("b", "src/b.rs"), call("c", "src/c.rs")];
    let message = Message { id: MessageId(0), content };
    let finished = |name: &str| Change::ToolFinished {
        outcome: ToolOutcome::text(id(name), OutcomeStatus::Completed, "ok"),
    };
    let changed = |path: &str| Change::CallChanged {
        call: id("b"),
        input: written(path),
        card: card(),
        by: "x".to_owned(),
    };
    for change in [
        Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None },
        finished("c"),
        changed("src/first.rs"),
        changed("src/second.rs"),
        finished("b"),
        // Nobody waits for it any more.
        changed("src/third.rs"),
        finished("b"),
    ] {
        append(&mut thread, change);
        stepwise.follow(&thread);
    }
    let at_once = told_of(&thread, 1_000);
    let files = below(&at_once.text, "Files changed");
    assert_eq!(files, "src/second.rs, src/c.rs");
    assert_eq!(stepwise.told(&Ruler::of(None), &thread, &HashSet::new(), 1_000), at_once);
}
