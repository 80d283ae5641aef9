//! A parser for server-sent events in arbitrarily split bytes. It is independent of providers and reads only `data`
//! fields, because every supported format also names its events inside the data.
//!
//! Streams are untrusted and must be bounded, so no existing crate is used: they buffer events of any size and return
//! each one as a new string. This parser lends the data of each event to the caller from a reused buffer.

/// Maximum bytes of one event. An entire tool call sent at once is far smaller, and a server that never ends an event
/// can use no more memory than this.
pub const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A push parser. An event that is unfinished at the end of the stream is never delivered.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The current, unfinished line.
    line: Vec<u8>,
    /// The data of the current, unfinished event, its lines joined.
    data: Vec<u8>,
    has_data: bool,
    /// Whether the last byte was a carriage return; a line feed that follows belongs to it.
    after_return: bool,
    /// Whether any line was read, so that a byte order mark can no longer occur.
    begun: bool,
}

/// An event exceeded `EVENT_BYTES_MAX`.
#[derive(Debug, PartialEq, Eq)]
pub struct EventTooLong;

impl SseParser {
    /// Parses a piece and calls `on_event` with the data of each event that ends in it, in order. Invalid UTF-8 is
    /// replaced by U+FFFD. Stops at the first error.
    pub fn push<E: From<EventTooLong>>(
        &mut self,
        piece: &[u8],
        mut on_event: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        for part in piece.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let Some((end @ (b'\n' | b'\r'), text)) = part.split_last() else {
                self.after_return = false;
                self.keep(part)?;
                continue;
            };
            let is_after_return = std::mem::replace(&mut self.after_return, *end == b'\r');
            if is_after_return && part == b"\n" {
                continue;
            }
            self.keep(text)?;
            let mut line = std::mem::take(&mut self.line);
            self.end_line(&line, &mut on_event)?;
            line.clear();
            self.line = line;
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), EventTooLong> {
        if self.line.len() + self.data.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(EventTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line<E: From<EventTooLong>>(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_first = !std::mem::replace(&mut self.begun, true);
        let line = line.strip_prefix(b"\xEF\xBB\xBF").filter(|_| is_first).unwrap_or(line);
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                let result = on_event(&String::from_utf8_lossy(&self.data));
                self.data.clear();
                result?;
            }
            return Ok(());
        }
        let value = match line.strip_prefix(b"data") {
            Some(b"") => b"",
            Some([b':', value @ ..]) => value.strip_prefix(b" ").unwrap_or(value),
            // Comments, other fields, and fields whose names merely start with `data`.
            Some(_) | None => return Ok(()),
        };
        if self.data.len() + value.len() > EVENT_BYTES_MAX {
            return Err(EventTooLong.into());
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<String> {
        let mut events = SseParser::default();
        let mut seen = Vec::new();
        for piece in pieces {
            let result: Result<(), EventTooLong> = events.push(piece, |data| {
                seen.push(data.to_owned());
                Ok(())
            });
            result.expect("the events are short");
        }
        seen
    }

    #[test]
    fn data_of_each_event_comes_in_order() {
        assert_eq!(read(&[b"event: a\ndata: one\n\ndata: two\n\n"]), ["one", "two"]);
    }

    #[test]
    fn lines_of_one_event_are_joined() {
        assert_eq!(read(&[b"data: one\ndata:two\n\n"]), ["one\ntwo"]);
    }

    #[test]
    fn comments_other_fields_and_empty_events_are_ignored() {
        assert_eq!(read(&[b": ping\n\nid: 7\n\nretry: 3\ndatabase: x\ndata: kept\n\n"]), ["kept"]);
    }

    #[test]
    fn an_event_without_its_empty_line_is_not_delivered() {
        assert_eq!(read(&[b"data: whole\n\ndata: half\n"]), ["whole"]);
    }

    #[test]
    fn any_split_and_line_ending_parses_the_same() {
        for stream in
            ["data: größe\n\ndata: b\n\n", "data: größe\r\n\r\ndata: b\r\n\r\n", "data: größe\r\rdata: b\r\r"]
        {
            let marked = [b"\xEF\xBB\xBF", stream.as_bytes()].concat();
            for bytes in [stream.as_bytes(), &marked] {
                let single: Vec<&[u8]> = bytes.chunks(1).collect();
                assert_eq!(read(&single), ["größe", "b"], "{stream:?} byte by byte");
                for at in 0..=bytes.len() {
                    let (head, tail) = bytes.split_at(at);
                    assert_eq!(read(&[head, tail]), ["größe", "b"], "{stream:?} cut at {at}");
                }
            }
        }
    }

    #[test]
    fn oversized_event_is_an_error() {
        let mut events = SseParser::default();
        let piece = vec![b'x'; 1024 * 1024];
        let mut pushed = 0;
        let error = loop {
            let result: Result<(), EventTooLong> = events.push(&piece, |_| Ok(()));
            if let Err(error) = result {
                break error;
            }
            pushed += piece.len();
            assert!(pushed <= EVENT_BYTES_MAX, "the bound does not hold");
        };
        assert_eq!(error, EventTooLong);
    }
}
