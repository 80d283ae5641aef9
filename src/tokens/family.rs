//! What a model's name tells of how its provider counts.

use crate::thread::ModelName;

/// Models that are counted alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    OpenAi,
    Claude,
    Gemini,
    /// Qwen, DeepSeek, GLM, Kimi.
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
    ("qwen", Family::Chinese),
    ("qwq", Family::Chinese),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_family() {
        for (name, family) in [
            ("anthropic/claude-sonnet-5-5", Family::Claude),
            ("openrouter/anthropic/claude-opus-4.5", Family::Claude),
            ("openai/gpt-5.4", Family::OpenAi),
            ("openai/o4-mini", Family::OpenAi),
            ("gemini/gemini-3-pro", Family::Gemini),
            ("local/qwen3", Family::Chinese),
            ("local/DeepSeek-R1-Distill-Llama-8B", Family::Llama),
            ("groq/openai/gpt-oss-120b", Family::OpenAi),
            ("local/devstral-small", Family::Mistral),
            ("p/m", Family::Other),
        ] {
            assert_eq!(Family::of(&ModelName(name.to_owned())), family, "{name}");
        }
    }
}
