//! A conformance suite for agents that speak the Agent Client Protocol (ACP) over stdio: runs protocol fixtures and reports
//! the first difference of each.
//!
//! The command `acp-check` of this crate and `epitome check` run the fixtures for any agent, with the agent's own
//! configuration and keys; no model is simulated. Epitome's own tests run all fixtures, with a [`story::ModelSide`] that
//! scripts the model's replies too.

pub mod agent;
pub mod story;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use agent::{AgentProgram, Inherits};
use epitome_transcript::Fixture;
use story::{FixtureOutcome, LINE_WITHIN, NoModel, Setting, run_fixture};

/// Test any ACP agent with protocol fixtures
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 if every fixture passed or tests something that the agent does not offer,
1 if one failed, 2 if nothing could be run.")]
pub struct CheckArgs {
    /// Fixtures to run [default: the built-in fixtures for any agent]
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// The agent's command and its arguments
    #[arg(last = true, required = true, value_names = ["COMMAND", "ARGUMENT"], num_args = 1..)]
    pub command: Vec<OsString>,
}

/// The built-in fixtures: those of `protocol-fixtures/` that are for any agent.
const BUILT_IN: [(&str, &str); 10] = [
    ("handshake", include_str!("fixtures/handshake.txt")),
    ("initialize-again", include_str!("fixtures/initialize-again.txt")),
    ("before-initialize", include_str!("fixtures/before-initialize.txt")),
    ("unknown-method", include_str!("fixtures/unknown-method.txt")),
    ("broken-lines", include_str!("fixtures/broken-lines.txt")),
    ("request-ids", include_str!("fixtures/request-ids.txt")),
    ("relative-cwd", include_str!("fixtures/relative-cwd.txt")),
    ("unknown-session", include_str!("fixtures/unknown-session.txt")),
    ("list-empty", include_str!("fixtures/list-empty.txt")),
    ("system-prompt", include_str!("fixtures/system-prompt.txt")),
];

/// The built-in fixtures by name.
pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.into_iter()
}

/// Why nothing could be run, and what to do about it.
#[derive(Debug)]
pub struct CannotRun {
    pub message: String,
    pub hint: String,
}

fn cannot(message: String, hint: &str) -> CannotRun {
    CannotRun { message, hint: hint.to_owned() }
}

/// The agent's program: as a path that doesn't depend on where it is started, or found in `PATH`.
fn find_program(command: &OsStr) -> Result<OsString, CannotRun> {
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
fn fixtures(files: &[PathBuf]) -> Result<Vec<(String, Fixture)>, CannotRun> {
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
pub fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<usize, CannotRun> {
    let fixtures = fixtures(&args.files)?;
    let (command, arguments) =
        args.command.split_first().ok_or_else(|| cannot("COMMAND is missing".into(), "try `--help`"))?;
    let program = AgentProgram {
        command: find_program(command)?,
        arguments: arguments.to_vec(),
        inherits: Inherits::Everything,
    };
    let setting = Setting::<NoModel> { agent: &program, model: None, line_within: LINE_WITHIN };
    let (mut failed, mut passed) = (0, 0);
    for (name, fixture) in &fixtures {
        let outcome = run_fixture(fixture, &setting);
        match outcome {
            FixtureOutcome::Failed(_) => failed += 1,
            FixtureOutcome::Passed => passed += 1,
            FixtureOutcome::NotOffered(_) | FixtureOutcome::NotMeant(_) => {}
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
pub fn as_text(name: &str, title: &str, outcome: &FixtureOutcome) -> String {
    match outcome {
        FixtureOutcome::Passed => format!("pass         {name}\n"),
        FixtureOutcome::NotOffered(what) => format!("not offered  {name}: {what}\n"),
        FixtureOutcome::NotMeant(why) => format!("not run      {name}: {why}\n"),
        FixtureOutcome::Failed(failure) => {
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

fn as_json(name: &str, title: &str, outcome: &FixtureOutcome) -> String {
    let mut report = json!({"fixture": name, "title": title});
    match outcome {
        FixtureOutcome::Passed => report["outcome"] = json!("passed"),
        FixtureOutcome::NotOffered(what) => {
            report["outcome"] = json!("not_offered");
            report["capability"] = json!(what);
        }
        FixtureOutcome::NotMeant(why) => {
            report["outcome"] = json!("not_run");
            report["reason"] = json!(why);
        }
        FixtureOutcome::Failed(failure) => {
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

    fn args(command: &str) -> CheckArgs {
        CheckArgs { files: Vec::new(), json: false, command: vec![command.into()] }
    }

    #[test]
    fn built_in_fixtures_are_for_any_agent() {
        for (name, text) in built_in() {
            let fixture = Fixture::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(fixture.is_for_any_agent(), "{name}");
        }
    }

    #[test]
    fn a_missing_command_is_an_error_that_names_it() {
        for command in ["./no-such-agent", "no-such-agent-anywhere"] {
            let error = check(&args(command), &mut Vec::new()).expect_err("there is no such program");
            assert!(error.message.contains("no-such-agent"), "{error:?}");
        }
    }

    #[test]
    fn a_command_that_is_no_agent_fails_at_the_expected_line() {
        let mut out = Vec::new();
        let failed = check(&args("true"), &mut out).expect("the command runs");
        assert!(failed > 0);
        let text = String::from_utf8(out).expect("reports are text");
        assert!(text.contains("expected  agent<  result"), "{text}");
        assert!(text.contains("got       the end of the agent's output"), "{text}");
    }
}
