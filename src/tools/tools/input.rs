//! Parses tool inputs. Tolerates type mistakes that have only one possible meaning (`"20"` for 20, `"true"` for true,
//! `null` for a missing key); guesses nothing else and never renames keys.

use serde_json::Value;

use super::truncate;
use crate::ToolError;

/// Maximum length in bytes of the model's reason to run outside of the sandbox: a sentence or two.
const REASON_BYTES_MAX: usize = 500;

/// Returns a required text, which may be empty.
pub fn text(input: &Value, key: &str) -> Result<String, ToolError> {
    match optional_text(input, key)? {
        Some(text) => Ok(text),
        None => Err(ToolError::new(format!(
            "`{key}` is missing. Call the tool again with `{key}` set to a text."
        ))),
    }
}

/// Returns a required text that isn't blank: a path, a pattern, a command.
pub fn named(input: &Value, key: &str) -> Result<String, ToolError> {
    let text = text(input, key)?;
    if text.trim().is_empty() {
        return Err(ToolError::new(format!("`{key}` is empty. Call the tool again with `{key}` filled in.")));
    }
    if text.contains('\0') {
        return Err(ToolError::new(format!(
            "`{key}` contains a NUL byte, which cannot be used there. Leave it out."
        )));
    }
    Ok(text)
}

/// Returns an optional text.
pub fn optional_text(input: &Value, key: &str) -> Result<Option<String>, ToolError> {
    match input.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
        Some(Value::Array(_) | Value::Object(_)) => Err(ToolError::new(format!("`{key}` must be a text."))),
    }
}

/// Returns an optional path or pattern; a blank one counts as missing.
pub fn optional_named(input: &Value, key: &str) -> Result<Option<String>, ToolError> {
    match optional_text(input, key)? {
        Some(text) if !text.trim().is_empty() => named(input, key).map(Some),
        Some(_) | None => Ok(None),
    }
}

/// Returns the reason for running outside of the sandbox, if the call requests that.
pub fn outside_sandbox(input: &Value) -> Result<Option<String>, ToolError> {
    let reason =
        optional_text(input, "reason")?.map(|reason| truncate::line(reason.trim(), REASON_BYTES_MAX));
    match (flag(input, "outside_sandbox")?, reason) {
        (false, _) => Ok(None),
        (true, Some(reason)) if !reason.is_empty() => Ok(Some(reason)),
        (true, _) => Err(ToolError::new("outside_sandbox needs a reason for the user: say why in `reason`.")),
    }
}

/// Returns an optional nonnegative integer.
pub fn whole(input: &Value, key: &str) -> Result<Option<u64>, ToolError> {
    let wrong = || ToolError::new(format!("`{key}` must be a whole number from 0."));
    let from_float = |number: f64| {
        let whole = number.fract() == 0.0 && (0.0..=u32::MAX as f64).contains(&number);
        if whole { Ok(Some(number as u64)) } else { Err(wrong()) }
    };
    match input.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => match number.as_u64() {
            Some(whole) => Ok(Some(whole)),
            None => number.as_f64().map_or_else(|| Err(wrong()), from_float),
        },
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => text.trim().parse().map_err(|_| wrong()).and_then(from_float),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => Err(wrong()),
    }
}

/// Returns an optional boolean; a missing one is false.
pub fn flag(input: &Value, key: &str) -> Result<bool, ToolError> {
    let wrong = || ToolError::new(format!("`{key}` must be true or false."));
    match input.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::Number(number)) => match number.as_u64() {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(_) | None => Err(wrong()),
        },
        Some(Value::String(text)) => match text.trim().to_ascii_lowercase().as_str() {
            "" | "false" | "no" | "0" => Ok(false),
            "true" | "yes" | "1" => Ok(true),
            _ => Err(wrong()),
        },
        Some(Value::Array(_) | Value::Object(_)) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn well_formed_input_is_parsed() {
        let input = json!({"path": "src", "limit": 20, "all": true});
        assert_eq!(text(&input, "path"), Ok("src".to_string()));
        assert_eq!(whole(&input, "limit"), Ok(Some(20)));
        assert_eq!(flag(&input, "all"), Ok(true));
        assert_eq!(whole(&input, "absent"), Ok(None));
        assert_eq!(flag(&input, "absent"), Ok(false));
    }

    #[test]
    fn unambiguous_type_mistakes_are_tolerated() {
        let input =
            json!({"limit": "20", "offset": 3.0, "all": "True", "name": 7, "none": null, "blank": ""});
        assert_eq!(whole(&input, "limit"), Ok(Some(20)));
        assert_eq!(whole(&input, "offset"), Ok(Some(3)));
        assert_eq!(flag(&input, "all"), Ok(true));
        assert_eq!(text(&input, "name"), Ok("7".to_string()));
        assert_eq!(optional_text(&input, "none"), Ok(None));
        assert_eq!(whole(&input, "blank"), Ok(None));
        assert_eq!(optional_named(&input, "blank"), Ok(None));
    }

    #[test]
    fn ambiguous_values_are_rejected_naming_the_key() {
        let input = json!({"limit": -1, "all": "maybe", "path": ["a"], "half": 1.5, "nul": "a\u{0}b"});
        assert!(whole(&input, "limit").unwrap_err().to_string().contains("`limit`"));
        assert!(whole(&input, "half").unwrap_err().to_string().contains("`half`"));
        assert!(flag(&input, "all").unwrap_err().to_string().contains("`all`"));
        assert!(text(&input, "path").unwrap_err().to_string().contains("`path`"));
        assert!(text(&input, "gone").unwrap_err().to_string().contains("`gone`"));
        assert!(named(&input, "nul").unwrap_err().to_string().contains("NUL"));
    }
}
