//! Built-in slash commands that involve several parts of the system.

use std::path::Path;

use epitome::session::port::SessionPort as _;
use epitome::session::{Opening, Replay, SessionAnswer, SessionCommand, SessionError, SessionEvent};
use epitome::thread::{Change, Seq, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text, within};
use serde_json::Value;

fn notes(test: &TestSession) -> Vec<String> {
    test.log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::Noted { text, .. } => Some(text.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn the_goal_is_sent_once_and_survives_loading() {
    let mut test = TestSession::new(Vec::new());
    test.ask("/goal Ship the release");
    for words in ["one", "two"] {
        test.ask(words);
    }
    test.reload(test.environment());
    test.ask("three");
    let sent = test.last_request().body.to_string();
    assert_eq!(sent.matches("Ship the release").count(), 1, "{sent}");
    test.ask("/goal");
    assert_eq!(notes(&test), ["The goal is: Ship the release\n\n/goal clear ends it."]);
}

#[test]
fn a_command_of_the_user_is_shown_to_the_user_and_to_the_model() {
    let mut test = Setup::new().built_in_tools().start(in_turn(vec![vec![text("Seen.")]]));
    assert_eq!(test.ask("/shell echo out-$((40+2)); exit 3"), StopReason::EndTurn);
    let shown = "```console\n$ echo out-$((40+2)); exit 3\nout-42\n[exit code 3]\n```";
    assert_eq!(notes(&test), [shown]);
    // A cancel ends it, and keeps what it has written.
    let ticket = test.prompt("/shell echo begun; touch written; sleep 600");
    let written = test.cwd().join("written");
    within("the command's output", || written.exists().then_some(()));
    test.send(SessionCommand::Cancel);
    test.reason(ticket);
    assert!(notes(&test)[1].contains("sleep 600\n"), "{:?}", notes(&test));
    assert_eq!(test.model.requests().len(), 0);
    test.ask("What did it print?");
    let sent = format!("{:?}", test.last_request().seen());
    assert!(sent.contains("The user ran a command") && sent.contains("out-42"), "{sent}");
}

/// Regression: a failed search for a local server answered all waiting commands with its error, including those that
/// only waited for the recipes.
#[test]
fn a_command_queued_after_a_prompt_without_a_model_is_executed() {
    let mut test = TestSession::new(vec![vec![text("never said")]]);
    test.reload(Vec::new());
    let prompt = test.prompt("Hello");
    let command = test.prompt("/goal");
    assert!(test.client.answer(prompt).is_err());
    test.reason(command);
    assert_eq!(notes(&test), ["No goal is set. /goal TEXT sets one."]);
}

#[test]
fn an_invalid_title_or_goal_is_reported_and_changes_nothing() {
    let mut test = TestSession::new(Vec::new());
    test.ask(&format!("/rename {}", "x".repeat(500)));
    test.ask(&format!("/goal {}", "x".repeat(50_000)));
    let notes = notes(&test);
    assert!(notes[0].starts_with("Not renamed: ") && notes[1].starts_with("Not set: "), "{notes:?}");
    let changed = |change: &Change| matches!(change, Change::Titled { .. } | Change::GoalSet { .. });
    assert!(!test.log().iter().any(|entry| changed(&entry.change)));
}

/// Regression: a second `/undo` reverted a pin without naming it: "Undone: e17. The conversation is as it would be
/// without it."
#[test]
fn an_undo_says_what_it_undid() {
    let mut test = TestSession::new(Vec::new());
    test.ask("Hello");
    test.ask("/pin never force push");
    test.ask("/undo");
    test.ask("/redo");
    let notes = notes(&test);
    let [.., undone, redone] = notes.as_slice() else { panic!("{notes:?}") };
    assert!(undone.starts_with("Undone: your pin \"never force push\" (e"), "{undone}");
    assert!(undone.ends_with("). /redo restores it."), "{undone}");
    assert!(redone.starts_with("Redone: your pin \"never force push\" (e"), "{redone}");
}

/// Regression: an unknown command was sent to the model as text, and the user took the model's answer for the command's
/// output.
#[test]
fn an_unknown_command_is_reported_and_sent_as_text() {
    let mut test = TestSession::new(Vec::new());
    let turn = test.prompt("/udno");
    let notice = test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } if text.contains("/udno") => Some(text.clone()),
        _ => None,
    });
    test.reason(turn);
    assert_eq!(
        notice,
        "There is no command /udno; it was sent as text. Did you mean /undo? /help lists all."
    );
    assert!(test.last_request().body.to_string().contains("/udno"));
}

