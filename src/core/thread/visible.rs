//! Makes the invisible characters of a text visible, for terminals and permission prompts, so that nothing is hidden
//! from the user. Text in the log, in diffs and for the model is unchanged.

use std::borrow::Cow;

use super::titles::code_span;

/// Escapes every character that a reader can't see or that changes how others are shown, as `\u{202e}`: controls except
/// newline and tab, text direction marks, zero-width, tag and other characters that Unicode lets programs ignore.
/// `\r\n` becomes `\n`.
///
/// Joiners are kept within scripts and emoji that need them, as is the selector of a colored emoji.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |c, is_harmless| is_invisible(c) && !is_harmless && !matches!(c, '\n' | '\t'))
}

/// Like `visible`, for text of one line such as a title: newlines and tabs are escaped as well.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c, is_harmless| is_invisible(c) && !is_harmless)
}

/// Like `visible`, for what the user consents to: other spaces than the usual one are escaped as well. For a shell, they are
/// parts of words.
pub fn exact(text: &str) -> Cow<'_, str> {
    escaped(text, |c, is_harmless| is_deceptive(c, is_harmless) && !matches!(c, '\n' | '\t'))
}

/// The same for text of one line.
pub fn exact_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_deceptive)
}

/// A text of at most `chars_max` characters; a cut is marked with an ellipsis.
pub fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text.to_owned(),
    }
}

/// A text as one line of at most `chars_max` characters.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        // Don't read more of a long text than is shown.
        if line.len() > chars_max * 4 {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    shortened(&line, chars_max)
}

/// A text as a one-line Markdown code span that it can't close, so that it can't pose as a sentence of Epitome.
pub fn code(text: &str) -> String {
    code_span(&exact_line(&text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")))
}

/// A fenced block whose fence does not occur in the text.
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}")
}

/// A text without the fences of the code block that it consists of. A line of fences within it stays.
pub fn unfenced(text: &str) -> &str {
    let text = text.trim_matches('\n');
    let fence = &text[..text.len() - text.trim_start_matches('`').len()];
    let inner = text.split_once('\n').map(|(_, inner)| inner).filter(|_| fence.len() >= 3);
    inner.and_then(|inner| inner.strip_suffix(fence)).map_or(text, |inner| inner.trim_end_matches('\n'))
}

/// A quotation of the model for a Markdown text.
pub fn model_says(words: &str) -> String {
    format!("The model says: {}", code(words))
}

/// The distinct invisible characters and unusual spaces of a text, in order of appearance, except for those that the script
/// around them uses.
pub fn invisible_in(text: &str) -> Vec<char> {
    let mut found = Vec::new();
    for (c, is_harmless) in with_context(text) {
        let is_hidden = (is_invisible(c) || is_unusual_space(c)) && !is_harmless;
        if is_hidden && !matches!(c, '\n' | '\t' | '\r') && !found.contains(&c) {
            found.push(c);
        }
    }
    found
}

