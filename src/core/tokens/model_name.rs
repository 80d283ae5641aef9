//! Infers a model's family and version from its name. Names are parsed only here; the consequences for request
//! formats and token counting are decided elsewhere.

/// Models of one vendor, or of several vendors that are treated alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    OpenAi,
    Claude,
    /// Includes Gemma.
    Gemini,
    Qwen,
    /// DeepSeek, GLM, Kimi, MiniMax.
    Chinese,
    Mistral,
    /// Llama and its derivatives.
    Llama,
    #[default]
    Other,
}

/// Substrings that identify a family. The first match wins, so a Llama distilled from DeepSeek counts as
/// Llama.
const MARKS: [(Family, &[&str]); 9] = [
    (Family::Claude, &["claude"]),
    (Family::Gemini, &["gemini", "gemma"]),
    (Family::Llama, &["llama"]),
    (Family::Mistral, &["mistral", "mixtral", "codestral", "devstral", "magistral"]),
    (Family::Qwen, &["qwen", "qwq"]),
    (Family::Chinese, &["deepseek", "glm", "kimi", "minimax"]),
    (Family::OpenAi, &["gpt"]),
    // Fallback: the provider's prefix, if the model's name matches nothing.
    (Family::Claude, &["anthropic/"]),
    (Family::OpenAi, &["openai/"]),
];

impl Family {
    /// Detects the family of a model, with or without a provider prefix.
    pub fn detect(model: &str) -> Family {
        let lower = model.to_ascii_lowercase();
        if is_o_series(undated(last(&lower))) {
            return Family::OpenAi;
        }
        let found = MARKS.iter().find(|(_, marks)| marks.iter().any(|mark| lower.contains(mark)));
        found.map_or(Family::Other, |(family, _)| *family)
    }
}

/// Version of a model whose name contains only its line and no number: greater than or equal to every other version.
const NEWEST: (u32, u32) = (u32::MAX, 0);

/// A parsed model name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedName<'a> {
    pub family: Family,
    /// The name without the provider or gateway prefix and the release date.
    pub name: &'a str,
    /// Major and minor version, for OpenAI, Claude and Gemini models. OpenAI's o-series and `chatgpt-` models have no
    /// such number and count as (0, 0).
    pub version: Option<(u32, u32)>,
}

impl ParsedName<'_> {
    /// Parses a model name, with or without a provider prefix.
    pub fn parse(model: &str) -> ParsedName<'_> {
        let family = Family::detect(model);
        let name = undated(last(model));
        let version = match family {
            Family::Claude => claude_version(model),
            Family::OpenAi if is_o_series(name) || name.starts_with("chatgpt-") => Some((0, 0)),
            Family::OpenAi => name.strip_prefix("gpt-").and_then(dotted),
            Family::Gemini => name.strip_prefix("gemini-").map(|rest| dotted(rest).unwrap_or(NEWEST)),
            Family::Qwen | Family::Chinese | Family::Mistral | Family::Llama | Family::Other => None,
        };
        ParsedName { family, name, version }
    }

    /// Whether `word` is one of the dash-separated words of the name.
    pub fn has(&self, word: &str) -> bool {
        self.name.split('-').any(|one| one == word)
    }
}

/// Removes a trailing release date from a model name: `-20251001`, `-2026-03-05`.
pub fn undated(name: &str) -> &str {
    let is_date = |text: &str| text.bytes().filter(u8::is_ascii_digit).count() == 8;
    let dashed = |text: &str| text.bytes().enumerate().all(|(i, b)| (b == b'-') == matches!(i, 4 | 7));
    let split = |length: usize| {
        let (head, date) = name.split_at_checked(name.len().checked_sub(length)?)?;
        head.strip_suffix('-').filter(|_| is_date(date) && (length == 8 || dashed(date)))
    };
    split(8).or_else(|| split(10)).unwrap_or(name)
}

fn last(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

fn is_o_series(name: &str) -> bool {
    let of_line =
        |line: &str| name.strip_prefix(line).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    ["o1", "o3", "o4"].into_iter().any(of_line)
}

/// Parses the version at the beginning: `5.4` of `5.4-mini`, `4.0` of `4o`.
fn dotted(text: &str) -> Option<(u32, u32)> {
    let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (major, minor) = text[..end].split_once('.').unwrap_or((&text[..end], "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Parses the version of a Claude model, from `claude-sonnet-5-5`, `claude-opus-4-20250514` or `claude-3-7-sonnet-…`,
/// with or without a gateway prefix.
fn claude_version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let mut numbers = name
        .split(['-', '@', ':', '.'])
        .skip_while(|part| part.parse::<u32>().is_err())
        .map_while(|part| part.parse::<u32>().ok().filter(|_| part.len() <= 2));
    Some(match (numbers.next(), numbers.next()) {
        (Some(major), minor) => (major, minor.unwrap_or(0)),
        (None, _) => NEWEST,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_and_version_are_inferred_from_names() {
        for (name, family, version) in [
            ("anthropic/claude-sonnet-5-5", Family::Claude, Some((5, 5))),
            ("openrouter/anthropic/claude-opus-4.5", Family::Claude, Some((4, 5))),
            ("claude-opus-4-20250514", Family::Claude, Some((4, 0))),
            ("us.anthropic.claude-3-7-sonnet-v1:0", Family::Claude, Some((3, 7))),
            ("claude-next", Family::Claude, Some(NEWEST)),
            ("openai/gpt-5.4", Family::OpenAi, Some((5, 4))),
            ("gpt-4o-2024-08-06", Family::OpenAi, Some((4, 0))),
            ("openai/o4-mini", Family::OpenAi, Some((0, 0))),
            ("o3", Family::OpenAi, Some((0, 0))),
            ("chatgpt-4o-latest", Family::OpenAi, Some((0, 0))),
            ("groq/openai/gpt-oss-120b", Family::OpenAi, None),
            ("gemini/gemini-3-pro", Family::Gemini, Some((3, 0))),
            ("gemini-pro-latest", Family::Gemini, Some(NEWEST)),
            ("gemma-4-31b-it", Family::Gemini, None),
            ("local/qwen3", Family::Qwen, None),
            ("local/DeepSeek-R1-Distill-Llama-8B", Family::Llama, None),
            ("local/devstral-small", Family::Mistral, None),
            ("p/m", Family::Other, None),
            ("", Family::Other, None),
        ] {
            let named = ParsedName::parse(name);
            assert_eq!((named.family, named.version), (family, version), "{name}");
        }
    }
}
