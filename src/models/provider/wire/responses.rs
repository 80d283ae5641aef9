//! Encodes requests in OpenAI's Responses format. Pure; sends nothing. The service stores nothing: each request
//! contains the entire conversation, with encrypted reasoning. Compatible servers only get fields that all of them
//! support.

use serde_json::{Value, json};

use super::parts::{Sendable, UNNAMED, data_url, shown, text_and_rest, user_part};
use super::turns::{
    CallAnswer, NO_OUTCOME, WireTurn, call_id, call_name, split_summary, without_thinking_at_end,
};
use super::{
    BodyEnvelope, BodyHead, Format, Purpose, RequestMeta, TurnWriter, compaction, is_of_provider, is_own,
    list_of_tools,
};
use crate::ModelRequest;
use crate::abilities::Effort;
use crate::model_endpoint::Endpoint;
use epitome_thread::{Content, Native, OutcomeContent, SEARCH_TOOL, ThoughtLevel, ToolSpec};
use epitome_tokens::model_name::Family;

/// The Responses format.
///
/// Messages and calls are sent without the ids that the service assigned: it would use them to look up reasoning, which
/// may have been dropped and which it doesn't store. Calls and outputs are paired by `call_id`. Reasoning is sent back
/// unchanged, only to the model that generated it and after its own prefix, and always followed by the content for
/// which it was generated.
pub struct Responses;

/// Minimum reply tokens that can be requested; the service rejects less.
const OUTPUT_TOKENS_MIN: u32 = 16;

impl Format for Responses {
    fn tools(&self, endpoint: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        // Explicitly not strict, which is the default, because external schemas (of MCP servers) don't follow its
        // rules.
        let search = endpoint.search.is_some().then(|| json!({ "type": "web_search" }));
        list_of_tools(endpoint, tools, search.as_ref(), |tool| {
            let ToolSpec { name, description, schema } = tool;
            json!({
                "type": "function", "name": name, "description": description, "parameters": schema,
                "strict": false,
            })
        })
    }

    fn turn(&self, endpoint: &Endpoint, turn: &WireTurn<'_>, out: &mut TurnWriter<'_>) -> bool {
        match turn {
            WireTurn::User { compacted, answers, parts, summary } => {
                let (summary, parts) = split_summary(endpoint, parts, *summary);
                for given in compacted.iter().filter_map(|native| compaction::own(native, endpoint)) {
                    out.put(given);
                }
                if let Some(text) = summary {
                    out.put(&json!({ "type": "message", "role": "system", "content": text }));
                }
                let mut content: Vec<Value> = Vec::new();
                for answer in answers {
                    let output = output(endpoint, answer, &mut content);
                    let call_id = call_id(endpoint, &answer.call.id.0);
                    let item =
                        json!({ "type": "function_call_output", "call_id": call_id, "output": output });
                    out.put(&item);
                }
                content.extend(parts.filter_map(|part| user_part(part, endpoint)).map(part));
                if !content.is_empty() {
                    out.put(&json!({ "type": "message", "role": "user", "content": content }));
                }
            }
            WireTurn::Agent { replies } => {
                for parts in replies {
                    // All reasoning of a reply was generated after the content of the request, not after the beginning
                    // of the reply.
                    let so_far = out.prefix.digest();
                    let mut phase = None;
                    // The service looks for the reasoning that led to a search.
                    let mut lacks_reasoning = false;
                    for part in without_thinking_at_end(parts) {
                        match part {
                            Content::Text { text } => {
                                let mut item = json!({ "type": "message", "role": "assistant" });
                                if let Some(phase) = phase.take() {
                                    item["phase"] = Value::from(phase);
                                }
                                item["content"] = json!([{ "type": "output_text", "text": text }]);
                                out.put(&item);
                            }
                            Content::Call(call) => {
                                let item = json!({
                                    "type": "function_call", "call_id": call_id(endpoint, &call.id.0), "name": call_name(&call.name),
                                    // JSON in a string.
                                    "arguments": call.input.to_string(),
                                });
                                out.put(&item);
                            }
                            Content::Thinking { native: Some(native), .. } => {
                                match own(native, endpoint, &so_far) {
                                    Some(OwnItem::Reasoning(item)) => out.put(item),
                                    Some(OwnItem::Phase(word)) => phase = Some(word),
                                    None => lacks_reasoning = true,
                                }
                            }
                            Content::Search(search) => {
                                let is_own = is_of_provider(search, endpoint);
                                let item = search.native.as_ref().map(|native| &native.data["blocks"][0]);
                                match item.filter(|item| is_own && !lacks_reasoning && item.is_object()) {
                                    Some(item) => out.put(item),
                                    // Its own texts name their sources.
                                    None if is_own && search.call.is_none() => {}
                                    None => {
                                        let text = json!([{ "type": "output_text", "text": search.text() }]);
                                        let item = json!({ "type": "message", "role": "assistant", "content": text });
                                        out.put(&item);
                                    }
                                }
                            }
                            Content::Thinking { native: None, .. }
                            | Content::Image { .. }
                            | Content::Document { .. }
                            | Content::Resource { .. }
                            | Content::ResourceLink { .. } => {}
                        }
                    }
                }
            }
        }
        false
    }

