//! Errors for models that have no usable endpoint, with hints.

use super::{built_in_providers, check_may_call, local_urls};
use crate::address::shown;
use crate::environment::EnvironmentPairs;
use crate::{ErrorClass, ProviderError};
use epitome_config::Settings;
use epitome_thread::ModelName;
use epitome_thread::problem::nearest;

/// The error if nothing is configured: lists the options. None of them helps while no model may be called.
pub fn nothing_configured(settings: &Settings, env: &EnvironmentPairs) -> ProviderError {
    if let Err(refused) = check_may_call(None, settings) {
        return refused;
    }
    let message = format!(
        "No model is configured, and no local server answers with its models at {}.",
        listed(&local_urls(settings, env))
    );
    ProviderError::new(ErrorClass::Auth, message).with_hint(
        "Run `epitome login` in a terminal, or set ANTHROPIC_API_KEY, OPENAI_API_KEY (with OPENAI_BASE_URL for a \
         compatible service) or GEMINI_API_KEY where the editor is started, or start a local server (Ollama, \
         llama-server) and set EPITOME_LOCAL_URL to its address.",
    )
}

/// The error if a local model was chosen but no server answers: lists the addresses that were tried.
pub fn no_local_server(name: &ModelName, settings: &Settings, env: &EnvironmentPairs) -> ProviderError {
    let tried = listed(&local_urls(settings, env));
    ProviderError::new(ErrorClass::Auth, format!("No local server answers for {name}; tried {tried}."))
        .with_hint("Start it, or set EPITOME_LOCAL_URL to its address, then send the prompt again.")
}

/// Joins URLs without their users and passwords.
fn listed(urls: &[String]) -> String {
    let shown: Vec<String> = urls.iter().map(|url| shown(url)).collect();
    shown.join(" and ")
}

pub(super) fn missing_key(provider: &str, hint: String) -> ProviderError {
    ProviderError::new(ErrorClass::Auth, format!("There is no key for {provider}.")).with_hint(hint)
}

pub(super) fn unknown_provider(model: &ModelName, settings: &Settings) -> ProviderError {
    let built_in: Vec<&str> = built_in_providers().chain(["local"]).collect();
    let configured = settings.providers.keys().map(String::as_str).filter(|name| !built_in.contains(name));
    let known: Vec<&str> = built_in.iter().copied().chain(configured).collect();
    let near = model.split().and_then(|(provider, _)| nearest(provider, known.iter().copied()));
    let near = near.map(|near| format!("Did you mean {near}? ")).unwrap_or_default();
    let known = known.join(", ");
    let (message, hint) = match model.split() {
        Some((provider, _)) => (
            format!("There is no provider {provider:?} for the model {:?}.", model.0),
            format!(
                "{near}The providers are {known}; `epitome models` lists their models. Another one is a table \
                 [providers.{provider}] in config.toml, with wire and base_url; a table with a mistake is not used \
                 (`epitome config check`)."
            ),
        ),
        None => (
            format!("The model {:?} is of no known provider.", model.0),
            format!(
                "Name models as provider/name; the providers are {known}, and `epitome models` lists their \
                 models."
            ),
        ),
    };
    ProviderError::new(ErrorClass::Refused, message).with_hint(hint)
}
