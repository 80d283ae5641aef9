//! The tools of a request: which of them are sent, and with a schema that the provider accepts. No definition of a tool is
//! written in another way, because one that a provider refuses makes it refuse every request of the conversation. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{is_accepted_name, without_refused_parts, write};
use crate::address::host_of;
use crate::model_endpoint::Endpoint;
use epitome_config::{EditTools, WireFormat};
use epitome_thread::visible::shortened;
use epitome_thread::{SEARCH_TOOL, ToolSpec};
use epitome_tokens::model_name::Family;

/// Maximum schemas of a tool, counted as often as they are referred to; further ones accept everything.
const SCHEMAS_MAX: usize = 500;

/// Maximum bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// Maximum characters of a description. Those of MCP servers have been cut before.
const DESCRIPTION_CHARS_MAX: usize = 16 * 1024;

/// Maximum values of an `enum`; a longer one is not sent. Moonshot refuses it, and it costs more than it helps.
const ENUM_VALUES_MAX: usize = 1_000;

/// What a provider accepts of the schemas of tools, beyond what all accept: valid JSON Schema (draft 7, as Mistral checks, and
/// draft 2020-12) for an object whose root has no alternatives, in which lists say what they contain, `required` names
/// properties that exist, references lead to a part of the schema, and `type` is not beside `anyOf`.
struct SchemaRules {
    /// Words in the host of a service, in the name of its provider or in that of a model.
    of: &'static str,
    /// Symbols in the names of properties; `None` for all that are visible.
    key_symbols: Option<&'static str>,
    key_chars_max: usize,
    /// Names of properties that are not accepted.
    keys_refused: &'static str,
    /// Keywords that are not sent. Where there is one with the same meaning, it is sent instead.
    keywords_refused: &'static str,
    /// Whether `$ref` may be beside other keywords and form circles. Otherwise, a copy of what is referred to is sent.
    has_references: bool,
    /// Whether every schema must have a type, and only keywords of that one.
    is_typed: bool,
    /// Schemas within schemas; deeper ones accept everything.
    depth_max: usize,
}

/// Of Mistral, DeepSeek, Groq, Together and Cohere, which publish no more than the above, and of the many servers for open
/// models. Regular expressions are those of Python for some, and a part of them for llama.cpp.
const OF_OTHERS: SchemaRules = SchemaRules {
    of: "",
    key_symbols: None,
    key_chars_max: 256,
    keys_refused: "",
    keywords_refused: "pattern patternProperties",
    has_references: false,
    is_typed: false,
    depth_max: 32,
};
const OF_OPENAI: SchemaRules = SchemaRules { has_references: true, ..OF_OTHERS };
/// JSON Schema as it is.
const OF_NOBODY: SchemaRules = SchemaRules { keywords_refused: "", ..OF_OPENAI };
/// Anthropic's: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'".
const OF_CLAUDE: SchemaRules = SchemaRules { key_symbols: Some("_.-"), key_chars_max: 64, ..OF_NOBODY };

const OF_SERVICES: [SchemaRules; 4] = [
    // "JSON Schema not supported: could not understand the instance `{'not': {}}`", and the same of one without a type.
    SchemaRules {
        of: "fireworks",
        keywords_refused: "pattern patternProperties not propertyNames contains prefixItems",
        is_typed: true,
        ..OF_OTHERS
    },
    // Moonshot Flavored JSON Schema, whose validator is published as `walle`. Some models accept ten levels.
    SchemaRules {
        of: "moonshot kimi",
        keys_refused: "$defs $ref anyOf required additionalProperties",
        keywords_refused: "allOf oneOf not const prefixItems contains propertyNames pattern patternProperties format minimum \
            maximum exclusiveMinimum exclusiveMaximum minLength maxLength minItems maxItems minProperties maxProperties",
        is_typed: true,
        depth_max: 10,
        ..OF_OTHERS
    },
    // Arguments are generated from the schema, of which a part is supported: one schema in `allOf`, no circles.
    SchemaRules {
        of: ".x.ai xai grok",
        keywords_refused: "pattern patternProperties allOf not propertyNames contains prefixItems minLength maxLength minItems \
            maxItems minProperties maxProperties",
        ..OF_OTHERS
    },
    // Refused without a reason if the sum of them is above about 960.
    SchemaRules {
        of: "gemini",
        keywords_refused: "pattern patternProperties minItems maxItems",
        ..OF_OTHERS
    },
];

