//! The tools of a request: which of them are sent, and with a schema that the provider accepts. No definition of a tool is
//! written in another way, because one that a provider refuses makes it refuse every request of the conversation. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{is_accepted_name, without_refused_parts, write};
use crate::model_endpoint::Endpoint;
use epitome_config::{EditTools, WireFormat};
use epitome_thread::{SEARCH_TOOL, ToolSpec};
use epitome_tokens::model_name::Family;

/// Schemas within schemas; deeper ones accept everything.
const DEPTH_MAX: usize = 32;

/// Maximum bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// The restrictions of a provider on schemas, beyond those of JSON Schema.
struct SchemaRules {
    /// Symbols in the names of properties; `None` for all that are visible.
    key_symbols: Option<&'static str>,
    key_chars_max: usize,
}

/// Anthropic's: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'".
const OF_CLAUDE: SchemaRules = SchemaRules { key_symbols: Some("_.-"), key_chars_max: 64 };
const OF_OTHERS: SchemaRules = SchemaRules { key_symbols: None, key_chars_max: 256 };

/// The rules of an endpoint's provider. Gateways pass requests for Claude on to Anthropic.
fn rules_of(endpoint: &Endpoint) -> &'static SchemaRules {
    match endpoint.wire {
        WireFormat::AnthropicMessages => &OF_CLAUDE,
        _ if Family::detect(&endpoint.model) == Family::Claude => &OF_CLAUDE,
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => &OF_OTHERS,
    }
}

/// A tool that is left out, and the reason as a clause.
pub type LeftOutTool<'a> = (&'a str, String);

/// The tools that are sent, in their order. Those with a schema of `null` exist only at providers that search the web.
fn sent<'a>(endpoint: &Endpoint, tools: &'a [ToolSpec]) -> (Vec<ToolSpec>, Vec<LeftOutTool<'a>>) {
    let (mut sent, mut left_out) = (Vec::new(), Vec::new());
    let mut names = BTreeSet::new();
    for tool in tools.iter().filter(|tool| is_wanted(endpoint, tools, tool)) {
        if endpoint.searches() && tool.name == SEARCH_TOOL {
            sent.push(tool.clone());
        } else if !tool.schema.is_null() {
            match acceptable(rules_of(endpoint), tool) {
                _ if !names.insert(tool.name.as_str()) => {
                    left_out.push((tool.name.as_str(), "there is another one of this name".to_owned()));
                }
                Ok(schema) => sent.push(ToolSpec { schema, ..tool.clone() }),
                Err(why) => left_out.push((tool.name.as_str(), why)),
            }
        }
    }
    (sent, left_out)
}

/// Whether the tool is neither quarantined nor the one with which this model should not edit files, if it has the other.
fn is_wanted(endpoint: &Endpoint, tools: &[ToolSpec], tool: &ToolSpec) -> bool {
    let (usual, other) = match endpoint.edit_tools {
        EditTools::Patch => ("apply_patch", "file_edit"),
        EditTools::Replace => ("file_edit", "apply_patch"),
        EditTools::All => ("", ""),
    };
    let is_replaced = tool.name == other && tools.iter().any(|tool| tool.name == usual);
    !is_replaced && !endpoint.omitted.tools.contains(&tool.name)
}

/// The tools that the endpoint's provider would not accept.
pub fn left_out<'a>(endpoint: &Endpoint, tools: &'a [ToolSpec]) -> Vec<LeftOutTool<'a>> {
    sent(endpoint, tools).1
}

/// The name of the tool that a provider refuses: by its position in the list, or as the longest one in the message.
pub(crate) fn refused(
    endpoint: &Endpoint,
    tools: &[ToolSpec],
    position: Option<usize>,
    message: &str,
) -> Option<String> {
    let sent = sent(endpoint, tools).0;
    let named = match position {
        Some(position) => sent.get(position),
        None => sent.iter().filter(|tool| is_word_of(&tool.name, message)).max_by_key(|tool| tool.name.len()),
    };
    named.map(|tool| tool.name.clone())
}

