//! Known differences between Epitome's count and the counts of a model family.

use super::estimate::is_wide;
use crate::model_name::Family;

/// The possible excess over Epitome's count before the model's first reply, in percent. The vocabularies of most
/// vendors are not public, so their initial ratios are not measured.
pub(super) fn margin_percent(family: Family) -> u64 {
    if matches!(family, Family::OpenAi | Family::Qwen) { 0 } else { 10 }
}

/// Adjusts Epitome's count for a family: for vocabularies with one token per digit instead of one per three digits,
/// and for those with more Chinese words.
pub(super) fn adjust(family: Family, text: &str, tokens: u64) -> u64 {
    let (single_digits, wide_percent) = match family {
        Family::Qwen => (true, 80),
        Family::Gemini | Family::Mistral => (true, 100),
        Family::Chinese => (false, 80),
        Family::OpenAi | Family::Claude | Family::Llama | Family::Other => return tokens,
    };
    let digits = if single_digits { surplus_digits(text) } else { 0 };
    // About three tokens for four characters.
    let wide = text.chars().filter(|character| is_wide(*character)).count() as u64 * 3 / 4;
    tokens + digits - wide.min(tokens) * (100 - wide_percent) / 100
}

/// Returns the number of additional tokens if each digit is a token, instead of every three digits.
fn surplus_digits(text: &str) -> u64 {
    let (mut surplus, mut run) = (0u64, 0u64);
    for byte in text.bytes() {
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        // The second and the third digit of each group of three.
        surplus += u64::from(run % 3 != 1 && run > 0);
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_chinese_are_adjusted_to_the_family() {
        for (family, text, tokens, adjusted) in [
            (Family::OpenAi, "1234567", 3, 3),
            (Family::Qwen, "1234567", 3, 7),
            (Family::Qwen, "12 a 345", 4, 7),
            (Family::Chinese, "1234567", 3, 3),
            (Family::Qwen, "港口的灯光在雾里显得", 8, 7),
            (Family::Gemini, "", 0, 0),
        ] {
            assert_eq!(adjust(family, text, tokens), adjusted, "{family:?} {text}");
        }
    }
}
