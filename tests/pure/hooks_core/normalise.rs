//! Every spelling of a result and its normalized form.

use epitome::hooks::event::HookEvent;
use epitome::hooks::output::{
    CallbackRequest, HistoryAction, HookOutput, PermissionDecision, RequestedEdit, RequestedEdits,
    ResultChange,
};
use epitome::thread::{PartId, Role, Seq};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{agent, normal, user};

fn callback(name: &str) -> HistoryAction {
    HistoryAction::Callback(CallbackRequest { name: name.to_owned(), ..CallbackRequest::default() })
}

fn mutate(messages: Vec<epitome::hooks::output::Utterance>) -> HistoryAction {
    HistoryAction::Mutate { messages, preserve_recent: 0, target: None }
}

/// The normalized result for `turn_end` and `agent_stop`, which must be equal and without warnings.
fn both(value: Value) -> HookOutput {
    let output = normal(HookEvent::TurnEnd, value.clone());
    assert_eq!(output, normal(HookEvent::AgentStop, value.clone()), "{value}");
    assert_eq!(output.warnings, Vec::<String>::new(), "{value}");
    output
}

/// The normalized result without its warnings, one of which must contain `part`.
fn warned(event: HookEvent, value: Value, part: &str) -> HookOutput {
    let output = normal(event, value.clone());
    assert!(output.warnings.iter().any(|warning| warning.contains(part)), "{value}: {:?}", output.warnings);
    HookOutput { warnings: Vec::new(), ..output }
}

/// Regression: a user's hook passed on a result of tests with colors. Editors got the escape sequences in a notice, and the
/// model in a note.
#[test]
fn colors_of_a_program_are_removed() {
    let (red, plain) = ("\u{1b}[31m1 failed\u{1b}[0m", "1 failed");
    let result = json!({"notice": red, "context": [red], "output_text": red});
    let output = normal(HookEvent::AfterToolCall, result);
    assert_eq!(
        (output.notice.as_deref(), &output.context[..], output.output_text.as_deref()),
        (Some(plain), &[plain.to_owned()][..], Some(plain))
    );
    let messages =
        json!({"result": "mutate", "messages": [red, {"content": [{"type": "text", "text": red}]}]});
    assert_eq!(both(messages).action, mutate(vec![user(plain), user(plain)]));
}

#[test]
fn all_spellings_of_callback_compact_are_equivalent() {
    for value in [
        json!({"result": "callback", "callback": "compact"}),
        json!({"action": "compact"}),
        json!({"result": "", "action": "compact"}),
        json!({"result": "callback", "action": "compact"}),
        json!({"result": "callback", "callback": "compact", "messages": null, "callback_args": {}}),
    ] {
        assert_eq!(
            both(value.clone()),
            HookOutput { action: callback("compact"), ..Default::default() },
            "{value}"
        );
    }
}

#[test]
fn action_summary_is_a_callback_that_uses_only_the_text() {
    let expected =
        CallbackRequest { name: "summary".to_owned(), text_only: true, ..CallbackRequest::default() };
    assert_eq!(both(json!({"action": "summary"})).action, HistoryAction::Callback(expected));
}

#[test]
fn all_spellings_of_continue_with_one_message_are_equivalent() {
    for value in [
        json!({"follow_up_messages": ["Run the linter"]}),
        json!({"result": "", "follow_up_messages": ["Run the linter"]}),
        json!({"result": "continue", "messages": [{"role": "user", "content": "Run the linter"}]}),
        json!({"result": "continue", "follow_up_messages": ["Run the linter"]}),
        json!({"result": "continue", "messages": ["Run the linter"], "follow_up_messages": ["Run the linter"]}),
        json!({"action": "continue", "messages": ["Run the linter"]}),
        json!({"follow_up_messages": [{"content": [{"type": "text", "text": "Run the linter"}]}]}),
    ] {
        let expected = HookOutput { follow_ups: vec![user("Run the linter")], ..Default::default() };
        assert_eq!(both(value.clone()), expected, "{value}");
    }
}

