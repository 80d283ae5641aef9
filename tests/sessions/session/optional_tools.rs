//! Tools that are only there if the user's settings ask for them: the web search and the memory.

use epitome::config::WireFormat;
use epitome::session::{SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{Change, Content, OutcomeStatus, ToolDisplay};
use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text};
use serde_json::{Value, json};

use super::stage::notices;

fn tool_names(request: &RecordedRequest) -> Vec<String> {
    let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn calls(name: &str, input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: name.to_owned(), input }]
}

/// A session whose environment also has the address of a SearXNG server.
fn searching(config: &str, replies: Vec<Vec<ModelStep>>) -> TestSession {
    let mut test = Setup::with_config(config).tools(&["task"]).start(in_turn(replies));
    let mut environment = test.environment();
    environment.push(("SEARXNG_URL".into(), "http://127.0.0.1:9".into()));
    test.create(environment);
    test
}

#[test]
fn without_settings_there_is_no_search_and_no_memory() {
    let mut test = searching("", Vec::new());
    test.ask("Hello");
    let names = tool_names(&test.last_request());
    assert!(!names.iter().any(|name| name == "web_search" || name == "memory"), "{names:?}");
    assert!(!test.last_request().body.to_string().contains("/memory/"));
}

#[test]
fn a_search_that_lacks_its_key_is_reported_and_not_offered() {
    let mut test = Setup::with_config("web_search = \"brave\"\n").start(in_turn(Vec::new()));
    test.ask("Hello");
    assert!(!tool_names(&test.last_request()).contains(&"web_search".to_owned()));
    let shown = notices(&mut test).join("\n");
    assert!(shown.contains("web_search = \"brave\"") && shown.contains("set BRAVE_API_KEY"), "{shown}");
}

/// The scripted model refuses searches that come back altered, like the services.
#[test]
fn a_search_by_the_provider_is_shown_and_sent_back() {
    for (format, sent_back) in [
        (WireFormat::AnthropicMessages, "web_search_tool_result"),
        (WireFormat::OpenAiResponses, "web_search_call"),
        (WireFormat::Gemini, "toolResponse"),
    ] {
        let url = "https://example.org/editions".to_owned();
        let search = ModelStep::Search { query: "rust edition".to_owned(), url };
        let replies = vec![vec![text("I look."), search, text("It is 2024.")], vec![text("Yes.")]];
        let setup = Setup::with_config("web_search = \"provider\"\n").format(format);
        let mut test = setup.start(in_turn(replies));
        test.ask("Which edition is the newest?");
        test.ask("Are you sure?");
        let log = test.log();
        let reply = log.iter().find_map(|entry| match &entry.change {
            Change::Replied { message, usage, .. } => Some((message, usage.unwrap_or_default())),
            _ => None,
        });
        let (message, usage) = reply.expect("the model replied");
        let (call, outcome) = message.searches().next().expect("it searched");
        assert!(call.card.title.contains("rust edition"), "{format:?}: {}", call.card.title);
        assert_eq!((outcome.status, usage.searches), (OutcomeStatus::Completed, 1), "{format:?}");
        let sources: String = message
            .content
            .iter()
            .filter_map(|part| match part {
                Content::Search(search) => Some(search.sources()),
                _ => None,
            })
            .collect();
        assert!(sources.contains("(https://example.org/editions)"), "{format:?}: {sources}");
        let body = test.last_request().body.to_string();
        assert!(body.contains(sent_back), "{format:?}: {body}");
        assert_eq!(test.model.refusals(), Vec::<String>::new());
    }
}

