//! Determines a request's purpose from its path, as the providers' own services do. Pure.

use serde_json::{Value, json};

use super::http::Head;
use super::refusal::{Refusal, WINDOW};
use epitome_config::WireFormat;
use epitome_provider::models;
use epitome_thread::ModelName;

/// Bytes per token in token counts: approximate, but the same on every machine.
const BYTES_PER_TOKEN: usize = 4;

/// Maximum reply tokens of the listed models.
const OUTPUT: u32 = 8192;

/// A routed request.
pub(super) enum Asked {
    /// The list of models.
    Models(Value),
    /// A request to a model.
    Model { wire: WireFormat, model: String, body: Value, asks: Asks, streams: bool },
}

/// The kind of a request to the model.
pub(super) enum Asks {
    Reply,
    /// A token count, with the answer.
    Count(Value),
    /// A compaction.
    Compact,
}

/// The purpose that the path expresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Means {
    Reply,
    Count,
    Compact,
}

/// Routes a request. Unsupported or malformed ones are rejected as the provider would.
pub(super) fn route(head: &Head, body: &[u8]) -> Result<Asked, Refusal> {
    let (path, query) = head.path.split_once('?').unwrap_or((&head.path, ""));
    if head.method == "GET"
        && let Some(list) = models(head, path)
    {
        return Ok(Asked::Models(list));
    }
    let in_path = gemini_model(path);
    let (wire, means) = match (head.method.as_str(), path, &in_path) {
        ("POST", "/v1/messages", _) => (WireFormat::AnthropicMessages, Means::Reply),
        ("POST", "/v1/messages/count_tokens", _) => (WireFormat::AnthropicMessages, Means::Count),
        ("POST", "/v1/responses" | "/responses", _) => (WireFormat::OpenAiResponses, Means::Reply),
        ("POST", "/v1/responses/input_tokens" | "/responses/input_tokens", _) => {
            (WireFormat::OpenAiResponses, Means::Count)
        }
        ("POST", "/v1/responses/compact" | "/responses/compact", _) => {
            (WireFormat::OpenAiResponses, Means::Compact)
        }
        // `/chat-only` is a service without the Responses API.
        ("POST", "/v1/chat/completions" | "/chat/completions" | "/chat-only/chat/completions", _) => {
            (WireFormat::OpenAiChat, Means::Reply)
        }
        ("POST", _, Some((_, "streamGenerateContent" | "generateContent"))) => {
            (WireFormat::Gemini, Means::Reply)
        }
        ("POST", _, Some((_, "countTokens"))) => (WireFormat::Gemini, Means::Count),
        (method, _, _) => {
            let message = format!("the scripted model does not serve {method} {path}");
            let wire = match in_path {
                Some(_) => WireFormat::Gemini,
                None => WireFormat::OpenAiChat,
            };
            return Err(Refusal::new(wire, 404, None, Some(&message)));
        }
    };
    let Ok(mut parsed) = serde_json::from_slice::<Value>(body) else {
        return Err(Refusal::of_problem(wire, "the body is no JSON"));
    };
    if wire == WireFormat::Gemini && means == Means::Count && parsed["generateContentRequest"].is_object() {
        parsed = parsed["generateContentRequest"].take();
    }
    let streams = match wire {
        WireFormat::Gemini => query.split('&').any(|pair| pair == "alt=sse"),
        WireFormat::AnthropicMessages | WireFormat::OpenAiResponses | WireFormat::OpenAiChat => {
            parsed["stream"] == true
        }
    };
    let streams = streams || means != Means::Reply;
    let model = match &in_path {
        Some((model, _)) => (*model).to_owned(),
        None => parsed["model"].as_str().unwrap_or_default().to_owned(),
    };
    let tokens = body.len().div_ceil(BYTES_PER_TOKEN);
    let asks = match (means, wire) {
        (Means::Reply, WireFormat::AnthropicMessages) if !parsed["compaction"].is_null() => Asks::Compact,
        (Means::Reply, _) => Asks::Reply,
        (Means::Compact, _) => Asks::Compact,
        (Means::Count, WireFormat::AnthropicMessages | WireFormat::OpenAiChat) => {
            Asks::Count(json!({ "input_tokens": tokens }))
        }
        (Means::Count, WireFormat::OpenAiResponses) => {
            Asks::Count(json!({"object": "response.input_tokens", "input_tokens": tokens}))
        }
        (Means::Count, WireFormat::Gemini) => Asks::Count(json!({
            "totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]})),
    };
    Ok(Asked::Model { wire, model, body: parsed, asks, streams })
}

/// The model and the method in one of Gemini's paths.
fn gemini_model(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/v1beta/models/").or(path.strip_prefix("/v1/models/"))?;
    rest.split_once(':')
}

/// The list of models in the format of the client's provider.
fn models(head: &Head, path: &str) -> Option<Value> {
    let of_gemini =
        path == "/v1beta/models" || path == "/v1/models" && head.header("x-goog-api-key").is_some();
    if of_gemini {
        let model = |id: &str| {
            let (window, output) = limits(&format!("gemini/{id}"));
            json!({"name": format!("models/{id}"), "displayName": id, "inputTokenLimit": window,
                "outputTokenLimit": output, "supportedGenerationMethods": ["generateContent", "countTokens"]})
        };
        return Some(json!({"models": [model("gemini-4-argon"), model("scripted")]}));
    }
    if !matches!(path, "/v1/models" | "/models") {
        return None;
    }
    if head.header("anthropic-version").is_some() {
        let model = |id: &str| {
            let (window, output) = limits(&format!("anthropic/{id}"));
            json!({"type": "model", "id": id, "display_name": id, "created_at": "2026-01-01T00:00:00Z",
                "max_input_tokens": window, "max_tokens": output})
        };
        let data = [model("claude-sonnet-5-5"), model("scripted")];
        return Some(json!({"data": data, "has_more": false, "first_id": "claude-sonnet-5-5",
            "last_id": "scripted"}));
    }
    let model = |id: &str| json!({"id": id, "object": "model", "created": 0, "owned_by": "scripted"});
    let mut data = ["gpt-4.1", "gpt-6-astra", "scripted"].map(model);
    // vLLM reports its model's context window in this field.
    data[2]["max_model_len"] = WINDOW.into();
    Some(json!({"object": "list", "data": data}))
}

/// Context window and maximum reply of a model, in tokens; real models have their own.
fn limits(name: &str) -> (u64, u32) {
    match models::known(&ModelName(name.to_owned())) {
        Some(known) => (known.window, known.max_output),
        None => (WINDOW, OUTPUT),
    }
}
