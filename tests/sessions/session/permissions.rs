//! Permissions that last longer than one call, their revocation, and the log's record of each decision.

use epitome::session::{Answer, Decision, Out, SessionCommand};
use epitome::thread::{Answered, Change, Decided, Decider, Mode, OutcomeStatus, Rule, ToolOutcome};
use serde_json::{Value, json};

use super::desk::{Client, Desk, call, text};

/// A desk whose model wants to run the command `do` at each prompt, with this configuration.
fn desk(config: &str, files: &[(&str, &str)]) -> Desk {
    let files: Vec<(String, String)> = [("home/config.toml", config)]
        .iter()
        .chain(files)
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    Desk::set(&files, epitome::hooks::functions::Functions::default(), |request| {
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
fn made(desk: &mut Desk, decision: Decision) -> (bool, ToolOutcome) {
    let ticket = desk.prompt("Go");
    let mut was_asked = false;
    let outcome = loop {
        let news = desk.client.until(|out| match out {
            Out::Ask { ask, .. } => Some(Err(*ask)),
            Out::Entry { entry, .. } => match &entry.change {
                Change::ToolFinished { outcome } => Some(Ok(outcome.clone())),
                _ => None,
            },
            _ => None,
        });
        match news {
            Err(ask) => {
                was_asked = true;
                desk.send(SessionCommand::Decide { ask, decision: decision.clone() });
            }
            Ok(outcome) => break outcome,
        }
    };
    desk.reason(ticket);
    (was_asked, outcome)
}

fn by(outcome: &ToolOutcome) -> Decider {
    outcome.decided.clone().expect("somebody decided").by
}

fn rule() -> Rule {
    Rule::Command { line: "do".into() }
}

/// Sends a command and returns its machine-readable outcome.
fn told(desk: &mut Desk, command: &str) -> Value {
    let ticket = desk.prompt(command);
    match desk.client.answer(ticket) {
        Ok(Answer::TurnEnded { meta, .. }) => {
            meta.expect("it tells something")["epitome"]["permissions"].clone()
        }
        other => panic!("a turn's end was expected: {other:?}"),
    }
}

/// Replaces the desk's session with another one in the same directory.
fn another_session(desk: &mut Desk) {
    desk.client = Client::new(desk.client.id.0 + 1);
    let ticket = desk.ticket();
    let opening = desk.opening(&desk.client, desk.environment());
    desk.session = desk.sessions.create(ticket, opening);
    desk.client.answer(ticket).expect("a session");
    desk.client.until(|out| matches!(out, Out::Commands(_)).then_some(()));
}

#[test]
fn an_always_permission_lasts_until_it_is_revoked() {
    let mut desk = desk("", &[]);
    let (asked, outcome) = made(&mut desk, Decision::AllowAlways);
    assert!(asked && by(&outcome) == Decider::Person { answer: Answered::Always });
    let (asked, outcome) = made(&mut desk, Decision::Reject);
    assert!(!asked && by(&outcome) == Decider::Remembered { rule: rule() }, "{outcome:?}");

    let listed = told(&mut desk, "/permissions");
    assert_eq!(listed["remembered"], json!([{ "rule": rule(), "words": "the command do", "kept": false }]));
    assert_eq!(told(&mut desk, "/permissions forget 2")["status"], "refused");
    assert_eq!(told(&mut desk, "/permissions forget 1")["forgotten"], 1);
    let (asked, outcome) = made(&mut desk, Decision::Reject);
    assert!(asked && by(&outcome) == Decider::Person { answer: Answered::No });
    assert_eq!(outcome.status, OutcomeStatus::Denied);

    desk.reload(desk.environment());
    assert!(made(&mut desk, Decision::Reject).0, "it is taken back for good");
}

#[test]
fn a_kept_permission_applies_to_later_sessions_and_is_not_in_the_repository() {
    let mut desk = desk("", &[]);
    made(&mut desk, Decision::AllowAlways);
    assert_eq!(told(&mut desk, "/permissions keep 1")["status"], "done");
    assert!(!desk.cwd().join(".epitome/config.toml").exists());
    let first = (desk.session.clone(), desk.client.id);
    another_session(&mut desk);
    let (asked, outcome) = made(&mut desk, Decision::Reject);
    assert!(!asked && by(&outcome) == Decider::Kept { rule: rule() });
    assert_eq!(told(&mut desk, "/permissions")["remembered"][0]["kept"], true);
    assert_eq!(told(&mut desk, "/permissions forget all")["forgotten"], 1);
    assert!(made(&mut desk, Decision::Reject).0, "it holds no more, here");
    drop(first);
    another_session(&mut desk);
    assert!(made(&mut desk, Decision::Reject).0, "nor in a new one");
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
        let mut desk = desk(config, &[(".epitome/config.toml", theirs)]);
        let (was_asked, outcome) = made(&mut desk, Decision::Reject);
        assert_eq!(was_asked, asked, "{config} {theirs}");
        if let Some((allowed, wanted)) = decided {
            let Some(Decided { allowed: was, by: Decider::Config { rule, .. } }) = outcome.decided else {
                panic!("a rule decides: {outcome:?}")
            };
            assert_eq!((was, rule.as_str()), (allowed, wanted));
        }
    }
}

#[test]
fn the_log_records_who_decided() {
    let mut desk = desk("", &[]);
    desk.choose("mode", "read_only").expect("a mode");
    let (_, outcome) = made(&mut desk, Decision::Reject);
    assert_eq!(by(&outcome), Decider::Mode { mode: Mode::ReadOnly });
    let log = desk.log();
    let at =
        log.iter().find(|entry| matches!(entry.change, Change::ToolFinished { .. })).expect("an outcome").seq;
    desk.ask(&format!("/why {at}"));
    let told = desk.log().iter().rev().find_map(|entry| match &entry.change {
        Change::Noted { text, .. } => Some(text.clone()),
        _ => None,
    });
    let told = told.expect("an answer");
    assert!(told.contains("Permission: refused by the mode \"Plan\""), "{told}");
}

#[test]
fn keys_are_masked_for_log_and_model_unless_disabled() {
    for (config, masked) in [("", true), ("[secrets]\nmask = false\n", false)] {
        let key = format!("ghp_{}", "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fG3hJ6");
        let says = format!("token={key} and sk-test-1");
        let files = [("home/config.toml".to_owned(), config.to_owned())];
        let mut steps = vec![vec![call(json!({ "says": says }))]].into_iter();
        let mut desk = Desk::set(&files, epitome::hooks::functions::Functions::default(), move |_| {
            steps.next().unwrap_or_else(|| vec![text("Done.")])
        });
        desk.ask("Go");
        let results: Vec<String> = desk
            .log()
            .iter()
            .filter_map(|entry| match &entry.change {
                Change::ToolFinished { outcome } => Some(outcome.model_text()),
                _ => None,
            })
            .collect();
        let sent =
            desk.last_request().body["messages"].as_array().and_then(|all| all.last()).map(Value::to_string);
        let sent = sent.expect("a message");
        let wanted =
            "[secret masked: looks like a GitHub token] and [secret masked: the value of ANTHROPIC_API_KEY]";
        assert_eq!(results[0].contains(wanted), masked, "{results:?}");
        assert_eq!(sent.contains(wanted), masked, "{sent}");
        assert_eq!(results[0].contains(&key), !masked);
    }
}
