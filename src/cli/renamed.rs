//! Commands with a former name. They still run, and are not in the help.

use std::ffi::OsString;

/// The former name, and the present one.
pub const RENAMED: [(&str, &str); 12] = [
    ("rename", "sessions rename latest"),
    ("undo", "sessions undo latest"),
    ("redo", "sessions redo latest"),
    ("history", "sessions history latest"),
    ("pin", "sessions pin latest"),
    ("unpin", "sessions unpin latest"),
    ("rewind", "sessions rewind latest"),
    ("checkpoints", "sessions checkpoints latest"),
    ("permissions", "sessions permissions latest"),
    ("inspect", "sessions inspect"),
    ("policy", "store policy"),
    ("man", "completions man"),
];

/// Names the present command, if this is a former one.
pub fn announce(arguments: &[OsString]) {
    let typed = arguments.first().and_then(|typed| typed.to_str());
    if let Some((former, present)) = RENAMED.iter().find(|(former, _)| Some(*former) == typed) {
        note!("epitome: `epitome {former}` is now `epitome {present}`");
    }
}
