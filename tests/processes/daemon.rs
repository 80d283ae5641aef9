//! Clients that share one daemon, as separate processes: everything that applies to an agent in one process, and
//! everything that only a daemon can get wrong. Each test has a separate home and ends its daemon.

#[path = "process/bulk.rs"]
mod bulk;
#[path = "process/ends.rs"]
mod ends;
#[path = "process/kill.rs"]
mod kill;
#[path = "process/leftovers.rs"]
mod leftovers;
#[path = "process/life.rs"]
mod life;
#[path = "process/orphans.rs"]
mod orphans;

mod deaths;
mod lives;
mod over_http;
pub mod remote;
mod websocket;
mod windows;

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::user::User;

/// A user whose editors share a daemon.
pub fn user(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> User {
    User::with_model(script)
}
