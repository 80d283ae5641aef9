//! Recording of a live connection in the fixture format.
//!
//! Recordings are meant to be shared: ids are replaced by placeholders, and secrets are masked. The texts of prompts,
//! replies and tools are kept, because a recording is useless without them.

use std::io::{self, Write};

use serde_json::Value;

use super::agent::{self, WriteDetail};
use super::book::{MessageDirection, Shorthand};
use super::editor;
use super::words::{self, bare, quoted};
use epitome_secrets as secrets;

/// The replacement for a secret.
const MASK: &str = "[secret]";

/// Parts of field names whose values are secrets.
const SECRET_FIELDS: [&str; 8] =
    ["apikey", "api_key", "api-key", "token", "secret", "password", "authorization", "cookie"];

/// Writes the messages of a connection as a transcript, line by line.
pub struct Recorder<W> {
    writer: W,
    book: Shorthand,
    begun: bool,
}

impl<W: Write> Recorder<W> {
    /// Creates a recorder. Nothing is written before the first message.
    pub fn new(writer: W) -> Recorder<W> {
        Recorder { writer, book: Shorthand::default(), begun: false }
    }

    /// Writes a line of the connection (passed without its newline) and flushes it: recordings are needed most when a
    /// crash follows.
    pub fn line(&mut self, direction: MessageDirection, line: &[u8]) -> io::Result<()> {
        if !self.begun {
            self.begun = true;
            writeln!(self.writer, "# A recording. Keys are masked; read it before you share it.")?;
        }
        let text = self.render(direction, line);
        writeln!(self.writer, "{text}")?;
        self.writer.flush()
    }

    fn render(&mut self, direction: MessageDirection, line: &[u8]) -> String {
        let mut message = match serde_json::from_slice::<Value>(line) {
            Ok(message @ (Value::Object(_) | Value::Array(_))) => message,
            Ok(_) | Err(_) => {
                let text = secrets::mask(&String::from_utf8_lossy(line)).into_owned();
                return match direction {
                    MessageDirection::ToAgent => {
                        let words = [bare("raw"), quoted(&text)];
                        words::write("editor>", &words, None)
                    }
                    MessageDirection::ToEditor => {
                        format!("# The agent wrote a line that is no message: {text:?}")
                    }
                };
            }
        };
        mask(&mut message);
        match direction {
            MessageDirection::ToAgent => {
                self.learn_workspace(&message);
                let words = editor::words_of(&message, &mut self.book);
                self.book.record_editor_message(&message);
                words::write("editor>", &words, None)
            }
            MessageDirection::ToEditor => {
                let words = agent::words_of(&message, &mut self.book, WriteDetail { ids: true, calls: true });
                self.book.record_agent_message(&message);
                words::write("agent<", &words, None)
            }
        }
    }

    /// Binds the directory of the first session as the workspace of the recording.
    fn learn_workspace(&mut self, message: &Value) {
        let cwd = message.pointer("/params/cwd").and_then(Value::as_str).filter(|cwd| cwd.len() > 1);
        if let Some(cwd) = cwd.filter(|_| self.book.names.fill_text("$DIR").is_err()) {
            self.book.names.bind_place("$DIR", cwd);
        }
    }
}

