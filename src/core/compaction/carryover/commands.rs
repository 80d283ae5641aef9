//! Commands by their last result: the failed ones with their output, and the others by frequency.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::git::commits_of;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, clip_line, noted};
use super::{Facts, LostKind, Render};
use epitome_shell::{Joint, Pipeline, ShellCommand, ShellStatement};

/// Bytes of a command, and of a line of its output.
const COMMAND_BYTES_MAX: usize = 140;
const OUTPUT_LINE_BYTES_MAX: usize = 160;

/// Number of lines shown from the beginning and from the end of a failed command's output.
const OUTPUT_LINES: usize = 2;

/// Maximum number of failed commands that are compared with those that succeeded since.
const FAILED_MAX: usize = 200;

/// Programs that only read or wait. Their results say nothing about the state of the work.
const LOOKING: [&str; 37] = [
    "cat", "ls", "grep", "rg", "head", "tail", "sed", "awk", "find", "pwd", "wc", "echo", "printf", "which",
    "tree", "less", "stat", "file", "diff", "test", "[", "[[", "env", "nl", "sort", "uniq", "cut", "tr",
    "jq", "true", "date", "basename", "dirname", "realpath", "command", "type", "wait",
];

/// Programs and built-in commands that prepare what follows on the line.
const SETUP: [&str; 10] =
    ["cd", "export", "set", "source", ".", "pushd", "popd", "unset", "declare", "sleep"];

/// The line that Claude Code adds below the output of a command that left the session's directory.
const MOVED: &str = "Shell cwd was reset to ";

/// A part of a command line with a result of its own.
struct CommandRun {
    /// As it is shown, and by which runs of the same command are recognized: without preparations, redirections, and the
    /// programs that process its output.
    text: String,
    /// The words of each command in it.
    parts: Vec<Vec<String>>,
    /// Whether the success or the failure of the line is also its own.
    success_is_own: bool,
    failure_is_own: bool,
    /// Whether it is what the line runs last.
    is_last: bool,
    /// Whether the end of the output is its own: nothing prints behind it, and no program chooses lines of it.
    is_end_own: bool,
}

/// All runs of a command.
struct CommandRuns<'h, 'a> {
    count: usize,
    last: &'h CallRecord<'a>,
    status: CallStatus,
    run: CommandRun,
    /// Its position among all runs.
    position: usize,
}

/// The commands whose last run failed, newest first.
fn failing<'h, 'a>(history: &'h ConversationHistory<'a>) -> Vec<CommandRuns<'h, 'a>> {
    let (mut failed, succeeded) = runs(history);
    let ended_well = |runs: &CommandRuns| {
        let mut parts = runs.run.parts.iter();
        parts.all(|part| {
            succeeded.iter().any(|(words, position)| *position > runs.position && includes(words, part))
        })
    };
    failed.retain(|runs| runs.status == CallStatus::Failed);
    failed.sort_by_key(|runs| Reverse(runs.last.entry));
    failed.truncate(FAILED_MAX);
    failed.retain(|runs| !ended_well(runs));
    // A commit that was refused, and made in another way since.
    let committed = history.calls.iter().rev().find(|call| commits_of(call) > 0).map(|call| call.entry);
    failed.retain(|runs| !runs.run.text.starts_with("git commit ") || Some(runs.last.entry) > committed);
    failed
}

/// Whether a command does at least what another one does, because it has no argument that the other one lacks.
fn includes(words: &[String], other: &[String]) -> bool {
    let is_general = words.len() > 1 && words.first() == other.first();
    words == other || is_general && words.iter().all(|word| other.contains(word))
}

/// The failing commands, each with the entry of its last result.
pub(super) fn failing_commands(history: &ConversationHistory<'_>) -> Facts {
    let failing = failing(history).into_iter();
    failing.map(|runs| (LostKind::Failing, Some(runs.last.entry), runs.run.text)).collect()
}

