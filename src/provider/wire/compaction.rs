//! What a provider has made of a conversation in a form of its own: how it is kept, when it is sent back, and
//! how OpenAI's answer with one is read. Pure.
//!
//! It stands in a message of the person's, in front of our own words about the same, and only in the first
//! message of a view: there it is what was before. A model that did not make it gets our words alone.

use serde::Deserialize;
use serde_json::{Value, json};

use super::responses_events::UsageSaid;
use crate::endpoint::Endpoint;
use crate::wire::is_own;
use epitome_config::WireFormat;
use epitome_thread::{Content, Native, Usage};

/// The field of `Native::data` that holds it.
const FIELD: &str = "compaction";

/// How it is kept: what the provider gave, as it is to be sent back.
pub(super) fn kept(given: Value) -> Value {
    json!({ FIELD: given })
}

/// What to send in front of everything else, if this endpoint's model made it and may get it.
pub(super) fn own<'a>(native: &'a Native, endpoint: &Endpoint) -> Option<&'a Value> {
    let given = native.data.get(FIELD).filter(|given| given["type"] == "compaction")?;
    // The same name may have been spoken to in another format.
    let is_of_format = match endpoint.wire {
        WireFormat::AnthropicMessages => given["content"].is_string(),
        WireFormat::OpenAiResponses => given["encrypted_content"].is_string() && given["content"].is_null(),
        WireFormat::OpenAiChat | WireFormat::Gemini => false,
    };
    (endpoint.native_compaction && is_of_format && is_own(native, endpoint)).then_some(given)
}

/// Whether a part is what a provider made of a conversation; with what people can read of it, where the
/// provider gives that.
pub(crate) fn read(part: &Content) -> Option<Option<&str>> {
    let Content::Thinking { native: Some(native), .. } = part else { return None };
    let given = native.data.get(FIELD)?;
    Some(given["content"].as_str().map(str::trim))
}

/// Whether our own words that follow say nothing but what people can read of it, so that the model would
/// read the same twice.
pub(super) fn is_repeated(given: &Value, words: &Content) -> bool {
    let Content::Text { text } = words else { return false };
    let Some(summary) = given["content"].as_str().map(str::trim) else { return false };
    let framed = text.trim_end().strip_suffix("</summary>").map(str::trim_end);
    framed
        .and_then(|text| text.strip_suffix(summary))
        .is_some_and(|text| text.trim_end().ends_with("<summary>"))
}

/// Reads the answer of OpenAI's endpoint: what to keep, and the tokens that it took. `None` where it is not
/// that.
///
/// It gives back all messages of the person's too, which are to stay in front. They are left out: our own
/// words quote the person within a share of the window, and each compaction would add the ones before it.
/// The guide allows as much of a compaction that the service makes by itself.
pub(crate) fn answered(endpoint: &Endpoint, body: &[u8]) -> Option<(Content, Usage)> {
    let Answer { output, usage } = serde_json::from_slice(body).ok()?;
    let mut given = output.into_iter().rev().find(|item| item["type"] == "compaction")?;
    given["encrypted_content"].as_str().filter(|content| !content.is_empty())?;
    if let Some(fields) = given.as_object_mut() {
        // The endpoints take back no other field of it, and no `null`.
        fields
            .retain(|name, value| matches!(&**name, "type" | "id" | "encrypted_content") && !value.is_null());
    }
    let (provider, model) = (endpoint.provider().to_owned(), endpoint.model.clone());
    let native = Native { provider, model, data: kept(given) };
    let part = Content::Thinking { text: String::new(), native: Some(native) };
    Some((part, usage.map(UsageSaid::read).unwrap_or_default()))
}

#[derive(Deserialize)]
struct Answer {
    output: Vec<Value>,
    usage: Option<UsageSaid>,
}

#[cfg(test)]
#[path = "compaction_tests.rs"]
mod tests;
