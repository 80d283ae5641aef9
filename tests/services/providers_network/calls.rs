//! Model calls like those of a session, with an environment that the test defines.

use std::collections::BTreeMap;
use std::ffi::OsString;

use epitome::config::{ModelSettings, ProviderSettings, Settings, WireFormat};
use epitome::provider::endpoint::{self, Endpoint};
use epitome::provider::http::Http;
use epitome::provider::wire::encoding::Encoded;
use epitome::provider::{ProviderError, ProviderEvent, ReplyStop};
use epitome::thread::ModelName;

/// An endpoint of a configured provider that uses Chat Completions.
pub fn endpoint(base_url: &str, env: &[(&str, &str)]) -> Endpoint {
    endpoint_of("box", WireFormat::OpenAiChat, base_url, env)
}

pub fn endpoint_of(provider: &str, wire: WireFormat, base_url: &str, env: &[(&str, &str)]) -> Endpoint {
    endpoint_with(provider, wire, base_url, env, ModelSettings::default())
}

/// An endpoint of a model with native compaction.
pub fn compacting_endpoint(provider: &str, wire: WireFormat, base_url: &str) -> Endpoint {
    let model = ModelSettings { native_compaction: Some(true), ..ModelSettings::default() };
    endpoint_with(provider, wire, base_url, &[], model)
}

fn endpoint_with(
    provider: &str,
    wire: WireFormat,
    base_url: &str,
    env: &[(&str, &str)],
    model: ModelSettings,
) -> Endpoint {
    let name = format!("{provider}/some-model");
    let configured = ProviderSettings {
        wire,
        base_url: base_url.into(),
        key_variable: Some("KEY".into()),
        headers: BTreeMap::new(),
    };
    let settings = Settings {
        providers: BTreeMap::from([(provider.to_owned(), configured)]),
        models: BTreeMap::from([(name.clone(), model)]),
        ..Settings::default()
    };
    let mut env: Vec<(OsString, OsString)> =
        env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    env.push(("KEY".into(), "sk-very-secret".into()));
    endpoint::resolve(&ModelName(name), &settings, &env).expect("the key is set")
}

/// A request in pieces, like the output of an encoder.
pub fn encoded(pieces: &[&'static str]) -> Encoded {
    let body: Vec<_> = pieces.iter().map(|piece| bytes::Bytes::from_static(piece.as_bytes())).collect();
    let priced = body.iter().map(bytes::Bytes::len).sum();
    Encoded { body, prefix: "p".into(), fresh: 0, priced }
}

/// Collects all events of a reply.
pub async fn call(http: &Http, endpoint: &Endpoint) -> Result<Vec<ProviderEvent>, ProviderError> {
    call_with(http, endpoint, &encoded(&["{\"model\":", "\"m\"}"])).await
}

pub async fn call_with(
    http: &Http,
    endpoint: &Endpoint,
    encoded: &Encoded,
) -> Result<Vec<ProviderEvent>, ProviderError> {
    let mut stream = http.start(endpoint, encoded)?.await?;
    let mut seen = Vec::new();
    while let Some(events) = stream.next().await? {
        seen.extend(events);
    }
    Ok(seen)
}

pub fn whole_reply() -> Vec<ProviderEvent> {
    vec![ProviderEvent::Text("Hello".into()), ProviderEvent::Stopped(ReplyStop::Finished)]
}
