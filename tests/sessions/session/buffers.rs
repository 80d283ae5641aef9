//! Unsaved text in an editor: which client is asked for it, when it takes precedence, where an edit of it is applied,
//! and what the model knows afterwards.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use epitome::session::port::SessionPort as _;
use epitome::session::{
    AskId, EditorRequest, EditorResponse, EditorSupport, Replay, SessionCommand, SessionEvent, Ticket,
};
use epitome::thread::{Change, Content, OutcomeStatus};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text};
use serde_json::json;

const BOTH: EditorSupport = EditorSupport { reads: true, writes: true, reviews_writes: false };
/// The abilities of Zed, whose review panel only shows changes that Zed writes itself.
const ZED: EditorSupport = EditorSupport { reviews_writes: true, ..BOTH };
const EDITS: (&str, &str) = ("home/config.toml", "mode = \"accept_edits\"\n");
const FULL: (&str, &str) = ("home/config.toml", "mode = \"full\"\n");
const SAVED: &str = "one\ntwo\n";
const TYPED: &str = "one\ntwo\nthree\n";

/// A session whose client is an editor, with `a.txt` as saved, and a model that calls these tools.
fn started(config: (&str, &str), calls: Vec<ModelStep>) -> Editing {
    let tools = ["file_read", "file_edit", "file_write", "apply_patch"];
    let replies = calls.into_iter().map(|call| vec![call]).collect();
    let files = [config, ("a.txt", SAVED), ("b.txt", SAVED)];
    let test = Setup::with_files(&files).tools(&tools).start(in_turn(replies));
    test.client.offers(BOTH);
    Editing(test)
}

/// A session whose client is an editor with `a.txt` open.
struct Editing(TestSession);

impl Deref for Editing {
    type Target = TestSession;

    fn deref(&self) -> &TestSession {
        &self.0
    }
}

impl DerefMut for Editing {
    fn deref_mut(&mut self) -> &mut TestSession {
        &mut self.0
    }
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

fn request(client: &mut TestClient) -> (AskId, EditorRequest) {
    client.until(|out| match out {
        SessionEvent::EditorRequest { ask, request } => Some((*ask, (**request).clone())),
        _ => None,
    })
}

fn requests(client: &TestClient) -> usize {
    client.seen.iter().filter(|out| matches!(out, SessionEvent::EditorRequest { .. })).count()
}

impl Editing {
    fn file(&self) -> PathBuf {
        self.cwd().join("a.txt")
    }

    fn on_disk(&self) -> String {
        fs::read_to_string(self.file()).expect("it is there")
    }

    fn fulfil(&mut self, ask: AskId, answer: EditorResponse) {
        self.send(SessionCommand::Fulfil { ask, answer });
    }

    /// Answers the request for the text of `a.txt` with `text`.
    fn holds(&mut self, text: &str) {
        let (ask, request) = request(&mut self.client);
        assert_eq!(request, EditorRequest::Text { path: self.file() });
        self.fulfil(ask, EditorResponse::Text(text.into()));
    }

