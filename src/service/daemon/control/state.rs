//! State of the control API shared by all connections: which sessions are followed by a client that may
//! answer questions, and the limits on concurrent disk access and on the duration of calls.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::MethodTimeouts;
use epitome_thread::SessionId;

/// Calls that may access the disk at once. If the disk hangs, their threads can't be reclaimed, and sessions
/// share the runtime's 512 blocking threads.
const DISK_ACCESSES_MAX: usize = 128;

/// State of the control API, one per daemon.
pub struct ControlState {
    /// The session of each follower.
    tails: Mutex<Vec<SessionId>>,
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
        self.tails.lock().push(session.clone());
    }

    pub(super) fn remove_follower(&self, session: &SessionId) {
        let mut tails = self.tails.lock();
        if let Some(at) = tails.iter().position(|followed| followed == session) {
            tails.swap_remove(at);
        }
    }

    /// Whether a client follows the session, which could answer a question.
    pub(super) fn is_followed(&self, session: &SessionId) -> bool {
        self.tails.lock().contains(session)
    }

    /// Waits for a permit for one more disk access. The caller's time limit also bounds this wait.
    pub(super) async fn disk_permit(&self) -> OwnedSemaphorePermit {
        self.disk_permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }
}
