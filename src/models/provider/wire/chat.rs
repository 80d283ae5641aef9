//! Encodes requests in OpenAI's Chat Completions format, for OpenAI and the many compatible servers. Pure; sends
//! nothing. OpenAI-specific fields are only sent to OpenAI.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::parts::{Sendable, UNNAMED, data_url, text_and_rest, user_part};
use super::turns::{NO_OUTCOME, WireTurn, call_id, call_name, split_summary, without_blanks};
use super::{BodyEnvelope, BodyHead, Format, RequestMeta, TurnWriter, is_own, list_of_tools, write};
use crate::ModelRequest;
use crate::abilities::{Effort, Thinking, limits_completion, needs_responses};
use crate::attachments::audio_format;
use crate::model_endpoint::{Endpoint, ToolForm};
use epitome_thread::{Content, ThoughtLevel, ToolSpec};
use epitome_tokens::model_name::ParsedName;

/// The Chat Completions format.
///
/// Thinking is omitted, because the format has no field for it, except for services that require it. Images and
/// documents of tool outcomes follow in a user message, because tool messages can only contain text.
pub struct Chat;

impl Format for Chat {
    fn tools(&self, endpoint: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        list_of_tools(endpoint, tools, None, |tool| {
            let ToolSpec { name, description, schema } = tool;
            let function = json!({ "name": name, "description": description, "parameters": schema });
            json!({ "type": "function", "function": function })
        })
    }

    fn turn(&self, endpoint: &Endpoint, turn: &WireTurn<'_>, out: &mut TurnWriter<'_>) -> bool {
        match turn {
            WireTurn::Agent { replies } => out.put(&agent(endpoint, replies)),
            WireTurn::User { compacted: _, answers, parts, summary } => {
                let (summary, parts) = split_summary(endpoint, parts, *summary);
                if let Some(text) = summary {
                    out.put(&json!({ "role": "system", "content": text }));
                }
                let mut content: Vec<Value> = Vec::new();
                for answer in answers {
                    let id = &answer.call.id;
                    let (text, rest) = match answer.outcome {
                        None => (NO_OUTCOME.into(), Vec::new()),
                        Some(outcome) => text_and_rest(outcome, endpoint),
                    };
                    let named = call_id(endpoint, &id.0);
                    out.put(&json!({ "role": "tool", "tool_call_id": named, "content": text }));
                    if !rest.is_empty() {
                        content.push(part(Sendable::Text(format!("What call {id} shows:").into())));
                        content.extend(rest.into_iter().map(part));
                    }
                }
                content.extend(parts.filter_map(|part| user_part(part, endpoint)).map(part));
                if !content.is_empty() {
                    out.put(&json!({ "role": "user", "content": user_content(content) }));
                }
            }
        }
        false
    }

    fn envelope(&self, endpoint: &Endpoint, meta: &RequestMeta<'_>) -> BodyEnvelope {
        let request = meta.request;
        let own = endpoint.own_api;
        let max_tokens = request.max_output.min(endpoint.max_output);
        // OpenAI's thinking models reject the old field, even through gateways.
        let is_new = own || endpoint.omits("max_tokens") || limits_completion(&endpoint.model);
        let is_new = is_new && !endpoint.omits("max_completion_tokens");
        // For other services, the user's settings define which efforts are accepted.
        let effort = match own {
            _ if endpoint.form == ToolForm::WithoutReasoning => {
                (!request.tools.is_empty()).then_some(Effort::None.id())
            }
            true => effort(endpoint, request),
            false => endpoint.abilities.thinking.effort(request.thought).map(Effort::id),
        };
        let streams = meta.purpose != super::Purpose::Whole;
        let fields = json!({
            "model": endpoint.model,
            "stream": streams.then_some(true),
            "stream_options": streams.then(|| json!({ "include_usage": true })),
            "max_completion_tokens": is_new.then_some(max_tokens),
            "max_tokens": (!is_new).then_some(max_tokens),
            "reasoning_effort": effort,
            "prompt_cache_key": own.then_some(request.cache_key).filter(|key| !key.is_empty()),
        });
        let mut head = BodyHead::new(endpoint, fields).tools(meta).list("messages");
        if let Some(system) = meta.system() {
            write(&json!({ "role": "system", "content": system }), &mut head);
            head.push(b',');
        }
        BodyEnvelope { head, tail: "]}", marks: None }
    }
}

