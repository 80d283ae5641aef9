//! Returns memory that an idle process does not need to the system, with a daemon or without one.

use std::time::Duration;

use epitome_platform::memory_trim;
use epitome_platform::process::resident_bytes;
use epitome_session::registry::Sessions;

/// Interval at which an idle process checks whether it has grown. The next prompt needs many of the pages again, which
/// takes about 0.5 ms: few prompts come as soon after one as this, and each check wakes the process up.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Growth in bytes that triggers a release.
const GROWN_BYTES: u64 = 1 << 20;

/// Releases memory whenever no turn runs, as long as it is polled.
pub async fn trim_while_idle(sessions: Sessions) {
    let mut resident = 0;
    while memory_trim::IS_SUPPORTED {
        tokio::time::sleep(LOOK_EVERY).await;
        let has_grown = resident_bytes().is_some_and(|now| now > resident + GROWN_BYTES);
        if has_grown && !sessions.has_running_turn() {
            // Fails only while the runtime shuts down.
            drop(tokio::task::spawn_blocking(memory_trim::trim).await);
            resident = resident_bytes().unwrap_or_default();
        }
    }
}
