//! What the providers refuse in a request's body: how messages follow one another, how calls and their
//! results belong together, what may not be empty. Pure.
//!
//! These are the rules of a conversation, which a view that was edited or made short can break. They are
//! no schema: a field that nobody knows is not found here. The words are the providers' own.

mod anthropic;
mod chat;
mod gemini;
mod responses;

use serde_json::Value;

use epitome_config::WireFormat;

/// Why the provider of this format would refuse the body for this model; empty where it would not. In the
/// order in which they are found.
pub fn problems(wire: WireFormat, model: &str, body: &Value) -> Vec<String> {
    match wire {
        WireFormat::AnthropicMessages => anthropic::problems(body),
        WireFormat::OpenAiResponses => responses::problems(body),
        WireFormat::OpenAiChat => chat::problems(body),
        WireFormat::Gemini => gemini::problems(model, body),
    }
}

/// The members of a list; none where it is no list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The text of a value; empty where it is none.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether a tool may have this name.
fn is_name(name: &str, length_max: usize) -> bool {
    let known = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    !name.is_empty() && name.len() <= length_max && name.chars().all(known)
}

#[cfg(test)]
mod tests;
