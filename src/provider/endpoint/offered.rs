//! The models that a picker shows without asking anybody.

use super::Endpoint;
use super::resolve::{Choice, Environment, HOSTED, choose, resolve};
use crate::config::{Settings, WireFormat};
use crate::provider::abilities::needs_responses;
use crate::provider::models;
use crate::thread::ModelName;

/// Models to offer in a picker, with what to show for them: those of providers whose key is there,
/// and those that the settings name. The chosen model comes first.
pub fn offered(settings: &Settings, env: &Environment) -> Vec<(ModelName, String)> {
    let mut names: Vec<ModelName> = Vec::new();
    if let Choice::Named(model) = choose(settings, env) {
        names.push(model);
    }
    names.extend(settings.models.keys().map(|name| ModelName(name.clone())));
    for hosted in HOSTED.iter().filter(|hosted| hosted.is_there(settings, env)) {
        let of_table = models::of_provider(hosted.name).map(|known| ModelName(known.name.into()));
        names.extend(of_table.filter(|name| {
            // What can't be given tools over the format that is spoken there is no use to an agent.
            resolve(name, settings, env).is_ok_and(|endpoint| takes_tools(&endpoint))
        }));
    }
    let mut offered: Vec<(ModelName, String)> = Vec::new();
    for name in names {
        let is_new = !offered.iter().any(|(existing, _)| *existing == name);
        if is_new && name.split().is_some() {
            let label = label(&name);
            offered.push((name, label));
        }
    }
    offered
}

/// Whether the model can be given tools over the endpoint's format.
fn takes_tools(endpoint: &Endpoint) -> bool {
    endpoint.wire != WireFormat::OpenAiChat || !needs_responses(&endpoint.model)
}

fn label(name: &ModelName) -> String {
    match (name.split(), models::known(name)) {
        (Some((provider, model)), Some(known)) => {
            let price = known.price;
            format!("{model} ({provider}, ${} in, ${} out per million tokens)", price.input, price.output)
        }
        (Some((provider, model)), None) => format!("{model} ({provider})"),
        (None, _) => name.0.clone(),
    }
}
