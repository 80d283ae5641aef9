//! The models that clients can choose. Resolving one takes some ten microseconds, and some providers have hundreds, so
//! the list is computed once for all sessions with the same inputs.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{ModelOption, about};
use epitome_config::Settings;
use epitome_config::logins::now;
use epitome_provider::catalog::{CatalogScope, ModelCatalog};
use epitome_provider::endpoint::LocalServer;

/// Maximum number of models offered to a client. Some routers have hundreds, and the complete list is sent each time.
const OFFERED_MAX: usize = 200;

/// Lists that are kept: sessions of several projects and editors alternate.
const KEPT_MAX: usize = 8;

/// Learned facts become outdated, which is no change of the inputs.
const KEPT_MS: u64 = 60 * 60 * 1000;

/// The lists computed last, shared by the sessions of a process. Holds keys from settings and environments, so it has no
/// `Debug`.
#[derive(Clone, Default)]
pub struct OfferedModels {
    /// The newest is last.
    kept: Arc<Mutex<VecDeque<KeptOffer>>>,
}

struct KeptOffer {
    settings: Settings,
    environment: Vec<(OsString, OsString)>,
    revision: u64,
    local: Option<LocalServer>,
    /// Milliseconds since the epoch.
    at: u64,
    models: Arc<[ModelOption]>,
}

impl KeptOffer {
    fn is_for(&self, catalog: &ModelCatalog<'_>, revision: u64, now: u64) -> bool {
        // The cheap comparisons first.
        self.revision == revision
            && now.saturating_sub(self.at) < KEPT_MS
            && self.local.as_ref() == catalog.local
            && self.environment == catalog.environment
            && self.settings == *catalog.settings
    }
}

impl OfferedModels {
    /// The models of the catalog that can be called, at most [`OFFERED_MAX`], grouped by provider.
    pub fn of(&self, catalog: &ModelCatalog<'_>) -> Arc<[ModelOption]> {
        let (revision, now) = (catalog.learned.revision(), now());
        if let Some(kept) = self.kept.lock().iter().find(|kept| kept.is_for(catalog, revision, now)) {
            return kept.models.clone();
        }
        let offers = catalog.offers(CatalogScope::Usable, OFFERED_MAX);
        let models: Arc<[ModelOption]> = offers
            .iter()
            .map(|offer| ModelOption { name: offer.name.clone(), about: about(offer) })
            .collect();
        let offer = KeptOffer {
            settings: catalog.settings.clone(),
            environment: catalog.environment.to_vec(),
            revision,
            local: catalog.local.cloned(),
            at: now,
            models: models.clone(),
        };
        let mut kept = self.kept.lock();
        kept.push_back(offer);
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
        models
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_provider::endpoint;
    use epitome_provider::learned::Learned;
    use epitome_thread::ModelName;

    fn environment(key: &str) -> Vec<(OsString, OsString)> {
        vec![(key.into(), "a-key".into())]
    }

    #[test]
    fn a_list_is_computed_again_only_if_an_input_has_changed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (learned, offered) = (Learned::below(directory.path()), OfferedModels::default());
        let of = |settings: &Settings, environment: &[(OsString, OsString)]| {
            offered.of(&ModelCatalog { settings, environment, learned: &learned, local: None })
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
        let about = &of(&plain, &anthropic)[0].about;
        assert!(about.contains("54k"), "{about:?}");
    }
}
