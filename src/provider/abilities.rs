//! What a model takes beside text, and how its thinking is asked for.

use crate::config::WireFormat;
use crate::thread::ThoughtLevel;

/// What a model can do that a request depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    pub images: bool,
    /// PDF documents.
    pub documents: bool,
    pub thinking: Thinking,
}

/// How a model's thinking is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// It has none, or none that could be asked for.
    None,
    /// By a budget of tokens. `optional` is whether it can be turned off.
    Budget { optional: bool },
    /// By words, the least first; `Effort::None` among them where it can be turned off.
    Efforts(&'static [Effort]),
}

/// The words by which providers ask for more or less thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

impl Effort {
    /// As OpenAI and Anthropic write it; Gemini has the same words in capitals.
    pub fn word(self) -> &'static str {
        match self {
            Effort::None => "none",
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::XHigh => "xhigh",
            Effort::Max => "max",
        }
    }
}

impl Thinking {
    /// The effort to ask for at a level: the level's own word, else the nearest below it, else the least
    /// that there is. `None` where thinking is not steered by words.
    pub fn effort(self, level: ThoughtLevel) -> Option<Effort> {
        let Thinking::Efforts(efforts) = self else { return None };
        let wanted = match level {
            ThoughtLevel::Off => Effort::None,
            ThoughtLevel::Low => Effort::Low,
            ThoughtLevel::Medium => Effort::Medium,
            ThoughtLevel::High => Effort::High,
            ThoughtLevel::Max => Effort::Max,
        };
        efforts.iter().rfind(|effort| **effort <= wanted).or(efforts.first()).copied()
    }

    /// The tokens to ask for at a level, of a reply of at most `max_output`: half of it stays for the
    /// answer. `None` where thinking is not steered by tokens, or is off.
    pub fn budget(self, level: ThoughtLevel, max_output: u32) -> Option<u32> {
        let Thinking::Budget { .. } = self else { return None };
        let budget = match level {
            ThoughtLevel::Off => return None,
            ThoughtLevel::Low => 2_048,
            ThoughtLevel::Medium => 8_192,
            ThoughtLevel::High => 16_384,
            ThoughtLevel::Max => 32_000,
        };
        Some(budget.min(max_output / 2))
    }
}

/// Since this version, Claude models decide themselves how much to think; before it, they take a budget.
const ADAPTIVE_SINCE: (u32, u32) = (4, 7);
const BUDGETS_SINCE: (u32, u32) = (3, 7);

impl Abilities {
    /// What is likely of a model by its name, where nothing says more.
    pub fn likely(wire: WireFormat, model: &str) -> Abilities {
        match wire {
            WireFormat::AnthropicMessages => Abilities {
                images: true,
                documents: claude_version(model).is_some(),
                thinking: match claude_version(model) {
                    Some(version) if version >= ADAPTIVE_SINCE => Thinking::Efforts(&CLAUDE_EFFORTS),
                    Some(version) if version >= BUDGETS_SINCE => Thinking::Budget { optional: true },
                    Some(_) | None => Thinking::None,
                },
            },
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => {
                Abilities { images: true, documents: false, thinking: Thinking::None }
            }
        }
    }
}

const CLAUDE_EFFORTS: [Effort; 5] = [Effort::None, Effort::Low, Effort::Medium, Effort::High, Effort::Max];

/// The version of a Claude model, from `claude-sonnet-5-5`, `claude-opus-4-20250514`,
/// `claude-3-7-sonnet-…`, also behind a gateway's prefix. One without a number counts as the newest;
/// another vendor's model has none.
pub fn claude_version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let mut numbers = name
        .split(['-', '@', ':', '.'])
        .skip_while(|part| part.parse::<u32>().is_err())
        .map_while(|part| part.parse::<u32>().ok().filter(|_| part.len() <= 2));
    match (numbers.next(), numbers.next()) {
        (Some(major), minor) => Some((major, minor.unwrap_or(0))),
        (None, _) => Some((u32::MAX, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_becomes_the_nearest_effort_that_a_model_has() {
        use Effort::{High, Low, Max, Medium, Minimal, None as Nothing, XHigh};
        let table: [(&[Effort], [Effort; 5]); 3] = [
            (&[Nothing, Low, Medium, High, XHigh], [Nothing, Low, Medium, High, XHigh]),
            (&[Minimal, Low, Medium, High, Max], [Minimal, Low, Medium, High, Max]),
            (&[Low, High], [Low, Low, Low, High, High]),
        ];
        for (efforts, expected) in table {
            // A slice of a table in a constant's place: the enum wants one that lives as long as it.
            let efforts: &'static [Effort] = efforts.to_vec().leak();
            for (level, expected) in ThoughtLevel::ALL.into_iter().zip(expected) {
                assert_eq!(Thinking::Efforts(efforts).effort(level), Some(expected), "{level:?}");
            }
        }
    }
}
