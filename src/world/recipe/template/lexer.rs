//! Splits a template into literal text and the tokens of its actions, without regard to grammar.

use super::TemplateError;

/// A token, its offset, and whether white space precedes it: `.a.b` and `.a .b` differ.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateToken {
    pub kind: TokenKind,
    pub at: usize,
    pub spaced: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TokenKind {
    /// Text outside of actions, with trim markers already applied.
    Literal(String),
    Open,
    Close,
    Dot,
    /// `.name`, without its dot.
    Field(String),
    /// `$name`, without its dollar; empty for `$` alone.
    Variable(String),
    Word(String),
    Text(String),
    Int(i64),
    Float(f64),
    Assign,
    Declare,
    Pipe,
    Comma,
    LeftParen,
    RightParen,
}

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// Tokenizes a template.
pub fn lex(source: &str) -> Result<Vec<TemplateToken>, TemplateError> {
    let mut lexer = Lexer { source, at: 0, tokens: Vec::new() };
    let mut trim_start = false;
    while lexer.at < source.len() {
        trim_start = lexer.text(trim_start)?;
    }
    Ok(lexer.tokens)
}

/// The actions of a template that runs commands, without their braces; empty if it runs none. All of them, because any
/// may compute a part of a command. A template that cannot be read is returned as a whole.
pub fn commands(source: &str) -> Vec<&str> {
    let Ok(tokens) = lex(source) else { return vec![source] };
    if !tokens.iter().any(|token| token.kind == TokenKind::Word("bash".to_owned())) {
        return Vec::new();
    }
    let mut open = 0;
    let mut actions = Vec::new();
    for token in tokens {
        match token.kind {
            TokenKind::Open => open = token.at + OPEN.len(),
            TokenKind::Close => actions.push(source[open..token.at].trim_start_matches('-').trim()),
            _ => {}
        }
    }
    actions
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    tokens: Vec<TemplateToken>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Reads text up to and including the next action; returns whether the text after it is to be trimmed.
    fn text(&mut self, trim_start: bool) -> Result<bool, TemplateError> {
        let rest = self.rest();
        let start = self.at;
        let length = rest.find(OPEN).unwrap_or(rest.len());
        let mut text = &rest[..length];
        self.at += length;
        let action = self.at < self.source.len();
        let open_at = self.at;
        let mut trim_end = false;
        if action {
            self.at += OPEN.len();
            trim_end = self.rest().strip_prefix('-').is_some_and(|rest| rest.starts_with(is_space));
            if trim_end {
                self.at += 1;
            }
        }
        if trim_start {
            text = text.trim_start_matches(is_space);
        }
        if trim_end {
            text = text.trim_end_matches(is_space);
        }
        if !text.is_empty() {
            self.push(TokenKind::Literal(text.to_owned()), start, false);
        }
        if action { self.action(open_at) } else { Ok(false) }
    }

    fn action(&mut self, open_at: usize) -> Result<bool, TemplateError> {
        let comment = self.rest().trim_start_matches(is_space);
        if comment.starts_with("/*") {
            return self.comment(open_at);
        }
        self.push(TokenKind::Open, open_at, false);
        loop {
            let before = self.at;
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start_matches(is_space).len();
            let spaced = self.at > before;
            let rest = self.rest();
            if rest.is_empty() {
                return Err(TemplateError::new(open_at, "this action is not closed")
                    .with_hint("close it with `}}`; a line of its own can follow"));
            }
            if rest.starts_with(CLOSE) {
                self.push(TokenKind::Close, self.at, spaced);
                self.at += CLOSE.len();
                return Ok(false);
            }
            if spaced && rest.starts_with("-}}") {
                self.push(TokenKind::Close, self.at, spaced);
                self.at += "-}}".len();
                return Ok(true);
            }
            self.token(spaced)?;
        }
    }

    fn comment(&mut self, open_at: usize) -> Result<bool, TemplateError> {
        let unclosed =
            || TemplateError::new(open_at, "this comment is not closed").with_hint("end it with `*/}}`");
        let length = self.rest().find("*/").ok_or_else(unclosed)?;
        self.at += length + "*/".len();
        let rest = self.rest();
        let behind = rest.trim_start_matches(is_space);
        let spaced = behind.len() < rest.len();
        for (mark, trims) in [("-}}", true), (CLOSE, false)] {
            if behind.starts_with(mark) && (spaced || !trims) {
                self.at += rest.len() - behind.len() + mark.len();
                return Ok(trims);
            }
        }
        Err(TemplateError::new(self.at, "a comment must fill its action").with_hint("write `}}` after `*/`"))
    }

    fn token(&mut self, spaced: bool) -> Result<(), TemplateError> {
        let at = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(()) };
        let (kind, length) = match first {
            '(' => (TokenKind::LeftParen, 1),
            ')' => (TokenKind::RightParen, 1),
            '|' => (TokenKind::Pipe, 1),
            ',' => (TokenKind::Comma, 1),
            '=' => (TokenKind::Assign, 1),
            ':' if rest.starts_with(":=") => (TokenKind::Declare, 2),
            '"' => escaped(rest, at, '"').map(|(text, length)| (TokenKind::Text(text), length))?,
            '`' => raw(rest, at)?,
            '\'' => character(rest, at)?,
            '$' => {
                let name = name_of(&rest[1..]);
                (TokenKind::Variable(name.to_owned()), 1 + name.len())
            }
            '.' if rest[1..].starts_with(is_name_start) => {
                let name = name_of(&rest[1..]);
                (TokenKind::Field(name.to_owned()), 1 + name.len())
            }
            '0'..='9' | '+' | '-' | '.' => match number(rest) {
                Some(number) => number,
                None if first == '.' => (TokenKind::Dot, 1),
                None => return Err(unexpected(first, at)),
            },
            first if is_name_start(first) => {
                let name = name_of(rest);
                (TokenKind::Word(name.to_owned()), name.len())
            }
            other => return Err(unexpected(other, at)),
        };
        self.push(kind, at, spaced);
        self.at += length;
        Ok(())
    }

    fn push(&mut self, kind: TokenKind, at: usize, spaced: bool) {
        self.tokens.push(TemplateToken { kind, at, spaced });
    }
}