/// Whether a message has a name in quotation marks or as a word that is no ordinary one.
fn is_word_of(name: &str, message: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    message.match_indices(name).any(|(at, _)| {
        let before = message[..at].chars().next_back();
        let after = message[at + name.len()..].chars().next();
        let is_quoted = before.is_some_and(|c| matches!(c, '\'' | '"' | '`'));
        !before.into_iter().chain(after).any(is_of_name) && (is_quoted || name.contains(['_', '-']))
    })
}

/// The definitions of the tools, each converted by `form`. If the provider searches the web, `search` replaces that tool.
pub(super) fn definitions(
    endpoint: &Endpoint,
    tools: &[ToolSpec],
    search: Option<&Value>,
    form: impl Fn(&ToolSpec) -> Value,
) -> Vec<Value> {
    let definition = |tool: &ToolSpec| match search {
        Some(search) if tool.name == SEARCH_TOOL => search.clone(),
        Some(_) | None => without_refused_parts(endpoint, &form(tool)).into_owned(),
    };
    sent(endpoint, tools).0.iter().map(definition).collect()
}

/// The definitions as a JSON list.
pub(super) fn list_of_tools(
    endpoint: &Endpoint,
    tools: &[ToolSpec],
    search: Option<&Value>,
    form: impl Fn(&ToolSpec) -> Value,
) -> Vec<u8> {
    let mut out = Vec::new();
    write(&definitions(endpoint, tools, search, form), &mut out);
    out
}

/// The schema of a tool in a form that the provider accepts, or why there is none. A property that it would refuse is left
/// out if the tool does not require it.
fn acceptable(rules: &SchemaRules, tool: &ToolSpec) -> Result<Value, String> {
    if !is_accepted_name(&tool.name) {
        return Err("the service does not accept its name".to_owned());
    }
    let mut schema = match &tool.schema {
        Value::Object(fields) => fields.clone(),
        // `true`, and whatever else is no schema, accepts everything.
        _ => Map::new(),
    };
    adapt(rules, &mut schema, 0)?;
    if schema.get("type") != Some(&json!("object")) {
        schema.insert("type".to_owned(), json!("object"));
    }
    schema.entry("properties").or_insert_with(|| json!({}));
    let schema = Value::Object(schema);
    match schema.to_string().len() > SCHEMA_BYTES_MAX {
        true => Err(format!("its schema has more than {} KiB", SCHEMA_BYTES_MAX / 1024)),
        false => Ok(schema),
    }
}

/// The kind of value that a keyword of JSON Schema must have.
#[derive(Clone, Copy)]
enum KeywordValue {
    Schema,
    Schemas,
    NamedSchemas,
    Types,
    Text,
    Number,
    Flag,
    Names,
    Values,
}

/// The keywords of draft 2020-12 that are checked. Providers ignore unknown ones, and refuse known ones with another value.
const KEYWORDS: [(KeywordValue, &str); 9] = [
    (KeywordValue::Types, "type"),
    (KeywordValue::NamedSchemas, "properties patternProperties dependentSchemas $defs definitions"),
    (
        KeywordValue::Schema,
        "items contains additionalProperties propertyNames unevaluatedItems unevaluatedProperties contentSchema not if \
         then else",
    ),
    (KeywordValue::Schemas, "allOf anyOf oneOf prefixItems"),
    (KeywordValue::Names, "required"),
    (KeywordValue::Values, "enum examples"),
    (
        KeywordValue::Text,
        "description title format pattern contentEncoding contentMediaType $ref $id $schema $anchor $comment",
    ),
    (
        KeywordValue::Number,
        "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems \
         minProperties maxProperties",
    ),
    (KeywordValue::Flag, "uniqueItems deprecated"),
];