pub(super) fn failed<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let commands = history.calls.iter().filter(|call| call.statements().is_some());
    let entries: Vec<_> = commands.map(|call| call.entry).collect();
    let line = |runs: CommandRuns| {
        let command = clip_line(&runs.run.text, COMMAND_BYTES_MAX);
        let last = history.place("last ", runs.last.entry);
        // A reader without the log sees by this whether it may be outdated.
        let since = entries.iter().filter(|entry| **entry > runs.last.entry).count();
        let is_old = last.is_empty() && since > 0;
        let age = if is_old { format!("{since} commands ago") } else { String::new() };
        (format!("- `{command}`{}: ", noted([last, age])), ends_of(runs.last.text()))
    };
    let failed: Vec<(String, String)> = failing(history).into_iter().map(line).collect();
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for (line, ends) in &failed {
            // Which commands fail matters more than their complete output.
            let room = lines.left().saturating_sub(line.len() + 1);
            lines.push(line.clone() + &clip_line(ends, room));
        }
        lines.text()
    })
}

pub(super) fn others<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let (mut others, _) = runs(history);
    // Results of git are listed under version control.
    others.retain(|runs| runs.status != CallStatus::Failed && !runs.run.text.starts_with("git "));
    others.sort_by_key(|runs| Reverse((runs.count, runs.last.entry)));
    let line = |runs: CommandRuns| {
        let result = match runs.status {
            CallStatus::Succeeded => "succeeded".to_owned(),
            CallStatus::Silent => "exit status 1, no output".to_owned(),
            CallStatus::Refused => "refused, did not run".to_owned(),
            CallStatus::Running => "still running".to_owned(),
            CallStatus::Unknown if runs.run.is_last && runs.run.is_end_own && runs.last.has_result() => {
                let is_printed = |line: &&str| !line.trim().is_empty() && !line.starts_with(MOVED);
                let last = runs.last.text().lines().rev().find(is_printed);
                format!("last line: {}", clip_line(last.unwrap_or("(no output)"), OUTPUT_LINE_BYTES_MAX))
            }
            CallStatus::Failed | CallStatus::Unknown => "result unknown".to_owned(),
        };
        let command = clip_line(&runs.run.text, COMMAND_BYTES_MAX);
        let notes = [format!("{}×", runs.count), history.place("last ", runs.last.entry)];
        format!("- `{command}`{}: {result}", noted(notes))
    };
    let others: Vec<String> = others.into_iter().map(line).collect();
    Box::new(move |bytes_max| BoundedLines::of(bytes_max, &others).text())
}

/// The words of commands, each with the position of its last run that succeeded.
type Succeeded = HashMap<Vec<String>, usize>;

/// The runs of each command, with the result of the last one, and the commands that succeeded.
fn runs<'h, 'a>(history: &'h ConversationHistory<'a>) -> (Vec<CommandRuns<'h, 'a>>, Succeeded) {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<CommandRuns> = Vec::new();
    let mut succeeded = Succeeded::new();
    let mut position = 0;
    for last in &history.calls {
        for run in last.statements().map_or_else(Vec::new, runs_in) {
            position += 1;
            let status = match last.status {
                CallStatus::Succeeded if !run.success_is_own => CallStatus::Unknown,
                CallStatus::Failed | CallStatus::Silent if !run.failure_is_own => CallStatus::Unknown,
                CallStatus::Running if !run.is_last => CallStatus::Unknown,
                status => status,
            };
            if status == CallStatus::Succeeded {
                succeeded.extend(run.parts.iter().map(|words| (words.clone(), position)));
            }
            let runs = CommandRuns { count: 1, last, status, run, position };
            match places.get(&runs.run.text) {
                Some(at) => all[*at] = CommandRuns { count: all[*at].count + 1, ..runs },
                None => {
                    places.insert(runs.run.text.clone(), all.len());
                    all.push(runs);
                }
            }
        }
    }
    (all, succeeded)
}

/// The parts of a command line that do more than read.
fn runs_in(statements: &[ShellStatement]) -> Vec<CommandRun> {
    let is_last = |at| at + 1 == statements.len();
    let runs = statements.iter().enumerate();
    runs.filter_map(|(at, statement)| run_of(&statement.pipelines, is_last(at), statement.is_background))
        .collect()
}

