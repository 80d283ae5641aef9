//! Built-in providers: their URLs and the variables that contain their keys.

use super::errors::missing_key;
use super::{how_to_set, is_own_host};
use crate::abilities::needs_chat;
use crate::address::{beneath, host_of};
use crate::cloud::aws::AwsSource;
use crate::credential::Credential;
use crate::environment::{EnvironmentPairs, value_of};
use crate::model_endpoint::{Endpoint, KeyHeader, Quirks};
use crate::{ErrorClass, ProviderError};
use epitome_config::{BuiltInSettings, Settings, WireFormat};

/// A provider that needs no configuration except a key.
pub struct Hosted {
    pub name: &'static str,
    /// Display name.
    title: &'static str,
    wire: WireFormat,
    /// `{A|B}` is replaced by the first of these variables that is set.
    base: &'static str,
    base_variable: &'static str,
    /// Variables that may contain the key; the first one that is set applies.
    keys: &'static [&'static str],
    /// How requests are authenticated if no key is set.
    without_key: WithoutKey,
    /// Variable of a token that is sent in addition to the key, or instead of it.
    token: Option<&'static str>,
    /// Variables whose values are sent as headers: variable, header.
    headers: &'static [(&'static str, &'static str)],
    /// A variable with `Name: value` lines.
    custom_headers: Option<&'static str>,
    /// The page where the vendor issues keys, or that explains what is needed instead.
    key_page: &'static str,
    /// A path below the base URL that requires a valid key; needed if the list of models is public.
    key_check: Option<&'static str>,
    /// Whether calls use a plan rather than a pay-per-use account.
    is_plan: bool,
    quirks: Quirks,
    /// The model to use if only a key is set.
    pub default_model: &'static str,
}

/// How requests to a provider are authenticated if no key is set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WithoutKey {
    /// A key is required.
    Missing,
    /// The vendor's service requires a key; servers at another base URL may not, so setting one selects the provider.
    NothingElsewhere,
    /// The servers need no key; setting the base URL selects the provider.
    Nothing,
    /// The access keys of an AWS account are used.
    Aws,
    /// Google's Application Default Credentials are used.
    Google,
    /// An application of Microsoft Entra is used, if the environment names one.
    Entra,
}

/// Defaults of the table below.
const USUAL: Hosted = Hosted {
    name: "",
    title: "",
    wire: WireFormat::OpenAiChat,
    base: "",
    base_variable: "",
    keys: &[],
    without_key: WithoutKey::Missing,
    token: None,
    headers: &[],
    custom_headers: None,
    key_page: "",
    key_check: None,
    is_plan: false,
    quirks: Quirks::NONE,
    default_model: "",
};

/// A service whose variables are `PREFIX_API_KEY` and `PREFIX_BASE_URL`: its name, the prefix, its title, its address, the page
/// of its keys, its default model, and what is different.
macro_rules! service {
    (
        $name:literal, $prefix:literal, $title:literal, $base:literal, $key_page:literal, $model:literal
        $(, $field:ident: $value:expr)*
    ) => {
        Hosted {
            name: $name,
            title: $title,
            base: $base,
            base_variable: concat!($prefix, "_BASE_URL"),
            keys: &[concat!($prefix, "_API_KEY")],
            key_page: $key_page,
            default_model: concat!($name, "/", $model),
            $($field: $value,)*
            ..USUAL
        }
    };
}

