//! Lists of models that were computed with the facts. Resolving a model takes some ten microseconds and some providers have
//! hundreds, so a list is computed once for all sessions with the same inputs.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::Arc;

use super::Learned;
use crate::catalog::{ModelCatalog, OfferedModel};
use crate::endpoint::LocalServer;
use epitome_config::Settings;
use epitome_config::logins::now;

/// Lists that are kept: sessions of several projects and editors alternate.
const KEPT_MAX: usize = 8;

/// Learned facts become outdated, which changes nothing else.
const KEPT_MS: u64 = 60 * 60 * 1000;

/// The lists computed last, the newest at the end. They are dropped with each change of the facts. Holds keys from settings
/// and environments, so it has no `Debug`.
#[derive(Default)]
pub(super) struct KeptOffers(VecDeque<KeptOffer>);

struct KeptOffer {
    settings: Settings,
    environment: Vec<(OsString, OsString)>,
    local: Option<LocalServer>,
    /// Milliseconds since the epoch.
    at: u64,
    models: Arc<[OfferedModel]>,
}

impl KeptOffers {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn find(&self, catalog: &ModelCatalog<'_>, now: u64) -> Option<Arc<[OfferedModel]>> {
        let is_it = |kept: &&KeptOffer| {
            now.saturating_sub(kept.at) < KEPT_MS
                && kept.local.as_ref() == catalog.local
                && kept.environment == catalog.environment
                && kept.settings == *catalog.settings
        };
        self.0.iter().find(is_it).map(|kept| kept.models.clone())
    }
}

impl Learned {
    /// The list for these inputs: a kept one, or what `list` computes.
    pub(crate) fn offers(
        &self,
        catalog: &ModelCatalog<'_>,
        list: impl FnOnce() -> Vec<OfferedModel>,
    ) -> Arc<[OfferedModel]> {
        let now = now();
        let revision = {
            let state = self.inner.state.lock();
            if let Some(models) = state.offers.find(catalog, now) {
                return models;
            }
            state.revision
        };
        let models: Arc<[OfferedModel]> = list().into();
        let offer = KeptOffer {
            settings: catalog.settings.clone(),
            environment: catalog.environment.to_vec(),
            local: catalog.local.cloned(),
            at: now,
            models: models.clone(),
        };
        let mut state = self.inner.state.lock();
        // Otherwise the facts have changed meanwhile.
        if state.revision == revision {
            state.offers.0.push_back(offer);
            if state.offers.0.len() > KEPT_MAX {
                state.offers.0.pop_front();
            }
        }
        models
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint;
    use epitome_thread::ModelName;

    fn environment(key: &str) -> Vec<(OsString, OsString)> {
        vec![(key.into(), "a-key".into())]
    }

    #[test]
    fn a_list_is_computed_again_only_if_an_input_has_changed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let learned = Learned::below(directory.path());
        let of = |settings: &Settings, environment: &[(OsString, OsString)]| {
            ModelCatalog { settings, environment, learned: &learned, local: None }.usable()
        };
        let (plain, anthropic) = (Settings::default(), environment("ANTHROPIC_API_KEY"));
        let first = of(&plain, &anthropic);
        assert!(first.iter().any(|model| model.name.0.starts_with("anthropic/")), "{first:?}");
        assert!(Arc::ptr_eq(&first, &of(&plain, &anthropic)));

        let other_key = of(&plain, &environment("OPENAI_API_KEY"));
        assert!(other_key.iter().all(|model| model.name.0.starts_with("openai/")), "{other_key:?}");

        let chosen = Settings { model: Some("anthropic/of-tomorrow".to_owned()), ..Settings::default() };
        assert_eq!(of(&chosen, &anthropic)[0].name, ModelName("anthropic/of-tomorrow".to_owned()));
        assert!(Arc::ptr_eq(&first, &of(&plain, &anthropic)), "lists of several clients are kept");

        let endpoint = endpoint::resolve(&first[0].name, &plain, &anthropic).expect("it has a key");
        learned.learn_window(&endpoint, 54_321);
        assert_eq!(of(&plain, &anthropic)[0].window.0, 54_321);
    }
}
