//! Examples of each part's output, and a check that no part can make a compaction fail.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::tests::conversation::{TestConversation, budget, words};
use super::super::{CompactionInput, KeptTail};
use super::*;
use epitome_thread::{OutcomeStatus, Trigger};

mod calls;

const DONE: OutcomeStatus = OutcomeStatus::Completed;
const FAILED: OutcomeStatus = OutcomeStatus::Failed;

/// The carried-over text if everything leaves the view.
fn carried(conversation: &TestConversation, tokens_max: u64) -> String {
    let (ruler, budget) = (Ruler::for_model(None), budget(200_000));
    let input = CompactionInput::new(&ruler, &conversation.0, &budget);
    Carryover::compute(&input, &HashSet::new()).within(&ruler, tokens_max)
}

/// The lines of a part; empty if the part is missing.
fn part<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let from = text.lines().skip_while(|line| *line != format!("## {heading}")).skip(1);
    from.take_while(|line| !line.starts_with("## ")).filter(|line| !line.is_empty()).collect()
}

fn shell(conversation: &mut TestConversation, command: &str, status: OutcomeStatus, output: &str) -> Seq {
    conversation.calls_with("Bash", json!({ "command": command }), status, output)
}

#[test]
fn a_command_is_listed_as_failed_if_its_last_run_failed() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "cargo test", FAILED, "error: 2 tests failed");
    shell(&mut conversation, "cargo build", DONE, "Finished");
    shell(&mut conversation, "cd /w && cargo test 2>&1", DONE, "ok");
    let lint = shell(&mut conversation, "cargo clippy", FAILED, "warning: unused\nerror: could not compile");
    shell(&mut conversation, "ls missing", FAILED, "No such file");
    let text = carried(&conversation, 5_000);
    let failed = part(&text, "Commands that failed when last run, newest first");
    assert_eq!(
        failed,
        [format!("- `cargo clippy` (last {lint}): warning: unused | error: could not compile")]
    );
    let others = part(&text, "Other commands, most frequent first");
    assert!(others[0].starts_with("- `cargo test` (2×") && others[0].ends_with("succeeded"), "{others:?}");
}

/// The tables of a log of a hundred thousand entries took longer with each compaction, and would have exceeded their time.
#[test]
fn the_tables_are_about_the_newest_entries() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "make old", FAILED, "error");
    (0..history::ENTRIES_MAX / 2).for_each(|_| {
        conversation.add_prompt("Go on.");
        conversation.replies("Yes.");
    });
    let new = shell(&mut conversation, "make new", FAILED, "error");
    let text = carried(&conversation, 5_000);
    let failed = part(&text, "Commands that failed when last run, newest first");
    assert_eq!(failed, [format!("- `make new` (last {new}): error")]);
}

/// `pgrep` and `cmp` end so where they find nothing, or a difference. They were listed as failed, with nothing to explain it.
#[test]
fn a_command_that_ended_with_1_and_printed_nothing_is_not_called_failed() {
    let mut conversation = TestConversation::new();
    for (command, output) in [
        ("pgrep server", "Exit code 1"),
        ("cmp a b", "(no output)\n[exit code 1]"),
        ("make -q", "(no output)\n\nCommand exited with code 1"),
        ("make docs", "Chunk ID: 1\nWall time: 1 seconds\nProcess exited with code 1\nOutput:\n"),
    ] {
        shell(&mut conversation, command, FAILED, output);
    }
    shell(&mut conversation, "make all", FAILED, "Exit code 1\nno rule");
    shell(&mut conversation, "make test", FAILED, "Exit code 2");
    let text = carried(&conversation, 5_000);
    let failed = part(&text, "Commands that failed when last run, newest first");
    assert_eq!(failed.len(), 2, "{failed:?}");
    let others = part(&text, "Other commands, most frequent first");
    assert_eq!(others.len(), 4, "{others:?}");
    assert!(others.iter().all(|line| line.ends_with(": exit status 1, no output")), "{others:?}");
}

/// A refused or interrupted command says nothing about its result.
#[test]
fn a_refused_command_is_neither_failed_nor_succeeded() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "make deploy", OutcomeStatus::Denied, "denied");
    shell(&mut conversation, "make all", OutcomeStatus::Interrupted, "");
    // Claude Code's result for a call that was not run because another call of the same reply failed.
    shell(
        &mut conversation,
        "make docs",
        FAILED,
        "<tool_use_error>Sibling tool call errored</tool_use_error>",
    );
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, "Commands that failed when last run, newest first"), Vec::<&str>::new());
    assert_eq!(
        part(&text, "Other commands, most frequent first"),
        [
            "- `make docs` (1×, last e6): result unknown",
            "- `make all` (1×, last e4): result unknown",
            "- `make deploy` (1×, last e2): refused, did not run",
        ]
    );
}

