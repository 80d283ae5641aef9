//! Plans a rewind: a pure function of the turns' records and the current state of the files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::node::{FileNode, written};
use super::record::TurnRecord;

/// The state to be restored at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetState {
    pub node: FileNode,
    /// The state that the last turn left at the path.
    pub left: Option<FileNode>,
    /// Whether something else changed it in between.
    pub shared: bool,
}

/// The change of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreStep {
    #[serde(with = "written")]
    pub path: PathBuf,
    /// The current node.
    pub now: FileNode,
    /// The node to be restored.
    pub to: FileNode,
}

/// A path that is left unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub path: PathBuf,
    pub why: ConflictReason,
}

/// Why a path is left unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictReason {
    /// Changed by something else since the turn. Can be forced.
    Edited,
    /// Changed by something else between two calls of the turn. Can be forced.
    Between,
    /// The old content wasn't stored: too large, or unreadable.
    NotKept,
    /// The current content is too large to be stored before overwriting it.
    TooLarge,
    /// It may have existed before: ignore rules changed, or a limit was reached.
    Unsure,
    /// A pipe, a socket or a device.
    NoFile,
}

impl ConflictReason {
    pub fn words(self) -> &'static str {
        match self {
            ConflictReason::Edited => "changed by someone else since the turn",
            ConflictReason::Between => "changed by someone else between two calls of the turn",
            ConflictReason::NotKept => {
                "its earlier content was not stored: it, or all of the workspace, was too large, or it could not be read"
            }
            ConflictReason::TooLarge => "its current content is too large to be stored first",
            ConflictReason::Unsure => {
                "it may have existed before the turn: ignore rules changed, or a limit was reached"
            }
            ConflictReason::NoFile => "it is a pipe, a socket or a device",
        }
    }

    pub fn can_be_forced(self) -> bool {
        matches!(self, ConflictReason::Edited | ConflictReason::Between)
    }
}

/// Merges the records of turns, oldest first: the state before the first of them, and the state after the
/// last.
pub fn merge_records<'a>(
    records: impl IntoIterator<Item = &'a TurnRecord>,
) -> BTreeMap<PathBuf, TargetState> {
    let mut wanted: BTreeMap<PathBuf, TargetState> = BTreeMap::new();
    for touched in records.into_iter().flat_map(|record| &record.files) {
        match wanted.get_mut(&touched.path) {
            None => {
                let (node, left) = (touched.before.clone(), touched.after.clone());
                wanted.insert(touched.path.clone(), TargetState { node, left, shared: touched.shared });
            }
            Some(known) => {
                // The state before this turn differs from the one that the previous turn left.
                known.shared |=
                    touched.shared || known.left.as_ref().is_some_and(|left| *left != touched.before);
                known.left = touched.after.clone();
            }
        }
    }
    wanted
}

/// The current node at a path, and how it compares.
pub struct CurrentState {
    pub node: FileNode,
    /// Whether it equals the node that the turn left.
    pub is_left: bool,
    /// Whether it equals the wanted node.
    pub is_wanted: bool,
}

/// Decides what to do with each path. `now` returns the current state of a path; `forced` also overwrites changes
/// that were not made by the turns.
pub fn decide(
    wanted: &BTreeMap<PathBuf, TargetState>,
    mut now: impl FnMut(&PathBuf, &TargetState) -> CurrentState,
    forced: bool,
) -> (Vec<RestoreStep>, Vec<Conflict>) {
    let (mut steps, mut conflicts) = (Vec::new(), Vec::new());
    for (path, wanted) in wanted {
        let CurrentState { node: now, is_left, is_wanted } = now(path, wanted);
        if is_wanted {
            continue;
        }
        let why = match (&wanted.node, &now) {
            (FileNode::Other, _) | (_, FileNode::Other) => Some(ConflictReason::NoFile),
            (FileNode::Unkept { .. }, _) => Some(ConflictReason::NotKept),
            (_, FileNode::Unkept { .. }) => Some(ConflictReason::TooLarge),
            _ if is_left => wanted.shared.then_some(ConflictReason::Between),
            _ => Some(ConflictReason::Edited),
        };
        match why {
            Some(why) if !(forced && why.can_be_forced()) => {
                conflicts.push(Conflict { path: path.clone(), why });
            }
            Some(_) | None => steps.push(RestoreStep { path: path.clone(), now, to: wanted.node.clone() }),
        }
    }
    (steps, conflicts)
}