/// Regression: a session was created in a nonexistent directory, and its user only learned of it at the first call.
#[test]
fn a_session_needs_an_existing_directory() {
    let mut test = TestSession::new(Vec::new());
    let file = test.cwd().join("file");
    std::fs::write(&file, "").expect("written");
    for (cwd, why) in [(test.cwd().join("gone"), "does not exist"), (file, "is not a directory")] {
        let name = cwd.display().to_string();
        let opening = Opening { cwd, ..test.opening(&test.client, test.environment()) };
        let refused = |test: &mut TestSession, ticket| {
            let error = test.client.answer(ticket).expect_err("there is no such directory");
            assert!(matches!(&error, SessionError::Invalid(_)), "{error:?}");
            let said = error.to_string();
            assert!(said.contains(&name) && said.contains(why), "{said}");
        };
        let ticket = test.ticket();
        test.sessions.create(ticket, opening.clone());
        refused(&mut test, ticket);
        let ticket = test.ticket();
        test.sessions.attach(ticket, test.session.clone(), opening, Replay::Everything);
        refused(&mut test, ticket);
    }
    test.ask("The session that is open goes on.");
}

/// Regression: a session that was loaded, resumed or forked with another directory worked in its own without a word, and
/// its commands changed the files of another project than the editor showed.
#[test]
fn a_session_is_opened_in_its_own_directory_only() {
    let mut test = TestSession::new(Vec::new());
    test.ask("Hello");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(test.cwd(), &link).expect("a link");
    let opening = |test: &TestSession, cwd: &Path| Opening {
        cwd: cwd.into(),
        ..test.opening(&test.client, test.environment())
    };
    let attach = |test: &mut TestSession, cwd: &Path, replay| {
        let ticket = test.ticket();
        test.sessions.attach(ticket, test.session.clone(), opening(test, cwd), replay);
        test.client.answer(ticket)
    };
    for is_open in [true, false] {
        if !is_open {
            let ticket = test.ticket();
            test.send(SessionCommand::Close { ticket, client: test.client.id });
            test.client.answer(ticket).expect("closed");
        }
        for replay in [Replay::Everything, Replay::Nothing] {
            let refused =
                attach(&mut test, elsewhere.path(), replay).expect_err("it works elsewhere").to_string();
            let names = [test.cwd(), elsewhere.path()].map(|path| path.display().to_string());
            assert!(names.iter().all(|name| refused.contains(name)), "{refused}");
        }
        let wanted = opening(&test, elsewhere.path());
        assert!(test.sessions.fork(&test.session, None, &wanted).is_err());
    }
    attach(&mut test, &link, Replay::Nothing).expect("a link to the directory is the directory");
}

/// Regression: while a repository's hooks waited for the user's consent, so did every command, including `/hooks`,
/// which explains the question.
#[test]
fn built_in_commands_do_not_wait_for_consent() {
    let mut test = TestSession::new(Vec::new());
    let hooks = test.cwd().join(".epitome/hooks");
    std::fs::create_dir_all(&hooks).expect("a directory");
    std::fs::write(hooks.join("note.yaml"), "events: [turn_end]\nthen: {notify: hi}\n").expect("a hook");
    test.reload(test.environment());
    test.send(SessionCommand::HooksChanged);
    test.ask("/hooks");
    let notes = notes(&test);
    assert!(notes[0].contains("Waiting for your consent") && notes[0].contains("note"), "{notes:?}");
}

/// The long reply of a conversation of three turns. Its presence shows that it was not compacted: a
/// compaction quotes only its beginning and end.
fn flooded() -> String {
    "many words ".repeat(1_900)
}

