//! The listing header of a session, as a fold over its log. Pure data; it reads neither files nor the clock.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::sync_mark::Reached;
use epitome_thread::{Change, Entry, Seq, SessionId};

/// A session as listings show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub session: SessionId,
    pub cwd: PathBuf,
    pub title: Option<String>,
    pub model: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at: u64,
    pub updated_at: u64,
    pub entries: u64,
    /// Number of finished turns with a prompt; commands don't count.
    pub turns: u64,
    /// Whether a turn with a prompt has begun and not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_turn: bool,
    /// Whether the user ever sent a prompt; other sessions are not listed to clients.
    pub has_prompt: bool,
    /// Whether clients list it only on request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
    /// Number of entries that are damaged or missing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Origin of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<ForkOrigin>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Origin of a fork: the two logs are the same up to and including this entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrigin {
    pub session: SessionId,
    pub at: Seq,
}

impl Header {
    /// The header of a log that consists of `entry` alone; `None` if that is not an opening entry.
    pub fn opened(entry: &Entry) -> Option<Header> {
        let Change::Opened { session, cwd, format: _ } = &entry.change else { return None };
        Some(Header {
            session: session.clone(),
            cwd: cwd.clone(),
            title: None,
            model: None,
            created_at: entry.at,
            updated_at: entry.at,
            entries: 1,
            turns: 0,
            in_turn: false,
            has_prompt: false,
            archived: false,
            lost: 0,
            forked: None,
        })
    }

    /// Applies the next entry of the log.
    pub fn apply(&mut self, entry: &Entry) {
        self.entries += 1;
        self.updated_at = entry.at;
        let is_lost = matches!(entry.change, Change::Lost { .. });
        self.lost += u64::from(is_lost);
        // A lost entry may have been a prompt.
        self.has_prompt |= is_lost || entry.change.is_prompt();
        self.in_turn |= entry.change.is_said_by_user();
        match &entry.change {
            Change::ModelChosen { model } | Change::Replied { model, .. } => {
                self.model = Some(model.0.clone())
            }
            Change::Titled { title } => self.title = Some(title.clone()),
            Change::Archived { archived } => self.archived = *archived,
            Change::TurnEnded { .. } => self.turns += u64::from(std::mem::take(&mut self.in_turn)),
            Change::Forked { from, through } => {
                self.forked = Some(ForkOrigin { session: from.clone(), at: *through });
            }
            _ => {}
        }
    }
}

/// A header and the state of the journal it was made from. Two of them are equal only if nothing was
/// appended, truncated or replaced in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MarkedHeader {
    pub header: Header,
    pub mark: JournalMark,
}

/// The end of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalMark {
    pub entries: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Checksum of the last entry's line; 0 if that is lost.
    pub crc: u32,
}

impl JournalMark {
    pub fn reached(self) -> Reached {
        Reached { entries: self.entries, bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Message, MessageId, Origin, StopReason, Usage};

    /// Regression: `sessions list` showed 27 turns of a session and `/usage` 4, because the list counted each slash
    /// command as a turn.
    #[test]
    fn a_command_is_no_turn() {
        let message = MessageId(1);
        let entry = |change| Entry { seq: Seq(0), at: 0, change };
        let opened = Change::Opened {
            format: 1,
            session: SessionId("s_00000000000000000001".into()),
            cwd: "/w".into(),
        };
        let said = Change::Said {
            message: Message { id: message, content: Vec::new(), author: None },
            origin: Origin::Person,
        };
        let commanded = Change::Commanded { message, typed: "/usage".into() };
        let ended = Change::TurnEnded {
            reason: StopReason::EndTurn,
            usage: Usage::default(),
            quiet_hooks: 0,
            failure: None,
        };
        let mut header = Header::opened(&entry(opened)).expect("it opens a log");
        for change in [commanded, ended.clone(), said, ended] {
            header.apply(&entry(change));
        }
        assert_eq!((header.turns, header.in_turn), (1, false));
    }

    /// Regression: a session whose log had lost everything was not listed, as if it had never had a prompt.
    #[test]
    fn a_lost_entry_may_have_been_a_prompt() {
        let entry = |change| Entry { seq: Seq(0), at: 0, change };
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: 1, session, cwd: "/w".into() };
        let mut header = Header::opened(&entry(opened)).expect("it opens a log");
        assert!(!header.has_prompt);
        header.apply(&entry(Change::Lost { entries: 2 }));
        header.apply(&entry(Change::Lost { entries: 0 }));
        assert_eq!((header.has_prompt, header.lost), (true, 2));
    }
}
