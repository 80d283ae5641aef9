//! Decodes the bytes of a streamed reply into events, for every wire format. Pure: the caller provides the bytes.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::halves::SplitCharacters;
use super::sse::{EVENT_BYTES_MAX, EventTooLong, SseParser};
use super::think_tags::ThinkTags;
use super::whole::as_events;
use super::{Decode, decoder_of};
use crate::failure::{self, ErrorResponse};
use crate::model_endpoint::Endpoint;
use crate::{ErrorClass, ProviderError, ProviderEvent, ReplyStop};
use epitome_thread::halves::mark_unpaired_surrogates;

/// Maximum bytes of one reply's stream. The longest replies (128,000 tokens with an event of about 300 bytes each) are
/// smaller; endless streams are cut off.
const REPLY_BYTES_MAX: usize = 96 * 1024 * 1024;

/// Maximum bytes kept of one reply, which is several times in memory when it becomes an entry of the log. Those 128,000 tokens
/// are less than a megabyte of text.
pub const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum bytes of a body that is no stream of events, as part of the error.
const HEAD_BYTES_MAX: usize = 4 * 1024;

/// Maximum bytes of an event that is not JSON, as part of the error.
const NOT_JSON_BYTES_MAX: usize = 200;

/// Decodes one reply.
#[derive(Debug)]
pub struct Decoding {
    endpoint: Endpoint,
    request_id: Option<String>,
    events: SseParser,
    decoding: EventDecoding,
    received: usize,
    kept: usize,
    tags: ThinkTags,
    /// The start of the body, after white space.
    head: Vec<u8>,
    /// The body, if it begins like JSON: a reply in one piece, or a stream without the framing of events.
    json: Option<Vec<u8>>,
}

/// Decodes events until the final one.
#[derive(Debug)]
struct EventDecoding {
    decoder: Box<dyn Decode>,
    halves: SplitCharacters,
    /// Whether the final event was received.
    whole: bool,
}

impl EventDecoding {
    fn event(&mut self, data: &str, arrived: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        let data = data.trim();
        if data.is_empty() || self.whole {
            return Ok(());
        }
        let marked = mark_unpaired_surrogates(data);
        if marked.is_some() {
            self.halves.found();
        }
        let result = self.decoder.event(marked.as_deref().unwrap_or(data), arrived);
        self.whole = matches!(arrived.last(), Some(ProviderEvent::Stopped(_)));
        result
    }
}

/// Why an event could not be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// The provider sent this error inside its stream.
    Provider(String),
    /// The provider sent something in another format; the text is a clause.
    Unreadable(String),
    /// The reply will not be completed; the text is a clause.
    Lost(&'static str),
}

impl DecodeError {
    fn unreadable(error: &serde_json::Error, data: &str) -> DecodeError {
        // Text, such as that of an error, says more than what was expected in its place.
        let why = match data.starts_with(['{', '[']) {
            true => error.to_string(),
            false => format!("{:?}", failure::cut(data, NOT_JSON_BYTES_MAX)),
        };
        DecodeError::Unreadable(format!("an event does not match its format ({why})"))
    }
}

impl From<EventTooLong> for DecodeError {
    fn from(EventTooLong: EventTooLong) -> DecodeError {
        DecodeError::Unreadable(format!("an event is longer than {} MB", EVENT_BYTES_MAX / 1024 / 1024))
    }
}

impl Decoding {
    /// Starts a reply. `prefix` is the digest that was computed while encoding the request; `request_id` identifies the
    /// call in error messages.
    pub fn new(endpoint: Endpoint, prefix: String, request_id: Option<String>) -> Decoding {
        let decoder = decoder_of(&endpoint, prefix);
        // The services of the vendors separate thinking themselves.
        let tags = if endpoint.own_api { ThinkTags::Passed } else { ThinkTags::Opening(String::new()) };
        Decoding {
            decoding: EventDecoding { decoder, halves: SplitCharacters::default(), whole: false },
            tags,
            endpoint,
            request_id,
            events: SseParser::default(),
            received: 0,
            kept: 0,
            head: Vec::new(),
            json: None,
        }
    }

