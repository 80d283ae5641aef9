//! Model settings: the `[models]` table. A repository's file may describe a model's size and capabilities, but set
//! nothing that costs money or hides costs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use toml::de::DeValue;

use super::file::{ConfigReader, TomlKey, TomlValue, fields};
use super::keys::ANY_NAME;
use super::kind::{Kind, names, one_of, real, text, truth};
use super::values::{ValueError, call_seconds, model_name, small_tokens, tokens, wrong_type};
use super::{Settings, WireFormat};
use epitome_thread::named_enum;

/// User-supplied model properties, which take precedence over every other source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    /// In tokens.
    pub context_window: Option<u64>,
    /// In tokens.
    pub max_output: Option<u32>,
    /// Beta features to request for this model (Anthropic's `anthropic-beta` header).
    pub betas: Vec<String>,
    /// Whether the model accepts images.
    pub images: Option<bool>,
    /// Whether the model accepts PDF documents.
    pub documents: Option<bool>,
    /// Whether the model accepts audio.
    pub audio: Option<bool>,
    /// The tools with which the model edits files.
    pub edit_tools: Option<EditTools>,
    pub thinking: Option<ThinkingSettings>,
    /// Whether to use the provider's server-side compaction.
    pub native_compaction: Option<bool>,
    pub price: Option<PriceSettings>,
    /// Maximum time without progress of a reply.
    pub silence: Option<Duration>,
}

named_enum! {
    /// The tools with which a model edits files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum EditTools {
        Patch = "apply_patch",
        Replace = "file_edit",
        All = "all",
    }
}

/// How a model's thinking is configured in requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThinkingSettings {
    /// The model does not think.
    None,
    /// By a token budget.
    Budget,
    /// By effort levels, in ascending order.
    Efforts(Vec<Effort>),
}

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceSettings {
    pub input: f64,
    pub output: f64,
    /// Defaults to `input`.
    pub cache_read: Option<f64>,
    /// Defaults to `input`.
    pub cache_write: Option<f64>,
}

named_enum! {
    /// Effort levels of the providers, in ascending order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Effort {
        None = "none",
        Minimal = "minimal",
        Low = "low",
        Medium = "medium",
        High = "high",
        XHigh = "xhigh",
        Max = "max",
    }
}

impl ConfigReader<'_> {
    pub(super) fn models(&mut self, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(models) = self.table(value, "models") else { return };
        for (name, value) in self.entries(models, &[&["small"], &[ANY_NAME]]) {
            self.enter(&name);
            // `models.small` is a model name; all other keys are model tables.
            match &**name.get_ref() {
                "small" if !value.get_ref().is_table() => {
                    if !self.refused(name.span(), "models.small") {
                        self.set(value, &mut settings.small_model, model_name());
                    }
                }
                _ => self.model(&name, value, settings),
            }
            self.leave();
        }
    }

    fn model(&mut self, name: &TomlKey<'_>, value: &TomlValue<'_>, settings: &mut Settings) {
        let Some(table) = self.table(value, "what is known of a model") else { return };
        let mut model: ModelSettings = settings.models.get(&**name.get_ref()).cloned().unwrap_or_default();
        // Beta features may cost more, as may an effort list with only the highest level, which overrides the user's
        // level; a price of 0 would hide costs.
        fields!(self, table, key, value, {
            "context_window" => self.set(value, &mut model.context_window, tokens()),
            "max_output" => self.set(value, &mut model.max_output, small_tokens()),
            "images" => self.set(value, &mut model.images, truth()),
            "documents" => self.set(value, &mut model.documents, truth()),
            "audio" => self.set(value, &mut model.audio, truth()),
            "edit_tools" => self.set(value, &mut model.edit_tools, edit_tools()),
            "betas" => if !self.refused(key.span(), "betas") {
                self.set(value, &mut model.betas, names());
            },
            "thinking" => if !self.refused(key.span(), "thinking") {
                self.set(value, &mut model.thinking, thinking());
            },
            "compaction" => if !self.refused(key.span(), "compaction of a model") {
                self.set(value, &mut model.native_compaction, native());
                if model.native_compaction == Some(true) {
                    self.native.push((name.get_ref().to_string(), value.span()));
                }
            },
            "silence_s" => self.set(value, &mut model.silence, call_seconds()),
            "price" => if !self.refused(key.span(), "price") {
                self.price(value, &mut model.price);
            },
        });
        settings.models.insert(name.get_ref().to_string(), model);
    }

    /// Reports models with native compaction whose provider doesn't support it, and resets the setting. Must run
    /// after the rest of the file is read, because the file may change a provider's wire format.
    pub(super) fn check_native(&mut self, settings: &mut Settings) {
        for (name, span) in std::mem::take(&mut self.native) {
            let provider = name.split_once('/').map_or("", |(provider, _)| provider);
            let Some(wire) = wire_of(provider, settings).filter(|wire| !wire.compacts()) else { continue };
            let with: Vec<String> = WireFormat::ALL
                .into_iter()
                .filter(|wire| wire.compacts())
                .map(|wire| format!("{:?}", wire.id()))
                .collect();
            let message = format!("the format {:?} has no compaction of its own", wire.id());
            let hint = format!("{} have one; use compaction = \"summary\" here", with.join(" and "));
            self.problem(span, message, Some(hint));
            if let Some(model) = settings.models.get_mut(&name) {
                model.native_compaction = None;
            }
        }
    }

    fn price(&mut self, value: &TomlValue<'_>, price: &mut Option<PriceSettings>) {
        let Some(table) = self.table(value, "a price") else { return };
        let before = self.problem_count();
        let [mut input, mut output, mut cache_read, mut cache_write] = [None; 4];
        fields!(self, table, key, value, {
            "input" => self.set(value, &mut input, dollars()),
            "output" => self.set(value, &mut output, dollars()),
            "cache_read" => self.set(value, &mut cache_read, dollars()),
            "cache_write" => self.set(value, &mut cache_write, dollars()),
        });
        match (input, output) {
            (Some(input), Some(output)) => {
                *price = Some(PriceSettings { input, output, cache_read, cache_write });
            }
            _ if self.problem_count() > before => {}
            (input, _) => {
                let missing = if input.is_none() { "input" } else { "output" };
                let hint = "in dollars per million tokens: price = { input = 0.5, output = 2.0 }";
                let message = format!("the price has no {missing}");
                self.problem(value.span(), message, Some(hint.to_owned()));
            }
        }
    }
}

