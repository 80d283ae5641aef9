//! Which model at which place with which key, out of settings and an environment. It sends nothing;
//! at most it tries whether something listens on a loopback port.
//!
//! Environments come in as lists because each attached editor has its own.

mod hosted;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::errors::{missing_key, nothing_configured, unknown_provider};
use super::{Endpoint, LocalServer};
use crate::ProviderError;
use crate::abilities::{Abilities, Thinking};
use crate::address::{beneath, host_of, is_loopback, port_of, without_v1};
use crate::models::{self, OUTPUT_DEFAULT, WINDOW_DEFAULT};
use crate::network::Network;
use epitome_config::{BuiltInSettings, ModelSettings, Settings, WireFormat};
use epitome_thread::ModelName;

pub(super) use hosted::HOSTED;
pub use hosted::{built_in_providers, provider_title};

/// An environment as a list; where a name is given twice, the first counts.
pub type Environment = [(OsString, OsString)];

/// What settings and environment say about the model to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Named(ModelName),
    /// Nothing is configured: a local server at one of these places may have models.
    SearchLocal(Vec<String>),
}

/// Where Ollama and llama-server listen unless told otherwise, in the order in which they are tried.
pub(super) const LOCAL_BASES: [&str; 2] = ["http://127.0.0.1:11434/v1", "http://127.0.0.1:8080/v1"];

/// The version of Anthropic's API that is current, and the one that everything compatible knows.
const ANTHROPIC_VERSION: &str = "2026-10-21";
const ANTHROPIC_VERSION_COMPATIBLE: &str = "2023-06-01";

/// The trial feature that an Anthropic request must ask for which wants a compaction, or sends one back.
const COMPACTION_BETA: &str = "compact-2026-09-04";

/// Loopback answers at once or not at all.
const LOOPBACK_CONNECT_MAX: Duration = Duration::from_millis(50);

/// Whether the place of a model is found by asking the servers of this machine: of a `local/` one, unless
/// the person's `[providers.local]` says where it is.
pub fn is_searched(model: &ModelName, settings: &Settings) -> bool {
    model.split().is_some_and(|(provider, _)| provider == "local")
        && !settings.providers.contains_key("local")
}

/// Chooses a model: the settings' (a flag, else `EPITOME_MODEL`, else a file's), else the variable
/// where settings were made without it, else the default of the first provider
/// whose key is there, else whatever a local server has.
pub fn choose(settings: &Settings, env: &Environment) -> Choice {
    if let Some(name) = settings.model.clone().or_else(|| get(env, "EPITOME_MODEL")) {
        return Choice::Named(ModelName::written(&name));
    }
    match HOSTED.iter().find(|hosted| hosted.is_there(settings, env)) {
        Some(hosted) => Choice::Named(ModelName(hosted.default_model.into())),
        None => Choice::SearchLocal(local_urls(settings, env)),
    }
}

/// Finds the place and the key of a model. A missing key is an error of class `Auth`, a name that
/// nothing knows one of class `Refused`.
pub fn resolve(model: &ModelName, settings: &Settings, env: &Environment) -> Result<Endpoint, ProviderError> {
    let Some((provider, name)) = model.split() else {
        return Err(unknown_provider(model, settings));
    };
    let model_settings = settings.models.get(&model.0);
    let endpoint = Endpoint::without_place(model, name, model_settings);
    let mut endpoint = if let Some(configured) = settings.providers.get(provider) {
        let mut endpoint = endpoint;
        endpoint.set_place(configured.wire, &configured.base_url);
        if let Some(variable) = &configured.key_variable {
            let key = get(env, variable).ok_or_else(|| {
                let hint = format!("Set {variable}, which config.toml names as the key of \"{provider}\".");
                missing_key(provider, hint)
            })?;
            endpoint.set_key(&key, variable);
        }
        for (name, value) in &configured.headers {
            endpoint.set_header(name, value.as_str());
        }
        endpoint
    } else if let Some(hosted) = HOSTED.iter().find(|hosted| hosted.name == provider) {
        hosted.resolve(endpoint, settings, env)?
    } else if provider == "local" {
        let bases = local_urls(settings, env);
        // One address needs no trying: a request to a server that is down says so better.
        let base = match bases.as_slice() {
            [only] => only,
            several => several.iter().find(|base| listens(base)).unwrap_or(&several[0]),
        };
        endpoint.at_local(base, settings)
    } else {
        return Err(unknown_provider(model, settings));
    };
    endpoint.set_what_is_known(model_settings);
    endpoint.network = Network::read(env);
    Ok(endpoint)
}

