//! Fetches a provider's own list of its models.

use std::time::Duration;

use super::read::{self, ListPage};
use super::{LISTED_MAX, Lifecycle, ListedModel, ModelFacts, is_near};
use crate::address::{beneath, escaped, with_query, without_v1};
use crate::http::Http;
use crate::model_endpoint::Endpoint;
use crate::secret::Secret;
use epitome_config::WireFormat;

/// Maximum bytes of one response. The longest real one, from a router with several hundred models and their
/// descriptions, is a third of that.
const BYTES_MAX: usize = 2 * 1024 * 1024;

/// Timeout of one request.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum pages of a list. Each contains up to a thousand models.
const PAGES_MAX: usize = 8;

/// Why no list was obtained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The provider responds but returns no list: a gateway without one, or a key without permission.
    #[error("{url} gives no list of models ({reason})")]
    Refused { url: String, reason: String },
    /// The provider could not be reached.
    #[error("{url} could not be asked for its models: {reason}")]
    Unreachable { url: String, reason: String },
}

/// Lists the models of the endpoint's provider with their facts. If a server of the user's own lists no context
/// windows, also queries Ollama's API for the loaded models and for details of the endpoint's model.
pub async fn list(http: &Http, endpoint: &Endpoint) -> Result<Vec<ListedModel>, ListError> {
    let mut models: Vec<ListedModel> = Vec::new();
    let mut after = None;
    for _ in 0..PAGES_MAX {
        let body = get(http, endpoint, &page_url(endpoint, after.as_deref())).await?;
        let Some(ListPage { listed, next }) = read::page(&body, endpoint.own_api) else {
            let (url, reason) = (endpoint.shown_url(), "it answered with something else".to_owned());
            return Err(ListError::Refused { url, reason });
        };
        models.extend(listed);
        // A repeated cursor would loop forever.
        if next.is_none() || next == after || models.len() >= LISTED_MAX {
            break;
        }
        after = next;
    }
    models.truncate(LISTED_MAX);
    if is_near(endpoint) && models.iter().all(|model| model.facts.window.is_none()) {
        ask_ollama(http, endpoint, &mut models).await;
    }
    Ok(models)
}

/// Adds facts from Ollama, whose list contains no context windows. Other URLs report the windows of loaded models and
/// the abilities of the endpoint's model; on any other server these requests fail without effect.
async fn ask_ollama(http: &Http, endpoint: &Endpoint, models: &mut Vec<ListedModel>) {
    let at = |path: &str| beneath(&without_v1(&endpoint.base_url), path);
    let Ok(loaded) = get(http, endpoint, &at("/api/ps")).await else { return };
    let Some(loaded) = read::ollama_loaded(&loaded) else { return };
    let asked = serde_json::json!({ "model": endpoint.model }).to_string().into_bytes();
    let url = at("/api/show");
    let near = http.within(endpoint.network.clone());
    let Ok(authenticated) = endpoint.authenticated(http).await else { return };
    let headers: Vec<(String, Secret)> = authenticated.sent_headers().cloned().collect();
    let shown = match near.post(&url, &headers, asked, BYTES_MAX, TIME_MAX).await {
        Ok((200, body)) => read::ollama_shown(&body),
        Ok(_) | Err(_) => None,
    };
    if let Some(facts) = shown {
        add(models, &endpoint.model, facts);
    }
    for (name, window) in loaded {
        add(models, &name, ModelFacts { window: Some(window), ..ModelFacts::default() });
    }
}

/// Adds facts about a model. Ollama's list contains `name:latest` for a model that users call `name`.
fn add(models: &mut Vec<ListedModel>, name: &str, facts: ModelFacts) {
    let short = |name: &str| name.strip_suffix(":latest").unwrap_or(name).to_owned();
    for model in models.iter_mut().filter(|model| short(&model.name) == short(name)) {
        model.facts = facts.clone().or(std::mem::take(&mut model.facts));
    }
    if !models.iter().any(|model| model.name == name) {
        models.push(ListedModel { name: name.to_owned(), facts, life: Lifecycle::Active });
    }
}

async fn get(http: &Http, endpoint: &Endpoint, url: &str) -> Result<Vec<u8>, ListError> {
    let shown = endpoint.shown_url();
    match http.ask(endpoint, url, None, BYTES_MAX, TIME_MAX).await {
        Ok(answer) => match answer.status {
            200 => Ok(answer.body),
            status @ (408 | 429 | 500..) => {
                Err(ListError::Unreachable { url: shown, reason: format!("it answers with HTTP {status}") })
            }
            status => Err(ListError::Refused { url: shown, reason: format!("HTTP {status}") }),
        },
        Err(error) => Err(ListError::Unreachable { url: shown, reason: error.message }),
    }
}

/// The URL of the list, starting after the model `after`.
fn page_url(endpoint: &Endpoint, after: Option<&str>) -> String {
    let url = endpoint.models_url();
    let (size, cursor) = match endpoint.wire {
        WireFormat::AnthropicMessages if !endpoint.quirks.is_vertex => ("limit=1000", "after_id"),
        WireFormat::AnthropicMessages | WireFormat::Gemini => ("pageSize=1000", "pageToken"),
        WireFormat::OpenAiChat | WireFormat::OpenAiResponses => return url,
    };
    match after {
        Some(after) => with_query(&url, &format!("{size}&{cursor}={}", escaped(after))),
        None => with_query(&url, size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::test_endpoint;

    #[test]
    fn pages_are_requested_if_the_provider_has_them() {
        let anthropic = test_endpoint("anthropic/claude-sonnet-5-5");
        let openai = test_endpoint("openai/gpt-5.4");
        let mut gateway = openai.clone();
        gateway.base_url = "http://box:8000".into();
        let mut gemini = openai.clone();
        gemini.wire = WireFormat::Gemini;
        gemini.base_url = "https://generativelanguage.googleapis.com".into();
        for (endpoint, after, url) in [
            (&anthropic, None, "https://api.anthropic.com/v1/models?limit=1000"),
            (&anthropic, Some("a b"), "https://api.anthropic.com/v1/models?limit=1000&after_id=a%20b"),
            (&openai, None, "https://api.openai.com/v1/models"),
            (&gateway, None, "http://box:8000/v1/models"),
            (&gemini, None, "https://generativelanguage.googleapis.com/v1beta/models?pageSize=1000"),
            (
                &gemini,
                Some("x=="),
                "https://generativelanguage.googleapis.com/v1beta/models?pageSize=1000&pageToken=x%3D%3D",
            ),
        ] {
            assert_eq!(page_url(endpoint, after), url);
        }
    }

    #[test]
    fn loaded_ollama_models_match_both_names() {
        let listed = |name: &str| ListedModel {
            name: name.into(),
            facts: ModelFacts::default(),
            life: Lifecycle::Active,
        };
        let mut models = vec![listed("qwen3:latest"), listed("gemma3:4b")];
        add(&mut models, "qwen3", ModelFacts { images: Some(false), ..ModelFacts::default() });
        add(&mut models, "qwen3:latest", ModelFacts { window: Some(4096), ..ModelFacts::default() });
        let known = ModelFacts { window: Some(4096), images: Some(false), ..ModelFacts::default() };
        let names: Vec<(&str, &ModelFacts)> =
            models.iter().map(|model| (model.name.as_str(), &model.facts)).collect();
        let nothing = ModelFacts::default();
        assert_eq!(names, [("qwen3:latest", &known), ("gemma3:4b", &nothing), ("qwen3", &known)]);
    }
}