#[test]
fn all_spellings_of_mutate_are_equivalent() {
    for value in [
        json!({"result": "mutate", "messages": [{"role": "user", "content": "S"}]}),
        json!({"action": "replace", "replace_messages": [{"role": "user", "content": "S"}]}),
        json!({"replace_messages": ["S"]}),
        json!({"result": "mutate", "replace_messages": ["S"]}),
        json!({"action": "replace", "messages": ["S"]}),
        json!({"result": "mutate", "messages": [{"role": "user", "content": ["S"]}]}),
        json!({"result": "mutate", "action": "replace", "messages": ["S"]}),
    ] {
        let expected = HookOutput { action: mutate(vec![user("S")]), ..Default::default() };
        assert_eq!(both(value.clone()), expected, "{value}");
    }
}

#[test]
fn roles_user_assistant_and_system_and_text_blocks_are_accepted() {
    let value = json!({"result": "mutate", "messages": [
        {"role": "system", "content": "rules"},
        {"role": "User", "content": [{"type": "text", "text": "a"}, "b"]},
        {"role": "assistant", "content": "c", "id": "e4", "kind": "text"},
    ]});
    let system = epitome::hooks::output::Utterance { role: Role::System, text: "rules".to_owned() };
    assert_eq!(both(value).action, mutate(vec![system, user("a\n\nb"), agent("c")]));
}

#[test]
fn continue_joins_messages_and_follow_ups_without_duplicates() {
    let output =
        both(json!({"result": "continue", "messages": ["a", "b"], "follow_up_messages": ["b", "c"]}));
    assert_eq!(output.follow_ups, [user("a"), user("b"), user("c")]);
}

#[test]
fn mutations_and_callbacks_keep_their_follow_ups() {
    let output =
        both(json!({"result": "mutate", "messages": ["S"], "follow_up_messages": ["go"], "continue": true}));
    assert_eq!(
        (output.action, output.follow_ups, output.go_on),
        (mutate(vec![user("S")]), vec![user("go")], true)
    );
    let output = both(json!({"action": "compact", "follow_up_messages": ["go"]}));
    assert_eq!((output.action, output.follow_ups), (callback("compact"), vec![user("go")]));
}

#[test]
fn result_overrides_a_different_action_with_a_warning() {
    let value = json!({"result": "continue", "action": "compact", "messages": ["go"]});
    let output = warned(HookEvent::AgentStop, value, "`result` and `action` differ");
    assert_eq!(output, HookOutput { follow_ups: vec![user("go")], ..Default::default() });
}

#[test]
fn messages_without_a_result_cause_only_a_warning() {
    let output =
        warned(HookEvent::AgentStop, json!({"messages": ["S"]}), "`messages` alone asks for nothing");
    assert_eq!(output, HookOutput::default());
}

#[test]
fn unknown_results_and_actions_cause_only_a_warning() {
    for (value, word) in [
        (json!({"result": "explode"}), "`result` is \"explode\""),
        (json!({"action": "explode", "messages": ["x"]}), "`action` is \"explode\""),
        (json!({"result": "explode", "follow_up_messages": ["x"]}), "explode"),
    ] {
        assert_eq!(warned(HookEvent::TurnEnd, value, word), HookOutput::default());
    }
}

#[test]
fn a_mutation_without_messages_keeps_the_history() {
    for value in [
        json!({"result": "mutate"}),
        json!({"result": "mutate", "messages": []}),
        json!({"result": "mutate", "messages": null}),
        json!({"replace_messages": []}),
    ] {
        assert_eq!(warned(HookEvent::TurnEnd, value, "the history stays"), HookOutput::default());
    }
}

