//! Which model at which place with which key, out of settings and an environment. It sends nothing;
//! at most it tries whether something listens on a loopback port.
//!
//! Environments come in as lists because each attached editor has its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::abilities::Abilities;
use super::address::{authority_of, host_of, is_loopback, path_of, port_of, without_v1};
use super::models::{self, OUTPUT_DEFAULT, WINDOW_DEFAULT};
use super::network::Network;
use super::{ErrorClass, ProviderError};
use crate::config::{ModelSettings, Settings, WireFormat};
use crate::thread::ModelName;

pub use super::local::{LocalServer, find_local};

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
    /// Tokens that a request may hold.
    pub window: u64,
    /// Tokens that a reply may hold.
    pub max_output: u32,
    /// Whether this is the service of the company whose format it speaks, and not one that is
    /// compatible with it.
    pub own_api: bool,
    pub abilities: Abilities,
    /// The way there, out of the same environment.
    pub network: Network,
}

impl Endpoint {
    /// The part of the model's name before the slash.
    pub fn provider(&self) -> &str {
        self.name.split().map_or(self.name.0.as_str(), |(provider, _)| provider)
    }

    /// Where requests go. The two vendors' conventions differ: `ANTHROPIC_BASE_URL` is without `/v1`,
    /// `OPENAI_BASE_URL` with it. Either is taken for both.
    pub fn url(&self) -> String {
        let base = &self.base_url;
        match self.wire {
            WireFormat::AnthropicMessages => format!("{}/v1/messages", without_v1(base)),
            WireFormat::OpenAiChat if path_of(base).is_empty() => format!("{base}/v1/chat/completions"),
            WireFormat::OpenAiChat => format!("{base}/chat/completions"),
            WireFormat::OpenAiResponses if path_of(base).is_empty() => format!("{base}/v1/responses"),
            WireFormat::OpenAiResponses => format!("{base}/responses"),
            WireFormat::Gemini => {
                let base = if path_of(base).is_empty() { format!("{base}/v1beta") } else { base.clone() };
                format!("{base}/models/{}:streamGenerateContent?alt=sse", self.model)
            }
        }
    }

    /// The base URL as it may be shown: without a user, a password or a query.
    pub fn place(&self) -> String {
        let base = self.base_url.split(['?', '#']).next().unwrap_or_default();
        match base.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://{}{}", authority_of(base), path_of(base)),
            None => base.to_owned(),
        }
    }

    /// Takes over what the provider says of the model's window.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
        self.max_output = self.max_output.min(quarter_of(window));
    }

    /// What is known before place, key and limits are: most speak Chat Completions.
    fn without_place(model: &ModelName, name: &str) -> Endpoint {
        Endpoint {
            name: model.clone(),
            model: name.to_owned(),
            wire: WireFormat::OpenAiChat,
            base_url: String::new(),
            headers: Vec::new(),
            window: 0,
            max_output: 0,
            own_api: false,
            abilities: Abilities::likely(WireFormat::OpenAiChat, name),
            network: Network::default(),
        }
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
            window,
            max_output,
            own_api,
            abilities,
            network,
        } = self;
        f.debug_struct("Endpoint")
            .field("name", name)
            .field("model", model)
            .field("wire", wire)
            .field("place", &self.place())
            .field("headers", headers)
            .field("window", window)
            .field("max_output", max_output)
            .field("own_api", own_api)
            .field("abilities", abilities)
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

/// An environment as a list; where a name is given twice, the first counts.
pub type Environment = [(OsString, OsString)];

/// What settings and environment say about the model to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Named(ModelName),
    /// Nothing is configured: a local server at one of these places may have models.
    SearchLocal(Vec<String>),
}

const ANTHROPIC_BASE: &str = "https://api.anthropic.com";
const OPENAI_BASE: &str = "https://api.openai.com/v1";

/// Where Ollama and llama-server listen unless told otherwise, in the order in which they are tried.
const LOCAL_BASES: [&str; 2] = ["http://127.0.0.1:11434/v1", "http://127.0.0.1:8080/v1"];

/// The models of a provider for which only a key was given. OpenAI's newer ones take tools only over
/// its Responses API, which is not spoken here.
const ANTHROPIC_DEFAULT: &str = "anthropic/claude-sonnet-5-5";
const OPENAI_DEFAULT: &str = "openai/gpt-6-sol";

/// The version of Anthropic's API that is current, and the one that everything compatible knows.
const ANTHROPIC_VERSION: &str = "2026-10-21";
const ANTHROPIC_VERSION_COMPATIBLE: &str = "2023-06-01";

/// Loopback answers at once or not at all.
const LOOPBACK_CONNECT_MAX: Duration = Duration::from_millis(50);

