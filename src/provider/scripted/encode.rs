//! Steps of a script as a provider's own stream. Pure.
//!
//! It writes what the providers write, in their order and with their habits (empty first deltas,
//! pings, cumulative usage), so that decoders meet the real thing.

use serde_json::{Value, json};

use super::{ModelStep, Stop, Wire};

/// Letters of one delta of ordinary text: small enough that every reply comes in several.
const DELTA_LETTERS: usize = 12;

/// Bytes of one write of a flood, about what a fast server's socket takes at once.
const FLOOD_BYTES: usize = 64 * 1024;

/// What a reply reports where its script has no `usage`.
const USAGE: (u64, u64) = (1000, 10);

/// The window that an overflow speaks of, and the tokens that were too many, as an observed error had
/// them.
const OVERFLOW: (u64, u64) = (207_791, 200_000);

/// A part of a streamed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    Wait,
    Hang,
    Cut,
}

/// The answer to a model call: a stream, or with another status than 200 a refusal.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub pieces: Vec<Piece>,
    refusal: Value,
}

impl Reply {
    /// The body, where the status is no 200.
    pub(super) fn refusal(&self) -> Value {
        self.refusal.clone()
    }
}

/// Encodes a reply. `next_call` numbers tool calls.
pub(super) fn reply(
    wire: Wire,
    request: &Value,
    steps: &[ModelStep],
    next_call: &mut dyn FnMut() -> u64,
) -> Reply {
    match steps.first() {
        Some(ModelStep::Error { status, retry_after, message }) => {
            let message = message.clone().unwrap_or_else(|| default_message(*status).into());
            let mut headers: Vec<(&'static str, String)> = Vec::new();
            headers.extend(retry_after.map(|seconds| ("retry-after", seconds.to_string())));
            headers.push(("request-id", "req_scripted".into()));
            let refusal = error_body(wire, *status, &message);
            Reply { status: *status, headers, pieces: Vec::new(), refusal }
        }
        Some(ModelStep::Overflow) => {
            Reply { status: 400, headers: Vec::new(), pieces: Vec::new(), refusal: overflow_body(wire) }
        }
        Some(_) | None => {
            let mut encoder = Encoder::new(wire, request, steps);
            for step in steps {
                encoder.step(step, next_call);
            }
            Reply { status: 200, headers: Vec::new(), pieces: encoder.finish(), refusal: Value::Null }
        }
    }
}

/// The body of an error in the provider's shape.
pub(super) fn error_body(wire: Wire, status: u16, message: &str) -> Value {
    match wire {
        Wire::Anthropic => {
            let kind = match status {
                401 => "authentication_error",
                402 => "billing_error",
                403 => "permission_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                504 => "timeout_error",
                529 => "overloaded_error",
                500..=599 => "api_error",
                _ => "invalid_request_error",
            };
            json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"})
        }
        Wire::OpenAiChat => {
            let (kind, code) = match status {
                401 => ("invalid_request_error", "invalid_api_key"),
                404 => ("invalid_request_error", "model_not_found"),
                429 => ("requests", "rate_limit_exceeded"),
                503 => ("server_error", "server_is_overloaded"),
                500..=599 => ("server_error", "server_error"),
                _ => ("invalid_request_error", "invalid_value"),
            };
            json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        }
    }
}

fn overflow_body(wire: Wire) -> Value {
    let (used, limit) = OVERFLOW;
    match wire {
        Wire::Anthropic => {
            error_body(wire, 400, &format!("prompt is too long: {used} tokens > {limit} maximum"))
        }
        Wire::OpenAiChat => json!({"error": {
            "message": format!("Input tokens exceed the configured limit of {limit} tokens. Your messages \
                                resulted in {used} tokens. Please reduce the length of the messages."),
            "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}}),
    }
}

fn default_message(status: u16) -> &'static str {
    match status {
        401 => "The key is not valid.",
        403 => "The key has no right to this.",
        404 => "There is no such model.",
        429 => "Too many requests.",
        500..=599 => "The service has a problem.",
        _ => "The request is refused.",
    }
}

/// The list of models, readable as Anthropic's and as OpenAI's. Of the real ones it says what everybody
/// knows: nobody who asks learns anything new in the middle of a test.
pub(super) fn models() -> Value {
    let model = |id: &str, window: u64, most: u32| {
        json!({"id": id, "object": "model", "type": "model", "display_name": id, "created": 0,
            "created_at": "2026-01-01T00:00:00Z", "owned_by": "scripted",
            "max_input_tokens": window, "max_tokens": most})
    };
    let data = [
        model("claude-sonnet-5-5", 1_000_000, 128_000),
        model("gpt-4.1", 1_047_576, 32_768),
        model("scripted", OVERFLOW.1, 8_192),
    ];
    json!({"object": "list", "data": data, "has_more": false, "first_id": "claude-sonnet-5-5", "last_id": "scripted"})
}

/// What the stream is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    Text,
    Think,
}

struct Encoder {
    wire: Wire,
    model: Value,
    with_usage: bool,
    pieces: Vec<Piece>,
    open: Open,
    /// Anthropic: the next content block. Chat: the next tool call.
    index: u64,
    called: bool,
    stop: Option<Stop>,
    usage: (u64, u64),
    broken: bool,
}

impl Encoder {
    fn new(wire: Wire, request: &Value, steps: &[ModelStep]) -> Encoder {
        let said = steps.iter().rev().find_map(|step| match step {
            ModelStep::Usage { input, output } => Some((*input, *output)),
            _ => None,
        });
        let mut encoder = Encoder {
            wire,
            model: request["model"].clone(),
            with_usage: request["stream_options"]["include_usage"] == true,
            pieces: Vec::new(),
            open: Open::Nothing,
            index: 0,
            called: false,
            stop: None,
            usage: said.unwrap_or(USAGE),
            broken: false,
        };
        match wire {
            Wire::Anthropic => {
                let message = json!({"id": "msg_scripted", "type": "message", "role": "assistant",
                    "model": encoder.model, "content": [], "stop_reason": null, "stop_sequence": null,
                    "usage": {"input_tokens": encoder.usage.0, "cache_creation_input_tokens": 0,
                        "cache_read_input_tokens": 0, "output_tokens": 1}});
                encoder.event("message_start", json!({ "message": message }));
                encoder.event("ping", json!({}));
            }
            Wire::OpenAiChat => encoder.delta(json!({"role": "assistant", "content": ""})),
        }
        encoder
    }

    fn step(&mut self, step: &ModelStep, next_call: &mut dyn FnMut() -> u64) {
        if self.broken {
            return;
        }
        match step {
            ModelStep::Text(text) => {
                self.begin(Open::Text);
                for piece in split(text) {
                    self.text_delta(piece);
                }
            }
            ModelStep::Think(text) => {
                self.begin(Open::Think);
                for piece in split(text) {
                    match self.wire {
                        Wire::Anthropic => {
                            self.block_delta(json!({"type": "thinking_delta", "thinking": piece}))
                        }
                        Wire::OpenAiChat => self.delta(json!({ "reasoning_content": piece })),
                    }
                }
            }
            ModelStep::Call { name, input } => self.call(name, input, next_call()),
            ModelStep::Flood { count, text } => self.flood(*count, text),
            ModelStep::Stop(stop) => self.stop = Some(stop.clone()),
            ModelStep::Usage { .. } => {}
            ModelStep::Error { status, message, .. } => {
                let message = message.clone().unwrap_or_else(|| default_message(*status).into());
                self.error(error_body(self.wire, *status, &message));
            }
            ModelStep::Overflow => self.error(overflow_body(self.wire)),
            ModelStep::Cut => self.break_off(Piece::Cut),
            ModelStep::Hang => self.break_off(Piece::Hang),
            ModelStep::Wait => self.pieces.push(Piece::Wait),
        }
    }

    fn call(&mut self, name: &str, input: &Value, number: u64) {
        self.begin(Open::Nothing);
        self.called = true;
        let id = format!("call_{number}");
        let arguments = input.to_string();
        let index = self.index;
        match self.wire {
            Wire::Anthropic => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.event("content_block_start", json!({"index": index, "content_block": block}));
                for piece in std::iter::once("").chain(split(&arguments)) {
                    self.block_delta(json!({"type": "input_json_delta", "partial_json": piece}));
                }
                self.event("content_block_stop", json!({ "index": index }));
            }
            Wire::OpenAiChat => {
                let function = json!({"name": name, "arguments": ""});
                self.delta(json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}));
                for piece in split(&arguments) {
                    self.delta(json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}));
                }
            }
        }
        self.index += 1;
    }

    fn flood(&mut self, count: usize, text: &str) {
        self.begin(Open::Text);
        let before = self.pieces.len();
        self.text_delta(text);
        let Some(Piece::Bytes(delta)) = self.pieces.get(before).cloned() else { return };
        self.pieces.truncate(before);
        let per_write = (FLOOD_BYTES / delta.len()).max(1);
        let mut left = count;
        while left > 0 {
            let now = left.min(per_write);
            self.pieces.push(Piece::Bytes(delta.repeat(now)));
            left -= now;
        }
    }

    /// Ends what is open if it is something else, and begins this.
    fn begin(&mut self, next: Open) {
        if self.open == next && next != Open::Nothing {
            return;
        }
        if self.wire == Wire::Anthropic {
            if self.open == Open::Think {
                let signature = format!("signature-{}", self.index);
                self.block_delta(json!({"type": "signature_delta", "signature": signature}));
            }
            if self.open != Open::Nothing {
                self.event("content_block_stop", json!({ "index": self.index }));
                self.index += 1;
            }
            let block = match next {
                Open::Nothing => None,
                Open::Text => Some(json!({"type": "text", "text": ""})),
                Open::Think => Some(json!({"type": "thinking", "thinking": "", "signature": ""})),
            };
            if let Some(block) = block {
                self.event("content_block_start", json!({"index": self.index, "content_block": block}));
            }
        }
        self.open = next;
    }

    fn text_delta(&mut self, text: &str) {
        match self.wire {
            Wire::Anthropic => self.block_delta(json!({"type": "text_delta", "text": text})),
            Wire::OpenAiChat => self.delta(json!({ "content": text })),
        }
    }

    fn finish(mut self) -> Vec<Piece> {
        if self.broken {
            return self.pieces;
        }
        self.begin(Open::Nothing);
        let (input, output) = self.usage;
        match self.wire {
            Wire::Anthropic => {
                let (reason, details) = match &self.stop {
                    Some(Stop::MaxTokens) => ("max_tokens", Value::Null),
                    Some(Stop::Refusal(why)) => {
                        ("refusal", json!({"type": "refusal", "category": null, "explanation": why}))
                    }
                    Some(Stop::Window) => ("model_context_window_exceeded", Value::Null),
                    Some(Stop::Pause) => ("pause_turn", Value::Null),
                    None if self.called => ("tool_use", Value::Null),
                    None => ("end_turn", Value::Null),
                };
                let delta = json!({"stop_reason": reason, "stop_sequence": null, "stop_details": details});
                let usage = json!({"input_tokens": input, "output_tokens": output});
                self.event("message_delta", json!({"delta": delta, "usage": usage}));
                self.event("message_stop", json!({}));
            }
            Wire::OpenAiChat => {
                let reason = match &self.stop {
                    Some(Stop::MaxTokens | Stop::Window) => "length",
                    Some(Stop::Refusal(_)) => "content_filter",
                    Some(Stop::Pause) => "stop",
                    None if self.called => "tool_calls",
                    None => "stop",
                };
                if let Some(Stop::Refusal(why)) = &self.stop
                    && !why.is_empty()
                {
                    self.delta(json!({ "refusal": why }));
                }
                self.chat(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), None);
                if self.with_usage {
                    let usage = json!({"prompt_tokens": input, "completion_tokens": output,
                        "total_tokens": input + output, "prompt_tokens_details": {"cached_tokens": 0}});
                    self.chat(json!([]), Some(usage));
                }
                self.pieces.push(Piece::Bytes(b"data: [DONE]\n\n".to_vec()));
            }
        }
        self.pieces
    }

    fn error(&mut self, body: Value) {
        match self.wire {
            Wire::Anthropic => self.event("error", json!({ "error": body["error"] })),
            Wire::OpenAiChat => self.pieces.push(Piece::Bytes(format!("data: {body}\n\n").into_bytes())),
        }
        self.broken = true;
    }

    fn break_off(&mut self, piece: Piece) {
        self.pieces.push(piece);
        self.broken = true;
    }

    fn block_delta(&mut self, delta: Value) {
        self.event("content_block_delta", json!({"index": self.index, "delta": delta}));
    }

    /// One event of the Messages stream; its type is also in its data.
    fn event(&mut self, kind: &str, data: Value) {
        let mut whole = json!({ "type": kind });
        if let (Value::Object(whole), Value::Object(data)) = (&mut whole, data) {
            whole.extend(data);
        }
        self.pieces.push(Piece::Bytes(format!("event: {kind}\ndata: {whole}\n\n").into_bytes()));
    }

    fn delta(&mut self, delta: Value) {
        self.chat(json!([{"index": 0, "delta": delta, "finish_reason": null}]), None);
    }

    fn chat(&mut self, choices: Value, usage: Option<Value>) {
        let mut chunk = json!({"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0,
            "model": self.model, "choices": choices});
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        self.pieces.push(Piece::Bytes(format!("data: {chunk}\n\n").into_bytes()));
    }
}

/// Cuts a text into deltas, never inside a letter.
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
