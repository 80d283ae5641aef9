//! A conformance suite for agents that speak version 1 or 2 of the Agent Client Protocol (ACP) over stdio: checks rules of the protocol,
//! runs protocol fixtures, and reports the first difference of each.
//!
//! The command `acp-check` of this crate, which `epitome check` starts, runs both for any agent, with the agent's own configuration
//! and keys, or with a scripted model. Epitome's own tests run all fixtures with a [`story::ModelSide`] that also
//! scripts the model's replies.

pub mod agent;
mod client;
mod invariants;
pub mod model;
pub mod recording;
mod report;
pub mod rules;
mod rules_v2;
pub mod story;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use agent::{AgentEnvironment, AgentProgram, Inherits, Launch, LaunchedAgent};
pub use client::Version;
use epitome_platform::os::environment;
use epitome_platform::program::named;
use epitome_transcript::Fixture;
use model::{CheckModel, ModelFormat};
pub use report::{ReportItem, as_text};
use report::{as_json, junit};
use story::{FixtureOutcome, LINE_WITHIN, NoModel, Setting, run_fixture};

/// Test any ACP agent with protocol fixtures
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 if every fixture passed or tests something that the agent does not offer,
1 if one failed, 2 if nothing could be run.")]
pub struct CheckArgs {
    /// Fixtures to run [default: all rules, and the built-in fixtures for any agent]
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// The version of the protocol. The built-in fixtures are of version 1
    #[arg(long, value_name = "VERSION", default_value = "1")]
    pub protocol: Version,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Also write a JUnit report to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub junit: Option<PathBuf>,
    /// Point the agent at a scripted model that speaks this format, by the variables for its address and its key
    #[arg(long, value_name = "FORMAT")]
    pub model: Option<ModelFormat>,
    /// The agent's home directory: `empty` makes a new one, so that it has no configuration and no logins
    #[arg(long, value_name = "DIRECTORY", value_hint = clap::ValueHint::DirPath)]
    pub home: Option<PathBuf>,
    /// Log in with this method of the agent before opening a session
    #[arg(long, value_name = "METHOD")]
    pub login: Option<String>,
    /// Check this rule only; may be repeated
    #[arg(long = "rule", value_name = "NAME")]
    pub only: Vec<String>,
    /// The agent's command and its arguments
    #[arg(last = true, required = true, value_names = ["COMMAND", "ARGUMENT"], num_args = 1..)]
    pub command: Vec<OsString>,
}

/// The built-in fixtures, which are those of `protocol-fixtures/` for any agent: name, the page of the protocol's
/// documentation on which it is based, text.
const BUILT_IN: [(&str, &str, &str); 10] = [
    ("handshake", "initialization", include_str!("fixtures/handshake.txt")),
    ("initialize-again", "initialization", include_str!("fixtures/initialize-again.txt")),
    ("before-initialize", "initialization", include_str!("fixtures/before-initialize.txt")),
    ("unknown-method", "JSON-RPC 2.0 §5.1", include_str!("fixtures/unknown-method.txt")),
    ("broken-lines", "JSON-RPC 2.0 §5.1", include_str!("fixtures/broken-lines.txt")),
    ("request-ids", "JSON-RPC 2.0 §5", include_str!("fixtures/request-ids.txt")),
    ("relative-cwd", "session-setup#working-directory", include_str!("fixtures/relative-cwd.txt")),
    ("unknown-session", "session-setup", include_str!("fixtures/unknown-session.txt")),
    ("list-empty", "session-list", include_str!("fixtures/list-empty.txt")),
    ("system-prompt", "session-setup#system-prompt", include_str!("fixtures/system-prompt.txt")),
];

/// Returns the names and texts of the built-in fixtures.
pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.into_iter().map(|(name, _, text)| (name, text))
}

/// Why nothing could be run, with a hint.
#[derive(Debug)]
pub struct CannotRun {
    pub message: String,
    pub hint: String,
}

fn cannot(message: String, hint: &str) -> CannotRun {
    CannotRun { message, hint: hint.to_owned() }
}

/// Finds the agent's program on `PATH`, or makes its path independent of the working directory.
fn find_program(command: &OsStr) -> Result<OsString, CannotRun> {
    let path = Path::new(command);
    if path.components().count() > 1 {
        return path.canonicalize().map(OsString::from).map_err(|error| {
            cannot(format!("cannot run {}: {error}", path.display()), "give the path of the agent's program")
        });
    }
    let found = command.to_str().and_then(|name| named(name, &environment()).next());
    found.map(OsString::from).ok_or_else(|| {
        cannot(format!("there is no program {}", path.display()), "give the path of the agent's program")
    })
}

/// Parses the fixtures in these files, or the built-in ones if there are no files. Returns them with their names.
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

/// An agent with additional variables for its home and its model.
pub struct PreparedAgent {
    pub program: AgentProgram,
    pub variables: Vec<(String, OsString)>,
}

impl Launch for PreparedAgent {
    fn launch(&self, surroundings: &AgentEnvironment) -> std::io::Result<LaunchedAgent> {
        let mut surroundings = surroundings.clone();
        surroundings.variables.extend(self.variables.iter().cloned());
        self.program.launch(&surroundings)
    }
}

/// How long the daemon of an Epitome that is checked stays without a window.
const IDLE_SECONDS: &str = "1";

