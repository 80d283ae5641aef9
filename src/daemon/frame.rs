//! Frames: how complete lines travel from the daemon to a front end.
//!
//! ```text
//! kind (1 byte) · length of the id (2 bytes, little endian) · length of the lines (4 bytes) · id · lines
//! ```
//!
//! The daemon derives a frame's kind from the beginning of the lines it wrote itself, and the front end from
//! the frame header: neither parses the JSON. Output cut off by a crash is an incomplete frame and is
//! discarded.

use std::io::{self, Read, Write};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::build::Build;

/// Bytes of a frame that precede its id.
const HEAD_BYTES: usize = 7;

/// Longest body of a frame, in bytes. The largest line is a log entry with everything shown for it.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Consecutive notifications share a frame up to this many bytes, which bounds the reader's buffer.
const SHARED_BYTES: usize = 64 * 1024;

/// Size of a read, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Buffers that grew beyond about this many bytes for a large frame are freed afterwards.
const KEPT_BYTES: usize = 256 * 1024;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Notifications, one or several lines.
    Lines,
    /// The response to the request with this id.
    Response,
    /// A request sent by the daemon, with its id.
    Request,
    /// `$/cancel_request` for a request sent by the daemon, with that request's id.
    Withdrawn,
    /// The last frame: why the daemon closes the connection, as JSON ([`Farewell`]).
    Bye,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Lines, Kind::Response, Kind::Request, Kind::Withdrawn, Kind::Bye];

    fn byte(self) -> u8 {
        match self {
            Kind::Lines => 1,
            Kind::Response => 2,
            Kind::Request => 3,
            Kind::Withdrawn => 4,
            Kind::Bye => 5,
        }
    }

    fn of(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.byte() == byte)
    }
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

/// A frame as read by the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    /// The id's JSON text, byte for byte; empty for kinds that have none.
    pub id: &'a str,
    /// Complete lines.
    pub body: &'a [u8],
}

const REQUEST_OR_RESPONSE: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const METHOD_BEHIND_ID: &[u8] = br#","method":"#;
const WITHDRAWN: &[u8] = br#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"#;

