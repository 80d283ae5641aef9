//! The protocol as described in `protocol-fixtures/*.txt`, run against the real binary.
//!
//! `UPDATE=1 cargo test --test processes protocol` rewrites the agent's lines and the requests to the model;
//! `FIXTURE=name` runs a single fixture.

mod fixtures;
mod mini_agent;
mod update;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use epitome::config::WireFormat;
use epitome_acp_check as check;
use epitome_acp_check::RuleSetting;
use epitome_acp_check::agent::{AgentHome, AgentProgram, Inherits, Launch};
use epitome_acp_check::model::{CheckModel, ModelVariables};
use epitome_acp_check::outcome::{FixtureFailure, FixtureOutcome, RuleLevel};
use epitome_acp_check::story::{LINE_WITHIN, Setting, run_fixture};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::user::program;
use epitome_transcript::Fixture;
use mini_agent::MiniAgent;
use parking_lot::Mutex;
use update::update_fixture;

/// Number of fixtures that run concurrently. They mostly wait for each other's processes.
const AT_A_TIME: usize = 4;

fn rewriting() -> bool {
    std::env::var_os("UPDATE").is_some_and(|update| update == "1")
}

fn our_agent() -> AgentProgram {
    AgentProgram {
        command: program().into(),
        // A fixture observes a single agent, from its first message to its exit.
        arguments: vec!["acp".into(), "--standalone".into()],
        inherits: Inherits::PathAlone,
    }
}

/// An agent with a scripted model of this format.
fn setting(agent: &dyn Launch, wire: WireFormat) -> Setting<'_> {
    let model = ModelVariables { formats: vec![wire], ..ModelVariables::default() };
    Setting { agent, home: AgentHome::New, model, line_within: LINE_WITHIN }
}

/// What rules are checked with.
fn rule_setting<'a>(
    agent: &'a dyn Launch,
    version: check::Version,
    model: Option<&'a CheckModel>,
) -> RuleSetting<'a> {
    RuleSetting { agent, version, login: None, home: &AgentHome::New, model }
}

/// Runs all fixtures against the agent with a model of this format, and reports all failures.
fn run_all(wire: WireFormat) {
    let only = std::env::var("FIXTURE").ok();
    let files: Vec<_> = fixtures::fixture_files()
        .into_iter()
        .filter(|(name, ..)| only.as_ref().is_none_or(|only| only == name))
        .collect();
    assert!(!files.is_empty(), "there are fixtures to run");
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((name, _, text)) = files.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let fixture = fixtures::parse(name, text);
                    let agent = our_agent();
                    let outcome = run_fixture(&fixture, &setting(&agent, wire));
                    if matches!(outcome, FixtureOutcome::Failed(_) | FixtureOutcome::NotOffered(_)) {
                        let title = fixture.title().to_owned();
                        let (name, level) = (name.clone(), RuleLevel::Required);
                        let item = check::ReportItem { name, title, cites: String::new(), level, outcome };
                        failures.lock().push(check::as_text(&item));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    assert!(
        failures.is_empty(),
        "{} of {} fixtures failed\n{}",
        failures.len(),
        files.len(),
        failures.concat()
    );
}

#[test]
fn all_fixtures_pass_with_an_anthropic_model() {
    if rewriting() {
        rewrite_all();
        // The other tests do nothing while files are being rewritten.
        WireFormat::ALL.into_iter().for_each(run_all);
    } else {
        run_all(WireFormat::AnthropicMessages);
    }
}

#[test]
fn all_fixtures_pass_with_a_chat_completions_model() {
    if !rewriting() {
        run_all(WireFormat::OpenAiChat);
    }
}

#[test]
fn all_fixtures_pass_with_a_responses_model() {
    if !rewriting() {
        run_all(WireFormat::OpenAiResponses);
    }
}

#[test]
fn all_fixtures_pass_with_a_gemini_model() {
    if !rewriting() {
        run_all(WireFormat::Gemini);
    }
}

fn rewrite_all() {
    let only = std::env::var("FIXTURE").ok();
    for (name, path, text) in fixtures::fixture_files() {
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let (agent, fixture) = (our_agent(), fixtures::parse(&name, &text));
        // With the first format that the fixture supports: most support all of them.
        let rewritten = WireFormat::ALL.into_iter().find_map(|wire| {
            let updated = update_fixture(&fixture, &setting(&agent, wire));
            updated.unwrap_or_else(|failure| panic!("{name} could not be rewritten: {failure:?}"))
        });
        let rewritten = rewritten.unwrap_or_else(|| panic!("{name} is meant for no format"));
        std::fs::write(&path, rewritten.to_string()).expect("fixtures can be written");
    }
}

#[test]
fn every_fixture_has_canonical_form() {
    for (name, _, text) in fixtures::fixture_files() {
        let canonical = fixtures::parse(&name, &text).to_string();
        assert!(
            text == canonical || rewriting(),
            "{name}.txt is not canonical; UPDATE=1 rewrites it as\n{canonical}"
        );
    }
}

#[test]
fn every_fixture_has_a_title_and_is_listed_in_the_readme() {
    let readme = fixtures::fixtures_directory().join("README.md");
    let readme = std::fs::read_to_string(readme).expect("the fixtures have a README");
    for (name, _, text) in fixtures::fixture_files() {
        assert!(!fixtures::parse(&name, &text).title().is_empty(), "{name} begins with a comment");
        assert!(readme.contains(&format!("`{name}`")), "README.md mentions {name}");
    }
}

#[test]
fn the_built_in_fixtures_are_those_for_any_agent() {
    let marked: Vec<String> = fixtures::fixture_files()
        .into_iter()
        .filter(|(_, _, text)| text.lines().any(|line| line == "any agent"))
        .map(|(name, ..)| name)
        .collect();
    let mut built_in: Vec<&str> = check::built_in().map(|(name, _)| name).collect();
    built_in.sort_unstable();
    assert_eq!(built_in, marked);
}

// Tests of the runner itself, with a miniature agent whose every line is known.

const SMALL: &str = r#"# A prompt and its answer.
editor> initialize
agent<  result {"protocolVersion":1,"*":"*"}
editor> session/new
agent<  result {"sessionId":"$S1"}
agent~  session/update $S1 available_commands /help
editor> session/prompt $S1 "Hello"
model?  user "Hello"
model!  text "Hello, what shall we do today?"
agent<  session/update $S1 text "Hello, what shall we do today?"
agent<  result end_turn
agent~  session/update $S1 usage 7/100
editor> session/prompt $S1 "Rest."
model?  user "Rest."
model!  text "Good."
agent~  session/update $S1 usage 7/100
agent<  session/update $S1 text "Goo"
agent<  session/update $S1 text "d."
agent<  result end_turn
"#;

fn mini_setting() -> Setting<'static> {
    const MINI: MiniAgent = MiniAgent { beats: false, patience: None, answers_itself: false };
    let setting = setting(&MINI, WireFormat::AnthropicMessages);
    Setting { line_within: Duration::from_secs(10), ..setting }
}

