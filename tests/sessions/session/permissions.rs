//! Permissions that last longer than one call, their revocation, and the log's record of each decision.

use epitome::session::port::SessionPort as _;
use epitome::session::{SessionAnswer, SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{
    Change, Decider, Mode, OutcomeStatus, PermissionChoice, RecordedDecision, Rule, StopReason, ToolOutcome,
};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::text;
use serde_json::{Value, json};

/// A session whose model wants to run the command `do` at each prompt, with this configuration.
fn started(config: &str, files: &[(&str, &str)]) -> TestSession {
    let files: Vec<(String, String)> = [("home/config.toml", config)]
        .iter()
        .chain(files)
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    Setup::with_files(&files).start(|request| {
        let is_over = request.body["messages"]
            .as_array()
            .and_then(|messages| messages.last())
            .is_some_and(|last| last.to_string().contains("tool_result"));
        match is_over {
            true => vec![text("Done.")],
            false => vec![call(json!({ "asks": "person" }))],
        }
    })
}

/// Has the model make its call; returns whether the user was asked, and the outcome.
fn made(test: &mut TestSession, decision: UserDecision) -> (bool, ToolOutcome) {
    let ticket = test.prompt("Go");
    let mut was_asked = false;
    let outcome = loop {
        let news = test.client.until(|out| match out {
            SessionEvent::Ask { ask, .. } => Some(Err(*ask)),
            SessionEvent::Entry { entry, .. } => match &entry.change {
                Change::ToolFinished { outcome } => Some(Ok(outcome.clone())),
                _ => None,
            },
            _ => None,
        });
        match news {
            Err(ask) => {
                was_asked = true;
                test.send(SessionCommand::Decide { ask, decision: decision.clone() });
            }
            Ok(outcome) => break outcome,
        }
    };
    test.reason(ticket);
    (was_asked, outcome)
}

/// A hook for Claude Code's `PermissionRequest` event answers while the permission prompt is open.
#[test]
fn a_hook_answers_the_card_that_the_user_leaves_open() {
    for (behavior, status) in [("allow", OutcomeStatus::Completed), ("deny", OutcomeStatus::Denied)] {
        let answer = json!({"hookSpecificOutput": {
            "hookEventName": "PermissionRequest",
            "decision": {"behavior": behavior, "message": "Not today."}
        }});
        let line = |line: String| json!([{"hooks": [{"type": "command", "command": line}]}]);
        let settings = json!({"hooks": {
            "PermissionRequest": line(format!("echo '{answer}'")),
        }});
        let settings = settings.to_string();
        let mut test = started("[hooks]\ntrust = \"run\"\n", &[(".claude/settings.json", settings.as_str())]);
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        let log = test.log();
        let outcome = log.iter().find_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some(outcome.clone()),
            _ => None,
        });
        let outcome = outcome.expect("an outcome");
        assert_eq!(outcome.status, status, "{behavior}: {}", outcome.model_text());
        assert!(matches!(by(&outcome), Decider::Hook { .. }), "{:?}", outcome.decided);
        assert_eq!(outcome.model_text().contains("Not today."), behavior == "deny");
        let hooked = |wanted: &str| {
            log.iter().any(|entry| matches!(&entry.change, Change::Hooked { event, .. } if event == wanted))
        };
        assert!(hooked("permission_request"));
    }
}

/// Regression: a user switched to the mode in which nothing may be changed while a permission prompt was open. Another
/// client, or a hook, then allowed the call, and it ran.
#[test]
fn a_call_that_the_mode_denies_by_now_is_refused_although_its_prompt_is_answered() {
    let mut test = started("", &[]);
    let ticket = test.prompt("Go");
    let ask = test.client.until(|out| match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    test.choose("mode", "read_only").expect("a mode");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowAlways });
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    let log = test.log();
    let outcome = log.iter().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    let outcome = outcome.expect("an outcome");
    assert_eq!(
        (outcome.status, by(&outcome)),
        (OutcomeStatus::Denied, Decider::Mode { mode: Mode::ReadOnly })
    );
    assert!(!log.iter().any(|entry| matches!(entry.change, Change::Allowed { .. })), "nothing is remembered");
}

fn by(outcome: &ToolOutcome) -> Decider {
    outcome.decided.clone().expect("somebody decided").by
}

fn rule() -> Rule {
    Rule::Command { line: "do".into() }
}

/// Sends a command and returns its machine-readable outcome.
fn run_command(test: &mut TestSession, command: &str) -> Value {
    let ticket = test.prompt(command);
    match test.client.answer(ticket) {
        Ok(SessionAnswer::TurnEnded { meta, .. }) => {
            meta.expect("the command has a result")["epitome"]["permissions"].clone()
        }
        other => panic!("a turn's end was expected: {other:?}"),
    }
}

/// Creates another session in the same directory and switches the test to it.
fn another_session(test: &mut TestSession) {
    test.client = TestClient::new(test.client.id.0 + 1);
    let ticket = test.ticket();
    let opening = test.opening(&test.client, test.environment());
    test.session = test.sessions.create(ticket, opening);
    test.client.answer(ticket).expect("a session");
    test.client.until(|out| matches!(out, SessionEvent::Commands(_)).then_some(()));
}

