//! What a session learns of its model while it works, and what it takes over from what others learned.

use futures_util::FutureExt;

use super::counting::recall;
use super::{ModelEffect, ModelLink};
use crate::NoticeSeverity;
use epitome_config::Settings;
use epitome_provider::endpoint::{Endpoint, ToolForm};
use epitome_provider::learned::{FactSource, RefreshTime, WINDOW_TOKENS_MIN};
use epitome_provider::{ErrorClass, ProviderError, listing};
use epitome_thread::{ModelName, Thread};

/// A request of fewer tokens that is refused as too long, without numbers, teaches nothing: no model that is
/// served holds so little, so that something else is wrong, and a window that small would leave no room to work.
const REFUSED_TOKENS_MIN: u64 = 8_192;

/// More may be known of a model than before.
pub struct ModelListQuery {
    model: ModelName,
    /// Its provider was not asked yet, only the file of what was learned before; when it is.
    next: Option<RefreshTime>,
}

impl ModelLink {
    /// Calls this model from now on, with what is known of it; more may be known a moment later.
    pub(super) fn use_endpoint(
        &mut self,
        mut endpoint: Endpoint,
        settings: &Settings,
    ) -> Option<ModelEffect> {
        self.window_from = self.learned.apply(settings, &mut endpoint);
        self.list_asked = false;
        let model = endpoint.name.clone();
        // A service on the network is not spoken to before the user has said something.
        let next = listing::is_near(&endpoint).then_some(RefreshTime::Due);
        self.endpoint = Some(endpoint);
        // A child's parent has done it.
        let (learned, rulers) = (self.learned.clone(), self.rulers.clone());
        let ask = async move {
            recall(&learned, &rulers).await;
            ModelListQuery { model, next }
        };
        (!self.is_child).then(|| ModelEffect::Ask(ask.boxed()))
    }

    /// Asks the model's provider for its list where that is due. No prompt waits for it.
    fn ask_provider(&mut self, when: RefreshTime) -> Option<ModelEffect> {
        let endpoint = self.endpoint.clone().filter(|_| !self.is_child)?;
        self.list_asked = true;
        let (learned, http) = (self.learned.clone(), self.http.clone());
        let ask = async move {
            if let Err(error) = learned.refresh(&http, &endpoint, when).await {
                tracing::info!(%error, "the known properties of models stay unchanged");
            }
            ModelListQuery { model: endpoint.name, next: None }
        };
        Some(ModelEffect::Ask(ask.boxed()))
    }

    /// Puts what became known into the endpoint that is in use. Clients see longer lists of models when they
    /// are given options next: a picker does not change under the user's hand.
    pub fn apply_learned(&mut self, asked: ModelListQuery, settings: &Settings) -> Vec<ModelEffect> {
        let fault = self.learned.fault().map(|text| ModelEffect::Notice(NoticeSeverity::Warning, text));
        let mut effects = Vec::from_iter(fault);
        let Some(current) = self.endpoint.clone().filter(|endpoint| endpoint.name == asked.model) else {
            return effects;
        };
        let mut endpoint = current.clone();
        self.window_from = self.learned.apply(settings, &mut endpoint);
        if self.window_from == FactSource::Config {
            // The session may have learned that the configured one is too large.
            (endpoint.window, endpoint.max_output) = (current.window, current.max_output);
        }
        let is_news = endpoint.window != current.window;
        self.endpoint = Some(endpoint);
        effects.extend(is_news.then_some(ModelEffect::WindowChanged));
        effects.extend(self.report_guess());
        effects.extend(asked.next.and_then(|when| self.ask_provider(when)));
        effects
    }

    /// Says once that a server of one's own does not tell its window, even with the model loaded.
    fn report_guess(&self) -> Option<ModelEffect> {
        let endpoint = self.endpoint.as_ref()?;
        let is_guess = self.guesses_window() && listing::is_near(endpoint) && self.asked_loaded;
        (is_guess && self.learned.is_guess_unreported(endpoint)).then(|| {
            let text = format!(
                "The server does not report the context window of {}; {} tokens are assumed. If that is \
                 wrong, set context_window of [models.\"{}\"] in config.toml.",
                endpoint.name, endpoint.window, endpoint.name
            );
            ModelEffect::Notice(NoticeSeverity::Info, text)
        })
    }

