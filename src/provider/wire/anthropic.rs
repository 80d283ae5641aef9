//! Encodes requests in Anthropic's Messages format. Pure; nothing is sent from here. Compatible services only
//! get fields that all of them know.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::parts::{Sendable, said, shown};
use super::turns::{Answer, NO_OUTCOME, NO_OUTPUT, Turn, without_blanks, without_thinking_at_end};
use super::{
    Around, Envelope, Format, Marks, Prefix, Purpose, Written, compaction, is_own, json, json_text, put,
    write_up_to,
};
use crate::abilities::{Effort, Thinking as Steered};
use crate::endpoint::Endpoint;
use epitome_thread::{Content, Native, OutcomeStatus, ToolSpec};
use epitome_tokens::family::Family;

/// Anthropic's Messages format.
///
/// Thinking is sent back byte for byte to the model that generated it, and only after exactly the same
/// prefix: newer models reject it after any other, for example after a compaction or its undo.
pub struct Anthropic;

impl Format for Anthropic {
    fn tools(&self, _: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        let tools: Vec<Tool<'_>> = tools
            .iter()
            .map(|tool| Tool { name: &tool.name, description: &tool.description, input_schema: &tool.schema })
            .collect();
        json(&tools)
    }

    fn turn(&self, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix, out: &mut Vec<u8>) -> Written {
        match turn {
            Turn::User { compacted, answers, parts } => {
                let given: Vec<&Value> =
                    compacted.iter().filter_map(|native| compaction::own(native, endpoint)).collect();
                // Only one compaction is accepted, as the very first block; the newest is the one in effect.
                if let Some(given) = given.last() {
                    put(&Message { role: Role::Assistant, content: vec![Sent::Native(given)] }, prefix, out);
                }
                let repeated = match (given.last(), parts.as_slice()) {
                    // User content must follow the compaction.
                    (Some(given), [first, _, ..]) => compaction::is_repeated(given, first),
                    (Some(_) | None, _) => false,
                };
                let parts = &parts[usize::from(repeated)..];
                let results = answers.iter().map(|answer| Sent::Block(result(answer, endpoint)));
                let said = parts.iter().filter_map(|part| said(part, endpoint)).map(Sent::from);
                let content: Vec<Sent<'_>> = results.chain(said).collect();
                put(&Message { role: Role::User, content }, prefix, out);
                // The last block ends with its own brace, followed by the ends of the list and the message.
                Written { mark: Some(out.len() - "}]}".len()), begins_with_thinking: false }
            }
            Turn::Agent { replies } => {
                let mut begins_with_thinking = false;
                for (at, parts) in replies.iter().enumerate() {
                    let so_far = prefix.digest();
                    let parts = without_blanks(parts);
                    let content: Vec<Sent<'_>> = without_thinking_at_end(&parts)
                        .iter()
                        .filter_map(|part| replied(part, endpoint, &so_far))
                        .collect();
                    if at == 0 {
                        begins_with_thinking = matches!(content.first(), Some(Sent::Native(_)));
                    }
                    put(&Message { role: Role::Assistant, content }, prefix, out);
                }
                Written { mark: Some(out.len() - "}]}".len()), begins_with_thinking }
            }
        }
    }

