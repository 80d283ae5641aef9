//! Checks lines of version 2 against the official schema, in both directions.
//!
//! The schema's unions are open: a malformed variant passes as an unknown one. Neither we nor these tests send custom
//! variants, so the unions are closed before the check.

use std::collections::HashMap;
use std::sync::OnceLock;

use agent_client_protocol::v2::schema as wire;
use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

const LOCATION: &str = "http://schema.test/acp-v2.json";

struct Official {
    schemas: Schemas,
    /// By definition.
    compiled: HashMap<String, SchemaIndex>,
    /// Definitions of requests, responses and notifications, by method and the end of their name.
    messages: HashMap<(String, &'static str), String>,
}

fn official() -> &'static Official {
    static OFFICIAL: OnceLock<Official> = OnceLock::new();
    OFFICIAL.get_or_init(|| {
        let text = include_str!("../../schema/acp-v2.json");
        let mut schema: Value = serde_json::from_str(text).expect("the schema is JSON");
        close_unions(&mut schema);
        let mut messages = HashMap::new();
        for (name, definition) in schema["$defs"].as_object().expect("it has definitions") {
            let Some(method) = definition["x-method"].as_str() else { continue };
            let ends = ["Request", "Response", "Notification"];
            let end = ends.into_iter().find(|end| name.ends_with(end)).expect("they are named alike");
            messages.insert((method.to_owned(), end), name.clone());
        }
        let names: Vec<String> = messages.values().cloned().collect();
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource(LOCATION, schema).expect("a schema");
        let compile = |name: String| {
            let index = compiler.compile(&format!("{LOCATION}#/$defs/{name}"), &mut schemas);
            (name, index.expect("it can be compiled"))
        };
        let compiled = names.into_iter().map(compile).collect();
        Official { schemas, compiled, messages }
    })
}

/// Removes the variants for what a later version may add.
fn close_unions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(variants)) = fields.get_mut("anyOf") {
                variants.retain(|variant| variant["title"] != "other");
            }
            fields.values_mut().for_each(close_unions);
        }
        Value::Array(values) => values.iter_mut().for_each(close_unions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The same with what is newer than the schema in an older form: skills as commands, and calls without links to the
/// sessions that they have started.
fn as_published(value: &Value) -> Value {
    let mut value = value.clone();
    fn visit(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if fields.get("type").is_some_and(|kind| kind == "skill") {
                    fields.insert("type".to_owned(), "command".into());
                    fields.remove("path").expect("a skill has a path");
                }
                fields.values_mut().for_each(visit);
            }
            Value::Array(values) => {
                values.retain(|value| value["type"] != "session" || !value["sessionId"].is_string());
                values.iter_mut().for_each(visit);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    visit(&mut value);
    value
}

/// Checks params or a result. Methods of our own, which begin with `_`, are in no schema.
#[track_caller]
pub fn check(method: &str, end: &'static str, value: &Value) {
    if method.starts_with('_') {
        return;
    }
    let official = official();
    let name = official.messages.get(&(method.to_owned(), end));
    let name = name.unwrap_or_else(|| panic!("version 2 has no {method} {end}: {value}"));
    if let Err(error) = official.schemas.validate(&as_published(value), official.compiled[name]) {
        panic!("not a {name}: {value}\n{error:#}");
    }
}

/// Whether an update is newer than the schema. Then its form is checked here.
#[track_caller]
fn is_newer(params: &Value) -> bool {
    let update = &params["update"];
    let expected = match update["sessionUpdate"].as_str().expect("it has a kind") {
        "cursor_update" => serde_json::json!({
            "sessionUpdate": "cursor_update",
            "cursorId": update["cursorId"].as_str().expect("an id"),
            "anchor": {
                "type": update["anchor"]["type"].as_str().expect("a type"),
                "messageId": update["anchor"]["messageId"].as_str().expect("an id"),
                "position": "after",
            },
            "capabilities": { "fork": {} },
        }),
        "replay_complete" => serde_json::json!({ "sessionUpdate": "replay_complete" }),
        _ => return false,
    };
    assert_eq!(*update, expected);
    assert!(params["sessionId"].is_string());
    true
}

/// Checks an update beyond the schema: the crate's types read it, and lose nothing of it.
#[track_caller]
pub fn check_update(params: &Value) {
    if is_newer(params) {
        return;
    }
    check("session/update", "Notification", params);
    let params = &as_published(params);
    let read: wire::UpdateSessionNotification = serde_json::from_value(params.clone()).expect("it is read");
    assert!(!matches!(read.update, wire::SessionUpdate::Other(_)), "an unknown update: {params}");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), *params, "something is not in the schema");
}
