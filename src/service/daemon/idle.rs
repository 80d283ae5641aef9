//! The work of a process while no turn runs, with a daemon or without one: it returns unused memory to the system, and
//! saves the list of sessions, because a process that is killed can't save it.

use std::time::Duration;

use epitome_platform::memory_trim;
use epitome_platform::process::resident_bytes;
use epitome_session::registry::Sessions;
use tokio::time::timeout;

/// Time after a change until a process that is idle checks whether it has grown or sessions have changed. The next prompt needs many
/// of the pages again, which takes about 0.5 ms: few prompts come as soon after one as this. Once it has checked, an idle process
/// has no timer, but for the vocabulary.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// Growth in bytes that triggers a release.
const GROWN_BYTES: u64 = 1 << 20;

/// The most that an idle process needs again of what it has released, mainly pages of its program. Without this, it
/// would release them each time that it looks.
const NEEDED_BYTES: u64 = 4 << 20;

/// Saves the list and releases memory whenever no turn runs, as long as it is polled.
pub async fn tidy_while_idle(sessions: Sessions) {
    let (mut resident, mut has_released) = (0, false);
    let mut activity = sessions.activity();
    loop {
        tokio::time::sleep(LOOK_AFTER).await;
        if sessions.has_running_turn() {
            continue;
        }
        // A blocking call fails only while the runtime shuts down.
        let store = &sessions.services().store;
        if store.has_unsaved_listing() {
            let store = store.clone();
            drop(tokio::task::spawn_blocking(move || store.save_listing()).await);
        }
        if sessions.services().rulers.unused_in() == Some(Duration::ZERO) {
            let rulers = sessions.services().rulers.clone();
            drop(tokio::task::spawn_blocking(move || rulers.drop_unused()).await);
            resident = 0;
        }
        let now = resident_bytes().unwrap_or_default();
        if std::mem::take(&mut has_released) {
            resident = now.min(resident + NEEDED_BYTES);
        }
        if now > resident + GROWN_BYTES {
            drop(tokio::task::spawn_blocking(memory_trim::trim).await);
            resident = resident_bytes().unwrap_or_default();
            has_released = true;
        }
        match sessions.services().rulers.unused_in() {
            None => activity.next().await,
            Some(rest) => drop(timeout(rest, activity.next()).await),
        }
    }
}
