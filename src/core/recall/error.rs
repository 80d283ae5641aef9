//! Why a query cannot be answered, as a sentence for the model or the user.

use crate::RecordKind;
use crate::search::{PATTERN_BYTES_MAX, WORDS_MAX};

/// Why a query cannot be answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecallError {
    #[error("{0:?} names no entry: it is e12, e12.2 for a part, or e12-e20.")]
    Range(String),
    #[error("There is no kind {name:?}: it is {}.", RecordKind::ALL.map(RecordKind::id).join(", "))]
    Kind { name: String },
    #[error("{0:?} is not a known form of time: write 2026-01-31, 2026-01-31T10:00 or 2h ago.")]
    Time(String),
    #[error("Ask for less: {WORDS_MAX} words or a pattern of {PATTERN_BYTES_MAX} bytes at most.")]
    TooMuch,
    #[error("The regex can't be used: {0}")]
    Regex(#[from] regex::Error),
    #[error("There are {total} bytes; offset {offset} is past the end.")]
    PastEnd { total: usize, offset: usize },
    /// The range has no text.
    #[error("{0}")]
    Nothing(String),
}
