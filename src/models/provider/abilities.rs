//! The inputs that a model accepts besides text, and the control of its thinking.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize};

pub use epitome_config::Effort;
use epitome_config::{EditTools, ModelSettings, ThinkingSettings, WireFormat};
use epitome_thread::ThoughtLevel;
use epitome_tokens::model_name::{Family, ParsedName};

/// Model capabilities that affect requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    pub images: bool,
    /// PDF documents.
    pub documents: bool,
    pub audio: bool,
    pub thinking: Thinking,
}

/// The tools with which a model was trained to edit files: OpenAI's with patches, all others with replacements of
/// exact texts, which need the least precision.
pub(super) fn usual_edit_tools(model: &str) -> EditTools {
    if Family::detect(model) == Family::OpenAi { EditTools::Patch } else { EditTools::Replace }
}

/// How a model's thinking is controlled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// The model doesn't think, or its thinking can't be controlled.
    #[default]
    None,
    /// By a token budget. `optional` is whether thinking can be turned off.
    Budget { optional: bool },
    /// By effort levels in ascending order; includes `Effort::None` if thinking can be turned off.
    Efforts(#[serde(deserialize_with = "known_efforts")] &'static [Effort]),
}

impl Thinking {
    /// Returns the effort to request for a level: the equal one, else the next lower, else the lowest available.
    /// `None` if thinking isn't controlled by effort levels.
    pub fn effort(self, level: ThoughtLevel) -> Option<Effort> {
        let Thinking::Efforts(efforts) = self else { return None };
        let wanted = wanted(level);
        efforts.iter().rfind(|effort| **effort <= wanted).or(efforts.first()).copied()
    }

    /// For pickers: explains how the level's effect on this model differs from its name. Empty if it doesn't differ.
    pub fn remark(self, level: ThoughtLevel) -> String {
        match (self, self.effort(level)) {
            (Thinking::None, _) => "No effect: this model has no thinking that can be set".to_owned(),
            (Thinking::Budget { optional: false }, _) if level == ThoughtLevel::Off => {
                "This model always thinks; with this level, as little as it can".to_owned()
            }
            (_, Some(effort)) if effort == wanted(level) => String::new(),
            (_, Some(effort)) if level == ThoughtLevel::Off => {
                format!("This model always thinks; the least is {}", effort.id())
            }
            (_, Some(effort)) => format!("The nearest that this model has: {}", effort.id()),
            (_, None) => String::new(),
        }
    }

    /// Returns the thinking tokens to request for a level, at most half of `max_output`, so that the other half
    /// remains for the answer. `None` if thinking isn't controlled by a budget, or is off.
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

/// The effort that corresponds to a level.
fn wanted(level: ThoughtLevel) -> Effort {
    match level {
        ThoughtLevel::Off => Effort::None,
        ThoughtLevel::Low => Effort::Low,
        ThoughtLevel::Medium => Effort::Medium,
        ThoughtLevel::High => Effort::High,
        ThoughtLevel::Max => Effort::Max,
    }
}

impl Abilities {
    /// Guesses a model's abilities from its name, for when nothing else is known. Unknown models are assumed to accept
    /// only text, because a server that can't read an image rejects the entire conversation.
    ///
    /// Names with a gateway's prefix are recognized too, but only abilities that the wire format can express are
    /// returned.
    pub fn likely(wire: WireFormat, model: &str) -> Abilities {
        let model = ParsedName::parse(model);
        let ParsedName { family, name, version } = model;
        let Some(version) = version else { return Abilities::default() };
        let audio = match (wire, family) {
            (WireFormat::Gemini, Family::Gemini) => true,
            // The audio models that OpenAI serves through Chat Completions.
            (WireFormat::OpenAiChat, Family::OpenAi) => model.has("audio"),
            _ => false,
        };
        let images = match family {
            Family::Claude | Family::Gemini => true,
            Family::OpenAi => {
                version >= (4, 1)
                    || ["gpt-4o", "gpt-4-turbo", "chatgpt-", "o1-pro"]
                        .iter()
                        .any(|known| name.starts_with(known))
                    || matches!(name, "o1" | "o3" | "o3-pro" | "o4-mini")
            }
            Family::Qwen | Family::Chinese | Family::Mistral | Family::Llama | Family::Other => false,
        };
        let (documents, thinking) = match (wire, family) {
            (WireFormat::AnthropicMessages, Family::Claude) => (true, claude_thinking(name, version)),
            (WireFormat::OpenAiResponses | WireFormat::OpenAiChat, Family::OpenAi) => {
                (images, openai_thinking(&model, version))
            }
            (WireFormat::Gemini, Family::Gemini) => (true, gemini_thinking(&model, version)),
            (
                WireFormat::AnthropicMessages
                | WireFormat::OpenAiResponses
                | WireFormat::OpenAiChat
                | WireFormat::Gemini,
                _,
            ) => (false, Thinking::None),
        };
        Abilities { images, documents, audio, thinking }
    }

