//! Unsaved text in an editor: which client is asked for it, when it takes precedence, where an edit of it is
//! applied, and what is known afterwards.

use std::fs;
use std::path::PathBuf;

use epitome::session::{AskId, EditorAnswer, Offers, Out, Replay, SessionCommand, Ticket, Wish};
use epitome::thread::{Change, Content, OutcomeStatus};
use epitome_scripted_model::ModelStep;
use serde_json::json;

use super::desk::{Client, Desk, text};

const BOTH: Offers = Offers { reads: true, writes: true };
const EDITS: (&str, &str) = ("home/config.toml", "mode = \"accept_edits\"\n");
const FULL: (&str, &str) = ("home/config.toml", "mode = \"full\"\n");
const SAVED: &str = "one\ntwo\n";
const TYPED: &str = "one\ntwo\nthree\n";

/// A desk whose client is an editor, with `a.txt` as saved, and a model that calls these tools.
fn desk(config: (&str, &str), calls: Vec<ModelStep>) -> Desk {
    let tools = ["file_read", "file_edit", "file_write", "apply_patch"];
    let replies = calls.into_iter().map(|call| vec![call]).collect();
    let desk = Desk::with_tools(&tools, &[config, ("a.txt", SAVED), ("b.txt", SAVED)], replies);
    desk.client.offers(BOTH);
    desk
}

fn tool(name: &str, input: serde_json::Value) -> ModelStep {
    ModelStep::Call { name: name.into(), input }
}

fn read(path: &str) -> ModelStep {
    tool("file_read", json!({ "file_path": path }))
}

fn edit(old: &str, new: &str) -> ModelStep {
    tool("file_edit", json!({ "file_path": "a.txt", "old_text": old, "new_text": new }))
}

fn wish(client: &mut Client) -> (AskId, Wish) {
    client.until(|out| match out {
        Out::Wish { ask, wish } => Some((*ask, (**wish).clone())),
        _ => None,
    })
}

fn wishes(client: &Client) -> usize {
    client.seen.iter().filter(|out| matches!(out, Out::Wish { .. })).count()
}

impl Desk {
    fn file(&self) -> PathBuf {
        self.cwd().join("a.txt")
    }

    fn on_disk(&self) -> String {
        fs::read_to_string(self.file()).expect("it is there")
    }

    fn fulfil(&mut self, ask: AskId, answer: EditorAnswer) {
        self.send(SessionCommand::Fulfil { ask, answer });
    }

    /// Answers the request for the text of `a.txt` with `held`.
    fn holds(&mut self, held: &str) {
        let (ask, wish) = wish(&mut self.client);
        assert_eq!(wish, Wish::Text { path: self.file() });
        self.fulfil(ask, EditorAnswer::Text(held.into()));
    }

    /// Receives the editor's new text for `a.txt`, and saves it if `saves`.
    fn takes(&mut self, saves: bool) -> String {
        let (ask, wish) = wish(&mut self.client);
        let Wish::Put { path, text } = wish else { panic!("an edit was expected: {wish:?}") };
        if saves {
            fs::write(path, &text).expect("saved");
        }
        self.fulfil(ask, EditorAnswer::Taken);
        text
    }

    fn end(&mut self, turn: Ticket) -> Vec<(OutcomeStatus, String)> {
        self.reason(turn);
        let log = self.log();
        let outcomes = log.iter().filter_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some((outcome.status, outcome.model_text())),
            _ => None,
        });
        outcomes.collect()
    }
}

