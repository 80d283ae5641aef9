//! What a provider's refusal means: from status, headers and body to a class and a sentence. Pure.
//!
//! Status, types and codes decide; vendors say that their wording changes. Wording is read only to
//! recognise a request that is too long, because several servers have no code for that. What comes out
//! is for people's eyes and logs, so every header value that we sent is taken out of it.

use std::time::Duration;

use serde_json::Value;

use super::endpoint::Endpoint;
use super::retry::RETRY_AFTER_MAX;
use super::{ErrorClass, ProviderError};
use crate::config::WireFormat;

/// The most of a provider's own message that is passed on, in bytes: some echo the whole request.
pub const PROVIDER_MESSAGE_BYTES_MAX: usize = 1_000;

/// Shorter header values are no secrets, and taking them out would garble every sentence.
const SECRET_BYTES_MIN: usize = 6;

/// Types and codes that mean an unpaid account, some of them under the status of a rate limit.
const BILLING: [&str; 3] = ["insufficient_quota", "credit_balance_exhausted", "billing_error"];

/// A response that is no reply.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// 200 for an error that came inside a stream.
    pub status: u16,
    pub retry_after: Option<Duration>,
    /// The header `x-should-retry`, by which a vendor overrides the rules.
    pub should_retry: Option<bool>,
    pub request_id: Option<&'a str>,
    pub body: &'a str,
}

/// Says what a failure means for the caller, and why in a sentence.
pub fn classify(endpoint: &Endpoint, failure: &Failure<'_>) -> ProviderError {
    let said = Said::read(failure.body);
    let class = class(endpoint, failure, &said);
    let mut message = format!("{} {}", subject(endpoint), verdict(&class, failure.status, &said));
    if !said.message.is_empty() {
        message.push_str(": ");
        message.push_str(cut(said.message.trim(), PROVIDER_MESSAGE_BYTES_MAX));
    }
    message.push_str(" (");
    if failure.status != 200 {
        message.push_str(&format!("HTTP {}, ", failure.status));
    }
    message.push_str(&format!("model {}", endpoint.name));
    if let Some(id) = failure.request_id.or(said.request_id.as_deref()) {
        message.push_str(&format!(", request {}", cut(id, 100)));
    }
    message.push(')');
    let hint = hint(endpoint, &class, failure, &said);
    ProviderError { class, message: scrub(endpoint, &message), hint }
}

/// Takes out everything that is sent as a header's value, and the token behind `Bearer`.
pub fn scrub(endpoint: &Endpoint, text: &str) -> String {
    let mut text = text.to_owned();
    for (name, secret) in &endpoint.headers {
        if name == "anthropic-version" {
            continue;
        }
        let whole = secret.expose();
        let token = whole.split_once(' ').map_or("", |(_, token)| token.trim());
        for secret in [whole, token] {
            if secret.len() >= SECRET_BYTES_MIN {
                text = text.replace(secret, "[secret]");
            }
        }
    }
    text
}

/// What the body says, in any of the shapes that are about.
#[derive(Debug, Default)]
struct Said {
    /// `error.type` and `error.code`, as far as they are words.
    words: Vec<String>,
    message: String,
    request_id: Option<String>,
    used: Option<u64>,
    limit: Option<u64>,
    param: Option<String>,
}

impl Said {
    fn read(body: &str) -> Said {
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            let is_page = body.trim_start().starts_with('<');
            let message = if is_page { String::new() } else { body.trim().to_owned() };
            return Said { message, ..Said::default() };
        };
        // Most wrap their error; Ollama's is a bare string, older vLLM's and Responses' is not wrapped.
        let error = match &value["error"] {
            Value::Null => &value,
            error => error,
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let words = [&error["type"], &error["code"], &error["details"]["error_code"]];
        Said {
            words: words.into_iter().filter_map(text).collect(),
            message: text(error)
                .or_else(|| text(&error["message"]))
                .or_else(|| text(&value["detail"]))
                .unwrap_or_default(),
            request_id: text(&value["request_id"]),
            used: error["n_prompt_tokens"].as_u64(),
            limit: error["n_ctx"].as_u64(),
            param: text(&error["param"]),
        }
    }

