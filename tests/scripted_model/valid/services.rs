//! What services refuse beyond the rules of their format. They are selected by the model's name, as one server plays them
//! all. Pure.

use serde_json::Value;

use epitome_config::WireFormat;

/// Mistral refuses to know `stream_options`, and OpenAI to summarize reasoning for an organisation that it has not verified
/// (here, that of a model named `…-unverified`).
pub(super) fn problems(wire: WireFormat, model: &str, body: &Value) -> Option<String> {
    let name = model.rsplit('/').next().unwrap_or(model);
    match wire {
        WireFormat::OpenAiChat if name.starts_with("mistral") && !body["stream_options"].is_null() => {
            Some(EXTRA_INPUTS.to_owned())
        }
        WireFormat::OpenAiResponses
            if name.ends_with("-unverified") && !body["reasoning"]["summary"].is_null() =>
        {
            Some(UNVERIFIED.to_owned())
        }
        _ => None,
    }
}

pub(crate) const EXTRA_INPUTS: &str = "Extra inputs are not permitted";
pub(crate) const UNVERIFIED: &str = "Your organization must be verified to generate reasoning summaries.";

/// The keyword at the root of a tool's schema that neither OpenAI nor Anthropic accepts there.
pub(super) fn alternatives_at_root(schema: &Value) -> bool {
    ["oneOf", "anyOf", "allOf", "enum", "const", "not"].iter().any(|name| schema.get(name).is_some())
}

/// The first regular expression below a schema that Python can't compile, as OpenAI does it.
pub(super) fn unknown_pattern(schema: &Value) -> Option<&str> {
    match schema {
        Value::Object(fields) => {
            let own = schema["pattern"].as_str().filter(|pattern| pattern.contains("\\p{"));
            own.or_else(|| fields.values().find_map(unknown_pattern))
        }
        Value::Array(members) => members.iter().find_map(unknown_pattern),
        _ => None,
    }
}
