//! Model calls outside of a conversation: a single request without tools and history.

use std::ffi::OsString;
use std::time::Duration;

use super::effects;
pub use super::refusal::CompletionError;
use super::services::SessionServices;
use super::summary;
use epitome_config::Settings;
use epitome_hooks::output::Utterance;
use epitome_provider::endpoint::{self, ConfiguredModel, Endpoint};
use epitome_provider::http::Http;
use epitome_provider::network::Network;
use epitome_provider::{ModelRequest, ProviderError, ReplyStop, retry};
use epitome_thread::{Content, Message, MessageId, ModelName, Role, ThoughtLevel, Usage, ViewItem};

/// How long a completion may take.
const COMPLETION_TIME_MAX: Duration = Duration::from_secs(120);

/// The system prompt if the caller provides none.
const SYSTEM: &str = "You answer one request of a program. Say what it asks for and nothing else.";

/// Has a model answer these messages. Returns its text and usage. Messages with the role `System` form the system
/// prompt.
pub async fn complete(
    http: &Http,
    endpoint: &Endpoint,
    messages: &[Utterance],
    max_tokens: u32,
) -> Result<(String, Usage), CompletionError> {
    let of_system = messages.iter().filter(|message| message.role == Role::System);
    let system = of_system.map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n\n");
    let spoken: Vec<(Role, Message)> = messages
        .iter()
        .filter(|message| message.role != Role::System)
        .map(|message| {
            let content = vec![Content::Text { text: message.text.clone() }];
            (message.role, Message { id: MessageId(0), content, author: None })
        })
        .collect();
    if !matches!(spoken.last(), Some((Role::User, _))) {
        return Err(CompletionError::NothingToAnswer);
    }
    let item = |(role, message)| match role {
        Role::User | Role::System => ViewItem::User(message),
        Role::Assistant => ViewItem::Agent(message, &endpoint.name),
    };
    let request = ModelRequest {
        system: if system.is_empty() { SYSTEM } else { &system },
        tools: &[],
        items: spoken.iter().map(|(role, message)| item((*role, message))).collect(),
        thought: ThoughtLevel::Off,
        max_output: max_tokens.min(endpoint.max_output),
        cache_key: "",
        basis: None,
    };
    let encoded = effects::encode(endpoint, &request);
    let answer = summary::answer(http, endpoint, &encoded, retry::ATTEMPTS_MAX);
    let reply = tokio::time::timeout(COMPLETION_TIME_MAX, answer)
        .await
        .map_err(|_| CompletionError::Late { model: endpoint.name.clone(), limit: COMPLETION_TIME_MAX })??;
    if let Some(ReplyStop::Refused { reason }) = &reply.stop {
        return Err(CompletionError::Declined { model: endpoint.name.clone(), reason: reason.clone() });
    }
    let message = Message { id: MessageId(0), content: reply.content, author: None };
    Ok((message.text(), reply.usage.unwrap_or_default()))
}

/// Resolves a model to its endpoint, with everything learned about it; searches for a local server if necessary.
/// Without a name, uses the configured model.
pub async fn find_endpoint(
    services: &SessionServices,
    name: Option<&ModelName>,
    settings: &Settings,
    environment: &[(OsString, OsString)],
) -> Result<Endpoint, ProviderError> {
    let name = match (name, endpoint::choose(settings, environment)) {
        (Some(name), _) => Some(name.clone()),
        (None, ConfiguredModel::Named(name)) => Some(name),
        (None, ConfiguredModel::SearchLocal(_)) => None,
    };
    let mut endpoint = match &name {
        Some(name) if !endpoint::is_searched(name, settings) => {
            endpoint::resolve(name, settings, environment)?
        }
        Some(_) | None => search(services, name.as_ref(), settings, environment).await?,
    };
    services.recall().await;
    services.learned.apply(settings, &mut endpoint);
    Ok(endpoint)
}

async fn search(
    services: &SessionServices,
    name: Option<&ModelName>,
    settings: &Settings,
    environment: &[(OsString, OsString)],
) -> Result<Endpoint, ProviderError> {
    let http = services.http.within(Network::read(environment));
    let found = endpoint::find_local(&http, &endpoint::local_urls(settings, environment)).await;
    let nowhere = || match name {
        Some(name) => endpoint::no_local_server(name, settings, environment),
        None => endpoint::nothing_configured(settings, environment),
    };
    let server = found.ok_or_else(nowhere)?;
    let name = name.cloned().or_else(|| server.first_model()).ok_or_else(nowhere)?;
    let endpoint = endpoint::resolve_local(&name, &server, settings, environment)?;
    // As in a session: the server has just sent its list.
    services.learned.learn_list(&endpoint, &server.models);
    Ok(endpoint)
}
