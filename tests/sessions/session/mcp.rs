//! MCP servers: their tools in a conversation, and the limits of a broken or hostile server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use epitome::session::{
    AskId, QuestionKind, QuestionReply, QuestionSupport, Replay, SessionCommand, SessionEvent, UserDecision,
    UserQuestion,
};
use epitome::thread::{Change, OutcomeStatus, Rule, StopReason, ToolOutcome};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text, within};
use serde_json::{Value, json};

use super::mcp_server::{SECRET, json_of, process_of, table};
use super::stage::{payloads, recorder, with_hooks};

/// A session whose user has these settings, with a directory for traces of the servers.
struct Stage {
    test: TestSession,
    place: PathBuf,
    _directory: tempfile::TempDir,
}

/// A stage whose model sends these replies, one per call, and then "ok".
fn stage(config: impl FnOnce(&std::path::Path) -> String, replies: Vec<Vec<ModelStep>>) -> Stage {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let place = directory.path().to_path_buf();
    Stage { test: Setup::with_config(&config(&place)).start(in_turn(replies)), place, _directory: directory }
}

/// Waits at the first prompt until the server is connected, however busy the machine is.
const WAITED_FOR: &str = "[mcp]\nwait_s = 60\n";

/// A stage with one server of this role, whose tools may be called without permission, with a generous
/// timeout.
fn served(role: &str, replies: Vec<Vec<ModelStep>>) -> Stage {
    let server = |place: &std::path::Path| table("s", role, place, "timeout_s = 60");
    stage(|place| format!("mode = \"full\"\n{WAITED_FOR}{}", server(place)), replies)
}

fn call(tool: &str, input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: tool.into(), input }]
}

impl Stage {
    /// The outcome of the only call.
    fn outcome(&mut self) -> ToolOutcome {
        self.test.client.entry(|change| match change {
            Change::ToolFinished { outcome } => Some(outcome.clone()),
            _ => None,
        })
    }

    fn offered_tools(&self) -> Vec<String> {
        let first = &self.test.model.requests()[0].body["tools"];
        let names = first.as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str());
        names.map(str::to_owned).collect()
    }

    fn notice(&mut self, words: &str) -> String {
        self.test.client.until(|out| match out {
            SessionEvent::Notice { text, .. } if text.contains(words) => Some(text.clone()),
            _ => None,
        })
    }
}

/// The output of `/mcp`.
pub fn status(test: &mut TestSession) -> String {
    command(test, "/mcp")
}

/// The output of a command.
pub fn command(test: &mut TestSession, typed: &str) -> String {
    test.ask(typed);
    test.client.entry(|change| match change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    })
}

/// Whether a process is running; a zombie is not.
fn lives(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('Z')))
}

#[test]
fn a_servers_tool_is_listed_permitted_and_called() {
    let replies = vec![call("mcp__tickets__echo", json!({"says": "hi"}))];
    let mut stage = stage(|place| format!("{WAITED_FOR}{}", table("tickets", "plain", place, "")), replies);
    let ticket = stage.test.prompt("Go");
    let (ask, permission) = stage.test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.clone())),
        _ => None,
    });
    assert_eq!(permission.card.title, "tickets: echo");
    assert!(format!("{:?}", permission.preview).contains("hi"), "{:?}", permission.preview);
    assert_eq!(permission.always.as_deref(), Some("echo of the server tickets for this session"));
    stage.test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowAlways });
    let outcome = stage.outcome();
    assert_eq!((outcome.status, outcome.model_text().as_str()), (OutcomeStatus::Completed, "heard \"hi\""));
    assert_eq!(stage.test.reason(ticket), StopReason::EndTurn);
    let rule = Rule::External { server: "tickets".into(), tool: "echo".into() };
    assert!(stage.test.log().iter().any(|entry| entry.change == Change::Allowed { rule: rule.clone() }));
    let offered = stage.offered_tools();
    assert!(
        offered.contains(&"mcp__tickets__echo".to_owned()) && offered.contains(&"mcp".to_owned()),
        "{offered:?}"
    );
}

