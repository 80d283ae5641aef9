//! Encodes the steps of a script as a provider's stream. Pure.
//!
//! Streams resemble the providers' own, including their order and quirks (empty first deltas, pings,
//! cumulative usage), so that decoders are tested with realistic data. This file contains the common part;
//! each format has its own file.

mod anthropic;
mod chat;
mod gemini;
mod responses;

use serde_json::{Value, json};

use super::refusal::{self, Refusal};
use super::{ModelStep, ScriptedStop};
use epitome_config::WireFormat;

/// Characters per delta of ordinary text: few enough that every reply comes in several.
const DELTA_LETTERS: usize = 12;

/// Bytes per write of a flood: about as much as a fast server's socket accepts at once.
const FLOOD_BYTES: usize = 64 * 1024;

/// Input and output tokens that a reply reports if its script has no `usage`.
const USAGE: (u64, u64) = (1000, 10);

/// A piece of a streamed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    Wait,
    Hang,
    Cut,
}

/// The answer to a model call.
#[derive(Debug)]
pub(super) enum Reply {
    Stream(Vec<Piece>),
    Refused(Refusal),
}

/// Encodes a reply of this model. `next_call` returns a number for each tool call.
pub(super) fn reply(
    wire: WireFormat,
    model: &str,
    request: &Value,
    steps: &[ModelStep],
    next_call: &mut dyn FnMut() -> u64,
) -> Reply {
    match steps.first() {
        Some(ModelStep::Error { status, retry_after, message }) => {
            Reply::Refused(Refusal::new(wire, *status, *retry_after, message.as_deref()))
        }
        Some(ModelStep::Overflow) => Reply::Refused(Refusal::overflow(wire)),
        Some(_) | None => {
            let mut encoder = Encoder::new(wire, model, request, steps);
            for step in steps {
                encoder.step(step, next_call);
            }
            Reply::Stream(encoder.finish())
        }
    }
}

/// The token counts of a script in the form that OpenAI's services use in a single response.
pub(super) fn usage_of_openai(steps: &[ModelStep]) -> Value {
    responses::usage(Usage::of(steps))
}

/// How a provider streams a reply. All methods append to `out`.
trait Voice {
    /// Writes the part before the content.
    fn begin(&mut self, out: &mut Out);

    fn part_begins(&mut self, part: Part, out: &mut Out);

    fn delta(&mut self, part: Part, text: &str, out: &mut Out);

    /// `whole` is the part's complete text.
    fn part_ends(&mut self, part: Part, whole: &str, out: &mut Out);

    fn call(&mut self, call: &Call<'_>, out: &mut Out);

    /// A web search by the provider.
    fn search(&mut self, search: Search<'_>, out: &mut Out);

    /// An error in the middle of the stream; `body` is its form as a separate response.
    fn error(&mut self, body: &Value, out: &mut Out);

    fn end(&mut self, stop: Option<&ScriptedStop>, out: &mut Out);
}

fn voice_of(wire: WireFormat, model: &str, request: &Value, usage: Usage) -> Box<dyn Voice + Send> {
    match wire {
        WireFormat::AnthropicMessages => Box::new(anthropic::Anthropic::new(model, request, usage)),
        WireFormat::OpenAiResponses => Box::new(responses::Responses::new(model, request, usage)),
        WireFormat::OpenAiChat => Box::new(chat::Chat::new(model, request, usage)),
        WireFormat::Gemini => Box::new(gemini::Gemini::new(model, request, usage)),
    }
}

/// A streamed part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Text,
    Think,
}

/// A tool call.
struct Call<'a> {
    id: String,
    name: &'a str,
    input: &'a Value,
}

/// A web search that finds one page.
struct Search<'a> {
    id: String,
    query: &'a str,
    url: &'a str,
}

/// Token counts that a reply reports.
#[derive(Clone, Copy, Debug)]
struct Usage {
    /// The entire request, including cached tokens.
    input: u64,
    cached: u64,
    /// The entire reply, including thinking.
    output: u64,
    thought: u64,
}

impl Usage {
    fn of(steps: &[ModelStep]) -> Usage {
        let said = steps.iter().rev().find_map(|step| match step {
            ModelStep::Usage { input, output } => Some((*input, *output)),
            _ => None,
        });
        let (input, output) = said.unwrap_or(USAGE);
        let cached = steps.iter().rev().find_map(|step| match step {
            ModelStep::Cached(tokens) => Some(*tokens),
            _ => None,
        });
        let thinks = steps.iter().any(|step| matches!(step, ModelStep::Think(_)));
        let thought = if thinks { output / 2 } else { 0 };
        Usage { input, cached: cached.unwrap_or(0).min(input), output, thought }
    }
}

