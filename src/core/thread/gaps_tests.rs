//! Logs with lost entries: whatever is missing, the view of the remaining entries is valid for a model.

use std::sync::Arc;

use super::{CallId, Change, Entry, OutcomeStatus, Seq, Thread, ToolOutcome, ViewItem, describe};

/// Logs of real runs, with parallel calls, compactions, undone layers and hooks.
const LOGS: [&str; 3] = [
    include_str!("../../../tests/golden/format-1.jsonl"),
    include_str!("../../../tests/golden/hooks.jsonl"),
    include_str!("../../../tests/golden/layers.jsonl"),
];

/// Longest gap that is tried.
const GAP_MAX: usize = 4;

fn read(log: &str) -> Vec<Arc<Entry>> {
    log.lines().map(|line| Arc::new(Entry::parse(line.as_bytes()).expect("an entry"))).collect()
}

fn without(entries: &[Arc<Entry>], gap: std::ops::Range<usize>) -> Vec<Arc<Entry>> {
    let lost = |at: usize| {
        let entries = if at == gap.start { gap.len() as u64 } else { 0 };
        Arc::new(Entry { seq: Seq(at as u64), at: 0, change: Change::Lost { entries } })
    };
    let kept = |at: usize| entries[at].clone();
    (0..entries.len()).map(|at| if gap.contains(&at) { lost(at) } else { kept(at) }).collect()
}

/// Each outcome follows its call, and each call has one outcome.
fn assert_paired(thread: &Thread, gap: &std::ops::Range<usize>) {
    let mut open: Vec<&CallId> = Vec::new();
    for item in thread.view().items() {
        match item {
            ViewItem::Outcomes(outcomes) => {
                let answered: Vec<&CallId> = outcomes.iter().map(|outcome| &outcome.call).collect();
                assert_eq!(answered, open, "gap {gap:?}");
                open.clear();
            }
            ViewItem::User(_) | ViewItem::Summary(_) | ViewItem::Agent(..) => {
                assert!(open.is_empty(), "gap {gap:?}: {open:?} have no outcome");
                if let ViewItem::Agent(message, _) = item {
                    open = message.calls().map(|call| &call.id).collect();
                }
            }
        }
    }
    assert!(open.is_empty(), "gap {gap:?}: {open:?} have no outcome");
}

#[test]
fn calls_and_outcomes_around_a_gap_stay_paired() {
    for log in LOGS {
        let entries = read(log);
        for length in 1..=GAP_MAX {
            for start in 1..entries.len().saturating_sub(length) {
                let gap = start..start + length;
                let mut thread = Thread::replay(without(&entries, gap.clone())).expect("a log");
                assert_eq!(thread.entries().len(), entries.len());
                // As a session does when it continues.
                for call in thread.open_calls().to_vec() {
                    let outcome = ToolOutcome::text(call, OutcomeStatus::Interrupted, "interrupted");
                    let change = Change::ToolFinished { outcome };
                    thread.apply(Arc::new(Entry { seq: thread.next_seq(), at: 0, change }));
                }
                assert_paired(&thread, &gap);
            }
        }
    }
}

#[test]
fn a_gap_is_described_once() {
    assert_eq!(
        describe(&Change::Lost { entries: 3 }).line.as_deref(),
        Some("3 entries are lost here: the log is damaged.")
    );
    assert_eq!(describe(&Change::Lost { entries: 0 }).line, None);
}

/// A newer version wrote a kind of change or a field that this one does not know: it is stored again unchanged, and
/// no new message gets the id of its message.
#[test]
fn a_change_of_a_newer_version_keeps_its_json() {
    for stored in [
        r#"{"seq":1,"at":5,"change":"from_the_future","x":[1,2.5,null],"message":{"id":41}}"#,
        r#"{"seq":1,"at":5,"change":"titled","title":{"text":"no longer a string"},"message":41}"#,
    ] {
        let entry = Entry::parse(stored.as_bytes()).expect("an entry");
        assert!(matches!(entry.change, Change::Unknown(_)));
        assert_eq!(serde_json::to_string(&entry).expect("it is JSON"), stored);
        let mut thread = Thread::replay(read(LOGS[0]).into_iter().take(1)).expect("a log");
        thread.apply(Arc::new(entry));
        assert_eq!(thread.next_message().0, 42);
    }
    assert!(
        Entry::parse(br#"{"seq":0,"at":5,"change":"opened"}"#).is_err(),
        "an opening is understood or refused"
    );
    assert!(Entry::parse(br#"{"seq":1,"at":5}"#).is_err());
}

/// Regression: an export whose numbers are as large as possible could be imported, and then ended the task of the session,
/// which had no number left for a new message.
#[test]
fn an_imported_log_with_the_largest_numbers_leaves_some_for_new_messages() {
    let log = r#"{"seq":0,"at":1,"change":"opened","format":1,"session":"s_00000000000000000001","cwd":"/w"}
{"seq":1,"at":1,"change":"noted","message":18446744073709551615,"text":"x"}
{"seq":2,"at":1,"change":"redone","entry":18446744073709551615}
{"seq":3,"at":1,"change":"turn_ended","reason":"interrupted","usage":{"input":18446744073709551615,"output":1}}"#;
    let thread = Thread::replay(read(log)).expect("a log");
    assert!(thread.next_message().0 < u64::MAX / 2);
    assert_eq!(thread.newest_unchanged(|_| None::<()>), None);
}
