//! The events of the Responses stream, with the fields that are used.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use epitome_thread::Usage;

/// All kinds of event in one struct: an enum tagged by `type` would be buffered before parsing.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: Cow<'a, str>,
    pub(super) output_index: Option<u64>,
    pub(super) item_id: Option<String>,
    pub(super) summary_index: Option<u64>,
    pub(super) content_index: Option<u64>,
    pub(super) delta: Option<Delta>,
    #[serde(default)]
    pub(super) arguments: Value,
    #[serde(default)]
    pub(super) item: Value,
    pub(super) response: Option<Response>,
    #[serde(default)]
    pub(super) error: Value,
}

/// A string in every event that uses it here.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Delta {
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Event<'_> {
    pub(super) fn text(&self) -> &str {
        match &self.delta {
            Some(Delta::Text(text)) => text,
            Some(Delta::Other(_)) | None => "",
        }
    }

    pub(super) fn place(&self) -> Place<'_> {
        Place { index: self.output_index, id: self.item_id.as_deref().unwrap_or_default(), call_id: "" }
    }
}

#[derive(Default, Deserialize)]
pub(super) struct Response {
    pub(super) status: Option<String>,
    pub(super) output: Option<Vec<Value>>,
    pub(super) usage: Option<UsageSaid>,
    pub(super) error: Option<Value>,
    pub(super) incomplete_details: Option<Incomplete>,
}

#[derive(Deserialize)]
pub(super) struct Incomplete {
    pub(super) reason: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct UsageSaid {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<InputDetails>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Deserialize)]
struct InputDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl UsageSaid {
    /// `input_tokens` is the entire context, including cached tokens.
    pub(super) fn read(self) -> Usage {
        let (cached, written) = self
            .input_tokens_details
            .map_or((None, None), |details| (details.cached_tokens, details.cache_write_tokens));
        Usage {
            input: self.input_tokens.unwrap_or(0),
            output: self.output_tokens.unwrap_or(0),
            cache_read: cached.unwrap_or(0),
            cache_write: written.unwrap_or(0),
            thinking: self.output_tokens_details.and_then(|details| details.reasoning_tokens).unwrap_or(0),
        }
    }
}

/// The fields by which an event identifies its item.
pub(super) struct Place<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: &'a str,
    pub(super) call_id: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn of(index: Option<u64>, item: &'a Value) -> Place<'a> {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        Place { index, id: text("id"), call_id: text("call_id") }
    }
}
