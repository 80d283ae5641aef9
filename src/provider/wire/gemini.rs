//! Gemini's `streamGenerateContent` format: a request as JSON. Pure; nothing is sent from here.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::parts::{Sendable, said, text_and_rest};
use super::turns::{Answer, NO_OUTCOME, Turn};
use super::{
    Around, Envelope, Format, Prefix, Purpose, Written, is_own, json, json_text, write, write_up_to,
};
use crate::abilities::{Effort, Thinking};
use crate::endpoint::Endpoint;
use epitome_thread::{Content, Native, OutcomeStatus, ThoughtLevel, ToolSpec};
use epitome_tokens::family::{Family, Named};

/// Gemini's format.
///
/// A signature of the model's thinking goes back on the very part that it came with, and only behind the
/// prefix that it was made for. Thinking without one is for people and does not go back.
pub struct Gemini;

/// Google's word for the first call of a step whose signature is not to be had: made by another model, or
/// bound to a conversation that has changed since.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// What Gemini 3 takes in a response; more types are taken beside it.
const IN_RESPONSES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "application/pdf"];

/// Budgets of thinking that all models of the Gemini 2.5 family take, in tokens.
const BUDGET_MIN: u32 = 512;
const BUDGET_MAX: u32 = 24_576;

/// The smallest budget of a model that can't do without.
const BUDGET_LEAST: u32 = 128;

impl Format for Gemini {
    fn tools(&self, _: &Endpoint, tools: &[ToolSpec]) -> Vec<u8> {
        let function_declarations: Vec<Declaration<'_>> = tools
            .iter()
            .map(|tool| Declaration {
                name: &tool.name,
                description: &tool.description,
                parameters_json_schema: &tool.schema,
            })
            .collect();
        json(&[Declarations { function_declarations }])
    }

    fn turn(&self, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix, out: &mut Vec<u8>) -> Written {
        match turn {
            Turn::User { compacted: _, answers, parts } => {
                let from = out.len();
                out.extend_from_slice(br#"{"role":"user","parts":"#);
                let mut sent = responses(endpoint, answers);
                for part in parts.iter().filter_map(|part| said(part, endpoint)) {
                    // The format has no field for a name, and people speak of documents by it.
                    if let Sendable::Document { name: Some(name), .. } = part {
                        sent.push(Data::Text(format!("The document {name}:").into()).into());
                    }
                    sent.push(Data::from(part).into());
                }
                write(&sent, out);
                out.push(b'}');
                prefix.add(&out[from..]);
            }
            // Replies behind one another are one message, because a call must follow the person's. Each is
            // added to the prefix as if it were alone, as it was when the next was made.
            Turn::Agent { replies } => {
                const OPEN: &[u8] = br#"{"role":"model","parts":["#;
                const CLOSE: &[u8] = b"]}";
                out.extend_from_slice(OPEN);
                for (at, reply) in replies.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    let mut list = Vec::new();
                    write(&replied(reply, endpoint, &prefix.digest()), &mut list);
                    let parts = &list[1..list.len() - 1];
                    for piece in [OPEN, parts, CLOSE] {
                        prefix.add(piece);
                    }
                    out.extend_from_slice(parts);
                }
                out.extend_from_slice(CLOSE);
            }
        }
        Written::default()
    }

