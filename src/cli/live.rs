//! The newest output of a running call, shown while the user waits. Pure.

use crate::session::event_queue::keep_newest;
use crate::thread::CallId;
use crate::thread::visible::visible;

/// Maximum number of lines that are shown.
pub const LINES_MAX: usize = 4;

/// Bytes of output that are kept, more than are shown.
const KEPT_BYTES_MAX: usize = 8 * 1024;

/// The output of the call that printed last.
#[derive(Debug, Default)]
pub struct PrintedOutput {
    printed: Option<(CallId, String)>,
}

impl PrintedOutput {
    /// Adds output of a call.
    pub fn printed(&mut self, call: &CallId, output: &str) {
        let before = self.printed.take().filter(|(known, _)| known == call);
        let (call, mut text) = before.unwrap_or_else(|| (call.clone(), String::new()));
        text.push_str(output);
        keep_newest(&mut text, KEPT_BYTES_MAX);
        self.printed = Some((call, text));
    }

    /// Discards the output of a call that has ended; its result contains it.
    pub fn ended(&mut self, call: &CallId) {
        self.printed.take_if(|(known, _)| known == call);
    }

    /// Returns the last lines that are not empty, each cut to one row of `columns` columns.
    pub fn lines(&self, columns: usize) -> Vec<String> {
        let Some((_, text)) = &self.printed else { return Vec::new() };
        // A progress bar overwrites its line.
        let newest = |line: &str| line.rsplit('\r').find(|part| !part.trim().is_empty()).map(str::to_owned);
        let mut lines: Vec<String> = text.lines().rev().filter_map(newest).take(LINES_MAX).collect();
        lines.reverse();
        lines.iter().map(|line| fitting(&visible(line), columns)).collect()
    }
}

/// Cuts a line so that it certainly fits, because a row that wraps could not be erased. Non-ASCII characters are
/// counted as two columns.
pub fn fitting(line: &str, columns: usize) -> String {
    let mut used = 0;
    let mut fits = String::new();
    for character in line.chars() {
        let width = match character {
            '\t' => 1,
            character if character.is_ascii() => 1,
            _ => 2,
        };
        if used + width >= columns {
            fits.push('…');
            break;
        }
        used += width;
        fits.push(if character == '\t' { ' ' } else { character });
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> CallId {
        CallId(name.into())
    }

    #[test]
    fn the_last_lines_of_the_call_that_printed_last_are_shown() {
        let mut live = PrintedOutput::default();
        assert!(live.lines(80).is_empty());
        live.printed(&call("a"), "one\ntwo\n\nthr");
        live.printed(&call("a"), "ee\nfour\nfive\n");
        assert_eq!(live.lines(80), ["two", "three", "four", "five"]);
        live.printed(&call("b"), "10%\r50%\r");
        assert_eq!(live.lines(80), ["50%"]);
        live.ended(&call("a"));
        assert_eq!(live.lines(80), ["50%"]);
        live.ended(&call("b"));
        assert!(live.lines(80).is_empty());
    }

    #[test]
    fn a_line_stays_in_its_row_and_commands_nothing() {
        let mut live = PrintedOutput::default();
        live.printed(&call("a"), "\x1b[2Jabcdefghij\n日本語日本語\na\tb");
        assert_eq!(live.lines(8), ["\\u{1b}[…", "日本語…", "a b"]);
        live.printed(&call("a"), &"x".repeat(3 * KEPT_BYTES_MAX));
        assert_eq!(live.printed.as_ref().map(|(_, text)| text.len()), Some(KEPT_BYTES_MAX));
    }
}
