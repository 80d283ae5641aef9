//! Adapts a tool's schema to what all providers accept, and removes its unused definitions: some servers attach all
//! their definitions to every tool. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The keys of definitions in JSON Schema: since draft 2019-09, and before.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keys that combine schemas.
const COMBINATIONS: [&str; 3] = ["oneOf", "anyOf", "allOf"];

/// Merges the properties of combinations (`oneOf` and so on) at the top level, where Anthropic and OpenAI accept none. What
/// is lost here is only known to the server, which checks the arguments itself. Providers' encoders adapt the rest.
pub fn make_acceptable(schema: &mut Map<String, Value>) {
    schema.remove("$schema");
    if COMBINATIONS.iter().chain(&["$ref"]).any(|key| schema.contains_key(*key)) {
        let mut merged = MergedProperties::default();
        merged.add(schema, schema, true);
        let MergedProperties { properties, mut required, .. } = merged;
        required.retain(|name| properties.contains_key(name));
        schema.insert("properties".to_owned(), Value::Object(properties));
        schema.remove("required");
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
    }
    for key in COMBINATIONS.into_iter().chain(["$ref", "not", "enum", "const"]) {
        schema.remove(key);
    }
    schema.insert("type".to_owned(), json!("object"));
}

/// The properties of a schema and of everything that it combines.
#[derive(Default)]
struct MergedProperties {
    properties: Map<String, Value>,
    /// The properties that are required in any case.
    required: Vec<String>,
    /// The definitions that have been added, as they may refer to each other.
    added: BTreeSet<(&'static str, String)>,
}

impl MergedProperties {
    /// Adds the properties of a part of the whole schema. `is_certain` is whether the part applies in any case.
    fn add(&mut self, part: &Map<String, Value>, whole: &Map<String, Value>, is_certain: bool) {
        for (name, property) in part.get("properties").and_then(Value::as_object).into_iter().flatten() {
            self.properties.entry(name.clone()).or_insert_with(|| property.clone());
        }
        let required = part.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str).filter(|_| is_certain) {
            if !self.required.iter().any(|known| known == name) {
                self.required.push(name.to_owned());
            }
        }
        let reference = part.get("$ref").and_then(Value::as_str).and_then(parse_reference).flatten();
        if let Some((key, name)) = reference
            && let Some(definition) = whole.get(key).and_then(|all| all.get(&name)).and_then(Value::as_object)
            && self.added.insert((key, name))
        {
            self.add(definition, whole, is_certain);
        }
        for key in COMBINATIONS {
            let parts = part.get(key).and_then(Value::as_array).into_iter().flatten();
            for inner in parts.filter_map(Value::as_object) {
                self.add(inner, whole, is_certain && key == "allOf");
            }
        }
    }
}

/// Removes unreachable definitions. A schema with references of another form than `#/$defs/NAME` is left unchanged.
pub fn prune_definitions(schema: &mut Map<String, Value>) {
    let mut reached: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut pending = Vec::new();
    for (key, value) in schema.iter() {
        if !DEFINITIONS.contains(&key.as_str()) && collect_references(value, &mut pending).is_none() {
            return;
        }
    }
    while let Some(reference) = pending.pop() {
        let definition = schema.get(reference.0).and_then(|all| all.get(&reference.1));
        if reached.insert(reference)
            && let Some(definition) = definition
            && collect_references(definition, &mut pending).is_none()
        {
            return;
        }
    }
    for key in DEFINITIONS {
        let Some(Value::Object(all)) = schema.get_mut(key) else { continue };
        all.retain(|name, _| reached.contains(&(key, name.clone())));
        if all.is_empty() {
            schema.remove(key);
        }
    }
}

