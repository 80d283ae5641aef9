//! The outcome of one hook run: exit status and normalized output.

use serde_json::Value;

use super::claude;
use super::event::HookEvent;
use super::hook::{FailMode, Hook, HookKind};
use super::hook_context::HookContext;
use super::normalise::normalise;
use super::output::{HookOutput, ProcessExit, RawOutcome};
use super::read::{ParsedStdout, read, shown};

/// The remark on truncated output.
const CUT: &str = "it printed more than is kept; the rest was not read";

/// Maximum bytes of stderr in the record of a run, from the end.
const STDERR_SHOWN_MAX: usize = 1024;

/// The interpreted outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    pub output: HookOutput,
    /// How it ended: `exit 0`, `signal 9`, `time limit of 30 s`, `HTTP 200`, `answered`, `failed`, `not run`.
    pub end: String,
    pub status: RunStatus,
    pub remarks: Vec<String>,
    /// The end of what a process wrote to stderr, if it gave a result: a failure quotes it as its reason.
    pub stderr: String,
}

/// Whether a run has a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    Result,
    /// There is no valid result.
    Failed,
    /// It was not started.
    Skipped,
}

/// Interprets the run of a discovered hook. A failed run has no result, except that `fail_mode: closed`
/// blocks at events that can be blocked.
///
/// `hook_context` is the context that the output refers to; `registered` is the name under which the hook registered
/// for the event.
pub fn interpret(hook: &Hook, hook_context: &HookContext, registered: &str, ran: RawOutcome) -> RunOutcome {
    let event = hook_context.what.event();
    let stderr = match &ran {
        RawOutcome::Ended { stderr, .. } => end_of_text(stderr.trim()),
        _ => String::new(),
    };
    let is_claude = matches!(hook.kind, HookKind::Claude { .. });
    let claude = |exit: ProcessExit, stdout: &[u8], stderr: &str| {
        claude::output::normalise(registered, hook_context, exit, stdout, stderr)
    };
    let answered = |stdout: &[u8]| claude(ProcessExit::Code(0), stdout, "").unwrap_or_default();
    let outcome = match &ran {
        RawOutcome::Ended { exit, stdout, stdout_cut, stderr } if is_claude => claude(*exit, stdout, stderr)
            .map(|output| result(&end_of(*exit), output, cut_remark(*stdout_cut))),
        RawOutcome::Replied { status, body } if is_claude => {
            Some(result(&format!("HTTP {status}"), answered(body), Vec::new()))
        }
        RawOutcome::Object(object) if is_claude => {
            let text = Value::Object(object.clone()).to_string();
            Some(result("answered", answered(text.as_bytes()), Vec::new()))
        }
        RawOutcome::Ended { exit: ProcessExit::Code(2), stderr, .. }
            if hook.manifest.exit_2_blocks && event.blocks() =>
        {
            let reason = Some(stderr.trim()).filter(|reason| !reason.is_empty()).map(str::to_owned);
            let output = HookOutput { block: Some(reason), ..HookOutput::default() };
            Some(result("exit 2", output, Vec::new()))
        }
        _ => None,
    };
    let outcome = outcome.unwrap_or_else(|| interpret_plain(event, ran));
    let stderr = if outcome.status == RunStatus::Result { stderr } else { String::new() };
    let outcome = RunOutcome { stderr, ..outcome };
    match (outcome.status, hook.manifest.fail_mode) {
        (RunStatus::Failed, FailMode::Closed) if event.blocks() => closed(hook, outcome),
        _ => outcome,
    }
}

/// Interprets the run of a handler, or of a hook with kodelet's conventions.
pub fn interpret_plain(event: HookEvent, ran: RawOutcome) -> RunOutcome {
    match ran {
        RawOutcome::Ended { exit: ProcessExit::Code(0), stdout, stdout_cut, .. } => {
            let mut outcome = read_result(event, "exit 0", &stdout);
            outcome.remarks.extend(cut_remark(stdout_cut));
            outcome
        }
        RawOutcome::Replied { status, body } => read_result(event, &format!("HTTP {status}"), &body),
        RawOutcome::Ended { exit, stderr, .. } => {
            let last = stderr.trim().lines().last().unwrap_or_default().trim();
            let remark = (!last.is_empty()).then(|| format!("last line of stderr: {}", shown(last)));
            failed(&end_of(exit), remark.into_iter().collect())
        }
        RawOutcome::Object(object) => result("answered", normalise(event, &object), Vec::new()),
        RawOutcome::Answered(output) => result("answered", *output, Vec::new()),
        RawOutcome::Failed(why) => failed("failed", vec![why]),
        RawOutcome::Skipped(why) => RunOutcome { status: RunStatus::Skipped, ..failed("not run", vec![why]) },
        RawOutcome::Remarked(ran, remarks) => {
            let mut outcome = interpret_plain(event, *ran);
            outcome.remarks.extend(remarks);
            outcome
        }
    }
}

fn read_result(event: HookEvent, end: &str, text: &[u8]) -> RunOutcome {
    match read(text) {
        ParsedStdout::Nothing => result(end, HookOutput::default(), Vec::new()),
        ParsedStdout::Object { object, warnings } => result(end, normalise(event, &object), warnings),
        ParsedStdout::Invalid(why) => failed(end, vec![why]),
    }
}

fn result(end: &str, mut output: HookOutput, mut remarks: Vec<String>) -> RunOutcome {
    remarks.append(&mut output.warnings);
    RunOutcome { output, end: end.to_owned(), status: RunStatus::Result, remarks, stderr: String::new() }
}

fn failed(end: &str, remarks: Vec<String>) -> RunOutcome {
    RunOutcome {
        output: HookOutput::default(),
        end: end.to_owned(),
        status: RunStatus::Failed,
        remarks,
        stderr: String::new(),
    }
}

fn cut_remark(is_cut: bool) -> Vec<String> {
    if is_cut { vec![CUT.to_owned()] } else { Vec::new() }
}

fn closed(hook: &Hook, outcome: RunOutcome) -> RunOutcome {
    let why = outcome.remarks.first().map(|why| format!(": {why}")).unwrap_or_default();
    let reason =
        format!("The hook {} failed ({}){why}. It is declared to fail closed.", hook.name, outcome.end);
    let output = HookOutput { block: Some(Some(reason)), ..HookOutput::default() };
    RunOutcome { output, ..outcome }
}

/// The last lines, as far as they fit the record of a run.
fn end_of_text(text: &str) -> String {
    text[text.ceil_char_boundary(text.len().saturating_sub(STDERR_SHOWN_MAX))..].to_owned()
}

fn end_of(exit: ProcessExit) -> String {
    match exit {
        ProcessExit::Code(code) => format!("exit {code}"),
        ProcessExit::Signal(signal) => format!("signal {signal}"),
        ProcessExit::TimedOut(limit) => format!("time limit of {} s", limit.as_secs_f64()),
    }
}
