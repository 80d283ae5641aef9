//! Tests lookups in the model table, and properties of all its rows.

use std::collections::BTreeSet;

use super::*;
use epitome_config::WireFormat;

fn name(name: &str) -> ModelName {
    ModelName(name.into())
}

fn dollars(model: &str, usage: &Usage) -> Option<f64> {
    cost(&Settings::default(), &name(model), usage)
}

#[test]
fn a_model_is_known_with_and_without_its_date() {
    for (written, window) in [
        ("anthropic/claude-haiku-4-5", 200_000),
        ("anthropic/claude-haiku-4-5-20251001", 200_000),
        ("anthropic/claude-haiku-4-5-latest", 200_000),
        ("openai/gpt-5.4-2026-03-05", 922_000),
        ("gemini/gemini-pro-latest", 1_048_576),
        ("deepseek/deepseek-v4-pro", 1_000_000),
    ] {
        assert_eq!(known(&name(written)).map(|known| known.window), Some(window), "{written}");
    }
    for unknown in ["local/claude-haiku-4-5", "anthropic/claude-haiku-4-55", "-latest", "ü", ""] {
        assert!(known(&name(unknown)).is_none(), "{unknown}");
    }
}

#[test]
fn a_plan_has_openais_models_without_prices() {
    let plan = name("chatgpt/gpt-6-sol");
    assert_eq!(
        known(&plan).map(|known| known.window),
        known(&name("openai/gpt-6-sol")).map(|known| known.window)
    );
    assert!(known(&plan).is_some() && price(&Settings::default(), &plan).is_none());
}

#[test]
fn cached_tokens_cost_less() {
    let usage = Usage {
        input: 1_000_000,
        output: 100_000,
        cache_read: 800_000,
        cache_write: 100_000,
        thinking: 0,
        searches: 0,
        context: 0,
    };
    let cost = dollars("anthropic/claude-sonnet-5-5", &usage).expect("the price is known");
    // 0.1 M fresh at 2, 0.8 M read at 0.1, 0.1 M written at 2.5, 0.1 M output at 10.
    assert!((cost - (0.2 + 0.08 + 0.25 + 1.0)).abs() < 1e-9, "{cost}");
    assert_eq!(dollars("local/qwen", &usage), None);
}

#[test]
fn long_requests_cost_each_models_surcharge() {
    for (model, limit, of_input, of_output) in [
        ("openai/gpt-6-sol", 272_000, 2.0, 1.5),
        ("gemini/gemini-2.5-pro", 200_000, 2.0, 1.5),
        // Only with the beta feature for a window of a million tokens.
        ("anthropic/claude-sonnet-4-5", 200_000, 2.0, 1.5),
        ("anthropic/claude-haiku-5-5", 100_000, 5.0, 5.0),
        ("anthropic/claude-opus-5-5", 500_000, 1.0, 1.0),
    ] {
        let usage = |input, output| Usage { input, output, ..Usage::default() };
        let cost = |usage| dollars(model, &usage).expect("the price is known");
        let price = known(&name(model)).expect("it is in the table").price;
        let short = cost(usage(limit, 1_000));
        let long = cost(usage(limit + 1, 1_000));
        let of = |tokens: u64, price: f64| tokens as f64 * price / 1_000_000.0;
        let expected = of(limit + 1, price.input) * of_input + of(1_000, price.output) * of_output;
        assert!((long - expected).abs() < 1e-9, "{model} {long} {expected}");
        assert!((short - of(limit, price.input) - of(1_000, price.output)).abs() < 1e-9, "{model}");
    }
}

#[test]
fn searches_by_the_provider_cost_extra() {
    let usage = Usage { searches: 3, ..Usage::default() };
    let cost = dollars("anthropic/claude-sonnet-5-5", &usage).expect("the price is known");
    assert!((cost - 0.03).abs() < 1e-9, "{cost}");
}

#[test]
fn configured_price_overrides_the_table() {
    let usage = Usage {
        input: 300_000,
        output: 100_000,
        cache_read: 100_000,
        cache_write: 100_000,
        thinking: 0,
        searches: 0,
        context: 0,
    };
    let mut settings = Settings::default();
    for (model, cache_read, expected) in
        [("openai/gpt-6-sol", Some(0.5), 0.1 + 0.05 + 0.1 + 0.3), ("local/qwen", None, 0.3 + 0.3)]
    {
        let price = PriceSettings { input: 1.0, output: 3.0, cache_read, cache_write: None };
        let configured = epitome_config::ModelSettings { price: Some(price), ..Default::default() };
        settings.models.insert(model.into(), configured);
        let cost = cost(&settings, &name(model), &usage).expect("the price is configured");
        assert!((cost - expected).abs() < 1e-9, "{model} {cost}");
    }
}

#[test]
fn every_row_is_plausible() {
    let names: BTreeSet<&str> = KNOWN.iter().map(|known| known.name).collect();
    assert_eq!(names.len(), KNOWN.len(), "a name is there twice");
    for known in &KNOWN {
        let KnownModel { price, .. } = known;
        assert!(name(known.name).split().is_some(), "{}", known.name);
        assert!(known.window >= 100_000 && u64::from(known.max_output) <= known.window, "{}", known.name);
        assert!(price.cache_read <= price.input && price.input <= price.output, "{}", known.name);
        assert!(price.input > 0.0, "{}", known.name);
        let is_day = |day: &str| undated(&format!("x-{day}")) == "x";
        assert!(known.retires.is_none_or(is_day), "{}", known.name);
    }
}

/// Abilities of models that aren't in the table are guessed by name. For those in the table, guess and table must
/// agree, or one of them is outdated.
#[test]
fn the_table_and_the_guess_by_name_agree() {
    let wires = [
        ("anthropic", WireFormat::AnthropicMessages),
        ("openai", WireFormat::OpenAiResponses),
        ("gemini", WireFormat::Gemini),
    ];
    for (provider, wire) in wires {
        for known in provider_models(provider) {
            let model = known.name.split_once('/').expect("names have a provider").1;
            assert_eq!(Abilities::likely(wire, model), known.abilities(), "{}", known.name);
        }
    }
}

#[test]
fn first_model_of_each_provider_is_current() {
    for (provider, first) in [
        ("anthropic", "anthropic/claude-sonnet-5-5"),
        ("openai", "openai/gpt-6-sol"),
        ("gemini", "gemini/gemini-3.8-flash"),
    ] {
        let known = provider_models(provider).next().expect("there are some");
        assert_eq!((known.name, known.retires), (first, None));
    }
    assert_eq!(provider_models("local").count(), 0);
}
