//! Recording of a live connection in the fixture format.
//!
//! Recordings are meant to be shared: ids are replaced by placeholders, and secrets are masked. The texts of prompts,
//! replies and tools are kept, because a recording is useless without them.

use std::io::{self, Write};

use serde_json::Value;

use super::agent::{self, WriteDetail};
use super::book::{MessageDirection, Shorthand};
use super::editor;
use super::words::{self, LineWord};

/// The replacement for a secret.
const MASK: &str = "[secret]";

/// Minimum length in characters of a token that is masked because of its prefix.
const KEY_LENGTH_MIN: usize = 16;

/// Prefixes of keys and tokens of well-known services.
const KEY_BEGINNINGS: [&str; 13] = [
    "sk-",
    "sk_",
    "pk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "AKIA",
    "AIza",
    "eyJhbGciOi",
];

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
                let text = mask_text(&String::from_utf8_lossy(line));
                return match direction {
                    MessageDirection::ToAgent => {
                        let words = [LineWord::Bare("raw".into()), LineWord::Json(Value::String(text))];
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
/// and anything that looks like a key.
fn mask(value: &mut Value) {
    match value {
        Value::String(text) => *text = mask_text(text),
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

fn mask_text(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let mut out = String::with_capacity(text.len());
    let mut after_bearer = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| is_part(c) != is_part(first)).unwrap_or(rest.len());
        let (run, next) = rest.split_at(length);
        rest = next;
        if !is_part(first) {
            out.push_str(run);
            continue;
        }
        let long = run.len() >= KEY_LENGTH_MIN;
        let keyish = KEY_BEGINNINGS.iter().any(|begin| run.starts_with(begin)) || after_bearer;
        out.push_str(if long && keyish { MASK } else { run });
        after_bearer = run.eq_ignore_ascii_case("bearer");
    }
    out
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
        for secret in ["hunter2", "abcdefghij", "Bearer abc"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(text.contains("TOKEN"), "names of variables are no secrets: {text}");
    }

    #[test]
    fn a_line_that_is_not_a_message_is_recorded_as_it_is() {
        let text = record(&[(MessageDirection::ToAgent, "{oh"), (MessageDirection::ToEditor, "panic!")]);
        assert!(text.contains("editor> raw \"{oh\"\n"), "{text}");
        assert!(Fixture::parse(&text).is_ok());
    }
}
