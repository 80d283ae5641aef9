//! The chat as a user at the keyboard sees it: the program in a pseudo-terminal, with its daemon and a scripted model.

use std::time::Duration;

use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::agent::{end_by, obey};
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text, within};
use rustix::process::Signal;
use serde_json::json;

use super::terminal::InTerminal;

/// A model that can edit, talk at length, and follow the prompts of [`obey`].
fn script(request: &RecordedRequest) -> Vec<ModelStep> {
    let seen = request.seen();
    let Some(SeenPart::User(said)) = seen.last() else { return obey(request) };
    let attached =
        |part: &SeenPart| matches!(part, SeenPart::User(text) if text.contains("the attached words"));
    if seen.iter().any(attached) {
        return vec![text("I see the attachment.")];
    }
    match said.rsplit("\n\n").next() {
        Some("ask me") => {
            vec![call("ask_user", json!({ "question": "Which one?", "options": ["red", "blue"] }))]
        }
        Some("edit it") => {
            let input = json!({ "file_path": "new.txt", "text": "first line\nsecond line\n" });
            vec![text("I **write** it."), call("file_write", input)]
        }
        Some("talk") => vec![text(&"Many words about little. ".repeat(1_500))],
        _ => obey(request),
    }
}

/// A chat on a screen of 80 by 24.
fn chat(user: &User) -> InTerminal {
    let mut chat = InTerminal::start(user, &[]);
    chat.resize(80, 24);
    chat.until_screen("the empty draft", |screen| screen.contains("Ask for something"));
    chat.until_screen("the mode", |screen| screen.lines().last().is_some_and(|last| last.contains("Ask ·")));
    chat
}

fn until(chat: &mut InTerminal, words: &str) -> String {
    chat.until_screen(words, |screen| screen.contains(words))
}

fn prompt(chat: &mut InTerminal, words: &str) {
    chat.press(words);
    chat.press("\r");
}

#[test]
fn a_conversation_with_a_card_compactions_a_resize_and_a_lost_daemon() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    // A prompt whose answer edits a file: the card shows the change.
    prompt(&mut chat, "edit it");
    let card = until(&mut chat, "Reject");
    assert!(card.contains("I write it.") && card.contains("+first line"), "{card}");
    assert!(!user.project().join("new.txt").exists());
    // Keys that come right after the card appears are not taken for an answer.
    within("the edit", || {
        chat.press("1");
        chat.settle(Duration::from_millis(20));
        user.project().join("new.txt").exists().then_some(())
    });
    let edited = until(&mut chat, "Done.");
    assert!(edited.contains("● ") && edited.contains("+second line"), "{edited}");
    // Ctrl+U: further digits went into the draft.
    chat.settle(Duration::from_millis(20));
    chat.press("\x15");
    // Something to compact, which is first previewed.
    prompt(&mut chat, "talk");
    until(&mut chat, "about little.");
    chat.until_screen("the end of the turn", |screen| !screen.contains("working"));
    prompt(&mut chat, "/compact dry keep=0");
    until(&mut chat, "does exactly this");
    let meter = |screen: &str| screen.lines().last().unwrap_or_default().to_owned();
    let full = meter(&chat.rows().join("\n"));
    prompt(&mut chat, "/compact keep=0");
    // Neither "Compacted" nor an idle screen is enough: the preview says the one, and the other is shown until the
    // command begins. A meter that was read then equals the one after the undo.
    let screen = chat.until_screen("the compaction", |screen| {
        screen.contains("Compacted") && meter(screen) != full && !screen.contains("working")
    });
    let compacted = meter(&screen);
    prompt(&mut chat, "/undo");
    chat.until_screen("the undone compaction", |screen| {
        screen.contains("Undone") && meter(screen) != compacted
    });
    // A bar chart fits a small screen.
    prompt(&mut chat, "/context");
    until(&mut chat, "next automatic compaction");
    chat.resize(40, 12);
    let small = chat.until_screen("the small screen", |screen| {
        screen.lines().count() == 12 && screen.contains("Ask for something") && screen.contains("compaction")
    });
    assert!(small.lines().all(|row| row.chars().count() <= 40), "{small}");
    chat.resize(80, 24);
    until(&mut chat, "free");
    // The daemon dies in the middle of an answer. The next one takes over the session.
    prompt(&mut chat, "half");
    until(&mut chat, "The first half,");
    end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
    until(&mut chat, "Interrupted");
    prompt(&mut chat, "say two");
    until(&mut chat, "You said two.");
    // Ctrl+C twice leaves, and the terminal is as it was before.
    chat.settle(Duration::from_millis(20));
    chat.press("\x03");
    until(&mut chat, "Ctrl+C again to leave");
    chat.press("\x03");
    let (code, rest) = chat.ends();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("\x1b[?1049l") && rest.contains("\x1b[?2004l"), "{rest:?}");
}

