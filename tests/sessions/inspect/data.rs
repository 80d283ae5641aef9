//! Timelines computed from logs.

use std::sync::Arc;

use epitome::config::Settings;
use epitome::daemon::inspect::entry::{self, SeenByModel};
use epitome::daemon::inspect::timeline::{self, ContextWindow, Timeline, TimelineInputs};
use epitome::thread::*;
use epitome::tokens::Ruler;
use proptest::prelude::*;

fn golden(name: &str) -> Thread {
    let path = format!("{}/tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the golden log is there");
    let entries = text.lines().map(|line| Arc::new(serde_json::from_str::<Entry>(line).expect("an entry")));
    Thread::replay(entries).expect("a log that folds")
}

fn timeline_of(thread: &Thread) -> Timeline {
    let window = Some(ContextWindow { size: 200_000, reserve: 16_000 });
    let (ruler, settings) = (Ruler::for_model(None), Settings::default());
    timeline::timeline(thread, &TimelineInputs { ruler: &ruler, settings: &settings, window })
}

/// Formats the timeline, one line per item.
fn lines(timeline: &Timeline) -> Vec<String> {
    let mut lines = Vec::new();
    for turn in &timeline.turns {
        let stop = turn.stop.map_or("open".to_owned(), |stop| format!("{stop:?}"));
        lines.push((turn.entry, format!("turn {:?} {stop}", turn.prompt)));
    }
    for round in &timeline.rounds {
        let cut = round.cut.as_deref().unwrap_or("whole");
        lines.push((round.entry, format!("round {} with {} calls, {cut}", round.number, round.calls)));
    }
    for layer in &timeline.layers {
        let back = if layer.holds { "" } else { ", undone" };
        lines.push((layer.entry, format!("{}{back}", layer.kind)));
        for change in &layer.switched {
            lines.push((change.entry, format!("{} {}", change.to, layer.entry)));
        }
    }
    for call in &timeline.calls {
        let outcome = call.outcome.map_or("nothing".to_owned(), |outcome| outcome.to_string());
        lines.push((call.entry, format!("call {} {:?} {outcome}", call.name, call.status)));
    }
    for hook in &timeline.hooks {
        lines.push((hook.entry, format!("hook {} at {}: {:?}", hook.hook, hook.event, hook.verdict)));
    }
    for mark in &timeline.permissions {
        lines.push((mark.entry, format!("{} {}", mark.decision, mark.description)));
    }
    lines.sort();
    lines.into_iter().map(|(entry, line)| format!("{entry} {line}")).collect()
}

fn assert_sound(thread: &Thread) {
    let timeline = timeline_of(thread);
    let ruler = Ruler::for_model(None);
    let view = ruler.view(thread.view()) + ruler.frame_of(thread);
    assert_eq!(timeline.context.sum(), view);
    assert_eq!(timeline.meter.last().expect("a log has an entry").kinds, timeline.context);
    for entry in thread.entries() {
        let looked = entry::look(thread, entry.seq).expect("it is in the log");
        let in_view = thread.view().entries().iter().any(|shown| shown.seq == entry.seq);
        let seen = matches!(looked.seen, SeenByModel::Whole | SeenByModel::Changed);
        assert_eq!(seen, in_view, "{} is {:?}", entry.seq, looked.seen);
    }
    assert!(entry::look(thread, thread.next_seq()).is_none());
}

#[test]
fn golden_logs_yield_complete_timelines() {
    for name in ["format-1", "hooks", "layers"] {
        let thread = golden(name);
        assert_sound(&thread);
        let timeline = timeline_of(&thread);
        let replies = thread.entries().iter().filter(|entry| entry.change.kind() == "replied").count();
        assert_eq!(timeline.rounds.len(), replies, "{name}");
        assert!(
            timeline.rounds.iter().all(|round| round.began <= round.replied && round.replied <= round.ended)
        );
        assert_eq!(timeline.layers.len(), thread.layers().len(), "{name}");
    }
}

#[test]
fn a_sessions_timeline_shows_the_outcome_of_each_part() {
    let home = super::story::played();
    let store = epitome::store::Store::new(&home.paths);
    let thread = Thread::replay(store.read(&home.session).expect("a whole log")).expect("a log that folds");
    assert_sound(&thread);
    let timeline = timeline_of(&thread);
    let all = lines(&timeline).join("\n");
    let has = |part: &str| assert!(all.contains(part), "{part:?} in:\n{all}");
    for part in [
        "compacted",
        "undone e",
        "redone e",
        "hook guard at before_tool_call: Done",
        "hook reviewer at agent_stop: Failed",
        "call bash Some(Denied)",
        "call bash Some(Failed)",
        "call file_read Some(Completed)",
        "allowed ",
        "denied ",
    ] {
        has(part);
    }
    assert!(timeline.layers.len() >= 2, "{all}");
    assert!(
        timeline.calls.iter().any(|call| call.whole_bytes.is_some_and(|whole| whole > call.bytes)),
        "{all}"
    );
    assert!(timeline.rounds.iter().any(|round| round.cached.is_some_and(|share| share > 0.5)), "{all}");
    assert!(timeline.cost.is_some_and(|cost| cost > 0.0));
    let compacted = timeline.layers.iter().find(|layer| layer.kind == "compacted").expect("a compaction");
    let sides: Vec<u64> = timeline
        .meter
        .iter()
        .filter(|point| point.entry == compacted.entry)
        .map(|point| point.kinds.sum())
        .collect();
    assert!(sides.len() == 2 && sides[0] > sides[1], "{sides:?}");
}

