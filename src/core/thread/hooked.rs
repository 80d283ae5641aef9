//! The data that hooks store in a log: a new history, edits of single entries, and the trail of their runs.
//!
//! These types are stored in journals: fields are only ever added, with a default.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::change::Seq;
use super::message::{Content, Message};
use crate::named_enum;

/// A message of a history made by a hook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryMessage {
    pub role: Role,
    pub message: Message,
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Role {
        User = "user",
        Assistant = "assistant",
        /// Sent as a user message, since providers do not accept system messages at arbitrary positions.
        System = "system",
    }
}

/// The id of a message in the hook protocol: an entry of the view and, for an entry with several messages,
/// the number of one of them. `e7` is the entry's own text; `e7.1` is the first tool call of the reply `e7`,
/// the first message of the history `e7`, or the first message appended by the edits `e7`. Numbers of dropped
/// parts are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId {
    pub entry: Seq,
    /// From 1; `None` for the entry's own text.
    pub part: Option<u32>,
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Some(part) => write!(f, "{}.{part}", self.entry),
            None => write!(f, "{}", self.entry),
        }
    }
}

impl FromStr for PartId {
    type Err = ();

    fn from_str(text: &str) -> Result<PartId, ()> {
        let number = text.strip_prefix('e').ok_or(())?;
        let (entry, part) = match number.split_once('.') {
            Some((entry, part)) => (entry, Some(part.parse().map_err(drop)?)),
            None => (number, None),
        };
        Ok(PartId { entry: Seq(entry.parse().map_err(drop)?), part })
    }
}

impl Serialize for PartId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PartId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<PartId, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom(format!("{text:?} names no entry")))
    }
}

/// An edit of the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ViewEdit {
    /// Keeps the text byte for byte through every compaction.
    Pin {
        at: PartId,
    },
    Unpin {
        at: PartId,
    },
    /// Removes the content from the view and leaves one line with the entry's id and the note.
    Mask {
        at: PartId,
        note: String,
    },
    /// Removes the part from the view; a call together with its outcome.
    Drop {
        at: PartId,
    },
    Replace {
        at: PartId,
        content: Vec<Content>,
    },
    Append {
        role: Role,
        message: Message,
    },
}

impl ViewEdit {
    /// The part that is edited; `None` for an appended message.
    pub fn at(&self) -> Option<PartId> {
        match self {
            ViewEdit::Pin { at }
            | ViewEdit::Unpin { at }
            | ViewEdit::Mask { at, .. }
            | ViewEdit::Drop { at }
            | ViewEdit::Replace { at, .. } => Some(*at),
            ViewEdit::Append { .. } => None,
        }
    }

    /// The operation's name in declarations, results and display lines.
    pub fn op(&self) -> &'static str {
        match self {
            ViewEdit::Pin { .. } => "pin",
            ViewEdit::Unpin { .. } => "unpin",
            ViewEdit::Mask { .. } => "mask",
            ViewEdit::Drop { .. } => "drop",
            ViewEdit::Replace { .. } => "replace",
            ViewEdit::Append { .. } => "append",
        }
    }

    /// Whether it changes content that is already shown.
    pub fn rewrites(&self) -> bool {
        matches!(self, ViewEdit::Mask { .. } | ViewEdit::Drop { .. } | ViewEdit::Replace { .. })
    }

    /// Whether it leaves everything shown as it is.
    pub fn only_pins(&self) -> bool {
        matches!(self, ViewEdit::Pin { .. } | ViewEdit::Unpin { .. })
    }
}

/// A run of a hook that did or requested something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    pub hook: String,
    /// The event's name as registered by the hook.
    pub event: String,
    /// SHA-256 over the declaration and its files, in hexadecimal. Empty for built-in hooks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    pub milliseconds: u64,
    /// How it ended: `exit 0`, `exit 1`, `time limit of 30 s`, `not run`.
    pub end: String,
    /// A short form of the request: `block`, `mutate with 1 message`, `callback compact`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub asked: String,
    pub verdict: HookRunResult,
    /// Reasons for a refusal or failure, warnings about its output, and the beginning of that output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// The end of what it wrote to stderr. Older programs skip the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

/// The result of a hook's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookRunResult {
    /// It requested nothing.
    #[default]
    Nothing,
    /// Its request was carried out.
    Done,
    /// Its request was refused: a conflict, a guard, an invalid result, a stale revision.
    Refused,
    /// It did not produce a valid result.
    Failed,
    /// It was not started: untrusted, changed since it was trusted, or disabled.
    Skipped,
}