    /// Receives the editor's new text for `a.txt`, and saves it if `saves`.
    fn takes(&mut self, saves: bool) -> String {
        let (ask, request) = request(&mut self.client);
        let EditorRequest::Put { path, text } = request else { panic!("an edit was expected: {request:?}") };
        if saves {
            fs::write(path, &text).expect("saved");
        }
        self.fulfil(ask, EditorResponse::Taken);
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
        let mut test = started(EDITS, calls);
        let turn = test.prompt("Edit it.");
        test.holds(SAVED);
        test.holds(TYPED);
        test.holds(TYPED);
        let first = test.takes(saves);
        assert_eq!(first, "one\n2\nthree\n");
        test.holds(&first);
        // Once the file is saved there is no unsaved text, and the second edit is written to disk.
        let second = if saves { test.on_disk_when("one\n2\n3\n") } else { test.takes(false) };
        assert_eq!(second, "one\n2\n3\n");
        test.holds(&second);
        let outcomes = test.end(turn);
        let said = |at: usize, part: &str| {
            let (status, text) = &outcomes[at];
            assert_eq!(*status, OutcomeStatus::Completed, "{text}");
            assert!(text.contains(part), "{text}");
        };
        said(1, "three\n[this text is what the user's editor holds");
        said(2, if saves { "has saved it together" } else { "not saved yet" });
        said(4, "     3\t3");
        assert_eq!(outcomes[4].1.contains("not saved"), !saves);
        assert_eq!(test.on_disk(), if saves { "one\n2\n3\n" } else { SAVED });
    }
}

impl Editing {
    /// The contents of the file when the editor is next asked for it.
    fn on_disk_when(&mut self, expected: &str) -> String {
        let (ask, request) = request(&mut self.client);
        let now = self.on_disk();
        assert_eq!(now, expected);
        // The request is put back; the caller answers it.
        self.client.seen.insert(0, SessionEvent::EditorRequest { ask, request: request.into() });
        now
    }
}

/// Regression: Zed answered with the contents of a file from before a command changed it, and the model worked with
/// those.
#[test]
fn a_stale_answer_after_a_command_is_ignored() {
    let mut test = started(
        FULL,
        vec![
            read("a.txt"),
            tool("bash", json!({ "command": "wait" })),
            read("a.txt"),
            read("b.txt"),
            edit("TWO", "2"),
        ],
    );
    let turn = test.prompt("Go on.");
    test.holds(SAVED);
    test.client.until(|out| match out {
        SessionEvent::Entry { entry, .. } => {
            matches!(entry.change, Change::ToolFinished { .. }).then_some(())
        }
        _ => None,
    });
    for name in ["a.txt", "b.txt"] {
        fs::write(test.cwd().join(name), "one\nTWO\n").expect("written");
    }
    test.release_tool();
    test.holds(SAVED);
    // The editor never sent the previous contents of this file.
    let (ask, _) = request(&mut test.client);
    test.fulfil(ask, EditorResponse::Text(SAVED.into()));
    test.holds(SAVED);
    let outcomes = test.end(turn);
    for at in [2, 3] {
        assert_eq!(outcomes[at].1, "     1\tone\n     2\tTWO");
    }
    assert_eq!(test.on_disk(), "one\n2\n", "{outcomes:?}");
}

#[test]
fn only_an_editor_that_answers_is_asked_again() {
    let failed = || Some(EditorResponse::Failed("Method not found".into()));
    for (answer, asked_again) in [(None, false), (failed(), false), (Some(EditorResponse::Missing), true)] {
        let mut test = started(EDITS, vec![read("a.txt"), read("b.txt")]);
        let turn = test.prompt("Read them.");
        let (ask, _) = request(&mut test.client);
        match answer.clone() {
            Some(answer) => test.fulfil(ask, answer),
            None => test.client.until(|out| {
                matches!(out, SessionEvent::Withdrawn { ask: taken } if *taken == ask).then_some(())
            }),
        }
        if asked_again {
            let (ask, _) = request(&mut test.client);
            test.fulfil(ask, EditorResponse::Missing);
        }
        let outcomes = test.end(turn);
        assert_eq!(outcomes.len(), 2);
        assert!(outcomes.iter().all(|(_, text)| text == "     1\tone\n     2\ttwo"), "{outcomes:?}");
        assert_eq!(requests(&test.client), 0, "{answer:?}");
    }
}

/// An editor that refused an edit must still be asked: otherwise the next edit would be written to disk, bypassing the
/// unsaved text.
#[test]
fn an_editor_that_refuses_an_edit_is_still_asked() {
    let mut test = started(EDITS, vec![read("a.txt"), read("a.txt"), edit("two", "2"), edit("two", "2")]);
    let turn = test.prompt("Edit it.");
    for text in [SAVED, TYPED, TYPED] {
        test.holds(text);
    }
    let (ask, _) = request(&mut test.client);
    test.fulfil(ask, EditorResponse::Failed("the buffer is read-only".into()));
    test.holds(TYPED);
    assert_eq!(test.takes(true), "one\n2\nthree\n");
    let outcomes = test.end(turn);
    let (status, why) = &outcomes[2];
    assert_eq!((*status, outcomes[3].0), (OutcomeStatus::Failed, OutcomeStatus::Completed));
    assert!(why.contains("a.txt") && why.contains("the buffer is read-only"), "{why}");
}

#[test]
fn calls_of_one_reply_do_not_wait_for_each_others_answers() {
    let calls = vec![vec![read("a.txt"), read("b.txt")]];
    let setup = Setup::with_files(&[EDITS, ("a.txt", SAVED), ("b.txt", SAVED)]).tools(&["file_read"]);
    let mut test = Editing(setup.start(in_turn(calls)));
    test.client.offers(BOTH);
    let turn = test.prompt("Read both.");
    let (first, _) = request(&mut test.client);
    let (second, _) = request(&mut test.client);
    test.fulfil(second, EditorResponse::Text(SAVED.into()));
    test.fulfil(first, EditorResponse::Text(SAVED.into()));
    assert_eq!(test.end(turn).len(), 2);
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
    let mut test = started(("home/config.toml", ""), calls);
    test.client.offers(EditorSupport { reads: true, writes: false, reviews_writes: false });
    let turn = test.prompt("Edit it.");
    test.holds(SAVED);
    for _ in 0..5 {
        test.holds(TYPED);
    }
    let outcomes = test.end(turn);
    for (status, text) in &outcomes[2..] {
        assert_eq!(*status, OutcomeStatus::Failed);
        assert!(text.contains("save it first"), "{text}");
    }
    assert!(!test.client.seen.iter().any(|out| matches!(out, SessionEvent::Ask { .. })));
    assert_eq!(test.on_disk(), SAVED);
}

/// Regression: text that the user typed while a permission request was open would have been overwritten.
#[test]
fn text_typed_during_a_permission_request_is_not_overwritten() {
    let mut test = started(("home/config.toml", ""), vec![read("a.txt"), read("a.txt"), edit("two", "2")]);
    let turn = test.prompt("Edit it.");
    test.holds(SAVED);
    test.holds(TYPED);
    test.holds(TYPED);
    let (ask, preview) = test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, format!("{:?}", permission.preview))),
        _ => None,
    });
    assert!(preview.contains("one\\n2\\nthree"), "the card shows the edit of what is unsaved: {preview}");
    test.send(SessionCommand::Decide { ask, decision: epitome::session::UserDecision::AllowOnce });
    test.holds("uno\ntwo\nthree\n");
    let outcomes = test.end(turn);
    let (status, text) = outcomes.last().expect("three calls");
    assert_eq!(*status, OutcomeStatus::Failed);
    assert!(text.contains("changed after you read it") && text.contains("- one\n+ uno"), "{text}");
    assert_eq!((test.on_disk().as_str(), requests(&test.client)), (SAVED, 0));
}