fn run_small(text: &str) -> FixtureOutcome {
    run_fixture(&Fixture::parse(text).expect("the fixture is well formed"), &mini_setting())
}

fn failure(outcome: FixtureOutcome) -> FixtureFailure {
    match outcome {
        FixtureOutcome::Failed(failure) => failure,
        other => panic!("the fixture should fail, but: {other:?}"),
    }
}

#[test]
fn a_complete_fixture_passes() {
    assert_eq!(run_small(SMALL), FixtureOutcome::Passed);
}

#[test]
fn the_first_difference_is_reported_with_its_line() {
    let failure = failure(run_small(&SMALL.replace("text \"Goo\"", "text \"Bad\"")));
    assert_eq!(failure.line, 17);
    assert_eq!(failure.expected, r#"agent<  session/update $S1 text "Bad""#);
    assert_eq!(failure.got, r#"agent<  session/update $S1 text $M1 "Good.""#);
}

#[test]
fn an_unexpected_message_is_a_failure() {
    let failure = failure(run_small(&SMALL.replace("available_commands /help", "available_commands /other")));
    assert!(failure.got.contains("available_commands /help"), "{failure:?}");
    let first = SMALL.replacen("agent~  session/update $S1 usage 7/100\n", "", 1);
    assert!(
        matches!(run_small(&first), FixtureOutcome::Failed(_)),
        "the fixture expects another one of its kind"
    );
    let last = SMALL.replace("agent<  session/update $S1 text \"d.\"\nagent<  result end_turn\n", "");
    let FixtureOutcome::Failed(failure) = run_small(&last) else { panic!("the rest of a text is unread") };
    assert_eq!(failure.expected, "nothing more after this line");
}

#[test]
fn aside_ignores_kinds_of_updates() {
    let text: String =
        SMALL.lines().filter(|line| !line.starts_with("agent~")).map(|line| format!("{line}\n")).collect();
    assert_eq!(run_small(&text), FixtureOutcome::Passed, "they may come at any time");
    assert_eq!(run_small(&format!("aside usage available_commands\n{text}")), FixtureOutcome::Passed);
}

#[test]
fn requests_to_the_model_are_compared() {
    let failure = failure(run_small(&SMALL.replace("model?  user \"Rest.\"", "model?  user \"Work.\"")));
    assert_eq!((failure.line, failure.got.as_str()), (14, r#"model?  user "Rest.""#));
}

#[test]
fn an_unused_reply_is_a_failure() {
    let text = format!("{SMALL}model?  user \"More.\"\nmodel!  text \"More.\"\n");
    let fixture = Fixture::parse(&text).expect("the fixture is well formed");
    let setting = Setting { line_within: Duration::from_millis(300), ..mini_setting() };
    let failure = failure(run_fixture(&fixture, &setting));
    assert_eq!((failure.line, failure.expected.as_str()), (20, "model?  user \"More.\""));
    assert!(failure.notes[0].contains("called 2 times; the fixture has 3 replies"), "{failure:?}");
}

#[test]
fn an_unsupported_capability_or_format_is_no_failure() {
    assert_eq!(
        run_small(&format!("needs loadSession\n{SMALL}")),
        FixtureOutcome::NotOffered("loadSession".into())
    );
    let openai = format!("only openai_chat\n{SMALL}");
    assert!(matches!(run_small(&openai), FixtureOutcome::NotMeant(_)));
}

#[test]
fn rewriting_changes_only_the_agents_lines_and_the_models_requests() {
    let wrong = SMALL
        .replace("model?  user \"Rest.\"", "model?  user \"Work.\"")
        .replace("text \"Goo\"\nagent<  session/update $S1 text \"d.\"", "text \"Bad.\"")
        .replace("/help\n", "/other\n");
    let fixture = Fixture::parse(&wrong).expect("the fixture is well formed");
    let rewritten = update_fixture(&fixture, &mini_setting());
    let rewritten = rewritten.expect("the agent runs").expect("the fixture is meant for it").to_string();
    let expected = SMALL.replace("text \"Goo\"\nagent<  session/update $S1 text \"d.\"", "text \"Good.\"");
    assert_eq!(rewritten, expected);
}

/// The agent passes the rules that `acp-check` applies to other agents.
fn every_rule_holds(version: check::Version) {
    let variables = ModelVariables { formats: WireFormat::ALL.to_vec(), ..ModelVariables::default() };
    let model = CheckModel::start(&variables).expect("loopback");
    let agent = our_agent();
    let mut failures = Vec::new();
    for rule in check::rules::rules(version) {
        match rule.check(rule_setting(&agent, version, Some(&model))) {
            FixtureOutcome::Passed | FixtureOutcome::NotOffered(_) => {}
            // The agent advertises everything, so this rule does not apply.
            FixtureOutcome::NotMeant(_) if rule.name == "not-advertised" => {}
            outcome => {
                let (name, title) = (rule.name.to_owned(), rule.title.to_owned());
                let (cites, level) = (rule.cites(version), rule.level);
                failures.push(check::as_text(&check::ReportItem { name, title, cites, level, outcome }));
            }
        }
    }
    assert!(failures.is_empty(), "{}\nthe model refused: {:?}", failures.concat(), model.refusals());
    assert!(model.calls() > 10, "the rules about prompts were checked");
}

#[test]
fn every_rule_of_version_1_holds_for_this_agent() {
    every_rule_holds(check::Version::V1);
}

#[test]
fn every_rule_of_version_2_holds_for_this_agent() {
    every_rule_holds(check::Version::V2);
}

#[test]
fn no_rule_holds_for_a_program_that_is_no_agent() {
    let program =
        AgentProgram { command: "true".into(), arguments: Vec::new(), inherits: Inherits::PathAlone };
    for version in [check::Version::V1, check::Version::V2] {
        for rule in check::rules::rules(version) {
            let outcome = rule.check(rule_setting(&program, version, None));
            assert!(matches!(outcome, FixtureOutcome::Failed(_)), "{}", rule.name);
        }
    }
}

/// No rule of version 2 holds for an agent that has only version 1; that is not its fault.
#[test]
fn an_agent_of_version_1_is_not_blamed_for_version_2() {
    let agent = MiniAgent::default();
    for rule in check::rules::rules(check::Version::V2) {
        let outcome = rule.check(rule_setting(&agent, check::Version::V2, None));
        assert!(matches!(outcome, FixtureOutcome::NotOffered(_)), "{}: {outcome:?}", rule.name);
    }
}

fn outcome_of(name: &str, setting: RuleSetting<'_>) -> FixtureOutcome {
    let rule = check::rules::rules(setting.version).find(|rule| rule.name == name);
    rule.expect("a rule").check(setting)
}

/// Regression: a rule that waits until the agent is silent waited for ever for an agent that sends heartbeats.
#[test]
fn a_rule_ends_although_the_agent_is_never_silent() {
    let agent = MiniAgent { beats: true, ..MiniAgent::default() };
    let setting = rule_setting(&agent, check::Version::V1, None);
    assert_eq!(outcome_of("in-flight", setting), FixtureOutcome::Passed);
}

/// Regression: an agent whose model did not run the command was waited for for a minute, and blamed. An agent whose model ends
/// its reply before the cancel was blamed for that, too.
#[test]
fn an_agent_is_not_blamed_for_what_its_model_does() {
    let variables = ModelVariables { formats: WireFormat::ALL.to_vec(), ..ModelVariables::default() };
    let model = CheckModel::start_with(&variables, |_| vec![ModelStep::Text("Ping, or not.".to_owned())]);
    let (agent, model) = (our_agent(), model.expect("loopback"));
    for version in [check::Version::V1, check::Version::V2] {
        for name in ["permission-rejected", "cancel-at-once", "cancel-streaming"] {
            let outcome = outcome_of(name, rule_setting(&agent, version, Some(&model)));
            let is_undecided = matches!(outcome, FixtureOutcome::NotMeant(_));
            // A fast cancel comes before the end of the reply.
            assert!(is_undecided || outcome == FixtureOutcome::Passed, "{name}: {outcome:?}");
        }
    }
}

/// The scripted model holds its reply until the agent gives up, so an agent that ends such a turn in another way than as
/// cancelled has not followed the cancel. One that has not asked the model may have ended before.
#[test]
fn cancels_are_decided_by_whether_the_model_held_its_reply() {
    let variables = ModelVariables { formats: WireFormat::ALL.to_vec(), ..ModelVariables::default() };
    let model = CheckModel::start(&variables).expect("loopback");
    let agent = MiniAgent { patience: Some(Duration::from_millis(300)), ..MiniAgent::default() };
    let setting = rule_setting(&agent, check::Version::V1, Some(&model));
    assert_eq!(outcome_of("prompt", setting), FixtureOutcome::Passed);
    let failure = failure(outcome_of("cancel-at-once", setting));
    assert!(failure.expected.contains("stop reason cancelled") && failure.got == "end_turn", "{failure:?}");
    assert_eq!(failure.transcript.last().map(String::as_str), Some("agent<  result end_turn"));
    let agent = MiniAgent { answers_itself: true, ..MiniAgent::default() };
    let setting = rule_setting(&agent, check::Version::V1, Some(&model));
    assert_eq!(outcome_of("prompt", setting), FixtureOutcome::Passed);
    assert!(matches!(outcome_of("cancel-at-once", setting), FixtureOutcome::NotMeant(_)));
}

fn page(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    std::fs::read_to_string(path).expect("the page is there")
}

#[test]
fn the_methods_in_integrate_md_exist() {
    let page = page("builders/integrate.md");
    let table =
        page.split("## Methods").nth(1).and_then(|rest| rest.split("\n### ").next()).expect("it has methods");
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let methods: Vec<String> =
        cells.flat_map(|cell| cell.split(", ")).map(|method| method.replace('`', "")).collect();
    assert!(methods.len() > 20, "{methods:?}");
    // Methods that the agent sends, and notifications, which have no response.
    let without_answer = ["auth/status_update", "session/cancel", "$/cancel_request"];
    let mut lines = String::new();
    for (at, method) in methods.iter().filter(|method| !without_answer.contains(&method.as_str())).enumerate()
    {
        let params = if method == "initialize" { "{\"protocolVersion\":1}" } else { "{}" };
        lines.push_str(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{at},\"method\":\"{method}\",\"params\":{params}}}\n"
        ));
    }
    let ran = epitome_test_harness::user::User::new().run_with_stdin(&["acp", "--standalone"], &lines);
    assert!(!ran.out.contains("-32601"), "{}", ran.out);
}

#[test]
fn the_rules_in_conformance_md_are_those_of_the_suite() {
    let page = page("builders/conformance.md");
    for version in [check::Version::V1, check::Version::V2] {
        for rule in check::rules::rules(version) {
            let level = if rule.level == RuleLevel::Required { "" } else { "recommended" };
            let row = format!("| `{}` | {} | {} | {level} |\n", rule.name, rule.title, rule.cites);
            assert!(page.contains(&row), "{row}");
        }
    }
}
