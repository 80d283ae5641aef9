//! What is known at the moment when hooks run: the source of every payload.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::event::HookEvent;
use epitome_thread::{MessageId, Mode, ModelName, Part, Seq, ToolKind, View};

/// A moment: who and where, and what is about to happen or just has.
#[derive(Clone, Debug)]
pub struct Moment {
    pub base: Base,
    pub what: What,
}

/// What every payload tells.
#[derive(Clone, Debug)]
pub struct Base {
    pub session: String,
    pub cwd: PathBuf,
    pub invoked_by: InvokedBy,
    /// The recipe that runs; empty when none does.
    pub recipe: String,
    /// Not empty in callback runs alone.
    pub callback_args: BTreeMap<String, String>,
    pub callback_depth: u32,
    pub model: Option<ModelName>,
    pub mode: Mode,
    /// Of the view.
    pub revision: Seq,
    pub view: View,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    pub usage: UsageFacts,
    /// The threshold of automatic compaction as a share of the window; `None` when it is off.
    pub auto_compact: Option<f64>,
    pub context: ContextFacts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvokedBy {
    Main,
    Subagent,
}

/// Tokens and money. The window is never 0: scripts divide by it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UsageFacts {
    pub input: u64,
    pub output: u64,
    /// Tokens in context now.
    pub used: u64,
    /// The window.
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
    pub pinned: Vec<Part>,
}

/// What the moment is about.
#[derive(Clone, Debug)]
pub enum What {
    SessionStart {
        /// `startup`, `load`, `resume`, `fork`, `compact`.
        source: &'static str,
    },
    UserMessageSend {
        message: String,
        attachments: Vec<Attachment>,
    },
    BeforeToolCall(Call),
    AfterToolCall {
        call: Call,
        result: CallResult,
    },
    TurnEnd(Round),
    AgentStop {
        round: Round,
        stop_reason: &'static str,
        /// Follow-ups of hooks that this prompt was continued by.
        continuations: u32,
    },
    PreCompact {
        trigger: CompactTrigger,
        reason: &'static str,
        custom_instructions: Option<String>,
        /// Context that hooks want kept, so far.
        context: Vec<String>,
        tokens: u64,
        compact_count: usize,
        preserve_count: usize,
        recipe: String,
        /// Nothing else would fit the window: no hook may stop it.
        must: bool,
    },
    PostCompact {
        trigger: CompactTrigger,
        tokens_before: u64,
        tokens_after: u64,
        summary: String,
        /// Names the compaction.
        uuid: String,
        /// `truncated` when no summary could be had.
        fallback: Option<&'static str>,
    },
    SessionEnd {
        reason: &'static str,
    },
}

impl What {
    pub fn event(&self) -> HookEvent {
        match self {
            What::SessionStart { .. } => HookEvent::SessionStart,
            What::UserMessageSend { .. } => HookEvent::UserMessageSend,
            What::BeforeToolCall(_) => HookEvent::BeforeToolCall,
            What::AfterToolCall { .. } => HookEvent::AfterToolCall,
            What::TurnEnd(_) => HookEvent::TurnEnd,
            What::AgentStop { .. } => HookEvent::AgentStop,
            What::PreCompact { .. } => HookEvent::PreCompact,
            What::PostCompact { .. } => HookEvent::PostCompact,
            What::SessionEnd { .. } => HookEvent::SessionEnd,
        }
    }

    /// The call that the moment is about, before it runs or after.
    pub fn call(&self) -> Option<&Call> {
        match self {
            What::BeforeToolCall(call) | What::AfterToolCall { call, .. } => Some(call),
            What::SessionStart { .. }
            | What::UserMessageSend { .. }
            | What::TurnEnd(_)
            | What::AgentStop { .. }
            | What::PreCompact { .. }
            | What::PostCompact { .. }
            | What::SessionEnd { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactTrigger {
    Auto,
    Manual,
}

/// Something beside the text of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `image`, `resource`, `resource_link`.
    pub kind: &'static str,
    pub uri: Option<String>,
    pub mime_type: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: String,
    pub tool: String,
    /// What it is (to be) run with, after the hooks so far.
    pub input: Map<String, Value>,
    pub kind: ToolKind,
}

/// What came of a tool call, after the hooks so far.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    pub success: bool,
    pub error: Option<String>,
    /// A word for the form of `metadata`: the tool's name, `blocked`.
    pub metadata_type: Option<String>,
    pub metadata: Option<Value>,
    /// What the model reads.
    pub text: String,
    pub milliseconds: u64,
    /// A hook stopped the call; it did not run.
    pub blocked: bool,
}

/// A model's reply and what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The reply's text; may be empty.
    pub response: String,
    /// The reply's message, where one is in the log.
    pub message: Option<MessageId>,
    /// From 1, within the prompt.
    pub number: u32,
    /// From 1, within the conversation.
    pub session_number: u32,
    pub tools_used: bool,
}