/// Returns the wire format of a provider according to the settings.
fn wire_of(provider: &str, settings: &Settings) -> Option<WireFormat> {
    let configured = settings.providers.get(provider).map(|configured| configured.wire);
    let adjusted = || settings.built_in.get(provider).and_then(|configured| configured.wire);
    configured.or_else(adjusted).or(match provider {
        "anthropic" => Some(WireFormat::AnthropicMessages),
        "openai" => Some(WireFormat::OpenAiResponses),
        "gemini" => Some(WireFormat::Gemini),
        "local" => Some(WireFormat::OpenAiChat),
        _ => None,
    })
}

/// The compaction method; `true` is native.
fn native() -> Kind<bool> {
    let written = |is_native: &bool| json!(if *is_native { "native" } else { "summary" });
    Kind::new(json!({ "enum": ["summary", "native"] }), written, |value| match text().read(value)?.as_str() {
        "native" => Ok(true),
        "summary" => Ok(false),
        other => Err(ValueError::new(format!("unknown compaction {other:?}"))
            .hint("one of summary (a model writes it), native (the provider's own)")),
    })
}

fn edit_tools() -> Kind<EditTools> {
    one_of("edit_tools", &EditTools::ALL, EditTools::id)
}

fn dollars() -> Kind<f64> {
    let schema = json!({ "type": "number", "minimum": 0 });
    real(schema, "dollars per million tokens, from 0", |dollars| *dollars >= 0.0)
}

fn thinking() -> Kind<ThinkingSettings> {
    let efforts = json!({ "enum": Effort::ALL.map(Effort::id) });
    let list = json!({ "type": "array", "items": efforts, "minItems": 1 });
    let schema = json!({ "anyOf": [{ "enum": ["none", "budget", "effort"] }, list] });
    let written = |thinking: &ThinkingSettings| match thinking {
        ThinkingSettings::None => json!("none"),
        ThinkingSettings::Budget => json!("budget"),
        ThinkingSettings::Efforts(efforts) => json!(efforts),
    };
    Kind::new(schema, written, read_thinking)
}

fn read_thinking(value: &DeValue<'_>) -> Result<ThinkingSettings, ValueError> {
    if value.as_array().is_none() {
        let way = text()
            .read(value)
            .map_err(|_| wrong_type("\"none\", \"budget\", \"effort\" or a list of efforts", value))?;
        return match way.as_str() {
            "none" => Ok(ThinkingSettings::None),
            "budget" => Ok(ThinkingSettings::Budget),
            // The levels that every model with effort levels supports.
            "effort" => Ok(ThinkingSettings::Efforts(vec![Effort::Low, Effort::Medium, Effort::High])),
            other => Err(ValueError::new(format!("unknown thinking {other:?}"))
                .hint("one of none, budget, effort, or a list as [\"low\", \"high\"]")),
        };
    }
    let mut efforts = Vec::new();
    for word in names().read(value)? {
        let effort = Effort::parse(&word);
        let known = || format!("some of {}", Effort::ALL.map(Effort::id).join(", "));
        let unknown = || ValueError::new(format!("there is no effort {word:?}")).hint(known());
        efforts.push(effort.ok_or_else(unknown)?);
    }
    if efforts.is_empty() {
        let hint = "a model that does not think has thinking = \"none\"";
        return Err(ValueError::new("the list of efforts is empty").hint(hint));
    }
    efforts.sort();
    efforts.dedup();
    Ok(ThinkingSettings::Efforts(efforts))
}
