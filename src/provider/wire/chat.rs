//! OpenAI's Chat Completions format as OpenAI and the many compatible servers take it: a request as
//! JSON. Pure; nothing is sent from here. Only OpenAI itself gets fields that are OpenAI's alone.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::turns::{
    NO_OUTCOME, NO_OUTPUT, Turn, document_left_out, image_left_out, link_text, resource_text,
};
use super::{Around, Envelope, Format, Prefix, Written, json_text, write};
use crate::provider::Request;
use crate::provider::abilities::{Effort, limits_completion, needs_responses};
use crate::provider::attachments::{takes_document, takes_image};
use crate::provider::endpoint::Endpoint;
use crate::thread::{Content, OutcomeContent, ThoughtLevel, ToolOutcome, ToolSpec};

/// The Chat Completions format.
///
/// Thinking is left out: the format has no place for it. Images and documents of tool outcomes follow in
/// a message of the person's, because a tool's message can hold text alone.
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
        let mut out = Vec::new();
        write(&tools, &mut out);
        out
    }

    fn turn(&self, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix, out: &mut Vec<u8>) -> Written {
        let from = out.len();
        let messages = match turn {
            Turn::Agent { replies } => vec![agent(replies)],
            Turn::User { answers, parts } => {
                let mut messages = Vec::with_capacity(answers.len() + 1);
                let mut said: Vec<Part<'_>> = Vec::new();
                for answer in answers {
                    let content = match answer.outcome {
                        None => NO_OUTCOME.into(),
                        Some(outcome) => outcome_text(outcome),
                    };
                    let id = &answer.call.id;
                    messages.push(Message::Tool { tool_call_id: &id.0, content });
                    for part in answer.outcome.map_or(&[][..], |outcome| outcome.content.as_slice()) {
                        match part {
                            OutcomeContent::Text { .. } => {}
                            OutcomeContent::Image { mime_type, data } => {
                                said.push(Part::Text { text: format!("Image of call {id}:").into() });
                                said.push(image(mime_type, data, endpoint));
                            }
                            OutcomeContent::Document { mime_type, data, name } => {
                                said.push(Part::Text { text: format!("Document of call {id}:").into() });
                                said.push(document(mime_type, data, name.as_deref(), endpoint));
                            }
                        }
                    }
                }
                said.extend(parts.iter().filter_map(|part| user_part(part, endpoint)));
                if !said.is_empty() {
                    messages.push(Message::User { content: UserContent(said) });
                }
                messages
            }
        };
        for (at, message) in messages.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            write(message, out);
        }
        prefix.add(&out[from..]);
        Written::default()
    }

    fn envelope(&self, endpoint: &Endpoint, around: &Around<'_>) -> Envelope {
        let request = around.request;
        let own = endpoint.own_api;
        let max_tokens = request.max_output.min(endpoint.max_output);
        // OpenAI's models that think refuse the old field behind a gateway too.
        let is_new = own || limits_completion(&endpoint.model);
        let opening = Opening {
            model: &endpoint.model,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            max_completion_tokens: is_new.then_some(max_tokens),
            max_tokens: (!is_new).then_some(max_tokens),
            // What other services take is what the person says of them.
            reasoning_effort: match endpoint.own_api {
                true => effort(endpoint, request),
                false => endpoint.abilities.thinking.effort(request.thought).map(Effort::word),
            },
            prompt_cache_key: own.then_some(request.cache_key).filter(|key| !key.is_empty()),
            tools: (!request.tools.is_empty()).then(|| json_text(around.tools)),
        };
        let mut head = Vec::with_capacity(request.system.len() + around.tools.len() + 512);
        write(&opening, &mut head);
        head.pop();
        head.extend_from_slice(b",\"messages\":[");
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
        /// `null` beside calls alone.
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
    /// JSON as text.
    arguments: String,
}

/// Plain text where there is only text: the templates of many local models take nothing else.
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

/// A reply. One behind another, as after a pause, goes on in the same message: templates of local models
/// want the sides to alternate.
fn agent<'a>(replies: &[Vec<&'a Content>]) -> Message<'a> {
    let mut texts: Vec<&str> = Vec::new();
    let mut calls: Vec<Call<'a>> = Vec::new();
    for part in replies.iter().flatten() {
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

fn outcome_text(outcome: &ToolOutcome) -> String {
    let text = outcome.model_text();
    if text.trim().is_empty() { NO_OUTPUT.into() } else { text }
}

fn user_part<'a>(part: &'a Content, endpoint: &Endpoint) -> Option<Part<'a>> {
    match part {
        Content::Text { text } => Some(Part::Text { text: text.into() }),
        Content::Image { mime_type, data, .. } => Some(image(mime_type, data, endpoint)),
        Content::Document { mime_type, data, name } => {
            Some(document(mime_type, data, name.as_deref(), endpoint))
        }
        Content::Resource { uri, text } => Some(Part::Text { text: resource_text(uri, text).into() }),
        Content::ResourceLink { uri, name } => Some(Part::Text { text: link_text(uri, name).into() }),
        Content::Thinking { .. } | Content::Call(_) => None,
    }
}

fn image<'a>(mime_type: &str, data: &str, endpoint: &Endpoint) -> Part<'a> {
    if takes_image(endpoint, mime_type) {
        Part::ImageUrl { image_url: ImageUrl { url: data_url(mime_type, data) } }
    } else {
        Part::Text { text: image_left_out(mime_type).into() }
    }
}

/// What a document without a name is called, because the format wants one.
const UNNAMED: &str = "document.pdf";

fn document<'a>(mime_type: &str, data: &str, name: Option<&'a str>, endpoint: &Endpoint) -> Part<'a> {
    if takes_document(endpoint, mime_type) {
        let filename = name.filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
        Part::File { file: File { filename, file_data: data_url(mime_type, data) } }
    } else {
        Part::Text { text: document_left_out(mime_type, name).into() }
    }
}

fn data_url(mime_type: &str, data: &str) -> String {
    format!("data:{mime_type};base64,{data}")
}

/// How much to think, as far as OpenAI takes that together with tools in this format: its newer models
/// must be told not to, its newest cannot be.
fn effort(endpoint: &Endpoint, request: &Request<'_>) -> Option<&'static str> {
    let model = endpoint.model.as_str();
    let has_tools = !request.tools.is_empty();
    let plain = match request.thought {
        ThoughtLevel::Off => None,
        ThoughtLevel::Low => Some("low"),
        ThoughtLevel::Medium => Some("medium"),
        ThoughtLevel::High | ThoughtLevel::Max => Some("high"),
    };
    let is = |prefix: &str| model.starts_with(prefix);
    if needs_responses(model) {
        return if has_tools { None } else { plain };
    }
    if is("gpt-6") || is("gpt-5.4") || is("gpt-5.5") || is("gpt-5.6") {
        return if has_tools { Some("none") } else { plain.or(Some("none")) };
    }
    let reasons = is("gpt-5") || is("o1") || is("o3") || is("o4");
    if reasons { plain } else { None }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
