//! Validates request bodies like the providers do: the order of messages, the pairing of calls and results,
//! required content. Pure.
//!
//! These are the rules of conversations, which an edited or compacted view can violate, and those of the definitions of
//! tools. This is not a schema: unknown fields are not detected, but for those in `services`. Errors are in the providers' wording.

mod anthropic;
mod chat;
mod gemini;
mod responses;
pub(crate) mod services;

use serde_json::Value;

use epitome_config::WireFormat;

/// Why the provider of this format would reject the body for this model, in the order of detection; empty if
/// it wouldn't.
pub fn problems(wire: WireFormat, model: &str, body: &Value) -> Vec<String> {
    let mut found = match wire {
        WireFormat::AnthropicMessages => anthropic::problems(body),
        WireFormat::OpenAiResponses => responses::problems(body),
        WireFormat::OpenAiChat => chat::problems(model, body),
        WireFormat::Gemini => gemini::problems(model, body),
    };
    found.extend(services::problems(wire, model, body));
    found
}

/// The members of a list; empty for other values.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The text of a string; empty for other values.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether this is a valid tool name.
fn is_name(name: &str, length_max: usize) -> bool {
    let known = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    !name.is_empty() && name.len() <= length_max && name.chars().all(known)
}

#[cfg(test)]
mod tests;
