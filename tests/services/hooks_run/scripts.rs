//! Scripts for tests, and helpers that wait for their effects.

use std::ffi::OsString;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epitome::hooks::process::{HookProgram, ProcessSpec};
use epitome::tools::reaper::Reaper;
use rustix::process::{Pid, test_kill_process_group};

/// A test that takes longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A time limit that no test reaches.
pub const AMPLE: Duration = Duration::from_secs(35);

pub fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("set");
    path
}

pub fn spec(folder: &Path, path: PathBuf, stdin: &[u8]) -> ProcessSpec {
    ProcessSpec {
        program: HookProgram::File { path, arguments: vec!["run".into()] },
        stdin: stdin.to_vec(),
        cwd: folder.to_path_buf(),
        environment: environment(),
        more: Vec::new(),
        limit: AMPLE,
        reaper: Arc::new(Reaper::disabled()),
        sandbox: None,
    }
}

pub fn environment() -> Arc<Vec<(OsString, OsString)>> {
    Arc::new(vec![("PATH".into(), std::env::var_os("PATH").expect("a PATH"))])
}

/// The output of a future; panics if it hangs.
pub async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it hangs")
}

/// A named pipe through which a script reports its process id.
pub fn pipe(folder: &Path) -> PathBuf {
    let path = folder.join("reported");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success());
    path
}

/// The process group that a script reported through `pipe`.
pub async fn reported_group(pipe: &Path) -> Pid {
    let pipe = pipe.to_path_buf();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(pipe)).await;
    group(&read.expect("no panic").expect("it is reported"))
}

pub fn group(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().expect("a number")).expect("not 0")
}

/// Waits until no process of a group is left.
pub async fn is_gone(group: Pid) {
    let begun = Instant::now();
    while test_kill_process_group(group).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "the group {group:?} still lives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
