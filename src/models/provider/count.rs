//! Counts the tokens of a request with the provider's counting endpoint, which is free.

use std::time::Duration;

use serde_json::Value;

use super::endpoint::Endpoint;
use super::failure;
use super::http::Http;
use super::wire::encoding::Encoded;
use super::{ErrorClass, ProviderError};
use epitome_config::WireFormat;

/// Timeout of a count. It delays a call that the user is waiting for, and an estimate is available.
const COUNT_TIME_MAX: Duration = Duration::from_secs(4);

/// Maximum bytes of the response: a number, or an error that may echo part of the request.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of remembered pairs of URL and model that don't support counting.
const UNCOUNTING_MAX: usize = 256;

/// Counts the tokens of a request that was encoded for counting, without retries. A server without a counting endpoint
/// is not asked again during the lifetime of the process. If no number is returned, this is an error, and the caller
/// falls back to its estimate.
pub async fn count(http: &Http, endpoint: &Endpoint, encoded: &Encoded) -> Result<u64, ProviderError> {
    let Some(url) = endpoint.count_url() else { return Err(counts_nothing(endpoint)) };
    // A server may have several models and support counting only for some of them.
    let asked_for = format!("{url} {}", endpoint.model);
    if http.uncounting().contains(&asked_for) {
        return Err(counts_nothing(endpoint));
    }
    let answer = http.ask(endpoint, &url, Some(encoded), ANSWER_BYTES_MAX, COUNT_TIME_MAX).await?;
    let body = String::from_utf8_lossy(&answer.body);
    match (answer.status, tokens(endpoint.wire, &body)) {
        (200, Some(tokens)) => Ok(tokens),
        (200 | 404 | 405 | 501, _) => {
            let mut known = http.uncounting();
            if known.len() >= UNCOUNTING_MAX {
                known.clear();
            }
            known.insert(asked_for);
            Err(counts_nothing(endpoint))
        }
        _ => Err(answer.refusal()),
    }
}

fn tokens(wire: WireFormat, body: &str) -> Option<u64> {
    let value: Value = serde_json::from_str(body).ok()?;
    let field = if wire == WireFormat::Gemini { "totalTokens" } else { "input_tokens" };
    value[field].as_u64()
}

fn counts_nothing(endpoint: &Endpoint) -> ProviderError {
    failure::error(endpoint, ErrorClass::Refused, "counts no tokens", None)
}
