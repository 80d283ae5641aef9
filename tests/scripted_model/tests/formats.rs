//! Tests the scripted model's OpenAI Responses and Gemini streams, and its validation of thinking in each
//! format that supports it.

use super::*;

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).collect()
}

#[test]
fn responses_stream_has_start_and_end_of_each_item() {
    let call = ModelStep::Call { name: "look".into(), input: json!({"at": "a shelf in the kitchen"}) };
    let usage = ModelStep::Usage { input: 70, output: 6 };
    let steps = vec![ModelStep::Think("Hm.".into()), ModelStep::Text("So.".into()), call];
    let model = scripted([steps, vec![usage, ModelStep::Cached(64)]].concat());
    let events = events(&ask(&model, WireFormat::OpenAiResponses));
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&events), expected);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let response = &events[events.len() - 1]["response"];
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 64);
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let items: Vec<&Value> = done.map(|event| &event["item"]).collect();
    assert_eq!(json!(items), response["output"]);
    assert_ne!(events[2]["item"]["encrypted_content"], items[0]["encrypted_content"], "whole only when done");
}

#[test]
fn gemini_calls_are_complete_and_the_first_is_signed() {
    let call = |at: &str| ModelStep::Call { name: "look".into(), input: json!({ "at": at }) };
    let usage = ModelStep::Usage { input: 70, output: 6 };
    let think = ModelStep::Think("Hm.".into());
    let model = scripted(vec![think, call("a"), call("b"), usage, ModelStep::Cached(64)]);
    let events = events(&ask(&model, WireFormat::Gemini));
    let parts: Vec<&Value> =
        events.iter().map(|event| &event["candidates"][0]["content"]["parts"][0]).collect();
    assert_eq!(parts[0], &json!({"text": "Hm.", "thought": true}));
    assert_eq!(parts[1]["functionCall"]["args"], json!({"at": "a"}));
    assert!(parts[1]["thoughtSignature"].is_string() && parts[2]["thoughtSignature"].is_null());
    let last = &events[3];
    assert_eq!((parts[3], &last["candidates"][0]["finishReason"]), (&json!({"text": ""}), &json!("STOP")));
    assert_eq!(
        last["usageMetadata"],
        json!({"promptTokenCount": 70, "cachedContentTokenCount": 64, "candidatesTokenCount": 3,
            "thoughtsTokenCount": 3, "totalTokenCount": 76})
    );
}