    fn is(&self, words: &[&str]) -> bool {
        self.words.iter().any(|word| words.contains(&word.as_str()))
    }
}

fn class(endpoint: &Endpoint, failure: &Failure<'_>, said: &Said) -> ErrorClass {
    let retry = ErrorClass::Retry { after: failure.retry_after };
    if let Some(class) = too_long(failure.status, said) {
        return class;
    }
    if said.is(&BILLING) {
        return ErrorClass::Auth;
    }
    match failure.should_retry {
        Some(true) => return retry,
        Some(false) if !matches!(failure.status, 401..=403) => return ErrorClass::Refused,
        Some(false) | None => {}
    }
    if said.is(&["authentication_error", "permission_error", "invalid_api_key"]) {
        return ErrorClass::Auth;
    }
    match failure.status {
        401..=403 => ErrorClass::Auth,
        // Anthropic's spend caps look like rate limits, but name no time after which they are over.
        429 if endpoint.own_api
            && endpoint.wire == WireFormat::AnthropicMessages
            && failure.retry_after.is_none() =>
        {
            ErrorClass::Refused
        }
        408 | 409 | 425 | 429 | 500.. => retry,
        // An error inside a stream has no status of its own.
        200 if said.is(&[
            "overloaded_error",
            "rate_limit_error",
            "api_error",
            "timeout_error",
            "server_error",
            "rate_limit_exceeded",
            "slow_down",
            "server_is_overloaded",
            "service_unavailable_error",
        ]) =>
        {
            retry
        }
        _ => ErrorClass::Refused,
    }
}

/// Recognises a request that does not fit the window, and reads the sizes out of the sentence.
fn too_long(status: u16, said: &Said) -> Option<ErrorClass> {
    if said.is(&["context_length_exceeded", "exceed_context_size_error", "request_too_large"])
        || status == 413
    {
        let (used, limit) = sizes(&said.message);
        return Some(ErrorClass::TooLong { used: said.used.or(used), limit: said.limit.or(limit) });
    }
    if !matches!(status, 200 | 400 | 422 | 500) {
        return None;
    }
    const SENTENCES: [&str; 10] = [
        "prompt is too long",
        "exceed context limit",
        "exceeds the context window",
        "exceeds the available context size",
        "exceed the configured limit of",
        "maximum context length",
        "cannot truncate prompt with n_keep",
        "greater than the context length",
        "exceeds the maximum number of tokens",
        "exceeds context length",
    ];
    let message = said.message.to_lowercase();
    SENTENCES.iter().any(|sentence| message.contains(sentence)).then(|| {
        let (used, limit) = sizes(&said.message);
        ErrorClass::TooLong { used, limit }
    })
}

/// Used tokens and the limit, for each of the sentences in use.
fn sizes(message: &str) -> (Option<u64>, Option<u64>) {
    let lower = message.to_lowercase();
    let after = |marker: &str| lower.split_once(marker).and_then(|(_, rest)| numbers(rest).first().copied());
    let all = numbers(&lower);
    if lower.contains("prompt is too long") || lower.contains("n_keep") {
        // "207791 tokens > 200000 maximum", "n_keep (15028) >= n_ctx (7424)"
        return (all.first().copied(), all.get(1).copied());
    }
    if lower.contains("exceed context limit") {
        // "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648"
        let [input, output, limit, ..] = all[..] else { return (None, None) };
        return (Some(input.saturating_add(output)), Some(limit));
    }
    if lower.contains("configured limit of") {
        return (after("resulted in"), after("configured limit of"));
    }
    if lower.contains("maximum context length") {
        // "… is 8192 tokens. However, you requested 9001 tokens (8001 in the messages, …)"
        return (after("however"), after("maximum context length"));
    }
    if lower.contains("available context size") {
        return (all.first().copied(), after("available context size"));
    }
    if lower.contains("maximum number of tokens") {
        return (all.first().copied(), after("maximum number of tokens"));
    }
    (None, None)
}

