//! Cuts texts to a size that a model can afford, and says what was cut. Pure; it never cuts in the
//! middle of a character, nor in the middle of a line where a line's border is near.

/// Bytes of one tool's text that the model reads: about 8,000 tokens, so that a dozen calls fit into
/// the smallest window that we support.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;

/// Of which the beginning gets this much (the command's first complaint) and the end the rest (its
/// last word), because a failing build says most at its end.
pub const OUTPUT_HEAD_BYTES: usize = 10 * 1024;

/// Bytes of one output that are kept as a whole beside what the model reads: a large build's or test run's,
/// and little enough that a hundred of them don't hurt.
pub const WHOLE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What is said of the middle of an output that is too large even for that.
pub const KEPT_NOWHERE: &str = "too much to be kept";

/// Bytes of one line that are shown: beyond lies minified code, which no one reads.
pub const LINE_BYTES_MAX: usize = 2_000;

/// Keeps the beginning and the end of a text of more than `max` bytes; between them stands a note that
/// says how much is missing and ends with `rest`, the way to get it.
pub fn head_and_tail(text: &str, max: usize, head: usize, rest: &str) -> String {
    if text.len() <= max {
        return text.to_string();
    }
    let first = head_of(text, head);
    let last = tail_of(&text[first.len()..], max - head);
    let missing = &text[first.len()..text.len() - last.len()];
    joined(first, last, missing.len() as u64, lines_in(missing), rest)
}

/// Puts a beginning and an end together around the note on what is missing between them.
pub fn joined(head: &str, tail: &str, bytes: u64, lines: u64, rest: &str) -> String {
    let open = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    let lines = if lines == 1 { "1 line".to_string() } else { format!("{lines} lines") };
    format!("{head}{open}[… {bytes} bytes ({lines}) left out here; {rest} …]\n{tail}")
}

/// The longest beginning of at most `max` bytes, up to a line's border if one lies in its second half.
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

/// The longest end of at most `max` bytes, from a line's border if one lies in its first half.
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

/// A line as it is shown: cut at `max` bytes with a mark that says how much is missing.
pub fn line(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_string();
    }
    let end = text.floor_char_boundary(max);
    format!("{}… [{} bytes of this line left out]", &text[..end], text.len() - end)
}

/// Lines of a text; the last one counts without a line break too.
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
    fn a_long_text_keeps_whole_lines_at_both_ends_and_says_what_is_missing() {
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
        fn both_ends_are_kept_and_nothing_is_invented(text in "[a-zä\n]{0,300}", head in 0usize..40, tail in 0usize..40) {
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
