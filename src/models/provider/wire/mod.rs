//! The wire formats: an encoder file and a decoder file for each, all pure.
//!
//! Code shared by the formats is here and in these files: `turns` converts a view into alternating turns, `parts` and
//! `images` decide which parts an endpoint accepts, `encoding` caches encoded turns so that each message is encoded
//! only once, `compaction` handles compactions by providers, and `stream` decodes a reply's bytes. A format defines how
//! a turn is written (`Format`) and what an event means (`Decode`).

mod anthropic;
mod anthropic_search;
mod anthropic_stream;
mod chat;
mod chat_stream;
pub(super) mod compaction;
pub mod encoding;
mod gemini;
mod gemini_stream;
mod halves;
#[cfg(test)]
mod hosted_search_tests;
mod images;
mod parts;
mod responses;
mod responses_events;
mod responses_stream;
#[cfg(test)]
mod shapes_tests;
pub mod sse;
pub mod stream;
mod think_tags;
pub mod tools;
mod turns;
#[cfg(test)]
mod usage_tests;
#[cfg(test)]
pub(crate) mod views_tests;
mod whole;

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::model_endpoint::{Endpoint, is_in_parts, remove_from_body, remove_from_parts};
use super::{ModelRequest, ProviderEvent};
use epitome_config::WireFormat;
use epitome_thread::{HostedSearch, Native, ToolSpec};
use images::OldestImages;
use stream::{DecodeError, Unfinished};
use tools::list_of_tools;
use turns::{WireTurn, is_accepted_name};

/// How a format writes a request.
///
/// A turn is written once and cached. Its encoding may therefore depend only on the endpoint, the turn, the preceding
/// turns and the images to leave out, not on anything else that may differ in another call of the same conversation.
trait Format {
    /// The tools as a JSON list in this format. The prefix digest starts with the system prompt and this list.
    fn tools(&self, endpoint: &Endpoint, tools: &[ToolSpec]) -> Vec<u8>;

    /// Writes one turn, at least one message. Returns whether it is a reply that begins with the model's own thinking.
    fn turn(&self, endpoint: &Endpoint, turn: &WireTurn<'_>, out: &mut TurnWriter<'_>) -> bool;

    /// Returns the parts of the body before the first message and after the last one.
    fn envelope(&self, endpoint: &Endpoint, meta: &RequestMeta<'_>) -> BodyEnvelope;
}

/// The output of a turn's encoder.
struct TurnWriter<'a> {
    endpoint: &'a Endpoint,
    /// Each message is added as written, so that thinking is bound to everything before it.
    prefix: &'a mut Prefix,
    bytes: Vec<u8>,
}

impl TurnWriter<'_> {
    /// Appends a message, separated from a preceding one by a comma, and adds it to the prefix.
    fn put(&mut self, message: &Value) {
        if self.bytes.ends_with(b"}") {
            self.bytes.push(b',');
        }
        let from = self.bytes.len();
        write(&*without_refused_parts(self.endpoint, message), &mut self.bytes);
        self.prefix.add(&self.bytes[from..]);
    }
}

/// The parameters of a request, without its messages.
struct RequestMeta<'a> {
    request: &'a ModelRequest<'a>,
    /// The tools as encoded by `Format::tools`.
    tools: &'a [u8],
    /// Whether the newest turn answers calls of a reply that did not begin with thinking.
    continues_without_thinking: bool,
    purpose: Purpose<'a>,
}

impl RequestMeta<'_> {
    /// The system prompt, unless it is blank.
    fn system(&self) -> Option<&str> {
        Some(self.request.system).filter(|system| !system.trim().is_empty())
    }
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// A streamed reply.
    Reply,
    /// A reply in one piece, which nobody sees before it is complete.
    Whole,
    /// A count of the tokens of the same request, by the provider's counting endpoint.
    Count,
    /// A compaction in the provider's own form. `instruction` is the complete instruction; it replaces Anthropic's
    /// default. Formats without compaction encode the same as for a reply.
    Compact { instruction: Option<&'a str> },
}

/// The start and the end of a request's body.
struct BodyEnvelope {
    /// The part up to and including the opening bracket of the message list.
    head: Vec<u8>,
    /// The part from the closing bracket of the message list.
    tail: &'static str,
    /// Cache marks for the previous user turn and, with `newest`, the newest one; `None` for formats without marks.
    marks: Option<CacheMarks>,
}

/// The text of cache marks, which is inserted into the last block of a user turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheMarks {
    text: &'static str,
    /// Whether the newest user turn is marked as well as the one before it.
    newest: bool,
}

fn format_of(wire: WireFormat) -> &'static dyn Format {
    match wire {
        WireFormat::AnthropicMessages => &anthropic::Anthropic,
        WireFormat::OpenAiResponses => &responses::Responses,
        WireFormat::OpenAiChat => &chat::Chat,
        WireFormat::Gemini => &gemini::Gemini,
    }
}

