//! Streams of providers, from recorded bytes and over loopback HTTP.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use epitome::config::{ProviderSettings, SearchChoice, Settings, WireFormat};
use epitome::provider::calls::ERROR_BODY_BYTES_MAX;
use epitome::provider::collect::Collector;
use epitome::provider::endpoint::{self, Endpoint};
use epitome::provider::http::Http;
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::{Encoded, Encoding};
use epitome::provider::wire::sse::EVENT_BYTES_MAX;
use epitome::provider::wire::stream::Decoding;
use epitome::provider::{ErrorClass, ModelRequest, ProviderError, ProviderEvent, ReplyStop};
use epitome::thread::{Content, HostedSearch, Message, MessageId, ModelName, ThoughtLevel, ViewItem};
use proptest::prelude::*;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

// ---- recorded streams

#[test]
fn recorded_streams_decode_as_expected_however_they_are_split() {
    let streams = streams();
    assert!(streams.len() >= 14, "fixtures were lost: {}", streams.len());
    for (name, stream) in streams {
        let expected =
            std::fs::read_to_string(fixtures().join(format!("{name}.events"))).expect("both are there");
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        check(&name, "byte by byte", &single, &expected);
        for at in 0..=stream.len() {
            let (head, tail) = stream.split_at(at);
            check(&name, &format!("cut at {at}"), &[head, tail], &expected);
        }
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol-fixtures/providers")
}

/// Every recorded stream with its name.
fn streams() -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(fixtures()).expect("the fixtures are there");
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let streams = names.filter_map(|file| {
        let name = file.strip_suffix(".sse")?;
        Some((name.to_owned(), std::fs::read(fixtures().join(&file)).expect("it was just listed")))
    });
    let mut streams: Vec<_> = streams.collect();
    streams.sort();
    streams
}

fn check(name: &str, how: &str, pieces: &[&[u8]], expected: &str) {
    let found = decode(name, pieces);
    let (found_lines, expected_lines) = (found.lines().count(), expected.lines().count());
    assert_eq!(found_lines, expected_lines, "{name}, {how}:\n{found}");
    for (found, expected) in found.lines().zip(expected.lines()) {
        let agrees = match expected.strip_prefix("error ").and_then(|rest| rest.split_once(' ')) {
            Some((class, words)) => found.starts_with(&format!("error {class} ")) && found.contains(words),
            None => found == expected,
        };
        assert!(agrees, "{name}, {how}:\nexpected {expected}\nfound    {found}");
    }
}

fn decode(name: &str, pieces: &[&[u8]]) -> String {
    let wire = match name.split('-').next() {
        Some("anthropic") => WireFormat::AnthropicMessages,
        Some("gemini") => WireFormat::Gemini,
        Some("responses") => WireFormat::OpenAiResponses,
        _ => WireFormat::OpenAiChat,
    };
    let provider = if wire == WireFormat::AnthropicMessages { "anthropic" } else { "somewhere" };
    let mut decoding = Decoding::new(endpoint_at(provider, wire, "http://127.0.0.1:9"), "p".into(), None);
    let mut events = Vec::new();
    let mut result = Ok(());
    for piece in pieces {
        result = decoding.push(piece, &mut events);
        if result.is_err() {
            break;
        }
    }
    let result = result.and_then(|()| decoding.end(&mut events));
    let mut text: String = joined(events).iter().map(|event| show(event) + "\n").collect();
    if let Err(error) = result {
        let class = format!("{:?}", error.class);
        let class = class.split([' ', '{']).next().unwrap_or_default();
        writeln!(text, "error {class} {}", error.message).expect("a string takes all");
    }
    text
}

/// Joins adjacent chunks of each part, so that only the meaning is compared.
fn joined(events: Vec<ProviderEvent>) -> Vec<ProviderEvent> {
    use ProviderEvent::{CallArguments, Text, Thinking};
    let mut all: Vec<ProviderEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Text(before)), Text(text)) | (Some(Thinking(before)), Thinking(text)) => {
                before.push_str(&text)
            }
            (Some(CallArguments { index: open, json: before }), CallArguments { index, json })
                if *open == index =>
            {
                before.push_str(&json);
            }
            (_, event) => all.push(event),
        }
    }
    all
}