/// Chooses a model: the settings' (a flag, else `EPITOME_MODEL`, else a file's), else the variable
/// where settings were made without it, else the default of the first provider
/// whose key is there, else whatever a local server has.
pub fn choose(settings: &Settings, env: &Environment) -> Choice {
    if let Some(name) = settings.model.clone().or_else(|| get(env, "EPITOME_MODEL")) {
        return Choice::Named(full_name(&name));
    }
    if has_anthropic(env) {
        return Choice::Named(ModelName(ANTHROPIC_DEFAULT.into()));
    }
    if has_openai(env) {
        return Choice::Named(ModelName(OPENAI_DEFAULT.into()));
    }
    Choice::SearchLocal(local_urls(env))
}

/// Finds the place and the key of a model. A missing key is an error of class `Auth`, a name that
/// nothing knows one of class `Refused`.
pub fn resolve(model: &ModelName, settings: &Settings, env: &Environment) -> Result<Endpoint, ProviderError> {
    let Some((provider, name)) = model.split() else {
        return Err(unknown_provider(&model.0, settings));
    };
    let mut endpoint = Endpoint::without_place(model, name);
    endpoint.network = Network::read(env);
    set_limits(&mut endpoint, settings.models.get(&model.0));
    if let Some(configured) = settings.providers.get(provider) {
        endpoint.wire = configured.wire;
        set_base(&mut endpoint, &configured.base_url);
        if let Some(variable) = &configured.key_variable {
            let key = get(env, variable).ok_or_else(|| {
                let hint = format!("Set {variable}, which config.toml names as the key of \"{provider}\".");
                missing_key(provider, hint)
            })?;
            match configured.wire {
                WireFormat::AnthropicMessages => endpoint.set_header("x-api-key", key),
                WireFormat::OpenAiChat | WireFormat::OpenAiResponses => {
                    endpoint.set_header("authorization", format!("Bearer {key}"));
                }
                WireFormat::Gemini => endpoint.set_header("x-goog-api-key", key),
            }
        }
        for (name, value) in &configured.headers {
            endpoint.set_header(name, value.as_str());
        }
        return Ok(endpoint);
    }
    match provider {
        "anthropic" => resolve_anthropic(endpoint, env),
        "openai" => resolve_openai(endpoint, env),
        "local" => {
            let bases = local_urls(env);
            // One address needs no trying: a request to a server that is down says so better.
            let base = match bases.as_slice() {
                [only] => only,
                several => several.iter().find(|base| listens(base)).unwrap_or(&several[0]),
            };
            set_base(&mut endpoint, base);
            Ok(endpoint)
        }
        _ => Err(unknown_provider(provider, settings)),
    }
}

/// The place of a model that `find_local` found.
pub fn resolve_local(model: &ModelName, server: &LocalServer, settings: &Settings) -> Endpoint {
    let name = model.split().map_or(model.0.as_str(), |(_, name)| name);
    let mut endpoint = Endpoint::without_place(model, name);
    let reported = server.models.iter().find(|(name, _)| name == model).and_then(|(_, window)| *window);
    let mut limits = settings.models.get(&model.0).cloned().unwrap_or_default();
    limits.context_window = limits.context_window.or(reported);
    set_limits(&mut endpoint, Some(&limits));
    set_base(&mut endpoint, &server.base_url);
    endpoint
}

/// Whether a prompt could be answered as things are: a model is named and its key is there, a key is
/// there, or a local server listens. Takes at most a tenth of a second and sends nothing.
pub fn is_configured(settings: &Settings, env: &Environment) -> bool {
    match choose(settings, env) {
        Choice::Named(model) => resolve(&model, settings, env).is_ok(),
        Choice::SearchLocal(bases) => bases.iter().any(|base| listens(base)),
    }
}

/// Models to offer in a picker, with what to show for them: those of providers whose key is there,
/// and those that the settings name. The chosen model comes first.
pub fn offered(settings: &Settings, env: &Environment) -> Vec<(ModelName, String)> {
    let mut names: Vec<ModelName> = Vec::new();
    if let Choice::Named(model) = choose(settings, env) {
        names.push(model);
    }
    names.extend(settings.models.keys().map(|name| ModelName(name.clone())));
    let hosted = [("anthropic", has_anthropic(env)), ("openai", has_openai(env))];
    for (provider, _) in
        hosted.iter().filter(|(provider, key)| *key && !settings.providers.contains_key(*provider))
    {
        let usable = models::of_provider(provider).filter(|known| !needs_responses(known.name));
        names.extend(usable.map(|known| ModelName(known.name.into())));
    }
    let mut offered: Vec<(ModelName, String)> = Vec::new();
    for name in names {
        let is_new = !offered.iter().any(|(existing, _)| *existing == name);
        if is_new && name.split().is_some() {
            let label = label(&name);
            offered.push((name, label));
        }
    }
    offered
}

