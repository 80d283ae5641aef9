//! What the ledger finds in conversations as people have them, and what it doesn't take for a fact.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Ledger, Told};
use crate::thread::{
    CallId, Card, Change, Content, Edit, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin,
    OutcomeStatus, Part, PlanPriority, PlanStatus, PlanStep, Seq, SessionId, Thread, ToolCall, ToolKind,
    ToolOutcome, Withheld,
};
use crate::tokens::Ruler;

/// More than all that these conversations hold.
const PLENTY: u64 = 100_000;

pub(super) enum Line<'a> {
    Person(&'a str),
    Agent(&'a str),
    /// A command, what it printed, and its exit code.
    Run(&'a str, &'a str, i64),
    /// A tool's name, its input, and what came of it.
    Tool(&'a str, serde_json::Value, &'a str),
}

use Line::{Agent, Person, Run, Tool};

pub(super) fn opened() -> Thread {
    let session = SessionId("s_00000000000000000001".into());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    Thread::replay([Arc::new(Entry { seq: Seq(0), at: 0, change: opened })]).expect("an opened thread")
}

pub(super) fn append(thread: &mut Thread, change: Change) -> Seq {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
    seq
}

fn message(content: Vec<Content>) -> Message {
    Message { id: MessageId(0), content }
}

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

pub(super) fn say(thread: &mut Thread, line: &Line) {
    let model = ModelName("a/b".into());
    match line {
        Person(words) => {
            append(thread, Change::Said { message: message(vec![text(words)]), origin: Origin::Person });
        }
        Agent(words) => {
            append(
                thread,
                Change::Replied { message: message(vec![text(words)]), model, usage: None, cut: None },
            );
        }
        Run(command, printed, code) => {
            let raw = serde_json::json!({"stdout": printed, "stderr": "", "exitCode": code});
            let input = serde_json::json!({"command": command, "description": "x"});
            call(
                thread,
                "bash",
                ToolKind::Execute,
                input,
                &format!("{printed}\n[exit code {code}]"),
                Some(raw),
            );
        }
        Tool(name, input, printed) => {
            let kind = match *name {
                "file_read" => ToolKind::Read,
                "file_edit" | "file_write" => ToolKind::Edit,
                "grep_tool" => ToolKind::Search,
                _ => ToolKind::Other,
            };
            call(thread, name, kind, input.clone(), printed, None);
        }
    }
}

fn call(
    thread: &mut Thread,
    name: &str,
    kind: ToolKind,
    input: serde_json::Value,
    printed: &str,
    raw: Option<serde_json::Value>,
) {
    let id = CallId(format!("c{}", thread.next_seq().0));
    let card = Card { title: String::new(), kind, locations: Vec::new() };
    let asked = Content::Call(ToolCall { id: id.clone(), name: name.to_owned(), input, card });
    append(
        thread,
        Change::Replied {
            message: message(vec![asked]),
            model: ModelName("a/b".into()),
            usage: None,
            cut: None,
        },
    );
    let outcome = ToolOutcome { raw, ..ToolOutcome::text(id, OutcomeStatus::Completed, printed) };
    append(thread, Change::ToolFinished { outcome });
}

pub(super) fn thread(lines: &[Line]) -> Thread {
    let mut thread = opened();
    for line in lines {
        say(&mut thread, line);
    }
    thread
}

pub(super) fn told_of(thread: &Thread, tokens_max: u64) -> Told {
    let mut ledger = Ledger::default();
    ledger.follow(thread);
    ledger.told(&Ruler::of(None), thread, &HashSet::new(), tokens_max)
}

pub(super) fn told(lines: &[Line]) -> String {
    told_of(&thread(lines), PLENTY).text
}

/// The lines below a heading that begins so.
pub(super) fn below(told: &str, heading: &str) -> String {
    let rest = told.lines().skip_while(|line| !line.starts_with(&format!("## {heading}")));
    rest.skip(1).take_while(|line| !line.starts_with("## ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_the_person_wants_is_quoted() {
    for words in [
        "Never touch the generated files in src/gen.",
        "Please don't reformat files you are not changing",
        "Everything has to work on Rust 1.80.",
        "All new code must be covered by tests",
        "Keep the public API backwards compatible.",
        "I'd rather have three small commits than a big one.",
        "Use tabs, not spaces.",
        "no new dependencies, please",
        "The demo is on Thursday, so this has to be done by Wednesday evening.",
        "You are not allowed to push to main.",
        "Ask me before you run any migration.",
        "Antworte bitte immer auf Deutsch.",
        "Ne touche jamais au dossier legacy.",
        "请不要修改测试文件。",
        "The staging cluster is off limits.",
        "Commit messages should be in imperative mood",
        "Prefer `anyhow` over `eyre` in the binaries",
        "leave migrations/ alone",
        "Only the cli crate may print to stdout.",
        "The response should stay under 200 ms at p99.",
    ] {
        let told = told(&[Person(words)]);
        let wanted = below(&told, "What the person wants");
        assert!(wanted.contains(words.trim_end_matches('\n')), "{words}: {told}");
    }
}

#[test]
fn talk_is_no_rule() {
    for words in [
        "Thanks, that looks great!",
        "What does this function return?",
        "ok, go on",
        "Hm, interesting.",
        "fn must_never(only: bool) { always(); }",
        "{\"must\": true, \"never\": {\"only\": [1, 2, 3]}, \"dont\": {}}",
    ] {
        let told = told(&[Person(words)]);
        assert_eq!(below(&told, "What the person wants"), "", "{words}");
    }
}

#[test]
fn what_the_person_took_back_is_not_told() {
    for (rule, back) in [
        ("Don't touch the tests.", "You may touch the tests now."),
        ("Never run the integration suite.", "Forget what I said about the integration suite."),
        ("Only use the standard library.", "Scratch that."),
        ("Please answer in French only.", "Never mind the French answers."),
        ("Don't use any new crates.", "It's fine to use new crates after all."),
    ] {
        let other = "Always sign your commits.";
        let told = told(&[Person(other), Agent("Understood."), Person(rule), Agent("Sure."), Person(back)]);
        assert!(!told.contains(&format!("- {rule} (")), "{back}: {told}");
        assert!(told.contains(other), "{back}: {told}");
    }
    let other =
        told(&[Person("Don't use the old helper."), Person("You can use the new helper for the parser.")]);
    assert!(other.contains("Don't use the old helper."), "{other}");
}

#[test]
fn decisions_and_rejections_come_with_their_reasons() {
    for (words, heading, piece) in [
        (
            "I looked around. We'll go with SQLite because there is only one writer.",
            "Decided",
            "SQLite because there is only one writer",
        ),
        (
            "After some benchmarks I settled on zstd level 3. Reason: it is twice as fast as gzip here.",
            "Decided",
            "twice as fast",
        ),
        (
            "I tried a RwLock. That didn't work because readers starve the writer.",
            "Tried",
            "I tried a RwLock. That didn't work because readers starve",
        ),
        (
            "Streaming the rows is not an option: the driver buffers everything.",
            "Tried",
            "the driver buffers everything",
        ),
        ("The root cause is a missing index on orders.customer_id.", "Decided", "orders.customer_id"),
        ("I reverted the connection pool since it deadlocks under load.", "Tried", "deadlocks under load"),
        (
            "Let's use UUIDv7 instead of serial ids, so that shards don't collide.",
            "Decided",
            "UUIDv7 instead of serial",
        ),
        (
            "Memcached was ruled out, it can't do atomic increments across keys.",
            "Tried",
            "Memcached was ruled out",
        ),
    ] {
        for told in [told(&[Agent(words)]), told(&[Person(words)])] {
            assert!(told.contains(piece), "{words}: {told}");
        }
        let told = told(&[Agent(words)]);
        assert!(below(&told, heading).contains(piece), "{words}: {told}");
    }
}

#[test]
fn an_agent_that_thinks_aloud_decides_nothing() {
    for words in [
        "Let me look at the parser first.",
        "I'll check the tests now.",
        "Now I will read the file.",
        "Here is the function.",
        "Great, all green!",
    ] {
        assert_eq!(told(&[Agent(words)]), "", "{words}");
    }
}

#[test]
fn what_an_agent_quotes_of_a_manual_comes_behind_what_was_decided() {
    let manual = "A reply is cut because its budget ran out. Pending calls are waiting for their outcomes. \
                  The file is missing at the end of a run.\n\n| name | must |\n|---|---|\n| port | never 80 |\n";
    let told = told(&[Agent(&manual.repeat(3)), Agent("We keep the old parser because it is faster.")]);
    let decided = below(&told, "Decided");
    assert!(decided.starts_with("- We keep the old parser"), "{told}");
    assert!(!told.contains("never 80"), "{told}");
}

#[test]
fn one_sentence_is_told_once() {
    let told = told(&[
        Person("Never push to main, use `release/9` instead."),
        Agent("Never push to main, use `release/9` instead."),
        Agent("I tried a RwLock. That didn't work because readers starve."),
    ]);
    assert_eq!(told.matches("Never push to main").count(), 1, "{told}");
    assert_eq!(told.matches("I tried a RwLock").count(), 1, "{told}");
    assert_eq!(told.matches("release/9").count(), 1, "{told}");
    assert!(below(&told, "What the person wants").contains("Never push"), "{told}");
}

#[test]
fn a_call_that_was_refused_is_told() {
    let mut thread = opened();
    for (id, line, why) in [
        ("c1", "git push --force", "The person said no to this call. Don't try the same again."),
        ("c2", "rm -rf /", "The recipe that runs may not use bash."),
    ] {
        let card = Card { title: String::new(), kind: ToolKind::Execute, locations: Vec::new() };
        let input = serde_json::json!({"command": line});
        let asked = Content::Call(ToolCall { id: CallId(id.into()), name: "bash".into(), input, card });
        let model = ModelName("a/b".into());
        append(&mut thread, Change::Replied { message: message(vec![asked]), model, usage: None, cut: None });
        let outcome = ToolOutcome::text(CallId(id.into()), OutcomeStatus::Denied, why);
        append(&mut thread, Change::ToolFinished { outcome });
    }
    let told = told_of(&thread, PLENTY).text;
    let refused = below(&told, "Tried");
    assert!(refused.contains("The person refused `git push --force`. (e2)"), "{told}");
    assert!(
        refused.contains("`rm -rf /` was not allowed: The recipe that runs may not use bash. (e4)"),
        "{told}"
    );
}

#[test]
fn what_is_pending_is_told_until_it_is_done() {
    let tasks = [
        "We still need to document the retry flags in docs/cli.md.",
        "TODO: remove the shim in `compat.rs` once 2.0 is out",
        "Adding metrics for the upload queue is left for later.",
        "Don't forget to bump the changelog.",
        "- [ ] wire the cancel button",
        "The error page has not been translated yet, that is still open.",
    ];
    for task in tasks {
        let told = told(&[Agent(task), Agent("Looking at something else.")]);
        let piece = task.trim_start_matches("- [ ] ");
        assert!(below(&told, "Still to do").contains(piece), "{task}: {told}");
    }
    let mut lines: Vec<Line> = tasks.iter().map(|task| Person(task)).collect();
    lines.push(Agent("Done: I bumped the changelog. I documented the retry flags in docs/cli.md."));
    lines.push(Agent("- [x] wire the cancel button"));
    let told = told(&lines);
    let open = below(&told, "Still to do");
    for gone in ["document the retry", "changelog", "cancel button"] {
        assert!(!open.contains(gone), "{gone}: {open}");
    }
    assert!(open.contains("upload queue") && open.contains("compat.rs"), "{open}");
}

#[test]
fn lists_below_a_heading_are_what_it_says() {
    let rules = told(&[Person(
        "Ground rules:\n- tests stay green at each commit\n- Python 3.9 compatible\n\nThe rest is free.",
    )]);
    assert!(below(&rules, "What the person wants").contains("Python 3.9 compatible (e1)"), "{rules}");
    let tasks =
        told(&[Agent("Remaining:\n1. hook up the exporter\n2. [x] write the parser\n3. flaky login test")]);
    let open = below(&tasks, "Still to do");
    assert!(
        open.contains("hook up the exporter")
            && open.contains("flaky login")
            && !open.contains("write the parser"),
        "{tasks}"
    );
}

#[test]
fn the_plan_is_told_without_what_is_done() {
    let mut thread = thread(&[Person("Go.")]);
    let step =
        |content: &str, status| PlanStep { content: content.into(), status, priority: PlanPriority::Medium };
    let steps = vec![
        step("read it", PlanStatus::Completed),
        step("change it", PlanStatus::InProgress),
        step("test it", PlanStatus::Pending),
    ];
    append(&mut thread, Change::Planned { steps });
    let told = told_of(&thread, PLENTY).text;
    assert_eq!(below(&told, "Still to do"), "- change it [in progress] (e2, plan)\n- test it (e2, plan)");
}

#[test]
fn of_a_value_only_the_newest_is_told() {
    for (old, new, gone, holds) in [
        ("The server listens on port 8080.", "The port is now 8081.", "8080", "8081"),
        ("The retry limit is 5.", "Bump the retry limit to 8.", "limit is 5", "8"),
        ("The upload timeout is 30s.", "The timeout for uploads changed from 30s to 45s.", "is 30s", "45s"),
        ("MAX_CONNECTIONS=20", "Set MAX_CONNECTIONS to 50.", "=20", "50"),
        ("max_connections: 20", "max_connections = 35", ": 20", "35"),
        (
            "We deploy from the branch `release/1.4`.",
            "The release branch was renamed from `release/1.4` to `release/2.0`.",
            "deploy from the branch `release/1.4`",
            "release/2.0",
        ),
        ("The cap is 100 requests.", "Let's raise the limit to 250 requests.", "100", "250"),
        (
            "The staging host is kiwi-1.internal.",
            "The staging host is now kiwi-7.internal.",
            "kiwi-1",
            "kiwi-7",
        ),
        (
            "Postgres version 14.2 runs there.",
            "We upgraded Postgres from 14.2 to 16.1.",
            "version 14.2",
            "16.1",
        ),
        ("The owner is Dana.", "The owner is now Robin.", "Dana", "Robin"),
        ("Let's start with 20 s for the idle timeout.", "Take 45 s for the idle timeout.", "20 s", "45 s"),
        (
            "The batch size is 64",
            "actually, make that a batch size of 128: the batch size is 128 now",
            "is 64",
            "128",
        ),
    ] {
        let cases = [
            told(&[Person(old), Agent("Noted."), Person(new)]),
            told(&[Agent(old), Person("Hm."), Agent(new)]),
            told(&[Person(old), Agent(new), Agent("More of it.")]),
        ];
        for told in cases {
            assert!(told.contains(holds), "{new}: {told}");
            let current = told
                .lines()
                .filter(|line| line.contains(gone))
                .all(|line| line.contains("from") || line.contains("[now "));
            assert!(current, "{old} / {new}: {told}");
        }
    }
}

#[test]
fn values_of_different_things_stand_side_by_side() {
    let told = told(&[
        Person("The web port is 8080."),
        Person("The database port is 5432."),
        Person("The metrics port is now 9100."),
        Agent("The read timeout is 5s and the write timeout is 10s."),
    ]);
    for value in ["8080", "5432", "9100", "5s", "10s"] {
        assert!(told.contains(value), "{value}: {told}");
    }
    assert!(!told.contains("[now "), "{told}");
}

#[test]
fn a_value_that_comes_back_holds_again() {
    let told = told(&[Person("The limit is 5."), Person("The limit is now 8."), Person("The limit is 5.")]);
    assert!(told.contains("The limit is 5. (e1, e3)"), "{told}");
    assert!(!told.lines().any(|line| line.contains("now 8") && !line.contains("[now ")), "{told}");
}

#[test]
fn names_that_somebody_will_need_are_told() {
    let told = told(&[
        Person("Look at PROJ-4312 and https://wiki.corp/x/42, the commit is 3f9a1c7e"),
        Run("./deploy", "Created deployment dpl_8Xk29aQp in 3s", 0),
    ]);
    for name in ["PROJ-4312", "https://wiki.corp/x/42", "3f9a1c7e", "dpl_8Xk29aQp"] {
        assert!(told.contains(name), "{name}: {told}");
    }
}

#[test]
fn what_a_hook_rewrote_is_not_brought_back_until_that_is_undone() {
    let mut thread =
        thread(&[Person("The password is hunter2-4711."), Agent("Noted."), Person("Never print it.")]);
    assert!(told_of(&thread, PLENTY).text.contains("hunter2"));
    let at = Part { entry: Seq(1), part: None };
    let edits = vec![Edit::Mask { at, note: "secret".into() }];
    let layer = append(&mut thread, Change::Edited { by: "h".into(), edits });
    let told = told_of(&thread, PLENTY).text;
    assert!(!told.contains("hunter2") && told.contains("Never print it."), "{told}");
    append(&mut thread, Change::Undone { entry: layer });
    assert!(told_of(&thread, PLENTY).text.contains("hunter2"));
    let through = thread.next_seq();
    append(
        &mut thread,
        Change::Mutated {
            through: Seq(through.0 - 1),
            messages: Vec::new(),
            by: "h".into(),
            tokens_before: 9,
            tokens_after: 1,
        },
    );
    assert_eq!(told_of(&thread, PLENTY).text, "");
}

#[test]
fn what_never_entered_the_view_is_no_fact() {
    let mut thread = opened();
    append(
        &mut thread,
        Change::Withheld {
            message: message(vec![text("Never use port 9999.")]),
            note: MessageId(1),
            why: Withheld::Cancelled,
        },
    );
    let quoting =
        [Tool("recall", serde_json::json!({"query": "port"}), "e3: The port is now 9999. error: boom")];
    quoting.iter().for_each(|line| say(&mut thread, line));
    assert_eq!(told_of(&thread, PLENTY).text, "");
}

#[test]
fn what_stays_in_view_is_not_told_twice() {
    let thread = thread(&[Person("Never push."), Agent("Sure."), Person("Always rebase.")]);
    let mut ledger = Ledger::default();
    ledger.follow(&thread);
    let told = ledger.told(&Ruler::of(None), &thread, &HashSet::from([Seq(3)]), PLENTY);
    assert!(told.text.contains("Never push.") && !told.text.contains("rebase"), "{}", told.text);
}

#[test]
fn odd_texts_are_read_without_harm() {
    let long = format!("{}error: x{}", "a b ".repeat(100_000), " must never = 5".repeat(100_000));
    let line = "x".repeat(10 << 20);
    for text in [
        "",
        "\n",
        ".",
        "never",
        "must.",
        "。",
        "a\u{0}b = 1",
        "```",
        "```\nerror: x",
        "=",
        ": 5",
        "`=`",
        "ééé never ÄÖÜ = 5é",
        &long,
        &line,
    ] {
        told(&[
            Person(text),
            Agent(text),
            Run("make", text, 1),
            Run(&text[..text.len().min(64)], text, 0),
            Tool("file_read", serde_json::json!({"file_path": "a.json"}), text),
        ]);
    }
}

/// People and files called the same setting by different words, so that its old value stood beside the new one.
#[test]
fn a_part_of_a_named_thing_has_one_value_however_it_is_put() {
    for (old, new) in [
        (
            "Can you move the listen port of `web_gate` from 7080 to 7081?",
            "The load test shows that 7090 works better for the listen port of `web_gate`, so it's set to that.",
        ),
        (
            "I'd say 7081 for the primary port of `web_gate`, we'll see",
            "the port for `web_gate`: make that 7090 please",
        ),
    ] {
        let told = told(&[Person(old), Agent(new)]);
        assert!(told.contains("7090") && !told.contains("7081"), "{told}");
    }
}
