//! The subset of HTTP/1.1 that the scripted model needs: requests with a body, plain and chunked responses.
//!
//! Closes the connection on anything unsupported. Not suitable for untrusted networks.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Maximum bytes of a request line and its headers. Real clients send a few hundred.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of a request body: more than the largest context window in JSON, with images.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes per read from the socket.
const READ_BYTES: usize = 64 * 1024;

/// The request line and headers of a request.
#[derive(Debug)]
pub(super) struct Head {
    pub method: String,
    pub path: String,
    /// Names are lower case.
    pub headers: Vec<(String, String)>,
    pub keep_alive: bool,
}

impl Head {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Reads requests from a connection; bytes read in excess are kept for the next one.
pub(super) struct Reader {
    input: OwnedReadHalf,
    buffer: Vec<u8>,
}

impl Reader {
    pub(super) fn new(input: OwnedReadHalf) -> Reader {
        Reader { input, buffer: Vec::new() }
    }

    /// Reads the next request; `None` if the client closed the connection between requests.
    pub(super) async fn request(
        &mut self,
        output: &mut OwnedWriteHalf,
    ) -> io::Result<Option<(Head, Vec<u8>)>> {
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(bad("the head of a request is too long"));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        };
        let head = parse_head(&self.buffer[..end])?;
        self.buffer.drain(..end + 4);
        if head.header("expect").is_some_and(|expect| expect.eq_ignore_ascii_case("100-continue")) {
            output.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let chunked = head.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked"));
        let body = if chunked {
            self.chunked_body().await?
        } else {
            let length = match head.header("content-length") {
                Some(length) => {
                    length.trim().parse().map_err(|_| bad("the length of a body is no number"))?
                }
                None => 0,
            };
            self.exactly(length).await?
        };
        Ok(Some((head, body)))
    }

    /// Waits until the client closes the connection.
    pub(super) async fn closed(&mut self) {
        super::drain(&mut self.input, &mut self.buffer).await;
    }

    async fn chunked_body(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or("").trim();
            let size =
                usize::from_str_radix(size, 16).map_err(|_| bad("the size of a chunk is no number"))?;
            if size == 0 {
                // Trailers, which no client sends here, also end with an empty line.
                while !self.line().await?.is_empty() {}
                return Ok(body);
            }
            if body.len() + size > BODY_BYTES_MAX {
                return Err(bad("the body of a request is too long"));
            }
            body.extend(self.exactly(size).await?);
            self.line().await?;
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..at]).into_owned();
                self.buffer.drain(..at + 2);
                return Ok(line);
            }
            if self.buffer.len() > HEAD_BYTES_MAX || !self.fill().await? {
                return Err(bad("a line of a chunked body has no end"));
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > BODY_BYTES_MAX {
            return Err(bad("the body of a request is too long"));
        }
        while self.buffer.len() < length {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads more bytes; returns false at the end of the stream.
    async fn fill(&mut self) -> io::Result<bool> {
        let before = self.buffer.len();
        self.buffer.reserve(READ_BYTES);
        self.input.read_buf(&mut self.buffer).await?;
        Ok(self.buffer.len() > before)
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Head> {
    let text = std::str::from_utf8(bytes).map_err(|_| bad("the head of a request is no text"))?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next().unwrap_or("").split(' ');
    let (Some(method), Some(path), Some(version)) = (first.next(), first.next(), first.next()) else {
        return Err(bad("the first line is no request"));
    };
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| bad("a header has no colon"))?;
        headers.push((name.trim().to_lowercase(), value.trim().to_owned()));
    }
    let mut head =
        Head { method: method.to_owned(), path: path.to_owned(), headers, keep_alive: version == "HTTP/1.1" };
    if head.header("connection").is_some_and(|word| word.eq_ignore_ascii_case("close")) {
        head.keep_alive = false;
    }
    Ok(head)
}

/// Writes a response that consists of one JSON value.
pub(super) async fn plain(
    output: &mut OwnedWriteHalf,
    status: u16,
    headers: &[(&str, String)],
    body: &Value,
    keep_alive: bool,
) -> io::Result<()> {
    let body = body.to_string();
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let mut text = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: {connection}\r\n",
        reason(status),
        body.len(),
    );
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(&body);
    output.write_all(text.as_bytes()).await
}

pub(super) async fn begin_stream(output: &mut OwnedWriteHalf) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\
                request-id: req_scripted\r\ntransfer-encoding: chunked\r\n\r\n";
    output.write_all(head.as_bytes()).await
}

/// Writes one chunk with a single write.
pub(super) async fn chunk(output: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(()); // An empty chunk would end the stream.
    }
    let mut framed = Vec::with_capacity(bytes.len() + 16);
    framed.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    output.write_all(&framed).await
}

pub(super) async fn end_stream(output: &mut OwnedWriteHalf) -> io::Result<()> {
    output.write_all(b"0\r\n\r\n").await
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        529 => "Overloaded",
        _ => "Error",
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn bad(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