#[test]
fn stops_and_errors_use_each_formats_wording() {
    let table: [(WireFormat, Vec<ModelStep>, &[&str]); 12] = [
        (
            WireFormat::OpenAiResponses,
            vec![ModelStep::Text("So".into()), ModelStep::Stop(ScriptedStop::MaxTokens)],
            &["event: response.incomplete", r#""incomplete_details":{"reason":"max_output_tokens"}"#],
        ),
        (
            WireFormat::OpenAiResponses,
            vec![ModelStep::Stop(ScriptedStop::Refusal("No.".into()))],
            &["event: response.refusal.done", r#"{"type":"refusal","refusal":"No."}"#],
        ),
        (
            WireFormat::OpenAiResponses,
            vec![ModelStep::Error { status: 429, retry_after: Some(2), message: None }],
            &["HTTP/1.1 429", "retry-after: 2\r\n", r#""code":"rate_limit_exceeded""#],
        ),
        (
            WireFormat::OpenAiResponses,
            vec![ModelStep::Overflow],
            &["HTTP/1.1 400", "context_length_exceeded"],
        ),
        (
            WireFormat::OpenAiResponses,
            vec![ModelStep::Text("So".into()), ModelStep::Overflow],
            &["event: error", "event: response.failed", r#""error":{"code":"context_length_exceeded""#],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Text("So".into()), ModelStep::Stop(ScriptedStop::MaxTokens)],
            &[r#""finishReason":"MAX_TOKENS""#],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Stop(ScriptedStop::Refusal("No.".into()))],
            &[r#""finishReason":"SAFETY""#, r#""finishMessage":"No.""#],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Error { status: 429, retry_after: Some(2), message: None }],
            &["HTTP/1.1 429", "RESOURCE_EXHAUSTED", r#""retryDelay":"2s""#],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Error { status: 401, retry_after: None, message: None }],
            &["HTTP/1.1 400", "API_KEY_INVALID"],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Error { status: 529, retry_after: None, message: None }],
            &["HTTP/1.1 503", "UNAVAILABLE"],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Overflow],
            &["HTTP/1.1 400", "exceeds the maximum number of tokens"],
        ),
        (
            WireFormat::Gemini,
            vec![ModelStep::Text("So".into()), ModelStep::Overflow],
            &["HTTP/1.1 200", "exceeds the maximum number of tokens"],
        ),
    ];
    for (wire, steps, expected) in table {
        let answer = ask(&scripted(steps.clone()), wire);
        for part in expected {
            assert!(answer.contains(part), "{wire:?} {steps:?} has no {part}: {answer}");
        }
    }
}

/// The next request of a client that sends back everything it received, with tool results.
fn next(wire: WireFormat, body: &Value, answer: &str) -> Value {
    let events = events(answer);
    let mut body = body.clone();
    let mut push = |field: &str, more: Value| {
        let list = body[field].as_array_mut().expect("a list");
        list.extend(more.as_array().expect("a list").iter().cloned());
    };
    match wire {
        WireFormat::AnthropicMessages => {
            let text = |field: &str| -> String {
                events.iter().filter_map(|event| event["delta"][field].as_str()).collect()
            };
            push(
                "messages",
                json!([
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": text("thinking"), "signature": text("signature")},
                        {"type": "text", "text": text("text")},
                        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "a"}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": "milk"}]}]),
            );
        }
        WireFormat::OpenAiResponses => {
            push("input", events[events.len() - 1]["response"]["output"].clone());
            push("input", json!([{"type": "function_call_output", "call_id": "call_1", "output": "milk"}]));
        }
        WireFormat::OpenAiChat => panic!("nothing is signed there"),
        WireFormat::Gemini => {
            let parts: Vec<Value> =
                events.iter().map(|event| event["candidates"][0]["content"]["parts"][0].clone()).collect();
            let response = json!({"id": "call_1", "name": "look", "response": {"output": "milk"}});
            push(
                "contents",
                json!([{"role": "model", "parts": parts},
                    {"role": "user", "parts": [{"functionResponse": response}]}]),
            );
        }
    }
    body
}

const SEALED: [WireFormat; 3] =
    [WireFormat::AnthropicMessages, WireFormat::OpenAiResponses, WireFormat::Gemini];

fn thinking_model() -> ScriptedModel {
    let call = ModelStep::Call { name: "look".into(), input: json!({"at": "a"}) };
    scripted(vec![
        ModelStep::Think("I will look.".into()),
        ModelStep::Text("Let me look there.".into()),
        call,
    ])
}

#[test]
fn unchanged_thinking_is_accepted() {
    for wire in SEALED {
        let model = thinking_model();
        let (path, body) = hello(wire);
        let body = next(wire, &body, &post(&model, path, &body));
        let answer = post(&model, path, &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{wire:?}: {answer}");
        assert_eq!(model.refusals(), Vec::<String>::new());
    }
}

#[test]
fn thinking_from_another_prefix_or_model_is_rejected() {
    for wire in SEALED {
        let model = thinking_model();
        let (path, body) = hello(wire);
        let body = next(wire, &body, &post(&model, path, &body));
        let other_beginning = body.to_string().replace("Hello", "Good morning");
        let other_beginning = serde_json::from_str(&other_beginning).expect("still JSON");
        assert!(post(&model, path, &other_beginning).starts_with("HTTP/1.1 400"), "{wire:?}");
        let mut other_model = body.clone();
        other_model["model"] = "other".into();
        let other_path = path.replace("models/m:", "models/other:");
        assert!(post(&model, &other_path, &other_model).starts_with("HTTP/1.1 400"), "{wire:?}");
        assert_eq!(model.refusals().len(), 2, "{wire:?}");
        assert_eq!(model.requests().len(), 1, "what is refused is no call");
    }
}

#[test]
fn altered_thinking_is_rejected() {
    let changes = [
        (WireFormat::AnthropicMessages, "I will look.", "I would look.", "cannot be modified"),
        (
            WireFormat::OpenAiResponses,
            r#""encrypted_content":""#,
            r#""encrypted_content":"x"#,
            "could not be",
        ),
        (WireFormat::Gemini, r#""thoughtSignature":""#, r#""thoughtSignature":"x"#, "not valid"),
    ];
    for (wire, from, to, expected) in changes {
        let model = thinking_model();
        let (path, body) = hello(wire);
        let body = next(wire, &body, &post(&model, path, &body)).to_string().replace(from, to);
        let answer = post(&model, path, &serde_json::from_str(&body).expect("still JSON"));
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(expected), "{wire:?}: {answer}");
    }
}

#[test]
fn responses_call_with_its_id_requires_its_reasoning() {
    let model = thinking_model();
    let (path, body) = hello(WireFormat::OpenAiResponses);
    let mut body = next(WireFormat::OpenAiResponses, &body, &post(&model, path, &body));
    body["input"].as_array_mut().expect("items").remove(1);
    let answer = post(&model, path, &body);
    assert!(answer.contains("without its required 'reasoning' item"), "{answer}");
}
