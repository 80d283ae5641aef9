//! Golden logs: what a journal of an earlier build holds must read and fold to the same conversation in
//! every later one. A new format adds a file here; an old file is never changed.

use std::path::PathBuf;
use std::sync::Arc;

use epitome::thread::{Change, Entry, Thread, ViewItem};

/// Reads `tests/golden/NAME.jsonl`, entries as they are stored, without their checksums.
fn golden(name: &str) -> (String, Thread) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(path).expect("the golden log is beside this test");
    let entries = text.lines().map(|line| Arc::new(serde_json::from_str::<Entry>(line).expect("an entry")));
    let thread = Thread::replay(entries).expect("a log that folds");
    (text, thread)
}

/// What a model sees of the thread, as text.
fn seen(thread: &Thread) -> String {
    let mut text = String::new();
    for item in thread.view().items() {
        match item {
            ViewItem::User(message) => text.push_str(&format!("{} user: {}\n", message.id, message.text())),
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

/// The log was written by a real run: thinking, parallel calls of which one was denied, a plan, choices,
/// a prompt during a turn, a compaction and its undo, a cancelled turn, a second compaction. The text has
/// what the model sees at its end, and what it sees when that compaction is undone.
#[test]
fn a_log_of_the_first_format_is_the_same_conversation_for_ever() {
    let (text, mut thread) = golden("format-1");
    assert!(!thread.in_turn());
    assert!(thread.open_calls().is_empty());
    for (line, entry) in text.lines().zip(thread.entries()) {
        assert_eq!(serde_json::to_string(&**entry).expect("an entry is JSON"), line);
    }
    let compacted = seen(&thread);
    let entry = thread.last_compaction().expect("the log ends with a compaction").seq;
    thread.apply(Arc::new(Entry { seq: thread.next_seq(), at: 0, change: Change::Undone { entry } }));
    let both = format!("# compacted\n{compacted}\n# undone\n{}", seen(&thread));

    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-1.txt");
    let expected = std::fs::read_to_string(path).expect("the golden text is beside this test");
    assert_eq!(both, expected);
}
