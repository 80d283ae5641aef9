//! The events of the Responses stream, reduced to the fields that are used.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::stream::{Lenient, position};
use super::tokens_at;
use epitome_thread::Usage;

/// All kinds of events in one struct, because an enum tagged by `type` would be buffered before parsing.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponsesEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    pub(super) output_index: Value,
    pub(super) item_id: Lenient<String>,
    pub(super) summary_index: Value,
    pub(super) content_index: Value,
    /// A string in all events whose delta is used.
    pub(super) delta: Value,
    pub(super) arguments: Value,
    pub(super) item: Value,
    pub(super) response: Option<ResponseObject>,
    pub(super) error: Value,
}

impl ResponsesEvent<'_> {
    pub(super) fn text(&self) -> &str {
        self.delta.as_str().unwrap_or_default()
    }

    pub(super) fn item_ref(&self) -> ItemRef<'_> {
        ItemRef {
            index: position(&self.output_index),
            id: self.item_id.0.as_deref().unwrap_or_default(),
            call_id: "",
        }
    }
}

/// The response so far. It repeats the request, which is not read.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponseObject {
    pub(super) status: Lenient<String>,
    pub(super) output: Lenient<Vec<Value>>,
    pub(super) usage: Value,
    pub(super) error: Value,
    pub(super) incomplete_details: Value,
}

/// `input_tokens` includes cached tokens, and the entire context each time that the model reads it: once, and again after
/// each search by the service. Only xAI reports the context itself; for others, it is no more than the average.
pub(super) fn usage(reported: &Value, searches: u64) -> Usage {
    let input = tokens_at(reported, "/input_tokens");
    let context = match tokens_at(reported, "/context_details/input_tokens") {
        0 if searches > 0 => input / (searches + 1),
        context => context,
    };
    Usage {
        input,
        output: tokens_at(reported, "/output_tokens"),
        cache_read: tokens_at(reported, "/input_tokens_details/cached_tokens"),
        cache_write: tokens_at(reported, "/input_tokens_details/cache_write_tokens"),
        thinking: tokens_at(reported, "/output_tokens_details/reasoning_tokens"),
        searches,
        context: if context < input { context } else { 0 },
    }
}

/// The fields by which an event identifies its item.
pub(super) struct ItemRef<'a> {
    pub(super) index: Option<u32>,
    pub(super) id: &'a str,
    pub(super) call_id: &'a str,
}

impl<'a> ItemRef<'a> {
    pub(super) fn new(index: Option<u32>, item: &'a Value) -> ItemRef<'a> {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        ItemRef { index, id: text("id"), call_id: text("call_id") }
    }
}
