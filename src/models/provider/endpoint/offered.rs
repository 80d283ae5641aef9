//! The models that pickers show without requests to providers.

use std::collections::HashSet;

use super::Endpoint;
use super::resolve::{ConfiguredModel, EnvironmentPairs, Hosted, choose, resolve_in};
use crate::abilities::needs_responses;
use crate::models;
use crate::network::Network;
use epitome_config::{Settings, WireFormat};
use epitome_thread::ModelName;

/// A model, and its endpoint if that is known already: resolving it takes some ten microseconds.
pub type NamedEndpoint = (ModelName, Option<Endpoint>);

/// Models for a picker: the chosen model first, then those in the settings and those of providers with a key.
pub fn offered(settings: &Settings, env: &EnvironmentPairs) -> Vec<NamedEndpoint> {
    let chosen = match choose(settings, env) {
        ConfiguredModel::Named(model) => Some(model),
        ConfiguredModel::SearchLocal(_) => None,
    };
    let configured = settings.models.keys().cloned().map(ModelName);
    let mut models: Vec<NamedEndpoint> =
        chosen.into_iter().chain(configured).map(|name| (name, None)).collect();
    let network = Network::read(env);
    for hosted in Hosted::usable(settings, env) {
        let of_table = models::provider_models(hosted.name).map(|known| ModelName(known.name.into()));
        let of_table = of_table.chain([ModelName(hosted.default_model.into())]);
        models.extend(of_table.filter_map(|name| {
            // Models that don't accept tools in this wire format are useless to an agent.
            let endpoint = resolve_in(network.clone(), &name, settings, env).ok().filter(takes_tools)?;
            Some((name, Some(endpoint)))
        }));
    }
    keep_distinct(&mut models);
    models
}

/// Removes repeated names, and those without a provider.
pub(crate) fn keep_distinct(models: &mut Vec<NamedEndpoint>) {
    let mut seen = HashSet::new();
    models.retain(|(name, _)| name.split().is_some() && seen.insert(name.clone()));
}

/// Whether the model accepts tools in the endpoint's wire format.
fn takes_tools(endpoint: &Endpoint) -> bool {
    endpoint.wire != WireFormat::OpenAiChat || !needs_responses(&endpoint.model)
}
