//! The models that clients can choose: those of the daemon's option for the model. Pure.

use ahp::ahp_types::actions::StateAction;
use serde_json::{Value, json};

use super::session::PROVIDER;

/// The id of the daemon's option.
pub const MODEL: &str = "model";

/// See the module.
#[derive(Default)]
pub struct AgentModels {
    /// Ids and names.
    known: Vec<(String, String)>,
}

impl AgentModels {
    /// Takes the models from the daemon's options; returns whether they are others.
    pub fn update(&mut self, options: &Value) -> bool {
        let options = options.as_array().into_iter().flatten();
        let Some(option) = options.into_iter().find(|option| option["configId"] == MODEL) else {
            return false;
        };
        // They may be in groups.
        let listed = option["options"].as_array().into_iter().flatten();
        let values = listed.flat_map(|value| match value["options"].as_array() {
            Some(group) => group.iter().collect::<Vec<_>>(),
            None => vec![value],
        });
        let known = values.filter_map(|value| {
            Some((value["value"].as_str()?.to_owned(), value["name"].as_str()?.to_owned()))
        });
        let before = std::mem::replace(&mut self.known, known.collect());
        before != self.known
    }

    /// The only agent of this host, as clients see it.
    pub fn agents(&self) -> Value {
        let models =
            self.known.iter().map(|(id, name)| json!({ "id": id, "provider": PROVIDER, "name": name }));
        let about = "Sessions of the daemon on this machine";
        json!([{
            "provider": PROVIDER, "displayName": "Epitome", "description": about,
            "models": models.collect::<Vec<_>>(),
        }])
    }

    /// Checks the model of a client's message. The error is why it is rejected.
    pub fn check(&self, action: &StateAction) -> Result<(), String> {
        let message = match action {
            StateAction::ChatTurnStarted(started) => &started.message,
            StateAction::ChatPendingMessageSet(pending) => &pending.message,
            _ => return Ok(()),
        };
        let Some(model) = &message.model else { return Ok(()) };
        if model.config.as_ref().is_some_and(|config| !config.is_empty()) {
            return Err("models have no configuration here".to_owned());
        }
        match self.known.iter().any(|(id, _)| *id == model.id) {
            true => Ok(()),
            false => Err(format!("there is no model {:?}", model.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_those_of_the_option_in_groups_or_not() {
        let mut models = AgentModels::default();
        let one = json!({ "value": "local/a", "name": "a" });
        let group = json!({ "groupId": "g", "name": "G", "options": [{ "value": "local/b", "name": "b" }] });
        let options = json!([{ "configId": "mode" }, { "configId": "model", "options": [one, group] }]);
        assert!(models.update(&options) && !models.update(&options));
        assert_eq!(
            models.agents()[0]["models"][1],
            json!({ "id": "local/b", "provider": "epitome", "name": "b" })
        );
    }
}
