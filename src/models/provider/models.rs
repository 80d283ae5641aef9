//! Built-in knowledge of some models: context windows, limits, prices, abilities. The table is generated from a
//! published catalog. The user's configuration takes precedence, and models that aren't in the table still work.

mod small;
mod table;

use std::borrow::Cow;

use serde::Serialize;

use super::abilities::{Abilities, Effort, Thinking};
use epitome_config::{ModelSettings, PriceSettings, Settings};
use epitome_thread::{ModelName, SizedUsage, Usage};
use epitome_tokens::model_name::{Family, ParsedName, undated};
pub use small::small;
use table::KNOWN;

/// Default context window, in tokens, of an unknown model: nearly every current hosted model has at least that. The
/// provider's list or the configuration overrides it.
pub const WINDOW_DEFAULT: u64 = 128_000;

/// Default maximum reply tokens of an unknown model: enough for an entire file.
pub const OUTPUT_DEFAULT: u32 = 16_384;

/// A model name for requests that use no model. No rule matches it.
pub const NO_MODEL: &str = "-";

/// Searches that a provider may run during one reply.
pub const PROVIDER_SEARCHES_MAX: u64 = 5;

/// The table's entry of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownModel {
    /// `provider/name` without a trailing date.
    pub name: &'static str,
    /// Maximum tokens of a request.
    pub window: u64,
    /// Maximum tokens of a reply.
    pub max_output: u32,
    pub price: ModelPrice,
    pub images: bool,
    /// PDF documents.
    pub documents: bool,
    pub thinking: Thinking,
    /// Minimum tokens of a prefix that can be cached, if known.
    pub cache_min: Option<u32>,
    /// The announced day, such as `2026-11-30`, on which the provider shuts the model down.
    pub retires: Option<&'static str>,
}

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ModelPrice {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    /// The price of writing to a cache with a lifetime of a few minutes.
    pub cache_write: f64,
    #[serde(skip)]
    pub long: Option<LongRequestPrice>,
}

/// Surcharge for long requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRequestPrice {
    /// Threshold in input tokens, including cached ones; above it, the surcharge applies to the entire
    /// request.
    pub above: u64,
    /// Factor for the price of input, cached or not.
    pub input: f64,
    pub output: f64,
}

impl From<PriceSettings> for ModelPrice {
    fn from(configured: PriceSettings) -> ModelPrice {
        let PriceSettings { input, output, cache_read, cache_write } = configured;
        ModelPrice {
            input,
            output,
            cache_read: cache_read.unwrap_or(input),
            cache_write: cache_write.unwrap_or(input),
            long: None,
        }
    }
}

impl KnownModel {
    pub fn abilities(&self) -> Abilities {
        // The catalog says nothing about audio that requests could use.
        let audio = self.name.starts_with("gemini/");
        Abilities { images: self.images, documents: self.documents, audio, thinking: self.thinking }
    }
}

/// The table's entry of a model; `None` if it has none. A release date (`-20251001`, `-2026-03-05`) or `-latest` at the
/// end of the name is ignored.
pub fn known(model: &ModelName) -> Option<&'static KnownModel> {
    let exact = |name: &str| KNOWN.iter().find(|known| known.name == name);
    let name = vendors_name(&model.0);
    let shorter = || undated(&name).strip_suffix("-latest").unwrap_or(undated(&name));
    exact(&name).or_else(|| exact(shorter()))
}

/// A model's name at its vendor: ChatGPT plans and Azure serve OpenAI's models, clouds those of several vendors.
fn vendors_name(model: &str) -> Cow<'_, str> {
    let Some((provider, name)) = model.split_once('/') else { return model.into() };
    match provider {
        "chatgpt" | "azure" => format!("openai/{name}").into(),
        // `claude-opus-4-5@20251101`
        "vertex" if name.starts_with("claude") => {
            let name = name.split_once('@').map_or(name, |(name, _)| name);
            format!("anthropic/{name}").into()
        }
        "vertex" => format!("gemini/{name}").into(),
        // `us.anthropic.claude-opus-5-5-v1:0`
        "bedrock" => match name.split_once("anthropic.") {
            Some((_, name)) => {
                let name = name.split_once(':').map_or(name, |(name, _)| name);
                format!("anthropic/{}", name.strip_suffix("-v1").unwrap_or(name)).into()
            }
            None => model.into(),
        },
        _ => model.into(),
    }
}

/// The part of a model name before the slash.
pub fn provider_of(name: &ModelName) -> &str {
    name.split().map_or(name.0.as_str(), |(provider, _)| provider)
}

