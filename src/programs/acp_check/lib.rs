//! A conformance suite for agents that speak version 1 or 2 of the Agent Client Protocol (ACP) over stdio: checks rules of the protocol,
//! runs protocol fixtures, and reports the first difference of each.
//!
//! The command `acp-check` of this crate, which `epitome check` starts, runs both for any agent, with a scripted model or with the
//! agent's own model, configuration and keys. Epitome's own tests run all fixtures once for each format of models.

pub mod agent;
mod client;
pub mod fixture_model;
mod invariants;
pub mod model;
pub mod outcome;
pub mod recording;
mod report;
pub mod rules;
mod rules_v2;
pub mod story;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use agent::{AgentHome, AgentProgram, Inherits};
use client::Client;
pub use client::{RuleSetting, Version};
use epitome_platform::os::environment;
use epitome_platform::program::named;
use epitome_transcript::Fixture;
use model::{CheckModel, ModelChoice, ModelVariables};
use outcome::RuleLevel;
pub use report::{ReportItem, ResultCounts, as_text};
use report::{as_json, as_page, junit};
use rules::address_of;
use story::{LINE_WITHIN, Setting, run_fixture};

/// Test any ACP agent with protocol rules and fixtures
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 if nothing failed that the protocol demands, 1 if something did, 2 if nothing could be run.
Recommendations that are not followed are counted apart.")]
pub struct CheckArgs {
    /// Fixtures to run [default: all rules and the built-in fixtures; those about Epitome only for Epitome]
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
    /// Also write a Markdown page to this file: counts, and each failure with the messages before it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub markdown: Option<PathBuf>,
    /// The model that the agent uses. A scripted one is on loopback; the agent gets its address and a key by the usual
    /// variables, such as `ANTHROPIC_BASE_URL`, and nothing else of this environment but `PATH`
    #[arg(long, value_name = "MODEL", default_value = "scripted")]
    pub model: ModelChoice,
    /// Set a variable of the agent to the scripted model's address, or to a value, in which `{url}` is the address; may be
    /// repeated
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    pub variables: Vec<String>,
    /// The agent's home directory. `empty` makes a new one for each rule, without configuration and logins [default: `empty`,
    /// or yours with `--model own`]
    #[arg(long, value_name = "DIRECTORY", value_hint = clap::ValueHint::DirPath)]
    pub home: Option<PathBuf>,
    /// Log in with this method of the agent before opening a session
    #[arg(long, value_name = "METHOD")]
    pub login: Option<String>,
    /// Check this rule or built-in fixture only; may be repeated
    #[arg(long = "rule", value_name = "NAME")]
    pub only: Vec<String>,
    /// The agent's command and its arguments
    #[arg(last = true, required = true, value_names = ["COMMAND", "ARGUMENT"], num_args = 1..)]
    pub command: Vec<OsString>,
}

/// A fixture of `protocol-fixtures/`.
struct BuiltInFixture {
    name: &'static str,
    /// The page of the protocol's documentation on which it is based; `None` if it is about Epitome.
    cites: Option<&'static str>,
    level: RuleLevel,
    text: &'static str,
}

macro_rules! built_in {
    ($level:expr, $cites:expr, [$($name:literal),*]) => {
        &[$(BuiltInFixture {
            name: $name,
            cites: $cites,
            level: $level,
            text: include_str!(concat!("fixtures/", $name, ".txt")),
        }),*]
    };
}

