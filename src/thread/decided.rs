//! Who decided whether a call may run, and by what. Part of a call's outcome in the log.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choices::{Mode, Rule};

/// What was decided about a call. What is harmless in every mode has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    pub allowed: bool,
    pub by: Decider,
}

/// Who it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "who", rename_all = "snake_case")]
pub enum Decider {
    Mode {
        mode: Mode,
    },
    /// A rule of a configuration file, as it is written there; the line counts from 1.
    Config {
        rule: String,
        path: PathBuf,
        line: u64,
    },
    /// What the person said "always" to in this session.
    Remembered {
        rule: Rule,
    },
    /// What the person keeps for this workspace.
    Kept {
        rule: Rule,
    },
    Hook {
        hook: String,
    },
    Person {
        answer: Answered,
    },
    /// The recipe that runs is limited to other tools or commands.
    Recipe,
    /// It had to be asked, and nobody was there.
    Nobody,
}

/// What a person chose on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    Once,
    Always,
    No,
    /// The card was closed without an answer.
    Dismissed,
    /// Allowed, but what the call would touch had changed meanwhile.
    TooLate,
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.allowed { "allowed" } else { "refused" };
        match &self.by {
            Decider::Mode { mode } => write!(f, "{word} by the mode {:?}", mode.name()),
            Decider::Config { rule, path, line } => {
                write!(f, "{word} by the rule {rule:?} of {}:{line}", path.display())
            }
            Decider::Remembered { rule } => {
                write!(f, "{word} because you said \"always\" in this session: {}", rule.words())
            }
            Decider::Kept { rule } => {
                write!(f, "{word} by what you keep for this workspace: {}", rule.words())
            }
            Decider::Hook { hook } => write!(f, "{word} by the hook {hook}"),
            Decider::Person { answer } => f.write_str(match answer {
                Answered::Once => "you allowed it once",
                Answered::Always => "you allowed it, always",
                Answered::No => "you said no",
                Answered::Dismissed => "refused: you were asked and did not answer",
                Answered::TooLate => "refused: what it would touch changed while you were asked",
            }),
            Decider::Recipe => write!(f, "{word} by the limits of the recipe that ran"),
            Decider::Nobody => write!(f, "{word}: nobody was there to be asked"),
        }
    }
}