/// Each row is a tool of a misbehaving server, and the text for the model. The session continues.
#[test]
fn a_session_survives_every_failure_of_a_call() {
    for (tool, words) in [
        ("fails", "it went wrong"),
        ("refuses", "refused the call: the key [KEY] is wrong"),
        // Output from before it was connected is no reason; it may be read later than that.
        ("dies", "out of memory. It is not known"),
        ("big", "it sent a message of more than 16 MiB"),
        ("floods", "it sent more than 20000 lines"),
    ] {
        let mut stage = served("plain", vec![call(&format!("mcp__s__{tool}"), json!({}))]);
        assert_eq!(stage.test.ask("Go"), StopReason::EndTurn, "{tool}");
        let outcome = stage.outcome();
        assert_eq!(outcome.status, OutcomeStatus::Failed, "{tool}");
        assert!(outcome.model_text().contains(words), "{tool}: {}", outcome.model_text());
        let log = format!("{:?}{:?}", stage.test.log(), stage.test.client.seen);
        assert!(!log.contains(SECRET), "{tool}");
    }
}

/// Each row is a server that is broken from the start, and the notice that the user gets once.
#[test]
fn a_broken_server_causes_a_notice_and_no_failure() {
    for (role, wait, words) in [
        ("ends", 60, "its process ended with code 3 and said: starting with the key [KEY]\nno licence found"),
        ("endless", 60, "it sent a message of more than 16 MiB, and was ended"),
        ("silent", 1, "Not connected yet, continuing without: MCP server s."),
    ] {
        let mut stage = stage(
            |place| format!("[mcp]\nwait_s = {wait}\n{}", table("s", role, place, "")),
            vec![vec![text("Hello.")]],
        );
        assert_eq!(stage.test.ask("Go"), StopReason::EndTurn, "{role}");
        let shown = stage.notice("MCP server s");
        assert!(shown.contains(words), "{role}: {shown}");
        assert!(
            !stage.test.client.seen.iter().any(|out| matches!(out, SessionEvent::Notice { .. })),
            "{role}: once"
        );
    }
}

#[test]
fn a_missing_server_program_is_reported_with_a_hint() {
    let config = "[mcp.servers.s]\ncommand = \"no-such-program-anywhere\"\n";
    let mut stage = stage(|_| config.to_owned(), Vec::new());
    let shown = stage.notice("MCP server s");
    assert!(shown.contains("give its full path"), "{shown}");
    assert_eq!(stage.test.ask("Go"), StopReason::EndTurn);
}

#[test]
fn garbage_on_stdout_is_skipped() {
    let mut stage = served("garbage", vec![call("mcp__s__echo", json!({"says": 1}))]);
    assert_eq!(stage.test.ask("Go"), StopReason::EndTurn);
    assert_eq!(stage.outcome().status, OutcomeStatus::Completed);
}

#[test]
fn an_endless_tool_list_is_bounded_and_names_never_clash() {
    let mut many = served("many", Vec::new());
    assert_eq!(many.test.ask("Go"), StopReason::EndTurn);
    let bytes = many.test.model.requests()[0].body["tools"].to_string().len();
    assert!(bytes < 150_000, "{bytes} bytes");
    many.notice("of which the first 256 are used");

    let mut clashing = served("clashes", Vec::new());
    assert_eq!(clashing.test.ask("Go"), StopReason::EndTurn);
    let mut offered = clashing.offered_tools();
    assert!(
        offered.contains(&"bash".to_owned()) && offered.contains(&"mcp__s__bash".to_owned()),
        "{offered:?}"
    );
    let all = offered.len();
    offered.sort();
    offered.dedup();
    assert_eq!(offered.len(), all);
}

/// Regression: on a busy machine this test failed because the server was connected only after the first prompt had
/// continued without it, its call timed out before the cancel, or the file was read before the server had finished
/// writing it.
#[test]
fn a_cancel_reaches_the_server_and_progress_the_client() {
    let mut stage = served("plain", vec![call("mcp__s__waits", json!({}))]);
    let ticket = stage.test.prompt("Go");
    let progress = stage.test.client.until(|out| match out {
        SessionEvent::CallProgress { output, .. } => Some(output.text.clone()),
        _ => None,
    });
    assert_eq!(progress, "1 of 2: half\n");
    stage.test.send(SessionCommand::Cancel);
    assert_eq!(stage.test.reason(ticket), StopReason::Cancelled);
    let file = stage.place.join("cancelled");
    within("the server's file", || file.exists().then_some(()));
    assert_eq!(std::fs::read_to_string(file).expect("a file"), "true", "it is this very call");
    // What it had reported was shown, and then dropped from the log.
    let shown = stage.outcome().model_text();
    assert!(shown.starts_with("1 of 2: half\n[cancelled"), "{shown}");
}

