//! Decodes Anthropic's stream, event by event, including the deviations of compatible servers: calls whose fragments
//! alternate, the same index for all blocks, events that are not JSON. Pure; keeps only the current block and the calls.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Decode;
use super::anthropic_search as search;
use super::compaction;
use super::stream::{
    DecodeError, Lenient, Unfinished, append, index_of, position, read_event, without_nulls,
};
use super::tokens_at;
use crate::{ProviderEvent, ReplyStop};
use epitome_thread::{SEARCH_TOOL, Usage};

/// Decodes one reply.
#[derive(Debug)]
pub(super) struct AnthropicDecoder {
    prefix: String,
    block: ContentBlock,
    /// In the order of their starts. Its position in the list is a call's index in the emitted events.
    calls: Vec<CallBlock>,
    /// The text blocks since the last other one, if the model can search: their sources are sent back with them.
    texts: Option<Vec<Value>>,
    /// Tokens of the context at the start of the reply.
    context: u64,
    /// Whether a block has begun, and whether the last one is a text.
    begun: bool,
    is_after_text: bool,
    stop: Option<ReplyStop>,
}

#[derive(Debug)]
enum ContentBlock {
    /// Between blocks, or in a block that needs no state.
    Plain,
    Thinking {
        text: String,
        signature: String,
    },
    /// A text with its sources, if the model can search.
    Text {
        text: String,
        citations: Vec<Value>,
    },
    /// A search by the provider, and its input as JSON text.
    Search {
        block: Value,
        input: String,
    },
    /// A compaction.
    Compaction(Value),
    /// Hidden thinking, complete in its start event.
    Redacted(Value),
    /// The call at this position.
    Call(usize),
}

/// A call of this reply. Fragments of its input may also arrive in or after a later block: gateways pass on those of
/// parallel calls as they come.
#[derive(Debug)]
struct CallBlock {
    /// The index of its block, if the server sends one.
    index: Option<u32>,
    /// The input that the start event contained; fragments that follow replace it.
    whole: Option<String>,
}

impl AnthropicDecoder {
    /// `prefix` is the digest that was computed while encoding the request; `searches` is whether the model can search.
    pub(super) fn new(prefix: String, searches: bool) -> AnthropicDecoder {
        let texts = searches.then(Vec::new);
        AnthropicDecoder {
            prefix,
            block: ContentBlock::Plain,
            calls: Vec::new(),
            texts,
            context: 0,
            begun: false,
            is_after_text: false,
            stop: None,
        }
    }
}

