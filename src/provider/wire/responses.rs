//! Encodes requests in OpenAI's Responses format. Pure; nothing is sent from here. The service stores
//! nothing: each request contains the entire conversation, with reasoning in encrypted form. Compatible
//! servers only get fields that all of them know.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::parts::{Sendable, UNNAMED, data_url, said, shown, text_and_rest};
use super::turns::{Answer, NO_OUTCOME, Turn, without_thinking_at_end};
use super::{
    Around, Envelope, Format, Prefix, Purpose, Written, compaction, is_own, json, json_text, put, write_up_to,
};
use crate::Request;
use crate::abilities::Effort;
use crate::endpoint::Endpoint;
use epitome_thread::{Content, Native, OutcomeContent, ToolSpec};

/// The Responses format.
///
/// Messages and calls are sent without the ids that the service gave them: by those it would look up
/// reasoning that may have been dropped, and it stores nothing in which to find it. Calls and outputs are
/// paired by `call_id`. Reasoning is sent back unchanged, only to the model that generated it and after its
/// own prefix, and is always followed by what it was generated for.
pub struct Responses;

/// Minimum of the limit on reply tokens; the service rejects less.
const OUTPUT_TOKENS_MIN: u32 = 16;

impl Format for Responses {
    fn tools(&self, _: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        let tools: Vec<Tool<'_>> = tools
            .iter()
            .map(|tool| Tool {
                r#type: "function",
                name: &tool.name,
                description: &tool.description,
                parameters: &tool.schema,
                strict: false,
            })
            .collect();
        json(&tools)
    }