    /// Decodes a piece of the stream, of any size, and appends its events, including those that precede an
    /// error in the same piece.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<ProviderEvent>) -> Result<(), ProviderError> {
        self.received = self.received.saturating_add(piece.len());
        self.check_size(self.received, REPLY_BYTES_MAX)?;
        let is_start = self.head.is_empty();
        let blanks = piece.iter().take_while(|byte| is_start && is_before_body(byte)).count();
        let body = &piece[blanks..];
        self.head.extend_from_slice(&body[..body.len().min(HEAD_BYTES_MAX - self.head.len())]);
        if is_start && matches!(body.first(), Some(b'{' | b'[')) {
            self.json = Some(Vec::new());
        }
        if let Some(json) = &mut self.json {
            json.extend_from_slice(body);
            return self.check_size(self.json.as_ref().map_or(0, Vec::len), KEPT_BYTES_MAX);
        }
        let mut arrived = Vec::new();
        let result = self.events.push(piece, |data| self.decoding.event(data, &mut arrived));
        self.add(arrived, out);
        self.check_size(self.kept, KEPT_BYTES_MAX)?;
        result.map_err(|error| self.fault(error))
    }

    fn check_size(&self, bytes: usize, most: usize) -> Result<(), ProviderError> {
        match bytes <= most {
            true => Ok(()),
            false => Err(self.broken(&format!("the reply is longer than {} MB", most / 1024 / 1024))),
        }
    }

    /// Decodes what was not followed by the end of an event: a body of JSON, or the last event of a stream if it is
    /// complete. No proper prefix of an object is an object.
    fn decode_rest(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), ProviderError> {
        let Decoding { endpoint, events, decoding, json, .. } = self;
        let mut arrived = Vec::new();
        let result = match json {
            Some(json) => {
                let values = serde_json::Deserializer::from_slice(json).into_iter::<Value>();
                let mut events =
                    values.map_while(Result::ok).flat_map(|value| as_events(endpoint.wire, value));
                events.try_for_each(|event| decoding.event(&event.to_string(), &mut arrived))
            }
            None => events.push(b"\n\n", |data| {
                let is_json = data.starts_with('{') && serde_json::from_str::<IgnoredAny>(data).is_ok();
                if is_json || data == "[DONE]" { decoding.event(data, &mut arrived) } else { Ok(()) }
            }),
        };
        self.add(arrived, out);
        result.map_err(|error| self.fault(error))
    }

    /// Adds events to those that have arrived before, as they are meant.
    fn add(&mut self, events: Vec<ProviderEvent>, out: &mut Vec<ProviderEvent>) {
        let events = self.tags.split(self.decoding.halves.join(events));
        self.kept += events.iter().map(ProviderEvent::bytes).sum::<usize>();
        events.into_iter().for_each(|event| append(out, event));
        self.scrub_reason(out);
    }

    /// Removes secrets from the reason for the end of a reply: it is the service's text, like that of an error.
    fn scrub_reason(&self, out: &mut [ProviderEvent]) {
        if let Some(ProviderEvent::Stopped(
            ReplyStop::Refused { reason } | ReplyStop::Filtered { reason } | ReplyStop::Other { reason },
        )) = out.last_mut()
        {
            let clean = failure::scrub(&self.endpoint, reason);
            *reason = failure::cut(&clean, failure::PROVIDER_MESSAGE_BYTES_MAX).to_owned();
        }
    }

    /// Whether the final event was received; anything after it is ignored.
    pub fn is_whole(&self) -> bool {
        self.decoding.whole
    }

    /// Handles the end of the stream. Returns an error if it was cut off or entirely empty.
    pub fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), ProviderError> {
        if self.is_whole() {
            return Ok(());
        }
        let before = out.len();
        self.decode_rest(out)?;
        if self.is_whole() {
            return Ok(());
        }
        let mut arrived = Vec::new();
        let ended = self.decoding.decoder.end(&mut arrived);
        self.add(arrived, out);
        let Err(unfinished) = ended else { return Ok(()) };
        if let Some(body) = self.other_body().filter(|_| out.len() == before) {
            let is_error = || ["error", "message", "detail", "msg"].iter().any(|name| body.contains(name));
            let kind = match body.trim_start().starts_with('<') {
                true => "a page",
                false if failure::is_binary(&body) => "bytes that are no text, perhaps compressed,",
                false if self.json.is_some() && !is_error() => "other JSON",
                false => return Err(self.fault(DecodeError::Provider(body))),
            };
            let what = format!("answered with {kind} instead of a stream of events");
            let hint = format!("Check that {} is the base URL of the service.", self.endpoint.shown_url());
            return Err(failure::error(&self.endpoint, ErrorClass::Broken, &what, Some(hint)));
        }
        Err(match unfinished {
            Unfinished::Empty if !self.endpoint.own_api => failure::error(
                &self.endpoint,
                ErrorClass::Empty,
                "answered with nothing at all; the conversation may be too long for the model",
                Some(
                    "Start the server with a larger context and set context_window for the model in config.toml; \
                     /context shows what takes the room."
                        .into(),
                ),
            ),
            Unfinished::Empty | Unfinished::Cut => self.lost("the stream was cut before its end"),
        })
    }

    /// The start of a body that is no stream of events: some services send an error with status 200 and any content
    /// type.
    fn other_body(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.head);
        let mut lines = text.lines().filter(|line| !line.trim().is_empty()).peekable();
        lines.peek()?;
        let is_of_stream = |line: &str| {
            let line = line.trim_start_matches('\u{feff}');
            // A stream may be cut within its first line.
            ["data:", "event:", "id:", "retry:", ":"]
                .iter()
                .any(|field| line.starts_with(field) || field.starts_with(line))
        };
        (!lines.any(is_of_stream)).then(|| text.into_owned())
    }

    /// The error for a stream that was cut off. It can be retried if nothing of the reply is kept.
    pub fn lost(&self, why: &str) -> ProviderError {
        ProviderError::new(ErrorClass::Retry { after: None }, self.broken(why).message)
    }

    /// The error for a reply that can't be used; `why` is a clause.
    pub fn broken(&self, why: &str) -> ProviderError {
        let id = self.request_id.as_ref().map(|id| format!(", request {id}")).unwrap_or_default();
        let message = format!(
            "The reply of {} broke off: {why} (model {}{id}).",
            self.endpoint.provider(),
            self.endpoint.name
        );
        ProviderError::new(ErrorClass::Broken, message).scrubbed(&self.endpoint)
    }

    fn fault(&self, error: DecodeError) -> ProviderError {
        match error {
            DecodeError::Unreadable(why) => self.broken(&why),
            DecodeError::Lost(why) => self.lost(why),
            DecodeError::Provider(body) => failure::classify(
                &self.endpoint,
                &ErrorResponse {
                    status: 200,
                    request_id: self.request_id.as_deref(),
                    body: &body,
                    ..ErrorResponse::default()
                },
            ),
        }
    }
}