#[test]
fn unsaved_text_is_read_and_edited_in_the_editor() {
    for saves in [true, false] {
        let calls = vec![read("a.txt"), read("a.txt"), edit("two", "2"), edit("three", "3"), read("a.txt")];
        let mut desk = desk(EDITS, calls);
        let turn = desk.prompt("Edit it.");
        desk.holds(SAVED);
        desk.holds(TYPED);
        desk.holds(TYPED);
        let first = desk.takes(saves);
        assert_eq!(first, "one\n2\nthree\n");
        desk.holds(&first);
        // Once it is saved there is no unsaved text, and the second edit is written to disk.
        let second = if saves { desk.on_disk_when("one\n2\n3\n") } else { desk.takes(false) };
        assert_eq!(second, "one\n2\n3\n");
        desk.holds(&second);
        let outcomes = desk.end(turn);
        let said = |at: usize, part: &str| {
            let (status, text) = &outcomes[at];
            assert_eq!(*status, OutcomeStatus::Completed, "{text}");
            assert!(text.contains(part), "{text}");
        };
        said(1, "three\n[this text is what the user's editor holds");
        said(2, if saves { "has saved it together" } else { "not saved yet" });
        said(4, "     3\t3");
        assert_eq!(outcomes[4].1.contains("not saved"), !saves);
        assert_eq!(desk.on_disk(), if saves { "one\n2\n3\n" } else { SAVED });
    }
}

impl Desk {
    /// The contents of the file at the editor's next request for it.
    fn on_disk_when(&mut self, expected: &str) -> String {
        let (ask, wish) = wish(&mut self.client);
        let now = self.on_disk();
        assert_eq!(now, expected);
        // This was only a peek; the caller answers the request.
        self.client.seen.insert(0, Out::Wish { ask, wish: wish.into() });
        now
    }
}

/// Zed answered with the contents of a file before a command changed it, and the model worked with those.
#[test]
fn a_stale_answer_after_a_command_is_ignored() {
    let mut desk = desk(
        FULL,
        vec![
            read("a.txt"),
            tool("bash", json!({ "command": "wait" })),
            read("a.txt"),
            read("b.txt"),
            edit("TWO", "2"),
        ],
    );
    let turn = desk.prompt("Go on.");
    desk.holds(SAVED);
    desk.client.until(|out| match out {
        Out::Entry { entry, .. } => matches!(entry.change, Change::ToolFinished { .. }).then_some(()),
        _ => None,
    });
    for name in ["a.txt", "b.txt"] {
        fs::write(desk.cwd().join(name), "one\nTWO\n").expect("written");
    }
    desk.release_tool();
    desk.holds(SAVED);
    // The previous contents of this file were never seen.
    let (ask, _) = wish(&mut desk.client);
    desk.fulfil(ask, EditorAnswer::Text(SAVED.into()));
    desk.holds(SAVED);
    let outcomes = desk.end(turn);
    for at in [2, 3] {
        assert_eq!(outcomes[at].1, "     1\tone\n     2\tTWO");
    }
    assert_eq!(desk.on_disk(), "one\n2\n", "{outcomes:?}");
}

#[test]
fn only_an_editor_that_answers_is_asked_again() {
    let failed = || Some(EditorAnswer::Failed("Method not found".into()));
    for (answer, asked_again) in [(None, false), (failed(), false), (Some(EditorAnswer::Missing), true)] {
        let mut desk = desk(EDITS, vec![read("a.txt"), read("b.txt")]);
        let turn = desk.prompt("Read them.");
        let (ask, _) = wish(&mut desk.client);
        match answer.clone() {
            Some(answer) => desk.fulfil(ask, answer),
            None => desk
                .client
                .until(|out| matches!(out, Out::Withdrawn { ask: taken } if *taken == ask).then_some(())),
        }
        if asked_again {
            let (ask, _) = wish(&mut desk.client);
            desk.fulfil(ask, EditorAnswer::Missing);
        }
        let outcomes = desk.end(turn);
        assert_eq!(outcomes.len(), 2);
        assert!(outcomes.iter().all(|(_, text)| text == "     1\tone\n     2\ttwo"), "{outcomes:?}");
        assert_eq!(wishes(&desk.client), 0, "{answer:?}");
    }
}

/// If an editor that refuses an edit were not asked any more, the next edit would be written to disk,
/// bypassing the unsaved text.
#[test]
fn an_editor_that_refuses_an_edit_is_still_asked() {
    let mut desk = desk(EDITS, vec![read("a.txt"), read("a.txt"), edit("two", "2"), edit("two", "2")]);
    let turn = desk.prompt("Edit it.");
    for held in [SAVED, TYPED, TYPED] {
        desk.holds(held);
    }
    let (ask, _) = wish(&mut desk.client);
    desk.fulfil(ask, EditorAnswer::Failed("the buffer is read-only".into()));
    desk.holds(TYPED);
    assert_eq!(desk.takes(true), "one\n2\nthree\n");
    let outcomes = desk.end(turn);
    let (status, why) = &outcomes[2];
    assert_eq!((*status, outcomes[3].0), (OutcomeStatus::Failed, OutcomeStatus::Completed));
    assert!(why.contains("a.txt") && why.contains("the buffer is read-only"), "{why}");
}