/// Returns a plain string if there is only text, because the templates of many local models accept nothing else.
fn user_content(parts: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    match texts {
        Some(texts) => texts.join("\n\n").into(),
        None => parts.into(),
    }
}

fn part(part: Sendable<'_>) -> Value {
    match part {
        Sendable::Text(text) => json!({ "type": "text", "text": text }),
        Sendable::Image { mime_type, data } => {
            json!({ "type": "image_url", "image_url": { "url": data_url(mime_type, data) } })
        }
        Sendable::Document { mime_type, data, name } => {
            if let Some(format) = audio_format(mime_type) {
                return json!({ "type": "input_audio", "input_audio": { "data": data, "format": format } });
            }
            let file_data = data_url(mime_type, data);
            json!({ "type": "file", "file": { "filename": name.unwrap_or(UNNAMED), "file_data": file_data } })
        }
    }
}

/// Encodes a reply. Consecutive replies, as after a pause, are merged into one message, because templates of local
/// models require alternating roles.
fn agent(endpoint: &Endpoint, replies: &[Vec<&Content>]) -> Value {
    let mut reasoning: Option<(&str, String)> = None;
    let mut details: Vec<Value> = Vec::new();
    let mut texts: Vec<Cow<'_, str>> = Vec::new();
    let mut calls: Vec<Value> = Vec::new();
    for part in replies.iter().flat_map(|parts| without_blanks(parts)) {
        match part {
            Content::Text { text } => texts.push(text.into()),
            Content::Search(search) => texts.push(search.text().into()),
            Content::Call(call) => {
                // The arguments are JSON in a string.
                let function = json!({ "name": call_name(&call.name), "arguments": call.input.to_string() });
                let id = call_id(endpoint, &call.id.0);
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            Content::Thinking { text, native: Some(native) } if is_own(native, endpoint) => {
                details.extend(native.data["details"].as_array().into_iter().flatten().cloned());
                let field = native.data["field"].as_str().filter(|_| endpoint.quirks.reasoning_back);
                if let Some(field) = field {
                    reasoning.get_or_insert((field, String::new())).1.push_str(text);
                }
            }
            Content::Thinking { .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => {}
        }
    }
    // `null` if there are only calls.
    let content = (!texts.is_empty()).then(|| texts.join("\n\n"));
    let mut message = json!({ "role": "assistant", "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if !details.is_empty() {
        message["reasoning_details"] = details.into();
    }
    if let Some((field, text)) = reasoning {
        message[field] = text.into();
    }
    message
}

/// From this version on, OpenAI's models think by default.
const REASONS_BY_DEFAULT_SINCE: (u32, u32) = (5, 4);

/// The reasoning effort that OpenAI accepts together with tools in this format. For newer models it must be set to none
/// explicitly; the newest don't accept even that.
fn effort(endpoint: &Endpoint, request: &ModelRequest<'_>) -> Option<&'static str> {
    let has_tools = !request.tools.is_empty();
    let plain = match request.thought {
        ThoughtLevel::Off => None,
        ThoughtLevel::Low => Some("low"),
        ThoughtLevel::Medium => Some("medium"),
        ThoughtLevel::High | ThoughtLevel::Max => Some("high"),
    };
    if endpoint.abilities.thinking == Thinking::None {
        return None;
    }
    if needs_responses(&endpoint.model) {
        return if has_tools { None } else { plain };
    }
    let wants_a_word =
        ParsedName::parse(&endpoint.model).version.is_some_and(|version| version >= REASONS_BY_DEFAULT_SINCE);
    if wants_a_word { if has_tools { Some("none") } else { plain.or(Some("none")) } } else { plain }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