    fn envelope(&self, endpoint: &Endpoint, around: &Around<'_>) -> Envelope {
        let request = around.request;
        let system = (!request.system.trim().is_empty())
            .then(|| Instruction { parts: [Part::from(Data::Text(request.system.into()))] });
        let max_output_tokens = request.max_output.min(endpoint.max_output);
        let (before, tail, model, generation_config) = match around.purpose {
            Purpose::Reply | Purpose::Compact { .. } => {
                let thinking_config =
                    thinking(endpoint.abilities.thinking, request.thought, max_output_tokens);
                ("", "]}", None, Some(GenerationConfig { max_output_tokens, thinking_config }))
            }
            // Only in this form are system text and tools counted too.
            Purpose::Count => {
                (r#"{"generateContentRequest":"#, "]}}", Some(format!("models/{}", endpoint.model)), None)
            }
        };
        let tools = (!request.tools.is_empty()).then(|| json_text(around.tools));
        let opening = Opening { model, system_instruction: system, tools, generation_config };
        let mut head = Vec::with_capacity(request.system.len() + around.tools.len() + 512);
        head.extend_from_slice(before.as_bytes());
        write_up_to("contents", &opening, &mut head);
        Envelope { head, tail, marks: None }
    }
}

/// What a reply's part leaves to be sent back, as `Native::data` holds it.
#[derive(Serialize, Deserialize)]
pub(super) struct Seal<'a> {
    /// The digest of all that the reply was made behind.
    pub(super) prefix: &'a str,
    #[serde(flatten)]
    pub(super) of: Sealed<'a>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(super) enum Sealed<'a> {
    /// The signature of the call that follows.
    Call { signature: &'a str },
    /// The signature of the last `bytes` of the text before it, which came as a part of their own; of an
    /// empty text where that is 0.
    Text { signature: &'a str, bytes: usize },
    /// The same of thinking.
    Thought { signature: &'a str, bytes: usize },
    /// Thinking without a signature, complete.
    Unsigned,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Opening<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<Instruction<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation_config: Option<GenerationConfig>,
}

#[derive(Serialize)]
struct Instruction<'a> {
    parts: [Part<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Declarations<'a> {
    function_declarations: Vec<Declaration<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Declaration<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig {
    max_output_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_config: Option<ThinkingConfig>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThinkingConfig {
    include_thoughts: bool,
    #[serde(flatten)]
    amount: Amount,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Amount {
    ThinkingBudget(u32),
    ThinkingLevel(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(flatten)]
    data: Data<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thought_signature: Option<&'a str>,
}

impl<'a> From<Data<'a>> for Part<'a> {
    fn from(data: Data<'a>) -> Part<'a> {
        Part { data, thought: false, thought_signature: None }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Data<'a> {
    Text(Cow<'a, str>),
    #[serde(rename = "inlineData", rename_all = "camelCase")]
    Inline {
        mime_type: &'a str,
        data: &'a str,
    },
    FunctionCall {
        id: &'a str,
        name: &'a str,
        args: &'a Value,
    },
    FunctionResponse {
        id: &'a str,
        name: &'a str,
        response: Response,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        parts: Vec<Data<'a>>,
    },
}

impl<'a> From<Sendable<'a>> for Data<'a> {
    fn from(part: Sendable<'a>) -> Data<'a> {
        match part {
            Sendable::Text(text) => Data::Text(text),
            Sendable::Image { mime_type, data } | Sendable::Document { mime_type, data, .. } => {
                Data::Inline { mime_type, data }
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Output(String),
    Error(String),
}

/// The older models, and Gemma, want no signature with a call, and take what a tool shows only beside its
/// response, not in it.
pub fn is_before_gemini_3(model: &str) -> bool {
    let model = Named::of(model);
    model.family == Family::Gemini && model.version.is_none_or(|version| version < (3, 0))
}

/// The responses to all calls of a step, in their order; behind them what can't be in them.
fn responses<'a>(endpoint: &Endpoint, answers: &[Answer<'a>]) -> Vec<Part<'a>> {
    let mut sent = Vec::with_capacity(answers.len());
    let mut beside: Vec<Part<'a>> = Vec::new();
    for answer in answers {
        let (id, name) = (answer.call.id.0.as_str(), answer.call.name.as_str());
        let (response, shown) = response(endpoint, answer);
        let (parts, apart): (Vec<_>, Vec<_>) = shown.into_iter().partition(|shown| {
            matches!(shown, Data::Inline { mime_type, .. } if IN_RESPONSES.contains(mime_type))
                && !is_before_gemini_3(&endpoint.model)
        });
        if !apart.is_empty() {
            beside.push(Data::Text(format!("Shown by the call {id} of {name}:").into()).into());
            beside.extend(apart.into_iter().map(Part::from));
        }
        sent.push(Data::FunctionResponse { id, name, response, parts }.into());
    }
    sent.extend(beside);
    sent
}

/// What a tool said, and what it showed.
fn response<'a>(endpoint: &Endpoint, answer: &Answer<'a>) -> (Response, Vec<Data<'a>>) {
    let Some(outcome) = answer.outcome else { return (Response::Error(NO_OUTCOME.into()), Vec::new()) };
    let (text, rest) = text_and_rest(outcome, endpoint);
    let response = match outcome.status {
        OutcomeStatus::Completed => Response::Output(text),
        OutcomeStatus::Failed | OutcomeStatus::Denied | OutcomeStatus::Interrupted => Response::Error(text),
    };
    (response, rest.into_iter().map(Data::from).collect())
}

/// The parts of a reply, each with the signature that it came with.
fn replied<'a>(reply: &[&'a Content], endpoint: &Endpoint, prefix: &str) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(reply.len());
    // Of the call that is next.
    let mut signature = None;
    let mut has_call = false;
    for (at, content) in reply.iter().enumerate() {
        let own = signature.take();
        match content {
            Content::Text { text } => parts.push(Data::Text(text.into()).into()),
            Content::Call(call) => {
                // Calls made at once with the first have none of their own.
                let wants_one = !has_call && !is_before_gemini_3(&endpoint.model);
                has_call = true;
                parts.push(Part {
                    data: Data::FunctionCall { id: &call.id.0, name: &call.name, args: &call.input },
                    thought: false,
                    thought_signature: own.or(wants_one.then_some(NO_SIGNATURE)),
                });
            }
            Content::Thinking { text, native: Some(native) } => {
                let text_before = match at.checked_sub(1).map(|before| reply[before]) {
                    Some(Content::Text { text }) => text.as_str(),
                    Some(_) | None => "",
                };
                match own_seal(native, endpoint, prefix) {
                    Some(Sealed::Call { signature: of_call }) => signature = Some(of_call),
                    Some(Sealed::Text { signature, bytes }) => {
                        if let Some((head, tail)) = split_from_end(text_before, bytes) {
                            if bytes > 0 {
                                parts.pop();
                                parts.extend((!head.is_empty()).then(|| Data::Text(head.into()).into()));
                            }
                            parts.push(signed_text(tail, signature, false));
                        }
                    }
                    Some(Sealed::Thought { signature, bytes }) => {
                        let signed = split_from_end(text, bytes);
                        parts.extend(signed.map(|(_, tail)| signed_text(tail, signature, true)));
                    }
                    Some(Sealed::Unsigned) | None => {}
                }
            }
            Content::Thinking { native: None, .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. } => {}
        }
    }
    parts
}

/// What to send back of this part, if this endpoint's model made it behind this prefix.
fn own_seal<'a>(native: &'a Native, endpoint: &Endpoint, prefix: &str) -> Option<Sealed<'a>> {
    let seal = Seal::deserialize(&native.data).ok()?;
    (is_own(native, endpoint) && seal.prefix == prefix).then_some(seal.of)
}

fn signed_text<'a>(text: &'a str, signature: &'a str, thought: bool) -> Part<'a> {
    Part { data: Data::Text(text.into()), thought, thought_signature: Some(signature) }
}

/// `None` where the text has become another than the one that was signed.
fn split_from_end(text: &str, bytes: usize) -> Option<(&str, &str)> {
    text.split_at_checked(text.len().checked_sub(bytes)?)
}

/// How much to think, and whether to show it. Off is the least that the model can do, unseen.
fn thinking(steered: Thinking, level: ThoughtLevel, max_output: u32) -> Option<ThinkingConfig> {
    let amount = match steered {
        Thinking::None => return None,
        Thinking::Efforts(_) => match steered.effort(level)? {
            Effort::None => Amount::ThinkingBudget(0),
            // The format has no word above this one.
            Effort::Max => Amount::ThinkingLevel(Effort::XHigh.word().to_ascii_uppercase()),
            effort @ (Effort::Minimal | Effort::Low | Effort::Medium | Effort::High | Effort::XHigh) => {
                Amount::ThinkingLevel(effort.word().to_ascii_uppercase())
            }
        },
        Thinking::Budget { optional } => Amount::ThinkingBudget(match steered.budget(level, max_output) {
            Some(budget) if budget >= BUDGET_MIN => budget.min(BUDGET_MAX),
            Some(_) | None if optional => 0,
            Some(_) | None => BUDGET_LEAST,
        }),
    };
    let include_thoughts = level != ThoughtLevel::Off && !matches!(amount, Amount::ThinkingBudget(0));
    Some(ThinkingConfig { include_thoughts, amount })
}

#[cfg(test)]
#[path = "gemini_tests.rs"]
mod tests;