#[test]
fn sessions_are_resumed_and_a_turn_is_cancelled() {
    let user = User::with_model(script);
    let mut first = chat(&user);
    prompt(&mut first, "say one");
    until(&mut first, "You said one.");
    first.until_screen("the end of the turn", |screen| !screen.contains("working"));
    prompt(&mut first, "/quit");
    assert_eq!(first.ends().0, Some(0));
    let mut second = chat(&user);
    second.press("\x1bOQ");
    until(&mut second, "Sessions of this directory");
    second.press("\r");
    until(&mut second, "You said one.");
    prompt(&mut second, "hang");
    until(&mut second, "working");
    until(&mut second, "› hang");
    second.press("\x1b");
    second.until_screen("the end of the turn", |screen| !screen.contains("working"));
    // Two lines, and what a paste has of escape sequences is not obeyed.
    second.press("say a\nb");
    second.press("\x1b[200~\x1b[2Jc\x1b[201~");
    until(&mut second, "b[2Jc");
    second.press("\r");
    until(&mut second, "You said a");
    drop(second);
}

#[test]
fn a_question_is_answered_and_a_file_is_attached() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    prompt(&mut chat, "ask me");
    let asked = until(&mut chat, "2. blue");
    assert!(asked.contains("Which one?") && asked.contains("Your choice (its number"), "{asked}");
    // Keys that come right after the question appears are not taken for an answer.
    within("the answer", || {
        chat.press("\x152\r");
        chat.settle(Duration::from_millis(20));
        (!chat.rows().join("\n").contains("2. blue")).then_some(())
    });
    chat.until_screen("the end of the turn", |screen| {
        screen.contains("blue") && !screen.contains("working") && !screen.contains("? question")
    });
    chat.settle(Duration::from_millis(20));
    chat.press("\x15");
    std::fs::write(user.project().join("notes.txt"), "the attached words\n").expect("written");
    prompt(&mut chat, "look at @notes.txt, please");
    until(&mut chat, "I see the attachment.");
}

/// Regression: Ctrl+Z did nothing, and Ctrl+L ended the chat after two seconds. Here, no shell could continue the chat, so
/// that it goes on at once.
#[test]
fn the_terminal_is_restored_for_a_stop_and_drawn_again() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    chat.press("\x1a");
    let stopped = chat.until("\x1b[?1006h");
    for left in ["\x1b[?1049l", "\x1b[?2004l", "\x1b[?1049h"] {
        assert!(stopped.contains(left), "{left:?}: {stopped:?}");
    }
    chat.press("\x0c");
    prompt(&mut chat, "say one");
    until(&mut chat, "You said one.");
}

/// Without a model, the chat says what the command line says, and offers the login.
#[test]
fn without_a_login_it_offers_one() {
    let mut user = User::new();
    user.set("EPITOME_LOCAL_URL", "http://127.0.0.1:9");
    let mut start = InTerminal::start(&user, &[]);
    let said = start.until("Run `epitome login` now?");
    assert!(said.contains("No model is configured") && said.contains("ANTHROPIC_API_KEY"), "{said}");
    start.types("n");
    assert_eq!(start.ends().0, Some(1));
    // Not in a terminal, it prints the help as before.
    let ran = user.run(&[]).exited(2);
    assert!(ran.out.contains("Usage: epitome <COMMAND>"), "{ran:?}");
}
