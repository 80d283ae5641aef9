//! What the control API remembers of its clients, across connections: which sessions somebody follows who may
//! answer a question.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::thread::SessionId;

/// One for each daemon.
#[derive(Default)]
pub struct Desk {
    /// How many look on; never none.
    tails: Mutex<HashMap<SessionId, NonZero<usize>>>,
}

impl Desk {
    pub(super) fn looks_on(&self, session: &SessionId) {
        let mut tails = self.tails();
        let more = tails.get(session).map_or(NonZero::<usize>::MIN, |count| count.saturating_add(1));
        tails.insert(session.clone(), more);
    }

    pub(super) fn looks_away(&self, session: &SessionId) {
        let mut tails = self.tails();
        match tails.get(session).and_then(|count| NonZero::new(count.get() - 1)) {
            Some(fewer) => tails.insert(session.clone(), fewer),
            None => tails.remove(session),
        };
    }

    /// Whether somebody follows it, who could answer a question.
    pub(super) fn is_followed(&self, session: &SessionId) -> bool {
        self.tails().contains_key(session)
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<SessionId, NonZero<usize>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
