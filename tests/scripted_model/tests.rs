//! Tests the scripted model over a real socket, as a client uses it.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::*;

mod formats;

/// Sends one request with `connection: close` and reads the entire response.
fn post(model: &ScriptedModel, path: &str, body: &Value) -> String {
    let mut stream = connect(model);
    send(&mut stream, path, body, "close");
    let mut answer = String::new();
    // Some tests check aborted connections.
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn connect(model: &ScriptedModel) -> TcpStream {
    let address = model.base_url().strip_prefix("http://").expect("the address is one of HTTP").to_owned();
    TcpStream::connect(address).expect("the server listens")
}

fn send(stream: &mut TcpStream, path: &str, body: &Value, connection: &str) {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("the server reads");
}

fn scripted(steps: Vec<ModelStep>) -> ScriptedModel {
    ScriptedModel::start(move |_| steps.clone()).expect("a port is free")
}

/// The JSON of all `data:` lines.
fn events(answer: &str) -> Vec<Value> {
    let data = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

fn hello(wire: WireFormat) -> (&'static str, Value) {
    let messages = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Hello"}]});
    match wire {
        WireFormat::AnthropicMessages => ("/v1/messages", messages),
        WireFormat::OpenAiChat => ("/v1/chat/completions", messages),
        WireFormat::OpenAiResponses => (
            "/v1/responses",
            json!({"model": "m", "stream": true, "store": false,
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}),
        ),
        WireFormat::Gemini => (
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            json!({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
                "generationConfig": {"thinkingConfig": {"includeThoughts": true}}}),
        ),
    }
}

fn ask(model: &ScriptedModel, wire: WireFormat) -> String {
    let (path, body) = hello(wire);
    post(model, path, &body)
}

#[test]
fn a_text_streams_to_anthropic_clients_in_several_deltas() {
    let model = scripted(vec![ModelStep::Text("Milk and bread, said the list.".into())]);
    let answer = ask(&model, WireFormat::AnthropicMessages);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream"), "{answer}");
    let events = events(&answer);
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[..4], ["message_start", "ping", "content_block_start", "content_block_delta"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Milk and bread, said the list.");
    assert!(events.iter().filter(|event| event["delta"]["type"] == "text_delta").count() > 1);
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "end_turn");
}

#[test]
fn a_text_streams_to_chat_clients_and_ends_with_usage_and_done() {
    let model = scripted(vec![ModelStep::Text("Milk.".into()), ModelStep::Usage { input: 70, output: 3 }]);
    let answer = ask(&model, WireFormat::OpenAiChat);
    let events = events(&answer);
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Milk.");
    let last = events.last().expect("there are events");
    assert_eq!(last["usage"]["prompt_tokens"], 70);
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert!(answer.contains("data: [DONE]"));
}

#[test]
fn several_calls_are_parallel_calls_of_one_reply() {
    let call = |path: &str| ModelStep::Call { name: "file_read".into(), input: json!({"file_path": path}) };
    let model = scripted(vec![ModelStep::Think("Both.".into()), call("a"), call("b")]);

    let anthropic = events(&ask(&model, WireFormat::AnthropicMessages));
    let starts: Vec<&Value> =
        anthropic.iter().filter(|event| event["type"] == "content_block_start").collect();
    assert_eq!(starts.len(), 3);
    assert_eq!((&starts[1]["index"], &starts[2]["index"]), (&json!(1), &json!(2)));
    assert_ne!(starts[1]["content_block"]["id"], starts[2]["content_block"]["id"]);
    let arguments: String = anthropic
        .iter()
        .filter(|event| event["index"] == 2)
        .filter_map(|event| event["delta"]["partial_json"].as_str())
        .collect();
    assert_eq!(arguments, r#"{"file_path":"b"}"#);
    assert!(anthropic.iter().any(|event| event["delta"]["type"] == "signature_delta"));
    assert_eq!(anthropic[anthropic.len() - 2]["delta"]["stop_reason"], "tool_use");

    let chat = events(&ask(&model, WireFormat::OpenAiChat));
    let arguments: String = chat
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| call["index"] == 1)
        .filter_map(|call| call["function"]["arguments"].as_str())
        .collect();
    assert_eq!(arguments, r#"{"file_path":"b"}"#);
    assert!(chat.iter().any(|event| event["choices"][0]["finish_reason"] == "tool_calls"));
}

#[test]
fn errors_have_the_providers_status_headers_and_body() {
    let model = scripted(vec![ModelStep::Error { status: 429, retry_after: Some(1), message: None }]);
    let answer = ask(&model, WireFormat::AnthropicMessages);
    assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
    assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains(r#""type":"rate_limit_error""#), "{answer}");
    assert!(ask(&model, WireFormat::OpenAiChat).contains(r#""code":"rate_limit_exceeded""#));

    let model = scripted(vec![ModelStep::Overflow]);
    assert!(
        ask(&model, WireFormat::AnthropicMessages)
            .contains("prompt is too long: 207791 tokens > 200000 maximum")
    );
    assert!(ask(&model, WireFormat::OpenAiChat).contains(r#""code":"context_length_exceeded""#));
}

#[test]
fn error_after_text_is_sent_inside_the_stream() {
    let late = ModelStep::Error { status: 529, retry_after: None, message: Some("Busy.".into()) };
    let model = scripted(vec![ModelStep::Text("So".into()), late]);
    let events = events(&ask(&model, WireFormat::AnthropicMessages));
    let last = events.last().expect("there are events");
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
}

#[test]
fn cut_stream_has_no_end() {
    let model = scripted(vec![ModelStep::Text("So".into()), ModelStep::Cut]);
    let answer = ask(&model, WireFormat::AnthropicMessages);
    assert!(answer.contains("text_delta"));
    assert!(!answer.contains("message_stop"));
    assert!(!answer.ends_with("0\r\n\r\n"));
}

#[test]
fn hanging_reply_ends_when_the_client_disconnects() {
    let model = scripted(vec![ModelStep::Text("So".into()), ModelStep::Hang]);
    let (path, body) = hello(WireFormat::AnthropicMessages);
    let mut stream = connect(&model);
    send(&mut stream, path, &body, "keep-alive");
    let mut some = [0; 64];
    stream.read_exact(&mut some).expect("the reply begins");
    drop(stream);
    // The server's thread notices the closed socket; there is no event to wait for.
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while model.given_up() == 0 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(model.given_up(), 1);
}

#[test]
fn waiting_reply_continues_when_released() {
    let model =
        scripted(vec![ModelStep::Text("one".into()), ModelStep::Wait, ModelStep::Text(" two".into())]);
    let (path, body) = hello(WireFormat::AnthropicMessages);
    let mut stream = connect(&model);
    send(&mut stream, path, &body, "close");
    let mut begin = String::new();
    while !begin.contains("one") {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).expect("the reply begins");
        begin.push(char::from(byte[0]));
    }
    model.release();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the reply ends");
    assert!(rest.contains(" two") && rest.contains("message_stop"), "{rest}");
}

#[test]
fn connections_are_reused_for_several_requests() {
    let model = scripted(vec![ModelStep::Text("So".into())]);
    let (path, body) = hello(WireFormat::OpenAiChat);
    let mut stream = connect(&model);
    for number in 1..=3 {
        send(&mut stream, path, &body, "keep-alive");
        let mut answer = String::new();
        while !answer.ends_with("0\r\n\r\n") {
            let mut byte = [0; 1];
            stream.read_exact(&mut byte).expect("the reply comes");
            answer.push(char::from(byte[0]));
        }
        assert_eq!(model.requests().len(), number);
    }
}

#[test]
fn chunked_bodies_are_accepted() {
    let model = scripted(vec![ModelStep::Text("So".into())]);
    let (path, body) = hello(WireFormat::AnthropicMessages);
    let body = body.to_string();
    let (first, second) = body.split_at(10);
    let mut stream = connect(&model);
    let head = format!("POST {path} HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunks = format!("{:x}\r\n{first}\r\n{:X};x=y\r\n{second}\r\n0\r\n\r\n", first.len(), second.len());
    stream.write_all((head + &chunks).as_bytes()).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the reply comes");
    assert!(answer.contains("message_stop"));
    assert_eq!(model.requests()[0].seen(), [SeenPart::User("Hello".into())]);
}

#[test]
fn a_flood_is_many_small_deltas() {
    let model = scripted(vec![ModelStep::Flood { count: 20_000, text: "x".into() }]);
    for wire in WireFormat::ALL {
        let answer = ask(&model, wire);
        assert_eq!(answer.matches("\"x\"").count(), 20_000, "{wire:?}");
    }
}

#[test]
fn model_lists_and_token_counts_match_each_provider() {
    let model = scripted(Vec::new());
    let lists = [
        ("/v1/models", "x: y", r#"{"id":"scripted","object":"model""#),
        ("/v1/models", "anthropic-version: 2026-10-21", r#""max_input_tokens":200000"#),
        ("/v1/models", "x-goog-api-key: k", r#""name":"models/gemini-4-argon""#),
        ("/v1beta/models", "x: y", r#""inputTokenLimit":200000"#),
    ];
    for (path, header, expected) in lists {
        let mut stream = connect(&model);
        let head = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{header}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the answer comes");
        assert!(answer.contains(expected), "{path} {header}: {answer}");
    }
    let counts = [
        (WireFormat::AnthropicMessages, "/v1/messages/count_tokens", r#"{"input_tokens":"#),
        (WireFormat::OpenAiResponses, "/v1/responses/input_tokens", r#""object":"response.input_tokens""#),
        (WireFormat::Gemini, "/v1beta/models/m:countTokens", r#"{"totalTokens":"#),
    ];
    for (wire, path, expected) in counts {
        let answer = post(&model, path, &hello(wire).1);
        assert!(answer.contains(expected), "{path}: {answer}");
    }
    assert!(post(&model, "/v1/else", &json!({})).starts_with("HTTP/1.1 404"));
    assert!(model.requests().is_empty() && model.refusals().is_empty(), "these are no model calls");
}

#[test]
fn requests_are_read_the_same_from_all_formats() {
    let anthropic = json!({"system": "Be brief.", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is in a?"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "c1", "name": "file_read", "input": {"file_path": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "milk"},
            {"type": "text", "text": "and b?"}, {"type": "image", "source": {}}]}]});
    let chat = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in a?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "file_read", "arguments": "{\"file_path\":\"a\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "milk"},
        {"role": "user", "content": [{"type": "text", "text": "and b?"}, {"type": "image_url"}]}]});
    let responses = json!({"instructions": "Be brief.", "input": [
        {"role": "user", "content": "What is in a?"},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
        {"type": "function_call", "call_id": "c1", "name": "file_read", "arguments": "{\"file_path\":\"a\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "milk"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "and b?"}, {"type": "input_image"}]}]});
    let gemini = json!({"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [
        {"role": "user", "parts": [{"text": "What is in a?"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": true}, {"text": "Let me look."},
            {"functionCall": {"name": "file_read", "args": {"file_path": "a"}}, "thoughtSignature": "x"}]},
        {"role": "user", "parts": [
            {"functionResponse": {"name": "file_read", "response": {"output": "milk"}}},
            {"text": "and b?"}, {"inlineData": {"mimeType": "image/png", "data": ""}}]}]});
    let expected = [
        SeenPart::User("What is in a?".into()),
        SeenPart::Agent("Let me look.".into()),
        SeenPart::AgentCall { name: "file_read".into(), input: json!({"file_path": "a"}) },
        SeenPart::Result { tool: "file_read".into(), text: "milk".into() },
        SeenPart::User("and b?".into()),
        SeenPart::UserPart("image".into()),
    ];
    for (wire, body) in [
        (WireFormat::AnthropicMessages, anthropic),
        (WireFormat::OpenAiChat, chat),
        (WireFormat::OpenAiResponses, responses),
        (WireFormat::Gemini, gemini),
    ] {
        assert_eq!(seen::read(wire, &body), expected, "{wire:?}");
    }
}

#[test]
fn news_follow_the_last_request_and_its_reply() {
    let said = [ModelStep::Text("Hel".into()), ModelStep::Text("lo".into())];
    let before = [SeenPart::User("Hi".into())];
    let now = [SeenPart::User("Hi".into()), SeenPart::Agent("Hello".into()), SeenPart::User("Again".into())];
    assert_eq!(news(&before, &said, &now), [SeenPart::User("Again".into())]);
    assert_eq!(
        news(&[SeenPart::User("other".into())], &said, &now[..1]),
        [SeenPart::Anew, SeenPart::User("Hi".into())],
        "another beginning is shown in full"
    );
    assert_eq!(
        news(&before, &[], &now)[0],
        SeenPart::Agent("Hello".into()),
        "what the model did not say is news"
    );
}
