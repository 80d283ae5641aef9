//! The commands that Epitome carries out itself, where more than one part has to play together.

use epitome::session::SessionCommand;
use epitome::thread::Change;

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
fn the_goal_is_told_once_and_is_known_after_loading() {
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

/// A search for a local server that found nothing answered all that waited with its error, also commands
/// that only waited for the recipes to be read.
#[test]
fn a_command_behind_a_prompt_without_a_model_is_carried_out() {
    let mut desk = Desk::new(vec![vec![text("never said")]]);
    desk.reload(Vec::new());
    let prompt = desk.prompt("Hello");
    let command = desk.prompt("/goal");
    assert!(desk.client.answer(prompt).is_err());
    desk.reason(command);
    assert_eq!(notes(&desk), ["No goal is set. /goal and some words set one."]);
}

#[test]
fn what_is_not_a_good_title_or_goal_is_told_and_changes_nothing() {
    let mut desk = Desk::new(Vec::new());
    desk.ask(&format!("/rename {}", "x".repeat(500)));
    desk.ask(&format!("/goal {}", "x".repeat(50_000)));
    let notes = notes(&desk);
    assert!(notes[0].starts_with("Not renamed: ") && notes[1].starts_with("Not set: "), "{notes:?}");
    let changed = |change: &Change| matches!(change, Change::Titled { .. } | Change::GoalSet { .. });
    assert!(!desk.log().iter().any(|entry| changed(&entry.change)));
}

/// A repository's hooks wait for the person's word, and so did every command typed meanwhile: also
/// `/hooks`, which tells what the question is about.
#[test]
fn our_own_commands_do_not_wait_for_consent() {
    let mut desk = Desk::new(Vec::new());
    let hooks = desk.cwd().join(".epitome/hooks");
    std::fs::create_dir_all(&hooks).expect("a directory");
    std::fs::write(hooks.join("note.yaml"), "events: [turn_end]\nthen: {notify: hi}\n").expect("a hook");
    desk.reload(desk.environment());
    desk.send(SessionCommand::HooksChanged);
    desk.ask("/hooks");
    let notes = notes(&desk);
    assert!(notes[0].contains("Waiting for your word") && notes[0].contains("note"), "{notes:?}");
}
