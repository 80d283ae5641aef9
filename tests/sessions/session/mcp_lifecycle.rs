//! MCP servers that connect late, reconnect or exit, and their features other than tools.

use std::path::{Path, PathBuf};

use epitome::session::{SessionCommand, SessionEvent};
use epitome::thread::{Change, OutcomeStatus, StopReason, ToolOutcome};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text, within};
use serde_json::{Value, json};

use super::mcp::{command, status};
use super::mcp_server::{SECRET, process_of, table};

fn call(tool: &str, input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: tool.into(), input }]
}

fn config(role: &str, place: &Path) -> String {
    format!("mode = \"full\"\n[mcp]\nwait_s = 60\n{}", table("s", role, place, "timeout_s = 60"))
}

/// The pipe that a `late` server waits for.
const PIPE: &str = "go";

/// A session with one server of this role.
struct Lifecycle {
    test: TestSession,
    place: PathBuf,
    _directory: tempfile::TempDir,
}

fn started(role: &str, replies: Vec<Vec<ModelStep>>) -> Lifecycle {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let place = directory.path().to_path_buf();
    let made = std::process::Command::new("mkfifo").arg(place.join(PIPE)).status();
    assert!(made.expect("mkfifo runs").success());
    Lifecycle {
        test: Setup::with_config(&config(role, &place)).start(in_turn(replies)),
        place,
        _directory: directory,
    }
}

impl Lifecycle {
    fn outcome(&mut self) -> ToolOutcome {
        self.test.client.entry(|change| match change {
            Change::ToolFinished { outcome } => Some(outcome.clone()),
            _ => None,
        })
    }

    fn notice(&mut self, words: &str) -> String {
        self.test.client.until(|out| match out {
            SessionEvent::Notice { text, .. } if text.contains(words) => Some(text.clone()),
            _ => None,
        })
    }

    fn close(&mut self) {
        let ticket = self.test.ticket();
        self.test.send(SessionCommand::Close { ticket, client: self.test.client.id });
        self.test.client.answer(ticket).expect("it closes");
    }

    fn tools_of_request(&self, number: usize) -> String {
        self.test.model.requests()[number].body["tools"].to_string()
    }
}

/// Regression: a server that was unavailable when the session started was never connected, whatever the model or the
/// user did.
#[test]
fn a_call_connects_a_server_that_was_not_there_at_first() {
    let through = call("mcp", json!({"tool": "mcp__s__echo", "arguments": {"says": "back"}}));
    let mut life = started("flaky", vec![vec![text("Hello.")], through]);
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    assert!(life.notice("not connected").contains("said: starting with the key [KEY]\nnot up yet"));
    std::fs::write(life.place.join("up"), "").expect("a file");
    assert_eq!(life.test.ask("Again"), StopReason::EndTurn);
    let outcome = life.outcome();
    assert_eq!(outcome.model_text(), "heard \"back\"");
    assert_eq!(outcome.status, OutcomeStatus::Completed);
}

#[test]
fn the_user_reconnects_a_server_and_switches_it_off() {
    let mut life = started("flaky", Vec::new());
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    std::fs::write(life.place.join("up"), "").expect("a file");
    assert_eq!(command(&mut life.test, "/mcp reconnect s"), "The MCP server s is being connected.");
    within("the connection", || status(&mut life.test).contains("connected, 8 tools").then_some(()));
    let process = process_of("flaky", &life.place).expect("it runs");
    assert!(command(&mut life.test, "/mcp s").contains("- mcp__s__echo\n"));
    assert_eq!(command(&mut life.test, "/mcp off s"), "The MCP server s is off for this session.");
    assert!(status(&mut life.test).contains("not connected: it is switched off"));
    within("the end of the server", || (!Path::new(&format!("/proc/{process}/cwd")).exists()).then_some(()));
    for (typed, words) in [
        ("/mcp reconnect other", "There is no MCP server \"other\""),
        ("/mcp restart s", "does not know \"restart s\""),
        ("/mcp login s", "needs no login: it is not reached over the network"),
    ] {
        let said = command(&mut life.test, typed);
        assert!(said.contains(words), "{typed}: {said}");
    }
}

/// Regression: `npx` installs packages for longer than a prompt waits. The tools of such a server were only listed by
/// name during the entire conversation.
#[test]
fn the_tools_of_a_slow_server_are_listed_at_the_first_prompt_of_the_next_session() {
    let replies = vec![vec![text("Hello.")], call("mcp__s__echo", json!({"says": 1}))];
    let mut life = started("plain", replies);
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    // Same command line; only the value of a variable makes the server slow.
    std::fs::write(life.test.home.join("config.toml"), config("late", &life.place)).expect("a file");
    life.test.create(life.test.environment());
    let ticket = life.test.prompt("Go");
    within("the request", || (life.test.model.requests().len() == 2).then_some(()));
    assert!(life.tools_of_request(1).contains("Says what it heard."), "{}", life.tools_of_request(1));
    std::fs::write(life.place.join(PIPE), "now").expect("the server reads");
    assert_eq!(life.test.reason(ticket), StopReason::EndTurn);
    assert_eq!(life.outcome().model_text(), "heard 1");
}