#[test]
fn a_call_without_an_answer_times_out() {
    let mut stage = stage(
        |place| format!("mode = \"full\"\n{WAITED_FOR}{}", table("s", "plain", place, "timeout_s = 1")),
        vec![call("mcp__s__waits", json!({}))],
    );
    assert_eq!(stage.test.ask("Go"), StopReason::EndTurn);
    let shown = stage.outcome().model_text();
    assert!(shown.contains("did not answer within 1 s"), "{shown}");
}

#[test]
fn a_server_ends_with_its_session() {
    let mut stage = served("plain", Vec::new());
    stage.test.ask("Go");
    let process = process_of("plain", &stage.place).expect("it runs");
    assert!(lives(process));
    let ticket = stage.test.ticket();
    stage.test.send(SessionCommand::Close { ticket, client: stage.test.client.id });
    stage.test.client.answer(ticket).expect("it closes");
    within("the end of the server", || (!lives(process)).then_some(()));
}

/// The server is suspended with its session: the process exits, and is started again for the next call.
#[test]
fn a_server_ends_with_a_suspended_session_and_starts_again() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let place = directory.path();
    let config = format!("mode = \"full\"\n{}", table("s", "plain", place, "timeout_s = 20"));
    let script = in_turn(vec![vec![text("Hello.")], call("mcp__s__echo", json!({"says": 1}))]);
    let mut test = Setup::with_config(&config).suspend_after(Duration::from_millis(30)).start(script);
    test.ask("Go");
    let first = process_of("plain", place).expect("it ran");
    super::resting::rests(&test);
    within("the end of the server", || (!lives(first)).then_some(()));
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
    let outcome = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    assert_eq!(outcome.status, OutcomeStatus::Completed, "{}", outcome.model_text());
    assert_ne!(process_of("plain", place), Some(first));
}

/// A server that the user had switched off ran again after five idle minutes.
#[test]
fn a_server_that_is_switched_off_stays_off_after_a_suspension() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let place = directory.path();
    let config = format!(
        "mode = \"full\"\n{WAITED_FOR}{}",
        table("s", "plain", place, "timeout_s = 20\nstart_with_session = true")
    );
    let setup = Setup::with_config(&config).suspend_after(Duration::from_millis(30));
    let mut test = setup.start(|_| vec![text("ok")]);
    test.ask("Go");
    let process = process_of("plain", place).expect("it ran");
    assert!(command(&mut test, "/mcp off s").contains("off for this session"));
    within("the end of the server", || (!lives(process)).then_some(()));
    for _ in 0..2 {
        super::resting::rests(&test);
        let status = status(&mut test);
        assert!(status.contains("switched off"), "{status}");
    }
    assert_eq!(process_of("plain", place), Some(process), "no other was started");
    command(&mut test, "/mcp on s");
    within("its start", || process_of("plain", place).filter(|now| *now != process));
}

/// Opening a repository must not run anything.
#[test]
fn a_repositorys_server_runs_only_with_the_users_consent() {
    for (decision, runs) in [(UserDecision::AllowOnce, true), (UserDecision::Reject, false)] {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let place = directory.path();
        let servers = json!({"mcpServers": {"theirs": json_of("plain", place)}}).to_string();
        let files = vec![(".mcp.json".to_owned(), servers)];
        let mut test = Setup::with_files(&files).start(|_| vec![text("ok")]);
        let ticket = test.prompt("Go");
        let (ask, permission) = test.client.until(|out| match out {
            SessionEvent::Ask { ask, permission } => Some((*ask, permission.clone())),
            _ => None,
        });
        assert_eq!(process_of("plain", place), None, "nothing runs before the answer");
        let shown = format!("{permission:?}");
        assert!(shown.contains("the MCP server `theirs` runs:") && !shown.contains(SECRET), "{shown}");
        test.send(SessionCommand::Decide { ask, decision });
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
        assert_eq!(process_of("plain", place).is_some(), runs);
    }
}