#[test]
fn an_always_permission_lasts_until_it_is_revoked() {
    let mut test = started("", &[]);
    let (asked, outcome) = made(&mut test, UserDecision::AllowAlways);
    assert!(asked && by(&outcome) == Decider::Person { answer: PermissionChoice::Always });
    let (asked, outcome) = made(&mut test, UserDecision::Reject);
    assert!(!asked && by(&outcome) == Decider::Remembered { rule: rule() }, "{outcome:?}");

    let listed = run_command(&mut test, "/permissions");
    assert_eq!(listed["remembered"], json!([{ "rule": rule(), "words": "the command do", "kept": false }]));
    assert_eq!(run_command(&mut test, "/permissions forget 2")["status"], "refused");
    assert_eq!(run_command(&mut test, "/permissions forget 1")["forgotten"], 1);
    let (asked, outcome) = made(&mut test, UserDecision::Reject);
    assert!(asked && by(&outcome) == Decider::Person { answer: PermissionChoice::No });
    assert_eq!(outcome.status, OutcomeStatus::Denied);

    test.reload(test.environment());
    assert!(made(&mut test, UserDecision::Reject).0, "it is taken back for good");
}

#[test]
fn a_kept_permission_applies_to_later_sessions_and_is_not_in_the_repository() {
    let mut test = started("", &[]);
    made(&mut test, UserDecision::AllowAlways);
    assert_eq!(run_command(&mut test, "/permissions keep 1")["status"], "done");
    assert!(!test.cwd().join(".epitome/config.toml").exists());
    let first = (test.session.clone(), test.client.id);
    another_session(&mut test);
    let (asked, outcome) = made(&mut test, UserDecision::Reject);
    assert!(!asked && by(&outcome) == Decider::Kept { rule: rule() });
    assert_eq!(run_command(&mut test, "/permissions")["remembered"][0]["kept"], true);
    assert_eq!(run_command(&mut test, "/permissions forget all")["forgotten"], 1);
    assert!(made(&mut test, UserDecision::Reject).0, "it holds no more, here");
    drop(first);
    another_session(&mut test);
    assert!(made(&mut test, UserDecision::Reject).0, "nor in a new one");
}

#[test]
fn rules_in_files_decide_and_the_strictest_wins() {
    let allow = "[permissions]\nallow = [\"does(*)\", \"Bash\"]\n";
    for (config, theirs, asked, decided) in [
        (allow, "", false, Some((true, "allow Bash"))),
        (allow, "[permissions]\nask = [\"bash(do)\"]\n", true, None),
        (allow, "[permissions]\ndeny = [\"Bash(do)\"]\n", false, Some((false, "deny Bash(do)"))),
        (
            "mode = \"full\"\n[permissions]\ndeny = [\"Bash(do)\"]\n",
            "",
            false,
            Some((false, "deny Bash(do)")),
        ),
        ("", "mode = \"full\"\n[permissions]\nallow = [\"Bash\"]\n", true, None),
    ] {
        let mut test = started(config, &[(".epitome/config.toml", theirs)]);
        let (was_asked, outcome) = made(&mut test, UserDecision::Reject);
        assert_eq!(was_asked, asked, "{config} {theirs}");
        if let Some((allowed, wanted)) = decided {
            let Some(RecordedDecision { allowed: was, by: Decider::Config { rule, .. } }) = outcome.decided
            else {
                panic!("a rule decides: {outcome:?}")
            };
            assert_eq!((was, rule.as_str()), (allowed, wanted));
        }
    }
}

#[test]
fn the_log_records_who_decided() {
    let mut test = started("", &[]);
    test.choose("mode", "read_only").expect("a mode");
    let (_, outcome) = made(&mut test, UserDecision::Reject);
    assert_eq!(by(&outcome), Decider::Mode { mode: Mode::ReadOnly });
    let log = test.log();
    let at =
        log.iter().find(|entry| matches!(entry.change, Change::ToolFinished { .. })).expect("an outcome").seq;
    test.ask(&format!("/why {at}"));
    let explained = test.log().iter().rev().find_map(|entry| match &entry.change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    });
    let explained = explained.expect("an answer");
    assert!(explained.contains("Permission: refused by the mode \"Plan\""), "{explained}");
}

#[test]
fn keys_are_masked_for_log_and_model_unless_disabled() {
    for (config, masked) in [("", true), ("[secrets]\nmask = false\n", false)] {
        let key = format!("ghp_{}", "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fG3hJ6");
        let says = format!("token={key} and sk-test-1");
        let mut steps = vec![vec![call(json!({ "says": says }))]].into_iter();
        let mut test =
            Setup::with_config(config).start(move |_| steps.next().unwrap_or_else(|| vec![text("Done.")]));
        test.ask("Go");
        let results: Vec<String> = test
            .log()
            .iter()
            .filter_map(|entry| match &entry.change {
                Change::ToolFinished { outcome } => Some(outcome.model_text()),
                _ => None,
            })
            .collect();
        let sent =
            test.last_request().body["messages"].as_array().and_then(|all| all.last()).map(Value::to_string);
        let sent = sent.expect("a message");
        let wanted =
            "[secret masked: looks like a GitHub token] and [secret masked: the value of ANTHROPIC_API_KEY]";
        assert_eq!(results[0].contains(wanted), masked, "{results:?}");
        assert_eq!(sent.contains(wanted), masked, "{sent}");
        assert_eq!(results[0].contains(&key), !masked);
    }
}
