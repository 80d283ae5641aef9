//! Hooks whose end nobody waits for: those of Claude Code with `async: true`, and those that print
//! `{"async": true}` as their first line (code.claude.com/docs/en/hooks, "Run hooks in the background").
//!
//! They are bounded in number and time and end with the session. What they print later is not read.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::task::JoinSet;

use super::hook::{RUN_TIME_MAX, RUN_TIME_MIN};
use super::output::{ProcessExit, RawOutcome};
use super::process::{FollowedProcess, ProcessSpec};

/// Maximum hooks of a session that run aside.
pub const ASIDE_MAX: usize = 16;
/// Maximum length of the line with which a hook lets go, in bytes.
const FIRST_LINE_BYTES_MAX: usize = 4096;

/// The hooks of a session that run aside. Dropping it ends them.
#[derive(Default)]
pub struct AsideHooks {
    tasks: Mutex<JoinSet<()>>,
}

impl AsideHooks {
    /// Runs a hook until its end, or until it says that it works on. With `at_once`, it is not waited for at all.
    pub(super) async fn run(&self, name: &str, order: ProcessSpec, at_once: bool) -> io::Result<RawOutcome> {
        if at_once && self.running() >= ASIDE_MAX {
            return Ok(RawOutcome::Skipped(format!(
                "{ASIDE_MAX} hooks of this session run in the background already"
            )));
        }
        let mut process = FollowedProcess::start(&order).await?;
        if at_once {
            self.keep(name, process, order.limit);
            return Ok(done(Vec::new()));
        }
        let has_room = self.running() < ASIDE_MAX;
        let lets_go = |stdout: &[u8]| has_room && async_limit(stdout).is_some();
        match process.wait(order.limit, lets_go).await {
            Some(exit) => Ok(process.end(exit)),
            None => {
                let said = process.stdout().to_vec();
                let limit = async_limit(&said).flatten().unwrap_or(order.limit);
                self.keep(name, process, limit);
                Ok(done(first_line(&said).to_vec()))
            }
        }
    }

    /// How many are at work.
    pub fn running(&self) -> usize {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.len()
    }

    fn keep(&self, name: &str, mut process: FollowedProcess, limit: Duration) {
        let name = name.to_owned();
        let follow = async move {
            let exit = process.wait(limit, |_| false).await;
            tracing::info!(hook = name, ?exit, "a hook in the background has ended");
        };
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(follow);
    }
}

fn done(stdout: Vec<u8>) -> RawOutcome {
    RawOutcome::Ended { exit: ProcessExit::Code(0), stdout, stdout_cut: false, stderr: String::new() }
}

fn first_line(stdout: &[u8]) -> &[u8] {
    stdout.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// Whether the first line says that the hook works on, and the time limit that it sets, in milliseconds.
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