/// In order of preference.
pub static HOSTED: [Hosted; 20] = [
    service!("anthropic", "ANTHROPIC", "Anthropic", "https://api.anthropic.com",
        "https://platform.claude.com/settings/keys", "claude-sonnet-5-5",
        wire: WireFormat::AnthropicMessages, token: Some("ANTHROPIC_AUTH_TOKEN"),
        custom_headers: Some("ANTHROPIC_CUSTOM_HEADERS")),
    service!("openai", "OPENAI", "OpenAI", "https://api.openai.com/v1",
        "https://platform.openai.com/api-keys", "gpt-6-sol", wire: WireFormat::OpenAiResponses,
        without_key: WithoutKey::NothingElsewhere,
        headers: &[("OPENAI_ORG_ID", "openai-organization"), ("OPENAI_PROJECT_ID", "openai-project")],
        custom_headers: Some("OPENAI_CUSTOM_HEADERS")),
    Hosted {
        name: "gemini",
        title: "Google",
        wire: WireFormat::Gemini,
        base: "https://generativelanguage.googleapis.com",
        base_variable: "GOOGLE_GEMINI_BASE_URL",
        // Same precedence as in the vendor's clients.
        keys: &["GOOGLE_API_KEY", "GEMINI_API_KEY"],
        key_page: "https://aistudio.google.com/apikey",
        default_model: "gemini/gemini-3.8-flash",
        ..USUAL
    },
    // OpenRouter's router chooses a model for each request.
    service!("openrouter", "OPENROUTER", "OpenRouter", "https://openrouter.ai/api/v1",
        "https://openrouter.ai/settings/keys", "openrouter/auto", key_check: Some("/key")),
    // A ChatGPT plan, through the sign-in that OpenAI offers to open-source programs.
    Hosted {
        name: "chatgpt",
        title: "ChatGPT",
        wire: WireFormat::OpenAiResponses,
        base: "https://api.openai.com/v1",
        base_variable: "CHATGPT_BASE_URL",
        key_page: "https://chatgpt.com/settings/usage",
        is_plan: true,
        default_model: "chatgpt/gpt-6-sol",
        ..USUAL
    },
    service!("groq", "GROQ", "Groq", "https://api.groq.com/openai/v1",
        "https://console.groq.com/keys", "openai/gpt-oss-120b",
        quirks: Quirks { omits: &["max_tokens"], ..Quirks::NONE }),
    service!("xai", "XAI", "xAI", "https://api.x.ai/v1", "https://console.x.ai", "grok-4",
        wire: WireFormat::OpenAiResponses),
    service!("mistral", "MISTRAL", "Mistral", "https://api.mistral.ai/v1",
        "https://console.mistral.ai/api-keys", "devstral-latest",
        quirks: Quirks { short_call_ids: true, omits: &["stream_options"], ..Quirks::NONE }),
    service!("deepseek", "DEEPSEEK", "DeepSeek", "https://api.deepseek.com",
        "https://platform.deepseek.com/api_keys", "deepseek-chat",
        quirks: Quirks { reasoning_back: true, ..Quirks::NONE }),
    service!(
        "together",
        "TOGETHER",
        "Together AI",
        "https://api.together.ai/v1",
        "https://api.together.ai/settings/api-keys",
        "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
    ),
    service!(
        "fireworks",
        "FIREWORKS",
        "Fireworks AI",
        "https://api.fireworks.ai/inference/v1",
        "https://app.fireworks.ai/settings/users/api-keys",
        "accounts/fireworks/models/kimi-k2-instruct"
    ),
    service!("cerebras", "CEREBRAS", "Cerebras", "https://api.cerebras.ai/v1",
        "https://cloud.cerebras.ai", "gpt-oss-120b",
        quirks: Quirks { omits: &["max_tokens"], ..Quirks::NONE }),
    service!("moonshot", "MOONSHOT", "Moonshot AI", "https://api.moonshot.ai/v1",
        "https://platform.moonshot.ai/console/api-keys", "kimi-latest",
        quirks: Quirks { reasoning_back: true, ..Quirks::NONE }),
    service!("zai", "ZAI", "Z.ai", "https://api.z.ai/api/paas/v4",
        "https://z.ai/manage-apikey/apikey-list", "glm-4.6",
        quirks: Quirks { reasoning_back: true, ..Quirks::NONE }),
    Hosted {
        name: "azure",
        title: "Azure OpenAI",
        wire: WireFormat::OpenAiResponses,
        base: "https://{AZURE_OPENAI_RESOURCE_NAME}.openai.azure.com/openai/v1",
        base_variable: "AZURE_OPENAI_BASE_URL",
        keys: &["AZURE_OPENAI_API_KEY"],
        without_key: WithoutKey::Entra,
        key_page: "https://ai.azure.com",
        quirks: Quirks { key_header: KeyHeader::ApiKey, omits: &["max_tokens"], ..Quirks::NONE },
        default_model: "azure/gpt-5.4",
        ..USUAL
    },
    Hosted {
        name: "bedrock",
        title: "Amazon Bedrock",
        wire: WireFormat::AnthropicMessages,
        base: "https://bedrock-runtime.{AWS_REGION|AWS_DEFAULT_REGION|profile}.amazonaws.com/anthropic",
        base_variable: "ANTHROPIC_BEDROCK_BASE_URL",
        keys: &["AWS_BEARER_TOKEN_BEDROCK"],
        without_key: WithoutKey::Aws,
        key_page: "https://console.aws.amazon.com/bedrock",
        quirks: Quirks { key_header: KeyHeader::Bearer, ..Quirks::NONE },
        default_model: "bedrock/anthropic.claude-sonnet-5-5",
        ..USUAL
    },
    Hosted {
        name: "vertex",
        title: "Google Vertex AI",
        wire: WireFormat::Gemini,
        base: "https://{vertex-host}googleapis.com/v1/projects/\
               {GOOGLE_CLOUD_PROJECT|ANTHROPIC_VERTEX_PROJECT_ID}/locations/{GOOGLE_CLOUD_LOCATION|CLOUD_ML_REGION}",
        base_variable: "VERTEX_BASE_URL",
        without_key: WithoutKey::Google,
        key_page: "https://cloud.google.com/docs/authentication/provide-credentials-adc",
        quirks: Quirks {
            key_header: KeyHeader::Bearer,
            is_vertex: true,
            omits: &["toolConfig"],
            ..Quirks::NONE
        },
        default_model: "vertex/gemini-3.8-flash",
        ..USUAL
    },
    service!("ollama", "OLLAMA", "Ollama", "http://127.0.0.1:11434/v1",
        "https://ollama.com/settings/keys", "gpt-oss", without_key: WithoutKey::Nothing),
    service!("lmstudio", "LMSTUDIO", "LM Studio", "http://127.0.0.1:1234/v1",
        "https://lmstudio.ai/docs/developer", "openai/gpt-oss-20b", without_key: WithoutKey::Nothing),
    service!("vllm", "VLLM", "vLLM", "http://127.0.0.1:8000/v1",
        "https://docs.vllm.ai", "Qwen/Qwen3-Coder-30B-A3B-Instruct", without_key: WithoutKey::Nothing),
];

