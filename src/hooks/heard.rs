//! The outcome of one hook run: exit status and normalized output.

use std::time::Duration;

use super::claude_output;
use super::event::HookEvent;
use super::hook::{FailMode, Hook, Kind};
use super::moment::Moment;
use super::normalise::normalise;
use super::output::{Exit, HookOutput, Ran};
use super::read::{Read, read, shown};

/// The remark on truncated output.
const CUT: &str = "it printed more than is kept; the rest was not read";

/// The interpreted outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub output: HookOutput,
    /// How it ended: `exit 0`, `signal 9`, `time limit of 30 s`, `HTTP 200`, `answered`, `failed`, `not run`.
    pub end: String,
    pub came: Came,
    pub remarks: Vec<String>,
}

/// Whether there is a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    Result,
    /// There is no valid result.
    Failed,
    /// It was not started.
    Skipped,
}

/// Interprets the run of a discovered hook. A failed run has no result, except that `fail_mode: closed`
/// blocks at events that can be blocked.
///
/// `moment` is the moment that the output refers to, `registered` the name under which the hook registered
/// for the event.
pub fn said(hook: &Hook, moment: &Moment, registered: &str, ran: Ran) -> Said {
    let event = moment.what.event();
    let said = match &hook.kind {
        Kind::Script { .. } | Kind::Resident { .. } | Kind::Declared { .. } | Kind::Webhook { .. } => {
            plain(hook, event, ran)
        }
        Kind::Claude { .. } => claude(moment, registered, ran),
    };
    match (said.came, hook.manifest.fail_mode) {
        (Came::Failed, FailMode::Closed) if event.blocks() => closed(hook, said),
        (Came::Failed | Came::Result | Came::Skipped, FailMode::Open | FailMode::Closed) => said,
    }
}

/// Interprets the run of a handler.
pub fn handled(event: HookEvent, ran: Ran) -> Said {
    read_run(event, ran)
}

fn plain(hook: &Hook, event: HookEvent, ran: Ran) -> Said {
    match ran {
        Ran::Ended { exit: Exit::Code(2), ref stderr, .. }
            if hook.manifest.exit_2_blocks && event.blocks() =>
        {
            let reason = Some(stderr.trim()).filter(|reason| !reason.is_empty()).map(str::to_owned);
            let output = HookOutput { block: Some(reason), ..HookOutput::default() };
            Said { output, end: "exit 2".to_owned(), came: Came::Result, remarks: Vec::new() }
        }
        other => read_run(event, other),
    }
}

/// Claude Code's hooks have their own format for stdout and exit codes; failures are handled alike.
fn claude(moment: &Moment, registered: &str, ran: Ran) -> Said {
    let output = match &ran {
        Ran::Ended { exit, stdout, stderr, .. } => {
            claude_output::normalise(registered, moment, *exit, stdout, stderr)
        }
        Ran::Replied { .. }
        | Ran::Object(_)
        | Ran::Answered(_)
        | Ran::Failed(_)
        | Ran::Skipped(_)
        | Ran::Remarked(..) => None,
    };
    match (output, ran) {
        (Some(output), Ran::Ended { exit, stdout_cut, .. }) => {
            let mut said = result(&end_of(exit), output, Vec::new());
            said.remarks.extend(stdout_cut.then(|| CUT.to_owned()));
            said
        }
        (_, ran) => read_run(moment.what.event(), ran),
    }
}

fn read_run(event: HookEvent, ran: Ran) -> Said {
    match ran {
        Ran::Ended { exit: Exit::Code(0), stdout, stdout_cut, .. } => {
            let mut said = read_result(event, "exit 0", &stdout);
            if stdout_cut {
                said.remarks.push(CUT.to_owned());
            }
            said
        }
        Ran::Replied { status, body } => read_result(event, &format!("HTTP {status}"), &body),
        Ran::Ended { exit, stderr, .. } => {
            let last = stderr.trim().lines().last().unwrap_or_default().trim();
            let remarks =
                if last.is_empty() { Vec::new() } else { vec![format!("its last words: {}", shown(last))] };
            failed(&end_of(exit), remarks)
        }
        Ran::Object(object) => result("answered", normalise(event, &object), Vec::new()),
        Ran::Answered(output) => result("answered", *output, Vec::new()),
        Ran::Failed(why) => failed("failed", vec![why]),
        Ran::Skipped(why) => Said {
            output: HookOutput::default(),
            end: "not run".to_owned(),
            came: Came::Skipped,
            remarks: vec![why],
        },
        Ran::Remarked(ran, remarks) => {
            let mut said = read_run(event, *ran);
            said.remarks.extend(remarks);
            said
        }
    }
}

fn read_result(event: HookEvent, end: &str, text: &[u8]) -> Said {
    match read(text) {
        Read::Nothing => result(end, HookOutput::default(), Vec::new()),
        Read::Object { object, warnings } => result(end, normalise(event, &object), warnings),
        Read::Invalid(why) => failed(end, vec![why]),
    }
}

fn result(end: &str, mut output: HookOutput, mut remarks: Vec<String>) -> Said {
    remarks.append(&mut output.warnings);
    Said { output, end: end.to_owned(), came: Came::Result, remarks }
}

fn failed(end: &str, remarks: Vec<String>) -> Said {
    Said { output: HookOutput::default(), end: end.to_owned(), came: Came::Failed, remarks }
}

fn closed(hook: &Hook, said: Said) -> Said {
    let why = said.remarks.first().map(|why| format!(": {why}")).unwrap_or_default();
    let reason = format!("The hook {} failed ({}){why}. It is declared to fail closed.", hook.name, said.end);
    let output = HookOutput { block: Some(Some(reason)), ..HookOutput::default() };
    Said { output, ..said }
}

fn end_of(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
        Exit::TimedOut(limit) => format!("time limit of {}", seconds(limit)),
    }
}

/// Formats a duration: `30 s`, `0.1 s`.
fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}
