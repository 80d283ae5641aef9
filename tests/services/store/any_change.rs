//! Changes of every kind with any content are stored and loaded without loss.

use epitome::thread::*;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{BIG, Home, said};

/// One change of each kind. A new kind fails to compile here until it is added to the list.
pub fn one_of_each() -> Vec<Change> {
    let usage =
        Usage { input: 5, output: 4, cache_read: 3, cache_write: 2, thinking: 1, searches: 6, context: 2 };
    let message = |id, content| Message { id: MessageId(id), content, author: None };
    let text = |text: &str| Content::Text { text: text.into() };
    let model = ModelName("anthropic/claude".into());
    let call = ToolCall {
        id: CallId("call_1".into()),
        name: "bash".into(),
        input: json!({"z": 1.1, "a": [null, true, 18446744073709551615u64, -3], "é": {"nested": "\u{0}\n"}}),
        card: CallDisplay {
            title: "Run".into(),
            kind: ToolKind::Execute,
            locations: vec![Location { path: "/w/a".into(), line: Some(3) }],
        },
    };
    let native = Native {
        provider: "anthropic".into(),
        model: "claude".into(),
        data: json!({"type": "thinking", "signature": "c2ln"}),
    };
    let changes = vec![
        Change::Framed {
            system: "You are an agent.".into(),
            tools: vec![ToolSpec {
                name: "bash".into(),
                description: "Runs".into(),
                schema: json!({"type": "object", "properties": {"z": {}, "a": {}}}),
            }],
        },
        Change::Queued { message: message(0, vec![text("wait")]) },
        Change::Commanded { message: MessageId(1), typed: "/compact".into() },
        Change::PromptKeyed { message: MessageId(1), key: "k-1".into() },
        Change::Said {
            message: message(
                1,
                vec![
                    text("look"),
                    Content::Image {
                        mime_type: "image/png".into(),
                        data: "aGk=".into(),
                        uri: Some("file:///a.png".into()),
                    },
                    Content::Document {
                        mime_type: "application/pdf".into(),
                        data: "JVBERi0=".into(),
                        name: Some("a.pdf".into()),
                    },
                    Content::Resource { uri: "file:///a".into(), text: "a".into() },
                    Content::ResourceLink { uri: "file:///b".into(), name: "b".into() },
                ],
            ),
            origin: Origin::Queue { entry: Seq(2) },
        },
        Change::Replied {
            message: message(
                2,
                vec![
                    Content::Thinking { text: "hm".into(), native: Some(native) },
                    text("I run it"),
                    Content::Call(call),
                ],
            ),
            model: model.clone(),
            usage: Some(usage),
            cut: Some(ReplyCut::Broken { reason: "reset".into() }),
        },
        Change::ToolFinished {
            outcome: ToolOutcome {
                call: CallId("call_1".into()),
                status: OutcomeStatus::Failed,
                content: vec![
                    OutcomeContent::Text { text: "no".into() },
                    OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() },
                    OutcomeContent::Document {
                        mime_type: "application/pdf".into(),
                        data: "JVBERi0=".into(),
                        name: None,
                    },
                ],
                shown: vec![
                    ToolDisplay::Text { text: "no".into() },
                    ToolDisplay::Diff { path: "/w/a".into(), old: None, new: "b".into() },
                ],
                locations: vec![Location { path: "/w/a".into(), line: None }],
                raw: Some(json!({"stdout": "", "exitCode": 1})),
                whole: Some("all of it".into()),
                decided: Some(RecordedDecision { allowed: true, by: Decider::Mode { mode: Mode::Full } }),
            },
        },
        Change::Compacted {
            through: Seq(3),
            summary: message(3, vec![text("so far")]),
            trigger: Trigger::Manual,
            focus: Some("tests".into()),
            tokens_before: 100,
            tokens_after: 10,
            window: None,
            model: None,
            usage: Some(usage),
            masks: vec![mask()],
            account: CompactionStats {
                kept: PartSize { entries: 2, tokens: 30 },
                quoted: vec![Seq(1)],
                shortened: vec![Seq(4)],
                facts: 3,
                left_out: vec![Seq(2)],
                fallback: Some("no model".into()),
                ..CompactionStats::default()
            },
        },
        Change::Pruned {
            masks: vec![mask()],
            trigger: Trigger::Must,
            tokens_before: 100,
            tokens_after: 10,
            window: None,
        },
        Change::Redone { entry: Seq(6) },
        Change::Undone { entry: Seq(6) },
        Change::Noted { message: MessageId(4), text: "undone".into() },
        Change::Spent { model: model.clone(), usage, by: "explore".into() },
        Change::ModelChosen { model },
        Change::ModeChosen { mode: Mode::AcceptEdits },
        Change::ThoughtChosen { level: ThoughtLevel::Max },
        Change::AutoCompactChosen { is_on: false },
        Change::Titled { title: "Title".into() },
        Change::Archived { archived: true },
        Change::Planned {
            steps: vec![PlanStep {
                content: "do".into(),
                status: PlanStatus::InProgress,
                priority: PlanPriority::High,
            }],
        },
        Change::Allowed { rule: Rule::Command { line: "cargo test".into() } },
        Change::TurnEnded {
            reason: StopReason::Failed,
            usage,
            quiet_hooks: 2,
            failure: Some("refused".into()),
        },
        Change::Mutated {
            through: Seq(4),
            messages: vec![
                HistoryMessage { role: Role::System, message: message(5, vec![text("so far")]) },
                HistoryMessage { role: Role::Assistant, message: message(6, vec![text("yes")]) },
            ],
            by: "swap".into(),
            tokens_before: 100,
            tokens_after: 10,
            window: None,
        },
        Change::Edited { by: "tidy".into(), edits: one_edit_of_each(message(7, vec![text("go on")])) },
        Change::CallChanged {
            call: CallId("call_1".into()),
            input: json!({"z": 2, "a": {"\u{0}": "é"}}),
            card: CallDisplay { title: "Run".into(), kind: ToolKind::Execute, locations: Vec::new() },
            by: "guard".into(),
        },
        Change::Withheld {
            message: message(8, vec![text("no")]),
            note: MessageId(9),
            why: Withheld::Blocked { hook: "guard".into(), reason: "a secret".into() },
        },
        Change::Hooked {
            event: "turn_end".into(),
            runs: vec![HookRun {
                hook: "lint".into(),
                event: "Stop".into(),
                digest: "ab12".into(),
                milliseconds: 12,
                end: "exit 0".into(),
                asked: "mutate with 1 message".into(),
                verdict: HookRunResult::Refused,
                remarks: vec!["too large".into()],
                stderr: "turn 1".into(),
            }],
        },
        Change::GoalSet { goal: Some("all tests pass".into()) },
        Change::ThinkingDropped { through: Seq(3), why: "another conversation".into() },
        Change::Rewound { to: Seq(4) },
        Change::FilesRewound {
            turn: Seq(4),
            rewind: 1,
            undo: true,
            files: vec!["/w/a.txt".into()],
            more: 2,
            left: 3,
        },
        Change::Forked { from: SessionId("s_00000000000000000002".into()), through: Seq(4) },
        Change::Forgotten { rule: Rule::Fetch { host: "docs.rs".into() } },
        Change::Lost { entries: 2 },
        Change::DamageAccepted { places: 1, entries: 2 },
        Change::ClientInstructed(ClientInstructions { text: "Be brief.".into(), replaces_role: true }),
        from_the_future(),
    ];
    let kinds: std::collections::BTreeSet<usize> = changes.iter().map(kind).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (1..=changes.len()).collect::<Vec<_>>());
    changes
}

