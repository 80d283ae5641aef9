//! The chat as a user at the keyboard sees it: the program in a pseudo-terminal, with its daemon and a scripted model.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// Waits for words that may be on several rows.
fn until_text(chat: &mut InTerminal, words: &str) -> String {
    chat.until_screen(words, |screen| screen.replace('\n', " ").contains(words))
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
    // Two lines, and a paste loses its escape sequences.
    second.press("say a\nb");
    second.press("\x1b[200~\x1b[2Jc\x1b[201~");
    until(&mut second, "bc");
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

/// One press of Shift+Tab too many gave full access, and so did its name.
#[test]
fn full_access_is_reached_by_a_question_only() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    let until_mode = |chat: &mut InTerminal, mode: &str| {
        let begin = format!("{mode} ·");
        chat.until_screen(mode, |screen| screen.lines().last().is_some_and(|last| last.starts_with(&begin)));
    };
    for mode in ["Accept edits", "Auto", "Plan"] {
        chat.press("\x1b[Z");
        until_mode(&mut chat, mode);
    }
    chat.press("\x1b[Z");
    until(&mut chat, "Give the agent full access?");
    chat.press("\r");
    until_mode(&mut chat, "Ask");
    prompt(&mut chat, "/mode full");
    until(&mut chat, "keep the mode");
    chat.press("\x1b[B\r");
    until_mode(&mut chat, "Full access");
    prompt(&mut chat, "edit it");
    until(&mut chat, "Done.");
    assert!(user.project().join("new.txt").exists());
}

/// A permission request could only be rejected without a word, after which the agent guessed what was wrong.
#[test]
fn a_rejection_says_what_to_do_instead() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    prompt(&mut chat, "edit it");
    until(&mut chat, "4. Reject, and say what to do instead");
    // Keys that come right after the card appears are not taken for an answer.
    within("the question", || {
        chat.press("4");
        chat.settle(Duration::from_millis(20));
        chat.rows().join("\n").contains("type what the agent should do instead").then_some(())
    });
    chat.press("\x15say words");
    let typing = until(&mut chat, "say words");
    assert!(typing.contains("Enter sends it, Esc goes back"), "{typing}");
    chat.press("\r");
    let screen = until(&mut chat, "You said words.");
    assert!(screen.contains("Refused by you.") && screen.contains("› say words"), "{screen}");
    assert!(!user.project().join("new.txt").exists());
}

/// Up and Enter sent a prompt twice that was waiting for the agent.
#[test]
fn a_waiting_prompt_is_taken_back_edited_and_sent_once() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    prompt(&mut chat, "half");
    until(&mut chat, "The first half,");
    prompt(&mut chat, "say one");
    until(&mut chat, "⏳ say one");
    prompt(&mut chat, "say two");
    until(&mut chat, "⏳ say two");
    chat.press("\x1b[A");
    chat.until_screen("the prompt in the input", |screen| {
        screen.contains("\nsay two") && !screen.contains("⏳ say two")
    });
    prompt(&mut chat, " words");
    until(&mut chat, "⏳ say two words");
    user.model().release();
    let screen = until(&mut chat, "You said two words.");
    assert!(screen.contains("› say one"), "{screen}");
    let sent = user.model().requests().pop().expect("a request").body.to_string();
    assert_eq!((sent.matches("say two").count(), sent.matches("say two words").count()), (1, 1), "{sent}");
}

/// A pasted log of 2,000 lines filled the input, where nothing else could be seen.
#[test]
fn a_long_paste_is_one_line_of_the_prompt() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    let log: String = (1..=2_000).map(|line| format!("line {line}\n")).collect();
    chat.press("read this: ");
    chat.press(&format!("\x1b[200~{}\x1b[201~", log.trim_end()));
    let screen = until(&mut chat, "read this: [pasted text 1: 2000 lines]");
    assert!(!screen.contains("line 1999"), "{screen}");
    chat.press("\r");
    let screen = until(&mut chat, "They talked about numbers.");
    assert!(screen.contains("… 1980 more lines (Ctrl+O)"), "{screen}");
    let sent = user.model().requests().pop().expect("a request").last_user_text();
    assert!(sent.contains("line 1\nline 2\n") && sent.ends_with("line 2000"), "{} bytes", sent.len());
}