const BUILT_IN: [&[BuiltInFixture]; 8] = [
    built_in!(RuleLevel::Required, Some("initialization"), ["handshake"]),
    built_in!(RuleLevel::Recommended, Some("initialization"), ["initialize-again", "before-initialize"]),
    built_in!(RuleLevel::Recommended, Some("JSON-RPC 2.0 §5.1"), ["unknown-method", "broken-lines"]),
    built_in!(RuleLevel::Required, Some("JSON-RPC 2.0 §5"), ["request-ids"]),
    built_in!(RuleLevel::Recommended, Some("session-setup#working-directory"), ["relative-cwd"]),
    built_in!(RuleLevel::Recommended, Some("session-setup"), ["unknown-session", "system-prompt"]),
    built_in!(RuleLevel::Required, Some("session-list"), ["list-empty"]),
    built_in! { RuleLevel::Required, None, [
        "agents-as-sessions", "answer", "ask-the-user", "attachments", "attachments-left-out", "auth-status",
        "billing", "cancel-one-request", "cancel-while-a-tool-runs", "cancel-while-asking", "cancel-while-streaming",
        "cancel-while-waiting", "command-beside-text", "command-context", "command-goal", "command-help",
        "command-hooks", "command-of-a-recipe", "command-pin", "command-rename", "command-undo-redo-history",
        "command-why", "commands-without-a-model", "compact-and-load", "compact-and-undo", "compact-cancelled",
        "compact-dry", "compact-shown", "compact-without-a-model", "cursors", "cut-before-text", "cut-connection",
        "edit-allowed", "edit-always", "edit-dismissed", "empty-prompt", "filtered", "fork", "hook-blocks-a-recipe",
        "instructions-below", "list-close-delete", "load", "load-a-finished-agent", "log-in", "mcp-not-connected",
        "mcp-sse", "mentions", "missing-cwd", "modes-and-options", "no-model", "options-before-a-session", "overflow",
        "overloaded", "overloaded-while-streaming", "oversize-line", "parallel-calls", "plan-with-an-id",
        "read-a-file", "read-only-mode", "recall", "refusal", "requests-in-flight", "resume",
        "resume-while-streaming", "review-in-the-editor", "status-title-archive", "steering", "steering-extension",
        "stop-reasons", "thinking", "too-long-a-wait", "too-many-requests", "two-sessions", "unknown-model",
        "unsaved-text", "usage-and-title", "what-epitome-offers", "wrong-key"
    ] },
];

/// Returns the names and texts of the built-in fixtures that are for any agent.
pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    built_in_fixtures(false).map(|fixture| (fixture.name, fixture.text))
}

fn built_in_fixtures(with_epitomes: bool) -> impl Iterator<Item = &'static BuiltInFixture> {
    BUILT_IN.into_iter().flatten().filter(move |fixture| with_epitomes || fixture.cites.is_some())
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

/// A fixture to run.
struct LoadedFixture {
    name: String,
    cites: String,
    level: RuleLevel,
    fixture: Fixture,
}

/// Parses a fixture. The user who names a fixture that is not built in demands all of it.
fn load(name: String, text: &str, version: Version) -> Result<LoadedFixture, CannotRun> {
    let built_in = built_in_fixtures(true).find(|it| it.text == text);
    let cites = built_in.and_then(|it| it.cites).map(|cites| address_of(cites, version));
    let level = built_in.map_or(RuleLevel::Required, |it| it.level);
    match Fixture::parse(text) {
        Ok(fixture) => Ok(LoadedFixture { name, cites: cites.unwrap_or_default(), level, fixture }),
        Err(error) => Err(cannot(format!("{name}: {error}"), FORMAT_HINT)),
    }
}

const FORMAT_HINT: &str = "protocol-fixtures/README.md describes the format of a FILE";

/// Parses the fixtures in these files, or the built-in ones if there are no files.
fn load_all(args: &CheckArgs, is_epitome: bool) -> Result<Vec<LoadedFixture>, CannotRun> {
    if args.files.is_empty() {
        let wanted = built_in_fixtures(is_epitome).filter(|it| args.wants(it.name));
        let wanted = wanted.filter(|_| args.protocol == Version::V1);
        return wanted.map(|it| load(it.name.to_owned(), it.text, args.protocol)).collect();
    }
    let loaded = args.files.iter().map(|file| {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|error| cannot(format!("cannot read {name}: {error}"), FORMAT_HINT))?;
        load(name, &text, args.protocol)
    });
    loaded.collect()
}

impl CheckArgs {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn agent_home(&self) -> Result<AgentHome, CannotRun> {
        match &self.home {
            None if self.model == ModelChoice::Own => Ok(AgentHome::Users),
            None => Ok(AgentHome::New),
            Some(home) if home == Path::new("empty") => Ok(AgentHome::New),
            Some(home) => home.canonicalize().map(AgentHome::Given).map_err(|error| {
                let message = format!("the home directory can't be used: {error}");
                cannot(message, "give an existing directory, or `empty`")
            }),
        }
    }

    fn agent_program(&self) -> Result<AgentProgram, CannotRun> {
        let (command, arguments) =
            self.command.split_first().ok_or_else(|| cannot("COMMAND is missing".into(), "try `--help`"))?;
        let inherits =
            if self.model == ModelChoice::Own { Inherits::Everything } else { Inherits::PathAlone };
        Ok(AgentProgram { command: find_program(command)?, arguments: arguments.to_vec(), inherits })
    }

