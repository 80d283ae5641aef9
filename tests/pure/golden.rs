//! Golden logs: journals of earlier builds must be read and folded into the same conversation by every later
//! one. A new format adds a file here; an old file is never changed.

use std::path::PathBuf;
use std::sync::Arc;

use epitome::store::Store;
use epitome::thread::{CallId, Change, Entry, Seq, SessionId, Thread, ViewItem};

/// Reads `tests/golden/NAME.jsonl`: entries in storage format, without their checksums.
fn golden(name: &str) -> (String, Thread) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(path).expect("the golden log is next to this test");
    let entries = text.lines().map(|line| Arc::new(serde_json::from_str::<Entry>(line).expect("an entry")));
    let thread = Thread::replay(entries).expect("a log that folds");
    (text, thread)
}

fn expected(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    std::fs::read_to_string(path).expect("the golden text is next to this test")
}

fn assert_comes_back_to_the_byte(text: &str, thread: &Thread) {
    for (line, entry) in text.lines().zip(thread.entries()) {
        assert_eq!(serde_json::to_string(&**entry).expect("an entry is JSON"), line);
    }
}

fn undo(thread: &mut Thread, entry: Seq) {
    thread.apply(Arc::new(Entry { seq: thread.next_seq(), at: 0, change: Change::Undone { entry } }));
}

/// The thread as a model sees it, as text.
fn seen(thread: &Thread) -> String {
    let mut text = String::new();
    for item in thread.view().items() {
        match item {
            ViewItem::User(message) | ViewItem::Summary(message) => {
                text.push_str(&format!("{} user: {}\n", message.id, message.text()))
            }
            ViewItem::Agent(message, model) => {
                text.push_str(&format!("{} {model}: {}\n", message.id, message.text()));
                for call in message.calls() {
                    text.push_str(&format!("  {} {} {}\n", call.id, call.name, call.input));
                }
            }
            ViewItem::Outcomes(outcomes) => {
                for outcome in outcomes {
                    let status = serde_json::to_string(&outcome.status).expect("a word");
                    text.push_str(&format!("  {} {status} {}\n", outcome.call, outcome.model_text()));
                }
            }
        }
    }
    text
}

/// The log was written by a real run: thinking, parallel calls, one of which was denied, a plan, choices, a prompt
/// during a turn, a compaction and its undo, a cancelled turn, a second compaction. The expected text is what the model
/// sees at the end, and what it sees after undoing that compaction.
#[test]
fn a_log_of_format_1_keeps_its_meaning() {
    let (text, mut thread) = golden("format-1");
    assert!(!thread.in_turn());
    assert!(thread.open_calls().is_empty());
    assert_comes_back_to_the_byte(&text, &thread);
    let compacted = seen(&thread);
    let entry = thread.last_compaction().expect("the log ends with a compaction").seq;
    undo(&mut thread, entry);
    let both = format!("# compacted\n{compacted}\n# undone\n{}", seen(&thread));
    assert_eq!(both, expected("format-1"));
}

/// Everything that hooks write to a log: context, a changed call, a follow-up, two withheld prompts, edits of
/// every kind, a history that replaces everything but the newest round, a goal and pins, and a compaction
/// that keeps the newest messages. The expected text is what the model sees at the end, and after each undo.
#[test]
fn a_log_with_hooks_keeps_its_meaning() {
    let (text, mut thread) = golden("hooks");
    assert!(!thread.in_turn());
    assert!(thread.open_calls().is_empty());
    assert_comes_back_to_the_byte(&text, &thread);
    let mut all = String::new();
    loop {
        let pins: Vec<String> =
            thread.pins().into_iter().map(|(part, text)| format!("{part} {text:?}")).collect();
        let parts: Vec<String> = thread.view().pieces().iter().map(|(part, _)| part.to_string()).collect();
        all.push_str(&format!("# {}\npinned: {}\n{}", parts.join(" "), pins.join(", "), seen(&thread)));
        let Some(layer) = thread.last_layer() else { break };
        all.push_str(&format!("\n# without the {} {}\n", layer.change.kind(), layer.seq));
        let layer = layer.seq;
        undo(&mut thread, layer);
    }
    let (input, card) = thread.input_of(&CallId("toolu_2".into())).expect("a call of the log");
    all.push_str(&format!("\ntoolu_2 is run as {:?} with {input}\n", card.title));
    assert_eq!(all, expected("hooks"), "{all}");
}

/// Everything that compactions write to a log: an outcome that is stored in full next to its shortened form,
/// instructions that were loaded during the session, a batch of masks, a compaction that masks outcomes in
/// its tail, undos and redos of both, and one without a model. The expected text is what the model sees at
/// the end, and after each undo.
#[test]
fn a_log_with_compactions_keeps_its_meaning() {
    let (text, mut thread) = golden("layers");
    assert_comes_back_to_the_byte(&text, &thread);
    let mut all = format!("# all of it\n{}", seen(&thread));
    while let Some(entry) = thread.last_layer().cloned() {
        undo(&mut thread, entry.seq);
        all.push_str(&format!("\n# without the {} {}\n{}", entry.change.kind(), entry.seq, seen(&thread)));
    }
    assert_eq!(all, expected("layers"));
}

/// A journal that a build of November 2026 wrote to disk, before the workspace was split into crates. It is read with
/// its checksums, and its view must be the one of that build. It contains failed calls, a pin, and a compaction.
#[test]
fn a_journal_of_an_earlier_build_opens_and_folds_to_the_same_view() {
    let session = "s_a33ad165dae2871492e0";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/journals").join(session);
    let entries = Store::read_outside(&path.with_extension("jsonl"), Some(&SessionId(session.into())));
    let journal = entries.expect("it can be read").expect("a journal");
    assert!(!journal.is_damaged && journal.lost_entries == 0);
    let thread = Thread::replay(journal.entries).expect("a log that folds");
    let expected = std::fs::read_to_string(path.with_extension("txt")).expect("the golden text is there");
    assert_eq!(seen(&thread), expected);
}
