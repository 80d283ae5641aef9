//! The models that pickers show without requests to providers.

use std::collections::HashSet;

use super::Endpoint;
use super::resolve::{ConfiguredModel, EnvironmentPairs, HOSTED, choose, resolve};
use crate::abilities::needs_responses;
use crate::models;
use epitome_config::{Settings, WireFormat};
use epitome_thread::ModelName;

/// Models for a picker: the chosen model first, then those in the settings and those of providers with a key.
pub fn offered(settings: &Settings, env: &EnvironmentPairs) -> Vec<ModelName> {
    let mut names: Vec<ModelName> = Vec::new();
    if let ConfiguredModel::Named(model) = choose(settings, env) {
        names.push(model);
    }
    names.extend(settings.models.keys().map(|name| ModelName(name.clone())));
    let of_server = settings.gateway.iter().flat_map(|gateway| &gateway.offered.models);
    names.extend(of_server.map(|(name, _)| ModelName(name.clone())));
    for hosted in HOSTED.iter().filter(|hosted| hosted.is_there(settings, env)) {
        let of_table = models::provider_models(hosted.name).map(|known| ModelName(known.name.into()));
        let of_table = of_table.chain([ModelName(hosted.default_model.into())]);
        names.extend(of_table.filter(|name| {
            // Models that don't accept tools in this wire format are useless to an agent.
            resolve(name, settings, env).is_ok_and(|endpoint| takes_tools(&endpoint))
        }));
    }
    keep_distinct(&mut names);
    names
}

/// Removes repeated names, and those without a provider.
pub(crate) fn keep_distinct(names: &mut Vec<ModelName>) {
    let mut seen = HashSet::new();
    names.retain(|name| name.split().is_some() && seen.insert(name.clone()));
}

/// Whether the model accepts tools in the endpoint's wire format.
fn takes_tools(endpoint: &Endpoint) -> bool {
    endpoint.wire != WireFormat::OpenAiChat || !needs_responses(&endpoint.model)
}
