//! Decodes the stream of Chat Completions, chunk by chunk, including the deviations of compatible servers: calls
//! without an index, text in parts, repeated ids, complete arguments at once, `null` instead of text, several field names
//! for thinking, a missing `[DONE]`, a message in one piece. Pure.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::Decode;
use super::stream::{DecodeError, Unfinished, append, index_of, position, read_event};
use super::tokens_at;
use crate::{ProviderEvent, ReplyStop};
use epitome_thread::Usage;

/// Decodes one reply.
#[derive(Debug, Default)]
pub(super) struct ChatDecoder {
    calls: Vec<StreamedCall>,
    /// The text of the model's refusal.
    refusal: String,
    stop: Option<ReplyStop>,
    /// Whether the service requires reasoning to be sent back; if so, the name of its field is recorded.
    keeps_reasoning: bool,
    /// The field of the current reasoning part.
    reasoning: Option<&'static str>,
    /// OpenRouter's reasoning blocks of the current part, which it wants back unchanged.
    details: Vec<Value>,
    /// Whether any part of a reply was received.
    begun: bool,
}

/// A call of this reply. Its position in the list is its index in the emitted events.
#[derive(Debug)]
struct StreamedCall {
    /// The server's index, if it sends one.
    index: Option<u32>,
    id: String,
    /// Empty until it is received, when `CallStarted` is emitted.
    name: String,
    arguments: String,
}

impl Decode for ChatDecoder {
    fn event(&mut self, data: &str, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        if data == "[DONE]" {
            // Without a finish reason and without content, this is the empty reply of a server whose context window is
            // too small; `end` reports that.
            if self.begun || self.stop.is_some() {
                self.stop.get_or_insert(ReplyStop::Finished);
                self.finish(out);
            }
            return Ok(());
        }
        let chunk: Value = read_event(data)?;
        let is_given = |name: &str| !chunk[name].is_null();
        if is_given("error") || !chunk["choices"].is_array() && (is_given("message") || is_given("detail")) {
            // The reply has ended: OpenRouter sends the reason once more, as an error.
            return if self.stop.is_some() { Ok(()) } else { Err(DecodeError::Provider(data.to_owned())) };
        }
        let choices = chunk["choices"].as_array().into_iter().flatten();
        for choice in choices.filter(|choice| position(&choice["index"]).is_none_or(|index| index == 0)) {
            self.delta(&choice["delta"], out);
            // Replies in one piece. Perplexity's also have an empty piece, and its streams repeat the message.
            if !self.begun {
                self.delta(&choice["message"], out);
            }
            let reason = choice["finish_reason"].as_str();
            if !choice["error"].is_null() && reason.is_none_or(|reason| reason == "error") {
                return Err(DecodeError::Provider(json!({ "error": choice["error"] }).to_string()));
            }
            self.stop = reason.map(stop).or(self.stop.take());
            // Moonshot sends the usage here.
            self.usage(&choice["usage"], out);
        }
        // Groq sends it also in a place of its own, if it was not asked for.
        self.usage(&chunk["x_groq"]["usage"], out);
        self.usage(&chunk["usage"], out);
        Ok(())
    }

    /// Handles the end of the stream; a finish reason substitutes for a missing `[DONE]`.
    fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), Unfinished> {
        match (&self.stop, self.begun) {
            (Some(_), _) => {
                self.finish(out);
                Ok(())
            }
            (None, true) => Err(Unfinished::Cut),
            (None, false) => Err(Unfinished::Empty),
        }
    }
}

impl ChatDecoder {
    pub(super) fn new(keeps_reasoning: bool) -> ChatDecoder {
        ChatDecoder { keeps_reasoning, ..ChatDecoder::default() }
    }

    /// Ends the current reasoning part.
    fn seal(&mut self, out: &mut Vec<ProviderEvent>) {
        let field = self.reasoning.take().filter(|_| self.keeps_reasoning);
        let details = std::mem::take(&mut self.details);
        let data = match field {
            _ if !details.is_empty() => json!({ "details": details }),
            Some(field) => json!({ "field": field }),
            None => return,
        };
        out.push(ProviderEvent::ThinkingSealed { data });
    }

