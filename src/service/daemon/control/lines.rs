//! Reads lines of bounded length from a socket. It does not parse them.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Longest line in bytes: room for a prompt with the largest accepted images, and for an imported session.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub enum LineResult {
    /// A line without its newline, or an unterminated rest at the end of the input.
    Whole(Vec<u8>),
    /// A line longer than the bound; it was skipped to its end.
    TooLong,
    End,
}

/// Reads line by line. The future returned by `next` may be dropped at any time without losing data.
pub struct BoundedLineReader<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    too_long: bool,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> BoundedLineReader<R> {
    pub fn new(reader: R) -> BoundedLineReader<R> {
        BoundedLineReader::bounded(reader, LINE_BYTES_MAX)
    }

    /// Creates a reader with a different limit on the length of a line.
    pub fn bounded(reader: R, bytes_max: usize) -> BoundedLineReader<R> {
        BoundedLineReader { reader: BufReader::new(reader), line: Vec::new(), too_long: false, bytes_max }
    }

    /// Changes the limit for the following lines.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// The underlying reader.
    pub fn source(&self) -> &R {
        self.reader.get_ref()
    }

    pub async fn next(&mut self) -> io::Result<LineResult> {
        loop {
            let piece = self.reader.fill_buf().await?;
            let is_last = piece.is_empty();
            let end = piece.iter().position(|byte| *byte == b'\n');
            let text = &piece[..end.unwrap_or(piece.len())];
            if self.line.len() + text.len() > self.bytes_max {
                self.too_long = true;
                self.line = Vec::new();
            } else if !self.too_long {
                self.line.extend_from_slice(text);
            }
            let read = end.map_or(piece.len(), |end| end + 1);
            self.reader.consume(read);
            if is_last || end.is_some() {
                let line = std::mem::take(&mut self.line);
                return Ok(match std::mem::take(&mut self.too_long) {
                    true => LineResult::TooLong,
                    false if is_last && line.is_empty() => LineResult::End,
                    false => LineResult::Whole(line),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8], bytes_max: usize) -> Vec<LineResult> {
        // A small buffer, so that lines arrive in pieces.
        let reader = BufReader::with_capacity(3, text);
        let mut lines = BoundedLineReader { reader, line: Vec::new(), too_long: false, bytes_max };
        let mut read = Vec::new();
        loop {
            match lines.next().await.expect("memory can be read") {
                LineResult::End => return read,
                line => read.push(line),
            }
        }
    }

    #[tokio::test]
    async fn lines_arrive_complete_and_overlong_ones_are_skipped() {
        let whole = |text: &str| LineResult::Whole(text.as_bytes().to_vec());
        for (text, wanted) in [
            ("", vec![]),
            ("one\ntwo\n", vec![whole("one"), whole("two")]),
            ("one\n\nhalf", vec![whole("one"), whole(""), whole("half")]),
            ("far too long\nshort\n", vec![LineResult::TooLong, whole("short")]),
            ("far too long", vec![LineResult::TooLong]),
        ] {
            assert_eq!(read(text.as_bytes(), 8).await, wanted, "{text:?}");
        }
    }
}
