//! Golden logs: what a journal of an earlier build holds must read and fold to the same conversation in
//! every later one. A new format adds a file here; an old file is never changed.

use std::path::PathBuf;
use std::sync::Arc;

use epitome::thread::{CallId, Change, Entry, Seq, Thread, ViewItem};

/// Reads `tests/golden/NAME.jsonl`, entries as they are stored, without their checksums.
fn golden(name: &str) -> (String, Thread) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(path).expect("the golden log is beside this test");
    let entries = text.lines().map(|line| Arc::new(serde_json::from_str::<Entry>(line).expect("an entry")));
    let thread = Thread::replay(entries).expect("a log that folds");
    (text, thread)
}

fn expected(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    std::fs::read_to_string(path).expect("the golden text is beside this test")
}

fn assert_comes_back_to_the_byte(text: &str, thread: &Thread) {
    for (line, entry) in text.lines().zip(thread.entries()) {
        assert_eq!(serde_json::to_string(&**entry).expect("an entry is JSON"), line);
    }
}

fn undo(thread: &mut Thread, entry: Seq) {
    thread.apply(Arc::new(Entry { seq: thread.next_seq(), at: 0, change: Change::Undone { entry } }));
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
    assert_comes_back_to_the_byte(&text, &thread);
    let compacted = seen(&thread);
    let entry = thread.last_compaction().expect("the log ends with a compaction").seq;
    undo(&mut thread, entry);
    let both = format!("# compacted\n{compacted}\n# undone\n{}", seen(&thread));
    assert_eq!(both, expected("format-1"));
}

/// What hooks leave in a log: context, a changed call, a follow-up, two withheld prompts, edits of every
/// kind, a history put in place of all but the newest round, a goal and pins, and a compaction that keeps
/// the newest messages. The text has what the model sees at its end, and after each undo.
#[test]
fn what_hooks_did_stays_what_it_was() {
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

/// What compactions leave in a log: an outcome whose whole is kept beside what was shown, instructions that were
/// told on the way, a batch of cuts, a compaction that cuts in what it keeps, undos and redos of both, and one that
/// no model wrote. The text has what the model sees at its end, and after each undo.
#[test]
fn what_compactions_did_stays_what_it_was() {
    let (text, mut thread) = golden("layers");
    assert_comes_back_to_the_byte(&text, &thread);
    let mut all = format!("# all of it\n{}", seen(&thread));
    while let Some(entry) = thread.last_layer().cloned() {
        undo(&mut thread, entry.seq);
        all.push_str(&format!("\n# without the {} {}\n{}", entry.change.kind(), entry.seq, seen(&thread)));
    }
    assert_eq!(all, expected("layers"));
}
