//! Commands with a former name. They still run, as their present ones, and are not in the help.

use std::ffi::OsString;

/// The former name, and the present one. `latest` is a session's id, in whose place `--resume` names another one.
const RENAMED: [(&str, &str); 12] = [
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

/// The arguments, in which the name of a former command is replaced. Prints the present one on stderr.
pub fn present(arguments: &[OsString]) -> Vec<OsString> {
    let typed = arguments.first().and_then(|typed| typed.to_str());
    let Some((former, present)) = RENAMED.iter().find(|(former, _)| Some(*former) == typed) else {
        return arguments.to_vec();
    };
    note!("epitome: `epitome {former}` is now `epitome {present}`");
    let mut rest = arguments[1..].to_vec();
    let resumed = rest.iter().position(|argument| argument == "--resume").filter(|at| at + 1 < rest.len());
    let session = resumed.map(|at| rest.drain(at..at + 2).next_back().unwrap_or_default());
    let name = |word: &str| match &session {
        Some(session) if word == "latest" => session.clone(),
        _ => word.into(),
    };
    present.split(' ').map(name).chain(rest).collect()
}