/// With twelve servers configured, each session started twelve processes with 1 GB together, and used two of them.
#[test]
fn a_server_whose_tools_are_known_is_started_when_it_is_used() {
    let replies = vec![
        vec![text("Hello.")],
        vec![text("Hello.")],
        call("mcp__s__echo", json!({"says": 1})),
        vec![text("Done.")],
    ];
    let mut life = started("plain", replies);
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    let process = life.place.join("plain.pid");
    std::fs::remove_file(&process).expect("the first session has started it");
    life.test.create(life.test.environment());
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    assert!(life.tools_of_request(1).contains("Says what it heard."), "{}", life.tools_of_request(1));
    let shown = status(&mut life.test);
    assert!(shown.contains("started when it is used; from earlier: 8 tools"), "{shown}");
    assert!(!process.exists(), "nothing has needed it");
    assert_eq!(life.test.ask("Say 1"), StopReason::EndTurn);
    assert_eq!(life.outcome().model_text(), "heard 1");
    assert!(process.exists());

    std::fs::remove_file(&process).expect("it runs");
    let eager = config("plain", &life.place).replace("timeout_s", "start_with_session = true\ntimeout_s");
    std::fs::write(life.test.home.join("config.toml"), eager).expect("a file");
    life.test.create(life.test.environment());
    within("the start", || process.exists().then_some(()));
}

/// Three short sessions in a row each killed `npx` in the middle of its installation.
#[test]
fn a_first_start_is_completed_after_its_session() {
    let mut life = started("late", Vec::new());
    within("the start", || process_of("late", &life.place));
    life.close();
    std::fs::write(life.place.join(PIPE), "now").expect("the server reads");
    let listings = epitome::paths::Paths::below(&life.test.home).data.join("mcp-listings");
    within("the stored tools", || std::fs::read_dir(&listings).ok()?.next().map(drop));
    let process = process_of("late", &life.place).expect("it ran");
    within("the end of the server", || (!Path::new(&format!("/proc/{process}/cwd")).exists()).then_some(()));
}

/// Regression: a server that saves its data when its input is closed was terminated immediately and killed half a
/// second later.
#[test]
fn a_server_may_finish_its_work_when_the_session_ends() {
    let mut life = started("saves", Vec::new());
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    life.close();
    within("what the server saves", || life.place.join("saved").exists().then_some(()));
}

#[test]
fn the_model_gets_instructions_resources_and_all_of_a_result() {
    let mut life = started(
        "rich",
        vec![
            call("mcp", json!({"resources": true})),
            call("mcp", json!({"read": "docs://readme", "server": "s"})),
            call("mcp__s__structured", json!({})),
            call("mcp__s__prints_its_key", json!({})),
            call("mcp__s__lists_roots", json!({})),
        ],
    );
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    let request = life.test.model.requests()[0].body.to_string();
    assert!(request.contains("The MCP server s says:\\n> Always echo before you ask."), "{request}");
    assert!(life.outcome().model_text().contains("- docs://readme (readme): How it works"));
    assert_eq!(life.outcome().model_text(), "[Resource docs://readme]\nRead me.");
    assert_eq!(life.outcome().model_text(), "2 rows\n{\"rows\":[1,2]}");
    let masked = life.outcome().model_text();
    assert!(masked.contains("[secret masked") && !masked.contains(SECRET), "{masked}");
    let roots = life.outcome().model_text();
    assert!(roots.contains(&format!("file://{}", life.test.cwd().display())), "{roots}");
}

#[test]
fn a_prompt_of_a_server_is_a_command() {
    let mut life = started("rich", Vec::new());
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    let commands = life.test.client.until(|out| match out {
        SessionEvent::Commands(list) => list.iter().find(|known| known.name == "mcp__s__greet").cloned(),
        _ => None,
    });
    assert_eq!((commands.description.as_str(), commands.hint.as_deref()), ("Greets (s)", Some("<who>")));
    assert_eq!(life.test.ask("/mcp__s__greet Ann"), StopReason::EndTurn);
    let request = life.test.last_request().body.to_string();
    assert!(request.contains("Greet \\\"Ann\\\"."), "{request}");
}

/// Such a tool was offered, and each of its calls failed.
#[test]
fn a_tool_that_requires_a_task_is_called_as_one() {
    let again = || call("mcp__s__needs_a_task", json!({}));
    let mut life = started("rich", vec![again(), again()]);
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
    assert_eq!(life.outcome().model_text(), "task 1 is done");
    // It is known by now, so no call is rejected first.
    assert_eq!(life.outcome().model_text(), "task 2 is done");
}

#[test]
fn a_server_with_an_unknown_version_is_refused() {
    let mut life = started("future", Vec::new());
    assert!(life.notice("not connected").contains("it speaks the version \"2099-01-01\" of the protocol"));
    assert_eq!(life.test.ask("Go"), StopReason::EndTurn);
}