#[test]
fn a_mutation_with_an_invalid_message_keeps_the_history() {
    for (message, why) in [
        (json!(7), "is neither text nor an object"),
        (json!({"role": "user"}), "has no content"),
        (json!({"role": "tool", "content": "x"}), "has the role \"tool\""),
        (
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}),
            "has content that is not text",
        ),
    ] {
        let value = json!({"result": "mutate", "messages": ["S", message]});
        assert_eq!(warned(HookEvent::TurnEnd, value, why), HookOutput::default());
    }
}

#[test]
fn an_invalid_or_blank_follow_up_is_dropped() {
    for bad in [json!(7), json!("  "), json!({"role": "user"})] {
        let value = json!({"follow_up_messages": ["a", bad, "b"]});
        assert_eq!(warned(HookEvent::AgentStop, value, "left out").follow_ups, [user("a"), user("b")]);
    }
}

#[test]
fn callback_arguments_become_text() {
    let output = both(json!({
        "result": "callback", "callback": "review", "async": true,
        "callback_args": {"a": "x", "b": 3, "c": 0.5, "d": true, "e": null},
    }));
    let args = [("a", "x"), ("b", "3"), ("c", "0.5"), ("d", "true")];
    let expected = CallbackRequest {
        name: "review".to_owned(),
        args: args.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        asynchronous: true,
        ..CallbackRequest::default()
    };
    assert_eq!(output.action, HistoryAction::Callback(expected));
    let value = json!({"result": "callback", "callback": "review", "callback_args": {"a": [1]}});
    assert_eq!(warned(HookEvent::TurnEnd, value, "`callback_args.a` must be").action, callback("review"));
}

#[test]
fn a_target_is_accepted_in_the_result_and_in_the_arguments() {
    for value in [
        json!({"result": "callback", "callback": "compact", "target_conversation_id": "s_02"}),
        json!({"result": "callback", "callback": "compact", "callback_args": {"target_conversation_id": "s_02"}}),
        json!({"result": "callback", "callback": "compact", "target_conversation_id": "s_02",
               "callback_args": {"target_conversation_id": "s_03"}}),
    ] {
        let HistoryAction::Callback(callback) = both(value).action else { panic!("a callback") };
        assert_eq!(callback.target.as_deref(), Some("s_02"));
    }
    let output = both(
        json!({"result": "mutate", "messages": ["S"], "target_conversation_id": "s_02", "preserve_recent": 4}),
    );
    let expected = HistoryAction::Mutate {
        messages: vec![user("S")],
        preserve_recent: 4,
        target: Some("s_02".to_owned()),
    };
    assert_eq!(output.action, expected);
    let empty = both(json!({"result": "mutate", "messages": ["S"], "target_conversation_id": ""}));
    assert_eq!(empty.action, mutate(vec![user("S")]));
}

#[test]
fn a_callback_without_a_name_causes_only_a_warning() {
    let output = warned(HookEvent::TurnEnd, json!({"result": "callback"}), "names none");
    assert_eq!(output, HookOutput::default());
}

#[test]
fn blocked_accepts_other_types_with_a_warning() {
    for (blocked, expected, warns) in [
        (json!(true), true, false),
        (json!(false), false, false),
        (json!("true"), true, true),
        (json!(1), true, true),
        (json!("False"), false, true),
        (json!(0), false, true),
        (json!("perhaps"), false, true),
        (json!([true]), false, true),
        (json!(null), false, false),
    ] {
        for event in [HookEvent::BeforeToolCall, HookEvent::UserMessageSend, HookEvent::PreCompact] {
            let output = normal(event, json!({"blocked": blocked, "reason": "no"}));
            assert_eq!(output.block, expected.then(|| Some("no".to_owned())), "{blocked} at {event}");
            assert_eq!(!output.warnings.is_empty(), warns, "{blocked} at {event}");
        }
    }
    assert_eq!(normal(HookEvent::BeforeToolCall, json!({"blocked": true})).block, Some(None));
}