#[test]
fn a_patch_of_several_files_is_applied_in_editor_or_on_disk() {
    let patch = "*** Begin Patch\n*** Update File: a.txt\n-two\n+2\n*** Update File: b.txt\n-two\n+zwei\n*** End Patch";
    let calls =
        vec![read("a.txt"), read("a.txt"), read("b.txt"), tool("apply_patch", json!({ "input": patch }))];
    let mut test = started(EDITS, calls);
    let turn = test.prompt("Patch them.");
    test.holds(SAVED);
    test.holds(TYPED);
    let mut answer_text = |path: &str| {
        let (ask, request) = request(&mut test.client);
        assert_eq!(request, EditorRequest::Text { path: test.cwd().join(path) });
        test.fulfil(ask, EditorResponse::Text(if path == "a.txt" { TYPED } else { SAVED }.into()));
    };
    ["b.txt", "a.txt", "b.txt"].into_iter().for_each(&mut answer_text);
    assert_eq!(test.takes(true), "one\n2\nthree\n");
    let outcomes = test.end(turn);
    assert!(outcomes[3].1.contains("a.txt: The edit went through the user's editor"), "{outcomes:?}");
    assert_eq!(test.on_disk(), "one\n2\nthree\n");
    assert_eq!(fs::read_to_string(test.cwd().join("b.txt")).expect("there"), "one\nzwei\n");
}

