//! The messages from the daemon to a front end: JSON-RPC lines, classified by how they begin.
//!
//! The daemon wrote the lines itself, so the beginning is enough: the front end does not parse their JSON. The last
//! line is a [`Farewell`], which is not for the editor, nor are the lines with a [`PositionStep`]. Whatever a crash
//! cuts off is discarded: an incomplete line, and a step without all of its updates.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::build::Build;
use epitome_acp::writer::POSITION;

/// Longest message, in bytes. The largest line is a log entry with everything shown for it.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Consecutive notifications are returned together up to about this many bytes, so that they need one write.
const SHARED_BYTES: usize = 64 * 1024;

const READ_BYTES: usize = 64 * 1024;

/// A buffer that grew beyond this many bytes for a long line is freed afterwards.
const KEPT_BYTES: usize = 256 * 1024;

const REQUEST_OR_RESPONSE: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const METHOD_AFTER_ID: &[u8] = br#","method":"#;
const WITHDRAWN: &[u8] = br#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"#;
const FAREWELL: &[u8] = br#"{"jsonrpc":"2.0","method":"$/epitome_farewell","params":"#;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Notifications, one or several lines.
    Notifications,
    /// The response to the request with this id.
    Response,
    /// A request sent by the daemon, with its id.
    Request,
    /// `$/cancel_request` for a request sent by the daemon, with that request's id.
    Withdrawn,
    /// The last message: why the daemon closes the connection.
    Farewell,
    /// A step; its updates follow.
    Step,
}

/// Why the daemon ended a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Farewell {
    /// The front end closed its half, and everything has been sent.
    Closed,
    /// The daemon was stopped. A front end starts another when its editor sends something.
    Stopped,
    /// A daemon of this newer build takes over.
    Reattach(Build),
}

impl Farewell {
    /// Parses a farewell line; `None` if the line is not one.
    pub fn read(line: &[u8]) -> Option<Farewell> {
        let rest = line.trim_ascii_end().strip_prefix(FAREWELL)?.strip_suffix(b"}")?;
        serde_json::from_slice(rest).ok()
    }

    fn to_line(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("a farewell is a word and a version");
        [FAREWELL, &json, b"}\n"].concat()
    }
}

/// A change of the position up to which a session has been shown.
#[derive(Clone, Debug, Deserialize)]
pub struct PositionStep {
    pub session: String,
    /// Number of updates that lead to the position.
    lines: usize,
    /// Whether the session is now shown from its beginning.
    pub begins: bool,
    /// The new position; only daemons read it.
    pub at: Box<RawValue>,
}

/// A message as read by the front end.
#[derive(Clone, Copy, Debug)]
pub struct FrontendMessage<'a> {
    pub kind: MessageKind,
    /// The id's JSON text, byte for byte; empty for kinds that have none.
    pub id: &'a str,
    /// Complete lines; may be empty if there are steps.
    pub lines: &'a [u8],
    /// The steps whose updates are among the lines.
    pub steps: &'a [PositionStep],
}

/// The step of a line, without what such lines begin with.
fn read_step(rest: &[u8]) -> io::Result<PositionStep> {
    let step = rest.trim_ascii_end().strip_suffix(b"}").and_then(|json| serde_json::from_slice(json).ok());
    step.ok_or_else(|| invalid("a position can't be read"))
}

/// Determines the kind and id of a line written by the daemon from how it begins.
fn classify(line: &[u8]) -> (MessageKind, &[u8]) {
    if let Some(rest) = line.strip_prefix(REQUEST_OR_RESPONSE) {
        let id = &rest[..id_bytes(rest)];
        let is_request = rest[id.len()..].starts_with(METHOD_AFTER_ID);
        return (if is_request { MessageKind::Request } else { MessageKind::Response }, id);
    }
    match line.strip_prefix(WITHDRAWN) {
        Some(rest) => (MessageKind::Withdrawn, &rest[..id_bytes(rest)]),
        None if line.starts_with(FAREWELL) => (MessageKind::Farewell, b""),
        None if line.starts_with(POSITION) => (MessageKind::Step, b""),
        None => (MessageKind::Notifications, b""),
    }
}

