//! Built-in slash commands that involve several parts of the system.

use epitome::session::{Answer, SessionCommand};
use epitome::thread::{Change, Seq};
use epitome_scripted_model::ModelStep;
use serde_json::Value;

use super::desk::{Desk, text};

fn notes(desk: &Desk) -> Vec<String> {
    desk.log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::Noted { text, .. } => Some(text.clone()),
            _ => None,
        })
        .collect()
}

#[test]
fn the_goal_is_sent_once_and_survives_loading() {
    let mut desk = Desk::new(Vec::new());
    desk.ask("/goal Ship the release");
    for words in ["one", "two"] {
        desk.ask(words);
    }
    desk.reload(desk.environment());
    desk.ask("three");
    let sent = desk.last_request().body.to_string();
    assert_eq!(sent.matches("Ship the release").count(), 1, "{sent}");
    desk.ask("/goal");
    assert_eq!(notes(&desk), ["The goal is: Ship the release\n\n/goal clear ends it."]);
}

/// A failed search for a local server answered all waiting commands with its error, including those that only
/// waited for the recipes.
#[test]
fn a_command_queued_after_a_prompt_without_a_model_is_executed() {
    let mut desk = Desk::new(vec![vec![text("never said")]]);
    desk.reload(Vec::new());
    let prompt = desk.prompt("Hello");
    let command = desk.prompt("/goal");
    assert!(desk.client.answer(prompt).is_err());
    desk.reason(command);
    assert_eq!(notes(&desk), ["No goal is set. /goal and some words set one."]);
}

#[test]
fn an_invalid_title_or_goal_is_reported_and_changes_nothing() {
    let mut desk = Desk::new(Vec::new());
    desk.ask(&format!("/rename {}", "x".repeat(500)));
    desk.ask(&format!("/goal {}", "x".repeat(50_000)));
    let notes = notes(&desk);
    assert!(notes[0].starts_with("Not renamed: ") && notes[1].starts_with("Not set: "), "{notes:?}");
    let changed = |change: &Change| matches!(change, Change::Titled { .. } | Change::GoalSet { .. });
    assert!(!desk.log().iter().any(|entry| changed(&entry.change)));
}

/// While a repository's hooks waited for the user's consent, so did every command, including `/hooks`, which
/// explains what the question is about.
#[test]
fn built_in_commands_do_not_wait_for_consent() {
    let mut desk = Desk::new(Vec::new());
    let hooks = desk.cwd().join(".epitome/hooks");
    std::fs::create_dir_all(&hooks).expect("a directory");
    std::fs::write(hooks.join("note.yaml"), "events: [turn_end]\nthen: {notify: hi}\n").expect("a hook");
    desk.reload(desk.environment());
    desk.send(SessionCommand::HooksChanged);
    desk.ask("/hooks");
    let notes = notes(&desk);
    assert!(notes[0].contains("Waiting for your consent") && notes[0].contains("note"), "{notes:?}");
}

/// The long reply of a conversation of three turns. Its presence shows that it was not compacted: a
/// compaction quotes only its beginning and end.
fn flooded() -> String {
    "many words ".repeat(1_900)
}

fn long_talk() -> Desk {
    let mut desk = Desk::with(|request| {
        let is_first = request.body.to_string().contains("Say many words") && request.number == 0;
        match is_first {
            true => vec![ModelStep::Flood { count: 2000, text: "many words ".into() }],
            false => vec![text("Words were said.")],
        }
    });
    desk.ask("Say many words.");
    desk
}

/// The machine-readable outcome of a command.
fn came_to(desk: &mut Desk, typed: &str) -> Value {
    let ticket = desk.prompt(typed);
    match desk.client.answer(ticket) {
        Ok(Answer::TurnEnded { meta, .. }) => {
            meta.expect("a command says what came of it")["epitome"].clone()
        }
        other => panic!("a turn's end was expected: {other:?}"),
    }
}

fn seen(desk: &Desk) -> String {
    format!("{:?}", desk.last_request().seen())
}

/// The entry of the newest change of this kind.
fn newest(desk: &Desk, kind: &str) -> Seq {
    desk.log().iter().rev().find(|entry| entry.change.kind() == kind).expect("there is one").seq
}

#[test]
fn an_old_compaction_is_undone_and_later_turns_stay() {
    let mut desk = long_talk();
    desk.ask("/compact");
    let compaction = newest(&desk, "compacted");
    desk.ask("And then?");
    let undone = came_to(&mut desk, &format!("/undo {compaction}"));
    assert_eq!(undone["undo"]["status"], "undone", "{undone}");
    assert!(undone["undo"]["post_tokens"].as_u64() > undone["undo"]["pre_tokens"].as_u64(), "{undone}");
    desk.ask("Now?");
    let sent = seen(&desk);
    assert!(sent.contains(&flooded()) && sent.contains("And then?"), "{sent}");
    assert_eq!(came_to(&mut desk, "/redo")["redo"]["status"], "redone");
    desk.ask("And now?");
    let sent = seen(&desk);
    assert!(!sent.contains(&flooded()) && sent.contains("Now?"), "{sent}");
    assert_eq!(came_to(&mut desk, "/redo")["redo"]["status"], "nothing_to_do");
}

