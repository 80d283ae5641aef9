//! Compactions by a provider, in its own form: how they are stored, when they are sent back, and how OpenAI's response
//! is parsed. Pure.
//!
//! A compaction is part of a user message and precedes Epitome's own text about the same content. It is only sent in
//! the first message of a view, where it replaces everything before. Other models only get Epitome's text.

use serde::Deserialize;
use serde_json::{Value, json};

use super::responses_events;
use crate::model_endpoint::Endpoint;
use crate::wire::is_own;
use epitome_config::WireFormat;
use epitome_thread::{Content, Native, Usage};

/// The field of `Native::data` that contains the compaction.
const FIELD: &str = "compaction";

/// Wraps the provider's data, which must be sent back unchanged, for storage.
pub(super) fn kept(given: Value) -> Value {
    json!({ FIELD: given })
}

/// The compaction to send; `None` unless this endpoint's model generated it and may receive it.
pub(super) fn own<'a>(native: &'a Native, endpoint: &Endpoint) -> Option<&'a Value> {
    let given = native.data.get(FIELD).filter(|given| given["type"] == "compaction")?;
    // The same model name may have been used with another wire format.
    let is_of_format = match endpoint.wire {
        WireFormat::AnthropicMessages => given["content"].is_string(),
        WireFormat::OpenAiResponses => given["encrypted_content"].is_string() && given["content"].is_null(),
        WireFormat::OpenAiChat | WireFormat::Gemini => false,
    };
    (endpoint.native_compaction && is_of_format && is_own(native, endpoint)).then_some(given)
}

/// Returns `Some` if a part is a provider's compaction; the inner value is its readable text, if the provider includes
/// one.
pub(crate) fn read(part: &Content) -> Option<Option<&str>> {
    let Content::Thinking { native: Some(native), .. } = part else { return None };
    let given = native.data.get(FIELD)?;
    Some(given["content"].as_str().map(str::trim))
}

/// Whether Epitome's text after the compaction only repeats the compaction's readable text, so that the model would
/// read it twice.
pub(super) fn is_repeated(given: &Value, words: &Content) -> bool {
    let Content::Text { text } = words else { return false };
    let Some(summary) = given["content"].as_str().map(str::trim) else { return false };
    let framed = text.trim_end().strip_suffix("</summary>").map(str::trim_end);
    framed
        .and_then(|text| text.strip_suffix(summary))
        .is_some_and(|text| text.trim_end().ends_with("<summary>"))
}

/// Parses the response of OpenAI's compaction endpoint: the part to keep, and the tokens used. `None` if it isn't such
/// a response.
///
/// The response also repeats all user messages, which OpenAI suggests keeping. They are dropped: Epitome's text quotes
/// the user within a share of the window, and the earlier ones would accumulate with each compaction. OpenAI's guide
/// permits that for compactions that the service performs automatically.
pub(crate) fn answered(endpoint: &Endpoint, body: &[u8]) -> Option<(Content, Usage)> {
    let CompactionResponse { output, usage } = serde_json::from_slice(body).ok()?;
    let mut given = output.into_iter().rev().find(|item| item["type"] == "compaction")?;
    given["encrypted_content"].as_str().filter(|content| !content.is_empty())?;
    if let Some(fields) = given.as_object_mut() {
        // The endpoints reject the item's other fields and `null` values.
        fields
            .retain(|name, value| matches!(&**name, "type" | "id" | "encrypted_content") && !value.is_null());
    }
    let (provider, model) = (endpoint.provider().to_owned(), endpoint.model.clone());
    let native = Native { provider, model, data: kept(given) };
    let part = Content::Thinking { text: String::new(), native: Some(native) };
    Some((part, usage.as_ref().map(|said| responses_events::usage(said, 0)).unwrap_or_default()))
}

#[derive(Deserialize)]
struct CompactionResponse {
    output: Vec<Value>,
    usage: Option<Value>,
}

#[cfg(test)]
#[path = "compaction_tests.rs"]
mod tests;