fn one_edit_of_each(message: Message) -> Vec<ViewEdit> {
    let at = PartId { entry: Seq(2), part: Some(1) };
    vec![
        ViewEdit::Pin { at: PartId { entry: Seq(3), part: None } },
        ViewEdit::Unpin { at },
        ViewEdit::Mask { at, note: "long".into() },
        ViewEdit::Drop { at },
        ViewEdit::Replace { at, content: message.content.clone() },
        ViewEdit::Append { role: Role::User, message },
    ]
}

/// A change of a kind that this build does not know, with a body that is too large for a line.
fn from_the_future() -> Change {
    let big = "x".repeat(BIG);
    let stored =
        json!({"seq": 1, "at": 2, "change": "from_the_future", "deep": {"text": big, "list": [1.5, null]}});
    Entry::from_json(&stored).unwrap().change
}

fn mask() -> Mask {
    Mask { entry: Seq(3), text: "[cut]".into() }
}

fn kind(change: &Change) -> usize {
    match change {
        Change::Opened { .. } => 0,
        Change::Framed { .. } => 1,
        Change::Queued { .. } => 2,
        Change::Said { .. } => 3,
        Change::Replied { .. } => 4,
        Change::ToolFinished { .. } => 5,
        Change::Compacted { .. } => 6,
        Change::Undone { .. } => 7,
        Change::Noted { .. } => 8,
        Change::ModelChosen { .. } => 9,
        Change::ModeChosen { .. } => 10,
        Change::ThoughtChosen { .. } => 11,
        Change::AutoCompactChosen { .. } => 37,
        Change::Titled { .. } => 12,
        Change::Planned { .. } => 13,
        Change::Allowed { .. } => 14,
        Change::TurnEnded { .. } => 15,
        Change::Commanded { .. } => 16,
        Change::Mutated { .. } => 17,
        Change::Edited { .. } => 18,
        Change::CallChanged { .. } => 19,
        Change::Withheld { .. } => 20,
        Change::Hooked { .. } => 21,
        Change::GoalSet { .. } => 22,
        Change::ThinkingDropped { .. } => 23,
        Change::Pruned { .. } => 24,
        Change::Redone { .. } => 25,
        Change::Spent { .. } => 26,
        Change::Rewound { .. } => 27,
        Change::FilesRewound { .. } => 28,
        Change::Forked { .. } => 29,
        Change::Forgotten { .. } => 30,
        Change::Lost { .. } => 31,
        Change::DamageAccepted { .. } => 32,
        Change::ClientInstructed(_) => 33,
        Change::Archived { .. } => 34,
        Change::PromptKeyed { .. } => 35,
        Change::Unknown(_) => 36,
    }
}

