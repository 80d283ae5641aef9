//! Encodes requests in OpenAI's Chat Completions format for OpenAI and the many compatible servers. Pure;
//! nothing is sent from here. Only OpenAI itself gets OpenAI's own fields.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::parts::{Sendable, UNNAMED, data_url, said, text_and_rest};
use super::turns::{NO_OUTCOME, Turn, without_blanks};
use super::{Around, Envelope, Format, Prefix, Written, json, json_text, put, write, write_up_to};
use crate::Request;
use crate::abilities::{Effort, Thinking, limits_completion, needs_responses};
use crate::endpoint::Endpoint;
use epitome_thread::{Content, ThoughtLevel, ToolSpec};
use epitome_tokens::family::Named;

/// The Chat Completions format.
///
/// Thinking is omitted, as the format has no field for it. Images and documents of tool outcomes follow in a
/// user message, because tool messages can only contain text.
pub struct Chat;

impl Format for Chat {
    fn tools(&self, _: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        let tools: Vec<Tool<'_>> = tools
            .iter()
            .map(|tool| Tool {
                r#type: "function",
                function: Function {
                    name: &tool.name,
                    description: &tool.description,
                    parameters: &tool.schema,
                },
            })
            .collect();
        json(&tools)
    }

    fn turn(&self, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix, out: &mut Vec<u8>) -> Written {
        match turn {
            Turn::Agent { replies } => put(&agent(replies), prefix, out),
            Turn::User { compacted: _, answers, parts } => {
                let mut content: Vec<Part<'_>> = Vec::new();
                for answer in answers {
                    let id = &answer.call.id;
                    let (text, rest) = match answer.outcome {
                        None => (NO_OUTCOME.into(), Vec::new()),
                        Some(outcome) => text_and_rest(outcome, endpoint),
                    };
                    put(&Message::Tool { tool_call_id: &id.0, content: text }, prefix, out);
                    if !rest.is_empty() {
                        content.push(Part::Text { text: format!("What call {id} shows:").into() });
                        content.extend(rest.into_iter().map(Part::from));
                    }
                }
                content.extend(parts.iter().filter_map(|part| said(part, endpoint)).map(Part::from));
                if !content.is_empty() {
                    put(&Message::User { content: UserContent(content) }, prefix, out);
                }
            }
        }
        Written::default()
    }

    fn envelope(&self, endpoint: &Endpoint, around: &Around<'_>) -> Envelope {
        let request = around.request;
        let own = endpoint.own_api;
        let max_tokens = request.max_output.min(endpoint.max_output);
        // OpenAI's thinking models reject the old field behind gateways too.
        let is_new = own || limits_completion(&endpoint.model);
        let opening = Opening {
            model: &endpoint.model,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            max_completion_tokens: is_new.then_some(max_tokens),
            max_tokens: (!is_new).then_some(max_tokens),
            // For other services, the user's settings say what they accept.
            reasoning_effort: match endpoint.own_api {
                true => effort(endpoint, request),
                false => endpoint.abilities.thinking.effort(request.thought).map(Effort::word),
            },
            prompt_cache_key: own.then_some(request.cache_key).filter(|key| !key.is_empty()),
            tools: (!request.tools.is_empty()).then(|| json_text(around.tools)),
        };
        let mut head = Vec::with_capacity(request.system.len() + around.tools.len() + 512);
        write_up_to("messages", &opening, &mut head);
        if !request.system.trim().is_empty() {
            write(&Message::System { content: request.system }, &mut head);
            head.push(b',');
        }
        Envelope { head, tail: "]}", marks: None }
    }
}

#[derive(Serialize)]
struct Opening<'a> {
    model: &'a str,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Message<'a> {
    System {
        content: &'a str,
    },
    User {
        content: UserContent<'a>,
    },
    Assistant {
        /// `null` if there are only calls.
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: String,
    },
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    r#type: &'static str,
    function: Called<'a>,
}

#[derive(Serialize)]
struct Called<'a> {
    name: &'a str,
    /// JSON as a string.
    arguments: String,
}

/// A plain string if there is only text: the templates of many local models accept nothing else.
struct UserContent<'a>(Vec<Part<'a>>);

impl Serialize for UserContent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts: Option<Vec<&str>> = self
            .0
            .iter()
            .map(|part| match part {
                Part::Text { text } => Some(text.as_ref()),
                Part::ImageUrl { .. } | Part::File { .. } => None,
            })
            .collect();
        match texts {
            Some(texts) => serializer.serialize_str(&texts.join("\n\n")),
            None => self.0.serialize(serializer),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl },
    File { file: File<'a> },
}

#[derive(Serialize)]
struct ImageUrl {
    url: String,
}

#[derive(Serialize)]
struct File<'a> {
    filename: &'a str,
    file_data: String,
}

impl<'a> From<Sendable<'a>> for Part<'a> {
    fn from(part: Sendable<'a>) -> Part<'a> {
        match part {
            Sendable::Text(text) => Part::Text { text },
            Sendable::Image { mime_type, data } => {
                Part::ImageUrl { image_url: ImageUrl { url: data_url(mime_type, data) } }
            }
            Sendable::Document { mime_type, data, name } => Part::File {
                file: File { filename: name.unwrap_or(UNNAMED), file_data: data_url(mime_type, data) },
            },
        }
    }
}

/// Encodes a reply. Consecutive replies, as after a pause, are merged into one message: templates of local
/// models require alternating roles.
fn agent<'a>(replies: &[Vec<&'a Content>]) -> Message<'a> {
    let mut texts: Vec<&str> = Vec::new();
    let mut calls: Vec<Call<'a>> = Vec::new();
    for part in replies.iter().flat_map(|parts| without_blanks(parts)) {
        match part {
            Content::Text { text } => texts.push(text),
            Content::Call(call) => calls.push(Call {
                id: &call.id.0,
                r#type: "function",
                function: Called { name: &call.name, arguments: call.input.to_string() },
            }),
            Content::Thinking { .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => {}
        }
    }
    let content = (!texts.is_empty()).then(|| texts.join("\n\n"));
    Message::Assistant { content, tool_calls: calls }
}

/// From this version on, OpenAI's models think by default.
const THINKS_UNTOLD_SINCE: (u32, u32) = (5, 4);

/// The reasoning effort, as far as OpenAI accepts it together with tools in this format: for newer models it
/// must be set to none explicitly, for the newest that is impossible.
fn effort(endpoint: &Endpoint, request: &Request<'_>) -> Option<&'static str> {
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
        Named::of(&endpoint.model).version.is_some_and(|version| version >= THINKS_UNTOLD_SINCE);
    if wants_a_word { if has_tools { Some("none") } else { plain.or(Some("none")) } } else { plain }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