    /// Applies the user's settings for the model.
    pub(super) fn with(mut self, configured: &ModelSettings) -> Abilities {
        self.images = configured.images.unwrap_or(self.images);
        self.documents = configured.documents.unwrap_or(self.documents);
        self.audio = configured.audio.unwrap_or(self.audio);
        match &configured.thinking {
            None => {}
            Some(ThinkingSettings::None) => self.thinking = Thinking::None,
            Some(ThinkingSettings::Budget) => self.thinking = Thinking::Budget { optional: true },
            Some(ThinkingSettings::Efforts(efforts)) => self.thinking = Thinking::Efforts(set_of(efforts)),
        }
        self
    }
}

/// Parses the providers' names of efforts, ignoring unknown ones.
fn known_efforts<'de, D: Deserializer<'de>>(words: D) -> Result<&'static [Effort], D::Error> {
    let words = Vec::<String>::deserialize(words)?;
    let known = Effort::ALL.into_iter().filter(|effort| words.iter().any(|word| word == effort.id()));
    Ok(set_of(&known.collect::<Vec<Effort>>()))
}

/// Returns these efforts as a `'static` slice, in ascending order.
pub(crate) fn set_of(efforts: &[Effort]) -> &'static [Effort] {
    &EFFORT_SETS[efforts.iter().fold(0, |set, effort| set | 1 << *effort as usize)]
}

/// All subsets of the efforts, indexed by bit set. They make `Thinking` `Copy` and comparable for configured efforts
/// too.
static EFFORT_SETS: LazyLock<Vec<Vec<Effort>>> = LazyLock::new(|| {
    let members = |set: usize| Effort::ALL.into_iter().filter(move |effort| set & 1 << *effort as usize != 0);
    (0..1 << Effort::ALL.len()).map(|set| members(set).collect()).collect()
});

/// From this version on, Claude models decide how much to think; older ones take a token budget.
const ADAPTIVE_SINCE: (u32, u32) = (4, 6);
const BUDGETS_SINCE: (u32, u32) = (3, 7);
/// From this version on, the larger Claude models always think; Fable and Mythos do in every version.
const ALWAYS_THINKS_SINCE: (u32, u32) = (5, 5);

fn claude_thinking(name: &str, version: (u32, u32)) -> Thinking {
    let is = |line: &str| name.contains(line);
    if version < BUDGETS_SINCE {
        Thinking::None
    } else if version < ADAPTIVE_SINCE {
        Thinking::Budget { optional: true }
    } else if version == ADAPTIVE_SINCE {
        Thinking::Efforts(&[Effort::None, Effort::Low, Effort::Medium, Effort::High, Effort::Max])
    } else if is("fable") || is("mythos") || (version >= ALWAYS_THINKS_SINCE && (is("opus") || is("sonnet")))
    {
        Thinking::Efforts(&LOW_TO_MAX)
    } else {
        Thinking::Efforts(&NONE_TO_MAX)
    }
}

fn openai_thinking(model: &ParsedName<'_>, version: (u32, u32)) -> Thinking {
    let (name, is) = (model.name, |part: &str| model.has(part));
    if is("chat") || is("audio") || is("preview") || name.starts_with("chatgpt") || name == "o1-mini" {
        return Thinking::None;
    }
    let efforts: &'static [Effort] = match version {
        // The o-series has no version of the form major.minor.
        (0, _) => &LOW_TO_HIGH,
        (1..=4, _) => return Thinking::None,
        (5, 0 | 1) if is("pro") => &[Effort::High],
        (5, _) if is("pro") => &[Effort::Medium, Effort::High, Effort::XHigh],
        (5, 0 | 1) if is("codex") => &LOW_TO_HIGH,
        (5, _) if is("codex") => &LOW_TO_XHIGH,
        (5, 0) => &MINIMAL_TO_HIGH,
        (5, 1) => &NONE_TO_HIGH,
        (5, _) => &NONE_TO_XHIGH,
        // The large models of newer lines always think.
        (6, 0) if is("sol") || is("luna") => &NONE_TO_MAX,
        _ if is("terra") || is("luna") => &NONE_TO_MAX,
        _ => &LOW_TO_MAX,
    };
    Thinking::Efforts(efforts)
}