/// Regression: a repository's file could put the user's API key into any address, and the permission prompt did not
/// show that.
#[test]
fn a_repositorys_server_that_uses_a_secret_is_refused_unless_the_users_settings_name_it() {
    for (config, is_asked) in
        [("", false), ("[mcp.repository_variables]\ntheirs = [\"MADE_UP_TOKEN\"]\n", true)]
    {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let mut server = json_of("plain", directory.path());
        server["env"]["KEY"] = json!("${MADE_UP_TOKEN:-none}");
        let servers = json!({"mcpServers": {"theirs": server}}).to_string();
        let files = [(".mcp.json", servers), ("home/config.toml", config.to_owned())];
        let files = files.map(|(name, text)| (name.to_owned(), text));
        let mut test = Setup::with_files(&files).start(|_| vec![text("ok")]);
        let ticket = test.prompt("Go");
        let (ask, said) = test.client.until(|out| match out {
            SessionEvent::Ask { ask, permission } => Some((Some(*ask), format!("{permission:?}"))),
            SessionEvent::Notice { text, .. } if text.contains("theirs") => Some((None, text.clone())),
            _ => None,
        });
        assert_eq!(ask.is_some(), is_asked, "{said}");
        assert!(said.contains("MADE_UP_TOKEN"), "{said}");
        if let Some(ask) = ask {
            test.send(SessionCommand::Decide { ask, decision: UserDecision::Reject });
        }
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
        assert_eq!(process_of("plain", directory.path()), None);
    }
}

/// Tools of a late server do not change earlier parts of the request; they are announced to the model after them.
#[test]
fn tools_of_a_late_server_are_announced_and_callable() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let place = directory.path();
    let pipe = place.join("go");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let config = format!("mode = \"full\"\n[mcp]\nwait_s = 0\n{}", table("s", "late", place, ""));
    let late = call("mcp", json!({"tool": "mcp__s__echo", "arguments": {"says": "late"}}));
    let long = text(&"A story of many words that somebody tells. ".repeat(2_000));
    let mut test = Setup::with_config(&config).start(in_turn(vec![
        vec![text("Hello.")],
        late,
        vec![text("ok")],
        vec![long],
    ]));
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    std::fs::write(&pipe, "now").expect("the server reads");
    within("the tools of the server", || status(&mut test).contains("connected, 8 tools").then_some(()));
    assert_eq!(test.ask("Again"), StopReason::EndTurn);
    let outcome = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    assert_eq!(outcome.model_text(), "heard \"late\"");
    let requests = test.model.requests();
    assert_eq!(requests[0].body["tools"], requests[2].body["tools"]);
    let shown = requests[1].body["messages"].to_string();
    assert_eq!(shown.matches("- mcp__s__echo: Says what it heard.").count(), 1, "{shown}");
    assert_eq!(requests[2].body["messages"].to_string().matches("not in your list").count(), 1);

    // After a compaction the tools are in the tool list; the other tools keep their positions.
    test.ask("Tell me a story.");
    test.ask("Thanks.");
    test.ask("/compact");
    assert_eq!(test.ask("And now?"), StopReason::EndTurn);
    let (before, now) = (requests[0].body["tools"].clone(), test.last_request().body["tools"].clone());
    let names = |tools: &Value| -> Vec<String> {
        tools.as_array().expect("tools").iter().map(|tool| tool["name"].to_string()).collect()
    };
    assert!(!names(&before).contains(&"\"mcp__s__echo\"".to_owned()));
    assert!(names(&now).contains(&"\"mcp__s__echo\"".to_owned()), "{:?}", names(&now));
    assert_eq!(names(&before)[..3], names(&now)[..3]);
}

#[test]
fn a_tool_of_a_removed_server_has_an_explanatory_error() {
    let mut stage = served("plain", vec![vec![text("Hello.")], call("mcp__s__echo", json!({}))]);
    stage.test.ask("Go");
    std::fs::write(stage.test.home.join("config.toml"), "mode = \"full\"\n").expect("a file");
    stage.test.reload(stage.test.environment());
    assert_eq!(stage.test.ask("Again"), StopReason::EndTurn);
    let shown = stage.outcome().model_text();
    assert!(shown.contains("mcp__s__echo is not available any more"), "{shown}");
}

#[test]
fn a_server_that_exited_is_restarted_for_the_next_call() {
    let replies = vec![call("mcp__s__dies", json!({})), call("mcp__s__echo", json!({"says": 1}))];
    let mut stage = served("plain", replies);
    assert_eq!(stage.test.ask("Go"), StopReason::EndTurn);
    assert_eq!(stage.outcome().status, OutcomeStatus::Failed);
    let second = stage.outcome();
    assert_eq!(second.status, OutcomeStatus::Completed, "{}", second.model_text());
}

