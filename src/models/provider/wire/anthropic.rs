//! Encodes requests in Anthropic's Messages format. Pure; sends nothing. Compatible services only get fields that all
//! of them support.

use serde_json::{Value, json};

use super::anthropic_search::{self as search, Searches};
use super::images::OldestImages;
use super::parts::{Sendable, shown, user_part};
use super::turns::{
    CallAnswer, NO_OUTCOME, NO_OUTPUT, WireTurn, call_id, call_name, without_blanks, without_thinking_at_end,
};
use super::{
    BodyEnvelope, BodyHead, CacheMarks, Format, Purpose, RequestMeta, TurnWriter, compaction, is_of_provider,
    is_own, list_of_tools,
};
use crate::abilities::{Effort, Thinking};
use crate::model_endpoint::Endpoint;
use epitome_thread::{Content, Native, OutcomeStatus, ToolSpec};

/// Anthropic's Messages format.
///
/// Thinking is sent back byte for byte to the model that generated it, and only after exactly the same prefix: newer
/// models reject it after any other, for example after a compaction or its undo.
pub struct Anthropic;

impl Format for Anthropic {
    fn tools(&self, endpoint: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        let search = endpoint.search.as_ref().map(search::tool);
        list_of_tools(endpoint, tools, search.as_ref(), |tool| {
            let ToolSpec { name, description, schema } = tool;
            json!({ "name": name, "description": description, "input_schema": schema })
        })
    }

    fn turn(&self, endpoint: &Endpoint, turn: &WireTurn<'_>, out: &mut TurnWriter<'_>) -> bool {
        match turn {
            WireTurn::User { compacted, answers, parts, .. } => {
                let given: Vec<&Value> =
                    compacted.iter().filter_map(|native| compaction::own(native, endpoint)).collect();
                // Only one compaction is accepted, as the very first block; the newest is the one in effect.
                if let Some(given) = given.last() {
                    out.put(&json!({ "role": "assistant", "content": [given] }));
                }
                let repeated = match (given.last(), parts.as_slice()) {
                    // The compaction must be followed by user content.
                    (Some(given), [first, _, ..]) => compaction::is_repeated(given, first),
                    (Some(_) | None, _) => false,
                };
                let parts = &parts[usize::from(repeated)..];
                let images = &mut out.prefix.images;
                let mut content: Vec<Value> = Vec::with_capacity(answers.len() + parts.len());
                content.extend(answers.iter().map(|answer| result(answer, endpoint, images)));
                let sent = parts.iter().filter_map(|part| user_part(part, endpoint));
                content.extend(sent.map(|part| block(images.admit(part))));
                out.put(&json!({ "role": "user", "content": content }));
                false
            }
            WireTurn::Agent { replies } => {
                let mut begins_with_thinking = false;
                let searches = Searches::of_turn(replies);
                for (at, parts) in replies.iter().enumerate() {
                    let so_far = out.prefix.digest();
                    let parts = without_blanks(parts);
                    let mut content: Vec<Value> = Vec::with_capacity(parts.len());
                    for part in without_thinking_at_end(&parts) {
                        match part {
                            Content::Search(search) => {
                                let is_own = is_of_provider(search, endpoint);
                                searches.put(search, is_own, at + 1 == replies.len(), &mut content);
                            }
                            part => content.extend(replied(part, endpoint, &so_far)),
                        }
                    }
                    if at == 0 {
                        begins_with_thinking = content.first().is_some_and(is_thinking);
                    }
                    out.put(&json!({ "role": "assistant", "content": content }));
                }
                begins_with_thinking
            }
        }
    }

    fn envelope(&self, endpoint: &Endpoint, meta: &RequestMeta<'_>) -> BodyEnvelope {
        let request = meta.request;
        let max_tokens = request.max_output.min(endpoint.max_output);
        let thinking = thinking(endpoint, meta);
        let effort = thinking
            .as_ref()
            .filter(|thinking| thinking["type"] == "adaptive")
            .and_then(|_| endpoint.abilities.thinking.effort(request.thought))
            .map(|effort| json!({ "effort": effort.id() }));
        // All servers for these models accept the mark on the system prompt. The automatic mark is a field of
        // Anthropic's own API that others may reject; for those, the last block is marked instead. Requests outside a
        // conversation are not marked: nothing would read the cache, and writing it costs more than plain input.
        let goes_on = request.basis.is_some();
        let marks_blocks = goes_on && endpoint.marks_for_cache();
        let system = meta
            .system()
            .map(|text| json!([{ "type": "text", "text": text, "cache_control": mark(marks_blocks) }]));
        let (is_answered, summarise) = match meta.purpose {
            Purpose::Reply | Purpose::Whole => (true, None),
            Purpose::Count => (false, None),
            Purpose::Compact { instruction } => {
                (true, Some(json!({ "type": "summarize", "instructions": instruction })))
            }
        };
        let fields = json!({
            // In Google's cloud, the URL contains the model.
            "model": (!endpoint.quirks.is_vertex).then_some(&endpoint.model),
            "anthropic_version": endpoint.quirks.is_vertex.then_some(VERTEX_VERSION),
            "max_tokens": is_answered.then_some(max_tokens),
            "stream": (is_answered && meta.purpose != Purpose::Whole).then_some(true),
            "cache_control": mark(endpoint.own_api && goes_on && is_answered),
            "thinking": thinking,
            "output_config": effort,
            "compaction": summarise,
            "system": system,
        });
        let marks = (marks_blocks && is_answered).then_some(CacheMarks {
            text: r#","cache_control":{"type":"ephemeral"}"#,
            newest: !endpoint.own_api,
        });
        BodyEnvelope { head: BodyHead::new(endpoint, fields).tools(meta).list("messages"), tail: "]}", marks }
    }
}

