//! Emphasis, code and links within a line of Markdown.

use super::{Color, StyledText};

/// The emphasis marks, longest first.
const MARKS: [(&str, Color); 5] = [
    ("**", Color::Bold),
    ("__", Color::Bold),
    ("~~", Color::Dim),
    ("*", Color::Italic),
    ("_", Color::Italic),
];

/// Maximum length in bytes of a line that is searched for marks. Longer ones are not handwritten and are shown
/// unchanged.
pub const LINE_BYTES_MAX: usize = 8 * 1024;

/// Splits a text into styled pieces without marks.
pub fn pieces(text: &str) -> Vec<StyledText> {
    if text.len() > LINE_BYTES_MAX {
        return vec![StyledText::new(text, &[])];
    }
    let mut found = Vec::new();
    split(text, &[], false, &mut found);
    found
}

/// Splits a text of Epitome into its code spans and the rest, which is exact: it may have names that are no Markdown.
pub fn code_spans(text: &str) -> Vec<StyledText> {
    if text.len() > LINE_BYTES_MAX {
        return vec![StyledText::new(text, &[])];
    }
    let mut found = Vec::new();
    split(text, &[], true, &mut found);
    found
}

fn split(text: &str, styles: &[Color], only_code: bool, found: &mut Vec<StyledText>) {
    let mut plain = String::new();
    let mut at = 0;
    let put = |plain: &mut String, found: &mut Vec<StyledText>| {
        if !plain.is_empty() {
            found.push(StyledText::new(std::mem::take(plain), styles));
        }
    };
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let escaped = rest.strip_prefix('\\').and_then(|rest| rest.chars().next());
        if let Some(escaped) = escaped.filter(|c| c.is_ascii_punctuation() && !only_code) {
            plain.push(escaped);
            at += 1 + escaped.len_utf8();
            continue;
        }
        match span(text, at).filter(|span| !only_code || matches!(span.kind, SpanKind::Code)) {
            Some(Span { inner, end, kind }) => {
                put(&mut plain, found);
                match kind {
                    SpanKind::Emphasis(color) => split(inner, &[styles, &[color]].concat(), false, found),
                    SpanKind::Code => {
                        found.push(StyledText::new(inner, &[styles, &[Color::Cyan]].concat()));
                    }
                    SpanKind::Link(target) => {
                        split(inner, &[styles, &[Color::Underline]].concat(), false, found);
                        if target != inner {
                            let text = format!(" ({target})");
                            found.push(StyledText::new(text, &[styles, &[Color::Dim]].concat()));
                        }
                    }
                }
                at = end;
            }
            None => {
                plain.push(c);
                at += c.len_utf8();
            }
        }
    }
    put(&mut plain, found);
}

struct Span<'a> {
    inner: &'a str,
    /// Position after the span.
    end: usize,
    kind: SpanKind<'a>,
}

enum SpanKind<'a> {
    Emphasis(Color),
    Code,
    Link(&'a str),
}

/// Returns the span that begins here, if it is closed.
fn span(text: &str, at: usize) -> Option<Span<'_>> {
    let rest = &text[at..];
    if rest.starts_with('`') {
        let ticks = &rest[..rest.len() - rest.trim_start_matches('`').len()];
        let inner = &rest[ticks.len()..];
        let end = inner.find(ticks)?;
        let code = &inner[..end];
        let code = code.strip_prefix(' ').and_then(|code| code.strip_suffix(' ')).unwrap_or(code);
        return Some(Span { inner: code, end: at + 2 * ticks.len() + end, kind: SpanKind::Code });
    }
    if let Some(inner) = rest.strip_prefix('[') {
        let middle = inner.find("](")?;
        let target = &inner[middle + 2..];
        let end = target.find(')')?;
        let is_target = !target[..end].contains(char::is_whitespace);
        let kind = SpanKind::Link(&target[..end]);
        return is_target.then_some(Span {
            inner: &inner[..middle],
            end: at + 1 + middle + 2 + end + 1,
            kind,
        });
    }
    let (mark, color) = mark_at(text, at)?;
    let inner = &rest[mark.len()..];
    let end = closing(inner, mark)?;
    Some(Span { inner: &inner[..end], end: at + 2 * mark.len() + end, kind: SpanKind::Emphasis(color) })
}

/// Returns the emphasis mark that may open here.
fn mark_at(text: &str, at: usize) -> Option<(&'static str, Color)> {
    let (mark, color) = MARKS.into_iter().find(|(mark, _)| text[at..].starts_with(mark))?;
    let next = text[at + mark.len()..].chars().next();
    let before = text[..at].chars().next_back();
    let opens = next.is_none_or(|c| !c.is_whitespace() && !mark.contains(c));
    // An underscore within a word is a part of the word.
    let is_within = mark.starts_with('_') && before.is_some_and(char::is_alphanumeric);
    (opens && !is_within).then_some((mark, color))
}

/// Returns the end of the emphasis in the text after its mark.
fn closing(inner: &str, mark: &str) -> Option<usize> {
    // The emphasis has a character at least.
    let mut from = inner.chars().next()?.len_utf8();
    while let Some(found) = inner.get(from..)?.find(mark) {
        let at = from + found;
        let before = inner[..at].chars().next_back();
        let after = inner[at + mark.len()..].chars().next();
        let is_longer = mark.len() == 1 && (after == mark.chars().next() || before == mark.chars().next());
        let is_within = mark.starts_with('_') && after.is_some_and(char::is_alphanumeric);
        if before.is_some_and(|c| !c.is_whitespace()) && !is_longer && !is_within {
            return Some(at);
        }
        from = at + mark.len();
        while !inner.is_char_boundary(from) {
            from += 1;
        }
    }
    None
}

/// Returns the position of the last blank outside of spans that precedes anything that may open an incomplete span.
/// The text before it can't change its meaning. At most `delayed_max` bytes are delayed.
pub fn settled(text: &str, delayed_max: usize) -> Option<usize> {
    let (mut at, mut blank) = (0, None);
    while let Some(c) = text[at..].chars().next() {
        match span(text, at) {
            Some(span) => at = span.end,
            None => {
                let may_open = matches!(c, '`' | '[' | '\\') || mark_at(text, at).is_some();
                if may_open && text.len() - at < delayed_max {
                    break;
                }
                if c == ' ' {
                    blank = Some(at);
                }
                at += c.len_utf8();
            }
        }
    }
    blank
}