fn long_talk() -> TestSession {
    let mut test = TestSession::with(|request| {
        let is_first = request.body.to_string().contains("Say many words") && request.number == 0;
        match is_first {
            true => vec![ModelStep::Flood { count: 2000, text: "many words ".into() }],
            false => vec![text("<summary>Words were said.</summary>")],
        }
    });
    test.ask("Say many words.");
    test
}

/// The machine-readable outcome of a command.
fn came_to(test: &mut TestSession, typed: &str) -> Value {
    let ticket = test.prompt(typed);
    match test.client.answer(ticket) {
        Ok(SessionAnswer::TurnEnded { meta, .. }) => {
            meta.expect("a command says what came of it")["epitome"].clone()
        }
        other => panic!("a turn's end was expected: {other:?}"),
    }
}

fn seen(test: &TestSession) -> String {
    format!("{:?}", test.last_request().seen())
}

/// The entry of the newest change of this kind.
fn newest(test: &TestSession, kind: &str) -> Seq {
    test.log().iter().rev().find(|entry| entry.change.kind() == kind).expect("there is one").seq
}

#[test]
fn an_old_compaction_is_undone_and_later_turns_stay() {
    let mut test = long_talk();
    test.ask("/compact");
    let compaction = newest(&test, "compacted");
    test.ask("And then?");
    let undone = came_to(&mut test, &format!("/undo {compaction}"));
    assert_eq!(undone["undo"]["status"], "undone", "{undone}");
    assert!(undone["undo"]["post_tokens"].as_u64() > undone["undo"]["pre_tokens"].as_u64(), "{undone}");
    test.ask("Now?");
    let sent = seen(&test);
    assert!(sent.contains(&flooded()) && sent.contains("And then?"), "{sent}");
    assert_eq!(came_to(&mut test, "/redo")["redo"]["status"], "redone");
    test.ask("And now?");
    let sent = seen(&test);
    assert!(!sent.contains(&flooded()) && sent.contains("Now?"), "{sent}");
    assert_eq!(came_to(&mut test, "/redo")["redo"]["status"], "nothing_to_do");
}

#[test]
fn an_impossible_undo_or_redo_is_refused_with_the_reason() {
    let mut test = long_talk();
    assert_eq!(came_to(&mut test, "/undo")["undo"]["status"], "nothing_to_do");
    test.ask("/compact");
    let inner = newest(&test, "compacted");
    came_to(&mut test, &format!("/pin {}", "walnut ".repeat(400)));
    let pinned = newest(&test, "edited");
    for (typed, status, why) in [
        ("/undo everything", "refused", "is not an entry"),
        ("/undo e1", "refused", "did nothing to the history"),
        ("/redo", "nothing_to_do", "Nothing left to redo"),
    ] {
        let result = came_to(&mut test, typed);
        let command = &typed[1..5];
        assert_eq!(result[command]["status"], status, "{typed}: {result}");
        assert!(notes(&test).last().is_some_and(|note| note.contains(why)), "{typed}: {:?}", notes(&test));
    }
    let history = came_to(&mut test, "/history");
    let layers = history["history"]["layers"].as_array().expect("a list");
    let listed: Vec<(&str, &str)> =
        layers.iter().filter_map(|layer| Some((layer["entry"].as_str()?, layer["can"].as_str()?))).collect();
    assert_eq!(listed, [(pinned.to_string().as_str(), "undo"), (inner.to_string().as_str(), "undo")]);
    assert!(notes(&test).last().is_some_and(|note| note.contains("you asked for it")), "{:?}", notes(&test));
}