/// The place of a model that `find_local` found. An error can only come of a `[providers.local]` whose key
/// is missing.
pub fn resolve_local(
    model: &ModelName,
    server: &LocalServer,
    settings: &Settings,
    env: &Environment,
) -> Result<Endpoint, ProviderError> {
    if !is_searched(model, settings) {
        return resolve(model, settings, env);
    }
    let name = model.split().map_or(model.0.as_str(), |(_, name)| name);
    let reported = server.models.iter().find(|(name, _)| name == model).and_then(|(_, window)| *window);
    let mut model_settings = settings.models.get(&model.0).cloned().unwrap_or_default();
    model_settings.context_window = model_settings.context_window.or(reported);
    let endpoint = Endpoint::without_place(model, name, Some(&model_settings));
    let mut endpoint = endpoint.at_local(&server.base_url, settings);
    endpoint.set_what_is_known(Some(&model_settings));
    endpoint.network = Network::read(env);
    Ok(endpoint)
}

/// Whether a prompt could be answered as things are: a model is named and its key is there, a key is
/// there, or a local server listens. Else what is missing. Takes at most a tenth of a second and sends nothing.
pub fn configured(settings: &Settings, env: &Environment) -> Result<(), ProviderError> {
    match choose(settings, env) {
        Choice::Named(model) => resolve(&model, settings, env).map(drop),
        Choice::SearchLocal(bases) if bases.iter().any(|base| listens(base)) => Ok(()),
        Choice::SearchLocal(_) => Err(nothing_configured(settings, env)),
    }
}

/// Where to look for a local server: where `[providers.local]` says, else `EPITOME_LOCAL_URL`, else the
/// usual loopback addresses.
pub fn local_urls(settings: &Settings, env: &Environment) -> Vec<String> {
    let configured = settings.providers.get("local").map(|configured| configured.base_url.clone());
    match configured.or_else(|| get(env, "EPITOME_LOCAL_URL")) {
        // People write it as Ollama does, without the scheme.
        Some(url) if !url.contains("://") => {
            vec![beneath(&without_v1(&format!("http://{}", url.trim())), "/v1")]
        }
        Some(url) => vec![beneath(&without_v1(url.trim()), "/v1")],
        None => LOCAL_BASES.map(str::to_owned).to_vec(),
    }
}

impl Endpoint {
    /// With its limits; wire format and place are only sure after `set_place`.
    fn without_place(model: &ModelName, name: &str, configured: Option<&ModelSettings>) -> Endpoint {
        let known = models::known(model);
        let configured_window = configured.and_then(|model| model.context_window);
        let window = configured_window.or(known.map(|known| known.window)).unwrap_or(WINDOW_DEFAULT);
        let quarter = quarter_of(window);
        let max_output = configured
            .and_then(|model| model.max_output)
            .or(known.map(|known| known.max_output.min(quarter)))
            .unwrap_or(OUTPUT_DEFAULT.min(quarter));
        let wire = WireFormat::OpenAiChat;
        Endpoint {
            name: model.clone(),
            model: name.to_owned(),
            wire,
            base_url: String::new(),
            headers: Vec::new(),
            key_variable: None,
            window,
            max_output,
            own_api: false,
            abilities: Abilities::likely(wire, name),
            native_compaction: false,
            network: Network::default(),
        }
    }

    fn set_place(&mut self, wire: WireFormat, base: &str) {
        self.wire = wire;
        self.base_url = base.trim().trim_end_matches('/').to_owned();
        self.own_api = is_own_host(wire, host_of(&self.base_url));
        if wire == WireFormat::AnthropicMessages {
            // Servers that copy the API were written against the old version, and some refuse any other;
            // a configured header replaces this one.
            let version = if self.own_api { ANTHROPIC_VERSION } else { ANTHROPIC_VERSION_COMPATIBLE };
            self.set_header("anthropic-version", version);
        }
    }

