//! Settings of providers, searches and the editor, as plain data.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A provider that uses a supported wire format. URL and headers may contain keys, so `Debug` omits the URL
/// and prints only the names of the headers.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    pub wire: WireFormat,
    pub base_url: String,
    /// The environment variable that contains the API key; `None` sends no key.
    pub key_variable: Option<String>,
    pub headers: BTreeMap<String, String>,
}

impl fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("wire", &self.wire)
            .field("key_variable", &self.key_variable)
            .field("headers", &self.headers.keys())
            .finish_non_exhaustive()
    }
}

/// Overrides for a built-in provider. Its address still comes from the environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BuiltInSettings {
    pub wire: Option<WireFormat>,
    /// Replaces the provider's default variable.
    pub key_variable: Option<String>,
    pub headers: BTreeMap<String, String>,
}

impl fmt::Debug for BuiltInSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuiltInSettings")
            .field("wire", &self.wire)
            .field("key_variable", &self.key_variable)
            .field("headers", &self.headers.keys())
            .finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireFormat {
    AnthropicMessages,
    OpenAiResponses,
    OpenAiChat,
    Gemini,
}

/// When edits of files without unsaved text are sent through the editor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EditorWrites {
    /// If the editor is known to include only its own writes in its review of changes.
    #[default]
    Auto,
    /// If the editor supports writing files.
    Always,
    Never,
}

impl EditorWrites {
    pub const ALL: [EditorWrites; 3] = [EditorWrites::Auto, EditorWrites::Always, EditorWrites::Never];

    /// The name used in a configuration file.
    pub fn id(self) -> &'static str {
        match self {
            EditorWrites::Auto => "auto",
            EditorWrites::Always => "always",
            EditorWrites::Never => "never",
        }
    }
}

/// How the chat announces the end of a long turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnNotice {
    #[default]
    Off,
    Bell,
    /// A notification of the desktop, by terminals that know this sequence.
    Osc9,
}

impl TurnNotice {
    pub const ALL: [TurnNotice; 3] = [TurnNotice::Off, TurnNotice::Bell, TurnNotice::Osc9];

    /// The name used in a configuration file.
    pub fn id(self) -> &'static str {
        match self {
            TurnNotice::Off => "off",
            TurnNotice::Bell => "bell",
            TurnNotice::Osc9 => "osc9",
        }
    }

    /// The bytes that are written to the terminal.
    pub fn sequence(self) -> Option<&'static str> {
        match self {
            TurnNotice::Off => None,
            TurnNotice::Bell => Some("\x07"),
            TurnNotice::Osc9 => Some("\x1b]9;Epitome waits for you\x07"),
        }
    }
}

/// The service for the model's web searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchChoice {
    /// The model can't search.
    #[default]
    Off,
    /// The search of the model's provider, else the SearXNG server of `SEARXNG_URL`.
    Auto,
    Provider,
    Searxng,
    Brave,
    Tavily,
    Exa,
}

impl SearchChoice {
    pub const ALL: [SearchChoice; 7] = [
        SearchChoice::Off,
        SearchChoice::Auto,
        SearchChoice::Provider,
        SearchChoice::Searxng,
        SearchChoice::Brave,
        SearchChoice::Tavily,
        SearchChoice::Exa,
    ];

    /// The name used in a configuration file.
    pub fn id(self) -> &'static str {
        match self {
            SearchChoice::Off => "off",
            SearchChoice::Auto => "auto",
            SearchChoice::Provider => "provider",
            SearchChoice::Searxng => "searxng",
            SearchChoice::Brave => "brave",
            SearchChoice::Tavily => "tavily",
            SearchChoice::Exa => "exa",
        }
    }

    /// Whether models whose provider offers a search use that.
    pub fn uses_provider(self) -> bool {
        matches!(self, SearchChoice::Auto | SearchChoice::Provider)
    }
}

impl WireFormat {
    pub const ALL: [WireFormat; 4] = [
        WireFormat::AnthropicMessages,
        WireFormat::OpenAiResponses,
        WireFormat::OpenAiChat,
        WireFormat::Gemini,
    ];

    /// The name used in a configuration file.
    pub fn id(self) -> &'static str {
        match self {
            WireFormat::AnthropicMessages => "anthropic",
            WireFormat::OpenAiResponses => "openai_responses",
            WireFormat::OpenAiChat => "openai_chat",
            WireFormat::Gemini => "gemini",
        }
    }

    /// Whether services with this format offer server-side compaction.
    pub fn compacts(self) -> bool {
        match self {
            WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => true,
            WireFormat::OpenAiChat | WireFormat::Gemini => false,
        }
    }
}