    fn turn(&self, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix, out: &mut Vec<u8>) -> Written {
        match turn {
            Turn::User { compacted, answers, parts } => {
                for given in compacted.iter().filter_map(|native| compaction::own(native, endpoint)) {
                    put(&Item::Native(given), prefix, out);
                }
                let mut content: Vec<Part<'_>> = Vec::new();
                for answer in answers {
                    let output = output(endpoint, answer, &mut content);
                    put(&Item::FunctionCallOutput { call_id: &answer.call.id.0, output }, prefix, out);
                }
                content.extend(parts.iter().filter_map(|part| said(part, endpoint)).map(Part::from));
                if !content.is_empty() {
                    put(&Item::Message { role: Role::User, phase: None, content: &content }, prefix, out);
                }
            }
            Turn::Agent { replies } => {
                for parts in replies {
                    // All reasoning of a reply was generated after the content of the request, not after the
                    // beginning of the reply itself.
                    let so_far = prefix.digest();
                    let mut phase = None;
                    for part in without_thinking_at_end(parts) {
                        match part {
                            Content::Text { text } => {
                                let content = &[Part::OutputText { text }];
                                let phase = phase.take();
                                put(&Item::Message { role: Role::Assistant, phase, content }, prefix, out);
                            }
                            Content::Call(call) => {
                                let arguments = call.input.to_string();
                                let (call_id, name) = (&call.id.0, &call.name);
                                put(&Item::FunctionCall { call_id, name, arguments }, prefix, out);
                            }
                            Content::Thinking { native: Some(native), .. } => {
                                match own(native, endpoint, &so_far) {
                                    Some(Own::Reasoning(item)) => put(&Item::Native(item), prefix, out),
                                    Some(Own::Phase(word)) => phase = Some(word),
                                    None => {}
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
        Written::default()
    }

    fn envelope(&self, endpoint: &Endpoint, around: &Around<'_>) -> Envelope {
        let request = around.request;
        let system = Some(request.system).filter(|system| !system.trim().is_empty());
        if let Purpose::Compact { instruction } = around.purpose {
            return short(endpoint, request, system, instruction);
        }
        let is_reply = around.purpose == Purpose::Reply;
        let own_reply = is_reply && endpoint.own_api;
        let max_tokens = request.max_output.min(endpoint.max_output).max(OUTPUT_TOKENS_MIN);
        let reasoning = reasoning(endpoint, request);
        let thinks = reasoning.as_ref().is_some_and(|reasoning| reasoning.effort != Effort::None.word());
        let has_tools = !request.tools.is_empty();
        let opening = Opening {
            model: &endpoint.model,
            store: is_reply.then_some(false),
            stream: is_reply.then_some(true),
            max_output_tokens: is_reply.then_some(max_tokens),
            // Rejected for models that don't reason.
            include: (own_reply && thinks).then_some(["reasoning.encrypted_content"]),
            prompt_cache_key: Some(request.cache_key).filter(|key| own_reply && !key.is_empty()),
            reasoning,
            parallel_tool_calls: has_tools.then_some(true),
            instructions: system,
            tools: has_tools.then(|| json_text(around.tools)),
        };
        let mut head = Vec::with_capacity(request.system.len() + around.tools.len() + 512);
        write_up_to("input", &opening, &mut head);
        Envelope { head, tail: "]}", marks: None }
    }
}

/// The envelope for the compaction endpoint. It accepts few fields, and none for an instruction: that is
/// appended to the system text, where the prompt cache matches neither.
fn short(
    endpoint: &Endpoint,
    request: &Request<'_>,
    system: Option<&str>,
    instruction: Option<&str>,
) -> Envelope {
    let told: Vec<&str> = system.into_iter().chain(instruction).collect();
    let opening = Shortening {
        model: &endpoint.model,
        prompt_cache_key: Some(request.cache_key).filter(|key| endpoint.own_api && !key.is_empty()),
        instructions: (!told.is_empty()).then(|| told.join("\n\n")),
    };
    let mut head = Vec::with_capacity(request.system.len() + 512);
    write_up_to("input", &opening, &mut head);
    Envelope { head, tail: "]}", marks: None }
}

#[derive(Serialize)]
struct Shortening<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<String>,
}

#[derive(Serialize)]
struct Opening<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    include: Option<[&'static str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Reasoning {
    effort: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'static str>,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    /// Off, because external schemas (MCP servers) don't follow its rules; omitted means on.
    strict: bool,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message {
        role: Role,
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<&'a str>,
        content: &'a [Part<'a>],
    },
    FunctionCall {
        call_id: &'a str,
        name: &'a str,
        /// JSON as a string.
        arguments: String,
    },
    FunctionCallOutput {
        call_id: &'a str,
        output: Output<'a>,
    },
    /// As received from the service, with its own type.
    #[serde(untagged)]
    Native(&'a Value),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(String),
    Parts(Vec<Part<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    InputText { text: Cow<'a, str> },
    InputImage { image_url: String, detail: &'static str },
    InputFile { filename: &'a str, file_data: String },
    OutputText { text: &'a str },
}

impl<'a> From<Sendable<'a>> for Part<'a> {
    fn from(part: Sendable<'a>) -> Part<'a> {
        match part {
            Sendable::Text(text) => Part::InputText { text },
            Sendable::Image { mime_type, data } => {
                Part::InputImage { image_url: data_url(mime_type, data), detail: "auto" }
            }
            Sendable::Document { mime_type, data, name } => {
                Part::InputFile { filename: name.unwrap_or(UNNAMED), file_data: data_url(mime_type, data) }
            }
        }
    }
}

/// The outcome of a call. Images and documents are only included for OpenAI itself: other servers accept only
/// text there, so these are added to `said`, the following user content.
fn output<'a>(endpoint: &Endpoint, answer: &Answer<'a>, said: &mut Vec<Part<'a>>) -> Output<'a> {
    let Some(outcome) = answer.outcome else { return Output::Text(NO_OUTCOME.into()) };
    let is_text = |part: &OutcomeContent| matches!(part, OutcomeContent::Text { .. });
    if endpoint.own_api && !outcome.content.iter().all(is_text) {
        return Output::Parts(shown(outcome, endpoint).map(Part::from).collect());
    }
    let (text, rest) = text_and_rest(outcome, endpoint);
    if !rest.is_empty() {
        said.push(Part::InputText { text: format!("What call {} shows:", answer.call.id).into() });
        said.extend(rest.into_iter().map(Part::from));
    }
    Output::Text(text)
}

/// What has to be sent back to this endpoint's model from a reply.
enum Own<'a> {
    /// A reasoning item, unchanged.
    Reasoning(&'a Value),
    /// The phase of the message that follows: commentary or the final answer.
    Phase(&'a str),
}

fn own<'a>(native: &'a Native, endpoint: &Endpoint, prefix: &str) -> Option<Own<'a>> {
    if !is_own(native, endpoint) {
        return None;
    }
    if let Some(phase) = native.data["phase"].as_str() {
        return Some(Own::Phase(phase));
    }
    let item = native.data.get("item").filter(|item| item["type"] == "reasoning")?;
    (native.data["prefix"] == prefix).then_some(Own::Reasoning(item))
}

/// The reasoning configuration of models controlled by effort levels. The summary is what users can read of
/// it.
fn reasoning(endpoint: &Endpoint, request: &Request<'_>) -> Option<Reasoning> {
    let effort = endpoint.abilities.thinking.effort(request.thought)?;
    let summary = (endpoint.own_api && effort != Effort::None).then_some("auto");
    Some(Reasoning { effort: effort.word(), summary })
}

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