fn show(event: &ProviderEvent) -> String {
    match event {
        ProviderEvent::Text(text) => format!("text {text:?}"),
        ProviderEvent::TextEnded => "text ended".to_owned(),
        ProviderEvent::Thinking(text) => format!("thinking {text:?}"),
        ProviderEvent::ThinkingSealed { data } => format!("sealed {}", sorted(data)),
        ProviderEvent::Searched { search, blocks } => {
            let HostedSearch { call, query, pages, failure, is_open, .. } = search;
            let pages: Vec<&str> = pages.iter().map(|page| page.url.as_str()).collect();
            let blocks: Vec<String> = blocks.iter().map(sorted).collect();
            format!("searched {call:?} {query:?} {pages:?} {failure:?} open {is_open} [{}]", blocks.join(","))
        }
        ProviderEvent::CallStarted { index, id, name } => format!("call {index} {id:?} {name}"),
        ProviderEvent::CallArguments { index, json } => format!("arguments {index} {json}"),
        ProviderEvent::Usage(usage) => {
            format!(
                "usage input {} output {} cache_read {} cache_write {} thinking {}",
                usage.input, usage.output, usage.cache_read, usage.cache_write, usage.thinking
            ) + &if usage.searches > 0 { format!(" searches {}", usage.searches) } else { String::new() }
        }
        ProviderEvent::Stopped(stop) => format!("stopped {stop:?}"),
    }
}

/// JSON with sorted keys, independent of the JSON library's key order.
fn sorted(value: &Value) -> String {
    let Value::Object(fields) = value else { return value.to_string() };
    let sorted: BTreeMap<&String, String> = fields.iter().map(|(key, value)| (key, sorted(value))).collect();
    let fields: Vec<String> = sorted.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

// ---- over HTTP

const HELLO: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\n";
const DONE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn endpoint_at(provider: &str, wire: WireFormat, base_url: &str) -> Endpoint {
    let configured = ProviderSettings {
        wire,
        base_url: base_url.into(),
        key_variable: Some("KEY".into()),
        headers: BTreeMap::new(),
    };
    let settings = Settings {
        providers: BTreeMap::from([(provider.to_owned(), configured)]),
        web_search: SearchChoice::Provider,
        ..Settings::default()
    };
    let env: [(OsString, OsString); 1] = [("KEY".into(), "sk-very-secret".into())];
    endpoint::resolve(&ModelName(format!("{provider}/some-model")), &settings, &env).expect("the key is set")
}

/// A server that answers one request with these pieces, waiting for a permit before each but the first.
async fn serve(
    pieces: Vec<Vec<u8>>,
    mut permits: tokio::sync::mpsc::Receiver<()>,
) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("the client comes");
        let request = read_request(&mut socket).await;
        for (at, piece) in pieces.into_iter().enumerate() {
            if at > 0 && permits.recv().await.is_none() {
                break;
            }
            if socket.write_all(&piece).await.is_err() {
                return "closed by the client".into();
            }
        }
        request
    });
    (url, server)
}

async fn read_request(socket: &mut tokio::net::TcpStream) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.to_lowercase().split("content-length: ").nth(1).and_then(|rest| {
                    rest.split("\r\n").next().and_then(|length| length.parse::<usize>().ok())
                });
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return text,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Serves the entire response at once.
async fn serve_at_once(response: String) -> (String, JoinHandle<String>) {
    let (_, permits) = tokio::sync::mpsc::channel(1);
    serve(vec![response.into_bytes()], permits).await
}

async fn call(url: &str) -> Result<Vec<ProviderEvent>, (Vec<ProviderEvent>, ProviderError)> {
    let message =
        Message { id: MessageId(0), content: vec![Content::Text { text: "hi".into() }], author: None };
    let endpoint = endpoint_at("box", WireFormat::OpenAiChat, url);
    let mut seen = Vec::new();
    let starting =
        Http::new().start(&endpoint, &encode(&endpoint, &message)).map_err(|error| (Vec::new(), error))?;
    let mut stream = starting.await.map_err(|error| (Vec::new(), error))?;
    loop {
        match stream.next().await {
            Ok(Some(events)) => seen.extend(events),
            Ok(None) => return Ok(seen),
            Err(error) => return Err((seen, error)),
        }
    }
}