#[test]
fn an_entry_shows_its_visibility_and_bounded_text() {
    let long = "é".repeat(100_000);
    let thread = thread_of(vec![said(&long)]);
    let looked = entry::look(&thread, Seq(1)).expect("it is there");
    assert_eq!(looked.seen, SeenByModel::Whole);
    assert_eq!((looked.blocks[0].bytes, looked.blocks[0].cut), (200_000, true));
    assert!(looked.blocks[0].text.len() <= 64 * 1024);
    assert!(looked.why.contains("The model sees it unchanged"), "{}", looked.why);
}

#[test]
fn only_the_newest_rounds_are_listed() {
    let mut changes = vec![said("go on")];
    changes.extend((0..timeline::ROUNDS_MAX + 7).map(|at| replied(at as u64 + 10, "yes", &[])));
    let thread = thread_of(changes);
    let timeline = timeline_of(&thread);
    assert_eq!((timeline.rounds.len(), timeline.rounds_left_out), (timeline::ROUNDS_MAX, 7));
    assert_eq!(timeline.rounds[0].number, 8);
    assert_sound(&thread);
}

// ── Arbitrary logs ─────────────────────────────────────────────────────────────────────────────────

fn thread_of(changes: Vec<Change>) -> Thread {
    let session = SessionId("s_00000000000000000000".into());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    let entries = std::iter::once(opened).chain(changes).enumerate();
    let entry = |(at, mut change): (usize, Change)| {
        // A layer follows the entries that it replaces.
        if let Change::Compacted { through, .. } | Change::Mutated { through, .. } = &mut change {
            *through = (*through).min(Seq(at as u64 - 1));
        }
        Arc::new(Entry { seq: Seq(at as u64), at: at as u64 * 900, change })
    };
    Thread::replay(entries.map(entry)).expect("a log that folds")
}

fn message(id: u64, content: Vec<Content>) -> Message {
    Message { id: MessageId(id), content, author: None }
}

fn words(text: &str) -> Content {
    Content::Text { text: text.into() }
}

fn said(text: &str) -> Change {
    Change::Said { message: message(0, vec![words(text)]), origin: Origin::Person }
}

fn replied(id: u64, text: &str, calls: &[String]) -> Change {
    let call = |id: &String| {
        let (id, name, input) = (CallId(id.clone()), "bash".to_owned(), serde_json::json!({"a": 1}));
        Content::Call(ToolCall { id, name, input, card: CallDisplay::default() })
    };
    let content = std::iter::once(words(text)).chain(calls.iter().map(call)).collect();
    let usage = Usage { input: 100, output: 10, cache_read: 60, ..Usage::default() };
    Change::Replied {
        message: message(id, content),
        model: ModelName("a/b".into()),
        usage: Some(usage),
        cut: None,
    }
}

/// Changes that form a log in any sequence, valid or not: including layers over missing entries, outcomes of unknown
/// calls, and undos of any entry.
fn any_change() -> impl Strategy<Value = Change> {
    let seq = (0_u64..40).prop_map(Seq);
    let id = (0_u8..6).prop_map(|id| format!("call_{id}"));
    let text = "[a-zé \n]{0,60}";
    prop_oneof![
        4 => text.prop_map(|text| said(&text)),
        4 => (text, prop::collection::vec(id.clone(), 0..3)).prop_map(|(text, calls)| replied(7, &text, &calls)),
        4 => (id, text).prop_map(|(id, text)| Change::ToolFinished {
            outcome: ToolOutcome::text(CallId(id), OutcomeStatus::Completed, text),
        }),
        1 => (seq.clone(), text).prop_map(|(through, text)| Change::Compacted {
            through,
            summary: message(9, vec![words(&text), words("<ledger>\na fact")]),
            trigger: Trigger::Threshold,
            focus: None,
            tokens_before: 100,
            tokens_after: 10,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: CompactionStats::default(),
        }),
        1 => seq.clone().prop_map(|entry| Change::Pruned {
            masks: vec![Mask { entry, text: "shorter".into() }],
            trigger: Trigger::Threshold,
            tokens_before: 100,
            tokens_after: 10,
            window: None,
        }),
        1 => (seq.clone(), text).prop_map(|(through, text)| Change::Mutated {
            through,
            messages: vec![HistoryMessage { role: Role::User, message: message(11, vec![words(&text)]) }],
            by: "hook".into(),
            tokens_before: 100,
            tokens_after: 10,
            window: None,
        }),
        1 => seq.clone().prop_map(|entry| Change::Edited {
            by: "hook".into(),
            edits: vec![ViewEdit::Mask { at: PartId { entry, part: None }, note: "no".into() }],
        }),
        1 => seq.clone().prop_map(|entry| Change::Undone { entry }),
        1 => seq.prop_map(|entry| Change::Redone { entry }),
        1 => Just(Change::TurnEnded { reason: StopReason::EndTurn, usage: Usage::default(), quiet_hooks: 0, failure: None }),
        1 => Just(Change::Framed { system: "You are an agent.".into(), tools: Vec::new() }),
        1 => Just(Change::Hooked { event: "turn_end".into(), runs: vec![HookRun::default()] }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_log_has_a_timeline_that_ends_with_the_view(changes in prop::collection::vec(any_change(), 0..40)) {
        assert_sound(&thread_of(changes));
    }
}