/// Nothing at all is configured: says the three ways out.
pub fn nothing_configured() -> ProviderError {
    ProviderError {
        class: ErrorClass::Auth,
        message: "No model is configured, and no local server answers.".into(),
        hint: Some(
            "Set ANTHROPIC_API_KEY, or set OPENAI_API_KEY (with OPENAI_BASE_URL for a compatible service), \
             or start a local server (Ollama, llama-server) and set EPITOME_LOCAL_URL to its address. \
             Restart the editor if it does not see the new environment."
                .into(),
        ),
    }
}

/// A local model was chosen, and no server answers: says where it was looked for.
pub fn no_local_server(name: &ModelName, env: &Environment) -> ProviderError {
    ProviderError {
        class: ErrorClass::Auth,
        message: format!("No local server answers for {name}; tried {}.", local_urls(env).join(" and ")),
        hint: Some("Start it, or set EPITOME_LOCAL_URL to its address, then send the prompt again.".into()),
    }
}

/// Whether OpenAI takes tools for this model over its Responses API alone.
pub(super) fn needs_responses(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.starts_with("gpt-6")
        && (name.contains("astra") || name.starts_with("gpt-6.1") || name.starts_with("gpt-6.2"))
}

fn resolve_anthropic(mut endpoint: Endpoint, env: &Environment) -> Result<Endpoint, ProviderError> {
    endpoint.wire = WireFormat::AnthropicMessages;
    let base = get(env, "ANTHROPIC_BASE_URL").unwrap_or_else(|| ANTHROPIC_BASE.into());
    set_base(&mut endpoint, &base);
    // Both may be given, as the vendor's own clients allow; the API key wins there.
    if let Some(key) = get(env, "ANTHROPIC_API_KEY") {
        endpoint.set_header("x-api-key", key);
    }
    if let Some(token) = get(env, "ANTHROPIC_AUTH_TOKEN") {
        endpoint.set_header("authorization", format!("Bearer {token}"));
    }
    if endpoint.headers.iter().all(|(name, _)| !matches!(name.as_str(), "x-api-key" | "authorization")) {
        return Err(missing_key(
            "Anthropic",
            "Set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN), or choose another model with EPITOME_MODEL."
                .into(),
        ));
    }
    add_custom_headers(&mut endpoint, env, "ANTHROPIC_CUSTOM_HEADERS");
    Ok(endpoint)
}

fn resolve_openai(mut endpoint: Endpoint, env: &Environment) -> Result<Endpoint, ProviderError> {
    let given = get(env, "OPENAI_BASE_URL");
    set_base(&mut endpoint, given.as_deref().unwrap_or(OPENAI_BASE));
    match get(env, "OPENAI_API_KEY") {
        Some(key) => endpoint.set_header("authorization", format!("Bearer {key}")),
        // A server of one's own may want no key; the vendor's does.
        None if endpoint.own_api => {
            return Err(missing_key(
                "OpenAI",
                "Set OPENAI_API_KEY, or choose another model with EPITOME_MODEL.".into(),
            ));
        }
        None => {}
    }
    for (variable, header) in
        [("OPENAI_ORG_ID", "openai-organization"), ("OPENAI_PROJECT_ID", "openai-project")]
    {
        if let Some(value) = get(env, variable) {
            endpoint.set_header(header, value);
        }
    }
    add_custom_headers(&mut endpoint, env, "OPENAI_CUSTOM_HEADERS");
    Ok(endpoint)
}

fn set_base(endpoint: &mut Endpoint, base: &str) {
    endpoint.base_url = base.trim().trim_end_matches('/').to_owned();
    let host = host_of(&endpoint.base_url);
    endpoint.own_api = match endpoint.wire {
        WireFormat::AnthropicMessages => host == "api.anthropic.com",
        WireFormat::OpenAiChat | WireFormat::OpenAiResponses => host == "api.openai.com",
        WireFormat::Gemini => host == "generativelanguage.googleapis.com",
    };
    endpoint.abilities = Abilities::likely(endpoint.wire, &endpoint.model);
    if endpoint.wire == WireFormat::AnthropicMessages {
        // Servers that copy the API were written against the old version, and some refuse any other;
        // a configured header replaces this one.
        let version = if endpoint.own_api { ANTHROPIC_VERSION } else { ANTHROPIC_VERSION_COMPATIBLE };
        endpoint.set_header("anthropic-version", version);
    }
}

