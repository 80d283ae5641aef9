//! Parses model lists. Pure: bodies in, facts out. Facts that a server omits or reports in a format of its own remain
//! unknown.
//!
//! The lists of Anthropic, OpenAI and all compatible services are objects with `data`. They are distinguished only by
//! the fields of a model, because servers that copy one vendor's API may return another's list. Gemini's lists have
//! `models`, and those of Vertex AI `publisherModels`.

use serde::Deserialize;
use serde_json::Value;

use super::{Lifecycle, ListedModel, ModelFacts};
use crate::abilities::{Effort, Thinking, set_of};

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    pub listed: Vec<ListedModel>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// Words in the names of OpenAI's models that can't conduct a conversation with tools. Names are all that OpenAI's list
/// contains.
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

/// Beginnings of the names of Vertex AI's models that are called in a format that Epitome knows.
const CHAT_AT_VERTEX: [&str; 2] = ["claude", "gemini"];

/// Maximum bytes of a model's name. The longest are the paths of llama.cpp's files.
const NAME_BYTES_MAX: usize = 4 * 1024;

/// Parses one response; `None` if it isn't a list. `own_api` means that it comes from the vendor itself, whose list
/// contains every kind of model.
pub fn page(body: &[u8], own_api: bool) -> Option<ListPage> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let list = body.as_object()?;
    let text = |name: &str| list.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (listed, next) = match (list.get("data"), list.get("models").or(list.get("publisherModels"))) {
        (Some(Value::Array(data)), second) => {
            let second = second.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let listed = data.iter().filter_map(|model| in_data(model, second, own_api)).collect();
            (listed, text("last_id").filter(|_| body["has_more"] == true))
        }
        // Ollama writes `null` for an empty list.
        (Some(Value::Null), _) => (Vec::new(), None),
        (_, Some(Value::Array(models))) => {
            let listed = models.iter().filter_map(|model| read_gemini(model).or_else(|| of_plan(model)));
            (listed.collect(), text("nextPageToken"))
        }
        // Gemini omits an empty list.
        (None, None) if list.is_empty() => (Vec::new(), None),
        _ => return None,
    };
    let mut page = ListPage { listed, next: next.map(str::to_owned) };
    page.listed.retain(|model| model.name.len() <= NAME_BYTES_MAX);
    Some(page)
}