/// Regression: each table had its share of the room, however small. In a window of 16k, the quoted results of the
/// newest calls were kept, while failing commands and commits were left out.
#[test]
fn little_room_still_shows_failing_commands_and_commits() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "git commit -am x", DONE, "[main 1a2b3c4] Count the rows that can't be read");
    shell(&mut conversation, "make types", FAILED, &"No module named mypy. ".repeat(30));
    shell(&mut conversation, "make list", DONE, &"a line of a long listing\n".repeat(200));
    conversation.replies(words(400));
    let text = carried(&conversation, 500);
    assert!(text.contains("- `make types` (last e4): No module named mypy."), "{text}");
    assert!(text.contains("- 1a2b3c4 on main: Count the rows that can't be read"), "{text}");
}

#[test]
fn the_state_of_every_known_plan_tool_is_shown() {
    let todo = |status: &str| json!({"todos": [{"content": "write the parser", "status": status}]});
    let update = |status: &str| json!({"plan": [{"step": "write the parser", "status": status}]});
    for (tool, first, second) in [
        ("TodoWrite", todo("pending"), todo("in_progress")),
        ("todo_write", todo("pending"), todo("in_progress")),
        ("update_plan", update("pending"), update("in_progress")),
    ] {
        let mut conversation = TestConversation::new();
        conversation.calls_with(tool, first, DONE, "ok");
        conversation.calls_with(tool, second, DONE, "ok");
        assert_eq!(
            part(&carried(&conversation, 5_000), "Plan"),
            ["- [in_progress] write the parser"],
            "{tool}"
        );
    }
    let mut conversation = TestConversation::new();
    for subject in ["parse", "print", "drop"] {
        conversation.calls_with("TaskCreate", json!({"subject": subject}), DONE, "");
    }
    conversation.calls_with("TaskUpdate", json!({"taskId": "1", "status": "completed"}), DONE, "");
    conversation.calls_with("TaskUpdate", json!({"taskId": 3, "status": "deleted"}), DONE, "");
    assert_eq!(part(&carried(&conversation, 5_000), "Plan"), ["- [pending] print", "- [completed] parse"]);
}

#[test]
fn files_are_listed_by_last_action_relative_to_the_working_directory() {
    let mut conversation = TestConversation::new();
    conversation.calls_with("Read", json!({"file_path": "/w/src/a.rs"}), DONE, "fn a() {}");
    conversation.calls_with(
        "Write",
        json!({"file_path": "/w/src/new.rs", "content": "pub fn fresh() {}"}),
        DONE,
        "ok",
    );
    let edit =
        json!({"file_path": "/w/src/a.rs", "old_string": "fn a()", "new_string": "fn a()\nfn second()"});
    conversation.calls_with("Edit", edit.clone(), DONE, "ok");
    let last = conversation.calls_with("Edit", edit, DONE, "ok");
    conversation.calls_with("Edit", json!({"file_path": "/w/src/failed.rs"}), FAILED, "no match");
    let removed = conversation.calls_with("Delete", json!({"file_path": "/w/src/old.rs"}), DONE, "ok");
    conversation.calls_with("Grep", json!({"path": "/w/src"}), DONE, "src/hit.rs:1\nsrc/once.rs:2");
    conversation.calls_with("Grep", json!({"path": "/w/src"}), DONE, "src/hit.rs:9");
    let text = carried(&conversation, 5_000);
    let files = part(&text, "Files, newest first");
    let changed = format!("- changed: src/old.rs (deleted, {removed}), src/a.rs (2×, {last}), src/new.rs");
    assert!(files[0].starts_with(&changed), "{files:?}");
    assert!(!files.concat().contains("failed.rs"), "{files:?}");
    assert_eq!(part(&text, "Files named in results"), ["src/hit.rs, src/once.rs"]);
    assert_eq!(part(&text, "Names defined in edits"), ["- a.rs: second", "- new.rs: fresh"]);
}