#[test]
fn calls_of_one_reply_do_not_wait_for_each_others_answers() {
    let calls = vec![vec![read("a.txt"), read("b.txt")]];
    let mut desk = Desk::with_tools(&["file_read"], &[EDITS, ("a.txt", SAVED), ("b.txt", SAVED)], calls);
    desk.client.offers(BOTH);
    let turn = desk.prompt("Read both.");
    let (first, _) = wish(&mut desk.client);
    let (second, _) = wish(&mut desk.client);
    desk.fulfil(second, EditorAnswer::Text(SAVED.into()));
    desk.fulfil(first, EditorAnswer::Text(SAVED.into()));
    assert_eq!(desk.end(turn).len(), 2);
}

#[test]
fn without_editor_writes_an_edit_of_unsaved_text_fails_with_a_hint() {
    let patch = "*** Begin Patch\n*** Update File: a.txt\n-two\n+2\n*** End Patch";
    let calls = vec![
        read("a.txt"),
        read("a.txt"),
        edit("two", "2"),
        tool("file_write", json!({ "file_path": "a.txt", "text": "new\n" })),
        tool("apply_patch", json!({ "input": patch })),
        tool("apply_patch", json!({ "input": "*** Begin Patch\n*** Delete File: a.txt\n*** End Patch" })),
    ];
    let mut desk = desk(("home/config.toml", ""), calls);
    desk.client.offers(Offers { reads: true, writes: false });
    let turn = desk.prompt("Edit it.");
    desk.holds(SAVED);
    for _ in 0..5 {
        desk.holds(TYPED);
    }
    let outcomes = desk.end(turn);
    for (status, text) in &outcomes[2..] {
        assert_eq!(*status, OutcomeStatus::Failed);
        assert!(text.contains("save it first"), "{text}");
    }
    assert!(!desk.client.seen.iter().any(|out| matches!(out, Out::Ask { .. })));
    assert_eq!(desk.on_disk(), SAVED);
}

/// Text typed while a permission request was open would have been overwritten.
#[test]
fn text_typed_during_a_permission_request_is_not_overwritten() {
    let mut desk = desk(("home/config.toml", ""), vec![read("a.txt"), read("a.txt"), edit("two", "2")]);
    let turn = desk.prompt("Edit it.");
    desk.holds(SAVED);
    desk.holds(TYPED);
    desk.holds(TYPED);
    let (ask, preview) = desk.client.until(|out| match out {
        Out::Ask { ask, permission } => Some((*ask, format!("{:?}", permission.preview))),
        _ => None,
    });
    assert!(preview.contains("one\\n2\\nthree"), "the card shows the edit of what is unsaved: {preview}");
    desk.send(SessionCommand::Decide { ask, decision: epitome::session::Decision::AllowOnce });
    desk.holds("uno\ntwo\nthree\n");
    let outcomes = desk.end(turn);
    let (status, text) = outcomes.last().expect("three calls");
    assert_eq!(*status, OutcomeStatus::Failed);
    assert!(text.contains("changed after you read it") && text.contains("- one\n+ uno"), "{text}");
    assert_eq!((desk.on_disk().as_str(), wishes(&desk.client)), (SAVED, 0));
}