/// Models edit best with the tool that they were trained with. The session keeps both, so that a call of an earlier
/// model stays valid when the model changes.
#[test]
fn each_model_gets_its_own_edit_tool() {
    let edit = calls("file_edit", json!({"file_path": "a.txt", "old_text": "one", "new_text": "two"}));
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-two\n+three\n*** End Patch";
    let patched = calls("apply_patch", json!({ "input": patch }));
    let read = calls("file_read", json!({"file_path": "a.txt"}));
    let replies = vec![read, edit, vec![text("Done.")], patched, vec![text("Done.")]];
    let mut test = Setup::with_files(&[("home/config.toml", "mode = \"full\"\n"), ("a.txt", "one\n")])
        .tools(&["file_read", "file_edit", "apply_patch"])
        .format(WireFormat::AnthropicMessages)
        .start(in_turn(replies));
    let offered = |test: &TestSession| {
        let body = test.last_request().body;
        ["file_edit", "apply_patch"]
            .map(|name| body["tools"].to_string().contains(&format!("\"name\":\"{name}\"")))
    };
    test.ask("Change it");
    assert_eq!(offered(&test), [true, false]);
    test.choose("model", "responses/gpt-6-astra").expect("it is offered");
    test.ask("Change it again");
    assert_eq!(offered(&test), [false, true]);
    assert_eq!(std::fs::read_to_string(test.cwd().join("a.txt")).expect("the file"), "three\n");
}

/// An agent that is restricted to some tools would have got all that a new session offers on its own.
#[test]
fn an_agent_gets_the_search_only_if_it_may_use_it() {
    let task = |name: &str| calls("task", json!({"description": "d", "prompt": "Work.", "agent": name}));
    let replies = vec![task("general"), vec![text("Done.")], vec![text("Done.")], task("reader")];
    let mut test = searching("web_search = \"auto\"\nmemory = true\n", replies);
    std::fs::create_dir_all(test.home.join("agents")).expect("a directory");
    let reader = "---\nname: reader\ndescription: Reads.\ntools: Bash\n---\nYou read.\n";
    std::fs::write(test.home.join("agents/reader.md"), reader).expect("a file");
    test.ask("Go");
    test.ask("Again");
    let requests = test.model.requests();
    let has = |index: usize| tool_names(&requests[index]).contains(&"web_search".to_owned());
    assert!(has(0), "{:?}", tool_names(&requests[0]));
    let is_agents = |request: &&RecordedRequest| {
        let seen = request.seen();
        seen.iter().any(|part| matches!(part, SeenPart::User(text) if text.contains("Work.")))
    };
    let agents: Vec<Vec<String>> = requests.iter().filter(is_agents).map(tool_names).collect();
    assert_eq!(agents.len(), 2, "{agents:?}");
    assert!(agents[0].contains(&"web_search".to_owned()), "{agents:?}");
    assert_eq!(agents[1], ["bash", "recall"]);
}

#[test]
fn memory_that_the_user_allowed_is_among_the_instructions_of_the_next_session() {
    let input = json!({"about": "project", "new_text": "- Tests run with make check."});
    let replies = vec![calls("memory", input), vec![text("Noted.")]];
    let mut test = Setup::with_config("memory = true\nmode = \"full\"\n").start(in_turn(replies));
    let ticket = test.prompt("Remember how tests run");
    let (ask, shown) = test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.preview.clone())),
        _ => None,
    });
    let [ToolDisplay::Diff { path, old: None, new }] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(new, "- Tests run with make check.\n");
    assert!(!path.exists(), "nothing is written before");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    test.reason(ticket);
    let log = test.log();
    let outcome = log.iter().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    assert_eq!(outcome.expect("an outcome").status, OutcomeStatus::Completed);

    test.create(test.environment());
    test.ask("Hello");
    let system = test.last_request().body["system"].to_string();
    assert!(system.contains("Tests run with make check."), "{system}");
    test.ask("/context");
    let log = test.log();
    let noted = log.iter().find_map(|entry| match &entry.change {
        Change::Noted { text, .. } => Some(text.as_str()),
        _ => None,
    });
    assert!(noted.is_some_and(|noted| noted.contains("- memory: about")), "{noted:?}");
}
