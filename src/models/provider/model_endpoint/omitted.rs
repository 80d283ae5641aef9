//! The parts of requests that a service may refuse to know. A request can do without each of them, so a refusal that names
//! one is answered with the same request without it. Pure.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde_json::Value;

use epitome_config::WireFormat;

/// For each format, the fields that a request can do without. A path of the body may also be a string in one of its lists,
/// as in `include`; after `*.` is a field of messages, of their parts and of tools.
const OPTIONAL: [(WireFormat, &str); 4] = [
    (
        WireFormat::OpenAiChat,
        "stream_options stream_options.include_usage max_tokens max_completion_tokens reasoning_effort \
         prompt_cache_key *.reasoning *.reasoning_content *.reasoning_details",
    ),
    (
        WireFormat::OpenAiResponses,
        "include reasoning reasoning.effort reasoning.encrypted_content reasoning.summary \
         web_search_call.action.sources parallel_tool_calls prompt_cache_key max_output_tokens store *.detail *.phase \
         *.strict",
    ),
    (
        WireFormat::AnthropicMessages,
        "thinking thinking.display output_config output_config.effort *.cache_control *.is_error *.title",
    ),
    (
        WireFormat::Gemini,
        "toolConfig toolConfig.includeServerSideToolInvocations generationConfig.maxOutputTokens \
         generationConfig.thinkingConfig generationConfig.thinkingConfig.includeThoughts \
         generationConfig.thinkingConfig.thinkingBudget generationConfig.thinkingConfig.thinkingLevel",
    ),
];

/// Begins the names of fields of messages, parts and tools.
const IN_PARTS: &str = "*.";

/// Fields below which everything is data of tools.
const DATA: [&str; 7] =
    ["args", "arguments", "input", "input_schema", "item", "parameters", "parametersJsonSchema"];

/// Parts that requests of an endpoint leave out because its service has refused them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    pub fields: BTreeSet<&'static str>,
    /// Names of tools.
    pub tools: BTreeSet<String>,
    /// Digests of images and documents.
    pub attachments: BTreeSet<u64>,
    /// What is behind this many characters of the description of a tool.
    pub description_chars_max: Option<usize>,
}

impl Omitted {
    /// Whether an image or a document is left out. `data` is its base64.
    pub fn has_attachment(&self, data: &str) -> bool {
        !self.attachments.is_empty() && self.attachments.contains(&attachment_digest(data))
    }
}

/// A number that is equal for equal attachments. `data` is base64.
pub fn attachment_digest(data: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(data)
}

/// Returns the fields among these that a request can do without.
pub fn known_fields(names: &[String]) -> impl Iterator<Item = &'static str> {
    let all = OPTIONAL.into_iter().flat_map(|(_, fields)| fields.split_whitespace());
    all.filter(|field| names.iter().any(|name| name == field))
}

/// Whether a field is one of messages, parts or tools.
pub fn is_in_parts(field: &str) -> bool {
    field.starts_with(IN_PARTS)
}

/// Removes a field from a body, and what becomes empty by that.
pub fn remove_from_body(body: &mut Value, field: &str) {
    if is_in_parts(field) {
        return remove_from_parts(body, field);
    }
    remove_path(body, field);
    for list in body.as_object_mut().into_iter().flatten().filter_map(|(_, list)| list.as_array_mut()) {
        list.retain(|member| member != field);
    }
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
    }
}

fn remove_path(value: &mut Value, path: &str) {
    let Some(fields) = value.as_object_mut() else { return };
    match path.split_once('.') {
        None => drop(fields.remove(path)),
        Some((name, rest)) => {
            let Some(inner) = fields.get_mut(name) else { return };
            remove_path(inner, rest);
            if inner.as_object().is_some_and(serde_json::Map::is_empty) {
                fields.remove(name);
            }
        }
    }
}

