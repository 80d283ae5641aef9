//! Built-in providers: their URLs and the variables that contain their keys.

use super::{EnvironmentPairs, get, how_to_set, is_own_host};
use crate::ProviderError;
use crate::abilities::needs_chat;
use crate::address::{beneath, host_of};
use crate::credential::Credential;
use crate::endpoint::Endpoint;
use crate::endpoint::errors::missing_key;
use epitome_config::{BuiltInSettings, Settings, WireFormat};

/// A provider that needs no configuration except a key.
pub struct Hosted {
    pub name: &'static str,
    /// Display name.
    title: &'static str,
    wire: WireFormat,
    base: &'static str,
    base_variable: &'static str,
    /// Whether setting the base URL is enough to select the provider: self-hosted servers need no key.
    base_suffices: bool,
    /// Variables of the key; the first that is set counts.
    keys: &'static [&'static str],
    /// Variable of a token that is sent in addition to the key, or instead of it.
    token: Option<&'static str>,
    /// Variables that are sent as headers.
    headers: &'static [(&'static str, &'static str)],
    /// A variable with `Name: value` lines.
    custom_headers: Option<&'static str>,
    /// The page where the vendor makes keys.
    key_page: &'static str,
    /// Path below the base URL that only accepts a valid key, if the list of models is public.
    key_check: Option<&'static str>,
    /// Whether calls use a plan and not an account that pays for each.
    is_plan: bool,
    /// The model to use if only a key is set.
    pub default_model: &'static str,
}

/// In order of preference.
pub const HOSTED: [Hosted; 5] = [
    Hosted {
        name: "anthropic",
        title: "Anthropic",
        wire: WireFormat::AnthropicMessages,
        base: "https://api.anthropic.com",
        base_variable: "ANTHROPIC_BASE_URL",
        base_suffices: false,
        keys: &["ANTHROPIC_API_KEY"],
        token: Some("ANTHROPIC_AUTH_TOKEN"),
        headers: &[],
        custom_headers: Some("ANTHROPIC_CUSTOM_HEADERS"),
        key_page: "https://platform.claude.com/settings/keys",
        key_check: None,
        is_plan: false,
        default_model: "anthropic/claude-sonnet-5-5",
    },
    Hosted {
        name: "openai",
        title: "OpenAI",
        wire: WireFormat::OpenAiResponses,
        base: "https://api.openai.com/v1",
        base_variable: "OPENAI_BASE_URL",
        base_suffices: true,
        keys: &["OPENAI_API_KEY"],
        token: None,
        headers: &[("OPENAI_ORG_ID", "openai-organization"), ("OPENAI_PROJECT_ID", "openai-project")],
        custom_headers: Some("OPENAI_CUSTOM_HEADERS"),
        key_page: "https://platform.openai.com/api-keys",
        key_check: None,
        is_plan: false,
        default_model: "openai/gpt-6-sol",
    },
    Hosted {
        name: "gemini",
        title: "Google",
        wire: WireFormat::Gemini,
        base: "https://generativelanguage.googleapis.com",
        base_variable: "GOOGLE_GEMINI_BASE_URL",
        base_suffices: false,
        // Same precedence as the vendor's own clients.
        keys: &["GOOGLE_API_KEY", "GEMINI_API_KEY"],
        token: None,
        headers: &[],
        custom_headers: None,
        key_page: "https://aistudio.google.com/apikey",
        key_check: None,
        is_plan: false,
        default_model: "gemini/gemini-3.8-flash",
    },
    Hosted {
        name: "openrouter",
        title: "OpenRouter",
        wire: WireFormat::OpenAiChat,
        base: "https://openrouter.ai/api/v1",
        base_variable: "OPENROUTER_BASE_URL",
        base_suffices: false,
        keys: &["OPENROUTER_API_KEY"],
        token: None,
        headers: &[],
        custom_headers: None,
        key_page: "https://openrouter.ai/settings/keys",
        key_check: Some("/key"),
        is_plan: false,
        // Their router, which chooses a model for each request.
        default_model: "openrouter/openrouter/auto",
    },
    // A ChatGPT plan, by the sign-in that OpenAI offers to open-source programs.
    Hosted {
        name: "chatgpt",
        title: "ChatGPT",
        wire: WireFormat::OpenAiResponses,
        base: "https://api.openai.com/v1",
        base_variable: "CHATGPT_BASE_URL",
        base_suffices: false,
        keys: &[],
        token: None,
        headers: &[],
        custom_headers: None,
        key_page: "https://chatgpt.com/settings/usage",
        key_check: None,
        is_plan: true,
        default_model: "chatgpt/gpt-6-sol",
    },
];

impl Hosted {
    /// Whether this provider can be called, judging by settings and environment.
    pub fn is_there(&self, settings: &Settings, env: &EnvironmentPairs) -> bool {
        !settings.providers.contains_key(self.name)
            && (self.key(settings.built_in.get(self.name), env).is_some()
                || !Credential::stored(&settings.logins, self.name, &self.base(env)).is_absent()
                || self.token.is_some_and(|token| get(env, token).is_some())
                || (self.base_suffices && get(env, self.base_variable).is_some()))
    }

