//! The sample events for the payloads in the pages.

use std::path::PathBuf;
use std::sync::Arc;

use epitome::hooks::event::HookEvent;
use epitome::hooks::hook::PayloadMessages;
use epitome::hooks::hook_context::{
    CompactTrigger, ContextFacts, EventData, HookCall, HookCallResult, HookContext, HookRound, InvokedBy,
    PayloadBase, UsageFacts,
};
use epitome::hooks::payload::{Addressee, payload};
use epitome::thread::{
    Change, Content, Entry, FORMAT_VERSION, Message, MessageId, Mode, ModelName, Origin, Seq, SessionId,
    Thread, ToolKind,
};
use serde_json::{Map, Value, json};

/// 2026-01-15, 10:30 UTC, in milliseconds.
const AT: u64 = 1_768_473_000_000;

/// A sample event in the middle of a turn.
pub fn hook_context(event: HookEvent) -> HookContext {
    let call = || HookCall {
        id: "call_1".to_owned(),
        tool: "bash".to_owned(),
        input: Map::from_iter([("command".to_owned(), json!("cargo test"))]),
        kind: ToolKind::Execute,
    };
    let round = HookRound {
        response: "All tests pass.".to_owned(),
        message: None,
        number: 5,
        session_number: 41,
        tools_used: false,
    };
    let what = match event {
        HookEvent::SessionStart => EventData::SessionStart { source: "startup" },
        HookEvent::UserMessageSend => {
            EventData::UserMessageSend { message: "Fix the parser.".to_owned(), attachments: Vec::new() }
        }
        HookEvent::BeforeToolCall => EventData::BeforeToolCall(call()),
        HookEvent::AfterToolCall => EventData::AfterToolCall {
            call: call(),
            result: HookCallResult {
                success: true,
                error: None,
                metadata_type: Some("bash".to_owned()),
                metadata: Some(json!({"stdout": "ok\n", "exitCode": 0})),
                text: "ok\n".to_owned(),
                milliseconds: 1200,
                blocked: false,
            },
        },
        HookEvent::PermissionRequest => EventData::PermissionRequest(call()),
        HookEvent::Notification => EventData::Notification {
            kind: "permission_prompt",
            message: "Permission is needed to use Bash.".to_owned(),
        },
        HookEvent::SubagentStart => {
            EventData::SubagentStart { agent: "explore".to_owned(), id: "s_02".to_owned() }
        }
        HookEvent::TaskCompleted => {
            EventData::TaskCompleted { number: 1, subject: "Fix the parser".to_owned() }
        }
        HookEvent::TurnFailed => {
            EventData::TurnFailed { kind: "server_error", message: "The provider is overloaded.".to_owned() }
        }
        HookEvent::TurnEnd => EventData::TurnEnd(round),
        HookEvent::AgentStop => EventData::AgentStop { round, stop_reason: "end_turn", continuations: 0 },
        HookEvent::PreCompact => EventData::PreCompact {
            trigger: CompactTrigger::Auto,
            reason: "threshold",
            custom_instructions: None,
            context: Vec::new(),
            tokens: 88_000,
            compact_count: 30,
            preserve_count: 4,
            recipe: "compact".to_owned(),
            must: false,
        },
        HookEvent::PostCompact => EventData::PostCompact {
            trigger: CompactTrigger::Auto,
            tokens_before: 88_000,
            tokens_after: 6_000,
            summary: "## Goal\nA parser that …".to_owned(),
            uuid: "0b7d3a52-91c4-4d0e-8f11-5a0c6d2e9b34".to_owned(),
            fallback: None,
        },
        HookEvent::SessionEnd => EventData::SessionEnd { reason: "other" },
    };
    let view = thread().view().clone();
    let base = PayloadBase {
        session: "s_01".to_owned(),
        cwd: PathBuf::from("/home/ann/app"),
        invoked_by: InvokedBy::Main,
        recipe: String::new(),
        callback_args: Default::default(),
        callback_depth: 0,
        model: Some(ModelName("anthropic/claude-sonnet-5-5".to_owned())),
        mode: Mode::default(),
        revision: view.revision(),
        view,
        at: AT,
        usage: UsageFacts { input: 80_000, output: 8_000, used: 88_000, size: 128_000, ..Default::default() },
        auto_compact: Some(0.8),
        context: ContextFacts { entries: 34, since_compaction: 34, compactions: 0, pinned: Vec::new() },
    };
    HookContext { base, what }
}

/// A conversation of one prompt.
fn thread() -> Thread {
    let said = Message {
        id: MessageId(1),
        content: vec![Content::Text { text: "Fix the parser.".to_owned() }],
        author: None,
    };
    let changes = [
        Change::Opened {
            format: FORMAT_VERSION,
            session: SessionId("s_01".to_owned()),
            cwd: PathBuf::from("/home/ann/app"),
        },
        Change::Said { message: said, origin: Origin::Person },
    ];
    let entries = changes.into_iter().zip(0..);
    let entries = entries.map(|(change, seq)| Arc::new(Entry { seq: Seq(seq), at: AT, change }));
    Thread::replay(entries).expect("a sound log")
}

/// The payload that a hook of this name receives for a sample event.
pub fn of(event: HookEvent, hook: &str, messages: Option<PayloadMessages>) -> Value {
    let to = Addressee { name: hook, event_name: event.name(), messages, transcript: None };
    payload(&hook_context(event), &to)
}
