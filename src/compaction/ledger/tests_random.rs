//! What holds of the ledger for any conversation.

use std::collections::HashSet;

use proptest::prelude::*;

use super::reading::SHARED_MIN;
use super::tests::{Line, opened, say};
use super::{Ledger, Told};
use crate::tokens::Ruler;

const WORDS: &[&str] = &[
    "the",
    "port",
    "limit",
    "is",
    "now",
    "never",
    "must",
    "don't",
    "use",
    "5",
    "8081",
    "to",
    "from",
    "changed",
    "error:",
    "failed",
    "we'll",
    "go",
    "with",
    "because",
    "TODO:",
    "src/a.rs",
    "`kiwi`",
    "=",
    ":",
    "\n",
    ". ",
    "\n- ",
    "```\n",
    "é",
    "不要",
    "。",
    "timeout",
    "forget",
    "that",
    "done",
    "you may",
    "instead of",
    "not",
    "v1.2.3",
    "#4512",
    "panicked at",
    "Rules:",
    "\r\n",
    "PROJ-12",
    "\t",
];

#[derive(Clone, Debug)]
enum Said {
    Person(String),
    Agent(String),
    Run(String, String, i64),
    Read(String, String),
}

impl Said {
    fn line(&self) -> Line<'_> {
        match self {
            Said::Person(text) => Line::Person(text),
            Said::Agent(text) => Line::Agent(text),
            Said::Run(command, printed, code) => Line::Run(command, printed, *code),
            Said::Read(path, printed) => {
                Line::Tool("file_read", serde_json::json!({"file_path": path}), printed)
            }
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    let words = prop::collection::vec(prop::sample::select(WORDS), 0..40).prop_map(|words| words.join(" "));
    prop_oneof![8 => words, 1 => any::<String>()]
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        text().prop_map(Said::Person),
        text().prop_map(Said::Agent),
        (text(), text(), 0..2i64).prop_map(|(command, printed, code)| Said::Run(command, printed, code)),
        (prop::sample::select(&["a.toml", "src/a.rs", "/w/b.rs"][..]), text())
            .prop_map(|(path, printed)| Said::Read(path.to_owned(), printed)),
    ]
}

fn told(ledger: &Ledger, thread: &crate::thread::Thread, tokens_max: u64) -> Told {
    ledger.told(&Ruler::of(None), thread, &HashSet::new(), tokens_max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn following_step_by_step_is_following_at_once(lines in prop::collection::vec(said(), 0..16), splits in prop::collection::vec(any::<bool>(), 40), tokens_max in 0..600u64) {
        let mut thread = opened();
        let mut stepwise = Ledger::default();
        for (at, line) in lines.iter().enumerate() {
            say(&mut thread, &line.line());
            if splits[at] {
                stepwise.follow(&thread);
            }
        }
        stepwise.follow(&thread);
        let mut at_once = Ledger::default();
        at_once.follow(&thread);
        let one = told(&stepwise, &thread, tokens_max);
        prop_assert_eq!(&one, &told(&at_once, &thread, tokens_max));
        prop_assert!(Ruler::of(None).text(&one.text) <= tokens_max || one.text.is_empty());
        // What is not told is named.
        let all = told(&at_once, &thread, 1_000_000);
        prop_assert!(all.left_out.is_empty());
        prop_assert!(one.facts == all.facts || !one.left_out.is_empty());
        prop_assert!(told(&at_once, &thread, 0).text.is_empty());
    }

    #[test]
    fn a_long_log_tells_the_same_by_many_readers_and_by_one(lines in prop::collection::vec(said(), 1..16), tokens_max in 0..3_000u64) {
        let mut thread = opened();
        let mut stepwise = Ledger::default();
        // Each entry is read alone here, and all of them at once below.
        for line in lines.iter().cycle().take(SHARED_MIN + 16) {
            say(&mut thread, &line.line());
            stepwise.follow(&thread);
        }
        let mut at_once = Ledger::default();
        at_once.follow(&thread);
        prop_assert_eq!(told(&stepwise, &thread, tokens_max), told(&at_once, &thread, tokens_max));
        prop_assert_eq!(stepwise.found(), at_once.found());
        prop_assert_eq!(stepwise.beyond(), at_once.beyond());
    }

    #[test]
    fn a_value_that_was_replaced_is_never_current(
        name in prop::sample::select(&["retry limit", "web port", "upload timeout", "MAX_CONN", "pool size"][..]),
        forms in prop::collection::vec((0..5usize, any::<bool>()), 2..8),
        filler in prop::collection::vec(said(), 0..4),
    ) {
        let mut thread = opened();
        for (at, (form, person)) in forms.iter().enumerate() {
            let value = 7100 + at * 13;
            let words = match form {
                0 => format!("The {name} is now {value}."),
                1 => format!("Please set the {name} to {value}."),
                2 => format!("{name} = {value}"),
                3 => format!("We changed the {name} to {value}."),
                _ => format!("{name}: {value}"),
            };
            say(&mut thread, &if *person { Line::Person(&words) } else { Line::Agent(&words) });
            if let Some(line) = filler.get(at) {
                say(&mut thread, &line.line());
            }
        }
        let mut ledger = Ledger::default();
        ledger.follow(&thread);
        let text = told(&ledger, &thread, 1_000_000).text;
        for at in 0..forms.len() - 1 {
            let old = (7100 + at * 13).to_string();
            for line in text.lines().filter(|line| line.contains(&old)) {
                prop_assert!(line.contains("[now ") , "{} in {}", old, text);
            }
        }
        let newest = (7100 + (forms.len() - 1) * 13).to_string();
        prop_assert!(text.contains(&newest), "{} in {}", newest, text);
    }
}
