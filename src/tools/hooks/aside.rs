//! Hooks that run in the background: those of Claude Code with `async: true`, and those that print
//! `{"async": true}` as their first line (code.claude.com/docs/en/hooks, "Run hooks in the background").
//!
//! They are limited in number and time and end with the session. When one has ended, its output is sent to
//! `news`: a line for the user, and context for the next model call.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::claude::output::{LateOutput, late_output};
use super::hook::{RUN_TIME_MAX, RUN_TIME_MIN};
use super::output::{ProcessExit, RawOutcome};
use super::process::{FollowedProcess, ProcessSpec};

/// Maximum background hooks per session.
pub const ASIDE_MAX: usize = 16;
/// Maximum length in bytes of the line with which a hook moves to the background.
const FIRST_LINE_BYTES_MAX: usize = 4096;

/// The output of a hook that ended in the background.
#[derive(Debug)]
pub struct LateNews {
    pub hook: String,
    pub output: LateOutput,
}

/// The background hooks of a session. Dropping it ends them.
pub struct AsideHooks {
    tasks: Mutex<JoinSet<()>>,
    news: mpsc::Sender<LateNews>,
}

/// Discards their output.
impl Default for AsideHooks {
    fn default() -> AsideHooks {
        AsideHooks::new(mpsc::channel(1).0)
    }
}

impl AsideHooks {
    /// `news` receives the output of hooks that end in the background.
    pub fn new(news: mpsc::Sender<LateNews>) -> AsideHooks {
        AsideHooks { tasks: Mutex::default(), news }
    }

    /// Runs a hook until its end, or until it moves to the background. With `at_once`, it starts in the background.
    pub(super) async fn run(&self, name: &str, spec: ProcessSpec, at_once: bool) -> io::Result<RawOutcome> {
        if at_once && self.running() >= ASIDE_MAX {
            return Ok(RawOutcome::Skipped(format!(
                "{ASIDE_MAX} hooks of this session run in the background already"
            )));
        }
        let mut process = FollowedProcess::start(&spec).await?;
        if at_once {
            self.keep(name, process, spec.limit, 0);
            return Ok(done(Vec::new()));
        }
        let has_room = self.running() < ASIDE_MAX;
        let lets_go = |stdout: &[u8]| has_room && async_limit(stdout).is_some();
        match process.wait(spec.limit, lets_go).await {
            Some(exit) => Ok(process.end(exit)),
            None => {
                let printed = process.stdout.kept.clone();
                let limit = async_limit(&printed).flatten().unwrap_or(spec.limit);
                let first = first_line(&printed);
                self.keep(name, process, limit, first.len());
                Ok(done(first.to_vec()))
            }
        }
    }

    /// Number of running background hooks.
    pub fn running(&self) -> usize {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.len()
    }

    /// Follows a process to its end. `read` is the number of bytes of its output that were already read.
    fn keep(&self, name: &str, mut process: FollowedProcess, limit: Duration, read: usize) {
        let (hook, news) = (name.to_owned(), self.news.clone());
        let follow = async move {
            let Some(exit) = process.wait(limit, |_| false).await else { return };
            tracing::info!(hook, ?exit, "a hook in the background has ended");
            if let RawOutcome::Ended { stdout, stderr, .. } = process.end(exit)
                && let Some(output) = late_output(exit, stdout.get(read..).unwrap_or_default(), &stderr)
            {
                // Fails if the session has ended.
                drop(news.send(LateNews { hook, output }).await);
            }
        };
        self.tasks.lock().spawn(follow);
    }
}

fn done(stdout: Vec<u8>) -> RawOutcome {
    RawOutcome::Ended { exit: ProcessExit::Code(0), stdout, stdout_cut: false, stderr: String::new() }
}

fn first_line(stdout: &[u8]) -> &[u8] {
    stdout.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// Whether the first line moves the hook to the background, and the time limit that it sets, if any.
fn async_limit(stdout: &[u8]) -> Option<Option<Duration>> {
    let line = first_line(stdout);
    if line.len() > FIRST_LINE_BYTES_MAX || !line.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let object: Map<String, Value> = serde_json::from_slice(line).ok()?;
    (object.get("async")? == true).then(|| {
        let limit = object.get("asyncTimeout").and_then(Value::as_u64).map(Duration::from_millis);
        limit.map(|limit| limit.clamp(RUN_TIME_MIN, RUN_TIME_MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_lets_go_if_it_says_so() {
        let seconds = |seconds| Some(Some(Duration::from_secs(seconds)));
        for (stdout, wanted) in [
            ("{\"async\": true}", Some(None)),
            ("{\"async\": true, \"asyncTimeout\": 180000}\nlater", seconds(180)),
            ("{\"async\": true, \"asyncTimeout\": 99999999}\n", seconds(600)),
            ("{\"async\": false}", None),
            ("{\"async\": tr", None),
            ("working\n{\"async\": true}", None),
            ("", None),
        ] {
            assert_eq!(async_limit(stdout.as_bytes()), wanted, "{stdout}");
        }
    }
}
