//! Messages, tool calls and tool outcomes, independent of any provider or editor.
//!
//! These types are stored in journals: a field may be added with a default, but never renamed or given a new
//! meaning. A new meaning needs a new `Change`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decided::RecordedDecision;
use super::hosted_search::HostedSearch;
use crate::named_enum;

/// The id of a message in its thread: consecutive, in the order in which messages begin. Shown as `m7`.
///
/// It is assigned before the first delta is streamed, so that live chunks, the log and a replay use the same
/// id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(pub u64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// The id of a tool call: unique in its thread and of the form `[A-Za-z0-9_-]{1,64}`, which every provider
/// accepts. It is the model's own id if that is unique and well formed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message of the user (or on the user's behalf) or of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub id: MessageId,
    pub content: Vec<Content>,
    /// The name of the token with which the writer of a prompt connected from another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
}

impl Message {
    /// All text of the message, its parts joined by a blank line, without thinking and calls.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.content.iter().filter_map(Content::as_text).collect();
        texts.join("\n\n")
    }

    /// The text with that of the attached files. Images, documents and links, which have no text, are named in it;
    /// empty if there is nothing else.
    pub fn text_with_files(&self) -> String {
        let has_text = |content: &Content| match content {
            Content::Text { text } | Content::Resource { text, .. } => !text.trim().is_empty(),
            _ => false,
        };
        if !self.content.iter().any(has_text) {
            return String::new();
        }
        let parts = self.content.iter().filter_map(|content| match content {
            Content::Text { text } => Some(text.clone()),
            Content::Resource { uri, text } => Some(format!("[{uri}]\n{text}")),
            content => content.is_attachment().then(|| super::text::attached(content)),
        });
        parts.collect::<Vec<_>>().join("\n\n")
    }

    /// Replaces all text parts with a single one; attachments stay.
    pub fn set_text(&mut self, text: String) {
        self.content.retain(|content| !matches!(content, Content::Text { .. }));
        self.content.insert(0, Content::Text { text });
    }

    /// The provider's searches in the message as tool calls with their results.
    pub fn searches(&self) -> impl Iterator<Item = (ToolCall, ToolOutcome)> {
        self.content.iter().enumerate().filter_map(|(part, content)| match content {
            Content::Search(search) => search.as_call(self.id, part),
            _ => None,
        })
    }

    /// The tool calls of the message, in order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(Content::as_call)
    }
}

/// A part of a message. `Thinking` and `Call` occur only in an agent's message; `Image`, `Document`,
/// `Resource` and `ResourceLink` only in a user's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    Text {
        text: String,
    },
    /// Reasoning. `native` is the form in which its provider accepts it back; without it, the text is only
    /// shown to the user.
    Thinking {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native: Option<Native>,
    },
    /// `data` is base64.
    Image {
        mime_type: String,
        data: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uri: Option<String>,
    },
    /// A file that models read natively, such as a PDF. `data` is base64, `name` is for display.
    Document {
        mime_type: String,
        data: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// The text of a file that the editor put into the prompt (ACP embedded context).
    Resource {
        uri: String,
        text: String,
    },
    ResourceLink {
        uri: String,
        name: String,
    },
    Call(ToolCall),
    /// A web search that the provider ran while its model wrote the reply, or the sources of the text before it.
    Search(HostedSearch),
}

impl Content {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Content::Text { text } => Some(text),
            _ => None,
        }
    }

    /// Whether it is an image, a file, or a link to one.
    pub fn is_attachment(&self) -> bool {
        matches!(
            self,
            Content::Image { .. }
                | Content::Document { .. }
                | Content::Resource { .. }
                | Content::ResourceLink { .. }
        )
    }

    /// Whether something is lost if a text only names it: a link is nothing but a name.
    pub fn has_attached_data(&self) -> bool {
        self.is_attachment() && !matches!(self, Content::ResourceLink { .. })
    }

    /// Whether it has a form that only its provider can read.
    pub fn has_native(&self) -> bool {
        matches!(
            self,
            Content::Thinking { native: Some(_), .. } | Content::Search(HostedSearch { native: Some(_), .. })
        )
    }

    /// The call, if it is one.
    pub fn as_call(&self) -> Option<&ToolCall> {
        match self {
            Content::Call(call) => Some(call),
            _ => None,
        }
    }
}

/// A provider's own form of a part, such as signed thinking. It is sent back byte for byte to the provider
/// that made it and to no other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Native {
    /// The name of the provider (`anthropic`, `openai`, …); `model` is the model family that made the data.
    pub provider: String,
    pub model: String,
    pub data: Value,
}

/// A model's request to run a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: CallId,
    pub name: String,
    /// The arguments, always a JSON object. Arguments that could not be parsed are kept as
    /// `{"invalid_json": "…"}`, and such a call is never run.
    pub input: Value,
    pub card: CallDisplay,
}

/// Maximum nesting of JSON that an entry takes from models, hooks and servers. The log's reader accepts 127 levels, and
/// an entry is itself nested.
pub const FOREIGN_DEPTH_MAX: usize = 64;

/// Whether JSON has more than this many levels.
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    let is_deeper = |inner: &Value| is_deeper(inner, levels - 1);
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(is_deeper),
        Value::Object(fields) => levels == 0 || fields.values().any(is_deeper),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// How a tool call is shown to the user before it has run. Stored, so that a replay shows the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallDisplay {
    pub title: String,
    pub kind: ToolKind,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Location>,
}