impl Hosted {
    /// The built-in providers that can be called, judging by settings, logins and environment, and that no `[providers]`
    /// table replaces.
    pub fn usable(settings: &Settings, env: &EnvironmentPairs) -> impl Iterator<Item = &'static Hosted> {
        // Listed once: to open one file per provider, three times, took a fifteenth of the CPU time of a new session.
        let logins = settings.logins.providers();
        HOSTED.iter().filter(move |hosted| hosted.is_usable(settings, env, &logins))
    }

    /// `logins`: the providers that have one.
    fn is_usable(&self, settings: &Settings, env: &EnvironmentPairs, logins: &[String]) -> bool {
        let has_login = || {
            logins.iter().any(|provider| provider == self.name)
                && self
                    .base(env)
                    .is_ok_and(|base| !Credential::stored(&settings.logins, self.name, &base).is_absent())
        };
        !settings.providers.contains_key(self.name)
            && (self.key(settings.built_in.get(self.name), env).is_some()
                || has_login()
                || self.token.is_some_and(|token| value_of(env, token).is_some())
                || (matches!(self.without_key, WithoutKey::NothingElsewhere | WithoutKey::Nothing)
                    && value_of(env, self.base_variable).is_some()))
    }

    /// The variables that contain secrets.
    pub fn secret_variables(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.keys.iter().copied().chain(self.token).chain(self.custom_headers)
    }

    /// The base URL; the error lists variables, one of which must be set.
    fn base(&self, env: &EnvironmentPairs) -> Result<String, &'static str> {
        if let Some(base) = value_of(env, self.base_variable) {
            return Ok(base);
        }
        let mut base = String::new();
        let mut rest = self.base;
        while let Some((before, (variables, after))) =
            rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            let value = match variables {
                "vertex-host" => Some(vertex_host(env)),
                variables => variables.split('|').find_map(|variable| match variable {
                    "profile" => AwsSource::read(|name| value_of(env, name)).region(),
                    variable => value_of(env, variable),
                }),
            };
            base.push_str(before);
            base.push_str(&value.ok_or(variables)?);
            rest = after;
        }
        Ok(base + rest)
    }

    /// Whether this is the provider's host, part of which may vary by user.
    fn is_at(&self, host: &str) -> bool {
        let own = host_of(self.base);
        match own.split_once('{') {
            None => host == own,
            Some((before, rest)) => {
                let after = rest.split_once('}').map_or("", |(_, after)| after);
                host.strip_prefix(before).is_some_and(|rest| rest.ends_with(after))
            }
        }
    }

    /// The key's variable, and the key.
    fn key<'a>(
        &self,
        configured: Option<&'a BuiltInSettings>,
        env: &EnvironmentPairs,
    ) -> Option<(&'a str, String)> {
        match configured.and_then(|configured| configured.key_variable.as_deref()) {
            Some(variable) => Some((variable, value_of(env, variable)?)),
            None => self.keys.iter().find_map(|variable| Some((*variable, value_of(env, variable)?))),
        }
    }

    /// Sets the endpoint's URL, format and credential. Returns an error if the provider needs a key and none is set.
    pub(super) fn set_address(
        &self,
        endpoint: &mut Endpoint,
        settings: &Settings,
        env: &EnvironmentPairs,
    ) -> Option<ProviderError> {
        let configured = settings.built_in.get(self.name);
        let base = match self.base(env) {
            Ok(base) => base,
            Err(variables) => return Some(self.without_address(variables)),
        };
        let is_claude = endpoint.model.starts_with("claude");
        let wire = configured.and_then(|configured| configured.wire).unwrap_or_else(|| match self.wire {
            WireFormat::Gemini if self.quirks.is_vertex && is_claude => WireFormat::AnthropicMessages,
            // Services that are compatible with OpenAI usually support Chat Completions first.
            WireFormat::OpenAiResponses
                if self.name == "openai" && !is_own_host(self.wire, host_of(&base))
                    || needs_chat(&endpoint.model) =>
            {
                WireFormat::OpenAiChat
            }
            wire => wire,
        });
        endpoint.set_address(wire, &base);
        endpoint.quirks = self.quirks;
        endpoint.is_plan = self.is_plan;
        // Both may be set, as Anthropic's clients allow; the service prefers the key.
        if let Some((variable, key)) = self.key(configured, env) {
            endpoint.set_key(&key, variable);
        }
        if let Some((variable, token)) = self.token.and_then(|token| Some((token, value_of(env, token)?))) {
            endpoint.credential.set("authorization", format!("Bearer {token}"));
            endpoint.key_variable = Some(match endpoint.key_variable.take() {
                Some(key) => format!("{key} and {variable}"),
                None => variable.to_owned(),
            });
        }
        for (variable, header) in self.headers {
            if let Some(value) = value_of(env, variable) {
                endpoint.set_header(header, value);
            }
        }
        let custom = self.custom_headers.and_then(|variable| value_of(env, variable)).unwrap_or_default();
        for (name, value) in custom.lines().filter_map(|line| line.split_once(':')) {
            endpoint.set_header(name.trim(), value.trim());
        }
        endpoint.adjust(configured);
        endpoint.use_stored_login(settings);
        if !endpoint.has_key() {
            let variable = |name: &str| value_of(env, name);
            match self.without_key {
                WithoutKey::Missing | WithoutKey::NothingElsewhere => {}
                WithoutKey::Nothing => return None,
                WithoutKey::Aws => endpoint.credential = Credential::aws(&base, variable),
                WithoutKey::Entra => endpoint.credential = Credential::entra(variable),
                WithoutKey::Google => endpoint.credential = Credential::google(variable),
            }
        }
        // Self-hosted servers may need no key; the vendor's service does.
        let is_vendor = endpoint.own_api || self.is_plan || value_of(env, self.base_variable).is_none();
        let is_missing = is_vendor && !endpoint.has_key();
        is_missing.then(|| missing_key(self.title, self.how_to_get_a_key(configured)))
    }

    /// The error if no variable is set from which the address is built.
    fn without_address(&self, variables: &str) -> ProviderError {
        let variables = variables.replace("|profile", "").replace('|', " or ");
        ProviderError::new(ErrorClass::Auth, format!("It is not known where to call {}.", self.title))
            .with_hint(format!("Set {variables}, or {} to the address.", self.base_variable))
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

/// The first part of Vertex AI's host name for a location, up to `googleapis.com`.
fn vertex_host(env: &EnvironmentPairs) -> String {
    let location = value_of(env, "GOOGLE_CLOUD_LOCATION").or_else(|| value_of(env, "CLOUD_ML_REGION"));
    match location.as_deref() {
        None | Some("global") => "aiplatform.".to_owned(),
        Some(wide @ ("us" | "eu")) => format!("aiplatform.{wide}.rep."),
        Some(region) => format!("{region}-aiplatform."),
    }
}

/// The quirks of the service at a host.
pub fn quirks_at(host: &str) -> Quirks {
    HOSTED.iter().find(|hosted| hosted.is_at(host)).map_or(Quirks::NONE, |hosted| hosted.quirks)
}

/// The names of the providers that need no configuration except a key.
pub fn built_in_providers() -> impl Iterator<Item = &'static str> {
    HOSTED.iter().map(|hosted| hosted.name)
}

/// The built-in provider of this name.
pub(super) fn hosted(provider: &str) -> Option<&'static Hosted> {
    HOSTED.iter().find(|hosted| hosted.name == provider)
}

/// A provider's display name.
pub fn provider_title(provider: &str) -> &str {
    hosted(provider)
        .map_or(if provider == "local" { "This machine" } else { provider }, |hosted| hosted.title)
}

/// The URL of a request that succeeds only with a valid key: the list of models, unless that is public.
pub(crate) fn key_check_url(endpoint: &Endpoint) -> String {
    match hosted(endpoint.provider()).and_then(|hosted| hosted.key_check) {
        Some(path) => beneath(&endpoint.base_url, path),
        None => endpoint.models_url(),
    }
}

/// The page where a provider's vendor issues keys; `None` if the provider is not built in.
pub fn key_page(provider: &str) -> Option<&'static str> {
    hosted(provider).map(|hosted| hosted.key_page)
}
