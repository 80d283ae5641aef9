//! Helpers shared by tests of sessions and of the program: a session in this process ([`session`]), the program as a
//! user runs it ([`user`]), the agent as an editor starts it ([`agent`]), tests that run as a child process
//! ([`own_process`]), database servers ([`postgres`]) and the network to them ([`relay`]), servers for other machines ([`serve`]), and the allocations of sessions ([`allocations`]).

pub mod agent;
pub mod allocations;
pub mod client;
pub mod own_process;
pub mod postgres;
pub mod relay;
pub mod serve;
pub mod session;
pub mod tool;
pub mod user;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use epitome_scripted_model::{ModelStep, RecordedRequest};
use serde_json::Value;

/// A test that waits longer than this hangs. Everything here takes milliseconds, or seconds on a busy machine.
pub const WITHIN: Duration = Duration::from_secs(120);

/// Interval for polling conditions that have no event.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Polls until `look` returns a value; the panic after [`WITHIN`] names `what`.
#[track_caller]
pub fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < WITHIN, "{what} did not come within {WITHIN:?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether this build does without what a test needs and only Linux offers (feature `portable`), which is reported.
pub fn does_without(what: &str) -> bool {
    if epitome_platform::IS_PORTABLE {
        eprintln!("skipped: the portable implementation does without {what}");
    }
    epitome_platform::IS_PORTABLE
}

/// Writes a file, creating its directories; a file that begins with `#!` is executable.
pub fn write_file(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("it is below something")).expect("a directory");
    std::fs::write(path, text).expect("a file");
    let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

pub fn text(text: &str) -> ModelStep {
    ModelStep::Text(text.to_owned())
}

pub fn call(name: &str, input: Value) -> ModelStep {
    ModelStep::Call { name: name.to_owned(), input }
}

/// The script of a model that sends these replies, one per call, and then "ok".
pub fn in_turn(
    replies: Vec<Vec<ModelStep>>,
) -> impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static {
    let mut replies = replies.into_iter();
    move |_| replies.next().unwrap_or_else(|| vec![text("ok")])
}
