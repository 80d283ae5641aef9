//! The payloads that hooks receive.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome::hooks::hook::PayloadMessages;
use epitome::hooks::hook_context::{EventData, HookContext, PromptAttachment};
use epitome::hooks::messages::{MESSAGES_BYTES_MAX, messages};
use epitome::hooks::payload::{Addressee, payload, timestamp};
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, HistoryMessage, Message, MessageId,
    ModelName, Origin, OutcomeStatus, PartId, Role, Seq, SessionId, Thread, ToolCall, ToolOutcome, Trigger,
    View,
};
use serde_json::{Value, json};

use super::support::*;

fn given(hook_context: &HookContext, event_name: &str, messages: Option<PayloadMessages>) -> Value {
    payload(hook_context, &Addressee { name: "a", event_name, messages, transcript: None })
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

const BASE: [&str; 12] = [
    "event",
    "canonical_event",
    "conv_id",
    "session_id",
    "cwd",
    "invoked_by",
    "invoked_recipe",
    "callback_depth",
    "protocol",
    "hook_name",
    "timestamp",
    "revision",
];

#[test]
fn the_turn_end_payload_has_every_field_that_kodelet_scripts_read() {
    let given = given(&turn_end(), "after_turn", None);
    let expected = json!({
        "event": "after_turn", "canonical_event": "turn_end", "conv_id": "s_01", "session_id": "s_01",
        "cwd": "/w/app", "invoked_by": "main", "invoked_recipe": "", "callback_depth": 0, "turn_number": 5,
        "session_turn_number": 41, "tools_used": true, "response": "", "last_assistant_content": "",
        "usage": {"input_tokens": 80000, "output_tokens": 8000, "current_context_window": 88000,
                  "max_context_window": 128000},
        "auto_compact_enabled": true, "auto_compact_threshold": 0.8,
    });
    for (name, value) in expected.as_object().unwrap() {
        match value {
            Value::Object(usage) => {
                for (field, number) in usage {
                    assert_eq!(&given[name][field], number, "{name}.{field}");
                }
            }
            _ => assert_eq!(&given[name], value, "{name}"),
        }
    }
}

#[test]
fn every_payload_has_the_base_fields_followed_by_those_of_its_event() {
    let call = ["tool_name", "tool_input", "tool_user_id", "tool_call_id", "tool_kind"];
    let auto = ["auto_compact_enabled", "auto_compact_threshold"];
    let fields: [Vec<&str>; 9] = [
        vec!["source"],
        vec!["message", "attachments"],
        call.to_vec(),
        [&call[..], &["tool_output", "output_text", "duration_ms", "blocked"]].concat(),
        [
            &["context", "response", "last_assistant_content", "turn_number", "session_turn_number"][..],
            &["tools_used", "usage"],
            &auto,
        ]
        .concat(),
        [
            &["context", "messages", "usage"][..],
            &auto,
            &["response", "last_assistant_content", "turn_number", "stop_reason", "stop_hook_active"],
            &["continuations"],
        ]
        .concat(),
        vec![
            "context",
            "trigger",
            "reason",
            "custom_instructions",
            "usage",
            "pre_tokens",
            "compact_count",
            "preserve_count",
            "recipe",
        ],
        vec!["trigger", "pre_tokens", "post_tokens", "summary", "uuid", "fallback"],
        vec!["reason"],
    ];
    for (hook_context, fields) in every_moment().into_iter().zip(fields) {
        let given = given(&hook_context, "as registered", None);
        assert_eq!(keys(&given), [&BASE[..], &fields[..]].concat(), "{}", hook_context.what.event());
        assert_eq!(given["event"], "as registered");
        assert_eq!(given["canonical_event"], hook_context.what.event().name());
    }
}

#[test]
fn a_tool_outcome_has_kodelets_form() {
    let given_ = given(&after_call("files"), "after_tool_call", None);
    let expected = json!({
        "toolName": "bash", "success": true, "metadataType": "bash",
        "metadata": {"output": "files", "exitCode": 0}, "timestamp": "2024-01-15T10:30:00Z",
    });
    assert_eq!(given_["tool_output"], expected);
    assert_eq!(given_["tool_user_id"], given_["tool_call_id"]);
    assert_eq!((&given_["tool_kind"], &given_["duration_ms"]), (&json!("execute"), &json!(12)));
    let mut blocked = after_call("no");
    if let EventData::AfterToolCall { result, .. } = &mut blocked.what {
        result.success = false;
        result.blocked = true;
        result.error = Some("no".to_owned());
        result.metadata_type = Some("blocked".to_owned());
        result.metadata = None;
    }
    let given_ = given(&blocked, "tool.result", None);
    assert_eq!(keys(&given_["tool_output"]), ["toolName", "success", "error", "metadataType", "timestamp"]);
    assert_eq!(given_["blocked"], true);
}

#[test]
fn the_recipe_has_two_names_and_recipe_name_only_while_one_runs() {
    let mut hook_context = turn_end();
    assert_eq!(given(&hook_context, "turn_end", None).get("recipe_name"), None);
    hook_context.base.recipe = "compact".to_owned();
    let given = given(&hook_context, "turn_end", None);
    assert_eq!((&given["recipe_name"], &given["invoked_recipe"]), (&json!("compact"), &json!("compact")));
}

#[test]
fn a_callback_run_receives_its_arguments() {
    let mut hook_context = agent_stop();
    hook_context.base.callback_depth = 1;
    hook_context.base.callback_args.insert("target_conversation_id".to_owned(), "s_01".to_owned());
    let given = given(&hook_context, "agent_stop", None);
    assert_eq!(given["callback_args"], json!({"target_conversation_id": "s_01"}));
    assert_eq!(given["callback_depth"], 1);
}

#[test]
fn disabled_or_unknown_fields_are_omitted_and_the_window_is_never_0() {
    let mut hook_context = turn_end();
    hook_context.base.auto_compact = None;
    hook_context.base.usage = Default::default();
    let given_ = given(&hook_context, "turn_end", None);
    assert_eq!(given_["auto_compact_enabled"], false);
    assert_eq!(given_.get("auto_compact_threshold"), None);
    assert_eq!(given_["usage"]["max_context_window"], 1);
    assert_eq!(given_["context"]["size"], 1);
    assert_eq!(given_["usage"].get("cost_usd"), None);
    hook_context.base.usage.cost = Some(0.25);
    hook_context.base.model = Some(ModelName("anthropic/claude-x/y".to_owned()));
    let given_ = given(&hook_context, "turn_end", None);
    assert_eq!(given_["usage"]["cost_usd"], 0.25);
    assert_eq!((&given_["provider"], &given_["model"]), (&json!("anthropic"), &json!("claude-x/y")));
    let compaction = given(&pre_compact(false), "PreCompact", None);
    assert_eq!(compaction["custom_instructions"], Value::Null);
}

#[test]
fn the_context_object_has_counts_and_pinned_entries() {
    let mut hook_context = turn_end();
    hook_context.base.context.entries = 34;
    hook_context.base.context.since_compaction = 4;
    hook_context.base.context.compactions = 2;
    hook_context.base.context.pinned =
        vec![PartId { entry: Seq(7), part: None }, PartId { entry: Seq(8), part: Some(2) }];
    let expected = json!({
        "used": 88000, "size": 128000, "entries": 34, "since_compaction": 4, "compaction_count": 2,
        "pinned": ["e7", "e8.2"],
    });
    assert_eq!(given(&hook_context, "turn_end", None)["context"], expected);
}

#[test]
fn attachments_and_transcript_have_their_locations() {
    let mut hook_context = prompt("look");
    if let EventData::UserMessageSend { attachments, .. } = &mut hook_context.what {
        attachments.push(PromptAttachment {
            kind: "image",
            uri: None,
            mime_type: Some("image/png".to_owned()),
        });
    }
    let to = Addressee {
        name: "a",
        event_name: "user.message",
        messages: None,
        transcript: Some(Path::new("/tmp/t.jsonl")),
    };
    let given = payload(&hook_context, &to);
    assert_eq!(given["attachments"], json!([{"type": "image", "mime_type": "image/png"}]));
    assert_eq!(given["transcript_path"], "/tmp/t.jsonl");
}

#[test]
fn times_are_iso_8601_in_utc() {
    assert_eq!(timestamp(1_705_314_600_000), "2024-01-15T10:30:00Z");
    assert_eq!(timestamp(1_705_314_600_250), "2024-01-15T10:30:00.25Z");
    timestamp(u64::MAX);
}

// The conversation.

fn log(changes: Vec<Change>) -> View {
    let opened = Change::Opened {
        format: FORMAT_VERSION,
        session: SessionId("s_00000000000000000000".to_owned()),
        cwd: PathBuf::from("/w"),
    };
    let entries = std::iter::once(opened)
        .chain(changes)
        .zip(0..)
        .map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change }));
    Thread::replay(entries).expect("a log").view().clone()
}

