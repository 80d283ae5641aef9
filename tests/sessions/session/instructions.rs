//! Instruction files that appear or change after the system text was fixed are sent once, after it.

use epitome::thread::{Change, Origin, StopReason};
use epitome_scripted_model::SeenPart;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::{in_turn, text, write_file};
use serde_json::json;

use super::stage::{count, flood, notice, sent};

/// All user texts of the last request, without the system text.
fn user_texts(test: &TestSession) -> String {
    let texts = test.last_request().seen().into_iter().filter_map(|seen| match seen {
        SeenPart::User(text) => Some(text),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The instruction files in the log, in order.
fn files(test: &TestSession) -> Vec<String> {
    let log = test.log();
    let paths = log.iter().filter_map(|entry| match &entry.change {
        Change::Said { origin: Origin::Instructions { path }, .. } => {
            Some(path.strip_prefix(test.cwd()).unwrap_or(path).display().to_string())
        }
        _ => None,
    });
    paths.collect()
}

fn write(test: &TestSession, path: &str, text: &str) {
    write_file(&test.cwd().join(path), text);
}

#[test]
fn instructions_of_a_subdirectory_are_sent_when_a_file_in_it_is_touched() {
    let touch = |path: &str| call(json!({"touches": path}));
    let both = vec![touch("a/b/file.rs"), touch("c/file.rs")];
    let mut test = TestSession::new(vec![both, vec![touch("a/b/other.rs")], vec![text("ok")]]);
    write(&test, "a/AGENTS.md", "Rules of a.");
    write(&test, "a/b/CLAUDE.md", "Rules of b.");
    write(&test, "d/AGENTS.md", "Rules of d, which nobody touches.");
    test.ask("Go");
    assert_eq!(files(&test), ["a/AGENTS.md", "a/b/CLAUDE.md"]);
    let texts = user_texts(&test);
    let (a, b) = (texts.find("Rules of a."), texts.find("Rules of b."));
    assert!(a.is_some() && a < b, "the nearest is last: {texts}");
    assert_eq!(texts.matches("Rules of a.").count(), 1, "{texts}");
}

#[test]
fn a_changed_instruction_file_is_sent_once_with_the_next_call() {
    let mut test = TestSession::new(vec![]);
    write(&test, "AGENTS.md", "Use tabs.");
    test.ask("Hello");
    assert!(files(&test).is_empty(), "the system text has it");
    write(&test, "AGENTS.md", "Use spaces, always.");
    test.ask("And now?");
    test.ask("And then?");
    assert_eq!(files(&test), ["AGENTS.md"]);
    assert_eq!(user_texts(&test).matches("Use spaces, always.").count(), 1);

    // The log records which files the model has received, so a restart does not repeat them.
    test.reload(test.environment());
    test.ask("Still?");
    assert_eq!(files(&test).len(), 1);
    std::fs::remove_file(test.cwd().join("AGENTS.md")).expect("it is there");
    test.ask("Gone?");
    assert!(user_texts(&test).contains("were removed and no longer apply"), "{}", user_texts(&test));
    test.ask("Gone indeed?");
    assert_eq!(files(&test).len(), 2);
}

#[test]
fn instructions_are_in_the_view_once_even_after_a_compaction() {
    let touch = || vec![call(json!({"touches": "a/file.rs"}))];
    let summary = vec![text("<summary>They touched a file.</summary>")];
    let replies = vec![touch(), flood(), summary, touch(), vec![text("ok")]];
    let mut test = TestSession::new(replies);
    write(&test, "AGENTS.md", "Use tabs.");
    write(&test, "a/AGENTS.md", "Rules of a.");
    test.ask("Go");
    test.ask("/compact");
    write(&test, "AGENTS.md", "Use spaces, always.");
    test.ask("Again");
    let texts = user_texts(&test);
    assert_eq!(texts.matches("Rules of a.").count(), 1, "{texts}");
    assert_eq!(texts.matches("Use spaces, always.").count(), 1, "{texts}");
}

/// Regression: at most 100 messages with instructions were sent in a conversation. In a long one, in which the agent often
/// added something to its CLAUDE.md, newer rules were not sent any more.
#[test]
fn instructions_that_changed_often_are_sent_again_after_a_compaction() {
    let mut test = Setup::with_config("[compaction]\nmodel = \"none\"\n").start(in_turn(Vec::new()));
    for number in 0..=101 {
        write(&test, "AGENTS.md", &format!("This is rule {number}."));
        test.ask("Go");
    }
    assert_eq!(files(&test).len(), 100);
    assert!(!user_texts(&test).contains("This is rule 101."));
    test.ask("/compact");
    test.ask("Go");
    assert_eq!(files(&test).len(), 101);
    assert_eq!(user_texts(&test).matches("This is rule 101.").count(), 1);
}

/// Otherwise a link in a repository could cause a key file to be sent to the provider.
#[test]
fn a_symlink_out_of_the_workspace_is_not_followed() {
    let touch = |path: &str| call(json!({"touches": path}));
    let mut test = TestSession::new(vec![vec![touch("a/file.rs"), touch("out/file.rs")]]);
    let outside = tempfile::tempdir().expect("a scratch directory");
    write_file(&outside.path().join("AGENTS.md"), "a secret");
    std::fs::create_dir_all(test.cwd().join("a")).expect("a directory");
    std::os::unix::fs::symlink(outside.path().join("AGENTS.md"), test.cwd().join("a/AGENTS.md"))
        .expect("a link");
    std::os::unix::fs::symlink(outside.path(), test.cwd().join("out")).expect("a link");
    test.ask("Go");
    assert_eq!(count(&test, |change| matches!(change, Change::ToolFinished { .. })), 2);
    assert!(files(&test).is_empty());
    assert!(!user_texts(&test).contains("a secret"));
}

/// Regression: with an instruction file larger than the window, every prompt of the user failed, because the system
/// text left no room for a conversation.
#[test]
fn an_oversized_instruction_file_is_named_and_the_others_are_sent() {
    let own = "anthropic/claude-sonnet-5-5";
    let files = [
        ("home/config.toml", format!("[models.\"{own}\"]\ncontext_window = 8000\n")),
        ("home/AGENTS.md", "Rules of mine.".to_owned()),
        ("AGENTS.md", "Rules of the project. ".repeat(1_900)),
        ("a/AGENTS.md", "Rules of a.".to_owned()),
    ]
    .map(|(name, text)| (name.to_owned(), text));
    let mut test =
        Setup::with_files(&files).start(in_turn(vec![vec![call(json!({"touches": "a/file.rs"}))]]));
    test.choose("model", own).expect("a model");
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let notice = test
        .client
        .seen
        .iter()
        .filter_map(notice)
        .find(|text| text.contains("context window of 8000 tokens"));
    let notice = notice.expect("the user gets a notice");
    let path = test.cwd().join("AGENTS.md");
    assert!(notice.contains(&format!("{} (41800 bytes", path.display())), "{notice}");
    assert!(!notice.contains("home/AGENTS.md") && notice.contains("larger window"), "{notice}");
    let sent = sent(&test);
    assert!(sent.contains("Rules of a.") && !sent.contains("Rules of the project."), "{sent}");
    let named = format!("Left out for its size: {} (41800 bytes", path.display());
    let frame = || test.log().iter().find(|entry| matches!(entry.change, Change::Framed { .. })).cloned();
    let Some(Change::Framed { system, .. }) = frame().map(|entry| entry.change.clone()) else {
        panic!("it is frozen")
    };
    assert!(system.contains(&named) && system.contains("Rules of mine."), "{system}");
    assert!(!system.contains("Rules of the project."), "{system}");

    // It is sent as soon as it fits; the frame is unchanged.
    assert_eq!(self::files(&test), ["a/AGENTS.md"]);
    write(&test, "AGENTS.md", "Rules of the project, in short.");
    test.ask("And now?");
    assert_eq!(self::files(&test), ["a/AGENTS.md", "AGENTS.md"]);
    assert!(user_texts(&test).contains("Rules of the project, in short."), "{}", user_texts(&test));
    test.ask("And then?");
    assert_eq!(self::files(&test).len(), 2);
    let frames = count(&test, |change| matches!(change, Change::Framed { .. }));
    assert_eq!(frames, 1);
}