impl Decode for AnthropicDecoder {
    fn event(&mut self, data: &str, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        // The vendor's clients ignore such events too: gateways send `ping` or the time to keep a connection alive.
        if !data.trim_start().starts_with('{') {
            return Ok(());
        }
        let event: AnthropicEvent<'_> = read_event(data)?;
        match event.kind.as_ref() {
            "content_block_delta" => self.delta(position(&event.index), event.delta.unwrap_or_default(), out),
            "content_block_start" => {
                self.begun = true;
                self.block_stopped(out);
                self.block_started(position(&event.index), event.content_block, out);
            }
            "content_block_stop" => self.block_stopped(out),
            // A gateway that turns to another server begins anew. What has been shown can't be taken back.
            "message_start" if self.stop.is_some() => self.finish(out),
            "message_start" if self.begun => {
                return Err(DecodeError::Lost("another reply began before its end"));
            }
            "message_start" => {
                let reported = &event.message["usage"];
                if !reported.is_null() {
                    let usage = usage(reported);
                    self.context = usage.input;
                    out.push(ProviderEvent::Usage(usage));
                }
            }
            "message_delta" => {
                if !event.usage.is_null() {
                    out.push(ProviderEvent::Usage(self.later_usage(&event.usage)));
                }
                if let Some(delta) = event.delta
                    && let Some(reason) = delta.stop_reason.0
                {
                    self.stop = Some(stop(&reason, &delta.stop_details));
                }
            }
            "message_stop" => self.finish(out),
            "error" => return Err(DecodeError::Provider(data.to_owned())),
            // Compatible servers send errors in different shapes, without this type.
            _ if event.error.is_some() || event.message.is_string() => {
                return Err(DecodeError::Provider(data.to_owned()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of the stream; a stop reason substitutes for a missing `message_stop`.
    fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), Unfinished> {
        if self.stop.is_none() {
            return Err(Unfinished::Cut);
        }
        self.finish(out);
        Ok(())
    }
}

impl AnthropicDecoder {
    fn finish(&mut self, out: &mut Vec<ProviderEvent>) {
        self.block_stopped(out);
        self.texts_ended(out);
        out.push(ProviderEvent::Stopped(self.stop.take().unwrap_or(ReplyStop::Finished)));
    }

    /// The usage at the end. Searches make the model read its context several times, and the sum is reported; the context
    /// is that of the last time, or at least that of the start.
    fn later_usage(&self, reported: &Value) -> Usage {
        let mut usage = usage(reported);
        let mut times = reported["iterations"].as_array().into_iter().flatten();
        let last = times.rfind(|one| one["type"] == "message");
        let context = last.map_or(self.context, |last| usage_without_iterations(last).input);
        if (usage.searches > 0 || last.is_some()) && context < usage.input {
            usage.context = context;
        }
        usage
    }

    fn block_started(&mut self, index: Option<u32>, block: Value, out: &mut Vec<ProviderEvent>) {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let is_text = block["type"] == "text";
        if !is_text {
            self.texts_ended(out);
        } else if self.is_after_text && self.texts.is_none() {
            // The signature of a later thought is bound to each of the blocks before it. A text with sources has several; they are
            // kept as they came.
            out.push(ProviderEvent::TextEnded);
        }
        self.is_after_text = is_text;
        match block["type"].as_str() {
            Some("text") => {
                if self.texts.is_some() {
                    self.block = ContentBlock::Text { text: text("text"), citations: Vec::new() };
                }
                append(out, ProviderEvent::Text(text("text")));
            }
            Some("server_tool_use") if block["name"] == SEARCH_TOOL => {
                self.block = ContentBlock::Search { block, input: String::new() };
            }
            Some("web_search_tool_result") => out.push(search::result(block)),
            Some("thinking") => {
                let thought = text("thinking");
                append(out, ProviderEvent::Thinking(thought.clone()));
                self.block = ContentBlock::Thinking { text: thought, signature: text("signature") };
            }
            Some("compaction") => self.block = ContentBlock::Compaction(block),
            Some("redacted_thinking") => self.block = ContentBlock::Redacted(block),
            Some("tool_use") => {
                let at = self.calls.len();
                out.push(ProviderEvent::CallStarted {
                    index: index_of(at),
                    id: text("id"),
                    name: text("name"),
                });
                let whole = block["input"].as_object().filter(|input| !input.is_empty());
                let whole = whole.map(|_| block["input"].to_string());
                self.calls.push(CallBlock { index, whole });
                self.block = ContentBlock::Call(at);
            }
            Some(_) | None => {}
        }
    }

    fn delta(&mut self, index: Option<u32>, delta: AnthropicDelta, out: &mut Vec<ProviderEvent>) {
        self.compaction(&delta);
        if let Some(text) = delta.text.0 {
            if let ContentBlock::Text { text: so_far, .. } = &mut self.block {
                so_far.push_str(&text);
            }
            append(out, ProviderEvent::Text(text));
        }
        if let ContentBlock::Text { citations, .. } = &mut self.block {
            citations.extend(delta.citation);
        }
        if let Some(json) = delta.partial_json.0.filter(|json| !json.is_empty()) {
            match (self.call_with(index), &mut self.block) {
                (Some(at), _) => {
                    self.calls[at].whole = None;
                    append(out, ProviderEvent::CallArguments { index: index_of(at), json });
                }
                (None, ContentBlock::Search { input, .. }) => input.push_str(&json),
                (None, _) => {}
            }
        }
        if let ContentBlock::Thinking { text, signature } = &mut self.block {
            if let Some(more) = delta.thinking.0 {
                text.push_str(&more);
                append(out, ProviderEvent::Thinking(more));
            }
            if let Some(more) = delta.signature.0 {
                signature.push_str(&more);
            }
        }
    }

    /// Finds the call to which a fragment belongs: that with this index, else the current block.
    fn call_with(&self, index: Option<u32>) -> Option<usize> {
        let found = self.calls.iter().rposition(|call| index.is_some() && call.index == index);
        found.or(match self.block {
            ContentBlock::Call(at) => Some(at),
            _ => None,
        })
    }

    /// Updates a compaction: text and metadata are sent in one piece and replace those of the start event.
    fn compaction(&mut self, delta: &AnthropicDelta) {
        let ContentBlock::Compaction(block) = &mut self.block else { return };
        let reported = [("content", &delta.content), ("encrypted_content", &delta.encrypted_content)];
        for (name, reported) in reported {
            if let Some(reported) = reported.as_ref().filter(|reported| reported.is_string()) {
                block[name] = reported.clone();
            }
        }
        if let Some(signature) = &delta.signature.0 {
            block["signature"] = signature.as_str().into();
        }
    }

    fn block_stopped(&mut self, out: &mut Vec<ProviderEvent>) {
        let sealed = |block: Value| ProviderEvent::ThinkingSealed {
            data: json!({ "block": block, "prefix": self.prefix }),
        };
        let event = match std::mem::replace(&mut self.block, ContentBlock::Plain) {
            ContentBlock::Plain => return,
            ContentBlock::Text { text, citations } => {
                let mut block = json!({ "type": "text", "text": text });
                if !citations.is_empty() {
                    block["citations"] = citations.into();
                }
                self.texts.iter_mut().for_each(|texts| texts.push(block.clone()));
                return;
            }
            ContentBlock::Search { block, input } => search::begun(block, &input),
            ContentBlock::Call(at) => {
                let Some(json) = self.calls[at].whole.take() else { return };
                ProviderEvent::CallArguments { index: index_of(at), json }
            }
            // Compatible servers don't sign; unsigned thinking is only for display.
            ContentBlock::Thinking { signature, .. } if signature.is_empty() => return,
            ContentBlock::Thinking { text, signature } => {
                sealed(json!({ "type": "thinking", "thinking": text, "signature": signature }))
            }
            ContentBlock::Redacted(block) => sealed(block),
            // Without text, the service failed to compact.
            ContentBlock::Compaction(block) if !block["content"].is_string() => return,
            ContentBlock::Compaction(block) => {
                ProviderEvent::ThinkingSealed { data: compaction::kept(without_nulls(block)) }
            }
        };
        append(out, event);
    }

    /// Reports the sources of the texts since the last other block, if they have some.
    fn texts_ended(&mut self, out: &mut Vec<ProviderEvent>) {
        let texts = self.texts.as_mut().map(std::mem::take).unwrap_or_default();
        out.extend(search::sources(texts));
    }
}

fn stop(reason: &str, details: &Value) -> ReplyStop {
    match reason {
        "max_tokens" => ReplyStop::MaxTokens,
        "model_context_window_exceeded" => ReplyStop::WindowExceeded,
        "pause_turn" => ReplyStop::Paused,
        "refusal" => {
            let reported = |name: &str| details[name].as_str().map(str::to_owned);
            let reason = reported("explanation").or_else(|| reported("category"));
            ReplyStop::Refused { reason: reason.unwrap_or_default() }
        }
        // `end_turn`, `tool_use`, `stop_sequence` and future reasons.
        _ => ReplyStop::Finished,
    }
}

/// All kinds of events in one struct, because an enum tagged by `type` would be buffered before parsing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AnthropicEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    index: Value,
    delta: Option<AnthropicDelta>,
    content_block: Value,
    message: Value,
    usage: Value,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnthropicDelta {
    text: Lenient<String>,
    partial_json: Lenient<String>,
    thinking: Lenient<String>,
    signature: Lenient<String>,
    content: Option<Value>,
    encrypted_content: Option<Value>,
    citation: Option<Value>,
    stop_reason: Lenient<String>,
    stop_details: Value,
}

/// Total usage: compactions are reported as separate iterations that the sums don't include.
fn usage(reported: &Value) -> Usage {
    let mut usage = usage_without_iterations(reported);
    let iterations = reported["iterations"].as_array().into_iter().flatten();
    for compaction in iterations.filter(|one| one["type"] == "compaction") {
        usage.add(&usage_without_iterations(compaction));
    }
    usage
}

/// `input_tokens` excludes cached tokens, so the size of the context is the sum.
fn usage_without_iterations(reported: &Value) -> Usage {
    let cache_read = tokens_at(reported, "/cache_read_input_tokens");
    let cache_write = tokens_at(reported, "/cache_creation_input_tokens");
    // A report without uncached tokens would otherwise yield a context of only the cached part.
    let is_reported = reported["input_tokens"].is_u64();
    let fresh = tokens_at(reported, "/input_tokens");
    Usage {
        input: if is_reported { fresh + cache_read + cache_write } else { 0 },
        output: tokens_at(reported, "/output_tokens"),
        cache_read,
        cache_write,
        thinking: tokens_at(reported, "/output_tokens_details/thinking_tokens"),
        searches: tokens_at(reported, "/server_tool_use/web_search_requests"),
        context: 0,
    }
}