#[test]
fn pinned_text_is_sent_to_the_model_and_survives_compactions() {
    let mut test = long_talk();
    let result = came_to(&mut test, "/pin Never touch the vendored walnuts.");
    assert_eq!(result["pin"]["status"], "pinned", "{result}");
    let part = result["pin"]["entry"].as_str().expect("an entry").to_owned();
    test.ask("Go on.");
    assert!(seen(&test).contains("vendored walnuts"), "the model is told at once: {}", seen(&test));
    for _ in 0..2 {
        test.ask("/compact");
        test.ask("Go on.");
        let sent = seen(&test);
        assert!(
            sent.contains(&format!(
                "<pinned entry=\\\"{part}\\\">\\nNever touch the vendored walnuts.\\n</pinned>"
            )),
            "{sent}"
        );
    }
    assert_eq!(came_to(&mut test, &format!("/pin {part}"))["pin"]["status"], "nothing_to_do");
    came_to(&mut test, "/pin");
    assert!(notes(&test).last().is_some_and(|note| note.contains(&part)), "{:?}", notes(&test));
    assert_eq!(came_to(&mut test, "/unpin all")["unpin"]["pinned"], serde_json::json!([]));
    assert_eq!(came_to(&mut test, "/unpin e1")["unpin"]["status"], "nothing_to_do");
}

#[test]
fn pinning_an_entry_that_left_the_view_brings_it_back() {
    let mut test = TestSession::new(vec![
        vec![text("The key is under the walnut.")],
        vec![ModelStep::Flood { count: 2000, text: "many words ".into() }],
        vec![text("<summary>A talk.</summary>")],
    ]);
    test.ask("Where is the key?");
    let reply = newest(&test, "replied");
    test.ask("Say many words.");
    test.ask("/compact");
    test.ask("Go on.");
    let pinned = format!("<pinned entry=\\\"{reply}\\\">\\nThe key is under the walnut.");
    assert!(!seen(&test).contains(&pinned), "{}", seen(&test));
    assert_eq!(came_to(&mut test, &format!("/pin {reply}"))["pin"]["status"], "pinned");
    test.ask("Go on.");
    assert!(seen(&test).contains(&pinned), "{}", seen(&test));
    test.ask(&format!("/why {reply}"));
    let why = notes(&test).pop().expect("it answers");
    assert!(why.contains("summarised it") && why.contains("pinned"), "{why}");
}

#[test]
fn pins_above_their_share_of_the_window_are_refused() {
    let mut test = long_talk();
    // The limit for pins is a quarter of the window.
    let result = came_to(&mut test, &format!("/pin {}", "walnut shell ".repeat(200_000)));
    assert_eq!(result["pin"]["status"], "refused");
    assert_eq!(result["pin"]["pinned"], serde_json::json!([]));
    let why = result["pin"]["reason"].as_str().expect("a reason");
    assert!(why.contains("and pins may take"), "{why}");
    assert!(!test.log().iter().any(|entry| entry.change.kind() == "edited"));
}

#[test]
fn a_dry_run_changes_nothing_and_calls_no_model() {
    let mut test = long_talk();
    let (requests, entries) = (test.model.requests().len(), test.log().len());
    let result = came_to(&mut test, "/compact dry keep the walnuts");
    assert_eq!(result["compaction"]["status"], "dry_run", "{result}");
    assert_eq!(test.model.requests().len(), requests);
    let kinds: Vec<&str> = test.log().iter().skip(entries).map(|entry| entry.change.kind()).collect();
    assert_eq!(kinds, ["commanded", "noted", "turn_ended"]);
    let note = notes(&test).pop().expect("it answers");
    assert!(note.contains("/compact keep the walnuts does exactly this"), "{note}");
    // Regression: the entries of the dry run itself moved the compacted range, so a second dry run had a different
    // result.
    let again = came_to(&mut test, "/compact dry keep the walnuts");
    assert_eq!(again["compaction"]["digest"], result["compaction"]["digest"]);
}

#[test]
fn compact_above_an_entry_keeps_it_and_what_follows() {
    let mut test = long_talk();
    test.ask("Second");
    let second = newest(&test, "said");
    assert_eq!(came_to(&mut test, "/compact above e1")["compaction"]["status"], "refused");
    assert_eq!(came_to(&mut test, "/compact above all")["compaction"]["status"], "refused");
    test.ask(&format!("/compact above {second}"));
    test.ask("Third");
    let sent = seen(&test);
    assert!(!sent.contains(&flooded()) && sent.contains("User(\"Second\")"), "{sent}");
}
