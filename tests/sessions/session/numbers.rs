//! The number of tokens in context is the same wherever it is shown.

use epitome::session::{SessionAnswer, SessionEvent};
use epitome::thread::text::{context, tokens};
use epitome::thread::{Change, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::{text, write_file};
use serde_json::{Value, json};

const WINDOW: u64 = 1_000_000;

/// Configures compactions without a model, so that a dry run can predict the exact number of tokens.
fn without_a_model() -> Vec<(String, String)> {
    vec![("home/config.toml".to_owned(), "[compaction]\nmodel = \"none\"\n".to_owned())]
}

fn came_to(test: &mut TestSession, typed: &str) -> Value {
    let ticket = test.prompt(typed);
    match test.client.answer(ticket) {
        Ok(SessionAnswer::TurnEnded { meta, .. }) => {
            meta.unwrap_or_default()["epitome"]["compaction"].clone()
        }
        other => panic!("a turn's end was expected: {other:?}"),
    }
}

/// The note that a command prints.
fn said(test: &mut TestSession, typed: &str) -> String {
    assert_eq!(test.ask(typed), StopReason::EndTurn);
    let said = test.log().iter().rev().find_map(|entry| match &entry.change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    });
    said.expect("it says something")
}

/// The value that the client's usage display shows.
fn meter(test: &TestSession) -> u64 {
    let shown = test.client.seen.iter().rev().find_map(|out| match out {
        SessionEvent::Usage(usage) => Some(usage.used),
        _ => None,
    });
    shown.expect("a meter")
}

/// Regression: with a provider that counted 0.8 tokens for four bytes, the usage display rose at a compaction, because
/// the reported number was replaced by Epitome's estimate of the rest. The result showed the tokens of the history,
/// `/context` an estimate of the entire request, and the dry run both of these and the reported number.
#[test]
fn context_never_grows_at_a_compaction_and_is_consistent_everywhere() {
    // A request of about 11,000 tokens by Epitome's estimate.
    for reported in [3_000, 9_000, 30_000] {
        let mut test = Setup::with_files(&without_a_model()).start(move |_| {
            vec![
                ModelStep::Usage { input: reported, output: 10 },
                text(&"Walnuts grow on trees. ".repeat(300)),
            ]
        });
        for prompt in ["one", "two"] {
            assert_eq!(test.ask(&format!("{prompt} {}", "word and word ".repeat(500))), StopReason::EndTurn);
        }
        let before = meter(&test);
        assert_eq!(before, reported + 10);
        let dry = came_to(&mut test, "/compact dry");
        let planned = said(&mut test, "/compact dry");
        let done = came_to(&mut test, "/compact");
        let after = meter(&test);
        assert!(0 < after && after < before, "{before} → {after}");
        for report in [dry, done] {
            assert_eq!(
                (&report["pre_tokens"], &report["post_tokens"]),
                (&before.into(), &after.into()),
                "{report}"
            );
        }
        let sizes = context(before, after, WINDOW);
        assert!(planned.contains(&sizes), "{sizes} in {planned}");
        let history = said(&mut test, "/history");
        assert!(history.contains(&sizes), "{sizes} in {history}");
        let shown = said(&mut test, "/context");
        assert!(shown.starts_with(&format!("Context {} of 1M", tokens(after))), "{shown}");
        test.reload(test.environment());
        test.ask("/undo");
        assert_eq!(meter(&test), before);
        test.ask("/redo");
        assert_eq!(meter(&test), after);
    }
}

/// Regression: for an imported conversation, `/compact` first masked old outcomes and then summarized, and printed two
/// results for one command: `Shortened 50 entries: 104.8k → 50.9k tokens`, and `Compacted: 104.8k → 9.8k tokens`. The
/// user needed two `/undo` to revert it.
#[test]
fn compact_makes_one_layer_with_one_result() {
    let mut calls = 0;
    let config = "[compaction]\nmodel = \"none\"\nauto = ";
    let mut test = Setup::with_config(&format!("{config}false\n")).start(move |_| {
        calls += 1;
        let reply = if calls <= 12 { call(json!({ "bytes": 30_000 + 10 * calls })) } else { text("Done.") };
        vec![ModelStep::Usage { input: 7_000 * calls, output: 100 }, reply]
    });
    assert_eq!(test.ask("Read it all."), StopReason::EndTurn);
    write_file(&test.home.join("config.toml"), &format!("{config}true\n"));
    test.reload(test.environment());
    test.ask("/compact");
    let log = test.log();
    let layers: Vec<&str> =
        log.iter().filter(|entry| entry.change.rewrites()).map(|entry| entry.change.kind()).collect();
    assert_eq!(layers, ["compacted"]);
}

/// Regression: the vocabulary is loaded in the background. Once it was loaded, all estimates were counted again, so the
/// same conversation had 3.6k, 4.0k or 4.6k tokens, depending on the moment.
#[test]
fn a_displayed_number_does_not_change_when_the_vocabulary_is_loaded() {
    let mut test = Setup::with_files(&without_a_model()).counts_by_vocabulary().start(|_| {
        vec![ModelStep::Usage { input: 9_000, output: 10 }, text(&"Walnuts grow on trees. ".repeat(300))]
    });
    test.ask(&"port 8443; queue_len = 64 ".repeat(300));
    let shown = |test: &mut TestSession| {
        let context = said(test, "/context");
        let rows: Vec<String> =
            context.lines().filter(|line| !line.contains("in the log")).map(str::to_owned).collect();
        (meter(test), came_to(test, "/compact dry"), rows)
    };
    let estimated = shown(&mut test);
    let rulers = test.services.rulers.clone();
    rulers.load();
    while rulers.ready().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(shown(&mut test), estimated);
    test.ask("/compact");
    assert_eq!(meter(&test), estimated.1["post_tokens"].as_u64().expect("a number"));
}
