//! KeepBench judges rightly: its conversations hold each fact once, a text that holds all facts gets all points,
//! an empty one none, and neither a value that was replaced nor a name that is only like another passes.

#[expect(dead_code, reason = "the bench uses the rest")]
#[path = "../benches/keep/bench/mod.rs"]
mod bench;

use std::collections::HashSet;

use bench::generate::{Order, generate};
use bench::judge::{Carried, words_of};
use bench::phrases::{self, Half};
use bench::plant::{Fact, Kind, Voice, plant};
use bench::recorded::{self, Recorded};
use bench::session::Session;
use bench::strategy;
use bench::words::Names;

fn session(seed: u64, half: Half) -> Session {
    generate(Order { seed, tokens: 30_000, each: 6, half })
}

fn all_words(session: &Session) -> Vec<(u64, String)> {
    let words = session.steps.iter().enumerate();
    words.filter_map(|(at, step)| Some((at as u64, words_of(&step.change)?))).collect()
}

#[test]
fn the_same_seed_writes_the_same_conversation() {
    assert_eq!(session(7, Half::Open).steps, session(7, Half::Open).steps);
    assert_ne!(session(7, Half::Open).steps, session(8, Half::Open).steps);
    assert_ne!(session(7, Half::Open).steps, session(7, Half::HeldOut).steps);
}

#[test]
fn the_whole_conversation_holds_every_fact_and_nothing_stale() {
    for seed in 0..4 {
        for half in [Half::Open, Half::HeldOut] {
            let session = session(seed, half);
            assert_eq!(session.facts.len(), 48);
            let carried = Carried::of_words(all_words(&session));
            let is_wrong = |fact: &&Fact| !carried.holds(fact) || carried.stale(fact) > 0;
            let wrong: Vec<&Fact> = session.facts.iter().filter(is_wrong).collect();
            assert!(wrong.is_empty(), "{}: {wrong:#?}", session.name);
        }
    }
}

/// Enough facts of each kind that, over a few seeds, all phrases of each voice are used.
const FACTS_FOR_ALL_PHRASES: usize = 240;

#[test]
fn each_phrase_tells_its_fact_by_itself() {
    for (seed, half) in [0, 1, 2].into_iter().flat_map(|seed| [(seed, Half::Open), (seed, Half::HeldOut)]) {
        for plant in plant(&mut Names::new(seed), half, FACTS_FOR_ALL_PHRASES) {
            let newest = plant.mentions.last().expect("a fact is told");
            if newest.voice == Voice::Tool {
                continue;
            }
            let text = &newest.text;
            assert!(!text.contains(['{', '}']), "a slot was not filled: {text}");
            let carried = Carried::of_words([(0, text.clone())]);
            assert!(carried.holds(&plant.fact), "{:?}: {text}", plant.fact);
            assert_eq!(carried.stale(&plant.fact), 0, "{:?}: {text}", plant.fact);
        }
    }
}

#[test]
fn no_phrase_is_there_twice() {
    use phrases::{CHANGE, CONSTRAINT, DECISION, ERROR, FIRST, IDENTIFIER, PATH, PENDING, REJECTED};
    for file in [PATH, DECISION, REJECTED, PENDING, CONSTRAINT, ERROR, IDENTIFIER, FIRST, CHANGE] {
        let mut seen = HashSet::new();
        for line in file.lines() {
            assert!(seen.insert(line), "twice: {line}");
        }
    }
}

#[test]
fn without_the_message_that_tells_it_no_fact_is_held() {
    for half in [Half::Open, Half::HeldOut] {
        let session = session(3, half);
        let words = all_words(&session);
        for fact in &session.facts {
            let tells = |text: &str| {
                let carried = Carried::of_summary(text);
                carried.holds(fact) || carried.stale(fact) > 0
            };
            let (telling, others): (Vec<_>, Vec<_>) =
                words.iter().cloned().partition(|(_, text)| tells(text));
            assert!(!Carried::of_words(others).holds(fact), "{fact:?}");
            let telling = telling.len();
            // Lists of tasks are told again and again; a value as often as it changes.
            let most = match fact.kind {
                Kind::Superseded => 5,
                Kind::Pending => words.len(),
                Kind::Error => 2,
                _ => 3,
            };
            assert!((1..=most).contains(&telling), "{telling} times: {fact:?}");
        }
    }
}

#[test]
fn an_empty_summary_holds_nothing() {
    let session = session(1, Half::Open);
    for text in ["", "<summary>\n</summary>", "Work was done on several files; see the log."] {
        let carried = Carried::of_summary(text);
        assert!(!session.facts.iter().any(|fact| carried.holds(fact)));
    }
}

