//! Compaction by the provider, in an opaque form that only its models can read. Sends one request without retries and
//! makes no decisions: the caller validates and records the result, and falls back to a summary if this fails.

use std::time::Duration;

use super::collect::Collector;
use super::failure;
use super::http::Http;
use super::model_endpoint::Endpoint;
use super::wire::compaction;
use super::wire::encoding::Encoded;
use super::{ErrorClass, ProviderError, ReplyStop};
use epitome_config::WireFormat;
use epitome_thread::{Content, Usage};

/// Timeout of a non-streamed compaction. Nothing arrives until the model has read a full context window and written
/// several thousand tokens; callers apply a shorter timeout.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Maximum bytes of such a response: it repeats all user messages, including images.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A provider's compaction of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeCompaction {
    /// The parts to keep unchanged, before the message that replaces the compacted part. No part has text.
    pub parts: Vec<Content>,
    /// The part that users and other models can read; `None` if the provider returns none.
    pub text: Option<String>,
    pub usage: Usage,
}

/// Requests a compaction; `encoded` must be encoded with `Purpose::Compact`. An error of class `Refused` means that the
/// service doesn't support compaction, or not for this request; `Broken` means that the response isn't a compaction;
/// other classes are those of any call. After any error the caller can fall back to Epitome's summary. Dropping the
/// future cancels the request.
pub async fn compact(
    http: &Http,
    endpoint: &Endpoint,
    encoded: &Encoded,
) -> Result<NativeCompaction, ProviderError> {
    let made = match (endpoint.compact_url(), endpoint.wire) {
        (None, _) => return Err(unsupported(endpoint)),
        (Some(_), WireFormat::AnthropicMessages) => streamed(http, endpoint, encoded).await,
        (Some(url), WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini) => {
            request_compaction(http, endpoint, &url, encoded).await
        }
    };
    made.map_err(|error| match error.hint {
        None if error.class == ErrorClass::Refused => {
            ProviderError { hint: Some(without(endpoint)), ..error }
        }
        _ => error,
    })
}

/// Reads a compaction that is streamed like a reply.
async fn streamed(
    http: &Http,
    endpoint: &Endpoint,
    encoded: &Encoded,
) -> Result<NativeCompaction, ProviderError> {
    let mut stream = http.start(endpoint, encoded)?.await?;
    let mut collector = Collector::new(&endpoint.name);
    while let Some(events) = stream.next().await? {
        for event in events {
            collector.feed(event);
        }
    }
    let reply = collector.finish();
    let parts: Vec<Content> =
        reply.content.into_iter().filter(|part| compaction::read(part).is_some()).collect();
    let text = parts.iter().filter_map(|part| compaction::read(part).flatten()).next_back();
    let Some(text) = text.filter(|text| !text.is_empty()).map(str::to_owned) else {
        return Err(nothing_made(endpoint, reply.stop.as_ref()));
    };
    Ok(NativeCompaction { parts, text: Some(text), usage: reply.usage.unwrap_or_default() })
}

/// Requests a compaction from a separate URL, which returns it in one piece.
async fn request_compaction(
    http: &Http,
    endpoint: &Endpoint,
    url: &str,
    encoded: &Encoded,
) -> Result<NativeCompaction, ProviderError> {
    let mut reservation = http.admit(endpoint, encoded).await?;
    let answer = http.ask(endpoint, url, Some(encoded), ANSWER_BYTES_MAX, ANSWER_TIME_MAX).await?;
    match answer.status {
        200 => match compaction::answered(endpoint, &answer.body) {
            Some((part, usage)) => {
                if let Some(reservation) = &mut reservation {
                    reservation.used(&usage);
                }
                Ok(NativeCompaction { parts: vec![part], text: None, usage })
            }
            None => Err(nothing_made(endpoint, None)),
        },
        404 | 405 | 501 => Err(unsupported(endpoint)),
        _ => Err(answer.refusal()),
    }
}

fn unsupported(endpoint: &Endpoint) -> ProviderError {
    let what = "has no compaction of its own here";
    failure::error(endpoint, ErrorClass::Refused, what, Some(without(endpoint)))
}

fn nothing_made(endpoint: &Endpoint, stop: Option<&ReplyStop>) -> ProviderError {
    let why = match stop {
        Some(ReplyStop::Refused { reason } | ReplyStop::Filtered { reason }) if !reason.is_empty() => {
            format!(": {reason}")
        }
        _ => String::new(),
    };
    let what = format!("gave back no compaction{why}");
    failure::error(endpoint, ErrorClass::Broken, &what, Some(without(endpoint)))
}

fn without(endpoint: &Endpoint) -> String {
    format!(
        "compaction = \"summary\" in [models.{:?}] of config.toml has the model write a summary from the start.",
        endpoint.name.0
    )
}
