//! What is said where no endpoint can be had, and what to do about it.

use super::resolve::{Environment, local_urls};
use crate::config::Settings;
use crate::provider::{ErrorClass, ProviderError};
use crate::thread::ModelName;

/// Nothing at all is configured: says the ways out.
pub fn nothing_configured() -> ProviderError {
    ProviderError {
        class: ErrorClass::Auth,
        message: "No model is configured, and no local server answers.".into(),
        hint: Some(
            "Set ANTHROPIC_API_KEY, OPENAI_API_KEY (with OPENAI_BASE_URL for a compatible service) or \
             GEMINI_API_KEY, or start a local server (Ollama, llama-server) and set EPITOME_LOCAL_URL to its \
             address. Restart the editor if it does not see the new environment."
                .into(),
        ),
    }
}

/// A local model was chosen, and no server answers: says where it was looked for.
pub fn no_local_server(name: &ModelName, settings: &Settings, env: &Environment) -> ProviderError {
    let tried = local_urls(settings, env).join(" and ");
    ProviderError {
        class: ErrorClass::Auth,
        message: format!("No local server answers for {name}; tried {tried}."),
        hint: Some("Start it, or set EPITOME_LOCAL_URL to its address, then send the prompt again.".into()),
    }
}

pub(super) fn missing_key(provider: &str, hint: String) -> ProviderError {
    let message = format!("There is no key for {provider}.");
    ProviderError { class: ErrorClass::Auth, message, hint: Some(hint) }
}

pub(super) fn unknown_provider(name: &str, settings: &Settings) -> ProviderError {
    let built_in = ["anthropic", "openai", "gemini", "local"];
    let configured = settings.providers.keys().map(String::as_str).filter(|name| !built_in.contains(name));
    let known: Vec<&str> = built_in.into_iter().chain(configured).collect();
    ProviderError {
        class: ErrorClass::Refused,
        message: format!("No provider is known for the model \"{name}\"."),
        hint: Some(format!("Name models as provider/name; the providers are {}.", known.join(", "))),
    }
}
