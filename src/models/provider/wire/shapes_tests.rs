//! The same reply and the same failures in the many shapes in which compatible services send them.

use serde_json::{Value, json};

use super::stream::Decoding;
use crate::collect::{Collector, ModelReply};
use crate::endpoint::{Endpoint, test_endpoint};
use crate::{ErrorClass, ProviderError, ReplyStop};
use epitome_config::WireFormat::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses};
use epitome_thread::Content;

/// Reads a body of a compatible service, whole and byte by byte.
fn read(wire: WireFormat, body: &str) -> (ModelReply, Result<(), ProviderError>) {
    let endpoint = Endpoint { wire, own_api: false, ..test_endpoint("openai/any") };
    let decode = |size: usize| {
        let mut decoding = Decoding::new(endpoint.clone(), "p".to_owned(), None);
        let mut events = Vec::new();
        let pushed = body.as_bytes().chunks(size).try_for_each(|piece| decoding.push(piece, &mut events));
        let result = pushed.and_then(|()| decoding.end(&mut events));
        let mut collector = Collector::new(&endpoint.name);
        events.into_iter().for_each(|event| drop(collector.feed(event)));
        (collector.finish(), result)
    };
    let whole = decode(body.len().max(1));
    assert_eq!(whole, decode(1), "{body}");
    whole
}

/// Text, thinking and calls, in a line.
fn summary(reply: &ModelReply) -> String {
    let parts = reply.content.iter().map(|part| match part {
        Content::Text { text } => format!("text {text}"),
        Content::Thinking { text, .. } => format!("thinking {text}"),
        Content::Call(call) => format!("call {} {}", call.name, call.input),
        other => format!("{other:?}"),
    });
    parts.collect::<Vec<String>>().join(", ")
}

