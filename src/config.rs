//! Settings: what a person configured, layered, as plain data. Read once for each session.

use std::collections::BTreeMap;

use crate::thread::{Mode, ThoughtLevel};

/// Everything that can be configured, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `provider/name`; `None` chooses by the environment.
    pub model: Option<String>,
    pub mode: Mode,
    pub thought: ThoughtLevel,
    /// Model calls that one turn may make.
    pub max_rounds: u32,
    /// What is known of models beyond the built-in table, by full name.
    pub models: BTreeMap<String, ModelSettings>,
    /// Providers beside the built-in ones, by the part of a model's name before the slash.
    pub providers: BTreeMap<String, ProviderSettings>,
}

/// Model calls in one turn, unless configured.
pub const MAX_ROUNDS: u32 = 200;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            model: None,
            mode: Mode::default(),
            thought: ThoughtLevel::default(),
            max_rounds: MAX_ROUNDS,
            models: BTreeMap::new(),
            providers: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSettings {
    /// Tokens.
    pub context_window: Option<u64>,
    /// Tokens.
    pub max_output: Option<u32>,
}

/// A provider that speaks a wire format that we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSettings {
    pub wire: WireFormat,
    pub base_url: String,
    /// The environment variable that holds the key; `None` sends none.
    pub key_variable: Option<String>,
    pub headers: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFormat {
    AnthropicMessages,
    OpenAiChat,
}
