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

/// Replies as SGLang sends them: every field in every piece, `null` if it has nothing to say, and an id only with the first
/// piece of a call.
#[test]
fn pieces_may_have_all_fields_and_most_of_them_null() {
    let piece = |delta: Value| {
        let mut all = json!({ "role": null, "content": null, "reasoning_content": null, "tool_calls": null });
        delta.as_object().into_iter().flatten().for_each(|(name, value)| all[name] = value.clone());
        json!({ "choices": [{ "index": 0, "delta": all, "logprobs": null, "finish_reason": null, "matched_stop": null }], "usage": null })
    };
    let call = |index: Value, id: Value, name: Value, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        piece(
            json!({ "tool_calls": [{ "id": id, "index": index, "type": "function", "function": function }] }),
        )
    };
    for number in [|index: u32| json!(index), |index: u32| json!(index.to_string())] {
        let body = sse(&[
            piece(json!({ "role": "assistant", "content": "" })),
            piece(json!({ "reasoning_content": "hm" })),
            piece(json!({ "content": "Hi" })),
            call(number(0), json!("c1"), json!("a"), ""),
            call(number(1), json!("c2"), json!("a"), ""),
            call(number(0), Value::Null, Value::Null, "{\"x\":"),
            call(number(1), Value::Null, Value::Null, "{\"x\":2}"),
            call(number(0), Value::Null, Value::Null, "1}"),
            json!({ "choices": [{ "index": number(0), "delta": {}, "finish_reason": "tool_calls", "matched_stop": 1 }] }),
        ]) + "data: [DONE]\n\n";
        let (reply, result) = read(OpenAiChat, &body);
        assert_eq!(result, Ok(()));
        assert_eq!(summary(&reply), "thinking hm, text Hi, call a {\"x\":1}, call a {\"x\":2}");
    }
}

/// A gateway turned to another server in the middle of a reply, and what that wrote from its beginning followed the first
/// half. A first reply that was whole is not changed by what follows.
#[test]
fn a_second_message_in_a_stream_is_no_part_of_the_first() {
    let start =
        json!({ "type": "message_start", "message": { "usage": { "input_tokens": 7, "output_tokens": 1 } } });
    let text = |text: &str| {
        vec![
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } }),
        ]
    };
    let stop = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } });
    let of = |parts: &[Vec<Value>]| sse(&parts.concat());
    let one = |event: &Value| vec![event.clone()];
    let (reply, result) =
        read(AnthropicMessages, &of(&[one(&start), text("Hal"), one(&start), text("Hallo"), one(&stop)]));
    assert_eq!(summary(&reply), "text Hal");
    let error = result.expect_err("it broke off");
    assert!(
        matches!(error.class, ErrorClass::Retry { .. }) && error.message.contains("another reply began"),
        "{error:?}"
    );
    for body in [
        of(&[one(&start), one(&start), text("Hallo"), one(&stop)]),
        of(&[one(&start), text("Hallo"), one(&stop), one(&start), text("more"), one(&stop)]),
        of(&[
            one(&start),
            text("Hallo"),
            one(&stop),
            one(&json!({ "type": "message_stop" })),
            one(&start),
            text("more"),
        ]),
    ] {
        let (reply, result) = read(AnthropicMessages, &body);
        assert_eq!((summary(&reply).as_str(), result), ("text Hallo", Ok(())), "{body}");
    }
}

/// Fields of an event that are wrong or in another place do not end the reply.
#[test]
fn odd_fields_do_not_end_a_reply() {
    let chat = |choice: Value, more: Value| {
        let mut chunk = json!({ "choices": [choice] });
        more.as_object().into_iter().flatten().for_each(|(name, value)| chunk[name] = value.clone());
        sse(&[chunk, json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] })])
    };
    let hi = json!({ "delta": { "content": "Hi" } });
    for body in [
        chat(json!({ "delta": { "content": "Hi", "tool_calls": {} }, "index": 0.0 }), json!({})),
        chat(json!({ "delta": { "content": "Hi", "reasoning": {} }, "finish_reason": 7 }), json!({})),
        chat(
            json!({ "delta": { "content": "Hi", "reasoning_details": "x" }, "usage": "none" }),
            json!({ "usage": "none" }),
        ),
        chat(hi.clone(), json!({ "usage": { "prompt_tokens": "9", "completion_tokens": null } })),
        chat(hi.clone(), json!({ "error": null, "message": null, "x_groq": "all" })),
        sse(&[json!({ "choices": null, "usage": {} })]) + &chat(hi.clone(), json!({})),
        sse(&[json!({ "choices": {} })]) + &chat(hi.clone(), json!({})),
        sse(&[json!({ "id": "x" }), json!([])]) + &chat(hi, json!({})),
    ] {
        let (reply, result) = read(OpenAiChat, &body);
        assert_eq!((summary(&reply).as_str(), result), ("text Hi", Ok(())), "{body}");
    }
    for body in [
        sse(&[
            json!({ "type": "message_start", "message": { "usage": "none" } }),
            json!({ "type": "content_block_start", "index": "0", "content_block": { "type": "text", "text": null } }),
            json!({ "type": "content_block_delta", "index": "0", "delta": { "text": "Hi", "citation": 7, "stop_reason": null } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_details": [] }, "usage": 7 }),
        ]),
        sse(&[
            json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "Hi" } }),
            json!({ "type": "content_block_delta", "delta": null }),
            json!({ "type": "message_delta", "delta": { "stop_reason": 7 } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" } }),
        ]),
    ] {
        let (reply, result) = read(AnthropicMessages, &body);
        assert_eq!((summary(&reply).as_str(), result), ("text Hi", Ok(())), "{body}");
    }
    let message =
        json!({ "type": "message", "id": "m", "content": [{ "type": "output_text", "text": "Hi" }] });
    for body in [
        sse(&[
            json!({ "type": "response.completed", "response": { "status": 7, "output": [message], "usage": [], "incomplete_details": "no" } }),
        ]),
        sse(&[
            json!({ "type": "response.created", "response": null }),
            json!({ "type": "response.output_text.delta", "output_index": "0", "item_id": 7, "delta": "Hi" }),
            json!({ "type": "response.completed", "response": null }),
        ]),
    ] {
        let (reply, result) = read(OpenAiResponses, &body);
        assert_eq!((summary(&reply).as_str(), result), ("text Hi", Ok(())), "{body}");
    }
    for body in [
        json!([{ "candidates": [{ "index": "0", "content": { "role": 7, "parts": [{ "text": "Hi", "thought": "no" }] }, "finishReason": "STOP" }], "usageMetadata": "none" }]),
        json!({ "candidates": [{ "content": { "parts": [{ "text": "Hi" }, { "text": null }, {}] }, "finishReason": "STOP", "finishMessage": {}, "groundingMetadata": 7 }] }),
    ] {
        let (reply, result) = read(Gemini, &body.to_string());
        assert_eq!((summary(&reply).as_str(), result), ("text Hi", Ok(())), "{body}");
    }
}
