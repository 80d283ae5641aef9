//! The permission decision about a tool call, stored in its outcome.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choices::{Mode, Rule};

/// Begins the outcome of a call that the user refused with a message, which follows.
pub const REFUSED_BECAUSE: &str = "The user refused this call. They say: ";

/// A permission decision. A call that is harmless in every mode has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedDecision {
    pub allowed: bool,
    pub by: Decider,
}

/// The user, rule or hook that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "who", rename_all = "snake_case")]
pub enum Decider {
    Mode {
        #[serde(deserialize_with = "super::choices::mode_or_ask")]
        mode: Mode,
    },
    /// A rule of a configuration file, as written there; lines count from 1.
    Config {
        rule: String,
        path: PathBuf,
        line: u64,
    },
    /// The user chose "always" in this session.
    Remembered {
        rule: Rule,
    },
    /// A permission that the user saved for this workspace.
    Kept {
        rule: Rule,
    },
    Hook {
        hook: String,
    },
    Person {
        answer: PermissionChoice,
    },
    /// The running recipe is limited to other tools or commands.
    Recipe,
    /// The user had to be asked, but no client was connected.
    Nobody,
}

/// The user's choice in a permission prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionChoice {
    Once,
    Always,
    No,
    /// The prompt was closed without an answer.
    Dismissed,
    /// Allowed, but the target of the call had changed in the meantime.
    TooLate,
}

impl fmt::Display for RecordedDecision {
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
                write!(f, "{word} by a permanent permission of this workspace: {}", rule.words())
            }
            Decider::Hook { hook } => write!(f, "{word} by the hook {hook}"),
            Decider::Person { answer } => f.write_str(match answer {
                PermissionChoice::Once => "you allowed it once",
                PermissionChoice::Always => "you allowed it, always",
                PermissionChoice::No => "you said no",
                PermissionChoice::Dismissed => "refused: you were asked and did not answer",
                PermissionChoice::TooLate => "refused: the files changed while you decided",
            }),
            Decider::Recipe => write!(f, "{word} by the limits of the recipe that ran"),
            Decider::Nobody => write!(f, "{word}: nobody could be asked"),
        }
    }
}