/// Length of the JSON string or number at the start of `text`.
fn id_bytes(text: &[u8]) -> usize {
    if text.first() != Some(&b'"') {
        return memchr::memchr3(b',', b'}', b' ', text).unwrap_or(text.len());
    }
    let mut at = 1;
    while let Some(found) = memchr::memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += found;
        if text[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    text.len()
}

/// The daemon's writing end. When dropped, it sends the reason for closing, unless a write has failed.
pub struct MessageWriter<W: Write> {
    out: W,
    /// Why the connection is closed; `Closed` if unset.
    farewell: Arc<OnceLock<Farewell>>,
    failed: bool,
}

impl<W: Write> MessageWriter<W> {
    pub fn new(out: W, farewell: Arc<OnceLock<Farewell>>) -> MessageWriter<W> {
        MessageWriter { out, farewell, failed: false }
    }
}

impl<W: Write> Write for MessageWriter<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let written = self.out.write(lines);
        self.failed |= written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Drop for MessageWriter<W> {
    fn drop(&mut self) {
        if !self.failed {
            let farewell = self.farewell.get().unwrap_or(&Farewell::Closed);
            // A front end that does not get this treats the end as a crash, which has the same effect.
            drop(self.out.write_all(&farewell.to_line()));
        }
    }
}

/// The front end's reading end. A read that times out loses nothing: the next call continues.
pub struct MessageReader<R: Read> {
    from: BufReader<R>,
    /// The lines of the current message; the last one may be incomplete.
    lines: Vec<u8>,
    line_at: usize,
    steps: Vec<PositionStep>,
    /// The incomplete step, and how many updates it lacks.
    step: Option<(PositionStep, usize)>,
    /// Whether `lines` was returned and is to be cleared for the next message.
    is_returned: bool,
}

impl<R: Read> MessageReader<R> {
    pub fn new(from: R) -> MessageReader<R> {
        let from = BufReader::with_capacity(READ_BYTES, from);
        MessageReader {
            from,
            lines: Vec::new(),
            line_at: 0,
            steps: Vec::new(),
            step: None,
            is_returned: false,
        }
    }

    pub fn source(&self) -> &R {
        self.from.get_ref()
    }

    /// Whether nothing was read beyond the lines that were returned.
    pub fn has_nothing_read(&self) -> bool {
        self.from.buffer().is_empty()
    }

    /// Reads a line, for the handshake. `None` at the end of the stream; a line longer than `bytes_max` is an error.
    pub fn line(&mut self, bytes_max: usize) -> io::Result<Option<&[u8]>> {
        self.begin();
        Ok(self.complete_line(bytes_max)?.then(|| {
            self.is_returned = true;
            self.lines.trim_ascii_end()
        }))
    }

    /// Waits for the next message. `None` at the end of the stream, even in the middle of a line or a step.
    pub fn message(&mut self) -> io::Result<Option<FrontendMessage<'_>>> {
        self.begin();
        loop {
            if !self.complete_line(MESSAGE_BYTES_MAX)? {
                return Ok(None);
            }
            let kind = classify(&self.lines[self.line_at..]).0;
            if let Some(rest) = self.lines[self.line_at..].strip_prefix(POSITION) {
                let step = read_step(rest)?;
                self.lines.truncate(self.line_at);
                let left = step.lines;
                self.step = Some((step, left));
            } else if let Some((_, left)) = &mut self.step {
                *left -= 1;
            }
            self.line_at = self.lines.len();
            if matches!(self.step, Some((_, 1..))) {
                continue;
            }
            self.steps.extend(self.step.take().map(|(step, _)| step));
            let next = self.from.buffer();
            let is_shared = |kind| matches!(kind, MessageKind::Notifications | MessageKind::Step);
            let continues = memchr::memchr(b'\n', next).is_some() && is_shared(classify(next).0);
            if !is_shared(kind) || !continues || self.lines.len() >= SHARED_BYTES {
                break;
            }
        }
        self.is_returned = true;
        let (kind, id) = classify(&self.lines);
        let id = str::from_utf8(id).map_err(|_| invalid("an id is not UTF-8"))?;
        Ok(Some(FrontendMessage { kind, id, lines: &self.lines, steps: &self.steps }))
    }

    fn begin(&mut self) {
        if std::mem::take(&mut self.is_returned) {
            self.lines.clear();
            self.line_at = 0;
            self.steps.clear();
            if self.lines.capacity() > KEPT_BYTES {
                self.lines = Vec::new();
            }
        }
    }

    /// Reads to the end of a line; `false` if the stream ends first.
    fn complete_line(&mut self, bytes_max: usize) -> io::Result<bool> {
        let room = bytes_max.saturating_sub(self.lines.len()) as u64;
        self.from.by_ref().take(room).read_until(b'\n', &mut self.lines)?;
        match self.lines.len() > self.line_at && self.lines.ends_with(b"\n") {
            false if self.lines.len() >= bytes_max => Err(invalid("a line is too long")),
            is_complete => Ok(is_complete),
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(lines: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = MessageWriter::new(&mut bytes, Arc::default());
        writer.write_all(lines.as_bytes()).expect("memory takes all");
        drop(writer);
        bytes
    }

    fn read_all(bytes: &[u8]) -> Vec<(MessageKind, String, String)> {
        let mut reader = MessageReader::new(bytes);
        let mut messages = Vec::new();
        while let Some(message) = reader.message().expect("complete lines") {
            let lines = String::from_utf8_lossy(message.lines).into_owned();
            messages.push((message.kind, message.id.to_owned(), lines));
        }
        messages
    }

    #[test]
    fn our_own_lines_are_classified_by_how_they_begin() {
        for (line, kind, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":9,"method":"x"}}"#, MessageKind::Response, "7"),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#, MessageKind::Response, "null"),
            (r#"{"jsonrpc":"2.0","id":"a,\"b\\","result":{}}"#, MessageKind::Response, r#""a,\"b\\""#),
            (
                r#"{"jsonrpc":"2.0","id":12,"method":"session/request_permission"}"#,
                MessageKind::Request,
                "12",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"id":1}}"#,
                MessageKind::Notifications,
                "",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":12}}"#,
                MessageKind::Withdrawn,
                "12",
            ),
        ] {
            let (found, its_id) = classify(line.as_bytes());
            assert_eq!((found, its_id), (kind, id.as_bytes()), "{line}");
        }
    }

    #[test]
    fn response_lines_begin_as_expected_here() {
        let mut line = Vec::new();
        epitome_acp::writer::response(&mut line, "\"x\"", Err(epitome_acp::answers::internal("no")));
        assert_eq!(classify(&line), (MessageKind::Response, &b"\"x\""[..]));
    }

    #[test]
    fn notifications_are_returned_together_and_lines_with_ids_alone() {
        let (note, answer) =
            ("{\"jsonrpc\":\"2.0\",\"method\":\"u\"}\n", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
        let notes = |count: usize| (MessageKind::Notifications, String::new(), note.repeat(count));
        let response = (MessageKind::Response, "1".to_owned(), answer.to_owned());
        let mut all = read_all(&written(&format!("{note}{note}{answer}{note}")));
        let (kind, _, last) = all.pop().expect("a farewell");
        assert_eq!((kind, Farewell::read(last.as_bytes())), (MessageKind::Farewell, Some(Farewell::Closed)));
        assert_eq!(all, [notes(2), response, notes(1)]);
    }

    fn step(lines: usize) -> String {
        let position = str::from_utf8(POSITION).expect("text");
        format!(
            "{position}{{\"session\":\"s\",\"lines\":{lines},\"begins\":false,\"at\":{{\"after\":7}}}}}}\n"
        )
    }

    /// An entry may be shown by several updates. An editor window whose daemon died between two of them got the first
    /// ones twice.
    #[test]
    fn a_step_is_returned_with_all_its_updates_or_not_at_all() {
        let note = "{\"jsonrpc\":\"2.0\",\"method\":\"u\"}\n";
        let answer = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
        let bytes = written(&format!("{note}{}{note}{note}{}{answer}", step(2), step(0)));
        let mut reader = MessageReader::new(&bytes[..]);
        let message = reader.message().expect("lines").expect("a message");
        assert_eq!((message.lines, message.steps.len()), (note.repeat(3).as_bytes(), 2));
        assert_eq!(message.steps[0].at.get(), "{\"after\":7}");
        assert_eq!(reader.message().expect("lines").expect("a message").kind, MessageKind::Response);
        let begun = note.len() + step(2).len() + note.len();
        let mut cut = MessageReader::new(&bytes[..begun]);
        let mut steps = 0;
        while let Some(message) = cut.message().expect("lines") {
            steps += message.steps.len();
        }
        assert_eq!(steps, 0);
    }

    #[test]
    fn a_truncated_line_is_not_returned() {
        let bytes = written("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
        let complete = read_all(&bytes).len();
        for cut in 0..bytes.len() {
            assert!(read_all(&bytes[..cut]).len() < complete, "cut at {cut}");
        }
        assert!(MessageReader::new(&b"too long\n"[..]).line(4).is_err());
    }

    proptest! {
        /// Lines are returned unchanged, however they are fragmented in transit.
        #[test]
        fn lines_come_out_as_they_went_in(
            lines in prop::collection::vec((0u8..4, 0usize..70_000), 1..20),
            piece in 1usize..100_000,
        ) {
            let lines: String = lines.iter().map(|(kind, length)| {
                let text = "x".repeat(*length);
                match kind {
                    0 => format!("{{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":\"{text}\"}}\n"),
                    1 => format!("{{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"{text}\"}}\n"),
                    _ => format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{text}\"}}\n"),
                }
            }).collect();
            let bytes = written(&lines);
            let mut reader = MessageReader::new(PartialReader(&bytes, piece));
            let mut seen = String::new();
            while let Some(message) = reader.message().expect("complete lines") {
                if message.kind != MessageKind::Farewell {
                    seen.push_str(str::from_utf8(message.lines).expect("text"));
                }
            }
            prop_assert!(seen == lines);
        }
    }

    /// Returns its bytes in pieces.
    struct PartialReader<'a>(&'a [u8], usize);

    impl Read for PartialReader<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let read = self.0.len().min(self.1).min(into.len());
            into[..read].copy_from_slice(&self.0[..read]);
            self.0 = &self.0[read..];
            Ok(read)
        }
    }
}
