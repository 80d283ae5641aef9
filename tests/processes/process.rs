//! The real binary as an editor sees it: a process, two pipes, signals, and a scripted model on loopback.
//! These tests show that the parts are connected and that processes end cleanly; each part is tested in
//! detail next to its code.

mod bulk;
mod ends;
mod kill;
mod leftovers;
mod life;
mod limits;
mod neighbours;
mod orphans;

use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::user::User;

/// A user whose editors start agents that run in a single process. `tests/processes/daemon.rs` runs the same tests with
/// a daemon.
fn user(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> User {
    User::with_model(script).standalone()
}
