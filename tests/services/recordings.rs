//! Replies of real services, recorded by public test suites: each means the same however it is split, and what the model
//! wrote returns to the service unchanged.

use std::collections::{BTreeMap, BTreeSet};
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
    Content, Message, MessageId, ModelName, OutcomeStatus, ThoughtLevel, ToolOutcome, ToolSpec, ViewItem,
};
use serde_json::Value;

/// Largest piece in which a reply is read, in bytes.
const PIECE_BYTES_MAX: usize = 17;

/// The folder of the recordings: that of the project, or a larger collection of the same form.
fn folder() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("protocol-fixtures/providers/recorded");
    std::env::var_os("EPITOME_RECORDINGS").map_or_else(own, PathBuf::from)
}

struct Recording {
    about: Value,
    stream: Vec<u8>,
    endpoint: Endpoint,
}

fn recordings() -> Vec<Recording> {
    let index = std::fs::read(folder().join("index.json")).expect("the index is there");
    let index: Vec<Value> = serde_json::from_slice(&index).expect("the index is JSON");
    let replies = index.into_iter().filter(|about| about["status"] == 200);
    replies
        .map(|about| {
            let stream = std::fs::read(folder().join(text(&about["file"]))).expect("it is listed");
            Recording { stream, endpoint: endpoint_of(&about), about }
        })
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The endpoint with which the program calls the service, or one that is configured for the format of the recording.
fn endpoint_of(about: &Value) -> Endpoint {
    let (service, wire) = (text(&about["service"]), wire_of(text(&about["wire"])));
    let keys = [
        (format!("{}_API_KEY", service.to_uppercase()), "sk-key"),
        ("AZURE_OPENAI_API_KEY".to_owned(), "sk-key"),
        ("AZURE_OPENAI_RESOURCE_NAME".to_owned(), "resource"),
        ("AWS_BEARER_TOKEN_BEDROCK".to_owned(), "sk-key"),
        ("AWS_REGION".to_owned(), "us-east-1"),
    ];
    let environment = keys.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let mut settings = Settings::default();
    let built_in = endpoint::resolve(
        &ModelName(format!("{service}/{}", text(&about["model"]))),
        &settings,
        &environment,
    );
    if let Ok(built_in) = &built_in
        && built_in.wire == wire
    {
        return built_in.clone();
    }
    let configured = ProviderSettings {
        wire,
        base_url: built_in.map_or("https://service.example/v1".to_owned(), |built_in| built_in.base_url),
        key_variable: Some("AZURE_OPENAI_API_KEY".to_owned()),
        headers: Default::default(),
    };
    settings.providers.insert("configured".to_owned(), configured);
    let name = ModelName(format!("configured/{}", text(&about["model"])));
    endpoint::resolve(&name, &settings, &environment).expect("the service is configured")
}

fn wire_of(name: &str) -> WireFormat {
    match name {
        "anthropic" => WireFormat::AnthropicMessages,
        "chat" => WireFormat::OpenAiChat,
        "responses" => WireFormat::OpenAiResponses,
        "gemini" => WireFormat::Gemini,
        _ => panic!("{name} is no format"),
    }
}

fn said(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

/// The next request of a conversation that began with a word, and the digest for its reply.
fn request(endpoint: &Endpoint, more: &[ViewItem<'_>]) -> (String, String) {
    request_with(endpoint, &[], more)
}

fn request_with(endpoint: &Endpoint, tools: &[ToolSpec], more: &[ViewItem<'_>]) -> (String, String) {
    let first = said("go");
    let mut items = vec![ViewItem::User(&first)];
    items.extend_from_slice(more);
    let request = ModelRequest {
        system: "Be brief.",
        tools,
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

/// How a reading differs from what the recording means, in a word for each part.
fn differences(recording: &Recording, found: (Collector, Result<(), ProviderError>)) -> Vec<String> {
    let expected = &recording.about["expected"];
    let (collector, result) = found;
    if let Some(message) = expected["error"].as_str() {
        let words = message.split_once(": ").map_or(message, |(_, words)| words);
        return match result {
            Err(ProviderError { class: ErrorClass::Retry { .. }, message, .. })
                if message.contains(words) =>
            {
                Vec::new()
            }
            other => vec![format!("error {words:?}: {other:?}")],
        };
    }
    let reply = collector.finish();
    let (found_text, thinking) = texts(&reply);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let calls: Vec<Value> = reply
        .content
        .iter()
        .filter_map(Content::as_call)
        .map(|call| serde_json::json!({ "id": call.id.0, "name": call.name, "args": call.input }))
        .collect();
    let stop = match text(&expected["stop"]) {
        "" => None,
        "length" | "max_tokens" | "MAX_TOKENS" | "incomplete:max_output_tokens" => Some(ReplyStop::MaxTokens),
        "pause_turn" => Some(ReplyStop::Paused),
        _ => Some(ReplyStop::Finished),
    };
    let mut differences = Vec::new();
    let mut compare = |part: &str, found: Value, expected: Value| {
        if found != expected {
            differences.push(format!("{part} {found} instead of {expected}"));
        }
    };
    compare("failure", result.is_err().into(), expected["stop"].is_null().into());
    compare("text", found_text.trim().into(), text(&expected["text"]).trim().into());
    compare("thinking", words(&thinking).into(), words(text(&expected["thinking"])).into());
    compare("calls", calls.into(), expected["calls"].clone());
    compare("stop", format!("{:?}", reply.stop).into(), format!("{stop:?}").into());
    let usage = reply.usage.unwrap_or_default();
    for (field, found) in [
        ("input", usage.input),
        ("output", usage.output),
        ("cache_read", usage.cache_read),
        ("cache_write", usage.cache_write),
        ("thinking", usage.thinking),
    ] {
        if let Some(expected) = expected["usage"][field].as_u64() {
            compare(field, found.into(), expected.into());
        }
    }
    differences
}

#[test]
fn recorded_replies_mean_the_same_however_they_are_split() {
    let recordings = recordings();
    assert!(recordings.len() >= 20, "recordings were lost: {}", recordings.len());
    let mut all = Vec::new();
    for recording in &recordings {
        let Recording { stream, endpoint, .. } = recording;
        let mut check = |how: &str, found: (Collector, Result<(), ProviderError>)| {
            let differences = differences(recording, found);
            if !differences.is_empty() {
                all.push(format!("{}, {how}: {}", recording.about["file"], differences.join("; ")));
            }
        };
        check("whole", read(endpoint, [stream.as_slice()].into_iter()));
        for size in 1..=PIECE_BYTES_MAX {
            check(&format!("in pieces of {size}"), read(endpoint, stream.chunks(size)));
        }
        let crlf = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\n', "\r\n");
        check("with CR LF", read(endpoint, [crlf.as_bytes()].into_iter()));
    }
    assert!(all.is_empty(), "{} differ:\n{}", all.len(), all.join("\n"));
}

#[test]
fn recorded_replies_that_are_cut_invent_nothing() {
    for Recording { stream, endpoint, about } in &recordings() {
        let (whole_text, whole_thinking) = texts(&read(endpoint, [stream.as_slice()].into_iter()).0.finish());
        let is_end = |at: &usize| stream[..*at].ends_with(b"\n\n");
        for cut in (0..stream.len()).filter(is_end) {
            let (collector, _) = read(endpoint, [&stream[..cut]].into_iter());
            let (text, thinking) = texts(&collector.finish());
            // White space before the end of thinking is no part of it.
            let is_part = whole_text.starts_with(&text) && whole_thinking.starts_with(thinking.trim_end());
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
        // Mistral accepts only ids of nine characters, which redacted ones don't have.
        let is_accepted = |id: &str| about["service"] != "mistral" || id.len() == 9;
        for call in message.calls().filter(|call| is_accepted(&call.id.0)) {
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
        let has_thinking = !text(&about["expected"]["thinking"]).is_empty();
        let wants_it = matches!(text(&about["service"]), "zai" | "deepseek") && about["wire"] == "chat";
        if has_thinking && wants_it {
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

/// The names of the fields of a request, without what is below the data of tools.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    const DATA: [&str; 6] =
        ["arguments", "args", "input_schema", "parameters", "parametersJsonSchema", "item"];
    match value {
        Value::Object(fields_of) => {
            for (name, value) in fields_of {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let is_data = DATA.contains(&name.as_str()) || name == "input" && value.is_object();
                if !is_data {
                    fields(value, &path, found);
                }
                found.insert(path);
            }
        }
        Value::Array(members) => members.iter().for_each(|member| fields(member, path, found)),
        _ => {}
    }
}

/// What services have accepted of others is compared with what they are sent: a field that no recorded request has may be
/// refused.
#[test]
fn fields_that_no_recorded_request_has_are_few() {
    let tools = ["one", "two"].map(|name| ToolSpec {
        name: name.to_owned(),
        description: "A tool.".to_owned(),
        schema: serde_json::json!({ "type": "object", "properties": {} }),
    });
    let accepted = std::fs::read(folder().join("accepted.json")).expect("the fields are there");
    let accepted: Value = serde_json::from_slice(&accepted).expect("the fields are JSON");
    let mut unseen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Recording { stream, endpoint, about } in &recordings() {
        let of = format!("{} {}", text(&about["service"]), text(&about["wire"]));
        let accepted = &accepted[&of]["fields"];
        if accepted.is_null() {
            continue;
        }
        let (collector, _) = read(endpoint, [stream.as_slice()].into_iter());
        let message = Message { id: MessageId(1), content: collector.finish().content, author: None };
        let outcomes: Vec<ToolOutcome> = message
            .calls()
            .map(|call| ToolOutcome::text(call.id.clone(), OutcomeStatus::Completed, "done"))
            .collect();
        let view = [ViewItem::Agent(&message, &endpoint.name), ViewItem::Outcomes(outcomes.iter().collect())];
        let body = request_with(endpoint, &tools, &view).0;
        let body: Value = serde_json::from_str(&body).expect("a request is JSON");
        let mut sent = BTreeSet::new();
        fields(&body, "", &mut sent);
        sent.retain(|field| accepted.get(field).is_none());
        unseen.entry(of).or_default().extend(sent);
    }
    unseen.retain(|_, fields| !fields.is_empty());
    let found: Vec<(&str, String)> = unseen
        .iter()
        .map(|(of, fields)| (of.as_str(), fields.iter().cloned().collect::<Vec<String>>().join(" ")))
        .collect();
    let expected: Vec<(&str, String)> =
        UNSEEN.map(|(of, fields)| (of, fields.replace(TOOLS, TOOL_FIELDS))).into();
    assert_eq!(found, expected);
}

const TOOLS: &str = "TOOLS";
const TOOL_FIELDS: &str = "tools tools.function tools.function.description tools.function.name tools.function.parameters tools.type";

/// The fields that are sent although no recorded request has them. A service that refuses one of those that a request can do
/// without gets none the second time.
const UNSEEN: [(&str, &str); 12] = [
    // Texts are written as lists of blocks, which this format has everywhere.
    (
        "azure anthropic",
        "messages.content.content.text messages.content.content.type messages.content.text system.text system.type",
    ),
    // Recorded requests have neither; the first is required to limit a reply, and both may be left out.
    ("bedrock responses", "max_output_tokens parallel_tool_calls"),
    // Documented instead of `max_tokens`, which is deprecated.
    ("cerebras chat", "max_completion_tokens"),
    // Only texts were recorded.
    ("cloudflare chat", "max_tokens TOOLS"),
    // May refuse to know it.
    ("databricks chat", "max_tokens stream_options stream_options.include_usage"),
    // Parts that this service has sent return to it, as OpenRouter documents them.
    (
        "doubleword chat",
        "messages.reasoning_details messages.reasoning_details.format messages.reasoning_details.index \
         messages.reasoning_details.text messages.reasoning_details.type",
    ),
    // Documented; others send `parameters` or the same field in another spelling.
    (
        "gemini gemini",
        "contents.parts.functionResponse.response.output tools.functionDeclarations.parametersJsonSchema",
    ),
    // Documented instead of `max_tokens`, which is deprecated.
    ("groq chat", "max_completion_tokens"),
    ("ollama chat", "max_tokens"),
    // Only texts were recorded.
    ("perplexity chat", "stream_options stream_options.include_usage TOOLS"),
    ("together chat", "stream_options stream_options.include_usage"),
    ("vllm chat", "stream_options stream_options.include_usage TOOLS"),
];
