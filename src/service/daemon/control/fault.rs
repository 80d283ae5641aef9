//! Errors of the control API: a code, a kind, a message and a hint.

use std::time::Duration;

use jsonrpsee_types::ErrorObjectOwned;
use serde_json::{Value, json};

use crate::build::Build;
use epitome_session::SessionError;
use epitome_session_library::{LibraryError, hint_of};
use epitome_store::StoreError;

/// Kinds of faults. Their codes and names are part of the API and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A line that is not JSON.
    Parse,
    /// JSON that is not a request: a batch, a wrong version, or a line that is too long.
    InvalidRequest,
    UnknownMethod,
    /// A parameter that is missing, unknown or of the wrong type.
    InvalidParams,
    /// A bug in Epitome.
    Internal,
    /// No API key for the model's provider.
    AuthRequired,
    /// No such session, recipe or entry.
    NotFound,
    /// The session can't do that in its current state.
    Refused,
    /// The model's provider failed.
    Provider,
    /// The prompt is longer than the model's context window.
    TooLong,
    /// A limit of the budget does not allow another call of a model.
    OverBudget,
    /// A failure of the disk or of stored data.
    Store,
    /// Too many calls are waiting already.
    Busy,
    /// The session is open in another process, which holds the lock on its log.
    InUse,
    /// The call exceeded its time limit.
    TimedOut,
    /// The client does not know the daemon's token, or is a process that may not command it.
    Unauthorized,
}

/// Each kind with its code and its name, in the order of the enum.
const KINDS: [(FaultKind, i32, &str); 16] = [
    (FaultKind::Parse, -32700, "parse"),
    (FaultKind::InvalidRequest, -32600, "invalid_request"),
    (FaultKind::UnknownMethod, -32601, "unknown_method"),
    (FaultKind::InvalidParams, -32602, "invalid_params"),
    (FaultKind::Internal, -32603, "internal"),
    (FaultKind::AuthRequired, -32000, "auth_required"),
    (FaultKind::NotFound, -32001, "not_found"),
    (FaultKind::Refused, -32002, "refused"),
    (FaultKind::Provider, -32003, "provider"),
    (FaultKind::TooLong, -32004, "too_long"),
    (FaultKind::OverBudget, -32010, "over_budget"),
    (FaultKind::Store, -32005, "store"),
    (FaultKind::Busy, -32006, "busy"),
    (FaultKind::InUse, -32007, "in_use"),
    (FaultKind::TimedOut, -32008, "timed_out"),
    (FaultKind::Unauthorized, -32009, "unauthorized"),
];

impl FaultKind {
    pub fn code(self) -> i32 {
        KINDS[self as usize].1
    }

    pub fn name(self) -> &'static str {
        KINDS[self as usize].2
    }

    pub fn from_code(code: i32) -> Option<FaultKind> {
        KINDS.into_iter().find(|(_, known, _)| *known == code).map(|(kind, ..)| kind)
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: FaultKind,
    /// A sentence for the user.
    pub message: String,
    /// A hint for the user.
    pub hint: Option<String>,
}

impl Fault {
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), hint: None }
    }

    /// A daemon and a program of incompatible builds.
    pub fn incompatible_builds(daemon: &Build, program: &Build) -> Fault {
        let message =
            format!("the daemon is {}, this program {}", daemon.name(program), program.name(daemon));
        Fault::new(FaultKind::Refused, message)
            .hint("`epitome daemon stop` ends it; the next window starts another, of its own build")
    }

    /// A method exceeded its time limit.
    pub fn timed_out(method: &str, limit: Duration) -> Fault {
        let message = format!("{method} did not finish within {} s", limit.as_secs_f64());
        Fault::new(FaultKind::TimedOut, message).hint(
            "the disk or the session hangs, or a turn is running; the call may still complete: \
             `epitome sessions show` and `epitome daemon logs` say more, and `epitome daemon stop --force` ends the daemon",
        )
    }

    /// The daemon did not answer, not even to report a timeout.
    pub fn unanswered(method: &str, limit: Duration) -> Fault {
        let message = format!("the daemon did not answer {method} within {} s", limit.as_secs_f64());
        Fault::new(FaultKind::TimedOut, message)
            .hint("`epitome daemon logs` may say why; `epitome daemon stop --force` ends it")
    }

    /// The daemon was killed or stopped during a call.
    pub fn daemon_ended() -> Fault {
        Fault::new(FaultKind::Internal, "the daemon ended before it answered").hint("try it again")
    }

    pub fn hint(self, hint: impl Into<String>) -> Fault {
        Fault { hint: Some(hint.into()), ..self }
    }
}

impl From<Fault> for ErrorObjectOwned {
    fn from(fault: Fault) -> ErrorObjectOwned {
        let data = json!({ "kind": fault.kind.name(), "hint": fault.hint });
        ErrorObjectOwned::owned(fault.kind.code(), fault.message, Some(data))
    }
}

impl From<ErrorObjectOwned> for Fault {
    fn from(error: ErrorObjectOwned) -> Fault {
        let data = error.data().and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
        let hint = data.and_then(|data| data["hint"].as_str().map(str::to_owned));
        let kind = FaultKind::from_code(error.code()).unwrap_or(FaultKind::Internal);
        Fault { kind, message: error.message().to_owned(), hint }
    }
}

impl From<SessionError> for Fault {
    fn from(error: SessionError) -> Fault {
        let kind = match &error {
            SessionError::NotFound(_) => FaultKind::NotFound,
            SessionError::AuthRequired(_) => FaultKind::AuthRequired,
            SessionError::Invalid(_) => FaultKind::Refused,
            SessionError::Provider { .. } => FaultKind::Provider,
            SessionError::TooLong(_) => FaultKind::TooLong,
            SessionError::OverBudget(_) => FaultKind::OverBudget,
            SessionError::Store(_) => FaultKind::Store,
            SessionError::Busy(_) => FaultKind::Busy,
            SessionError::InUse(..) => FaultKind::InUse,
            SessionError::Interrupted(_) | SessionError::Internal(_) => FaultKind::Internal,
        };
        let message = error.to_string();
        let hint = match error {
            SessionError::NotFound(_) => Some(LIST_HINT.to_owned()),
            SessionError::InUse(..) => Some(IN_USE_HINT.to_owned()),
            SessionError::Provider { hint, .. } => hint,
            _ => None,
        };
        Fault { kind, message, hint }
    }
}

/// Hint for a session that does not exist.
const LIST_HINT: &str = "`epitome sessions list` and sessions.list show all";

/// Hint for a session whose log is locked by another process.
const IN_USE_HINT: &str = "close it there first: in an editor without a daemon, or in a shell";

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        match error {
            StoreError::NotFound(_) => Fault::new(FaultKind::NotFound, error.to_string()).hint(LIST_HINT),
            StoreError::InUse(..) => Fault::new(FaultKind::InUse, error.to_string()).hint(IN_USE_HINT),
            other => {
                let hint = hint_of(&other).map(str::to_owned);
                Fault { kind: FaultKind::Store, message: other.to_string(), hint }
            }
        }
    }
}

impl From<LibraryError> for Fault {
    fn from(error: LibraryError) -> Fault {
        let hint = error.hint();
        match error {
            LibraryError::Store(error) => error.into(),
            LibraryError::File(problem) => {
                Fault { kind: FaultKind::Refused, message: problem.to_string(), hint }
            }
            LibraryError::Refused { message, hint } => Fault { kind: FaultKind::Refused, message, hint },
        }
    }
}
