//! `epitome check`: runs protocol fixtures against any agent that speaks ACP over stdio.
//!
//! It needs no model: only fixtures for any agent run, with the agent's own configuration and keys.

pub mod agent;
mod model_side;
pub mod story;
pub mod update;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::CliError;
use crate::transcript::Fixture;
use agent::{Inherits, Program};
use story::{LINE_WITHIN, Outcome, Setting, run_fixture};

/// Run protocol fixtures against any agent that speaks ACP on stdin and stdout
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 if every fixture passed or tests something that the agent does not offer,
1 if one failed, 2 if nothing could be run.")]
pub struct CheckArgs {
    /// Fixtures to run [default: the built-in fixtures for any agent]
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// The agent's command and its arguments
    #[arg(last = true, required = true, value_names = ["COMMAND", "ARGUMENT"], num_args = 1..)]
    command: Vec<OsString>,
}

/// The built-in fixtures: those of `protocol-fixtures/` that are for any agent.
const BUILT_IN: [(&str, &str); 9] = [
    ("handshake", include_str!("../../protocol-fixtures/handshake.txt")),
    ("initialize-again", include_str!("../../protocol-fixtures/initialize-again.txt")),
    ("before-initialize", include_str!("../../protocol-fixtures/before-initialize.txt")),
    ("unknown-method", include_str!("../../protocol-fixtures/unknown-method.txt")),
    ("broken-lines", include_str!("../../protocol-fixtures/broken-lines.txt")),
    ("request-ids", include_str!("../../protocol-fixtures/request-ids.txt")),
    ("relative-cwd", include_str!("../../protocol-fixtures/relative-cwd.txt")),
    ("unknown-session", include_str!("../../protocol-fixtures/unknown-session.txt")),
    ("list-empty", include_str!("../../protocol-fixtures/list-empty.txt")),
];

/// The built-in fixtures by name.
pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.into_iter()
}

pub fn main(args: CheckArgs) -> Result<i32, CliError> {
    let failed = check(&args, &mut std::io::stdout().lock())?;
    Ok(i32::from(failed > 0))
}

/// An error that prevents running anything.
fn cannot(message: String, hint: &str) -> CliError {
    CliError { message, hint: Some(hint.to_owned()), code: 2 }
}

/// The agent's program: as a path that doesn't depend on where it is started, or found in `PATH`.
fn find_program(command: &OsStr) -> Result<OsString, CliError> {
    let path = Path::new(command);
    if path.components().count() > 1 {
        return path.canonicalize().map(OsString::from).map_err(|error| {
            cannot(format!("cannot run {}: {error}", path.display()), "give the path of the agent's program")
        });
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&directories).map(|directory| directory.join(path)).find(|path| path.is_file());
    found.map(OsString::from).ok_or_else(|| {
        cannot(format!("there is no program {}", path.display()), "give the path of the agent's program")
    })
}

/// The fixtures of these files, or the built-in ones, by name.
fn fixtures(files: &[PathBuf]) -> Result<Vec<(String, Fixture)>, CliError> {
    const HINT: &str = "protocol-fixtures/README.md describes the format of a FILE";
    if files.is_empty() {
        let parsed = built_in().map(|(name, text)| {
            let fixture =
                Fixture::parse(text).map_err(|error| cannot(format!("the built-in {name}: {error}"), HINT));
            fixture.map(|fixture| (name.to_owned(), fixture))
        });
        return parsed.collect();
    }
    let parsed = files.iter().map(|file| {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|error| cannot(format!("cannot read {name}: {error}"), HINT))?;
        let fixture = Fixture::parse(&text).map_err(|error| cannot(format!("{name}: {error}"), HINT))?;
        Ok((name, fixture))
    });
    parsed.collect()
}

