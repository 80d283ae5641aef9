//! What is known of some models: windows, limits, prices, abilities. The table is generated from a published
//! catalogue; a person's configuration goes before it, and a model that is not in it still works.

mod table;

use super::abilities::{Abilities, Effort, Thinking};
use super::endpoint::Endpoint;
use epitome_config::{PriceSettings, Settings};
use epitome_thread::{ModelName, Usage};
use epitome_tokens::family::undated;
use table::KNOWN;

/// The window of a model of which nothing is known, in tokens: what nearly every current hosted model
/// holds. A local server's own word or the configuration replaces it.
pub const WINDOW_DEFAULT: u64 = 128_000;

/// The most tokens of one reply of a model of which nothing is known: long enough for a whole file.
pub const OUTPUT_DEFAULT: u32 = 16_384;

/// What the table knows of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// `provider/name` without a date at its end.
    pub name: &'static str,
    /// Tokens that a request may hold.
    pub window: u64,
    /// Tokens that a reply may hold.
    pub max_output: u32,
    pub price: Price,
    pub images: bool,
    /// PDF documents.
    pub documents: bool,
    pub thinking: Thinking,
    /// Tokens that the beginning of a request must have to be cached, where that is known.
    pub cache_min: Option<u32>,
    /// The day on which the provider switches the model off, as `2026-11-30`, where one is announced.
    pub retires: Option<&'static str>,
}

/// US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    /// Of a cache that lasts some minutes.
    pub cache_write: f64,
    pub long: Option<Long>,
}

/// What requests cost that are longer than others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Long {
    /// Tokens of input, cached ones included; with more, the whole request is a long one.
    pub above: u64,
    /// What input costs then, cached or not, in multiples of its price.
    pub input: f64,
    pub output: f64,
}

impl From<PriceSettings> for Price {
    fn from(configured: PriceSettings) -> Price {
        let PriceSettings { input, output, cache_read, cache_write } = configured;
        Price {
            input,
            output,
            cache_read: cache_read.unwrap_or(input),
            cache_write: cache_write.unwrap_or(input),
            long: None,
        }
    }
}

impl Known {
    pub fn abilities(&self) -> Abilities {
        Abilities { images: self.images, documents: self.documents, thinking: self.thinking }
    }
}

/// The entry of a model, also when its name ends in a release date (`-20251001`, `-2026-03-05`) or in
/// `-latest`.
pub fn known(model: &ModelName) -> Option<&'static Known> {
    let exact = |name: &str| KNOWN.iter().find(|known| known.name == name);
    let shorter = || undated(&model.0).strip_suffix("-latest").unwrap_or(undated(&model.0));
    exact(&model.0).or_else(|| exact(shorter()))
}

/// What a model's tokens cost: what the person configured, else what the table says.
pub fn price(settings: &Settings, model: &ModelName) -> Option<Price> {
    let configured = settings.models.get(&model.0).and_then(|configured| configured.price);
    configured.map(Price::from).or_else(|| known(model).map(|known| known.price))
}

/// What a call cost in US dollars, where the prices are known.
pub fn cost(settings: &Settings, model: &ModelName, usage: &Usage) -> Option<f64> {
    let price = price(settings, model)?;
    let (of_input, of_output) = match price.long {
        Some(long) if usage.input > long.above => (long.input, long.output),
        Some(_) | None => (1.0, 1.0),
    };
    let fresh = usage.input.saturating_sub(usage.cache_read).saturating_sub(usage.cache_write);
    let input = fresh as f64 * price.input
        + usage.cache_read as f64 * price.cache_read
        + usage.cache_write as f64 * price.cache_write;
    Some((input * of_input + usage.output as f64 * price.output * of_output) / 1_000_000.0)
}

/// The models of a provider, best first, for a picker.
pub fn of_provider(provider: &str) -> impl Iterator<Item = &'static Known> {
    KNOWN.iter().filter(move |known| known.name.split_once('/').is_some_and(|(of, _)| of == provider))
}

/// Who does small work beside this model: `models.small`, or the cheapest model of its provider that is not about to be
/// switched off. `None` where neither is known: behind a gateway nobody knows what else is served.
pub fn small(settings: &Settings, main: Option<&Endpoint>) -> Option<ModelName> {
    let cheapest = || {
        let main = main.filter(|main| main.own_api)?;
        let current = of_provider(main.provider()).filter(|known| known.retires.is_none());
        let cheapest = current.min_by(|one, other| one.price.input.total_cmp(&other.price.input))?;
        Some(ModelName(cheapest.name.to_owned()))
    };
    settings.small_model.clone().map(ModelName).or_else(cheapest)
}

// ── How the table is written ───────────────────────────────────────────────────────────────────────

const fn model(name: &'static str, window: u64, max_output: u32) -> Known {
    Known {
        name,
        window,
        max_output,
        price: Price { input: 0.0, output: 0.0, cache_read: 0.0, cache_write: 0.0, long: None },
        images: false,
        documents: false,
        thinking: Thinking::None,
        cache_min: None,
        retires: None,
    }
}

impl Known {
    const fn costs(mut self, [input, output, cache_read, cache_write]: [f64; 4]) -> Known {
        self.price = Price { input, output, cache_read, cache_write, long: None };
        self
    }

    const fn long(mut self, above: u64, input: f64, output: f64) -> Known {
        self.price.long = Some(Long { above, input, output });
        self
    }

    const fn sees(mut self) -> Known {
        self.images = true;
        self
    }

    const fn reads(mut self) -> Known {
        self.documents = true;
        self
    }

    const fn budget(mut self, optional: bool) -> Known {
        self.thinking = Thinking::Budget { optional };
        self
    }

    const fn efforts(mut self, efforts: &'static [Effort]) -> Known {
        self.thinking = Thinking::Efforts(efforts);
        self
    }

    const fn caches_from(mut self, tokens: u32) -> Known {
        self.cache_min = Some(tokens);
        self
    }

    const fn until(mut self, day: &'static str) -> Known {
        self.retires = Some(day);
        self
    }
}

#[cfg(test)]
#[path = "models/tests.rs"]
mod tests;