#[test]
fn a_hook_may_decide_about_a_tool_call_and_change_its_input() {
    for (word, decision) in [
        ("allow", PermissionDecision::Allow),
        ("ask", PermissionDecision::Ask),
        ("deny", PermissionDecision::Deny),
        ("Deny", PermissionDecision::Deny),
    ] {
        let output =
            normal(HookEvent::BeforeToolCall, json!({"decision": word, "reason": "so", "input": {"a": 1}}));
        assert_eq!(output.decision, Some(decision));
        assert_eq!(output.decision_reason.as_deref(), Some("so"));
        assert_eq!(output.input.map(Value::Object), Some(json!({"a": 1})));
    }
    let output = warned(HookEvent::BeforeToolCall, json!({"decision": "maybe"}), "`decision` is \"maybe\"");
    assert_eq!(output, HookOutput::default());
}

#[test]
fn a_wrong_type_only_voids_its_field() {
    let output = warned(
        HookEvent::BeforeToolCall,
        json!({"blocked": true, "reason": "no", "input": "ls"}),
        "`input` must be an object, not text",
    );
    assert_eq!(output, HookOutput { block: Some(Some("no".to_owned())), ..HookOutput::default() });
    let output = warned(
        HookEvent::TurnEnd,
        json!({"action": "compact", "notice": 7, "follow_up_messages": "x"}),
        "`follow_up_messages` must be a list",
    );
    assert_eq!(output, HookOutput { action: callback("compact"), ..HookOutput::default() });
}

#[test]
fn null_and_unknown_fields_are_ignored() {
    for event in HookEvent::ALL {
        let value = json!({
            "blocked": null, "reason": null, "input": null, "output": null, "result": null, "messages": null,
            "context": null, "decision": null, "custom_instructions": null, "favourite_colour": "blue",
        });
        assert_eq!(normal(event, value), HookOutput::default(), "{event}");
    }
}

#[test]
fn a_field_without_meaning_for_the_event_is_ignored_with_a_warning() {
    let output = warned(HookEvent::TurnEnd, json!({"input": {"a": 1}}), "`input` has no meaning in turn_end");
    assert_eq!(output, HookOutput::default());
    // A script for several events may print empty values for fields of other events.
    let silent = json!({"blocked": false, "messages": [], "output": {}});
    assert_eq!(normal(HookEvent::SessionStart, silent), HookOutput::default());
}

#[test]
fn a_hook_may_change_a_prompt_and_add_context() {
    let output = normal(HookEvent::UserMessageSend, json!({"message": "new", "context": "c"}));
    assert_eq!((output.message.as_deref(), output.context), (Some("new"), vec!["c".to_owned()]));
    let output =
        normal(HookEvent::SessionStart, json!({"context": ["a", {"type": "text", "text": "b"}, " "]}));
    assert_eq!(output.context, ["a", "b"]);
}

#[test]
fn a_tool_result_object_is_a_change() {
    let output = normal(
        HookEvent::AfterToolCall,
        json!({"output": {"toolName": "bash", "success": false, "error": "no", "metadataType": "bash",
               "metadata": {"output": "x"}, "timestamp": "2024-01-15T10:30:00Z"},
               "output_text": "", "context": "note"}),
    );
    let expected = ResultChange {
        success: Some(false),
        error: Some("no".to_owned()),
        metadata_type: Some("bash".to_owned()),
        metadata: Some(json!({"output": "x"})),
    };
    assert_eq!(output.output, Some(expected));
    assert_eq!((output.output_text.as_deref(), output.context), (Some(""), vec!["note".to_owned()]));
    let output =
        warned(HookEvent::AfterToolCall, json!({"output": {"error": 7}}), "`output.error` must be text");
    assert_eq!(output.output, Some(ResultChange::default()));
}