/// Regression: when a server's tools changed, the session rebuilt its tools from those of its start, and lost skills
/// that had been loaded since.
#[test]
fn skills_stay_when_a_server_has_news() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let server = table("s", "plain", directory.path(), "timeout_s = 60");
    let config = format!("mode = \"full\"\n{WAITED_FOR}{server}");
    let skill = "---\nname: greet\ndescription: Greets.\n---\nSay hello.\n";
    let files = [("home/config.toml", config.as_str()), ("home/skills/greet/SKILL.md", skill)];
    let replies = vec![call("mcp__s__dies", json!({})), call("skill", json!({"name": "greet"}))];
    let test = Setup::with_files(&files).built_in_tools().start(in_turn(replies));
    let mut stage = Stage { test, place: directory.path().to_path_buf(), _directory: directory };
    assert_eq!(stage.test.ask("Go"), StopReason::EndTurn);
    assert_eq!(stage.outcome().status, OutcomeStatus::Failed);
    let second = stage.outcome();
    assert!(second.model_text().contains("Say hello."), "{}", second.model_text());
}

/// Without a client that shows forms, a server's questions are declined, and their number is limited.
#[test]
fn a_server_that_asks_in_a_loop_is_declined() {
    let mut stage = served("plain", vec![call("mcp__s__asks", json!({}))]);
    assert_eq!(stage.test.ask("Go"), StopReason::EndTurn);
    let shown = stage.outcome().model_text();
    assert_eq!(shown, "told \"decline\" null, asked 30 times");
    stage.notice("asks something that your client cannot show");
}

#[test]
fn hooks_see_a_call_through_the_mcp_tool_as_a_call_of_that_tool() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let config = format!("mode = \"full\"\n{}", table("s", "plain", directory.path(), ""));
    let through = json!({"tool": "mcp__s__echo", "arguments": {"says": 1}});
    let mut test = with_hooks(
        &[("sees", recorder("before_tool_call"))],
        &[("home/config.toml", &config)],
        vec![call("mcp", through)],
    );
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let payload = payloads(&test).remove(0).to_string();
    assert!(payload.contains("mcp__s__echo") && !payload.contains("arguments"), "{payload}");
}

/// Attaches a client that shows forms.
fn showing(test: &mut TestSession) -> TestClient {
    showing_these(test, QuestionSupport { forms: true, urls: false })
}

fn showing_these(test: &mut TestSession, shows: QuestionSupport) -> TestClient {
    let client = TestClient::that_shows(7, shows);
    test.attach(&client, Replay::Nothing);
    client
}

fn question(client: &mut TestClient) -> (AskId, Arc<UserQuestion>) {
    client.until(|out| match out {
        SessionEvent::Question { ask, question } => Some((*ask, question.clone())),
        _ => None,
    })
}

#[test]
fn a_servers_question_is_answered_by_the_first_capable_client() {
    let mut stage = served("plain", vec![call("mcp__s__asks", json!({}))]);
    let mut client = showing(&mut stage.test);
    let ticket = stage.test.prompt("Go");
    let (ask, question) = question(&mut client);
    assert_eq!(question.message, "The MCP server s asks: Which branch?");
    for answer in ["main", "other"] {
        let Value::Object(content) = json!({"branch": answer, "extra": 1}) else { panic!("an object") };
        stage.test.send(SessionCommand::Answer { ask, reply: QuestionReply::Accepted(content) });
    }
    assert_eq!(stage.test.reason(ticket), StopReason::EndTurn);
    assert_eq!(stage.outcome().model_text(), "told \"accept\" {\"branch\":\"main\"}, asked 1 times");
}

#[test]
fn resources_of_a_server_are_attached_to_a_prompt() {
    let mut stage = served("rich", Vec::new());
    // Whether the server has resources is known once it is connected.
    stage.test.ask("Go");
    assert_eq!(stage.test.ask("Read @s:docs://readme."), StopReason::EndTurn);
    let requests = stage.test.model.requests();
    let shown = requests.last().expect("there are two").last_user_text();
    assert!(shown.contains("Read me."), "{shown}");
}