/// The provider whose calls use a plan and have no price.
const PLAN: &str = "chatgpt/";

/// The beta feature that gives Claude Sonnet 4 and 4.5 a larger window.
const WIDE_BETA: &str = "context-1m-2025-08-07";
const WIDE_WINDOW: u64 = 1_000_000;

/// A model's context window by the user's settings: the number, or that of a beta feature.
pub fn configured_window(model: &ModelName, configured: Option<&ModelSettings>) -> Option<u64> {
    let configured = configured?;
    let name = ParsedName::parse(&model.0);
    let has_wide = name.family == Family::Claude
        && name.has("sonnet")
        && name.version.is_some_and(|version| ((4, 0)..=(4, 5)).contains(&version));
    let is_wide = has_wide && configured.betas.iter().any(|beta| beta == WIDE_BETA);
    configured.context_window.or(is_wide.then_some(WIDE_WINDOW))
}

/// A model's prices: configured by the user, otherwise from the table.
pub fn price(settings: &Settings, model: &ModelName) -> Option<ModelPrice> {
    let configured = settings.models.get(&model.0).and_then(|configured| configured.price);
    let is_plan = model.0.starts_with(PLAN);
    let of_table = || known(model).filter(|_| !is_plan).map(|known| known.price);
    configured.map(ModelPrice::from).or_else(of_table)
}

/// The cost of a call in US dollars; `None` if the price is unknown.
pub fn cost(settings: &Settings, model: &ModelName, usage: &Usage) -> Option<f64> {
    cost_of_calls(settings, SizedUsage { model, context: usage.input_context(), usage })
}

/// The cost of calls of one size in US dollars; `None` if the price is unknown.
pub fn cost_of_calls(settings: &Settings, calls: SizedUsage<'_>) -> Option<f64> {
    let SizedUsage { model, context, usage } = calls;
    let price = price(settings, model)?;
    let (of_input, of_output) = match price.long {
        Some(long) if context > long.above => (long.input, long.output),
        Some(_) | None => (1.0, 1.0),
    };
    let fresh = usage.input.saturating_sub(usage.cache_read).saturating_sub(usage.cache_write);
    let input = fresh as f64 * price.input
        + usage.cache_read as f64 * price.cache_read
        + usage.cache_write as f64 * price.cache_write;
    let tokens = (input * of_input + usage.output as f64 * price.output * of_output) / 1_000_000.0;
    Some(tokens + usage.searches as f64 * search_price(model))
}

/// US dollars for a search by the provider of this model, in addition to the tokens.
pub fn search_price(model: &ModelName) -> f64 {
    let name = ParsedName::parse(&model.0);
    // The price of both Anthropic and OpenAI.
    if name.family == Family::Gemini { 0.014 } else { 0.01 }
}

/// The models of a provider, best first, for a picker.
pub fn provider_models(provider: &str) -> impl Iterator<Item = &'static KnownModel> {
    KNOWN.iter().filter(move |known| known.name.split_once('/').is_some_and(|(of, _)| of == provider))
}

// ── Builder of table entries ───────────────────────────────────────────────────────────────────────

const fn model(name: &'static str, window: u64, max_output: u32) -> KnownModel {
    KnownModel {
        name,
        window,
        max_output,
        price: ModelPrice { input: 0.0, output: 0.0, cache_read: 0.0, cache_write: 0.0, long: None },
        images: false,
        documents: false,
        thinking: Thinking::None,
        cache_min: None,
        retires: None,
    }
}

impl KnownModel {
    const fn costs(mut self, [input, output, cache_read, cache_write]: [f64; 4]) -> KnownModel {
        self.price = ModelPrice { input, output, cache_read, cache_write, long: None };
        self
    }

    const fn long(mut self, above: u64, input: f64, output: f64) -> KnownModel {
        self.price.long = Some(LongRequestPrice { above, input, output });
        self
    }

    const fn sees(mut self) -> KnownModel {
        self.images = true;
        self
    }

    const fn reads(mut self) -> KnownModel {
        self.documents = true;
        self
    }

    const fn budget(mut self, optional: bool) -> KnownModel {
        self.thinking = Thinking::Budget { optional };
        self
    }

    const fn efforts(mut self, efforts: &'static [Effort]) -> KnownModel {
        self.thinking = Thinking::Efforts(efforts);
        self
    }

    const fn caches_from(mut self, tokens: u32) -> KnownModel {
        self.cache_min = Some(tokens);
        self
    }

    const fn until(mut self, day: &'static str) -> KnownModel {
        self.retires = Some(day);
        self
    }
}

#[cfg(test)]
#[path = "models/tests.rs"]
mod tests;
