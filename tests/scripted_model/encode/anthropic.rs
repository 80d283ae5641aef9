//! Streams of Anthropic's Messages.

use serde_json::{Value, json};

use super::{Call, Out, Part, Search, Usage, Voice, split};
use crate::ScriptedStop;
use crate::seal::{self, Before};
use epitome_config::WireFormat;

pub(super) struct Anthropic {
    model: String,
    usage: Usage,
    before: Before,
    /// Index of the current or next content block.
    index: u64,
    called: bool,
    searches: u64,
    /// The address that the next text cites.
    cites: Option<String>,
    /// A compaction was sent.
    made: bool,
    /// The request, if it asks for a compaction that has not been sent yet; the compaction's signature
    /// depends on it.
    compacts: Option<Value>,
}

impl Anthropic {
    pub(super) fn new(model: &str, request: &Value, usage: Usage) -> Anthropic {
        let before = Before::reply(WireFormat::AnthropicMessages, model, request);
        let compacts = (!request["compaction"].is_null()).then(|| request.clone());
        Anthropic {
            model: model.to_owned(),
            usage,
            before,
            index: 0,
            called: false,
            searches: 0,
            cites: None,
            made: false,
            compacts,
        }
    }

    /// Anthropic's input count excludes cached tokens.
    fn usage(&self, output: u64) -> Value {
        let Usage { input, cached, .. } = self.usage;
        json!({"input_tokens": input - cached, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached, "output_tokens": output})
    }

    fn begin_block(&mut self, block: &Value, out: &mut Out) {
        out.event("content_block_start", json!({"index": self.index, "content_block": block}));
    }

    fn block_delta(&mut self, delta: &Value, out: &mut Out) {
        out.event("content_block_delta", json!({"index": self.index, "delta": delta}));
    }

    /// Sends a compaction in one piece; without a text, it represents a failure of the service.
    fn compacted(&mut self, request: &Value, text: Option<&str>, out: &mut Out) {
        self.made = true;
        let wire = WireFormat::AnthropicMessages;
        let signature = text.map(|text| seal::of_compaction(wire, &self.model, request, text));
        let mut block = json!({"type": "compaction", "content": null, "encrypted_content": null,
            "signature": signature});
        self.begin_block(&block, out);
        self.block_delta(&json!({"type": "compaction_delta", "content": text}), out);
        block["content"] = text.into();
        self.end_block(&block, out);
    }

    fn end_block(&mut self, block: &Value, out: &mut Out) {
        out.event("content_block_stop", json!({ "index": self.index }));
        self.before.add("assistant", block);
        self.index += 1;
    }
}

impl Voice for Anthropic {
    fn begin(&mut self, out: &mut Out) {
        let message = json!({"id": "msg_scripted", "type": "message", "role": "assistant",
            "model": self.model, "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": self.usage(1)});
        out.event("message_start", json!({ "message": message }));
        out.event("ping", json!({}));
    }

    fn part_begins(&mut self, part: Part, out: &mut Out) {
        if self.compacts.is_some() {
            return;
        }
        let block = match part {
            Part::Text => json!({"type": "text", "text": ""}),
            Part::Think => json!({"type": "thinking", "thinking": "", "signature": ""}),
        };
        self.begin_block(&block, out);
        if let Some(url) = self.cites.take_if(|_| part == Part::Text) {
            let citation = json!({"type": "web_search_result_location", "url": url, "title": "A page",
                "encrypted_index": "aW5kZXg=", "cited_text": "Words of the page."});
            self.block_delta(&json!({"type": "citations_delta", "citation": citation}), out);
        }
    }

    fn delta(&mut self, part: Part, text: &str, out: &mut Out) {
        if self.compacts.is_some() {
            return;
        }
        let delta = match part {
            Part::Text => json!({"type": "text_delta", "text": text}),
            Part::Think => json!({"type": "thinking_delta", "thinking": text}),
        };
        self.block_delta(&delta, out);
    }

    fn part_ends(&mut self, part: Part, whole: &str, out: &mut Out) {
        match (part, self.compacts.take()) {
            (Part::Text, Some(request)) => return self.compacted(&request, Some(whole), out),
            // Thinking about a compaction is not streamed.
            (Part::Think, Some(request)) => return self.compacts = Some(request),
            (Part::Text | Part::Think, None) => {}
        }
        let block = match part {
            Part::Text => json!({"type": "text", "text": whole}),
            Part::Think => {
                let signature = self.before.seal(whole);
                self.block_delta(&json!({"type": "signature_delta", "signature": signature}), out);
                json!({"type": "thinking", "thinking": whole, "signature": signature})
            }
        };
        self.end_block(&block, out);
    }

    fn call(&mut self, call: &Call<'_>, out: &mut Out) {
        self.called = true;
        let block =
            |input: &Value| json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input});
        self.begin_block(&block(&json!({})), out);
        let arguments = call.input.to_string();
        for piece in std::iter::once("").chain(split(&arguments)) {
            self.block_delta(&json!({"type": "input_json_delta", "partial_json": piece}), out);
        }
        self.end_block(&block(call.input), out);
    }

    fn search(&mut self, Search { id, query, url }: Search<'_>, out: &mut Out) {
        let block =
            |input: Value| json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": input});
        self.begin_block(&block(json!({})), out);
        let input = json!({ "query": query });
        let piece = json!({"type": "input_json_delta", "partial_json": input.to_string()});
        self.block_delta(&piece, out);
        self.end_block(&block(input), out);
        let page = json!({"type": "web_search_result", "url": url, "title": "A page",
            "encrypted_content": "c2VhbGVk", "page_age": null});
        let result = json!({"type": "web_search_tool_result", "tool_use_id": id, "content": [page]});
        self.begin_block(&result, out);
        self.end_block(&result, out);
        self.searches += 1;
        self.cites = Some(url.to_owned());
    }

    fn error(&mut self, body: &Value, out: &mut Out) {
        out.event("error", json!({ "error": body["error"] }));
    }

    fn end(&mut self, stop: Option<&ScriptedStop>, out: &mut Out) {
        if let Some(request) = self.compacts.take() {
            self.compacted(&request, None, out);
        }
        let (reason, details) = match stop {
            Some(ScriptedStop::MaxTokens) => ("max_tokens", Value::Null),
            Some(ScriptedStop::Refusal(why)) => {
                ("refusal", json!({"type": "refusal", "category": null, "explanation": why}))
            }
            Some(ScriptedStop::Window) => ("model_context_window_exceeded", Value::Null),
            Some(ScriptedStop::Pause) => ("pause_turn", Value::Null),
            None if self.made => ("compaction", Value::Null),
            None if self.called => ("tool_use", Value::Null),
            None => ("end_turn", Value::Null),
        };
        let delta = json!({"stop_reason": reason, "stop_sequence": null, "stop_details": details});
        let mut usage = self.usage(self.usage.output);
        usage["output_tokens_details"] = json!({"thinking_tokens": self.usage.thought});
        if self.searches > 0 {
            usage["server_tool_use"] = json!({ "web_search_requests": self.searches });
        }
        out.event("message_delta", json!({"delta": delta, "usage": usage}));
        out.event("message_stop", json!({}));
    }
}
