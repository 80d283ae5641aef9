//! Streams of OpenAI's Responses.

use serde_json::{Value, json};

use super::{Call, Out, Part, Search, Usage, Voice, split};
use crate::ScriptedStop;
use crate::seal::{Before, OF_REASONING};
use epitome_config::WireFormat;

pub(super) struct Responses {
    /// The response as sent in the first event.
    response: Value,
    usage: Usage,
    before: Before,
    /// Completed items.
    output: Vec<Value>,
    /// Sequence number of the next event.
    number: u64,
    /// The id of the current item.
    open: String,
    /// The id of the reasoning that the next items belong to.
    reasoning: Option<String>,
    /// The address that the next text cites.
    cites: Option<String>,
}

impl Responses {
    pub(super) fn new(model: &str, request: &Value, usage: Usage) -> Responses {
        let before = Before::reply(WireFormat::OpenAiResponses, model, request);
        let or = |value: &Value, other: Value| if value.is_null() { other } else { value.clone() };
        let response = json!({"id": "resp_scripted", "object": "response", "created_at": 0,
            "status": "in_progress", "error": null, "incomplete_details": null,
            "instructions": request["instructions"], "max_output_tokens": request["max_output_tokens"],
            "metadata": or(&request["metadata"], json!({})), "model": model, "output": [],
            "parallel_tool_calls": or(&request["parallel_tool_calls"], json!(true)),
            "previous_response_id": null, "reasoning": or(&request["reasoning"], json!({"effort": null})),
            "store": or(&request["store"], json!(true)), "temperature": 1.0,
            "text": or(&request["text"], json!({"format": {"type": "text"}})),
            "tool_choice": or(&request["tool_choice"], json!("auto")),
            "tools": or(&request["tools"], json!([])), "top_p": 1.0, "truncation": "disabled",
            "usage": null});
        Responses {
            response,
            usage,
            before,
            output: Vec::new(),
            number: 0,
            open: String::new(),
            reasoning: None,
            cites: None,
        }
    }

    fn event(&mut self, kind: &str, mut data: Value, out: &mut Out) {
        data["sequence_number"] = self.number.into();
        self.number += 1;
        out.event(kind, data);
    }

    /// Assigns the next item an id that is unique in the conversation. It includes the id of the preceding
    /// reasoning, because the real service knows which items belong together.
    fn name(&mut self, kind: &str) -> String {
        let number = self.before.number();
        self.open = match &self.reasoning {
            Some(reasoning) if kind != "rs" => format!("{kind}_{number}{OF_REASONING}{reasoning}"),
            Some(_) | None => format!("{kind}_{number}"),
        };
        self.open.clone()
    }

    /// The fields that identify the item of an event, and more of its fields.
    fn about(&self, more: Value) -> Value {
        let mut about = json!({"item_id": self.open, "output_index": self.output.len()});
        if let (Value::Object(about), Value::Object(more)) = (&mut about, more) {
            about.extend(more);
        }
        about
    }

    fn added(&mut self, item: &Value, out: &mut Out) {
        let index = self.output.len();
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), out);
    }

    fn done(&mut self, item: Value, out: &mut Out) {
        let index = self.output.len();
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.before.add_item(&item);
        self.output.push(item);
    }

    fn refused(&mut self, why: &str, out: &mut Out) {
        let id = self.name("msg");
        let message = |status: &str, content: Value| json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content});
        let part = |text: &str| json!({"type": "refusal", "refusal": text});
        self.added(&message("in_progress", json!([])), out);
        let about = self.about(json!({"content_index": 0, "part": part("")}));
        self.event("response.content_part.added", about, out);
        for piece in split(why) {
            let about = self.about(json!({"content_index": 0, "delta": piece}));
            self.event("response.refusal.delta", about, out);
        }
        let about = self.about(json!({"content_index": 0, "refusal": why}));
        self.event("response.refusal.done", about, out);
        let about = self.about(json!({"content_index": 0, "part": part(why)}));
        self.event("response.content_part.done", about, out);
        self.done(message("completed", json!([part(why)])), out);
    }
}

/// Token counts in the service's format.
pub(super) fn usage(usage: Usage) -> Value {
    let Usage { input, cached, output, thought } = usage;
    json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output, "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": input + output})
}

