//! A session's model: which one is chosen, where it is called, how large its window is, how many tokens the
//! conversation takes in it, and the encoded conversation.

mod counting;
mod locating;
mod windows;

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::provider_errors::sentence;
use super::reminders::RemindedEntries;
use super::services::SessionServices;
use super::{ModelOption, NoticeSeverity, SessionError, SessionOptions};
use epitome_config::Settings;
use epitome_provider::ModelRequest;
use epitome_provider::abilities::Thinking;
use epitome_provider::catalog::{ModelCatalog, OfferedModel};
use epitome_provider::endpoint::{self, Endpoint, EnvironmentPairs, LocalServer};
use epitome_provider::http::Http;
use epitome_provider::learned::{FactSource, Learned};
use epitome_provider::models;
use epitome_provider::spent::Spent;
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::{Encoded, Encoding};
use epitome_thread::{Entry, ModelName, ThoughtLevel, Thread, View};
use epitome_tokens::{self as tokens, Rulers};
use epitome_tools::Workspace;
pub(super) use locating::Located;
pub use windows::ModelListQuery;

/// A session's model and its endpoint; see the module.
pub(super) struct ModelLink {
    learned: Learned,
    rulers: Rulers,
    http: Http,
    endpoint: Option<Endpoint>,
    window_known: WindowKnowledge,
    /// The endpoint's server was asked for the window of the loaded model.
    asked_loaded: bool,
    /// The provider was asked for its list of models since the model was chosen.
    list_asked: bool,
    /// A child does not query providers; its parent does.
    is_child: bool,
    local: Option<LocalServer>,
    /// A local server is being looked for.
    searching: bool,
    cost: Option<f64>,
    counter: tokens::Counter,
    /// Whether tokens are counted with the vocabulary. Updated only when a reply arrives: the vocabulary is loaded in
    /// the background, and that must not change a number already shown.
    counts_exactly: bool,
    /// The conversation as encoded so far for its model's provider.
    encoding: Encoding,
    /// The reminders that the model was sent.
    reminded: RemindedEntries,
}

/// Knowledge about the size of the endpoint's window.
struct WindowKnowledge {
    from: FactSource,
    /// The tokens of a request that was refused as too long without a limit, and the window and the maximum output that
    /// were assumed before.
    refused: Option<(u64, (u64, u32))>,
}

/// The basis for the choice of a model: conversation, settings and environment.
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

