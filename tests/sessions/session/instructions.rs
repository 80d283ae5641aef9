//! Instruction files that appear or change after the system text was frozen are sent after it, once.

use epitome::thread::{Change, Origin, StopReason};
use epitome_scripted_model::Seen;
use serde_json::json;

use super::desk::{Desk, call, put, text};
use super::stage::{count, flood, notice, sent};

/// All user texts of the last request, without the system text.
fn told(desk: &Desk) -> String {
    let texts = desk.last_request().seen().into_iter().filter_map(|seen| match seen {
        Seen::User(text) => Some(text),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The instruction files in the log, in order.
fn files(desk: &Desk) -> Vec<String> {
    let log = desk.log();
    let paths = log.iter().filter_map(|entry| match &entry.change {
        Change::Said { origin: Origin::Instructions { path }, .. } => {
            Some(path.strip_prefix(desk.cwd()).unwrap_or(path).display().to_string())
        }
        _ => None,
    });
    paths.collect()
}

fn write(desk: &Desk, path: &str, text: &str) {
    put(&desk.cwd().join(path), text);
}

#[test]
fn instructions_of_a_subdirectory_are_sent_when_a_file_in_it_is_touched() {
    let touch = |path: &str| call(json!({"touches": path}));
    let both = vec![touch("a/b/file.rs"), touch("c/file.rs")];
    let mut desk = Desk::new(vec![both, vec![touch("a/b/other.rs")], vec![text("ok")]]);
    write(&desk, "a/AGENTS.md", "Rules of a.");
    write(&desk, "a/b/CLAUDE.md", "Rules of b.");
    write(&desk, "d/AGENTS.md", "Rules of d, which nobody touches.");
    desk.ask("Go");
    assert_eq!(files(&desk), ["a/AGENTS.md", "a/b/CLAUDE.md"]);
    let told = told(&desk);
    let (a, b) = (told.find("Rules of a."), told.find("Rules of b."));
    assert!(a.is_some() && a < b, "the nearest is last: {told}");
    assert_eq!(told.matches("Rules of a.").count(), 1, "{told}");
}

#[test]
fn a_changed_instruction_file_is_sent_once_with_the_next_call() {
    let mut desk = Desk::new(vec![]);
    write(&desk, "AGENTS.md", "Use tabs.");
    desk.ask("Hello");
    assert!(files(&desk).is_empty(), "the system text has it");
    write(&desk, "AGENTS.md", "Use spaces, always.");
    desk.ask("And now?");
    desk.ask("And then?");
    assert_eq!(files(&desk), ["AGENTS.md"]);
    assert_eq!(told(&desk).matches("Use spaces, always.").count(), 1);

    // The log records what the model has received: a restart repeats nothing.
    desk.reload(desk.environment());
    desk.ask("Still?");
    assert_eq!(files(&desk).len(), 1);
    std::fs::remove_file(desk.cwd().join("AGENTS.md")).expect("it is there");
    desk.ask("Gone?");
    assert!(told(&desk).contains("are gone and hold no longer"), "{}", told(&desk));
    desk.ask("Gone indeed?");
    assert_eq!(files(&desk).len(), 2);
}

#[test]
fn instructions_are_in_the_view_once_even_after_a_compaction() {
    let touch = || vec![call(json!({"touches": "a/file.rs"}))];
    let summary = vec![text("They touched a file.")];
    let replies = vec![touch(), flood(), summary, touch(), vec![text("ok")]];
    let mut desk = Desk::new(replies);
    write(&desk, "AGENTS.md", "Use tabs.");
    write(&desk, "a/AGENTS.md", "Rules of a.");
    desk.ask("Go");
    desk.ask("/compact");
    write(&desk, "AGENTS.md", "Use spaces, always.");
    desk.ask("Again");
    let told = told(&desk);
    assert_eq!(told.matches("Rules of a.").count(), 1, "{told}");
    assert_eq!(told.matches("Use spaces, always.").count(), 1, "{told}");
}

/// Otherwise a link in a repository could have a key file sent to the provider.
#[test]
fn a_symlink_out_of_the_workspace_is_not_followed() {
    let touch = |path: &str| call(json!({"touches": path}));
    let mut desk = Desk::new(vec![vec![touch("a/file.rs"), touch("out/file.rs")]]);
    let outside = tempfile::tempdir().expect("a scratch directory");
    put(&outside.path().join("AGENTS.md"), "a secret");
    std::fs::create_dir_all(desk.cwd().join("a")).expect("a directory");
    std::os::unix::fs::symlink(outside.path().join("AGENTS.md"), desk.cwd().join("a/AGENTS.md"))
        .expect("a link");
    std::os::unix::fs::symlink(outside.path(), desk.cwd().join("out")).expect("a link");
    desk.ask("Go");
    assert_eq!(count(&desk, |change| matches!(change, Change::ToolFinished { .. })), 2);
    assert!(files(&desk).is_empty());
    assert!(!told(&desk).contains("a secret"));
}

/// An instruction file that was larger than the window made every prompt fail: with it in the system text
/// there was no room for any conversation.
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
    let mut replies = vec![vec![call(json!({"touches": "a/file.rs"}))]].into_iter();
    let mut desk =
        Desk::set(&files, Default::default(), move |_| replies.next().unwrap_or_else(|| vec![text("ok")]));
    desk.choose("model", own).expect("a model");
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    let notice = desk.client.seen.iter().filter_map(notice).find(|text| text.contains("holds 8000 tokens"));
    let notice = notice.expect("the person is told");
    let path = desk.cwd().join("AGENTS.md");
    assert!(notice.contains(&format!("{} (41800 bytes", path.display())), "{notice}");
    assert!(!notice.contains("home/AGENTS.md") && notice.contains("larger window"), "{notice}");
    let sent = sent(&desk);
    assert!(sent.contains("Rules of a.") && !sent.contains("Rules of the project."), "{sent}");
    let named = format!("Left out for its size: {} (41800 bytes", path.display());
    let frame = || desk.log().iter().find(|entry| matches!(entry.change, Change::Framed { .. })).cloned();
    let Some(Change::Framed { system, .. }) = frame().map(|entry| entry.change.clone()) else {
        panic!("it is frozen")
    };
    assert!(system.contains(&named) && system.contains("Rules of mine."), "{system}");
    assert!(!system.contains("Rules of the project."), "{system}");

    // It is sent as soon as it fits; the frame is unchanged.
    assert_eq!(self::files(&desk), ["a/AGENTS.md"]);
    write(&desk, "AGENTS.md", "Rules of the project, in short.");
    desk.ask("And now?");
    assert_eq!(self::files(&desk), ["a/AGENTS.md", "AGENTS.md"]);
    assert!(told(&desk).contains("Rules of the project, in short."), "{}", told(&desk));
    desk.ask("And then?");
    assert_eq!(self::files(&desk).len(), 2);
    let frames = count(&desk, |change| matches!(change, Change::Framed { .. }));
    assert_eq!(frames, 1);
}