    /// Checks that there are rules or fixtures with the names of `--rule`.
    fn check_names(&self) -> Result<(), CannotRun> {
        let rules = || rules::rules(self.protocol).map(|rule| rule.name);
        let fixtures = || built_in_fixtures(true).map(|fixture| fixture.name);
        let Some(unknown) =
            self.only.iter().find(|only| !rules().chain(fixtures()).any(|name| name == **only))
        else {
            return Ok(());
        };
        let hint = format!("the rules are {}", rules().collect::<Vec<_>>().join(", "));
        Err(CannotRun { message: format!("there is no rule {unknown}"), hint })
    }
}

/// The name and the version that an agent reports; empty if it doesn't.
fn about(setting: RuleSetting<'_>) -> (String, String) {
    let offered = Client::new(setting).ok().and_then(|mut client| {
        client.initialize().ok()?;
        Some(client.offered.take())
    });
    let offered = offered.unwrap_or_default();
    let info = if offered["info"].is_object() { &offered["info"] } else { &offered["agentInfo"] };
    let text = |key: &str| info[key].as_str().unwrap_or_default().to_owned();
    (text("name"), text("version"))
}

/// Checks the rules and runs the fixtures, writes the result of each, and counts the results.
pub fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<ResultCounts, CannotRun> {
    args.check_names()?;
    let (program, home) = (args.agent_program()?, args.agent_home()?);
    let variables = ModelVariables { formats: args.model.formats(), named: args.variables.clone() };
    let model = (args.model != ModelChoice::Own).then(|| CheckModel::start(&variables)).transpose();
    let model = model.map_err(|error| {
        cannot(format!("the scripted model can't be started: {error}"), "it listens on a port of 127.0.0.1")
    })?;
    let rule_setting = RuleSetting {
        agent: &program,
        version: args.protocol,
        login: args.login.as_deref(),
        home: &home,
        model: model.as_ref(),
    };
    let (name, version) = about(rule_setting);
    let fixtures = load_all(args, name == "epitome")?;
    let setting = Setting { agent: &program, home: home.clone(), model: variables, line_within: LINE_WITHIN };
    let of_fixtures = fixtures.iter().map(|LoadedFixture { name, cites, level, fixture }| {
        let (name, cites, title) = (name.clone(), cites.clone(), fixture.title().to_owned());
        ReportItem { name, title, cites, level: *level, outcome: run_fixture(fixture, &setting) }
    });
    let wanted = rules::rules(args.protocol).filter(|rule| args.files.is_empty() && args.wants(rule.name));
    let of_rules = wanted.map(|rule| {
        let outcome = rule.check(rule_setting);
        let (name, title) = (rule.name.to_owned(), rule.title.to_owned());
        ReportItem { name, title, cites: rule.cites(args.protocol), level: rule.level, outcome }
    });
    let mut items = Vec::new();
    for item in of_fixtures.chain(of_rules) {
        let text = if args.json { as_json(&item) } else { as_text(&item) };
        items.push(item);
        if out.write_all(text.as_bytes()).is_err() {
            break; // The reader has closed the pipe.
        }
    }
    let counts = ResultCounts::of(&items);
    if !args.json {
        let ResultCounts { passed, failed, recommended, not_run } = counts;
        let _ = writeln!(
            out,
            "{passed} passed, {failed} failed, {recommended} recommendations not followed, {not_run} not run"
        );
        if let Some(model) = &model {
            let _ = writeln!(out, "the rules called the scripted model {} times", model.calls());
            for refusal in model.refusals() {
                let _ = writeln!(out, "a provider might refuse a request: {refusal}");
            }
        }
    }
    let page_name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let reports = [
        args.junit.as_ref().map(|path| (path, junit(&items))),
        args.markdown.as_ref().map(|path| (path, as_page(&page_name(path), &version, &items))),
    ];
    for (path, report) in reports.into_iter().flatten() {
        std::fs::write(path, report).map_err(|error| {
            cannot(format!("{} can't be written: {error}", path.display()), "give another file")
        })?;
    }
    match counts.passed + counts.failed + counts.recommended {
        0 => Err(cannot("nothing was run".into(), "the reasons are above")),
        _ => Ok(counts),
    }
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
            markdown: None,
            model: ModelChoice::Scripted,
            variables: Vec::new(),
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
        let counts = check(&args("true"), &mut out).expect("the command runs");
        assert!(counts.failed > 0 && counts.passed == 0);
        let text = String::from_utf8(out).expect("reports are text");
        assert!(text.contains("expected  agent<  result"), "{text}");
        assert!(text.contains("got       the end of the agent's output"), "{text}");
    }
}