/// Masks the secrets in a message: values of environment variables and headers, fields named like secrets,
/// and what is masked in logs.
fn mask(value: &mut Value) {
    match value {
        Value::String(text) => *text = secrets::mask(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                let lower = key.to_lowercase();
                match value {
                    Value::Array(pairs) if lower == "env" || lower == "headers" => {
                        pairs.iter_mut().filter_map(|pair| pair.get_mut("value")).for_each(blank);
                    }
                    Value::Object(map) if lower == "env" || lower == "headers" => {
                        map.values_mut().for_each(blank);
                    }
                    Value::String(_) if SECRET_FIELDS.iter().any(|field| lower.contains(field)) => {
                        blank(value)
                    }
                    _ => mask(value),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn blank(value: &mut Value) {
    *value = Value::String(MASK.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fixture;

    fn record(lines: &[(MessageDirection, &str)]) -> String {
        let mut out = Vec::new();
        let mut recorder = Recorder::new(&mut out);
        for (direction, line) in lines {
            recorder.line(*direction, line.as_bytes()).expect("a vector takes all");
        }
        String::from_utf8(out).expect("transcripts are text")
    }

    #[test]
    fn a_recording_is_a_fixture_with_placeholders_for_ids_and_paths() {
        use MessageDirection::{ToAgent, ToEditor};
        let text = record(&[
            (
                ToAgent,
                r#"{"jsonrpc":"2.0","id":0,"method":"session/new","params":{"cwd":"/home/ann/p","mcpServers":[]}}"#,
            ),
            (ToEditor, r#"{"jsonrpc":"2.0","id":0,"result":{"sessionId":"s_1"}}"#),
            (
                ToAgent,
                r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s_1","prompt":[{"type":"text","text":"read /home/ann/p/a"}]}}"#,
            ),
            (
                ToEditor,
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s_1","update":{"sessionUpdate":"agent_message_chunk","messageId":"m1","content":{"type":"text","text":"Done."}}}}"#,
            ),
            (ToEditor, r#"{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}"#),
        ]);
        let expected = "\
# A recording. Keys are masked; read it before you share it.
editor> session/new
agent<  result {\"sessionId\":\"$S1\"}
editor> session/prompt $S1 \"read $DIR/a\"
agent<  session/update $S1 text $M1 \"Done.\"
agent<  result end_turn
";
        assert_eq!(text, expected);
        assert_eq!(Fixture::parse(&text).expect("a recording is a fixture").to_string(), text);
    }

    #[test]
    fn secrets_are_masked_in_a_recording() {
        let text = record(&[(
            MessageDirection::ToAgent,
            r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/p","mcpServers":[
                {"name":"m","command":"x","args":["--key","sk-ant-REDACTED"],"env":[{"name":"TOKEN","value":"hunter2"}]},
                {"type":"http","name":"h","url":"https://h","headers":[{"name":"Authorization","value":"Bearer abc"}]}]}}"#,
        )]);
        for secret in ["hunter2", "Bearer abc"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(text.contains("TOKEN"), "names of variables are no secrets: {text}");
    }

    /// Regression: recordings masked 13 kinds of keys, with rules of their own. Of all others, and of private keys and
    /// passwords, each was written to a file that is meant to be shared.
    #[test]
    fn everything_that_is_masked_elsewhere_is_masked_in_a_recording() {
        let random = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fG3hJ6kL9nP2rS5tU8";
        for (text, secret) in [
            (format!("sk-ant-api03-{random}"), random),
            (format!("hf_{}", &random[..34]), &random[..34]),
            (format!("curl -H 'Authorization: Bearer {random}' x"), random),
            ("postgres://app:Vx8-kd2p@db.example.com/app".to_owned(), "Vx8-kd2p"),
            (format!("-----BEGIN PRIVATE KEY-----\n{random}\n-----END PRIVATE KEY-----"), random),
        ] {
            let params = serde_json::json!({"sessionId": "s_1", "prompt": [{"type": "text", "text": text}]});
            let message =
                serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params});
            let text = record(&[(MessageDirection::ToAgent, &message.to_string())]);
            assert!(!text.contains(secret) && text.contains("session/prompt $S1"), "{text}");
        }
    }

    #[test]
    fn a_line_that_is_not_a_message_is_recorded_as_it_is() {
        let text = record(&[(MessageDirection::ToAgent, "{oh"), (MessageDirection::ToEditor, "panic!")]);
        assert!(text.contains("editor> raw \"{oh\"\n"), "{text}");
        assert!(Fixture::parse(&text).is_ok());
    }
}
