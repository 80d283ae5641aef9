//! Streams of the four wire formats.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::LazyLock;

use epitome_config::{ProviderSettings, Settings, WireFormat};
use epitome_provider::ProviderEvent;
use epitome_provider::collect::Collector;
use epitome_provider::endpoint::{self, Endpoint};
use epitome_provider::wire::stream::Decoding;
use epitome_thread::ModelName;

const FORMATS: [WireFormat; 4] =
    [WireFormat::AnthropicMessages, WireFormat::OpenAiChat, WireFormat::OpenAiResponses, WireFormat::Gemini];

static ENDPOINTS: LazyLock<[Endpoint; 4]> = LazyLock::new(|| FORMATS.map(endpoint));

/// Decodes any bytes as a stream of each format. The result does not depend on how the bytes are split.
pub fn stream(bytes: &[u8]) {
    for endpoint in ENDPOINTS.iter() {
        let all_at_once = decode(endpoint, [bytes]);
        assert_eq!(all_at_once, decode(endpoint, bytes.chunks(1)), "byte by byte");
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        assert_eq!(all_at_once, decode(endpoint, [head, tail]), "in halves");
    }
}

/// The decoded events and the error of a stream, as text.
fn decode<'a>(endpoint: &Endpoint, pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut decoding = Decoding::new(endpoint.clone(), "p".into(), None);
    let mut events = Vec::new();
    let mut result = Ok(());
    for piece in pieces {
        result = decoding.push(piece, &mut events);
        if result.is_err() {
            break;
        }
    }
    let result = result.and_then(|()| decoding.end(&mut events));
    let mut collector = Collector::new(&endpoint.name);
    let mut text = String::new();
    for event in events {
        text.push_str(&describe(&event));
        collector.feed(event);
    }
    format!("{text} {:?}", result.err().map(|error| error.message))
}

/// Formats an event. Adjacent pieces of a text are formatted like one text.
fn describe(event: &ProviderEvent) -> String {
    match event {
        ProviderEvent::Text(text) | ProviderEvent::Thinking(text) => text.clone(),
        ProviderEvent::CallArguments { json, .. } => json.clone(),
        other => format!("{other:?}"),
    }
}

fn endpoint(wire: WireFormat) -> Endpoint {
    let configured = ProviderSettings {
        wire,
        base_url: "http://127.0.0.1:9".into(),
        key_variable: Some("KEY".into()),
        headers: BTreeMap::new(),
    };
    let settings =
        Settings { providers: BTreeMap::from([("somewhere".to_owned(), configured)]), ..Settings::default() };
    let environment: [(OsString, OsString); 1] = [("KEY".into(), "k".into())];
    let model = ModelName("somewhere/some-model".into());
    endpoint::resolve(&model, &settings, &environment).expect("the key is set")
}