/// Each row is the user's answer, and whether the server gets the model's reply.
#[test]
fn a_server_calls_the_model_only_if_the_user_agrees() {
    for (answer, expected) in
        [("This time", "told {\"model\":"), ("No", "the user did not allow it to call the model")]
    {
        let replies = vec![call("mcp__s__samples", json!({})), vec![text("A secret.")]];
        let mut stage = served("hostile", replies);
        let mut client = showing(&mut stage.test);
        let ticket = stage.test.prompt("Go");
        let (ask, question) = question(&mut client);
        assert!(question.message.contains("user: Say a secret"), "{}", question.message);
        assert!(question.message.contains("in up to 100 tokens"), "{}", question.message);
        let Value::Object(content) = json!({"answer": answer}) else { panic!("an object") };
        stage.test.send(SessionCommand::Answer { ask, reply: QuestionReply::Accepted(content) });
        assert_eq!(stage.test.reason(ticket), StopReason::EndTurn);
        let heard = stage.outcome().model_text();
        assert!(heard.contains(expected), "{answer}: {heard}");
        assert_eq!(heard.contains("A secret."), answer != "No", "{heard}");
        let requests = stage.test.model.requests();
        let sampled = requests.iter().filter(|request| request.body.to_string().contains("Say a secret"));
        assert_eq!(sampled.count(), usize::from(answer != "No"));
    }
}

/// Each row is a URL that a server asks the user to open, and the reply that the server gets.
#[test]
fn a_server_may_only_send_the_user_to_web_urls() {
    for (url, is_shown) in [
        ("https://login.example/start?x=1", true),
        ("javascript:alert(1)", false),
        ("file:///etc/passwd", false),
        ("https://login.example/\n\u{202e}", false),
    ] {
        let mut stage = served("hostile", vec![call("mcp__s__sends", json!({ "url": url }))]);
        let mut client = showing_these(&mut stage.test, QuestionSupport { forms: true, urls: true });
        let ticket = stage.test.prompt("Go");
        if is_shown {
            let (ask, question) = question(&mut client);
            let QuestionKind::Url { url: shown, id } = &question.wants else { panic!("{question:?}") };
            assert_eq!(shown, url);
            assert!(id.starts_with("mcp_") && id != "theirs", "{id}");
            stage
                .test
                .send(SessionCommand::Answer { ask, reply: QuestionReply::Accepted(serde_json::Map::new()) });
        }
        assert_eq!(stage.test.reason(ticket), StopReason::EndTurn);
        let outcome = stage.outcome().model_text();
        assert!(outcome.contains(if is_shown { "accept" } else { "decline" }), "{url}: {outcome}");
    }
}

#[test]
fn a_cancel_withdraws_an_open_question() {
    let input = json!({"question": "Where to?", "options": ["here", "there"]});
    let mut test = TestSession::new(vec![vec![ModelStep::Call { name: "ask_user".into(), input }]]);
    let mut client = showing(&mut test);
    let ticket = test.prompt("Go");
    let (asked, question) = question(&mut client);
    assert_eq!(question.message, "Where to?");
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    client.until(|out| matches!(out, SessionEvent::Withdrawn { ask } if *ask == asked).then_some(()));
}

/// Regression: a window that could not show a question closed it for a window in which the user could have answered.
#[test]
fn a_question_waits_for_the_clients_that_can_show_it() {
    let input = json!({"question": "Where to?", "options": ["here", "there"]});
    let asks = || vec![ModelStep::Call { name: "ask_user".into(), input: input.clone() }];
    let mut test = TestSession::new(vec![asks(), vec![text("Done.")], asks(), vec![text("Done.")]]);
    let mut clients =
        [7, 8].map(|id| TestClient::that_shows(id, QuestionSupport { forms: true, urls: false }));
    clients.iter().for_each(|client| test.attach(client, Replay::Nothing));
    for (absent, expected) in [(1, "The user answered: here"), (2, "The user's client can't show a form.")] {
        let ticket = test.prompt("Go");
        let (ask, _) = question(&mut clients[0]);
        for client in &clients[..absent] {
            test.send(SessionCommand::Absent { ask, client: client.id });
        }
        if absent == 1 {
            let Value::Object(content) = json!({"answer": "here"}) else { panic!("an object") };
            test.send(SessionCommand::Answer { ask, reply: QuestionReply::Accepted(content) });
        }
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
        let outcome = test.client.entry(|change| match change {
            Change::ToolFinished { outcome } => Some(outcome.model_text()),
            _ => None,
        });
        assert!(outcome.contains(expected), "{outcome}");
    }
}

/// If no client shows forms, the model has no such tool. A conversation that had it with another client still gets an
/// outcome for its call.
#[test]
fn without_a_capable_client_the_model_asks_in_its_reply() {
    let input = json!({"question": "Where to?"});
    let mut test = TestSession::new(vec![vec![ModelStep::Call { name: "ask_user".into(), input }]]);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let shown = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    assert!(shown.contains("in the text of your reply"), "{shown}");
    assert!(!test.model.requests()[0].body["tools"].to_string().contains("ask_user"));
}