#[test]
fn only_the_editor_that_sent_the_prompt_is_asked() {
    let mut test = started(EDITS, vec![read("a.txt"), text("Read."), read("a.txt")]);
    let mut other = TestClient::new(2);
    let ticket = test.ticket();
    let opening = test.opening(&other, test.environment());
    test.sessions.attach(ticket, test.session.clone(), opening, Replay::Nothing);
    other.answer(ticket).expect("it attaches");
    other.offers(BOTH);
    let turn = test.prompt("Mine");
    test.holds(SAVED);
    test.end(turn);
    let turn = test.ticket();
    let content = vec![Content::Text { text: "Yours".into() }];
    test.send(SessionCommand::Prompt { ticket: turn, client: other.id, content, key: None });
    let (ask, _) = request(&mut other);
    test.fulfil(ask, EditorResponse::Text(SAVED.into()));
    other.answer(turn).expect("an end");
    assert_eq!((requests(&test.client), requests(&other)), (0, 0));
}

#[test]
fn a_cancel_withdraws_the_editor_request_without_disabling_the_editor() {
    let mut test = started(EDITS, vec![read("a.txt"), read("a.txt")]);
    let turn = test.prompt("Read it.");
    let (ask, _) = request(&mut test.client);
    test.send(SessionCommand::Cancel);
    test.client
        .until(|out| matches!(out, SessionEvent::Withdrawn { ask: taken } if *taken == ask).then_some(()));
    test.end(turn);
    let turn = test.prompt("Read it now.");
    test.holds(SAVED);
    test.end(turn);
}

/// A rewind works on the disk. It undoes an edit that the editor saved, together with the typed text that was saved
/// with it; an edit that is only in the editor is unaffected.
#[test]
fn a_rewind_undoes_what_the_editor_saved() {
    for saves in [true, false] {
        let calls = vec![read("a.txt"), text("Read."), read("a.txt"), edit("two", "2"), text("Edited.")];
        let mut test = started(EDITS, calls);
        let turn = test.prompt("Read it.");
        test.holds(SAVED);
        test.end(turn);
        let turn = test.prompt("Edit it.");
        test.holds(TYPED);
        test.holds(TYPED);
        test.takes(saves);
        test.end(turn);
        let edited = if saves { "one\n2\nthree\n" } else { SAVED };
        assert_eq!(test.on_disk(), edited);
        test.ask("/rewind files");
        assert_eq!(test.on_disk(), SAVED);
        test.ask("/rewind undo");
        assert_eq!(test.on_disk(), edited);
    }
}

#[test]
fn files_outside_binary_and_missing_files_are_not_requested() {
    let outside = tempfile::NamedTempFile::new().expect("a file");
    fs::write(outside.path(), "far away\n").expect("written");
    let path = outside.path().to_string_lossy().into_owned();
    let mut test = started(FULL, vec![read(&path), read("bytes"), read("missing.txt")]);
    fs::write(test.cwd().join("bytes"), b"a\0b").expect("written");
    let turn = test.prompt("Read them.");
    assert_eq!(test.end(turn).len(), 3);
    assert_eq!(requests(&test.client), 0);
}