impl SchemaRules {
    /// The rules for the model of an endpoint. Gateways pass requests on to the vendor of the model.
    fn of(endpoint: &Endpoint) -> &'static SchemaRules {
        let host = host_of(&endpoint.base_url);
        let names = format!("{host} {} {}", endpoint.provider(), endpoint.model).to_ascii_lowercase();
        let is_of = |rules: &&SchemaRules| rules.of.split(' ').any(|word| names.contains(word));
        match (OF_SERVICES.iter().find(is_of), endpoint.wire, Family::detect(&endpoint.model)) {
            (Some(rules), ..) => rules,
            (None, WireFormat::AnthropicMessages, _) | (None, _, Family::Claude) => &OF_CLAUDE,
            (None, WireFormat::OpenAiResponses | WireFormat::OpenAiChat, Family::OpenAi) => &OF_OPENAI,
            (None, ..) => &OF_OTHERS,
        }
    }

    fn refuses(&self, keyword: &str) -> bool {
        has_word(self.keywords_refused, keyword)
    }

    /// Whether a property may have this name.
    fn accepts_key(&self, name: &str) -> bool {
        let is_known = |c: char| match self.key_symbols {
            Some(symbols) => c.is_ascii_alphanumeric() || symbols.contains(c),
            None => !c.is_control(),
        };
        !name.is_empty()
            && name.chars().count() <= self.key_chars_max
            && name.chars().all(is_known)
            && !has_word(self.keys_refused, name)
    }

    /// A schema that accepts everything.
    fn anything(&self) -> Value {
        let mut schema = Map::new();
        if self.is_typed {
            state_types(&mut schema);
        }
        schema.into()
    }
}