    /// The variables that hold its keys.
    pub fn secret_variables(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.iter().copied().chain(self.token).chain(self.custom_headers)
    }

    fn base(&self, env: &EnvironmentPairs) -> String {
        get(env, self.base_variable).unwrap_or_else(|| self.base.to_owned())
    }

    /// The name of the key's variable, and the key.
    fn key<'a>(
        &self,
        configured: Option<&'a BuiltInSettings>,
        env: &EnvironmentPairs,
    ) -> Option<(&'a str, String)> {
        match configured.and_then(|configured| configured.key_variable.as_deref()) {
            Some(variable) => Some((variable, get(env, variable)?)),
            None => self.keys.iter().find_map(|variable| Some((*variable, get(env, variable)?))),
        }
    }

    /// Sets where and how the provider is called. Returns the error if there is no key and it needs one.
    pub(super) fn place(
        &self,
        endpoint: &mut Endpoint,
        settings: &Settings,
        env: &EnvironmentPairs,
    ) -> Option<ProviderError> {
        let configured = settings.built_in.get(self.name);
        let base = self.base(env);
        let wire = configured.and_then(|configured| configured.wire).unwrap_or_else(|| match self.wire {
            // Services that are compatible with OpenAI usually support Chat Completions first.
            WireFormat::OpenAiResponses
                if !self.is_plan && !is_own_host(self.wire, host_of(&base))
                    || needs_chat(&endpoint.model) =>
            {
                WireFormat::OpenAiChat
            }
            wire => wire,
        });
        endpoint.set_place(wire, &base);
        endpoint.is_plan = self.is_plan;
        // Both may be set, as Anthropic's own clients allow; the service prefers the key.
        if let Some((variable, key)) = self.key(configured, env) {
            endpoint.set_key(&key, variable);
        }
        if let Some((variable, token)) = self.token.and_then(|token| Some((token, get(env, token)?))) {
            endpoint.credential.set("authorization", format!("Bearer {token}"));
            endpoint.key_variable = Some(match endpoint.key_variable.take() {
                Some(key) => format!("{key} and {variable}"),
                None => variable.to_owned(),
            });
        }
        for (variable, header) in self.headers {
            if let Some(value) = get(env, variable) {
                endpoint.set_header(header, value);
            }
        }
        let custom = self.custom_headers.and_then(|variable| get(env, variable)).unwrap_or_default();
        for (name, value) in custom.lines().filter_map(|line| line.split_once(':')) {
            endpoint.set_header(name.trim(), value.trim());
        }
        endpoint.adjust(configured);
        endpoint.use_stored_login(settings);
        // Self-hosted servers may need no key; the vendor's service does.
        let is_vendor = endpoint.own_api || self.is_plan || get(env, self.base_variable).is_none();
        let is_missing = is_vendor && !endpoint.has_key();
        is_missing.then(|| missing_key(self.title, self.how_to_get_a_key(configured)))
    }

    fn how_to_get_a_key(&self, configured: Option<&BuiltInSettings>) -> String {
        if let Some(variable) = configured.and_then(|configured| configured.key_variable.as_ref()) {
            return how_to_set(variable, self.name);
        }
        let Some((key, others)) = self.keys.split_first() else {
            return format!("Run `epitome login {}` in a terminal.", self.name);
        };
        let others: Vec<&str> = others.iter().copied().chain(self.token).collect();
        let others = if others.is_empty() { String::new() } else { format!(" (or {})", others.join(", ")) };
        format!(
            "Run `epitome login {}`, set {}{others}, or choose another model: --model, or the editor's picker.",
            self.name, key
        )
    }
}

/// The names of the providers that need no configuration except a key.
pub fn built_in_providers() -> impl Iterator<Item = &'static str> {
    HOSTED.iter().map(|hosted| hosted.name)
}

/// A provider's display name.
pub fn provider_title(provider: &str) -> &str {
    let hosted = HOSTED.iter().find(|hosted| hosted.name == provider);
    hosted.map_or(if provider == "local" { "This machine" } else { provider }, |hosted| hosted.title)
}

/// The URL of a request that only succeeds with a valid key: the list of models, unless that is public.
pub(crate) fn key_check_url(endpoint: &Endpoint) -> String {
    let hosted = HOSTED.iter().find(|hosted| hosted.name == endpoint.provider());
    match hosted.and_then(|hosted| hosted.key_check) {
        Some(path) => beneath(&endpoint.base_url, path),
        None => endpoint.models_url(),
    }
}

/// The page where a provider's vendor makes keys; `None` for a provider that is not built in.
pub fn key_page(provider: &str) -> Option<&'static str> {
    HOSTED.iter().find(|hosted| hosted.name == provider).map(|hosted| hosted.key_page)
}
