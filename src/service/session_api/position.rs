//! How much of a session a client has been shown, for a client that continues with another process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{TextKind, Ticket};
use epitome_thread::{CallId, Content, Entry, MessageId, Seq};

/// How much of a session a client has been shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Position {
    /// The last entry that was shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Seq>,
    /// Whether that entry was part of a replay.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replay: bool,
    /// The streamed message that is in no entry yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextShown>,
    /// The compaction that was shown to begin and not to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<MessageId>,
    /// Bytes shown in the terminals of running calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub terminals: Vec<(CallId, usize)>,
    /// Queued prompts that were shown at the end of a turn that had not taken them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queued: Vec<MessageId>,
}

/// How much of a streamed message was shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextShown {
    pub message: MessageId,
    /// The index, kind and bytes of each part, in the order in which they were shown.
    pub parts: Vec<(u32, TextKind, usize)>,
}

/// The part of the log that an earlier process has shown to a client. It is a single event: with less than all of it,
/// the client's position would lack what was shown since the last entry, and a daemon may die at any time.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The last entries: those of the turn that the client was in, or the last one.
    pub entries: Vec<Arc<Entry>>,
    pub position: Position,
}

/// A prompt whose answer a client still waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingPrompt {
    pub ticket: Ticket,
    /// The key that it was sent with.
    pub key: String,
    /// The prompt, for a log that does not have it. `None`: it was too large to be kept.
    pub content: Option<Vec<Content>>,
    /// Whether the client has cancelled it while no process ran.
    pub was_cancelled: bool,
}
