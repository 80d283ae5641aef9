//! Removes unused definitions from a tool's schema: some servers attach all their definitions to every tool. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The keys of definitions in JSON Schema: since draft 2019-09, and before.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

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
    use serde_json::json;

    use super::*;

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