/// ACP's kinds of tools, used by editors to choose icons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    Read,
    Edit,
    Delete,
    Move,
    Search,
    Execute,
    Think,
    Fetch,
    #[default]
    Other,
}

/// An absolute path with an optional line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    pub path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// The result of a tool call. A failed tool is a result for the model, not an error of Epitome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub call: CallId,
    pub status: OutcomeStatus,
    /// The content that the model reads. Never empty.
    pub content: Vec<OutcomeContent>,
    /// The content that the user sees; if empty, the same text as the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<ToolDisplay>,
    /// Affected files, if known only after the call ran; otherwise the card's locations apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Location>,
    /// Machine-readable output, such as `{stdout, stderr, exitCode}` of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
    /// The complete text, if `content` is only a part: output that is too large for the view stays in the
    /// log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
    /// The permission decision; `None` if the call is harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<RecordedDecision>,
}

/// The tool that writes the plan. Clients are shown the plan itself instead of its calls.
pub const PLAN_TOOL: &str = "todo_write";

/// The tool that searches the web: Epitome's, or in place of it that of the model's provider.
pub const SEARCH_TOOL: &str = "web_search";

/// The key in an outcome's `raw` for the states of the files that the call showed or changed.
pub const RAW_FILES: &str = "files";

impl ToolOutcome {
    /// An outcome with a single text, shown to the user as the model reads it.
    pub fn text(call: CallId, status: OutcomeStatus, text: impl Into<String>) -> ToolOutcome {
        ToolOutcome {
            call,
            status,
            content: vec![OutcomeContent::Text { text: text.into() }],
            shown: Vec::new(),
            locations: Vec::new(),
            raw: None,
            whole: None,
            decided: None,
        }
    }

    /// The text that the model reads, without images and documents.
    pub fn model_text(&self) -> String {
        let texts: Vec<&str> = self.content.iter().filter_map(OutcomeContent::as_text).collect();
        texts.join("\n")
    }
}

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OutcomeStatus {
        Completed = "completed",
        /// It ran and failed, or could not run; the content gives the reason.
        Failed = "failed",
        /// Refused by the user, a rule or a mode.
        Denied = "denied",
        /// Cut short by a cancel or a crash.
        Interrupted = "interrupted",
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutcomeContent {
    Text {
        text: String,
    },
    /// `data` is base64.
    Image {
        mime_type: String,
        data: String,
    },
    /// A file that models read natively, such as a PDF. `data` is base64.
    Document {
        mime_type: String,
        data: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

impl OutcomeContent {
    /// The same content of a message; `None` for what no tool returns.
    pub fn of(content: Content) -> Option<OutcomeContent> {
        match content {
            Content::Text { text } => Some(OutcomeContent::Text { text }),
            Content::Image { mime_type, data, .. } => Some(OutcomeContent::Image { mime_type, data }),
            Content::Document { mime_type, data, name } => {
                Some(OutcomeContent::Document { mime_type, data, name })
            }
            Content::Thinking { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. }
            | Content::Call(_)
            | Content::Search(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            OutcomeContent::Text { text } => Some(text),
            OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => None,
        }
    }
}

/// Output of a tool for display in an editor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolDisplay {
    /// Markdown.
    Text { text: String },
    /// A changed file; `old` is `None` for a new one.
    Diff {
        path: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        old: Option<String>,
        new: String,
    },
}

/// Tokens of one or more model calls. `input` is the complete context as the provider counted it, including
/// cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    #[serde(default)]
    pub cache_read: u64,
    #[serde(default)]
    pub cache_write: u64,
    #[serde(default)]
    pub thinking: u64,
    /// Web searches by the provider, which cost extra.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub searches: u64,
    /// Tokens of the context, if it was read several times, as for searches by the provider: `input` is their sum then. 0
    /// if `input` is the context.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub context: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// Applies a later report of the same call; its fields that are zero say nothing.
    pub fn update(&mut self, later: &Usage) {
        self.merge(later, |own, later| if later == 0 { own } else { later });
    }

    /// Tokens of the context in which the reply was generated.
    pub fn input_context(&self) -> u64 {
        if self.context == 0 { self.input } else { self.context }
    }

    /// All tokens. The numbers of an imported log may be any.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Adds another call's tokens.
    pub fn add(&mut self, other: &Usage) {
        self.merge(other, u64::saturating_add);
        // Several calls have no common context.
        self.context = 0;
    }

    fn merge(&mut self, other: &Usage, merged: fn(u64, u64) -> u64) {
        let Usage { input, output, cache_read, cache_write, thinking, searches, context } = self;
        let own = [input, output, cache_read, cache_write, thinking, searches, context];
        let Usage { input, output, cache_read, cache_write, thinking, searches, context } = *other;
        let others = [input, output, cache_read, cache_write, thinking, searches, context];
        own.into_iter().zip(others).for_each(|(own, other)| *own = merged(*own, other));
    }
}

/// A tool's definition, as sent to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the input, `type: object`. `null` for a tool that only a provider can run; it is not sent to
    /// others.
    pub schema: Value,
}

/// One step of the agent's plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStep {
    pub content: String,
    pub status: PlanStatus,
    #[serde(default)]
    pub priority: PlanPriority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanStatus {
    Pending,
    InProgress,
    Completed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanPriority {
    High,
    #[default]
    Medium,
    Low,
}
