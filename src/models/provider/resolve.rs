//! Resolves a model to a URL and a key, from settings and an environment. Sends no requests; at most it probes whether
//! a loopback port is open.

mod errors;
mod hosted;
mod offered;

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::abilities::{Abilities, Thinking, usual_edit_tools};
use super::address::{beneath, host_of, is_loopback, port_of, without_v1};
use super::cloud::aws;
use super::credential::Credential;
use super::environment::{EnvironmentPairs, value_of};
use super::local::LocalServer;
use super::model_endpoint::{Endpoint, Omitted, ProviderSearch, Quirks, ToolForm, quarter_of};
use super::models::{self, NO_MODEL, OUTPUT_DEFAULT, WINDOW_DEFAULT};
use super::network::Network;
use super::search;
use super::{ErrorClass, ProviderError};
use epitome_config::{BuiltInSettings, ModelSettings, REMOTE_TOKEN_VARIABLE, Settings, WireFormat};
use epitome_secrets::exposure::Exposure;
use epitome_thread::ModelName;
use errors::{missing_key, unknown_provider};

pub use errors::{no_local_server, nothing_configured};
pub(super) use hosted::key_check_url;
use hosted::{HOSTED, Hosted};
pub use hosted::{built_in_providers, key_page, provider_title};
pub(super) use offered::keep_distinct;
pub use offered::{NamedEndpoint, offered};

/// The model choice that results from settings and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfiguredModel {
    Named(ModelName),
    /// Nothing is configured: a local server at one of these URLs may have models.
    SearchLocal(Vec<String>),
}

/// Default addresses of Ollama and llama-server, in the order in which they are tried.
pub(super) const LOCAL_BASES: [&str; 2] = ["http://127.0.0.1:11434/v1", "http://127.0.0.1:8080/v1"];

/// The current version of Anthropic's API, and below it the one that all compatible services support.
const ANTHROPIC_VERSION: &str = "2026-10-21";
const ANTHROPIC_VERSION_COMPATIBLE: &str = "2023-06-01";

/// Beta feature that Anthropic requires for requesting a compaction and for sending one back.
const COMPACTION_BETA: &str = "compact-2026-09-04";

/// Timeout of connecting to a loopback port, which succeeds immediately or not at all.
const LOOPBACK_CONNECT_MAX: Duration = Duration::from_millis(50);

/// Whether the model's endpoint is found by probing local servers: true for `local/` models unless
/// `[providers.local]` in the user's settings configures the URL.
pub fn is_searched(model: &ModelName, settings: &Settings) -> bool {
    model.split().is_some_and(|(provider, _)| provider == "local")
        && !settings.providers.contains_key("local")
}

/// Chooses the model: the one in the settings (flag, else `EPITOME_MODEL`, else a file), else the one in the variable
/// if the settings were created without it, else the default of the first provider with a key, else any model of a
/// local server.
pub fn choose(settings: &Settings, env: &EnvironmentPairs) -> ConfiguredModel {
    if let Some(name) = settings.model.clone().or_else(|| value_of(env, "EPITOME_MODEL")) {
        return ConfiguredModel::Named(ModelName::parse(&name));
    }
    let may_be_called = |name: &str| settings.policy.refuses_model(Some(name)).is_none();
    match Hosted::usable(settings, env).find(|hosted| may_be_called(hosted.default_model)) {
        Some(hosted) => ConfiguredModel::Named(ModelName(hosted.default_model.into())),
        None => ConfiguredModel::SearchLocal(local_urls(settings, env)),
    }
}

/// Resolves a model's URL and key. The key comes from the environment, else from a stored login. A missing key is an
/// error of class `Auth`, an unknown name one of class `Refused`.
pub fn resolve(
    model: &ModelName,
    settings: &Settings,
    env: &EnvironmentPairs,
) -> Result<Endpoint, ProviderError> {
    resolve_in(Network::read(env), model, settings, env)
}

/// Like [`resolve`], in a network that was read from the same environment.
pub(super) fn resolve_in(
    network: Network,
    model: &ModelName,
    settings: &Settings,
    env: &EnvironmentPairs,
) -> Result<Endpoint, ProviderError> {
    match addressed(network, model, settings, env)? {
        (endpoint, None) => Ok(endpoint),
        (_, Some(missing)) => Err(missing),
    }
}

