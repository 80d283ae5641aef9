//! The words of a transcript line: bare words, JSON values, and `key=value` pairs.
//!
//! Parsing and writing are inverse: `write` formats every sequence of words that `read` returns so that `read`
//! returns the same sequence again.

use serde_json::Value;

/// Maximum number of characters of a line that are quoted in an error.
const NEAR_CHARS_MAX: usize = 20;

/// Maximum line width in columns; JSON values in a wider line are spread over several lines.
const WIDTH: usize = 110;

/// Columns before the first word of a message line, and of each continuation line.
pub const GUTTER: usize = 8;

/// A word of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum LineWord {
    /// Text without white space that does not begin like a JSON string, array or object.
    Bare(String),
    /// A JSON string, array or object.
    Json(Value),
    /// `key=` directly followed by a JSON string, array or object.
    Pair(String, Value),
}

impl LineWord {
    /// The key and text of an attribute, `key=text` or `key="text"`.
    pub fn attribute(&self) -> Option<(&str, String)> {
        match self {
            LineWord::Bare(word) => word.split_once('=').map(|(key, text)| (key, text.to_owned())),
            LineWord::Pair(key, Value::String(text)) => Some((key, text.clone())),
            LineWord::Pair(key, value) => Some((key, value.to_string())),
            LineWord::Json(_) => None,
        }
    }
}

/// Returns the text of a bare word or a JSON string.
pub fn as_text(word: &LineWord) -> Option<String> {
    match word {
        LineWord::Bare(text) | LineWord::Json(Value::String(text)) => Some(text.clone()),
        LineWord::Json(_) | LineWord::Pair(..) => None,
    }
}

pub fn bare(text: &str) -> LineWord {
    LineWord::Bare(text.to_owned())
}

/// Creates a text in quotes.
pub fn quoted(text: &str) -> LineWord {
    LineWord::Json(Value::String(text.to_owned()))
}

/// Creates an attribute, quoted if necessary.
pub fn pair(key: &str, text: &str) -> LineWord {
    match is_plain(text) {
        true => LineWord::Bare(format!("{key}={text}")),
        false => LineWord::Pair(key.to_owned(), Value::String(text.to_owned())),
    }
}

/// Creates a word for a text, quoted only if necessary.
pub fn bare_or_json(text: &str) -> LineWord {
    let is_bare = is_plain(text) && !text.starts_with('#') && !text.contains('=');
    if is_bare { bare(text) } else { quoted(text) }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['"', '{', '['])
        && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// Splits a line into its words and the comment after them. A comment starts with `# `.
pub fn read(line: &str) -> Result<(Vec<LineWord>, Option<String>), String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        if rest == "#" || rest.starts_with("# ") {
            return Ok((words, Some(rest[1..].trim().to_owned())));
        }
        if rest.starts_with(['"', '{', '[']) {
            let (value, after) = read_json(rest)?;
            words.push(LineWord::Json(value));
            rest = after;
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let value_at = rest[..end].find('=').map(|at| at + 1);
            match value_at {
                Some(at) if rest[at..].starts_with(['"', '{', '[']) => {
                    let (value, after) = read_json(&rest[at..])?;
                    words.push(LineWord::Pair(rest[..at - 1].to_owned(), value));
                    rest = after;
                }
                Some(_) | None => {
                    words.push(LineWord::Bare(rest[..end].to_owned()));
                    rest = &rest[end..];
                }
            }
        }
        if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
            let near: String = rest.chars().take(NEAR_CHARS_MAX).collect();
            return Err(format!("a space is missing before `{near}`"));
        }
        rest = rest.trim_start();
    }
    Ok((words, None))
}

fn read_json(text: &str) -> Result<(Value, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, &text[values.byte_offset()..])),
        Some(Err(error)) => Err(format!("this is no JSON: {error}")),
        None => Err("a JSON value is missing".into()),
    }
}

