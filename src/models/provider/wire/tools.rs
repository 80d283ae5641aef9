//! The tools of a request: which of them are sent, and with a schema that the provider accepts. No definition of a tool is
//! written in another way, because one that a provider refuses makes it refuse every request of the conversation. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{is_accepted_name, without_refused_parts, write};
use crate::model_endpoint::Endpoint;
use epitome_config::{EditTools, WireFormat};
use epitome_thread::visible::shortened;
use epitome_thread::{SEARCH_TOOL, ToolSpec};
use epitome_tokens::model_name::Family;

/// Schemas within schemas; deeper ones accept everything.
const DEPTH_MAX: usize = 32;

/// Maximum schemas of a tool, counted as often as they are referred to; further ones accept everything.
const SCHEMAS_MAX: usize = 500;

/// Maximum bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// What a provider accepts of the schemas of tools, beyond what all accept: valid JSON Schema (draft 2020-12) for an object
/// whose root has no alternatives, in which lists say what they contain, `required` names properties that exist, references
/// lead to a part of the schema, and `type` is not beside `anyOf` (Moonshot).
struct SchemaRules {
    /// Symbols in the names of properties; `None` for all that are visible.
    key_symbols: Option<&'static str>,
    key_chars_max: usize,
    /// Whether `$ref` may be beside other keywords. Gemini and Moonshot refuse most of those, so a copy of what is referred to
    /// is sent instead.
    has_references: bool,
    /// Whether regular expressions of any syntax are accepted. OpenAI's are those of Python, and llama.cpp's are a part of them.
    has_patterns: bool,
}

/// Anthropic's: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'".
const OF_CLAUDE: SchemaRules =
    SchemaRules { key_symbols: Some("_.-"), key_chars_max: 64, has_references: true, has_patterns: true };
const OF_OPENAI: SchemaRules =
    SchemaRules { key_symbols: None, key_chars_max: 256, has_references: true, has_patterns: false };
/// Of Gemini and Moonshot, and of the many servers for open models, whose rules are not published.
const OF_OTHERS: SchemaRules = SchemaRules { has_references: false, ..OF_OPENAI };

/// The rules of an endpoint's provider. Gateways pass requests on to the vendor of the model.
fn rules_of(endpoint: &Endpoint) -> &'static SchemaRules {
    match (endpoint.wire, Family::detect(&endpoint.model)) {
        (WireFormat::AnthropicMessages, _) | (_, Family::Claude) => &OF_CLAUDE,
        (WireFormat::OpenAiResponses | WireFormat::OpenAiChat, Family::OpenAi) => &OF_OPENAI,
        _ => &OF_OTHERS,
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
                Ok(schema) => {
                    let chars_max = endpoint.omitted.description_chars_max.unwrap_or(usize::MAX);
                    let description = shortened(&tool.description, chars_max.saturating_sub(1));
                    sent.push(ToolSpec { schema, description, ..tool.clone() });
                }
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

/// The limit for the description of a tool that a refusal states, in characters: OpenAI's "string too long. Expected a string with
/// maximum length 1024".
pub(crate) fn description_chars_max(message: &str) -> Option<usize> {
    let (_, limit) = message.split_once("description")?.1.split_once("maximum length ")?;
    let digits = limit.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|limit| *limit > 0)
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

/// The schema of a tool in a form that the provider accepts, or why there is none. It accepts all that the original does, but
/// for properties that the provider would refuse: the tool checks its input itself.
fn acceptable(rules: &SchemaRules, tool: &ToolSpec) -> Result<Value, String> {
    if !is_accepted_name(&tool.name) {
        return Err("the service does not accept its name".to_owned());
    }
    let original = &tool.schema;
    let mut root = Map::new();
    root.insert("type".to_owned(), json!("object"));
    root.insert("properties".to_owned(), json!({}));
    Adapting { rules, original, expanded: Vec::new(), left: SCHEMAS_MAX }.merge(original, true, &mut root);
    let root = Value::Object(root);
    let schema =
        Adapting { rules, original, expanded: Vec::new(), left: SCHEMAS_MAX }.object(fields_of(&root), 0)?;
    match schema.to_string().len() > SCHEMA_BYTES_MAX {
        true => Err(format!("its schema has more than {} KiB", SCHEMA_BYTES_MAX / 1024)),
        false => Ok(schema),
    }
}

/// The kind of value that a keyword of JSON Schema must have.
#[derive(Clone, Copy)]
enum KeywordValue {
    Schema,
    SchemaOrFlag,
    Schemas,
    NamedSchemas,
    Types,
    Text,
    Number,
    Count,
    Names,
    Values,
    Any,
}

/// The keywords of draft 2020-12 that are sent. Providers ignore some of the others, and refuse some.
const KEYWORDS: [(KeywordValue, &str); 11] = [
    (KeywordValue::Types, "type"),
    (KeywordValue::NamedSchemas, "properties patternProperties $defs definitions"),
    (KeywordValue::Schema, "items contains propertyNames not"),
    (KeywordValue::SchemaOrFlag, "additionalProperties"),
    (KeywordValue::Schemas, "allOf anyOf oneOf prefixItems"),
    (KeywordValue::Names, "required"),
    (KeywordValue::Values, "enum"),
    (KeywordValue::Text, "description title format pattern $ref"),
    (KeywordValue::Number, "minimum maximum exclusiveMinimum exclusiveMaximum"),
    (KeywordValue::Count, "minLength maxLength minItems maxItems minProperties maxProperties"),
    (KeywordValue::Any, "const default"),
];

fn kind_of(keyword: &str) -> Option<KeywordValue> {
    let has = |names: &str| names.split_whitespace().any(|name| name == keyword);
    KEYWORDS.into_iter().find(|(_, names)| has(names)).map(|(kind, _)| kind)
}

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

fn is_valid(kind: KeywordValue, value: &Value) -> bool {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match kind {
        KeywordValue::Schema | KeywordValue::SchemaOrFlag => value.is_object() || value.is_boolean(),
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
        KeywordValue::Count => value.is_u64(),
        KeywordValue::Names => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
        KeywordValue::Any => true,
    }
}

/// The fields of a schema.
type Fields<'a> = Vec<(&'a str, &'a Value)>;

fn fields_of(schema: &Value) -> Fields<'_> {
    schema.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value)).collect()
}

