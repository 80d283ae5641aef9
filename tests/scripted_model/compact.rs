//! Simulates compaction by the provider: generates compactions, and validates requests that contain or ask
//! for one. Pure. Generated ones are signed (`seal`) and checked when they come back.

use serde_json::{Value, json};

use super::http::Head;
use super::refusal::Refusal;
use super::{Answer, ModelStep, Reply, encode, seal};
use epitome_config::WireFormat;

/// Beta feature that Anthropic requires for requesting a compaction and for sending one back.
const BETA: &str = "compact-2026-09-04";

/// Fields that OpenAI's endpoint accepts.
const FIELDS: [&str; 9] = [
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
    "image",
];

/// Why the provider would reject how this request asks for a compaction or sends one back.
pub(super) fn problems(wire: WireFormat, head: &Head, body: &Value) -> Vec<String> {
    match wire {
        WireFormat::AnthropicMessages => {
            let betas = head.header("anthropic-beta").unwrap_or_default();
            let named = betas.split(',').any(|beta| beta.trim() == BETA);
            let brought = body["messages"][0]["content"][0]["type"] == "compaction";
            match (named, body["compaction"].is_null(), brought) {
                (false, false, _) => vec!["compaction: Extra inputs are not permitted".into()],
                (false, true, true) => vec![
                    "messages.0.content.0: Input tag 'compaction' found does not match \
                     any of the expected tags"
                        .into(),
                ],
                (_, _, _) => Vec::new(),
            }
        }
        WireFormat::OpenAiResponses if head.path.contains("/responses/compact") => {
            let fields = body.as_object().into_iter().flat_map(|fields| fields.keys());
            let unknown = fields.filter(|name| !FIELDS.contains(&name.as_str()));
            unknown.map(|name| format!("Unknown parameter: '{name}'.")).collect()
        }
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => Vec::new(),
    }
}

/// Answers a request for a compaction. The script's text becomes its content, which only Anthropic's form
/// shows; a script's error replaces it. OpenAI's answer isn't streamed, so steps that require a stream are
/// ignored.
pub(super) fn answer(
    wire: WireFormat,
    model: &str,
    body: &Value,
    steps: &[ModelStep],
    next_call: &mut dyn FnMut() -> u64,
) -> Answer {
    if wire != WireFormat::OpenAiResponses {
        return Answer::Reply(encode::reply(wire, model, body, steps, next_call));
    }
    match steps.first() {
        Some(ModelStep::Error { status, retry_after, message }) => {
            Answer::Reply(Reply::Refused(Refusal::new(wire, *status, *retry_after, message.as_deref())))
        }
        Some(ModelStep::Overflow) => Answer::Reply(Reply::Refused(Refusal::overflow(wire))),
        Some(_) | None => Answer::Plain(of_openai(model, body, steps)),
    }
}

/// The user's messages, and one item that represents everything else.
fn of_openai(model: &str, body: &Value, steps: &[ModelStep]) -> Value {
    let items = body["input"].as_array().cloned().unwrap_or_default();
    let said = items.into_iter().filter(|item| item["role"] == "user");
    let mut output: Vec<Value> = said
        .enumerate()
        .map(|(at, item)| {
            json!({"id": format!("msg_{at}"), "type": "message", "status": "completed", "role": "user",
                "content": item["content"]})
        })
        .collect();
    let seal = seal::of_compaction(WireFormat::OpenAiResponses, model, body, "");
    output.push(json!({"id": "cmp_scripted", "type": "compaction", "encrypted_content": seal,
        "created_by": null}));
    json!({"id": "resp_scripted", "object": "response.compaction", "created_at": 0, "output": output,
        "usage": encode::usage_of_openai(steps)})
}
