//! What is said in a thread, in no provider's and no editor's terms.
//!
//! These types are stored in journals: a field may be added with a default, never renamed or given a
//! new meaning (a new meaning is a new `Change`).

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decided::Decided;

/// Names a message of a thread: dense, in the order in which messages begin. Shown as `m7`.
///
/// It is given out before the first delta is streamed, so that live chunks, the log and a replay
/// carry the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(pub u64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// Names a tool call: unique in its thread, of the form `[A-Za-z0-9_-]{1,64}`, so that every
/// provider accepts it. It is the model's own id where that is unique and well formed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One message by the person (or on their behalf) or by the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub id: MessageId,
    pub content: Vec<Content>,
}

impl Message {
    /// All text of the message, its parts joined by a blank line; thinking and calls left out.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter_map(|content| match content {
                Content::Text { text } => Some(text.as_str()),
                Content::Thinking { .. }
                | Content::Image { .. }
                | Content::Document { .. }
                | Content::Resource { .. }
                | Content::ResourceLink { .. }
                | Content::Call(_) => None,
            })
            .collect();
        texts.join("\n\n")
    }

    /// Puts one text in the place of all texts; what is attached stays.
    pub fn set_text(&mut self, text: String) {
        self.content.retain(|content| !matches!(content, Content::Text { .. }));
        self.content.insert(0, Content::Text { text });
    }

    /// The tool calls that the message asks for, in its order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(|content| match content {
            Content::Call(call) => Some(call),
            Content::Text { .. }
            | Content::Thinking { .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => None,
        })
    }
}

/// One part of a message. `Thinking` and `Call` are only in an agent's message; `Image`, `Document`,
/// `Resource` and `ResourceLink` only in a person's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    Text {
        text: String,
    },
    /// Reasoning. `native` is what its provider needs to take it back; without it the text is for
    /// people only.
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
    /// A file that models read as it is, such as a PDF. `data` is base64, `name` what people call it.
    Document {
        mime_type: String,
        data: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A file's text that the editor put into the prompt (ACP embedded context).
    Resource {
        uri: String,
        text: String,
    },
    ResourceLink {
        uri: String,
        name: String,
    },
    Call(ToolCall),
}

/// A provider's own form of a part (signed thinking), sent back byte for byte to the provider that
/// made it and to nobody else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Native {
    /// The provider's name (`anthropic`, `openai`, …) and model family that made it.
    pub provider: String,
    pub model: String,
    pub data: Value,
}

/// A request of the model to run a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: CallId,
    pub name: String,
    /// The arguments, always a JSON object. Arguments that could not be read are kept as
    /// `{"invalid_json": "…"}`, and such a call is never run.
    pub input: Value,
    pub card: Card,
}

/// What a person sees of a tool call before it has run. Stored, so that a replay shows what was shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub title: String,
    pub kind: ToolKind,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Location>,
}

/// The kinds that ACP knows, so that editors choose icons.
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

/// An absolute path and, where one is meant, a line from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    pub path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// What came of a tool call. A failing tool is news for the model, not an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    pub call: CallId,
    pub status: OutcomeStatus,
    /// What the model reads. Never empty.
    pub content: Vec<OutcomeContent>,
    /// What the person sees; where empty, the same text as the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<Shown>,
    /// Where it happened, when that is known only afterwards; else the card's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Location>,
    /// For machines: `{stdout, stderr, exitCode}` of a command, and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
    /// All of its text, where `content` is only a part: what is too large for the view stays in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<String>,
    /// Who let the call run or refused it; nothing where it is harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Decided>,
}

/// Where in an outcome's `raw` the states of the files stand that the call has shown or left.
pub const RAW_FILES: &str = "files";

impl ToolOutcome {
    /// An outcome that is one text, shown to the person as the model reads it.
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

    /// What the model reads, images and documents left out.
    pub fn model_text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter_map(|content| match content {
                OutcomeContent::Text { text } => Some(text.as_str()),
                OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => None,
            })
            .collect();
        texts.join("\n")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    Completed,
    /// It ran, or could not, and says why.
    Failed,
    /// The person, a rule or a mode said no.
    Denied,
    /// A cancel or a crash came before its end.
    Interrupted,
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
    /// A file that models read as it is, such as a PDF. `data` is base64.
    Document {
        mime_type: String,
        data: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

/// What an editor shows of a tool's work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Shown {
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

/// Tokens of one model call. `input` is the whole context as the provider counted it, cached
/// tokens included.
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
}

impl Usage {
    /// Adds another call's tokens.
    pub fn add(&mut self, other: &Usage) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.thinking = self.thinking.saturating_add(other.thinking);
    }
}

/// A tool as the model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the input, `type: object`.
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