#[test]
fn a_hook_may_give_a_compaction_instructions_context_and_a_summary() {
    let output = normal(
        HookEvent::PreCompact,
        json!({"custom_instructions": "keep names", "context": ["a", "b"], "summary": "S"}),
    );
    assert_eq!(output.custom_instructions.as_deref(), Some("keep names"));
    assert_eq!(
        (output.context, output.summary.as_deref()),
        (vec!["a".to_owned(), "b".to_owned()], Some("S"))
    );
}

#[test]
fn context_edits_refer_to_entries_by_id() {
    let part = |entry, part| PartId { entry: Seq(entry), part };
    let value = json!({"revision": 9, "context_edits": [
        {"op": "pin", "entry": "e7"},
        {"op": "unpin", "entry": "e7"},
        {"op": "mask", "entry": "e8.2", "note": "old log"},
        {"op": "drop", "entry": "e9"},
        {"op": "replace", "entry": "e10", "content": "short"},
        {"op": "append", "role": "user", "content": [{"type": "text", "text": "remember"}]},
    ]});
    let expected = RequestedEdits {
        revision: Some(Seq(9)),
        edits: vec![
            RequestedEdit::Pin(part(7, None)),
            RequestedEdit::Unpin(part(7, None)),
            RequestedEdit::Mask(part(8, Some(2)), "old log".to_owned()),
            RequestedEdit::Drop(part(9, None)),
            RequestedEdit::Replace(part(10, None), "short".to_owned()),
            RequestedEdit::Append(user("remember")),
        ],
    };
    assert_eq!(both(value.clone()).edits.as_ref(), Some(&expected));
    assert_eq!(normal(HookEvent::PreCompact, value).edits, Some(expected));
}

#[test]
fn one_invalid_edit_voids_the_entire_list() {
    for (edit, why) in [
        (json!({"op": "pin"}), "`context_edits[1]` has no `entry`"),
        (json!({"op": "pin", "entry": "m7"}), "which is not an id"),
        (json!({"op": "burn", "entry": "e7"}), "which is not known"),
        (json!({"op": "replace", "entry": "e7", "content": " "}), "has blank `content`"),
        (json!("pin e7"), "is not an object"),
    ] {
        let value = json!({"context_edits": [{"op": "pin", "entry": "e1"}, edit]});
        assert_eq!(warned(HookEvent::TurnEnd, value, why).edits, None);
    }
}

#[test]
fn the_number_of_warnings_is_limited() {
    let output = normal(HookEvent::TurnEnd, json!({"follow_up_messages": vec![7; 1000]}));
    assert!(output.warnings.len() < 20);
    assert!(output.warnings.last().is_some_and(|last| last.starts_with("and 9")), "{:?}", output.warnings);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![
            "", "user", "continue", "mutate", "callback", "compact", "pin", "e7", "true"
        ])
        .prop_map(Value::from),
    ];
    let key =
        || prop::sample::select(vec!["role", "content", "text", "type", "op", "entry", "error", "metadata"]);
    leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..4).prop_map(|pairs| {
                Value::Object(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

const FIELDS: [&str; 14] = [
    "result",
    "action",
    "messages",
    "follow_up_messages",
    "replace_messages",
    "callback",
    "callback_args",
    "blocked",
    "decision",
    "input",
    "output",
    "context",
    "context_edits",
    "preserve_recent",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// No field values cause a panic, an empty history or a blank follow-up.
    #[test]
    fn any_result_is_normalized_safely(
        fields in prop::collection::vec((prop::sample::select(FIELDS.to_vec()), any_json()), 0..6),
        event in prop::sample::select(HookEvent::ALL.to_vec()),
    ) {
        let object = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let output = epitome::hooks::normalise::normalise(event, &object);
        if let HistoryAction::Mutate { messages, .. } = &output.action {
            prop_assert!(!messages.is_empty());
        }
        prop_assert!(output.follow_ups.iter().all(|follow_up| !follow_up.text.trim().is_empty()));
        prop_assert!(output.follow_ups.iter().all(|follow_up| follow_up.role != Role::Assistant));
    }
}