/// How a format decodes a reply, event by event.
trait Decode: fmt::Debug + Send {
    /// Decodes the data of one event, which is not blank and does not follow the final event, `Stopped`. Unknown kinds
    /// are ignored.
    fn event(&mut self, data: &str, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError>;

    /// Handles the end of a stream without a final event; in some formats the reply may nevertheless be complete.
    fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), Unfinished>;
}

/// Creates the decoder of a reply. `prefix` is the digest that was computed while encoding the request.
fn decoder_of(endpoint: &Endpoint, prefix: String) -> Box<dyn Decode> {
    match endpoint.wire {
        WireFormat::AnthropicMessages => {
            Box::new(anthropic_stream::AnthropicDecoder::new(prefix, endpoint.search.is_some()))
        }
        WireFormat::OpenAiResponses => Box::new(responses_stream::ResponsesDecoder::new(prefix)),
        WireFormat::OpenAiChat => Box::new(chat_stream::ChatDecoder::new(endpoint.quirks.reasoning_back)),
        WireFormat::Gemini => Box::new(gemini_stream::GeminiDecoder::new(prefix)),
    }
}

/// The running digest of system prompt, tools and messages as sent, without cache marks. Signed thinking is only sent
/// back after the same prefix.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    digest: Sha256,
    /// The images of the following messages that are left out.
    images: OldestImages,
}

impl Prefix {
    fn new(system: &str, tools: &[u8], images: OldestImages) -> Prefix {
        let mut digest = Sha256::new();
        digest.update(system);
        digest.update([0]);
        digest.update(tools);
        Prefix { digest, images }
    }

    fn add(&mut self, message: &[u8]) {
        self.digest.update(message);
    }

    /// 16 bytes in hexadecimal: only accidental collisions matter, not deliberate ones.
    fn digest(&self) -> String {
        self.digest.clone().finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The most tokens that are believed; sums of them can't overflow. Some servers report -1 as an unsigned number.
const TOKENS_MAX: u64 = 1 << 40;

/// The number of tokens at a path of a usage report; 0 if it is missing or impossible.
fn tokens_at(said: &Value, path: &str) -> u64 {
    said.pointer(path).and_then(Value::as_u64).filter(|tokens| *tokens <= TOKENS_MAX).unwrap_or(0)
}

/// Whether this endpoint's model generated the part, which is a condition for sending it back.
fn is_own(native: &Native, endpoint: &Endpoint) -> bool {
    native.provider == endpoint.provider() && native.model == endpoint.model
}

/// Whether a search was made by this endpoint's provider, which gets it back as it was.
fn is_of_provider(search: &HostedSearch, endpoint: &Endpoint) -> bool {
    search.native.as_ref().is_some_and(|native| native.provider == endpoint.provider())
}

/// A message or a tool without the fields that the service refuses.
fn without_refused_parts<'a>(endpoint: &Endpoint, part: &'a Value) -> Cow<'a, Value> {
    let mut part = Cow::Borrowed(part);
    for field in endpoint.omitted_fields().filter(|field| is_in_parts(field)) {
        remove_from_parts(part.to_mut(), field);
    }
    part
}

/// The start of a body, up to the opening bracket of its list of messages.
struct BodyHead<'a> {
    endpoint: &'a Endpoint,
    bytes: Vec<u8>,
}

impl BodyHead<'_> {
    fn new(endpoint: &Endpoint, fields: Value) -> BodyHead<'_> {
        BodyHead { endpoint, bytes: b"{".to_vec() }.fields(fields)
    }

    /// Appends the fields of an object, except those that are `null` or that the service refuses.
    fn fields(mut self, mut fields: Value) -> Self {
        drop_nulls(&mut fields);
        self.endpoint.omitted_fields().for_each(|field| remove_from_body(&mut fields, field));
        for (name, value) in fields.as_object().into_iter().flatten() {
            self.name(name);
            write(value, &mut self.bytes);
        }
        self
    }

    /// Appends the encoded tools, if any.
    fn tools(mut self, meta: &RequestMeta<'_>) -> Self {
        if !meta.request.tools.is_empty() && meta.tools != b"[]" {
            self.name("tools");
            self.bytes.extend_from_slice(meta.tools);
        }
        self
    }

    fn list(mut self, name: &str) -> Vec<u8> {
        self.name(name);
        self.bytes.push(b'[');
        self.bytes
    }

    fn name(&mut self, name: &str) {
        let comma = if self.bytes.ends_with(b"{") { "" } else { "," };
        self.bytes.extend_from_slice(format!("{comma}\"{name}\":").as_bytes());
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(members) => members.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Appends a value as JSON.
fn write(value: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("text and JSON values can always be written");
}
