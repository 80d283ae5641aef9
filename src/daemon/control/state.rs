//! State of the control API shared by all connections: which sessions are followed by a client that may
//! answer questions, and the limits on concurrent disk access and on the duration of calls.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::MethodTimeouts;
use epitome_thread::SessionId;

/// Calls that may access the disk at once. If the disk hangs, their threads can't be reclaimed, and sessions
/// share the runtime's 512 blocking threads.
const DISK_ACCESSES_MAX: usize = 128;

/// State of the control API, one per daemon.
pub struct ControlState {
    /// Followers by session; a session without followers has no entry.
    tails: Mutex<HashMap<SessionId, NonZero<usize>>>,
    disk_permits: Arc<Semaphore>,
    pub limits: MethodTimeouts,
}

impl Default for ControlState {
    fn default() -> ControlState {
        ControlState {
            tails: Mutex::default(),
            disk_permits: Arc::new(Semaphore::new(DISK_ACCESSES_MAX)),
            limits: MethodTimeouts::default(),
        }
    }
}

impl ControlState {
    pub(super) fn add_follower(&self, session: &SessionId) {
        let mut tails = self.tails();
        let more = tails.get(session).map_or(NonZero::<usize>::MIN, |count| count.saturating_add(1));
        tails.insert(session.clone(), more);
    }

    pub(super) fn remove_follower(&self, session: &SessionId) {
        let mut tails = self.tails();
        match tails.get(session).and_then(|count| NonZero::new(count.get() - 1)) {
            Some(fewer) => tails.insert(session.clone(), fewer),
            None => tails.remove(session),
        };
    }

    /// Whether a client follows the session, which could answer a question.
    pub(super) fn is_followed(&self, session: &SessionId) -> bool {
        self.tails().contains_key(session)
    }

    /// Waits for a permit for one more disk access. The caller's time limit also bounds this wait.
    pub(super) async fn disk_permit(&self) -> OwnedSemaphorePermit {
        self.disk_permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<SessionId, NonZero<usize>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
