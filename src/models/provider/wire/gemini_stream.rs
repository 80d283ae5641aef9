//! Decodes Gemini's stream, chunk by chunk. Pure; keeps only the state that is needed at the end.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Decode;
use super::gemini::{SearchPart, Signed, SignedPart};
use super::stream::{DecodeError, Lenient, Unfinished, append, read_event};
use super::tokens_at;
use crate::{ProviderEvent, ReplyStop};
use epitome_thread::{FoundPage, HostedSearch, Usage};

/// Decodes one reply.
#[derive(Debug, Default)]
pub(super) struct GeminiDecoder {
    prefix: String,
    calls: u32,
    /// Whether the newest part is thinking that has not been sealed.
    thinks: bool,
    /// Whether any part of a reply was received.
    begun: bool,
    /// Whether usage was emitted. Every chunk repeats it; the first and the last suffice, and those in between would
    /// separate the pieces of a text.
    counted: bool,
    /// The pages and queries of searches, which each chunk may repeat or extend.
    grounding: Option<Value>,
    /// Whether the searches arrived as parts of the reply.
    searched: bool,
    /// The finish reason; usage may follow it.
    stop: Option<ReplyStop>,
}

impl GeminiDecoder {
    /// `prefix` is the digest that was computed while encoding the request.
    pub(super) fn new(prefix: String) -> GeminiDecoder {
        GeminiDecoder { prefix, ..GeminiDecoder::default() }
    }
}

impl Decode for GeminiDecoder {
    fn event(&mut self, data: &str, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        // Without SSE framing, the service's stream is a JSON list, and so are its errors.
        let chunks: Vec<GeminiChunk> = match data.starts_with('[') {
            true => read_event(data)?,
            false => vec![read_event(data)?],
        };
        chunks.into_iter().try_for_each(|chunk| self.chunk(chunk, out))
    }

    /// Handles the end of the stream, which has no final event; one of the last chunks contained the finish reason.
    fn end(&mut self, out: &mut Vec<ProviderEvent>) -> Result<(), Unfinished> {
        match (self.stop.take(), self.begun) {
            (Some(stop), _) => {
                self.end_thinking(out);
                if let Some(grounding) = self.grounding.take() {
                    out.extend(searches(&grounding, self.searched));
                }
                out.push(ProviderEvent::Stopped(stop));
                Ok(())
            }
            (None, true) => Err(Unfinished::Cut),
            (None, false) => Err(Unfinished::Empty),
        }
    }
}

impl GeminiDecoder {
    fn chunk(&mut self, chunk: GeminiChunk, out: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        if let Some(error) = chunk.error {
            return Err(DecodeError::Provider(json!({ "error": error }).to_string()));
        }
        for candidate in chunk.candidates.into_iter().flatten().filter(|one| one.index.0.unwrap_or(0) == 0) {
            let grounding = candidate.grounding_metadata;
            let grounding =
                grounding.filter(|found| found.as_object().is_some_and(|found| !found.is_empty()));
            self.grounding = grounding.or(self.grounding.take());
            let parts = candidate.content.and_then(|content| content.parts);
            for part in parts.into_iter().flatten() {
                self.part(part, out);
            }
            if let Some(reason) = candidate.finish_reason.0.as_deref() {
                self.stop = stop(reason, candidate.finish_message.0.as_deref()).or(self.stop.take());
            }
        }
        if let Some(PromptFeedback { block_reason: Lenient(Some(reason)), block_reason_message }) =
            chunk.prompt_feedback
        {
            let reason = with_sentence(&reason, block_reason_message.0.as_deref());
            self.stop = Some(ReplyStop::Filtered { reason });
        }
        if let Some(reported) = chunk.usage_metadata
            && (self.stop.is_some() || !self.counted)
        {
            self.counted = true;
            out.push(ProviderEvent::Usage(usage(&reported)));
        }
        Ok(())
    }

    fn part(&mut self, part: GeminiPart, out: &mut Vec<ProviderEvent>) {
        let signature = part.thought_signature.0.as_deref();
        for (kind, data) in [("toolCall", part.tool_call), ("toolResponse", part.tool_response)] {
            if let Some(data) = data {
                self.end_thinking(out);
                self.begun = true;
                self.searched = true;
                out.push(self.searched_part(kind, data, signature));
            }
        }
        if let Some(call) = part.function_call {
            self.end_thinking(out);
            self.seal(signature.map(|signature| Signed::Call { signature }), out);
            let index = self.calls;
            self.calls += 1;
            self.begun = true;
            out.push(ProviderEvent::CallStarted {
                index,
                id: call.id.0.unwrap_or_default(),
                name: call.name.0.unwrap_or_default(),
            });
            let json = call.args.map_or_else(|| "{}".into(), |args| args.get().to_owned());
            out.push(ProviderEvent::CallArguments { index, json });
            return;
        }
        let Some(text) = part.text.0 else { return };
        let bytes = text.len();
        self.begun |= bytes > 0;
        if part.thought.0.unwrap_or(false) {
            self.thinks |= bytes > 0;
            append(out, ProviderEvent::Thinking(text));
            self.seal(signature.map(|signature| Signed::Thought { signature, bytes }), out);
            return;
        }
        if bytes > 0 || signature.is_some() {
            self.end_thinking(out);
        }
        append(out, ProviderEvent::Text(text));
        self.seal(signature.map(|signature| Signed::Text { signature, bytes }), out);
    }