#[test]
fn an_impossible_undo_or_redo_is_refused_with_the_reason() {
    let mut desk = long_talk();
    assert_eq!(came_to(&mut desk, "/undo")["undo"]["status"], "nothing_to_do");
    desk.ask("/compact");
    let inner = newest(&desk, "compacted");
    came_to(&mut desk, &format!("/pin {}", "walnut ".repeat(400)));
    let pinned = newest(&desk, "edited");
    for (typed, status, why) in [
        ("/undo everything", "refused", "names no entry"),
        ("/undo e1", "refused", "did nothing to the history"),
        ("/redo", "nothing_to_do", "Nothing to redo"),
    ] {
        let told = came_to(&mut desk, typed);
        let command = &typed[1..5];
        assert_eq!(told[command]["status"], status, "{typed}: {told}");
        assert!(notes(&desk).last().is_some_and(|note| note.contains(why)), "{typed}: {:?}", notes(&desk));
    }
    let history = came_to(&mut desk, "/history");
    let layers = history["history"]["layers"].as_array().expect("a list");
    let told: Vec<(&str, &str)> =
        layers.iter().filter_map(|layer| Some((layer["entry"].as_str()?, layer["can"].as_str()?))).collect();
    assert_eq!(told, [(pinned.to_string().as_str(), "undo"), (inner.to_string().as_str(), "undo")]);
    assert!(notes(&desk).last().is_some_and(|note| note.contains("you asked for it")), "{:?}", notes(&desk));
}

#[test]
fn pinned_text_is_sent_to_the_model_and_survives_compactions() {
    let mut desk = long_talk();
    let told = came_to(&mut desk, "/pin Never touch the vendored walnuts.");
    assert_eq!(told["pin"]["status"], "pinned", "{told}");
    let part = told["pin"]["entry"].as_str().expect("an entry").to_owned();
    desk.ask("Go on.");
    assert!(seen(&desk).contains("vendored walnuts"), "the model is told at once: {}", seen(&desk));
    for _ in 0..2 {
        desk.ask("/compact");
        desk.ask("Go on.");
        let sent = seen(&desk);
        assert!(
            sent.contains(&format!(
                "<pinned entry=\\\"{part}\\\">\\nNever touch the vendored walnuts.\\n</pinned>"
            )),
            "{sent}"
        );
    }
    assert_eq!(came_to(&mut desk, &format!("/pin {part}"))["pin"]["status"], "nothing_to_do");
    came_to(&mut desk, "/pin");
    assert!(notes(&desk).last().is_some_and(|note| note.contains(&part)), "{:?}", notes(&desk));
    assert_eq!(came_to(&mut desk, "/unpin all")["unpin"]["pinned"], serde_json::json!([]));
    assert_eq!(came_to(&mut desk, "/unpin e1")["unpin"]["status"], "nothing_to_do");
}

#[test]
fn pinning_an_entry_that_left_the_view_brings_it_back() {
    let mut desk = Desk::new(vec![
        vec![text("The key is under the walnut.")],
        vec![ModelStep::Flood { count: 2000, text: "many words ".into() }],
        vec![text("<summary>A talk.</summary>")],
    ]);
    desk.ask("Where is the key?");
    let reply = newest(&desk, "replied");
    desk.ask("Say many words.");
    desk.ask("/compact");
    desk.ask("Go on.");
    let pinned = format!("<pinned entry=\\\"{reply}\\\">\\nThe key is under the walnut.");
    assert!(!seen(&desk).contains(&pinned), "{}", seen(&desk));
    assert_eq!(came_to(&mut desk, &format!("/pin {reply}"))["pin"]["status"], "pinned");
    desk.ask("Go on.");
    assert!(seen(&desk).contains(&pinned), "{}", seen(&desk));
    desk.ask(&format!("/why {reply}"));
    let why = notes(&desk).pop().expect("it answers");
    assert!(why.contains("summarised it") && why.contains("pinned"), "{why}");
}

#[test]
fn pins_above_their_share_of_the_window_are_refused() {
    let mut desk = long_talk();
    // The share is a quarter of the window.
    let told = came_to(&mut desk, &format!("/pin {}", "walnut shell ".repeat(200_000)));
    assert_eq!(told["pin"]["status"], "refused");
    assert_eq!(told["pin"]["pinned"], serde_json::json!([]));
    let why = told["pin"]["reason"].as_str().expect("a reason");
    assert!(why.contains("and pins may take"), "{why}");
    assert!(!desk.log().iter().any(|entry| entry.change.kind() == "edited"));
}

#[test]
fn a_dry_run_changes_nothing_and_calls_no_model() {
    let mut desk = long_talk();
    let (requests, entries) = (desk.model.requests().len(), desk.log().len());
    let told = came_to(&mut desk, "/compact dry keep the walnuts");
    assert_eq!(told["compaction"]["status"], "dry_run", "{told}");
    assert_eq!(desk.model.requests().len(), requests);
    let kinds: Vec<&str> = desk.log().iter().skip(entries).map(|entry| entry.change.kind()).collect();
    assert_eq!(kinds, ["commanded", "noted", "turn_ended"]);
    let note = notes(&desk).pop().expect("it answers");
    assert!(note.contains("/compact keep the walnuts does exactly this"), "{note}");
    // The entries of the dry run itself once moved the span, so repeating it had a different result.
    let again = came_to(&mut desk, "/compact dry keep the walnuts");
    assert_eq!(again["compaction"]["digest"], told["compaction"]["digest"]);
}

#[test]
fn compact_above_an_entry_keeps_it_and_what_follows() {
    let mut desk = long_talk();
    desk.ask("Second");
    let second = newest(&desk, "said");
    assert_eq!(came_to(&mut desk, "/compact above e1")["compaction"]["status"], "refused");
    assert_eq!(came_to(&mut desk, "/compact above all")["compaction"]["status"], "refused");
    desk.ask(&format!("/compact above {second}"));
    desk.ask("Third");
    let sent = seen(&desk);
    assert!(!sent.contains(&flooded()) && sent.contains("User(\"Second\")"), "{sent}");
}
