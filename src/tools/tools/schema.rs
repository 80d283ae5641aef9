//! Describes a tool to the model: its name, what it is for, and the keys of its input as a JSON Schema.

use serde_json::{Map, Value, json};

use epitome_thread::ToolSpec;

/// The description of a parameter that is the path of a file.
pub const FILE: &str = "The file: absolute, or relative to the workspace's directory.";

/// A key of a tool's input.
pub struct InputKey {
    name: &'static str,
    schema: Value,
    is_required: bool,
}

impl InputKey {
    /// An optional key with this JSON Schema.
    pub fn new(name: &'static str, schema: Value) -> InputKey {
        InputKey { name, schema, is_required: false }
    }

    pub fn text(name: &'static str, about: &str) -> InputKey {
        InputKey::new(name, json!({"type": "string", "description": about}))
    }

    pub fn number(name: &'static str, about: &str) -> InputKey {
        InputKey::new(name, json!({"type": "integer", "description": about}))
    }

    pub fn flag(name: &'static str, about: &str) -> InputKey {
        InputKey::new(name, json!({"type": "boolean", "description": about}))
    }

    pub fn choice(name: &'static str, choices: &[&str], about: &str) -> InputKey {
        InputKey::new(name, json!({"type": "string", "enum": choices, "description": about}))
    }

    pub fn required(self) -> InputKey {
        InputKey { is_required: true, ..self }
    }
}

/// Describes a tool that takes these keys, in their order.
pub fn spec(
    name: &str,
    description: impl Into<String>,
    keys: impl IntoIterator<Item = InputKey>,
) -> ToolSpec {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for InputKey { name, schema, is_required } in keys {
        required.extend(is_required.then_some(name));
        properties.insert(name.to_owned(), schema);
    }
    let schema = match required.is_empty() {
        true => json!({"type": "object", "properties": properties}),
        false => json!({"type": "object", "properties": properties, "required": required}),
    };
    ToolSpec { name: name.to_owned(), description: description.into(), schema }
}