/// A follow-up to new facts about the model. Several are carried out in order.
pub(super) enum ModelEffect {
    Notice(NoticeSeverity, String),
    /// The size of the window has changed.
    WindowChanged,
    /// Queries the provider; the result is to be passed back.
    Ask(BoxFuture<'static, ModelListQuery>),
    /// Searches for a local server; the result is to be passed back.
    Search(BoxFuture<'static, Option<LocalServer>>),
}

/// Tokens that remain of a window after the frame and the reserve for a reply.
pub(super) fn room(window: u64, max_output: u32, frame: u64) -> u64 {
    window.saturating_sub(frame + u64::from(max_output).min(window / 4))
}

impl ModelLink {
    pub fn new(services: &SessionServices, settings: &Settings, thread: &Thread) -> ModelLink {
        ModelLink {
            learned: services.learned.clone(),
            rulers: services.rulers.clone(),
            http: services.http.clone(),
            endpoint: None,
            window_known: WindowKnowledge { from: FactSource::Guess, refused: None },
            asked_loaded: false,
            list_asked: false,
            is_child: false,
            local: None,
            searching: false,
            cost: Spent::total(settings, thread).cost,
            counter: tokens::Counter::default(),
            counts_exactly: services.rulers.ready().is_some(),
            encoding: Encoding::default(),
            reminded: RemindedEntries::default(),
        }
    }

    /// Uses the endpoint of the parent session.
    pub fn inherit(&mut self, endpoint: Endpoint) {
        self.endpoint = Some(endpoint);
        self.is_child = true;
    }

    /// The model's endpoint; `None` until it is resolved.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// Forgets the endpoint, so that the next use resolves it again.
    pub fn forget_endpoint(&mut self) {
        self.endpoint = None;
    }

    /// The model's window in tokens, or the default if no model is chosen.
    pub fn window(&self) -> u64 {
        self.known_window().unwrap_or(models::WINDOW_DEFAULT)
    }

    /// The model's window in tokens; `None` if no endpoint is resolved.
    pub fn known_window(&self) -> Option<u64> {
        self.endpoint.as_ref().map(|endpoint| endpoint.window)
    }

    /// Whether the size of the window is only a guess.
    pub fn guesses_window(&self) -> bool {
        self.window_known.from == FactSource::Guess
    }

    // ── Cost and requests ──────────────────────────────────────────────────────────────────────

    /// Follows a conversation that others have continued.
    pub fn follow(&mut self, settings: &Settings, thread: &Thread) {
        self.forget_encoding();
        self.cost = Spent::total(settings, thread).cost;
    }

    /// Cost of the session so far in US dollars; `None` if no price is known.
    pub fn cost(&self) -> Option<f64> {
        self.cost
    }

    pub fn add_cost(&mut self, cost: f64) {
        *self.cost.get_or_insert(0.0) += cost;
    }

    /// Encodes the next request; only what is new since the last one is serialized.
    pub fn encode(
        &mut self,
        endpoint: &Endpoint,
        request: &ModelRequest<'_>,
        purpose: Purpose<'_>,
    ) -> Encoded {
        self.encoding.encode(endpoint, request, purpose)
    }

    /// The entries of the conversation's view that reminders are compared with.
    pub fn reminded(&mut self, view: &View) -> &[Arc<Entry>] {
        self.reminded.of(view)
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding.clone()
    }

    /// Frees the encoded conversation; the next request is encoded from the start.
    pub fn forget_encoding(&mut self) {
        self.encoding = Encoding::default();
    }

    // ── Options ────────────────────────────────────────────────────────────────────────────────

    /// The current mode and options.
    pub fn options(&self, choices: Choices<'_>) -> Arc<SessionOptions> {
        let model = self.model_name(choices);
        let offers = self.catalog(choices).usable();
        let chosen = model.as_ref().filter(|name| !offers.iter().any(|offer| offer.name == **name));
        let chosen = chosen.map(|name| ModelOption { name: name.clone(), about: String::new() });
        let offered =
            offers.iter().map(|offer| ModelOption { name: offer.name.clone(), about: about(offer) });
        let models = chosen.into_iter().chain(offered).collect();
        let remarks = self.thinking(model.as_ref(), choices).map_or(Vec::new(), remarks);
        let (mode, thought) = (choices.thread.mode(), choices.thread.thought());
        let auto_compact = choices.thread.auto_compact().unwrap_or(choices.settings.compaction.auto);
        Arc::new(SessionOptions { mode, model, models, thought, remarks, auto_compact })
    }

    /// Returns the model with this name, or an error if it is unknown.
    pub fn chosen(&self, value: &str, choices: Choices<'_>) -> Result<ModelName, SessionError> {
        let model = ModelName::parse(value);
        if self.options(choices).models.iter().any(|choice| choice.name == model) {
            return Ok(model);
        }
        // A missing key or an unknown provider makes a better message.
        let found = endpoint::resolve(&model, choices.settings, choices.environment);
        let unknown = || SessionError::Invalid(format!("there is no model {value:?} to choose"));
        Err(found.err().map_or_else(unknown, |error| SessionError::Invalid(sentence(&error))))
    }

    /// How a model's thinking is controlled; `None` if that can't be determined without asking a server.
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

/// A one-line description of a model: price and window.
fn about(offer: &OfferedModel) -> String {
    let price =
        offer.price.map(|price| format!("${} in, ${} out per million tokens", price.input, price.output));
    let (window, source) = offer.window;
    let window = (source != FactSource::Guess).then(|| format!("{} tokens", rounded(window)));
    price.into_iter().chain(window).collect::<Vec<_>>().join(" · ")
}

/// A window in the usual short form: `1M`, `200k`, `32k`.
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
