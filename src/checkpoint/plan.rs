//! What a rewind would do: pure, from what turns did and what stands there now.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::node::{Node, written};
use super::record::TurnRecord;

/// What is to stand at a path again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub node: Node,
    /// What the last turn left there.
    pub left: Option<Node>,
    /// Somebody else changed it between.
    pub shared: bool,
}

/// One path that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    #[serde(with = "written")]
    pub path: PathBuf,
    /// What stands there.
    pub now: Node,
    /// What will.
    pub to: Node,
}

/// A path that is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub path: PathBuf,
    pub why: Why,
}

/// Why a path is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was changed since, by somebody else. Can be forced.
    Edited,
    /// It was changed between two calls of the turn, by somebody else. Can be forced.
    Between,
    /// What it held was not kept: too large.
    NotKept,
    /// What it holds now can't be kept first: too large.
    TooLarge,
    /// It may have been there before: what is ignored was changed, or a bound was met.
    Unsure,
    /// A pipe, a socket or a device.
    NoFile,
}

impl Why {
    pub fn words(self) -> &'static str {
        match self {
            Why::Edited => "changed since by somebody else",
            Why::Between => "changed by somebody else between two calls of the turn",
            Why::NotKept => "what it held was not kept: it was too large, or could not be read",
            Why::TooLarge => "what it holds now is too large to be kept first",
            Why::Unsure => {
                "it may have been there before the turn: what is ignored changed, or a bound was met"
            }
            Why::NoFile => "it is a pipe, a socket or a device",
        }
    }

    pub fn can_be_forced(self) -> bool {
        match self {
            Why::Edited | Why::Between => true,
            Why::NotKept | Why::TooLarge | Why::Unsure | Why::NoFile => false,
        }
    }
}

/// What turns together did, oldest first: what stood before the first of them, and what the last one left.
pub fn together<'a>(records: impl IntoIterator<Item = &'a TurnRecord>) -> BTreeMap<PathBuf, Wanted> {
    let mut wanted: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
    for touched in records.into_iter().flat_map(|record| &record.files) {
        match wanted.get_mut(&touched.path) {
            None => {
                let (node, left) = (touched.before.clone(), touched.after.clone());
                wanted.insert(touched.path.clone(), Wanted { node, left, shared: touched.shared });
            }
            Some(known) => {
                // What stood before this turn is not what the one before it had left.
                known.shared |=
                    touched.shared || known.left.as_ref().is_some_and(|left| *left != touched.before);
                known.left = touched.after.clone();
            }
        }
    }
    wanted
}

/// What stands at a path, beside what it is compared with.
pub struct Now {
    pub node: Node,
    /// It is what the turn left.
    pub is_left: bool,
    /// It is what is wanted.
    pub is_wanted: bool,
}

/// What is done with each path. `now` says what stands at one, and `forced` takes away what somebody else has
/// changed, too.
pub fn decide(
    wanted: &BTreeMap<PathBuf, Wanted>,
    mut now: impl FnMut(&PathBuf, &Wanted) -> Now,
    forced: bool,
) -> (Vec<Step>, Vec<Conflict>) {
    let (mut steps, mut conflicts) = (Vec::new(), Vec::new());
    for (path, wanted) in wanted {
        let Now { node: now, is_left, is_wanted } = now(path, wanted);
        if is_wanted {
            continue;
        }
        let why = match (&wanted.node, &now) {
            (Node::Other, _) | (_, Node::Other) => Some(Why::NoFile),
            (Node::Unkept { .. }, _) => Some(Why::NotKept),
            (_, Node::Unkept { .. }) => Some(Why::TooLarge),
            _ if is_left => wanted.shared.then_some(Why::Between),
            _ => Some(Why::Edited),
        };
        match why {
            Some(why) if !(forced && why.can_be_forced()) => {
                conflicts.push(Conflict { path: path.clone(), why });
            }
            Some(_) | None => steps.push(Step { path: path.clone(), now, to: wanted.node.clone() }),
        }
    }
    (steps, conflicts)
}
