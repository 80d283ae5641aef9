//! Reads the parameters of handlers. `null` counts as absent.

use serde_json::{Map, Value};

pub fn given<'a>(params: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    params.get(name).filter(|value| !value.is_null())
}

/// A text that is not blank.
pub fn text<'a>(params: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match given(params, name) {
        None => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text)),
        Some(_) => Err(format!("{name:?} must be a text that is not empty")),
    }
}

pub fn truth(params: &Map<String, Value>, name: &str) -> Result<Option<bool>, String> {
    match given(params, name) {
        None => Ok(None),
        Some(Value::Bool(truth)) => Ok(Some(*truth)),
        Some(_) => Err(format!("{name:?} must be true or false")),
    }
}

/// An integer from 0 to `max`, inclusive.
pub fn whole(params: &Map<String, Value>, name: &str, max: u64) -> Result<Option<u64>, String> {
    match given(params, name) {
        None => Ok(None),
        Some(value) => match value.as_u64().filter(|number| *number <= max) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name:?} must be a whole number from 0 to {max}")),
        },
    }
}

/// A list of texts that are not empty; a single text counts as a list.
pub fn list<'a>(params: &'a Map<String, Value>, name: &str) -> Result<Option<Vec<&'a str>>, String> {
    let wrong = || format!("{name:?} must be a list of texts that are not empty");
    let filled = |value: &'a Value| value.as_str().filter(|text| !text.is_empty()).ok_or_else(wrong);
    match given(params, name) {
        None => Ok(None),
        Some(Value::Array(items)) => items.iter().map(filled).collect::<Result<_, _>>().map(Some),
        Some(value) => Ok(Some(vec![filled(value)?])),
    }
}

/// One of the given words.
pub fn choice<T: Copy>(
    params: &Map<String, Value>,
    name: &str,
    choices: &[(&str, T)],
) -> Result<Option<T>, String> {
    let Some(value) = given(params, name) else { return Ok(None) };
    let chosen = choices.iter().find(|(word, _)| value.as_str() == Some(word));
    chosen.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        format!("{name:?} must be {}", words.join(" or "))
    })
}
