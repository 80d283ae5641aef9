//! Reads lists of models. Pure: a body in, facts out; what a server does not tell, or tells in a form of
//! its own, is not known.
//!
//! Anthropic's, OpenAI's and all compatible lists are objects with `data`, and are told apart by the
//! fields of a model alone: servers that copy one vendor's API answer with another's list. Gemini's has
//! `models`.

use serde::Deserialize;
use serde_json::Value;

use super::{Facts, Life, Listed, Steering};

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub listed: Vec<Listed>,
    /// The cursor of the part that follows.
    pub next: Option<String>,
}

/// Words in the names of OpenAI's models that can't hold a conversation with tools: its list tells names
/// alone.
const NOT_FOR_CHAT: [&str; 18] = [
    "audio",
    "babbage",
    "computer-use",
    "dall-e",
    "davinci",
    "deep-research",
    "embedding",
    "guard",
    "image",
    "instruct",
    "moderation",
    "realtime",
    "search",
    "sora",
    "transcribe",
    "translate",
    "tts",
    "whisper",
];

/// Reads one answer; `None` where it is no list. `own_api`: it comes from the vendor itself, whose list
/// has every kind of model in it.
pub fn page(body: &[u8], own_api: bool) -> Option<Page> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let list = body.as_object()?;
    match (list.get("data"), list.get("models")) {
        (Some(Value::Array(data)), beside) => {
            let beside = beside.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let listed = data.iter().filter_map(|model| in_data(model, beside, own_api)).collect();
            let more = list.get("has_more").and_then(Value::as_bool).unwrap_or(false);
            let last = list.get("last_id").and_then(Value::as_str).filter(|_| more);
            Some(Page { listed, next: last.map(str::to_owned) })
        }
        // Ollama writes `null` where it has none.
        (Some(Value::Null), _) => Some(Page { listed: Vec::new(), next: None }),
        (_, Some(Value::Array(models))) => {
            let next = list.get("nextPageToken").and_then(Value::as_str).filter(|next| !next.is_empty());
            Some(Page {
                listed: models.iter().filter_map(of_gemini).collect(),
                next: next.map(str::to_owned),
            })
        }
        // Gemini leaves an empty list out.
        (None, None) if list.is_empty() => Some(Page { listed: Vec::new(), next: None }),
        _ => None,
    }
}

/// A model of a list with `data`. `beside` is the second list of llama.cpp, which tells abilities.
fn in_data(model: &Value, beside: &[Value], own_api: bool) -> Option<Listed> {
    let name = model["id"].as_str().filter(|name| !name.is_empty())?;
    let is_openai = own_api && model["object"] == "model";
    if is_openai && NOT_FOR_CHAT.iter().any(|word| name.contains(word)) {
        return None;
    }
    let window = [
        // Anthropic.
        &model["max_input_tokens"],
        // llama.cpp: what this very server was started with.
        &model["meta"]["n_ctx"],
        // vLLM.
        &model["max_model_len"],
        // OpenRouter and others; Groq.
        &model["context_length"],
        &model["context_window"],
        // Mistral.
        &model["max_context_length"],
    ];
    let max_output = [
        &model["max_tokens"],
        &model["max_completion_tokens"],
        &model["top_provider"]["max_completion_tokens"],
    ];
    let own = Facts {
        window: first(&window),
        max_output: first(&max_output).and_then(|tokens| u32::try_from(tokens).ok()),
        ..of_capabilities(&model["capabilities"])
    };
    let modalities = Facts {
        images: model["architecture"]["input_modalities"]
            .as_array()
            .map(|kinds| kinds.iter().any(|kind| kind == "image")),
        ..Facts::default()
    };
    let beside = beside.iter().find(|other| other["model"] == name || other["name"] == name);
    let facts = own.or(modalities).or(beside.map(of_words).unwrap_or_default());
    Some(Listed { name: name.to_owned(), facts, life: life(model)? })
}

/// `None` for a model that is no more.
fn life(model: &Value) -> Option<Life> {
    let day = |value: &Value| value.as_str().map(|day| day.chars().take("2026-11-30".len()).collect());
    match model["lifecycle"].as_str() {
        Some("retired") => None,
        Some("deprecated") => Some(Life::Ending { on: day(&model["retires_at"]) }),
        _ => match day(&model["shutdown_date"]) {
            Some(on) => Some(Life::Ending { on: Some(on) }),
            None => Some(Life::Active),
        },
    }
}