#[test]
fn a_patch_of_several_files_is_applied_in_editor_or_on_disk() {
    let patch = "*** Begin Patch\n*** Update File: a.txt\n-two\n+2\n*** Update File: b.txt\n-two\n+zwei\n*** End Patch";
    let calls =
        vec![read("a.txt"), read("a.txt"), read("b.txt"), tool("apply_patch", json!({ "input": patch }))];
    let mut desk = desk(EDITS, calls);
    let turn = desk.prompt("Patch them.");
    desk.holds(SAVED);
    desk.holds(TYPED);
    let mut held = |path: &str| {
        let (ask, wish) = wish(&mut desk.client);
        assert_eq!(wish, Wish::Text { path: desk.cwd().join(path) });
        desk.fulfil(ask, EditorAnswer::Text(if path == "a.txt" { TYPED } else { SAVED }.into()));
    };
    ["b.txt", "a.txt", "b.txt"].into_iter().for_each(&mut held);
    assert_eq!(desk.takes(true), "one\n2\nthree\n");
    let outcomes = desk.end(turn);
    assert!(outcomes[3].1.contains("a.txt: The edit went through the user's editor"), "{outcomes:?}");
    assert_eq!(desk.on_disk(), "one\n2\nthree\n");
    assert_eq!(fs::read_to_string(desk.cwd().join("b.txt")).expect("there"), "one\nzwei\n");
}

#[test]
fn only_the_editor_that_sent_the_prompt_is_asked() {
    let mut desk = desk(EDITS, vec![read("a.txt"), text("Read."), read("a.txt")]);
    let mut other = Client::new(2);
    let ticket = desk.ticket();
    let opening = desk.opening(&other, desk.environment());
    desk.sessions.attach(ticket, desk.session.clone(), opening, Replay::Nothing);
    other.answer(ticket).expect("it attaches");
    other.offers(BOTH);
    let turn = desk.prompt("Mine");
    desk.holds(SAVED);
    desk.end(turn);
    let turn = desk.ticket();
    let content = vec![Content::Text { text: "Yours".into() }];
    desk.send(SessionCommand::Prompt { ticket: turn, client: other.id, content });
    let (ask, _) = wish(&mut other);
    desk.fulfil(ask, EditorAnswer::Text(SAVED.into()));
    other.answer(turn).expect("an end");
    assert_eq!((wishes(&desk.client), wishes(&other)), (0, 0));
}

#[test]
fn a_cancel_withdraws_the_editor_request_without_disabling_the_editor() {
    let mut desk = desk(EDITS, vec![read("a.txt"), read("a.txt")]);
    let turn = desk.prompt("Read it.");
    let (ask, _) = wish(&mut desk.client);
    desk.send(SessionCommand::Cancel);
    desk.client.until(|out| matches!(out, Out::Withdrawn { ask: taken } if *taken == ask).then_some(()));
    desk.end(turn);
    let turn = desk.prompt("Read it now.");
    desk.holds(SAVED);
    desk.end(turn);
}

/// A rewind works on the disk: an edit that the editor saved is undone there, together with the typed text
/// that was saved with it; an edit that is only in the editor is unaffected.
#[test]
fn a_rewind_undoes_what_the_editor_saved() {
    for saves in [true, false] {
        let calls = vec![read("a.txt"), text("Read."), read("a.txt"), edit("two", "2"), text("Edited.")];
        let mut desk = desk(EDITS, calls);
        let turn = desk.prompt("Read it.");
        desk.holds(SAVED);
        desk.end(turn);
        let turn = desk.prompt("Edit it.");
        desk.holds(TYPED);
        desk.holds(TYPED);
        desk.takes(saves);
        desk.end(turn);
        let edited = if saves { "one\n2\nthree\n" } else { SAVED };
        assert_eq!(desk.on_disk(), edited);
        desk.ask("/rewind files");
        assert_eq!(desk.on_disk(), SAVED);
        desk.ask("/rewind undo");
        assert_eq!(desk.on_disk(), edited);
    }
}

#[test]
fn files_outside_binary_and_missing_files_are_not_requested() {
    let outside = tempfile::NamedTempFile::new().expect("a file");
    fs::write(outside.path(), "far away\n").expect("written");
    let path = outside.path().to_string_lossy().into_owned();
    let mut desk = desk(FULL, vec![read(&path), read("bytes"), read("missing.txt")]);
    fs::write(desk.cwd().join("bytes"), b"a\0b").expect("written");
    let turn = desk.prompt("Read them.");
    assert_eq!(desk.end(turn).len(), 3);
    assert_eq!(wishes(&desk.client), 0);
}
