//! The model for auxiliary tasks.

use super::{KnownModel, provider_models};
use crate::model_endpoint::Endpoint;
use epitome_config::Settings;
use epitome_thread::ModelName;

/// `models.small`, otherwise the cheapest model of the main model's vendor that has no announced shutdown. `None` at a
/// compatible service, whose models are unknown.
pub fn small(settings: &Settings, main: Option<&Endpoint>) -> Option<ModelName> {
    let cheapest = || {
        let main = main.filter(|main| main.own_api)?;
        let may_be_called = |known: &&KnownModel| settings.policy.refuses_model(Some(known.name)).is_none();
        let current = provider_models(main.provider()).filter(|known| known.retires.is_none());
        let cheapest = current
            .filter(may_be_called)
            .min_by(|one, other| one.price.input.total_cmp(&other.price.input))?;
        Some(ModelName(cheapest.name.to_owned()))
    };
    settings.small_model.clone().map(ModelName).or_else(cheapest)
}
