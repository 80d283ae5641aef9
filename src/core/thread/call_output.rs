//! The output of a running call.

/// New output of a running call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOutput {
    /// As plain text: without escape sequences, with masked keys, and with what is not UTF-8 replaced.
    pub text: String,
    /// The same as a command wrote it, for clients that have a terminal. `None` if it is no output of a command, if a
    /// key was masked in it, or if some of it was left out.
    pub written: Option<WrittenBytes>,
}

/// A piece of what a command writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenBytes {
    /// How many bytes precede it.
    pub at: u64,
    pub bytes: Vec<u8>,
    /// Whether nothing follows it. A client that has all pieces up to the last has everything.
    pub is_last: bool,
}

impl CallOutput {
    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.written.as_ref().map_or(0, |written| written.bytes.len())
    }

    pub fn append(&mut self, more: &CallOutput) {
        self.text.push_str(&more.text);
        self.written = self.written.take().zip(more.written.as_ref()).and_then(|(mut written, more)| {
            let follows = more.at == written.end();
            written.bytes.extend_from_slice(&more.bytes);
            written.is_last = more.is_last;
            follows.then_some(written)
        });
    }

    /// Keeps the newest text, of at most this many bytes, if it takes more.
    pub fn keep_newest(&mut self, bytes: usize) {
        if self.bytes() > bytes {
            self.written = None;
            let from = self.text.ceil_char_boundary(self.text.len().saturating_sub(bytes));
            self.text.drain(..from);
        }
    }
}

impl WrittenBytes {
    /// How many bytes were written up to the end of this piece.
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

impl<T: Into<String>> From<T> for CallOutput {
    fn from(text: T) -> CallOutput {
        CallOutput { text: text.into(), written: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(at: u64, bytes: &[u8]) -> CallOutput {
        let written = WrittenBytes { at, bytes: bytes.to_vec(), is_last: false };
        CallOutput { text: String::from_utf8_lossy(bytes).into_owned(), written: Some(written) }
    }

    #[test]
    fn pieces_that_follow_one_another_are_joined() {
        let mut output = piece(0, b"one\xff");
        output.append(&piece(4, b"two"));
        assert_eq!(output, CallOutput { text: "one\u{fffd}two".to_owned(), ..piece(0, b"one\xfftwo") });
    }

    #[test]
    fn bytes_with_a_gap_are_not_passed_on() {
        for more in [piece(4, b"two"), CallOutput::from("two")] {
            let mut output = piece(0, b"one");
            output.append(&more);
            assert_eq!(output, CallOutput::from("onetwo"));
        }
        let mut output = piece(0, "één".as_bytes());
        output.keep_newest(4);
        assert_eq!(output, CallOutput::from("én"));
    }
}
