//! Lines of JSON-RPC. Classifies one that was read as request, notification, response or invalid: parses only the envelope
//! and leaves params and results as text. Writes params and results directly into a buffer of lines.

use std::io::{self, BufRead, Read};

use agent_client_protocol::v1::schema::{CancelRequestNotification, Error, RequestId};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use serde_json::value::RawValue;

pub const PARSE_ERROR: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;

/// Longest line accepted, in bytes: enough for a prompt with several large images.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Longest request id, in bytes. It is kept while the request is open; real ids are much shorter.
const ID_BYTES_MAX: usize = 1024;

/// Longest outline of a line, in bytes. Envelopes are much shorter.
const OUTLINE_BYTES_MAX: usize = 4 * 1024;

/// Bytes of a line that is too long which are in memory at a time.
const PIECE_BYTES: u64 = 64 * 1024;

/// A classified line. Ids are kept byte for byte, to be sent back unchanged.
#[derive(Debug)]
pub enum Incoming<'a> {
    Request {
        id: &'a str,
        method: String,
        params: Option<&'a RawValue>,
    },
    Notification {
        method: String,
        params: Option<&'a RawValue>,
    },
    /// The response to a request that the agent sent: a result or an error.
    Response {
        id: &'a str,
        result: Option<&'a RawValue>,
        error: Option<&'a RawValue>,
    },
    /// Not JSON-RPC. The error response has this code and this id (`null` if unknown).
    Invalid {
        id: &'a str,
        code: i32,
        message: &'static str,
    },
    Blank,
}

/// The envelope's fields. A `null` value is distinguished from a missing field.
#[derive(Deserialize)]
struct MessageEnvelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Parses a line, with or without its newline. Never fails: an unreadable line is `Invalid`.
pub fn read(line: &[u8]) -> Incoming<'_> {
    let invalid = |id, code, message| Incoming::Invalid { id, code, message };
    let Ok(text) = std::str::from_utf8(line) else {
        return invalid(id_of_request(line).unwrap_or("null"), PARSE_ERROR, "The line is not UTF-8");
    };
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    // Serde also deserializes structs from JSON arrays, so only an object may become an envelope.
    match text.as_bytes().first() {
        None => return Incoming::Blank,
        Some(b'{') => {}
        Some(_) => {
            return match serde_json::from_str::<IgnoredAny>(text) {
                Ok(_) => {
                    invalid("null", INVALID_REQUEST, "A message is one JSON object; there are no batches")
                }
                Err(_) => invalid("null", PARSE_ERROR, "The line is not JSON"),
            };
        }
    }
    let envelope: MessageEnvelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) => {
            return match error.classify() {
                Category::Data => invalid("null", INVALID_REQUEST, "The message is not a JSON-RPC object"),
                Category::Syntax | Category::Eof | Category::Io => {
                    invalid("null", PARSE_ERROR, "The line is not JSON")
                }
            };
        }
    };
    let id = match envelope.id.map(RawValue::get) {
        None => None,
        Some(id) if is_id(id) => Some(id),
        Some(_) => return invalid("null", INVALID_REQUEST, "The id is not a string, a number or null"),
    };
    let is_some = |value: &&RawValue| value.get() != "null";
    let params = envelope.params.filter(is_some);
    // Some clients write both members of a response.
    let error = envelope.error.filter(is_some);
    match (envelope.method, id) {
        (Some(method), id) => match (serde_json::from_str::<String>(method.get()), id) {
            (Ok(method), Some(id)) => Incoming::Request { id, method, params },
            (Ok(method), None) => Incoming::Notification { method, params },
            (Err(_), id) => invalid(id.unwrap_or("null"), INVALID_REQUEST, "The method is not a string"),
        },
        (None, Some(id)) if error.is_some() => Incoming::Response { id, result: None, error },
        (None, Some(id)) if envelope.result.is_some() => {
            Incoming::Response { id, result: envelope.result, error: None }
        }
        (None, id) => invalid(id.unwrap_or("null"), INVALID_REQUEST, "The message has no method"),
    }
}

/// The id of a request whose parameters may have bytes that are not UTF-8.
fn id_of_request(line: &[u8]) -> Option<&str> {
    #[derive(Deserialize)]
    struct RequestOnly<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(rename = "method")]
        _method: IgnoredAny,
    }
    let line = line.trim_ascii();
    let head = line.starts_with(b"{").then(|| serde_json::from_slice::<RequestOnly<'_>>(line).ok())??;
    Some(head.id.get()).filter(|id| is_id(id))
}