/// Whether the policy of the machine allows a call of this model, or of any, and all limits on cost are known.
pub(super) fn check_may_call(model: Option<&ModelName>, settings: &Settings) -> Result<(), ProviderError> {
    match settings.policy.refuses_model(model.map(|model| model.0.as_str())) {
        Some(message) => Err(ProviderError::new(ErrorClass::Refused, message)
            .with_hint("Ask the administrator of this machine.")),
        None => match &settings.budget.fault {
            Some(fault) => {
                let message = format!("No model is called, because a limit on cost is unknown: {fault}.");
                Err(ProviderError::new(ErrorClass::Refused, message)
                    .with_hint("Correct the file, then open the session again."))
            }
            None => Ok(()),
        },
    }
}

/// An endpoint of a provider for requests that use no model, with or without a key. An unknown name is an error of
/// class `Refused`.
pub fn service(
    provider: &str,
    settings: &Settings,
    env: &EnvironmentPairs,
) -> Result<Endpoint, ProviderError> {
    match addressed(Network::read(env), &ModelName(format!("{provider}/{NO_MODEL}")), settings, env)? {
        // The address is unknown too.
        (endpoint, Some(missing)) if endpoint.base_url.is_empty() => Err(missing),
        (endpoint, _) => Ok(endpoint),
    }
}

/// The endpoint of a model, and an error if its key is missing.
fn addressed(
    network: Network,
    model: &ModelName,
    settings: &Settings,
    env: &EnvironmentPairs,
) -> Result<(Endpoint, Option<ProviderError>), ProviderError> {
    let Some((provider, name)) = model.split() else {
        return Err(unknown_provider(model, settings));
    };
    check_may_call((name != NO_MODEL).then_some(model), settings)?;
    let model_settings = settings.models.get(&model.0);
    let mut endpoint = Endpoint::without_address(model, name, model_settings);
    let mut missing = None;
    if let Some(configured) = settings.providers.get(provider) {
        endpoint.set_service(configured.wire, &configured.base_url);
        let variable = configured.key_variable.as_ref();
        if let Some((variable, key)) =
            variable.and_then(|variable| Some((variable, value_of(env, variable)?)))
        {
            endpoint.set_key(&key, variable);
        }
        for (name, value) in &configured.headers {
            endpoint.set_header(name, value.as_str());
        }
        endpoint.use_stored_login(settings);
        if variable.is_none() && !endpoint.has_key() && aws::Scope::of_host(&configured.base_url).is_some() {
            endpoint.credential = Credential::aws(&configured.base_url, |name| value_of(env, name));
        }
        if let (true, Some(variable)) = (endpoint.credential.is_absent(), variable) {
            missing = Some(missing_key(provider, how_to_set(variable, provider)));
        }
    } else if let Some(hosted) = hosted::hosted(provider) {
        missing = hosted.set_address(&mut endpoint, settings, env);
    } else if provider == "local" {
        let bases = local_urls(settings, env);
        // A single address isn't probed: a failed request to it yields a better error.
        let base = match bases.as_slice() {
            [only] => only,
            several => several.iter().find(|base| listens(base)).unwrap_or(&several[0]),
        };
        endpoint = endpoint.at_local(base, settings);
    } else {
        return Err(unknown_provider(model, settings));
    }
    endpoint.set_what_is_known(model_settings);
    endpoint.search = ProviderSearch::of(&endpoint, settings);
    endpoint.summary_as_system = settings.compaction.summary_as_system;
    endpoint.network = network;
    Ok((endpoint, missing))
}

/// Resolves a model that `find_local` found. Fails like `resolve` if `[providers.local]` is configured; otherwise
/// never.
pub fn resolve_local(
    model: &ModelName,
    server: &LocalServer,
    settings: &Settings,
    env: &EnvironmentPairs,
) -> Result<Endpoint, ProviderError> {
    if !is_searched(model, settings) {
        return resolve(model, settings, env);
    }
    check_may_call(Some(model), settings)?;
    let name = model.split().map_or(model.0.as_str(), |(_, name)| name);
    let reported =
        server.models.iter().find(|listed| listed.name == name).and_then(|listed| listed.facts.window);
    let mut model_settings = settings.models.get(&model.0).cloned().unwrap_or_default();
    model_settings.context_window = model_settings.context_window.or(reported);
    let endpoint = Endpoint::without_address(model, name, Some(&model_settings));
    let mut endpoint = endpoint.at_local(&server.base_url, settings);
    endpoint.set_what_is_known(Some(&model_settings));
    endpoint.network = Network::read(env);
    Ok(endpoint)
}

/// Checks whether a prompt could be answered with the current configuration: a model is named and its key is set, a
/// provider's key is set, or a local server accepts connections. Otherwise the error describes what is missing. Takes
/// at most a tenth of a second and sends nothing.
pub fn configured(settings: &Settings, env: &EnvironmentPairs) -> Result<(), ProviderError> {
    match choose(settings, env) {
        ConfiguredModel::Named(model) => resolve(&model, settings, env).map(drop),
        ConfiguredModel::SearchLocal(bases) if bases.iter().any(|base| listens(base)) => Ok(()),
        ConfiguredModel::SearchLocal(_) => Err(nothing_configured(settings, env)),
    }
}