/// Removes a field from a message or a tool and from the parts of it, but not from what a tool gets.
pub fn remove_from_parts(value: &mut Value, field: &str) {
    let Some(name) = field.strip_prefix(IN_PARTS) else { return };
    match value {
        Value::Object(fields) => {
            fields.remove(name);
            let parts = fields.iter_mut().filter(|(name, _)| !DATA.contains(&name.as_str()));
            parts.for_each(|(_, part)| remove_from_parts(part, field));
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| remove_from_parts(part, field)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The field that a refusal names first and that is still sent. `paths` are those that the refusal gives as data;
/// `message` is prose, in which services write names in their own way: `reasoningEffort`, `"reasoning_effort"` or
/// "reasoning effort".
pub fn named_field(
    wire: WireFormat,
    paths: &[String],
    message: &str,
    is_omitted: impl Fn(&str) -> bool,
) -> Option<&'static str> {
    let (_, fields) = OPTIONAL.into_iter().find(|(of, _)| *of == wire)?;
    let texts = paths.iter().map(|path| format!("'{path}'")).chain([message.to_owned()]);
    texts.map(|text| words_of(&text)).find_map(|text| {
        let candidates = fields.split_whitespace().filter(|field| !is_omitted(field));
        let places = candidates.filter_map(|field| Some((place_of(field, &text)?, field)));
        // The longest of those that begin at the same place.
        places.min_by_key(|(place, field)| (*place, usize::MAX - field.len())).map(|(_, field)| field)
    })
}

/// The position at which a text in plain words names a field: by its path from the beginning, or by a last name that is no
/// ordinary word.
fn place_of(field: &str, text: &str) -> Option<usize> {
    let words = words_of(field);
    let last = words.rsplit('.').next().unwrap_or(&words);
    let is_part = is_in_parts(field);
    let by_path = (!is_part).then(|| find_name(&words, text, false)).flatten();
    let by_last = (is_part || last.contains(' ')).then(|| find_name(last, text, true)).flatten();
    // "reasoning summaries" is `reasoning.summary`.
    let prose = words.replace('.', " ");
    let many = prose.strip_suffix('y').map_or_else(|| format!("{prose}s"), |stem| format!("{stem}ies"));
    let in_prose = [&prose, &many].into_iter().filter(|_| words.contains('.') && !is_part);
    let by_prose = in_prose.filter_map(|name| find_name(name, text, false)).min();
    by_path.into_iter().chain(by_last).chain(by_prose).min()
}

fn find_name(name: &str, text: &str, may_be_within: bool) -> Option<usize> {
    let is_quote = |c: char| matches!(c, '\'' | '"' | '`');
    text.match_indices(name).map(|(at, _)| at).find(|at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        let is_within = before == Some('.') && !text[..*at].ends_with("body.");
        let is_whole = !before.into_iter().chain(after).any(char::is_alphanumeric);
        // A single word is a name only if it is marked as one.
        let is_name = name.contains([' ', '.'])
            || before.is_some_and(is_quote)
            || after.is_some_and(|c| is_quote(c) || matches!(c, ':' | '['));
        is_whole && is_name && (may_be_within || !is_within)
    })
}

/// A name or a text in lower case, with spaces instead of underscores and between the words of `camelCase`.
fn words_of(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    let mut was_lower = false;
    for c in text.chars() {
        if c.is_uppercase() && was_lower {
            words.push(' ');
        }
        was_lower = c.is_lowercase();
        if c == '_' { words.push(' ') } else { words.extend(c.to_lowercase()) }
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Mistral refused every request because of `stream_options`, and organisations that OpenAI has not verified could not
    /// use its reasoning models because of `reasoning.summary`. Each service words that in its own way.
    #[test]
    fn refusals_name_fields_in_many_ways() {
        use WireFormat::{
            AnthropicMessages as Messages, Gemini, OpenAiChat as Chat, OpenAiResponses as Responses,
        };
        for (wire, path, message, expected) in [
            (
                Chat,
                "body.stream_options.include_usage",
                "Extra inputs are not permitted",
                "stream_options.include_usage",
            ),
            (Responses, "reasoning.summary", "Your organization must be verified.", "reasoning.summary"),
            (
                Responses,
                "",
                "Your organization must be verified to generate reasoning summaries.",
                "reasoning.summary",
            ),
            (Responses, "", "Reasoning effort is not supported with this model.", "reasoning.effort"),
            (Responses, "include", "Encrypted content is not supported with this model.", "include"),
            (Responses, "include[0]", "Invalid value", "include"),
            (Chat, "", r#"json: unknown field "stream_options""#, "stream_options"),
            (Chat, "", "Unrecognized request argument supplied: stream_options", "stream_options"),
            (Responses, "", "Unknown parameter: 'reasoning.summary'.", "reasoning.summary"),
            (Chat, "", "Argument not supported on this model: reasoningEffort", "reasoning_effort"),
            (
                Gemini,
                "",
                "Thinking level MINIMAL is not supported.",
                "generationConfig.thinkingConfig.thinkingLevel",
            ),
            (
                Gemini,
                "",
                r#"Unknown name "includeServerSideToolInvocations" at 'tool_config': Cannot find field."#,
                "toolConfig.includeServerSideToolInvocations",
            ),
            (Messages, "", "thinking.display: Extra inputs are not permitted", "thinking.display"),
            (Messages, "", "system.0.cache_control: Extra inputs are not permitted", "*.cache_control"),
            (Chat, "", "property 'reasoning_content' is unsupported", "*.reasoning_content"),
            (Responses, "", "does not support parameters: ['parallel_tool_calls']", "parallel_tool_calls"),
            (Responses, "", "Invalid value: 'reasoning.encrypted_content'.", "reasoning.encrypted_content"),
            (Chat, "", "Unsupported: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
            // Ordinary words, fields of a message, and what a request needs.
            (Responses, "", "Please include a reasoning model in the store.", ""),
            (Messages, "", "messages.1.content.0.thinking: each thinking block must contain thinking", ""),
            (Messages, "", "messages: at least one message is required", ""),
            (Messages, "", "max_tokens: 100000 > 64000, which is the maximum", ""),
            (Chat, "model", "unknown model", ""),
        ] {
            let paths = Vec::from_iter(Some(path.to_owned()).filter(|path| !path.is_empty()));
            let found = named_field(wire, &paths, message, |_| false);
            assert_eq!(found.unwrap_or_default(), expected, "{path} {message}");
        }
        let next = named_field(
            WireFormat::OpenAiChat,
            &[],
            "Use 'max_completion_tokens' instead of 'max_tokens'.",
            |name| name == "max_completion_tokens",
        );
        assert_eq!(next, Some("max_tokens"), "a field that is left out already is not the reason");
    }

    #[test]
    fn a_field_is_removed_with_what_becomes_empty() {
        for (field, expected) in [
            (
                "stream_options.include_usage",
                json!({"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}),
            ),
            (
                "reasoning.summary",
                json!({"stream_options": {"include_usage": true}, "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"]}),
            ),
            (
                "reasoning.encrypted_content",
                json!({"stream_options": {"include_usage": true}, "reasoning": {"effort": "low", "summary": "auto"}}),
            ),
        ] {
            let mut body = json!({
                "stream_options": {"include_usage": true},
                "reasoning": {"effort": "low", "summary": "auto"},
                "include": ["reasoning.encrypted_content"],
            });
            remove_from_body(&mut body, field);
            assert_eq!(body, expected, "{field}");
        }
        let mut message = json!({"content": [{"type": "tool_use", "strict": true, "input": {"strict": 1}}]});
        remove_from_parts(&mut message, "*.strict");
        assert_eq!(message, json!({"content": [{"type": "tool_use", "input": {"strict": 1}}]}));
    }
}
