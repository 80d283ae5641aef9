//! Finds the endpoint of the chosen model: in the settings, at a local server, or at the server of `[gateway]`, which is
//! asked for its models if it has never been.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Choices, ModelEffect, ModelLink, ModelSearch};
use epitome_provider::credential::GatewayAccess;
use epitome_provider::endpoint::{self, ConfiguredModel, LocalServer};
use epitome_provider::network::Network;
use epitome_provider::{ProviderError, gateway};

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
        if let Some(gateway) = settings.gateway.as_ref().filter(|gateway| gateway.is_unknown()) {
            let (http, network) = (self.http.clone(), Network::read(environment));
            let access = GatewayAccess::of(gateway, environment);
            let ask = async move { ModelSearch::Gateway(gateway::refresh(&http, &access, &network).await) };
            return self.search(ask.boxed());
        }
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
        self.search(async move { ModelSearch::Local(endpoint::find_local(&http, &urls).await) }.boxed())
    }

    fn search(&mut self, search: BoxFuture<'static, ModelSearch>) -> (Located, Vec<ModelEffect>) {
        match std::mem::replace(&mut self.searching, true) {
            true => (Located::Searching, Vec::new()),
            false => (Located::Searching, vec![ModelEffect::Search(search)]),
        }
    }

    /// Locates the model again, after what the gateway offers has arrived in the settings, or an error. `None` if another
    /// search has begun.
    pub fn gateway_answered(
        &mut self,
        failed: Option<ProviderError>,
        choices: Choices<'_>,
    ) -> (Option<LocalSearch>, Vec<ModelEffect>) {
        self.searching = false;
        if let Some(error) = failed {
            return (Some(Err(error)), Vec::new());
        }
        match self.locate(choices) {
            (Located::Ready, effects) => (Some(Ok((effects, true))), Vec::new()),
            (Located::Nowhere(error), effects) => (Some(Err(error)), effects),
            (Located::Searching, effects) => (None, effects),
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