/// Determines which environment variables child programs get: the settings' rules, plus the key variables of all
/// providers and search services.
pub fn exposure(settings: &Settings) -> Exposure {
    let known = HOSTED.iter().flat_map(Hosted::secret_variables).chain(search::key_variables());
    let built_in = settings.built_in.values().map(|provider| &provider.key_variable);
    let configured = settings.providers.values().map(|provider| &provider.key_variable);
    let provider_keys = known.chain([REMOTE_TOKEN_VARIABLE]).map(str::to_owned);
    Exposure {
        provider_keys: provider_keys.chain(built_in.chain(configured).flatten().cloned()).collect(),
        commands: settings.exposure.commands.clone(),
        hooks: settings.exposure.hooks.clone(),
        changeable: settings.sandbox.enabled.then(|| settings.sandbox.write.clone()),
    }
}

/// URLs of possible local servers: from `[providers.local]`, else from `EPITOME_LOCAL_URL`, else the default loopback
/// addresses.
pub fn local_urls(settings: &Settings, env: &EnvironmentPairs) -> Vec<String> {
    let configured = settings.providers.get("local").map(|configured| configured.base_url.clone());
    let Some(url) = configured.or_else(|| value_of(env, "EPITOME_LOCAL_URL")) else {
        return LOCAL_BASES.map(str::to_owned).to_vec();
    };
    // Ollama's addresses may have no scheme.
    let scheme = if url.contains("://") { "" } else { "http://" };
    vec![beneath(&without_v1(&format!("{scheme}{}", url.trim())), "/v1")]
}