fn sse(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

fn chat(delta: Value) -> String {
    sse(&[json!({ "choices": [{ "delta": delta }] }), json!({ "choices": [{ "finish_reason": "stop" }] })])
}

/// A service that was asked for a stream answered with JSON, and the reply counted as broken; another ended its last event
/// without an empty line, and the reply counted as cut off.
#[test]
fn a_reply_is_read_however_it_is_framed() {
    let chunk = json!({ "choices": [{ "delta": { "content": "Hi" }, "finish_reason": "stop" }] });
    let whole = json!({ "choices": [{ "message": { "role": "assistant", "content": "Hi" }, "finish_reason": "stop" }] });
    let mut with_empty_delta = whole.clone();
    with_empty_delta["choices"][0]["delta"] = json!({ "role": "assistant", "content": "" });
    let message = json!({ "type": "message", "content": [{ "type": "text", "text": "Hi" }], "stop_reason": "end_turn" });
    let text = json!({ "type": "message", "id": "m", "content": [{ "type": "output_text", "text": "Hi" }] });
    let response = json!({ "status": "completed", "output": [text] });
    let content =
        json!({ "candidates": [{ "content": { "parts": [{ "text": "Hi" }] }, "finishReason": "STOP" }] });
    for (wire, body) in [
        (OpenAiChat, format!("data:{chunk}\n\ndata:[DONE]\n\n")),
        (OpenAiChat, format!("\u{feff}data: {chunk}\r\n\r\ndata: [DONE]\r\n\r\n")),
        (OpenAiChat, format!(": waiting\n\nevent: chunk\nid: 1\nretry: 5\ndata: {chunk}\n\n")),
        (OpenAiChat, format!("data: {}\n\n", format!("{chunk:#}").replace('\n', "\ndata: "))),
        (OpenAiChat, format!("data: {chunk}\n")),
        (OpenAiChat, format!("data: {chunk}")),
        // A connection that was kept alive for long.
        (OpenAiChat, format!("{}data: {chunk}\n\n", "\n".repeat(5_000))),
        (OpenAiChat, "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: [DONE]".to_owned()),
        (OpenAiChat, sse(std::slice::from_ref(&whole))),
        (OpenAiChat, with_empty_delta.to_string()),
        (OpenAiChat, sse(&[chunk.clone(), whole.clone()])),
        (OpenAiChat, whole.to_string()),
        (OpenAiChat, format!("\n {whole:#}\n")),
        (OpenAiChat, format!("{chunk}\n{{\"choices\":[],\"usage\":{{}}}}\n")),
        (AnthropicMessages, message.to_string()),
        (AnthropicMessages, format!("data: {}\n", json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" } })).replace(
            "data: ",
            "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\ndata: ",
        )),
        (OpenAiResponses, response.to_string()),
        (OpenAiResponses, format!("data: {}", json!({ "type": "response.completed", "response": response }))),
        (Gemini, content.to_string()),
        (Gemini, format!("[{content},\r\n{}]", json!({ "usageMetadata": {} }))),
        (Gemini, format!("data: {content}")),
    ] {
        let (reply, result) = read(wire, &body);
        assert_eq!(result, Ok(()), "{body}");
        assert_eq!((summary(&reply).as_str(), reply.stop), ("text Hi", Some(ReplyStop::Finished)), "{body}");
    }
}

#[test]
fn thinking_and_calls_of_chat_have_many_shapes() {
    let call = |call: Value| json!({ "tool_calls": [call] });
    for (body, expected) in [
        (chat(json!({ "reasoning_content": "hm" })), "thinking hm"),
        (chat(json!({ "reasoning": "hm", "reasoning_content": null })), "thinking hm"),
        (chat(json!({ "reasoning_text": "hm" })), "thinking hm"),
        (chat(json!({ "thinking": "hm" })), "thinking hm"),
        (chat(json!({ "content": [{ "type": "thinking", "thinking": [{ "text": "hm" }] }] })), "thinking hm"),
        (
            chat(
                json!({ "content": [{ "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "Hi" }] }),
            ),
            "thinking hm, text Hi",
        ),
        (chat(json!({ "content": [{ "type": "reasoning", "summary": [{ "text": "hm" }] }] })), "thinking hm"),
        (chat(json!({ "content": [{ "type": "reasoning", "text": "hm" }] })), "thinking hm"),
        (chat(json!({ "content": ["Hi"] })), "text Hi"),
        (chat(json!({ "content": { "type": "text", "text": "Hi" } })), "text Hi"),
        (chat(json!({ "content": "<reasoning>hm</reasoning>Hi" })), "thinking hm, text Hi"),
        (chat(call(json!({ "function": { "name": "a", "arguments": "{\"x\":1}" } }))), "call a {\"x\":1}"),
        (
            chat(call(json!({ "index": "0", "function": { "name": "a", "arguments": { "x": 1 } } }))),
            "call a {\"x\":1}",
        ),
        (
            chat(call(json!({ "id": null, "index": null, "function": { "name": "a", "arguments": null } }))),
            "call a {}",
        ),
        (chat(json!({ "content": null, "tool_calls": null })) + &chat(json!({ "content": "Hi" })), "text Hi"),
    ] {
        let (reply, result) = read(OpenAiChat, &body);
        assert_eq!(result, Ok(()), "{body}");
        assert_eq!(summary(&reply), expected, "{body}");
    }
}

/// Errors without `error` around them were overlooked, and the reply called empty; a service that ran out of resources or
/// lost its connection was believed to have finished.
#[test]
fn a_failure_in_a_stream_is_told_however_it_is_sent() {
    let begun = json!({ "choices": [{ "delta": { "content": "Hi" } }] });
    for (wire, body) in [
        (OpenAiChat, sse(&[json!({ "object": "error", "message": "It broke.", "code": 500 })])),
        (OpenAiChat, sse(&[begun.clone(), json!({ "detail": "It broke." })])),
        (OpenAiChat, sse(&[begun.clone(), json!({ "error": "It broke." })])),
        (
            OpenAiChat,
            sse(&[
                json!({ "choices": [{ "error": { "code": 502, "message": "It broke." }, "finish_reason": "error" }] }),
            ]),
        ),
        (OpenAiChat, format!("event: error\n{}", sse(&[json!({ "message": "It broke." })]))),
        (OpenAiChat, format!("event: error\ndata: {}", json!({ "message": "It broke." }))),
        (OpenAiChat, json!({ "error": { "message": "It broke." } }).to_string()),
        (OpenAiChat, json!({ "detail": [{ "msg": "It broke." }] }).to_string()),
        (OpenAiChat, "It broke.".to_owned()),
        (AnthropicMessages, sse(&[json!({ "type": "error", "error": { "message": "It broke." } })])),
        (AnthropicMessages, sse(&[json!({ "error": { "message": "It broke." } })])),
        (AnthropicMessages, json!({ "detail": "It broke." }).to_string()),
        (OpenAiResponses, sse(&[json!({ "type": "error", "message": "It broke." })])),
        (
            OpenAiResponses,
            sse(&[json!({ "type": "response.failed", "response": { "error": { "message": "It broke." } } })]),
        ),
        (
            OpenAiResponses,
            json!({ "status": "failed", "output": [], "error": { "message": "It broke." } }).to_string(),
        ),
        (Gemini, sse(&[json!({ "error": { "message": "It broke." } })])),
        (Gemini, json!([{ "error": { "message": "It broke." } }]).to_string()),
    ] {
        let error = read(wire, &body).1.expect_err(&body);
        assert!(error.message.contains("It broke."), "{body}: {error}");
    }
    for reason in ["network_error", "insufficient_system_resource", "abort"] {
        let body = sse(&[begun.clone(), json!({ "choices": [{ "finish_reason": reason }] })]);
        let stop = read(OpenAiChat, &body).0.stop;
        assert_eq!(stop, Some(ReplyStop::Other { reason: reason.to_owned() }), "{reason}");
    }
}

#[test]
fn other_bodies_are_called_what_they_are() {
    for (body, kind) in [
        ("<!doctype html><title>It broke.</title>", "a page"),
        ("{\"object\":\"list\",\"data\":[]}", "other JSON"),
        ("[]", "other JSON"),
        ("\u{1f}\u{8b}\u{8}", "bytes that are no text"),
    ] {
        for wire in [AnthropicMessages, OpenAiChat, OpenAiResponses, Gemini] {
            let error = read(wire, body).1.expect_err(body);
            assert!(error.message.contains(kind) && error.class == ErrorClass::Broken, "{body}: {error:?}");
        }
    }
    for body in ["", "\n\n", ": ping\n\n", "data: {\"choices\":[]}\n\n"] {
        assert_eq!(read(OpenAiChat, body).1.expect_err(body).class, ErrorClass::Empty, "{body:?}");
    }
    // A reply that is cut off is no reply, also in one piece.
    for body in [
        "{\"choices\":[{\"message\":{\"content\":\"Hi\"}",
        "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n",
        "{\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n{\"choices\"",
    ] {
        assert!(read(OpenAiChat, body).1.is_err(), "{body}");
    }
}
