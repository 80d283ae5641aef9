//! Recognizes requests that exceed the model's context window, and extracts their size. Most services have no code for
//! this, so wordings that tell the numbers are matched.

use super::body::ErrorBody;
use crate::ErrorClass;

const CODES: &str = "context_length_exceeded exceed_context_size_error request_too_large \
    request_body_too_large_after_decoding tokens_limit_reached";

/// The services' wordings with numbers, in lower case. `Remedy::Shorten` covers all others.
const SENTENCES: [&str; 20] = [
    // Anthropic.
    "prompt is too long",
    "exceed context limit",
    // OpenAI and Groq; also of requests that exceed the rate limit on their own.
    EXCEEDS_RATE,
    "exceed the configured limit of",
    // Mistral.
    "too large for model with",
    // vLLM.
    "tokens and your request has",
    "maximum context length",
    "longer than the maximum model length",
    // xAI.
    "maximum prompt length is",
    // TGI.
    "`max_new_tokens` must be <=",
    // llama.cpp, LM Studio.
    "exceeds the available context size",
    "cannot truncate prompt with n_keep",
    "loaded with context length of only",
    // Gemini, Together, Poolside.
    "exceeds the maximum number of tokens",
    "longer than the model's context length",
    "exceeds the maximum allowed input length",
    "but the configured context size is",
    // GitHub Copilot, Kimi, Alibaba.
    "prompt token count of",
    "exceeded model token limit",
    "range of input length should be",
];

/// Words before the tokens used, and before the limit. Without any of them, the tokens used come first.
const USED: [&str; 6] =
    ["requested", "resulted in", "request has", "request contains", "prompt contains", "given:"];
const LIMIT: [&str; 8] = [
    "): limit",
    "configured limit of",
    "too large for model with",
    "maximum context length",
    "maximum prompt length",
    "must be <=",
    "model token limit",
    "should be [1,",
];

/// The wording of a request that exceeds the account's tokens per minute, which are not the model's window.
const EXCEEDS_RATE: &str = "request too large for";

/// Returns `ErrorClass::TooLong` if the request is too long, otherwise `None`.
pub(super) fn too_long(status: u16, body: &ErrorBody) -> Option<ErrorClass> {
    let known = body.is(CODES) || status == 413;
    let message = body.message.to_lowercase();
    let sentence = SENTENCES.into_iter().find(|sentence| message.contains(sentence));
    let by_words = matches!(status, 200 | 400 | 422 | 429 | 500) && sentence.is_some();
    (known || by_words).then(|| {
        let window = sentence.is_some_and(|words| words != EXCEEDS_RATE) || body.is(CODES);
        let (used, limit) = sentence.map_or((None, None), |_| read(&message));
        ErrorClass::TooLong { used: body.used.or(used), limit: body.limit.or(limit), window }
    })
}

/// Returns the tokens used and the limit.
fn read(message: &str) -> (Option<u64>, Option<u64>) {
    let after = |words: &str| numbers(message.split_once(words)?.1).first().copied();
    match (USED.into_iter().find_map(after), LIMIT.into_iter().find_map(after), &numbers(message)[..]) {
        // "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648"
        (None, None, [input, output, limit, ..]) if message.contains(" + ") => {
            (Some(input.saturating_add(*output)), Some(*limit))
        }
        (None, None, all) => (all.first().copied(), all.get(1).copied()),
        (used, limit, _) => (used, limit),
    }
}

/// The integers of a text, including those with commas as thousands separators.
fn numbers(text: &str) -> Vec<u64> {
    let text = text.replace(',', "");
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}
