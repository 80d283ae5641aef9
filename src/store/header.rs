//! The listing header of a session, as a fold over its log. Pure data; it reads neither files nor the clock.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use epitome_thread::{Change, Entry, Seq, SessionId};

/// What a listing shows of a session.
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
    /// Number of finished turns.
    pub turns: u64,
    /// Whether the user ever sent a prompt; other sessions are not listed to clients.
    pub has_prompt: bool,
    /// Origin of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<ForkOrigin>,
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
            has_prompt: false,
            forked: None,
        })
    }

    /// Applies the next entry of the log.
    pub fn apply(&mut self, entry: &Entry) {
        self.entries += 1;
        self.updated_at = entry.at;
        self.has_prompt |= entry.change.is_prompt();
        match &entry.change {
            Change::ModelChosen { model } | Change::Replied { model, .. } => {
                self.model = Some(model.0.clone())
            }
            Change::Titled { title } => self.title = Some(title.clone()),
            Change::TurnEnded { .. } => self.turns += 1,
            Change::Forked { from, through } => {
                self.forked = Some(ForkOrigin { session: from.clone(), at: *through });
            }
            _ => {}
        }
    }
}

/// How far a journal's times may be ahead of the clock. Clocks are set in steps, and shared directories have others.
const AHEAD_MS_MAX: u64 = 60 * 60 * 1000;

/// When a session was used last, for listings. Entries that were written with a clock far ahead would keep it at their
/// top forever; the time of the file, which later entries correct, takes their place.
pub(super) fn used_at(updated_at: u64, file_written_at: u64, now: u64) -> u64 {
    let is_ahead = |time: u64| time > now.saturating_add(AHEAD_MS_MAX);
    match (is_ahead(updated_at), is_ahead(file_written_at)) {
        (false, _) => updated_at,
        (true, false) => file_written_at,
        (true, true) => 0,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalMark {
    pub entries: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Checksum of the last line.
    pub crc: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock was ten years ahead for a moment, and a session stayed first in each list.
    #[test]
    fn a_clock_that_was_ahead_does_not_keep_a_session_at_the_top() {
        let (now, ahead) = (1_800_000_000_000, 2_100_000_000_000);
        assert_eq!(used_at(now - 5, now, now), now - 5);
        assert_eq!(used_at(ahead, now - 7, now), now - 7);
        assert_eq!(used_at(ahead, ahead, now), 0);
        assert_eq!(used_at(now + 1000, now, now), now + 1000, "clocks differ by seconds");
    }
}