fn has_word(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|known| known == word)
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
            match acceptable(SchemaRules::of(endpoint), tool) {
                _ if !names.insert(tool.name.as_str()) => {
                    left_out.push((tool.name.as_str(), "there is another one of this name".to_owned()));
                }
                Ok(schema) => {
                    let chars_max = endpoint.omitted.description_chars_max.unwrap_or(DESCRIPTION_CHARS_MAX);
                    // Bedrock refuses one without text.
                    let text =
                        if tool.description.trim().is_empty() { &tool.name } else { &tool.description };
                    let description = shortened(text, chars_max.saturating_sub(1));
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

/// The name of the tool that a provider refuses: by its position in the list, or as the longest one in the message. If the
/// message names another one than that at the position, the name counts: gateways add tools of their own, and count them.
pub(crate) fn refused(
    endpoint: &Endpoint,
    tools: &[ToolSpec],
    position: Option<usize>,
    message: &str,
) -> Option<String> {
    let sent = sent(endpoint, tools).0;
    let is_named = |tool: &&ToolSpec| is_word_of(&tool.name, message);
    let at = position.and_then(|position| sent.get(position));
    let named = sent.iter().filter(is_named).max_by_key(|tool| tool.name.len());
    at.filter(is_named).or(named).or(at).map(|tool| tool.name.clone())
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
    let schema = adapted(rules, &tool.schema)?;
    match schema.to_string().len() > SCHEMA_BYTES_MAX {
        true => Err(format!("its schema has more than {} KiB", SCHEMA_BYTES_MAX / 1024)),
        false => Ok(schema),
    }
}

fn adapted(rules: &SchemaRules, original: &Value) -> Result<Value, String> {
    let mut adapting = Adapting { rules, original, expanded: Vec::new(), left: SCHEMAS_MAX };
    let mut schema = adapting.object(fields_of(original), 0)?;
    prune_definitions(&mut schema);
    Ok(schema)
}

/// A schema as valid JSON Schema for an object, without definitions that are not used: some servers attach all theirs to
/// every tool.
pub fn valid_schema(original: &Value) -> Result<Value, String> {
    adapted(&OF_NOBODY, original)
}

/// Removes the definitions of a schema that nothing in it refers to.
fn prune_definitions(schema: &mut Value) {
    let (mut reached, mut pending) = (BTreeSet::new(), Vec::new());
    let parts = schema.as_object().into_iter().flatten();
    parts
        .filter(|(name, _)| !DEFINITIONS.contains(&name.as_str()))
        .for_each(|(_, part)| find_references(part, &mut pending));
    while let Some(path) = pending.pop() {
        if let Some(definition) = schema.pointer(&path) {
            let first = reached.insert(path);
            if first {
                find_references(definition, &mut pending);
            }
        }
    }
    for key in DEFINITIONS {
        let Some(Value::Object(all)) = schema.get_mut(key) else { continue };
        all.retain(|name, _| {
            reached.contains(&format!("/{key}/{}", name.replace('~', "~0").replace('/', "~1")))
        });
        if all.is_empty() {
            schema.as_object_mut().map(|schema| schema.remove(key));
        }
    }
}

/// Adds the paths of references to definitions.
fn find_references(part: &Value, found: &mut Vec<String>) {
    if let Some(path) = part["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix('#'))
        .filter(|path| !path.is_empty())
    {
        found.push(path.to_owned());
    }
    let fields = part.as_object().into_iter().flatten().map(|(_, part)| part);
    fields.chain(part.as_array().into_iter().flatten()).for_each(|part| find_references(part, found));
}

/// The keywords for definitions, since draft 2019-09 and before.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

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
    KEYWORDS.into_iter().find(|(_, names)| has_word(names, keyword)).map(|(kind, _)| kind)
}

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

fn is_valid(kind: KeywordValue, value: &Value) -> bool {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match kind {
        KeywordValue::Schema | KeywordValue::SchemaOrFlag => value.is_object() || value.is_boolean(),
        KeywordValue::Schemas => value.as_array().is_some_and(|members| !members.is_empty()),
        KeywordValue::Values => {
            value.as_array().is_some_and(|values| (1..=ENUM_VALUES_MAX).contains(&values.len()))
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

/// The fields of a schema, and whether each applies in any case: those of alternatives do not.
type Fields<'a> = Vec<(&'a str, &'a Value, bool)>;

fn fields_of(schema: &Value) -> Fields<'_> {
    schema.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value, true)).collect()
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
    /// Returns the schema that a reference names, unless the reference is within that schema.
    fn target(&self, reference: &Value) -> Option<&'a Value> {
        let target = self.original.pointer(reference.as_str()?.strip_prefix('#')?)?;
        let is_within = self.expanded.contains(&reference) || self.expanded.len() >= self.rules.depth_max;
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
        if depth >= self.rules.depth_max || self.left == 0 {
            return Ok(self.rules.anything());
        }
        self.left -= 1;
        self.object(fields_of(schema), depth + 1)
    }

    /// Whether a field is replaced by the fields of the schemas that it combines. No provider accepts alternatives at the
    /// root, where the properties of all are sent.
    fn is_merged(&self, name: &str, value: &Value, depth: usize) -> bool {
        match name {
            "$ref" => depth == 0 || !self.is_kept(value),
            "allOf" => depth == 0 || self.rules.refuses(name),
            "anyOf" | "oneOf" => depth == 0,
            _ => false,
        }
    }

    /// Adds the fields of the schemas that a field combines. Where several may say the same, what is sent is wider.
    fn merge(&mut self, fields: &mut Fields<'a>, (name, value, is_certain): (&'a str, &'a Value, bool)) {
        let is_certain = is_certain && matches!(name, "$ref" | "allOf");
        let members = value.as_array().into_iter().flatten().chain(self.target(value));
        for member in members.take(self.left) {
            self.left -= 1;
            let has_properties = fields.iter().any(|(known, ..)| *known == "properties");
            for (name, value, _) in fields_of(member) {
                let is_added = match name {
                    "properties" | "required" | "$ref" | "allOf" | "anyOf" | "oneOf" => true,
                    "additionalProperties" => is_certain && (value != false || !has_properties),
                    _ => fields.iter().all(|(known, ..)| *known != name),
                };
                if is_added {
                    fields.push((name, value, is_certain));
                }
            }
        }
    }

    fn object(&mut self, mut fields: Fields<'a>, depth: usize) -> Result<Value, String> {
        let merged = fields.iter().position(|(name, value, _)| self.is_merged(name, value, depth));
        if let Some(field) = merged.map(|at| fields.remove(at)) {
            let known = self.expanded.len();
            self.merge(&mut fields, field);
            self.expanded.push(field.1);
            let found = self.object(fields, depth);
            self.expanded.truncate(known);
            return found;
        }
        let mut out = Map::new();
        let is_open = self.rules.refuses("patternProperties")
            && fields.iter().any(|(name, ..)| *name == "patternProperties");
        for (name, value, is_certain) in fields {
            let name = match name {
                "additionalProperties" if is_open => continue,
                // A tuple is written so since draft 2020-12.
                "items" if value.is_array() => "prefixItems",
                "oneOf" if self.rules.refuses(name) => "anyOf",
                "const" if self.rules.refuses(name) => {
                    out.entry("enum").or_insert(json!([value]));
                    continue;
                }
                "required" if !is_certain => continue,
                name => name,
            };
            let kind = kind_of(name).filter(|kind| !self.rules.refuses(name) && is_valid(*kind, value));
            let Some(kind) = kind else { continue };
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
                (_, value) => value.clone(),
            };
            match (out.get_mut(name), value) {
                (Some(Value::Object(known)), Value::Object(more)) => {
                    for (name, one) in more {
                        known.entry(name).or_insert(one);
                    }
                }
                (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
                (_, value) => drop(out.insert(name.to_owned(), value)),
            }
        }
        if depth == 0 {
            ["not", "enum", "const"].into_iter().for_each(|name| drop(out.remove(name)));
            out.insert("type".to_owned(), json!("object"));
            out.entry("properties").or_insert_with(|| json!({}));
        }
        finish(self.rules, &mut out)?;
        Ok(Value::Object(out))
    }
}

/// Makes the keywords of a schema fit each other and the rules.
fn finish(rules: &SchemaRules, schema: &mut Map<String, Value>) -> Result<(), String> {
    if !rules.has_references {
        DEFINITIONS.into_iter().for_each(|key| drop(schema.remove(key)));
    }
    for key in ["type", "required"] {
        if let Some(Value::Array(names)) = schema.get_mut(key) {
            let mut known = BTreeSet::new();
            names.retain(|name| known.insert(name.to_string()));
        }
    }
    drop_refused_properties(rules, schema)?;
    if rules.is_typed
        && schema.keys().any(|key| !is_annotation(key) && !matches!(&**key, "type" | "anyOf" | "default"))
    {
        schema.remove("anyOf");
    }
    let kind = schema.get("type").cloned().unwrap_or_default();
    let is_list = |kind: &Value| {
        let kinds = kind.as_array().filter(|_| !rules.is_typed);
        *kind == "array" || kinds.is_some_and(|kinds| kinds.contains(&json!("array")))
    };
    if is_list(&kind) && !schema.contains_key("anyOf") {
        schema.entry("items").or_insert_with(|| rules.anything());
    }
    if let Some(Value::Array(members)) = schema.get_mut("anyOf")
        && !kind.is_null()
    {
        for member in members.iter_mut().filter_map(Value::as_object_mut) {
            if !member.contains_key("$ref") && !member.contains_key("anyOf") {
                let kind = member.entry("type").or_insert_with(|| kind.clone());
                if is_list(kind) {
                    member.entry("items").or_insert_with(|| rules.anything());
                }
            }
        }
        schema.remove("type");
    }
    if rules.is_typed {
        state_types(schema);
    }
    Ok(())
}

/// Whether a keyword only describes.
fn is_annotation(keyword: &str) -> bool {
    matches!(keyword, "description" | "title")
}

/// Gives a schema a type and only keywords of that one, or an alternative for each of its types.
fn state_types(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(mut members)) = schema.remove("anyOf") {
        schema.remove("default");
        for member in members.iter_mut().filter_map(Value::as_object_mut) {
            member.retain(|key, _| !schema.contains_key(key));
        }
        schema.insert("anyOf".to_owned(), members.into());
        return;
    }
    let values = schema.get("enum").and_then(Value::as_array).cloned();
    let of_values =
        |kind: &&str| values.as_ref().is_none_or(|values| values.iter().any(|value| is_of_type(kind, value)));
    let types: Vec<String> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind.clone()],
        Some(kinds) => {
            kinds.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        None if ["properties", "additionalProperties"].iter().any(|key| schema.contains_key(*key)) => {
            vec!["object".to_owned()]
        }
        None if schema.contains_key("items") => vec!["array".to_owned()],
        None => TYPES
            .into_iter()
            .filter(|kind| *kind != "integer" && of_values(kind))
            .map(str::to_owned)
            .collect(),
    };
    let alternative = |kind: &String| {
        let keywords = match kind.as_str() {
            "object" => "properties required additionalProperties",
            "array" => "items",
            "string" | "number" | "integer" => "enum",
            _ => "",
        };
        let mut own = schema.clone();
        own.retain(|key, _| has_word(keywords, key));
        if let Some(Value::Array(values)) = own.get_mut("enum") {
            values.retain(|value| is_of_type(kind, value));
            if values.is_empty() {
                own.remove("enum");
            }
        }
        own.insert("type".to_owned(), json!(kind));
        own
    };
    let mut alternatives: Vec<Map<String, Value>> = types.iter().map(alternative).collect();
    let is_single = alternatives.len() == 1;
    schema.retain(|key, _| is_annotation(key) || (is_single && key == "default"));
    if !is_single && alternatives.iter().all(|one| one.len() == 1) {
        schema.insert("type".to_owned(), json!(types));
        return;
    }
    for list in alternatives.iter_mut().filter(|one| one["type"] == "array") {
        list.entry("items").or_insert_with(|| {
            let mut anything = Map::new();
            state_types(&mut anything);
            anything.into()
        });
    }
    match alternatives.as_mut_slice() {
        [single] => schema.append(single),
        several => drop(schema.insert("anyOf".to_owned(), json!(several))),
    }
}