fn unexpected(character: char, at: usize) -> TemplateError {
    TemplateError::new(at, format!("unexpected {character:?} in an action"))
        .with_hint("to have braces in the text, write {{\"{{\"}}")
}

/// White space as in Go's lexer.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

fn is_name_start(character: char) -> bool {
    character == '_' || character.is_alphabetic()
}

fn name_of(text: &str) -> &str {
    let end = text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len());
    &text[..end]
}

fn number(text: &str) -> Option<(TokenKind, usize)> {
    let end = text
        .char_indices()
        .find(|(index, c)| {
            let sign =
                matches!(c, '+' | '-') && (*index == 0 || matches!(text.as_bytes()[index - 1], b'e' | b'E'));
            !(c.is_ascii_alphanumeric() || *c == '.' || *c == '_' || sign)
        })
        .map_or(text.len(), |(index, _)| index);
    let word = &text[..end];
    if !word.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let plain = word.replace('_', "");
    let unsigned = plain.trim_start_matches(['+', '-']);
    if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        let value = i64::from_str_radix(digits, 16).ok()?;
        return Some((TokenKind::Int(if plain.starts_with('-') { -value } else { value }), end));
    }
    if let Ok(value) = plain.parse::<i64>() {
        return Some((TokenKind::Int(value), end));
    }
    let value = plain.parse::<f64>().ok().filter(|value| value.is_finite())?;
    Some((TokenKind::Float(value), end))
}

fn raw(rest: &str, at: usize) -> Result<(TokenKind, usize), TemplateError> {
    match rest[1..].find('`') {
        Some(length) => Ok((TokenKind::Text(rest[1..=length].to_owned()), length + 2)),
        None => {
            Err(TemplateError::new(at, "this string is not closed").with_hint("end it with a back quote"))
        }
    }
}

fn character(rest: &str, at: usize) -> Result<(TokenKind, usize), TemplateError> {
    let (text, length) = escaped(rest, at, '\'')?;
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(only), None) => Ok((TokenKind::Int(i64::from(u32::from(only))), length)),
        _ => Err(TemplateError::new(at, "single quotes contain one character here")
            .with_hint("write strings with double quotes")),
    }
}

/// Reads a quoted string with Go's escapes; returns the text and the length including both quotes.
fn escaped(rest: &str, at: usize, quote: char) -> Result<(String, usize), TemplateError> {
    let unclosed = || TemplateError::new(at, format!("this string is not closed: {quote} is missing"));
    let mut text = String::new();
    let mut characters = rest.char_indices().skip(1);
    while let Some((index, character)) = characters.next() {
        if character == quote {
            return Ok((text, index + character.len_utf8()));
        }
        match character {
            '\n' => {
                return Err(unclosed().with_hint("a string over several lines is written with back quotes"));
            }
            '\\' => {
                let (_, escape) = characters.next().ok_or_else(unclosed)?;
                let plain = match escape {
                    'n' => Some('\n'),
                    't' => Some('\t'),
                    'r' => Some('\r'),
                    '\\' | '"' | '\'' => Some(escape),
                    _ => None,
                };
                if let Some(plain) = plain {
                    text.push(plain);
                    continue;
                }
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    other => {
                        return Err(TemplateError::new(at + index, format!("unknown escape \\{other}"))
                            .with_hint("known are \\n \\t \\r \\\\ \\\" \\' \\x \\u \\U; back quotes take text as it is"));
                    }
                };
                let hex: String = characters.by_ref().take(digits).map(|(_, c)| c).collect();
                let decoded = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
                let bad = || TemplateError::new(at + index, format!("\\{escape} needs {digits} hex digits"));
                text.push(decoded.and_then(char::from_u32).ok_or_else(bad)?);
            }
            other => text.push(other),
        }
    }
    Err(unclosed())
}
