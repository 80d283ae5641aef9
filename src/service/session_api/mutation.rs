//! The request of a hook to replace the history of another conversation, and why it is refused.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::SessionError;
use epitome_compaction::CompactionRefusal;
use epitome_config::Settings;
use epitome_hooks::guards::HistoryError;
use epitome_hooks::output::Utterance;
use epitome_store::StoreError;
use epitome_thread::SessionId;
use epitome_thread::edits::EditRefusal;

/// A replacement history for another conversation. It has keys in its environment, so it is not `Debug`.
#[derive(Clone)]
pub struct Mutation {
    /// The conversation of the hook, and its working directory.
    pub from: SessionId,
    pub cwd: PathBuf,
    /// The hook.
    pub by: String,
    pub messages: Vec<Utterance>,
    pub preserve_recent: usize,
    pub around: RequesterContext,
}

/// The settings and environment of the requesting session. They apply to the other conversation as well, because both
/// work in the same directory.
#[derive(Clone)]
pub struct RequesterContext {
    pub settings: Arc<Settings>,
    pub environment: Arc<Vec<(OsString, OsString)>>,
}

impl Mutation {
    /// The author of the change, as recorded in the other conversation's log.
    pub fn author(&self) -> String {
        format!("{} of {}", self.by, self.from)
    }
}

/// The tokens of the view before and after a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub tokens_before: u64,
    pub tokens_after: u64,
}

/// Receives the result.
pub type ReplacedAnswer = oneshot::Sender<Result<Replaced, ReplacementRefusal>>;

/// Why the history of a conversation, its own or another one, is not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReplacementRefusal {
    #[error(transparent)]
    Messages(#[from] HistoryError),
    #[error(transparent)]
    Edit(#[from] EditRefusal),
    #[error(transparent)]
    Size(#[from] CompactionRefusal),
    /// The model would never have seen the first replacement.
    #[error("the history was already compacted since the last model call")]
    CompactedAlready,
    #[error("a callback run has no history of its own to replace")]
    InCallback,
    #[error("a callback run can change the conversation that called it, and {0} is not it")]
    NotTheCaller(String),
    #[error("{0:?} is not the id of a conversation")]
    NotAnId(String),
    #[error(
        "{target} is another conversation ({messages} messages), and the configuration does not let hooks change others \
         (hooks.cross_session)"
    )]
    NotConfigured { target: SessionId, messages: usize },
    #[error("the user did not let hooks change {0}")]
    NotAllowed(SessionId),
    #[error("{0} can't be reached from here")]
    Unreachable(SessionId),
    #[error("there is no conversation {0}")]
    NotFound(SessionId),
    #[error("{target} works in another directory, {}", cwd.display())]
    OtherDirectory { target: SessionId, cwd: PathBuf },
    #[error("the last prompt of {0} has not ended; load it first")]
    InTurn(SessionId),
    #[error("a prompt runs in {0}")]
    PromptRuns(SessionId),
    #[error("{0} is busy")]
    Busy(SessionId),
    #[error("{0} is just ending")]
    Ending(SessionId),
    #[error(transparent)]
    Store(Arc<StoreError>),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Fault(#[from] WorkerFault),
}

impl From<StoreError> for ReplacementRefusal {
    fn from(error: StoreError) -> ReplacementRefusal {
        ReplacementRefusal::Store(Arc::new(error))
    }
}

/// A computation beside the session's task panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Epitome had an internal error; its log has the details")]
pub struct WorkerFault;
