//! Facts about a model, each known or unknown.

use serde::{Deserialize, Serialize};

use crate::abilities::{Abilities, Thinking};
use epitome_thread::ModelName;

/// A model in a provider's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// The name as sent to the provider.
    pub name: String,
    pub facts: ModelFacts,
    pub life: Lifecycle,
}

impl ListedModel {
    /// The full name of a model of a local server.
    pub fn local_name(&self) -> ModelName {
        ModelName(format!("local/{}", self.name))
    }
}

/// Whether a model is to be shut down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    #[default]
    Active,
    /// The model will be shut down on this day, if known, in the provider's notation.
    Ending { on: Option<String> },
}

/// Facts about a model; `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelFacts {
    /// Maximum tokens of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Maximum tokens of a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
    /// PDF documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
}

impl ModelFacts {
    /// Returns these facts, with unknown ones taken from `others`.
    pub fn or(self, others: ModelFacts) -> ModelFacts {
        ModelFacts {
            window: self.window.or(others.window),
            max_output: self.max_output.or(others.max_output),
            images: self.images.or(others.images),
            documents: self.documents.or(others.documents),
            thinking: self.thinking.or(others.thinking),
        }
    }

    /// Applies the known facts to a model's abilities.
    pub fn set_abilities(&self, abilities: &mut Abilities) {
        abilities.images = self.images.unwrap_or(abilities.images);
        abilities.documents = self.documents.unwrap_or(abilities.documents);
        // Without any effort that this version knows, the list provides no information.
        let thinking = self.thinking.filter(|thinking| *thinking != Thinking::Efforts(&[]));
        abilities.thinking = thinking.unwrap_or(abilities.thinking);
    }
}
