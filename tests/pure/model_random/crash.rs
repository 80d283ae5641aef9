//! Crashes at every byte of the journal: whatever a session wrote last, a killed process leaves the thread
//! before or after it, including everything that was acknowledged.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use epitome::paths::Paths;
use epitome::store::Store;
use epitome::thread::{
    Change, Content, Entry, Mask, Message, MessageId, OutcomeStatus, Seq, SessionId, Thread, ToolOutcome,
    Trigger,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::checks;
use super::model::Model;
use super::step;

/// Sessions that are written and truncated.
const SESSIONS: usize = 6;

/// Preceding steps of each session.
const STEPS: usize = 25;

/// The size at which a body is moved from a line to a file next to the journal.
const BIG: usize = 64 * 1024 + 1;

/// Lines shorter than this are cut at each byte, longer ones at each `BYTES_APART`th.
const EACH_BYTE_BELOW: usize = 200;
const BYTES_APART: usize = 97;

/// The final changes of a session: each kind of layer, with bodies that are too big for a line, and their
/// undo.
fn last_changes(thread: &Thread) -> Vec<Change> {
    let big = |letter: &str| letter.repeat(BIG);
    let next = thread.next_seq().0;
    let said =
        Message { id: thread.next_message(), content: vec![Content::Text { text: big("s") }], author: None };
    let summary = Message {
        id: MessageId(said.id.0 + 1),
        content: vec![Content::Text { text: big("c") }],
        author: None,
    };
    let mask = Mask { entry: Seq(next), text: big("m") };
    vec![
        Change::Said { message: said, origin: Default::default() },
        Change::Pruned {
            masks: vec![mask.clone()],
            trigger: Trigger::Must,
            tokens_before: 2,
            tokens_after: 1,
            window: None,
        },
        Change::Compacted {
            through: Seq(next - 1),
            summary,
            trigger: Trigger::Overflow,
            focus: None,
            tokens_before: 2,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: vec![mask],
            account: Default::default(),
        },
        Change::Undone { entry: Seq(next + 2) },
        Change::Redone { entry: Seq(next + 2) },
        Change::Undone { entry: Seq(next + 1) },
    ]
}

#[test]
fn a_crash_at_any_byte_leaves_the_thread_before_or_after() {
    let mut runner = TestRunner::deterministic();
    let (mut cuts, mut kinds) = (0, std::collections::BTreeSet::new());
    for number in 0..SESSIONS {
        let mut model = Model::new();
        for _ in 0..STEPS {
            let step = step::step().new_tree(&mut runner).expect("a step").current();
            model.take(&step).unwrap_or_else(|why| panic!("{why}"));
        }
        let mut changes: Vec<Change> =
            model.thread.entries().iter().skip(1).map(|entry| entry.change.clone()).collect();
        let last = last_changes(&model.thread);
        // The last change is of a different kind each time.
        changes.extend(last[..=number % last.len()].iter().cloned());
        let (tried, kind) = cut_everywhere(&model.thread, changes);
        cuts += tried;
        kinds.insert(kind);
    }
    println!("{cuts} crashes, in {kinds:?}");
    assert!(cuts >= 500 && kinds.len() == SESSIONS - 1, "{cuts} crashes, in {kinds:?}");
}

/// Writes a session, and truncates its journal at each byte of its last lines. Returns the number of crashes,
/// and the kind of the last change.
fn cut_everywhere(thread: &Thread, changes: Vec<Change>) -> (usize, &'static str) {
    let home = tempfile::tempdir().expect("a directory for a test");
    let store = || Store::new(&Paths::below(home.path()));
    let session: SessionId = thread.session().clone();
    let opened = thread.entries()[0].change.clone();
    let (mut journal, first) = store().create(&session, opened).expect("a new session");
    let mut entries = vec![first];
    // All but the last three are synced to disk, as at the end of a turn.
    let acknowledged = changes.len() - 3;
    for (at, change) in changes.into_iter().enumerate() {
        entries.push(journal.append(change).expect("there is room on the disk"));
        if at + 1 == acknowledged {
            journal.syncer().sync().expect("the disk takes it");
        }
    }
    drop(journal);
    let file = home.path().join(format!("data/journals/{session}.jsonl"));
    let whole = fs::read(&file).expect("the journal is there");
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    assert_eq!(ends.len(), entries.len());
    let folded: Vec<Thread> = (acknowledged + 1..=entries.len())
        .map(|count| Thread::replay(entries[..count].iter().cloned()).expect("a log"))
        .collect();

    let mut cuts = 0;
    let long = |line: usize| ends[line] - ends[line - 1] > EACH_BYTE_BELOW;
    for line in acknowledged + 1..entries.len() {
        let apart = if long(line) { BYTES_APART } else { 1 };
        let places = (ends[line - 1]..ends[line]).step_by(apart).chain([ends[line] - 1, ends[line]]);
        for cut in places {
            fs::write(&file, &whole[..cut]).expect("the journal can be cut");
            // A line is complete without its newline.
            let kept = ends.iter().filter(|end| **end - 1 <= cut).count();
            assert!(kept > acknowledged, "what was acknowledged is there");
            let (mut journal, loaded) = store().load(&session).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(loaded.len(), kept, "cut at {cut}");
            is_same(&folded[kept - acknowledged - 1], loaded);
            cuts += 1;
            // Sometimes the session continues from there.
            if cuts % 50 == 0 {
                goes_on(&mut journal, kept);
            }
        }
    }
    leaves_half_a_blob(home.path(), &session);
    fs::write(&file, &whole).expect("the journal can be written");
    let (_, loaded) = store().load(&session).unwrap_or_else(|error| panic!("{error}"));
    is_same(folded.last().expect("the whole log is folded"), loaded);
    (cuts, entries.last().expect("there are some").change.kind())
}

fn is_same(expected: &Thread, loaded: Vec<Arc<Entry>>) {
    assert!(expected.entries().iter().eq(&loaded), "other entries were read than were written");
    let loaded = Thread::replay(loaded).unwrap_or_else(|error| panic!("{error}"));
    checks::same_view(expected.view(), loaded.view()).unwrap_or_else(|why| panic!("{why}"));
}

fn goes_on(journal: &mut epitome::store::Journal, kept: usize) {
    let call = epitome::thread::CallId("call_after".into());
    let outcome = ToolOutcome::text(call, OutcomeStatus::Interrupted, "x".repeat(BIG));
    let next = journal.append(Change::ToolFinished { outcome }).expect("the journal goes on");
    assert_eq!(next.seq, Seq(kept as u64));
}

/// A crash while writing a blob.
fn leaves_half_a_blob(home: &Path, session: &SessionId) {
    let directory = home.join("data/blobs").join(&session.0);
    let name = "0".repeat(64);
    fs::write(directory.join(format!("{name}.new")), "half").expect("the directory is there");
}
