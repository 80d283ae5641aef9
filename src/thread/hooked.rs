//! What hooks leave in a log: a new history, edits of single entries, and the trail of what they did.
//!
//! These types are stored in journals: fields are only ever added, with a default.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::change::Seq;
use super::message::{Content, Message};

/// One message of a history that a hook made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spoken {
    pub role: Role,
    pub message: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
    /// Sent as a user message: no provider takes a system message at any place.
    System,
}

/// What the hook wire calls the id of a message: an entry of the view and, where an entry holds several
/// messages, which of them. `e7` is an entry's own text; `e7.1` the first tool call of the reply `e7`, or
/// the first message of the history that `e7` put in place, or the first that the edits `e7` appended.
/// What is dropped takes its number along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    pub entry: Seq,
    /// From 1; `None` is the entry's own text.
    pub part: Option<u32>,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Some(part) => write!(f, "{}.{part}", self.entry),
            None => write!(f, "{}", self.entry),
        }
    }
}

impl FromStr for Part {
    type Err = ();

    fn from_str(text: &str) -> Result<Part, ()> {
        let number = text.strip_prefix('e').ok_or(())?;
        let (entry, part) = match number.split_once('.') {
            Some((entry, part)) => (entry, Some(part.parse().map_err(drop)?)),
            None => (number, None),
        };
        Ok(Part { entry: Seq(entry.parse().map_err(drop)?), part })
    }
}

impl Serialize for Part {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Part, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom(format!("{text:?} names no entry")))
    }
}

/// One operation on the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Edit {
    /// The text survives every compaction byte for byte.
    Pin {
        at: Part,
    },
    Unpin {
        at: Part,
    },
    /// The content leaves the view; one line with the entry's id and the note stays.
    Mask {
        at: Part,
        note: String,
    },
    /// It leaves the view; a call together with its outcome.
    Drop {
        at: Part,
    },
    Replace {
        at: Part,
        content: Vec<Content>,
    },
    Append {
        role: Role,
        message: Message,
    },
}

impl Edit {
    /// What it names; an appended message names nothing.
    pub fn at(&self) -> Option<Part> {
        match self {
            Edit::Pin { at }
            | Edit::Unpin { at }
            | Edit::Mask { at, .. }
            | Edit::Drop { at }
            | Edit::Replace { at, .. } => Some(*at),
            Edit::Append { .. } => None,
        }
    }

    /// Its word in declarations, results and lines for people.
    pub fn op(&self) -> &'static str {
        match self {
            Edit::Pin { .. } => "pin",
            Edit::Unpin { .. } => "unpin",
            Edit::Mask { .. } => "mask",
            Edit::Drop { .. } => "drop",
            Edit::Replace { .. } => "replace",
            Edit::Append { .. } => "append",
        }
    }

    /// Whether what is shown already becomes another.
    pub fn rewrites(&self) -> bool {
        match self {
            Edit::Mask { .. } | Edit::Drop { .. } | Edit::Replace { .. } => true,
            Edit::Pin { .. } | Edit::Unpin { .. } | Edit::Append { .. } => false,
        }
    }

    /// Whether what is shown stays as it is.
    pub fn only_pins(&self) -> bool {
        match self {
            Edit::Pin { .. } | Edit::Unpin { .. } => true,
            Edit::Mask { .. } | Edit::Drop { .. } | Edit::Replace { .. } | Edit::Append { .. } => false,
        }
    }
}

/// One run of a hook that did or asked for something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    pub hook: String,
    /// The event's name as the hook registered it.
    pub event: String,
    /// What ran: SHA-256 over the declaration and its files, in hexadecimal. Empty for what is built in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    pub milliseconds: u64,
    /// How it ended, in words: `exit 0`, `exit 1`, `time limit of 30 s`, `not run`.
    pub end: String,
    /// What it asked for, in short: `block`, `mutate with 1 message`, `callback compact`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub asked: String,
    pub verdict: Verdict,
    /// Why it was refused or failed, warnings about what it printed, the beginning of its output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// What was made of a hook's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing was asked for.
    #[default]
    Nothing,
    /// What it asked for was done.
    Done,
    /// It was not: a conflict, a guard, an invalid result, a stale revision.
    Refused,
    /// It did not run to a valid result.
    Failed,
    /// It was not started: not trusted, changed since, switched off.
    Skipped,
}