/// The conversion of one tool's schema.
struct Adapting<'a> {
    rules: &'a SchemaRules,
    original: &'a Value,
    /// The references that are being replaced by what they refer to.
    expanded: Vec<&'a Value>,
    /// How many more schemas are converted.
    left: usize,
}

impl<'a> Adapting<'a> {
    /// Adds the keywords of a schema to those of the root, and the properties of its alternatives, which no provider accepts
    /// there. `is_all` if the root requires what this schema requires.
    fn merge(&mut self, schema: &'a Value, is_all: bool, root: &mut Map<String, Value>) {
        const NOT_AT_ROOT: [&str; 7] = ["$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const"];
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        for (name, value) in fields_of(schema).into_iter().filter(|(name, _)| !NOT_AT_ROOT.contains(name)) {
            match (root.get_mut(name), value) {
                (Some(Value::Object(known)), Value::Object(more)) if name == "properties" => {
                    for (name, value) in more {
                        known.entry(name).or_insert_with(|| value.clone());
                    }
                }
                (Some(Value::Array(known)), Value::Array(more)) if name == "required" && is_all => {
                    known.extend_from_slice(more);
                }
                (None, _) if name != "required" || is_all => {
                    root.insert(name.to_owned(), value.clone());
                }
                _ => {}
            }
        }
        if let Some(target) = self.target(&schema["$ref"]) {
            self.expanded.push(&schema["$ref"]);
            self.merge(target, is_all, root);
            self.expanded.pop();
        }
        for (name, is_each) in [("allOf", true), ("anyOf", false), ("oneOf", false)] {
            for member in schema[name].as_array().into_iter().flatten() {
                self.merge(member, is_all && is_each, root);
            }
        }
    }

