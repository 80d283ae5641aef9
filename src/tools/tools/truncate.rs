//! Truncates texts to a size that fits the model's context and notes what was omitted. Pure. Never cuts
//! inside a character, and cuts at a line boundary if one is near.

/// Some programs of Windows write it at the beginning of a text, and need it there.
pub const BYTE_ORDER_MARK: char = '\u{feff}';

/// Maximum bytes of a tool result's text for the model: about 8,000 tokens, so that a dozen calls fit into the
/// smallest supported context window.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;

/// The part of it for the beginning (a command's first error); the rest is for the end, where a failing build reports
/// most.
pub const OUTPUT_HEAD_BYTES: usize = 10 * 1024;

/// Maximum bytes of one complete output stored in addition to the text for the model: enough for a large build or
/// test run, and small enough that a hundred of them are harmless.
pub const WHOLE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Describes the middle of an output that exceeds even that limit.
pub const KEPT_NOWHERE: &str = "too much to be kept";

/// Maximum bytes displayed of one line; longer lines are minified code, which is not worth reading.
pub const LINE_BYTES_MAX: usize = 2_000;

/// Shortens a text of more than `max` bytes to its beginning and end. A note between them reports how much is omitted
/// and ends with `rest`, which explains how to get it.
pub fn head_and_tail(text: &str, max: usize, head: usize, rest: &str) -> String {
    if text.len() <= max {
        return text.to_string();
    }
    let first = head_of(text, head);
    let last = tail_of(&text[first.len()..], max - head);
    let missing = &text[first.len()..text.len() - last.len()];
    joined(first, last, missing.len() as u64, lines_in(missing), rest)
}

/// Joins a beginning and an end with a note about the omitted part.
pub fn joined(head: &str, tail: &str, bytes: u64, lines: u64, rest: &str) -> String {
    let open = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    let lines = if lines == 1 { "1 line".to_string() } else { format!("{lines} lines") };
    format!("{head}{open}[… {bytes} bytes ({lines}) left out here; {rest} …]\n{tail}")
}

/// Returns the longest prefix of at most `max` bytes, cut at a line boundary if there is one in its second half.
pub fn head_of(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = text.floor_char_boundary(max);
    match text[..end].rfind('\n') {
        Some(border) if border >= end / 2 => &text[..=border],
        Some(_) | None => &text[..end],
    }
}

/// Returns the longest suffix of at most `max` bytes, cut at a line boundary if there is one in its first half.
pub fn tail_of(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let start = text.ceil_char_boundary(text.len() - max);
    let tail = &text[start..];
    if text.as_bytes()[start - 1] == b'\n' {
        return tail;
    }
    match tail.find('\n') {
        Some(border) if border < tail.len() / 2 => &tail[border + 1..],
        Some(_) | None => tail,
    }
}

/// Truncates a line to `max` bytes, with a note about how much is omitted.
pub fn line(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_string();
    }
    let end = text.floor_char_boundary(max);
    format!("{}… [{} bytes of this line left out]", &text[..end], text.len() - end)
}

/// Truncates a line to about `max` bytes around the byte `at`, with notes about how much is omitted.
pub fn line_at(text: &str, at: usize, max: usize) -> String {
    let before = text.floor_char_boundary(at.saturating_sub(max / 4));
    if at < max / 2 || text.len() <= max {
        return line(text, max);
    }
    format!("[{before} bytes of this line left out] …{}", line(&text[before..], max))
}

/// Counts lines, including an unterminated last one.
pub fn lines_in(text: &str) -> u64 {
    let breaks = text.bytes().filter(|byte| *byte == b'\n').count() as u64;
    breaks + u64::from(!text.is_empty() && !text.ends_with('\n'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_that_fits_stays_as_it_is() {
        assert_eq!(head_and_tail("one\ntwo\n", 8, 4, "no way"), "one\ntwo\n");
    }

    #[test]
    fn long_text_keeps_complete_lines_at_both_ends() {
        let text = "first\nsecond\nthird\nfourth\nfifth\n";
        assert_eq!(
            head_and_tail(text, 16, 8, "ask again"),
            "first\n[… 20 bytes (3 lines) left out here; ask again …]\nfifth\n"
        );
    }

    #[test]
    fn a_text_without_lines_is_cut_between_characters() {
        let text = "ä".repeat(20);
        assert_eq!(
            head_and_tail(&text, 10, 5, "ask again"),
            "ää\n[… 32 bytes (1 line) left out here; ask again …]\nää"
        );
    }

    #[test]
    fn a_long_line_says_how_much_of_it_is_missing() {
        assert_eq!(line("abcdef", 4), "abcd… [2 bytes of this line left out]");
        assert_eq!(line("abcd", 4), "abcd");
    }

    proptest! {
        #[test]
        fn both_ends_are_kept_unchanged(text in "[a-zä\n]{0,300}", head in 0usize..40, tail in 0usize..40) {
            let cut = head_and_tail(&text, head + tail, head, "ask");
            if text.len() <= head + tail {
                prop_assert_eq!(cut, text);
            } else {
                let (first, rest) = cut.split_once("[… ").expect("the note is there");
                let (_, last) = rest.split_once(" …]\n").expect("the note ends");
                prop_assert!(text.starts_with(first.trim_end_matches('\n')));
                prop_assert!(text.ends_with(last));
                prop_assert!(first.len() <= head + 1 && last.len() <= tail);
            }
        }
    }
}
