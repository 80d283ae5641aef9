//! A conversation made short by the provider itself, in a form of its own that only its model reads. It is
//! asked once, and decides nothing: what can be read of the answer, and what stands in the log, is the
//! caller's, as is the summary where this fails.

use std::time::Duration;

use super::collect::Collector;
use super::endpoint::Endpoint;
use super::failure;
use super::http::Http;
use super::wire::compaction;
use super::wire::encoding::Encoded;
use super::{ErrorClass, ProviderError, ReplyStop};
use epitome_config::WireFormat;
use epitome_thread::{Content, Usage};

/// The last bound on an answer that comes in one piece. Nothing of it comes before the model has read a whole
/// window and written some thousand tokens; callers have a tighter one of their own.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// The most that such an answer may hold, in bytes: it repeats all that the person said, with images.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a provider has made of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeCompaction {
    /// To be kept as they are, in front of the message that takes the place of what was compacted. No part has
    /// a text.
    pub parts: Vec<Content>,
    /// What people and other models can read of it; `None` where the provider gives nothing.
    pub text: Option<String>,
    pub usage: Usage,
}

/// Asks for a conversation made short; `encoded` was written with `Purpose::Compact`. An error of class
/// `Refused` says that there is no such thing here, or not for this request, and `Broken` that the answer is
/// none; the other classes are those of any call. With each of them a summary of our own can take its place.
/// Dropping the future ends the request.
pub async fn compact(
    http: &Http,
    endpoint: &Endpoint,
    encoded: &Encoded,
) -> Result<NativeCompaction, ProviderError> {
    let made = match (endpoint.compact_url(), endpoint.wire) {
        (None, _) => return Err(none_here(endpoint)),
        (Some(_), WireFormat::AnthropicMessages) => streamed(http, endpoint, encoded).await,
        (Some(url), WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini) => {
            asked(http, endpoint, &url, encoded).await
        }
    };
    made.map_err(|error| match error.class {
        ErrorClass::Refused if error.hint.is_none() => {
            ProviderError { hint: Some(without(endpoint)), ..error }
        }
        ErrorClass::Refused
        | ErrorClass::Retry { .. }
        | ErrorClass::Auth
        | ErrorClass::TooLong { .. }
        | ErrorClass::BadReasoning
        | ErrorClass::Broken => error,
    })
}

/// As a reply that holds nothing else.
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

/// In one piece, at an address of its own.
async fn asked(
    http: &Http,
    endpoint: &Endpoint,
    url: &str,
    encoded: &Encoded,
) -> Result<NativeCompaction, ProviderError> {
    let answer = http.ask(endpoint, url, Some(encoded), ANSWER_BYTES_MAX, ANSWER_TIME_MAX).await?;
    match answer.status {
        200 => match compaction::answered(endpoint, &answer.body) {
            Some((part, usage)) => Ok(NativeCompaction { parts: vec![part], text: None, usage }),
            None => Err(nothing_made(endpoint, None)),
        },
        404 | 405 | 501 => Err(none_here(endpoint)),
        _ => Err(answer.refusal(endpoint)),
    }
}

fn none_here(endpoint: &Endpoint) -> ProviderError {
    let message = format!(
        "{} has no compaction of its own here (model {}).",
        failure::subject(endpoint),
        endpoint.name
    );
    ProviderError { class: ErrorClass::Refused, message, hint: Some(without(endpoint)) }
}

fn nothing_made(endpoint: &Endpoint, stop: Option<&ReplyStop>) -> ProviderError {
    let why = match stop {
        Some(ReplyStop::Refused { reason } | ReplyStop::Filtered { reason }) if !reason.is_empty() => {
            format!(": {}", failure::scrub(endpoint, reason))
        }
        Some(
            ReplyStop::Refused { .. }
            | ReplyStop::Filtered { .. }
            | ReplyStop::Finished
            | ReplyStop::MaxTokens
            | ReplyStop::WindowExceeded
            | ReplyStop::Paused
            | ReplyStop::Other { .. },
        )
        | None => String::new(),
    };
    let message =
        format!("{} gave back no compaction{why} (model {}).", failure::subject(endpoint), endpoint.name);
    ProviderError { class: ErrorClass::Broken, message, hint: Some(without(endpoint)) }
}

fn without(endpoint: &Endpoint) -> String {
    format!(
        "compaction = \"summary\" in [models.{:?}] of config.toml has the model write a summary from the start.",
        endpoint.name.0
    )
}