/// Determines the kind and id of a line written by the daemon from how it begins.
fn sorted(line: &[u8]) -> (Kind, &[u8]) {
    if let Some(rest) = line.strip_prefix(REQUEST_OR_RESPONSE) {
        let id = &rest[..id_bytes(rest)];
        let kind = match rest[id.len()..].starts_with(METHOD_BEHIND_ID) {
            true => Kind::Request,
            false => Kind::Response,
        };
        return (kind, id);
    }
    match line.strip_prefix(WITHDRAWN) {
        Some(rest) => (Kind::Withdrawn, &rest[..id_bytes(rest)]),
        None => (Kind::Lines, b""),
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

fn append(buffer: &mut Vec<u8>, kind: Kind, id: &[u8], body: &[u8]) {
    // Ids and lines are bounded far below these limits where they are created.
    let id = &id[..id.len().min(usize::from(u16::MAX))];
    buffer.push(kind.byte());
    buffer.extend_from_slice(&(id.len() as u16).to_le_bytes());
    buffer.extend_from_slice(&(body.len() as u32).to_le_bytes());
    buffer.extend_from_slice(id);
    buffer.extend_from_slice(body);
}

/// The daemon's writing end: takes complete lines and writes frames. When dropped, it sends the reason for
/// closing, unless a write has failed.
pub struct FrameWriter<W: Write> {
    out: W,
    frames: Vec<u8>,
    /// Why the connection is closed; `Closed` if unset.
    farewell: Arc<OnceLock<Farewell>>,
    failed: bool,
}

impl<W: Write> FrameWriter<W> {
    pub fn new(out: W, farewell: Arc<OnceLock<Farewell>>) -> FrameWriter<W> {
        FrameWriter { out, frames: Vec::new(), farewell, failed: false }
    }

    fn send(&mut self) -> io::Result<()> {
        let sent = self.out.write_all(&self.frames);
        self.failed |= sent.is_err();
        self.frames.clear();
        if self.frames.capacity() > 2 * KEPT_BYTES {
            self.frames = Vec::new();
        }
        sent
    }
}

impl<W: Write> Write for FrameWriter<W> {
    /// `lines` must be complete lines written by the daemon; all of them are consumed.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let (mut at, mut begun) = (0, 0);
        while at < lines.len() {
            let end = memchr::memchr(b'\n', &lines[at..]).map_or(lines.len(), |found| at + found + 1);
            let (kind, id) = sorted(&lines[at..end]);
            if kind != Kind::Lines {
                if begun < at {
                    append(&mut self.frames, Kind::Lines, b"", &lines[begun..at]);
                }
                append(&mut self.frames, kind, id, &lines[at..end]);
                begun = end;
            } else if end - begun >= SHARED_BYTES {
                append(&mut self.frames, Kind::Lines, b"", &lines[begun..end]);
                begun = end;
            }
            at = end;
        }
        if begun < lines.len() {
            append(&mut self.frames, Kind::Lines, b"", &lines[begun..]);
        }
        self.send()?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Drop for FrameWriter<W> {
    fn drop(&mut self) {
        if self.failed {
            return;
        }
        let why = self.farewell.get().unwrap_or(&Farewell::Closed);
        let why = serde_json::to_vec(why).expect("a farewell is a word and a version");
        append(&mut self.frames, Kind::Bye, b"", &why);
        // A front end that does not get this treats the end as a crash, which has the same effect.
        drop(self.send());
    }
}

/// The front end's reading end. A read that times out loses nothing: the next call continues.
pub struct FrameReader<R: Read> {
    from: R,
    buffer: Vec<u8>,
    /// The range of `buffer` that has been read but not returned yet.
    begin: usize,
    end: usize,
}

impl<R: Read> FrameReader<R> {
    pub fn new(from: R) -> FrameReader<R> {
        FrameReader { from, buffer: Vec::new(), begin: 0, end: 0 }
    }

    pub fn source(&self) -> &R {
        &self.from
    }

    /// Reads a line, for the handshake. `None` at the end of the stream; a line longer than `bytes_max` is an
    /// error.
    pub fn line(&mut self, bytes_max: usize) -> io::Result<Option<&[u8]>> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[self.begin..self.end]) {
                let begin = self.begin;
                self.begin += found + 1;
                return Ok(Some(&self.buffer[begin..begin + found]));
            }
            if self.end - self.begin > bytes_max {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
            }
            if !self.fill(self.end - self.begin + 1)? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next frame. `None` at the end of the stream, even in the middle of a frame.
    pub fn frame(&mut self) -> io::Result<Option<Frame<'_>>> {
        if self.begin == self.end && self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
            (self.begin, self.end) = (0, 0);
        }
        if !self.fill(HEAD_BYTES)? {
            return Ok(None);
        }
        let head = &self.buffer[self.begin..self.begin + HEAD_BYTES];
        let nonsense = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let kind = Kind::of(head[0]).ok_or_else(|| nonsense("a frame of no known kind"))?;
        let id_bytes = usize::from(u16::from_le_bytes([head[1], head[2]]));
        let body_bytes = u32::from_le_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if body_bytes > BODY_BYTES_MAX {
            return Err(nonsense("a frame is too long"));
        }
        if !self.fill(HEAD_BYTES + id_bytes + body_bytes)? {
            return Ok(None);
        }
        let id = self.begin + HEAD_BYTES;
        let body = id + id_bytes;
        self.begin = body + body_bytes;
        let id = str::from_utf8(&self.buffer[id..body]).map_err(|_| nonsense("an id is not UTF-8"))?;
        Ok(Some(Frame { kind, id, body: &self.buffer[body..self.begin] }))
    }

    /// Reads until `wanted` bytes are buffered; `false` if the stream ends first.
    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        while self.end - self.begin < wanted {
            if self.buffer.len() < self.begin + wanted.max(READ_BYTES) {
                self.buffer.copy_within(self.begin..self.end, 0);
                (self.begin, self.end) = (0, self.end - self.begin);
                let length = wanted.max(READ_BYTES);
                if self.buffer.len() < length {
                    self.buffer.resize(length, 0);
                }
            }
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(writes: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes, Arc::default());
        for lines in writes {
            writer.write_all(lines.as_bytes()).expect("memory takes all");
        }
        drop(writer);
        bytes
    }

    fn read_all(bytes: &[u8]) -> Vec<(Kind, String, String)> {
        let mut reader = FrameReader::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = reader.frame().expect("whole frames") {
            let body = String::from_utf8_lossy(frame.body).into_owned();
            frames.push((frame.kind, frame.id.to_owned(), body));
        }
        frames
    }

    #[test]
    fn our_own_lines_are_classified_by_how_they_begin() {
        for (line, kind, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"id":9,"method":"x"}}"#, Kind::Response, "7"),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#, Kind::Response, "null"),
            (r#"{"jsonrpc":"2.0","id":"a,\"b\\","result":{}}"#, Kind::Response, r#""a,\"b\\""#),
            (r#"{"jsonrpc":"2.0","id":12,"method":"session/request_permission"}"#, Kind::Request, "12"),
            (r#"{"jsonrpc":"2.0","method":"session/update","params":{"id":1}}"#, Kind::Lines, ""),
            (
                r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":12}}"#,
                Kind::Withdrawn,
                "12",
            ),
        ] {
            let (found, its_id) = sorted(line.as_bytes());
            assert_eq!((found, its_id), (kind, id.as_bytes()), "{line}");
        }
    }

    #[test]
    fn response_lines_begin_as_the_framing_expects() {
        let mut line = Vec::new();
        epitome_acp::post::response(&mut line, "\"x\"", Err(epitome_acp::answers::internal("no")));
        assert_eq!(sorted(&line), (Kind::Response, &b"\"x\""[..]));
    }

    #[test]
    fn notifications_share_a_frame_and_lines_with_ids_do_not() {
        let (note, answer) =
            ("{\"jsonrpc\":\"2.0\",\"method\":\"u\"}\n", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n");
        let bye = (Kind::Bye, String::new(), r#"{"reason":"closed"}"#.to_owned());
        let lines = |count: usize| (Kind::Lines, String::new(), note.repeat(count));
        let response = (Kind::Response, "1".to_owned(), answer.to_owned());
        let three = format!("{note}{note}{answer}{note}");
        assert_eq!(read_all(&framed(&[&three])), [lines(2), response, lines(1), bye]);
    }

    #[test]
    fn a_truncated_frame_is_not_returned() {
        let bytes = framed(&["{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"]);
        let whole = read_all(&bytes).len();
        for cut in 0..bytes.len() {
            assert!(read_all(&bytes[..cut]).len() < whole, "cut at {cut}");
        }
    }

    #[test]
    fn an_invalid_header_is_an_error_and_allocates_nothing() {
        assert!(FrameReader::new(&[9u8; 64][..]).frame().is_err());
        let mut huge = vec![Kind::Lines.byte(), 0, 0];
        huge.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(FrameReader::new(&huge[..]).frame().is_err());
    }

    proptest! {
        /// Lines come out unchanged, however they are written and fragmented in transit.
        #[test]
        fn lines_come_out_as_they_went_in(
            lines in prop::collection::vec((0u8..4, 0usize..70_000), 1..20),
            piece in 1usize..100_000,
        ) {
            let made: Vec<String> = lines.iter().map(|(kind, length)| {
                let text = "x".repeat(*length);
                match kind {
                    0 => format!("{{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":\"{text}\"}}\n"),
                    1 => format!("{{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"{text}\"}}\n"),
                    _ => format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{text}\"}}\n"),
                }
            }).collect();
            let writes: Vec<&str> = made.iter().map(String::as_str).collect();
            let whole = made.concat();
            for bytes in [framed(&writes), framed(&[&whole])] {
                let mut reader = FrameReader::new(Pieces(&bytes, piece));
                let mut seen = String::new();
                while let Some(frame) = reader.frame().expect("whole frames") {
                    if frame.kind != Kind::Bye {
                        seen.push_str(str::from_utf8(frame.body).expect("text"));
                    }
                }
                prop_assert!(seen == whole);
            }
        }
    }

    /// Returns its bytes in pieces.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let read = self.0.len().min(self.1).min(into.len());
            into[..read].copy_from_slice(&self.0[..read]);
            self.0 = &self.0[read..];
            Ok(read)
        }
    }
}
