//! An endpoint for model calls: URL, headers, limits and the model's abilities. Sends no requests.

mod form;
mod omitted;
mod quirks;
mod web_search;

use std::fmt;
use std::time::Duration;

use super::abilities::Abilities;
use super::address::{beneath, escaped_model, has_version, path_of, shown, with_query};
use super::credential::Credential;
use super::models::provider_of;
use super::network::Network;
use super::secret::{Secret, bearer};
use epitome_config::{EditTools, WireFormat};
use epitome_thread::ModelName;
use epitome_tokens::model_name::Family;

pub use form::ToolForm;
pub(crate) use omitted::{
    Omitted, attachment_digest, is_in_parts, known_fields, named_field, remove_from_body, remove_from_parts,
};
pub use quirks::{KeyHeader, Quirks};
pub use web_search::ProviderSearch;

/// An endpoint for calls to one model.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub name: ModelName,
    /// The model's name as sent to the provider.
    pub model: String,
    pub wire: WireFormat,
    /// The base URL without a trailing slash.
    pub base_url: String,
    /// The credential that authenticates requests.
    pub credential: Credential,
    /// Other headers, which override those of the credential. Names are lower case and unique.
    pub headers: Vec<(String, Secret)>,
    /// The environment variable that contains the key, for messages; `None` if the key has another source.
    pub key_variable: Option<String>,
    /// Maximum tokens of a request.
    pub window: u64,
    /// Maximum tokens of a reply.
    pub max_output: u32,
    /// Whether this is the service of the vendor that defined the wire format, rather than a compatible one.
    pub own_api: bool,
    /// How the service deviates from the wire format.
    pub quirks: Quirks,
    /// Whether calls use a ChatGPT plan, which supports fewer fields and endpoints.
    pub is_plan: bool,
    pub abilities: Abilities,
    /// The tools with which the model edits files.
    pub edit_tools: EditTools,
    /// How tools are sent to the model; differs from the default if the service refuses the usual form.
    pub form: ToolForm,
    /// The fields and tools that the service has refused.
    pub omitted: Omitted,
    /// How the provider searches the web, if the user wants that; only some formats have it.
    pub search: Option<ProviderSearch>,
    /// Whether the user has enabled compaction by the provider. Its compactions are only sent while this is
    /// set.
    pub native_compaction: bool,
    /// Whether the message of a compaction is sent as a system message, in the formats that have those anywhere.
    pub summary_as_system: bool,
    /// Maximum time without progress of a reply; `None` uses the service's default limit.
    pub silence: Option<Duration>,
    /// Proxies and certificates from the environment that was used for resolving.
    pub network: Network,
}

/// The lifetime of the cache whose marks name no other one (https://platform.claude.com/docs/en/build-with-claude/prompt-caching).
const MARKED_CACHE_LIFETIME: Duration = Duration::from_secs(5 * 60);

impl Endpoint {
    /// Whether requests do without this field, because the service refuses it.
    pub fn omits(&self, field: &str) -> bool {
        self.quirks.omits.contains(&field) || self.omitted.fields.contains(field)
    }

    /// Whether blocks of a conversation are marked, so that the service caches what precedes them.
    pub(crate) fn marks_for_cache(&self) -> bool {
        self.wire == WireFormat::AnthropicMessages
            && !self.omits("*.cache_control")
            && (self.own_api || Family::detect(&self.model) == Family::Claude)
    }

    /// How long the service keeps a conversation after it was last used; `None` if it does not promise a time.
    pub fn cache_lifetime(&self) -> Option<Duration> {
        self.marks_for_cache().then_some(MARKED_CACHE_LIFETIME)
    }