/// The agent's home directory. A new one is removed when dropped.
enum AgentHome {
    Users,
    Given(PathBuf),
    New(tempfile::TempDir),
}

impl AgentHome {
    fn of(home: Option<&Path>) -> Result<AgentHome, CannotRun> {
        let failed = |error: std::io::Error| {
            cannot(
                format!("the home directory can't be used: {error}"),
                "give an existing directory, or `empty`",
            )
        };
        match home {
            None => Ok(AgentHome::Users),
            Some(home) if home == Path::new("empty") => tempfile::Builder::new()
                .prefix("acp-check-home-")
                .tempdir()
                .map(AgentHome::New)
                .map_err(failed),
            Some(home) => home.canonicalize().map(AgentHome::Given).map_err(failed),
        }
    }

    /// The variables of an agent with this home. An agent may leave a process that serves all its windows: such a
    /// process must not serve the user's own windows from another home, so it gets another place for its sockets, and
    /// that of Epitome ends soon.
    fn variables(&self) -> Vec<(String, OsString)> {
        let path = match self {
            AgentHome::Users => None,
            AgentHome::Given(path) => Some(path.as_path()),
            AgentHome::New(directory) => Some(directory.path()),
        };
        let of_home = path.map(|path| [("HOME", path.into()), ("XDG_RUNTIME_DIR", path.join(".run").into())]);
        let idle = ("EPITOME_IDLE_S", OsString::from(IDLE_SECONDS));
        let all = of_home.into_iter().flatten().chain([idle]);
        all.map(|(name, value): (&str, OsString)| (name.to_owned(), value)).collect()
    }
}

/// Checks the rules and runs the fixtures, writes the result of each, and returns the number of failures.
pub fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<usize, CannotRun> {
    let mut fixtures = fixtures(&args.files)?;
    let (command, arguments) =
        args.command.split_first().ok_or_else(|| cannot("COMMAND is missing".into(), "try `--help`"))?;
    let program = AgentProgram {
        command: find_program(command)?,
        arguments: arguments.to_vec(),
        inherits: Inherits::Everything,
    };
    let names = || rules::rules(args.protocol).map(|rule| rule.name);
    if let Some(unknown) = args.only.iter().find(|only| !names().any(|name| name == **only)) {
        let hint = format!("the rules are {}", names().collect::<Vec<_>>().join(", "));
        return Err(CannotRun { message: format!("there is no rule {unknown}"), hint });
    }
    let home = AgentHome::of(args.home.as_deref())?;
    let model = args.model.map(CheckModel::start).transpose().map_err(|error| {
        cannot(format!("the scripted model can't be started: {error}"), "it listens on a port of 127.0.0.1")
    })?;
    let has_fixtures = args.protocol == Version::V1 || !args.files.is_empty();
    if !args.only.is_empty() || !has_fixtures {
        fixtures.clear();
    }
    let mut variables = model.as_ref().map(CheckModel::variables).unwrap_or_default();
    variables.extend(home.variables());
    let agent = PreparedAgent { program, variables };
    let setting = Setting::<NoModel> { agent: &agent, model: None, line_within: LINE_WITHIN };
    let of_fixtures = fixtures.iter().map(|(name, fixture)| {
        let cites = BUILT_IN.iter().find(|(known, ..)| known == name).map_or("", |(_, cites, _)| *cites);
        let outcome = run_fixture(fixture, &setting);
        ReportItem { name: name.clone(), title: fixture.title().to_owned(), cites, outcome }
    });
    let wanted = rules::rules(args.protocol).filter(|rule| {
        args.files.is_empty() && (args.only.is_empty() || args.only.iter().any(|only| only == rule.name))
    });
    let of_rules = wanted.map(|rule| {
        let outcome = rule.check(&agent, args.protocol, args.login.as_deref());
        let (name, title) = (rule.name.to_owned(), rule.title.to_owned());
        ReportItem { name, title, cites: rule.cites(args.protocol), outcome }
    });
    let mut items = Vec::new();
    for item in of_fixtures.chain(of_rules) {
        let text = if args.json { as_json(&item) } else { as_text(&item) };
        items.push(item);
        if out.write_all(text.as_bytes()).is_err() {
            break; // The reader has closed the pipe.
        }
    }
    let count = |is_it: fn(&FixtureOutcome) -> bool| items.iter().filter(|item| is_it(&item.outcome)).count();
    let passed = count(|outcome| matches!(outcome, FixtureOutcome::Passed));
    let failed = count(|outcome| matches!(outcome, FixtureOutcome::Failed(_)));
    if !args.json {
        let others = items.len() - passed - failed;
        let _ = writeln!(out, "{passed} passed, {failed} failed, {others} not run");
        if let Some(model) = &model {
            let _ = writeln!(out, "the scripted model was called {} times", model.calls());
            for refusal in model.refusals() {
                let _ = writeln!(out, "a provider might refuse a request: {refusal}");
            }
        }
    }
    if let Some(path) = &args.junit {
        std::fs::write(path, junit(&items)).map_err(|error| {
            cannot(format!("{} can't be written: {error}", path.display()), "give another file")
        })?;
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(command: &str) -> CheckArgs {
        CheckArgs {
            files: Vec::new(),
            protocol: Version::V1,
            json: false,
            junit: None,
            model: None,
            home: None,
            login: None,
            only: Vec::new(),
            command: vec![command.into()],
        }
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
