//! The state of a call according to its result: what its agent recorded, and the fixed lines that agents write above or in
//! place of a command's output. What the command itself printed is never read.

use std::borrow::Cow;
use std::sync::LazyLock;

use epitome_thread::{OutcomeStatus, ToolOutcome, terminal_text};
use regex::Regex;
use serde_json::Value;

use crate::calls::is_refusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStatus {
    Succeeded,
    Failed,
    /// Ended with the exit status 1 and printed nothing: a failure of many commands, and the answer of those that search or compare.
    Silent,
    /// A person, a rule, a classifier or a hook did not let it run.
    Refused,
    /// It was still running at its last result.
    Running,
    /// Interrupted, or its result says nothing about it.
    Unknown,
}

/// The number of lines that agents write above the output of a command.
const HEAD_LINES: usize = 8;

/// Results of calls that were not allowed to run, by their beginnings.
const REFUSALS: [&str; 15] = [
    // Claude Code: its classifier, its rules and hooks.
    "Permission for this action ",
    "Permission for this command ",
    "Permission to use ",
    "Claude requested permissions to ",
    "PreToolUse:",
    "Hook PreToolUse:",
    // Codex: the user, its rules and its reviewer.
    "exec command rejected",
    "patch rejected",
    "This action was rejected",
    "Rejected(",
    // opencode.
    "The user rejected permission to use this specific tool call",
    "The user has specified a rule which prevents you",
    // Cline.
    "The user denied this operation",
    // Copilot CLI.
    "The user rejected this tool call",
    "Permission denied and could not request permission",
];
/// In the first line of such a result, after the name of a model: Claude Code's classifier is not available.
const UNAVAILABLE: &str = " is temporarily unavailable, so auto mode cannot determine ";

/// Claude Code's result for a call that was not run because another call of the same reply failed.
const NOT_RUN: &str = "<tool_use_error>Sibling tool call errored";

/// The end of pi's result for a command that the user interrupted.
const ABORTED: &str = "\nCommand aborted";

/// The tags around the notes that Claude Code adds to a result for the model.
const REMINDER: &str = "<system-reminder>";
const REMINDED: &str = "</system-reminder>";

/// Lines of Claude Code and Codex for commands that continue, before the name by which later calls refer to them.
const RUNNING: [&str; 4] = [
    "Command running in background with ID: ",
    "Monitor started (task ",
    "Script running with cell ID ",
    PROCESS_RUNNING,
];
const PROCESS_RUNNING: &str = "Process running with session ID ";

/// The first of the lines that Codex writes above the output of a command.
const OUTPUT_HEADS: [&str; 5] = ["Command: ", "Exit code: ", "Chunk ID: ", "Wall time", "Script "];

/// What Claude Code, pi, Epitome and Cline write in place of the output of such a command.
const SILENT: [&str; 4] =
    ["Exit code 1", "Command exited with code 1", "[exit code 1]", "Command failed with exit code 1."];

/// The beginning of Codex's result of a command, as a script prints it: below its head, and below a warning if it was cut.
static CHUNK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r#"\A(?:Script completed\nWall time.*\nOutput:\n\s*)?(?:Warning: truncated output.*\n(?:Total output lines.*\n)?\s*)?\{"chunk_id":"(?<id>\w+)","wall_time_seconds":[\d.]+(?:,"exit_code":(?<code>\d+)|,"session_id":(?<session>\d+))?"#,
    )
    .expect("a valid pattern")
});

/// The inputs of calls that read the output of a running command, or end it, with its name.
const HANDLES: [&str; 6] = ["cell_id", "session_id", "task_id", "bash_id", "shell_id", "id"];

/// The state of a call with this result.
pub(super) fn status_of(outcome: &ToolOutcome, text: &str) -> CallStatus {
    let first = text.lines().next().unwrap_or_default();
    let is_refused =
        || REFUSALS.iter().any(|refusal| text.starts_with(refusal)) || first.contains(UNAVAILABLE);
    match outcome.status {
        OutcomeStatus::Interrupted => CallStatus::Unknown,
        _ if is_refusal(outcome) => CallStatus::Refused,
        OutcomeStatus::Failed if text.starts_with(NOT_RUN) || text.ends_with(ABORTED) => CallStatus::Unknown,
        OutcomeStatus::Failed if is_refused() => CallStatus::Refused,
        _ if running_as(outcome, text).is_some() => CallStatus::Running,
        OutcomeStatus::Failed | OutcomeStatus::Completed if is_silent(outcome, text) => CallStatus::Silent,
        OutcomeStatus::Failed | OutcomeStatus::Denied => CallStatus::Failed,
        OutcomeStatus::Completed => match exit_code(outcome, text) {
            Some(0) => CallStatus::Succeeded,
            Some(_) => CallStatus::Failed,
            None if text.starts_with("Script failed\n") => CallStatus::Failed,
            None => CallStatus::Succeeded,
        },
    }
}

/// The name by which later calls refer to the command of this result, if it continues.
pub(super) fn running_as<'a>(outcome: &'a ToolOutcome, text: &'a str) -> Option<&'a str> {
    let background = outcome.raw.as_ref().and_then(|raw| raw.get("background"));
    if let Some(background) = background {
        let id = background.get("id").and_then(Value::as_str)?;
        return (background.get("state")? == "running").then_some(id);
    }
    if tag(text, "status") == Some("running") {
        return tag(text, "task_id");
    }
    let name = head(text).find_map(|line| RUNNING.iter().find_map(|begin| line.strip_prefix(begin)))?;
    name.split([' ', '.', ',']).next().filter(|name| !name.is_empty())
}