/// Runs the fixtures, writes the result of each, and returns the number of failures.
fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<usize, CliError> {
    let fixtures = fixtures(&args.files)?;
    let (command, arguments) =
        args.command.split_first().ok_or_else(|| CliError::usage("COMMAND is missing"))?;
    let program = Program {
        command: find_program(command)?,
        arguments: arguments.to_vec(),
        inherits: Inherits::Everything,
    };
    let setting = Setting { agent: &program, wire: None, line_within: LINE_WITHIN };
    let (mut failed, mut passed) = (0, 0);
    for (name, fixture) in &fixtures {
        let outcome = run_fixture(fixture, &setting);
        match outcome {
            Outcome::Failed(_) => failed += 1,
            Outcome::Passed => passed += 1,
            Outcome::NotOffered(_) | Outcome::NotMeant(_) => {}
        }
        let text = match args.json {
            true => as_json(name, fixture.title(), &outcome),
            false => as_text(name, fixture.title(), &outcome),
        };
        if out.write_all(text.as_bytes()).is_err() {
            return Ok(failed); // The reader has closed the pipe.
        }
    }
    if !args.json {
        let others = fixtures.len() - passed - failed;
        let _ = writeln!(out, "{passed} passed, {failed} failed, {others} not run");
    }
    Ok(failed)
}

/// A report as text: one line, and for a failure its place and the difference.
pub fn as_text(name: &str, title: &str, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => format!("pass         {name}\n"),
        Outcome::NotOffered(what) => format!("not offered  {name}: {what}\n"),
        Outcome::NotMeant(why) => format!("not run      {name}: {why}\n"),
        Outcome::Failed(failure) => {
            let mut text = format!("FAIL         {name}: {title}\n  line {}\n", failure.line);
            for (label, what) in [("expected", &failure.expected), ("got", &failure.got)] {
                for (at, line) in what.lines().enumerate() {
                    text.push_str(&format!("    {:<9} {line}\n", if at == 0 { label } else { "" }));
                }
            }
            for note in &failure.notes {
                text.push_str(&format!("    note      {note}\n"));
            }
            text
        }
    }
}

fn as_json(name: &str, title: &str, outcome: &Outcome) -> String {
    let mut report = json!({"fixture": name, "title": title});
    match outcome {
        Outcome::Passed => report["outcome"] = json!("passed"),
        Outcome::NotOffered(what) => {
            report["outcome"] = json!("not_offered");
            report["capability"] = json!(what);
        }
        Outcome::NotMeant(why) => {
            report["outcome"] = json!("not_run");
            report["reason"] = json!(why);
        }
        Outcome::Failed(failure) => {
            report["outcome"] = json!("failed");
            report["line"] = json!(failure.line);
            report["expected"] = json!(failure.expected);
            report["got"] = json!(failure.got);
            report["notes"] = json!(failure.notes);
        }
    }
    format!("{report}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::tests::{parsed, usage_error};

    fn args(line: &[&str]) -> CheckArgs {
        match parsed(line).command {
            Command::Check(args) => args,
            other => panic!("not a check: {other:?}"),
        }
    }

    #[test]
    fn the_command_and_its_options_come_after_two_hyphens() {
        let args = args(&["check", "--json", "a.txt", "--", "agent", "--json", "--", "x"]);
        assert_eq!((args.json, args.files.len()), (true, 1));
        assert_eq!(args.command, ["agent", "--json", "--", "x"]);
        usage_error(&["check", "a.txt"], "COMMAND");
        usage_error(&["check", "--fast", "--", "x"], "--fast");
    }

    #[test]
    fn built_in_fixtures_are_for_any_agent() {
        for (name, text) in built_in() {
            let fixture = Fixture::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(fixture.is_for_any_agent(), "{name}");
        }
    }

    #[test]
    fn a_command_that_is_nowhere_lets_nothing_be_run() {
        for command in ["./no-such-agent", "no-such-agent-anywhere"] {
            let error = check(&args(&["check", "--", command]), &mut Vec::new())
                .expect_err("there is no such program");
            assert!(error.code == 2 && error.message.contains("no-such-agent"), "{error:?}");
        }
    }

    #[test]
    fn a_command_that_is_no_agent_fails_with_what_was_waited_for() {
        let args = args(&["check", "--", "true"]);
        let mut out = Vec::new();
        let failed = check(&args, &mut out).expect("the command runs");
        assert!(failed > 0);
        let text = String::from_utf8(out).expect("reports are text");
        assert!(text.contains("expected  agent<  result"), "{text}");
        assert!(text.contains("got       the end of the agent's output"), "{text}");
    }
}