/// The stream under construction.
#[derive(Debug, Default)]
struct Out(Vec<Piece>);

impl Out {
    /// Appends an event without a name.
    fn data(&mut self, data: &Value) {
        self.0.push(Piece::Bytes(format!("data: {data}\n\n").into_bytes()));
    }

    /// Appends an event whose name is also the `type` of its data.
    fn event(&mut self, kind: &str, data: Value) {
        let mut whole = json!({ "type": kind });
        if let (Value::Object(whole), Value::Object(data)) = (&mut whole, data) {
            whole.extend(data);
        }
        self.0.push(Piece::Bytes(format!("event: {kind}\ndata: {whole}\n\n").into_bytes()));
    }
}

struct Encoder {
    wire: WireFormat,
    voice: Box<dyn Voice + Send>,
    out: Out,
    /// The current part of the stream and its text so far.
    open: Option<(Part, String)>,
    stop: Option<ScriptedStop>,
    broken: bool,
}

impl Encoder {
    fn new(wire: WireFormat, model: &str, request: &Value, steps: &[ModelStep]) -> Encoder {
        let mut voice = voice_of(wire, model, request, Usage::of(steps));
        let mut out = Out::default();
        voice.begin(&mut out);
        Encoder { wire, voice, out, open: None, stop: None, broken: false }
    }

    fn step(&mut self, step: &ModelStep, next_call: &mut dyn FnMut() -> u64) {
        if self.broken {
            return;
        }
        match step {
            ModelStep::Text(text) => self.say(Part::Text, text),
            ModelStep::Think(text) => self.say(Part::Think, text),
            ModelStep::Call { name, input } => {
                self.close();
                let call = Call { id: format!("call_{}", next_call()), name, input };
                self.voice.call(&call, &mut self.out);
            }
            ModelStep::Search { query, url } => {
                self.close();
                let search = Search { id: format!("srvtoolu_{}", next_call()), query, url };
                self.voice.search(search, &mut self.out);
            }
            ModelStep::Flood { count, text } => self.flood(*count, text),
            ModelStep::Stop(stop) => self.stop = Some(stop.clone()),
            ModelStep::Usage { .. } | ModelStep::Cached(_) => {}
            ModelStep::Error { status, message, .. } => {
                let message = message.as_deref().unwrap_or_else(|| refusal::default_message(*status));
                self.error(&refusal::body(self.wire, *status, message));
            }
            ModelStep::Overflow => self.error(&refusal::overflow_body(self.wire)),
            ModelStep::Cut => self.break_off(Piece::Cut),
            ModelStep::Hang => self.break_off(Piece::Hang),
            ModelStep::Wait => self.out.0.push(Piece::Wait),
        }
    }

    fn say(&mut self, part: Part, text: &str) {
        self.open(part);
        for piece in split(text) {
            self.voice.delta(part, piece, &mut self.out);
        }
        if let Some((_, so_far)) = &mut self.open {
            so_far.push_str(text);
        }
    }

    /// Appends many equal deltas; in formats that number their events, the numbers are equal too.
    fn flood(&mut self, count: usize, text: &str) {
        self.open(Part::Text);
        let before = self.out.0.len();
        self.voice.delta(Part::Text, text, &mut self.out);
        let Some(Piece::Bytes(delta)) = self.out.0.get(before).cloned() else { return };
        self.out.0.truncate(before);
        let per_write = (FLOOD_BYTES / delta.len()).max(1);
        let mut left = count;
        while left > 0 {
            let now = left.min(per_write);
            self.out.0.push(Piece::Bytes(delta.repeat(now)));
            left -= now;
        }
        if let Some((_, so_far)) = &mut self.open {
            so_far.push_str(&text.repeat(count));
        }
    }

    /// Ensures that this part is open, after closing a different one.
    fn open(&mut self, part: Part) {
        if self.open.as_ref().is_some_and(|(open, _)| *open == part) {
            return;
        }
        self.close();
        self.voice.part_begins(part, &mut self.out);
        self.open = Some((part, String::new()));
    }

    fn close(&mut self) {
        if let Some((part, whole)) = self.open.take() {
            self.voice.part_ends(part, &whole, &mut self.out);
        }
    }

    fn finish(mut self) -> Vec<Piece> {
        if !self.broken {
            self.close();
            self.voice.end(self.stop.as_ref(), &mut self.out);
        }
        self.out.0
    }

    fn error(&mut self, body: &Value) {
        self.voice.error(body, &mut self.out);
        self.broken = true;
    }

    fn break_off(&mut self, piece: Piece) {
        self.out.0.push(piece);
        self.broken = true;
    }
}

/// Splits a text into deltas at character boundaries.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.char_indices().nth(DELTA_LETTERS).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}
