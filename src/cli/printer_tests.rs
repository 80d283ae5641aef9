//! The text that users see for a session's events.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::cli::json_lines::JsonLines;
use crate::thread::{
    CallDisplay, Change, Content, Decider, Entry, HookRun, HookRunResult, Message, MessageId, ModelName,
    Origin, PermissionChoice, RecordedDecision, Seq, ToolCall, ToolKind, Trigger, Withheld,
};

#[derive(Clone, Default)]
struct Paper(Rc<RefCell<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).expect("only text is printed")
    }
}

/// Returns the output on stdout and stderr.
fn printed(style: Style, stream: &[ClientEvent]) -> (String, String) {
    let (out, err) = (Paper::default(), Paper::default());
    let mut printer = Printer::new(out.clone(), style, err.clone(), style);
    for item in stream {
        printer.show(item).expect("paper takes everything");
    }
    printer.end().expect("paper takes everything");
    (out.text(), err.text())
}

/// The output of a running command was not shown: users saw only a title for ten minutes of a build.
#[test]
fn a_terminal_shows_the_last_lines_of_what_runs_and_takes_them_back() {
    let call = ToolCall {
        id: CallId("c".into()),
        name: "bash".into(),
        input: json!({}),
        card: CallDisplay { title: "make".into(), ..CallDisplay::default() },
    };
    let progress = |output: &str| ClientEvent::CallProgress { call: call.id.clone(), output: output.into() };
    let stream = |printer: &mut Printer<'_>, quiet: bool| {
        for item in
            [replied(vec![Content::Call(call.clone())]), ClientEvent::CallStarted { call: call.id.clone() }]
        {
            printer.show(&item).expect("paper takes everything");
        }
        if quiet {
            printer.last_print -= QUIET;
        }
        printer.show(&progress("cc a.c\ncc b.c\n")).expect("paper takes everything");
        let outcome = ToolOutcome::text(call.id.clone(), OutcomeStatus::Completed, "built");
        printer.show(&entry(Change::ToolFinished { outcome })).expect("paper takes everything");
    };
    for (style, err_style, is_shown) in [
        (Style::Terminal, Style::Terminal, true),
        (Style::Plain, Style::Terminal, true),
        (Style::Terminal, Style::Plain, false),
        (Style::Plain, Style::Plain, false),
    ] {
        let (out, err) = (Paper::default(), Paper::default());
        let mut printer = Printer::new(out.clone(), style, err.clone(), err_style);
        stream(&mut printer, true);
        let shown = "\r\x1b[2K  0 s · make\n    cc a.c\n    cc b.c";
        let cleared = "\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K";
        let expected = if is_shown { format!("{shown}{cleared}") } else { String::new() };
        assert_eq!(err.text(), expected, "{style:?} {err_style:?}");
        assert!(!out.text().contains("cc a.c"), "{}", out.text());
    }
    // A call that ends immediately is not shown.
    let err = Paper::default();
    stream(&mut Printer::new(Paper::default(), Style::Terminal, err.clone(), Style::Terminal), false);
    assert_eq!(err.text(), "");
}

/// Regression: the line of numbers with the title of a command was longer than a row of 80 columns, so each update left
/// one behind.
#[test]
fn the_progress_line_stays_in_its_row() {
    let card = CallDisplay { title: "世".repeat(100), ..CallDisplay::default() };
    let call = ToolCall { id: CallId("c".into()), name: "bash".into(), input: json!({}), card };
    let err = Paper::default();
    let mut printer = Printer::new(Paper::default(), Style::Plain, err.clone(), Style::Terminal);
    for item in [replied(vec![Content::Call(call.clone())]), ClientEvent::CallStarted { call: call.id }] {
        printer.show(&item).expect("paper takes everything");
    }
    printer.last_print -= QUIET;
    printer.tick().expect("paper takes everything");
    let text = err.text();
    let row = text.strip_prefix("\r\x1b[2K").expect("one row");
    let columns: usize = row.chars().map(|c| if c == '世' { 2 } else { 1 }).sum();
    assert!(row.starts_with("  0 s · 世") && columns <= terminal::columns(), "{row}");
}

