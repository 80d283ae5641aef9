//! Settings of providers, searches and the editor, as plain data.

use std::collections::BTreeMap;
use std::fmt;

use epitome_thread::named_enum;
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

named_enum! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum WireFormat {
        AnthropicMessages = "anthropic",
        OpenAiResponses = "openai_responses",
        OpenAiChat = "openai_chat",
        Gemini = "gemini",
    }
}

named_enum! {
    /// When edits of files without unsaved text are sent through the editor.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum EditorWrites {
        /// If the editor is known to include only its own writes in its review of changes.
        #[default]
        Auto = "auto",
        /// If the editor supports writing files.
        Always = "always",
        Never = "never",
    }
}

named_enum! {
    /// How the chat announces the end of a long turn.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum TurnNotice {
        #[default]
        Off = "off",
        Bell = "bell",
        /// A notification of the desktop, by terminals that know this sequence.
        Osc9 = "osc9",
    }
}

impl TurnNotice {
    /// The bytes that are written to the terminal.
    pub fn sequence(self) -> Option<&'static str> {
        match self {
            TurnNotice::Off => None,
            TurnNotice::Bell => Some("\x07"),
            TurnNotice::Osc9 => Some("\x1b]9;Epitome waits for you\x07"),
        }
    }
}

named_enum! {
    /// The keys that edit a prompt of the chat.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ChatKeys {
        /// Those of most shells.
        #[default]
        Default = "default",
        Vim = "vim",
    }
}

named_enum! {
    /// The service for the model's web searches.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SearchChoice {
        /// The model can't search.
        #[default]
        Off = "off",
        /// The search of the model's provider, else the SearXNG server of `SEARXNG_URL`.
        Auto = "auto",
        Provider = "provider",
        Searxng = "searxng",
        Brave = "brave",
        Tavily = "tavily",
        Exa = "exa",
    }
}

impl SearchChoice {
    /// Whether models whose provider offers a search use that.
    pub fn uses_provider(self) -> bool {
        matches!(self, SearchChoice::Auto | SearchChoice::Provider)
    }
}

impl WireFormat {
    /// Whether services with this format offer server-side compaction.
    pub fn compacts(self) -> bool {
        match self {
            WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => true,
            WireFormat::OpenAiChat | WireFormat::Gemini => false,
        }
    }
}
