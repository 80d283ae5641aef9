//! Parses a hook's stdout as one JSON object, as leniently as possible without guessing.
//!
//! Shell scripts insert text into JSON without escaping. Therefore, raw line breaks inside strings are accepted, and
//! so is a banner before the result. If there is still no object, the run failed; the message quotes the
//! beginning of the output. Fields are not interpreted here.

use serde_json::{Map, Value};

use super::normalise;
use epitome_thread::visible::visible_line;

/// Maximum bytes quoted from unreadable output.
pub const SHOWN_BYTES_MAX: usize = 200;

/// The parsed stdout of a hook.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedStdout {
    /// No output: no action.
    Nothing,
    Object {
        object: Map<String, Value>,
        warnings: Vec<String>,
    },
    /// An error message with the beginning of the output, safe to print on a terminal.
    Invalid(String),
}

/// Parses the output of a hook. Never panics on any input.
pub fn read(stdout: &[u8]) -> ParsedStdout {
    let text = String::from_utf8_lossy(stdout);
    let mut warnings = Vec::new();
    if matches!(text, std::borrow::Cow::Owned(_)) {
        warnings.push("its output is not UTF-8; the bytes that are not became \u{fffd}".to_owned());
    }
    // PowerShell and some editors start a text with a byte order mark.
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return ParsedStdout::Nothing;
    }
    match parsed(text) {
        Ok(Value::Object(object)) => return ParsedStdout::Object { object, warnings },
        Ok(_) => return ParsedStdout::Invalid(sentence("it printed JSON that is not an object", text)),
        Err(_) => {}
    }
    let result = text.lines().rev().find_map(|line| match parsed(line.trim()) {
        Ok(Value::Object(object)) if object.keys().any(|key| normalise::is_known(key)) => Some(object),
        Ok(_) | Err(_) => None,
    });
    match result {
        Some(object) => {
            warnings.push("it printed more than one JSON object; the last line was taken".to_owned());
            ParsedStdout::Object { object, warnings }
        }
        None => ParsedStdout::Invalid(sentence("it printed something that is not a JSON object", text)),
    }
}

/// The beginning of a text, with invisible characters escaped.
pub fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    let cut = if end < text.len() { "…" } else { "" };
    format!("{}{cut}", visible_line(&text[..end]))
}

fn sentence(what: &str, text: &str) -> String {
    format!("{what}: {}", shown(text))
}

/// Parses one JSON value, strictly at first; otherwise with raw control characters inside strings.
pub fn parsed(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|error| match with_escaped_controls(text) {
        Some(escaped) => serde_json::from_str(&escaped),
        None => Err(error),
    })
}

/// Escapes the control characters inside strings; `None` if there are none. A control character after a backslash
/// stays: escaping it would change the text.
fn with_escaped_controls(text: &str) -> Option<String> {
    let mut escaped = String::with_capacity(text.len() + 16);
    let (mut in_string, mut after_backslash, mut found) = (false, false, false);
    for c in text.chars() {
        if in_string && !after_backslash && c < ' ' {
            found = true;
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            continue;
        }
        in_string ^= c == '"' && !after_backslash;
        after_backslash = in_string && c == '\\' && !after_backslash;
        escaped.push(c);
    }
    found.then_some(escaped)
}