/// Regression: `epitome hooks trust` was advised for everything that a repository brings. It only approves hooks.
#[test]
fn the_advice_about_what_a_repository_brings_fits_its_kind() {
    for (what, is_for_hooks) in [("hooks", true), ("MCP servers", false), ("recipes", false)] {
        let err = Paper::default();
        let mut printer = Printer::new(Paper::default(), Style::Plain, err.clone(), Style::Plain);
        let ask = PermissionRequest {
            call: CallId("c".into()),
            tool: "trust".into(),
            input: json!({ "what": what, "count": 1 }),
            card: CallDisplay { title: format!("Run 1 of the {what}?"), ..CallDisplay::default() },
            preview: Vec::new(),
            because: None,
            always: None,
            never: None,
            agent: None,
        };
        printer.decided(&ask, &UserDecision::Absent).expect("paper takes everything");
        let text = err.text();
        assert_eq!(text.contains("epitome hooks trust"), is_for_hooks, "{text}");
        assert!(text.contains("--trust-hooks for one run."), "{text}");
    }
}

/// Regression: `--allow` was advised where a mistake in the user's rules asked the question, which it doesn't answer.
#[test]
fn a_question_that_a_mistake_requires_names_the_mistake() {
    let err = Paper::default();
    let mut printer = Printer::new(Paper::default(), Style::Plain, err.clone(), Style::Plain);
    let ask = PermissionRequest {
        call: CallId("c".into()),
        tool: "bash".into(),
        input: json!({}),
        card: CallDisplay { title: "ls".to_owned(), ..CallDisplay::default() },
        preview: Vec::new(),
        because: Some("config.toml:3 has a mistake.".to_owned()),
        always: None,
        never: None,
        agent: None,
    };
    printer.decided(&ask, &UserDecision::Absent).expect("paper takes everything");
    let text = err.text();
    assert!(text.ends_with("ls. config.toml:3 has a mistake.\n") && !text.contains("--allow"), "{text}");
}

fn streamed(part: u32, kind: TextKind, text: &str) -> ClientEvent {
    ClientEvent::Text { message: MessageId(1), part, kind, text: text.to_owned() }
}

fn entry(change: Change) -> ClientEvent {
    ClientEvent::Entry { entry: Arc::new(Entry { seq: Seq(9), at: 0, change }), replay: false }
}

fn replied(content: Vec<Content>) -> ClientEvent {
    let message = Message { id: MessageId(1), content, author: None };
    entry(Change::Replied { message, model: ModelName("local/small".to_owned()), usage: None, cut: None })
}

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn edit() -> Content {
    Content::Call(ToolCall {
        id: CallId("c1".to_owned()),
        name: "file_edit".to_owned(),
        input: json!({}),
        card: CallDisplay { title: "Edit a.txt".to_owned(), kind: ToolKind::Edit, locations: Vec::new() },
    })
}

fn edited(status: OutcomeStatus) -> ClientEvent {
    let mut outcome = ToolOutcome::text(CallId("c1".to_owned()), status, "the text for the model");
    if status == OutcomeStatus::Completed {
        let (old, new) = (Some("one\ntwo\n".to_owned()), "one\n2\n".to_owned());
        outcome.shown = vec![ToolDisplay::Diff { path: "/w/a.txt".into(), old, new }];
    }
    entry(Change::ToolFinished { outcome })
}

#[test]
fn a_turn_reads_as_text_calls_and_diffs() {
    let (out, err) = printed(
        Style::Plain,
        &[
            streamed(0, TextKind::Reply, "I change "),
            streamed(0, TextKind::Reply, "it."),
            replied(vec![text("I change it."), edit()]),
            edited(OutcomeStatus::Completed),
            ClientEvent::Text {
                message: MessageId(2),
                part: 0,
                kind: TextKind::Reply,
                text: "Done.\n".to_owned(),
            },
        ],
    );
    let expected = "\
I change it.

● Edit a.txt → completed
      one
    - two
    + 2

Done.
";
    assert_eq!(out, expected);
    assert_eq!(err, "");
}

#[test]
fn text_that_was_not_streamed_comes_with_its_entry() {
    let (out, _) = printed(
        Style::Plain,
        &[streamed(0, TextKind::Reply, "The first "), replied(vec![text("The first half and the other.")])],
    );
    assert_eq!(out, "The first half and the other.\n");
}

