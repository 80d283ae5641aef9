//! `epitome config schema`: JSON Schemas for editors.
//!
//! The schema of the settings comes from their parser. Those of recipes and hooks are derived by passing values to
//! their parsers, so there is no second list of fields. Descriptions are taken from docs/configuration.md,
//! docs/recipes.md and docs/hooks-reference.md.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::problem::Problem;
use crate::recipe::parse::{self, RecipeSource};
use epitome_config::{ANY_NAME, ConfigKey, Settings, schema};
use epitome_hooks::event::HookEvent;
use epitome_hooks::manifest::{self, Given, ManifestSyntax};

const GUIDE: &str = include_str!("../../../docs/configuration.md");
const RECIPES_GUIDE: &str = include_str!("../../../docs/recipes.md");
const HOOKS_GUIDE: &str = include_str!("../../../docs/hooks-reference.md");

/// The kinds of files that have a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SchemaFile {
    Config,
    Recipe,
    Hook,
}

impl SchemaFile {
    pub fn schema(self) -> Value {
        match self {
            SchemaFile::Config => schema(&Settings::default().keys(), describe),
            SchemaFile::Recipe => {
                object("the front matter of a recipe", parse::field_names(), RECIPES_GUIDE, recipe_accepts)
            }
            SchemaFile::Hook => {
                object("a declarative hook", manifest::field_names(), HOOKS_GUIDE, hook_accepts)
            }
        }
    }
}

fn describe(key: &ConfigKey) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(text) = described(&key.path) {
        fields.insert("description".to_owned(), text.into());
    }
    if let Some(default) = &key.value {
        fields.insert("default".to_owned(), default.clone());
    }
    fields
}

/// Returns the guide's text about a setting, without links and markup.
fn described(path: &[String]) -> Option<String> {
    let rows = rows(GUIDE);
    let name = path.join(".").replace(ANY_NAME, "NAME");
    let of_model = name.strip_prefix("models.NAME.");
    let row = rows.iter().find(|row| row.keys.contains(&name)).or_else(|| {
        rows.iter().find(|row| of_model.is_some_and(|name| row.keys.iter().any(|key| key == name)))
    })?;
    Some(row.text.clone())
}

/// A row of the guide's tables: the settings of its first cell, and its last cell.
struct GuideRow {
    keys: Vec<String>,
    text: String,
}

fn rows(guide: &str) -> Vec<GuideRow> {
    let rows = guide.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let mut keys: Vec<String> = Vec::new();
        for name in cells.first()?.split(", ").map(|name| name.trim_matches('`').replace('"', "")) {
            // `.ask` after `permissions.allow` is in the same table.
            let table = keys.last().and_then(|key| key.rsplit_once('.')).map(|(table, _)| table.to_owned());
            keys.push(match (name.strip_prefix('.'), table) {
                (Some(name), Some(table)) => format!("{table}.{name}"),
                _ => name,
            });
        }
        Some(GuideRow { keys, text: plain(cells.last()?) })
    })
    .collect()
}

/// Returns Markdown text without links and markup.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        let behind = link.split_once(')').map_or("", |(_, behind)| behind);
        out.push_str(before);
        rest = behind;
    }
    out.push_str(rest);
    out.replace(['[', '`'], "")
}

// ── Recipes and hooks ──────────────────────────────────────────────────────────────────────────────

/// Returns the parser's error for a field's value; `None` if the value is accepted.
type FieldRefusal = fn(&str, &Value) -> Option<String>;

fn object(
    title: &str,
    fields: impl Iterator<Item = &'static str>,
    guide: &str,
    refusal: FieldRefusal,
) -> Value {
    let rows = rows(guide);
    let property = |field: &'static str| {
        let mut schema = field_schema(field, refusal);
        if let Some(row) = rows.iter().find(|row| row.keys.iter().any(|key| key == field)) {
            schema["description"] = row.text.as_str().into();
        }
        (field.to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.map(property).collect();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": format!("Epitome: {title}"),
        "type": "object",
        "properties": properties,
    })
}

fn field_schema(field: &str, refusal: FieldRefusal) -> Value {
    let event = HookEvent::TurnEnd.name();
    let samples = [
        ("string", json!("user")),
        ("string", json!(event)),
        ("string", json!("https://x.example")),
        ("integer", json!(1)),
        ("integer", json!(500)),
        ("boolean", json!(true)),
        ("array", json!(["user"])),
        ("array", json!([event])),
        ("object", json!({})),
    ];
    let mut types: Vec<&str> = Vec::new();
    for (kind, value) in &samples {
        match refusal(field, value) {
            None if !types.contains(kind) => types.push(kind),
            Some(why) => {
                if let Some((_, words)) = why.split_once("must be one of ") {
                    let words: Vec<&str> = words.split(", ").collect();
                    return json!({ "enum": words });
                }
                // A word quoted in the error is an accepted value.
                let quoted = why.split_once("must be \"").and_then(|(_, word)| word.split('"').next());
                if quoted.is_some_and(|word| refusal(field, &json!(word)).is_none())
                    && !types.contains(&"string")
                {
                    types.push("string");
                }
            }
            None => {}
        }
    }
    match types[..] {
        [kind] => json!({ "type": kind }),
        // The parser converts other simple values to text.
        ["string", "integer", "boolean"] => json!({ "type": "string" }),
        ["string", "boolean"] => json!({ "type": "boolean" }),
        _ => json!({ "type": types }),
    }
}

