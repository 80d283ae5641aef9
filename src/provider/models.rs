//! What is known of some models: windows, limits and prices. Kept by hand; a person's configuration
//! goes before it, and a model that is not in it still works.

use crate::thread::{ModelName, Usage};

/// The window of a model of which nothing is known, in tokens: what nearly every current hosted model
/// holds. A local server's own word or the configuration replaces it.
pub const WINDOW_DEFAULT: u64 = 128_000;

/// The most tokens of one reply of a model of which nothing is known: long enough for a whole file.
pub const OUTPUT_DEFAULT: u32 = 16_384;

/// What the table knows of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// `provider/name` without a date at its end.
    pub name: &'static str,
    /// Tokens that a request may hold.
    pub window: u64,
    /// Tokens that a reply may hold.
    pub max_output: u32,
    pub price: Price,
}

/// US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
    /// Requests with more tokens than this pay double for their input.
    pub doubles_above: Option<u64>,
}

/// The entry of a model, also when its name ends in a release date (`-20251001`, `-2026-03-05`).
pub fn known(model: &ModelName) -> Option<&'static Known> {
    let name = undated(&model.0);
    KNOWN.iter().find(|known| known.name == name)
}

/// What a call cost in US dollars, where the prices are known.
pub fn cost(model: &ModelName, usage: &Usage) -> Option<f64> {
    let price = known(model)?.price;
    let factor = match price.doubles_above {
        Some(limit) if usage.input > limit => 2.0,
        Some(_) | None => 1.0,
    };
    let fresh = usage.input.saturating_sub(usage.cache_read).saturating_sub(usage.cache_write);
    let input = fresh as f64 * price.input
        + usage.cache_read as f64 * price.cache_read
        + usage.cache_write as f64 * price.cache_write;
    Some((input * factor + usage.output as f64 * price.output) / 1_000_000.0)
}

/// The models of a provider, best first, for a picker.
pub fn of_provider(provider: &str) -> impl Iterator<Item = &'static Known> {
    KNOWN.iter().filter(move |known| known.name.split_once('/').is_some_and(|(of, _)| of == provider))
}

/// Cuts a release date off a model's name.
pub(super) fn undated(name: &str) -> &str {
    let is_date = |text: &str| text.bytes().filter(u8::is_ascii_digit).count() == 8;
    let dashed = |text: &str| text.bytes().enumerate().all(|(i, b)| (b == b'-') == matches!(i, 4 | 7));
    for length in [8, 10] {
        let Some((head, date)) = name.len().checked_sub(length).and_then(|at| name.split_at_checked(at))
        else {
            continue;
        };
        if let Some(head) = head.strip_suffix('-')
            && is_date(date)
            && (length == 8 || dashed(date))
        {
            return head;
        }
    }
    name
}

const fn anthropic(
    name: &'static str,
    window: u64,
    max_output: u32,
    [input, output, cache_read, cache_write]: [f64; 4],
) -> Known {
    let price = Price { input, output, cache_read, cache_write, doubles_above: None };
    Known { name, window, max_output, price }
}

const fn openai(
    name: &'static str,
    window: u64,
    max_output: u32,
    [input, output, cache_read, cache_write]: [f64; 4],
) -> Known {
    let price = Price { input, output, cache_read, cache_write, doubles_above: Some(272_000) };
    Known { name, window, max_output, price }
}

/// Prices per million tokens: input, output, cache read, cache write.
const KNOWN: [Known; 14] = [
    anthropic("anthropic/claude-sonnet-5-5", 1_000_000, 128_000, [2.0, 10.0, 0.10, 2.5]),
    anthropic("anthropic/claude-opus-5-5", 1_000_000, 128_000, [4.0, 20.0, 0.20, 5.0]),
    anthropic("anthropic/claude-haiku-5-5", 1_000_000, 128_000, [0.10, 0.50, 0.01, 0.125]),
    anthropic("anthropic/claude-fable-5-1", 1_000_000, 128_000, [10.0, 50.0, 0.25, 12.5]),
    anthropic("anthropic/claude-sonnet-4-6", 1_000_000, 128_000, [3.0, 15.0, 0.30, 3.75]),
    anthropic("anthropic/claude-haiku-4-5", 200_000, 64_000, [1.0, 5.0, 0.10, 1.25]),
    openai("openai/gpt-6-sol", 922_000, 128_000, [2.0, 10.0, 0.20, 2.5]),
    openai("openai/gpt-6-luna", 922_000, 128_000, [0.10, 0.50, 0.01, 0.125]),
    openai("openai/gpt-5.4", 1_050_000, 128_000, [2.5, 15.0, 0.25, 2.5]),
    openai("openai/gpt-4.1", 1_047_576, 32_768, [2.0, 8.0, 0.5, 2.0]),
    openai("openai/gpt-6-astra", 922_000, 128_000, [10.0, 50.0, 1.0, 12.5]),
    openai("openai/gpt-6.1-sol", 922_000, 128_000, [2.0, 10.0, 0.10, 2.5]),
    openai("openai/gpt-6.1-terra", 922_000, 128_000, [1.0, 5.0, 0.05, 1.25]),
    anthropic("anthropic/claude-fable-5-2", 1_000_000, 128_000, [10.0, 50.0, 0.25, 12.5]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ModelName {
        ModelName(name.into())
    }

    #[test]
    fn a_model_is_known_with_and_without_its_date() {
        for written in
            ["anthropic/claude-haiku-4-5", "anthropic/claude-haiku-4-5-20251001", "openai/gpt-5.4-2026-03-05"]
        {
            assert!(known(&name(written)).is_some(), "{written}");
        }
        assert_eq!(known(&name("anthropic/claude-haiku-4-5")).map(|known| known.window), Some(200_000));
        for unknown in ["local/claude-haiku-4-5", "anthropic/claude-haiku-4-55", "ü", ""] {
            assert!(known(&name(unknown)).is_none(), "{unknown}");
        }
    }

    #[test]
    fn cached_tokens_cost_less() {
        let usage = Usage {
            input: 1_000_000,
            output: 100_000,
            cache_read: 800_000,
            cache_write: 100_000,
            thinking: 0,
        };
        let dollars = cost(&name("anthropic/claude-sonnet-5-5"), &usage).expect("the price is known");
        // 0.1 M fresh at 2, 0.8 M read at 0.1, 0.1 M written at 2.5, 0.1 M output at 10.
        assert!((dollars - (0.2 + 0.08 + 0.25 + 1.0)).abs() < 1e-9, "{dollars}");
        assert_eq!(cost(&name("local/qwen"), &usage), None);
    }

    #[test]
    fn long_requests_to_openai_pay_double_for_input() {
        let usage = |input| Usage { input, ..Usage::default() };
        let model = name("openai/gpt-6-sol");
        let short = cost(&model, &usage(272_000)).expect("the price is known");
        let long = cost(&model, &usage(544_000)).expect("the price is known");
        assert!((long - short * 4.0).abs() < 1e-9);
    }
}