#[test]
fn the_last_reply_is_copied_to_the_clipboard() {
    let user = User::with_model(script);
    let mut chat = chat(&user);
    prompt(&mut chat, "/copy");
    until(&mut chat, "there is no reply to copy");
    prompt(&mut chat, "say **ä**");
    chat.until_screen("the reply", |screen| screen.contains("You said ä.") && !screen.contains("working"));
    chat.press("/copy\r");
    // The source of the reply, for the terminal's clipboard.
    chat.until(&format!("\x1b]52;c;{}\x07", STANDARD.encode("You said **ä**.")));
}

/// Images could not be attached at all.
#[test]
fn pasted_images_are_sent_to_models_that_take_them() {
    let user = User::with_model(script);
    let png = b"\x89PNG\r\n\x1a\nbytes";
    let (shot, plan) = (user.project().join("my shot.png"), user.project().join("plan.png"));
    std::fs::write(&shot, png).expect("written");
    std::fs::write(&plan, png).expect("written");
    std::fs::write(user.project().join("large.png"), [&png[..], &[0; 4_000_000]].concat()).expect("written");
    let mut chat = chat(&user);
    let paste = |chat: &mut InTerminal, text: &str| chat.press(&format!("\x1b[200~{text}\x1b[201~"));
    // As a terminal drops files: in quotes, or as URIs.
    paste(&mut chat, &format!("'{}'", shot.display()));
    paste(&mut chat, &format!("file://{}", plan.display()));
    until(&mut chat, "[image my shot.png] [image plan.png]");
    chat.press("\x7f\x7f");
    chat.until_screen("one image", |screen| !screen.contains("plan.png"));
    paste(&mut chat, "large.png");
    until_text(&mut chat, "it is an image of 4.00 MB");
    chat.press("\x17\x17\x17");
    chat.until_screen("the image alone", |screen| !screen.contains("] large"));
    prompt(&mut chat, "what is it?");
    // The scripted model of these tests takes no images, which the session says.
    let screen = until(&mut chat, "They talked about numbers.");
    assert!(screen.contains("› [image my shot.png] what is it?"), "{screen}");
    until_text(&mut chat, "takes no images");
    let journal = std::fs::read_to_string(user.journal(&user.session())).expect("a journal");
    // Its bytes are in a file of their own.
    assert!(journal.contains("/message/content/1/data") && journal.contains("my%20shot.png"), "{journal}");
    assert!(!journal.contains("plan.png"), "{journal}");
}

/// Only sessions of the same directory were listed, and found by their titles only.
#[test]
fn a_session_of_another_directory_is_found_by_its_text_and_opened_there() {
    let user = User::with_model(script);
    let other = user.home().join("elsewhere");
    std::fs::create_dir(&other).expect("a directory");
    let ran = user.command(&["run", "say porcupines"]).current_dir(&other).output().expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
    let mut found = InTerminal::start(&user, &["--resume"]);
    found.resize(100, 24);
    until(&mut found, "No sessions of this directory");
    found.press("porcup");
    until(&mut found, "elsewhere · ");
    found.press("\r");
    until(&mut found, "this session works in");
    until(&mut found, "You said porcupines.");
    found.settle(Duration::from_millis(20));
    prompt(&mut found, "!pwd");
    until(&mut found, "annhome/elsewhere");
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
    assert!(ran.out.contains("Usage: epitome [COMMAND]"), "{ran:?}");
}

/// A command had put a program called `git` into the virtual environment in which the chat was started. Typing `@` ran it,
/// outside of the sandbox.
#[test]
fn files_are_listed_without_programs_of_the_workspace() {
    let mut user = User::with_model(script);
    std::fs::write(user.project().join("notes.txt"), "words").expect("written");
    let planted = user.project().join("planted");
    let programs = user.project().join(".venv/bin");
    std::fs::create_dir_all(&programs).expect("a directory");
    let git = format!("#!/bin/sh\n: > '{}'\n", planted.display());
    std::fs::write(programs.join("git"), git).expect("a program");
    std::fs::set_permissions(programs.join("git"), Permissions::from_mode(0o755)).expect("set");
    let path = std::env::var("PATH").expect("it is set");
    user.set("PATH", format!("{}:{path}", programs.display()));
    let mut chat = chat(&user);
    chat.press("@not");
    until(&mut chat, "notes.txt");
    assert!(!planted.exists(), "a program of the workspace was run");
}