    fn envelope(&self, endpoint: &Endpoint, around: &Around<'_>) -> Envelope {
        let request = around.request;
        let max_tokens = request.max_output.min(endpoint.max_output);
        let thinking = thinking(endpoint, around);
        let effort = matches!(thinking, Some(Thinking::Adaptive { .. }))
            .then(|| endpoint.abilities.thinking.effort(request.thought))
            .flatten()
            .map(|effort| OutputConfig { effort: effort.word() });
        // All servers in front of these models accept the mark on the system text. The automatic mark is a
        // field of Anthropic's own API that others may reject; for them, the last block is marked instead.
        // Standalone requests are not marked: nothing would read the cache, and writing it costs more than
        // plain input.
        let goes_on = request.basis.is_some();
        let marks_blocks = goes_on && (endpoint.own_api || Family::of(&endpoint.model) == Family::Claude);
        let system = (!request.system.trim().is_empty()).then(|| {
            [SystemText { r#type: "text", text: request.system, cache_control: mark(marks_blocks) }]
        });
        let (is_answered, summarise) = match around.purpose {
            Purpose::Reply => (true, None),
            Purpose::Count => (false, None),
            Purpose::Compact { instruction } => {
                (true, Some(Summarise { r#type: "summarize", instructions: instruction }))
            }
        };
        let opening = Opening {
            model: &endpoint.model,
            max_tokens: is_answered.then_some(max_tokens),
            stream: is_answered.then_some(true),
            cache_control: mark(endpoint.own_api && goes_on && is_answered),
            thinking,
            output_config: effort,
            compaction: summarise,
            system,
            tools: (!request.tools.is_empty()).then(|| json_text(around.tools)),
        };
        let mut head = Vec::with_capacity(request.system.len() + around.tools.len() + 512);
        write_up_to("messages", &opening, &mut head);
        let marks = (marks_blocks && is_answered)
            .then_some(Marks { text: r#","cache_control":{"type":"ephemeral"}"#, newest: !endpoint.own_api });
        Envelope { head, tail: "]}", marks }
    }
}

#[derive(Serialize)]
struct Opening<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Thinking>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<Summarise<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[SystemText<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
}

/// Requests a compaction instead of a reply.
#[derive(Serialize)]
struct Summarise<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
}

#[derive(Serialize)]
struct SystemText<'a> {
    r#type: &'static str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
struct Message<'a> {
    role: Role,
    content: Vec<Sent<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Sent<'a> {
    Block(Block<'a>),
    Native(&'a Value),
}

impl<'a> From<Sendable<'a>> for Sent<'a> {
    fn from(part: Sendable<'a>) -> Sent<'a> {
        Sent::Block(part.into())
    }
}

impl<'a> From<Sendable<'a>> for Block<'a> {
    fn from(part: Sendable<'a>) -> Block<'a> {
        match part {
            Sendable::Text(text) => Block::Text { text },
            Sendable::Image { mime_type, data } => {
                Block::Image { source: Source::Base64 { media_type: mime_type, data } }
            }
            Sendable::Document { mime_type, data, name } => {
                let title = name.map(|name| &name[..name.floor_char_boundary(TITLE_BYTES_MAX)]);
                Block::Document { source: Source::Base64 { media_type: mime_type, data }, title }
            }
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Image {
        source: Source<'a>,
    },
    Document {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a Value,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: Vec<Block<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Source<'a> {
    Base64 { media_type: &'a str, data: &'a str },
}

#[derive(Serialize)]
struct CacheControl {
    r#type: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Thinking {
    /// The model decides how much to think. Summaries are requested because newer models hide thinking
    /// otherwise.
    Adaptive {
        display: &'static str,
    },
    Enabled {
        budget_tokens: u32,
    },
    Disabled,
}

#[derive(Serialize)]
struct OutputConfig {
    effort: &'static str,
}

/// A mark for the five-minute cache. The one-hour cache costs twice the input price for every written token,
/// instead of 1.25 times, and saves 1.15 times the price of what is lost in a pause of more than five
/// minutes: about break-even with one such pause in the middle of a session, a loss without any, as in
/// unattended runs.
fn mark(here: bool) -> Option<CacheControl> {
    here.then_some(CacheControl { r#type: "ephemeral" })
}

fn result<'a>(answer: &Answer<'a>, endpoint: &Endpoint) -> Block<'a> {
    let text = |text: &'static str| vec![Block::Text { text: text.into() }];
    let (content, is_error) = match answer.outcome {
        None => (text(NO_OUTCOME), true),
        Some(outcome) => {
            let mut blocks: Vec<Block<'a>> = shown(outcome, endpoint).map(Block::from).collect();
            if blocks.is_empty() {
                blocks = text(NO_OUTPUT);
            }
            (blocks, outcome.status != OutcomeStatus::Completed)
        }
    };
    Block::ToolResult { tool_use_id: &answer.call.id.0, content, is_error }
}

fn replied<'a>(part: &'a Content, endpoint: &Endpoint, prefix: &str) -> Option<Sent<'a>> {
    match part {
        Content::Text { text } => Some(Sent::Block(Block::Text { text: text.into() })),
        Content::Call(call) => {
            Some(Sent::Block(Block::ToolUse { id: &call.id.0, name: &call.name, input: &call.input }))
        }
        Content::Thinking { native: Some(native), .. } => {
            own_block(native, endpoint, prefix).map(Sent::Native)
        }
        Content::Thinking { native: None, .. }
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    }
}

/// The thinking block to send back, if this endpoint's model generated it after this prefix. A block that was
/// stored without its prefix is trusted.
fn own_block<'a>(native: &'a Native, endpoint: &Endpoint, prefix: &str) -> Option<&'a Value> {
    if !is_own(native, endpoint) {
        return None;
    }
    let (block, made_behind) = match native.data.get("block") {
        Some(block) => (block, native.data.get("prefix").and_then(Value::as_str)),
        None => (&native.data, None),
    };
    let is_thinking = matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"));
    (is_thinking && made_behind.is_none_or(|made| made == prefix)).then_some(block)
}

/// Maximum bytes of a document's title; longer ones are rejected.
const TITLE_BYTES_MAX: usize = 255;

/// Minimum budget that is accepted.
const BUDGET_MIN: u32 = 1_024;

fn thinking(endpoint: &Endpoint, around: &Around<'_>) -> Option<Thinking> {
    let thinking = endpoint.abilities.thinking;
    match thinking {
        Steered::None => None,
        Steered::Efforts(_) => match thinking.effort(around.request.thought)? {
            // Newer models think unless thinking is disabled explicitly.
            Effort::None => Some(Thinking::Disabled),
            Effort::Minimal | Effort::Low | Effort::Medium | Effort::High | Effort::XHigh | Effort::Max => {
                Some(Thinking::Adaptive { display: "summarized" })
            }
        },
        // Budgeted thinking is rejected when a reply that did not begin with thinking continues after its
        // tools.
        Steered::Budget { .. } if around.goes_on_without_thinking => None,
        Steered::Budget { .. } => {
            let max_tokens = around.request.max_output.min(endpoint.max_output);
            let budget = thinking.budget(around.request.thought, max_tokens)?;
            (budget >= BUDGET_MIN).then_some(Thinking::Enabled { budget_tokens: budget })
        }
    }
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
