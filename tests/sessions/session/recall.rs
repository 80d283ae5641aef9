//! Texts that are too large for the view are stored in the log. The model can read them, and everything else that has
//! left the view, with `recall`.

use std::sync::Arc;

use epitome::recall;
use epitome::thread::{Change, Entry, OutcomeStatus, Seq, StopReason, Thread, ToolOutcome};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::{in_turn, text};
use serde_json::{Value, json};

use super::stage::{flood, recorder, sent, with_hooks};

fn recalls(input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: recall::NAME.into(), input }]
}

fn outcomes(test: &TestSession) -> Vec<(String, ToolOutcome)> {
    let log = test.log();
    let outcomes = log.iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some((entry.seq.to_string(), outcome.clone())),
        _ => None,
    });
    outcomes.collect()
}

/// The outcome of the newest call.
fn last_outcome(test: &TestSession) -> ToolOutcome {
    outcomes(test).pop().expect("an outcome").1
}

/// Everything that is stored on disk for the session.
fn stored(test: &TestSession) -> String {
    let mut all = String::new();
    let journals = test.journal().parent().expect("a directory").to_path_buf();
    let mut folders = vec![journals.parent().expect("the data's directory").to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => all.push_str(&String::from_utf8_lossy(&std::fs::read(path).expect("a file"))),
            }
        }
    }
    all
}

#[test]
fn entries_removed_by_a_compaction_are_recalled_in_every_mode() {
    let replies = vec![
        vec![text("The first word is walnut.")],
        flood(),
        vec![text("<summary>Words were said.</summary>")],
        recalls(json!({"text": "WALNUT", "kind": "reply"})),
    ];
    let mut test = TestSession::with(in_turn(replies));
    test.ask("Say a word.");
    test.ask("Say many words.");
    test.ask("/compact");
    test.choose("mode", "read_only").expect("a mode");
    assert_eq!(test.ask("What was the first word?"), StopReason::EndTurn);
    let outcome = last_outcome(&test);
    assert_eq!(outcome.status, OutcomeStatus::Completed);
    let found = outcome.model_text();
    assert!(found.starts_with("1 found") && found.contains("The first word is walnut."), "{found}");
    assert!(!found.contains("Nothing has left your view"), "{found}");
    assert!(sent(&test).contains("1 found"), "{}", sent(&test));
}

#[test]
fn before_a_compaction_recall_says_that_everything_is_in_view() {
    let mut test =
        TestSession::new(vec![recalls(json!({"entry": "e1-e9"})), vec![text("ok")], recalls(json!({}))]);
    test.ask("Say a word.");
    let read = last_outcome(&test).model_text();
    assert!(read.contains("Say a word.") && read.contains("Nothing has left your view"), "{read}");
    test.ask("Again.");
    let outcome = last_outcome(&test);
    assert_eq!(outcome.status, OutcomeStatus::Failed);
    assert!(outcome.model_text().contains("Give `entry`, or"), "{}", outcome.model_text());
}

#[test]
fn a_large_outcome_is_cut_in_the_view_and_readable_from_the_log() {
    let middle = "the middle of it is walnut\n";
    let line = "a line that nobody needs\n";
    let whole = format!("{}{middle}{}", line.repeat(4_000), line.repeat(4_000));
    let says = json!({"says": whole});
    let at = 4_000 * line.len();
    let (entry_at, offset) = ("e5", at.to_string());
    let replies = vec![
        vec![call(says)],
        vec![text("ok")],
        recalls(json!({"entry": entry_at, "offset": offset, "limit": 100})),
    ];
    let mut test = TestSession::new(replies);
    test.ask("Go");
    let (entry, outcome) = outcomes(&test).remove(0);
    let shown = outcome.model_text();
    assert!(shown.len() < 40_000 && !shown.contains("walnut"), "{} bytes", shown.len());
    assert!(
        shown.contains(&format!("left out here; recall with entry \"{entry}\" reads all of it")),
        "{shown}"
    );
    assert_eq!(outcome.whole.as_deref(), Some(whole.as_str()));
    assert_eq!(entry, entry_at, "the script knows it");

    test.reload(test.environment());
    test.ask("What is in the middle?");
    let read = last_outcome(&test).model_text();
    assert!(read.contains(middle) && read.contains("more bytes: recall the same with offset"), "{read}");
}

/// A hook that removes keys from tool output only sees the model's version of the text. It has not seen the full text
/// that a tool may store in addition, so that must not be stored, whether or not the hook changed the outcome.
#[test]
fn the_full_text_of_an_outcome_with_hooks_is_not_stored() {
    let redact = json!({"events": ["after_tool_call"], "then": {"output_text": "[redacted]"}}).to_string();
    for (name, hook, wanted) in
        [("redact.json", redact, "[redacted]"), ("audit", recorder("after_tool_call"), "the beginning")]
    {
        // The journal contains the model's own text, so the key must only occur in the tool's output.
        let whole = json!({"says": "the beginning", "whole_repeats": "wal-nut-key"});
        let mut test = with_hooks(&[(name, hook)], &[], vec![vec![call(whole)]]);
        test.ask("Go");
        let outcome = last_outcome(&test);
        assert_eq!((outcome.model_text().as_str(), outcome.whole.as_deref()), (wanted, None), "{name}");
        assert!(!stored(&test).contains("walnutkey"), "{name}");
    }
    // Without a hook the full text is stored, which proves that the test can fail.
    let whole = json!({"says": "the beginning", "whole_repeats": "wal-nut-key"});
    let mut test = TestSession::new(vec![vec![call(whole)]]);
    test.ask("Go");
    assert!(last_outcome(&test).whole.expect("all of it").contains("walnutkey"));
    assert!(stored(&test).contains("walnutkey"));
}