fn fact(kind: Kind, anchor: &str, about: &str, values: &[&str]) -> Fact {
    Fact {
        kind,
        anchor: anchor.to_owned(),
        about: about.to_owned(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
        pinned: false,
        depth: 0.0,
    }
}

#[test]
fn a_summary_is_judged_by_what_names_the_fact_and_what_is_about_it() {
    let reason = "the replica lags behind during the nightly import";
    for (kind, anchor, about, text, held) in [
        (Kind::Path, "src/net/pool.rs", "", "Changed src/net/pool.rs.", true),
        (Kind::Path, "src/net/pool.rs", "", "Changed `/work/app/src/net/pool.rs`, lines 3 to 9", true),
        (Kind::Path, "src/net/pool.rs", "", "Changed lib/src/net/pool.rs and src/net/pool.rs.orig", false),
        (Kind::Path, "src/net/pool.rs", "", "Changed pool.rs in src/net", false),
        (
            Kind::Decision,
            "heron_gate",
            reason,
            "heron_gate, as the replica lags in the nightly imports",
            true,
        ),
        (Kind::Decision, "heron_gate", reason, "We use heron_gate.", false),
        (
            Kind::Decision,
            "heron_gate",
            reason,
            "heron_gate_v2: the replica lags behind in the nightly import",
            false,
        ),
        (
            Kind::Rejected,
            "heron_gate",
            reason,
            "Not heron_gate: the replica lags in the nightly import",
            true,
        ),
        (
            Kind::Rejected,
            "heron_gate",
            reason,
            "Use heron_gate: the replica lags in the nightly import",
            false,
        ),
        (
            Kind::Pending,
            "heron_gate",
            "write a rollback script",
            "- [ ] write a rollback script for heron_gate",
            true,
        ),
        (
            Kind::Pending,
            "heron_gate",
            "write a rollback script",
            "- [x] write a rollback script for heron_gate",
            false,
        ),
        (Kind::Error, "KeyError: 'heron_gate'", "", "It fails with   KeyError:  'heron_gate'", true),
        (Kind::Error, "KeyError: 'heron_gate'", "", "It fails with a KeyError about 'heron_gate'", false),
        (Kind::Identifier, "PAY-4821", "tracking ticket", "ticket: PAY-4821", true),
        (Kind::Identifier, "PAY-4821", "tracking ticket", "ticket: PAY-48213", false),
        (Kind::Identifier, "PAY-4821", "tracking ticket", "see PAY-4821", false),
    ] {
        let carried = Carried::of_summary(text);
        assert_eq!(carried.holds(&fact(kind, anchor, about, &[])), held, "{kind:?}: {text}");
    }
}

#[test]
fn a_value_that_was_replaced_is_stale_where_it_is_told_as_the_present_one() {
    let port = fact(Kind::Superseded, "heron_gate", "", &["4100", "5200", "6300"]);
    for (text, held, stale) in [
        ("The port of heron_gate is 6300.", true, 0),
        ("The port of heron_gate is 5200.", false, 1),
        ("The port of heron_gate is 63001.", false, 0),
        ("heron_gate: 6300 (was 5200, before that 4100)", true, 0),
        ("heron_gate: 4100 → 5200 → 6300", true, 0),
        ("heron_gate: port 5200\nheron_gate: port 6300", true, 1),
        ("The port 4100 is for something else. heron_gate listens on 6300.", true, 0),
        ("heron_gate moved from 4100 to 5200", false, 1),
        (
            "<said entry=\"e5\">heron_gate on 4100</said> <said entry=\"e9\">heron_gate: 6300 now</said>",
            true,
            0,
        ),
        ("<said entry=\"e9\">heron_gate on 6300</said> <said entry=\"e12\">heron_gate: 5200</said>", true, 1),
        ("heron_gate: 6300\n<said entry=\"e5\">use 4100 for heron_gate</said>", true, 0),
        ("<said entry=\"e5\">use 4100 for heron_gate</said>", false, 1),
    ] {
        let carried = Carried::of_summary(text);
        assert_eq!(carried.holds(&port), held, "{text}");
        assert_eq!(carried.stale(&port), stale, "{text}");
    }
}

#[test]
fn every_way_ends_within_its_tokens_or_says_how_much_it_took() {
    let session = session(5, Half::Open);
    for tokens in [1_000, 4_000] {
        assert!(strategy::tail(&session, tokens).tokens <= tokens);
        assert!(strategy::masked(&session, tokens).tokens <= tokens);
        assert!(strategy::summary(&"Some words. ".repeat(2_000), tokens).tokens <= tokens);
        let left = strategy::epitome(&session, 3, tokens, |_| None).expect("it can be compacted");
        assert_eq!(left.took.len(), 3);
        let recall = left.recall.expect("there is a log");
        let missed = session.facts.iter().find(|fact| !left.carried.holds(fact) && !recall.finds(fact));
        assert_eq!(missed, None);
    }
}

/// Recordings named their seed alone: each new phrase made them worthless.
#[test]
fn a_recorded_summary_is_read_with_the_conversation_that_it_is_of() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(recorded::read(&folder.path().join("missing")).expect("none is fine").is_empty());
    let recorded = Recorded {
        model: "a-model".to_owned(),
        instruction: "Sum it up.".to_owned(),
        summary: "Nothing happened.".to_owned(),
        session: generate(Order { seed: 11, tokens: 500, each: 1, half: Half::Open }),
    };
    let asked = recorded::prompt(&recorded.session, &recorded.instruction);
    assert!(asked.ends_with("Sum it up.") && asked.contains(&recorded.session.facts[0].anchor), "{asked}");
    let file = folder.path().join("a-model-11.json");
    let json = serde_json::to_string(&recorded).expect("it is plain data");
    std::fs::write(&file, &json).expect("the folder is ours");
    assert_eq!(recorded::read(folder.path()).expect("it is whole"), [recorded]);

    std::fs::write(&file, &json[..json.len() / 2]).expect("the folder is ours");
    let error = format!("{:#}", recorded::read(folder.path()).expect_err("it is damaged"));
    assert!(error.contains("a-model-11.json"), "{error}");
}
