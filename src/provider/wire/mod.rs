//! The wire formats: for each a file that encodes and one that decodes, all of it pure.
//!
//! What the formats have in common is here and in five files: `turns` makes a view into what alternates,
//! `parts` says what of it an endpoint takes, `encoding` keeps what was written so that each message is
//! written once, `compaction` knows what a provider made of a conversation, `stream` decodes a reply's bytes.
//! A format itself says how one turn is
//! written (`Format`) and what one event means (`Decode`).

mod anthropic;
mod anthropic_stream;
mod chat;
mod chat_stream;
pub(super) mod compaction;
pub mod encoding;
mod gemini;
mod gemini_stream;
mod parts;
mod responses;
mod responses_events;
mod responses_stream;
pub mod sse;
pub mod stream;
#[cfg(test)]
mod test_views;
mod turns;
#[cfg(test)]
mod usage_tests;

use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::endpoint::Endpoint;
use super::{ProviderEvent, Request};
use epitome_config::WireFormat;
use epitome_thread::{Native, ToolSpec};
pub use gemini::is_before_gemini_3;
use stream::{DecodeError, Unfinished};
use turns::Turn;

/// How a format writes a request.
///
/// A turn is written once and kept, so what it becomes may depend on the endpoint, on the turn and on what
/// was written before it, and on nothing that another call of the same conversation could have otherwise.
trait Format {
    /// The tools as the format has them, a JSON list; also what the prefix digest begins with, together
    /// with the system text.
    fn tools(&self, endpoint: &Endpoint, tools: &[ToolSpec]) -> Vec<u8>;

    /// Writes one turn: its messages, separated by commas, at least one. What it writes for each message
    /// it adds to `prefix`, so that thinking is bound to all before it.
    fn turn(&self, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix, out: &mut Vec<u8>) -> Written;

    /// What stands before the first message and behind the last one.
    fn envelope(&self, endpoint: &Endpoint, around: &Around<'_>) -> Envelope;
}

/// What is to be known of a turn that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    /// Where in `out` a cache mark can be put in.
    mark: Option<usize>,
    /// It is a reply, and begins with thinking of the model's own.
    begins_with_thinking: bool,
}

/// What is around the messages.
struct Around<'a> {
    request: &'a Request<'a>,
    /// The tools as `Format::tools` gave them.
    tools: &'a [u8],
    /// The newest turn answers calls, and the reply with them did not begin with thinking.
    goes_on_without_thinking: bool,
    purpose: Purpose<'a>,
}

/// What a request is sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// A reply, streamed.
    Reply,
    /// The number of tokens that the same request would take, from the provider's endpoint for that.
    Count,
    /// The conversation made short, in the provider's own form. `instruction` says what to write, all of it:
    /// Anthropic's takes it in the place of its own. A format that has no such thing writes what it writes
    /// for a reply.
    Compact { instruction: Option<&'a str> },
}

/// The two ends of a request's body.
struct Envelope {
    /// Up to and with the bracket that opens the list of messages.
    head: Vec<u8>,
    /// From the bracket that closes it.
    tail: &'static str,
    /// What is put in at the marks of the last turn of each side that a person or a tool speaks; nothing
    /// where the format has no such marks.
    marks: Option<Marks>,
}

/// Cache marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    text: &'static str,
    /// Whether the newest turn is marked too, and not only the one before it.
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

/// How a format reads a reply, event by event.
trait Decode: fmt::Debug + Send {
    /// Reads the data of one event, which is not blank and not behind the final one. Kinds that are not
    /// known are passed over.
    fn event(&mut self, data: &str, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError>;

    /// Whether the final event was seen.
    fn is_whole(&self) -> bool;

    /// The stream ended without a final event; a format may have been told enough all the same.
    fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), Unfinished>;
}

/// `prefix` is the digest that the request's encoder gave.
fn decoder_of(wire: WireFormat, prefix: String) -> Box<dyn Decode> {
    match wire {
        WireFormat::AnthropicMessages => Box::new(anthropic_stream::Decoder::new(prefix)),
        WireFormat::OpenAiResponses => Box::new(responses_stream::Decoder::new(prefix)),
        WireFormat::OpenAiChat => Box::new(chat_stream::Decoder::default()),
        WireFormat::Gemini => Box::new(gemini_stream::Decoder::new(prefix)),
    }
}

/// The running digest of system text, tools and messages as they are sent, cache marks left out. Signed
/// thinking is sent again behind this prefix alone.
#[derive(Clone, Debug)]
pub(super) struct Prefix(Sha256);

impl Prefix {
    fn new(system: &str, tools: &[u8]) -> Prefix {
        let mut digest = Sha256::new();
        digest.update(system);
        digest.update([0]);
        digest.update(tools);
        Prefix(digest)
    }

    fn add(&mut self, message: &[u8]) {
        self.0.update(message);
    }

    /// 16 bytes in hexadecimal: collisions of chance are what counts here, not an enemy's.
    fn digest(&self) -> String {
        self.0.clone().finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Whether this endpoint's model made the part: only then it is sent back.
fn is_own(native: &Native, endpoint: &Endpoint) -> bool {
    native.provider == endpoint.provider() && native.model == endpoint.model
}

/// JSON that we have written ourselves.
fn json_text(bytes: &[u8]) -> &RawValue {
    serde_json::from_slice(bytes).expect("what was written as JSON is JSON")
}

/// A value as JSON.
fn json(value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// Appends an object as JSON that goes on with a list of this name, up to the bracket that opens it.
fn write_up_to(list: &str, opening: &impl Serialize, out: &mut Vec<u8>) {
    write(opening, out);
    // The object's closing bracket.
    out.pop();
    out.extend_from_slice(format!(",\"{list}\":[").as_bytes());
}

/// Appends a message, behind a comma where one is before it, and adds it to the prefix.
fn put(message: &impl Serialize, prefix: &mut Prefix, out: &mut Vec<u8>) {
    if out.ends_with(b"}") {
        out.push(b',');
    }
    let from = out.len();
    write(message, out);
    prefix.add(&out[from..]);
}

/// Appends a value as JSON.
fn write(value: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("text and JSON values can always be written");
}
