//! What a session learns of its model while it works, and what it takes over from what others learned.

use super::actor::Session;
use super::work::Background;
use super::{Out, Severity};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::learned::{Source, WINDOW_TOKENS_MIN, When};
use epitome_provider::{ErrorClass, listing};
use epitome_thread::ModelName;

/// A request of fewer tokens that is refused as too long, without numbers, teaches nothing: no model that is
/// served holds so little, so that something else is wrong, and a window that small would leave no room to work.
const REFUSED_TOKENS_MIN: u64 = 8_192;

/// More may be known of a model than before.
pub struct Asked {
    model: ModelName,
    /// Its provider was not asked yet, only the file of what was learned before; when it is.
    next: Option<When>,
}

impl Session {
    /// Calls this model from now on, with what is known of it; more may be known a moment later.
    pub(super) fn use_endpoint(&mut self, mut endpoint: Endpoint) {
        self.window_from = self.services.learned.apply(&self.settings, &mut endpoint);
        self.list_asked = false;
        let model = endpoint.name.clone();
        self.endpoint = Some(endpoint.clone());
        // A child's parent has done it.
        if !self.lineage.is_child() {
            let services = self.services.clone();
            // A service on the network is not spoken to before the person has said something.
            let next = listing::is_near(&endpoint).then_some(When::Due);
            self.background.spawn(async move {
                services.recall().await;
                Background::ModelsAsked(Box::new(Asked { model, next }))
            });
        }
    }

    /// Asks the model's provider for its list where that is due. No prompt waits for it.
    fn ask_provider(&mut self, when: When) {
        let Some(endpoint) = self.endpoint.clone().filter(|_| !self.lineage.is_child()) else { return };
        self.list_asked = true;
        let (learned, http) = (self.services.learned.clone(), self.services.http.clone());
        self.background.spawn(async move {
            if let Err(error) = learned.refresh(&http, &endpoint, when).await {
                tracing::info!(%error, "what is known of models stays as it is");
            }
            Background::ModelsAsked(Box::new(Asked { model: endpoint.name, next: None }))
        });
    }

    /// Puts what became known into the endpoint that is in use. Clients see longer lists of models when they
    /// are given options next: a picker does not change under the person's hand.
    pub(super) fn models_asked(&mut self, asked: Asked) {
        if let Some(text) = self.services.learned.fault() {
            self.announce(&Out::Notice { severity: Severity::Warning, text });
        }
        if let Some(current) = self.endpoint.clone().filter(|endpoint| endpoint.name == asked.model) {
            let mut endpoint = current.clone();
            self.window_from = self.services.learned.apply(&self.settings, &mut endpoint);
            if self.window_from == Source::Config {
                // The session may have learned that the configured one is too large.
                (endpoint.window, endpoint.max_output) = (current.window, current.max_output);
            }
            let is_news = endpoint.window != current.window;
            self.endpoint = Some(endpoint);
            if is_news {
                self.announce_usage();
            }
            self.tell_of_guess();
            if let Some(when) = asked.next {
                self.ask_provider(when);
            }
        }
    }

    /// Says once that a server of one's own does not tell its window, even with the model loaded.
    fn tell_of_guess(&self) {
        let Some(endpoint) = &self.endpoint else { return };
        let is_guess = self.window_from == Source::Guess && listing::is_near(endpoint) && self.asked_loaded;
        if is_guess && self.services.learned.tell_of_guess(endpoint) {
            let text = format!(
                "The server does not tell how many tokens {} can hold; {} are assumed. If that is wrong, set \
                 context_window of [models.\"{}\"] in config.toml.",
                endpoint.name, endpoint.window, endpoint.name
            );
            self.announce(&Out::Notice { severity: Severity::Info, text });
        }
    }

    /// A provider that refuses a request as too long tells the model's true window; or one that says no more than
    /// that, so that it holds less than this request.
    pub(super) fn learn_window(&mut self, model: &ModelName, class: &ErrorClass) {
        match *class {
            ErrorClass::TooLong { limit: Some(limit), .. } => self.learn_limit(model, limit),
            ErrorClass::TooLong { used, limit: None, window: true } => {
                // What a picture takes only its provider knows.
                if used.is_none() && self.ruler().media_of(&self.thread) > 0 {
                    return;
                }
                let sent = used.unwrap_or_else(|| self.tokens_at_most());
                if sent >= REFUSED_TOKENS_MIN && self.narrow(model, sent) {
                    let text = format!(
                        "The provider of {model} refused {sent} tokens as too many and did not say how many it \
                         takes. It is taken to hold no more than these from now on; set context_window of \
                         [models.\"{model}\"] in config.toml if that is wrong."
                    );
                    self.announce(&Out::Notice { severity: Severity::Info, text });
                }
            }
            ErrorClass::TooLong { limit: None, window: false, .. }
            | ErrorClass::Retry { .. }
            | ErrorClass::Auth
            | ErrorClass::BadReasoning
            | ErrorClass::Refused
            | ErrorClass::Broken => {}
        }
    }

    /// A provider told the window of a model as it refused a request, in tokens.
    pub(super) fn learn_limit(&mut self, model: &ModelName, limit: u64) {
        self.narrow(model, limit);
    }

    /// What can be found out of a model once it has answered.
    pub(super) fn learn_from_reply(&mut self, model: &ModelName) {
        if !self.list_asked {
            self.ask_provider(When::Due);
        }
        let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| endpoint.name == *model) else {
            return;
        };
        if endpoint.own_api {
            return;
        }
        if self.window_from == Source::Guess && listing::is_near(endpoint) && !self.asked_loaded {
            // Some servers know a window only of a model that is loaded, which it is now.
            self.asked_loaded = true;
            self.ask_provider(When::Now);
        }
    }

    /// Takes a window over, for this session and for others, if it is smaller than what was known; says
    /// whether it was.
    fn narrow(&mut self, model: &ModelName, window: u64) -> bool {
        let Some(endpoint) = self.endpoint.as_mut().filter(|endpoint| endpoint.name == *model) else {
            return false;
        };
        if !(WINDOW_TOKENS_MIN..endpoint.window).contains(&window) {
            return false;
        }
        tracing::info!(session = %self.id, %model, window, "the window is smaller than was known");
        endpoint.set_window(window);
        self.services.learned.learn_window(endpoint, window);
        self.window_from = Source::Overflow;
        self.announce_usage();
        true
    }
}
