//! Sandbox and background commands in a session: what the user is shown, and how long commands live.

use std::sync::Arc;
use std::time::Duration;

use epitome::session::{PermissionRequest, SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{Change, Mode, OutcomeStatus, ToolOutcome};
use epitome::tools::reaper::Reaper;
use epitome::tools::sandbox::{SandboxRules, TEMPORARY, support};
use epitome::tools::{ToolContext, Toolbox, Workspace};
use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, own_process, text, user};
use serde_json::{Value, json};

use super::resting::rests;
use super::stage::notices;

/// Set in a test that runs within the sandbox.
const WITHIN: &str = "EPITOME_TEST_WITHIN";

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Idle time after which these sessions are suspended.
const REST_AFTER: Duration = Duration::from_millis(30);

/// A session with the built-in tools.
fn started(
    config: &str,
    script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
) -> TestSession {
    Setup::with_config(config).built_in_tools().start(script)
}

fn bash(input: Value) -> Vec<ModelStep> {
    vec![ModelStep::Call { name: "bash".into(), input }]
}

/// Has the model make its next call and answers a permission request with `decision`. Returns the permission request,
/// if any, and the outcome.
fn try_it(test: &mut TestSession, decision: UserDecision) -> (Option<Arc<PermissionRequest>>, ToolOutcome) {
    let ticket = test.prompt("Go on");
    let mut card = None;
    let outcome = loop {
        enum News {
            Asked(epitome::session::AskId, Arc<PermissionRequest>),
            Came(Box<ToolOutcome>),
        }
        let news = test.client.until(|out| match out {
            SessionEvent::Ask { ask, permission } => Some(News::Asked(*ask, permission.clone())),
            SessionEvent::Entry { entry, .. } => match &entry.change {
                Change::ToolFinished { outcome } => Some(News::Came(Box::new(outcome.clone()))),
                _ => None,
            },
            _ => None,
        });
        match news {
            News::Asked(ask, permission) => {
                card = Some(permission);
                test.send(SessionCommand::Decide { ask, decision: decision.clone() });
            }
            News::Came(outcome) => break *outcome,
        }
    };
    test.reason(ticket);
    (card, outcome)
}

#[test]
fn a_request_to_leave_the_sandbox_explains_it_and_is_for_once() {
    // "Always" for `gh gist create notes` would send other notes the next time.
    let line = "gh repo view";
    let outside =
        || bash(json!({"command": line, "outside_sandbox": true, "reason": "It needs the network"}));
    let replies =
        vec![outside(), vec![text("ok")], outside(), vec![text("ok")], bash(json!({ "command": line }))];
    let mut test = started("", in_turn(replies));
    let (card, outcome) = try_it(&mut test, UserDecision::AllowOnce);
    let card = card.expect("it is asked");
    let shown = format!("{:?}", card.preview);
    assert!(
        shown.contains("**Outside of the sandbox**") && shown.contains("It needs the network"),
        "{shown}"
    );
    assert_eq!(card.always, None);
    assert_ne!(outcome.status, OutcomeStatus::Denied);
    assert_ne!(outcome.raw.map(|raw| raw["sandboxed"].clone()), Some(json!(true)));
    let (card, _) = try_it(&mut test, UserDecision::Reject);
    assert!(card.is_some(), "it is asked again");
    let (card, outcome) = try_it(&mut test, UserDecision::Reject);
    assert!(card.is_some(), "the same line within is another wish");
    assert_eq!(outcome.status, OutcomeStatus::Denied);
}

/// Makes a prompt, allows everything that it asks about, and returns the number of permission requests.
fn requests_of_a_turn(test: &mut TestSession) -> usize {
    let ticket = test.prompt("Go on");
    let mut count = 0;
    loop {
        let ask = test.client.until(|out| match out {
            SessionEvent::Ask { ask, .. } => Some(Some(*ask)),
            SessionEvent::Entry { entry, .. } => {
                matches!(entry.change, Change::TurnEnded { .. }).then_some(None)
            }
            _ => None,
        });
        let Some(ask) = ask else { break };
        count += 1;
        test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    }
    test.reason(ticket);
    count
}

