//! KeepBench's real sessions: what an import reads becomes a conversation with planted facts, all of which are in it
//! and nowhere else; what cannot be read is told of.

#[expect(dead_code, reason = "the bench uses the rest")]
#[path = "../benches/keep/bench/mod.rs"]
mod bench;

use std::fmt::Write as _;
use std::path::Path;

use bench::corpus::{self, Corpus};
use bench::judge::{Carried, words_of};
use bench::session::{Session, Step, ended, follow, opened, outcome, replied, said};
use epitome::thread::{Change, OutcomeStatus};
use epitome::transfer::json_lines;
use serde_json::json;

/// Turns of the sessions here.
const TURNS: usize = 12;
/// Facts of each kind that are planted.
const EACH: usize = 6;

/// A session of pi, with a compaction behind the sixth turn that keeps this turn.
fn of_pi(by_extension: bool) -> String {
    let mut text =
        r#"{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/p"}"#
            .to_owned();
    let mut parent = "null".to_owned();
    let mut line = |id: String, fields: serde_json::Value| {
        let fields = fields.to_string();
        let _ = write!(text, "\n{{\"id\":\"{id}\",\"parentId\":{parent},{}", &fields[1..]);
        parent = format!("\"{id}\"");
    };
    for turn in 0..TURNS {
        let answered = |content: serde_json::Value, stop: &str| {
            json!({"type": "message", "message": {"role": "assistant", "content": content, "provider": "a", "model": "b",
                "stopReason": stop}})
        };
        let asked = format!("Look at part {turn}. {}", "It is a long story. ".repeat(30));
        line(format!("u{turn}"), json!({"type": "message", "message": {"role": "user", "content": asked}}));
        // The number is that of a call which a planted turn would have.
        let call =
            json!([{"type": "toolCall", "id": format!("call_{turn}"), "name": "bash", "arguments": {}}]);
        line(format!("c{turn}"), answered(call, "toolUse"));
        let found = json!([{"type": "text", "text": format!("Part {turn} is fine.")}]);
        line(
            format!("r{turn}"),
            json!({"type": "message", "message": {"role": "toolResult", "toolCallId": format!("call_{turn}"),
                "content": found}}),
        );
        line(format!("a{turn}"), answered(found.clone(), "stop"));
        if turn == 5 {
            line(
                "k".to_owned(),
                json!({"type": "compaction", "summary": "We use heron_gate.", "firstKeptEntryId": "u5",
                    "tokensBefore": 900, "fromHook": by_extension}),
            );
        }
    }
    line("n".to_owned(), json!({"type": "novelty"}));
    text
}

fn of_ours() -> String {
    let mut steps = Vec::new();
    for turn in 0..TURNS {
        let call = vec![("bash", json!({"command": format!("make part-{turn}")}))];
        steps.push(Step::plain(said(format!("Build part {turn}. {}", "As always. ".repeat(40)))));
        steps.push(Step::plain(replied("Building.".to_owned(), call, turn)));
        steps.push(Step::plain(outcome(turn, OutcomeStatus::Completed, "built".to_owned(), None)));
        steps.push(Step::plain(replied("It is built.".to_owned(), Vec::new(), 0)));
        steps.push(Step::plain(ended()));
    }
    let mut thread = opened();
    follow(&mut thread, &steps);
    json_lines(thread.session(), thread.entries()).expect("JSON")
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("the folder is ours");
    }
    folder
}

fn read(folder: &Path, seed: u64) -> Corpus {
    corpus::read(folder, seed, EACH).expect("one can be read")
}

fn all_words(session: &Session) -> Vec<(u64, String)> {
    let words = session.steps.iter().enumerate();
    words.filter_map(|(at, step)| Some((at as u64, words_of(&step.change)?))).collect()
}

