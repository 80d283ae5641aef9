//! The results of commands' disk work.

use serde_json::Value;

use epitome_checkpoint::{CheckpointError, RewindReport, RewindTarget, TurnRecord};
use epitome_thread::{Change, Seq, named_enum};

/// The result of a command's disk work.
pub enum DiskResult {
    Rewound(Box<RewindPlan>, Option<Result<RewindReport, CheckpointError>>),
    Checkpoints(Result<Vec<TurnRecord>, CheckpointError>),
    Worktree(WorktreeReport),
    Shell(ShellRun),
}

/// A command that the user has typed, and its output.
pub struct ShellRun {
    pub(super) command: String,
    pub output: String,
}

/// The text and the machine-readable result.
pub type WorktreeReport = (String, Value);

named_enum! {
    /// The parts that a rewind covers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum RewindParts {
        Files = "files",
        Conversation = "conversation",
        Both = "both",
    }
}

impl RewindParts {
    pub(super) fn files(self) -> bool {
        matches!(self, RewindParts::Files | RewindParts::Both)
    }

    pub(super) fn conversation(self) -> bool {
        matches!(self, RewindParts::Conversation | RewindParts::Both)
    }
}

/// A parsed `/rewind` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RewindRequest {
    pub(super) entry: Option<Seq>,
    pub(super) scope: RewindParts,
    pub(super) dry: bool,
    pub(super) force: bool,
    pub(super) undo: bool,
}

/// A rewind: its file operation, and the change of the conversation that goes with it.
pub struct RewindPlan {
    pub(super) request: RewindRequest,
    pub(super) files: Option<RewindTarget>,
    /// The change of the conversation, if it is rewound too.
    pub(super) conversation: Option<Change>,
    /// A description of the target: `before e12 “fix the parser”`.
    pub(super) what: String,
    pub(super) target: Seq,
}