/// Reads a line that is too long to be kept to its end, after its `start`. Returns it without the content of its members,
/// from which [`read`] can still classify it. A longer outline is cut off.
pub fn outline(start: &[u8], rest: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut outline = Outline::default();
    outline.add(start);
    let mut piece = Vec::new();
    loop {
        piece.clear();
        rest.by_ref().take(PIECE_BYTES).read_until(b'\n', &mut piece)?;
        outline.add(&piece);
        if piece.is_empty() || piece.ends_with(b"\n") {
            return Ok(outline.text);
        }
    }
}

#[derive(Default)]
struct Outline {
    text: Vec<u8>,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Outline {
    fn add(&mut self, json: &[u8]) {
        for &byte in json {
            let depth = self.depth;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth.min(self.depth) <= 1 && self.text.len() < OUTLINE_BYTES_MAX {
                self.text.push(byte);
            }
        }
    }
}

fn is_id(raw: &str) -> bool {
    raw.len() <= ID_BYTES_MAX
        && (raw == "null" || matches!(raw.as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9')))
}

/// Appends the response to a request. `id` is the request's id as JSON, unchanged.
pub fn response(buffer: &mut Vec<u8>, id: &str, result: Result<Box<RawValue>, Error>) {
    buffer.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    buffer.extend_from_slice(id.as_bytes());
    match result {
        Ok(result) => {
            buffer.extend_from_slice(br#","result":"#);
            buffer.extend_from_slice(result.get().as_bytes());
        }
        Err(error) => {
            buffer.extend_from_slice(br#","error":"#);
            serde_json::to_writer(&mut *buffer, &error).expect("an error is made of strings and numbers");
        }
    }
    buffer.extend_from_slice(b"}\n");
}

/// Appends a notification.
pub fn notification(buffer: &mut Vec<u8>, method: &'static str, params: &impl Serialize) {
    let start = buffer.len();
    buffer.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
    finish(buffer, start, method, params);
}

/// Appends a session update.
pub fn session_update(buffer: &mut Vec<u8>, session_id: &str, update: &impl Serialize) {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct UpdateParams<'a, U> {
        session_id: &'a str,
        update: &'a U,
    }
    notification(buffer, "session/update", &UpdateParams { session_id, update });
}

/// Appends a request to the client.
pub fn request(buffer: &mut Vec<u8>, id: u64, method: &'static str, params: &impl Serialize) {
    let start = buffer.len();
    buffer.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    buffer.extend_from_slice(id.to_string().as_bytes());
    buffer.extend_from_slice(br#","method":""#);
    finish(buffer, start, method, params);
}

/// Appends the notification that a request to the client is withdrawn.
pub fn cancel_request(buffer: &mut Vec<u8>, id: u64) {
    let id = i64::try_from(id).map_or(RequestId::Null, RequestId::Number);
    notification(buffer, "$/cancel_request", &CancelRequestNotification::new(id));
}

fn finish(buffer: &mut Vec<u8>, start: usize, method: &'static str, params: &impl Serialize) {
    buffer.extend_from_slice(method.as_bytes());
    buffer.extend_from_slice(br#"","params":"#);
    if let Err(error) = serde_json::to_writer(&mut *buffer, params) {
        // A partial line would corrupt the stream; dropping one message does not.
        tracing::error!(%error, method, "a message could not be written as JSON");
        buffer.truncate(start);
        return;
    }
    buffer.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(line: &[u8]) -> String {
        match read(line) {
            Incoming::Request { id, method, params } => {
                format!("request {id} {method} {}", params.map_or("-", RawValue::get))
            }
            Incoming::Notification { method, params } => {
                format!("notification {method} {}", params.map_or("-", RawValue::get))
            }
            Incoming::Response { id, result, .. } => {
                format!("response {id} {}", result.map_or("error", RawValue::get))
            }
            Incoming::Invalid { id, code, .. } => format!("invalid {id} {code}"),
            Incoming::Blank => "blank".to_owned(),
        }
    }

    /// Regression: a client that sends `"error": null` next to each `result` allowed a command. The response counted as
    /// an error, which means that the client can't show the prompt.
    #[test]
    fn lines_are_classified_by_their_envelope() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1}}"#, r#"request 1 a {"x":1}"#),
            (r#"{"jsonrpc":"2.0","method":"a"}"#, "notification a -"),
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, "response 7 {}"),
            (r#"{"jsonrpc":"2.0","id":7,"result":null}"#, "response 7 null"),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}"#, "response 7 error"),
            (r#"{"id":7,"result":{"a":1},"error":null}"#, r#"response 7 {"a":1}"#),
            (r#"{"id":7,"result":null,"error":{"code":1,"message":"m"}}"#, "response 7 error"),
            (r#"{"id":1,"method":"a","params":null,"extra":[1,{"deep":2}]}"#, "request 1 a -"),
            (" {\"id\":1,\"method\":\"a\"}\r\n", "request 1 a -"),
            ("", "blank"),
            (" \t\r\n", "blank"),
        ] {
            assert_eq!(describe(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn ids_are_preserved_byte_for_byte() {
        for id in [
            "0",
            "-1",
            "\"abc\"",
            "\"0\"",
            "9007199254740991",
            "18446744073709551616",
            "null",
            "1.50",
            r#""\u0041""#,
        ] {
            let line = format!(r#"{{"id":{id},"method":"a"}}"#);
            assert_eq!(describe(line.as_bytes()), format!("request {id} a -"));
        }
    }

    /// An editor sent a prompt with the text of a Latin-1 buffer. The error had no id, so the prompt was never answered.
    #[test]
    fn a_request_that_is_not_utf8_is_answered() {
        let cases: [(&[u8], &str); 5] = [
            (b"{\"id\":3,\"method\":\"a\",\"params\":{\"text\":\"caf\xe9\"}}", "invalid 3 -32700"),
            (b"{\"method\":\"a\",\"params\":\"\xff\",\"id\":\"x\"}\n", "invalid \"x\" -32700"),
            // Not a request: the client waits for no answer.
            (b"{\"id\":3,\"result\":\"\xff\"}", "invalid null -32700"),
            (b"{\"id\":\"\xff\",\"method\":\"a\"}", "invalid null -32700"),
            (b"[3,\"a\",\"\xff\"]", "invalid null -32700"),
        ];
        for (line, expected) in cases {
            assert_eq!(describe(line), expected, "{}", String::from_utf8_lossy(line));
        }
    }

    /// Regression: an editor sent a prompt with too many images. The error had no id, so the prompt was never answered.
    #[test]
    fn the_outline_of_a_line_has_its_id_and_kind() {
        let image = "x".repeat(300_000);
        let params = format!(r#"{{"a":[{{"id":3,"data":"{image}\"]}}"}}],"id":4}}"#);
        for (line, expected) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7,"method":"a","params":{params}}}"#), "request 7 a {}"),
            (format!(r#"{{ "method":"a", "params":{params} ,"id":"\"7{{" }}"#), r#"request "\"7{" a {}"#),
            (format!(r#"{{"id":7,"result":{params}}}"#), "response 7 {}"),
            (format!(r#"{{"method":"a","params":{params}}}"#), "notification a {}"),
            (format!(r#"[{{"id":7,"method":"a","params":{params}}}]"#), "invalid null -32600"),
            (format!(r#"{{"id":7,"method":"{image}"}}"#), "invalid null -32700"),
            (image.clone(), "invalid null -32700"),
        ] {
            let text = format!("{line}\n{{}}");
            let mut rest = &text.as_bytes()[10..];
            let outline = outline(&text.as_bytes()[..10], &mut rest).expect("it is in memory");
            assert_eq!(describe(&outline), expected, "{}", String::from_utf8_lossy(&outline));
            assert_eq!(rest, b"{}", "the next line remains");
        }
    }

    #[test]
    fn invalid_lines_get_the_matching_error_code() {
        let long = format!(r#"{{"id":"{}","method":"a"}}"#, "x".repeat(2000));
        let cases: [(&[u8], &str); 13] = [
            (b"not json", "invalid null -32700"),
            (b"{\"id\":1", "invalid null -32700"),
            (b"{\"id\":1,}", "invalid null -32700"),
            (b"\xff\xfe", "invalid null -32700"),
            (b"[{\"id\":1,\"method\":\"a\"}]", "invalid null -32600"),
            (b"17", "invalid null -32600"),
            (b"\"text\"", "invalid null -32600"),
            (b"{}", "invalid null -32600"),
            (b"{\"id\":3}", "invalid 3 -32600"),
            (b"{\"id\":3,\"error\":null}", "invalid 3 -32600"),
            (b"{\"id\":3,\"method\":5}", "invalid 3 -32600"),
            (b"{\"id\":{},\"method\":\"a\"}", "invalid null -32600"),
            (long.as_bytes(), "invalid null -32600"),
        ];
        for (line, expected) in cases {
            assert_eq!(describe(line), expected, "{}", String::from_utf8_lossy(line));
        }
    }
}