    /// Returns the schema that a reference names, unless the reference is within that schema.
    fn target(&self, reference: &Value) -> Option<&'a Value> {
        let target = self.original.pointer(reference.as_str()?.strip_prefix('#')?)?;
        let is_within = self.expanded.contains(&reference) || self.expanded.len() >= DEPTH_MAX;
        (target.is_object() && !is_within).then_some(target)
    }

    /// Whether a reference is sent: to the root, or to one of its definitions, which are all sent.
    fn is_kept(&self, reference: &Value) -> bool {
        let Some(path) = reference.as_str().and_then(|reference| reference.strip_prefix('#')) else {
            return false;
        };
        let is_definition = path.starts_with("/$defs/") || path.starts_with("/definitions/");
        let is_sent =
            is_definition && path.matches('/').count() == 2 && self.original.pointer(path).is_some();
        self.rules.has_references && (path.is_empty() || is_sent)
    }

    fn schema(&mut self, schema: &'a Value, depth: usize) -> Result<Value, String> {
        if depth >= DEPTH_MAX || self.left == 0 {
            return Ok(json!({}));
        }
        self.left -= 1;
        self.object(fields_of(schema), depth + 1)
    }

    fn object(&mut self, mut fields: Fields<'a>, depth: usize) -> Result<Value, String> {
        let replaced = fields.iter().position(|(name, value)| *name == "$ref" && !self.is_kept(value));
        let reference = replaced.map(|at| fields.remove(at).1);
        if let Some(reference) = reference
            && let Some(target) = self.target(reference)
        {
            let mut more = fields_of(target);
            more.retain(|(name, _)| fields.iter().all(|(own, _)| own != name));
            fields.extend(more);
            self.expanded.push(reference);
            let found = self.object(fields, depth);
            self.expanded.pop();
            return found;
        }
        let mut out = Map::new();
        for (mut name, value) in fields {
            // A tuple is written so since draft 2020-12.
            if name == "items" && value.is_array() {
                name = "prefixItems";
            }
            let Some(kind) = kind_of(name).filter(|kind| is_valid(*kind, value)) else { continue };
            let value = match (kind, value) {
                (KeywordValue::SchemaOrFlag, Value::Bool(flag)) => Value::Bool(*flag),
                (KeywordValue::Schema | KeywordValue::SchemaOrFlag, value) => self.schema(value, depth)?,
                (KeywordValue::Schemas, Value::Array(members)) => {
                    members.iter().map(|member| self.schema(member, depth)).collect::<Result<Value, _>>()?
                }
                (KeywordValue::NamedSchemas, Value::Object(named)) => {
                    let adapted =
                        named.iter().map(|(name, one)| Ok((name.clone(), self.schema(one, depth)?)));
                    Value::Object(adapted.collect::<Result<Map<String, Value>, String>>()?)
                }
                (KeywordValue::Types | KeywordValue::Names, Value::Array(names)) => {
                    let mut known = BTreeSet::new();
                    names.iter().filter(|name| known.insert(name.as_str())).cloned().collect()
                }
                (_, value) => value.clone(),
            };
            out.insert(name.to_owned(), value);
        }
        self.finish(&mut out)?;
        Ok(Value::Object(out))
    }

    /// Makes the keywords of a schema fit each other and the rules.
    fn finish(&self, schema: &mut Map<String, Value>) -> Result<(), String> {
        if !self.rules.has_patterns {
            schema.remove("pattern");
            if schema.remove("patternProperties").is_some() {
                schema.remove("additionalProperties");
            }
        }
        if !self.rules.has_references {
            schema.remove("$defs");
            schema.remove("definitions");
        }
        drop_refused_properties(self.rules, schema)?;
        let kind = schema.get("type").cloned().unwrap_or_default();
        if kind == "array" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("array"))) {
            schema.entry("items").or_insert_with(|| json!({}));
        }
        if let Some(Value::Array(members)) = schema.get_mut("anyOf")
            && !kind.is_null()
        {
            for member in members.iter_mut().filter_map(Value::as_object_mut) {
                if !member.contains_key("$ref") && !member.contains_key("anyOf") {
                    member.entry("type").or_insert_with(|| kind.clone());
                }
            }
            schema.remove("type");
        }
        Ok(())
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
    let required = schema.remove("required");
    let mut required = required.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let refused = properties.as_ref().and_then(|properties| {
        properties.keys().find(|name| !is_accepted(name) && required.contains(&json!(name)))
    });
    if let Some(refused) = refused {
        return Err(format!("the service does not accept the name of its parameter {refused:?}"));
    }
    if let Some(properties) = properties {
        properties.retain(|name, _| is_accepted(name));
        required.retain(|name| name.as_str().is_some_and(|name| properties.contains_key(name)));
        if !required.is_empty() {
            schema.insert("required".to_owned(), required.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            (object(json!({"a": null, "b": true})), object(json!({"a": {}, "b": {}}))),
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

    /// OpenAI and Anthropic refuse alternatives at the root of a schema, Gemini and Moonshot most of what is beside a reference,
    /// and OpenAI patterns that Python can't compile: a tool with one of these made every request fail.
    #[test]
    fn published_restrictions_are_kept() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        let city =
            json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let referring = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "$defs": {"City": city},
            "properties": {"city": {"$ref": "#/$defs/City", "description": "Where."}}, "required": ["city", "gone"],
        });
        let mut expanded = object(json!({"city": city}));
        expanded["properties"]["city"]["description"] = json!("Where.");
        expanded["required"] = json!(["city"]);
        let mut kept = referring.clone();
        kept["required"] = json!(["city"]);
        kept.as_object_mut().expect("an object").remove("$schema");
        let tree = object(json!({"children": {"type": "array", "items": {"$ref": "#"}}}));
        let one_level = object(json!({"children": {"type": "array", "items": {}}}));
        let mut two_levels = tree.clone();
        two_levels["properties"]["children"]["items"] = one_level;
        let pattern = object(json!({"a": {"type": "string", "pattern": "^(?!\\p{Cc})"}}));
        for (rules, schema, expected) in [
            (&OF_OTHERS, referring.clone(), expanded),
            (&OF_OPENAI, referring, kept),
            (&OF_OTHERS, tree.clone(), two_levels),
            (&OF_CLAUDE, tree.clone(), tree),
            (&OF_CLAUDE, pattern.clone(), pattern.clone()),
            (&OF_OPENAI, pattern, object(json!({"a": {"type": "string"}}))),
            (
                &OF_CLAUDE,
                json!({"anyOf": [object(json!({"a": {}})), {"properties": {"b": {}}, "required": ["b"]}]}),
                object(json!({"a": {}, "b": {}})),
            ),
            (
                &OF_CLAUDE,
                json!({"allOf": [{"$ref": "#/definitions/x"}], "definitions": {"x": {"required": ["a"], "properties": {"a": {}}}}}),
                json!({
                    "type": "object", "properties": {"a": {}}, "required": ["a"],
                    "definitions": {"x": {"required": ["a"], "properties": {"a": {}}}},
                }),
            ),
            (
                &OF_OTHERS,
                object(json!({"a": {"type": "string", "anyOf": [{"enum": ["x"]}, {"type": "null"}]}})),
                object(json!({"a": {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]}})),
            ),
            (&OF_OPENAI, object(json!({"a": {"$ref": "https://example.com/a"}})), object(json!({"a": {}}))),
        ] {
            let found = acceptable(rules, &tool("t", schema.clone()));
            assert_eq!(found, Ok(expected), "{schema}");
        }
    }

    /// Returns the errors that a validator with these rules reports for a schema that is sent.
    fn fault(rules: &SchemaRules, root: &Value) -> Option<String> {
        let mut schemas = boon::Schemas::new();
        let mut compiler = boon::Compiler::new();
        let meta = compiler.compile("https://json-schema.org/draft/2020-12/schema", &mut schemas);
        if let Err(error) = schemas.validate(root, meta.expect("it is built in")) {
            return Some(error.to_string());
        }
        let at_root = ["oneOf", "anyOf", "allOf", "enum", "const", "not", "$ref"];
        if root["type"] != "object" || at_root.iter().any(|name| root.get(name).is_some()) {
            return Some("the root is not that of an object".to_owned());
        }
        let mut open = vec![root];
        while let Some(schema) = open.pop() {
            let named = |name: &str| schema[name].as_object().into_iter().flatten();
            let single =
                ["items", "contains", "propertyNames", "not"].iter().filter_map(|name| schema.get(name));
            let listed =
                ["allOf", "anyOf", "oneOf", "prefixItems"].iter().filter_map(|name| schema[*name].as_array());
            open.extend(single.chain(listed.flatten()));
            open.extend(schema.get("additionalProperties").filter(|one| !one.is_boolean()));
            open.extend(
                ["properties", "patternProperties", "$defs", "definitions"]
                    .iter()
                    .flat_map(|name| named(name))
                    .map(|(_, one)| one),
            );
            let keys: Vec<&String> = named("properties").map(|(name, _)| name).collect();
            let is_symbol = |c: char| {
                rules.key_symbols.is_none_or(|known| c.is_ascii_alphanumeric() || known.contains(c))
            };
            let reference = schema["$ref"].as_str();
            let required = schema["required"].as_array();
            for (is_fault, what) in [
                (!schema.is_object(), "a schema that is no object"),
                (
                    keys.iter().any(|key| key.is_empty() || !key.chars().all(is_symbol)),
                    "the name of a property",
                ),
                (keys.iter().any(|key| key.chars().count() > rules.key_chars_max), "a long name"),
                (
                    required
                        .is_some_and(|names| !names.iter().all(|name| keys.iter().any(|key| name == *key))),
                    "required",
                ),
                (
                    schema["type"].to_string().contains("\"array\"") && schema.get("items").is_none(),
                    "a list of nothing",
                ),
                (schema.get("type").is_some() && schema.get("anyOf").is_some(), "a type beside anyOf"),
                (schema["items"].is_array(), "a tuple"),
                (!rules.has_references && reference.is_some(), "a reference"),
                (
                    reference
                        .is_some_and(|path| !path.starts_with('#') || root.pointer(&path[1..]).is_none()),
                    "a reference to nothing",
                ),
                (!rules.has_patterns && schema.get("pattern").is_some(), "a pattern"),
            ] {
                if is_fault {
                    return Some(format!("{what}: {schema}"));
                }
            }
        }
        (root.to_string().len() > SCHEMA_BYTES_MAX).then(|| "it is large".to_owned())
    }

    fn one_of(words: &str) -> impl Strategy<Value = String> + Clone + use<> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        proptest::sample::select(words)
    }

    /// Schemas in which any keyword may have a wrong value.
    fn any_schema() -> impl Strategy<Value = Value> {
        let keywords = KEYWORDS.into_iter().flat_map(|(_, names)| names.split_whitespace());
        let keywords: Vec<&str> = keywords.chain(["$schema", "$id", "nullable", "if"]).collect();
        let keys = || one_of("a b type required $.x ä ");
        let texts = one_of(
            "# #/$defs/a #/definitions/b #/properties/a #/nothing https://example.com string array any ^(?!x)",
        );
        let leaf = prop_oneof![
            Just(json!({})),
            any::<bool>().prop_map(Value::from),
            (-3i64..10).prop_map(Value::from),
            texts.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 5, move |inner| {
            let types = one_of("array object string null any");
            let names = |value| prop::collection::vec(value, 0..4).prop_map(Value::from);
            let field = prop_oneof![
                (Just("type".to_owned()), types.clone().prop_map(Value::from)),
                (Just("type".to_owned()), names(types)),
                (Just("required".to_owned()), names(keys())),
                (one_of("$ref pattern"), texts.clone().prop_map(Value::from)),
                (one_of("items not contains additionalProperties"), inner.clone()),
                (
                    one_of("allOf anyOf oneOf prefixItems items"),
                    prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from)
                ),
                (
                    one_of("properties $defs definitions patternProperties"),
                    prop::collection::hash_map(keys(), inner.clone(), 0..4)
                        .prop_map(|named| Value::Object(named.into_iter().collect())),
                ),
                (proptest::sample::select(keywords.clone()).prop_map(str::to_owned), inner),
            ];
            prop::collection::vec(field, 0..6).prop_map(|fields| Value::Object(fields.into_iter().collect()))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn whatever_a_schema_is_the_provider_accepts_what_is_sent(schema in any_schema()) {
            for rules in [&OF_CLAUDE, &OF_OPENAI, &OF_OTHERS] {
                if let Ok(sent) = acceptable(rules, &tool("t", schema.clone())) {
                    prop_assert_eq!(fault(rules, &sent), None, "{} from {}", sent, schema);
                    prop_assert_eq!(acceptable(rules, &tool("t", sent.clone())), Ok(sent));
                }
            }
        }
    }

    #[test]
    fn references_in_great_numbers_cost_little() {
        let refers = |next: usize| json!({ "$ref": format!("#/$defs/d{next}") });
        let definitions: Map<String, Value> = (0..40)
            .map(|at| {
                (
                    format!("d{at}"),
                    json!({"type": "object", "properties": {"a": refers(at + 1), "b": refers(at + 1)}}),
                )
            })
            .collect();
        let schema = json!({"type": "object", "properties": {"a": refers(0)}, "$defs": definitions});
        let began = std::time::Instant::now();
        let found = acceptable(&OF_OTHERS, &tool("t", schema));
        assert!(found.is_err_and(|why| why.contains("KiB")) || began.elapsed().as_millis() < 500);
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

    /// Some of OpenAI's models and of the services that serve them refuse every request if the description of one tool has
    /// more than 1,024 characters, as those of some MCP servers have.
    #[test]
    fn descriptions_are_shortened_to_what_a_refusal_allows() {
        let message = "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length \
                       1024, but got a string with length 3542 instead.";
        let mut endpoint = test_chat_endpoint("openai/gpt-4o");
        endpoint.omitted.description_chars_max = description_chars_max(message);
        let long = ToolSpec { description: "ä".repeat(1_100), ..tool("long", json!({})) };
        let exact = ToolSpec { description: "ä".repeat(1_023), ..tool("exact", json!({})) };
        let sent = sent(&endpoint, &[long, exact.clone()]).0;
        assert_eq!(sent[0].description.chars().count(), 1_024);
        assert_eq!(sent[1].description, exact.description);
        for other in ["Invalid 'tools[0].function.name': maximum length 64", "the description is missing"] {
            assert_eq!(description_chars_max(other), None, "{other}");
        }
    }
}