    /// Adds a piece of a reasoning block: its texts continue those of the block, its other fields replace them.
    fn detail(&mut self, piece: Value) {
        let Value::Object(piece) = piece else { return };
        // Blocks are flat; a nested one could make the log unreadable.
        if piece.values().any(|value| value.is_object() || value.is_array()) {
            return;
        }
        let same =
            |open: &&mut Value| ["type", "index"].iter().all(|name| open.get(name) == piece.get(*name));
        match self.details.last_mut().filter(same) {
            Some(open) if piece.get("data").is_none() => {
                for (name, value) in piece {
                    match (open[&name].as_str(), &value) {
                        (Some(so_far), Value::String(more)) if name == "text" || name == "summary" => {
                            open[&name] = format!("{so_far}{more}").into();
                        }
                        (_, Value::Null) => {}
                        _ => open[&name] = value,
                    }
                }
            }
            Some(_) | None => self.details.push(Value::Object(piece)),
        }
    }

    fn finish(&mut self, out: &mut Vec<ProviderEvent>) {
        self.seal(out);
        for (at, call) in self.calls.iter().enumerate().filter(|(_, call)| call.name.is_empty()) {
            start(at, call, out);
        }
        let stop = match self.stop.take().unwrap_or(ReplyStop::Finished) {
            _ if !self.refusal.is_empty() => ReplyStop::Refused { reason: std::mem::take(&mut self.refusal) },
            stop => stop,
        };
        out.push(ProviderEvent::Stopped(stop));
    }

    fn usage(&self, reported: &Value, out: &mut Vec<ProviderEvent>) {
        if reported.is_object() {
            out.push(ProviderEvent::Usage(usage(reported)));
        }
    }

    fn delta(&mut self, delta: &Value, out: &mut Vec<ProviderEvent>) {
        let list = |name: &str| delta[name].as_array().into_iter().flatten();
        let (thought, text) = split(&delta["content"]);
        let thoughts = REASONING.map(|field| (field, text_at(delta, field)));
        let mut thoughts = thoughts.into_iter().chain([("content", thought.as_str())]);
        if let Some((field, text)) = thoughts.find(|(_, text)| !text.is_empty()) {
            self.begun = true;
            self.reasoning = Some(field);
            append(out, ProviderEvent::Thinking(text.to_owned()));
        }
        for piece in list("reasoning_details") {
            self.begun = true;
            self.detail(piece.clone());
        }
        let refusal = text_at(delta, "refusal");
        self.refusal.push_str(refusal);
        for text in [&*text, refusal].into_iter().filter(|text| !text.is_empty()) {
            self.begun = true;
            self.seal(out);
            append(out, ProviderEvent::Text(text.to_owned()));
        }
        for call in list("tool_calls") {
            self.begun = true;
            self.seal(out);
            self.call(call, out);
        }
    }

    fn call(&mut self, delta: &Value, out: &mut Vec<ProviderEvent>) {
        let (index, function) = (position(&delta["index"]), &delta["function"]);
        let (id, name) = (text_at(delta, "id").to_owned(), text_at(function, "name").to_owned());
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // Complete arguments that were not serialized to a string.
            whole => whole.to_string(),
        };
        let at = match self.find(index, &id, &name, &arguments) {
            Some(at) => at,
            None => {
                let (name, arguments) = (String::new(), String::new());
                self.calls.push(StreamedCall { index, id: id.clone(), name, arguments });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[at];
        if call.id.is_empty() {
            call.id = id;
        }
        call.arguments.push_str(&arguments);
        if call.name.is_empty() && !name.is_empty() {
            call.name = name;
            start(at, call, out);
        } else if !call.name.is_empty() && !arguments.is_empty() {
            append(out, ProviderEvent::CallArguments { index: index_of(at), json: arguments });
        }
    }

    /// Finds the call to which a fragment belongs; `None` if it starts a new one.
    fn find(&self, index: Option<u32>, id: &str, name: &str, arguments: &str) -> Option<usize> {
        let found = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index)?,
            None if !id.is_empty() => self.calls.iter().rposition(|call| call.id == id)?,
            None if !name.is_empty() => return None,
            None => return self.calls.len().checked_sub(1),
        };
        // Some servers give every parallel call the same index or id. A fragment with a name starts a call if the one
        // before has another id or name, or is complete.
        let known = &self.calls[found];
        let differs = |known: &str, new: &str| !known.is_empty() && !new.is_empty() && known != new;
        let is_complete = || serde_json::from_str::<IgnoredAny>(&known.arguments).is_ok();
        let is_another = !name.is_empty()
            && (differs(&known.id, id)
                || differs(&known.name, name)
                || (!arguments.is_empty() && !known.name.is_empty() && is_complete()));
        (!is_another).then_some(found)
    }
}

