//! Reads the messages of servers, over whatever transport they come: all texts of a server pass through here. Pure.

use epitome_thread::halves::replace_unpaired_surrogates;
use epitome_thread::terminal_text;
use rmcp::model::ServerJsonRpcMessage;
use serde_json::Value;

/// Reads a message. `None` for anything else, such as a banner.
pub fn message(bytes: &[u8]) -> Option<ServerJsonRpcMessage> {
    serde_json::from_value(json(bytes)?).ok()
}

/// Reads JSON of a server, without what could control a terminal: escape sequences, and control characters other than line
/// ends and tabs. Commands lose them, too.
///
/// Programs that cut texts at a number of bytes or of UTF-16 units send characters in half. If their messages were ignored, the call
/// would wait for its answer until it is given up.
pub fn json(bytes: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}');
    let read = || serde_json::from_str(text).ok();
    read().or_else(|| serde_json::from_str(&replace_unpaired_surrogates(text)?).ok()).map(plain)
}

/// JSON whose texts have no escape sequences and control characters.
pub fn plain(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(terminal_text::plain(text)),
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (terminal_text::plain(name), plain(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a user saw escape sequences of a server's colors as `\u{1b}[31m` in the chat, and editors got them as
    /// they were.
    #[test]
    fn nothing_in_a_message_controls_a_terminal() {
        let sent = r#"{"jsonrpc":"2.0","id":1,"result":{"a":["\u001b[31mred\u001b[0m\ttab\r\nline\u009b2J\u0007",
            {"\u001b]0;title\u0007key":"\u001b]52;c;aGk=\u001b\\done"}],"n":1.50,"rtl":"\u202eabc"}}"#;
        let read = json(sent.as_bytes()).expect("it is JSON");
        let wanted = serde_json::json!({ "a": ["red\ttab\r\nline2J", { "key": "done" }], "n": 1.5, "rtl": "\u{202e}abc" });
        assert_eq!(read["result"], wanted);
        assert!(message(sent.as_bytes()).is_some());
    }
}
