//! Tests that run again as a child process: either alone, because they change process-wide state, or as the program
//! that another test starts.

use std::path::PathBuf;
use std::process::Command;

/// Names the test whose body the child process runs.
const ALONE: &str = "EPITOME_TEST_ALONE";

/// The arguments with which a test program runs a single test. Its output begins with a line of the test framework.
pub fn arguments(test: &str) -> [&str; 4] {
    // In the test program, `module_path!()` begins with the name of its crate.
    let name = test.split_once("::").map_or(test, |(_, name)| name);
    [name, "--exact", "--nocapture", "--test-threads=1"]
}

/// This test program.
pub fn program() -> PathBuf {
    std::env::current_exe().expect("a test runs from a file")
}

/// Runs the body of a test in a process in which no other test runs. `test` is the test that calls this:
/// `concat!(module_path!(), "::its_name")`.
#[track_caller]
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return body();
    }
    let child = Command::new(program()).args(arguments(test)).env(ALONE, test).output().expect("it starts");
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(printed.contains("1 passed"), "{printed}{}", String::from_utf8_lossy(&child.stderr));
}
