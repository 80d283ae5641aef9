//! All available models, with their known properties and where those come from. Pure, apart from data learned at run
//! time.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::abilities::{Abilities, Thinking};
use super::environment::EnvironmentPairs;
use super::learned::{AppliedFacts, FactSource, Learned};
use super::listing::Lifecycle;
use super::local::LocalServer;
use super::model_endpoint::Endpoint;
use super::models::{self, ModelPrice, NO_MODEL, provider_of};
use super::resolve::{self, ConfiguredModel, NamedEndpoint};
use epitome_config::Settings;
use epitome_thread::ModelName;
use epitome_tokens::model_name::undated;

/// Maximum number of models offered to a client. Some routers have hundreds, and the complete list is sent each time.
const OFFERED_MAX: usize = 200;

/// A model that users can choose.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedModel {
    pub name: ModelName,
    /// Maximum tokens of a request.
    pub window: (u64, FactSource),
    /// Maximum tokens of a reply.
    pub max_output: (u32, FactSource),
    pub price: Option<ModelPrice>,
    pub abilities: Abilities,
    pub life: Lifecycle,
    /// Whether it can be called with the current configuration: its key is set, or none is needed.
    pub is_usable: bool,
}

impl OfferedModel {
    pub fn thinks(&self) -> bool {
        self.abilities.thinking != Thinking::None
    }

    /// Machine-readable form.
    pub fn to_json(&self, marks: &CurrentModels) -> Value {
        let known = |tokens: u64, source: FactSource| match tokens {
            0 => Value::Null,
            tokens => json!({ "tokens": tokens, "from": source.id() }),
        };
        let (is_ending, ends) = match &self.life {
            Lifecycle::Active => (false, None),
            Lifecycle::Ending { on } => (true, on.clone()),
        };
        json!({
            "name": self.name.0,
            "provider": provider_of(&self.name),
            "chosen": marks.chosen.as_ref() == Some(&self.name),
            "default": marks.default.as_ref() == Some(&self.name),
            "usable": self.is_usable,
            "window": known(self.window.0, self.window.1),
            "max_output": known(u64::from(self.max_output.0), self.max_output.1),
            "dollars_per_million_tokens": self.price,
            "images": self.abilities.images,
            "documents": self.abilities.documents,
            "thinking": self.thinks(),
            "ending": is_ending,
            "ends": ends,
        })
    }
}

/// The chosen and the default model.
pub struct CurrentModels {
    pub chosen: Option<ModelName>,
    /// The model used when none is chosen.
    pub default: Option<ModelName>,
}

/// The models to include.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatalogScope {
    /// Models that can be called with the current configuration.
    Usable,
    /// Also the models of built-in providers without a key.
    All,
}

/// The inputs from which the list of models is computed.
#[derive(Clone, Copy)]
pub struct ModelCatalog<'a> {
    pub settings: &'a Settings,
    pub environment: &'a EnvironmentPairs,
    pub learned: &'a Learned,
    /// The server on this machine, if one has been found.
    pub local: Option<&'a LocalServer>,
}

