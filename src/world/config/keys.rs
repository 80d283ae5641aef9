//! The keys of a configuration file: their schema, their values, and the values' origins.

use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};

/// Placeholder for a key that the user chooses, such as a model's name.
pub const ANY_NAME: &str = "*";

/// A key that a configuration file may have.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigKey {
    /// The tables and the key; [`ANY_NAME`] represents a name that the user chooses.
    pub path: Vec<String>,
    pub schema: Json,
    /// Its value in the settings. `None` if nothing is set, and for keys below a name that the user chooses.
    pub value: Option<Json>,
    /// Whether this is another name of the preceding key.
    pub is_alias: bool,
}

/// A value that a file or an environment variable sets.
#[derive(Clone, Debug, PartialEq)]
pub struct SetValue {
    pub key: Vec<String>,
    /// The value, with secrets masked.
    pub value: Json,
    /// The file, or the variable as `$NAME`.
    pub path: PathBuf,
    /// From 1; `None` if it is not from a file.
    pub line: Option<u64>,
}

/// Collects the keys that the reader accepts.
#[derive(Default)]
pub(super) struct KeyCollector {
    keys: Vec<ConfigKey>,
    aliases: Vec<Vec<String>>,
}

impl KeyCollector {
    /// Returns the names to enumerate in a table. Of several names for a key, all but the first are recorded as
    /// aliases.
    pub fn names(&mut self, table: &[String], names: &[&[&'static str]]) -> Vec<&'static str> {
        if names.is_empty() {
            return vec![ANY_NAME];
        }
        for alias in names.iter().flat_map(|names| names.iter().skip(1)) {
            self.aliases.push([table, &[(*alias).to_owned()]].concat());
        }
        names.concat()
    }

    pub fn add(&mut self, path: &[String], schema: Json, value: Option<Json>) {
        let is_alias = self.aliases.iter().any(|alias| alias == path);
        let is_chosen = path.iter().any(|name| name == ANY_NAME);
        let value = value.filter(|value| !is_chosen && !value.is_null());
        self.keys.push(ConfigKey { path: path.to_vec(), schema, value, is_alias });
    }

    pub fn finish(self) -> Vec<ConfigKey> {
        self.keys
    }
}

/// Combines the keys in one JSON Schema. `describe` returns additional fields for the schema of a key, for example a
/// description.
pub fn schema(keys: &[ConfigKey], describe: impl Fn(&ConfigKey) -> Map<String, Json>) -> Json {
    let mut root = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "config.toml of Epitome",
        "type": "object",
        "additionalProperties": false,
    });
    for key in keys {
        let mut schema = key.schema.clone();
        if let Json::Object(fields) = &mut schema {
            fields.extend(describe(key));
        }
        insert(&mut root, &key.path, schema);
    }
    root
}

fn table_schema() -> Json {
    json!({ "type": "object", "additionalProperties": false })
}

/// Inserts a schema at a path, creating the tables on the way.
fn insert(table: &mut Json, path: &[String], schema: Json) {
    let Some((name, rest)) = path.split_first() else { return };
    let place = match name.as_str() {
        ANY_NAME => &mut table["additionalProperties"],
        name => &mut table["properties"][name],
    };
    if rest.is_empty() {
        *place = schema;
        return;
    }
    if !place.is_object() {
        *place = table_schema();
    }
    insert(place, rest, schema);
}
