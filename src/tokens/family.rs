//! What a model's name tells of how its provider counts.

use super::estimate::is_wide;
use crate::thread::ModelName;

/// Models that are counted alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    OpenAi,
    Claude,
    Gemini,
    Qwen,
    /// DeepSeek, GLM, Kimi, MiniMax.
    Chinese,
    Mistral,
    /// Llama and what is made of it.
    Llama,
    #[default]
    Other,
}

/// What in a name tells the family. The first that fits holds, so that a Llama distilled from DeepSeek
/// is a Llama.
const MARKS: [(&str, Family); 19] = [
    ("claude", Family::Claude),
    ("gemini", Family::Gemini),
    ("gemma", Family::Gemini),
    ("llama", Family::Llama),
    ("mistral", Family::Mistral),
    ("mixtral", Family::Mistral),
    ("codestral", Family::Mistral),
    ("devstral", Family::Mistral),
    ("magistral", Family::Mistral),
    ("qwen", Family::Qwen),
    ("qwq", Family::Qwen),
    ("deepseek", Family::Chinese),
    ("glm", Family::Chinese),
    ("kimi", Family::Chinese),
    ("minimax", Family::Chinese),
    ("gpt", Family::OpenAi),
    // Where the name says nothing, who serves it does.
    ("anthropic/", Family::Claude),
    ("openai/", Family::OpenAi),
    ("mistral/", Family::Mistral),
];

impl Family {
    /// The family of a model, by its name, whoever serves it.
    pub fn of(model: &ModelName) -> Family {
        let name = model.0.to_ascii_lowercase();
        let mark = MARKS.iter().find(|(mark, _)| name.contains(mark));
        mark.map_or(Family::Other, |(_, family)| *family)
    }

    /// What a text may take more than what we count before the model has answered, in per cent: the
    /// vocabularies of most vendors are not public, and their ratios at the start not measured.
    pub(super) fn margin_percent(self) -> u64 {
        match self {
            Family::OpenAi | Family::Qwen => 0,
            Family::Claude
            | Family::Gemini
            | Family::Chinese
            | Family::Mistral
            | Family::Llama
            | Family::Other => 10,
        }
    }

    /// What of our count of a text is known to be otherwise in this family: digits that are a token each
    /// instead of one for three, and Chinese that its vocabulary has more words of.
    pub(super) fn adjust(self, text: &str, tokens: u64) -> u64 {
        let (single_digits, wide_percent) = match self {
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
}

/// How many tokens more a text takes where each digit is one, against one for three in a row.
fn surplus_digits(text: &str) -> u64 {
    let (mut surplus, mut run) = (0u64, 0u64);
    for byte in text.bytes() {
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        // The second and the third of each three.
        surplus += u64::from(run % 3 != 1 && run > 0);
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_chinese_are_counted_as_the_family_does() {
        for (family, text, tokens, adjusted) in [
            (Family::OpenAi, "1234567", 3, 3),
            (Family::Qwen, "1234567", 3, 7),
            (Family::Qwen, "12 a 345", 4, 7),
            (Family::Chinese, "1234567", 3, 3),
            (Family::Qwen, "港口的灯光在雾里显得", 8, 7),
            (Family::Gemini, "", 0, 0),
        ] {
            assert_eq!(family.adjust(text, tokens), adjusted, "{family:?} {text}");
        }
    }

    #[test]
    fn a_name_tells_its_family() {
        for (name, family) in [
            ("anthropic/claude-sonnet-5-5", Family::Claude),
            ("openrouter/anthropic/claude-opus-4.5", Family::Claude),
            ("openai/gpt-5.4", Family::OpenAi),
            ("openai/o4-mini", Family::OpenAi),
            ("gemini/gemini-3-pro", Family::Gemini),
            ("local/qwen3", Family::Qwen),
            ("local/DeepSeek-R1-Distill-Llama-8B", Family::Llama),
            ("groq/openai/gpt-oss-120b", Family::OpenAi),
            ("local/devstral-small", Family::Mistral),
            ("p/m", Family::Other),
        ] {
            assert_eq!(Family::of(&ModelName(name.to_owned())), family, "{name}");
        }
    }
}