#[test]
fn thinking_is_shown_to_those_who_watch_and_is_not_in_files() {
    let stream = [
        streamed(0, TextKind::Thinking, "Hm."),
        streamed(1, TextKind::Reply, "Yes."),
        replied(vec![Content::Thinking { text: "Hm.".to_owned(), native: None }, text("Yes.")]),
    ];
    assert_eq!(printed(Style::Plain, &stream).0, "Yes.\n");
    assert_eq!(printed(Style::Terminal, &stream).0, "Hm.\n\nYes.\n");
    assert_eq!(printed(Style::Colors, &stream).0, "\x1b[2mHm.\x1b[0m\n\nYes.\n");
}

/// Titles for editors are Markdown, and after a refusal the user saw the text for the model.
#[test]
fn a_refused_call_is_shown_without_markdown_and_without_the_models_text() {
    let read = ToolCall {
        id: CallId("c1".to_owned()),
        name: "file_read".to_owned(),
        input: json!({}),
        card: CallDisplay {
            title: "Read `src/__init__.py`".to_owned(),
            kind: ToolKind::Read,
            locations: Vec::new(),
        },
    };
    let by = Decider::Person { answer: PermissionChoice::No };
    let outcome = ToolOutcome {
        decided: Some(RecordedDecision { allowed: false, by }),
        ..ToolOutcome::text(read.id.clone(), OutcomeStatus::Denied, "Don't try the same again.")
    };
    let finished = entry(Change::ToolFinished { outcome });
    let (out, _) = printed(Style::Plain, &[replied(vec![Content::Call(read)]), finished]);
    assert_eq!(out, "● Read src/__init__.py → refused by you\n");
}

#[test]
fn a_denied_call_says_why() {
    let (out, _) = printed(Style::Plain, &[replied(vec![edit()]), edited(OutcomeStatus::Denied)]);
    assert_eq!(out, "● Edit a.txt → denied\n    the text for the model\n");
}

#[test]
fn markdown_is_rendered_on_a_terminal_and_nothing_of_it_is_lost_before_a_call() {
    let stream = [
        streamed(0, TextKind::Reply, "I **change** `a"),
        streamed(0, TextKind::Reply, "`. Then \x1b[2J**this"),
        replied(vec![text("I **change** `a`. Then \x1b[2J**this"), edit()]),
        edited(OutcomeStatus::Denied),
    ];
    let shown = |style: Style| {
        let out = Paper::default();
        let mut printer = Printer::new(out.clone(), style, io::sink(), style).rendering(80);
        stream.iter().for_each(|item| printer.show(item).expect("paper takes everything"));
        printer.end().expect("paper takes everything");
        out.text()
    };
    let terminal = shown(Style::Colors);
    let reply = "I \x1b[1mchange\x1b[0m \x1b[36ma\x1b[0m. Then \\u{1b}[2J**this\n\n";
    assert!(terminal.starts_with(reply), "{terminal:?}");
    assert!(
        shown(Style::Plain).starts_with("I **change** `a`. Then \\u{1b}[2J**this\n\n"),
        "pipes get it raw"
    );
}

#[test]
fn remarks_go_to_stderr_and_the_past_is_not_repeated() {
    let said = Change::Said {
        message: Message { id: MessageId(0), content: vec![text("hello")], author: None },
        origin: Origin::Person,
    };
    let past =
        ClientEvent::Entry { entry: Arc::new(Entry { seq: Seq(1), at: 0, change: said }), replay: true };
    let notice =
        ClientEvent::Notice { severity: NoticeSeverity::Warning, text: "Trying again in 1.0 s.".to_owned() };
    let (out, err) = printed(Style::Plain, &[past, notice]);
    assert_eq!((out.as_str(), err.as_str()), ("", "Trying again in 1.0 s.\n"));
}

#[test]
fn a_compaction_is_one_line() {
    let change = Change::Compacted {
        through: Seq(4),
        summary: Message { id: MessageId(3), content: vec![text("all that was")], author: None },
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 42_000,
        tokens_after: 1_500,
        window: Some(200_000),
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    };
    let (out, _) = printed(Style::Plain, &[entry(change)]);
    assert_eq!(out, "Compacted: context 42.0k → 1.5k of 200k. /undo undoes it.\n");
}

