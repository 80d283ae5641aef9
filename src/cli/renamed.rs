//! Commands with a former name. They still run, and are not in the help.

use std::ffi::OsString;

use super::CliError;

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

/// Commands that are gone, and what replaces them.
const GONE: [(&str, &str); 1] =
    [("worktree", "use `/worktree` in a session, or `git worktree list` and `git merge`")];

fn name(arguments: &[OsString]) -> Option<&str> {
    arguments.first()?.to_str()
}

/// Names the present command, if this is a former one.
pub fn announce(arguments: &[OsString]) {
    let typed = name(arguments);
    if let Some((former, present)) = RENAMED.iter().find(|(former, _)| Some(*former) == typed) {
        note!("epitome: `epitome {former}` is now `epitome {present}`");
    }
}

/// The error for a command that is gone.
pub fn gone(arguments: &[OsString]) -> Option<CliError> {
    let typed = name(arguments)?;
    let (former, instead) = GONE.iter().find(|(former, _)| *former == typed)?;
    Some(CliError::usage(format!("there is no `epitome {former}` any more")).hint(*instead))
}
