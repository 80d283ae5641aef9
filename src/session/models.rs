//! A session's choices (mode, model, thought level), and where the chosen model is called.

use std::collections::VecDeque;
use std::sync::Arc;

use super::actor::Session;
use super::clients::provider_error;
use super::work::{Background, Prompt};
use super::{Out, SessionError, SessionOptions};
use crate::provider::ProviderError;
use crate::provider::endpoint::{self, Choice, LocalServer};
use crate::provider::network::Network;
use crate::thread::{Change, Mode, ModelName, ThoughtLevel};

// ── Choices ────────────────────────────────────────────────────────────────────────────────────────

impl Session {
    /// Writes what is configured for new sessions into the log, so that it stays when settings change.
    pub(super) fn adopt_settings(&mut self) {
        let (mode, level) = (self.settings.mode, self.settings.thought);
        let mut changes = Vec::new();
        if mode != self.thread.mode() {
            changes.push(Change::ModeChosen { mode });
        }
        if level != self.thread.thought() {
            changes.push(Change::ThoughtChosen { level });
        }
        for change in changes {
            if let Err(error) = self.commit(change) {
                tracing::error!(session = %self.id, %error, "a configured choice could not be written");
            }
        }
    }

    /// Modes and options as they stand.
    pub(super) fn options(&self) -> Arc<SessionOptions> {
        let environment = &self.workspace.environment;
        let model = self.model_name();
        let mut models = endpoint::offered(&self.settings, environment);
        for found in &self.found {
            if !models.iter().any(|(name, _)| *name == found.0) {
                models.push(found.clone());
            }
        }
        if let Some(model) = &model
            && !models.iter().any(|(name, _)| name == model)
        {
            models.insert(0, (model.clone(), model.0.clone()));
        }
        Arc::new(SessionOptions { mode: self.thread.mode(), model, models, thought: self.thread.thought() })
    }

    /// Sets one option; an unknown one or an unknown value changes nothing.
    pub(super) fn choose(&mut self, option: &str, value: &str) -> Result<(), SessionError> {
        let unknown = |what: &str| SessionError::Invalid(format!("there is no {what} {value:?} to choose"));
        let change = match option {
            "mode" => Change::ModeChosen { mode: Mode::parse(value).ok_or_else(|| unknown("mode"))? },
            "thought_level" => Change::ThoughtChosen {
                level: ThoughtLevel::parse(value).ok_or_else(|| unknown("thought level"))?,
            },
            "model" => {
                let model = ModelName(value.to_owned());
                if !self.options().models.iter().any(|(name, _)| *name == model) {
                    return Err(unknown("model"));
                }
                self.endpoint = None;
                Change::ModelChosen { model }
            }
            _ => return Err(SessionError::Invalid(format!("there is no option {option:?}"))),
        };
        self.commit(change)?;
        self.locate_quietly();
        self.announce(&Out::Options(self.options()));
        Ok(())
    }

    fn model_name(&self) -> Option<ModelName> {
        if let Some(model) = self.thread.model() {
            return Some(model.clone());
        }
        match endpoint::choose(&self.settings, &self.workspace.environment) {
            Choice::Named(name) => Some(name),
            Choice::SearchLocal(_) => self.found.first().map(|(name, _)| name.clone()),
        }
    }
}

// ── Finding the model ──────────────────────────────────────────────────────────────────────────────

/// Whether a model call can be made.
pub(super) enum Located {
    Ready,
    /// A local server is being looked for.
    Searching,
    Nowhere(ProviderError),
}

impl Session {
    pub(super) fn locate(&mut self) -> Located {
        if self.endpoint.is_some() {
            return Located::Ready;
        }
        let environment = self.workspace.environment.clone();
        let name = match (self.thread.model(), endpoint::choose(&self.settings, &environment)) {
            (Some(name), _) => name.clone(),
            (None, Choice::Named(name)) => name,
            (None, Choice::SearchLocal(urls)) => return self.search(urls),
        };
        if name.split().is_some_and(|(provider, _)| provider == "local") {
            let urls = endpoint::local_urls(&environment);
            return self.search(urls);
        }
        match endpoint::resolve(&name, &self.settings, &environment) {
            Ok(endpoint) => {
                self.endpoint = Some(endpoint);
                Located::Ready
            }
            Err(error) => Located::Nowhere(error),
        }
    }

    /// Looks for the model without a prompt that waits for it, so that the window's size is known.
    pub(super) fn locate_quietly(&mut self) {
        match self.locate() {
            Located::Ready | Located::Searching | Located::Nowhere(_) => {}
        }
    }

    fn search(&mut self, urls: Vec<String>) -> Located {
        if !self.searching {
            self.searching = true;
            let http = self.services.http.within(Network::read(&self.workspace.environment));
            self.background
                .spawn(async move { Background::LocalServer(endpoint::find_local(&http, &urls).await) });
        }
        Located::Searching
    }

    pub(super) fn local_server_found(&mut self, server: Option<LocalServer>) {
        self.searching = false;
        let chosen = self.thread.model().cloned().or_else(|| {
            match endpoint::choose(&self.settings, &self.workspace.environment) {
                Choice::Named(name) => Some(name),
                Choice::SearchLocal(_) => None,
            }
        });
        let located = server.and_then(|server| {
            let before = self.model_name();
            self.found = server.models.iter().map(|(name, _)| (name.clone(), name.0.clone())).collect();
            let name = chosen.clone().or_else(|| self.found.first().map(|(name, _)| name.clone()))?;
            let mut endpoint = endpoint::resolve_local(&name, &server, &self.settings);
            endpoint.network = Network::read(&self.workspace.environment);
            self.endpoint = Some(endpoint);
            if self.model_name() != before {
                self.announce(&Out::Options(self.options()));
            }
            self.announce_usage();
            Some(())
        });
        let postponed = self.work.as_mut().and_then(|work| work.postponed.take());
        if located.is_some() {
            return postponed.map_or((), |ask| self.perform(ask));
        }
        let error = match chosen {
            Some(name) => endpoint::no_local_server(&name, &self.workspace.environment),
            None => endpoint::nothing_configured(),
        };
        match postponed {
            Some(ask) => self.tell_no_model(&ask, &error),
            // With a turn running, what waits does not wait for the server.
            None if self.work.is_some() => {}
            None => {
                // Our own commands need no model; they may only be waiting for the recipes' names.
                let (ours, others): (VecDeque<Prompt>, VecDeque<Prompt>) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition(|prompt| self.is_built_in(prompt));
                self.waiting = ours;
                for prompt in others {
                    prompt.responder.answer(Err(provider_error(&error)));
                }
            }
        }
    }
}