/// Gemini's format also has XHIGH, but Google doesn't document which models accept it, and the others would reject the
/// request.
fn gemini_thinking(model: &ParsedName<'_>, version: (u32, u32)) -> Thinking {
    let is = |part: &str| model.has(part);
    if is("tts") || is("image") {
        return Thinking::None;
    }
    match version {
        (0..=1, _) | (2, 0..=4) => Thinking::None,
        (2, _) => Thinking::Budget { optional: !is("pro") },
        (3, 0) if is("pro") => Thinking::Efforts(&[Effort::Low, Effort::High]),
        (3, 0..=6) if is("flash") => Thinking::Efforts(&MINIMAL_TO_HIGH),
        _ => Thinking::Efforts(&LOW_TO_HIGH),
    }
}

pub(super) const NONE_TO_HIGH: [Effort; 4] = [Effort::None, Effort::Low, Effort::Medium, Effort::High];
pub(super) const NONE_TO_XHIGH: [Effort; 5] =
    [Effort::None, Effort::Low, Effort::Medium, Effort::High, Effort::XHigh];
pub(super) const NONE_TO_MAX: [Effort; 6] =
    [Effort::None, Effort::Low, Effort::Medium, Effort::High, Effort::XHigh, Effort::Max];
pub(super) const MINIMAL_TO_HIGH: [Effort; 4] = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High];
pub(super) const LOW_TO_HIGH: [Effort; 3] = [Effort::Low, Effort::Medium, Effort::High];
pub(super) const LOW_TO_XHIGH: [Effort; 4] = [Effort::Low, Effort::Medium, Effort::High, Effort::XHigh];
pub(super) const LOW_TO_MAX: [Effort; 5] =
    [Effort::Low, Effort::Medium, Effort::High, Effort::XHigh, Effort::Max];

/// Whether OpenAI accepts tools for this model only in its Responses API.
pub(super) fn needs_responses(model: &str) -> bool {
    let model = ParsedName::parse(model);
    let is = |part: &str| model.has(part);
    openai_version(&model).is_some_and(|version| version > (6, 0) || is("astra") || is("pro") || is("codex"))
}

/// Whether OpenAI serves this model only through Chat Completions, or did when the model was new.
pub(super) fn needs_chat(model: &str) -> bool {
    let model = ParsedName::parse(model);
    let (name, is) = (model.name, |part: &str| model.has(part));
    openai_version(&model).is_some_and(|version| {
        is("audio")
            || is("search")
            || matches!(name, "o1-mini" | "o1-preview")
            || version == (3, 5)
            || (version == (4, 0) && (name == "gpt-4" || name.starts_with("gpt-4-")))
    })
}

/// The version if this is an OpenAI model; `None` for other vendors.
fn openai_version(model: &ParsedName<'_>) -> Option<(u32, u32)> {
    model.version.filter(|_| model.family == Family::OpenAi)
}

/// Whether Chat Completions requires `max_completion_tokens` for this model and rejects `max_tokens`, as it
/// does for all OpenAI models that think.
pub(super) fn limits_completion(model: &str) -> bool {
    let model = ParsedName::parse(model);
    openai_version(&model).is_some_and(|version| openai_thinking(&model, version) != Thinking::None)
}

