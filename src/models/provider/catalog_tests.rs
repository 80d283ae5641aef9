//! Tests which models are offered, and the sources of their properties.

use super::*;
use crate::listing::{ListedModel, ModelFacts};
use epitome_config::{ModelSettings, PriceSettings, ProviderSettings, WireFormat};

fn env(pairs: &[(&str, &str)]) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn named(name: &str) -> ModelName {
    ModelName(name.into())
}

struct CatalogFixture {
    settings: Settings,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    learned: Learned,
    local: Option<LocalServer>,
}

impl CatalogFixture {
    fn new(environment: &[(&str, &str)]) -> CatalogFixture {
        // This fixture neither loads nor saves it.
        let learned = Learned::below(std::path::Path::new("/nowhere"));
        CatalogFixture { settings: Settings::default(), environment: env(environment), learned, local: None }
    }

    fn catalog(&self) -> ModelCatalog<'_> {
        ModelCatalog {
            settings: &self.settings,
            environment: &self.environment,
            learned: &self.learned,
            local: self.local.as_ref(),
        }
    }

    fn names(&self, scope: CatalogScope) -> Vec<String> {
        self.catalog().offers(scope, 100).into_iter().map(|offer| offer.name.0).collect()
    }
}

#[test]
fn without_keys_no_model_is_usable_but_all_are_listed() {
    let fixture = CatalogFixture::new(&[]);
    assert!(fixture.names(CatalogScope::Usable).is_empty());
    let all = fixture.catalog().offers(CatalogScope::All, 100);
    assert!(all.iter().any(|offer| offer.name.0.starts_with("anthropic/")));
    assert!(all.iter().all(|offer| !offer.is_usable && offer.window.0 > 0), "{all:?}");
}

#[test]
fn provider_list_adds_models_and_refines_table_entries() {
    let fixture = CatalogFixture::new(&[("ANTHROPIC_API_KEY", "k")]);
    let endpoint = fixture.catalog().endpoints().pop().expect("an endpoint");
    let listed = |name: &str, window| ListedModel {
        name: name.into(),
        facts: ModelFacts { window: Some(window), ..ModelFacts::default() },
        life: Lifecycle::Ending { on: None },
    };
    let names = [listed("claude-haiku-4-5-20251001", 1), listed("claude-next", 2_000_000)];
    fixture.learned.learn_list(&endpoint, &names);
    let offers = fixture.catalog().offers(CatalogScope::Usable, 100);
    let of = |name: &str| offers.iter().find(|offer| offer.name.0 == name);
    let next = of("anthropic/claude-next").expect("it is listed");
    assert_eq!(
        (next.window, next.life.clone()),
        ((2_000_000, FactSource::Endpoint), Lifecycle::Ending { on: None })
    );
    assert!(of("anthropic/claude-haiku-4-5-20251001").is_none(), "it is there without its date");
    assert_eq!(of("anthropic/claude-haiku-4-5").expect("it is in the table").window.1, FactSource::Table);
    assert!(offers.iter().all(|offer| offer.is_usable));
    assert_eq!(fixture.catalog().offers(CatalogScope::Usable, 3).len(), 3);
}

#[test]
fn configured_local_provider_needs_no_server_discovery() {
    let mut fixture = CatalogFixture::new(&[]);
    let place = ProviderSettings {
        wire: WireFormat::OpenAiChat,
        base_url: "http://box:8000/v1".into(),
        key_variable: None,
        headers: Default::default(),
    };
    fixture.settings.providers.insert("local".into(), place);
    fixture.settings.model = Some("local/qwen".into());
    assert_eq!(fixture.names(CatalogScope::Usable), ["local/qwen"]);
    assert_eq!(fixture.catalog().endpoints()[0].base_url, "http://box:8000/v1");
}

#[test]
fn models_are_grouped_by_provider_with_the_chosen_one_first() {
    let mut fixture = CatalogFixture::new(&[("ANTHROPIC_API_KEY", "k"), ("OPENAI_API_KEY", "k")]);
    fixture.settings.model = Some("openai/gpt-5.4".into());
    fixture.settings.models.insert("anthropic/mine".into(), ModelSettings::default());
    fixture.local = Some(LocalServer {
        base_url: "http://127.0.0.1:1/v1".into(),
        models: vec![ListedModel { name: "qwen".into(), facts: Default::default(), life: Lifecycle::Active }],
    });
    let offers = fixture.catalog().offers(CatalogScope::Usable, 100);
    let providers: Vec<&str> = offers.iter().map(|offer| provider_of(&offer.name)).collect();
    let mut groups = providers.clone();
    groups.dedup();
    assert_eq!(groups, ["openai", "anthropic", "local"]);
    assert_eq!(offers[0].name, named("openai/gpt-5.4"));
    assert_eq!(fixture.catalog().chosen_model(), Some(named("openai/gpt-5.4")));
    assert_ne!(fixture.catalog().default_model(), fixture.catalog().chosen_model());
}

/// Regression: a configured price was used for a session's cost, but `epitome models` and the picker showed the table's
/// price or none.
#[test]
fn a_configured_price_is_shown() {
    let mut fixture = CatalogFixture::new(&[("ANTHROPIC_API_KEY", "k")]);
    let price = PriceSettings { input: 0.3, output: 1.2, cache_read: None, cache_write: None };
    let mine = ModelSettings { price: Some(price), ..ModelSettings::default() };
    fixture.settings.models.insert("anthropic/mine".into(), mine);
    let offers = fixture.catalog().offers(CatalogScope::Usable, 100);
    let shown =
        offers.iter().find(|offer| offer.name == named("anthropic/mine")).and_then(|offer| offer.price);
    assert_eq!(shown, Some(ModelPrice::from(price)));
}

/// Regression: the table contained the shutdown dates of models, but they weren't shown.
#[test]
fn announced_shutdown_is_shown_with_and_without_a_key() {
    for environment in [&[][..], &[("ANTHROPIC_API_KEY", "k")]] {
        let offers = CatalogFixture::new(environment).catalog().offers(CatalogScope::All, 1_000);
        let of = |name: &str| offers.iter().find(|offer| offer.name == named(name)).map(|offer| &offer.life);
        let ending = Lifecycle::Ending { on: Some("2026-11-30".into()) };
        assert_eq!(of("anthropic/claude-sonnet-4-5"), Some(&ending));
        assert_eq!(of("anthropic/claude-sonnet-5-5"), Some(&Lifecycle::Active));
    }
}