/// The whole numbers of a text, thousands separated by commas included.
fn numbers(text: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut digits = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '0'..='9' => digits.push(letter),
            ',' if !digits.is_empty() && letters.peek().is_some_and(char::is_ascii_digit) => {}
            _ => numbers.extend(std::mem::take(&mut digits).parse::<u64>()),
        }
    }
    numbers.extend(digits.parse::<u64>());
    numbers
}

pub(super) fn subject(endpoint: &Endpoint) -> String {
    match endpoint.provider() {
        "anthropic" => "Anthropic".into(),
        "openai" => "OpenAI".into(),
        "gemini" => "Google".into(),
        "local" => format!("The local server at {}", endpoint.place()),
        other => other.to_owned(),
    }
}

fn verdict(class: &ErrorClass, status: u16, said: &Said) -> &'static str {
    match class {
        ErrorClass::Retry { .. }
            if status == 429 || said.is(&["rate_limit_error", "rate_limit_exceeded"]) =>
        {
            "limits the rate of requests"
        }
        ErrorClass::Retry { .. } if status == 529 || status == 503 || said.is(&["overloaded_error"]) => {
            "is overloaded"
        }
        ErrorClass::Retry { .. } => "could not answer just now",
        ErrorClass::Auth if status == 402 || said.is(&BILLING) => "wants the account's billing settled",
        ErrorClass::Auth => "did not accept the key",
        ErrorClass::TooLong { .. } => "says that the conversation is too long for the model",
        ErrorClass::Refused | ErrorClass::Broken if status == 404 => "does not know this model or address",
        ErrorClass::Refused | ErrorClass::Broken => "refused the request",
    }
}

fn hint(endpoint: &Endpoint, class: &ErrorClass, failure: &Failure<'_>, said: &Said) -> Option<String> {
    let is_chat = endpoint.wire == WireFormat::OpenAiChat;
    match class {
        ErrorClass::Retry { after: Some(after) } if *after > RETRY_AFTER_MAX => Some(format!(
            "It asks to wait {} seconds, which is longer than we wait. Try again then, or choose another model.",
            after.as_secs()
        )),
        ErrorClass::Retry { .. } => None,
        ErrorClass::Auth if failure.status == 402 || said.is(&BILLING) => {
            Some("Look at the account's plan and payment.".into())
        }
        ErrorClass::Auth => Some(match endpoint.provider() {
            "anthropic" => "Check ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN.".into(),
            "openai" => "Check OPENAI_API_KEY.".into(),
            "gemini" => "Check GOOGLE_API_KEY or GEMINI_API_KEY.".into(),
            other => format!("Check the key of \"{other}\" in config.toml."),
        }),
        ErrorClass::TooLong { .. } => Some("Run /compact, or choose a model with a larger window.".into()),
        ErrorClass::Refused if is_chat && said.param.as_deref() == Some("reasoning_effort") => Some(format!(
            "This model takes tools only over the Responses API. Where the service has it, put \
             wire = \"openai_responses\" into [providers.{}] of config.toml, else choose another model.",
            endpoint.provider()
        )),
        ErrorClass::Refused if failure.status == 404 => {
            Some(format!("Check the model's name and the base URL {}.", endpoint.place()))
        }
        ErrorClass::Refused if failure.status == 429 => {
            Some("A limit with no end given is most often a spending cap of the account.".into())
        }
        ErrorClass::Refused | ErrorClass::Broken => None,
    }
}

/// The longest beginning of at most `max` bytes that is whole characters.
pub(super) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
#[path = "failure_tests.rs"]
mod tests;