/// Whether the model is older than Gemini 3. Those models require no signatures on calls, and accept images and
/// documents of tools only next to the function response, not in it.
pub fn is_before_gemini_3(model: &str) -> bool {
    let model = ParsedName::parse(model);
    model.family == Family::Gemini && model.version.is_none_or(|version| version < (3, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_that_differ_from_their_name_get_a_remark() {
        use ThoughtLevel::{High, Low, Max, Medium, Off};
        let efforts = Thinking::Efforts(&[Effort::Low, Effort::Medium, Effort::High]);
        for (thinking, level, remark) in [
            (efforts, Off, "This model always thinks; the least is low"),
            (efforts, Medium, ""),
            (efforts, Max, "The nearest that this model has: high"),
            (Thinking::Efforts(&[Effort::None, Effort::High]), Off, ""),
            (Thinking::Efforts(&[Effort::None, Effort::High]), Low, "The nearest that this model has: none"),
            (Thinking::Budget { optional: true }, Off, ""),
            (
                Thinking::Budget { optional: false },
                Off,
                "This model always thinks; with this level, as little as it can",
            ),
            (Thinking::Budget { optional: false }, High, ""),
            (Thinking::None, High, "No effect: this model has no thinking that can be set"),
        ] {
            assert_eq!(thinking.remark(level), remark, "{thinking:?} {level:?}");
        }
    }

    #[test]
    fn levels_map_to_the_nearest_available_effort() {
        use Effort::{High, Low, Max, Medium, Minimal, None as Nothing, XHigh};
        let table: [(&[Effort], [Effort; 5]); 3] = [
            (&[Nothing, Low, Medium, High, XHigh], [Nothing, Low, Medium, High, XHigh]),
            (&[Minimal, Low, Medium, High, Max], [Minimal, Low, Medium, High, Max]),
            (&[Low, High], [Low, Low, Low, High, High]),
        ];
        for (efforts, expected) in table {
            // `Thinking::Efforts` requires a `'static` slice.
            let efforts: &'static [Effort] = efforts.to_vec().leak();
            for (level, expected) in ThoughtLevel::ALL.into_iter().zip(expected) {
                assert_eq!(Thinking::Efforts(efforts).effort(level), Some(expected), "{level:?}");
            }
        }
    }

    #[test]
    fn abilities_are_guessed_by_name() {
        use WireFormat::{
            AnthropicMessages as Messages, Gemini, OpenAiChat as Chat, OpenAiResponses as Responses,
        };
        let nothing = (false, false, Thinking::None);
        let budget = |optional| Thinking::Budget { optional };
        for (wire, model, expected) in [
            (Messages, "claude-3-5-haiku-20241022", (true, true, Thinking::None)),
            (Messages, "claude-opus-4-20250514", (true, true, budget(true))),
            (Messages, "claude-haiku-4-5", (true, true, budget(true))),
            (Messages, "claude-opus-4-7", (true, true, Thinking::Efforts(&NONE_TO_MAX))),
            (Messages, "us.anthropic.claude-opus-5-5-v1:0", (true, true, Thinking::Efforts(&LOW_TO_MAX))),
            (Messages, "claude-haiku-5-5", (true, true, Thinking::Efforts(&NONE_TO_MAX))),
            (Messages, "kimi-k3", nothing),
            (Responses, "gpt-4.1-mini", (true, true, Thinking::None)),
            (Responses, "gpt-4o", (true, true, Thinking::None)),
            (Responses, "gpt-3.5-turbo", nothing),
            (Responses, "gpt-5-mini", (true, true, Thinking::Efforts(&MINIMAL_TO_HIGH))),
            (Responses, "gpt-5.1", (true, true, Thinking::Efforts(&NONE_TO_HIGH))),
            (Responses, "gpt-5.2-chat-latest", (true, true, Thinking::None)),
            (Responses, "gpt-5.4-2026-03-05", (true, true, Thinking::Efforts(&NONE_TO_XHIGH))),
            (Responses, "gpt-6-sol", (true, true, Thinking::Efforts(&NONE_TO_MAX))),
            (Responses, "gpt-6-astra", (true, true, Thinking::Efforts(&LOW_TO_MAX))),
            (Responses, "gpt-6.1-sol", (true, true, Thinking::Efforts(&LOW_TO_MAX))),
            (Responses, "gpt-6.1-terra", (true, true, Thinking::Efforts(&NONE_TO_MAX))),
            (Responses, "gpt-7", (true, true, Thinking::Efforts(&LOW_TO_MAX))),
            (Responses, "o3-mini", (false, false, Thinking::Efforts(&LOW_TO_HIGH))),
            (Responses, "o4-mini-2025-04-16", (true, true, Thinking::Efforts(&LOW_TO_HIGH))),
            (Gemini, "gemini-2.0-flash", (true, true, Thinking::None)),
            (Gemini, "gemini-2.5-pro", (true, true, budget(false))),
            (Gemini, "gemini-2.5-flash", (true, true, budget(true))),
            (Gemini, "gemini-3.5-flash", (true, true, Thinking::Efforts(&MINIMAL_TO_HIGH))),
            (Gemini, "gemini-4-argon", (true, true, Thinking::Efforts(&LOW_TO_HIGH))),
            (Gemini, "gemini-pro-latest", (true, true, Thinking::Efforts(&LOW_TO_HIGH))),
            (Gemini, "gemma-4-31b-it", nothing),
            (Chat, "openai/gpt-5.4", (true, true, Thinking::Efforts(&NONE_TO_XHIGH))),
            (Chat, "anthropic/claude-sonnet-5-5", (true, false, Thinking::None)),
            (Chat, "google/gemini-3.8-flash", (true, false, Thinking::None)),
            (Chat, "qwen3:8b", nothing),
            (Chat, "gpt-oss:20b", nothing),
            (Chat, "", nothing),
        ] {
            let Abilities { images, documents, thinking, .. } = Abilities::likely(wire, model);
            assert_eq!((images, documents, thinking), expected, "{wire:?} {model}");
        }
    }

    #[test]
    fn audio_is_for_gemini_and_the_audio_models_of_openai() {
        use WireFormat::{AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses};
        for (wire, model, takes) in [
            (Gemini, "gemini-3.8-flash", true),
            (OpenAiChat, "gpt-4o-audio-preview", true),
            (OpenAiChat, "gpt-4o", false),
            (OpenAiChat, "google/gemini-3.8-flash", false),
            (OpenAiResponses, "gpt-6-sol", false),
            (AnthropicMessages, "claude-sonnet-5-5", false),
        ] {
            assert_eq!(Abilities::likely(wire, model).audio, takes, "{wire:?} {model}");
        }
    }

    #[test]
    fn user_settings_override_abilities() {
        let guessed = Abilities::likely(WireFormat::OpenAiChat, "qwen3-vl");
        assert_eq!(guessed.clone().with(&ModelSettings::default()), guessed);
        let configured = ModelSettings {
            images: Some(true),
            documents: Some(true),
            audio: Some(true),
            thinking: Some(ThinkingSettings::Efforts(vec![Effort::Low, Effort::Max])),
            ..ModelSettings::default()
        };
        let thinking = Thinking::Efforts(&[Effort::Low, Effort::Max]);
        assert_eq!(
            guessed.with(&configured),
            Abilities { images: true, documents: true, audio: true, thinking }
        );
    }

    #[test]
    fn any_set_of_efforts_is_available_as_a_slice() {
        assert_eq!(set_of(&Effort::ALL), Effort::ALL);
        assert_eq!(set_of(&[Effort::Minimal, Effort::High]), [Effort::Minimal, Effort::High]);
        assert!(set_of(&[]).is_empty());
    }

    #[test]
    fn stored_words_become_ordered_efforts() {
        let read = |text: &str| serde_json::from_str::<Thinking>(text).expect("a stored form");
        for (text, expected) in [
            (r#"{"efforts":["max","low","newest"]}"#, Thinking::Efforts(&[Effort::Low, Effort::Max])),
            (r#"{"efforts":["newest"]}"#, Thinking::Efforts(&[])),
            (r#"{"budget":{"optional":false}}"#, Thinking::Budget { optional: false }),
            (r#""none""#, Thinking::None),
        ] {
            assert_eq!(read(text), expected, "{text}");
            let written = serde_json::to_string(&expected).expect("plain data");
            assert_eq!(read(&written), expected, "{written}");
        }
    }

    #[test]
    fn some_openai_models_support_only_one_format() {
        for (model, responses, chat) in [
            ("gpt-6-sol", false, false),
            ("gpt-6-astra", true, false),
            ("gpt-6.1-terra", true, false),
            ("gpt-6.2-sol", true, false),
            ("gpt-5.5-pro", true, false),
            ("gpt-5.3-codex", true, false),
            ("gpt-4.1", false, false),
            ("gpt-4o-mini", false, false),
            ("gpt-4-turbo", false, true),
            ("gpt-3.5-turbo-0125", false, true),
            ("gpt-4o-search-preview", false, true),
            ("qwen3", false, false),
        ] {
            assert_eq!((needs_responses(model), needs_chat(model)), (responses, chat), "{model}");
        }
    }
}