fn output_text(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn summary_text(text: &str) -> Value {
    json!({"type": "summary_text", "text": text})
}

impl Voice for Responses {
    fn begin(&mut self, out: &mut Out) {
        let response = self.response.clone();
        self.event("response.created", json!({ "response": response }), out);
        self.event("response.in_progress", json!({ "response": response }), out);
    }

    fn part_begins(&mut self, part: Part, out: &mut Out) {
        match part {
            Part::Text => {
                let item = json!({"id": self.name("msg"), "type": "message", "status": "in_progress",
                    "role": "assistant", "content": []});
                self.added(&item, out);
                let about = self.about(json!({"content_index": 0, "part": output_text("")}));
                self.event("response.content_part.added", about, out);
            }
            Part::Think => {
                // The encrypted content is only complete when the item is done; the initial value differs.
                let item = json!({"id": self.name("rs"), "type": "reasoning", "summary": [],
                    "encrypted_content": "unfinished"});
                self.added(&item, out);
                let about = self.about(json!({"summary_index": 0, "part": summary_text("")}));
                self.event("response.reasoning_summary_part.added", about, out);
            }
        }
    }

    fn delta(&mut self, part: Part, text: &str, out: &mut Out) {
        match part {
            Part::Text => {
                let about = self.about(json!({"content_index": 0, "delta": text, "logprobs": []}));
                self.event("response.output_text.delta", about, out);
            }
            Part::Think => {
                let about = self.about(json!({"summary_index": 0, "delta": text}));
                self.event("response.reasoning_summary_text.delta", about, out);
            }
        }
    }

    fn part_ends(&mut self, part: Part, whole: &str, out: &mut Out) {
        match part {
            Part::Text => {
                let about = self.about(json!({"content_index": 0, "text": whole, "logprobs": []}));
                self.event("response.output_text.done", about, out);
                let about = self.about(json!({"content_index": 0, "part": output_text(whole)}));
                self.event("response.content_part.done", about, out);
                let mut text = output_text(whole);
                if let Some(url) = self.cites.take() {
                    text["annotations"] = json!([{"type": "url_citation", "url": url, "title": "A page",
                        "start_index": 0, "end_index": whole.chars().count()}]);
                }
                let item = json!({"id": self.open, "type": "message", "status": "completed",
                    "role": "assistant", "content": [text]});
                self.done(item, out);
            }
            Part::Think => {
                let about = self.about(json!({"summary_index": 0, "text": whole}));
                self.event("response.reasoning_summary_text.done", about, out);
                let about = self.about(json!({"summary_index": 0, "part": summary_text(whole)}));
                self.event("response.reasoning_summary_part.done", about, out);
                let id = self.open.clone();
                let item = json!({"id": id, "type": "reasoning", "summary": [summary_text(whole)],
                    "encrypted_content": self.before.seal("")});
                self.done(item, out);
                self.reasoning = Some(id);
            }
        }
    }

    fn call(&mut self, call: &Call<'_>, out: &mut Out) {
        let id = self.name("fc");
        let item = |status: &str, arguments: &str| {
            json!({"id": id, "type": "function_call", "status": status, "call_id": call.id,
                "name": call.name, "arguments": arguments})
        };
        self.added(&item("in_progress", ""), out);
        let arguments = call.input.to_string();
        for piece in split(&arguments) {
            let about = self.about(json!({ "delta": piece }));
            self.event("response.function_call_arguments.delta", about, out);
        }
        let about = self.about(json!({"name": call.name, "arguments": arguments}));
        self.event("response.function_call_arguments.done", about, out);
        self.done(item("completed", &arguments), out);
    }

    fn search(&mut self, Search { query, url, .. }: Search<'_>, out: &mut Out) {
        let id = self.name("ws");
        self.added(&json!({"id": id, "type": "web_search_call", "status": "in_progress"}), out);
        for stage in ["in_progress", "searching", "completed"] {
            self.event(&format!("response.web_search_call.{stage}"), self.about(json!({})), out);
        }
        let action = json!({"type": "search", "query": query, "sources": [{"type": "url", "url": url}]});
        let item = json!({"id": id, "type": "web_search_call", "status": "completed", "action": action});
        self.done(item, out);
        self.cites = Some(url.to_owned());
    }

    fn error(&mut self, body: &Value, out: &mut Out) {
        let error = &body["error"];
        let said = json!({"code": error["code"], "message": error["message"], "param": error["param"]});
        self.event("error", said, out);
        let mut response = self.response.clone();
        response["status"] = "failed".into();
        response["error"] = json!({"code": error["code"], "message": error["message"]});
        self.event("response.failed", json!({ "response": response }), out);
    }

    fn end(&mut self, stop: Option<&ScriptedStop>, out: &mut Out) {
        let incomplete = match stop {
            Some(ScriptedStop::MaxTokens | ScriptedStop::Window) => Some("max_output_tokens"),
            Some(ScriptedStop::Refusal(why)) => {
                self.refused(if why.is_empty() { "I can't help with that." } else { why }, out);
                None
            }
            Some(ScriptedStop::Pause) | None => None,
        };
        let mut response = self.response.clone();
        response["output"] = self.output.clone().into();
        response["usage"] = usage(self.usage);
        let (kind, status) = match incomplete {
            Some(_) => ("response.incomplete", "incomplete"),
            None => ("response.completed", "completed"),
        };
        response["status"] = status.into();
        if let Some(reason) = incomplete {
            response["incomplete_details"] = json!({ "reason": reason });
        }
        self.event(kind, json!({ "response": response }), out);
    }
}