    /// A search that the service has begun, or its end. The pages follow at the end of the reply.
    fn searched_part(&self, kind: &str, data: Value, signature: Option<&str>) -> ProviderEvent {
        let queries = data["args"]["queries"].as_array().into_iter().flatten();
        let search = HostedSearch {
            query: joined(queries.filter_map(Value::as_str)),
            is_open: kind == "toolCall",
            ..HostedSearch::new(Some(data["id"].as_str().unwrap_or_default()))
        };
        let mut part = json!({ kind: data });
        if let Some(signature) = signature {
            part["thoughtSignature"] = signature.into();
        }
        let block = serde_json::to_value(SearchPart { prefix: self.prefix.clone(), part });
        let blocks = vec![block.expect("JSON can always be written")];
        ProviderEvent::Searched { search, blocks }
    }

    /// Seals thinking that arrived without a signature, to record that it is complete. A part that was cut off would
    /// invalidate the signatures after it.
    fn end_thinking(&mut self, out: &mut Vec<ProviderEvent>) {
        self.seal(self.thinks.then_some(Signed::Unsigned), out);
    }

    fn seal(&mut self, of: Option<Signed<'_>>, out: &mut Vec<ProviderEvent>) {
        let Some(of) = of else { return };
        let data = serde_json::to_value(SignedPart { prefix: &self.prefix, of })
            .expect("text and numbers can always be written");
        out.push(ProviderEvent::ThinkingSealed { data });
        self.thinks = false;
    }
}

/// Maps the finish reason; `None` if it is empty, as from a server that writes all fields.
fn stop(word: &str, sentence: Option<&str>) -> Option<ReplyStop> {
    let reason = || with_sentence(word, sentence);
    Some(match word {
        "" | "FINISH_REASON_UNSPECIFIED" => return None,
        "STOP" => ReplyStop::Finished,
        "MAX_TOKENS" => ReplyStop::MaxTokens,
        "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION"
        | "IMAGE_OTHER"
        | "ESCALATION"
        | "PUP_LIMITED_DISABLED"
        | "MODEL_ARMOR" => ReplyStop::Filtered { reason: reason() },
        // Includes `CONTINUATION`, which requires the same request with a token instead of this reply, and mistakes of
        // the model such as `MALFORMED_FUNCTION_CALL`.
        _ => ReplyStop::Other { reason: reason() },
    })
}

fn with_sentence(word: &str, sentence: Option<&str>) -> String {
    match sentence.map(str::trim) {
        Some(sentence) if !sentence.is_empty() => format!("{word}: {sentence}"),
        Some(_) | None => word.to_owned(),
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GeminiChunk {
    candidates: Option<Vec<GeminiCandidate>>,
    prompt_feedback: Option<PromptFeedback>,
    usage_metadata: Option<Value>,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GeminiCandidate {
    index: Lenient<u32>,
    content: Option<GeminiContent>,
    finish_reason: Lenient<String>,
    finish_message: Lenient<String>,
    grounding_metadata: Option<Value>,
}

/// The results of the service's searches: the search, unless the reply already has it, the sources of the text, and the
/// number of searches.
fn searches(grounding: &Value, is_known: bool) -> Vec<ProviderEvent> {
    let list = |name: &str| grounding[name].as_array().into_iter().flatten();
    let pages: Vec<Value> = list("groundingChunks")
        .map(|chunk| json!({ "title": chunk["web"]["title"], "url": chunk["web"]["uri"] }))
        .collect();
    let pages = FoundPage::read_all(pages.iter());
    let queries: Vec<&str> = list("webSearchQueries").filter_map(Value::as_str).collect();
    let mut events = Vec::new();
    if !queries.is_empty() && !is_known {
        let query = joined(queries.iter().copied());
        let search = HostedSearch { query, pages: pages.clone(), ..HostedSearch::new(Some("")) };
        events.push(ProviderEvent::Searched { search, blocks: Vec::new() });
    }
    if !pages.is_empty() {
        let search = HostedSearch { pages, ..HostedSearch::new(None) };
        events.push(ProviderEvent::Searched { search, blocks: Vec::new() });
    }
    let searches = u64::try_from(queries.len()).unwrap_or(u64::MAX);
    events.push(ProviderEvent::Usage(Usage { searches, ..Usage::default() }));
    events
}

/// Several queries as one text.
fn joined<'a>(queries: impl Iterator<Item = &'a str>) -> String {
    queries.collect::<Vec<_>>().join("; ")
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GeminiContent {
    parts: Option<Vec<GeminiPart>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GeminiPart {
    text: Lenient<String>,
    thought: Lenient<bool>,
    thought_signature: Lenient<String>,
    function_call: Option<FunctionCall>,
    /// A search by the service, and its end.
    tool_call: Option<Value>,
    tool_response: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FunctionCall {
    id: Lenient<String>,
    name: Lenient<String>,
    args: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PromptFeedback {
    block_reason: Lenient<String>,
    block_reason_message: Lenient<String>,
}

fn usage(reported: &Value) -> Usage {
    let thinking = tokens_at(reported, "/thoughtsTokenCount");
    Usage {
        input: tokens_at(reported, "/promptTokenCount") + tokens_at(reported, "/toolUsePromptTokenCount"),
        output: tokens_at(reported, "/candidatesTokenCount") + thinking,
        cache_read: tokens_at(reported, "/cachedContentTokenCount"),
        cache_write: 0,
        thinking,
        ..Usage::default()
    }
}