    fn at_local(mut self, base: &str, settings: &Settings) -> Endpoint {
        let configured = settings.built_in.get("local");
        let wire = configured.and_then(|configured| configured.wire).unwrap_or(WireFormat::OpenAiChat);
        self.set_place(wire, base);
        self.adjust(configured);
        self
    }

    fn adjust(&mut self, configured: Option<&BuiltInSettings>) {
        for (name, value) in configured.iter().flat_map(|configured| &configured.headers) {
            self.set_header(name, value.as_str());
        }
    }

    /// What follows from the place: abilities, and the trial features that are asked for.
    fn set_what_is_known(&mut self, configured: Option<&ModelSettings>) {
        self.abilities = match models::known(&self.name) {
            Some(known) if self.is_spoken_to_as_usual() => known.abilities(),
            Some(_) | None => Abilities::likely(self.wire, &self.model),
        };
        if self.wire == WireFormat::OpenAiChat && !self.own_api {
            // There is no common way to ask for it.
            self.abilities.thinking = Thinking::None;
        }
        if let Some(configured) = configured {
            self.abilities = self.abilities.clone().with(configured);
        }
        self.native_compaction = configured.and_then(|model| model.native_compaction).unwrap_or(false);
        if self.wire == WireFormat::AnthropicMessages {
            let mut betas = configured.map_or_else(Vec::new, |model| model.betas.clone());
            if self.native_compaction {
                betas.push(COMPACTION_BETA.to_owned());
            }
            self.add_betas(&betas);
        }
    }

    /// Whether the format is one that the provider's models are made for: what the table knows of them holds
    /// for no other.
    fn is_spoken_to_as_usual(&self) -> bool {
        match (self.provider(), self.wire) {
            ("anthropic", wire) => wire == WireFormat::AnthropicMessages,
            ("openai", wire) => matches!(wire, WireFormat::OpenAiResponses | WireFormat::OpenAiChat),
            ("gemini", wire) => wire == WireFormat::Gemini,
            _ => true,
        }
    }

    /// Adds to what custom headers ask for already.
    fn add_betas(&mut self, betas: &[String]) {
        const HEADER: &str = "anthropic-beta";
        let there = self.headers.iter().find(|(name, _)| name == HEADER).map(|(_, value)| value.expose());
        let mut all: Vec<String> = Vec::new();
        for beta in there.unwrap_or_default().split(',').chain(betas.iter().map(String::as_str)) {
            let beta = beta.trim();
            if !beta.is_empty() && all.iter().all(|known| known != beta) {
                all.push(beta.to_owned());
            }
        }
        if !all.is_empty() {
            self.set_header(HEADER, all.join(","));
        }
    }

    fn set_key(&mut self, key: &str, variable: &str) {
        self.key_variable = Some(variable.to_owned());
        match self.wire {
            WireFormat::AnthropicMessages => self.set_header("x-api-key", key),
            WireFormat::OpenAiChat | WireFormat::OpenAiResponses => {
                self.set_header("authorization", format!("Bearer {key}"));
            }
            WireFormat::Gemini => self.set_header("x-goog-api-key", key),
        }
    }

    fn has_key(&self) -> bool {
        let is_key = |name: &str| matches!(name, "x-api-key" | "authorization" | "x-goog-api-key");
        self.headers.iter().any(|(name, _)| is_key(name))
    }
}

/// The most that a reply may take of a window: it must leave room for the conversation, also in the small
/// windows of local models.
pub(super) fn quarter_of(window: u64) -> u32 {
    u32::try_from(window / 4).unwrap_or(u32::MAX).max(1)
}

fn is_own_host(wire: WireFormat, host: &str) -> bool {
    match wire {
        WireFormat::AnthropicMessages => host == "api.anthropic.com",
        // Regions have hosts of their own, as `eu.api.openai.com`.
        WireFormat::OpenAiChat | WireFormat::OpenAiResponses => {
            host == "api.openai.com" || host.ends_with(".api.openai.com")
        }
        WireFormat::Gemini => host == "generativelanguage.googleapis.com",
    }
}

/// The value of a variable; an empty one counts as none, as people clear them so.
fn get(env: &Environment, name: &str) -> Option<String> {
    let (_, value) = env.iter().find(|(key, _)| key == name)?;
    value.to_str().map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned)
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