#[test]
fn facts_are_planted_between_the_turns_of_whatever_an_import_reads() {
    // Their names tell nothing.
    let folder = folder(&[("one.txt", &of_pi(false)), ("two", &of_ours())]);
    for seed in 0..4 {
        let corpus = read(folder.path(), seed);
        assert_eq!((corpus.open.len(), corpus.held_out.len()), (2, 2));
        for session in corpus.open.iter().chain(&corpus.held_out) {
            assert_eq!(session.facts.len(), 8 * EACH);
            let whole = Carried::of_words(all_words(session));
            let nothing = Carried::of_summary("");
            for fact in &session.facts {
                assert!(whole.holds(fact) && whole.stale(fact) == 0, "{}: {fact:?}", session.name);
                assert!(!nothing.holds(fact));
                let telling =
                    all_words(session).iter().filter(|(_, words)| words.contains(&fact.anchor)).count();
                assert!(telling >= fact.values.len(), "no message tells two values: {fact:?}");
            }
            for third in [0.0..0.33, 0.33..0.67, 0.67..1.0] {
                assert!(session.facts.iter().any(|fact| third.contains(&fact.depth)), "{third:?}");
            }
            let mut calls: Vec<_> = session.steps.iter().flat_map(|step| calls_of(&step.change)).collect();
            let all = calls.len();
            calls.sort();
            calls.dedup();
            assert_eq!((calls.len(), calls.len() > TURNS), (all, true), "no two calls have one id");
        }
        let again = read(folder.path(), seed);
        assert_eq!(again.open[0].steps, corpus.open[0].steps);
        assert_eq!(again.held_out[1].facts, corpus.held_out[1].facts);
        assert_ne!(read(folder.path(), seed + 1).open[0].steps, corpus.open[0].steps);
        assert_ne!(corpus.open[0].facts, corpus.held_out[0].facts);
        // What was there is there, in its order.
        let mut left = corpus.open[1].steps.iter();
        for turn in 0..TURNS {
            let asked = format!("Build part {turn}. ");
            let is_it = |step: &Step| words_of(&step.change).is_some_and(|words| words.starts_with(&asked));
            assert!(left.any(is_it), "{asked}");
        }
    }
}

fn calls_of(change: &Change) -> Vec<String> {
    match change {
        Change::Replied { message, .. } => message.calls().map(|call| call.id.0.clone()).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn what_cannot_be_read_is_told_by_name_and_the_others_go_on() {
    let both =
        folder(&[("a.jsonl", "{\"role\":\"user\"}"), ("diary.txt", "Dear diary"), ("pi", &of_pi(false))]);
    let Corpus { told, open, .. } = read(both.path(), 1);
    assert_eq!(open.len(), 1);
    assert!(told[0].contains("a.jsonl:1") && told[0].contains("missing field"), "{told:?}");
    assert!(told[1].contains("diary.txt") && told[1].contains("no conversation that is known"), "{told:?}");
    assert!(told[2].starts_with("pi: a session of pi, 12 turns, "), "{told:?}");
    assert!(told[2].ends_with("; 1 entries of the type \"novelty\" were left out"), "{told:?}");

    let opened = of_ours().lines().next().expect("its opening").to_owned();
    let none = folder(&[("empty", &opened), ("diary.txt", "Dear diary"), ("x.facts.json", "[]")]);
    let error = corpus::read(none.path(), 1, EACH).err().expect("there is none").to_string();
    assert!(error.contains("no conversation that can be read") && error.contains("diary.txt"), "{error}");
    assert!(error.contains("empty: no turn is in it"), "{error}");
}

#[test]
fn a_summary_in_a_session_of_pi_is_judged_by_the_facts_that_a_person_gives() {
    let facts = r#"[{"kind":"decisions","anchor":"heron_gate","depth":0.1},
        {"kind":"decisions","anchor":"late_gate","depth":0.9}]"#;
    let given = folder(&[("pi.jsonl", &of_pi(false)), ("pi.facts.json", facts)]);
    let stored = read(given.path(), 1).stored;
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].summaries.get("a/b").map(String::as_str), Some("We use heron_gate."));
    let session = &stored[0].session;
    let turns = session.steps.iter().filter(|step| step.change == ended()).count();
    assert_eq!(turns, 5, "the sixth turn was kept as it was");
    assert_eq!(session.facts.len(), 1, "the other was told later");
    assert!((0.2..0.3).contains(&session.facts[0].depth), "{}", session.facts[0].depth);

    for (text, facts) in [(of_pi(true), facts), (of_pi(false), "[]")] {
        let folder = folder(&[("pi.jsonl", &text), ("pi.facts.json", facts)]);
        assert_eq!(read(folder.path(), 1).stored.len(), 0);
    }
}

#[test]
fn the_lines_of_the_bench_itself_are_read_as_they_are() {
    let lines = r#"{"role":"user","text":"Use heron_gate."}
{"role":"assistant","text":"Yes.","calls":[{"name":"bash","input":{}}]}
{"role":"tool","text":"done"}"#;
    let facts = r#"[{"kind":"decisions","anchor":"heron_gate"}]"#;
    let files = [("n.jsonl", lines), ("n.facts.json", facts), ("n.summary.someone.md", "We use heron_gate.")];
    let Corpus { stored, open, told, .. } = read(folder(&files).path(), 1);
    assert_eq!((open.len(), told.len(), stored.len()), (0, 0, 1));
    assert_eq!((stored[0].session.steps.len(), stored[0].session.facts.len()), (3, 1));
    assert_eq!(stored[0].summaries["someone"], "We use heron_gate.");
}