/// Of a README about streams, "source" and "stage" were listed as names that it defines.
#[test]
fn prose_defines_no_names() {
    let mut conversation = TestConversation::new();
    let text = "type source of a stream\nclass stage of it";
    conversation.calls_with("Write", json!({"file_path": "/w/README.md", "content": text}), DONE, "ok");
    conversation.calls_with("Write", json!({"file_path": "/w/a.py", "content": "class Stage:"}), DONE, "ok");
    assert_eq!(part(&carried(&conversation, 5_000), "Names defined in edits"), ["- a.py: Stage"]);
}

#[test]
fn version_control_state_comes_from_git_output() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "git switch -c queue", DONE, "Switched to a new branch 'queue'");
    shell(&mut conversation, "git commit -m x", DONE, "[queue 1a2b3c4] Add the queue\n 1 file changed");
    shell(&mut conversation, "git push", DONE, "To host:x.git\n   0000000..1a2b3c4  queue -> queue");
    shell(&mut conversation, "gh pr create", DONE, "https://github.com/o/r/pull/17");
    // Only the output of a command counts, not a message that looks like it.
    conversation.replies("[main 9999999] never made");
    let text = carried(&conversation, 5_000);
    let lines = part(&text, "Version control, newest first");
    assert_eq!(lines, ["- branch: queue; pull requests: o/r#17", "- 1a2b3c4 on queue: Add the queue"]);
}

/// Regression, read in three of ten sessions: `org/repo#123`, an example in a printed guide whose path has `gh`, was a pull request of the
/// work, and so was a review's page about one; an amended commit stood beside what it became; a commit that a hook had refused was
/// listed as failing after it was made; and `brew` as failing after it had gone on behind `sleep`.
#[test]
fn what_a_later_command_or_another_site_made_of_it_is_not_stated() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "cat skills/gh-fix/a.md", DONE, "see https://github.com/org/repo/pull/123");
    shell(&mut conversation, "gh pr view", DONE, "https://review.io/stack/o/r/pull/17");
    shell(&mut conversation, "git commit -m x", FAILED, "Exit code 1\nleaks found");
    shell(&mut conversation, "brew install bfg", FAILED, "Exit code 1\nlocked");
    shell(&mut conversation, "git commit --no-verify -m x", DONE, "[queue 1a2b3c4] Add the queue");
    shell(&mut conversation, "git add a && git commit --amend -m y", DONE, "[queue 5d6e7f8] Add it");
    shell(&mut conversation, "sleep 9 && brew install bfg | tail -1", DONE, "Bottle bfg");
    let text = carried(&conversation, 5_000);
    assert_eq!(
        part(&text, "Version control, newest first"),
        ["- branch: queue", "- 5d6e7f8 on queue: Add it"]
    );
    assert!(!text.contains("Commands that failed"), "{text}");
}

/// Regression, read in a session that squashed its commits with `git rebase --autosquash`: ten `fixup!` commits were listed with ids that
/// no longer existed, and so was one that was taken back. A branch that a quiet `git checkout -b` made was unknown, and a request was one of the work because a
/// tool that was not known had shown it.
#[test]
fn a_rebase_and_a_quiet_checkout_change_what_is_stated() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "git commit -m x", DONE, "[main 0a0b0c0] Begin");
    shell(&mut conversation, "git checkout -q -B queue origin/main", DONE, "");
    shell(&mut conversation, "git commit -m x", DONE, "[queue 1a2b3c4] Add the queue");
    let rebase = "git commit --fixup=1a2b3c4 && git rebase -i --autosquash main";
    let output = "[queue 5d6e7f8] fixup! Add the queue\nRebasing (1/2)\rSuccessfully rebased and updated refs/heads/queue.";
    shell(&mut conversation, rebase, DONE, output);
    shell(&mut conversation, "git commit -m y", DONE, "[queue 9a9b9c9] Test it");
    shell(&mut conversation, "gh stack view --json", DONE, "https://github.com/o/r/pull/82");
    shell(&mut conversation, "git commit -m z", DONE, "[queue 7a7b7c7] Too early");
    shell(&mut conversation, "git reset --soft HEAD~1", DONE, "");
    shell(&mut conversation, "git checkout -q -b next", DONE, "");
    shell(&mut conversation, "git checkout dev", DONE, "Already on 'dev'");
    let text = carried(&conversation, 5_000);
    let expected = [
        "- branch: dev",
        "- 9a9b9c9 on queue: Test it",
        "- before a rebase on queue: Add the queue",
        "- 0a0b0c0 on main: Begin",
    ];
    assert_eq!(part(&text, "Version control, newest first"), expected);
}