/// `is_escaped` is called with each character and whether its neighbors make it harmless.
fn escaped(text: &str, is_escaped: impl Fn(char, bool) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_escaped(c, false)) {
        return Cow::Borrowed(text);
    }
    // `\r\n` is just another line end.
    let unix = text.replace("\r\n", "\n");
    let mut shown = String::with_capacity(unix.len());
    for (c, is_harmless) in with_context(&unix) {
        if is_escaped(c, is_harmless) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// The characters of a text, each with a flag: whether its neighbors make it a harmless joiner, selector or space.
fn with_context(text: &str) -> impl Iterator<Item = (char, bool)> {
    let mut before = None;
    let mut rest = text.chars().peekable();
    std::iter::from_fn(move || {
        let c = rest.next()?;
        let previous = before.replace(c);
        let is_harmless = match c {
            '\u{200c}' | '\u{200d}' => {
                previous.is_some_and(is_joined) && rest.peek().copied().is_some_and(is_joined)
            }
            '\u{fe0f}' => previous.is_some_and(|c| !c.is_ascii() && !is_invisible(c)),
            c if is_unusual_space(c) => {
                previous.into_iter().chain(rest.peek().copied()).any(|c| !c.is_ascii() && c.is_alphabetic())
            }
            _ => false,
        };
        Some((c, is_harmless))
    })
}

/// Whether a character is an emoji, or of a script that uses joiners between letters.
fn is_joined(c: char) -> bool {
    matches!(c,
        // Arabic to Myanmar, except for invisible marks; Khmer and Mongolian.
        '\u{620}'..='\u{109f}' | '\u{1780}'..='\u{17b3}' | '\u{17b6}'..='\u{180a}' | '\u{1810}'..='\u{18aa}'
        // Symbols that are shown as emoji, and their selector.
        | '\u{2600}'..='\u{27bf}' | '\u{fe0f}' | '\u{1f000}'..='\u{1faff}')
}

/// Whether a character is one that a reader can't see or takes for a space.
fn is_deceptive(c: char, is_harmless: bool) -> bool {
    (is_invisible(c) && !is_harmless) || is_unusual_space(c)
}

fn is_unusual_space(c: char) -> bool {
    c.is_whitespace() && !c.is_ascii()
}

/// Control characters, the Unicode property `Default_Ignorable_Code_Point`, line and paragraph separators, and other
/// format characters without a shape.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_shortened_to_one_line() {
        assert_eq!(one_line("  a\n\tb  c ", 10), "a b c");
        assert_eq!(one_line(&"ab ".repeat(1_000), 5), "ab ab…");
        assert_eq!(one_line(&"ab ".repeat(1_000), 6), "ab ab…", "no space before the mark");
        assert_eq!(one_line(&"é".repeat(5), 5), "é".repeat(5));
        assert_eq!(one_line(&"é ".repeat(50), 3), "é é…");
        assert_eq!(one_line("", 5), "");
    }

    /// Regression: zero-width and tag characters reached the terminal, and all of these reached titles and permission
    /// prompts in editors.
    #[test]
    fn invisible_characters_are_escaped() {
        for (text, shown) in [
            ("a\tb\nc", "a\tb\nc"),
            ("a\r\nb", "a\nb"),
            ("rm -rf /\r echo hello", "rm -rf /\\u{d} echo hello"),
            ("\x1b[2Kok\u{9b}1m", "\\u{1b}[2Kok\\u{9b}1m"),
            ("\u{202e}txt.exe\u{2066}", "\\u{202e}txt.exe\\u{2066}"),
            ("cu\u{200b}rl\u{e0041}\u{2060}\u{feff}", "cu\\u{200b}rl\\u{e0041}\\u{2060}\\u{feff}"),
            ("a\u{200d}b", "a\\u{200d}b"),
            ("б\u{200d}в", "б\\u{200d}в"),
            ("e\u{301} ü 日本語 \u{1f600}", "e\u{301} ü 日本語 \u{1f600}"),
        ] {
            assert_eq!(visible(text), shown, "{text:?}");
        }
        assert_eq!(visible_line("a\nb\tc"), "a\\u{a}b\\u{9}c");
    }

    #[test]
    fn scripts_and_emoji_that_need_joiners_keep_them() {
        for text in ["می\u{200c}خواهم", "क\u{94d}\u{200d}ष", "👩\u{200d}💻", "❤\u{fe0f}", "⚠\u{fe0f} x"]
        {
            assert_eq!(visible(text), text);
        }
        assert_eq!(visible("👩\u{200d}\u{200d}"), "👩\\u{200d}\\u{200d}");
        assert_eq!(visible("é\u{fe0f}\u{fe0f}a\u{fe0f}"), "é\u{fe0f}\\u{fe0f}a\\u{fe0f}");
    }

    #[test]
    fn invisible_characters_are_listed_once() {
        assert_eq!(invisible_in("a\n\u{200b}b\u{200b}\u{202e} 👩\u{200d}💻"), ['\u{200b}', '\u{202e}']);
    }

    /// A command with a no-break space, which is a part of a word for a shell, looked like another one in its permission
    /// prompt, and so did a path with a space of another width.
    #[test]
    fn spaces_that_a_shell_takes_for_text_are_escaped_in_what_is_consented_to() {
        for c in ('\0'..=char::MAX).filter(|c| c.is_whitespace() && !" \n\t".contains(*c)) {
            let (text, shown) = (format!("ls{c}-a"), format!("ls{}-a", c.escape_unicode()));
            assert_eq!((exact(&text), exact_line(&text)), (shown.as_str().into(), shown.as_str().into()));
            assert_eq!(invisible_in(&text).len(), usize::from(c != '\r'), "{shown}");
            assert!(c.is_ascii() || code(&text).contains(&shown), "{shown}");
        }
        assert_eq!(exact("全角\u{3000}空白"), "全角\\u{3000}空白");
        assert_eq!(visible("10\u{202f}MB 全角\u{3000}空白"), "10\u{202f}MB 全角\u{3000}空白");
        assert_eq!(invisible_in("全角\u{3000}空白 déjà\u{a0}!"), ['\u{3000}'; 0]);
    }

    #[test]
    fn words_of_the_model_are_code() {
        assert_eq!(model_says("**Epitome:**\nsafe"), "The model says: `**Epitome:** safe`");
        assert_eq!(model_says("`x`"), "The model says: `` `x` ``");
    }
}
