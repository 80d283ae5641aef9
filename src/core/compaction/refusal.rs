//! Why a compaction, or another replacement of the history, is not made.

use super::GAIN_MIN_PERCENT;
use super::input::CompactionInput;
use epitome_thread::PartId;
use epitome_tokens::Ruler;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompactionRefusal {
    #[error("a summary would not be shorter than what it replaces")]
    NoGain,
    /// Of a requested compaction, which needs no gain.
    #[error("everything is kept or already compacted")]
    NothingLeft,
    #[error(
        "the system text and the tools take {frame} of the {window} tokens that the model holds and {reserve} are kept \
         for its reply, so that no conversation fits; choose a model with a larger window, or make the instructions \
         shorter and begin a new session"
    )]
    NoRoom { frame: u64, window: u64, reserve: u64 },
    /// It would succeed without the pins, which are never dropped. Contains a clause that names them and their size.
    #[error("{pins}; unpin some of them first")]
    Pins { pins: String },
    #[error(
        "the shortest that can be made of it takes about {tokens} tokens, and the model's window has room for {room} \
         besides the system text and the reply; choose a model with a larger window"
    )]
    TooLong { tokens: u64, room: u64 },
    /// The history of a hook.
    #[error("the new history takes about {tokens} tokens, and there is room for {room}")]
    HistoryTooLong { tokens: u64, room: u64 },
}

/// Why there is no compaction. Names the pins if it would succeed without them, since they are never dropped.
pub(super) fn why_not(
    input: &CompactionInput<'_>,
    tokens_after: u64,
    pins: &[(PartId, String)],
    fits: bool,
) -> CompactionRefusal {
    let pinned = tokens_of(&input.ruler, pins);
    let without = tokens_after.saturating_sub(pinned);
    let by_pins = match fits {
        true => without * 100 <= input.before * (100 - GAIN_MIN_PERCENT),
        false => without <= input.limit,
    };
    match fits {
        _ if pinned > 0 && by_pins => CompactionRefusal::Pins { pins: pins_in_words(&input.ruler, pins) },
        true => CompactionRefusal::NoGain,
        false => CompactionRefusal::TooLong { tokens: tokens_after, room: input.limit },
    }
}

pub(super) fn tokens_of(ruler: &Ruler, pins: &[(PartId, String)]) -> u64 {
    pins.iter().map(|(_, text)| ruler.text(text)).sum()
}

pub(super) fn pins_in_words(ruler: &Ruler, pins: &[(PartId, String)]) -> String {
    let names: Vec<String> = pins.iter().map(|(part, _)| part.to_string()).collect();
    format!("the pinned parts {} take about {} tokens", names.join(", "), tokens_of(ruler, pins))
}
