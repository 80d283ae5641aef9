//! Short texts of the timeline.

/// Characters of a text's beginning: two lines of the page. The entry has all of it.
const HEAD_CHARS_MAX: usize = 240;

/// The beginning of a text, on one line.
pub fn head(text: &str) -> String {
    // Of a long text no more is looked at than can be shown.
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
    fn a_head_is_one_short_line() {
        assert_eq!(head("  a\n\tb  c "), "a b c");
        let long = head(&"ab ".repeat(1_000));
        assert_eq!(long.chars().count(), HEAD_CHARS_MAX + 1);
        assert!(long.ends_with('…'));
        assert_eq!(head(&"é".repeat(HEAD_CHARS_MAX)), "é".repeat(HEAD_CHARS_MAX));
        assert_eq!(head(""), "");
    }
}
