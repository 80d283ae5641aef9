//! Streams of Chat Completions, including the thinking that compatible servers add.

use serde_json::{Value, json};

use super::{Call, Out, Part, Piece, Search, Usage, Voice, split};
use crate::ScriptedStop;

pub(super) struct Chat {
    model: String,
    usage: Usage,
    with_usage: bool,
    /// Index of the next call.
    index: u64,
}

impl Chat {
    pub(super) fn new(model: &str, request: &Value, usage: Usage) -> Chat {
        let with_usage = request["stream_options"]["include_usage"] == true;
        Chat { model: model.to_owned(), usage, with_usage, index: 0 }
    }

    fn chunk_delta(&self, delta: &Value, out: &mut Out) {
        self.chunk(&json!([{"index": 0, "delta": delta, "finish_reason": null}]), None, out);
    }

    fn chunk(&self, choices: &Value, usage: Option<Value>, out: &mut Out) {
        let mut chunk = json!({"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0,
            "model": self.model, "choices": choices});
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        out.data(&chunk);
    }
}

impl Voice for Chat {
    fn begin(&mut self, out: &mut Out) {
        self.chunk_delta(&json!({"role": "assistant", "content": ""}), out);
    }

    fn part_begins(&mut self, _: Part, _: &mut Out) {}

    fn delta(&mut self, part: Part, text: &str, out: &mut Out) {
        let delta = match part {
            Part::Text => json!({ "content": text }),
            Part::Think => json!({ "reasoning_content": text }),
        };
        self.chunk_delta(&delta, out);
    }

    fn part_ends(&mut self, _: Part, _: &str, _: &mut Out) {}

    fn call(&mut self, call: &Call<'_>, out: &mut Out) {
        let index = self.index;
        let function = json!({"name": call.name, "arguments": ""});
        let begins = json!({"index": index, "id": call.id, "type": "function", "function": function});
        self.chunk_delta(&json!({ "tool_calls": [begins] }), out);
        for piece in split(&call.input.to_string()) {
            let more = json!({"index": index, "function": {"arguments": piece}});
            self.chunk_delta(&json!({ "tool_calls": [more] }), out);
        }
        self.index += 1;
    }

    /// The format has no searches.
    fn search(&mut self, _: Search<'_>, _: &mut Out) {}

    fn error(&mut self, body: &Value, out: &mut Out) {
        out.data(body);
    }

    fn end(&mut self, stop: Option<&ScriptedStop>, out: &mut Out) {
        let reason = match stop {
            Some(ScriptedStop::MaxTokens | ScriptedStop::Window) => "length",
            Some(ScriptedStop::Refusal(_)) => "content_filter",
            Some(ScriptedStop::Pause) => "stop",
            None if self.index > 0 => "tool_calls",
            None => "stop",
        };
        if let Some(ScriptedStop::Refusal(why)) = stop
            && !why.is_empty()
        {
            self.chunk_delta(&json!({ "refusal": why }), out);
        }
        self.chunk(&json!([{"index": 0, "delta": {}, "finish_reason": reason}]), None, out);
        if self.with_usage {
            let Usage { input, cached, output, thought } = self.usage;
            let usage = json!({"prompt_tokens": input, "completion_tokens": output,
                "total_tokens": input + output, "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": thought}});
            self.chunk(&json!([]), Some(usage), out);
        }
        out.0.push(Piece::Bytes(b"data: [DONE]\n\n".to_vec()));
    }
}