    /// All fields that requests do without.
    pub(crate) fn omitted_fields(&self) -> impl Iterator<Item = &'static str> {
        self.quirks.omits.iter().chain(&self.omitted.fields).copied()
    }

    /// The part of the model's name before the slash.
    pub fn provider(&self) -> &str {
        provider_of(&self.name)
    }

    /// Whether the provider may search the web in replies of this endpoint.
    pub fn searches(&self) -> bool {
        self.wire != WireFormat::OpenAiChat && self.search.is_some()
    }

    /// URL of model calls. Vendors' conventions differ: `OPENAI_BASE_URL` includes the API version, other vendors' base
    /// URLs don't. Both forms are accepted for all.
    pub fn url(&self) -> String {
        match self.wire {
            WireFormat::AnthropicMessages if self.quirks.is_vertex => {
                let path =
                    format!("/publishers/anthropic/models/{}:streamRawPredict", escaped_model(&self.model));
                beneath(&self.base_url, &path)
            }
            WireFormat::AnthropicMessages => self.at("/messages"),
            WireFormat::OpenAiResponses => self.at("/responses"),
            WireFormat::OpenAiChat => self.at("/chat/completions"),
            WireFormat::Gemini => {
                let path = format!("/models/{}:streamGenerateContent", escaped_model(&self.model));
                with_query(&self.at(&path), "alt=sse")
            }
        }
    }

    /// URL of model calls that are answered in one piece.
    pub(super) fn whole_url(&self) -> String {
        match self.wire {
            WireFormat::Gemini => self.at(&format!("/models/{}:generateContent", escaped_model(&self.model))),
            WireFormat::AnthropicMessages if self.quirks.is_vertex => {
                self.url().replace(":streamRawPredict", ":rawPredict")
            }
            WireFormat::AnthropicMessages | WireFormat::OpenAiResponses | WireFormat::OpenAiChat => {
                self.url()
            }
        }
    }

    /// URL for counting the tokens of a request; `None` if the wire format doesn't define one. Compatible services may
    /// not have it.
    pub fn count_url(&self) -> Option<String> {
        match self.wire {
            _ if self.is_plan => None,
            WireFormat::AnthropicMessages if self.quirks.is_vertex => None,
            WireFormat::AnthropicMessages => Some(self.at("/messages/count_tokens")),
            WireFormat::OpenAiResponses => Some(self.at("/responses/input_tokens")),
            WireFormat::OpenAiChat => None,
            WireFormat::Gemini => {
                Some(self.at(&format!("/models/{}:countTokens", escaped_model(&self.model))))
            }
        }
    }

    /// URL for compaction by the provider; `None` if the wire format doesn't define one. Compatible services may not
    /// have it.
    pub fn compact_url(&self) -> Option<String> {
        match self.wire {
            _ if self.is_plan => None,
            // In this format, compaction is a field of an ordinary request.
            WireFormat::AnthropicMessages => Some(self.url()),
            WireFormat::OpenAiResponses => Some(self.at("/responses/compact")),
            WireFormat::OpenAiChat | WireFormat::Gemini => None,
        }
    }

    /// URL of the service's list of models.
    pub fn models_url(&self) -> String {
        match self.base_url.split_once("/v1/projects/") {
            // Vertex AI lists the models of a publisher, not of a project, and only in this version.
            Some((host, _)) if self.quirks.is_vertex => {
                let publisher = if self.wire == WireFormat::Gemini { "google" } else { "anthropic" };
                format!("{host}/v1beta1/publishers/{publisher}/models")
            }
            Some(_) | None => self.at("/models"),
        }
    }

    /// Appends an API path to the base URL, with the API version if the base lacks it.
    fn at(&self, path: &str) -> String {
        let base = &self.base_url;
        let version = match self.wire {
            WireFormat::AnthropicMessages if !path_of(base).trim_end_matches('/').ends_with("/v1") => "/v1",
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat
                if path_of(base).trim_end_matches('/').is_empty() =>
            {
                "/v1"
            }
            WireFormat::Gemini if self.quirks.is_vertex => "/publishers/google",
            WireFormat::Gemini if !has_version(base) => "/v1beta",
            WireFormat::AnthropicMessages
            | WireFormat::OpenAiResponses
            | WireFormat::OpenAiChat
            | WireFormat::Gemini => "",
        };
        beneath(base, &format!("{version}{path}"))
    }

    /// The base URL in a form that is safe to display: without user, password and query.
    pub fn shown_url(&self) -> String {
        shown(&self.base_url)
    }

    /// Applies the context window that the provider reports for the model.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
        self.max_output = self.max_output.min(quarter_of(window));
    }

    /// The source of the credential, for messages.
    pub fn credential_origin(&self) -> CredentialOrigin<'_> {
        match (&self.credential, &self.key_variable) {
            (Credential::Stored(_), _) => CredentialOrigin::Stored,
            (Credential::Aws(_), _) => CredentialOrigin::Cloud("AWS"),
            (Credential::Google(_), _) => CredentialOrigin::Cloud("Google Cloud"),
            (Credential::Entra(_), _) => CredentialOrigin::Cloud("Microsoft Entra"),
            (Credential::Fixed(_), Some(variable)) => CredentialOrigin::Variable(variable),
            (Credential::Fixed(_) | Credential::Absent, _) if self.has_key() => CredentialOrigin::Configured,
            (Credential::Fixed(_) | Credential::Absent, _) => CredentialOrigin::Absent,
        }
    }

    /// The header that contains a key in requests to this service.
    pub(super) fn key_header(&self, key: &str) -> (String, Secret) {
        let name = match (self.quirks.key_header, self.wire) {
            (KeyHeader::ApiKey, _) => "api-key",
            (KeyHeader::OfFormat, WireFormat::AnthropicMessages) => "x-api-key",
            (KeyHeader::OfFormat, WireFormat::Gemini) => "x-goog-api-key",
            (KeyHeader::OfFormat, WireFormat::OpenAiChat | WireFormat::OpenAiResponses)
            | (KeyHeader::Bearer, _) => return bearer(key),
        };
        (name.to_owned(), Secret::new(key))
    }

    /// The headers to send; later ones replace earlier ones with the same name.
    pub(super) fn sent_headers(&self) -> impl Iterator<Item = &(String, Secret)> {
        self.credential.fixed().iter().chain(&self.headers)
    }

    pub(super) fn has_key(&self) -> bool {
        let is_key =
            |name: &str| matches!(name, "x-api-key" | "api-key" | "authorization" | "x-goog-api-key");
        !self.credential.is_absent() || self.headers.iter().any(|(name, _)| is_key(name))
    }

    pub(super) fn set_header(&mut self, name: &str, value: impl Into<String>) {
        let name = name.to_ascii_lowercase();
        self.headers.retain(|(existing, _)| *existing != name);
        self.headers.push((name, Secret::new(value)));
    }
}

/// Maximum reply tokens for a context window: a quarter, which leaves room for the conversation even in the small
/// windows of local models.
pub(super) fn quarter_of(window: u64) -> u32 {
    u32::try_from(window / 4).unwrap_or(u32::MAX).max(1)
}

/// The source of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialOrigin<'a> {
    Absent,
    /// A header in the user's settings.
    Configured,
    /// The name of an environment variable, or several joined by "and".
    Variable(&'a str),
    /// A login that `epitome login` stored.
    Stored,
    /// The credentials that this cloud's own tools use.
    Cloud(&'static str),
}

/// Omits the base URL, which may contain a user and a password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("wire", &self.wire)
            .field("place", &self.shown_url())
            .finish_non_exhaustive()
    }
}
