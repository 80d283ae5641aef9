//! `epitome check`: runs protocol fixtures against any agent that speaks ACP over stdio.
//!
//! It needs no model: only fixtures that are for any agent are run, and the agent's own set-up and
//! keys are left alone. It judges the protocol, not the agent's taste.

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

pub const HELP: &str = "\
Runs protocol fixtures against an agent that speaks ACP over stdio.

Usage: epitome check [--json] [FILE...] -- COMMAND [ARGUMENT...]

  FILE    fixtures to run; without one, the built-in fixtures that are for any agent
  --json  one JSON object a line instead of text

Exit code: 0 if all passed or are about something that the agent doesn't offer, 1 if one failed,
2 if nothing could be run.
";

/// The fixtures that are built in: those of `protocol-fixtures/` that are for any agent.
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

/// Runs the command; gives the exit code.
pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let mut out = std::io::stdout().lock();
    match Order::read(arguments)? {
        Asked::Help => {
            // A reader who has gone away wants no more.
            let _ = out.write_all(HELP.as_bytes());
            Ok(0)
        }
        Asked::Check(order) => {
            let failed = check(&order, &mut out)?;
            Ok(i32::from(failed > 0))
        }
    }
}

#[derive(Debug)]
enum Asked {
    Help,
    Check(Order),
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    files: Vec<PathBuf>,
    form: Form,
    command: OsString,
    arguments: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

impl Order {
    fn read(arguments: Vec<OsString>) -> Result<Asked, CliError> {
        let mut own = arguments;
        let mut command = match own.iter().position(|argument| argument == "--") {
            Some(at) => own.split_off(at).into_iter().skip(1),
            None => Vec::new().into_iter().skip(1),
        };
        let mut files = Vec::new();
        let mut form = Form::Text;
        for argument in own {
            match argument.to_str() {
                Some("--json") => form = Form::Json,
                Some("--help" | "-h") => return Ok(Asked::Help),
                Some(option) if option.starts_with('-') => {
                    return Err(CliError::usage(format!("there is no option {option}")));
                }
                Some(_) | None => files.push(PathBuf::from(argument)),
            }
        }
        let missing = || CliError::usage("the agent's command is missing: epitome check -- COMMAND");
        let program = command.next().ok_or_else(missing)?;
        Ok(Asked::Check(Order { files, form, command: program, arguments: command.collect() }))
    }
}

/// A fault that lets nothing be run.
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

/// The fixtures of an order by name.
fn fixtures(files: &[PathBuf]) -> Result<Vec<(String, Fixture)>, CliError> {
    const HINT: &str = "a FILE is a fixture as protocol-fixtures/README.md tells it";
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

/// Runs the fixtures and writes what came of each; gives the number that failed.
fn check(order: &Order, out: &mut dyn Write) -> Result<usize, CliError> {
    let fixtures = fixtures(&order.files)?;
    let program = Program {
        command: find_program(&order.command)?,
        arguments: order.arguments.clone(),
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
        let text = match order.form {
            Form::Text => as_text(name, fixture.title(), &outcome),
            Form::Json => as_json(name, fixture.title(), &outcome),
        };
        if out.write_all(text.as_bytes()).is_err() {
            return Ok(failed); // The reader has gone away and wants no more.
        }
    }
    if order.form == Form::Text {
        let others = fixtures.len() - passed - failed;
        let _ = writeln!(out, "{passed} passed, {failed} failed, {others} not run");
    }
    Ok(failed)
}

/// A report for people: one line, and for a failure where and what.
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

    fn read(arguments: &[&str]) -> Result<Asked, CliError> {
        Order::read(arguments.iter().map(OsString::from).collect())
    }

    fn order(arguments: &[&str]) -> Order {
        match read(arguments) {
            Ok(Asked::Check(order)) => order,
            other => panic!("the arguments are an order, but: {other:?}"),
        }
    }

    #[test]
    fn files_and_options_stand_before_the_command() {
        let read = order(&["--json", "a.txt", "--", "agent", "--json", "--", "x"]);
        assert_eq!((read.form, read.files.len()), (Form::Json, 1));
        assert_eq!(read.command, "agent");
        assert_eq!(read.arguments, ["--json", "--", "x"]);
    }

    #[test]
    fn an_order_without_a_command_or_with_an_unknown_option_is_wrong_usage() {
        assert!(matches!(read(&["--help"]), Ok(Asked::Help)));
        assert!(
            matches!(read(&["a.txt"]), Err(error) if error.code == 2 && error.message.contains("command"))
        );
        assert!(matches!(read(&["--fast", "--", "x"]), Err(error) if error.message.contains("--fast")));
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
            let error =
                check(&order(&["--", command]), &mut Vec::new()).expect_err("there is no such program");
            assert!(error.code == 2 && error.message.contains("no-such-agent"), "{error:?}");
        }
    }

    #[test]
    fn a_command_that_is_no_agent_fails_with_what_was_waited_for() {
        let order = order(&["--", "true"]);
        let mut out = Vec::new();
        let failed = check(&order, &mut out).expect("the command runs");
        assert!(failed > 0);
        let text = String::from_utf8(out).expect("reports are text");
        assert!(text.contains("expected  agent<  result"), "{text}");
        assert!(text.contains("got       the end of the agent's output"), "{text}");
    }
}
