//! Tests the precedence of sources and persistence.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::abilities::{Abilities, Thinking};
use crate::endpoint::{resolve, test_endpoint};
use crate::listing::Lifecycle;
use epitome_config::{ModelSettings, ThinkingSettings};
use epitome_tokens::Tally;
use epitome_tokens::model_name::Family;

fn local(name: &str) -> Endpoint {
    let env = [("EPITOME_LOCAL_URL".into(), "http://127.0.0.1:1/v1".into())];
    resolve(&ModelName(format!("local/{name}")), &Settings::default(), &env).expect("it wants no key")
}

fn with_window(model: &str, window: u64) -> Settings {
    let model_settings = ModelSettings { context_window: Some(window), ..ModelSettings::default() };
    Settings { models: [(model.to_owned(), model_settings)].into(), ..Settings::default() }
}

fn listed(endpoint: &Endpoint, facts: ModelFacts) -> ListedModel {
    ListedModel { name: endpoint.model.clone(), facts, life: Lifecycle::Active }
}

fn window(tokens: u64) -> ModelFacts {
    ModelFacts { window: Some(tokens), ..ModelFacts::default() }
}

fn empty() -> (Learned, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a scratch directory");
    (Learned::below(&directory.path().join("data")), directory)
}

fn window_of(learned: &Learned, settings: &Settings, endpoint: &Endpoint) -> (u64, FactSource) {
    learned.apply(settings, &mut endpoint.clone()).window
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

#[test]
fn window_follows_source_precedence() {
    let (hosted, near) = (test_endpoint("anthropic/claude-haiku-4-5"), local("qwen"));
    let mut compatible = test_endpoint("openai/some-new-model");
    compatible.base_url = "https://box.example/v1".into();
    let (learned, _directory) = empty();
    let nothing = Settings::default();
    assert_eq!(window_of(&learned, &nothing, &hosted), (200_000, FactSource::Table));
    assert_eq!(window_of(&learned, &nothing, &compatible), (WINDOW_DEFAULT, FactSource::Guess));
    assert_eq!(window_of(&learned, &nothing, &near), (WINDOW_NEAR_DEFAULT, FactSource::Guess));
    for endpoint in [&hosted, &near] {
        learned.learn_list(endpoint, &[listed(endpoint, window(50_000))]);
        assert_eq!(window_of(&learned, &nothing, endpoint), (50_000, FactSource::Endpoint));
        learned.learn_window(endpoint, 60_000);
        assert_eq!(
            window_of(&learned, &nothing, endpoint),
            (50_000, FactSource::Endpoint),
            "it is no smaller"
        );
        learned.learn_window(endpoint, 10);
        assert_eq!(
            window_of(&learned, &nothing, endpoint),
            (50_000, FactSource::Endpoint),
            "a misread number"
        );
        let configured = with_window(&endpoint.name.0, 70_000);
        assert_eq!(window_of(&learned, &configured, endpoint), (70_000, FactSource::Config));
    }
    learned.learn_window(&compatible, 40_000);
    assert_eq!(window_of(&learned, &nothing, &compatible), (40_000, FactSource::Overflow));
}

#[test]
fn known_facts_are_applied_to_endpoints() {
    let (learned, _directory) = empty();
    let mut endpoint = local("qwen");
    let facts = ModelFacts {
        max_output: Some(64_000),
        images: Some(false),
        thinking: Some(Thinking::Budget { optional: true }),
        ..window(100_000)
    };
    learned.learn_list(&endpoint, &[listed(&endpoint, facts)]);
    learned.apply(&Settings::default(), &mut endpoint);
    // A reply is limited to a quarter of the window.
    assert_eq!((endpoint.window, endpoint.max_output), (100_000, 25_000));
    assert_eq!(endpoint.abilities.thinking, Thinking::Budget { optional: true });
    assert!(!endpoint.abilities.images);
    let mut settings = with_window("local/qwen", 8_000);
    settings.models.entry("local/qwen".into()).or_default().max_output = Some(3_000);
    assert_eq!(learned.apply(&settings, &mut endpoint).window.1, FactSource::Config);
    assert_eq!((endpoint.window, endpoint.max_output), (8_000, 3_000));
}

#[test]
fn learned_data_persists_without_secrets() {
    let (learned, directory) = empty();
    let mut endpoint = local("qwen");
    endpoint.base_url = "http://me:password@127.0.0.1:1/v1?key=secret".into();
    learned.learn_window(&endpoint, 4_096);
    block_on(learned.save());
    let file = directory.path().join("data/models.json");
    let text = std::fs::read_to_string(&file).expect("it was written");
    assert!(text.contains("4096") && !text.contains("password") && !text.contains("secret"), "{text}");
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let next = Learned::below(&directory.path().join("data"));
    block_on(next.load());
    assert_eq!(next.fault(), None);
    assert_eq!(window_of(&next, &Settings::default(), &endpoint), (4_096, FactSource::Overflow));
}

/// Regression: the provider's list overrode the user's settings, so a model that was configured to accept images got
/// none if its list excluded them.
#[test]
fn configured_abilities_override_the_providers_list() {
    let (learned, _directory) = empty();
    let mut endpoint = local("qwen");
    let facts = ModelFacts {
        images: Some(false),
        documents: Some(true),
        thinking: Some(Thinking::Budget { optional: true }),
        ..ModelFacts::default()
    };
    learned.learn_list(&endpoint, &[listed(&endpoint, facts)]);
    let mut settings = Settings::default();
    let configured = settings.models.entry("local/qwen".into()).or_default();
    (configured.images, configured.thinking) = (Some(true), Some(ThinkingSettings::None));
    learned.apply(&settings, &mut endpoint);
    let Abilities { images, documents, thinking, .. } = endpoint.abilities;
    assert_eq!((images, documents, thinking), (true, true, Thinking::None));
}

#[test]
fn calibrations_persist() {
    let (learned, directory) = empty();
    let model = ModelName("anthropic/claude-haiku-4-5".into());
    let mut calibration = Calibration::start(Family::Claude);
    calibration.learn(Tally { text: 10_000, media: 0 }, 14_000);
    learned.learn_calibration(&model, calibration);
    block_on(learned.save());
    let next = Learned::below(&directory.path().join("data"));
    assert!(next.calibrations().is_empty(), "nothing is read before it is wanted");
    block_on(next.load());
    assert_eq!(next.calibrations(), [(model, calibration)]);
}

#[test]
fn two_processes_merge_what_they_learned() {
    let (mine, directory) = empty();
    let other = Learned::below(&directory.path().join("data"));
    let (a, b) = (local("a"), local("b"));
    mine.learn_window(&a, 4_096);
    other.learn_window(&b, 8_192);
    block_on(async {
        mine.save().await;
        other.save().await;
    });
    let third = Learned::below(&directory.path().join("data"));
    block_on(third.load());
    for learned in [other, third] {
        assert_eq!(window_of(&learned, &Settings::default(), &a).0, 4_096);
        assert_eq!(window_of(&learned, &Settings::default(), &b).0, 8_192);
    }
}

#[test]
fn broken_file_is_set_aside_and_reported_once() {
    let (learned, directory) = empty();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    std::fs::write(data.join("models.json"), "{\"places\": {").expect("a file");
    block_on(learned.load());
    let notice = learned.fault().expect("the user gets a notice");
    assert!(notice.contains("models.json") && notice.contains("learned again"), "{notice}");
    block_on(learned.load());
    assert_eq!(learned.fault(), None);
    assert!(data.join("models.json.broken").exists() && !data.join("models.json").exists());
    learned.learn_window(&local("m"), 4_096);
    block_on(learned.save());
    assert!(data.join("models.json").exists());
}

#[test]
fn guess_is_reported_once_per_model() {
    let (learned, _directory) = empty();
    assert!(learned.is_guess_unreported(&local("a")));
    assert!(!learned.is_guess_unreported(&local("a")));
    assert!(learned.is_guess_unreported(&local("b")));
}
