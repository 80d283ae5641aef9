//! The state of a session at an event, from which every payload is built.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::event::HookEvent;
use epitome_thread::{MessageId, Mode, ModelName, PartId, Seq, ToolKind, View, named_enum};

/// An event with its circumstances.
#[derive(Clone, Debug)]
pub struct HookContext {
    pub base: PayloadBase,
    pub what: EventData,
}

/// The fields common to all payloads.
#[derive(Clone, Debug)]
pub struct PayloadBase {
    pub session: String,
    pub cwd: PathBuf,
    pub invoked_by: InvokedBy,
    /// The running recipe; empty if none runs.
    pub recipe: String,
    /// Empty except in callback runs.
    pub callback_args: BTreeMap<String, String>,
    pub callback_depth: u32,
    pub model: Option<ModelName>,
    pub mode: Mode,
    /// The revision of the view.
    pub revision: Seq,
    pub view: View,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    pub usage: UsageFacts,
    /// The threshold of automatic compaction as a fraction of the window; `None` if it is off.
    pub auto_compact: Option<f64>,
    pub context: ContextFacts,
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum InvokedBy {
        Main = "main",
        Subagent = "subagent",
    }
}

/// Tokens and cost. The window size is never 0: scripts divide by it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageFacts {
    pub input: u64,
    pub output: u64,
    /// Tokens currently in the context.
    pub used: u64,
    /// Size of the context window.
    pub size: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    /// US dollars.
    pub cost: Option<f64>,
}

/// The `context` object of payloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextFacts {
    pub entries: usize,
    /// Entries since the last compaction.
    pub since_compaction: usize,
    pub compactions: usize,
    pub pinned: Vec<PartId>,
}

/// The event-specific data.
#[derive(Clone, Debug)]
pub enum EventData {
    SessionStart {
        /// `startup`, `load`, `resume`, `fork`, `compact`.
        source: &'static str,
    },
    UserMessageSend {
        message: String,
        attachments: Vec<PromptAttachment>,
    },
    BeforeToolCall(HookCall),
    AfterToolCall {
        call: HookCall,
        result: HookCallResult,
    },
    PermissionRequest(HookCall),
    Notification {
        /// `permission_prompt`.
        kind: &'static str,
        message: String,
    },
    SubagentStart {
        /// The agent's name.
        agent: String,
        /// The id of its session.
        id: String,
    },
    TaskCompleted {
        /// Its position in the plan, from 1.
        number: usize,
        subject: String,
    },
    TurnEnd(HookRound),
    AgentStop {
        round: HookRound,
        stop_reason: &'static str,
        /// How many times follow-ups of hooks have continued this prompt.
        continuations: u32,
    },
    PreCompact {
        trigger: CompactTrigger,
        reason: &'static str,
        custom_instructions: Option<String>,
        /// Context that hooks have asked to keep so far.
        context: Vec<String>,
        tokens: u64,
        compact_count: usize,
        preserve_count: usize,
        recipe: String,
        /// There is no other way to fit the window: hooks cannot block it.
        must: bool,
    },
    PostCompact {
        trigger: CompactTrigger,
        tokens_before: u64,
        tokens_after: u64,
        summary: String,
        /// Identifies the compaction.
        uuid: String,
        /// `truncated` if no summary could be obtained.
        fallback: Option<&'static str>,
    },
    SessionEnd {
        reason: &'static str,
    },
    TurnFailed {
        /// One of Claude Code's names: `server_error`, `rate_limit`, `authentication_failed` or `invalid_request`.
        kind: &'static str,
        message: String,
    },
}

impl EventData {
    pub fn event(&self) -> HookEvent {
        match self {
            EventData::SessionStart { .. } => HookEvent::SessionStart,
            EventData::UserMessageSend { .. } => HookEvent::UserMessageSend,
            EventData::BeforeToolCall(_) => HookEvent::BeforeToolCall,
            EventData::AfterToolCall { .. } => HookEvent::AfterToolCall,
            EventData::PermissionRequest(_) => HookEvent::PermissionRequest,
            EventData::Notification { .. } => HookEvent::Notification,
            EventData::SubagentStart { .. } => HookEvent::SubagentStart,
            EventData::TaskCompleted { .. } => HookEvent::TaskCompleted,
            EventData::TurnEnd(_) => HookEvent::TurnEnd,
            EventData::AgentStop { .. } => HookEvent::AgentStop,
            EventData::PreCompact { .. } => HookEvent::PreCompact,
            EventData::PostCompact { .. } => HookEvent::PostCompact,
            EventData::SessionEnd { .. } => HookEvent::SessionEnd,
            EventData::TurnFailed { .. } => HookEvent::TurnFailed,
        }
    }

    /// The tool call that the event is about, before or after it runs.
    pub fn call(&self) -> Option<&HookCall> {
        match self {
            EventData::BeforeToolCall(call)
            | EventData::AfterToolCall { call, .. }
            | EventData::PermissionRequest(call) => Some(call),
            _ => None,
        }
    }

    /// The round that has just ended.
    pub fn round(&self) -> Option<&HookRound> {
        let (EventData::TurnEnd(round) | EventData::AgentStop { round, .. }) = self else { return None };
        Some(round)
    }

    /// The cause of the compaction that the event is about.
    pub fn trigger(&self) -> Option<CompactTrigger> {
        let (EventData::PreCompact { trigger, .. } | EventData::PostCompact { trigger, .. }) = self else {
            return None;
        };
        Some(*trigger)
    }
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CompactTrigger {
        Auto = "auto",
        Manual = "manual",
    }
}

/// An attachment of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PromptAttachment {
    /// `image`, `resource`, `resource_link`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct HookCall {
    pub id: String,
    pub tool: String,
    /// The input, including changes by hooks so far.
    pub input: Map<String, Value>,
    pub kind: ToolKind,
}

/// The result of a tool call, including changes by hooks so far.
#[derive(Clone, Debug, PartialEq)]
pub struct HookCallResult {
    pub success: bool,
    pub error: Option<String>,
    /// Identifies the form of `metadata`: the tool's name, or `blocked`.
    pub metadata_type: Option<String>,
    pub metadata: Option<Value>,
    /// The text for the model.
    pub text: String,
    pub milliseconds: u64,
    /// A hook blocked the call; it did not run.
    pub blocked: bool,
}

/// A model's reply and the results of its tool calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookRound {
    /// The reply's text; may be empty.
    pub response: String,
    /// The id of the reply's message, if it is in the log.
    pub message: Option<MessageId>,
    /// 1-based, within the prompt.
    pub number: u32,
    /// 1-based, within the conversation.
    pub session_number: u32,
    pub tools_used: bool,
}
