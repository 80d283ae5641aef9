//! Converts a command's output to plain text of limited size.
//!
//! Removes terminal control sequences and keeps only the beginning and the end of long output, in bounded memory.

use super::truncate;
pub(super) use epitome_thread::terminal_text::{Cleaner, drawn};

const KEPT_HEAD_BYTES: usize = truncate::WHOLE_BYTES_MAX / 2;

/// Bytes kept of the end; up to twice as many while collecting.
const KEPT_TAIL_BYTES: usize = truncate::WHOLE_BYTES_MAX - KEPT_HEAD_BYTES;

/// How the model can get the omitted part.
const REST: &str =
    "to see it, run the command again with its output sent to a file, then read or search that";

/// Collects the output of one command.
#[derive(Default)]
pub struct CommandOutput {
    cleaner: Cleaner,
    head: String,
    tail: String,
    /// Bytes and line breaks discarded between head and tail.
    dropped_bytes: u64,
    dropped_lines: u64,
}

/// The output of a command that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    /// The output for the model, truncated to `truncate::OUTPUT_BYTES_MAX` with a note if needed.
    pub shown: String,
    /// The complete output, up to about `truncate::WHOLE_BYTES_MAX`, if `shown` is only a part.
    pub whole: Option<String>,
}

impl CommandOutput {
    /// Adds the next bytes and returns their text.
    pub fn take(&mut self, bytes: &[u8]) -> String {
        let text = self.cleaner.clean(bytes);
        self.keep(&text);
        text
    }

    /// Returns the output for the model and, if that is only a part, everything that was kept.
    pub fn finish(mut self) -> Finished {
        let rest = self.cleaner.finish();
        self.keep(&rest);
        if self.dropped_bytes == 0 {
            let all = drawn(&(self.head + &self.tail));
            if all.len() <= truncate::OUTPUT_BYTES_MAX {
                return Finished { shown: all, whole: None };
            }
            let shown =
                truncate::head_and_tail(&all, truncate::OUTPUT_BYTES_MAX, truncate::OUTPUT_HEAD_BYTES, REST);
            return Finished { shown, whole: Some(all) };
        }
        let tail_max = truncate::OUTPUT_BYTES_MAX - truncate::OUTPUT_HEAD_BYTES;
        let (head, tail) = (drawn(&self.head), drawn(&self.tail));
        let first = truncate::head_of(&head, truncate::OUTPUT_HEAD_BYTES);
        let last = truncate::tail_of(&tail, tail_max);
        let cut = [&head[first.len()..], &tail[..tail.len() - last.len()]];
        let bytes = self.dropped_bytes + cut.iter().map(|cut| cut.len() as u64).sum::<u64>();
        let lines = self.dropped_lines + cut.iter().map(|cut| truncate::lines_in(cut)).sum::<u64>();
        let shown = truncate::joined(first, last, bytes, lines, REST);
        let whole =
            truncate::joined(&head, &tail, self.dropped_bytes, self.dropped_lines, truncate::KEPT_NOWHERE);
        Finished { shown, whole: Some(whole) }
    }

    fn keep(&mut self, text: &str) {
        let space = KEPT_HEAD_BYTES.saturating_sub(self.head.len());
        let (head, tail) =
            if self.tail.is_empty() { text.split_at(text.floor_char_boundary(space)) } else { ("", text) };
        self.head.push_str(head);
        self.tail.push_str(tail);
        // Truncated only at twice the limit, so that each byte is moved once on average.
        if self.tail.len() > 2 * KEPT_TAIL_BYTES {
            let start = self.tail.ceil_char_boundary(self.tail.len() - KEPT_TAIL_BYTES);
            self.dropped_bytes += start as u64;
            self.dropped_lines += self.tail[..start].bytes().filter(|byte| *byte == b'\n').count() as u64;
            self.tail.drain(..start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut output = CommandOutput::default();
        for piece in pieces {
            output.take(piece);
        }
        output.finish().shown
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(shown(&[b"one\n", "zwölf\ttab\n".as_bytes()]), "one\nzwölf\ttab\n");
    }

    #[test]
    fn terminal_escape_sequences_are_removed() {
        let text =
            b"\x1b[1;31merror\x1b[0m: \x1b]0;title\x07no \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1b(B\n";
        assert_eq!(shown(&[text]), "error: no link\n");
    }

    #[test]
    fn characters_and_sequences_may_be_cut_anywhere() {
        let whole = "ö\u{1b}[32mgrün\u{1b}[0m€".as_bytes();
        let pieces: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(shown(&pieces), "ögrün€");
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        assert_eq!(shown(&[b"a\xffb", b"c\xe2\x82"]), "a\u{fffd}bc\u{fffd}");
    }

    #[test]
    fn progress_bar_is_reduced_to_its_last_state() {
        assert_eq!(shown(&[b"10%\r50%\r100%\r\ndone\r\n"]), "100%\ndone\n");
    }

    #[test]
    fn truncated_output_is_kept_completely() {
        let mut output = CommandOutput::default();
        let line = "0123456789abcde\n".repeat(truncate::OUTPUT_BYTES_MAX / 16);
        output.take(line.as_bytes());
        output.take(b"the end\n");
        let finished = output.finish();
        assert_eq!(finished.whole, Some(line + "the end\n"));
        assert!(finished.shown.contains("left out here"));
    }

    #[test]
    fn endless_output_uses_bounded_memory_and_notes_the_omission() {
        let mut output = CommandOutput::default();
        let line = [b"0123456789abcde\n".as_slice(); 1024].concat();
        for _ in 0..1_000 {
            output.take(&line);
        }
        assert!(output.head.len() + output.tail.len() <= KEPT_HEAD_BYTES + 2 * KEPT_TAIL_BYTES);
        output.take(b"the end\n");
        let Finished { shown: text, whole } = output.finish();
        let whole = whole.expect("what is shown is a part");
        assert!(whole.len() > truncate::WHOLE_BYTES_MAX && whole.contains(truncate::KEPT_NOWHERE));
        assert!(whole.starts_with("0123456789abcde\n") && whole.ends_with("the end\n"));
        assert!(text.len() < truncate::OUTPUT_BYTES_MAX + 300);
        assert!(text.starts_with("0123456789abcde\n") && text.ends_with("the end\n"));
        let (_, note) = text.split_once("[… ").expect("a note");
        let missing: usize = note.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        let note_bytes = text.len() - (16 * 1024 * 1_000 + 8 - missing);
        assert!(note_bytes < 300, "what is shown and what is missing are all of it");
    }
}
