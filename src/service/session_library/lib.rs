//! Operations on stored sessions: list, show, search, fork, export, import. Plain functions over a `Store` that
//! return data, shared by the command line and the control API. They block on the disk, work on open sessions too,
//! and ignore running turns.

mod files;
mod grown;
mod search;

use serde::Serialize;

pub use epitome_store::ForkedSession;
use epitome_store::{Header, SessionQuery, Store, StoreError};
use epitome_thread::problem::Problem;
use epitome_thread::{Seq, SessionId, Thread};

pub use files::{
    ExportFormat, Exported, ExportedFiles, ImportRequest, Imported, export, export_all, import,
    read_by_helper, write_new,
};
pub use search::{SearchRequest, SearchResults, SessionFind, search};

/// Maximum number of ids listed in the error for an ambiguous prefix.
const NAMED_MAX: usize = 5;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A problem in one of the user's files.
    #[error("{0}")]
    File(Problem),
    /// The request can't be fulfilled: a sentence and a hint.
    #[error("{message}")]
    Refused { message: String, hint: Option<String> },
}

impl LibraryError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            LibraryError::Store(error) => hint_of(error).map(str::to_owned),
            // The problem's text includes its hint.
            LibraryError::File(_) => None,
            LibraryError::Refused { hint, .. } => hint.clone(),
        }
    }

    fn refused(message: impl Into<String>, hint: &str) -> LibraryError {
        LibraryError::Refused { message: message.into(), hint: Some(hint.to_owned()) }
    }

    fn failed(message: String) -> LibraryError {
        LibraryError::Refused { message, hint: None }
    }
}

/// Hint for a session that is open in another process.
pub const IN_USE_HINT: &str = "close it in the editor or the other terminal first";

/// Hint for a store error.
pub fn hint_of(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::NotFound(_) => Some("`epitome sessions list` shows all"),
        StoreError::InUse(..) => Some(IN_USE_HINT),
        StoreError::FutureFormat { .. } => Some("install the newer version to read it"),
        StoreError::Damaged { .. }
        | StoreError::BodiesLost { .. }
        | StoreError::Unreadable(_)
        | StoreError::Misnamed { .. } => Some("`epitome doctor` shows what else is wrong"),
        StoreError::Exists(_)
        | StoreError::Unstorable { .. }
        | StoreError::SyncFailed(_)
        | StoreError::Replaced(_)
        | StoreError::DamageFound(_)
        | StoreError::Unfoldable { .. }
        | StoreError::TakenOver { .. }
        | StoreError::Unreachable { .. }
        | StoreError::NotFiles { .. }
        | StoreError::Io { .. } => None,
    }
}

/// A listing of sessions, newest first.
#[derive(Debug)]
pub struct SessionListing {
    pub sessions: Vec<Header>,
    /// Sessions that can't be read.
    pub problems: Vec<Unlisted>,
}

/// A session with which something is wrong.
#[derive(Debug, Serialize)]
pub struct Unlisted {
    pub session: SessionId,
    pub problem: String,
}

/// Lists sessions.
pub fn list(store: &Store, query: &SessionQuery) -> Result<SessionListing, LibraryError> {
    let listing = store.page(query)?;
    let problems = listing
        .problems
        .into_iter()
        .map(|(session, problem)| Unlisted { session, problem: problem.to_string() });
    Ok(SessionListing { sessions: listing.headers, problems: problems.collect() })
}

/// Resolves an id, or a unique prefix of one, to a session. The leading `s_` may be omitted.
pub fn resolve(store: &Store, typed: &str) -> Result<SessionId, LibraryError> {
    let prefix = full_prefix(typed);
    let listing = store.page(&SessionQuery { prefix, ..SessionQuery::default() })?;
    let sound = listing.headers.into_iter().map(|header| header.session);
    let mut known: Vec<SessionId> =
        sound.chain(listing.problems.into_iter().map(|(session, _)| session)).collect();
    known.sort();
    known.dedup();
    choose(&known, typed)
}

fn full_prefix(typed: &str) -> String {
    if typed.starts_with("s_") { typed.to_owned() } else { format!("s_{typed}") }
}

fn choose(known: &[SessionId], typed: &str) -> Result<SessionId, LibraryError> {
    let beginning = full_prefix(typed);
    let fitting: Vec<&SessionId> =
        known.iter().filter(|session| !typed.is_empty() && session.0.starts_with(&beginning)).collect();
    match fitting.as_slice() {
        [session] => Ok((*session).clone()),
        [] => Err(LibraryError::refused(
            match typed {
                "" => "the id of the session is empty".to_owned(),
                typed => format!("there is no session {typed}"),
            },
            "`epitome sessions list` shows all",
        )),
        several => {
            let named: Vec<&str> = several.iter().take(NAMED_MAX).map(|session| session.0.as_str()).collect();
            let more = if several.len() > NAMED_MAX { ", …" } else { "" };
            Err(LibraryError::refused(
                format!("{} session IDs begin with {typed}", several.len()),
                &format!("give more of the id: {}{more}", named.join(", ")),
            ))
        }
    }
}

/// A conversation read from the store.
pub struct StoredConversation {
    pub thread: Thread,
    /// The loss in the log, unless the user has accepted it. Lost entries are `Change::Lost` in the thread.
    pub damage: Option<StoreError>,
}

/// Reads a conversation, even if it is damaged.
pub fn read(store: &Store, session: &SessionId) -> Result<StoredConversation, LibraryError> {
    let (thread, damage) = store.thread(session)?;
    Ok(StoredConversation { thread, damage })
}

/// Forks a session up to and including an entry, or in its current state. The fork's log records its origin; the
/// original is not changed and may be open.
pub fn fork(store: &Store, session: &SessionId, at: Option<Seq>) -> Result<ForkedSession, LibraryError> {
    let header = store.header(session)?;
    if let Some(at) = at
        && at.0 >= header.entries
    {
        let last = Seq(header.entries - 1);
        return Err(LibraryError::refused(
            format!("session {session} has no entry {at}; the last is {last}"),
            "`epitome sessions show ID` has them",
        ));
    }
    Ok(store.fork_with_origin(session, at)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_prefix_resolves_to_a_session() {
        let known = ["s_aa00000000000000000a", "s_ab00000000000000000b"].map(|id| SessionId(id.to_owned()));
        for typed in ["s_ab", "ab", "s_ab00000000000000000b"] {
            assert_eq!(choose(&known, typed).expect("one fits"), known[1]);
        }
        for (typed, expected) in [
            ("a", "2 session IDs begin with a"),
            ("", "the id of the session is empty"),
            ("c", "no session c"),
        ] {
            let error = choose(&known, typed).expect_err("none or several fit");
            assert!(error.to_string().contains(expected), "{typed:?}: {error}");
        }
    }
}
