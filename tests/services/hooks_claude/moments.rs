//! Sample events for hooks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use epitome::hooks::hook_context::{
    CompactTrigger, ContextFacts, EventData, HookCall, HookCallResult, HookContext, HookRound, InvokedBy,
    PayloadBase, UsageFacts,
};
use epitome::thread::{Mode, ModelName, Seq, ToolKind, View};
use serde_json::Value;

pub fn hook_context(what: EventData) -> HookContext {
    let base = PayloadBase {
        session: "s_01".to_owned(),
        cwd: PathBuf::from("/w/app"),
        invoked_by: InvokedBy::Main,
        recipe: String::new(),
        callback_args: BTreeMap::new(),
        callback_depth: 0,
        model: Some(ModelName("some-model".to_owned())),
        mode: Mode::Ask,
        revision: Seq(7),
        view: View::default(),
        at: 1_700_000_000_000,
        usage: UsageFacts { size: 200_000, ..UsageFacts::default() },
        auto_compact: Some(0.8),
        context: ContextFacts::default(),
    };
    HookContext { base, what }
}

/// The same event in the conversation of a subagent that runs a recipe.
pub fn in_subagent(mut hook_context: HookContext, recipe: &str) -> HookContext {
    hook_context.base.invoked_by = InvokedBy::Subagent;
    hook_context.base.recipe = recipe.to_owned();
    hook_context
}

pub fn call(tool: &str, input: Value) -> HookCall {
    let Value::Object(input) = input else { panic!("an input is an object") };
    HookCall { id: "call_1".to_owned(), tool: tool.to_owned(), input, kind: ToolKind::Other }
}

pub fn before(tool: &str, input: Value) -> HookContext {
    hook_context(EventData::BeforeToolCall(call(tool, input)))
}

pub fn after(tool: &str, input: Value, result: HookCallResult) -> HookContext {
    hook_context(EventData::AfterToolCall { call: call(tool, input), result })
}

pub fn result(text: &str, metadata: Option<Value>) -> HookCallResult {
    HookCallResult {
        success: true,
        error: None,
        metadata_type: None,
        metadata,
        text: text.to_owned(),
        milliseconds: 12,
        blocked: false,
    }
}

pub fn failure(error: &str) -> HookCallResult {
    HookCallResult { success: false, error: Some(error.to_owned()), ..result(error, None) }
}

pub fn prompt(message: &str) -> HookContext {
    hook_context(EventData::UserMessageSend { message: message.to_owned(), attachments: Vec::new() })
}

pub fn stop(continuations: u32) -> HookContext {
    let round =
        HookRound { response: "Done.".to_owned(), number: 3, session_number: 9, ..HookRound::default() };
    hook_context(EventData::AgentStop { round, stop_reason: "end_turn", continuations })
}

pub fn start(source: &'static str) -> HookContext {
    hook_context(EventData::SessionStart { source })
}

pub fn end(reason: &'static str) -> HookContext {
    hook_context(EventData::SessionEnd { reason })
}

pub fn pre_compact(trigger: CompactTrigger, custom_instructions: Option<&str>) -> HookContext {
    hook_context(EventData::PreCompact {
        trigger,
        reason: "command",
        custom_instructions: custom_instructions.map(str::to_owned),
        context: Vec::new(),
        tokens: 90_000,
        compact_count: 30,
        preserve_count: 4,
        recipe: "compact".to_owned(),
        must: false,
    })
}

pub fn post_compact(trigger: CompactTrigger) -> HookContext {
    hook_context(EventData::PostCompact {
        trigger,
        tokens_before: 90_000,
        tokens_after: 6_000,
        summary: "They built a parser.".to_owned(),
        uuid: "7f0c".to_owned(),
        fallback: None,
    })
}
