//! What the control API remembers of its clients, across connections: who of them is in which session, so
//! that a question is left to those who can answer it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::daemon::Daemon;
use crate::thread::SessionId;

/// One for each daemon.
#[derive(Default)]
pub struct Desk {
    sessions: Mutex<HashMap<SessionId, Present>>,
}

/// Who of the control API is in a session.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Present {
    /// Who look on, and may answer questions.
    tails: usize,
    /// Who wait for an answer, and can't be asked.
    visits: usize,
}

impl Desk {
    pub(super) fn looks_on(&self, session: &SessionId) {
        self.change(session, |present| present.tails += 1);
    }

    pub(super) fn looks_away(&self, session: &SessionId) {
        self.change(session, |present| present.tails = present.tails.saturating_sub(1));
    }

    pub(super) fn visits(&self, session: &SessionId) {
        self.change(session, |present| present.visits += 1);
    }

    pub(super) fn leaves(&self, session: &SessionId) {
        self.change(session, |present| present.visits = present.visits.saturating_sub(1));
    }

    /// Whether somebody is there who could be asked: an editor, a shell, or who follows a tail.
    pub(super) fn is_anybody_else_there(&self, daemon: &Daemon, session: &SessionId) -> bool {
        let present = self.sessions().get(session).copied().unwrap_or_default();
        let live = daemon.sessions.live_sessions().into_iter().find(|live| live.session == *session);
        present.tails > 0 || live.is_some_and(|live| live.clients > present.visits)
    }

    fn change(&self, session: &SessionId, change: impl FnOnce(&mut Present)) {
        let mut sessions = self.sessions();
        let present = sessions.entry(session.clone()).or_default();
        change(present);
        if *present == Present::default() {
            sessions.remove(session);
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Present>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