/// Collects the definitions that a value refers to. Returns `None` if a reference can't be followed.
fn collect_references(value: &Value, found: &mut Vec<(&'static str, String)>) -> Option<()> {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                match (key.as_str(), field) {
                    ("$ref", Value::String(reference)) => found.extend(parse_reference(reference)?),
                    ("$dynamicRef" | "$recursiveRef" | "$id", Value::String(_)) => return None,
                    _ => collect_references(field, found)?,
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_references(item, found)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Some(())
}

/// The definition that a reference points to, or `Some(None)` if it points elsewhere in the schema. Returns `None` if
/// it can't be followed.
fn parse_reference(reference: &str) -> Option<Option<(&'static str, String)>> {
    let path = reference.strip_prefix('#')?;
    if path.is_empty() {
        return Some(None);
    }
    let mut parts = path.strip_prefix('/')?.split('/');
    let first = parts.next()?;
    let Some(key) = DEFINITIONS.into_iter().find(|key| *key == first) else { return Some(None) };
    let name = parts.next()?;
    // A percent sign may be an escape in a URI fragment.
    (!name.contains('%')).then(|| Some((key, name.replace("~1", "/").replace("~0", "~"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acceptable(schema: Value) -> Value {
        let Value::Object(mut schema) = schema else { panic!("an object") };
        make_acceptable(&mut schema);
        Value::Object(schema)
    }

    /// Regression: a server had a tool whose arguments are one of two objects, and Anthropic answered every request of
    /// the conversation with "input_schema does not support oneOf, allOf, or anyOf at the top level".
    #[test]
    fn combinations_at_the_top_level_are_merged() {
        let by_id = json!({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]});
        let by_name = json!({"properties": {"name": {"type": "string"}}, "required": ["name", "missing"]});
        for (schema, wanted) in [
            (
                json!({"type": "object", "properties": {"x": {}}, "required": ["x"], "oneOf": [by_id, by_name]}),
                json!({"type": "object", "required": ["x"],
                    "properties": {"x": {}, "id": {"type": "integer"}, "name": {"type": "string"}}}),
            ),
            (
                json!({"allOf": [by_id, by_name], "not": {"required": ["x"]}}),
                json!({"type": "object", "required": ["id", "name"],
                    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}),
            ),
            (
                json!({"$ref": "#/definitions/a", "definitions": {
                    "a": {"properties": {"id": {}}, "required": ["id"], "anyOf": [{"$ref": "#/definitions/b"}]},
                    "b": {"properties": {"deep": {}}, "allOf": [{"$ref": "#/definitions/a"}]},
                }}),
                json!({"type": "object", "required": ["id"], "properties": {"id": {}, "deep": {}}}),
            ),
        ] {
            let mut found = acceptable(schema.clone());
            prune_definitions(found.as_object_mut().expect("an object"));
            assert_eq!(found, wanted, "{schema}");
        }
    }

    /// Regression: of 82 KiB of a server's tools, 56 KiB were definitions that the tools did not use.
    #[test]
    fn only_reachable_definitions_are_kept() {
        for (schema, kept) in [
            (json!({"properties": {"a": {"$ref": "#/$defs/a"}}}), "ab"),
            (json!({"properties": {"a": {"type": "string"}}}), ""),
            (json!({"items": [{"anyOf": [{"$ref": "#/$defs/c"}]}]}), "c"),
            (json!({"properties": {"x": {"$ref": "#/properties/y"}, "y": {}}}), ""),
            (json!({"properties": {"whole": {"$ref": "#"}}}), ""),
            // These may point anywhere.
            (json!({"properties": {"a": {"$ref": "#anchor"}}}), "abcd"),
            (json!({"properties": {"a": {"$ref": "https://schemas.example/a"}}}), "abcd"),
        ] {
            let Value::Object(mut schema) = schema else { panic!("an object") };
            let definitions = json!({
                "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
                "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
                "c": {"type": "string"},
                "d": {"type": "string"},
            });
            schema.insert("$defs".to_owned(), definitions);
            let shown = format!("{schema:?}");
            prune_definitions(&mut schema);
            let names: String = schema
                .get("$defs")
                .and_then(Value::as_object)
                .map(|all| all.keys().map(String::as_str).collect())
                .unwrap_or_default();
            assert_eq!(names, kept, "{shown}");
        }
    }

    #[test]
    fn names_with_slashes_and_older_definitions_are_followed() {
        let Value::Object(mut schema) = json!({
            "properties": {"a": {"$ref": "#/definitions/x~1y"}},
            "definitions": {"x/y": {}, "z": {}},
        }) else {
            panic!("an object")
        };
        prune_definitions(&mut schema);
        assert_eq!(Value::Object(schema)["definitions"], json!({"x/y": {}}));
    }
}
