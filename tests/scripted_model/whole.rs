//! Replies that are not streamed, in each format. Pure.
//!
//! Agents ask for them on the side, for titles or to choose a model. Epitome doesn't, so they are answered to other agents
//! only.

use serde_json::{Value, json};

use super::ModelStep;
use epitome_config::WireFormat;

/// The text and the calls of a reply as one JSON value.
pub(super) fn reply(
    wire: WireFormat,
    model: &str,
    steps: &[ModelStep],
    next_call: &mut dyn FnMut() -> u64,
) -> Value {
    let mut text = String::new();
    let mut calls: Vec<(String, &str, &Value)> = Vec::new();
    for step in steps {
        match step {
            ModelStep::Text(more) => text.push_str(more),
            ModelStep::Call { name, input } => calls.push((format!("call_{}", next_call()), name, input)),
            // The other steps are about streams.
            _ => {}
        }
    }
    let calls = || calls.iter();
    match wire {
        WireFormat::AnthropicMessages => {
            let mut content = vec![json!({"type": "text", "text": text})];
            content.extend(calls().map(
                |(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input}),
            ));
            let stop = if calls().len() > 0 { "tool_use" } else { "end_turn" };
            json!({"id": "msg_scripted", "type": "message", "role": "assistant", "model": model,
                "content": content, "stop_reason": stop, "stop_sequence": null,
                "usage": {"input_tokens": 1000, "output_tokens": 10}})
        }
        WireFormat::OpenAiChat => {
            let mut message = json!({"role": "assistant", "content": text});
            let functions = calls().map(|(id, name, input)| {
                json!({"id": id, "type": "function",
                    "function": {"name": name, "arguments": input.to_string()}})
            });
            let functions: Vec<Value> = functions.collect();
            let stop = if functions.is_empty() { "stop" } else { "tool_calls" };
            if !functions.is_empty() {
                message["tool_calls"] = functions.into();
            }
            json!({"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": stop}],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}})
        }
        WireFormat::OpenAiResponses => {
            let mut output = vec![json!({"id": "msg_scripted", "type": "message", "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}]})];
            output.extend(calls().map(|(id, name, input)| {
                json!({"id": format!("fc_{id}"), "type": "function_call", "status": "completed",
                    "call_id": id, "name": name, "arguments": input.to_string()})
            }));
            json!({"id": "resp_scripted", "object": "response", "created_at": 0, "status": "completed",
                "model": model, "output": output, "usage": super::encode::usage_of_openai(steps)})
        }
        WireFormat::Gemini => {
            let mut parts = vec![json!({"text": text})];
            parts.extend(
                calls().map(|(_, name, input)| json!({"functionCall": {"name": name, "args": input}})),
            );
            json!({"candidates": [{"index": 0, "finishReason": "STOP",
                    "content": {"role": "model", "parts": parts}}],
                "modelVersion": model,
                "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 10,
                    "totalTokenCount": 1010}})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_its_places_for_the_text_and_the_call() {
        let steps = [
            ModelStep::Text("ping".to_owned()),
            ModelStep::Call { name: "run".to_owned(), input: json!({ "command": "ls" }) },
        ];
        for (wire, text, call) in [
            (WireFormat::AnthropicMessages, "/content/0/text", "/content/1/name"),
            (
                WireFormat::OpenAiChat,
                "/choices/0/message/content",
                "/choices/0/message/tool_calls/0/function/name",
            ),
            (WireFormat::OpenAiResponses, "/output/0/content/0/text", "/output/1/name"),
            (
                WireFormat::Gemini,
                "/candidates/0/content/parts/0/text",
                "/candidates/0/content/parts/1/functionCall/name",
            ),
        ] {
            let whole = reply(wire, "m", &steps, &mut || 1);
            assert_eq!(whole.pointer(text), Some(&json!("ping")), "{whole}");
            assert_eq!(whole.pointer(call), Some(&json!("run")), "{whole}");
        }
    }
}
