//! Tests the validity and storage of learned facts.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::abilities::{Effort, Thinking};
use epitome_tokens::Tally;
use epitome_tokens::model_name::Family;

const DAY: u64 = 24 * 60 * 60 * 1000;
const SERVICE: &str = "http://127.0.0.1:11434/v1";

fn listed(name: &str, window: Option<u64>) -> ListedModel {
    ListedModel {
        name: name.into(),
        facts: ModelFacts { window, ..ModelFacts::default() },
        life: Lifecycle::Active,
    }
}

fn overflow(tokens: u64, at: u64) -> LearnedWindow {
    LearnedWindow { tokens, by: WindowOrigin::Overflow, at }
}

/// The calibration of a model that reports this many tokens per thousand that Epitome counts.
fn calibrated(of_thousand: u64, at: u64) -> Calibrated {
    let mut calibration = Calibration::start(Family::Claude);
    calibration.learn(Tally { text: 100_000, media: 0 }, of_thousand * 100);
    Calibrated { calibration, at }
}

fn tokens(cache: &LearnedCache, now: u64) -> Option<u64> {
    cache.model(SERVICE, "m")?.learnt(now).map(|learnt| learnt.tokens)
}

#[test]
fn lesson_is_valid_until_the_listed_window_changes() {
    let mut cache = LearnedCache::default();
    cache.list(SERVICE, &[listed("m", Some(131_072))], 10);
    cache.learn(SERVICE, "m", overflow(32_768, 20));
    cache.list(SERVICE, &[listed("m", Some(131_072))], 30);
    assert_eq!(tokens(&cache, 40), Some(32_768), "the list says nothing new");
    cache.list(SERVICE, &[listed("m", None)], 50);
    assert_eq!(tokens(&cache, 60), Some(32_768), "the list says nothing at all");
    cache.list(SERVICE, &[listed("m", Some(65_536))], 70);
    assert_eq!(tokens(&cache, 80), None, "it was restarted with another window");
    cache.learn(SERVICE, "m", overflow(60_000, 90));
    assert_eq!(tokens(&cache, 90), Some(60_000));
    assert_eq!(tokens(&cache, 91 + 30 * DAY), None, "it is too long ago");
}

/// Regression: a provider's list is fetched while the first prompt is in progress. If it arrived after that prompt was
/// rejected, its window was mistaken for a changed one, which invalidated the learned window.
#[test]
fn first_list_after_a_lesson_keeps_it() {
    let mut cache = LearnedCache::default();
    cache.learn(SERVICE, "m", overflow(6_000, 10));
    cache.list(SERVICE, &[listed("m", Some(200_000))], 20);
    assert_eq!(tokens(&cache, 30), Some(6_000));
}

/// Windows used to be guessed from a server's low token counts. Such guesses in files of older versions are ignored,
/// but not the facts next to them.
#[test]
fn window_guessed_from_a_count_is_dropped() {
    let learnt = json!({ "tokens": 4_096, "by": "truncation", "at": 20 });
    let known = json!({ "facts": { "window": 32_768 }, "listed_at": 10, "learnt": learnt });
    let file = json!({ "places": { SERVICE: { "listed_at": 10, "models": { "m": known } } } });
    let cache = LearnedCache::from_text(&file.to_string()).expect("it is such a file");
    assert_eq!(tokens(&cache, 30), None);
    assert_eq!(cache.model(SERVICE, "m").expect("it is kept").facts.window, Some(32_768));
}

#[test]
fn list_replaces_the_previous_one() {
    let mut cache = LearnedCache::default();
    cache.list(SERVICE, &[listed("m", Some(4_096)), listed("gone", None)], 10);
    cache.list(SERVICE, &[listed("m", None), listed("new", Some(1_024))], 20);
    assert_eq!(cache.listed(SERVICE), [listed("m", Some(4_096)), listed("new", Some(1_024))]);
    assert!(cache.listed("http://other").is_empty());
}

#[test]
fn places_and_models_are_bounded_keeping_the_newest() {
    let mut cache = LearnedCache::default();
    for at in 1..=100 {
        cache.learn(&format!("http://box:{at}"), "m", overflow(4_096, at));
    }
    assert_eq!(cache.services.len(), SERVICES_MAX);
    assert!(cache.model("http://box:100", "m").is_some());
    for at in 1..=2 * LISTED_MAX as u64 {
        cache.learn(SERVICE, &format!("m{at}"), overflow(4_096, 1_000 + at));
    }
    assert_eq!(cache.services[SERVICE].models.len(), LISTED_MAX);
    assert!(cache.model(SERVICE, &format!("m{}", 2 * LISTED_MAX)).is_some());
    for at in 1..=2 * CALIBRATIONS_MAX as u64 {
        cache.calibrate(&format!("p/{at}"), calibrated(1_500, at));
    }
    assert_eq!(cache.calibrations.len(), CALIBRATIONS_MAX);
    assert!(cache.calibrations.contains_key(&format!("p/{}", 2 * CALIBRATIONS_MAX)));
}