fn kind_of(keyword: &str) -> Option<KeywordValue> {
    let has = |names: &str| names.split_whitespace().any(|name| name == keyword);
    KEYWORDS.into_iter().find(|(_, names)| has(names)).map(|(kind, _)| kind)
}

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Makes a schema valid, at all levels. The result accepts all that the original does: the tool checks its input itself.
fn adapt(rules: &SchemaRules, schema: &mut Map<String, Value>, depth: usize) -> Result<(), String> {
    // A tuple is written so since draft 2020-12.
    if let Some(Value::Array(_)) = schema.get("items") {
        let parts = schema.remove("items").unwrap_or_default();
        schema.insert("prefixItems".to_owned(), parts);
    }
    schema.retain(|name, value| kind_of(name).is_none_or(|kind| is_valid(kind, value)));
    drop_refused_properties(rules, schema)?;
    let is_list = schema.get("type").is_some_and(|kind| {
        kind == "array" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("array")))
    });
    if is_list {
        schema.entry("items").or_insert_with(|| json!({}));
    }
    for (keyword, value) in schema.iter_mut() {
        let inner: Vec<&mut Value> = match (kind_of(keyword), value) {
            (Some(KeywordValue::Schema), value) => vec![value],
            (Some(KeywordValue::Schemas), Value::Array(members)) => members.iter_mut().collect(),
            (Some(KeywordValue::NamedSchemas), Value::Object(fields)) => fields.values_mut().collect(),
            _ => continue,
        };
        for schema in inner {
            match schema {
                Value::Object(fields) if depth < DEPTH_MAX => adapt(rules, fields, depth + 1)?,
                Value::Bool(_) => {}
                other => *other = json!({}),
            }
        }
    }
    Ok(())
}

fn is_valid(kind: KeywordValue, value: &Value) -> bool {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match kind {
        KeywordValue::Schema => value.is_object() || value.is_boolean(),
        KeywordValue::Schemas | KeywordValue::Values => {
            value.as_array().is_some_and(|members| !members.is_empty())
        }
        KeywordValue::NamedSchemas => value.is_object(),
        KeywordValue::Types => {
            let is_list = |kinds: &Vec<Value>| !kinds.is_empty() && kinds.iter().all(is_type);
            is_type(value) || value.as_array().is_some_and(is_list)
        }
        KeywordValue::Text => value.is_string(),
        KeywordValue::Number => value.is_number(),
        KeywordValue::Flag => value.is_boolean(),
        KeywordValue::Names => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
    }
}