fn recipe_accepts(field: &str, value: &Value) -> Option<String> {
    let text = format!("---\n{}: {value}\n---\n", json!(field));
    match parse::parse("x", RecipeSource::BuiltIn, &text) {
        Ok(parsed) => parsed.notes.first().map(|note| note.message.clone()),
        Err(Problem { message, .. }) => Some(message),
    }
}

fn hook_accepts(field: &str, value: &Value) -> Option<String> {
    let mut hook = json!({ "events": HookEvent::TurnEnd.name(), "then": {} });
    if field == "url" {
        hook["then"].take();
    }
    hook[field] = value.clone();
    let given = Given { timeout: Duration::from_secs(1), overrides: None, name: "x" };
    let read = manifest::read_file(Path::new("hook.json"), &hook.to_string(), ManifestSyntax::Json, given);
    read.err().map(|Problem { message, .. }| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser, the schema and the guide contain the same settings.
    #[test]
    fn the_guide_has_every_setting_and_no_other() {
        let keys = Settings::default().keys();
        let names: Vec<String> =
            keys.iter().map(|key| key.path.join(".").replace(ANY_NAME, "NAME")).collect();
        let rows = rows(GUIDE);
        for (key, name) in keys.iter().zip(&names) {
            let (table, last) = name.rsplit_once('.').unwrap_or(("", name));
            // The row of a table may describe the table's contents.
            let is_in_row = |row: &GuideRow| {
                row.keys.iter().any(|key| key == table || table.ends_with(&format!(".{key}")))
            };
            let named = rows.iter().any(|row| is_in_row(row) && GUIDE.contains(&format!("`{last}`")));
            assert!(
                key.is_alias || described(&key.path).is_some() || named,
                "{name} is not in docs/configuration.md"
            );
        }
        let settings = GUIDE.split("## Images and documents").next().unwrap_or_default().to_owned()
            + GUIDE.split("## Compaction\n").nth(1).unwrap_or_default();
        for row in rows.iter().filter(|row| {
            row.keys.iter().any(|key| settings.contains(&format!("| `{key}`")) && is_setting(key))
        }) {
            for key in &row.keys {
                let is_known = names.iter().any(|name| {
                    let of_model = format!("models.NAME.{key}");
                    [key, &of_model].iter().any(|key| name == *key || name.starts_with(&format!("{key}.")))
                });
                assert!(is_known, "{key} of docs/configuration.md is no setting");
            }
        }
    }

    /// Rows about variables and providers are not settings.
    fn is_setting(key: &str) -> bool {
        key.chars().all(|c| c.is_ascii_lowercase() || "_.NAME".contains(c)) && !key.contains('/')
    }

    #[test]
    fn settings_are_described_as_in_the_guide() {
        let schema = SchemaFile::Config.schema();
        let mode = &schema["properties"]["mode"];
        assert_eq!((&mode["enum"][0], &mode["default"]), (&json!("ask"), &json!("ask")));
        assert!(
            mode["description"].as_str().is_some_and(|text| text.starts_with("one of the modes: ask")),
            "{mode}"
        );
        let prune = &schema["properties"]["compaction"]["properties"]["prune"]["properties"]["keep_recent"];
        assert!(prune["description"].is_string() && prune["default"] == 6, "{prune}");
        let images = &schema["properties"]["models"]["additionalProperties"]["properties"]["images"];
        assert!(
            images["description"].as_str().is_some_and(|text| text.contains("accepts images")),
            "{images}"
        );
    }

    #[test]
    fn recipes_and_hooks_have_the_fields_that_their_readers_accept() {
        let recipe = SchemaFile::Recipe.schema();
        let field = |name: &str| without_description(&recipe["properties"][name]);
        assert_eq!(field("description"), json!({ "type": "string" }));
        assert_eq!(field("output"), json!({ "enum": ["message", "mutate", "append", "none"] }));
        assert_eq!(field("hidden"), json!({ "type": "boolean" }));
        assert_eq!(field("max_turns"), json!({ "type": "integer" }));
        assert_eq!(field("allowed_tools"), json!({ "type": ["string", "array"] }));
        assert_eq!(field("arguments"), json!({ "type": "object" }));
        let hook = SchemaFile::Hook.schema();
        let field = |name: &str| without_description(&hook["properties"][name]);
        assert_eq!(field("events"), json!({ "type": ["string", "array"] }));
        assert_eq!(field("fail_mode"), json!({ "enum": ["open", "closed"] }));
        assert_eq!(field("timeout_ms"), json!({ "type": "integer" }));
        assert_eq!(field("url"), json!({ "type": "string" }));
        assert_eq!(field("match"), json!({ "type": "object" }));
        for kind in [&recipe, &hook] {
            for (name, schema) in kind["properties"].as_object().expect("an object") {
                assert!(schema["type"] != json!([]), "{name} accepts none of the samples");
                assert!(schema["description"].is_string(), "{name} has no row in the guide");
            }
        }
    }

    fn without_description(schema: &Value) -> Value {
        let mut schema = schema.clone();
        schema.as_object_mut().expect("an object").remove("description");
        schema
    }
}
