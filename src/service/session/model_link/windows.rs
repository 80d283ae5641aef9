//! Facts that a session learns about its model while it works, or adopts from other sessions.

use futures_util::FutureExt;

use super::counting::recall;
use super::{ModelEffect, ModelLink};
use crate::NoticeSeverity;
use epitome_config::Settings;
use epitome_provider::endpoint::{Endpoint, ToolForm};
use epitome_provider::learned::{Adapted, FactSource, RefreshTime, WINDOW_TOKENS_MIN};
use epitome_provider::wire::tools;
use epitome_provider::{ErrorClass, ProviderError, listing};
use epitome_thread::{ModelName, Thread, ToolSpec};

/// A request of fewer tokens that is rejected as too long, without numbers, is ignored: no real model has so small a
/// window, so something else is wrong, and such a window would leave no room to work.
const REFUSED_TOKENS_MIN: u64 = 8_192;

/// The result of a query about a model; `learned` may know more now.
pub struct ModelListQuery {
    model: ModelName,
    /// When to ask the provider next, if so far only the file of learned properties was read.
    next: Option<RefreshTime>,
}

impl ModelLink {
    /// Uses this endpoint from now on, with its known properties; more may be learned later.
    pub(super) fn use_endpoint(
        &mut self,
        mut endpoint: Endpoint,
        settings: &Settings,
    ) -> Option<ModelEffect> {
        self.window_known.from = self.learned.apply(settings, &mut endpoint).window.1;
        self.list_asked = false;
        let model = endpoint.name.clone();
        let next = listing::is_near(&endpoint).then_some(RefreshTime::Due);
        self.endpoint = Some(endpoint.clone());
        // A child's parent has already done it.
        let (learned, rulers, http) = (self.learned.clone(), self.rulers.clone(), self.http.clone());
        let ask = async move {
            recall(&learned, &rulers).await;
            // A remote service is not contacted before the user's first prompt to it, or the first list of its models.
            if learned.knows_service(&endpoint) {
                http.warm(&endpoint);
            }
            ModelListQuery { model, next }
        };
        (!self.is_child).then(|| ModelEffect::Ask(ask.boxed()))
    }

    /// Asks the provider for its model list if that is due. No prompt waits for it.
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

    /// Updates the endpoint in use with newly learned properties. Clients get longer model lists only with their next
    /// options, so that a picker does not change under the user's hand.
    pub fn apply_learned(&mut self, asked: ModelListQuery, settings: &Settings) -> Vec<ModelEffect> {
        let fault = self.learned.fault().map(|text| ModelEffect::Notice(NoticeSeverity::Warning, text));
        let mut effects = Vec::from_iter(fault);
        let Some(current) = self.endpoint.clone().filter(|endpoint| endpoint.name == asked.model) else {
            return effects;
        };
        let mut endpoint = current.clone();
        self.window_known.from = self.learned.apply(settings, &mut endpoint).window.1;
        if self.window_known.from == FactSource::Config {
            // The session may have learned that the configured window is too large.
            (endpoint.window, endpoint.max_output) = (current.window, current.max_output);
        }
        let is_news = endpoint.window != current.window;
        self.endpoint = Some(endpoint);
        effects.extend(is_news.then_some(ModelEffect::WindowChanged));
        effects.extend(self.report_guess());
        effects.extend(asked.next.and_then(|when| self.ask_provider(when)));
        effects
    }

    /// A notice, shown once, that a local server does not report its window even with the model loaded.
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

    /// Learns the window from a request that was rejected as too long: its limit, or, if the provider names none, that
    /// the window is smaller than this request.
    pub fn learn_window(
        &mut self,
        model: &ModelName,
        class: &ErrorClass,
        thread: &Thread,
    ) -> Vec<ModelEffect> {
        let ErrorClass::TooLong { used, limit, window } = *class else {
            return Vec::from_iter(self.forget_refused());
        };
        match (limit, window) {
            (Some(limit), true) => Vec::from_iter(self.narrow(model, limit)),
            // The account's rate may be raised at any time, so it is not stored.
            (Some(limit), false) => Vec::from_iter(self.adopt(model, limit)),
            (None, false) => Vec::new(),
            (None, true) => {
                // Only the provider knows how many tokens an image takes.
                let has_size = used.is_some() || self.ruler(thread).media_of(thread) == 0;
                let sent = used.unwrap_or_else(|| self.tokens_at_most(thread));
                if !has_size || sent < REFUSED_TOKENS_MIN {
                    return Vec::new();
                }
                // Assumed until the shorter request is answered, also for the summary that shortens it.
                let before = self.endpoint.as_ref().map(|endpoint| (endpoint.window, endpoint.max_output));
                let adopted = self.adopt(model, sent);
                self.window_known.refused = adopted.as_ref().and(before).map(|before| (sent, before));
                Vec::from_iter(adopted)
            }
        }
    }