/// Whether a value is of a type.
fn is_of_type(kind: &str, value: &Value) -> bool {
    match kind {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        _ => value.is_string(),
    }
}

/// Removes properties with names that the provider refuses, and the requirement of properties that don't exist.
fn drop_refused_properties(rules: &SchemaRules, schema: &mut Map<String, Value>) -> Result<(), String> {
    let required = schema.remove("required");
    let mut required = required.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let refused = properties.as_ref().and_then(|properties| {
        properties.keys().find(|name| !rules.accepts_key(name) && required.contains(&json!(name)))
    });
    if let Some(refused) = refused {
        return Err(format!("the service does not accept the name of its parameter {refused:?}"));
    }
    if let Some(properties) = properties {
        properties.retain(|name, _| rules.accepts_key(name));
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
                json!({"type": "object", "properties": {"a": {}}, "required": ["a"]}),
            ),
            // A server had a tool whose arguments are one of two objects.
            (
                &OF_CLAUDE,
                json!({"properties": {"x": {}}, "required": ["x"], "oneOf": [
                    {"type": "object", "properties": {"id": {}}, "required": ["id"]}, {"$ref": "#/$defs/named"}],
                    "$defs": {"named": {"properties": {"name": {}}, "required": ["name"], "anyOf": [{"$ref": "#/$defs/named"}]}}}),
                json!({"type": "object", "properties": {"x": {}, "id": {}, "name": {}}, "required": ["x"]}),
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
        let drafts =
            ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"];
        // The older one requires regular expressions to be valid, which are not sent to all.
        for draft in &drafts[..if rules.refuses("pattern") { 2 } else { 1 }] {
            let meta = compiler.compile(draft, &mut schemas);
            if let Err(error) = schemas.validate(root, meta.expect("it is built in")) {
                return Some(error.to_string());
            }
        }
        let at_root = ["oneOf", "anyOf", "allOf", "enum", "const", "not", "$ref"];
        if root["type"] != "object" || at_root.iter().any(|name| root.get(name).is_some()) {
            return Some("the root is not that of an object".to_owned());
        }
        let mut open = vec![(root, 0)];
        while let Some((schema, depth)) = open.pop() {
            let named = |name: &str| schema[name].as_object().into_iter().flatten();
            let single =
                ["items", "contains", "propertyNames", "not"].iter().filter_map(|name| schema.get(name));
            let listed =
                ["allOf", "anyOf", "oneOf", "prefixItems"].iter().filter_map(|name| schema[*name].as_array());
            let further = schema.get("additionalProperties").filter(|one| !one.is_boolean());
            let in_maps = ["properties", "patternProperties", "$defs", "definitions"]
                .iter()
                .flat_map(|name| named(name))
                .map(|(_, one)| one);
            let members = single.chain(listed.flatten()).chain(further).chain(in_maps);
            open.extend(members.map(|member| (member, depth + 1)));
            let own: Vec<&str> =
                schema.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let texts = |words: &'static str| words.split_whitespace();
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
                    (schema["type"] == "array"
                        || !rules.is_typed && schema["type"].to_string().contains("\"array\""))
                        && schema.get("items").is_none(),
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
                (own.iter().any(|name| texts(rules.keywords_refused).any(|word| word == *name)), "a keyword"),
                (
                    keys.iter().any(|key| texts(rules.keys_refused).any(|word| word == *key)),
                    "a reserved name",
                ),
                // An alternative for each type is one level more.
                (depth > rules.depth_max + 1, "a deep schema"),
                (schema["enum"].as_array().is_some_and(|values| values.len() > 1_000), "a long enum"),
                (rules.is_typed && untyped(schema).is_some(), untyped(schema).unwrap_or_default()),
            ] {
                if is_fault {
                    return Some(format!("{what}: {schema}"));
                }
            }
        }
        (root.to_string().len() > SCHEMA_BYTES_MAX).then(|| "it is large".to_owned())
    }

    /// Returns what Moonshot's validator objects to in a schema.
    fn untyped(schema: &Value) -> Option<&'static str> {
        let fields = schema.as_object()?;
        let beside = |known: &[&str]| fields.keys().any(|name| !known.contains(&name.as_str()));
        if let Some(members) = schema["anyOf"].as_array() {
            let members = || members.iter().filter_map(Value::as_object);
            let is_twice = members().any(|member| member.keys().any(|name| fields.contains_key(name)));
            let is_beside = beside(&["anyOf", "description", "title"]);
            return (is_twice || is_beside).then_some("keywords beside anyOf");
        }
        let of_type: &[&str] = match schema["type"].as_str() {
            None if !schema["type"].is_array() => return Some("a schema without a type"),
            None if beside(&["type", "description", "title"]) => {
                return Some("keywords beside several types");
            }
            None => return None,
            Some("object") => &["properties", "required", "additionalProperties"],
            Some("array") => &["items"],
            Some("boolean" | "null") => &[],
            Some(_) => &["enum"],
        };
        let mut known = of_type.to_vec();
        known.extend(["type", "description", "title", "default"]);
        let values = schema["enum"].as_array().into_iter().flatten();
        let is_mixed = values.clone().any(Value::is_string) && values.clone().any(Value::is_number);
        let is_odd = values.clone().any(|value| !value.is_string() && !value.is_number());
        (beside(&known) || is_mixed || is_odd).then_some("keywords of another type")
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
            for rules in OF_SERVICES.iter().chain([&OF_CLAUDE, &OF_OPENAI, &OF_OTHERS, &OF_NOBODY]) {
                if let Ok(sent) = acceptable(rules, &tool("t", schema.clone())) {
                    prop_assert_eq!(fault(rules, &sent), None, "{} from {}", sent, schema);
                    prop_assert_eq!(acceptable(rules, &tool("t", sent.clone())), Ok(sent));
                }
            }
        }
    }

    /// Tools of MCP servers made Moonshot ("type is not defined", "type should be defined in anyOf items instead of the parent
    /// schema"), Fireworks ("could not understand the instance") and xAI refuse every request.
    #[test]
    fn services_with_a_flavour_of_their_own_get_that() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        let everything = json!({"type": ["array", "boolean", "null", "number", "object", "string"]});
        let of = |word: &str| OF_SERVICES.iter().find(|rules| rules.of.contains(word)).expect("it has rules");
        for (rules, property, expected) in [
            (of("kimi"), json!({}), everything.clone()),
            (of("fireworks"), json!({"not": {}}), everything.clone()),
            (of("kimi"), json!({"const": "x"}), json!({"type": "string", "enum": ["x"]})),
            (of("kimi"), json!({"type": "array", "anyOf": [{}]}), json!({"anyOf": [everything]})),
            (
                of("kimi"),
                json!({"oneOf": [{"type": "string"}, {"const": 3}], "default": 3}),
                json!({"anyOf": [{"type": "string"}, {"type": "number", "enum": [3]}]}),
            ),
            (
                of("kimi"),
                json!({"type": ["string", "null"], "enum": ["a", null], "description": "One."}),
                json!({"description": "One.", "anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
            ),
            (
                of("kimi"),
                json!({"type": "string", "minLength": 2, "format": "uri", "description": "x"}),
                json!({"type": "string", "description": "x"}),
            ),
            (
                of("kimi"),
                json!({"allOf": [object(json!({"a": {"type": "null"}})), object(json!({"b": {"type": "null"}}))]}),
                object(json!({"a": {"type": "null"}, "b": {"type": "null"}})),
            ),
            (
                of("kimi"),
                json!({"type": "object", "properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["a"]}]}),
                object(json!({"a": {"type": "null"}})),
            ),
            (of("kimi"), object(json!({"required": {"type": "boolean"}})), object(json!({}))),
            (
                of("grok"),
                json!({"type": "array", "minItems": 2, "prefixItems": [{}]}),
                json!({"type": "array", "items": {}}),
            ),
            (of("gemini"), json!({"type": "array", "maxItems": 2}), json!({"type": "array", "items": {}})),
            (&OF_OTHERS, json!({"enum": Vec::from_iter(0..10_000)}), json!({})),
        ] {
            let found = acceptable(rules, &tool("t", object(json!({ "p": property }))));
            assert_eq!(found, Ok(object(json!({ "p": expected }))), "{property}");
        }
        for (name, word) in [
            ("openrouter/moonshotai/kimi-k2.6", "kimi"),
            ("xai/grok-4", "xai"),
            ("fireworks/accounts/fireworks/models/gpt-oss-120b", "fireworks"),
        ] {
            let mut endpoint = test_chat_endpoint("openai/any");
            endpoint.model = name.to_owned();
            assert!(SchemaRules::of(&endpoint).of.contains(word), "{name}");
        }
    }

    /// Regression: of 82 KiB of a server's tools, 56 KiB were definitions that the tools did not use.
    #[test]
    fn only_definitions_that_are_used_are_sent() {
        for (mut schema, kept) in [
            (json!({"properties": {"a": {"$ref": "#/$defs/a"}}}), "ab"),
            (json!({"properties": {"a": {"type": "string"}}}), ""),
            (json!({"properties": {"a": {"anyOf": [{"$ref": "#/$defs/x~1y"}]}}}), "x/y"),
            (json!({"properties": {"whole": {"$ref": "#"}}}), ""),
            (json!({"properties": {"a": {"$ref": "https://schemas.example/a"}}}), ""),
        ] {
            schema["$defs"] = json!({
                "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
                "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
                "x/y": {"type": "string"},
            });
            let found = valid_schema(&schema).expect("a schema");
            let names = found["$defs"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
            assert_eq!(names.collect::<String>(), kept, "{schema}");
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
            (Some(0), "Invalid schema for function 'mcp__s__a': x", Some("mcp__s__a")),
            (Some(0), "Invalid schema for function 'bash' beside mcp__s__a", Some("bash")),
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
