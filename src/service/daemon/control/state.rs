//! State of the control API shared by all connections: the limits on concurrent disk access and on the duration of calls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::MethodTimeouts;

/// Calls that may access the disk at once. If the disk hangs, their threads can't be reclaimed, and sessions
/// share the runtime's 512 blocking threads.
const DISK_ACCESSES_MAX: usize = 128;

/// State of the control API, one per daemon.
pub struct ControlState {
    disk_permits: Arc<Semaphore>,
    pub limits: MethodTimeouts,
}

impl Default for ControlState {
    fn default() -> ControlState {
        ControlState {
            disk_permits: Arc::new(Semaphore::new(DISK_ACCESSES_MAX)),
            limits: MethodTimeouts::default(),
        }
    }
}

impl ControlState {
    /// Waits for a permit for one more disk access. The caller's time limit also bounds this wait.
    pub(super) async fn disk_permit(&self) -> OwnedSemaphorePermit {
        self.disk_permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }
}
