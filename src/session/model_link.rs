//! The session's way to its model: which one is chosen and where it is called, how large its window is, how many tokens
//! the conversation takes for it, and what was written of the conversation for its provider.

mod counting;
mod locating;
mod windows;

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::registry::SessionServices;
use super::replies::sentence;
use super::{ModelOption, NoticeSeverity, SessionError, SessionOptions};
use epitome_config::Settings;
use epitome_provider::ModelRequest;
use epitome_provider::abilities::Thinking;
use epitome_provider::catalog::{CatalogScope, ModelCatalog, OfferedModel};
use epitome_provider::endpoint::{self, Endpoint, EnvironmentPairs, LocalServer};
use epitome_provider::http::Http;
use epitome_provider::learned::{FactSource, Learned};
use epitome_provider::models;
use epitome_provider::spent::Spent;
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::{Encoded, Encoding};
use epitome_thread::{ModelName, ThoughtLevel, Thread};
use epitome_tokens::{self as tokens, Rulers};
use epitome_tools::Workspace;
pub(super) use locating::{LocalSearch, Located};
pub use windows::ModelListQuery;

/// Models that a client is offered. Some routers have hundreds, and a list is sent whole each time.
const OFFERED_MAX: usize = 200;

/// See the module.
pub(super) struct ModelLink {
    learned: Learned,
    rulers: Rulers,
    http: Http,
    endpoint: Option<Endpoint>,
    /// Who says how large the endpoint's window is.
    window_from: FactSource,
    /// The endpoint's server was asked for the window of the loaded model.
    asked_loaded: bool,
    /// Its provider was asked for its list of models since the model is in use.
    list_asked: bool,
    /// What was learned is its parent's to ask for.
    is_child: bool,
    local: Option<LocalServer>,
    /// A local server is being looked for.
    searching: bool,
    cost: Option<f64>,
    counter: tokens::Counter,
    /// Tokens are counted with the vocabulary, as it was there when the last reply came. It is loaded in the background,
    /// and a number that was shown must not change by that.
    counts_exactly: bool,
    /// What was written of the conversation for its model's provider.
    encoding: Encoding,
}

/// By what a model is chosen: the conversation, the settings and the environment.
#[derive(Clone, Copy)]
pub(super) struct Choices<'a> {
    pub thread: &'a Thread,
    pub settings: &'a Settings,
    pub environment: &'a EnvironmentPairs,
}

