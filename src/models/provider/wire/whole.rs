//! A reply in one piece, as the stream that would have brought it. So each format has one decoder. Pure.

use serde_json::{Value, json};

use epitome_config::WireFormat;

/// The stream for the body of a reply. A body that is no JSON object stays as it is: some services stream all the same, and
/// the decoder reports what else it may be.
pub(in super::super) fn as_stream(wire: WireFormat, body: Vec<u8>) -> Vec<u8> {
    let Ok(reply @ Value::Object(_)) = serde_json::from_slice::<Value>(&body) else { return body };
    let events = match wire {
        _ if !reply["error"].is_null() => vec![reply],
        WireFormat::AnthropicMessages => messages(reply),
        WireFormat::OpenAiChat => chat(reply),
        WireFormat::OpenAiResponses => {
            let kind = match reply["status"].as_str() {
                Some("incomplete") => "response.incomplete",
                Some("failed") => "response.failed",
                _ => "response.completed",
            };
            vec![json!({ "type": kind, "response": reply })]
        }
        WireFormat::Gemini => vec![reply],
    };
    events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>().into_bytes()
}

fn messages(mut reply: Value) -> Vec<Value> {
    let blocks = reply["content"].take();
    let (stop, usage) = (reply["stop_reason"].take(), reply["usage"].clone());
    let mut events = vec![json!({ "type": "message_start", "message": reply })];
    for (index, block) in blocks.as_array().into_iter().flatten().enumerate() {
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": usage }));
    events.push(json!({ "type": "message_stop" }));
    events
}

fn chat(mut reply: Value) -> Vec<Value> {
    for choice in reply["choices"].as_array_mut().into_iter().flatten() {
        let mut message = choice["message"].take();
        for (index, call) in message["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
            call["index"] = json!(index);
        }
        choice["delta"] = message;
    }
    vec![reply]
}

#[cfg(test)]
mod tests {
    use super::super::stream::Decoding;
    use super::*;
    use crate::endpoint::{Endpoint, test_endpoint};
    use crate::{ProviderEvent, ReplyStop};

    #[test]
    fn a_reply_in_one_piece_is_decoded_like_a_stream() {
        for (wire, body) in [
            (
                WireFormat::AnthropicMessages,
                json!({
                    "type": "message", "role": "assistant", "content": [{"type": "text", "text": "So far."}],
                    "stop_reason": "end_turn", "usage": {"input_tokens": 7, "output_tokens": 3},
                }),
            ),
            (
                WireFormat::OpenAiChat,
                json!({
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": "So far."}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
                }),
            ),
            (
                WireFormat::OpenAiResponses,
                json!({
                    "status": "completed", "usage": {"input_tokens": 7, "output_tokens": 3},
                    "output": [{"type": "message", "id": "m", "content": [{"type": "output_text", "text": "So far."}]}],
                }),
            ),
            (
                WireFormat::Gemini,
                json!({
                    "candidates": [{"content": {"role": "model", "parts": [{"text": "So far."}]}, "finishReason": "STOP"}],
                    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3},
                }),
            ),
        ] {
            let endpoint = Endpoint { wire, ..test_endpoint("openai/any") };
            let mut decoding = Decoding::new(endpoint, "p".to_owned(), None);
            let mut events = Vec::new();
            decoding.push(&as_stream(wire, body.to_string().into_bytes()), &mut events).expect("a reply");
            decoding.end(&mut events).expect("its end");
            let text: String = events
                .iter()
                .filter_map(|event| match event {
                    ProviderEvent::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(text, "So far.", "{wire:?}");
            let usage = events.iter().rev().find_map(|event| match event {
                ProviderEvent::Usage(usage) => Some((usage.input, usage.output)),
                _ => None,
            });
            assert_eq!(usage, Some((7, 3)), "{wire:?}: {events:?}");
            assert!(matches!(events.last(), Some(ProviderEvent::Stopped(ReplyStop::Finished))), "{wire:?}");
        }
    }

    #[test]
    fn other_bodies_stay_as_they_are() {
        for body in ["data: {}\n\n", "<html>", ""] {
            assert_eq!(as_stream(WireFormat::OpenAiChat, body.into()), body.as_bytes());
        }
    }
}
