//! The session section of a bug report: the entries of the log with their structure, numbers and the names of tools
//! and models, but without contents. Of every other text, only the length is reported.

use std::fmt::Write as _;

use serde_json::Value;

use crate::thread::Thread;

/// Maximum number of entries that are listed individually, newest first.
const ENTRIES_MAX: usize = 5_000;

/// Fields whose text is reported: values of a fixed set, models, and names of events. None of these has a space.
const SHOWN: [&str; 14] = [
    "change",
    "type",
    "from",
    "model",
    "status",
    "trigger",
    "verdict",
    "event",
    "op",
    "mode",
    "level",
    "kind",
    "role",
    "mime_type",
];

/// Fields with arbitrary structure; only the length of their JSON is reported, because their keys may be contents
/// too.
const OPAQUE: [&str; 5] = ["input", "raw", "schema", "native", "rule"];

pub(super) fn text(thread: &Thread) -> String {
    let entries = thread.entries();
    let mut out = format!(
        "{} entries, {} of them in the view; open calls {}, in a turn: {}\n",
        entries.len(),
        thread.view().entries().len(),
        thread.open_calls().len(),
        thread.in_turn()
    );
    let left_out = entries.len().saturating_sub(ENTRIES_MAX);
    if left_out > 0 {
        let _ = writeln!(out, "the first {left_out} are left out");
    }
    let mut before = entries.get(left_out).map_or(0, |entry| entry.at);
    for entry in entries.range(left_out..entries.len()) {
        let after = entry.at.saturating_sub(before);
        before = entry.at;
        let change = serde_json::to_value(&entry.change).unwrap_or_default();
        let _ = writeln!(out, "{:<6} +{after} ms  {}", entry.seq.to_string(), without_contents("", &change));
    }
    out
}

/// Removes the contents of a value: each text that is not known to be harmless is replaced by its length in bytes.
fn without_contents(field: &str, value: &Value) -> Value {
    match value {
        Value::Object(_) | Value::Array(_) if OPAQUE.contains(&field) => value.to_string().len().into(),
        Value::String(text) if !SHOWN.contains(&field) || text.contains(char::is_whitespace) => {
            text.len().into()
        }
        Value::Array(values) => values.iter().map(|value| without_contents(field, value)).collect(),
        Value::Object(fields) => {
            // A file has a name too.
            let is_tool = fields.contains_key("input") || fields.contains_key("schema");
            // Other reasons quote providers and hooks.
            let is_end_of_turn = fields.get("change").is_some_and(|change| change == "turn_ended");
            let fields = fields.iter().map(|(name, value)| match name.as_str() {
                "name" if is_tool => (name.clone(), value.clone()),
                "reason" if is_end_of_turn => (name.clone(), value.clone()),
                known => (name.clone(), without_contents(known, value)),
            });
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_replaced_by_their_lengths() {
        let change = json!({
            "change": "replied", "model": "a/b", "usage": { "input": 7 },
            "message": { "id": 2, "content": [
                { "type": "text", "text": "secret" },
                { "type": "call", "id": "c1", "name": "bash", "input": { "secret": 1 } },
                { "type": "resource_link", "uri": "file:///s", "name": "secret" },
            ] },
        });
        let expected = json!({
            "change": "replied", "model": "a/b", "usage": { "input": 7 },
            "message": { "id": 2, "content": [
                { "type": "text", "text": 6 },
                { "type": "call", "id": 2, "name": "bash", "input": 12 },
                { "type": "resource_link", "uri": 9, "name": 6 },
            ] },
        });
        assert_eq!(without_contents("", &change), expected);
    }

    /// A provider's refusal quoted the prompt, and the reason of the refusal was in the report: reasons were taken for
    /// values of a fixed set, which only those of ended turns are.
    #[test]
    fn reasons_that_quote_something_are_replaced_by_their_lengths() {
        let refused = json!({ "change": "replied", "cut": { "why": "refused", "reason": "secret" } });
        let expected = json!({ "change": "replied", "cut": { "why": 7, "reason": 6 } });
        assert_eq!(without_contents("", &refused), expected);
        let ended = json!({ "change": "turn_ended", "reason": "end_turn" });
        assert_eq!(without_contents("", &ended), ended);
        let image = json!({ "type": "image", "mime_type": "a text of somebody" });
        assert_eq!(without_contents("", &image), json!({ "type": "image", "mime_type": 18 }));
    }
}