/// Regression: a directory with a hyphen was not entered, so files were listed at paths that don't exist; all names in a patch of
/// several files were those of the first one; and parts of URLs and of code were files.
#[test]
fn files_and_their_names_are_those_that_exist() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "cd /w/sub-dir && cat a.rs ../b.rs && find . -name 'c.rs'", DONE, "");
    let patch = "*** Begin Patch\n*** Update File: one.rs\n+fn first() {}\n*** Add File: two.rs\n+fn second() {}\n*** End Patch";
    conversation.calls_with("apply_patch", json!({ "input": patch }), DONE, "ok");
    let found =
        "app/[id]/page.tsx 3A%2F%2Fhost.js response.json( *_test.go .../cut.ts roles/sql.admin src/real.ts";
    conversation.calls_with("Grep", json!({ "path": "/w" }), DONE, found);
    let text = carried(&conversation, 5_000);
    let files = part(&text, "Files, newest first").concat();
    assert!(files.ends_with("- read or used: b.rs, sub-dir/a.rs"), "{files}");
    assert_eq!(part(&text, "Names defined in edits"), ["- one.rs: first", "- two.rs: second"]);
    assert_eq!(part(&text, "Files named in results"), ["src/real.ts"]);
}

/// Regression: sessions on Windows listed `nul` as changed nine times, names without their separators, and the same file under
/// the path of Git Bash and under that of Windows.
#[test]
fn paths_of_windows_are_relative_too() {
    let mut conversation = TestConversation::in_directory("C:\\repo");
    conversation.calls_with("Read", json!({ "file_path": "c:\\repo\\src\\a.rs" }), DONE, "");
    shell(&mut conversation, "cd /c/repo && cat src/a.rs README.md && cat /c/other/b.rs", DONE, "");
    conversation.calls_with("execute_command", json!({ "command": "type src\\c.rs 2>nul" }), DONE, "");
    conversation.calls_with("execute_command", json!({ "command": "ping host >nul" }), DONE, "");
    shell(&mut conversation, "cd /c/repo && git status", DONE, "On branch main");
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, "Files, newest first"), ["- read or used: C:/other/b.rs, README.md, src/a.rs"]);
    assert_eq!(part(&text, "Version control, newest first"), ["- branch: main"]);
}

/// Regression: the first commit of a repository stayed beside the one that amended it, because its branch was named otherwise; commits were
/// those of the session's directory although the call had another one; and a request that an MCP server had opened was only read.
#[test]
fn a_first_commit_another_directory_and_a_request_by_a_tool_are_understood() {
    let mut conversation = TestConversation::new();
    let elsewhere = json!({ "cmd": "git commit -m x", "workdir": "/other" });
    conversation.calls_with("exec_command", elsewhere, DONE, "[main (root-commit) 1a2b3c4] Begin");
    let amend = json!({ "cmd": "git commit --amend -m y", "workdir": "/other" });
    conversation.calls_with("exec_command", amend, DONE, "[main 5d6e7f8] Begin well");
    let opened = "{\"url\":\"https://github.com/o/r/pull/17\"}";
    conversation.calls_with("mcp__github__create_pull_request", json!({ "title": "x" }), DONE, opened);
    shell(&mut conversation, "gh pr view 17", DONE, "https://github.com/o/r/pull/17");
    let text = carried(&conversation, 5_000);
    assert_eq!(
        part(&text, "Version control, newest first"),
        ["- branch in /other: main; pull requests: o/r#17", "- 5d6e7f8 on main in /other: Begin well"]
    );
}

/// Regression: of eleven files that were moved into a directory, one was listed as created and ten as deleted; and what was asked of a
/// server had the name of a file.
#[test]
fn files_are_moved_into_a_directory() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "mv a.rs b.rs docs/", DONE, "");
    shell(&mut conversation, "mv old.md new.md", DONE, "");
    shell(&mut conversation, "gh api repos/o/r/contents/f.rb", DONE, "");
    let text = carried(&conversation, 5_000);
    let files = part(&text, "Files, newest first").concat();
    for wanted in
        ["new.md (created", "old.md (deleted", "docs/a.rs (created", "docs/b.rs (created", "b.rs (deleted"]
    {
        assert!(files.contains(wanted), "{wanted}: {files}");
    }
    assert!(!files.contains("read or used"), "{files}");
}