/// Removes properties with names that the provider refuses, and the requirement of properties that don't exist.
fn drop_refused_properties(rules: &SchemaRules, schema: &mut Map<String, Value>) -> Result<(), String> {
    let is_accepted = |name: &String| {
        let is_known = |c: char| match rules.key_symbols {
            Some(symbols) => c.is_ascii_alphanumeric() || symbols.contains(c),
            None => !c.is_control(),
        };
        !name.is_empty() && name.chars().count() <= rules.key_chars_max && name.chars().all(is_known)
    };
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return Ok(()) };
    if let Some(refused) =
        properties.keys().find(|name| !is_accepted(name) && required.contains(&json!(name)))
    {
        return Err(format!("the service does not accept the name of its parameter {refused:?}"));
    }
    properties.retain(|name, _| is_accepted(name));
    let kept: Vec<Value> = required
        .iter()
        .filter(|name| name.as_str().is_some_and(|name| properties.contains_key(name)))
        .cloned()
        .collect();
    if kept.len() != required.len() {
        schema.insert("required".to_owned(), kept.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{test_chat_endpoint, test_endpoint};

    fn tool(name: &str, schema: Value) -> ToolSpec {
        ToolSpec { name: name.to_owned(), description: String::new(), schema }
    }

    /// One tool of an MCP server had a property `$.xgafv`. Anthropic refused every request of the conversation, also after
    /// the server had been switched off, because the list of tools was fixed.
    #[test]
    fn a_property_that_the_provider_refuses_does_not_break_the_request() {
        let odd =
            json!({"type": "object", "properties": {"$.xgafv": {"type": "string"}, "q": {"type": "string"}}});
        let mut needed = odd.clone();
        needed["required"] = json!(["$.xgafv"]);
        let tools = [tool("adapted", odd.clone()), tool("left_out", needed), tool("plain", json!({}))];
        let claude = test_endpoint("anthropic/claude-sonnet-5-5");
        let (found, without) = sent(&claude, &tools);
        let names: Vec<&str> = found.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["adapted", "plain"]);
        assert_eq!(found[0].schema, json!({"type": "object", "properties": {"q": {"type": "string"}}}));
        assert!(without[0].0 == "left_out" && without[0].1.contains("$.xgafv"), "{without:?}");
        // OpenAI accepts it.
        let (found, _) = sent(&test_chat_endpoint("openai/gpt-5.4"), &tools);
        assert_eq!((found.len(), &found[0].schema), (3, &odd));
    }

    #[test]
    fn every_schema_becomes_valid() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        for (schema, expected) in [
            (json!(true), object(json!({}))),
            (json!("none"), object(json!({}))),
            (json!({"type": "any", "properties": []}), object(json!({}))),
            (object(json!({"a": {"description": 7, "type": "str"}})), object(json!({"a": {}}))),
            (object(json!({"a": null, "b": true})), object(json!({"a": {}, "b": true}))),
            (
                object(json!({"a": {"type": "array", "items": [{"type": "string"}]}})),
                object(json!({"a": {"type": "array", "prefixItems": [{"type": "string"}], "items": {}}})),
            ),
            (
                object(json!({"a": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "enum": []}})),
                object(json!({"a": {"type": "number", "minimum": 0}})),
            ),
            (
                object(json!({"a": {"type": "string", "required": true}})),
                object(json!({"a": {"type": "string"}})),
            ),
            // Neither data nor the names of properties are keywords.
            (
                object(json!({"required": {"default": {"type": 1}}, "type": {"enum": [{"items": 1}]}})),
                object(json!({"required": {"default": {"type": 1}}, "type": {"enum": [{"items": 1}]}})),
            ),
        ] {
            let found = acceptable(&OF_CLAUDE, &tool("t", schema.clone()));
            assert_eq!(found, Ok(expected), "{schema}");
        }
        let mut deep = json!({"type": "string"});
        for _ in 0..100 {
            deep = object(json!({ "a": deep }));
        }
        let found = acceptable(&OF_CLAUDE, &tool("t", deep)).expect("it is cut");
        assert!(found.to_string().len() < 2_000, "{found}");
    }

    #[test]
    fn tools_that_no_service_takes_are_left_out() {
        let large = json!({"description": "x".repeat(SCHEMA_BYTES_MAX)});
        let tools =
            [tool("a", json!({})), tool("a", json!({})), tool("two words", json!({})), tool("large", large)];
        let endpoint = test_chat_endpoint("openai/gpt-5.4");
        let names: Vec<&str> = left_out(&endpoint, &tools).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "two words", "large"]);
    }

    #[test]
    fn a_refusal_names_a_tool_by_position_or_by_name() {
        let tools = ["bash", "mcp__s__a", "mcp__s__a_b"].map(|name| tool(name, json!({})));
        let endpoint = test_chat_endpoint("openai/gpt-5.4");
        for (position, message, expected) in [
            (Some(1), "", Some("mcp__s__a")),
            (Some(3), "", None),
            (None, "Invalid schema for function 'mcp__s__a': x", Some("mcp__s__a")),
            (None, "Invalid schema for function mcp__s__a_b", Some("mcp__s__a_b")),
            (None, "Invalid schema for function 'bash'", Some("bash")),
            (None, "no bash schema", None),
        ] {
            assert_eq!(refused(&endpoint, &tools, position, message).as_deref(), expected, "{message}");
        }
    }
}
