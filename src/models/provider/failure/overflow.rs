//! Recognizes requests that exceed the model's context window, and extracts their size. Most services have no code for
//! this, so wordings that tell the numbers are matched.

use NumberLayout::{After, Sum, UsedFirst};

use super::body::ErrorBody;
use crate::ErrorClass;

const CODES: &str = "context_length_exceeded exceed_context_size_error request_too_large \
    request_body_too_large_after_decoding tokens_limit_reached";

/// The order of the numbers in a sentence.
#[derive(Clone, Copy)]
enum NumberLayout {
    /// Tokens used, then the limit.
    UsedFirst,
    /// Input, output, limit.
    Sum,
    /// The tokens used and the limit follow these words.
    After(&'static str, &'static str),
}

/// The services' wording with numbers, in lower case; the first match applies. `Remedy::Shorten` covers all others.
const SENTENCES: [(&str, NumberLayout); 20] = [
    // Anthropic: "prompt is too long: 207791 tokens > 200000 maximum"
    ("prompt is too long", UsedFirst),
    // "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648"
    ("exceed context limit", Sum),
    // A request that exceeds the rate limit on its own, of OpenAI (429) and Groq (413): "Request too large for gpt-5.4 (for
    // limit gpt-5) in organization org-1 on tokens per min (TPM): Limit 30000, Requested 45234. The input or output …"
    (EXCEEDS_RATE, After("requested", "): limit")),
    ("exceed the configured limit of", After("resulted in", "configured limit of")),
    // Mistral: "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum …"
    ("too large for model with", After("contains", "too large for model with")),
    // vLLM: "… maximum context length is 32768 tokens and your request has 5000 input tokens"
    ("tokens and your request has", After("request has", "maximum context length")),
    // "… is 8192 tokens. However, you requested 9001 tokens (8001 in the messages, …)"
    ("maximum context length", After("however", "maximum context length")),
    // "The decoder prompt (length 9000) is longer than the maximum model length of 8192."
    ("longer than the maximum model length", UsedFirst),
    // xAI: "maximum prompt length is 131072 but the request contains 537812 tokens"
    ("maximum prompt length is", After("contains", "maximum prompt length")),
    // TGI: "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 …"
    ("`max_new_tokens` must be <=", After("given:", "must be <=")),
    // llama.cpp: "request (9000 tokens) exceeds the available context size (8192 tokens)"
    ("exceeds the available context size", UsedFirst),
    // LM Studio: "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"
    ("cannot truncate prompt with n_keep", UsedFirst),
    // "Trying to keep the first 5000 tokens … model is loaded with context length of only 4096 tokens"
    ("loaded with context length of only", UsedFirst),
    // Gemini: "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
    ("exceeds the maximum number of tokens", UsedFirst),
    // Together: "The input (516368 tokens) is longer than the model's context length (262144 tokens)."
    ("longer than the model's context length", UsedFirst),
    // Poolside: "Input length 131393 exceeds the maximum allowed input length of 131040 tokens."
    ("exceeds the maximum allowed input length", UsedFirst),
    // "Prompt has 5000 tokens, but the configured context size is 4096 tokens"
    ("but the configured context size is", UsedFirst),
    // GitHub Copilot: "prompt token count of 139424 exceeds the limit of 128000"
    ("prompt token count of", UsedFirst),
    // Kimi: "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)"
    ("exceeded model token limit", After("requested:", "model token limit")),
    // Alibaba: "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 202745]"
    ("range of input length should be", After("requested", "should be [1,")),
];

/// The wording of a request that exceeds the account's tokens per minute, which are not the model's window.
const EXCEEDS_RATE: &str = "request too large for";

/// Returns `ErrorClass::TooLong` if the request is too long, otherwise `None`.
pub(super) fn too_long(status: u16, body: &ErrorBody) -> Option<ErrorClass> {
    let known = body.is(CODES) || status == 413;
    let message = body.message.to_lowercase();
    let sentence = SENTENCES.iter().find(|(sentence, _)| message.contains(sentence));
    let by_words = matches!(status, 200 | 400 | 422 | 429 | 500) && sentence.is_some();
    (known || by_words).then(|| {
        let window = sentence.is_some_and(|(words, _)| *words != EXCEEDS_RATE) || body.is(CODES);
        let (used, limit) = sentence.map_or((None, None), |(_, sizes)| read(*sizes, &message));
        ErrorClass::TooLong { used: body.used.or(used), limit: body.limit.or(limit), window }
    })
}

/// Returns the tokens used and the limit.
fn read(sizes: NumberLayout, message: &str) -> (Option<u64>, Option<u64>) {
    let all = numbers(message);
    let after = |words: &str| message.split_once(words).and_then(|(_, rest)| numbers(rest).first().copied());
    match sizes {
        UsedFirst => (all.first().copied(), all.get(1).copied()),
        Sum => match all[..] {
            [input, output, limit, ..] => (Some(input.saturating_add(output)), Some(limit)),
            _ => (None, None),
        },
        After(used, limit) => (after(used), after(limit)),
    }
}

/// The integers of a text, including those with commas as thousands separators.
fn numbers(text: &str) -> Vec<u64> {
    let text = text.replace(',', "");
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}
