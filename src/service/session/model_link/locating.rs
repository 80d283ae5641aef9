//! Finds the endpoint of the chosen model: in the settings or at a local server.

use futures_util::FutureExt;

use super::{Choices, ModelEffect, ModelLink};
use epitome_provider::ProviderError;
use epitome_provider::endpoint::{self, ConfiguredModel, LocalServer};
use epitome_provider::network::Network;

/// Whether a model call can be made.
pub(in super::super) enum Located {
    Ready,
    /// The search for a local server is running.
    Searching,
    Nowhere(ProviderError),
}

/// The result of a search for a model: the effects, and whether this changes the chosen model; or the error to show to
/// the user.
pub(in super::super) type LocalSearch = Result<(Vec<ModelEffect>, bool), ProviderError>;

impl ModelLink {
    /// Resolves the model's endpoint; effects may reveal more about it later.
    pub fn locate(&mut self, choices: Choices<'_>) -> (Located, Vec<ModelEffect>) {
        if self.endpoint.is_some() {
            return (Located::Ready, Vec::new());
        }
        let Choices { thread, settings, environment } = choices;
        let name = match (thread.model(), endpoint::choose(settings, environment)) {
            (Some(name), _) => name.clone(),
            (None, ConfiguredModel::Named(name)) => name,
            (None, ConfiguredModel::SearchLocal(urls)) => return self.search_local(urls, choices),
        };
        if endpoint::is_searched(&name, settings) {
            return self.search_local(endpoint::local_urls(settings, environment), choices);
        }
        match endpoint::resolve(&name, settings, environment) {
            Ok(endpoint) => (Located::Ready, Vec::from_iter(self.use_endpoint(endpoint, settings))),
            Err(error) => (Located::Nowhere(error), Vec::new()),
        }
    }

    fn search_local(&mut self, urls: Vec<String>, choices: Choices<'_>) -> (Located, Vec<ModelEffect>) {
        let http = self.http.within(Network::read(choices.environment));
        match std::mem::replace(&mut self.searching, true) {
            true => (Located::Searching, Vec::new()),
            false => {
                let search = async move { endpoint::find_local(&http, &urls).await };
                (Located::Searching, vec![ModelEffect::Search(search.boxed())])
            }
        }
    }

    pub fn is_searching(&self) -> bool {
        self.searching
    }

    /// Applies the result of a search for a local server.
    pub fn searched(&mut self, server: Option<LocalServer>, choices: Choices<'_>) -> LocalSearch {
        self.searching = false;
        let Choices { thread, settings, environment } = choices;
        let chosen = thread.model().cloned().or_else(|| match endpoint::choose(settings, environment) {
            ConfiguredModel::Named(name) => Some(name),
            ConfiguredModel::SearchLocal(_) => None,
        });
        let first = || server.as_ref()?.first_model();
        if let (Some(name), Some(server)) = (chosen.clone().or_else(first), &server) {
            let endpoint = endpoint::resolve_local(&name, server, settings, environment)?;
            let before = self.model_name(choices);
            self.learned.learn_list(&endpoint, &server.models);
            self.local = Some(server.clone());
            let effects = Vec::from_iter(self.use_endpoint(endpoint, settings));
            return Ok((effects, self.model_name(choices) != before));
        }
        Err(match chosen {
            Some(name) => endpoint::no_local_server(&name, settings, environment),
            None => endpoint::nothing_configured(settings, environment),
        })
    }
}
