//! Finding where the chosen model is called.

use futures_util::FutureExt;

use super::{Choices, Effect, ModelLink};
use epitome_provider::ProviderError;
use epitome_provider::endpoint::{self, Choice, LocalServer};
use epitome_provider::network::Network;

/// Whether a model call can be made.
pub(in super::super) enum Located {
    Ready,
    /// A local server is being looked for.
    Searching,
    Nowhere(ProviderError),
}

/// What a search for a local server came to.
pub(in super::super) enum Searched {
    /// `renamed`: whether the chosen model is another one by that.
    Found { effects: Vec<Effect>, renamed: bool },
    /// With the notice for the user.
    Missing(ProviderError),
}

impl ModelLink {
    /// Finds where the model is called; more may be known of it a moment later.
    pub fn locate(&mut self, choices: Choices<'_>) -> (Located, Vec<Effect>) {
        if self.endpoint.is_some() {
            return (Located::Ready, Vec::new());
        }
        let Choices { thread, settings, environment } = choices;
        let name = match (thread.model(), endpoint::choose(settings, environment)) {
            (Some(name), _) => name.clone(),
            (None, Choice::Named(name)) => name,
            (None, Choice::SearchLocal(urls)) => return self.search(urls, choices),
        };
        if endpoint::is_searched(&name, settings) {
            return self.search(endpoint::local_urls(settings, environment), choices);
        }
        match endpoint::resolve(&name, settings, environment) {
            Ok(endpoint) => (Located::Ready, Vec::from_iter(self.use_endpoint(endpoint, settings))),
            Err(error) => (Located::Nowhere(error), Vec::new()),
        }
    }

    fn search(&mut self, urls: Vec<String>, choices: Choices<'_>) -> (Located, Vec<Effect>) {
        if std::mem::replace(&mut self.searching, true) {
            return (Located::Searching, Vec::new());
        }
        let http = self.http.within(Network::read(choices.environment));
        let search = async move { endpoint::find_local(&http, &urls).await }.boxed();
        (Located::Searching, vec![Effect::Search(search)])
    }

    pub fn is_searching(&self) -> bool {
        self.searching
    }

    /// Takes in what a search for a local server found.
    pub fn searched(&mut self, server: Option<LocalServer>, choices: Choices<'_>) -> Searched {
        self.searching = false;
        let Choices { thread, settings, environment } = choices;
        let chosen = thread.model().cloned().or_else(|| match endpoint::choose(settings, environment) {
            Choice::Named(name) => Some(name),
            Choice::SearchLocal(_) => None,
        });
        let first = || server.as_ref()?.first_model();
        if let (Some(name), Some(server)) = (chosen.clone().or_else(first), &server) {
            match endpoint::resolve_local(&name, server, settings, environment) {
                Ok(endpoint) => {
                    let before = self.model_name(choices);
                    self.learned.learn_list(&endpoint, &server.models);
                    self.local = Some(server.clone());
                    let effects = Vec::from_iter(self.use_endpoint(endpoint, settings));
                    return Searched::Found { effects, renamed: self.model_name(choices) != before };
                }
                Err(error) => return Searched::Missing(error),
            }
        }
        Searched::Missing(match chosen {
            Some(name) => endpoint::no_local_server(&name, settings, environment),
            None => endpoint::nothing_configured(settings, environment),
        })
    }
}
