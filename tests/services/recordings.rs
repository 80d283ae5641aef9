//! Replies of real services, recorded by public test suites: each means the same however it is split, and what the model
//! wrote returns to the service unchanged.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use epitome::config::{ProviderSettings, Settings, WireFormat};
use epitome::provider::collect::{Collector, ModelReply};
use epitome::provider::endpoint::{self, Endpoint};
use epitome::provider::wire::Purpose;
use epitome::provider::wire::encoding::Encoding;
use epitome::provider::wire::stream::Decoding;
use epitome::provider::{ErrorClass, ModelRequest, ProviderError, ProviderEvent, ReplyStop};
use epitome::thread::{
    Content, Message, MessageId, ModelName, OutcomeStatus, ThoughtLevel, ToolOutcome, ViewItem,
};
use serde_json::Value;

/// Largest piece in which a reply is read, in bytes.
const PIECE_BYTES_MAX: usize = 17;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol-fixtures/providers/recorded")
}

struct Recording {
    about: Value,
    stream: Vec<u8>,
    endpoint: Endpoint,
}

fn recordings() -> Vec<Recording> {
    let index = std::fs::read(folder().join("index.json")).expect("the index is there");
    let index: Vec<Value> = serde_json::from_slice(&index).expect("the index is JSON");
    let streams = index.into_iter().filter(|about| text(&about["file"]).ends_with(".sse"));
    streams
        .map(|about| {
            let stream = std::fs::read(folder().join(text(&about["file"]))).expect("it is listed");
            Recording { stream, endpoint: endpoint_of(&about), about }
        })
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The endpoint with which the program calls the service.
fn endpoint_of(about: &Value) -> Endpoint {
    let (service, wire) = (text(&about["service"]), text(&about["wire"]));
    let mut settings = Settings::default();
    if (service, wire) == ("xai", "chat") {
        let configured = ProviderSettings {
            wire: WireFormat::OpenAiChat,
            base_url: "https://api.x.ai/v1".to_owned(),
            key_variable: Some("XAI_API_KEY".to_owned()),
            headers: Default::default(),
        };
        settings.providers.insert("xai-chat".to_owned(), configured);
    }
    let provider = if settings.providers.is_empty() { service } else { "xai-chat" };
    let key = format!("{}_API_KEY", service.to_uppercase());
    let environment: [(OsString, OsString); 1] = [(key.into(), "sk-key".into())];
    let name = ModelName(format!("{provider}/{}", text(&about["model"])));
    endpoint::resolve(&name, &settings, &environment).expect("the service is known")
}

fn said(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

/// The next request of a conversation that began with a word, and the digest for its reply.
fn request(endpoint: &Endpoint, more: &[ViewItem<'_>]) -> (String, String) {
    let first = said("go");
    let mut items = vec![ViewItem::User(&first)];
    items.extend_from_slice(more);
    let request = ModelRequest {
        system: "Be brief.",
        tools: &[],
        items,
        thought: ThoughtLevel::Medium,
        max_output: 1_000,
        cache_key: "s",
        basis: None,
    };
    let encoded = Encoding::default().encode(endpoint, &request, Purpose::Reply);
    (String::from_utf8(encoded.bytes()).expect("a request is text"), encoded.prefix)
}

fn read<'a>(
    endpoint: &Endpoint,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Collector, Result<(), ProviderError>) {
    let mut decoding = Decoding::new(endpoint.clone(), request(endpoint, &[]).1, None);
    let mut events: Vec<ProviderEvent> = Vec::new();
    let mut result = Ok(());
    for piece in pieces {
        result = decoding.push(piece, &mut events);
        if result.is_err() {
            break;
        }
    }
    let result = result.and_then(|()| decoding.end(&mut events));
    let mut collector = Collector::new(&endpoint.name);
    events.into_iter().for_each(|event| drop(collector.feed(event)));
    (collector, result)
}

fn texts(reply: &ModelReply) -> (String, String) {
    let (mut text, mut thinking) = (String::new(), String::new());
    for content in &reply.content {
        match content {
            Content::Text { text: more } => text.push_str(more),
            Content::Thinking { text: more, .. } => thinking.push_str(more),
            _ => {}
        }
    }
    (text, thinking)
}

fn check(recording: &Recording, how: &str, found: (Collector, Result<(), ProviderError>)) {
    let (expected, name) = (&recording.about["expected"], text(&recording.about["file"]));
    let (collector, result) = found;
    if let Some(message) = expected["error"].as_str() {
        let error = result.expect_err("the service reports an error");
        let words = message.split_once(": ").map_or(message, |(_, words)| words);
        assert!(error.message.contains(words), "{name}, {how}: {error}");
        assert!(matches!(error.class, ErrorClass::Retry { .. }), "{name}, {how}: {error:?}");
        return;
    }
    let is_empty = expected["stop"].is_null();
    assert_eq!(result.is_err(), is_empty, "{name}, {how}: {result:?}");
    let reply = collector.finish();
    let (found_text, thinking) = texts(&reply);
    assert_eq!(found_text.trim(), text(&expected["text"]).trim(), "{name}, {how}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    assert_eq!(words(&thinking), words(text(&expected["thinking"])), "{name}, {how}");
    let calls: Vec<Value> = reply
        .content
        .iter()
        .filter_map(Content::as_call)
        .map(|call| serde_json::json!({ "id": call.id.0, "name": call.name, "args": call.input }))
        .collect();
    assert_eq!(Value::from(calls), expected["calls"], "{name}, {how}");
    let usage = reply.usage.unwrap_or_default();
    let fields = [
        ("input", usage.input),
        ("output", usage.output),
        ("cache_read", usage.cache_read),
        ("cache_write", usage.cache_write),
        ("thinking", usage.thinking),
    ];
    for (field, found) in fields {
        let expected = expected["usage"][field].as_u64();
        assert!(expected.is_none_or(|expected| expected == found), "{name}, {how}: {field} {usage:?}");
    }
    let stop = match text(&expected["stop"]) {
        "" => None,
        "length" | "max_tokens" | "MAX_TOKENS" | "incomplete:max_output_tokens" => Some(ReplyStop::MaxTokens),
        "pause_turn" => Some(ReplyStop::Paused),
        _ => Some(ReplyStop::Finished),
    };
    assert_eq!(reply.stop, stop, "{name}, {how}");
}

#[test]
fn recorded_replies_mean_the_same_however_they_are_split() {
    let recordings = recordings();
    assert!(recordings.len() >= 20, "recordings were lost: {}", recordings.len());
    for recording in &recordings {
        let Recording { stream, endpoint, .. } = recording;
        check(recording, "whole", read(endpoint, [stream.as_slice()].into_iter()));
        for size in 1..=PIECE_BYTES_MAX {
            check(recording, &format!("in pieces of {size}"), read(endpoint, stream.chunks(size)));
        }
        let crlf = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\n', "\r\n");
        check(recording, "with CR LF", read(endpoint, [crlf.as_bytes()].into_iter()));
    }
}

#[test]
fn recorded_replies_that_are_cut_invent_nothing() {
    for Recording { stream, endpoint, about } in &recordings() {
        let (whole_text, whole_thinking) = texts(&read(endpoint, [stream.as_slice()].into_iter()).0.finish());
        let is_end = |at: &usize| stream[..*at].ends_with(b"\n\n");
        for cut in (0..stream.len()).filter(is_end) {
            let (collector, _) = read(endpoint, [&stream[..cut]].into_iter());
            let (text, thinking) = texts(&collector.finish());
            let is_part = whole_text.starts_with(&text) && whole_thinking.starts_with(&thinking);
            assert!(is_part, "{} cut at {cut}: {text:?} {thinking:?}", about["file"]);
        }
    }
}

/// With Z.ai, OpenRouter and Claude Opus 4.6, the reasoning of a reply that began with blank text was not sent back, and the
/// ids that Kimi K2 gives to its calls were replaced.
#[test]
fn calls_return_with_their_ids_and_their_reasoning() {
    for Recording { stream, endpoint, about } in &recordings() {
        let (collector, result) = read(endpoint, [stream.as_slice()].into_iter());
        let content = collector.finish().content;
        let message = Message { id: MessageId(1), content, author: None };
        if result.is_err() || message.calls().next().is_none() {
            continue;
        }
        let outcomes: Vec<ToolOutcome> = message
            .calls()
            .map(|call| ToolOutcome::text(call.id.clone(), OutcomeStatus::Completed, "done"))
            .collect();
        let view = [ViewItem::Agent(&message, &endpoint.name), ViewItem::Outcomes(outcomes.iter().collect())];
        let sent = request(endpoint, &view).0;
        let name = text(&about["file"]);
        for call in message.calls() {
            assert!(sent.contains(&call.id.0), "{name} has no {}: {sent}", call.id);
        }
        for sealed in about["expected"]["sealed"].as_array().into_iter().flatten() {
            for field in ["signature", "sig"] {
                assert!(sent.contains(text(&sealed[field])), "{name} has no {field}: {sent}");
            }
            // OpenAI's final event encrypts the same item differently.
            let is_encrypted = sealed["encrypted_content"].is_string();
            assert!(!is_encrypted || sent.contains(r#""encrypted_content":""#), "{name}: {sent}");
        }
        if matches!(text(&about["service"]), "zai" | "deepseek") {
            let reasoning = serde_json::to_string(
                &texts(&ModelReply { content: message.content.clone(), usage: None, stop: None }).1,
            )
            .expect("text");
            assert!(reasoning.len() > 2 && sent.contains(&reasoning), "{name}: {sent}");
        }
    }
}

/// A reply with ten searches was taken for a context of 404,500 tokens in a window of 200,000, and the conversation was
/// compacted at once. The cost is that of all tokens.
#[test]
fn tokens_that_are_read_several_times_count_once_as_context() {
    for (name, input, context) in [
        ("anthropic-pause-turn-ten-searches.sse", 404_500, 2_479),
        ("anthropic-web-search-two-searches.sse", 22_397, 2_068),
    ] {
        let all = recordings();
        let recording = all.iter().find(|it| it.about["file"] == name).expect("it is listed");
        let usage = read(&recording.endpoint, [recording.stream.as_slice()].into_iter()).0.usage();
        let usage = usage.expect("it is reported");
        assert_eq!((usage.input, usage.input_context()), (input, context), "{name}");
    }
}
