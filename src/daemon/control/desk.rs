//! What the control API remembers of its clients, across connections: which sessions somebody follows who may
//! answer a question. And how much may wait for the disk at once, and how long.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::Limits;
use epitome_thread::SessionId;

/// Calls that may be at the disk at once. Where it hangs their threads are not to be had back, and the runtime
/// has 512 of them, which sessions need, too.
const AT_DISK_MAX: usize = 128;

/// One for each daemon.
pub struct Desk {
    /// How many look on; never none.
    tails: Mutex<HashMap<SessionId, NonZero<usize>>>,
    at_disk: Arc<Semaphore>,
    pub limits: Limits,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk {
            tails: Mutex::default(),
            at_disk: Arc::new(Semaphore::new(AT_DISK_MAX)),
            limits: Limits::default(),
        }
    }
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

    /// Waits for room for one more call at the disk. Who waits too long for it has its limit.
    pub(super) async fn room_at_disk(&self) -> OwnedSemaphorePermit {
        self.at_disk.clone().acquire_owned().await.expect("nobody closes it")
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<SessionId, NonZero<usize>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
