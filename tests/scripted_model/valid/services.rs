//! What services refuse beyond the rules of their format. They are selected by the model's name, as one server plays them
//! all. Pure.

use serde_json::Value;

use super::list;
use epitome_config::WireFormat;

/// A rule of a service.
struct ServiceRule {
    wire: WireFormat,
    /// The beginning of its models' names, or the end after a `*`.
    of: &'static str,
    is_refused: fn(&Value) -> bool,
    message: &'static str,
}

const RULES: [ServiceRule; 6] = [
    // Mistral refuses to know `stream_options`.
    ServiceRule {
        wire: WireFormat::OpenAiChat,
        of: "mistral",
        is_refused: |body| !body["stream_options"].is_null(),
        message: EXTRA_INPUTS,
    },
    // OpenAI does not summarize reasoning for an organisation that it has not verified.
    ServiceRule {
        wire: WireFormat::OpenAiResponses,
        of: "*-unverified",
        is_refused: |body| !body["reasoning"]["summary"].is_null(),
        message: UNVERIFIED,
    },
    ServiceRule {
        wire: WireFormat::OpenAiChat,
        of: "kimi",
        is_refused: |body| parameters(body).any(is_untyped),
        message: "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema, details: <type is \
            not defined>",
    },
    ServiceRule {
        wire: WireFormat::OpenAiChat,
        of: "command",
        is_refused: |body| functions(body).any(|function| !function["strict"].is_null()),
        message: "unknown field: parameter 'strict' is not a valid field",
    },
    // Groq.
    ServiceRule {
        wire: WireFormat::OpenAiChat,
        of: "compound",
        is_refused: |body| functions(body).count() > 128,
        message: "'tools' : maximum number of items is 128",
    },
    // Bedrock, behind a gateway.
    ServiceRule {
        wire: WireFormat::OpenAiChat,
        of: "nova",
        is_refused: |body| functions(body).any(|function| function["description"] == ""),
        message: "Invalid length for parameter toolConfig.tools[0].toolSpec.description, value: 0, valid min length: 1",
    },
];

/// Why a service refuses a body that the rules of its format allow.
pub(super) fn problems(wire: WireFormat, model: &str, body: &Value) -> Option<String> {
    let name = model.rsplit('/').next().unwrap_or(model);
    let is_of = |of: &str| of.strip_prefix('*').map_or(name.starts_with(of), |end| name.ends_with(end));
    let rule = RULES.iter().find(|rule| rule.wire == wire && is_of(rule.of) && (rule.is_refused)(body));
    rule.map(|rule| rule.message.to_owned())
}

pub(crate) const EXTRA_INPUTS: &str = "Extra inputs are not permitted";
pub(crate) const UNVERIFIED: &str = "Your organization must be verified to generate reasoning summaries.";

fn functions(body: &Value) -> impl Iterator<Item = &Value> {
    list(&body["tools"]).iter().map(|tool| &tool["function"])
}

fn parameters(body: &Value) -> impl Iterator<Item = &Value> {
    functions(body).map(|function| &function["parameters"])
}

/// Whether a schema, or one within it, has neither a type nor alternatives, or both.
fn is_untyped(schema: &Value) -> bool {
    let named = schema["properties"].as_object().into_iter().flatten().map(|(_, schema)| schema);
    let items = schema.get("items").into_iter().chain(list(&schema["anyOf"]));
    schema["type"].is_null() == schema["anyOf"].is_null() || named.chain(items).any(is_untyped)
}

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