impl Endpoint {
    /// An endpoint with the model's limits; wire format and URL are placeholders until `set_service`.
    pub(crate) fn without_address(
        model: &ModelName,
        name: &str,
        configured: Option<&ModelSettings>,
    ) -> Endpoint {
        let known = models::known(model);
        let configured_window = models::configured_window(model, configured);
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
            credential: Credential::Absent,
            headers: Vec::new(),
            key_variable: None,
            window,
            max_output,
            own_api: false,
            quirks: Quirks::NONE,
            is_plan: false,
            abilities: Abilities::likely(wire, name),
            edit_tools: usual_edit_tools(name),
            form: ToolForm::Usual,
            omitted: Omitted::default(),
            search: None,
            native_compaction: false,
            summary_as_system: false,
            silence: None,
            network: Network::default(),
        }
    }

    pub(super) fn set_service(&mut self, wire: WireFormat, base: &str) {
        self.set_address(wire, base);
        self.quirks = hosted::quirks_at(host_of(&self.base_url));
    }

    /// Like `set_service`, for a provider whose quirks are known: finding them by their host is slow, and a list of models
    /// has hundreds of endpoints.
    fn set_address(&mut self, wire: WireFormat, base: &str) {
        self.wire = wire;
        self.base_url = base.trim().trim_end_matches('/').to_owned();
        self.own_api = is_own_host(wire, host_of(&self.base_url));
        if wire == WireFormat::AnthropicMessages {
            // Compatible servers were written for the old version, and some reject any other; a configured header
            // overrides this one.
            let version = if self.own_api { ANTHROPIC_VERSION } else { ANTHROPIC_VERSION_COMPATIBLE };
            self.set_header("anthropic-version", version);
        }
    }

    fn at_local(mut self, base: &str, settings: &Settings) -> Endpoint {
        let configured = settings.built_in.get("local");
        let wire = configured.and_then(|configured| configured.wire).unwrap_or(WireFormat::OpenAiChat);
        self.set_service(wire, base);
        self.adjust(configured);
        self
    }

    fn adjust(&mut self, configured: Option<&BuiltInSettings>) {
        for (name, value) in configured.iter().flat_map(|configured| &configured.headers) {
            self.set_header(name, value.as_str());
        }
    }

    /// Sets the properties that follow from the URL, the wire format and the model's settings: abilities, betas, etc.
    pub(crate) fn set_what_is_known(&mut self, configured: Option<&ModelSettings>) {
        self.abilities = match models::known(&self.name) {
            Some(known) if self.is_spoken_to_as_usual() => known.abilities(),
            Some(_) | None => Abilities::likely(self.wire, &self.model),
        };
        if self.wire == WireFormat::OpenAiChat && !self.own_api {
            // Compatible servers have no common way of controlling thinking.
            self.abilities.thinking = Thinking::None;
        }
        if let Some(configured) = configured {
            self.abilities = self.abilities.clone().with(configured);
            self.edit_tools = configured.edit_tools.unwrap_or(self.edit_tools);
        }
        self.native_compaction = configured.and_then(|model| model.native_compaction).unwrap_or(false);
        self.silence = configured.and_then(|model| model.silence);
        if self.wire == WireFormat::AnthropicMessages {
            let mut betas = configured.map_or_else(Vec::new, |model| model.betas.clone());
            if self.native_compaction {
                betas.push(COMPACTION_BETA.to_owned());
            }
            self.add_betas(&betas);
        }
    }

    /// Switches to this form. `configured` are the user's settings of the model.
    pub(crate) fn take_form(&mut self, form: ToolForm, configured: Option<&ModelSettings>) {
        let wire = match form {
            ToolForm::Usual => return,
            ToolForm::Responses => WireFormat::OpenAiResponses,
            ToolForm::WithoutReasoning => WireFormat::OpenAiChat,
        };
        let (base, quirks, own_api) = (std::mem::take(&mut self.base_url), self.quirks, self.own_api);
        self.set_service(wire, &base);
        (self.quirks, self.own_api) = (quirks, own_api);
        self.set_what_is_known(configured);
        self.form = form;
    }

    /// Whether the wire format is the usual one for the provider's models; the model table applies only to that.
    fn is_spoken_to_as_usual(&self) -> bool {
        match (self.provider(), self.wire) {
            ("anthropic", wire) => wire == WireFormat::AnthropicMessages,
            ("openai", wire) => matches!(wire, WireFormat::OpenAiResponses | WireFormat::OpenAiChat),
            ("gemini", wire) => wire == WireFormat::Gemini,
            _ => true,
        }
    }

    /// Adds beta features to those in the headers.
    fn add_betas(&mut self, betas: &[String]) {
        const HEADER: &str = "anthropic-beta";
        let there = self.headers.iter().find(|(name, _)| name == HEADER).map(|(_, value)| value.expose());
        let mut all: Vec<&str> = Vec::new();
        for beta in there.unwrap_or_default().split(',').chain(betas.iter().map(String::as_str)) {
            let beta = beta.trim();
            if !beta.is_empty() && !all.contains(&beta) {
                all.push(beta);
            }
        }
        let all = all.join(",");
        if !all.is_empty() {
            self.set_header(HEADER, all);
        }
    }

    fn set_key(&mut self, key: &str, variable: &str) {
        self.key_variable = Some(variable.to_owned());
        let (name, value) = self.key_header(key);
        self.credential.set(&name, value.expose());
    }

    /// Uses the stored login if neither the environment nor the settings have a key.
    fn use_stored_login(&mut self, settings: &Settings) {
        if !self.has_key() {
            self.credential = Credential::stored(&settings.logins, self.provider(), &self.base_url);
        }
    }
}

fn is_own_host(wire: WireFormat, host: &str) -> bool {
    match wire {
        WireFormat::AnthropicMessages => host == "api.anthropic.com",
        // Regions have their own hosts, such as `eu.api.openai.com`.
        WireFormat::OpenAiChat | WireFormat::OpenAiResponses => {
            host == "api.openai.com" || host.ends_with(".api.openai.com")
        }
        WireFormat::Gemini => host == "generativelanguage.googleapis.com",
    }
}

/// The hint for a missing key whose variable is configured.
fn how_to_set(variable: &str, provider: &str) -> String {
    format!(
        "Set {variable}, which config.toml names as the key of \"{provider}\", or run `epitome login {provider}`."
    )
}

/// Whether this address accepts connections; always true for hosts other than loopback.
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

/// A test endpoint of a vendor's own service.
#[cfg(test)]
pub(crate) fn test_endpoint(name: &str) -> Endpoint {
    let keys = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"];
    let env = keys.map(|name| (name.into(), "sk-test-key".into()));
    resolve(&ModelName(name.into()), &Default::default(), &env).expect("all keys are set")
}

/// A test endpoint that uses Chat Completions at OpenAI's own service.
#[cfg(test)]
pub(crate) fn test_chat_endpoint(name: &str) -> Endpoint {
    let mut settings = epitome_config::Settings::default();
    let chat = epitome_config::BuiltInSettings { wire: Some(WireFormat::OpenAiChat), ..Default::default() };
    settings.built_in.insert("openai".into(), chat);
    let env = [("OPENAI_API_KEY".into(), "sk-test-key".into())];
    resolve(&ModelName(name.into()), &settings, &env).expect("the key is set")
}