    /// Learns that the window is smaller than a request that was refused without a limit, now that a shorter one was
    /// accepted: only that shows that the length was the reason.
    fn learn_refused(&mut self) -> Option<ModelEffect> {
        let (sent, _) = self.window_known.refused.take()?;
        let endpoint = self.endpoint.as_ref().filter(|endpoint| endpoint.window == sent)?;
        self.learned.learn_window(endpoint, sent);
        let model = &endpoint.name;
        let text = format!(
            "The provider of {model} refused {sent} tokens as too many and did not name its limit. \
             From now on its window is assumed to be no larger; set context_window of \
             [models.\"{model}\"] in config.toml if that is wrong."
        );
        Some(ModelEffect::Notice(NoticeSeverity::Info, text))
    }

    /// The shorter request was refused as well, so that its length says nothing about the window.
    fn forget_refused(&mut self) -> Option<ModelEffect> {
        let (sent, before) = self.window_known.refused.take()?;
        let endpoint = self.endpoint.as_mut().filter(|endpoint| endpoint.window == sent)?;
        (endpoint.window, endpoint.max_output) = before;
        Some(ModelEffect::WindowChanged)
    }

    /// Makes requests in another form from now on, if the service refuses something of the present one; `None` if there is
    /// no other to try. `own` is the endpoint of the running recipe. The call of another model, which the user has replaced
    /// since, changes nothing.
    pub fn take_other_form(
        &mut self,
        model: &ModelName,
        own: Option<&mut Endpoint>,
        error: &ProviderError,
        thread: &Thread,
        settings: &Settings,
    ) -> Option<Vec<ModelEffect>> {
        let endpoint = own.or(self.endpoint.as_mut()).filter(|endpoint| endpoint.name == *model)?;
        let Adapted { endpoint: other, notice } =
            self.learned.other_form(settings, endpoint, thread, error)?;
        tracing::info!(model = %other.name, form = ?other.form, %error, "requests are made in another form");
        *endpoint = other;
        Some(Vec::from_iter(notice.map(|text| ModelEffect::Notice(NoticeSeverity::Warning, text))))
    }

    /// Notices about the tools that the model's provider would not accept.
    pub fn left_out(&self, tools: &[ToolSpec]) -> Vec<ModelEffect> {
        let Some(endpoint) = &self.endpoint else { return Vec::new() };
        let notice = |(tool, why): (&str, String)| {
            let text = format!("The tool {tool} is left out for {}: {why}.", endpoint.name);
            ModelEffect::Notice(NoticeSeverity::Warning, text)
        };
        tools::left_out(endpoint, tools).into_iter().map(notice).collect()
    }

    /// Makes requests in the form that earlier processes learned, which was read after the endpoint was found.
    pub fn recall_form(&mut self, settings: &Settings) {
        if let Some(endpoint) = &mut self.endpoint
            && endpoint.form == ToolForm::Usual
        {
            self.learned.apply_form(settings, endpoint);
        }
    }

    /// Finds out more about a model once it has answered. `own` is the endpoint of the running recipe.
    pub fn learn_from_reply(&mut self, model: &ModelName, own: Option<&Endpoint>) -> Vec<ModelEffect> {
        if let Some(endpoint) = own.or(self.endpoint.as_ref()).filter(|endpoint| endpoint.name == *model) {
            self.learned.learn_form(endpoint);
        }
        let mut effects = Vec::from_iter(self.learn_refused());
        effects.extend(if self.list_asked { None } else { self.ask_provider(RefreshTime::Due) });
        let endpoint = self.endpoint.as_ref().filter(|endpoint| endpoint.name == *model && !endpoint.own_api);
        let is_near = endpoint.is_some_and(listing::is_near);
        if self.guesses_window() && is_near && !self.asked_loaded {
            // Some servers know the window only of a loaded model, which it is now.
            self.asked_loaded = true;
            effects.extend(self.ask_provider(RefreshTime::Now));
        }
        effects
    }

    /// Adopts a smaller window than the known one, for this session and for others.
    pub fn narrow(&mut self, model: &ModelName, window: u64) -> Option<ModelEffect> {
        let effect = self.adopt(model, window)?;
        if let Some(endpoint) = &self.endpoint {
            self.learned.learn_window(endpoint, window);
        }
        Some(effect)
    }

    /// Adopts a smaller window than the known one, for this session.
    fn adopt(&mut self, model: &ModelName, window: u64) -> Option<ModelEffect> {
        let endpoint = self.endpoint.as_mut().filter(|endpoint| endpoint.name == *model)?;
        if !(WINDOW_TOKENS_MIN..endpoint.window).contains(&window) {
            return None;
        }
        tracing::info!(%model, window, "the window is smaller than was known");
        endpoint.set_window(window);
        self.window_known.from = FactSource::Overflow;
        Some(ModelEffect::WindowChanged)
    }
}