/// Each Git line cost a question, which drove users to rules such as `bash(git commit *)`: these covered the repository's
/// hooks, which run what the model has written.
#[test]
fn ordinary_git_commands_are_asked_about_once_per_turn() {
    let turn = |lines: &[&str]| -> Vec<Vec<ModelStep>> {
        let calls = lines.iter().map(|line| bash(json!({ "command": line })));
        calls.chain([vec![text("ok")]]).collect()
    };
    let commit = "git commit -q --allow-empty -m \"$(cat <<'EOF'\nMessage\nEOF\n)\"";
    let mut replies = turn(&["git switch -c one", commit, "git status"]);
    replies.extend(turn(&[commit]));
    replies.extend(turn(&[commit, "git config user.name x", "make; git status"]));
    replies.extend(turn(&[commit]));
    let mut test = started("[permissions]\nallow = [\"bash(git commit *)\"]\n", in_turn(replies));
    let git = |arguments: &[&str]| {
        let ended = std::process::Command::new("git").args(arguments).current_dir(test.cwd()).status();
        assert!(ended.expect("there is git").success());
    };
    git(&["init", "-q", "-b", "main", "."]);
    let hook = test.cwd().join(".git/hooks/pre-commit");
    std::fs::create_dir_all(hook.parent().expect("it has one")).expect("made");
    std::fs::write(&hook, "#!/bin/sh\nmake lint\n").expect("written");
    assert_eq!(requests_of_a_turn(&mut test), 1, "the rule covers no repository with hooks");
    assert_eq!(requests_of_a_turn(&mut test), 1, "the consent was for the turn");
    assert_eq!(requests_of_a_turn(&mut test), 3, "it is for ordinary commands of Git only");
    std::fs::remove_file(hook).expect("removed");
    assert_eq!(requests_of_a_turn(&mut test), 0, "Git runs nothing else, so the rule covers it");
}

#[test]
fn the_model_gets_the_reason_of_a_refusal() {
    let mut test = started("", in_turn(vec![bash(json!({ "command": "cargo build" })), vec![text("ok")]]));
    let (card, outcome) = try_it(&mut test, UserDecision::RejectBecause(" use make instead ".to_owned()));
    assert!(card.is_some());
    assert_eq!(outcome.status, OutcomeStatus::Denied);
    assert_eq!(outcome.model_text(), "The user refused this call. They say: use make instead");
}

/// Regression: the reason for a refusal is promised to survive a compaction word for word, but only Claude Code's wording
/// of a refusal was recognized, not Epitome's own.
#[test]
fn a_compaction_quotes_why_the_user_refused() {
    const LATER: usize = 12;
    let command = || bash(json!({ "command": "cargo build" }));
    let mut replies = vec![command(), vec![text(&"many words ".repeat(2_000))]];
    replies.extend((0..LATER).flat_map(|_| [command(), vec![text("ok")]]));
    let mut test = started("[compaction]\nmodel = \"none\"\n", in_turn(replies));
    try_it(&mut test, UserDecision::RejectBecause("use make".to_owned()));
    for _ in 0..LATER {
        try_it(&mut test, UserDecision::Reject);
    }
    test.ask("/compact");
    let summary = test.client.entry(|change| match change {
        Change::Compacted { summary, .. } => Some(summary.text()),
        _ => None,
    });
    assert!(summary.contains("when=\"refusing a call\">\nuse make\n</said>"), "{summary}");
    assert_eq!(summary.matches("when=\"refusing a call\"").count(), 1, "the others gave no reason");
}

#[test]
fn a_permission_request_mentions_that_the_sandbox_is_disabled() {
    let mut test = started("[sandbox]\nenabled = false\n", in_turn(vec![bash(json!({"command": "true"}))]));
    let (card, _) = try_it(&mut test, UserDecision::AllowOnce);
    let shown = format!("{:?}", card.expect("it is asked").preview);
    assert!(shown.contains("The sandbox is switched off in the settings."), "{shown}");
}

#[test]
fn auto_runs_sandboxed_commands_unasked_and_explains_once_why_it_asks() {
    let script = || {
        let command = || bash(json!({"command": "true"}));
        in_turn(vec![command(), vec![text("ok")], command()])
    };
    if support().gap().is_none() {
        let mut complete = started("mode = \"auto\"\n", script());
        let (card, outcome) = try_it(&mut complete, UserDecision::Reject);
        assert!(card.is_none(), "it is sandboxed");
        assert_eq!(outcome.status, OutcomeStatus::Completed);
    }
    let mut test = started("mode = \"auto\"\n[sandbox]\nenabled = false\n", script());
    for _ in 0..2 {
        let (card, _) = try_it(&mut test, UserDecision::AllowOnce);
        assert!(card.is_some(), "it is not sandboxed");
    }
    let found = notices(&mut test).into_iter().filter(|notice| notice.contains("The mode \"Auto\" asks"));
    assert_eq!(found.count(), 1);
}