/// A run of pipelines that depend on each other; `None` if they only read.
fn run_of(chain: &[Pipeline], is_last: bool, is_background: bool) -> Option<CommandRun> {
    let (text, parts, is_own) = (String::new(), Vec::new(), is_last && !is_background);
    let mut run =
        CommandRun { text, parts, success_is_own: is_own, failure_is_own: is_own, is_last, is_end_own: true };
    let mut is_reading = true;
    for pipeline in chain {
        let commands = &pipeline.commands[..];
        if commands.iter().all(|command| SETUP.contains(&program(command))) {
            continue;
        }
        let is_filter = |command: &ShellCommand| is_looking(command) || program(command) == "tee";
        let shown = commands.iter().rposition(|command| !is_filter(command)).map_or(1, |last| last + 1);
        let shown = &commands[..shown.min(commands.len())];
        let is_piped = commands.len() > 1;
        let is_filtered = shown.len() < commands.len();
        let is_compound = commands.iter().any(|command| !command.inner.is_empty());
        let does_look = shown.iter().all(is_looking);
        is_reading &= does_look;
        let is_end = |command: &ShellCommand| ["tail", "tee"].contains(&program(command));
        // `true` prints nothing.
        if !commands.iter().all(|command| program(command) == "true") {
            run.is_end_own = !does_look && commands[shown.len()..].iter().all(is_end);
        }
        run.success_is_own &=
            pipeline.joint != Joint::Or && !pipeline.is_negated && !is_piped && !is_compound;
        // A program that reads also fails if it finds nothing.
        run.failure_is_own &= !pipeline.is_negated && !is_filtered && !does_look;
        run.text.push_str(match pipeline.joint {
            _ if run.text.is_empty() => "",
            Joint::First => "; ",
            Joint::And => " && ",
            Joint::Or => " || ",
        });
        let texts: Vec<&str> = shown.iter().map(|command| command.text.as_str()).collect();
        run.text.push_str(&texts.join(" | "));
        if !does_look {
            run.parts.extend(shown.iter().map(|command| command.words.clone()));
        }
    }
    (!is_reading).then_some(run)
}

/// The name of a command's program.
pub(super) fn program(command: &ShellCommand) -> &str {
    let program = command.words.first().map_or("", String::as_str);
    program.rsplit('/').next().unwrap_or(program)
}

/// Whether a command only reads. A compound command does if all commands in it do.
fn is_looking(command: &ShellCommand) -> bool {
    match command.inner.as_slice() {
        [] => LOOKING.contains(&program(command)),
        inner => inner.iter().all(|command| is_looking(command) || SETUP.contains(&program(command))),
    }
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
    use super::*;

    /// Each run with `+` if its success is known, and `-` if its failure is.
    fn shown(line: &str) -> String {
        let shown = |run: &CommandRun| {
            let success = if run.success_is_own { "+" } else { "" };
            format!("{}{success}{}", run.text, if run.failure_is_own { "-" } else { "" })
        };
        let statements = epitome_shell::statements(line).unwrap_or_default();
        runs_in(&statements).iter().map(shown).collect::<Vec<_>>().join(" ; ")
    }

    #[test]
    fn runs_of_the_same_command_are_recognised() {
        for (line, wanted) in [
            ("cargo test", "cargo test+-"),
            ("cd /w && cargo  test 2>&1 | tail -5", "cargo test"),
            // 383 of 4,160 commands were of this form, and in no table.
            ("cd /w\ncargo test", "cargo test+-"),
            ("export A=1 && cd x && make all 2>&1", "make all+-"),
            ("cat <<'EOF' > a.txt\nrm -rf x\nEOF", ""),
            ("rg 'a | b' src | head -3", ""),
            ("a | sort", "a"),
            ("a | b", "a | b-"),
            ("a || b", "a || b-"),
            ("a || true", "a || true"),
            ("a; b", "a ; b+-"),
            ("server & sleep 1; curl x", "server ; curl x+-"),
            ("grep -q x y && make", "grep -q x y && make+"),
            // It was not seen that this is a run of `make`, which stayed listed as failed.
            ("sleep 9 && make | tail", "make"),
            ("for f in *; do cat $f; done", ""),
            ("for f in *; do make $f; done", "for f in *; do make $f; done-"),
            ("a | | b", ""),
            ("", ""),
        ] {
            assert_eq!(shown(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_more_general_command_includes_a_special_one() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (general, special, is_wanted) in [
            ("cargo test", "cargo test -p x name", true),
            ("cargo test -p y", "cargo test -p x", false),
            ("cargo build", "cargo test", false),
            ("make", "make test", false),
        ] {
            assert_eq!(includes(&words(general), &words(special)), is_wanted, "{general}: {special}");
        }
    }
}
