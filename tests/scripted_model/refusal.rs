//! Error responses in the format of each provider. Pure.

use serde_json::{Value, json};

use super::valid::services::{EXTRA_INPUTS, UNVERIFIED};

use epitome_config::WireFormat;

/// Tokens used and context window in overflow errors, as in an observed one.
const OVERFLOW: (u64, u64) = (207_791, 200_000);

/// Context window of the listed models, in tokens.
pub(super) const WINDOW: u64 = OVERFLOW.1;

/// Words of a problem, and what its error has beside the message.
const FIELDS: [(&str, &str, &str); 7] = [
    ("`compaction` block must be the first block", "details.error_code", "compaction_block_misplaced"),
    ("`compaction` block does not match", "details.error_code", "compaction_content_mismatch"),
    ("`compaction` block's signature does not verify", "details.error_code", "compaction_signature_invalid"),
    (UNVERIFIED, "param", "reasoning.summary"),
    (UNVERIFIED, "code", "unsupported_value"),
    ("tools with reasoning_effort", "param", "reasoning_effort"),
    ("maximum number of items", "param", "tools"),
];

/// An error response.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Value,
}

impl Refusal {
    /// An HTTP error of a script. `retry_after` is in seconds.
    pub(super) fn new(
        wire: WireFormat,
        status: u16,
        retry_after: Option<u64>,
        message: Option<&str>,
    ) -> Refusal {
        let message = message.unwrap_or_else(|| default_message(status));
        let id = match wire {
            WireFormat::AnthropicMessages => Some("request-id"),
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat => Some("x-request-id"),
            WireFormat::Gemini => None,
        };
        let mut headers: Vec<(&'static str, String)> = Vec::new();
        headers.extend(id.map(|name| (name, "req_scripted".to_owned())));
        let mut body = body(wire, status, message);
        match (wire, retry_after) {
            (_, None) => {}
            (WireFormat::Gemini, Some(seconds)) => {
                let info = json!({"@type": "type.googleapis.com/google.rpc.RetryInfo",
                    "retryDelay": format!("{seconds}s")});
                body["error"]["details"] = json!([info]);
            }
            (_, Some(seconds)) => headers.push(("retry-after", seconds.to_string())),
        }
        Refusal { status: real_status(wire, status), headers, body }
    }

    /// A request that violates the provider's rules.
    pub(super) fn of_problem(wire: WireFormat, message: &str) -> Refusal {
        let mut refusal = Refusal::new(wire, 400, None, Some(message));
        for (_, path, value) in FIELDS.into_iter().filter(|(words, ..)| message.contains(words)) {
            let field = path.split('.').fold(&mut refusal.body["error"], |at, name| &mut at[name]);
            *field = value.into();
        }
        if message == EXTRA_INPUTS {
            let detail = json!({ "type": "extra_forbidden", "loc": ["body", "stream_options", "include_usage"],
                "msg": message, "input": true });
            refusal.status = 422;
            refusal.body = json!({ "object": "error", "message": { "detail": [detail] },
                "type": "invalid_request_error", "code": null });
        }
        refusal
    }

    /// A request that exceeds the context window.
    pub(super) fn overflow(wire: WireFormat) -> Refusal {
        Refusal { status: 400, headers: Vec::new(), body: overflow_body(wire) }
    }
}

/// Maps statuses that the provider doesn't use.
fn real_status(wire: WireFormat, status: u16) -> u16 {
    match (wire, status) {
        // Gemini reports an invalid key as an invalid argument.
        (WireFormat::Gemini, 401) => 400,
        (WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini, 529) => 503,
        (_, status) => status,
    }
}

/// The body of an error in the provider's format.
pub(super) fn body(wire: WireFormat, status: u16, message: &str) -> Value {
    match wire {
        WireFormat::AnthropicMessages => {
            let kind = match status {
                401 => "authentication_error",
                402 => "billing_error",
                403 => "permission_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                504 => "timeout_error",
                529 => "overloaded_error",
                500..=599 => "api_error",
                _ => "invalid_request_error",
            };
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"})
        }
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat => {
            let (kind, code) = match status {
                401 => ("invalid_request_error", "invalid_api_key"),
                404 => ("invalid_request_error", "model_not_found"),
                429 => ("requests", "rate_limit_exceeded"),
                503 | 529 => ("server_error", "server_is_overloaded"),
                500..=599 => ("server_error", "server_error"),
                _ => ("invalid_request_error", "invalid_value"),
            };
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
        WireFormat::Gemini => {
            let word = match status {
                403 => "PERMISSION_DENIED",
                404 => "NOT_FOUND",
                429 => "RESOURCE_EXHAUSTED",
                504 => "DEADLINE_EXCEEDED",
                503 | 529 => "UNAVAILABLE",
                500..=599 => "INTERNAL",
                _ => "INVALID_ARGUMENT",
            };
            let code = real_status(wire, status);
            let mut body = json!({"error": {"code": code, "message": message, "status": word}});
            if status == 401 {
                body["error"]["details"] = json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]);
            }
            body
        }
    }
}

/// The body of an error about an exceeded context window.
pub(super) fn overflow_body(wire: WireFormat) -> Value {
    let (used, limit) = OVERFLOW;
    let message = match wire {
        WireFormat::AnthropicMessages => format!("prompt is too long: {used} tokens > {limit} maximum"),
        WireFormat::OpenAiChat => format!(
            "Input tokens exceed the configured limit of {limit} tokens. Your messages resulted in {used} tokens. Please \
             reduce the length of the messages."
        ),
        WireFormat::OpenAiResponses => {
            "Your input exceeds the context window of this model. Please adjust your input \
            and try again."
                .to_owned()
        }
        WireFormat::Gemini => {
            format!("The input token count ({used}) exceeds the maximum number of tokens allowed ({limit}).")
        }
    };
    let mut body = body(wire, 400, &message);
    if let Some(param) = match wire {
        WireFormat::OpenAiChat => Some("messages"),
        WireFormat::OpenAiResponses => Some("input"),
        WireFormat::AnthropicMessages | WireFormat::Gemini => None,
    } {
        body["error"]["param"] = param.into();
        body["error"]["code"] = "context_length_exceeded".into();
    }
    body
}

pub(super) fn default_message(status: u16) -> &'static str {
    match status {
        401 => "The key is not valid.",
        403 => "The key has no right to this.",
        404 => "There is no such model.",
        429 => "Too many requests.",
        500..=599 => "The service has a problem.",
        _ => "The request is refused.",
    }
}