/// Writes words after a gutter. Lines that would be too wide are continued with the same indentation.
pub fn write(gutter: &str, words: &[LineWord], comment: Option<&str>) -> String {
    let mut out = format!("{gutter:<GUTTER$}");
    let flat: Vec<String> = words.iter().map(flat).collect();
    let wide = out.len() + flat.iter().map(|word| word.chars().count() + 1).sum::<usize>() > WIDTH;
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            out.push(' ');
        }
        match word {
            LineWord::Json(value) if wide => layout(value, GUTTER, &mut out),
            LineWord::Pair(key, value) if wide => {
                out.push_str(key);
                out.push('=');
                layout(value, GUTTER, &mut out);
            }
            LineWord::Bare(_) | LineWord::Json(_) | LineWord::Pair(..) => out.push_str(&flat[at]),
        }
    }
    if let Some(comment) = comment {
        out.push_str("  # ");
        out.push_str(comment);
    }
    out.truncate(out.trim_end().len());
    out
}

fn flat(word: &LineWord) -> String {
    match word {
        LineWord::Bare(text) => text.clone(),
        LineWord::Json(value) => value.to_string(),
        LineWord::Pair(key, value) => format!("{key}={value}"),
    }
}

/// Lays out a value over several lines, keeping parts that fit on one line.
fn layout(value: &Value, indent: usize, out: &mut String) {
    let flat = value.to_string();
    let column = out.len() - out.rfind('\n').map_or(0, |at| at + 1);
    if column + flat.chars().count() <= WIDTH {
        out.push_str(&flat);
        return;
    }
    let mut list = |[open, close]: [char; 2], items: Vec<(Option<&String>, &Value)>| {
        let inner = indent + 2;
        out.push(open);
        for (at, (key, value)) in items.into_iter().enumerate() {
            out.push_str(if at > 0 { ",\n" } else { "\n" });
            out.push_str(&" ".repeat(inner));
            if let Some(key) = key {
                out.push_str(&format!("{}:", Value::String(key.clone())));
            }
            layout(value, inner, out);
        }
        out.push(close);
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            list(['{', '}'], map.iter().map(|(key, value)| (Some(key), value)).collect());
        }
        Value::Array(items) if !items.is_empty() => {
            list(['[', ']'], items.iter().map(|value| (None, value)).collect());
        }
        _ => out.push_str(&flat),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_has_bare_words_json_values_pairs_and_a_comment() {
        let (words, comment) = read(r#"call $C1 at=$DIR/a.txt:3 title="Read a.txt" {"a":[1]} "x" # why"#)
            .expect("the line is well formed");
        assert_eq!(
            words,
            [
                LineWord::Bare("call".into()),
                LineWord::Bare("$C1".into()),
                LineWord::Bare("at=$DIR/a.txt:3".into()),
                LineWord::Pair("title".into(), json!("Read a.txt")),
                LineWord::Json(json!({"a": [1]})),
                LineWord::Json(json!("x")),
            ]
        );
        assert_eq!(comment.as_deref(), Some("why"));
    }

    #[test]
    fn a_reference_to_a_request_is_not_a_comment() {
        let (words, comment) = read("result #3 {}").expect("the line is well formed");
        assert_eq!(words[1], LineWord::Bare("#3".into()));
        assert_eq!(comment, None);
    }

    #[test]
    fn broken_json_and_missing_spaces_are_refused_with_their_position() {
        assert!(read(r#"text "unclosed"#).unwrap_err().contains("no JSON"));
        assert!(read(r#""a"b"#).unwrap_err().contains("before `b`"));
    }

    #[test]
    fn a_wide_value_is_continued_below_the_gutter_and_read_back() {
        let value = json!({"first": "x".repeat(60), "second": {"third": "y".repeat(60)}});
        let text = write("agent<", &[LineWord::Bare("result".into()), LineWord::Json(value.clone())], None);
        assert!(text.lines().skip(1).all(|line| line.starts_with("          \"")), "{text}");
        let (words, _) = read(text.strip_prefix("agent<").expect("written above")).expect("reads back");
        assert_eq!(words[1], LineWord::Json(value));
    }
}
