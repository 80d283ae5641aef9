//! Short texts for the timeline.

/// Most characters of an excerpt: two lines on the page. The entry has the complete text.
const HEAD_CHARS_MAX: usize = 240;

/// Returns the beginning of a text, on one line.
pub fn head(text: &str) -> String {
    // Lazy: no more of a long text is scanned than is shown.
    let words = text.split_whitespace();
    let mut line = String::new();
    let mut chars = 0;
    for word in words {
        if chars > 0 {
            line.push(' ');
            chars += 1;
        }
        for c in word.chars() {
            if chars >= HEAD_CHARS_MAX {
                line.push('…');
                return line;
            }
            line.push(c);
            chars += 1;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(head("  a\n\tb  c "), "a b c");
        let long = head(&"ab ".repeat(1_000));
        assert_eq!(long.chars().count(), HEAD_CHARS_MAX + 1);
        assert!(long.ends_with('…'));
        assert_eq!(head(&"é".repeat(HEAD_CHARS_MAX)), "é".repeat(HEAD_CHARS_MAX));
        assert_eq!(head(""), "");
    }
}
