//! Choosing options, and continuing when a model was found.

use super::Session;
use crate::model_link::{Choices, ModelListQuery};
use crate::provider_errors::provider_error;
use crate::work::AfterScan;
use crate::{SessionAnswer, SessionError, SessionEvent};
use epitome_provider::endpoint::LocalServer;
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Mode, ThoughtLevel};

impl Session {
    /// Sets one option. An unknown option or value is an error and changes nothing.
    pub(super) fn choose(&mut self, option: &str, value: &str) -> Result<SessionAnswer, SessionError> {
        let unknown = |what: &str| SessionError::Invalid(format!("there is no {what} {value:?} to choose"));
        let change = match option {
            "mode" => {
                let mode = Mode::parse(value).ok_or_else(|| unknown("mode"))?;
                match self.core.settings.policy.refuses_mode(mode) {
                    None => Change::ModeChosen { mode },
                    Some(why) => return Err(SessionError::Invalid(why)),
                }
            }
            "thought_level" => Change::ThoughtChosen {
                level: ThoughtLevel::parse(value).ok_or_else(|| unknown("thought level"))?,
            },
            "auto_compact" => Change::AutoCompactChosen {
                is_on: match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(unknown("choice")),
                },
            },
            "model" => {
                let choices = Choices::new(&self.core.thread, &self.core.settings, &self.core.workspace);
                let model = self.core.model.chosen(value, choices)?;
                self.core.model.forget_endpoint();
                Change::ModelChosen { model }
            }
            _ => return Err(SessionError::Invalid(format!("there is no option {option:?}"))),
        };
        let entry = self.core.commit(change)?;
        match entry.change {
            Change::ModeChosen { mode } => self.subagents.set_mode(mode),
            Change::ModelChosen { .. } => self.call_chosen_model(),
            _ => {}
        }
        self.core.locate();
        let options = self.core.options();
        self.core.announce(&SessionEvent::Options(options.clone()));
        Ok(SessionAnswer::Options(options))
    }

    /// Applies the facts in a provider's list of models.
    pub(super) fn models_listed(&mut self, listed: ModelListQuery) {
        let effects = self.core.model.apply_learned(listed, &self.core.settings);
        self.core.model_learned(effects);
    }

    /// Continues what waits for a search for models.
    pub(super) fn models_found(&mut self, found: Option<LocalServer>) {
        let choices = Choices::new(&self.core.thread, &self.core.settings, &self.core.workspace);
        let searched = self.core.model.searched(found, choices);
        let postponed = self.work.as_mut().and_then(|work| work.postponed.take());
        let error = match searched {
            Ok((effects, renamed)) => {
                self.core.model_learned(effects);
                if renamed {
                    self.core.announce(&SessionEvent::Options(self.core.options()));
                }
                self.core.announce_usage();
                return postponed.map_or((), |ask| self.perform(ask));
            }
            Err(error) => error,
        };
        match postponed {
            Some(ask) => self.fail_without_model(&ask, &error),
            // During a turn, waiting prompts don't wait for the server.
            None if self.work.is_some() => {}
            None => {
                let mut first = None;
                for prompt in self.inbox.take_all() {
                    if self.is_built_in(&prompt) {
                        // It may only be waiting for the recipes' names.
                        self.inbox.push(prompt);
                    } else if !self.needs_no_model(&prompt) {
                        prompt.responder.answer(Err(provider_error(&error)));
                    } else if first.is_none() {
                        first = Some(prompt);
                    } else {
                        self.inbox.push(prompt);
                    }
                }
                if let Some(prompt) = first {
                    self.begin_command(prompt, ShellOutputs::new());
                }
            }
        }
    }
}

impl Session {
    /// If the turn's call waits for another attempt, the model that was just chosen is called now instead.
    fn call_chosen_model(&mut self) {
        let Some(work) = &mut self.work else { return };
        if work.run.endpoint.is_none() && work.model.take_if(|call| call.is_waiting()).is_some() {
            self.scan_first(AfterScan::CallModel);
        }
    }
}