impl<'a> Choices<'a> {
    pub fn new(thread: &'a Thread, settings: &'a Settings, workspace: &'a Workspace) -> Choices<'a> {
        Choices { thread, settings, environment: &workspace.environment }
    }
}

/// What is to be done after something became known of the model, in this order.
pub(super) enum ModelEffect {
    Notice(NoticeSeverity, String),
    /// The window is another one.
    WindowChanged,
    /// More will be known when this is done.
    Ask(BoxFuture<'static, ModelListQuery>),
    /// A local server is looked for.
    Search(BoxFuture<'static, Option<LocalServer>>),
}

impl ModelLink {
    pub fn new(services: &SessionServices, settings: &Settings, thread: &Thread) -> ModelLink {
        ModelLink {
            learned: services.learned.clone(),
            rulers: services.rulers.clone(),
            http: services.http.clone(),
            endpoint: None,
            window_from: FactSource::Guess,
            asked_loaded: false,
            list_asked: false,
            is_child: false,
            local: None,
            searching: false,
            cost: Spent::total(settings, thread).cost,
            counter: tokens::Counter::default(),
            counts_exactly: services.rulers.ready().is_some(),
            encoding: Encoding::default(),
        }
    }

    /// Calls the model of a parent.
    pub fn inherit(&mut self, endpoint: Endpoint) {
        self.endpoint = Some(endpoint);
        self.is_child = true;
    }

    /// Where the model is called; `None` until that is known.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// Looks the endpoint up again when it is needed next.
    pub fn forget_endpoint(&mut self) {
        self.endpoint = None;
    }

    /// The model's window in tokens, or what is assumed where none is chosen.
    pub fn window(&self) -> u64 {
        self.known_window().unwrap_or(models::WINDOW_DEFAULT)
    }

    /// The model's window in tokens, where a model is chosen.
    pub fn known_window(&self) -> Option<u64> {
        self.endpoint.as_ref().map(|endpoint| endpoint.window)
    }

    /// Whether nobody has told how large the window is.
    pub fn guesses_window(&self) -> bool {
        self.window_from == FactSource::Guess
    }

    // ── Cost and requests ──────────────────────────────────────────────────────────────────────

    /// US dollars since the session began, where prices are known.
    pub fn cost(&self) -> Option<f64> {
        self.cost
    }

    pub fn add_cost(&mut self, cost: f64) {
        *self.cost.get_or_insert(0.0) += cost;
    }

    /// The next request, of which only what is new is written.
    pub fn encode(
        &mut self,
        endpoint: &Endpoint,
        request: &ModelRequest<'_>,
        purpose: Purpose<'_>,
    ) -> Encoded {
        self.encoding.encode(endpoint, request, purpose)
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding.clone()
    }

    /// Frees what was written; the next request is written anew.
    pub fn forget_encoding(&mut self) {
        self.encoding = Encoding::default();
    }

    // ── Options ────────────────────────────────────────────────────────────────────────────────

    /// Modes and options as they are now.
    pub fn options(&self, choices: Choices<'_>) -> Arc<SessionOptions> {
        let model = self.model_name(choices);
        let offers = self.catalog(choices).offers(CatalogScope::Usable, OFFERED_MAX);
        let mut models: Vec<ModelOption> = offers
            .iter()
            .map(|offer| ModelOption { name: offer.name.clone(), about: about(offer) })
            .collect();
        if let Some(name) = &model
            && !models.iter().any(|choice| choice.name == *name)
        {
            models.insert(0, ModelOption { name: name.clone(), about: String::new() });
        }
        let remarks = self.thinking(model.as_ref(), choices).map_or(Vec::new(), remarks);
        let (mode, thought) = (choices.thread.mode(), choices.thread.thought());
        let auto_compact = choices.thread.auto_compact().unwrap_or(choices.settings.compaction.auto);
        Arc::new(SessionOptions { mode, model, models, thought, remarks, auto_compact })
    }

    /// The model of this name; an error where nothing is known of it.
    pub fn chosen(&self, value: &str, choices: Choices<'_>) -> Result<ModelName, SessionError> {
        let model = ModelName::parse(value);
        if self.options(choices).models.iter().any(|choice| choice.name == model) {
            return Ok(model);
        }
        // A key that is missing, or a provider that nobody knows, says more than that.
        let found = endpoint::resolve(&model, choices.settings, choices.environment);
        let unknown = || SessionError::Invalid(format!("there is no model {value:?} to choose"));
        Err(found.err().map_or_else(unknown, |error| SessionError::Invalid(sentence(&error))))
    }

    /// How a model's thinking is steered, as far as that can be told without asking anybody.
    fn thinking(&self, model: Option<&ModelName>, choices: Choices<'_>) -> Option<Thinking> {
        let model = model?;
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| endpoint.name == *model) {
            return Some(endpoint.abilities.thinking);
        }
        let is_local = model.split().is_some_and(|(provider, _)| provider == "local");
        let found = || endpoint::resolve(model, choices.settings, choices.environment).ok();
        (!is_local).then(found).flatten().map(|endpoint| endpoint.abilities.thinking)
    }

    fn model_name(&self, choices: Choices<'_>) -> Option<ModelName> {
        choices.thread.model().cloned().or_else(|| self.catalog(choices).chosen_model())
    }

    fn catalog<'a>(&'a self, choices: Choices<'a>) -> ModelCatalog<'a> {
        let Choices { settings, environment, .. } = choices;
        ModelCatalog { settings, environment, learned: &self.learned, local: self.local.as_ref() }
    }
}

fn remarks(thinking: Thinking) -> Vec<(ThoughtLevel, String)> {
    let all = ThoughtLevel::ALL.into_iter().map(|level| (level, thinking.remark(level)));
    all.filter(|(_, remark)| !remark.is_empty()).collect()
}

/// What a model costs and holds, in one line.
fn about(offer: &OfferedModel) -> String {
    let price =
        offer.price.map(|price| format!("${} in, ${} out per million tokens", price.input, price.output));
    let (window, source) = offer.window;
    let window = (source != FactSource::Guess).then(|| format!("{} tokens", rounded(window)));
    price.into_iter().chain(window).collect::<Vec<_>>().join(" · ")
}

/// A window as people say it: `1M`, `200k`, `32k`.
fn rounded(tokens: u64) -> String {
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