fn request(message: &Message) -> ModelRequest<'_> {
    ModelRequest {
        system: "Be brief.",
        tools: &[],
        items: vec![ViewItem::User(message)],
        thought: ThoughtLevel::Off,
        max_output: 100,
        cache_key: "s",
        basis: None,
    }
}

fn encode(endpoint: &Endpoint, message: &Message) -> Encoded {
    Encoding::default().encode(endpoint, &request(message), Purpose::Reply)
}

fn whole_reply() -> Vec<ProviderEvent> {
    vec![ProviderEvent::Text("Hello".into()), ProviderEvent::Stopped(ReplyStop::Finished)]
}

#[tokio::test]
async fn a_reply_is_complete_and_the_key_is_sent_in_its_header() {
    let (url, server) = serve_at_once(format!("{STREAM}{HELLO}{DONE}")).await;
    // In a separate task, as in sessions: a call's state must be `Send`.
    let reply = tokio::spawn(async move { call(&url).await }).await.expect("the task ends");
    assert_eq!(reply.expect("the reply is whole"), whole_reply());
    let request = server.await.expect("the server ends");
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1"), "{request}");
    assert!(request.to_lowercase().contains("authorization: bearer sk-very-secret"), "{request}");
}

#[tokio::test]
async fn deltas_are_delivered_as_they_arrive() {
    let (permit, permits) = tokio::sync::mpsc::channel(1);
    let pieces = vec![format!("{STREAM}{HELLO}").into_bytes(), DONE.into()];
    let (url, _server) = serve(pieces, permits).await;
    let message =
        Message { id: MessageId(0), content: vec![Content::Text { text: "hi".into() }], author: None };
    let endpoint = endpoint_at("box", WireFormat::OpenAiChat, &url);
    let starting = Http::new().start(&endpoint, &encode(&endpoint, &message)).expect("it can be sent");
    let mut stream = starting.await.expect("it is answered");
    let first = stream.next().await.expect("nothing broke");
    assert_eq!(first, Some(vec![ProviderEvent::Text("Hello".into())]));
    // Polling and giving up, as when a session handles a command, loses nothing.
    let early = tokio::time::timeout(Duration::from_millis(1), stream.next()).await;
    assert!(early.is_err(), "nothing more was sent: {early:?}");
    permit.send(()).await.expect("the server waits");
    let last = stream.next().await.expect("nothing broke");
    assert_eq!(last, Some(vec![ProviderEvent::Stopped(ReplyStop::Finished)]));
    assert_eq!(stream.next().await, Ok(None));
    assert_eq!(stream.next().await, Ok(None));
}

#[tokio::test]
async fn a_truncated_stream_yields_its_text_and_then_an_error() {
    for cut in [
        format!("{STREAM}{HELLO}"),
        // Shorter than its content-length.
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5000\r\n\r\n{HELLO}"),
    ] {
        let (url, _server) = serve_at_once(cut).await;
        let (seen, error) = call(&url).await.expect_err("it was cut");
        assert_eq!(seen, [ProviderEvent::Text("Hello".into())]);
        assert_eq!(error.class, ErrorClass::Retry { after: None }, "{error}");
    }
}

/// Regression: a gateway reset the connection after the finish reason, in place of `[DONE]`. The answer was said to have
/// broken off, and one with tool calls was paid for twice.
#[tokio::test]
async fn a_connection_lost_after_the_finish_reason_leaves_a_complete_reply() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5000\r\n\r\n";
    let stream = format!("{HELLO}{DONE}").replace("data: [DONE]\n\n", "");
    let (url, _server) = serve_at_once(format!("{head}{stream}")).await;
    assert_eq!(call(&url).await, Ok(whole_reply()));
}