/// If no restriction is missing, the test runs again within the sandbox. Landlock forbids mounts, so a nested sandbox
/// has no namespaces.
#[test]
fn a_missing_restriction_is_reported_once_and_in_each_permission_request() {
    if let Some(gap) = support().gap() {
        says(&gap);
        return;
    }
    assert!(std::env::var_os(WITHIN).is_none(), "within a sandbox something is missing");
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let environment = vec![
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
        ("HOME".into(), scratch.path().as_os_str().to_owned()),
        (WITHIN.into(), "1".into()),
        ("CARGO_BIN_EXE_epitome".into(), user::program().into()),
    ];
    let workspace = Workspace::new(scratch.path().to_path_buf(), Vec::new(), Arc::new(environment));
    let rules = SandboxRules {
        enabled: true,
        temporary: TEMPORARY.map(Into::into).into(),
        ..SandboxRules::default()
    };
    let context =
        ToolContext { mode: Mode::Ask, sandbox: Arc::new(rules), ..ToolContext::bare(Arc::new(workspace)) };
    let test =
        concat!(module_path!(), "::a_missing_restriction_is_reported_once_and_in_each_permission_request");
    let line = format!("'{}' {}", own_process::program().display(), own_process::arguments(test).join(" "));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let toolbox = Toolbox::built_in(Arc::new(Reaper::with_program(user::program())));
    let run = toolbox.get("bash").expect("a built-in tool").run(json!({ "command": line }), context);
    let result = runtime.block_on(async { tokio::time::timeout(PATIENCE, run).await }).expect("in time");
    let shown = format!("{:?}", result.content);
    assert!(shown.contains("1 passed"), "{shown}");
}

fn says(gap: &str) {
    let command = || bash(json!({"command": "true"}));
    let mut test = started("", in_turn(vec![command(), vec![text("ok")], command()]));
    for _ in 0..2 {
        let (card, _) = try_it(&mut test, UserDecision::AllowOnce);
        let shown = format!("{:?}", card.expect("it is asked").preview);
        assert!(shown.contains(gap), "{shown}");
    }
    let found = notices(&mut test).into_iter().filter(|notice| notice.contains(gap));
    assert_eq!(found.count(), 1);
}

/// A compaction removes the command from the model's view, and a suspended session has no tasks; neither
/// affects the command.
#[test]
fn a_background_command_survives_a_compaction_and_a_suspension() {
    let mut done = std::collections::HashSet::new();
    let script = move |request: &RecordedRequest| {
        // Acts once per prompt: after its call, the prompt is still the last user message.
        let said = request.last_user_text();
        if !done.insert(said.clone()) {
            return vec![text("ok")];
        }
        let id = || {
            let body = request.body.to_string();
            let behind = body.rsplit("Background command ").next().unwrap_or_default();
            behind.chars().take_while(char::is_ascii_alphanumeric).collect::<String>()
        };
        let on_it = |name: &str| vec![ModelStep::Call { name: name.into(), input: json!({ "id": id() }) }];
        match said.trim() {
            "Start it" => {
                bash(json!({"command": "echo $$ > number; echo words; exec sleep 600", "background": true}))
            }
            "Tell me a story" => vec![text(&"A story of many words that somebody tells. ".repeat(2_000))],
            "End it" => on_it("bash_kill"),
            "What did it say?" => on_it("bash_output"),
            _ => vec![text("ok")],
        }
    };
    let mut test =
        Setup::with_config("mode = \"full\"\n").built_in_tools().suspend_after(REST_AFTER).start(script);
    test.ask("Start it");
    let number = std::fs::read_to_string(test.cwd().join("number")).expect("it has begun");
    test.ask("Tell me a story");
    test.ask("Thanks");
    test.ask("/compact");
    test.ask("And now?");
    let sent = test.last_request().body.to_string();
    assert!(
        sent.contains("Background command ")
            && !sent.contains(&"A story of many words that somebody tells. ".repeat(1_900)),
        "{sent}"
    );
    // Gives the session enough time to release its resources.
    let until = std::time::Instant::now() + REST_AFTER * 5;
    while std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", number.trim())).unwrap_or_default();
    assert!(line.starts_with("sleep"), "it runs: {line:?}");
    assert!(test.sessions.live_sessions().iter().all(|live| !live.resting));
    test.ask("End it");
    rests(&test);
    test.ask("What did it say?");
    let outcome = test.log().iter().rev().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    let outcome = outcome.expect("the last call's");
    assert!(outcome.model_text().contains("Background command "), "{}", outcome.model_text());
    assert_eq!(outcome.status, OutcomeStatus::Completed, "{}", outcome.model_text());
}
