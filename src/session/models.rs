//! A session's choices (mode, model, thought level), and where the chosen model is called.

use std::sync::Arc;

use super::actor::Session;
use super::provider_error;
use super::replies::sentence;
use super::work::Background;
use super::{ModelChoice, Out, SessionError, SessionOptions};
use epitome_provider::ProviderError;
use epitome_provider::abilities::Thinking;
use epitome_provider::catalog::{Catalog, Offer, Scope};
use epitome_provider::endpoint::{self, Choice, LocalServer};
use epitome_provider::learned::Source;
use epitome_provider::network::Network;
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Mode, ModelName, ThoughtLevel};

/// Models that a client is offered. Some routers have hundreds, and a list is sent whole each time.
const OFFERED_MAX: usize = 200;

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
        // What is only configured may change with the configuration; this was said for this session.
        if let Some(model) = self.overrides.model.clone() {
            changes.push(Change::ModelChosen { model: ModelName(model) });
        }
        for change in changes {
            if let Err(error) = self.commit(change) {
                tracing::error!(session = %self.id, %error, "a configured choice could not be written");
            }
        }
    }

    /// Modes and options as they stand.
    pub(super) fn options(&self) -> Arc<SessionOptions> {
        let model = self.model_name();
        let catalog = self.models();
        let offers = catalog.offers(Scope::Usable, OFFERED_MAX);
        let mut models: Vec<ModelChoice> = offers
            .iter()
            .map(|offer| ModelChoice { name: offer.name.clone(), about: about(offer) })
            .collect();
        if let Some(name) = &model
            && !models.iter().any(|choice| choice.name == *name)
        {
            models.insert(0, ModelChoice { name: name.clone(), about: String::new() });
        }
        let remarks = self.thinking(model.as_ref()).map_or(Vec::new(), remarks);
        let (mode, thought) = (self.thread.mode(), self.thread.thought());
        Arc::new(SessionOptions { mode, model, models, thought, remarks })
    }

    /// How a model's thinking is steered, as far as that can be told without asking anybody.
    fn thinking(&self, model: Option<&ModelName>) -> Option<Thinking> {
        let model = model?;
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| endpoint.name == *model) {
            return Some(endpoint.abilities.thinking);
        }
        let is_local = model.split().is_some_and(|(provider, _)| provider == "local");
        let found = || endpoint::resolve(model, &self.settings, &self.workspace.environment).ok();
        (!is_local).then(found).flatten().map(|endpoint| endpoint.abilities.thinking)
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
                let model = ModelName::written(value);
                if !self.options().models.iter().any(|choice| choice.name == model) {
                    // A key that is missing, or a provider that nobody knows, says more than that.
                    let found = endpoint::resolve(&model, &self.settings, &self.workspace.environment);
                    return Err(found
                        .err()
                        .map_or_else(|| unknown("model"), |error| SessionError::Invalid(sentence(&error))));
                }
                self.endpoint = None;
                Change::ModelChosen { model }
            }
            _ => return Err(SessionError::Invalid(format!("there is no option {option:?}"))),
        };
        let entry = self.commit(change)?;
        if let Change::ModeChosen { mode } = entry.change {
            self.tell_children_of_mode(mode);
        }
        self.locate_quietly();
        self.announce(&Out::Options(self.options()));
        Ok(())
    }

    fn model_name(&self) -> Option<ModelName> {
        if let Some(model) = self.thread.model() {
            return Some(model.clone());
        }
        self.models().chosen_model()
    }

    fn models(&self) -> Catalog<'_> {
        Catalog {
            settings: &self.settings,
            environment: &self.workspace.environment,
            learned: &self.services.learned,
            local: self.found.as_ref(),
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
        if endpoint::is_searched(&name, &self.settings) {
            let urls = endpoint::local_urls(&self.settings, &environment);
            return self.search(urls);
        }
        match endpoint::resolve(&name, &self.settings, &environment) {
            Ok(endpoint) => {
                self.use_endpoint(endpoint);
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
        let mut missing = None;
        let located = server.and_then(|server| {
            let before = self.model_name();
            let name = chosen.clone().or_else(|| server.models.first().map(|(name, _)| name.clone()))?;
            let environment = &self.workspace.environment;
            let resolved = endpoint::resolve_local(&name, &server, &self.settings, environment);
            let endpoint = resolved.map_err(|error| missing = Some(error)).ok()?;
            self.services.learned.learn_list(&endpoint, &server.listed());
            self.found = Some(server);
            self.use_endpoint(endpoint);
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
        let error = missing.unwrap_or_else(|| match chosen {
            Some(name) => endpoint::no_local_server(&name, &self.settings, &self.workspace.environment),
            None => endpoint::nothing_configured(&self.settings, &self.workspace.environment),
        });
        match postponed {
            Some(ask) => self.tell_no_model(&ask, &error),
            // With a turn running, what waits does not wait for the server.
            None if self.work.is_some() => {}
            None => {
                let mut first = None;
                for prompt in std::mem::take(&mut self.waiting) {
                    if self.is_built_in(&prompt) {
                        // It may only be waiting for the recipes' names.
                        self.waiting.push_back(prompt);
                    } else if !self.needs_no_model(&prompt) {
                        prompt.responder.answer(Err(provider_error(&error)));
                    } else if first.is_none() {
                        first = Some(prompt);
                    } else {
                        self.waiting.push_back(prompt);
                    }
                }
                if let Some(prompt) = first {
                    self.begin_command(prompt, ShellOutputs::new());
                }
            }
        }
    }
}

fn remarks(thinking: Thinking) -> Vec<(ThoughtLevel, String)> {
    let all = ThoughtLevel::ALL.into_iter().map(|level| (level, thinking.remark(level)));
    all.filter(|(_, remark)| !remark.is_empty()).collect()
}

/// What a model costs and holds, in one line.
fn about(offer: &Offer) -> String {
    let price =
        offer.price.map(|price| format!("${} in, ${} out per million tokens", price.input, price.output));
    let (window, source) = offer.window;
    let window = (source != Source::Guess).then(|| format!("{} tokens", rounded(window)));
    price.into_iter().chain(window).collect::<Vec<_>>().join(" · ")
}

/// A window as people say it: `1M`, `200k`, `32k`.
pub fn rounded(tokens: u64) -> String {
    match tokens {
        0..1_000 => tokens.to_string(),
        1_000..1_000_000 => format!("{}k", tokens / 1_000),
        1_000_000.. => {
            let tenths = tokens / 100_000;
            let (whole, rest) = (tenths / 10, tenths % 10);
            if rest == 0 { format!("{whole}M") } else { format!("{whole}.{rest}M") }
        }
    }
}