#[test]
fn what_hooks_did_is_one_line_each() {
    let message = |text: &str| Message { id: MessageId(5), content: vec![self::text(text)], author: None };
    let said = |origin| entry(Change::Said { message: message("Run the linter."), origin });
    let (out, err) = printed(
        Style::Plain,
        &[
            said(Origin::Person),
            said(Origin::Context { by: "style".to_owned() }),
            said(Origin::Hook { hook: "lint".to_owned() }),
            entry(Change::Withheld {
                message: message("hello"),
                note: MessageId(6),
                why: Withheld::Blocked { hook: "guard".to_owned(), reason: "A secret.".to_owned() },
            }),
            entry(Change::Hooked { event: "turn_end".to_owned(), runs: vec![HookRun::default()] }),
            entry(Change::GoalSet { goal: Some("green".to_owned()) }),
        ],
    );
    assert_eq!((out.as_str(), err.as_str()), ("↻ lint: Run the linter.\nA secret.\nGoal: green\n", ""));
}

#[test]
fn json_output_has_each_run_of_a_hook() {
    let paper = Paper::default();
    let mut lines = JsonLines::new(paper.clone());
    let run = HookRun {
        hook: "lint".to_owned(),
        event: "Stop".to_owned(),
        asked: "continue".to_owned(),
        verdict: HookRunResult::Done,
        remarks: vec!["a banner".to_owned()],
        ..HookRun::default()
    };
    let runs = vec![run, HookRun { verdict: HookRunResult::Skipped, ..HookRun::default() }];
    lines
        .show(&entry(Change::Hooked { event: "agent_stop".to_owned(), runs }))
        .expect("paper takes everything");
    let printed: Vec<serde_json::Value> =
        paper.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        printed[0],
        json!({ "type": "hook", "hook": "lint", "event": "Stop", "asked": "continue", "verdict": "done",
            "remarks": ["a banner"] })
    );
    assert_eq!((printed.len(), &printed[1]["verdict"]), (2, &json!("skipped")));
}

#[test]
fn a_model_cannot_write_escapes_to_the_terminal() {
    let (out, _) = printed(Style::Colors, &[streamed(0, TextKind::Reply, "\x1b[2Jgone")]);
    assert_eq!(out, "\\u{1b}[2Jgone\n");
}

#[test]
fn a_command_in_a_question_is_shown_without_its_markdown() {
    let shown = |text: &str| shown_lines(&[ToolDisplay::Text { text: text.to_owned() }], Style::Plain, 10);
    assert_eq!(shown("```sh\ncargo test\n```"), ["cargo test"]);
    assert_eq!(shown("```sh\ncat <<E\n```\nE\n```\n"), ["cat <<E", "```", "E"]);
    assert_eq!(shown("plain\n```"), ["plain", "```"]);
}

/// A question was truncated after 200 lines: a second command after two hundred empty lines was never on screen.
#[test]
fn a_question_shows_all_that_it_asks_about() {
    let asked = |preview: Vec<ToolDisplay>| {
        let permission = PermissionRequest {
            call: CallId("c".to_owned()),
            tool: "bash".to_owned(),
            input: json!({}),
            card: CallDisplay { title: "ls\u{200b}".to_owned(), ..CallDisplay::default() },
            preview,
            because: None,
            always: Some("exactly\u{202e} this".to_owned()),
            never: None,
            agent: None,
        };
        let mut err = Vec::new();
        Printer::new(io::sink(), Style::Plain, &mut err, Style::Plain).question(&permission).expect("memory");
        String::from_utf8(err).expect("text")
    };
    let text = |text: String| vec![ToolDisplay::Text { text }];
    let hidden = asked(text(format!("```sh\nls{}rm -rf src\n```", "\n".repeat(200))));
    assert!(hidden.contains("ls\n    ⋯ 199 empty lines\n    rm -rf src\n"), "{hidden}");
    assert!(
        hidden.starts_with("? ls\\u{200b}\n") && hidden.contains("allow exactly\\u{202e} this"),
        "{hidden}"
    );
    let long: String = (0..900).map(|number| format!("echo {number}\n")).collect();
    let long = asked(text(long));
    assert!(long.contains("echo 0\n") && long.contains("echo 899\n") && long.contains("900 lines"), "{long}");
    let change = |new: String| vec![ToolDisplay::Diff { path: "/w/a".into(), old: None, new }];
    let change_shown = asked(change(format!("a\n{}z\n", "\n".repeat(50))));
    assert!(change_shown.contains("/w/a\n    + a\n    +⋯ 50 empty lines\n    + z\n"), "{change_shown}");
    let huge = change("x\n".repeat(400_000));
    assert!(!is_shown_whole(&huge) && !asked(huge).contains("[y]es"));
}