#[test]
fn a_recipe_without_tools_cannot_recall() {
    let recipe = "---\nallowed_tools: []\n---\nSay it.\n";
    let files = [("home/recipes/say.md".to_owned(), recipe.to_owned())];
    let mut test = Setup::with_files(&files).start(in_turn(vec![recalls(json!({"text": "walnut"}))]));
    test.ask("/say");
    assert_eq!(last_outcome(&test).status, OutcomeStatus::Denied);
}

const MODEL: &str = "anthropic/claude-sonnet-5-5";

/// A test with a window of this many tokens. The model counts tokens, writes summaries on request, recalls the entry
/// named in "Read again e1" once, and otherwise sends these replies and then "ok".
fn with_window(window: u64, replies: Vec<Vec<ModelStep>>) -> TestSession {
    let config = format!("[models.\"{MODEL}\"]\ncontext_window = {window}\n");
    let (mut replies, mut may_read) = (replies.into_iter(), true);
    let mut test = Setup::with_config(&config).start(move |request| {
        let asked = request.last_user_text();
        let mut steps = match asked.strip_prefix("Read again ") {
            _ if asked.contains("Then write the handover") => {
                vec![text("<summary>Words were said.</summary>")]
            }
            Some(entry) if std::mem::take(&mut may_read) => recalls(json!({"entry": entry})),
            Some(_) | None => replies.next().unwrap_or_else(|| vec![text("ok")]),
        };
        let input = request.body.to_string().len() as u64 / 4;
        steps.push(ModelStep::Usage { input, output: 100 });
        steps
    });
    test.choose("model", MODEL).expect("a model");
    test
}

/// The entries that shortened the view.
fn swaps(test: &TestSession) -> Vec<Seq> {
    let is_swap = |change: &Change| matches!(change, Change::Compacted { .. } | Change::Pruned { .. });
    test.log().iter().filter(|entry| is_swap(&entry.change)).map(|entry| entry.seq).collect()
}

/// The text of an entry's outcome in the current view, and in the log.
fn in_view(test: &TestSession, id: &str) -> (Option<String>, String) {
    let log = test.log();
    let of = |entries: &[Arc<Entry>]| {
        entries.iter().find(|entry| entry.seq.to_string() == id).and_then(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some(outcome.model_text()),
            _ => None,
        })
    };
    let thread = Thread::replay(log.iter().cloned()).expect("a valid log");
    (of(thread.view().entries()), of(&log).expect("it is an outcome"))
}

/// Regression: a model recalled a decision and continued with tools past the threshold, and the compaction within the
/// turn removed the recalled text again.
#[test]
fn recalled_text_stays_in_view_through_compactions_of_its_turn() {
    let mut replies =
        vec![vec![text(&format!("The word is walnut. {}", "And so on. ".repeat(150)))], flood()];
    replies.push(recalls(json!({"entry": "e1-e9", "limit": 1_500})));
    let look = |nth: u64| vec![call(json!({"bytes": 6_000 + 10 * nth}))];
    replies.extend((0..14).map(look));
    let mut test = with_window(16_000, replies);
    test.ask("Say a word.");
    test.ask("Say many words.");
    test.ask("/compact");
    assert_eq!(test.ask("What was the word? Then look."), StopReason::EndTurn);
    let (recalled, outcome) = outcomes(&test).remove(0);
    let found = outcome.model_text();
    assert!(found.contains("The word is walnut."), "{found}");
    let at: u64 = recalled[1..].parse().expect("an entry's number");
    assert!(swaps(&test).iter().any(|swap| swap.0 > at), "the turn was compacted: {:?}", swaps(&test));
    assert_eq!(in_view(&test, &recalled), (Some(found.clone()), found.clone()));
    let quoted = format!("{found:?}");
    assert!(sent(&test).contains(quoted.trim_matches('"')), "{}", sent(&test));
}

#[test]
fn the_oldest_recalled_text_is_cut_if_a_turn_recalls_too_much() {
    let more = |at: usize| recalls(json!({"entry": "e1-e9", "limit": 4_000, "offset": at * 4_000}));
    let mut replies = vec![vec![text(&"The word is walnut. ".repeat(2_000))]];
    replies.extend((0..12).map(more));
    let mut test = with_window(12_000, replies);
    test.ask("Say a word, often.");
    test.ask("/compact");
    assert_eq!(test.ask("What was said?"), StopReason::EndTurn);
    let all = outcomes(&test);
    let (shown, whole) = in_view(&test, &all[all.len() - 1].0);
    assert_eq!(shown, Some(whole), "the newest stays");
    let is_cut = |id: &str| matches!(in_view(&test, id), (Some(shown), whole) if shown != whole);
    let cut = all.iter().map(|(id, _)| id).find(|id| is_cut(id)).expect("one is cut in place");
    let (shown, _) = in_view(&test, cut);
    let shown = shown.unwrap_or_default();
    assert!(shown.contains(&format!("`recall` with entry {cut} reads all of it")), "{shown}");
    test.ask(&format!("Read again {cut}"));
    let again = last_outcome(&test).model_text();
    assert!(again.contains(&format!("[{cut} ")) && again.contains("The word is walnut."), "{again}");
}