/// Regression: the branch of another repository, and a pull request that was only read, were listed as those of the work.
#[test]
fn branches_and_commits_name_another_repository_and_requests_that_were_only_read_are_left_out() {
    let mut conversation = TestConversation::new();
    shell(&mut conversation, "cd /w/src && git commit -m x", DONE, "[queue 1a2b3c4] Add the queue");
    shell(&mut conversation, "cd ../docs && git commit -m y", DONE, "[main 5d6e7f8] Explain it");
    shell(&mut conversation, "git -C /other status", DONE, "On branch old");
    shell(&mut conversation, "gh pr create", DONE, "https://github.com/o/r/pull/17");
    shell(&mut conversation, "gh pr view 17", DONE, "title: x");
    shell(
        &mut conversation,
        "gh pr view 3 -R a/b",
        DONE,
        "\"url\":\"https://b.ot/c).\",\"https://github.com/a/b/pull/3\"",
    );
    shell(&mut conversation, "gh pr merge 17", DONE, "");
    let text = carried(&conversation, 5_000);
    let expected = [
        "- branch in /other: old; branch in ../docs: main; branch: queue; pull requests: o/r#17",
        "- 5d6e7f8 on main in ../docs: Explain it",
        "- 1a2b3c4 on queue: Add the queue",
    ];
    assert_eq!(part(&text, "Version control, newest first"), expected);
}

/// Regression: steps were listed as pending long after they had been done, because the agent had not updated its plan.
#[test]
fn a_plan_says_what_was_done_since_it_was_updated() {
    let mut conversation = TestConversation::new();
    let plan = json!({"todos": [{"content": "parse", "status": "completed"}, {"content": "print", "status": "pending"}]});
    let updated = conversation.calls_with("TodoWrite", plan, DONE, "ok");
    let plan = |conversation: &TestConversation| part(&carried(conversation, 5_000), "Plan").join("\n");
    assert_eq!(plan(&conversation), "- [pending] print\n- [completed] parse");
    conversation.calls_with("Edit", json!({"file_path": "/w/a.rs"}), DONE, "ok");
    conversation.calls_with("Edit", json!({"file_path": "/w/b.rs"}), FAILED, "no match");
    shell(&mut conversation, "git commit -m x", DONE, "[main 1a2b3c4] Print\n");
    shell(&mut conversation, "git commit -m y", DONE, "[main 2b3c4d5] Print more\n");
    let age = format!("(last updated in {updated}; since then 2 commits and 1 edit)\n");
    assert_eq!(plan(&conversation), age + "- [pending] print\n- [completed] parse");
}

#[test]
fn the_newest_message_is_complete_and_older_ones_are_cut() {
    let mut conversation = TestConversation::new();
    conversation.add_prompt("go");
    conversation.replies(format!("OLD {} END", words(2_000)));
    let newest = format!("NEW {} END", words(300));
    conversation.replies(newest.as_str());
    let text = carried(&conversation, 2_000);
    let said = part(&text, "What the agent said, newest last");
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("e2: OLD") && said[0].contains("[…]") && said[0].ends_with("END"),
        "{said:?}"
    );
    assert_eq!(said[1], format!("e3: {newest}"));
}

/// What a document said once was lost as soon as three newer results had followed it: of facts that only a result had, a
/// message contained none.
#[test]
fn older_results_are_quoted_where_they_are_like_no_other() {
    let log = |from: usize| -> String {
        (from..from + 40).map(|at| format!("{at} let a{at}_queue = {};\n", at * 7)).collect()
    };
    let mut conversation = TestConversation::new();
    let said = "The vault of the staging cluster may only be opened by Aura.";
    let text = format!("{}{said}\n{}", log(0), log(40));
    conversation.calls_with("read", json!({"path": "docs/note.md"}), DONE, &text);
    // The same line with another number.
    let numbered = format!("9\t{said}\n");
    let read = conversation.calls_with("read", json!({"path": "docs/note.md"}), DONE, &numbered);
    for at in 1..5 {
        conversation.calls_with("read", json!({"path": "src/a.rs"}), DONE, log(at * 80));
    }
    let text = carried(&conversation, 5_000);
    assert_eq!(part(&text, "Lines of older results"), [format!("- {read} read docs/note.md: 9\t{said}")]);
}

