//! Recall questions.

use std::str::FromStr;

use crate::RecallError;
use epitome_thread::{PartId, Seq, named_enum};

/// A query. If it has only a range, the text of the range is read; otherwise, the log is searched. All conditions
/// must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecallQuery {
    pub range: Option<EntryRange>,
    /// Words that must all occur, ignoring case.
    pub text: Option<String>,
    pub regex: Option<String>,
    /// A file or directory, absolute or relative to the working directory.
    pub path: Option<String>,
    pub kind: Option<RecordKind>,
    /// A time in a form accepted by `Clock::time`.
    pub since: Option<String>,
    pub until: Option<String>,
    /// When reading, the byte to start from; when searching, the number of results to skip.
    pub offset: usize,
    /// Maximum number of bytes when reading, or of results when searching.
    pub limit: Option<usize>,
}

impl RecallQuery {
    pub(super) fn is_search(&self) -> bool {
        let by_words = self.text.is_some() || self.regex.is_some();
        by_words
            || self.path.is_some()
            || self.kind.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.range.is_none()
    }
}

/// An entry or a part, or a range of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRange {
    pub from: PartId,
    pub through: PartId,
}

impl EntryRange {
    pub(super) fn has(&self, part: PartId) -> bool {
        let is_at = |own: PartId| own.part.is_none() || own.part == part.part;
        if self.from.entry == self.through.entry {
            return self.from.entry == part.entry && is_at(self.from);
        }
        (self.from.entry..=self.through.entry).contains(&part.entry)
    }

    /// The entry, if the range covers only one.
    pub(super) fn single(&self) -> Option<Seq> {
        (self.from.entry == self.through.entry).then_some(self.from.entry)
    }
}

impl FromStr for EntryRange {
    type Err = RecallError;

    fn from_str(text: &str) -> Result<EntryRange, RecallError> {
        let wrong = || RecallError::Range(text.to_owned());
        let part = |text: &str| text.trim().parse::<PartId>().map_err(|()| wrong());
        let range = match text.split_once('-') {
            Some((from, through)) => EntryRange { from: part(from)?, through: part(through)? },
            None => {
                let one = part(text)?;
                EntryRange { from: one, through: one }
            }
        };
        if range.from.entry > range.through.entry { Err(wrong()) } else { Ok(range) }
    }
}

named_enum! {
    /// The kind of a record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RecordKind {
        /// User messages: by the user, a hook or a recipe, and instructions.
        Said = "said",
        Reply = "reply",
        Call = "call",
        Outcome = "outcome",
        Summary = "summary",
    }
}

impl FromStr for RecordKind {
    type Err = RecallError;

    fn from_str(text: &str) -> Result<RecordKind, RecallError> {
        RecordKind::parse(text.trim()).ok_or_else(|| RecallError::Kind { name: text.to_owned() })
    }
}
