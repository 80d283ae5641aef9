//! How many tokens a request would take, by the provider's own word: asked of its endpoint for that, which
//! costs nothing.

use std::time::Duration;

use serde_json::Value;

use super::endpoint::Endpoint;
use super::failure;
use super::http::Http;
use super::wire::encoding::Encoded;
use super::{ErrorClass, ProviderError};
use epitome_config::WireFormat;

/// How long a count may take. It comes before a call that a person waits for, and an estimate is at hand.
const COUNT_TIME_MAX: Duration = Duration::from_secs(4);

/// The most that the answer may hold, in bytes: it is one number, or an error that echoes some.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Addresses that are remembered as counting nothing: a handful of models each at a handful of servers.
const UNCOUNTING_MAX: usize = 256;

/// Counts the tokens of a request that was encoded for counting. It is tried once. A server that has no
/// such endpoint is not asked again as long as the process lives; that, as everything else that yields
/// no number, is an error, and the caller goes on with its estimate.
pub async fn count(http: &Http, endpoint: &Endpoint, encoded: &Encoded) -> Result<u64, ProviderError> {
    let Some(url) = endpoint.count_url() else { return Err(counts_nothing(endpoint)) };
    // One server may have several models, and know how to count for one of them alone.
    let asked_for = format!("{url} {}", endpoint.model);
    if http.is_uncounting(&asked_for) {
        return Err(counts_nothing(endpoint));
    }
    let answer = http.ask(endpoint, &url, Some(encoded), ANSWER_BYTES_MAX, COUNT_TIME_MAX).await?;
    let body = String::from_utf8_lossy(&answer.body);
    match (answer.status, tokens(endpoint.wire, &body)) {
        (200, Some(tokens)) => Ok(tokens),
        (200 | 404 | 405 | 501, _) => {
            http.note_uncounting(&asked_for, UNCOUNTING_MAX);
            Err(counts_nothing(endpoint))
        }
        _ => Err(answer.refusal(endpoint)),
    }
}

fn tokens(wire: WireFormat, body: &str) -> Option<u64> {
    let value: Value = serde_json::from_str(body).ok()?;
    let field = match wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiResponses | WireFormat::OpenAiChat => {
            "input_tokens"
        }
        WireFormat::Gemini => "totalTokens",
    };
    value[field].as_u64()
}

fn counts_nothing(endpoint: &Endpoint) -> ProviderError {
    ProviderError {
        class: ErrorClass::Refused,
        message: format!("{} counts no tokens (model {}).", failure::subject(endpoint), endpoint.name),
        hint: None,
    }
}