/// Announces a call, with the arguments that arrived before its name.
fn start(at: usize, call: &StreamedCall, out: &mut Vec<ProviderEvent>) {
    let StreamedCall { id, name, arguments, .. } = call;
    out.push(ProviderEvent::CallStarted { index: index_of(at), id: id.clone(), name: name.clone() });
    if !arguments.is_empty() {
        out.push(ProviderEvent::CallArguments { index: index_of(at), json: arguments.clone() });
    }
}

fn stop(reason: &str) -> ReplyStop {
    match reason.to_lowercase().as_str() {
        "length" | "max_tokens" | "max_output_tokens" => ReplyStop::MaxTokens,
        // Of Z.AI and Mistral, instead of an error.
        "model_context_window_exceeded" | "model_length" => ReplyStop::WindowExceeded,
        "content_filter" | "content-filter" | "sensitive" | "safety" => {
            ReplyStop::Refused { reason: "the provider's content filter".into() }
        }
        // Of OpenRouter, Z.AI, DeepSeek, and of vLLM and SGLang: the reply is incomplete.
        "error" | "network_error" | "insufficient_system_resource" | "abort" | "aborted" | "cancelled" => {
            ReplyStop::Other { reason: reason.to_owned() }
        }
        // `stop`, `tool_calls`, `function_call` and the inventions of other servers.
        _ => ReplyStop::Finished,
    }
}

/// The fields for thinking: of llama.cpp, vLLM and DeepSeek; of Ollama and OpenRouter; of GitHub Copilot; and of others.
const REASONING: [&str; 4] = ["reasoning_content", "reasoning", "reasoning_text", "thinking"];

fn text_at<'a>(fields: &'a Value, name: &str) -> &'a str {
    fields[name].as_str().unwrap_or_default()
}

/// Splits content into thinking and text: it is a text, a list of parts (Mistral's reasoning models), or one part.
fn split(content: &Value) -> (String, String) {
    let parts = match content {
        Value::String(text) => return (String::new(), text.clone()),
        Value::Array(parts) => parts.as_slice(),
        part => std::slice::from_ref(part),
    };
    let is_thought =
        |part: &&Value| matches!(text_at(part, "type"), "thinking" | "reasoning" | "reasoning_content");
    let (thoughts, texts): (Vec<&Value>, Vec<&Value>) = parts.iter().partition(is_thought);
    let text = texts.iter().filter_map(|part| part.as_str().or(part["text"].as_str())).collect();
    (thoughts.into_iter().map(thought_of).collect(), text)
}

/// The text of a part with thinking: a string, or a list of parts with texts, under one of these names.
fn thought_of(part: &Value) -> String {
    let found = ["thinking", "reasoning", "summary", "text"].into_iter().map(|name| &part[name]);
    match found.into_iter().find(|value| !value.is_null()) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Tokens that only the total counts are of thinking (xAI, Google), of the cache, or of audio (Mistral).
fn usage(reported: &Value) -> Usage {
    let tokens = |path: &str| tokens_at(reported, path);
    let (input, output) = (tokens("/prompt_tokens"), tokens("/completion_tokens"));
    // SGLang's is not among the details.
    let thinking = tokens("/completion_tokens_details/reasoning_tokens").max(tokens("/reasoning_tokens"));
    // The other fields are DeepSeek's, Moonshot's and Mistral's.
    let cache_read = tokens("/prompt_tokens_details/cached_tokens")
        .max(tokens("/prompt_cache_hit_tokens"))
        .max(tokens("/cached_tokens"))
        .max(tokens("/num_cached_tokens"));
    let cache_write = tokens("/prompt_tokens_details/cache_write_tokens");
    let apart = tokens("/total_tokens").saturating_sub(input + output);
    let has_audio = reported["prompt_audio_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0);
    let (more_input, thought) = match apart {
        _ if thinking > 0 && thinking == apart => (0, apart),
        _ if has_audio || apart == cache_read + cache_write => (apart, 0),
        _ if thinking > 0 => (0, 0),
        _ => (0, apart),
    };
    Usage {
        input: input + more_input,
        output: output + thought,
        cache_read,
        cache_write,
        thinking: thinking.max(thought),
        ..Usage::default()
    }
}