#[test]
fn tables_stay_within_their_token_limit() {
    let mut conversation = TestConversation::new();
    for number in 0..200 {
        shell(&mut conversation, &format!("make target{number}"), FAILED, &words(50));
        conversation.calls_with("Edit", json!({"file_path": format!("/w/src/f{number}.rs")}), DONE, "ok");
        conversation.replies(words(100));
    }
    let ruler = Ruler::for_model(None);
    for tokens_max in [0, 50, 100, 500, 2_000, 10_000] {
        let tokens = ruler.text(&carried(&conversation, tokens_max));
        assert!(tokens <= tokens_max, "{tokens} of {tokens_max}");
        assert!(tokens_max < 500 || tokens * 10 > tokens_max * 7, "{tokens} of {tokens_max} used");
    }
}

/// Regression: an earlier extractor panicked on a pasted `git log --graph`, and the session could never be
/// compacted again. A part that panics is now omitted and listed as missing.
#[test]
fn a_failing_part_loses_only_itself() {
    let failing = |render: bool| {
        let compute: Render = Box::new(move |_| if render { panic!("a bug") } else { "text".into() });
        CarryoverPart { heading: "Plan", share: PartShare::Of(50, 0), render: compute }
    };
    let whole = |text: &str| {
        let text = text.to_owned();
        CarryoverPart {
            heading: "Files",
            share: PartShare::Of(100, 0),
            render: Box::new(move |_| text.clone()),
        }
    };
    let carryover = Carryover { parts: vec![failing(true), whole("a.rs")], failed: vec!["Commands"] };
    assert_eq!(carryover.text(1_000, 0), "## Files\na.rs\n\n(Could not be computed: Commands; Plan.)");
    assert_eq!(guarded::<()>(|| panic!("a bug")), None);
}

/// The two messages that made the earlier extractor panic, as the users sent them.
#[test]
fn drawings_and_tables_in_messages_are_quoted_unchanged() {
    for text in [
        "what happened here?\n\n* commit fe1c1c3\n| Author: Jo <jo@example.com>\n|\n|     Fix src/parse.rs\n|\n* commit 0a1c1c3\n",
        "Plan:\n\n| File | What |\n|---|---|\n| `src/queue.rs` | Rewrite it. |\n\n- do not touch `src/pool.rs`\n",
    ] {
        let mut conversation = TestConversation::new();
        conversation.add_prompt(text);
        conversation.replies(text);
        conversation.calls("bash", text);
        conversation.replies(words(3_000));
        conversation.add_prompt("go on");
        let message = conversation.compact(10_000, Trigger::Manual, KeptTail::Nothing, None);
        assert!(message.contains(text.trim()) && !message.contains("Could not be computed"), "{message}");
    }
}

/// Arbitrary inputs under the keys that the parts read, with texts made of the characters that formats use.
fn any_input() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "command",
        "file_path",
        "path",
        "patch",
        "content",
        "todos",
        "plan",
        "status",
        "taskId",
        "id",
        "subject",
        "new_string",
        "old_string",
        "text",
        "input",
        "session_id",
    ]);
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[|*_`#>~. \\n-]{0,8}",
        "\\PC{0,8}",
        Just("*** Update File: ".to_owned()),
        Just("git commit rm -rf /w/../é.rs".to_owned()),
        Just("[main 1a2b3c4] x\n   1a2b3c4..5d6e7f8  a -> b\n".to_owned()),
        Just("the user said:\n".to_owned()),
        Just("const x = `a${b}`; tools.exec_command({cmd: [\"é\\u00e9\", '".to_owned()),
        Just("Script running with cell ID 7\n".to_owned()),
        Just("cd /w && cat <<E | sort > b.rs\n".to_owned()),
        Just("pub fn ünique".to_owned()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// No text, tool name or input makes a part fail.
    #[test]
    fn every_part_can_be_computed_for_any_conversation(
        calls in prop::collection::vec(
            (
                prop::sample::select(vec!["Bash", "exec", "Edit", "TodoWrite", "TaskCreate", "TaskUpdate", "ExitPlanMode", "x"]),
                any_input(),
                any::<bool>(),
                any_text(),
            ),
            0..8,
        ),
        replies in prop::collection::vec(any_text(), 0..4),
        tokens_max in 0..3_000_u64,
    ) {
        let mut conversation = TestConversation::new();
        for reply in replies {
            conversation.add_prompt(reply.as_str());
            conversation.replies(reply);
        }
        for (tool, input, is_done, text) in calls {
            conversation.calls_with(tool, input, if is_done { DONE } else { FAILED }, text);
        }
        let text = carried(&conversation, tokens_max);
        prop_assert!(!text.contains("Could not be computed"), "{}", text);
        prop_assert!(Ruler::for_model(None).text(&text) <= tokens_max);
    }
}
