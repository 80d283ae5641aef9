//! A place where a model can be called: address, headers, limits, and what the model can do. `resolve` makes
//! one out of settings and an environment, `offered` names those that a picker shows. Nothing is sent from
//! here.

mod errors;
mod offered;
mod resolve;

use std::fmt;

use super::abilities::Abilities;
use super::address::{beneath, has_version, path_of, shown, with_query};
use super::network::Network;
use epitome_config::WireFormat;
use epitome_thread::ModelName;

pub use super::local::{LocalServer, find_local};
pub use errors::{no_local_server, nothing_configured};
pub use offered::offered;
pub use resolve::{
    Choice, Environment, built_in_providers, choose, configured, is_searched, local_urls, provider_title,
    resolve, resolve_local,
};

/// A place where a model can be called.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub name: ModelName,
    /// The model's name as it is sent.
    pub model: String,
    pub wire: WireFormat,
    /// Without a slash at its end.
    pub base_url: String,
    /// Names in lower case, each once.
    pub headers: Vec<(String, Secret)>,
    /// The environment variable that the key is of, for messages; `None` where no key is sent.
    pub key_variable: Option<String>,
    /// Tokens that a request may hold.
    pub window: u64,
    /// Tokens that a reply may hold.
    pub max_output: u32,
    /// Whether this is the service of the company whose format it speaks, and not one that is
    /// compatible with it.
    pub own_api: bool,
    pub abilities: Abilities,
    /// Whether the person wants its conversations made short by the service itself. What that has made is
    /// sent only as long as they do.
    pub native_compaction: bool,
    /// The way there, out of the same environment.
    pub network: Network,
}

impl Endpoint {
    /// The part of the model's name before the slash.
    pub fn provider(&self) -> &str {
        self.name.split().map_or(self.name.0.as_str(), |(provider, _)| provider)
    }

    /// Where requests go. The vendors' conventions differ: `OPENAI_BASE_URL` is with the API's version,
    /// the others are without it. Either is taken for all.
    pub fn url(&self) -> String {
        match self.wire {
            WireFormat::AnthropicMessages => self.at("/messages"),
            WireFormat::OpenAiResponses => self.at("/responses"),
            WireFormat::OpenAiChat => self.at("/chat/completions"),
            WireFormat::Gemini => {
                with_query(&self.at(&format!("/models/{}:streamGenerateContent", self.model)), "alt=sse")
            }
        }
    }

    /// Where the tokens of a request are counted; `None` where the format has nothing for it. A compatible
    /// service may not have it all the same.
    pub fn count_url(&self) -> Option<String> {
        match self.wire {
            WireFormat::AnthropicMessages => Some(self.at("/messages/count_tokens")),
            WireFormat::OpenAiResponses => Some(self.at("/responses/input_tokens")),
            WireFormat::OpenAiChat => None,
            WireFormat::Gemini => Some(self.at(&format!("/models/{}:countTokens", self.model))),
        }
    }

    /// Where a conversation is made short in the service's own form; `None` where the format has nothing for
    /// it. A compatible service may not have it all the same.
    pub fn compact_url(&self) -> Option<String> {
        match self.wire {
            // There it is a field of an ordinary request.
            WireFormat::AnthropicMessages => Some(self.url()),
            WireFormat::OpenAiResponses => Some(self.at("/responses/compact")),
            WireFormat::OpenAiChat | WireFormat::Gemini => None,
        }
    }

    /// Where the models of the service are listed.
    pub fn models_url(&self) -> String {
        self.at("/models")
    }

    /// A path of the API, behind the base URL and the API's version where that is not in the base.
    fn at(&self, path: &str) -> String {
        let base = &self.base_url;
        let version = match self.wire {
            WireFormat::AnthropicMessages if !path_of(base).trim_end_matches('/').ends_with("/v1") => "/v1",
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat
                if path_of(base).trim_end_matches('/').is_empty() =>
            {
                "/v1"
            }
            WireFormat::Gemini if !has_version(base) => "/v1beta",
            WireFormat::AnthropicMessages
            | WireFormat::OpenAiResponses
            | WireFormat::OpenAiChat
            | WireFormat::Gemini => "",
        };
        beneath(base, &format!("{version}{path}"))
    }

    /// The base URL as it may be shown: without a user, a password or a query.
    pub fn place(&self) -> String {
        shown(&self.base_url)
    }

    /// Takes over what the provider says of the model's window.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
        self.max_output = self.max_output.min(resolve::quarter_of(window));
    }

    fn set_header(&mut self, name: &str, value: impl Into<String>) {
        let name = name.to_ascii_lowercase();
        self.headers.retain(|(existing, _)| *existing != name);
        self.headers.push((name, Secret::new(value)));
    }
}

/// Without what a base URL may hold of a user and a password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint {
            name,
            model,
            wire,
            base_url: _,
            headers,
            key_variable,
            window,
            max_output,
            own_api,
            abilities,
            native_compaction,
            network,
        } = self;
        f.debug_struct("Endpoint")
            .field("name", name)
            .field("model", model)
            .field("wire", wire)
            .field("place", &self.place())
            .field("headers", headers)
            .field("key_variable", key_variable)
            .field("window", window)
            .field("max_output", max_output)
            .field("own_api", own_api)
            .field("abilities", abilities)
            .field("native_compaction", native_compaction)
            .field("network", network)
            .finish()
    }
}

/// Text that is never shown or logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the wire alone.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// An endpoint for tests, as the vendors' own services are.
#[cfg(test)]
pub(crate) fn test_endpoint(name: &str) -> Endpoint {
    let keys = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"];
    let env = keys.map(|name| (name.into(), "sk-test-key".into()));
    resolve(&ModelName(name.into()), &Default::default(), &env).expect("all keys are there")
}

/// The same where OpenAI's own service is spoken to with Chat Completions.
#[cfg(test)]
pub(crate) fn test_chat_endpoint(name: &str) -> Endpoint {
    let mut settings = epitome_config::Settings::default();
    let chat = epitome_config::BuiltInSettings { wire: Some(WireFormat::OpenAiChat), ..Default::default() };
    settings.built_in.insert("openai".into(), chat);
    let env = [("OPENAI_API_KEY".into(), "sk-test-key".into())];
    resolve(&ModelName(name.into()), &settings, &env).expect("the key is there")
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