/// What Anthropic says that a model can do.
fn of_capabilities(capabilities: &Value) -> Facts {
    let has = |value: &Value| value["supported"].as_bool();
    Facts {
        images: has(&capabilities["image_input"]),
        documents: has(&capabilities["pdf_input"]),
        thinking: thinking(&capabilities["thinking"], &capabilities["effort"]),
        ..Facts::default()
    }
}

/// How Anthropic's word on thinking and efforts is asked for. A model that decides by itself how much to
/// think takes efforts; one that does not takes a budget.
fn thinking(thinking: &Value, effort: &Value) -> Option<Steering> {
    let has = |of: &Value, name: &str| of[name]["supported"].as_bool().unwrap_or(false);
    if !thinking["supported"].as_bool()? {
        return Some(Steering::None);
    }
    let types = &thinking["types"];
    let optional = has(types, "disabled");
    if has(types, "adaptive") {
        let efforts = ["low", "medium", "high", "xhigh", "max"].into_iter().filter(|name| has(effort, name));
        let efforts: Vec<String> = { efforts }.map(str::to_owned).collect();
        let off = optional.then(|| "none".to_owned());
        return (!efforts.is_empty()).then(|| Steering::Efforts(off.into_iter().chain(efforts).collect()));
    }
    has(types, "enabled").then_some(Steering::Budget { optional })
}

/// Abilities as a list of words: Ollama's and llama.cpp's. A list without the word is a no.
fn of_words(model: &Value) -> Facts {
    let Some(words) = model["capabilities"].as_array() else { return Facts::default() };
    let sees = words.iter().any(|word| word == "vision" || word == "multimodal");
    Facts { images: Some(sees), ..Facts::default() }
}

/// A model of Gemini's list that can hold a conversation.
fn of_gemini(model: &Value) -> Option<Listed> {
    let name = model["name"].as_str()?.trim_start_matches("models/");
    let methods = model["supportedGenerationMethods"].as_array();
    let talks = methods.is_none_or(|methods| methods.iter().any(|method| method == "generateContent"));
    let makes_something_else = ["-tts", "-image", "-audio", "-live", "embedding"];
    if name.is_empty() || !talks || makes_something_else.iter().any(|word| name.contains(word)) {
        return None;
    }
    let facts = Facts {
        window: first(&[&model["inputTokenLimit"]]),
        max_output: first(&[&model["outputTokenLimit"]]).and_then(|tokens| u32::try_from(tokens).ok()),
        // That it thinks does not tell how it is asked to.
        thinking: (model["thinking"] == false).then_some(Steering::None),
        ..Facts::default()
    };
    Some(Listed { name: name.to_owned(), facts, life: Life::Active })
}

/// Ollama's loaded models (`/api/ps`) with the windows that they were loaded with; `None` where it is no
/// such answer.
pub fn ollama_loaded(body: &[u8]) -> Option<Vec<(String, u64)>> {
    #[derive(Deserialize)]
    struct Loaded {
        models: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        name: String,
        #[serde(default)]
        context_length: u64,
    }
    let loaded: Loaded = serde_json::from_slice(body).ok()?;
    let told = loaded.models.into_iter().filter(|model| model.context_length > 0);
    Some(told.map(|model| (model.name, model.context_length)).collect())
}

/// What Ollama shows of a model (`/api/show`): what it takes, and the window where its file sets one. The
/// window that it was trained for is not what it is loaded with, and counts for nothing.
pub fn ollama_shown(body: &[u8]) -> Option<Facts> {
    let shown: Value = serde_json::from_slice(body).ok()?;
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let set = parameters.lines().find_map(|line| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        if name == "num_ctx" { value.trim().parse().ok() } else { None }
    });
    let talks = shown["capabilities"].as_array().map(|words| words.iter().any(|word| word == "thinking"));
    let thinking = talks.filter(|thinks| !thinks).map(|_| Steering::None);
    Some(Facts { window: set.filter(|window| *window > 0), thinking, ..of_words(&shown) })
}

/// The first of these that is a number of tokens.
fn first(values: &[&Value]) -> Option<u64> {
    values.iter().filter_map(|value| value.as_u64()).find(|tokens| *tokens > 0)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
