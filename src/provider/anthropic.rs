//! Anthropic's Messages format: a request as JSON. Pure; nothing is sent from here. Other services that
//! speak it get only what all of them know.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest, Sha256};

use super::Request;
use super::endpoint::Endpoint;
use super::turns::{Answer, NO_OUTCOME, NO_OUTPUT, Turn, image_left_out, link_text, resource_text, turns};
use crate::thread::{Content, Native, OutcomeContent, OutcomeStatus, ThoughtLevel};

/// A request's body, and the digest of everything in it that signed thinking depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    pub body: Vec<u8>,
    /// Goes into the seal of the reply's thinking, which is sent again behind this prefix alone.
    pub prefix: String,
}

/// Encodes a request.
///
/// Thinking goes back byte for byte to the model that made it, and only behind the very prefix that
/// it was made for: newer models refuse it behind any other, as after a compaction or its undo.
pub fn encode(endpoint: &Endpoint, request: &Request<'_>) -> Encoded {
    let claude = claude_version(&endpoint.model);
    let tools: Vec<Tool<'_>> = request
        .tools
        .iter()
        .map(|tool| Tool { name: &tool.name, description: &tool.description, input_schema: &tool.schema })
        .collect();
    let mut prefix = Prefix::new(request.system, &raw(&tools));

    let turns = turns(&request.items);
    let mut messages: Vec<Box<RawValue>> = Vec::with_capacity(turns.len());
    // Whether the newest reply begins with thinking, and whether tool results follow it: budgeted
    // thinking is refused for a reply that goes on after its tools without having begun so.
    let mut thought_first = true;
    let mut last: Option<(Role, Vec<Sent<'_>>)> = None;
    let mut last_answers = false;
    for turn in &turns {
        let (role, content) = match turn {
            Turn::User { answers, parts } => {
                last_answers = !answers.is_empty();
                let results = answers.iter().map(|answer| Sent::Block(result(answer)));
                let said = parts.iter().filter_map(|part| said(part)).map(Sent::Block);
                (Role::User, results.chain(said).collect::<Vec<_>>())
            }
            Turn::Agent { parts } => {
                let so_far = prefix.digest();
                let content: Vec<Sent<'_>> =
                    parts.iter().filter_map(|part| replied(part, endpoint, &so_far)).collect();
                let goes_on = matches!(last, Some((Role::Assistant, _)));
                if !goes_on {
                    thought_first = matches!(content.first(), Some(Sent::Native(_)));
                }
                last_answers = false;
                (Role::Assistant, content)
            }
        };
        let message = raw(&Message { role, content: &content });
        prefix.add(&message);
        messages.push(message);
        last = Some((role, content));
    }

    let max_tokens = request.max_output.min(endpoint.max_output);
    let thinking = thinking(claude, request.thought, max_tokens, thought_first || !last_answers);
    let effort = matches!(thinking, Some(Thinking::Adaptive { .. }))
        .then(|| OutputConfig { effort: effort(request.thought) });

    // The mark on the system text holds for every server that fronts these models. The moving one is
    // a field of Anthropic's own that others may refuse; there the last block is marked instead.
    let marks_blocks = endpoint.own_api || claude.is_some();
    let system = (!request.system.trim().is_empty())
        .then(|| [SystemText { r#type: "text", text: request.system, cache_control: mark(marks_blocks) }]);
    if marks_blocks
        && !endpoint.own_api
        && let Some((role, content)) = &last
    {
        let end = content.len();
        let marked: Vec<Marked<'_, Sent<'_>>> = (1..=end)
            .zip(content)
            .map(|(at, block)| Marked { block, cache_control: mark(at == end) })
            .collect();
        messages.pop();
        messages.push(raw(&Message { role: *role, content: &marked }));
    }
    let body = Body {
        model: &endpoint.model,
        max_tokens,
        stream: true,
        cache_control: mark(endpoint.own_api),
        system,
        tools,
        thinking,
        output_config: effort,
        messages,
    };
    let body = serde_json::to_vec(&body).expect("text and JSON values can always be written");
    Encoded { body, prefix: prefix.digest() }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Thinking>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[SystemText<'a>; 1]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Box<RawValue>>,
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
struct Message<'a, B> {
    role: Role,
    content: &'a [B],
}

#[derive(Serialize)]
struct Marked<'a, B> {
    #[serde(flatten)]
    block: &'a B,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Sent<'a> {
    Block(Block<'a>),
    Native(&'a Value),
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
    /// The model decides how much; asked for as a summary, because newer models hide it otherwise.
    Adaptive {
        display: &'static str,
    },
    Enabled {
        budget_tokens: u32,
    },
}

#[derive(Serialize)]
struct OutputConfig {
    effort: &'static str,
}

fn mark(here: bool) -> Option<CacheControl> {
    here.then_some(CacheControl { r#type: "ephemeral" })
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("text and JSON values can always be written")
}

fn result<'a>(answer: &Answer<'a>) -> Block<'a> {
    let text = |text: &'static str| vec![Block::Text { text: text.into() }];
    let (content, is_error) = match answer.outcome {
        None => (text(NO_OUTCOME), true),
        Some(outcome) => {
            let mut blocks: Vec<Block<'a>> = Vec::with_capacity(outcome.content.len());
            for part in &outcome.content {
                match part {
                    OutcomeContent::Text { text } if text.trim().is_empty() => {}
                    OutcomeContent::Text { text } => blocks.push(Block::Text { text: text.into() }),
                    OutcomeContent::Image { mime_type, data } => blocks.push(image(mime_type, data)),
                }
            }
            if blocks.is_empty() {
                blocks = text(NO_OUTPUT);
            }
            (blocks, outcome.status != OutcomeStatus::Completed)
        }
    };
    Block::ToolResult { tool_use_id: &answer.call.0, content, is_error }
}

fn said<'a>(part: &'a Content) -> Option<Block<'a>> {
    match part {
        Content::Text { text } => Some(Block::Text { text: text.into() }),
        Content::Image { mime_type, data, .. } => Some(image(mime_type, data)),
        Content::Resource { uri, text } => Some(Block::Text { text: resource_text(uri, text).into() }),
        Content::ResourceLink { uri, name } => Some(Block::Text { text: link_text(uri, name).into() }),
        Content::Thinking { .. } | Content::Call(_) => None,
    }
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
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    }
}

/// The thinking block to send back, if this endpoint's model made it behind this prefix. A block that
/// was stored without its prefix is trusted.
fn own_block<'a>(native: &'a Native, endpoint: &Endpoint, prefix: &str) -> Option<&'a Value> {
    if native.provider != endpoint.provider() || native.model != endpoint.model {
        return None;
    }
    let (block, made_behind) = match native.data.get("block") {
        Some(block) => (block, native.data.get("prefix").and_then(Value::as_str)),
        None => (&native.data, None),
    };
    let is_thinking = matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"));
    (is_thinking && made_behind.is_none_or(|made| made == prefix)).then_some(block)
}

fn image<'a>(mime_type: &'a str, data: &'a str) -> Block<'a> {
    match mime_type {
        "image/jpeg" | "image/png" | "image/gif" | "image/webp" => {
            Block::Image { source: Source::Base64 { media_type: mime_type, data } }
        }
        other => Block::Text { text: image_left_out(other).into() },
    }
}

/// The running digest of system, tools and messages as they are sent, cache marks left out.
struct Prefix(Sha256);

impl Prefix {
    fn new(system: &str, tools: &RawValue) -> Prefix {
        let mut digest = Sha256::new();
        digest.update(system);
        digest.update([0]);
        digest.update(tools.get());
        Prefix(digest)
    }

    fn add(&mut self, message: &RawValue) {
        self.0.update(message.get());
    }

    /// 16 bytes in hexadecimal: collisions of chance are what counts here, not an enemy's.
    fn digest(&self) -> String {
        self.0.clone().finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The smallest budget that is accepted.
const BUDGET_MIN: u32 = 1_024;

/// Since this version, models decide themselves how much to think; before it, they take a budget.
const ADAPTIVE_SINCE: (u32, u32) = (4, 7);
const BUDGETS_SINCE: (u32, u32) = (3, 7);

fn thinking(
    claude: Option<(u32, u32)>,
    level: ThoughtLevel,
    max_tokens: u32,
    may_begin: bool,
) -> Option<Thinking> {
    let version = claude?;
    let budget = match level {
        ThoughtLevel::Off => return None,
        ThoughtLevel::Low => 2_048,
        ThoughtLevel::Medium => 8_192,
        ThoughtLevel::High => 16_384,
        ThoughtLevel::Max => 32_000,
    };
    if version >= ADAPTIVE_SINCE {
        return Some(Thinking::Adaptive { display: "summarized" });
    }
    // Half of the reply stays for the answer.
    let budget_tokens = budget.min(max_tokens / 2);
    (version >= BUDGETS_SINCE && may_begin && budget_tokens >= BUDGET_MIN)
        .then_some(Thinking::Enabled { budget_tokens })
}

fn effort(level: ThoughtLevel) -> &'static str {
    match level {
        ThoughtLevel::Off | ThoughtLevel::Low => "low",
        ThoughtLevel::Medium => "medium",
        ThoughtLevel::High => "high",
        ThoughtLevel::Max => "max",
    }
}

/// The version of a Claude model, from `claude-sonnet-5-5`, `claude-opus-4-20250514`,
/// `claude-3-7-sonnet-…`, also behind a gateway's prefix. One without a number counts as the newest;
/// another vendor's model has none.
fn claude_version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let mut numbers = name
        .split(['-', '@', ':', '.'])
        .skip_while(|part| part.parse::<u32>().is_err())
        .map_while(|part| part.parse::<u32>().ok().filter(|_| part.len() <= 2));
    match (numbers.next(), numbers.next()) {
        (Some(major), minor) => Some((major, minor.unwrap_or(0))),
        (None, _) => Some((u32::MAX, 0)),
    }
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