/// Parses a model of a list with `data`. `second` is llama.cpp's second list, which contains the abilities.
fn in_data(model: &Value, second: &[Value], own_api: bool) -> Option<ListedModel> {
    let name = model["id"].as_str().filter(|name| !name.is_empty())?;
    let is_openai = own_api && model["object"] == "model";
    if is_openai && NOT_FOR_CHAT.iter().any(|word| name.contains(word)) {
        return None;
    }
    let window = [
        // Anthropic.
        &model["max_input_tokens"],
        // llama.cpp: the window with which this server was started.
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
    let own = ModelFacts {
        window: first(&window),
        max_output: first(&max_output).and_then(|tokens| u32::try_from(tokens).ok()),
        ..read_capabilities(&model["capabilities"])
    };
    let modalities = ModelFacts {
        images: model["architecture"]["input_modalities"]
            .as_array()
            .map(|kinds| kinds.iter().any(|kind| kind == "image")),
        ..ModelFacts::default()
    };
    let second = second.iter().find(|other| other["model"] == name || other["name"] == name);
    let facts = own.or(modalities).or(second.map(read_ability_words).unwrap_or_default());
    Some(ListedModel { name: name.to_owned(), facts, life: life(model)? })
}

/// Parses a model of a ChatGPT plan; `None` if it is not meant to be chosen.
fn of_plan(model: &Value) -> Option<ListedModel> {
    let name = model["slug"].as_str().filter(|name| !name.is_empty() && model["visibility"] == "list")?;
    Some(ListedModel { name: name.to_owned(), facts: ModelFacts::default(), life: Lifecycle::Active })
}

/// A model's lifecycle; `None` if it is retired.
fn life(model: &Value) -> Option<Lifecycle> {
    let day = |value: &Value| value.as_str().map(|day| day.chars().take("2026-11-30".len()).collect());
    match model["lifecycle"].as_str() {
        Some("retired") => None,
        Some("deprecated") => Some(Lifecycle::Ending { on: day(&model["retires_at"]) }),
        _ => match day(&model["shutdown_date"]) {
            Some(on) => Some(Lifecycle::Ending { on: Some(on) }),
            None => Some(Lifecycle::Active),
        },
    }
}

/// Parses abilities as reported by Anthropic.
fn read_capabilities(capabilities: &Value) -> ModelFacts {
    let has = |value: &Value| value["supported"].as_bool();
    ModelFacts {
        images: has(&capabilities["image_input"]),
        documents: has(&capabilities["pdf_input"]),
        thinking: thinking(&capabilities["thinking"], &capabilities["effort"]),
        ..ModelFacts::default()
    }
}

/// Converts Anthropic's report on thinking and efforts. Models with adaptive thinking take efforts, others a budget.
fn thinking(thinking: &Value, efforts: &Value) -> Option<Thinking> {
    let has = |of: &Value, name: &str| of[name]["supported"].as_bool().unwrap_or(false);
    if !thinking["supported"].as_bool()? {
        return Some(Thinking::None);
    }
    let types = &thinking["types"];
    let optional = has(types, "disabled");
    if has(types, "adaptive") {
        let named = |effort: &Effort| *effort != Effort::None && has(efforts, effort.id());
        let mut efforts: Vec<Effort> = Effort::ALL.into_iter().filter(named).collect();
        if efforts.is_empty() {
            return None;
        }
        if optional {
            efforts.push(Effort::None);
        }
        return Some(Thinking::Efforts(set_of(&efforts)));
    }
    has(types, "enabled").then_some(Thinking::Budget { optional })
}

/// Parses abilities as a list of words, from Ollama and llama.cpp. A missing word means no.
fn read_ability_words(model: &Value) -> ModelFacts {
    let Some(words) = model["capabilities"].as_array() else { return ModelFacts::default() };
    let sees = words.iter().any(|word| word == "vision" || word == "multimodal");
    ModelFacts { images: Some(sees), ..ModelFacts::default() }
}

/// Parses a model of Gemini's list; `None` if it can't conduct a conversation.
fn read_gemini(model: &Value) -> Option<ListedModel> {
    let name = model["name"].as_str()?;
    let name = match name.strip_prefix("publishers/") {
        // Google publishes models of every kind there, which only their names distinguish.
        Some(_) => {
            name.rsplit('/').next().filter(|name| CHAT_AT_VERTEX.iter().any(|kind| name.starts_with(kind)))?
        }
        None => name.trim_start_matches("models/"),
    };
    let methods = model["supportedGenerationMethods"].as_array();
    let talks = methods.is_none_or(|methods| methods.iter().any(|method| method == "generateContent"));
    let makes_something_else = ["-tts", "-image", "-audio", "-live", "embedding"];
    if name.is_empty() || !talks || makes_something_else.iter().any(|word| name.contains(word)) {
        return None;
    }
    let facts = ModelFacts {
        window: first(&[&model["inputTokenLimit"]]),
        max_output: first(&[&model["outputTokenLimit"]]).and_then(|tokens| u32::try_from(tokens).ok()),
        // `true` doesn't specify how thinking is controlled.
        thinking: (model["thinking"] == false).then_some(Thinking::None),
        ..ModelFacts::default()
    };
    Some(ListedModel { name: name.to_owned(), facts, life: Lifecycle::Active })
}

/// Parses Ollama's loaded models (`/api/ps`) with the context windows with which they were loaded; `None` for any other
/// response.
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
    let with_window = loaded.models.into_iter().filter(|model| model.context_length > 0);
    Some(with_window.map(|model| (model.name, model.context_length)).collect())
}

/// Parses Ollama's details of a model (`/api/show`): abilities, and the context window if the model file sets one. The
/// window for which the model was trained is ignored, because Ollama usually loads it with another.
pub fn ollama_shown(body: &[u8]) -> Option<ModelFacts> {
    let shown: Value = serde_json::from_slice(body).ok()?;
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let set = parameters.lines().find_map(|line| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        if name == "num_ctx" { value.trim().parse().ok() } else { None }
    });
    let talks = shown["capabilities"].as_array().map(|words| words.iter().any(|word| word == "thinking"));
    let thinking = talks.filter(|thinks| !thinks).map(|_| Thinking::None);
    Some(ModelFacts { window: set.filter(|window| *window > 0), thinking, ..read_ability_words(&shown) })
}

/// The first of these values that is a positive number of tokens.
fn first(values: &[&Value]) -> Option<u64> {
    values.iter().filter_map(|value| value.as_u64()).find(|tokens| *tokens > 0)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