#[tokio::test]
async fn a_stream_truncated_before_its_first_event_may_be_retried() {
    let cut =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5000\r\n\r\n: hold on\n\n";
    let (url, _server) = serve_at_once(cut.into()).await;
    let (seen, error) = call(&url).await.expect_err("it was cut");
    assert_eq!((seen, error.class), (Vec::new(), ErrorClass::Retry { after: None }));
}

#[tokio::test]
async fn a_rate_limit_error_has_the_requested_retry_delay() {
    let body = r#"{"error":{"message":"slower, sk-very-secret","code":"rate_limit_exceeded"}}"#;
    let (url, _server) = serve_at_once(format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nx-request-id: r1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    let (_, error) = call(&url).await.expect_err("it was refused");
    assert_eq!(error.class, ErrorClass::Retry { after: Some(Duration::from_secs(7)) });
    assert_eq!(
        error.message,
        "box limits the rate of requests: slower, [secret] (HTTP 429, model box/some-model, request r1)"
    );
}

#[tokio::test]
async fn the_body_of_an_error_is_read_up_to_a_limit() {
    let body = "x".repeat(ERROR_BODY_BYTES_MAX * 3);
    let (url, _server) =
        serve_at_once(format!("HTTP/1.1 500 Oh\r\ncontent-length: 999999999\r\n\r\n{body}")).await;
    let (_, error) = call(&url).await.expect_err("it was refused");
    assert_eq!(error.class, ErrorClass::Retry { after: None });
    assert!(error.message.len() < 2_000);
}

#[tokio::test]
async fn an_unexpected_content_type_causes_a_hint_about_the_url() {
    for (kind, body) in [("text/html", "<html>hello</html>"), ("application/json", r#"{"status":"ok"}"#)] {
        let (url, _server) = serve_at_once(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        let (_, error) = call(&url).await.expect_err("it is no stream");
        assert_eq!(error.class, ErrorClass::Broken);
        assert!(error.hint.is_some_and(|hint| hint.contains(&url)));
    }
}

#[tokio::test]
async fn an_error_with_status_200_is_an_error() {
    let body = r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#;
    let (url, _server) = serve_at_once(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    let (_, error) = call(&url).await.expect_err("it is an error");
    assert_eq!(error.class, ErrorClass::TooLong { used: None, limit: None, window: true });
}

#[tokio::test]
async fn an_overlong_event_is_an_error() {
    let endless = format!("{STREAM}{HELLO}data: {}", "x".repeat(EVENT_BYTES_MAX + 1));
    let (url, _server) = serve_at_once(endless).await;
    let (seen, error) = call(&url).await.expect_err("the event is too long");
    assert_eq!(seen, [ProviderEvent::Text("Hello".into())]);
    assert_eq!(error.class, ErrorClass::Broken);
    assert!(error.message.contains("8 MB"), "{error}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n";
    let (url, _server) = serve_at_once(redirect.into()).await;
    let (_, error) = call(&url).await.expect_err("it goes elsewhere");
    assert_eq!(error.class, ErrorClass::Refused);
}

#[tokio::test]
async fn a_refused_connection_may_be_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    drop(listener);
    let (_, error) = call(&url).await.expect_err("nobody listens");
    assert_eq!(error.class, ErrorClass::Retry { after: None });
    assert_eq!(error.hint.as_deref(), Some("Check that the server is running."));
}

#[tokio::test]
async fn dropping_a_reply_closes_its_connection() {
    let (permit, permits) = tokio::sync::mpsc::channel(1);
    let mut pieces = vec![format!("{STREAM}{HELLO}").into_bytes()];
    pieces.extend((0..200).map(|_| vec![b':'; 64 * 1024]));
    let (url, server) = serve(pieces, permits).await;
    let message =
        Message { id: MessageId(0), content: vec![Content::Text { text: "hi".into() }], author: None };
    let endpoint = endpoint_at("box", WireFormat::OpenAiChat, &url);
    let starting = Http::new().start(&endpoint, &encode(&endpoint, &message)).expect("it can be sent");
    let mut stream = starting.await.expect("it is answered");
    stream.next().await.expect("nothing broke");
    drop(stream);
    while permit.send(()).await.is_ok() {}
    assert_eq!(server.await.expect("the server ends"), "closed by the client");
}

#[tokio::test]
async fn a_local_server_is_detected_by_its_list_of_models() {
    let body = r#"{"object":"list","data":[{"id":"qwen3","meta":{"n_ctx":32768}}]}"#;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let base = format!("http://{}", listener.local_addr().expect("it is bound"));
    let server = tokio::spawn(async move {
        // The first connection only checks whether a server is listening.
        let (_probe, _) = listener.accept().await.expect("the probe comes");
        let (mut socket, _) = listener.accept().await.expect("the request comes");
        let request = read_request(&mut socket).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(head.as_bytes()).await.expect("the client reads");
        request
    });
    let urls = ["http://127.0.0.1:9".to_owned(), base.clone()];
    let found = endpoint::find_local(&Http::new(), &urls).await.expect("it is there");
    assert_eq!(found.base_url, format!("{base}/v1"));
    let models: Vec<_> =
        found.models.iter().map(|listed| (listed.local_name(), listed.facts.window)).collect();
    assert_eq!(models, [(ModelName("local/qwen3".into()), Some(32_768))]);
    assert!(server.await.expect("the server ends").starts_with("GET /v1/models HTTP/1.1"));
}

#[test]
fn a_tls_call_is_prepared_without_system_certificates() {
    let message =
        Message { id: MessageId(0), content: vec![Content::Text { text: "hi".into() }], author: None };
    let endpoint = endpoint_at("box", WireFormat::OpenAiChat, "https://api.example.com/v1");
    assert!(
        Http::new().start(&endpoint, &encode(&endpoint, &message)).is_ok(),
        "nothing is sent before it is polled"
    );
}

proptest! {
    /// Any data of a server becomes an event or an error, never a panic.
    #[test]
    fn a_corrupted_stream_never_panics(
        fixture in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let streams = streams();
        let (name, stream) = fixture.get(&streams);
        let mut damaged = stream.clone();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        decode(name, &[&damaged]);
    }
}

/// Clients get a chunk for each read from the network, not for each of the model's deltas.
#[test]
fn adjacent_deltas_are_merged() {
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"twenty characters ok\"}}\n\n";
    let stream = delta.repeat(20_000);
    let endpoint = endpoint_at("anthropic", WireFormat::AnthropicMessages, "http://127.0.0.1:9");
    let mut collector = Collector::new(&endpoint.name);
    let mut decoding = Decoding::new(endpoint, String::new(), None);
    let mut shown = 0;
    for piece in stream.as_bytes().chunks(1_400) {
        let mut events = Vec::new();
        decoding.push(piece, &mut events).expect("the stream is well formed");
        shown += events.into_iter().filter_map(|event| collector.feed(event)).count();
    }
    assert!(shown <= stream.len() / 1_400 + 1, "{shown} chunks are shown");
}

/// Regression: a base URL with `https` for a server that speaks plain HTTP was tried six times, and failed with
/// "received corrupt message of type InvalidContentType". One without a scheme failed with "relative URL without a
/// base", and for one without a host, `http` was looked up as the host.
#[tokio::test]
async fn an_invalid_base_url_fails_immediately_with_a_hint() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    let _server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await?;
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await?;
        // Returns when the client disconnects.
        socket.read_to_end(&mut Vec::new()).await
    });
    let encrypted = url.replacen("http://", "https://", 1);
    let (_, error) = call(&encrypted).await.expect_err("it speaks plain HTTP");
    assert_eq!(error.class, ErrorClass::Refused);
    assert!(error.hint.clone().unwrap_or_default().contains("write http:// in the base URL"), "{error:?}");
    let place = url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    assert!(error.message.contains(place), "the port is named: {error:?}");
    for base in ["127.0.0.1:8000/v1", "localhost", "http://", "ftp://host.example/v1"] {
        let (_, error) = call(base).await.expect_err("no address");
        assert_eq!(error.class, ErrorClass::Refused, "{base}");
        assert!(error.message.contains("must begin with http:// or https://"), "{error:?}");
    }
}
