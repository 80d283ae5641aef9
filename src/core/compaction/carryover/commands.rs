//! Commands by their last result: the failed ones with their output, and the others by frequency.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Render;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip_line};
use epitome_thread::Seq;

/// Bytes of a command, and of a line of its output.
const COMMAND_BYTES_MAX: usize = 140;
const OUTPUT_LINE_BYTES_MAX: usize = 160;

/// Number of lines shown from the beginning and from the end of a failed command's output.
const OUTPUT_LINES: usize = 2;

/// Programs that only read. Their results say nothing about the state of the work.
const LOOKING: [&str; 22] = [
    "cat", "ls", "grep", "rg", "head", "tail", "sed", "awk", "find", "pwd", "wc", "cd", "echo", "which",
    "tree", "less", "stat", "file", "diff", "test", "sleep", "env",
];

/// All runs of a command.
struct CommandRuns<'a> {
    count: usize,
    last: CallRecord<'a>,
    result: CallStatus,
    /// Whether its output went through a pipe, so that the exit status may be another program's.
    is_piped: bool,
}

/// The commands whose last run failed, newest first.
fn failing<'a>(history: &ConversationHistory<'a>) -> Vec<(String, CommandRuns<'a>)> {
    let mut failed: Vec<(String, CommandRuns)> = runs(history);
    failed.retain(|(_, runs)| runs.result == CallStatus::Failed);
    failed.sort_by_key(|(_, runs)| Reverse(runs.last.entry));
    failed
}

/// The failing commands, each with the entry of its last result.
pub(super) fn failing_commands(history: &ConversationHistory<'_>) -> Vec<(Seq, String)> {
    let failing = failing(history);
    failing.into_iter().map(|(command, runs)| (runs.last.entry, command)).collect()
}

pub(super) fn failed<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let failed = failing(history);
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for (command, runs) in &failed {
            let command = clip_line(command, COMMAND_BYTES_MAX);
            // Which commands fail matters more than their complete output.
            let line = format!("- `{command}` (last {}): ", runs.last.entry);
            let room = lines.left().saturating_sub(line.len() + 1);
            lines.push(line + &clip_line(&ends_of(runs.last.text()), room));
        }
        lines.text()
    })
}

pub(super) fn others<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut others: Vec<(String, CommandRuns)> = runs(history);
    // Results of git are listed under version control.
    others.retain(|(command, runs)| runs.result != CallStatus::Failed && !command.starts_with("git "));
    others.sort_by_key(|(_, runs)| Reverse((runs.count, runs.last.entry)));
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for (command, runs) in &others {
            let command = clip_line(command, COMMAND_BYTES_MAX);
            let result = match runs.result {
                CallStatus::Succeeded if !runs.is_piped => "succeeded".to_owned(),
                CallStatus::Succeeded => {
                    let last = runs.last.text().lines().rev().find(|line| !line.trim().is_empty());
                    format!("last line: {}", clip_line(last.unwrap_or("(no output)"), OUTPUT_LINE_BYTES_MAX))
                }
                CallStatus::Failed | CallStatus::Unknown => "result unknown".to_owned(),
            };
            // If a long line does not fit, shorter ones after it still may.
            lines.push(format!("- `{command}` ({}×, last {}): {result}", runs.count, runs.last.entry));
        }
        lines.text()
    })
}

/// The runs of each command, with the result of the last one.
fn runs<'a>(history: &ConversationHistory<'a>) -> Vec<(String, CommandRuns<'a>)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<(String, CommandRuns)> = Vec::new();
    for call in history.calls() {
        let Some(line) = call.command() else { continue };
        let (command, is_piped) = normalise(&line);
        let program = command.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
        if command.is_empty() || LOOKING.contains(&program) {
            continue;
        }
        let result = call.result();
        match places.get(&command) {
            Some(at) => {
                let runs = &mut all[*at].1;
                *runs = CommandRuns { count: runs.count + 1, last: *call, result, is_piped };
            }
            None => {
                places.insert(command.clone(), all.len());
                all.push((command, CommandRuns { count: 1, last: *call, result, is_piped }));
            }
        }
    }
    all
}

/// Normalizes a command line, so that runs of the same command are recognized: one line, without a leading
/// `cd` or `export`, here-documents, and the processing of its output. Also returns whether the output goes
/// through a pipe.
fn normalise(line: &str) -> (String, bool) {
    let line = line.split("<<").next().unwrap_or_default();
    let mut line: String = line.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some((first, rest)) = line.split_once("&&")
        && (first.starts_with("cd ") || first.starts_with("export "))
    {
        line = rest.trim_start().to_owned();
    }
    let mut is_piped = false;
    if let Some((command, filter)) = line.split_once(" | ") {
        let program = filter.split_whitespace().next().unwrap_or_default();
        if LOOKING.contains(&program) || program == "tee" {
            is_piped = true;
            line.truncate(command.len());
        }
    }
    let line = line.trim_end().trim_end_matches("2>&1").trim_end();
    (line.to_owned(), is_piped)
}

/// The first and the last lines of an output.
fn ends_of(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_end = |at: usize| at < OUTPUT_LINES || at + OUTPUT_LINES >= lines.len();
    let mut shown: Vec<String> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        match is_end(at) {
            true => shown.push(clip_line(line, OUTPUT_LINE_BYTES_MAX)),
            false if at == OUTPUT_LINES => shown.push("…".to_owned()),
            false => {}
        }
    }
    shown.join(" | ")
}

#[cfg(test)]
mod tests {
    use super::normalise;

    #[test]
    fn runs_of_the_same_command_are_recognised() {
        for (line, command, is_piped) in [
            ("cargo test", "cargo test", false),
            ("cd /w && cargo  test 2>&1 | tail -5", "cargo test", true),
            ("export A=1 && cd x && make all 2>&1", "make all", false),
            ("cat <<'EOF' > a.txt\nrm -rf x\nEOF", "cat", false),
            ("a | sort", "a | sort", false),
            ("", "", false),
        ] {
            assert_eq!(normalise(line), (command.to_owned(), is_piped), "{line}");
        }
    }
}