#[test]
fn data_of_newer_versions_is_skipped() {
    let text = r#"{"version":7,"places":{"http://box":{"asked_at":5,"listed_at":5,"mood":"good","models":{
        "m":{"facts":{"window":4096,"smell":true},"life":"active","listed_at":5,"window_since":5,"told_at":0},
        "n":{"life":{"reborn":{"as":"o"}},"listed_at":5},
        "o":"a word"}}},
        "calibrations":{"p/m":{"ratio":1.5,"overhead":40,"replies":3,"at":9,"taste":"sweet"},"p/n":{"ratio":[1.5]}}}"#;
    let cache = LearnedCache::from_text(text).expect("it is an object");
    assert_eq!(cache.calibrations.keys().collect::<Vec<_>>(), ["p/m"]);
    assert_eq!(cache.listed("http://box"), [listed("m", Some(4_096))]);
    for broken in ["", "[]", "{\"places\":", "7"] {
        assert!(LearnedCache::from_text(broken).is_err(), "{broken}");
    }
    assert_eq!(LearnedCache::from_text("{}").expect("an object"), LearnedCache::default());
}

fn any_cache() -> impl Strategy<Value = LearnedCache> {
    let learnt = (1_000u64..9_000, 0u64..50).prop_map(|(tokens, at)| overflow(tokens, at));
    let facts = (proptest::option::of(1u64..9_000), proptest::option::of(any::<bool>())).prop_map(
        |(window, images)| ModelFacts {
            window,
            images,
            thinking: Some(Thinking::Efforts(&[Effort::Low])),
            ..ModelFacts::default()
        },
    );
    let form = (0u64..50).prop_map(|at| LearnedForm {
        form: ToolForm::Responses,
        omitted: vec!["include".to_owned()],
        at,
    });
    let learnt = (proptest::option::of(learnt), proptest::option::of(form));
    let known = (facts, 0u64..50, 0u64..50, learnt, 0u64..50).prop_map(
        |(facts, listed_at, window_since, (learnt, form), reported_at)| {
            // A model that was never listed has no facts.
            let facts = if listed_at == 0 { ModelFacts::default() } else { facts };
            let window_since = window_since.min(listed_at);
            ModelEntry { facts, life: Lifecycle::Active, listed_at, window_since, learnt, form, reported_at }
        },
    );
    let models = proptest::collection::btree_map("[abc]", known, 0..3);
    let service = (0u64..50, 0u64..50, models).prop_map(|(asked_at, listed_at, models)| ProviderEntry {
        asked_at,
        listed_at,
        models,
    });
    let calibrations = (600u64..2_900, 0u64..50).prop_map(|(of_thousand, at)| calibrated(of_thousand, at));
    (
        proptest::collection::btree_map("[xyz]", service, 0..3),
        proptest::collection::btree_map("[abc]", calibrations, 0..3),
    )
        .prop_map(|(services, calibrations)| LearnedCache { services, calibrations })
}

proptest! {
    #[test]
    fn book_survives_a_round_trip(cache in any_cache()) {
        prop_assert_eq!(LearnedCache::from_text(&cache.to_text()).expect("an object"), cache);
    }

    /// Two processes write the same file; each merges the other's facts.
    #[test]
    fn merging_keeps_newer_data(mine in any_cache(), other in any_cache()) {
        let mut both = mine.clone();
        both.merge(other.clone());
        let mut again = both.clone();
        again.merge(other.clone());
        prop_assert_eq!(&again, &both);
        for cache in [&mine, &other] {
            for (model, calibrated) in &cache.calibrations {
                prop_assert!(both.calibrations[model].at >= calibrated.at);
            }
            for (name, service) in &cache.services {
                prop_assert!(both.services[name].asked_at >= service.asked_at);
                for (model, known) in &service.models {
                    let merged = &both.services[name].models[model];
                    prop_assert!(merged.listed_at >= known.listed_at);
                    prop_assert!(merged.learnt.map(|l| l.at) >= known.learnt.map(|l| l.at));
                }
            }
        }
    }
}
