//! Errors of providers, as sentences and as answers to prompts.

use super::SessionError;
use epitome_provider::{ErrorClass, ProviderError};

/// The message for a failed call: the error, then what to do about it.
pub(super) fn sentence(error: &ProviderError) -> String {
    match &error.hint {
        Some(hint) => format!("{} {hint}", with_full_stop(&error.message)),
        None => error.message.clone(),
    }
}

pub(super) fn with_full_stop(text: &str) -> String {
    let ended = text.ends_with(['.', '!', '?', ':']);
    if ended { text.to_owned() } else { format!("{text}.") }
}

/// The answer to a prompt whose provider refuses or can't be reached.
pub fn provider_error(error: &ProviderError) -> SessionError {
    match error.class {
        ErrorClass::Auth => SessionError::AuthRequired(sentence(error)),
        _ => SessionError::Provider { message: error.message.clone(), hint: error.hint.clone() },
    }
}