fn set_limits(endpoint: &mut Endpoint, configured: Option<&ModelSettings>) {
    let known = models::known(&endpoint.name);
    endpoint.window = configured
        .and_then(|model| model.context_window)
        .or(known.map(|known| known.window))
        .unwrap_or(WINDOW_DEFAULT);
    let quarter = quarter_of(endpoint.window);
    endpoint.max_output = configured
        .and_then(|model| model.max_output)
        .or(known.map(|known| known.max_output.min(quarter)))
        .unwrap_or(OUTPUT_DEFAULT.min(quarter));
}

/// The most that a reply may take of a window: it must leave room for the conversation, also in the small
/// windows of local models.
fn quarter_of(window: u64) -> u32 {
    u32::try_from(window / 4).unwrap_or(u32::MAX).max(1)
}

/// Reads `Name: value` lines.
fn add_custom_headers(endpoint: &mut Endpoint, env: &Environment, variable: &str) {
    let lines = get(env, variable).unwrap_or_default();
    for (name, value) in lines.lines().filter_map(|line| line.split_once(':')) {
        endpoint.set_header(name.trim(), value.trim());
    }
}

fn has_anthropic(env: &Environment) -> bool {
    get(env, "ANTHROPIC_API_KEY").or_else(|| get(env, "ANTHROPIC_AUTH_TOKEN")).is_some()
}

fn has_openai(env: &Environment) -> bool {
    get(env, "OPENAI_API_KEY").or_else(|| get(env, "OPENAI_BASE_URL")).is_some()
}

/// Where to look for a local server: `EPITOME_LOCAL_URL`, else the usual loopback addresses.
pub fn local_urls(env: &Environment) -> Vec<String> {
    match get(env, "EPITOME_LOCAL_URL") {
        Some(url) => vec![format!("{}/v1", without_v1(url.trim()))],
        None => LOCAL_BASES.map(str::to_owned).to_vec(),
    }
}

/// The value of a variable; an empty one counts as none, as people clear them so.
fn get(env: &Environment, name: &str) -> Option<String> {
    let (_, value) = env.iter().find(|(key, _)| key == name)?;
    value.to_str().map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned)
}

/// People write the two vendors' models without their provider.
fn full_name(name: &str) -> ModelName {
    let provider = match name.trim() {
        name if name.contains('/') => None,
        name if name.starts_with("claude") => Some("anthropic"),
        name if name.starts_with("gpt-") => Some("openai"),
        _ => None,
    };
    ModelName(provider.map_or(name.trim().to_owned(), |provider| format!("{provider}/{}", name.trim())))
}

fn label(name: &ModelName) -> String {
    match (name.split(), models::known(name)) {
        (Some((provider, model)), Some(known)) => {
            let price = known.price;
            format!("{model} ({provider}, ${} in, ${} out per million tokens)", price.input, price.output)
        }
        (Some((provider, model)), None) => format!("{model} ({provider})"),
        (None, _) => name.0.clone(),
    }
}

fn missing_key(provider: &str, hint: String) -> ProviderError {
    let message = format!("There is no key for {provider}.");
    ProviderError { class: ErrorClass::Auth, message, hint: Some(hint) }
}

fn unknown_provider(name: &str, settings: &Settings) -> ProviderError {
    let configured: BTreeMap<&str, ()> = settings.providers.keys().map(|name| (name.as_str(), ())).collect();
    let known: Vec<&str> =
        ["anthropic", "openai", "local"].into_iter().chain(configured.into_keys()).collect();
    ProviderError {
        class: ErrorClass::Refused,
        message: format!("No provider is known for the model \"{name}\"."),
        hint: Some(format!("Name models as provider/name; the providers are {}.", known.join(", "))),
    }
}

/// Whether something accepts connections at this loopback address; other hosts are taken at their word.
fn listens(base: &str) -> bool {
    let host = host_of(base);
    if !is_loopback(host) {
        return true;
    }
    let address: SocketAddr = match (host, port_of(base)) {
        ("[::1]", port) => ([0u16, 0, 0, 0, 0, 0, 0, 1], port).into(),
        (_, port) => ([127, 0, 0, 1], port).into(),
    };
    TcpStream::connect_timeout(&address, LOOPBACK_CONNECT_MAX).is_ok()
}

/// An endpoint for tests, as the vendors' own services are.
#[cfg(test)]
pub(crate) fn test_endpoint(name: &str) -> Endpoint {
    let env = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"].map(|name| (name.into(), "sk-test-key".into()));
    resolve(&ModelName(name.into()), &Settings::default(), &env).expect("both keys are there")
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