/// The name and the end of a command, in Claude Code's notice about it.
pub(super) fn notified(text: &str) -> Option<(&str, CallStatus)> {
    let status = match tag(text, "status")? {
        "completed" => CallStatus::Succeeded,
        "failed" => CallStatus::Failed,
        _ => CallStatus::Unknown,
    };
    Some((tag(text, "task-id")?, status))
}

/// The name of the running command that a call continues.
pub(super) fn continues(input: &Value) -> Option<Cow<'_, str>> {
    match HANDLES.iter().find_map(|key| input.get(key))? {
        Value::String(name) => Some(Cow::Borrowed(name)),
        Value::Number(name) => Some(Cow::Owned(name.to_string())),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The text of a result without escape codes, overwritten lines and what a host added behind it. Commands of Gemini, and those whose
/// result a script of Codex prints as an object, get the form that Codex gives them otherwise.
pub(super) fn plain(text: Cow<'_, str>) -> Cow<'_, str> {
    let text = match text.trim_end().strip_suffix(REMINDED).and_then(|text| text.rsplit_once(REMINDER)) {
        Some((text, _)) => Cow::Owned(text.trim_end().to_owned()),
        None => text,
    };
    let text = of_gemini(&text).map_or(text, Cow::Owned);
    let text = match CHUNK.captures(&text) {
        Some(chunk) => {
            let object = &text[text.find('{').unwrap_or_default()..];
            let whole = serde_json::from_str::<Value>(object.trim_end());
            // One that was cut is shown as it is.
            let output = whole.as_ref().ok().and_then(|whole| whole["output"].as_str()).unwrap_or(object);
            let state = match (chunk.name("code"), chunk.name("session")) {
                (Some(code), _) => format!("Process exited with code {}", code.as_str()),
                (None, Some(session)) => format!("{PROCESS_RUNNING}{}", session.as_str()),
                (None, None) => String::new(),
            };
            Cow::Owned(format!("Chunk ID: {}\n{state}\nOutput:\n{output}", &chunk["id"]))
        }
        None => text,
    };
    match text.contains(['\r', '\x1b']) {
        true => Cow::Owned(terminal_text::plain(terminal_text::drawn(&text))),
        false => text,
    }
}

/// The result of a command of Gemini CLI, which names the command above its output and its state below it.
fn of_gemini(text: &str) -> Option<String> {
    let (_, rest) = text.strip_prefix("Command: ")?.split_once("\nDirectory: ")?;
    let (_, rest) = rest.split_once("\nOutput: ").or_else(|| rest.split_once("\nStdout: "))?;
    let (rest, state) = rest.rsplit_once("\nExit Code: ")?;
    let (output, error) = rest.rsplit_once("\nError: ")?;
    let code = state.lines().next().unwrap_or_default();
    let printed = [output, error].into_iter().filter(|text| !["(empty)", "(none)"].contains(text));
    Some(format!("Exit code: {code}\nOutput:\n{}", printed.collect::<Vec<_>>().join("\n")))
}

/// The output of a command, without the lines that its agent wrote above it.
pub(super) fn output(text: &str) -> &str {
    let is_head = OUTPUT_HEADS.iter().any(|begin| text.starts_with(begin));
    let head = text.split_inclusive('\n').take(HEAD_LINES).position(|line| line.trim_end() == "Output:");
    let Some(at) = head.filter(|_| is_head) else { return text };
    text.splitn(at + 2, '\n').last().unwrap_or_default().trim_start_matches('\n')
}

/// Whether a command ended with the exit status 1 and printed nothing.
fn is_silent(outcome: &ToolOutcome, text: &str) -> bool {
    let printed = output(text).trim();
    let without = printed.strip_prefix("(no output)").unwrap_or(printed).trim();
    SILENT.contains(&without) || without.is_empty() && exit_code(outcome, text) == Some(1)
}

/// Whether a result says how its command ended, also if a script printed it.
pub(super) fn has_exit_code(outcome: &ToolOutcome, text: &str) -> bool {
    exit_code(outcome, text).is_some()
}

/// The exit code that was recorded, or that the agent wrote above the output.
fn exit_code(outcome: &ToolOutcome, text: &str) -> Option<i64> {
    let recorded = outcome.raw.as_ref().and_then(|raw| raw.get("exitCode")).and_then(Value::as_i64);
    let written = || {
        let is_head = OUTPUT_HEADS.iter().any(|begin| text.starts_with(begin));
        let code = ["Exit code: ", "Process exited with code "];
        let of_line =
            |line: &'_ str| code.iter().find_map(|begin| line.strip_prefix(begin)?.trim().parse().ok());
        head(text).filter(|_| is_head).find_map(of_line).or_else(|| tag(text, "exit_code")?.parse().ok())
    };
    recorded.or_else(written)
}

fn head(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take(HEAD_LINES).take_while(|line| !line.starts_with("Output:"))
}

/// The value of a tag in Claude Code's description of a task, or its notice about one.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let text = text.strip_prefix("<retrieval_status>").or(text.strip_prefix("<task-notification>"))?;
    // The output follows, and may contain anything.
    let text = text.split("<output>").next()?;
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(value, _)| value.trim())
}
