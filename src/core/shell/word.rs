//! The words of a shell line as a program receives them, with marks for parts that only the shell can
//! determine.

use tree_sitter::Node;

use super::{children, document_in};

/// Represents text in a word that only the shell can determine.
pub const UNKNOWN: char = '\u{1}';
/// Represents a `*`, `?` or `[` that the shell takes literally.
pub const LITERAL: char = '\u{2}';

/// Returns a word as a program receives it, with marks for unknown parts.
pub fn literal(node: Node<'_>, line: &str) -> String {
    let text = &line[node.byte_range()];
    match node.kind() {
        "raw_string" => quoted(text.trim_matches('\'')),
        "ansi_c_string" => {
            let inner = text.strip_prefix("$'").and_then(|text| text.strip_suffix('\'')).unwrap_or(text);
            quoted(&ansi_c(inner))
        }
        "string" | "translated_string" => {
            let mut out = String::new();
            let mut at = node.start_byte();
            for child in children(node) {
                out.push_str(&between(&line[at..child.start_byte().max(at)]));
                at = child.end_byte();
                match child.kind() {
                    "\"" | "$\"" | "$" => {}
                    "string_content" => out.push_str(&between(&line[child.byte_range()])),
                    "string" => out.push_str(&literal(child, line)),
                    _ => out.push_str(&expanded(child, line)),
                }
            }
            out
        }
        "concatenation" => children(node).into_iter().map(|child| literal(child, line)).collect(),
        "word" | "number" | "command_name" | "regex" | "extglob_pattern" => unescaped(text),
        "variable_assignment" | "variable_name" => text.to_owned(),
        _ if !node.is_named() => text.to_owned(),
        _ => expanded(node, line),
    }
}

/// Returns a word of a command. A brace expansion makes several words of one, so nothing is known of it.
pub fn in_command(node: Node<'_>, line: &str) -> String {
    if is_braced(&line[node.byte_range()]) { UNKNOWN.to_string() } else { literal(node, line) }
}

/// Whether a word has braces outside of quotes with `,` or `..` in them: `to{u,}ch`, `{1..3}`.
fn is_braced(text: &str) -> bool {
    // Only a range ends with the next brace: Bash also splits `{a},b}` and `{a={},b}`.
    let (mut quote, mut open, mut range, mut dollar) = (None, false, false, false);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let after_dollar = std::mem::replace(&mut dollar, quote.is_none() && c == '$');
        match (quote, c) {
            (None | Some('"' | '$'), '\\') => drop(rest.next()),
            // `$'…'` has escapes, `'…'` has none.
            (None, '\'') if after_dollar => quote = Some('$'),
            (Some('$'), '\'') => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (Some(opened), c) if opened == c && c != '$' => quote = None,
            (None, '{') => (open, range) = (true, true),
            (None, ',') if open => return true,
            (None, '.') if range && rest.as_str().starts_with('.') => return true,
            (None, '}') => range = false,
            _ => {}
        }
    }
    false
}

/// Returns the text that represents an expansion by the shell.
pub fn expanded(node: Node<'_>, line: &str) -> String {
    // These expand to numbers only.
    match &line[node.byte_range()] {
        "$?" | "$#" | "$$" | "$!" => "0".to_owned(),
        _ if let Some(text) = document_in(node, line) => quoted(text),
        _ => UNKNOWN.to_string(),
    }
}

fn quoted(text: &str) -> String {
    text.replace(['*', '?', '['], &LITERAL.to_string())
}

/// Unescapes text between double quotes.
fn between(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match (c, characters.peek()) {
            ('\\', Some('\n')) => drop(characters.next()),
            ('\\', Some('"' | '\\' | '$' | '`')) => out.extend(characters.next()),
            _ => out.push(c),
        }
    }
    quoted(&out)
}

/// Unescapes a word without quotes.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                None | Some('\n') => {}
                Some('*' | '?' | '[') => out.push(LITERAL),
                Some(other) => out.push(other),
            },
            other => out.push(other),
        }
    }
    out
}

/// Decodes the content of `$'…'`.
fn ansi_c(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (radix, from, most) = match rest.chars().next() {
            Some('x') => (16, 1, 2),
            Some('u') => (16, 1, 4),
            Some('U') => (16, 1, 8),
            Some('0'..='7') => (8, 0, 3),
            Some(other) => {
                out.push(match other {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                });
                rest = &rest[other.len_utf8()..];
                continue;
            }
            None => return out,
        };
        let digits: String = rest[from..].chars().take(most).take_while(|c| c.is_digit(radix)).collect();
        let code = u32::from_str_radix(&digits, radix).ok().and_then(char::from_u32);
        out.extend(code);
        rest = &rest[from + digits.len()..];
    }
    out.push_str(rest);
    out
}
