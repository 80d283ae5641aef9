//! A reply in one piece, as the events of the stream that would have brought it. So each format has one decoder. Pure.

use serde_json::{Value, json};

use epitome_config::WireFormat;

/// The events for the JSON values of a body that is no stream of events: one reply, or the chunks of one.
pub(super) fn as_events(wire: WireFormat, body: Value) -> Vec<Value> {
    match (wire, body) {
        (_, Value::Array(values)) => values.into_iter().flat_map(|value| as_events(wire, value)).collect(),
        (WireFormat::AnthropicMessages, reply) if reply["content"].is_array() => messages(reply),
        (WireFormat::OpenAiResponses, reply) if reply["output"].is_array() => {
            vec![json!({ "type": "response.completed", "response": reply })]
        }
        (_, chunk) => vec![chunk],
    }
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
            decoding.push(body.to_string().as_bytes(), &mut events).expect("a reply");
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
}