/// Regression: Zed's Review panel stayed empty, because Epitome wrote the files itself. The user had nothing to keep or
/// reject.
#[test]
fn an_edit_is_written_by_the_editor_that_reviews_what_it_writes() {
    let create = tool("file_write", json!({ "file_path": "new.txt", "text": "new\n" }));
    let mut test = started(EDITS, vec![read("a.txt"), edit("two", "2"), create]);
    test.client.offers(ZED);
    let turn = test.prompt("Edit it.");
    test.holds(SAVED);
    test.holds(SAVED);
    assert_eq!(test.takes(true), "one\n2\n");
    assert_eq!(test.takes(true), "new\n");
    let outcomes = test.end(turn);
    assert_eq!(outcomes[1].1, "Edited a.txt at line 2.", "the editor is not mentioned");
    assert_eq!(test.on_disk(), "one\n2\n");
    test.ask("/rewind files");
    assert_eq!(test.on_disk(), SAVED, "a rewind restores it as ever");
    assert!(!test.cwd().join("new.txt").exists());
}

/// The editor's answer is verified: the file contains the text in the end, whatever the editor does. Changes that the
/// user saved while an editor did not take an edit, for up to ten seconds, were overwritten.
#[test]
fn what_the_editor_does_not_write_is_written_to_disk() {
    type Answer = fn(&Editing) -> EditorResponse;
    let formats: Answer = |test| {
        fs::write(test.file(), "one\n2;\n").expect("saved");
        EditorResponse::Taken
    };
    let saves: Answer = |test| {
        fs::write(test.file(), "typed\n").expect("saved");
        EditorResponse::Failed("busy".into())
    };
    let answers: [(Answer, &str, &str); 5] = [
        (|_| EditorResponse::Taken, "one\n2\n", "Edited a.txt at line 2."),
        (|_| EditorResponse::Failed("read-only".into()), "one\n2\n", "Edited a.txt at line 2."),
        (|_| EditorResponse::Missing, "one\n2\n", "Edited a.txt at line 2."),
        (formats, "one\n2;\n", "Read it again before you change more of it."),
        (saves, "typed\n", "it was changed at this moment; read it again."),
    ];
    for (answer, on_disk, said) in answers {
        let mut test = started(EDITS, vec![read("a.txt"), edit("two", "2")]);
        test.client.offers(ZED);
        let turn = test.prompt("Edit it.");
        test.holds(SAVED);
        test.holds(SAVED);
        let (ask, put) = request(&mut test.client);
        assert!(matches!(put, EditorRequest::Put { .. }), "{put:?}");
        let answer = answer(&test);
        test.fulfil(ask, answer);
        let outcomes = test.end(turn);
        assert!(outcomes[1].1.ends_with(said), "{outcomes:?}");
        assert_eq!(test.on_disk(), on_disk);
    }
}

/// Epitome writes a file itself, by descriptor, if a running command might exchange it for a link while the editor
/// writes, or if the user disabled writes by the editor.
#[test]
fn edits_go_past_the_editor_while_a_command_runs_or_if_the_user_says_so() {
    let never = ("home/config.toml", "mode = \"full\"\neditor_writes = \"never\"\n");
    let wait = tool("bash", json!({ "command": "cat fifo", "description": "Waits", "background": true }));
    for (config, first) in [(never, read("b.txt")), (FULL, wait)] {
        let runs_command = config == FULL;
        let replies = in_turn(vec![vec![first], vec![read("a.txt")], vec![edit("two", "2")]]);
        let mut test = Editing(
            Setup::with_files(&[config, ("a.txt", SAVED), ("b.txt", SAVED)]).built_in_tools().start(replies),
        );
        test.client.offers(ZED);
        if runs_command {
            let made = std::process::Command::new("mkfifo").arg(test.cwd().join("fifo")).status();
            assert!(made.expect("mkfifo runs").success());
        }
        let turn = test.prompt("Edit it.");
        if !runs_command {
            let (ask, _) = request(&mut test.client);
            test.fulfil(ask, EditorResponse::Text(SAVED.into()));
        }
        test.holds(SAVED);
        test.holds(SAVED);
        test.end(turn);
        assert_eq!((requests(&test.client), test.on_disk().as_str()), (0, "one\n2\n"));
    }
}
