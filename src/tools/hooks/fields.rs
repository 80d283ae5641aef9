//! Typed access to the fields of one JSON object, with a warning for each field of the wrong type.
//!
//! It knows neither the names nor the meaning of fields; `normalise` does.

use serde_json::{Map, Value};

use super::read::shown;
use epitome_thread::terminal_text::plain;

/// Maximum warnings kept per result; a script that prints garbage would produce many.
const WARNINGS_MAX: usize = 12;

/// The fields of an object that are not `null`.
#[derive(Debug, Default)]
pub struct ObjectFields<'a> {
    found: Vec<(&'a str, &'a Value)>,
    /// The object's name in warnings; empty for the result itself.
    within: &'static str,
    warnings: Vec<String>,
    omitted: usize,
}

impl<'a> ObjectFields<'a> {
    /// All fields of an object named `within`.
    pub fn new(within: &'static str, object: &'a Map<String, Value>) -> ObjectFields<'a> {
        let present = object.iter().filter(|(_, value)| !value.is_null());
        let found = present.map(|(name, value)| (name.as_str(), value)).collect();
        ObjectFields { found, within, ..ObjectFields::default() }
    }

    pub fn put(&mut self, name: &'a str, value: &'a Value) {
        self.found.push((name, value));
    }

    /// A value of any type.
    pub fn any(&self, name: &str) -> Option<&'a Value> {
        self.found.iter().find(|(found, _)| *found == name).map(|(_, value)| *value)
    }

    /// A string; a blank one counts as missing.
    pub fn text(&mut self, name: &str) -> Option<String> {
        self.exact_text(name).filter(|text| !text.trim().is_empty())
    }

    /// Reads a value with `read`, which returns `None` for one that is not `wanted`.
    fn value<T>(&mut self, name: &str, wanted: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.any(name)?;
        let found = read(value);
        if found.is_none() {
            self.warn_type(name, wanted, value);
        }
        found
    }

    /// A string, even if it is blank. Colors of a program whose output a script passes on are removed, as everywhere.
    pub fn exact_text(&mut self, name: &str) -> Option<String> {
        self.value(name, "text", Value::as_str).map(|text| plain(text.to_owned()))
    }

    /// A string, or a list of strings and text blocks, without blank ones.
    pub fn texts(&mut self, name: &str) -> Vec<String> {
        let Some(value) = self.any(name) else { return Vec::new() };
        let items = match value {
            Value::Array(items) => items.as_slice(),
            _ => std::slice::from_ref(value),
        };
        let mut texts = Vec::new();
        for item in items {
            match block_text(item) {
                Some(text) if text.trim().is_empty() => {}
                Some(text) => texts.push(plain(text.to_owned())),
                None => self.warn_type(name, "text or a list of texts", item),
            }
        }
        texts
    }

    /// A boolean, false if missing. Strings and numbers that represent a boolean are accepted with a warning.
    pub fn flag(&mut self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    pub fn optional_flag(&mut self, name: &str) -> Option<bool> {
        let value = self.any(name)?;
        let flag = match value {
            Value::Bool(flag) => return Some(*flag),
            Value::Number(number) => number.as_f64().map(|number| number != 0.0),
            Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" | "1" => Some(true),
                "false" | "no" | "0" | "" => Some(false),
                _ => None,
            },
            _ => None,
        };
        match flag {
            Some(flag) => self.warn(format!(
                "`{}` must be true or false; {} was read as {flag}",
                self.path(name),
                shown(&value.to_string())
            )),
            None => self.warn_type(name, "true or false", value),
        }
        flag
    }

    /// A non-negative integer.
    pub fn count(&mut self, name: &str) -> Option<usize> {
        self.value(name, "a whole number from 0", |value| usize::try_from(value.as_u64()?).ok())
    }

    pub fn object(&mut self, name: &str) -> Option<&'a Map<String, Value>> {
        self.value(name, "an object", Value::as_object)
    }

    /// A list, empty if missing.
    pub fn list(&mut self, name: &str) -> &'a [Value] {
        self.value(name, "a list", Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        } else {
            self.omitted += 1;
        }
    }

    pub fn warn_type(&mut self, name: &str, wanted: &str, value: &Value) {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.warn(format!("`{}` must be {wanted}, not {found}; it was ignored", self.path(name)));
    }

    /// Warns about a value that is not one of the known values of a field.
    pub fn warn_value(&mut self, name: &str, word: &str, known: &str) {
        self.warn(format!("`{}` is {:?}, not {known}; it was ignored", self.path(name), shown(word)));
    }

    pub fn take_warnings(&mut self, other: ObjectFields<'_>) {
        for warning in other.into_warnings() {
            self.warn(warning);
        }
    }

    pub fn into_warnings(mut self) -> Vec<String> {
        if self.omitted > 0 {
            self.warnings.push(format!("and {} more like these", self.omitted));
        }
        self.warnings
    }

    fn path(&self, name: &str) -> String {
        if self.within.is_empty() { name.to_owned() } else { format!("{}.{name}", self.within) }
    }
}

/// A string, or the text of a text block.
pub fn block_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(block) => {
            let is_text = block.get("type").is_none_or(|kind| kind == "text");
            block.get("text").and_then(Value::as_str).filter(|_| is_text)
        }
        _ => None,
    }
}