/// The version of the format in requests to Google's cloud.
const VERTEX_VERSION: &str = "vertex-2023-10-16";

fn block(part: Sendable<'_>) -> Value {
    let source = |media_type, data| json!({ "type": "base64", "media_type": media_type, "data": data });
    match part {
        Sendable::Text(text) => text_block(&text),
        Sendable::Image { mime_type, data } => json!({ "type": "image", "source": source(mime_type, data) }),
        Sendable::Document { mime_type, data, name } => {
            let mut block = json!({ "type": "document", "source": source(mime_type, data) });
            if let Some(name) = name {
                block["title"] = name[..name.floor_char_boundary(TITLE_BYTES_MAX)].into();
            }
            block
        }
    }
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// A mark for the five-minute cache. The one-hour cache costs twice the input price per written token instead of 1.25
/// times, and saves 1.15 times the price of the tokens lost in a pause of more than five minutes. That is about
/// break-even with one such pause in the middle of a session, and a loss without any, as in unattended runs.
fn mark(here: bool) -> Option<Value> {
    here.then(|| json!({ "type": "ephemeral" }))
}

fn result(answer: &CallAnswer<'_>, endpoint: &Endpoint, images: &mut OldestImages) -> Value {
    let (content, is_error) = match answer.outcome {
        None => (vec![text_block(NO_OUTCOME)], true),
        Some(outcome) => {
            let mut blocks: Vec<Value> =
                shown(outcome, endpoint).map(|part| block(images.admit(part))).collect();
            if blocks.is_empty() {
                blocks.push(text_block(NO_OUTPUT));
            }
            (blocks, outcome.status != OutcomeStatus::Completed)
        }
    };
    let mut result = json!({ "type": "tool_result", "tool_use_id": call_id(endpoint, &answer.call.id.0), "content": content });
    if is_error {
        result["is_error"] = true.into();
    }
    result
}

fn replied(part: &Content, endpoint: &Endpoint, prefix: &str) -> Option<Value> {
    match part {
        Content::Text { text } => Some(text_block(text)),
        Content::Call(call) => {
            let name = call_name(&call.name);
            Some(
                json!({ "type": "tool_use", "id": call_id(endpoint, &call.id.0), "name": name, "input": call.input }),
            )
        }
        Content::Thinking { native: Some(native), .. } => own_block(native, endpoint, prefix).cloned(),
        Content::Thinking { native: None, .. }
        | Content::Search(_)
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    }
}

/// The thinking block to send back; `None` unless this endpoint's model generated it after this prefix. A block that
/// was stored without its prefix is trusted.
fn own_block<'a>(native: &'a Native, endpoint: &Endpoint, prefix: &str) -> Option<&'a Value> {
    if !is_own(native, endpoint) {
        return None;
    }
    let (block, made_after) = match native.data.get("block") {
        Some(block) => (block, native.data.get("prefix").and_then(Value::as_str)),
        None => (&native.data, None),
    };
    (is_thinking(block) && made_after.is_none_or(|made| made == prefix)).then_some(block)
}

fn is_thinking(block: &Value) -> bool {
    matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
}

/// Maximum bytes of a document's title; the service rejects longer ones.
const TITLE_BYTES_MAX: usize = 255;

/// Minimum budget that the service accepts, in tokens.
const BUDGET_MIN: u32 = 1_024;

fn thinking(endpoint: &Endpoint, meta: &RequestMeta<'_>) -> Option<Value> {
    let thinking = endpoint.abilities.thinking;
    match thinking {
        Thinking::None => None,
        // Newer models think unless thinking is disabled explicitly. Without a request for summaries, they hide their
        // thinking.
        Thinking::Efforts(_) => Some(match thinking.effort(meta.request.thought)? {
            Effort::None => json!({ "type": "disabled" }),
            _ => json!({ "type": "adaptive", "display": "summarized" }),
        }),
        // Budgeted thinking is rejected if a reply that did not begin with thinking continues after its tools.
        Thinking::Budget { .. } if meta.continues_without_thinking => None,
        Thinking::Budget { .. } => {
            let max_tokens = meta.request.max_output.min(endpoint.max_output);
            let budget = thinking.budget(meta.request.thought, max_tokens)?;
            (budget >= BUDGET_MIN).then(|| json!({ "type": "enabled", "budget_tokens": budget }))
        }
    }
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
