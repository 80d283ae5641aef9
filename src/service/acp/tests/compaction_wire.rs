//! Tests of the updates that a client gets for a compaction.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use epitome_thread::{CompactionStats, PartSize, Seq, Trigger};

fn entry(id: u64, parts: &[&str], account: CompactionStats) -> Entry {
    let content = parts.iter().map(|text| Content::Text { text: (*text).to_owned() }).collect();
    let change = Change::Compacted {
        through: Seq(4),
        summary: Message { id: MessageId(id), content, author: None },
        trigger: Trigger::Threshold,
        focus: None,
        tokens_before: 88_000,
        tokens_after: 6_200,
        window: None,
        model: None,
        usage: None,
        masks: Vec::new(),
        account,
    };
    Entry { seq: Seq(7), at: 0, change }
}

fn to_json(updates: &[Update]) -> Vec<Value> {
    let json = |update: &Update| match update {
        Update::Shared(update) => serde_json::to_value(update).expect("an update is JSON"),
        other => panic!("not of a compaction: {other:?}"),
    };
    updates.iter().map(json).collect()
}

/// Formats an update as its id and either its status or its text.
fn brief(update: &Value) -> String {
    let id = update["compactionId"].as_str().expect("it is of a compaction");
    let what = update["status"].as_str().or(update["content"]["text"].as_str());
    format!("{id} {}", what.expect("it has a status or a piece"))
}

fn blocks(entry: &Entry) -> Vec<String> {
    let mut updates = Vec::new();
    OpenCompaction::default().completed("s", entry, &mut updates);
    let summary = to_json(&updates)[0]["summary"].clone();
    let texts = summary.as_array().expect("there is a summary").iter();
    texts.map(|block| block["text"].as_str().expect("blocks are text").to_owned()).collect()
}

#[test]
fn a_compaction_starts_streams_and_completes() {
    let (mut open, mut updates) = (OpenCompaction::default(), Vec::new());
    let id = MessageId(9);
    open.state(id, CompactionState::Began { tokens: 88_000 }, &mut updates);
    open.state(id, CompactionState::Wrote("We wrote".into()), &mut updates);
    open.state(id, CompactionState::Wrote(" a parser.".into()), &mut updates);
    let account = CompactionStats {
        quoted: vec![Seq(1), Seq(3)],
        shortened: vec![Seq(5)],
        facts: 34,
        masked: PartSize { entries: 3, tokens: 900 },
        ..CompactionStats::default()
    };
    let text = "An introduction.\n\n<summary>\nWe wrote a parser.\n</summary>";
    open.completed("s", &entry(9, &[text, "<goal>\nShip ```it```.\n</goal>"], account), &mut updates);
    let sent = to_json(&updates);
    let brief: Vec<String> = sent.iter().map(brief).collect();
    assert_eq!(brief, ["m9 in_progress", "m9 We wrote", "m9  a parser.", "m9 completed"]);
    let text = |text: &str| json!({ "type": "text", "text": text });
    assert_eq!(
        sent[3]["summary"],
        json!([
            text("We wrote a parser."),
            text("````text\n<goal>\nShip ```it```.\n</goal>\n````"),
            text(
                "Compacted, because the window filled up: 88.0k → 6.2k tokens (2 entries word for word, 1 \
                 quote shortened, 34 lines from the log; 3 entries shortened). /undo undoes it."
            ),
        ])
    );
    assert_eq!(
        sent[3]["_meta"]["epitome"],
        json!({
            "boundary": {
                "type": "system", "subtype": "compact_boundary",
                "compact_metadata": { "trigger": "auto", "pre_tokens": 88000 },
                "uuid": Seq(7).uuid_in("s"), "session_id": "s",
            },
            "compaction": {
                "entry": "e7", "pre_tokens": 88000, "post_tokens": 6200, "kept": 0, "masked": 3,
                "summarised": 0, "quoted": 2, "shortened": 1, "facts": 34, "left_out": 0,
            },
        })
    );
}

#[test]
fn without_a_model_summary_the_tables_are_shown() {
    let account = CompactionStats {
        fallback: Some("the model did not answer.".into()),
        facts: 1,
        ..CompactionStats::default()
    };
    assert_eq!(
        blocks(&entry(9, &["An introduction.", "<ledger>\na.rs\n</ledger>"], account)),
        [
            "```text\n<ledger>\na.rs\n</ledger>\n```",
            "Compacted, because the window filled up: 88.0k → 6.2k tokens (1 line from the log). No model \
             could write a summary (the model did not answer); the tables computed from the log replace it. \
             /undo undoes it.",
        ]
    );
}

#[test]
fn a_long_part_is_truncated() {
    let long = "é".repeat(PART_BYTES_MAX);
    let shown = blocks(&entry(9, &["<summary>\nS\n</summary>", &long], CompactionStats::default()));
    assert!(shown[1].ends_with("```\n(8192 bytes more, which the model reads as well)"), "{}", shown[1]);
    assert!(shown[1].len() < PART_BYTES_MAX + 100);
}

#[test]
fn a_summary_of_an_older_build_is_split_into_parts() {
    let text = "Intro.\n\n<summary>\nDone.\n</summary>\n\nThe goal:\n\n<goal>\nShip.\n</goal>";
    let shown = blocks(&entry(9, &[text], CompactionStats::default()));
    assert_eq!(shown[..2], ["Done.", "```text\nThe goal:\n\n<goal>\nShip.\n</goal>\n```"]);
}

/// Any event that a session may send, in any order: including orders that sessions don't produce, and clients that
/// attach in the middle.
fn any_step() -> impl Strategy<Value = (u64, Option<CompactionState>)> {
    let state = prop_oneof![
        Just(Some(CompactionState::Began { tokens: 5 })),
        "[a-z]{1,3}".prop_map(|piece| Some(CompactionState::Wrote(piece))),
        Just(Some(CompactionState::Failed("no".into()))),
        Just(Some(CompactionState::Cancelled)),
        Just(None),
    ];
    (0u64..3, state)
}

proptest! {
    /// Chunks occur only between a start and its end, each start has exactly one end, and an end without a
    /// start is `completed`.
    #[test]
    fn every_event_sequence_yields_a_valid_update_stream(steps in prop::collection::vec(any_step(), 0..40)) {
        let (mut open, mut updates) = (OpenCompaction::default(), Vec::new());
        for (id, state) in steps {
            match state {
                Some(state) => open.state(MessageId(id), state, &mut updates),
                None => open.completed("s", &entry(id, &["S"], CompactionStats::default()), &mut updates),
            }
        }
        let mut running: Option<String> = None;
        for update in to_json(&updates) {
            let id = update["compactionId"].as_str().expect("it is of a compaction").to_owned();
            match update["status"].as_str() {
                Some("in_progress") => prop_assert_eq!(running.replace(id), None),
                None => prop_assert_eq!(running.as_ref(), Some(&id)),
                Some("completed") => prop_assert!(running.take().is_none_or(|open| open == id)),
                Some(_) => prop_assert_eq!(running.take(), Some(id)),
            }
            prop_assert_eq!(update.get("summary").is_some(), update["status"] == "completed");
            prop_assert_eq!(update.get("error").is_some(), update["status"] == "failed");
        }
    }
}