impl ModelCatalog<'_> {
    pub fn marks(&self) -> CurrentModels {
        CurrentModels { chosen: self.chosen_model(), default: self.default_model() }
    }

    /// Lists at most `most` models, grouped by provider. The chosen model's provider is first.
    pub fn offers(&self, scope: CatalogScope, most: usize) -> Vec<OfferedModel> {
        let mut models = resolve::offered(self.settings, self.environment);
        let local = self.local.into_iter().flat_map(|server| &server.models);
        models.extend(local.map(|listed| (listed.local_name(), None)));
        if scope == CatalogScope::All {
            let known = resolve::built_in_providers().flat_map(models::provider_models);
            models.extend(known.map(|known| (ModelName(known.name.into()), None)));
        }
        resolve::keep_distinct(&mut models);
        let providers = self.providers(&models);
        let mut names: HashSet<String> = models.iter().map(|(name, _)| undated(&name.0).to_owned()).collect();
        for provider in &providers {
            let Some(endpoint) = self.endpoint_of(provider) else { continue };
            for listed in self.learned.list(&endpoint) {
                let name = format!("{provider}/{}", listed.name);
                // Providers list dated names of models whose undated names are already in the list.
                if models.len() < most && names.insert(undated(&name).to_owned()) {
                    models.push((ModelName(name), None));
                }
            }
        }
        models.retain(|(name, _)| self.settings.policy.refuses_model(Some(&name.0)).is_none());
        let group = |name: &ModelName| providers.iter().position(|provider| provider_of(name) == provider);
        models.sort_by_key(|(name, _)| group(name));
        let offers = models.into_iter().map(|model| self.offer(model));
        offers.filter(|offer| scope == CatalogScope::All || offer.is_usable).take(most).collect()
    }

    /// The models to offer to a client. They are computed once for the same inputs.
    pub fn usable(&self) -> Arc<[OfferedModel]> {
        self.learned.offers(self, || self.offers(CatalogScope::Usable, OFFERED_MAX))
    }

    /// Returns one endpoint per callable provider, for listing its models.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let models = resolve::offered(self.settings, self.environment);
        self.providers(&models).iter().filter_map(|provider| self.endpoint_of(provider)).collect()
    }

    /// The model that is used if none is chosen.
    pub fn default_model(&self) -> Option<ModelName> {
        let settings = Settings { model: None, ..self.settings.clone() };
        let environment: Vec<_> =
            self.environment.iter().filter(|(name, _)| name != "EPITOME_MODEL").cloned().collect();
        self.first_of(resolve::choose(&settings, &environment))
    }

    /// The model in use.
    pub fn chosen_model(&self) -> Option<ModelName> {
        self.first_of(resolve::choose(self.settings, self.environment))
    }

    fn first_of(&self, choice: ConfiguredModel) -> Option<ModelName> {
        match choice {
            ConfiguredModel::Named(name) => Some(name),
            ConfiguredModel::SearchLocal(_) => self.local?.first_model(),
        }
    }

    /// The providers of these models and the configured ones.
    fn providers(&self, models: &[NamedEndpoint]) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let of_models = models.iter().map(|(name, _)| provider_of(name).to_owned());
        let local = self.local.map(|_| "local".to_owned());
        let all = of_models.chain(self.settings.providers.keys().cloned()).chain(local);
        all.filter(|provider| seen.insert(provider.clone())).collect()
    }

    /// An endpoint of the provider; `None` without a key, or while no local server has been found.
    fn endpoint_of(&self, provider: &str) -> Option<Endpoint> {
        let any = ModelName(format!("{provider}/{NO_MODEL}"));
        match resolve::is_searched(&any, self.settings) {
            true => self.resolve(&self.local?.first_model()?),
            false => self.resolve(&any),
        }
    }

    fn resolve(&self, name: &ModelName) -> Option<Endpoint> {
        match resolve::is_searched(name, self.settings) {
            // Local models are not resolved by name, because that may probe ports.
            true => resolve::resolve_local(name, self.local?, self.settings, self.environment).ok(),
            false => resolve::resolve(name, self.settings, self.environment).ok(),
        }
    }

    /// The endpoint of a model, with what was learned about it; `None` if it can't be called.
    pub fn endpoint(&self, name: &ModelName) -> Option<Endpoint> {
        let mut endpoint = self.resolve(name)?;
        self.learned.apply(self.settings, &mut endpoint);
        Some(endpoint)
    }

    fn offer(&self, (name, endpoint): NamedEndpoint) -> OfferedModel {
        let known = models::known(&name);
        let resolved = endpoint.or_else(|| self.resolve(&name));
        let is_usable = resolved.is_some() || resolve::is_searched(&name, self.settings);
        let (AppliedFacts { window, max_output, life }, abilities) = match resolved {
            Some(mut endpoint) => (self.learned.apply(self.settings, &mut endpoint), endpoint.abilities),
            None => {
                let from = if known.is_some() { FactSource::Table } else { FactSource::Guess };
                let (window, max_output) = known.map_or((0, 0), |known| (known.window, known.max_output));
                let facts =
                    AppliedFacts { window: (window, from), max_output: (max_output, from), life: None };
                (facts, Abilities::default())
            }
        };
        let life = match life {
            Some(ending @ Lifecycle::Ending { .. }) => ending,
            Some(Lifecycle::Active) | None => match known.and_then(|known| known.retires) {
                Some(day) => Lifecycle::Ending { on: Some(day.to_owned()) },
                None => Lifecycle::Active,
            },
        };
        let price = models::price(self.settings, &name);
        OfferedModel { name, window, max_output, price, abilities, life, is_usable }
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