/// Text that could confuse a careless store, and arbitrary text.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        1 => Just("\"},\n{\"crc\":\"00000000\",\u{2028}".to_owned()),
        1 => (0..3usize).prop_map(|more| "é".repeat(BIG / 2 + more)),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        any_text().prop_map(Value::from),
        Just(json!({"type": "image", "data": "x", "inner": null})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    let each = one_of_each();
    prop_oneof![
        any_text().prop_map(|text| said(&text)),
        any_text().prop_map(|title| Change::Titled { title }),
        (any_text(), any_json()).prop_map(|(text, raw)| {
            let outcome = ToolOutcome::text(CallId("call_1".into()), OutcomeStatus::Completed, text);
            Change::ToolFinished { outcome: ToolOutcome { raw: Some(raw), ..outcome } }
        }),
        (any_text(), any_json()).prop_map(|(system, schema)| Change::Framed {
            system,
            tools: vec![ToolSpec { name: "t".into(), description: String::new(), schema }],
        }),
        (0..each.len()).prop_map(move |at| each[at].clone()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_are_loaded_byte_for_byte(changes in prop::collection::vec(any_change(), 0..8)) {
        let home = Home::new();
        let (session, entries) = home.session(1, &changes);
        let loaded = home.load(&session).unwrap();
        prop_assert_eq!(serde_json::to_string(&loaded).unwrap(), serde_json::to_string(&entries).unwrap());
        prop_assert_eq!(loaded, entries);
    }
}