    /// A provider that refuses a request as too long tells the model's true window; or one that says no more than
    /// that, so that it holds less than this request.
    pub fn learn_window(
        &mut self,
        model: &ModelName,
        class: &ErrorClass,
        thread: &Thread,
        in_turn: bool,
    ) -> Vec<ModelEffect> {
        match *class {
            ErrorClass::TooLong { limit: Some(limit), .. } => Vec::from_iter(self.narrow(model, limit)),
            ErrorClass::TooLong { used, limit: None, window: true } => {
                // What a picture takes only its provider knows.
                if used.is_none() && self.ruler(thread).media_of(thread) > 0 {
                    return Vec::new();
                }
                let sent = used.unwrap_or_else(|| self.tokens_at_most(thread, in_turn));
                if sent < REFUSED_TOKENS_MIN {
                    return Vec::new();
                }
                let Some(narrowed) = self.narrow(model, sent) else { return Vec::new() };
                let text = format!(
                    "The provider of {model} refused {sent} tokens as too many and did not name its limit. \
                     From now on its window is assumed to be no larger; set context_window of \
                     [models.\"{model}\"] in config.toml if that is wrong."
                );
                vec![narrowed, ModelEffect::Notice(NoticeSeverity::Info, text)]
            }
            ErrorClass::TooLong { limit: None, window: false, .. }
            | ErrorClass::Retry { .. }
            | ErrorClass::Auth
            | ErrorClass::BadReasoning
            | ErrorClass::ToolForm
            | ErrorClass::Budget
            | ErrorClass::Refused
            | ErrorClass::Broken => Vec::new(),
        }
    }

    /// Gives tools in another form from now on, where the service refuses them in the present one; `None` where there
    /// is no other to try.
    pub fn take_other_form(
        &mut self,
        error: &ProviderError,
        settings: &Settings,
    ) -> Option<Vec<ModelEffect>> {
        let endpoint = self.endpoint.as_ref()?;
        let other = self.learned.other_form(settings, endpoint, &error.class)?;
        tracing::info!(model = %other.name, form = ?other.form, %error, "tools are given in another form");
        let notice = (other.form == ToolForm::WithoutReasoning).then(|| {
            let text = format!(
                "{} at {} takes tools only without reasoning, and the service has no Responses API for it. It is asked \
                 without reasoning.",
                other.name,
                other.place()
            );
            ModelEffect::Notice(NoticeSeverity::Warning, text)
        });
        self.endpoint = Some(other);
        Some(Vec::from_iter(notice))
    }

    /// Gives tools in the form that earlier processes learned, which was read after the endpoint was found.
    pub fn recall_form(&mut self, settings: &Settings) {
        if let Some(endpoint) = &mut self.endpoint
            && endpoint.form == ToolForm::Usual
        {
            self.learned.apply_form(settings, endpoint);
        }
    }

    /// What can be found out of a model once it has answered.
    pub fn learn_from_reply(&mut self, model: &ModelName) -> Vec<ModelEffect> {
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| endpoint.name == *model) {
            self.learned.learn_form(endpoint);
        }
        let list = if self.list_asked { None } else { self.ask_provider(RefreshTime::Due) };
        let mut effects = Vec::from_iter(list);
        let endpoint = self.endpoint.as_ref().filter(|endpoint| endpoint.name == *model && !endpoint.own_api);
        let is_near = endpoint.is_some_and(listing::is_near);
        if self.guesses_window() && is_near && !self.asked_loaded {
            // Some servers know a window only of a model that is loaded, which it is now.
            self.asked_loaded = true;
            effects.extend(self.ask_provider(RefreshTime::Now));
        }
        effects
    }

    /// Takes a window over, for this session and for others, if it is smaller than what was known.
    pub fn narrow(&mut self, model: &ModelName, window: u64) -> Option<ModelEffect> {
        let endpoint = self.endpoint.as_mut().filter(|endpoint| endpoint.name == *model)?;
        if !(WINDOW_TOKENS_MIN..endpoint.window).contains(&window) {
            return None;
        }
        tracing::info!(%model, window, "the window is smaller than was known");
        endpoint.set_window(window);
        self.learned.learn_window(endpoint, window);
        self.window_from = FactSource::Overflow;
        Some(ModelEffect::WindowChanged)
    }
}