fn text(id: u64, text: &str) -> Message {
    Message { id: MessageId(id), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

fn said(id: u64, words: &str) -> Change {
    Change::Said { message: text(id, words), origin: Origin::Person }
}

fn conversation() -> View {
    let call = |id: &str, path: &str| {
        Content::Call(ToolCall {
            id: CallId(id.to_owned()),
            name: "file_edit".to_owned(),
            input: json!({"path": path}),
            card: CallDisplay::default(),
        })
    };
    let mut reply = text(1, "I will.");
    reply.content.insert(0, Content::Thinking { text: "hm".to_owned(), native: None });
    reply.content.extend([call("c1", "a"), call("c2", "b")]);
    let silent = Message { id: MessageId(3), content: vec![call("c3", "c")], author: None };
    let model = ModelName("p/m".to_owned());
    let replied = |message| Change::Replied { message, model: model.clone(), usage: None, cut: None };
    let done = |id: &str, words: &str| Change::ToolFinished {
        outcome: ToolOutcome::text(CallId(id.to_owned()), OutcomeStatus::Completed, words),
    };
    log(vec![
        said(0, "Fix the bug"),
        replied(reply),
        done("c2", "edited b"),
        done("c1", "edited a"),
        Change::Said { message: text(2, "It rains."), origin: Origin::Context { by: "weather".to_owned() } },
        replied(silent),
        done("c3", "edited c"),
    ])
}

#[test]
fn the_conversation_has_ids_that_edits_can_refer_to() {
    let given: Vec<String> = messages(&conversation(), PayloadMessages::Full)
        .iter()
        .map(|one| {
            let word = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
            ["id", "role", "kind", "tool_call_id", "content"].map(word).join(" | ")
        })
        .collect();
    let expected = [
        "e1 | user | text | - | Fix the bug",
        "e2 | assistant | text | - | I will.",
        r#"e2.1 | assistant | tool_use | c1 | Using tool: file_edit with input: {"path":"a"}"#,
        r#"e2.2 | assistant | tool_use | c2 | Using tool: file_edit with input: {"path":"b"}"#,
        "e4 | assistant | tool_result | c1 | Tool result: edited a",
        "e3 | assistant | tool_result | c2 | Tool result: edited b",
        "e5 | user | context | - | It rains.",
        r#"e6.1 | assistant | tool_use | c3 | Using tool: file_edit with input: {"path":"c"}"#,
        "e7 | assistant | tool_result | c3 | Tool result: edited c",
    ];
    assert_eq!(given, expected);
    for one in messages(&conversation(), PayloadMessages::Full) {
        let id = one["id"].as_str().expect("an id");
        assert_eq!(id.parse::<PartId>().expect("an id that edits can name").to_string(), id);
    }
}

#[test]
fn a_summary_has_its_own_kind() {
    let view = log(vec![
        said(0, "one"),
        Change::Compacted {
            through: Seq(1),
            summary: text(1, "S"),
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 2,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Default::default(),
        },
    ]);
    let expected = json!({"id": "e2", "role": "user", "content": "S", "kind": "compaction_summary"});
    assert_eq!(messages(&view, PayloadMessages::Full), [expected]);
}

#[test]
fn messages_of_a_history_made_by_a_hook_have_their_own_ids() {
    let spoken = |role, id, words| HistoryMessage { role, message: text(id, words) };
    let view = log(vec![
        said(0, "one"),
        Change::Mutated {
            through: Seq(1),
            messages: vec![spoken(Role::User, 1, "S"), spoken(Role::Assistant, 2, "T")],
            by: "a".to_owned(),
            tokens_before: 2,
            tokens_after: 1,
            window: None,
        },
        said(3, "two"),
    ]);
    let given: Vec<String> = messages(&view, PayloadMessages::Full)
        .iter()
        .map(|one| ["id", "role", "content"].map(|name| one[name].as_str().expect("text")).join(" "))
        .collect();
    assert_eq!(given, ["e2.1 user S", "e2.2 assistant T", "e3 user two"]);
}

#[test]
fn a_hook_receives_as_many_messages_as_it_requests() {
    let at = |mut hook_context: HookContext, asked| {
        hook_context.base.view = conversation();
        let given = given(&hook_context, "x", asked);
        given.get("messages").map(|messages| messages.as_array().expect("a list").len())
    };
    for (hook_context, asked, count) in [
        (agent_stop(), None, Some(9)),
        (agent_stop(), Some(PayloadMessages::Full), Some(9)),
        (agent_stop(), Some(PayloadMessages::Last(2)), Some(2)),
        (agent_stop(), Some(PayloadMessages::Last(100)), Some(9)),
        (agent_stop(), Some(PayloadMessages::None), Some(0)),
        (turn_end(), None, None),
        (turn_end(), Some(PayloadMessages::Full), Some(9)),
        (turn_end(), Some(PayloadMessages::None), None),
        (pre_compact(false), None, None),
        (pre_compact(false), Some(PayloadMessages::Full), Some(9)),
        (before_call(), Some(PayloadMessages::Full), None),
    ] {
        assert_eq!(at(hook_context.clone(), asked), count, "{} {asked:?}", hook_context.what.event());
    }
    assert_eq!(messages(&conversation(), PayloadMessages::Last(1))[0]["id"], "e7");
}

#[test]
fn beyond_the_size_limit_the_oldest_contents_are_cut() {
    let big = "ä".repeat(MESSAGES_BYTES_MAX / 4);
    let view = log(vec![said(0, "first"), said(1, &big), said(2, &big), said(3, "last")]);
    let given = messages(&view, PayloadMessages::Full);
    let contents: Vec<&str> = given.iter().map(|one| one["content"].as_str().expect("text")).collect();
    assert_eq!(contents[3], "last");
    assert_eq!(contents[2], big);
    assert!(contents[1].ends_with(" bytes left out]") && contents[1].starts_with('ä'));
    assert_eq!(contents[0], "[cut here: 5 of 5 bytes left out]");
    let total: usize = contents.iter().map(|content| content.len()).sum();
    assert!(total < MESSAGES_BYTES_MAX + 200);
}
