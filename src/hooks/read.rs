//! Takes what a hook printed as one JSON object, as leniently as can be done without guessing.
//!
//! Shell scripts put text into JSON by hand. So raw line breaks inside strings are taken, and so is a
//! banner before the result. What is still no object is a failed run with a sentence that shows its
//! beginning. Nothing here knows what a field means.

use serde_json::{Map, Value};

use super::normalise;

/// Bytes of an unreadable output that its sentence shows.
pub const SHOWN_BYTES_MAX: usize = 200;

/// What a hook's standard output says.
#[derive(Clone, Debug, PartialEq)]
pub enum Read {
    /// It printed nothing: no action.
    Nothing,
    Object {
        object: Map<String, Value>,
        warnings: Vec<String>,
    },
    /// A sentence with the beginning of what it printed, safe to print on a terminal.
    Invalid(String),
}

/// Reads an output. Never panics, whatever the bytes are.
pub fn read(stdout: &[u8]) -> Read {
    let text = String::from_utf8_lossy(stdout);
    let mut warnings = Vec::new();
    if matches!(text, std::borrow::Cow::Owned(_)) {
        warnings.push("its output is not UTF-8; the bytes that are not became \u{fffd}".to_owned());
    }
    // PowerShell and some editors begin a text with a byte order mark.
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Read::Nothing;
    }
    match parsed(text) {
        Some(Value::Object(object)) => return Read::Object { object, warnings },
        Some(_) => return Read::Invalid(sentence("it printed JSON that is not an object", text)),
        None => {}
    }
    let result = text.lines().rev().find_map(|line| match parsed(line.trim()) {
        Some(Value::Object(object)) if object.keys().any(|key| normalise::is_known(key)) => Some(object),
        Some(_) | None => None,
    });
    match result {
        Some(object) => {
            warnings.push("it printed more than one JSON object; the last line was taken".to_owned());
            Read::Object { object, warnings }
        }
        None => Read::Invalid(sentence("it printed something that is not a JSON object", text)),
    }
}

/// The beginning of a text without anything that moves a terminal's cursor or turns its text around.
pub fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    let mut safe = String::with_capacity(end);
    for c in text[..end].chars() {
        // Controls, and the marks that reverse the direction of text.
        let harmful = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if harmful {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    if end < text.len() {
        safe.push('…');
    }
    safe
}

fn sentence(what: &str, text: &str) -> String {
    format!("{what}: {}", shown(text))
}

/// One JSON value, strictly; else with raw control characters inside strings.
fn parsed(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| {
        let escaped = with_escaped_controls(text)?;
        serde_json::from_str(&escaped).ok()
    })
}

/// The text with the control characters inside its strings escaped; `None` where it has none. One behind
/// a backslash stays as it is: that would be another text.
fn with_escaped_controls(text: &str) -> Option<String> {
    let mut escaped = String::with_capacity(text.len() + 16);
    let (mut in_string, mut after_backslash, mut found) = (false, false, false);
    for c in text.chars() {
        if in_string && !after_backslash && c < ' ' {
            found = true;
            match c {
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                other => escaped.push_str(&format!("\\u{:04x}", u32::from(other))),
            }
            continue;
        }
        match c {
            '"' if !after_backslash => in_string = !in_string,
            _ => {}
        }
        after_backslash = in_string && c == '\\' && !after_backslash;
        escaped.push(c);
    }
    found.then_some(escaped)
}