/// Whether a byte is white space or of a byte order mark, which may precede a body.
fn is_before_body(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || b"\xEF\xBB\xBF".contains(byte)
}

/// How a stream without a final event ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    Cut,
    /// No part of a reply was received.
    Empty,
}

/// Parses the data of one event.
pub(super) fn read_event<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, DecodeError> {
    serde_json::from_str(data).map_err(|error| DecodeError::unreadable(&error, data))
}

/// A field whose value services may get wrong, such as a number instead of a text: a value of another type counts as absent,
/// so that it does not end the reply.
#[derive(Debug)]
pub(super) struct Lenient<T>(pub Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Lenient(None)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Lenient(serde_json::from_value(Value::deserialize(from)?).ok()))
    }
}

/// An index, which some services send as text; `None` for those that count from -1.
pub(super) fn position(index: &Value) -> Option<u32> {
    let number = index.as_u64().or_else(|| index.as_str()?.trim().parse().ok())?;
    u32::try_from(number).ok()
}

/// Removes `null` fields, with which services would reject an item or a block that is sent back.
pub(super) fn without_nulls(mut item: Value) -> Value {
    if let Some(fields) = item.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    item
}

/// The index of a call or an item in the emitted events: its position.
pub(super) fn index_of(at: usize) -> u32 {
    u32::try_from(at).expect("a reply's bytes are bounded, so its parts are few")
}

/// Appends an event, merging it with the previous one if both are fragments of the same part.
pub(super) fn append(out: &mut Vec<ProviderEvent>, event: ProviderEvent) {
    use ProviderEvent::{CallArguments, Text, Thinking};
    match (out.last_mut(), event) {
        (_, Text(text) | Thinking(text)) if text.is_empty() => {}
        (Some(Text(before)), Text(text)) | (Some(Thinking(before)), Thinking(text)) => before.push_str(&text),
        (Some(CallArguments { index: open, json: before }), CallArguments { index, json })
            if *open == index =>
        {
            before.push_str(&json);
        }
        (_, event) => out.push(event),
    }
}
