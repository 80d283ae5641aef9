//! Sample events for hooks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use epitome::hooks::moment::{
    Base, Call, CallResult, CompactTrigger, ContextFacts, InvokedBy, Moment, Round, UsageFacts, What,
};
use epitome::thread::{Mode, ModelName, Seq, ToolKind, View};
use serde_json::Value;

pub fn moment(what: What) -> Moment {
    let base = Base {
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
    Moment { base, what }
}

/// The same event in the conversation of a subagent that runs a recipe.
pub fn in_subagent(mut moment: Moment, recipe: &str) -> Moment {
    moment.base.invoked_by = InvokedBy::Subagent;
    moment.base.recipe = recipe.to_owned();
    moment
}

pub fn call(tool: &str, input: Value) -> Call {
    let Value::Object(input) = input else { panic!("an input is an object") };
    Call { id: "call_1".to_owned(), tool: tool.to_owned(), input, kind: ToolKind::Other }
}

pub fn before(tool: &str, input: Value) -> Moment {
    moment(What::BeforeToolCall(call(tool, input)))
}

pub fn after(tool: &str, input: Value, result: CallResult) -> Moment {
    moment(What::AfterToolCall { call: call(tool, input), result })
}

pub fn result(text: &str, metadata: Option<Value>) -> CallResult {
    CallResult {
        success: true,
        error: None,
        metadata_type: None,
        metadata,
        text: text.to_owned(),
        milliseconds: 12,
        blocked: false,
    }
}

pub fn failure(error: &str) -> CallResult {
    CallResult { success: false, error: Some(error.to_owned()), ..result(error, None) }
}

pub fn prompt(message: &str) -> Moment {
    moment(What::UserMessageSend { message: message.to_owned(), attachments: Vec::new() })
}

pub fn stop(continuations: u32) -> Moment {
    let round = Round { response: "Done.".to_owned(), number: 3, session_number: 9, ..Round::default() };
    moment(What::AgentStop { round, stop_reason: "end_turn", continuations })
}

pub fn start(source: &'static str) -> Moment {
    moment(What::SessionStart { source })
}

pub fn end(reason: &'static str) -> Moment {
    moment(What::SessionEnd { reason })
}

pub fn pre_compact(trigger: CompactTrigger, custom_instructions: Option<&str>) -> Moment {
    moment(What::PreCompact {
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

pub fn post_compact(trigger: CompactTrigger) -> Moment {
    moment(What::PostCompact {
        trigger,
        tokens_before: 90_000,
        tokens_after: 6_000,
        summary: "They built a parser.".to_owned(),
        uuid: "7f0c".to_owned(),
        fallback: None,
    })
}
