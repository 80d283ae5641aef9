//! Decodes the stream of Chat Completions, chunk by chunk, including the deviations of compatible servers: calls
//! without an index, text in parts, repeated ids, complete arguments at once, `null` instead of text, several field names
//! for thinking, a missing `[DONE]`, a message in one piece. Pure.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::Decode;
use super::stream::{DecodeError, Unfinished, append, index_of, lenient, read_event};
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
        let chunk: ChatChunk = read_event(data)?;
        let is_reply = chunk.choices.is_some();
        if is_given(&chunk.error) || !is_reply && (is_given(&chunk.message) || is_given(&chunk.detail)) {
            // The reply has ended: OpenRouter sends the reason once more, as an error.
            return if self.stop.is_some() { Ok(()) } else { Err(DecodeError::Provider(data.to_owned())) };
        }
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index.unwrap_or(0) == 0) {
            if let Some(delta) = choice.delta {
                self.delta(delta, out);
            }
            // Replies in one piece. Perplexity's also have an empty piece, and its streams repeat the message.
            if let Some(message) = choice.message.filter(|_| !self.begun) {
                self.delta(message, out);
            }
            if is_given(&choice.error) && choice.finish_reason.as_ref().is_none_or(|reason| reason == "error")
            {
                return Err(DecodeError::Provider(json!({ "error": choice.error }).to_string()));
            }
            if let Some(reason) = choice.finish_reason {
                self.stop = Some(stop(&reason));
            }
            // Moonshot sends the usage here.
            if let Some(reported) = choice.usage {
                out.push(ProviderEvent::Usage(usage(&reported)));
            }
        }
        if let Some(reported) = chunk.usage {
            out.push(ProviderEvent::Usage(usage(&reported)));
        }
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

    fn delta(&mut self, delta: ChatDelta, out: &mut Vec<ProviderEvent>) {
        let (thought, text) = delta.content.map_or_else(Default::default, ChatText::split);
        let thoughts = [
            ("reasoning_content", delta.reasoning_content),
            ("reasoning", delta.reasoning),
            ("reasoning_text", delta.reasoning_text),
            ("thinking", delta.thinking),
            ("content", Some(thought)),
        ];
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if let Some((field, Some(text))) = thoughts.into_iter().find(|(_, text)| is_given(text)) {
            self.begun = true;
            self.reasoning = Some(field);
            append(out, ProviderEvent::Thinking(text));
        }
        for piece in delta.reasoning_details.into_iter().flatten() {
            self.begun = true;
            self.detail(piece);
        }
        let refusal = delta.refusal.unwrap_or_default();
        self.refusal.push_str(&refusal);
        for text in [text, refusal].into_iter().filter(|text| !text.is_empty()) {
            self.begun = true;
            self.seal(out);
            append(out, ProviderEvent::Text(text));
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.begun = true;
            self.seal(out);
            self.call(call, out);
        }
    }

    fn call(&mut self, delta: CallDelta, out: &mut Vec<ProviderEvent>) {
        let function = delta.function.unwrap_or_default();
        let id = delta.id.unwrap_or_default();
        let name = function.name.unwrap_or_default();
        let arguments = match function.arguments {
            Some(Value::String(text)) => text,
            None | Some(Value::Null) => String::new(),
            // Complete arguments that were not serialized to a string.
            Some(whole) => whole.to_string(),
        };
        let at = match self.find(delta.index, &id, &name, &arguments) {
            Some(at) => at,
            None => {
                let (name, arguments) = (String::new(), String::new());
                self.calls.push(StreamedCall { index: delta.index, id: id.clone(), name, arguments });
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

fn is_given(field: &Option<Value>) -> bool {
    field.as_ref().is_some_and(|field| !field.is_null())
}

#[derive(Deserialize)]
struct ChatChunk {
    choices: Option<Vec<ChatChoice>>,
    usage: Option<Value>,
    error: Option<Value>,
    /// Of errors that are not wrapped.
    message: Option<Value>,
    detail: Option<Value>,
}

#[derive(Deserialize)]
struct ChatChoice {
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u32>,
    #[serde(default, deserialize_with = "lenient")]
    delta: Option<ChatDelta>,
    /// The whole message, of replies in one piece.
    #[serde(default, deserialize_with = "lenient")]
    message: Option<ChatDelta>,
    #[serde(default, deserialize_with = "lenient")]
    finish_reason: Option<String>,
    usage: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChatDelta {
    #[serde(default, deserialize_with = "lenient")]
    content: Option<ChatText>,
    #[serde(default, deserialize_with = "lenient")]
    refusal: Option<String>,
    /// Sent by llama.cpp, vLLM and DeepSeek.
    #[serde(default, deserialize_with = "lenient")]
    reasoning_content: Option<String>,
    /// Sent by Ollama and OpenRouter.
    #[serde(default, deserialize_with = "lenient")]
    reasoning: Option<String>,
    /// Sent by GitHub Copilot.
    #[serde(default, deserialize_with = "lenient")]
    reasoning_text: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    thinking: Option<String>,
    /// Sent by OpenRouter.
    #[serde(default, deserialize_with = "lenient")]
    reasoning_details: Option<Vec<Value>>,
    #[serde(default, deserialize_with = "lenient")]
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChatText {
    Plain(String),
    /// Sent by Mistral's reasoning models.
    Parts(Vec<Value>),
    /// One part without a list.
    Part(Value),
}

impl ChatText {
    /// Splits the content into thinking and text.
    fn split(self) -> (String, String) {
        let parts = match self {
            ChatText::Plain(text) => return (String::new(), text),
            ChatText::Parts(parts) => parts,
            ChatText::Part(part) => vec![part],
        };
        let is_thought = |part: &&Value| {
            matches!(part["type"].as_str(), Some("thinking" | "reasoning" | "reasoning_content"))
        };
        let (thoughts, texts): (Vec<&Value>, Vec<&Value>) = parts.iter().partition(is_thought);
        let text = texts.iter().filter_map(|part| part.as_str().or(part["text"].as_str())).collect();
        (thoughts.into_iter().map(thought_of).collect(), text)
    }
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

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u32>,
    #[serde(default, deserialize_with = "lenient")]
    id: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    function: Option<FunctionDelta>,
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    #[serde(default, deserialize_with = "lenient")]
    name: Option<String>,
    arguments: Option<Value>,
}

fn usage(reported: &Value) -> Usage {
    let (input, output) = (tokens_at(reported, "/prompt_tokens"), tokens_at(reported, "/completion_tokens"));
    let thinking = tokens_at(reported, "/completion_tokens_details/reasoning_tokens");
    // xAI and Google count the thinking apart, and only in the total.
    let apart = tokens_at(reported, "/total_tokens").saturating_sub(input + output);
    let is_apart = thinking == 0 || thinking == apart;
    let apart = if is_apart { apart } else { 0 };
    Usage {
        input,
        output: output + apart,
        // The other fields are DeepSeek's, Moonshot's and Mistral's.
        cache_read: [
            "/prompt_tokens_details/cached_tokens",
            "/prompt_cache_hit_tokens",
            "/cached_tokens",
            "/num_cached_tokens",
        ]
        .into_iter()
        .map(|path| tokens_at(reported, path))
        .max()
        .unwrap_or(0),
        cache_write: tokens_at(reported, "/prompt_tokens_details/cache_write_tokens"),
        thinking: thinking.max(apart),
        ..Usage::default()
    }
}
