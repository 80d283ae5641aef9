//! Why a compaction, or another replacement of the history, is not made.

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
