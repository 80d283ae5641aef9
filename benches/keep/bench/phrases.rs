//! How people and agents put things: one text file a kind, `P` for the person and `A` for the agent. Every other
//! phrase of a voice is held out, and used only where that is asked for.

use std::collections::BTreeMap;

use super::words::capitalised;

pub const PATH: &str = include_str!("phrases/path.txt");
pub const DECISION: &str = include_str!("phrases/decision.txt");
pub const REJECTED: &str = include_str!("phrases/rejected.txt");
pub const PENDING: &str = include_str!("phrases/pending.txt");
pub const CONSTRAINT: &str = include_str!("phrases/constraint.txt");
pub const ERROR: &str = include_str!("phrases/error.txt");
pub const IDENTIFIER: &str = include_str!("phrases/identifier.txt");
pub const FIRST: &str = include_str!("phrases/first.txt");
pub const CHANGE: &str = include_str!("phrases/change.txt");

/// Which half of the phrases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Open,
    HeldOut,
}

/// The phrases of one voice (`"P "`, `"A "`, or `""` where a file has no voices) and half.
pub fn of(file: &'static str, voice: &str, half: Half) -> Vec<&'static str> {
    let own = file.lines().filter_map(|line| line.strip_prefix(voice));
    let parity = match half {
        Half::Open => 0,
        Half::HeldOut => 1,
    };
    own.enumerate().filter(|(at, _)| at % 2 == parity).map(|(_, phrase)| phrase).collect()
}

/// A phrase with its slots filled; `{Name}` is what `{name}` is, with a capital.
pub fn fill(phrase: &str, slots: &BTreeMap<&str, String>) -> String {
    let mut text = phrase.replace("\\n", "\n");
    for (slot, value) in slots {
        text = text.replace(&format!("{{{slot}}}"), value);
        text = text.replace(&format!("{{{}}}", capitalised(slot)), &capitalised(value));
    }
    text
}