    fn envelope(&self, endpoint: &Endpoint, meta: &RequestMeta<'_>) -> BodyEnvelope {
        let request = meta.request;
        if let Purpose::Compact { instruction } = meta.purpose {
            return short(endpoint, request, meta.system(), instruction);
        }
        let is_reply = matches!(meta.purpose, Purpose::Reply | Purpose::Whole);
        let own_reply = is_reply && endpoint.own_api;
        let max_tokens = request.max_output.min(endpoint.max_output).max(OUTPUT_TOKENS_MIN);
        // Reasoning of models that are controlled by effort levels. The summary is for users.
        let effort = endpoint.abilities.thinking.effort(request.thought);
        let thinks = effort.is_some_and(|effort| effort != Effort::None);
        let reasoning = effort.map(|effort| {
            // Users who want no thinking need no summary, which OpenAI refuses to organizations that it has not verified.
            let is_summarized =
                endpoint.own_api && effort != Effort::None && request.thought != ThoughtLevel::Off;
            let summary = is_summarized.then_some("auto");
            json!({ "effort": effort.id(), "summary": summary })
        });
        let sources = is_reply && endpoint.search.is_some();
        let sources = sources && request.tools.iter().any(|tool| tool.name == SEARCH_TOOL);
        // OpenAI rejects encrypted reasoning for its models that don't reason. Without it, the reasoning of others is lost
        // between calls; a service that rejects it is asked without it.
        let may_think = thinks || Family::detect(&endpoint.model) != Family::OpenAi;
        let include = [
            (is_reply && may_think).then_some("reasoning.encrypted_content"),
            sources.then_some("web_search_call.action.sources"),
        ];
        let include: Vec<&str> = include.into_iter().flatten().collect();
        let fields = json!({
            "model": endpoint.model,
            "store": is_reply.then_some(false),
            "stream": (meta.purpose == Purpose::Reply).then_some(true),
            // A plan has its own limit.
            "max_output_tokens": (is_reply && !endpoint.is_plan).then_some(max_tokens),
            "include": (!include.is_empty()).then_some(include),
            "prompt_cache_key": Some(request.cache_key).filter(|key| own_reply && !key.is_empty()),
            "reasoning": reasoning,
            "parallel_tool_calls": (meta.tools != b"[]").then_some(true),
            "instructions": meta.system(),
        });
        BodyEnvelope {
            head: BodyHead::new(endpoint, fields).tools(meta).list("input"),
            tail: "]}",
            marks: None,
        }
    }
}

/// The envelope for the compaction endpoint. It accepts few fields and none for an instruction, which is therefore
/// appended to the system prompt. The prompt cache matches in neither case.
fn short(
    endpoint: &Endpoint,
    request: &ModelRequest<'_>,
    system: Option<&str>,
    instruction: Option<&str>,
) -> BodyEnvelope {
    let texts: Vec<&str> = system.into_iter().chain(instruction).collect();
    let fields = json!({
        "model": endpoint.model,
        "prompt_cache_key": Some(request.cache_key).filter(|key| endpoint.own_api && !key.is_empty()),
        "instructions": (!texts.is_empty()).then(|| texts.join("\n\n")),
    });
    BodyEnvelope { head: BodyHead::new(endpoint, fields).list("input"), tail: "]}", marks: None }
}

fn part(part: Sendable<'_>) -> Value {
    match part {
        Sendable::Text(text) => json!({ "type": "input_text", "text": text }),
        Sendable::Image { mime_type, data } => {
            json!({ "type": "input_image", "image_url": data_url(mime_type, data), "detail": "auto" })
        }
        Sendable::Document { mime_type, data, name } => {
            let file_data = data_url(mime_type, data);
            json!({ "type": "input_file", "filename": name.unwrap_or(UNNAMED), "file_data": file_data })
        }
    }
}

/// The outcome of a call. Only OpenAI accepts images and documents there. For other servers they are added to `shown_parts`,
/// the user content that follows.
fn output(endpoint: &Endpoint, answer: &CallAnswer<'_>, shown_parts: &mut Vec<Value>) -> Value {
    let Some(outcome) = answer.outcome else { return NO_OUTCOME.into() };
    let is_text = |part: &OutcomeContent| matches!(part, OutcomeContent::Text { .. });
    if endpoint.own_api && !outcome.content.iter().all(is_text) {
        return shown(outcome, endpoint).map(part).collect();
    }
    let (text, rest) = text_and_rest(outcome, endpoint);
    if !rest.is_empty() {
        shown_parts.push(part(Sendable::Text(format!("What call {} shows:", answer.call.id).into())));
        shown_parts.extend(rest.into_iter().map(part));
    }
    text.into()
}

/// Data of a reply that has to be sent back to this endpoint's model.
enum OwnItem<'a> {
    /// A reasoning item, unchanged.
    Reasoning(&'a Value),
    /// The phase of the message that follows: commentary or the final answer.
    Phase(&'a str),
}

fn own<'a>(native: &'a Native, endpoint: &Endpoint, prefix: &str) -> Option<OwnItem<'a>> {
    if !is_own(native, endpoint) {
        return None;
    }
    if let Some(phase) = native.data["phase"].as_str() {
        return Some(OwnItem::Phase(phase));
    }
    let item = native.data.get("item").filter(|item| item["type"] == "reasoning")?;
    (native.data["prefix"] == prefix).then_some(OwnItem::Reasoning(item))
}

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
